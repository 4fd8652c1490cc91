/* The weighted sum of what a token's experts say: a block a token, a thread eight values. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, VECTOR = 8 };

static __global__ void __launch_bounds__(THREADS)
	moe_combine_kernel(u16 *out, const u16 *x, const float *weights, const u32 *assignments, u32 top,
			   u32 hidden)
{
	const size_t t = blockIdx.x;
	for (u32 i = threadIdx.x * VECTOR; i < hidden; i += THREADS * VECTOR) {
		float sum[VECTOR] = {};
		for (u32 j = 0; j < top; j++) {
			const float weight = weights[t * top + j];
			float v[VECTOR];
			unpack8(cu_load<uint4>(x + (size_t)assignments[t * top + j] * hidden + i), v);
#pragma unroll
			for (u32 e = 0; e < VECTOR; e++)
				sum[e] += weight * v[e];
		}
		cu_store(out + t * hidden + i, pack8(sum));
	}
}

CUDA_OP(moe_combine)
{
	if (a->dtype != KERN_BF16 || a->hidden % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->out_bf16) || !cuda_aligned(a->x_bf16))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(moe_combine_kernel, a->tokens, THREADS, 0, cuda_stream(ctx), a->out_bf16,
				    a->x_bf16, a->weights, a->assignments, a->top, a->hidden));
}
