/* Rows of a table, of bf16 (the embedding) or of floats (rows of the residual stream), as floats: one block a
 * token, eight values a thread at a time. Bound by latency. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, VECTOR = 8 };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	embedding_kernel(float *out, const u32 *ids, const T *table, u32 hidden, u32 first, u32 rows, float scale,
			 bool accumulate)
{
	cu_grid_begin();
	const u32 t = blockIdx.x, row = ids[t] - first; /* wraps to a large number below `first` */
	const bool inside = row < rows;
	const T *from = table + (size_t)(inside ? row : 0) * hidden;
	float *to = out + (size_t)t * hidden;
	for (u32 i = threadIdx.x * VECTOR; i < hidden; i += THREADS * VECTOR) {
		float x[VECTOR] = {}, before[VECTOR] = {};
		if (inside)
			load8(from + i, x);
		if (accumulate)
			load8((const float *)to + i, before);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			x[e] = x[e] * scale + before[e];
		store8(to + i, x);
	}
}

template <typename T> static enum err run(const struct kern_embedding_args *a, cudaStream_t stream)
{
	const float scale = a->scale != 0 ? a->scale : 1;
	return cuda_launched(LAUNCH_DEPENDENT(embedding_kernel<T>, a->tokens, THREADS, 0, stream, a->out, a->ids,
				    (const T *)a->table, a->hidden, a->first, a->rows, scale, a->accumulate));
}

CUDA_OP(embedding)
{
	if ((a->table_dtype != KERN_BF16 && a->table_dtype != KERN_F32) || a->hidden % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->out) || !cuda_aligned(a->table))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return a->table_dtype == KERN_BF16 ? run<u16>(a, cuda_stream(ctx)) : run<float>(a, cuda_stream(ctx));
}
