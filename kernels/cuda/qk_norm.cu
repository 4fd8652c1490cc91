/* Norms over all heads of q together, and of k: the squares of this rank's values, one block a token, and, when all ranks'
 * are added, the division by them, a thread four values. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, VECTOR = 4, WARPS = THREADS / CU_WARP };

/* Of this thread's share of `width` values; in the order of their places, whatever else there is. */
CU_INLINE float squares_of(const float *x, u32 width)
{
	float sum = 0;
	for (u32 i = threadIdx.x * VECTOR; i < width; i += THREADS * VECTOR) {
		const float4 v = cu_load<float4>(x + i);
		sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
	}
	return sum;
}

static __global__ void __launch_bounds__(THREADS)
	qk_squares_kernel(float *squares, const float *qkv, u32 stride, u32 q_width, u32 k_width)
{
	SHARED(float, sums, 2 * WARPS);
	cu_grid_begin();
	const float *row = qkv + (size_t)blockIdx.x * stride;
	const float q = block_sum(squares_of(row, q_width), sums);
	/* In memory of its own: slow warps may still be reading the first sums. */
	const float k = block_sum(squares_of(row + q_width, k_width), sums + WARPS);
	if (threadIdx.x == 0)
		cu_store(squares + 2 * (size_t)blockIdx.x, make_float2(q, k));
}

struct qk_norm {
	float *qkv;
	const float *squares, *q_weight, *k_weight;
	float eps;
	u32 tokens, stride, q_width, k_width, q_total, k_total;
};

static __global__ void __launch_bounds__(THREADS) qk_norm_kernel(const struct qk_norm p)
{
	cu_grid_begin();
	const u32 i = (blockIdx.x * THREADS + threadIdx.x) * VECTOR;
	if (i >= p.q_width + p.k_width)
		return;
	const bool is_q = i < p.q_width; /* of all four: widths are multiples of four */
	const float4 weight = cu_load<float4>(is_q ? p.q_weight + i : p.k_weight + (i - p.q_width));
	const float total = (float)(is_q ? p.q_total : p.k_total);
	for (u32 t = blockIdx.y; t < p.tokens; t += gridDim.y) {
		float *x = p.qkv + (size_t)t * p.stride + i;
		const float scale = cu_rsqrt(p.squares[2 * (size_t)t + (is_q ? 0 : 1)] / total + p.eps);
		const float4 v = cu_load<float4>(x);
		cu_store(x, make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
					v.w * scale * weight.w));
	}
}

static bool whole_vectors(u32 stride, u32 q_width, u32 k_width)
{
	return (stride | q_width | k_width) % VECTOR == 0;
}

CUDA_OP(qk_squares)
{
	if (!whole_vectors(a->stride, a->q_width, a->k_width))
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->qkv) || (uintptr_t)a->squares % sizeof(float2) != 0)
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH_DEPENDENT(qk_squares_kernel, a->tokens, THREADS, 0, cuda_stream(ctx), a->squares, a->qkv,
				    a->stride, a->q_width, a->counts_k ? a->k_width : 0));
}

CUDA_OP(qk_norm)
{
	const struct qk_norm p = {a->qkv,    a->squares, a->q_weight, a->k_weight, a->eps,
				  a->tokens, a->stride,	 a->q_width,  a->k_width,  a->q_total,
				  a->k_total};
	if (!whole_vectors(a->stride, a->q_width, a->k_width))
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->qkv) || !cuda_aligned(a->q_weight) || !cuda_aligned(a->k_weight))
		return ERR_INVALID;
	if (a->tokens == 0)
		return ERR_OK;
	const u32 rows = a->tokens < CUDA_GRID_Y_MAX ? a->tokens : (u32)CUDA_GRID_Y_MAX;
	const dim3 grid(cuda_ceil(a->q_width + a->k_width, THREADS * VECTOR), rows);
	return cuda_launched(LAUNCH_DEPENDENT(qk_norm_kernel, grid, THREADS, 0, cuda_stream(ctx), p));
}
