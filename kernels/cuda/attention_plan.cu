/* Cuts the attention of a step into pieces, once for all layers: one block of threads, a warp a row.
 *
 * The keys of decode's tiles are laid end to end and shared out evenly: each block has the same number of units of keys, and a
 * tile is cut only where one block's share ends and the next one's begins. All rows of a KV head come before the next head's,
 * and where the heads can have equally many blocks, each head begins with a block: then the blocks read the heads of a row, which
 * lie beside each other in the cache, at the same time (steps of 128 sequences of 1,024 tokens, heads of 64: 3.20 ms; row after
 * row 3.30).
 *
 * Tiles of prefill have as many keys as their last query sees, so each is cut by itself, and they come into the list by
 * length, the longest first, so that blocks that take them in turn end together. Which place in the list or which slot a
 * piece gets depends on the order of warps; what is computed from it does not. */
#include "kernels/cuda/attention_plan.cuh"

enum { THREADS = 512, WARPS = THREADS / CU_WARP, CLASSES = 64 /* of lengths */ };

struct plan_counters {
	u64 keys;		/* of prefill, summed over tiles and KV heads */
	u32 work, slots, joins; /* of prefill */
	u32 longest;		/* tile of prefill */
	u32 length, rows;	/* of decode: see plan_place */
	u32 place[CLASSES]; /* pieces of prefill of that class, then where the next one goes */
};

struct plan_row {
	u32 kind, tiles, keys; /* tiles over all KV heads; 0: nothing to do */
	u32 rows, before;      /* (token, head) rows of a KV head; keys before its first query */
};

struct plan_shape {
	const u32 *query_start, *context;
	u32 rows, kv_heads, group, window, blocks[ATTENTION_KINDS], queries_max, split, context_max;
	u32 large_rows, large_least; /* of a tile of prefill; keys of its pieces */
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
		  (r.kind == ATTENTION_SMALL ? 1 : (r.rows + s->large_rows - 1) / s->large_rows);
	r.keys = context - attention_first_key(r.before, s->window) / ATTENTION_CHUNK_UNIT * ATTENTION_CHUNK_UNIT;
	return r;
}

