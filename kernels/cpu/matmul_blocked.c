/* Drives the matrix products of many rows: prefill, and decoding of larger batches. Runs in the worker in such
 * steps; owns nothing.
 *
 * A task is a block of rows times a few panels of columns. Block by block of k, each panel's weights are brought
 * into the L1 cache once and used by all tiles of rows, while the tiles ask for the weights that follow; the inputs
 * of a block of k stay in the L2 cache for all panels of the task; sums between blocks of k lie together in the
 * thread's own memory, for rows of a wide output share their places in the caches. Where a gated activation follows,
 * the panels of gate and up that belong together take turns, and only what it makes of their sums leaves that memory.
 * Nothing here touches the order in which a sum is taken. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/shares_priv.h"

enum {
	FEW_ROWS = 64, /* so few rows need no company of panels, and tasks must be small for so few to end together */
	FEW_PANELS = 2,
	OWN_ROWS = 64, /* a thread has at least, for which it reads all weights */
	OWN_ROWS_UNPACKED = 128, /* and unpacks them */
};

static size_t sums_bytes(u32 rows)
{
	return (size_t)kern_min(rows, BLOCKED_ROWS) * BLOCKED_PANELS * KERN_PANEL * sizeof(float);
}

size_t matmul_blocked_lane_bytes(u32 tokens)
{
	return sums_bytes(tokens) + BLOCKED_UNPACKED;
}

/* ---------------------------------------------------------------- cutting */

static u32 block_first_row(const struct blocked_job *j, u32 block)
{
	return (u32)((u64)j->a->tokens * block / j->row_blocks);
}

/* A block's rows in tiles: `large` of `most` rows and then others of `least`. The larger ones come first: a tile finishes what one of
 * as many rows has left. */
struct rows {
	u32 first, count, tiles, large, most, least;
};

