/* What follows the QKV projection: bias, norms of heads, rotation, and the write into the paged cache. One
 * warp a head of a token. A lane holds pairs of neighbouring values and the pairs that they rotate with, so
 * nothing but the norm crosses lanes. */
#include "kernels/cuda/rope.cuh"

enum {
	THREADS = 128,
	UNITS = 2, /* of a lane; a unit is four values: head_dim <= 256 */
};

static __global__ void __launch_bounds__(THREADS) rope_kv_kernel(const struct rope p, u32 count)
{
	const u32 warp = (blockIdx.x * THREADS + threadIdx.x) / CU_WARP, lane = threadIdx.x % CU_WARP;
	const u32 heads = p.heads + 2 * p.kv_heads, units = p.head_dim / 4;
	const u32 t = warp / heads, head = warp % heads;
	struct rope_unit u[UNITS];
	float sum = 0;
	if (warp >= count) /* the whole warp */
		return;
	const u16 *in = p.qkv + ((size_t)t * heads + head) * p.head_dim;
	const float *norm = head < p.heads ? p.q_norm : head < p.heads + p.kv_heads ? p.k_norm : NULL;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		if (unit >= units)
			continue;
		u[j] = rope_load(&p, in, head, unit);
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			sum += u[j].x[e] * u[j].x[e];
	}
	const float scale = norm ? cu_rsqrt(warp_sum(sum) / (float)p.head_dim + p.norm_eps) : 1;
#pragma unroll
	for (u32 j = 0; j < UNITS; j++) {
		const u32 unit = lane + j * CU_WARP;
		if (unit >= units)
			continue;
		if (norm)
			rope_scale(&p, norm, scale, unit, &u[j]);
		if (head < p.heads + p.kv_heads)
			rope_rotate(&p, p.positions[t], unit, &u[j]);
	}
	rope_store<UNITS>(&p, t, head, lane, u);
}

CUDA_OP(rope_kv)
{
	struct rope p;
	const enum err e = rope_of_args(a, &p);
	const u64 warps = (u64)a->tokens * (a->heads + 2 * a->kv.kv_heads);
	if (e != ERR_OK || a->tokens == 0)
		return e;
	if (warps > UINT32_MAX / CU_WARP)
		return ERR_INVALID;
	return cuda_launched(LAUNCH(rope_kv_kernel, cuda_ceil((u32)warps, THREADS / CU_WARP), THREADS, 0,
				    cuda_stream(ctx), p, (u32)warps));
}
