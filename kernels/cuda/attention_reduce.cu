/* Joins the pieces of tiles whose keys were split: a warp a row of a tile. Only what was split is touched. */
#include "kernels/cuda/attention.cuh"

enum { THREADS = 128, WARPS = THREADS / CU_WARP, DIMS_MAX = 256 / CU_WARP };

/* Of one kind of tiles. */
struct joins {
	const u32 *count;
	const uint4 *list;
	const float *totals, *sums;
	u32 tile_rows, head_dim;
};

/* out[i]: dimension lane + 32 i of the row, joined in the order of pieces. A piece in which the row saw no
 * key has total 0, and its sums may be anything. */
CU_INLINE void join_row(const struct attention *p, const struct joins *j, size_t head, u32 slot, u32 pieces, u32 row,
			float out[DIMS_MAX])
{
	const u32 lane = threadIdx.x % CU_WARP;
	float best = ATTENTION_NONE, total = 0;
	for (u32 k = 0; k < pieces; k++)
		best = fmaxf(best, j->totals[((size_t)(slot + k) * j->tile_rows + row) * 2]);
#pragma unroll
	for (u32 i = 0; i < DIMS_MAX; i++)
		out[i] = 0;
	for (u32 k = 0; k < pieces; k++) {
		const size_t at = (size_t)(slot + k) * j->tile_rows + row;
		const float2 part = cu_load<float2>(j->totals + at * 2);
		const float factor = cu_exp2(part.x - best);
		if (!(part.y > 0))
			continue;
		total += factor * part.y;
#pragma unroll
		for (u32 i = 0; i < DIMS_MAX; i++)
			if (lane + i * CU_WARP < j->head_dim)
				out[i] += factor * j->sums[at * j->head_dim + lane + i * CU_WARP];
	}
	const float inverse = attention_inverse(p, head, best, total);
#pragma unroll
	for (u32 i = 0; i < DIMS_MAX; i++)
		out[i] *= inverse;
}

static __global__ void __launch_bounds__(THREADS)
	attention_reduce_kernel(const struct attention p, const struct joins j)
{
	const u32 count = *j.count, lane = threadIdx.x % CU_WARP;
	for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
		const uint4 join = cu_load<uint4>(j.list + i);
		const u32 token = p.query_start[join.x], rows = (p.query_start[join.x + 1] - token) * p.group;
		const u32 first = join.y / p.kv_heads * j.tile_rows, kv_head = join.y % p.kv_heads;
		for (u32 r = threadIdx.x / CU_WARP; r < j.tile_rows && first + r < rows; r += WARPS) {
			const size_t row = first + r, head = kv_head * p.group + row % p.group;
			float out[DIMS_MAX];
			join_row(&p, &j, head, join.z, join.w, r, out);
			u16 *to =
				p.out + ((token + row / p.group) * p.kv_heads * p.group + head) * j.head_dim;
#pragma unroll
			for (u32 d = 0; d < DIMS_MAX; d++)
				if (lane + d * CU_WARP < j.head_dim)
					to[lane + d * CU_WARP] = cu_f32_to_bf16(out[d]);
		}
	}
}

static enum err reduce(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	for (u32 kind = 0; kind < ATTENTION_KINDS; kind++) {
		if (p->plan.grid[kind] == 0)
			continue;
		const struct joins j = {&p->plan.head->join_count[kind],
					p->plan.joins[kind],
					p->plan.totals[kind],
					p->plan.sums[kind],
					attention_tile_rows(kind),
					head_dim};
		const enum err e = cuda_launched(
			LAUNCH(attention_reduce_kernel, p->plan.grid[kind], THREADS, 0, stream, *p, j));
		if (e != ERR_OK)
			return e;
	}
	return ERR_OK;
}

static enum err run(const struct kern_attention_args *a, const struct attention *p, cudaStream_t stream)
{
	switch (a->kv.dtype) {
	case KERN_BF16:
		return attention_run_bf16(p, a->kv.head_dim, stream);
	case KERN_I8:
		return attention_run_i8(p, a->kv.head_dim, stream);
	case KERN_F8E4M3:
		return attention_run_f8(p, a->kv.head_dim, stream);
	default:
		return ERR_UNSUPPORTED;
	}
}

CUDA_OP(attention)
{
	const struct kern_kv *kv = &a->kv;
	const struct kern_attention_limits *l = a->plan ? &a->plan->limits : NULL;
	struct attention p = {a->out_bf16, a->q_bf16, (const u8 *)kv->k, (const u8 *)kv->v};
	if (a->dtype != KERN_BF16 || kv->block_size < 4 || (kv->block_size & (kv->block_size - 1)) != 0)
		return ERR_UNSUPPORTED;
	if (!l || kv->kv_heads != l->kv_heads || a->heads != l->heads || kv->head_dim != l->head_dim ||
	    a->tokens > l->tokens || a->rows > l->rows || a->window != a->plan->window)
		return ERR_INVALID;
	if (!cuda_aligned(a->q_bf16) || !cuda_aligned(kv->k) || !cuda_aligned(kv->v))
		return ERR_INVALID;
	if (a->tokens == 0 || a->rows == 0)
		return ERR_OK;
	(void)attention_plan_lay_out(a->plan, &p.plan);
	p.query_start = a->query_start;
	p.context = a->context;
	p.block_tables = a->block_tables;
	p.block_stride = a->block_stride;
	while (1u << p.block_shift < kv->block_size)
		p.block_shift++;
	p.kv_heads = kv->kv_heads;
	p.group = a->heads / kv->kv_heads;
	p.scale = a->scale;
	p.soft_cap = a->soft_cap;
	p.window = a->window;
	p.sinks = a->sinks;
	const enum err e = run(a, &p, cuda_stream(ctx));
	return e != ERR_OK ? e : reduce(&p, kv->head_dim, cuda_stream(ctx));
}