/* Of nearly equal size, or with nothing but the rest in the last where `tiles` computes whole ones. */
static struct rows rows_of(const struct blocked_job *j, u32 block)
{
	const u32 whole = j->kernel->tile_rows;
	struct rows r = {.first = block_first_row(j, block)};
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
static u32 tile_first(const struct rows *r, u32 tile)
{
	u32 large = kern_min(tile, r->large);
	return large * r->most + (tile - large) * r->least;
}

/* What `count` inputs of a row take. */
static size_t inputs_bytes(const struct blocked_job *j, u32 count)
{
	if (j->width == 0)
		return (size_t)(count + count % 2) * j->kernel->value_bytes;
	return kern_ceil(count, j->width) * ((size_t)j->width * j->kernel->value_bytes + j->kernel->head_bytes);
}

/* Blocks of k of nearly equal size. */
static void plan_k(struct blocked_job *j)
{
	const u32 k = j->a->w->k, least = kern_ceil(k, j->kernel->k_block);
	j->k_block = least > 0 ? kern_ceil(kern_ceil(k, least), KERN_GROUP_MAX) * KERN_GROUP_MAX : KERN_GROUP_MAX;
	j->k_blocks = kern_ceil(k, j->k_block);
}

static u32 block_count(const struct blocked_job *j, u32 block)
{
	u32 first = block * j->k_block;
	return kern_min(j->k_block, j->a->w->k - first);
}

static char *tile_inputs(const struct blocked_job *j, const struct rows *r, u32 k_block, u32 tile)
{
	return j->x + r->first * j->row_bytes + r->count * inputs_bytes(j, j->k_block) * k_block +
	       tile_first(r, tile) * inputs_bytes(j, block_count(j, k_block));
}

/* The panel of the weights that comes at a place of the way through them: with an activation gate, up, gate, up. */
static u32 panel_at(const struct blocked_job *j, u32 place)
{
	return j->fusion ? place / 2 + place % 2 * (j->panels / 2) : place;
}

/* Where every thread can have enough rows of its own it has them: what it computed of them is in its cache when the next product
 * packs them. */
static u32 plan_rows(const struct blocked_job *j, u32 threads)
{
	u32 least = kern_ceil(j->a->tokens, BLOCKED_ROWS);
	u32 own = kern_min(threads, j->a->tokens / (j->kernel->unpack ? OWN_ROWS_UNPACKED : OWN_ROWS));
	return own > 1 ? kern_ceil(least, own) * own : least;
}

/* As many panels a task as let the threads end together, the more the better. */
static void plan_columns(struct blocked_job *j, u32 threads)
{
	u32 best = UINT32_MAX, most = j->a->tokens > FEW_ROWS ? BLOCKED_PANELS : FEW_PANELS, step = j->fusion ? 2 : 1;
	for (u32 panels = most; panels > 0; panels -= step) {
		u32 tasks = kern_ceil(j->panels, panels);
		u32 time = kern_ceil(tasks * j->row_blocks, threads) * panels;
		if (time >= best)
			continue;
		best = time;
		j->panels_a_task = panels;
		j->column_tasks = tasks;
	}
}

/* ---------------------------------------------------------------- tasks */

/* Tiles are counted through all blocks of rows. */
static void pack_task(void *arg, u32 task, u32 thread)
{
	struct blocked_job *j = arg;
	u32 k_block = task % j->k_blocks, tile = task / j->k_blocks, block = 0;
	struct rows r = rows_of(j, 0);
	(void)thread;
	for (; tile >= r.tiles; r = rows_of(j, ++block))
		tile -= r.tiles;
	u32 first = tile_first(&r, tile), rows = tile_first(&r, tile + 1) - first;
	if (j->kernel->pack(j, j->a->x + (size_t)(r.first + first) * j->a->x_stride, rows, k_block * j->k_block,
			    block_count(j, k_block), tile_inputs(j, &r, k_block, tile)))
		atomic_store_explicit(&j->any_scales, true, memory_order_relaxed);
}

/* Where a panel's weights from value k on begin. */
static const char *weights_at(const struct kern_weight *w, u32 panel, u32 k)
{
	u32 n = panel * KERN_PANEL;
	if (w->packed == KERN_LAYOUT_GROUPS)
		return (const char *)w->data + kern_group_offset(w, n, k);
	return (const char *)w->data + kern_panel_index(w->k, w->dtype, n, k) * kern_dtype_bytes(w->dtype);
}

/* A task's way: block by block of k, panel by panel. */
struct place {
	u32 panel, k_block;
};

/* Asks for the block that the task computes next, or the next task. */
static void plan_prefetch(const struct blocked_job *j, struct place next, struct blocked_tile *t, u32 tiles)
{
	const struct kern_weight *w = j->a->w;
	next.panel = next.panel < j->panels ? panel_at(j, next.panel) : 0; /* or nothing follows */
	u32 k = next.k_block * j->k_block, units = kern_ceil(t->k_count * j->kernel->value_bytes, 4);
	t->prefetch = weights_at(w, next.panel, k);
	t->prefetch_bytes = (u32)(weights_at(w, 0, k + block_count(j, next.k_block)) - weights_at(w, 0, k));
	t->prefetch_step = kern_ceil(t->prefetch_bytes, tiles * units);
}

/* All that a tile of weights that are used as they are touches. */
static void check_tile(const struct blocked_job *j, const struct blocked_tile *t, u32 rows)
{
	const struct kern_weight *w = j->a->w;
	const u32 values = w->dtype == KERN_BF16 ? kern_ceil(t->k_count, 2) * 2 : t->k_count;
	if (!CHECKS_BYTES || w->packed != KERN_LAYOUT_PANEL)
		return;
	check_bytes(t->x, rows * inputs_bytes(j, t->k_count));
	check_bytes(t->weights, (size_t)values * KERN_PANEL * kern_dtype_bytes(w->dtype));
	if (!t->first || !t->last)
		check_bytes(t->sums, rows * KERN_PANEL * sizeof *t->sums);
	for (u32 r = 0; r < rows && (t->last || (t->first && t->accumulate)); r++)
		check_bytes(t->out + r * t->out_stride, t->columns * sizeof *t->out);
	if (t->first && t->bias)
		check_bytes(t->bias, t->columns * sizeof *t->bias);
}

/* The tiles of a block of rows times one panel's block of k. `sums`: of the block's first row. A tile is a microsecond
 * or less, so what differs from tile to tile is added up: rows as tile_first has them. */
static void run_panel(const struct blocked_job *j, const struct rows *r, struct place at, float *sums,
		      struct blocked_tile t)
{
	const struct kern_matmul_args *a = j->a;
	const u32 n = panel_at(j, at.panel) * KERN_PANEL;
	const u32 prefetched = t.prefetch_bytes / r->tiles;
	const size_t row_bytes = inputs_bytes(j, t.k_count);
	_Alignas(32) char held[BLOCKED_HELD];
	t.held = held;
	t.width = j->width;
	t.first = at.k_block == 0;
	t.last = at.k_block + 1 == j->k_blocks && !j->fusion;
	t.columns = kern_min(a->w->n - n, KERN_PANEL);
	t.x = tile_inputs(j, r, at.k_block, 0);
	t.sums = sums;
	t.out = a->out + (size_t)r->first * a->out_stride + n;
	t.out_stride = a->out_stride;
	t.bias = a->bias ? a->bias + n : NULL;
	t.accumulate = a->accumulate;
	for (u32 row = 0; row < kern_min(r->count, j->kernel->tile_rows) && t.first && t.accumulate; row++) {
		__builtin_prefetch(t.out + row * t.out_stride + KERN_PANEL, 0, 2); /* what the next panel's first tile begins with */
		__builtin_prefetch(t.out + row * t.out_stride + KERN_PANEL + KERN_PANEL / 2, 0, 2);
	}
	for (u32 i = 0, count = 1; i < r->tiles; i += count) {
		const u32 rows = i < r->large ? r->most : r->least;
		t.opens = i == 0;
		t.closes = i + 1 == r->tiles;
		if (i == 0 && j->kernel->tiles && j->kernel->tiles(&t, r->large)) {
			count = r->large;
		} else {
			count = 1;
			check_tile(j, &t, rows);
			j->kernel->tile(&t, rows);
		}
		t.x += count * rows * row_bytes;
		t.sums += count * rows * KERN_PANEL;
		t.out += count * rows * t.out_stride;
		t.prefetch += count * prefetched;
	}
}

/* `up` is at an up's panel, whose sums and those of the gate before it are complete. */
static void run_activation(const struct blocked_job *j, const struct rows *r, u32 up, const float *sums)
{
	const struct kern_matmul_args *a = j->a;
	float *out = a->out + (size_t)r->first * a->out_stride + (size_t)(up / 2) * KERN_PANEL;
	j->kernel->act_mul(sums - (size_t)r->count * KERN_PANEL, sums, r->count, j->fusion->act, out, a->out_stride);
}

static void run_task(void *arg, u32 task, u32 thread)
{
	const struct blocked_job *j = arg;
	const struct blocked_kernel *kernel = j->kernel;
	struct rows r = rows_of(j, task / j->column_tasks);
	u32 panel = task % j->column_tasks * j->panels_a_task;
	u32 count = kern_min(j->panels - panel, j->panels_a_task);
	char *lane = j->lanes + thread * j->lane_bytes, *unpacked = lane + j->lane_bytes - BLOCKED_UNPACKED;
	const bool any_scales = atomic_load_explicit(&j->any_scales, memory_order_relaxed);
	for (u32 b = 0; b < j->k_blocks; b++)
		for (u32 p = 0; p < count; p++) {
			struct place at = {panel + p, b}, next = {panel + p + 1, b};
			struct blocked_tile t = {.k_count = block_count(j, b)};
			if (p + 1 == count && b + 1 < j->k_blocks)
				next = (struct place){panel, b + 1};
			else if (p + 1 == count)
				next = (struct place){panel + count, 0};
			plan_prefetch(j, next, &t, r.tiles);
			float *sums = (float *)(void *)lane + (size_t)p * r.count * KERN_PANEL;
			t.weights = weights_at(j->a->w, panel_at(j, at.panel), b * j->k_block);
			if (kernel->unpack) {
				t.scales = kernel->unpack(j->a->w, t.weights, t.k_count, any_scales, unpacked);
				t.packed = t.weights;
				t.weights = t.unpacked = unpacked;
			} else if (kernel->tabulate) {
				t.scales = kernel->tabulate(j->a->w, t.weights, t.k_count, any_scales, unpacked);
				t.tables = unpacked;
			}
			run_panel(j, &r, at, sums, t);
			if (j->fusion && b + 1 == j->k_blocks && p % 2 == 1)
				run_activation(j, &r, at.panel, sums);
		}
}

bool matmul_blocked_fuses(const struct kern_matmul_args *a)
{
	const struct kern_matmul_fusion *f = a->fusion;
	return f->act_mul && !f->norm_weight && !f->rope && !a->accumulate && a->w->n % (2 * KERN_PANEL) == 0;
}

void matmul_blocked(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct blocked_kernel *kernel)
{
	struct blocked_job j = {.a = a, .kernel = kernel, .width = kern_dtype_group(a->w->dtype), .fusion = a->fusion};
	u32 threads = kern_thread_count(ctx), k = a->w->k;
	ASSERT(kernel->k_block <= BLOCKED_K_MAX && kernel->tile_rows <= BLOCKED_TILE_MAX);
	if (a->tokens == 0)
		return;
	j.row_blocks = plan_rows(&j, threads);
	plan_k(&j);
	j.row_bytes = k / j.k_block * inputs_bytes(&j, j.k_block) + inputs_bytes(&j, k % j.k_block);
	j.lane_bytes = matmul_blocked_lane_bytes(a->tokens);
	j.lanes = ctx->scratch;
	j.x = j.lanes + threads * j.lane_bytes;
	j.panels = kern_ceil(a->w->n, KERN_PANEL);
	ASSERT(threads * j.lane_bytes + a->tokens * j.row_bytes <= ctx->scratch_bytes);
	for (u32 b = 0; b < j.row_blocks; b++)
		j.tiles += rows_of(&j, b).tiles;
	plan_columns(&j, threads);
	parallel_near(ctx, j.tiles * j.k_blocks, pack_task, &j);
	parallel_near(ctx, j.column_tasks * j.row_blocks, run_task, &j);
}
