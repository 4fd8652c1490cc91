/* What follows the QKV projection: bias, norms of heads, rotation, and the write into the paged cache. One
 * warp a head of a token. */
#include "kernels/cuda/rope.cuh"

enum { THREADS = 128 };

/* Left to itself ptxas spills registers of the larger one, of which it has plenty. */
template <u32 UNITS, typename R>
static __global__ void __launch_bounds__(THREADS, UNITS > ROPE_UNITS ? 8 : 0) rope_kv_kernel(const R p, u32 stride, u32 count)
{
	cu_grid_begin();
	const u32 warp = (blockIdx.x * THREADS + threadIdx.x) / CU_WARP, lane = threadIdx.x % CU_WARP;
	const u32 heads = p.heads + 2 * p.kv_heads;
	if (warp >= count) /* the whole warp */
		return;
	const u32 t = warp / heads, head = warp % heads;
	rope_head<UNITS>(&p, p.qkv + (size_t)t * stride + rope_source(&p, head) * p.head_dim, t, head, lane);
}

template <u32 UNITS, typename R>
static enum err rope_launch(const R *p, const struct kern_rope_kv_args *a, cudaStream_t stream)
{
	const u64 warps = (u64)a->tokens * (a->heads + 2 * a->kv.kv_heads);
	const u32 stride = rope_is_dense(a) ? rope_width(a) : a->qkv_stride;
	if (warps == 0)
		return ERR_OK;
	if (stride % 2 != 0) /* values are read in pairs */
		return ERR_UNSUPPORTED;
	if (warps > UINT32_MAX / CU_WARP)
		return ERR_INVALID;
	return cuda_launched(LAUNCH_DEPENDENT((rope_kv_kernel<UNITS, R>), cuda_ceil((u32)warps, THREADS / CU_WARP), THREADS, 0,
					      stream, *p, stride, (u32)warps));
}

CUDA_OP(rope_kv)
{
	if (rope_is_rich(a)) {
		struct rope_rich rich = {};
		const enum err e = rope_rich_of_args(a, &rich);
		return e != ERR_OK ? e : rope_launch<ROPE_RICH_UNITS>(&rich, a, cuda_stream(ctx));
	}
	struct rope p;
	const enum err e = rope_of_args(a, &p);
	return e != ERR_OK ? e : rope_launch<ROPE_UNITS>(&p, a, cuda_stream(ctx));
}
