/* Copies of whole KV blocks within a pool, and out of it and in again, by lists of pairs: one block of
 * threads a pair, layer and side. Pinned host memory is read and written in place. */
#include "kernels/cuda/device.cuh"

/* A swap runs beside a step, whose kernels shall find room on the multiprocessors: 64 blocks have 256 KiB on their way
 * at a time, twice what a bus of 64 GB/s carries in 2 us. */
enum { THREADS = 256, VECTOR_BYTES = 16, SWAP_BLOCKS = 64 };

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

/* Grid: pairs that are worked on at once, layers, K and V. Within a pool `from` and `to` are the same. */
static __global__ void __launch_bounds__(THREADS)
	block_copy_kernel(const struct kern_kv *from, const struct kern_kv *to, const u32 *src,
			  const u32 *dst, u32 count)
{
	const struct kern_kv *f = &from[blockIdx.y], *t = &to[blockIdx.y];
	const size_t bytes = block_bytes_of(f);
	u8 *target = (u8 *)(blockIdx.z == 0 ? t->k : t->v);
	const u8 *source = (const u8 *)(blockIdx.z == 0 ? f->k : f->v);
	for (u32 i = blockIdx.x; i < count; i += gridDim.x)
		copy_bytes(target + dst[i] * bytes, source + src[i] * bytes, bytes);
}

static enum err launch(const struct kern_swap_args *a, u32 at_once, cudaStream_t stream)
{
	if (a->layer_count > CUDA_GRID_Y_MAX)
		return ERR_INVALID;
	if (a->count == 0 || a->layer_count == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(block_copy_kernel, dim3(at_once, a->layer_count, 2), THREADS, 0, stream,
				    a->from, a->to, a->src, a->dst, a->count));
}

CUDA_OP(block_copy)
{
	const struct kern_swap_args same = {a->layers, a->layers, a->layer_count, a->src, a->dst, a->count};
	return launch(&same, a->count, cuda_stream(ctx));
}

extern "C" enum err swap_cuda(struct kern_ctx *ctx, const struct kern_swap_args *a)
{
	const u32 sides = 2 * a->layer_count, pairs = sides && sides < SWAP_BLOCKS ? SWAP_BLOCKS / sides : 1;

	return launch(a, pairs < a->count ? pairs : a->count, cuda_stream(ctx));
}
