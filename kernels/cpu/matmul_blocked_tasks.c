/* What a thread does of a matrix product of many rows: packs inputs, and multiplies them by weights, piece by piece. Called by matmul_blocked.c and
 * matmul_stages.c; owns nothing.
 *
 * A piece is a block of rows times some panels of columns, at a thread's end times fewer. Block by block of k, each panel's weights are brought
 * into the caches of a core once and used by all tiles of rows, while the tiles ask for the weights that follow; the inputs
 * of a block of k stay in the L2 cache for all panels of the piece; sums between blocks of k lie together in the
 * thread's own memory, for rows of a wide output share their places in the caches. Where a gated activation follows,
 * the panels of gate and up that belong together take turns, and only what it makes of their sums leaves that memory: as the inputs of the
 * product that follows, where that is known, in 8 or 16 bits for most types of weights instead of floats.
 * Nothing here touches the order in which a sum is taken. */
#include <string.h>

#include "kernels/cpu/matmul_blocked_cuts_priv.h"

enum { AHEAD_ROWS = 16 };

static size_t sums_bytes(u32 rows)
{
	const u32 panels = BLOCKED_FAR_PANELS > BLOCKED_HANDED_PANELS ? BLOCKED_FAR_PANELS : BLOCKED_HANDED_PANELS;
	return (size_t)kern_min(rows, BLOCKED_ROWS) * panels * KERN_PANEL * sizeof(float);
}

/* Of what an activation makes, until it is handed over. */
static size_t activated_bytes(u32 rows)
{
	return (size_t)kern_min(rows, BLOCKED_ROWS) * KERN_GROUP_MAX * sizeof(float);
}

size_t matmul_blocked_lane_bytes(u32 tokens)
{
	return sums_bytes(tokens) + activated_bytes(tokens) + BLOCKED_UNPACKED;
}

/* The panel of the weights that comes at a place of the way through them: with an activation gate, up, gate, up. */
static u32 panel_at(const struct blocked_job *j, u32 place)
{
	return j->fusion ? place / 2 + place % 2 * (j->panels / 2) : place;
}

/* ---------------------------------------------------------------- inputs */

struct span {
	u32 first, count;
};

static void pack_tile(struct blocked_job *j, const float *x, u32 rows, struct span k, char *to)
{
	if (j->kernel->pack(j, x, rows, k.first, k.count, to))
		atomic_store_explicit(&j->any_scales, true, memory_order_relaxed);
}

static char *lane_of(const struct blocked_job *j, u32 thread)
{
	return j->lanes + thread * j->lane_apart;
}

/* Of `rows` rows that go through a norm: in pieces, through the thread's own memory. */
static void pack_normed(struct blocked_job *j, const float *x, u32 rows, const struct rows *r, u32 tile, u32 thread)
{
	const struct kern_matmul_args *a = j->a;
	const struct blocked_norm *norm = j->kernel->norm;
	float factor[BLOCKED_TILE_MAX], *normed = (float *)(void *)lane_of(j, thread);
	for (u32 i = 0; i < rows; i++)
		factor[i] = norm->factor(x + (size_t)i * a->x_stride, a->w->k, j->normed->norm_eps);
	for (u32 b = 0; b < j->k_blocks; b++) {
		const u32 count = block_count(j, b);
		char *to = tile_inputs(j, r, b, tile);
		for (u32 k = 0; k < count; k += NORMED_AT_ONCE) {
			const u32 at = b * j->k_block + k, n = kern_min(count - k, NORMED_AT_ONCE);
			for (u32 i = 0; i < rows; i++) {
				float *row = normed + (size_t)i * NORMED_STRIDE;
				norm->scale(row, x + (size_t)i * a->x_stride + at, j->normed->norm_weight + at, factor[i], n);
				memset(row + n, 0, (kern_ceil(n, KERN_GROUP_MAX) * KERN_GROUP_MAX - n) * sizeof(*row)); /* the last group's */
			}
			pack_tile(j, normed, rows, (struct span){0, n}, to + laid(j, rows) * inputs_bytes(j, k));
		}
	}
}

