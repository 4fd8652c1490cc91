/* Residual addition and RMSNorm, on request with the result in 8 bits: one block a token, the row in
 * registers, so that each value is read and written once. The row is the residual stream, in floats, or what a
 * block adds to it, in bf16. */
#include "kernels/cuda/device.cuh"

enum {
	THREADS = 256, /* at most: whole warps that a row fills */
	VECTOR = 8,
	VECTORS_MAX = 8, /* a thread's; 16,384 values a row */
	WARPS = THREADS / CU_WARP,
};

struct rmsnorm {
	u16 *out;
	void *x;
	const u16 *add;
	const float *weight;
	u8 *quantized;
	float *scales;
	float eps;
	u32 hidden;
	bool f8;
};

/* One vector of the row after the addition, as it is stored. */
template <typename X> CU_INLINE void add_vector(const struct rmsnorm *p, size_t at, float v[VECTOR])
{
	X *x = (X *)p->x + at;
	load8(x, v);
	if (!p->add)
		return;
	float add[VECTOR];
	load8(p->add + at, add);
#pragma unroll
	for (u32 i = 0; i < VECTOR; i++)
		v[i] += add[i];
	store8(x, v);
	if constexpr (sizeof(X) == sizeof(u16))
		unpack8(pack8(v), v);
}

template <typename X, u32 VECTORS>
static __global__ void __launch_bounds__(THREADS) rmsnorm_kernel(const struct rmsnorm p)
{
	SHARED_DYNAMIC(float, shared); /* [2][WARPS] */
	cu_grid_begin();
	const size_t row = (size_t)blockIdx.x * p.hidden;
	float v[VECTORS][VECTOR], sum = 0, largest = 0;
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i >= p.hidden)
			continue;
		add_vector<X>(&p, row + i, v[j]);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			sum += v[j][e] * v[j][e];
	}
	if (!p.out && !p.quantized)
		return;
	const float scale = p.weight ? cu_rsqrt(block_sum(sum, shared) / (float)p.hidden + p.eps) : 1;
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i >= p.hidden)
			continue;
		float weight[VECTOR] = {1, 1, 1, 1, 1, 1, 1, 1};
		if (p.weight)
			load8(p.weight + i, weight);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++) {
			v[j][e] *= scale * weight[e];
			largest = fmaxf(largest, fabsf(v[j][e]));
		}
		if (p.out)
			store8(p.out + row + i, v[j]);
	}
	if (!p.quantized)
		return;
	largest = block_max(largest, shared + WARPS);
	const float range = p.f8 ? CUDA_F8_MAX : CUDA_I8_MAX, inverse = largest > 0 ? range / largest : 0;
	if (threadIdx.x == 0)
		p.scales[blockIdx.x] = largest / range;
#pragma unroll
	for (u32 j = 0; j < VECTORS; j++) {
		const u32 i = (j * blockDim.x + threadIdx.x) * VECTOR;
		if (i < p.hidden)
			store_quantized(p.quantized + row + i, v[j], inverse, p.f8);
	}
}

template <typename X, u32 VECTORS> static enum err launch(const struct rmsnorm *p, u32 tokens, cudaStream_t stream)
{
	const u32 warps = least(cuda_ceil(p->hidden, CU_WARP * VECTOR), WARPS);
	return cuda_launched(LAUNCH_DEPENDENT((rmsnorm_kernel<X, VECTORS>), tokens, warps * CU_WARP,
				    2 * WARPS * sizeof(float), stream, *p));
}

template <typename X> static enum err run(const struct rmsnorm *p, u32 vectors, u32 tokens, cudaStream_t stream)
{
	if (vectors <= 1)
		return launch<X, 1>(p, tokens, stream);
	if (vectors <= 2)
		return launch<X, 2>(p, tokens, stream);
	if (vectors <= 4)
		return launch<X, 4>(p, tokens, stream);
	return launch<X, VECTORS_MAX>(p, tokens, stream);
}

CUDA_OP(rmsnorm)
{
	struct rmsnorm p = {a->out_bf16, a->x, a->add_bf16, a->weight, NULL,
			    NULL,	 a->eps,    a->hidden,	 false};
	const u32 vectors = cuda_ceil(a->hidden, THREADS * VECTOR);
	if (a->dtype != KERN_BF16 || (a->x_dtype != KERN_F32 && a->x_dtype != KERN_BF16) ||
	    a->hidden % VECTOR != 0 || vectors > VECTORS_MAX || a->scale)
		return ERR_UNSUPPORTED;
	if (a->quantized) {
		if (a->quantized->dtype != KERN_I8 && a->quantized->dtype != KERN_F8E4M3)
			return ERR_UNSUPPORTED;
		p.quantized = (u8 *)a->quantized->data;
		p.scales = a->quantized->scales;
		p.f8 = a->quantized->dtype == KERN_F8E4M3;
	}
	if (!cuda_aligned(p.out) || !cuda_aligned(p.x) || !cuda_aligned(p.add) || !cuda_aligned(p.weight) ||
	    !cuda_aligned(p.quantized))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return a->x_dtype == KERN_F32 ? run<float>(&p, vectors, a->tokens, cuda_stream(ctx))
				      : run<u16>(&p, vectors, a->tokens, cuda_stream(ctx));
}
