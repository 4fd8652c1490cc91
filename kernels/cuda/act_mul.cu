/* Activation, gated or not, on request with the result in 8 bits. */
#include "kernels/cuda/activation.cuh"

enum { THREADS = 256, VECTOR = 8, WARPS = THREADS / CU_WARP };

/* Rows of the input are the gate and then up, or the gate alone; with a limit the two of each value are neighbours. */
struct act_mul {
	u16 *out;
	u8 *quantized;
	float *scales;
	const u16 *in;
	u32 tokens, size;
	enum kern_activation act;
	bool ungated, f8;
	float alpha, limit; /* kern_act_mul_args */
	const float *xielu;
};

/* A NaN stays one. */
CU_INLINE float clamped(float x, float least, float most)
{
	return x < least ? least : x > most ? most : x;
}

CU_INLINE float gate_clamped(const struct act_mul *p, float gate, float up)
{
	gate = clamped(gate, -INFINITY, p->limit);
	return gate / (1 + cu_exp2(p->alpha * gate * -1.442695041f)) * (clamped(up, -p->limit, p->limit) + 1);
}

/* From column `i` of row `t` on. XIELU, known when it is compiled, keeps its registers out of what the others need. */
template <bool XIELU> CU_INLINE void act_mul_vector(const struct act_mul *p, size_t t, u32 i, float v[VECTOR])
{
	const u16 *gate = p->in + t * (XIELU || p->ungated ? 1 : 2) * p->size + i;
	float up[VECTOR];
	if (!XIELU && p->limit > 0) {
		float pairs[2][VECTOR];
		load8(gate + i, pairs[0]);
		load8(gate + i + VECTOR, pairs[1]);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			v[e] = gate_clamped(p, pairs[e / 4][e % 4 * 2], pairs[e / 4][e % 4 * 2 + 1]);
		return;
	}
	load8(gate, v);
#pragma unroll
	for (u32 e = 0; e < VECTOR; e++)
		v[e] = XIELU ? xielu(p->xielu, v[e]) : activate(p->act, v[e]);
	if (XIELU || p->ungated)
		return;
	load8(gate + p->size, up);
#pragma unroll
	for (u32 e = 0; e < VECTOR; e++)
		v[e] *= up[e];
}

template <bool XIELU> static __global__ void __launch_bounds__(THREADS) act_mul_kernel(const struct act_mul p)
{
	cu_grid_begin();
	const u32 i = (blockIdx.x * THREADS + threadIdx.x) * VECTOR;
	if (i >= p.size)
		return;
	for (u32 t = blockIdx.y; t < p.tokens; t += gridDim.y) {
		float v[VECTOR];
		act_mul_vector<XIELU>(&p, t, i, v);
		store8(p.out + (size_t)t * p.size + i, v);
	}
}

/* One block a token; the second pass computes again what the first has seen, since a row need not fit into
 * registers. */
template <bool XIELU> static __global__ void __launch_bounds__(THREADS) act_mul_quantized_kernel(const struct act_mul p)
{
	SHARED_DYNAMIC(float, shared); /* [WARPS] */
	cu_grid_begin();
	const size_t t = blockIdx.x;
	float largest = 0;
	for (u32 i = threadIdx.x * VECTOR; i < p.size; i += THREADS * VECTOR) {
		float v[VECTOR];
		act_mul_vector<XIELU>(&p, t, i, v);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			largest = fmaxf(largest, fabsf(v[e]));
		if (p.out)
			store8(p.out + t * p.size + i, v);
	}
	largest = block_max(largest, shared);
	const float range = p.f8 ? CUDA_F8_MAX : CUDA_I8_MAX, inverse = largest > 0 ? range / largest : 0;
	if (threadIdx.x == 0)
		p.scales[t] = largest / range;
	for (u32 i = threadIdx.x * VECTOR; i < p.size; i += THREADS * VECTOR) {
		float v[VECTOR];
		act_mul_vector<XIELU>(&p, t, i, v);
		store_quantized(p.quantized + t * p.size + i, v, inverse, p.f8);
	}
}

CUDA_OP(act_mul)
{
	const struct kern_quantized *q = a->quantized;
	struct act_mul p = {a->out_bf16, NULL, NULL, a->gate_up_bf16, a->tokens, a->size, a->act, a->ungated, false,
			    a->alpha, a->limit, a->xielu};
	if (q) {
		if (q->dtype != KERN_I8 && q->dtype != KERN_F8E4M3)
			return ERR_UNSUPPORTED;
		p.quantized = (u8 *)q->data;
		p.scales = q->scales;
		p.f8 = q->dtype == KERN_F8E4M3;
	}
	if (a->dtype != KERN_BF16 || (a->limit > 0 && a->ungated) || (a->xielu && !a->ungated) || a->size % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(p.out) || !cuda_aligned(p.in) || !cuda_aligned(p.quantized))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	if (q)
		return cuda_launched(LAUNCH_DEPENDENT(a->xielu ? act_mul_quantized_kernel<true> : act_mul_quantized_kernel<false>, a->tokens, THREADS,
						      WARPS * sizeof(float), cuda_stream(ctx), p));
	const u32 rows = a->tokens < CUDA_GRID_Y_MAX ? a->tokens : (u32)CUDA_GRID_Y_MAX;
	const dim3 grid(cuda_ceil(a->size, THREADS * VECTOR), rows);
	return cuda_launched(LAUNCH_DEPENDENT(a->xielu ? act_mul_kernel<true> : act_mul_kernel<false>, grid, THREADS, 0, cuda_stream(ctx), p));
}
