/* The plan of a step's attention as its kernels see it: lists of pieces of work, and room for the results of
 * pieces that hold only some of the keys. */
#ifndef TERCET_KERNELS_CUDA_ATTENTION_PLAN_CUH
#define TERCET_KERNELS_CUDA_ATTENTION_PLAN_CUH

#include "kernels/cuda/device.cuh"

enum {
	ATTENTION_SMALL, /* at most 16 (token, head) rows: decode */
	ATTENTION_LARGE, /* tiles of 128 rows, or 64: prefill, and decode of more rows */
	ATTENTION_KINDS,
};

enum {
	ATTENTION_SMALL_ROWS = 16,
	ATTENTION_LARGE_ROWS = 128,
	ATTENTION_WIDE_ROWS = 64, /* the same of heads beyond ATTENTION_USUAL_DIM (attention_wide.cu) */
	ATTENTION_USUAL_DIM = 256,
	/* Keys; below them joining the pieces costs more than walking them. */
	ATTENTION_SMALL_CHUNK_MIN = 128,
	ATTENTION_LARGE_CHUNK_MIN = 512,
	ATTENTION_WIDE_CHUNK_MIN = 256,
	ATTENTION_CHUNK_UNIT = 64,
};

#define ATTENTION_UNCUT 0x40000000u /* keys of a piece where nothing is cut: more than there are, and no overflow */
#define ATTENTION_WHOLE 0xffffffffu /* slot of a piece that is not split */

struct attention_plan_head {
	u32 work_count, join_count; /* of prefill's */
	u32 chunk[ATTENTION_KINDS]; /* keys of a piece */
};

/* Device pointers but for the grids. `work` of decode: {row, KV head and in the upper 16 bits the number of the piece, units of
 * keys from the beginning of a block's share to that of the tile, slot}; of prefill, the pieces with most keys first: {row,
 * tile * KV heads + KV head, number of the piece, slot}. `joins`: tiles of prefill that are cut, {row, tile * KV heads + KV
 * head, first slot, pieces}. */
struct attention_plan {
	struct attention_plan_head *head;
	uint2 *ranges; /* [grid of decode]: a block's pieces are work[x] to work[y - 1] */
	uint4 *work[ATTENTION_KINDS], *joins;
	float *totals[ATTENTION_KINDS]; /* [slots][rows of a tile][2]: maximum and sum of probabilities */
	float *sums[ATTENTION_KINDS];	/* [slots][rows of a tile][head_dim] */
	u32 *done; /* [slots of decode]: at the first slot of a tile how many of its pieces are done */
	u32 grid[ATTENTION_KINDS];	/* blocks to launch; 0: this step has no such work */
};

static inline u32 attention_tile_rows(u32 kind, u32 head_dim)
{
	const u32 large = head_dim > ATTENTION_USUAL_DIM ? ATTENTION_WIDE_ROWS : ATTENTION_LARGE_ROWS;
	return kind == ATTENTION_SMALL ? (u32)ATTENTION_SMALL_ROWS : large;
}

/* Blocks that fill the device: one of prefill has a multiprocessor for itself. */
static inline u32 attention_blocks(const struct kern_attention_limits *l, u32 kind)
{
	return kind == ATTENTION_SMALL ? l->blocks : (l->blocks + 1) / 2;
}

struct attention_room {
	u64 work, joins, slots;
};

/* How many pieces, tiles that are cut, and results of their pieces a step can have. An even share is at least the
 * keys over the blocks, so no more than `blocks` tiles are longer than it, and they have at most two pieces a block. Decode
 * leaves out a place in its list where a share ends with a tile. */
static inline struct attention_room attention_room_of(const struct kern_attention_limits *l, u32 window, u32 kind,
						      u64 tiles)
{
	const u64 blocks = attention_blocks(l, kind);
	if (l->split == 0)
		return {tiles + blocks, blocks, 2 * blocks};
	if (kind == ATTENTION_LARGE)
		return {tiles, 0, 0};
	/* within a window the walk begins at a multiple of the unit before the first key */
	const u64 window_keys = (u64)window + ATTENTION_CHUNK_UNIT + ATTENTION_SMALL_ROWS;
	const u64 keys = window > 0 && window_keys < l->context ? window_keys : l->context;
	const u64 pieces = (keys + l->split - 1) / l->split;
	return {tiles * pieces, pieces > 1 ? tiles : 0, pieces > 1 ? tiles * pieces : 0};
}

/* The pointers into the plan's memory, and the grids for steps of so many tokens and rows. With NULL memory
 * only the size counts. */
static inline size_t attention_plan_lay_out(const struct kern_attention_plan *plan, struct attention_plan *p)
{
	const struct kern_attention_limits *l = &plan->limits;
	const u32 group = l->heads / l->kv_heads;
	const u64 tiles[ATTENTION_KINDS] = {
		(u64)l->rows * l->kv_heads,
		l->queries * group > ATTENTION_SMALL_ROWS
			? ((u64)l->tokens * group / attention_tile_rows(ATTENTION_LARGE, l->head_dim) + l->rows) * l->kv_heads
			: 0,
	};
	char *base = (char *)plan->memory;
	size_t at = 0;
	auto carve = [&](size_t bytes) {
		char *part = base ? base + at : NULL;
		at += (bytes + 127) / 128 * 128;
		return part;
	};
	p->head = (struct attention_plan_head *)carve(sizeof(*p->head));
	p->ranges = (uint2 *)carve(l->blocks * sizeof(uint2));
	for (u32 kind = 0; kind < ATTENTION_KINDS; kind++) {
		struct attention_room room = {0, 0, 0};
		if (tiles[kind] > 0)
			room = attention_room_of(l, plan->window, kind, tiles[kind]);
		const size_t rows = room.slots * attention_tile_rows(kind, l->head_dim);
		const u64 work = room.work;
		p->work[kind] = (uint4 *)carve(work * sizeof(uint4));
		if (kind == ATTENTION_LARGE)
			p->joins = (uint4 *)carve(room.joins * sizeof(uint4));
		p->totals[kind] = (float *)carve(rows * 2 * sizeof(float));
		p->sums[kind] = (float *)carve(rows * l->head_dim * sizeof(float));
		if (kind == ATTENTION_SMALL)
			p->done = (u32 *)carve(room.slots * sizeof(u32));
		const u32 blocks = attention_blocks(l, kind);
		p->grid[kind] = (u32)(work < blocks ? work : blocks);
	}
	return at;
}

/* The first key that the query at position `at` sees. */
CU_INLINE u32 attention_first_key(u32 at, u32 window)
{
	return window > 0 && at >= window ? at - window + 1 : 0;
}

#endif