/* A tile of a block of rows, and of one block of k unless there is a norm. */
static void pack_rows(struct blocked_job *j, const struct rows *r, u32 tile, u32 k_block, u32 thread)
{
	const u32 first = tile_first(r, tile), rows = tile_first(r, tile + 1) - first;
	const float *x = j->a->x + (size_t)(r->first + first) * j->a->x_stride;
	if (j->normed)
		pack_normed(j, x, rows, r, tile, thread);
	else
		pack_tile(j, x, rows, (struct span){k_block * j->k_block, block_count(j, k_block)}, tile_inputs(j, r, k_block, tile));
}

void matmul_blocked_pack_task(void *arg, u32 task, u32 thread)
{
	struct blocked_job *j = arg;
	u32 k_block = j->normed ? 0 : task % j->k_blocks, tile = j->normed ? task : task / j->k_blocks, block = 0;
	struct rows r = rows_of(j, 0);
	for (; tile >= r.tiles; r = rows_of(j, ++block))
		tile -= r.tiles;
	pack_rows(j, &r, tile, k_block, thread);
}

void matmul_blocked_pack(struct blocked_job *j, u32 part, u32 thread)
{
	for (u32 block = part * j->part_blocks; block < (part + 1) * j->part_blocks; block++) {
		const struct rows r = rows_of(j, block);
		for (u32 tile = 0; tile < r.tiles; tile++)
			for (u32 b = 0; b < (j->normed ? 1 : j->k_blocks); b++)
				pack_rows(j, &r, tile, b, thread);
	}
}

/* ---------------------------------------------------------------- pieces */

/* Where a panel's weights of a block of k begin. */
static const char *weights_at(const struct blocked_job *j, u32 panel, u32 k_block)
{
	return (const char *)j->a->w->data + panel * j->panel_bytes + k_block * j->block_bytes;
}

/* A task's way: block by block of k, panel by panel. */
struct place {
	u32 panel, k_block;
};

/* Where a task of `count` panels from `panel` on is a block later, or where the next task is; two blocks later with rows that are done with one
 * before memory has answered for all of the next. */
static struct place place_ahead(const struct blocked_job *j, struct place at, u32 panel, u32 count)
{
	const u32 blocks = j->k_blocks * count, ahead = j->kernel->few_k_block > 0 && j->a->tokens <= AHEAD_ROWS ? 2 : 1;
	const u32 block = at.k_block * count + at.panel - panel + ahead;
	if (block < blocks)
		return (struct place){panel + block % count, block / count};
	return (struct place){panel + count + (block - blocks) % count, (block - blocks) / count % j->k_blocks};
}

/* Asks for the block at `next`: one that this task computes, or the next task, or the product that comes behind this one. */
static void plan_prefetch(const struct blocked_job *j, struct place next, struct blocked_tile *t, u32 tiles)
{
	const struct kern_weight *w = j->a->w, *behind = j->a->fusion && j->a->fusion->then ? j->a->fusion->then->w : j->a->next ? j->a->next : w;
	const bool ends = next.panel >= j->panels;
	const u32 units = kern_ceil(t->k_count * j->kernel->value_bytes, 4);
	t->prefetch = ends ? (const char *)behind->data : weights_at(j, panel_at(j, next.panel), next.k_block);
	t->prefetch_block = t->prefetch;
	t->prefetch_bytes = (u32)(next.k_block + 1 < j->k_blocks ? j->block_bytes : j->panel_bytes - next.k_block * j->block_bytes);
	t->prefetch_step = kern_ceil(t->prefetch_bytes, tiles * units);
}

/* All that a tile touches; of weights in groups those who read them know. */
static void check_tile(const struct blocked_job *j, const struct blocked_tile *t, u32 rows)
{
	const struct kern_weight *w = j->a->w;
	const u32 values = w->dtype == KERN_BF16 ? kern_ceil(t->k_count, 2) * 2 : t->k_count;
	if (!CHECKS_BYTES)
		return;
	check_bytes(t->x, rows * inputs_bytes(j, t->k_count));
	if (w->packed == KERN_LAYOUT_PANEL)
		check_bytes(t->weights, (size_t)values * KERN_PANEL * kern_dtype_bytes(w->dtype));
	if (!t->first || !t->last)
		check_bytes(t->sums, rows * KERN_PANEL * sizeof *t->sums);
	for (u32 r = 0; r < rows && (t->last || (t->first && t->accumulate)); r++)
		check_bytes(t->out + r * t->out_stride, t->columns * sizeof *t->out);
	if (t->first && t->bias)
		check_bytes(t->bias, t->columns * sizeof *t->bias);
}

