/* Joins the pieces of prefill's tiles whose keys were split: a warp a row of a tile. Only what was split is touched. */
#include "kernels/cuda/attention.cuh"

enum { THREADS = 128, WARPS = THREADS / CU_WARP };

struct joins {
	const u32 *count;
	const uint4 *list;
	const float *totals, *sums;
	u32 tile_rows, head_dim;
};

static __global__ void __launch_bounds__(THREADS)
	attention_reduce_kernel(const struct attention p, const struct joins j)
{
	cu_grid_begin();
	const u32 count = *j.count;
	for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
		const uint4 join = cu_load<uint4>(j.list + i);
		const u32 token = p.query_start[join.x], rows = (p.query_start[join.x + 1] - token) * p.group;
		const u32 first = join.y / p.kv_heads * j.tile_rows, kv_head = join.y % p.kv_heads;
		for (u32 r = threadIdx.x / CU_WARP; r < j.tile_rows && first + r < rows; r += WARPS) {
			const size_t row = first + r, head = kv_head * p.group + row % p.group;
			const size_t slot = (size_t)join.z * j.tile_rows;
			attention_join_row(&p, j.totals + slot * 2, j.sums + slot * j.head_dim, j.tile_rows, j.head_dim, head,
					   join.w, r,
					   p.out + ((token + row / p.group) * p.kv_heads * p.group + head) * j.head_dim);
		}
	}
}

static enum err reduce(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	const u32 kind = ATTENTION_LARGE, grid = p->plan.grid[kind];
	const struct joins j = {&p->plan.head->join_count, p->plan.joins, p->plan.totals[kind],
				p->plan.sums[kind],		 attention_tile_rows(kind, head_dim), head_dim};
	return grid == 0 ? ERR_OK
			 : cuda_launched(LAUNCH_DEPENDENT(attention_reduce_kernel, grid, THREADS, 0, stream, *p, j));
}

static enum err run(const struct kern_attention_args *a, const struct attention *p, cudaStream_t stream)
{
	if (a->kv.head_dim > ATTENTION_USUAL_DIM)
		return a->kv.dtype == KERN_BF16 ? attention_run_wide(p, a->kv.head_dim, stream) : ERR_UNSUPPORTED;
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
