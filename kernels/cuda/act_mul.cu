/* Gated activation, on request with the result in 8 bits. */
#include "kernels/cuda/activation.cuh"

enum { THREADS = 256, VECTOR = 8, WARPS = THREADS / CU_WARP };

CU_INLINE void act_mul_vector(const u16 *gate_up, u32 size, enum kern_activation act, float v[VECTOR])
{
	float up[VECTOR];
	unpack8(cu_load<uint4>(gate_up), v);
	unpack8(cu_load<uint4>(gate_up + size), up);
#pragma unroll
	for (u32 i = 0; i < VECTOR; i++)
		v[i] = activate(act, v[i]) * up[i];
}

static __global__ void __launch_bounds__(THREADS)
	act_mul_kernel(u16 *out, const u16 *gate_up, u32 tokens, u32 size, enum kern_activation act)
{
	const u32 i = (blockIdx.x * THREADS + threadIdx.x) * VECTOR;
	if (i >= size)
		return;
	for (u32 t = blockIdx.y; t < tokens; t += gridDim.y) {
		float v[VECTOR];
		act_mul_vector(gate_up + (size_t)t * 2 * size + i, size, act, v);
		*(uint4 *)(out + (size_t)t * size + i) = pack8(v);
	}
}

/* One block a token; the second pass computes again what the first has seen, since a row need not fit into
 * registers. */
static __global__ void __launch_bounds__(THREADS)
	act_mul_quantized_kernel(u16 *out, u8 *quantized, float *scales, bool f8, const u16 *gate_up,
				 u32 size, enum kern_activation act)
{
	SHARED_DYNAMIC(float, shared); /* [WARPS] */
	const size_t t = blockIdx.x;
	float largest = 0;
	for (u32 i = threadIdx.x * VECTOR; i < size; i += THREADS * VECTOR) {
		float v[VECTOR];
		act_mul_vector(gate_up + t * 2 * size + i, size, act, v);
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++)
			largest = fmaxf(largest, fabsf(v[e]));
		if (out)
			cu_store(out + t * size + i, pack8(v));
	}
	largest = block_max(largest, shared);
	const float range = f8 ? CUDA_F8_MAX : CUDA_I8_MAX, inverse = largest > 0 ? range / largest : 0;
	if (threadIdx.x == 0)
		scales[t] = largest / range;
	for (u32 i = threadIdx.x * VECTOR; i < size; i += THREADS * VECTOR) {
		float v[VECTOR];
		act_mul_vector(gate_up + t * 2 * size + i, size, act, v);
		store_quantized(quantized + t * size + i, v, inverse, f8);
	}
}

CUDA_OP(act_mul)
{
	const struct kern_quantized *q = a->quantized;
	const bool f8 = q && q->dtype == KERN_F8E4M3;
	if (a->ungated || a->act == KERN_RELU_SQUARED)
		return ERR_UNSUPPORTED;
	if (a->dtype != KERN_BF16 || a->size % VECTOR != 0 || (q && !f8 && q->dtype != KERN_I8))
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->out_bf16) || !cuda_aligned(a->gate_up_bf16) || (q && !cuda_aligned(q->data)))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	if (q)
		return cuda_launched(LAUNCH(act_mul_quantized_kernel, a->tokens, THREADS,
					    WARPS * sizeof(float), cuda_stream(ctx), a->out_bf16,
					    (u8 *)q->data, q->scales, f8, a->gate_up_bf16, a->size, a->act));
	const u32 rows = a->tokens < CUDA_GRID_Y_MAX ? a->tokens : (u32)CUDA_GRID_Y_MAX;
	const dim3 grid(cuda_ceil(a->size, THREADS * VECTOR), rows);
	return cuda_launched(LAUNCH(act_mul_kernel, grid, THREADS, 0, cuda_stream(ctx), a->out_bf16,
				    a->gate_up_bf16, a->tokens, a->size, a->act));
}
