/* Where the blocks and tiles lie that a matrix product of many rows is cut into: of rows, and in the packed inputs. For matmul_blocked.c, which cuts,
 * and matmul_blocked_tasks.c. All borrow the job, whose rows and k are planned. */
#ifndef TERCET_KERNELS_CPU_MATMUL_BLOCKED_CUTS_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_BLOCKED_CUTS_PRIV_H

#include "kernels/cpu/matmul_blocked_priv.h"

enum {
	NORMED_AT_ONCE = 256, /* values of a row that goes through a norm, in the L1 cache until they are packed */
	NORMED_STRIDE = NORMED_AT_ONCE + 16, /* of such rows: not all of them in the same places of that cache */
};

static inline u32 block_first_row(const struct blocked_job *j, u32 block)
{
	const u32 rows = j->kernel->laid_rows > 0 ? j->kernel->tile_rows : 1;
	return kern_min((u32)((u64)kern_ceil(j->a->tokens, rows) * block / j->row_blocks) * rows, j->a->tokens);
}

/* As many as `rows` lie as. */
static inline u32 laid(const struct blocked_job *j, u32 rows)
{
	const u32 of = j->kernel->laid_rows > 0 ? j->kernel->laid_rows : 1;
	return kern_ceil(rows, of) * of;
}

/* A block's rows in tiles: `large` of `most` rows and then others of `least`. The larger ones come first: a tile finishes what one of
 * as many rows has left. */
struct rows {
	u32 first, count, tiles, large, most, least;
	char *x; /* packed */
};

/* Of nearly equal size, or with nothing but the rest in the last where `tiles` computes whole ones. */
static inline struct rows rows_of(const struct blocked_job *j, u32 block)
{
	const u32 whole = j->kernel->tile_rows;
	const u32 part = block / j->part_blocks;
	struct rows r = {.first = block_first_row(j, block)};
	r.x = j->x + part * j->part_bytes + (r.first - block_first_row(j, part * j->part_blocks)) * j->row_bytes;
	r.count = block_first_row(j, block + 1) - r.first;
	r.tiles = kern_ceil(r.count, whole);
	r.least = r.count / r.tiles;
	r.most = r.least + 1;
	r.large = r.count % r.tiles;
	if (j->kernel->tiles) {
		r.least = r.count % whole;
		r.most = whole;
		r.large = r.count / whole;
	}
	return r;
}

/* Counted from the block's first row. */
static inline u32 tile_first(const struct rows *r, u32 tile)
{
	u32 large = kern_min(tile, r->large);
	return large * r->most + (tile - large) * r->least;
}

/* What `count` inputs of a row take. */
static inline size_t inputs_bytes(const struct blocked_job *j, u32 count)
{
	const u32 whole = j->kernel->whole_values > 0 ? j->kernel->whole_values : 2;
	if (j->width == 0)
		return (size_t)kern_ceil(count, whole) * whole * j->kernel->value_bytes;
	return kern_ceil(count, j->width) * ((size_t)j->width * j->kernel->value_bytes + j->kernel->head_bytes);
}

static inline u32 block_count(const struct blocked_job *j, u32 block)
{
	u32 first = block * j->k_block;
	return kern_min(j->k_block, j->a->w->k - first);
}

static inline char *tile_inputs(const struct blocked_job *j, const struct rows *r, u32 k_block, u32 tile)
{
	return r->x + laid(j, r->count) * inputs_bytes(j, j->k_block) * k_block +
	       tile_first(r, tile) * inputs_bytes(j, block_count(j, k_block));
}

#endif
