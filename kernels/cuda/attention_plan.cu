/* Cuts the attention of a step into pieces of about equal length, once for all layers: one block of threads,
 * a warp a row. Which place in a list or which slot a piece gets depends on the order of warps; what is
 * computed from it does not.
 *
 * Tiles of decode are cut alike in a row. Those of prefill have as many keys as their last query sees, so each is cut
 * by itself, and they come into the list by length, the longest first, so that blocks that take them in turn end
 * together. */
#include "kernels/cuda/attention_plan.cuh"

enum { THREADS = 512, WARPS = THREADS / CU_WARP, CLASSES = 64 /* of lengths */ };

struct plan_counters {
	u64 keys[ATTENTION_KINDS]; /* summed over tiles and KV heads */
	u32 work[ATTENTION_KINDS], slots[ATTENTION_KINDS], joins;
	u32 longest;	    /* tile of prefill */
	u32 place[CLASSES]; /* pieces of prefill of that class, then where the next one goes */
};

struct plan_row {
	u32 kind, tiles, keys; /* tiles over all KV heads; 0: nothing to do */
	u32 rows, before;      /* (token, head) rows of a KV head; keys before its first query */
};

struct plan_shape {
	const u32 *query_start, *context;
	u32 rows, kv_heads, group, window, blocks[ATTENTION_KINDS], queries_max, split, context_max;
};

CU_INLINE struct plan_row plan_row_of(const struct plan_shape *s, u32 row)
{
	struct plan_row r = {ATTENTION_SMALL, 0, 0, 0, 0};
	const u32 queries = s->query_start[row + 1] - s->query_start[row], context = s->context[row];
	if (queries == 0 || queries > s->queries_max || (s->split > 0 && context > s->context_max))
		return r;
	r.rows = queries * s->group;
	r.before = context - queries;
	r.kind = r.rows > ATTENTION_SMALL_ROWS ? ATTENTION_LARGE : ATTENTION_SMALL;
	r.tiles = s->kv_heads *
		  (r.kind == ATTENTION_SMALL ? 1 : (r.rows + ATTENTION_LARGE_ROWS - 1) / ATTENTION_LARGE_ROWS);
	r.keys = context - attention_first_key(r.before, s->window) / ATTENTION_CHUNK_UNIT * ATTENTION_CHUNK_UNIT;
	return r;
}

/* Keys that are walked for a tile of prefill. */
CU_INLINE u32 plan_tile_keys(const struct plan_shape *s, const struct plan_row *r, u32 tile)
{
	const u32 first = tile * ATTENTION_LARGE_ROWS, last = least(first + ATTENTION_LARGE_ROWS, r->rows) - 1;
	const u32 from = attention_first_key(r->before + first / s->group, s->window);
	return r->before + last / s->group + 1 - from / ATTENTION_CHUNK_UNIT * ATTENTION_CHUNK_UNIT;
}

/* Keys of a piece, for an even share of `keys` on each block. */
CU_INLINE u32 plan_chunk(u64 keys, u32 blocks, u32 fewest)
{
	const u64 even = (keys + blocks - 1) / blocks;
	const u64 units = (even + ATTENTION_CHUNK_UNIT - 1) / ATTENTION_CHUNK_UNIT;
	return most((u32)units * ATTENTION_CHUNK_UNIT, fewest);
}

/* The pieces of one row of decode. Places in the lists are taken by lane 0 for the whole row. */
CU_INLINE void plan_write_small(const struct attention_plan *p, struct plan_counters *c, u32 row,
				const struct plan_row *r, u32 chunk)
{
	const u32 lane = threadIdx.x % CU_WARP, pieces = (r->keys + chunk - 1) / chunk;
	u32 work = 0, slot = 0;
	if (lane == 0) {
		work = cu_atomic_add(&c->work[ATTENTION_SMALL], r->tiles * pieces);
		if (pieces > 1)
			slot = cu_atomic_add(&c->slots[ATTENTION_SMALL], r->tiles * pieces);
	}
	work = cu_shfl(work, 0);
	slot = cu_shfl(slot, 0);
	for (u32 i = lane; i < r->tiles * pieces; i += CU_WARP) {
		const u32 tile = i / pieces, piece = i % pieces;
		cu_store(p->work[ATTENTION_SMALL] + work + i,
			 make_uint4(row, tile, piece, pieces > 1 ? slot + i : ATTENTION_WHOLE));
		if (pieces > 1 && piece == 0)
			p->done[slot + i] = 0;
	}
}

/* ---------------------------------------------------------------- prefill: a lane a tile */

CU_INLINE void plan_add_large(const struct plan_shape *s, struct plan_counters *c, const struct plan_row *r)
{
	for (u32 tile = threadIdx.x % CU_WARP; tile < r->tiles / s->kv_heads; tile += CU_WARP) {
		const u32 keys = plan_tile_keys(s, r, tile);
		cu_atomic_add(&c->keys[ATTENTION_LARGE], (u64)keys * s->kv_heads);
		cu_atomic_max(&c->longest, keys);
	}
}

/* Longer pieces have lower classes. `width`: keys from one to the next. */
CU_INLINE u32 plan_class(u32 keys, u32 width)
{
	return CLASSES - 1 - least(keys / width, CLASSES - 1);
}

