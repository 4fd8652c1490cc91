/* The plan of a step's attention as its kernels see it: lists of pieces of work, and room for the results of
 * pieces that hold only some of the keys. */
#ifndef TERCET_KERNELS_CUDA_ATTENTION_PLAN_CUH
#define TERCET_KERNELS_CUDA_ATTENTION_PLAN_CUH

#include "kernels/cuda/device.cuh"

enum {
	ATTENTION_SMALL, /* at most 16 (token, head) rows: decode */
	ATTENTION_LARGE, /* tiles of 64 rows: prefill */
	ATTENTION_KINDS,
};

enum {
	ATTENTION_SMALL_ROWS = 16,
	ATTENTION_LARGE_ROWS = 64,
	ATTENTION_CHUNK_MIN = 256, /* keys; below it joining the pieces costs more than walking them */
	ATTENTION_CHUNK_UNIT = 64,
};

#define ATTENTION_WHOLE 0xffffffffu /* slot of a piece that is not split */

struct attention_plan_head {
	u32 work_count[ATTENTION_KINDS];
	u32 join_count[ATTENTION_KINDS];
	u32 chunk[ATTENTION_KINDS]; /* keys of a piece */
};

/* Device pointers but for the grids. `work`: {row, tile * KV heads + KV head, number of the piece, slot}.
 * `joins`: {row, tile * KV heads + KV head, first slot, pieces}. */
struct attention_plan {
	struct attention_plan_head *head;
	uint4 *work[ATTENTION_KINDS], *joins[ATTENTION_KINDS];
	float *totals[ATTENTION_KINDS]; /* [slots][rows of a tile][2]: maximum and sum of probabilities */
	float *sums[ATTENTION_KINDS];	/* [slots][rows of a tile][head_dim] */
	u32 grid[ATTENTION_KINDS];	/* blocks to launch; 0: this step has no such work */
	u32 slots;
};

static inline u32 attention_tile_rows(u32 kind)
{
	return kind == ATTENTION_SMALL ? ATTENTION_SMALL_ROWS : ATTENTION_LARGE_ROWS;
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
			? ((u64)l->tokens * group / ATTENTION_LARGE_ROWS + l->rows) * l->kv_heads
			: 0,
	};
	char *base = (char *)plan->memory;
	size_t at = 0;
	auto carve = [&](size_t bytes) {
		char *part = base ? base + at : NULL;
		at += (bytes + 127) / 128 * 128;
		return part;
	};
	p->slots = 2 * l->blocks;
	p->head = (struct attention_plan_head *)carve(sizeof(*p->head));
	for (u32 kind = 0; kind < ATTENTION_KINDS; kind++) {
		const size_t rows = (size_t)p->slots * attention_tile_rows(kind) * (tiles[kind] > 0);
		const u64 work = tiles[kind] > 0 ? tiles[kind] + l->blocks : 0;
		p->work[kind] = (uint4 *)carve(work * sizeof(uint4));
		p->joins[kind] = (uint4 *)carve(tiles[kind] > 0 ? l->blocks * sizeof(uint4) : 0);
		p->totals[kind] = (float *)carve(rows * 2 * sizeof(float));
		p->sums[kind] = (float *)carve(rows * l->head_dim * sizeof(float));
		p->grid[kind] = (u32)(work < l->blocks ? work : l->blocks);
	}
	return at;
}

/* The first key that the query at position `at` sees. */
CU_INLINE u32 attention_first_key(u32 at, u32 window)
{
	return window > 0 && at >= window ? at - window + 1 : 0;
}

#endif