/* Keys that are walked for a tile of prefill. */
CU_INLINE u32 plan_tile_keys(const struct plan_shape *s, const struct plan_row *r, u32 tile)
{
	const u32 first = tile * s->large_rows, last = least(first + s->large_rows, r->rows) - 1;
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

/* ---------------------------------------------------------------- decode: a lane a piece */

/* What the rows of decode before this one have for one KV head. */
struct plan_place {
	u32 length, rows; /* units of keys; with rows that are cut by themselves, pieces */
};

struct plan_places {
	struct plan_place rows[THREADS], warps[WARPS];
};

CU_INLINE bool plan_decodes(const struct plan_row *r)
{
	return r->kind == ATTENTION_SMALL && r->tiles > 0;
}

CU_INLINE u32 plan_length(const struct plan_shape *s, const struct plan_row *r)
{
	const u32 unit = s->split > 0 ? s->split : (u32)ATTENTION_CHUNK_UNIT;
	return plan_decodes(r) ? (r->keys + unit - 1) / unit : 0;
}

CU_INLINE u32 plan_sum_up(u32 value)
{
	for (u32 by = 1; by < CU_WARP; by *= 2) {
		const u32 before = cu_shfl_up(value, by);
		value += threadIdx.x % CU_WARP >= by ? before : 0;
	}
	return value;
}

/* The places of as many rows as there are threads, behind `base`, which goes on behind them. */
CU_INLINE void plan_place_rows(const struct plan_shape *s, struct plan_places *places, u32 row, struct plan_place *base)
{
	const u32 warp = threadIdx.x / CU_WARP;
	struct plan_place own = {0, 0};
	if (row < s->rows) {
		const struct plan_row r = plan_row_of(s, row);
		own.length = plan_length(s, &r);
		own.rows = plan_decodes(&r);
	}
	const struct plan_place upto = {plan_sum_up(own.length), plan_sum_up(own.rows)};
	if (threadIdx.x % CU_WARP == CU_WARP - 1)
		places->warps[warp] = upto;
	cu_sync(); /* all warps' sums are there */
	struct plan_place place = {base->length + upto.length - own.length, base->rows + upto.rows - own.rows};
	for (u32 w = 0; w < WARPS; w++) {
		const struct plan_place sum = places->warps[w];
		place.length += w < warp ? sum.length : 0;
		place.rows += w < warp ? sum.rows : 0;
		base->length += sum.length;
		base->rows += sum.rows;
	}
	places->rows[threadIdx.x] = place;
	cu_sync(); /* all rows have their places */
}

/* All that the places of decode's pieces come from but a row's own. */
struct plan_shares {
	struct plan_place head; /* what a KV head has */
	u32 share, stride;	/* units of a block, and from one head's beginning to the next one's */
};

CU_INLINE struct plan_shares plan_shares_of(const struct plan_shape *s, struct plan_place head)
{
	const u32 blocks = s->blocks[ATTENTION_SMALL], heads = s->kv_heads;
	const bool even = blocks % heads == 0;
	const u64 keys = (u64)head.length * ATTENTION_CHUNK_UNIT;
	const u32 chunk = even ? plan_chunk(keys, blocks / heads, ATTENTION_SMALL_CHUNK_MIN)
			       : plan_chunk(keys * heads, blocks, ATTENTION_SMALL_CHUNK_MIN);
	const u32 share = chunk / ATTENTION_CHUNK_UNIT;
	return {head, share, even ? (head.length + share - 1) / share * share : head.length};
}

/* The pieces of a row whose tiles are cut every so many keys. */
CU_INLINE void plan_cut_row(const struct attention_plan *p, const struct plan_shape *s, u32 row, u32 pieces, u32 before,
			    u32 head_pieces)
{
	for (u32 i = threadIdx.x % CU_WARP; i < s->kv_heads * pieces; i += CU_WARP) {
		const u32 head = i / pieces, piece = i % pieces, place = head * head_pieces + before + piece;
		cu_store(p->work[ATTENTION_SMALL] + place,
			 make_uint4(row, head | piece << 16, 0, pieces > 1 ? place : ATTENTION_WHOLE));
		if (pieces > 1 && piece == 0)
			p->done[place] = 0;
	}
}

/* The pieces of a row with so many units in even shares. A tile that begins in block b has its first place in the list b behind
 * its number, and its first slot at 2 b: at least two pieces lie before the next tile that is cut, or in other blocks. */
CU_INLINE void plan_share_row(const struct attention_plan *p, const struct plan_shape *s, u32 row, u32 units,
			      struct plan_place before, const struct plan_shares *all)
{
	const u32 share = all->share, pieces_most = (units + 2 * share - 2) / share;
	const u32 end = (s->kv_heads - 1) * all->stride + all->head.length;
	u32 *bounds = (u32 *)p->ranges;
	for (u32 i = threadIdx.x % CU_WARP; i < s->kv_heads * pieces_most; i += CU_WARP) {
		const u32 head = i / pieces_most, piece = i % pieces_most, at = head * all->stride + before.length;
		const u32 first = at / share, skip = at % share, pieces = (skip + units + share - 1) / share;
		const u32 block = first + piece, item = head * all->head.rows + before.rows + block;
		if (piece >= pieces)
			continue;
		cu_store(p->work[ATTENTION_SMALL] + item,
			 make_uint4(row, head | piece << 16, skip, pieces > 1 ? first + block : ATTENTION_WHOLE));
		if (pieces > 1 && piece == 0)
			p->done[2 * first] = 0;
		if (piece > 0 || skip == 0) { /* the block's first; before a tile's beginning a place is left out */
			bounds[2 * block] = item;
			if (block > 0)
				bounds[2 * block - 1] = piece > 0 ? item : item - 1;
		}
		if (at + units == end && piece + 1 == pieces)
			bounds[2 * block + 1] = item + 1;
	}
}

/* All of decode: the keys of a block or of a piece. */
CU_INLINE u32 plan_write_small(const struct attention_plan *p, const struct plan_shape *s, struct plan_places *places,
			       struct plan_place head)
{
	const u32 grid = p->grid[ATTENTION_SMALL], all_pieces = head.length * s->kv_heads; /* where rows are cut by themselves */
	const struct plan_shares shares = plan_shares_of(s, head);
	struct plan_place base = {0, 0};
	for (u32 i = threadIdx.x; i < grid; i += THREADS)
		cu_store(p->ranges + i, s->split > 0 ? make_uint2((u32)((u64)all_pieces * i / grid),
								  (u32)((u64)all_pieces * (i + 1) / grid))
						     : make_uint2(0, 0));
	for (u32 begin = 0; begin < s->rows; begin += THREADS) {
		plan_place_rows(s, places, begin + threadIdx.x, &base);
		for (u32 i = threadIdx.x / CU_WARP; i < THREADS && begin + i < s->rows; i += WARPS) {
			const struct plan_row r = plan_row_of(s, begin + i);
			const u32 length = plan_length(s, &r);
			if (length > 0 && s->split > 0)
				plan_cut_row(p, s, begin + i, length, places->rows[i].length, head.length);
			else if (length > 0)
				plan_share_row(p, s, begin + i, length, places->rows[i], &shares);
		}
	}
	return s->split > 0 ? s->split : shares.share * ATTENTION_CHUNK_UNIT;
}

/* ---------------------------------------------------------------- prefill: a lane a tile */

CU_INLINE void plan_add_large(const struct plan_shape *s, struct plan_counters *c, const struct plan_row *r)
{
	for (u32 tile = threadIdx.x % CU_WARP; tile < r->tiles / s->kv_heads; tile += CU_WARP) {
		const u32 keys = plan_tile_keys(s, r, tile);
		cu_atomic_add(&c->keys, (u64)keys * s->kv_heads);
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
	const u32 sum = plan_sum_up(low + high);
	c->place[2 * lane] = sum - low - high;
	c->place[2 * lane + 1] = sum - high;
	if (lane == CU_WARP - 1)
		c->work = sum;
}

CU_INLINE void plan_write_large(const struct attention_plan *p, const struct plan_shape *s, struct plan_counters *c, u32 row,
				const struct plan_row *r, u32 chunk, u32 width)
{
	for (u32 tile = threadIdx.x % CU_WARP; tile < r->tiles / s->kv_heads; tile += CU_WARP) {
		const u32 keys = plan_tile_keys(s, r, tile), pieces = (keys - 1) / chunk + 1, heads = s->kv_heads;
		u32 join = 0, slot = 0;
		if (pieces > 1) {
			join = cu_atomic_add(&c->joins, heads);
			slot = cu_atomic_add(&c->slots, heads * pieces);
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
	SHARED(struct plan_places, places, 1);
	cu_grid_begin();
	struct plan_counters *c = counters;
	const u32 warp = threadIdx.x / CU_WARP;
	const bool has_large = s.queries_max * s.group > ATTENTION_SMALL_ROWS;
	if (threadIdx.x == 0) {
		c->keys = 0;
		c->work = c->slots = c->joins = c->length = c->rows = 0;
		c->longest = 1;
	}
	if (threadIdx.x < CLASSES)
		c->place[threadIdx.x] = 0;
	cu_sync(); /* the counters are zero */
	for (u32 row = threadIdx.x; row < s.rows; row += THREADS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (plan_decodes(&r)) {
			cu_atomic_add(&c->length, plan_length(&s, &r));
			cu_atomic_add(&c->rows, 1);
		}
	}
	for (u32 row = warp; has_large && row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.kind == ATTENTION_LARGE)
			plan_add_large(&s, c, &r);
	}
	cu_sync(); /* the totals are there */
	const u32 large = s.split > 0 ? ATTENTION_UNCUT
				      : plan_chunk(c->keys, s.blocks[ATTENTION_LARGE], s.large_least);
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
	for (u32 row = warp; has_large && row < s.rows; row += WARPS) {
		const struct plan_row r = plan_row_of(&s, row);
		if (r.tiles > 0 && r.kind == ATTENTION_LARGE)
			plan_write_large(&p, &s, c, row, &r, large, width);
	}
	const u32 small = plan_write_small(&p, &s, places, {c->length, c->rows});
	if (threadIdx.x == 0) { /* the barriers of plan_write_small lie behind the counts */
		p.head->work_count = c->work;
		p.head->join_count = c->joins;
		p.head->chunk[ATTENTION_SMALL] = small;
		p.head->chunk[ATTENTION_LARGE] = large;
	}
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
	    !a->plan->memory || l->split % ATTENTION_CHUNK_UNIT != 0 || l->kv_heads > UINT16_MAX ||
	    (l->split > 0 && l->context / l->split >= UINT16_MAX))
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
				     l->context,
				     attention_tile_rows(ATTENTION_LARGE, l->head_dim),
				     l->head_dim > ATTENTION_USUAL_DIM ? (u32)ATTENTION_WIDE_CHUNK_MIN : (u32)ATTENTION_LARGE_CHUNK_MIN};
	return cuda_launched(LAUNCH_DEPENDENT(attention_plan_kernel, 1, THREADS, 0, cuda_stream(ctx), p, s));
}