CU_INLINE void plan_count_large(const struct plan_shape *s, struct plan_counters *c, const struct plan_row *r, u32 chunk,
				u32 width)
{
	for (u32 tile = threadIdx.x % CU_WARP; tile < r->tiles / s->kv_heads; tile += CU_WARP) {
		const u32 keys = plan_tile_keys(s, r, tile), whole = (keys - 1) / chunk;
		if (whole > 0)
			cu_atomic_add(&c->place[plan_class(chunk, width)], whole * s->kv_heads);
		cu_atomic_add(&c->place[plan_class(keys - whole * chunk, width)], s->kv_heads);
	}
}

/* Counts become the first places of their classes: the first warp. */
CU_INLINE void plan_place_large(struct plan_counters *c)
{
	const u32 lane = threadIdx.x, low = c->place[2 * lane], high = c->place[2 * lane + 1];
	u32 sum = low + high;
	for (u32 by = 1; by < CU_WARP; by *= 2) {
		const u32 before = cu_shfl_up(sum, by);
		sum += lane >= by ? before : 0;
	}
	c->place[2 * lane] = sum - low - high;
	c->place[2 * lane + 1] = sum - high;
	if (lane == CU_WARP - 1)
		c->work[ATTENTION_LARGE] = sum;
}

CU_INLINE void plan_write_large(const struct attention_plan *p, const struct plan_shape *s, struct plan_counters *c, u32 row,
				const struct plan_row *r, u32 chunk, u32 width)
{
	for (u32 tile = threadIdx.x % CU_WARP; tile < r->tiles / s->kv_heads; tile += CU_WARP) {
		const u32 keys = plan_tile_keys(s, r, tile), pieces = (keys - 1) / chunk + 1, heads = s->kv_heads;
		u32 join = 0, slot = 0;
		if (pieces > 1) {
			join = cu_atomic_add(&c->joins, heads);
			slot = cu_atomic_add(&c->slots[ATTENTION_LARGE], heads * pieces);
		}
		for (u32 piece = 0; piece < pieces; piece++) {
			const u32 length = piece + 1 < pieces ? chunk : keys - piece * chunk;
			const u32 place = cu_atomic_add(&c->place[plan_class(length, width)], heads);
			for (u32 h = 0; h < heads; h++)
				cu_store(p->work[ATTENTION_LARGE] + place + h,
					 make_uint4(row, tile * heads + h, piece,
						    pieces > 1 ? slot + h * pieces + piece : ATTENTION_WHOLE));
		}
		for (u32 h = 0; h < heads && pieces > 1; h++)
			cu_store(p->joins + join + h,
				 make_uint4(row, tile * heads + h, slot + h * pieces, pieces));
	}
}

/* ---------------------------------------------------------------- the kernel */

static __global__ void __launch_bounds__(THREADS)
	attention_plan_kernel(const struct attention_plan p, const struct plan_shape s)
{
	SHARED(struct plan_counters, counters, 1);
	cu_grid_begin();
	struct plan_counters *c = counters;
	const u32 warp = threadIdx.x / CU_WARP;
	const bool has_large = s.queries_max * s.group > ATTENTION_SMALL_ROWS;
	if (threadIdx.x < ATTENTION_KINDS) {
		c->keys[threadIdx.x] = 0;
		c->work[threadIdx.x] = c->slots[threadIdx.x] = 0;
	}
	if (threadIdx.x == 0) {
		c->joins = 0;
		c->longest = 1;
	}
	if (threadIdx.x < CLASSES)
		c->place[threadIdx.x] = 0;
	cu_sync(); /* the counters are zero */
	for (u32 row = threadIdx.x; row < s.rows; row += THREADS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.kind == ATTENTION_SMALL)
			cu_atomic_add(&c->keys[ATTENTION_SMALL], (u64)r.tiles * r.keys);
	}
	for (u32 row = warp; has_large && row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.kind == ATTENTION_LARGE)
			plan_add_large(&s, c, &r);
	}
	cu_sync(); /* the totals are there */
	const u32 small = s.split > 0 ? s.split
				      : plan_chunk(c->keys[ATTENTION_SMALL], s.blocks[ATTENTION_SMALL],
						   ATTENTION_SMALL_CHUNK_MIN);
	const u32 large = s.split > 0 ? ATTENTION_UNCUT
				      : plan_chunk(c->keys[ATTENTION_LARGE], s.blocks[ATTENTION_LARGE],
						   ATTENTION_LARGE_CHUNK_MIN);
	const u32 width = least(c->longest, large) / CLASSES + 1;
	for (u32 row = warp; has_large && row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.kind == ATTENTION_LARGE)
			plan_count_large(&s, c, &r, large, width);
	}
	cu_sync(); /* the pieces of prefill are counted */
	if (warp == 0)
		plan_place_large(c);
	cu_sync(); /* they have their places */
	for (u32 row = warp; row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.tiles > 0 && r.kind == ATTENTION_SMALL)
			plan_write_small(&p, c, row, &r, small);
		if (r.tiles > 0 && r.kind == ATTENTION_LARGE)
			plan_write_large(&p, &s, c, row, &r, large, width);
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
	const struct plan_shape s = {a->query_start,
				     a->context,
				     a->rows,
				     l->kv_heads,
				     l->heads / l->kv_heads,
				     a->plan->window,
				     {attention_blocks(l, ATTENTION_SMALL), attention_blocks(l, ATTENTION_LARGE)},
				     l->queries,
				     l->split,
				     l->context};
	return cuda_launched(LAUNCH_DEPENDENT(attention_plan_kernel, 1, THREADS, 0, cuda_stream(ctx), p, s));
}
