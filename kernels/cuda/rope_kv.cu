/* What follows the QKV projection: bias, norms of heads, rotation, and the write into the paged cache. One
 * warp a head of a token. */
#include "kernels/cuda/rope.cuh"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) rope_kv_kernel(const struct rope p, u32 stride, u32 count)
{
	cu_grid_begin();
	const u32 warp = (blockIdx.x * THREADS + threadIdx.x) / CU_WARP, lane = threadIdx.x % CU_WARP;
	const u32 heads = p.heads + 2 * p.kv_heads;
	if (warp >= count) /* the whole warp */
		return;
	const u32 t = warp / heads, head = warp % heads;
	rope_head(&p, p.qkv + (size_t)t * stride + head * p.head_dim, t, head, lane);
}

CUDA_OP(rope_kv)
{
	struct rope p;
	const enum err e = rope_of_args(a, &p);
	const u64 warps = (u64)a->tokens * (a->heads + 2 * a->kv.kv_heads);
	const u32 stride = rope_is_dense(a) ? (a->heads + 2 * a->kv.kv_heads) * a->kv.head_dim : a->qkv_stride;
	if (e != ERR_OK || a->tokens == 0)
		return e;
	if (stride % 2 != 0) /* values are read in pairs */
		return ERR_UNSUPPORTED;
	if (warps > UINT32_MAX / CU_WARP)
		return ERR_INVALID;
	return cuda_launched(LAUNCH_DEPENDENT(rope_kv_kernel, cuda_ceil((u32)warps, THREADS / CU_WARP), THREADS, 0,
				    cuda_stream(ctx), p, stride, (u32)warps));
}
