/* Copies of whole KV blocks, by lists of pairs: one block of threads a pair, layer and side. */
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

static __global__ void __launch_bounds__(THREADS)
	block_copy_kernel(const struct kern_kv *layers, const u32 *src, const u32 *dst)
{
	const struct kern_kv *kv = &layers[blockIdx.y];
	const size_t bytes = block_bytes_of(kv);
	u8 *base = (u8 *)(blockIdx.z == 0 ? kv->k : kv->v);
	copy_bytes(base + dst[blockIdx.x] * bytes, base + src[blockIdx.x] * bytes, bytes);
}

CUDA_OP(block_copy)
{
	if (a->layer_count > CUDA_GRID_Y_MAX)
		return ERR_INVALID;
	if (a->count == 0 || a->layer_count == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(block_copy_kernel, dim3(a->count, a->layer_count, 2), THREADS, 0,
				    cuda_stream(ctx), a->layers, a->src, a->dst));
}
