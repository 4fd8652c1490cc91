/* Cuts the attention of a step into pieces of about equal length, once for all layers: one block of threads,
 * a warp a row. Which place in a list or which slot a piece gets depends on the order of warps; what is
 * computed from it does not. */
#include "kernels/cuda/attention_plan.cuh"

enum { THREADS = 512, WARPS = THREADS / CU_WARP };

struct plan_counters {
	u64 keys[ATTENTION_KINDS]; /* summed over tiles and KV heads */
	u32 work[ATTENTION_KINDS], slots[ATTENTION_KINDS], joins;
};

struct plan_row {
	u32 kind, tiles, keys; /* tiles over all KV heads; 0: nothing to do */
};

struct plan_shape {
	const u32 *query_start, *context;
	u32 rows, kv_heads, group, window, blocks, queries_max, split, context_max;
};

CU_INLINE struct plan_row plan_row_of(const struct plan_shape *s, u32 row)
{
	struct plan_row r = {ATTENTION_SMALL, 0, 0};
	const u32 queries = s->query_start[row + 1] - s->query_start[row], context = s->context[row];
	if (queries == 0 || queries > s->queries_max || (s->split > 0 && context > s->context_max))
		return r;
	const u32 rows = queries * s->group, from = attention_first_key(context - queries, s->window) /
						    ATTENTION_CHUNK_UNIT * ATTENTION_CHUNK_UNIT;
	r.kind = rows > ATTENTION_SMALL_ROWS ? ATTENTION_LARGE : ATTENTION_SMALL;
	r.tiles = s->kv_heads *
		  (r.kind == ATTENTION_SMALL ? 1 : (rows + ATTENTION_LARGE_ROWS - 1) / ATTENTION_LARGE_ROWS);
	r.keys = context - from;
	return r;
}

/* Keys of a piece, for an even share of `keys` on each block. */
CU_INLINE u32 plan_chunk(u64 keys, u32 blocks, u32 least_keys)
{
	const u64 even = (keys + blocks - 1) / blocks;
	const u64 units = (even + ATTENTION_CHUNK_UNIT - 1) / ATTENTION_CHUNK_UNIT;
	return most((u32)units * ATTENTION_CHUNK_UNIT, least_keys);
}

/* The pieces of one row. Places in the lists are taken by lane 0 for the whole row. */
CU_INLINE void plan_write(const struct attention_plan *p, struct plan_counters *c, u32 row,
			  const struct plan_row *r, u32 chunk)
{
	const u32 lane = threadIdx.x % CU_WARP, pieces = (r->keys + chunk - 1) / chunk;
	const bool small = r->kind == ATTENTION_SMALL;
	uint4 *works = small ? p->work[ATTENTION_SMALL] : p->work[ATTENTION_LARGE];
	u32 work = 0, join = 0, slot = 0;
	if (lane == 0) {
		work = cu_atomic_add(&c->work[r->kind], r->tiles * pieces);
		if (pieces > 1) {
			join = small ? 0 : cu_atomic_add(&c->joins, r->tiles);
			slot = cu_atomic_add(&c->slots[r->kind], r->tiles * pieces);
		}
	}
	work = cu_shfl(work, 0);
	join = cu_shfl(join, 0);
	slot = cu_shfl(slot, 0);
	for (u32 i = lane; i < r->tiles * pieces; i += CU_WARP) {
		const u32 tile = i / pieces, piece = i % pieces;
		cu_store(works + work + i,
			 make_uint4(row, tile, piece, pieces > 1 ? slot + i : ATTENTION_WHOLE));
		if (pieces > 1 && piece == 0 && small)
			p->done[slot + i] = 0;
		else if (pieces > 1 && piece == 0)
			cu_store(p->joins + join + tile, make_uint4(row, tile, slot + i, pieces));
	}
}

static __global__ void __launch_bounds__(THREADS)
	attention_plan_kernel(const struct attention_plan p, const struct plan_shape s)
{
	SHARED(struct plan_counters, counters, 1);
	cu_grid_begin();
	struct plan_counters *c = counters;
	if (threadIdx.x < ATTENTION_KINDS) {
		c->keys[threadIdx.x] = 0;
		c->work[threadIdx.x] = c->slots[threadIdx.x] = 0;
	}
	if (threadIdx.x == 0)
		c->joins = 0;
	cu_sync(); /* the counters are zero */
	for (u32 row = threadIdx.x; row < s.rows; row += THREADS) {
		const struct plan_row r = plan_row_of(&s, row);
		cu_atomic_add(&c->keys[r.kind], (u64)r.tiles * r.keys);
	}
	cu_sync(); /* the totals are there */
	const u32 small = s.split > 0 ? s.split : plan_chunk(c->keys[ATTENTION_SMALL], s.blocks, ATTENTION_SMALL_CHUNK_MIN),
		  large = s.split > 0 ? ATTENTION_UNCUT : plan_chunk(c->keys[ATTENTION_LARGE], s.blocks, ATTENTION_LARGE_CHUNK_MIN);
	for (u32 row = threadIdx.x / CU_WARP; row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.tiles > 0)
			plan_write(&p, c, row, &r, r.kind == ATTENTION_SMALL ? small : large);
	}
	cu_sync(); /* all pieces are counted */
	if (threadIdx.x < ATTENTION_KINDS) {
		p.head->work_count[threadIdx.x] = c->work[threadIdx.x];
		p.head->chunk[threadIdx.x] = threadIdx.x == ATTENTION_SMALL ? small : large;
	}
	if (threadIdx.x == 0)
		p.head->join_count = c->joins;
}

extern "C" size_t kern_attention_plan_bytes(const struct kern_attention_limits *limits)
{
	const struct kern_attention_plan plan = {NULL, *limits, 0};
	struct attention_plan p;
	return attention_plan_lay_out(&plan, &p);
}

extern "C" enum err attention_plan_cuda(struct kern_ctx *ctx, const struct kern_attention_plan_args *a)
{
	const struct kern_attention_limits *l = &a->plan->limits;
	struct attention_plan p;
	if (l->kv_heads == 0 || l->heads % l->kv_heads != 0 || l->blocks == 0 || a->rows > l->rows ||
	    !a->plan->memory || l->split % ATTENTION_CHUNK_UNIT != 0)
		return ERR_INVALID;
	(void)attention_plan_lay_out(a->plan, &p);
	const struct plan_shape s = {a->query_start,	     a->context,      a->rows,	 l->kv_heads,
				     l->heads / l->kv_heads, a->plan->window, l->blocks, l->queries,
				     l->split,		     l->context};
	return cuda_launched(LAUNCH_DEPENDENT(attention_plan_kernel, 1, THREADS, 0, cuda_stream(ctx), p, s));
}
