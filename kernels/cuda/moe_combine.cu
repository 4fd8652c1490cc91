/* The weighted sum of what a token's experts say: a block a token, a thread eight values. Into the residual
 * stream, in floats, or by itself, in bf16. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, VECTOR = 8 };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	moe_combine_kernel(T *out, const u16 *x, const float *weights, const u32 *assignments, const u16 *shared,
			   const float *shared_gate, u32 top, u32 hidden, bool accumulate)
{
	cu_grid_begin();
	const size_t t = blockIdx.x;
	const float share = shared_gate ? 1 / (1 + cu_exp2(shared_gate[t] * -1.442695041f)) : 1; /* -1 / ln 2 */
	for (u32 i = threadIdx.x * VECTOR; i < hidden; i += THREADS * VECTOR) {
		T *to = out + t * hidden + i;
		float sum[VECTOR] = {};
		for (u32 j = 0; j < top; j++) {
			const float weight = weights[t * top + j];
			float v[VECTOR];
			load8(x + (size_t)assignments[t * top + j] * hidden + i, v);
#pragma unroll
			for (u32 e = 0; e < VECTOR; e++)
				sum[e] += weight * v[e];
		}
		if (shared) {
			float v[VECTOR];
			load8(shared + t * hidden + i, v);
#pragma unroll
			for (u32 e = 0; e < VECTOR; e++)
				sum[e] += share * v[e];
		}
		if (accumulate) {
			float before[VECTOR];
			load8(to, before);
#pragma unroll
			for (u32 e = 0; e < VECTOR; e++)
				sum[e] += before[e];
		}
		store8(to, sum);
	}
}

template <typename T>
static enum err run(T *out, const struct kern_moe_combine_args *a, cudaStream_t stream)
{
	return cuda_launched(LAUNCH_DEPENDENT(moe_combine_kernel<T>, a->tokens, THREADS, 0, stream, out, a->x_bf16, a->weights,
				    a->assignments, a->shared_bf16, a->shared_gate, a->top, a->hidden, a->accumulate));
}

CUDA_OP(moe_combine)
{
	if (a->dtype != KERN_BF16 || (a->out_dtype != KERN_F32 && a->out_dtype != KERN_BF16) ||
	    a->hidden % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->out) || !cuda_aligned(a->x_bf16) || !cuda_aligned(a->shared_bf16))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return a->out_dtype == KERN_F32 ? run(a->out, a, cuda_stream(ctx)) : run(a->out_bf16, a, cuda_stream(ctx));
}
