/* Residual addition and LayerNorm: one block a token, the row in registers, so that each value is read and written
 * once, and the variance is summed of what is left without the mean: squares of a row far from 0 would cancel. */
#include "kernels/cuda/device.cuh"

enum {
	THREADS = 256, /* at most: whole warps that a row fills */
	VECTOR = 8,
	VECTORS_MAX = 8, /* a thread's; 16,384 values a row */
	WARPS = THREADS / CU_WARP,
};

struct layernorm {
	u16 *out;
	float *x;
	const u16 *add;
	const float *weight, *bias;
	float eps;
	u32 hidden;
};

/* One vector of the row after the addition. */
CU_INLINE void add_vector(const struct layernorm *p, size_t at, float v[VECTOR])
{
	load8(p->x + at, v);
	if (!p->add)
		return;
	float add[VECTOR];
	load8(p->add + at, add);
#pragma unroll
	for (u32 i = 0; i < VECTOR; i++)
		v[i] += add[i];
	store8(p->x + at, v);
}

/* v = v * scale * weight + bias, from column `i` on. */
CU_INLINE void scale_vector(const struct layernorm *p, u32 i, float scale, float v[VECTOR])
{
	float weight[VECTOR], bias[VECTOR] = {};
	load8(p->weight + i, weight);
	if (p->bias)
		load8(p->bias + i, bias);
#pragma unroll
	for (u32 e = 0; e < VECTOR; e++)
		v[e] = v[e] * (scale * weight[e]) + bias[e];
}

template <u32 VECTORS>
static __global__ void __launch_bounds__(THREADS) layernorm_kernel(const struct layernorm p)
{
	SHARED_DYNAMIC(float, shared); /* [2][WARPS] */
	cu_grid_begin();
	const size_t row = (size_t)blockIdx.x * p.hidden;
	float v[VECTORS][VECTOR] = {}, sum = 0, squares = 0;
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i >= p.hidden)
			continue;
		add_vector(&p, row + i, v[j]);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			sum += v[j][e];
	}
	if (!p.out)
		return;
	const float mean = block_sum(sum, shared) / (float)p.hidden;
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i >= p.hidden)
			continue;
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++) {
			v[j][e] -= mean;
			squares += v[j][e] * v[j][e];
		}
	}
	/* In memory of its own: slow warps may still be reading the first sums. */
	const float scale = cu_rsqrt(block_sum(squares, shared + WARPS) / (float)p.hidden + p.eps);
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i >= p.hidden)
			continue;
		scale_vector(&p, i, scale, v[j]);
		store8(p.out + row + i, v[j]);
	}
}

template <u32 VECTORS> static enum err launch(const struct layernorm *p, u32 tokens, cudaStream_t stream)
{
	const u32 warps = least(cuda_ceil(p->hidden, CU_WARP * VECTOR), WARPS);
	return cuda_launched(LAUNCH_DEPENDENT(layernorm_kernel<VECTORS>, tokens, warps * CU_WARP,
					      2 * WARPS * sizeof(float), stream, *p));
}

CUDA_OP(layernorm)
{
	const struct layernorm p = {a->out_bf16, a->x, a->add_bf16, a->weight, a->bias, a->eps, a->hidden};
	const u32 vectors = cuda_ceil(a->hidden, THREADS * VECTOR);
	if (a->dtype != KERN_BF16 || a->hidden % VECTOR != 0 || vectors > VECTORS_MAX)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(p.out) || !cuda_aligned(p.x) || !cuda_aligned(p.add) || !cuda_aligned(p.weight) ||
	    !cuda_aligned(p.bias))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	if (vectors <= 1)
		return launch<1>(&p, a->tokens, cuda_stream(ctx));
	if (vectors <= 2)
		return launch<2>(&p, a->tokens, cuda_stream(ctx));
	if (vectors <= 4)
		return launch<4>(&p, a->tokens, cuda_stream(ctx));
	return launch<VECTORS_MAX>(&p, a->tokens, cuda_stream(ctx));
}
