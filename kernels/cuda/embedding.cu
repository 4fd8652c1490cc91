/* Rows of the embedding table: one block a token, 16 bytes a thread at a time. Bound by latency. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, VECTOR = 8 };

static __global__ void __launch_bounds__(THREADS)
	embedding_kernel(u16 *out, const u32 *ids, const u16 *table, u32 hidden, u32 first, u32 rows,
			 float scale)
{
	const u32 t = blockIdx.x, row = ids[t] - first; /* wraps to a large number below `first` */
	const bool inside = row < rows;
	const u16 *from = table + (size_t)(inside ? row : 0) * hidden;
	u16 *to = out + (size_t)t * hidden;
	for (u32 i = threadIdx.x * VECTOR; i < hidden; i += THREADS * VECTOR) {
		uint4 v = inside ? cu_load<uint4>(from + i) : make_uint4(0, 0, 0, 0);
		if (scale != 1) {
			float x[VECTOR];
			unpack8(v, x);
#pragma unroll
			for (u32 e = 0; e < VECTOR; e++)
				x[e] *= scale;
			v = pack8(x);
		}
		cu_store(to + i, v);
	}
}

CUDA_OP(embedding)
{
	if (a->dtype != KERN_BF16 || a->table_dtype != KERN_BF16 || a->hidden % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->out_bf16) || !cuda_aligned(a->table))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(embedding_kernel, a->tokens, THREADS, 0, cuda_stream(ctx), a->out_bf16,
				    a->ids, (const u16 *)a->table, a->hidden, a->first, a->rows,
				    a->scale != 0 ? a->scale : 1));
}
