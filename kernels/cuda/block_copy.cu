/* Copies of whole KV blocks within a pool, and out of it and in again, by lists of pairs: one block of
 * threads a pair, layer and side. Pinned host memory is read and written in place. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, VECTOR_BYTES = 16 };

CU_INLINE size_t block_bytes_of(const struct kern_kv *kv)
{
	const bool bytes = kv->dtype == KERN_I8 || kv->dtype == KERN_F8E4M3;
	const u32 token =
		bytes ? kv->head_dim + sizeof(float) : kv->head_dim * (kv->dtype == KERN_F32 ? 4 : 2);
	return (size_t)kv->kv_heads * kv->block_size * token;
}

CU_INLINE void copy_bytes(u8 *to, const u8 *from, size_t bytes)
{
	if (bytes % VECTOR_BYTES == 0) {
		for (size_t i = (size_t)threadIdx.x * VECTOR_BYTES; i < bytes; i += THREADS * VECTOR_BYTES)
			cu_store(to + i, cu_load<uint4>(from + i));
		return;
	}
	for (size_t i = threadIdx.x; i < bytes; i += THREADS) /* toy shapes only */
		to[i] = from[i];
}

/* Grid: pairs, layers, K and V. Within a pool `from` and `to` are the same. */
static __global__ void __launch_bounds__(THREADS)
	block_copy_kernel(const struct kern_kv *from, const struct kern_kv *to, const u32 *src,
			  const u32 *dst)
{
	const struct kern_kv *f = &from[blockIdx.y], *t = &to[blockIdx.y];
	const size_t bytes = block_bytes_of(f);
	u8 *target = (u8 *)(blockIdx.z == 0 ? t->k : t->v);
	const u8 *source = (const u8 *)(blockIdx.z == 0 ? f->k : f->v);
	copy_bytes(target + dst[blockIdx.x] * bytes, source + src[blockIdx.x] * bytes, bytes);
}

static enum err launch(const struct kern_swap_args *a, cudaStream_t stream)
{
	if (a->layer_count > CUDA_GRID_Y_MAX)
		return ERR_INVALID;
	if (a->count == 0 || a->layer_count == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(block_copy_kernel, dim3(a->count, a->layer_count, 2), THREADS, 0, stream,
				    a->from, a->to, a->src, a->dst));
}

CUDA_OP(block_copy)
{
	const struct kern_swap_args same = {a->layers, a->layers, a->layer_count, a->src, a->dst, a->count};
	return launch(&same, cuda_stream(ctx));
}

extern "C" enum err swap_cuda(struct kern_ctx *ctx, const struct kern_swap_args *a)
{
	return launch(a, cuda_stream(ctx));
}