/* A gate and an up of a block of rows, whose sums are complete: what comes of them is made beside the products of the next two panels, or at once. */
struct waiting {
	const float *gate; /* NULL: there is nothing; the up's sums lie behind those of all rows */
	u32 up; /* the up's panel */
	u32 block;
};

/* Where KERN_PANEL columns of what an activation makes go as inputs of a tile of the next product. */
static char *handed_to(const struct blocked_job *to, const struct rows *r, u32 column, u32 tile)
{
	const u32 k_block = column / to->k_block, rows = tile_first(r, tile + 1) - tile_first(r, tile);
	return tile_inputs(to, r, k_block, tile) + laid(to, rows) * inputs_bytes(to, column - k_block * to->k_block);
}

/* What a tile makes of what waits: the first or the second half of its rows. */
static struct blocked_acts acts_of(const struct blocked_job *j, const struct rows *r, const struct waiting *w, u32 tile, bool second)
{
	const struct kern_matmul_args *a = j->a;
	const u32 first = tile_first(r, tile), rows = tile_first(r, tile + 1) - first, half = kern_ceil(rows, 2), from = second ? half : 0;
	const u32 column = w->up / 2 * KERN_PANEL;
	const float *gate = w->gate + (size_t)(first + from) * KERN_PANEL;
	struct blocked_acts acts = {.gate = gate, .up = gate + (size_t)r->count * KERN_PANEL, .act = j->fusion->act, .packs = j->then != NULL};
	acts.rows = second ? rows - half : half;
	if (j->then) {
		const struct rows to = rows_of(j->then, w->block);
		acts.stride = inputs_bytes(j->then, KERN_PANEL);
		acts.to = handed_to(j->then, &to, column, tile) + from * acts.stride;
	} else {
		acts.stride = a->out_stride * sizeof(float);
		acts.to = (char *)(a->out + column) + (r->first + first + from) * acts.stride;
	}
	return acts;
}

/* The tiles of a block of rows times one panel's block of k. `row_bytes`: of a row's inputs; `sums`: of the block's first row. A tile is a microsecond
 * or less, so what differs from tile to tile is added up: rows as tile_first has them. */
static void run_panel(const struct blocked_job *j, const struct rows *r, struct place at, size_t row_bytes, float *sums,
		      const struct waiting *waits, struct blocked_tile *t)
{
	const struct kern_matmul_args *a = j->a;
	const u32 n = panel_at(j, at.panel) * KERN_PANEL;
	const u32 prefetched = t->prefetch_bytes / r->tiles;
	_Alignas(32) char held[BLOCKED_HELD];
	t->held = held;
	t->width = j->width;
	t->most_rows = r->large > 0 ? r->most : r->least;
	t->first = at.k_block == 0;
	t->last = at.k_block + 1 == j->k_blocks && !j->fusion;
	t->columns = kern_min(a->w->n - n, KERN_PANEL);
	t->sums = sums;
	t->out = a->out + (size_t)r->first * a->out_stride + n;
	t->out_stride = a->out_stride;
	t->bias = a->bias ? a->bias + n : NULL;
	t->accumulate = a->accumulate;
	for (u32 row = 0; row < kern_min(r->count, j->kernel->tile_rows) && t->first && t->accumulate; row++) {
		__builtin_prefetch(t->out + row * t->out_stride + KERN_PANEL, 0, 2); /* what the next panel's first tile begins with */
		__builtin_prefetch(t->out + row * t->out_stride + KERN_PANEL + KERN_PANEL / 2, 0, 2);
	}
	for (u32 i = 0, count = 1; i < r->tiles; i += count) {
		const u32 rows = i < r->large ? r->most : r->least;
		t->opens = i == 0;
		t->closes = i + 1 == r->tiles;
		if (i == 0 && j->kernel->tiles && j->kernel->tiles(t, r->large)) {
			count = r->large;
		} else {
			count = 1;
			if (waits->gate)
				t->acts = acts_of(j, r, waits, i, at.panel % 2);
			check_tile(j, t, rows);
			j->kernel->tile(t, rows);
		}
		t->x += count * rows * row_bytes;
		t->sums += count * rows * KERN_PANEL;
		t->out += count * rows * t->out_stride;
		t->prefetch += count * prefetched;
	}
}

/* What the activation made of a block of rows, [row][handed], are the next product's inputs from value k on. */
static void hand_over(const struct blocked_job *j, u32 block, u32 k, const float *activated)
{
	struct blocked_job *to = j->then;
	const struct rows r = rows_of(to, block);
	for (u32 tile = 0; tile < r.tiles; tile++) {
		u32 first = tile_first(&r, tile), rows = tile_first(&r, tile + 1) - first;
		pack_tile(to, activated + (size_t)first * j->handed, rows, (struct span){0, j->handed}, handed_to(to, &r, k, tile));
	}
}

/* `up` is at an up's panel, whose sums and those of the gate before it are complete. */
static void run_activation(const struct blocked_job *j, const struct rows *r, u32 up, const float *sums, u32 block, float *activated)
{
	const struct kern_matmul_args *a = j->a;
	const float *gate = sums - (size_t)r->count * KERN_PANEL;
	const u32 column = up / 2 * KERN_PANEL;
	if (!j->then) {
		float *out = a->out + (size_t)r->first * a->out_stride + column;
		j->kernel->act_mul(gate, sums, r->count, j->fusion->act, out, a->out_stride);
		return;
	}
	const u32 at = column % j->handed;
	j->kernel->act_mul(gate, sums, r->count, j->fusion->act, activated + at, j->handed);
	if (at + KERN_PANEL == j->handed)
		hand_over(j, block, column - at, activated);
}

/* A block of rows times `count` panels from the one at place `panel` on. */
static void run_piece(const struct blocked_job *j, u32 block, u32 panel, u32 count, u32 thread)
{
	const struct blocked_kernel *kernel = j->kernel;
	struct rows r = rows_of(j, block);
	char *lane = lane_of(j, thread), *unpacked = lane + j->lane_bytes - BLOCKED_UNPACKED;
	float *activated = (float *)(void *)(unpacked - activated_bytes(j->a->tokens));
	const bool any_scales = atomic_load_explicit(&j->any_scales, memory_order_relaxed);
	const u32 kept = kernel->acts_beside ? 4 : 2; /* panels' sums: those of a gate and its up, and of what waits */
	struct waiting waits = {0};
	struct blocked_tile t = {0};
	for (u32 b = 0; b < j->k_blocks; b++) {
		t.k_count = block_count(j, b);
		const char *x = tile_inputs(j, &r, b, 0);
		const size_t row_bytes = inputs_bytes(j, t.k_count);
		for (u32 p = 0; p < count; p++) {
			const struct place at = {panel + p, b}, ahead = place_ahead(j, at, panel, count);
			t.x = x;
			plan_prefetch(j, ahead, &t, r.tiles);
			/* Without other blocks of k none are kept longer than until a gate has its up, and its activation is made: the less
			 * memory, the better. */
			float *sums = (float *)(void *)lane + (size_t)(j->k_blocks > 1 ? p : p % kept) * r.count * KERN_PANEL;
			t.weights = weights_at(j, panel_at(j, at.panel), b);
			if (kernel->unpack) {
				t.scales = kernel->unpack(j->a->w, t.weights, t.k_count, any_scales, unpacked);
				t.packed = t.weights;
				t.weights = t.unpacked = unpacked;
			} else if (kernel->tabulate) {
				t.scales = kernel->tabulate(j->a->w, t.weights, t.k_count, any_scales, unpacked);
				t.tables = unpacked;
			}
			run_panel(j, &r, at, row_bytes, sums, &waits, &t);
			if (!j->fusion || b + 1 < j->k_blocks || p % 2 == 0)
				continue;
			if (kernel->acts_beside && p + 1 < count)
				waits = (struct waiting){sums - (size_t)r.count * KERN_PANEL, at.panel, block};
			else
				run_activation(j, &r, at.panel, sums, block, activated);
		}
	}
}

void matmul_blocked_steps(const struct blocked_job *j, u32 first, u32 end, u32 thread)
{
	for (u32 steps; first < end; first += steps) {
		const u32 block = first / j->steps, at = first % j->steps, panel = at * j->step_panels;
		steps = kern_min(end - first, j->steps - at);
		run_piece(j, block, panel, kern_min(steps * j->step_panels, j->panels - panel), thread);
	}
}
