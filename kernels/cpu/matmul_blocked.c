/* Drives the matrix products of many rows: prefill, and decoding of larger batches. Runs in the worker in such
 * steps; owns nothing. It cuts rows, columns and k for the threads, gives their memory places in the scratch, and has products that follow each
 * other hand over what they make. What a thread does of it then, and why, is in matmul_blocked_tasks.c. */
#include "kernels/cpu/matmul_blocked_cuts_priv.h"
#include "kernels/cpu/shares_priv.h"

enum {
	FEW_ROWS = 64, /* so few rows need no company of panels, and tasks must be small for so few to end together */
	FEW_PANELS = 2,
	FEW_K_WHOLE = 640, /* inputs of so few values and rows are in the L1 cache as a whole */
	OWN_ROWS_UNPACKED = 2 * NEAR_ROWS, /* a thread has at least, for which it unpacks all weights */
	BYTES_A_NS = 200, /* that a core multiplies, about */
	TAKING_NS = 36000,
	HANDED_LEAST = 64, /* values of groups that are packed at once */
	NEAR_INPUTS = 1536 << 10, /* bytes that an L2 cache of 2 MB still holds for the most part; sums of more panels would take their place */
	BESIDE_ROWS = 128, /* of so few rows sums of BESIDE_PANELS lie near, of which only the last two's activation has no products beside it */
	BESIDE_PANELS = 8,
};

/* ---------------------------------------------------------------- cutting */

/* What the largest part's rows lie as. */
static u32 part_rows(const struct blocked_job *j)
{
	u32 most = 0;
	for (u32 block = 0; block < j->row_blocks; block += j->part_blocks) {
		const u32 rows = block_first_row(j, block + j->part_blocks) - block_first_row(j, block);
		most = rows > most ? rows : most;
	}
	return laid(j, most);
}

/* Blocks of k of nearly equal size. */
static void plan_k(struct blocked_job *j)
{
	const u32 k = j->a->w->k, few = j->kernel->few_k_block;
	const bool shorter = few > 0 && j->a->tokens <= FEW_ROWS && k > FEW_K_WHOLE;
	const u32 least = shorter ? kern_ceil(k, few) : k <= j->kernel->k_whole ? kern_min(k, 1) : kern_ceil(k, j->kernel->k_block);
	j->k_block = least > 0 ? kern_ceil(kern_ceil(k, least), KERN_GROUP_MAX) * KERN_GROUP_MAX : KERN_GROUP_MAX;
	j->k_blocks = kern_ceil(k, j->k_block);
}

/* Where every thread can have enough rows of its own it has them, and reads all weights: what it computed of its rows is in its
 * cache when the next product packs them. */
static void plan_rows(struct blocked_job *j, u32 threads)
{
	u32 least = kern_ceil(j->a->tokens, BLOCKED_ROWS);
	const u32 enough = j->kernel->own_rows > 0 ? j->kernel->own_rows : j->kernel->unpack ? OWN_ROWS_UNPACKED : NEAR_ROWS;
	u32 own = kern_min(threads, j->a->tokens / enough);
	j->part_blocks = kern_ceil(least, own > 1 ? own : 1);
	j->row_blocks = own > 1 ? j->part_blocks * own : least;
}

/* How many panels the last thread computes where they are taken `step` at a time. */
static u32 last_panels(const struct blocked_job *j, u32 step, u32 threads)
{
	return kern_ceil(kern_ceil(j->panels, step) * j->row_blocks, threads) * step;
}

/* Columns are taken in steps that nothing divides: a panel, a gate's with its up's, what makes whole groups of the next product's inputs, or of few
 * rows a small task. Returns how many panels the last thread computes. */
static u32 plan_columns(struct blocked_job *j, u32 threads)
{
	const u32 rows = kern_ceil(j->a->tokens, j->row_blocks);
	const bool beside = j->fusion && j->kernel->acts_beside && rows <= BESIDE_ROWS;
	const u32 panels = rows * j->row_bytes > NEAR_INPUTS ? BLOCKED_FAR_PANELS : beside ? BESIDE_PANELS : BLOCKED_PANELS;
	const bool few = j->a->tokens <= FEW_ROWS, even = last_panels(j, FEW_PANELS, threads) <= last_panels(j, 1, threads);
	j->step_panels = j->handed > 0 ? 2 * j->handed / KERN_PANEL : j->fusion ? 2 : few && even ? FEW_PANELS : 1;
	j->steps_at_once = few || j->step_panels > panels ? 1 : panels / j->step_panels;
	j->steps = kern_ceil(j->panels, j->step_panels);
	return last_panels(j, j->step_panels, threads);
}

/* ---------------------------------------------------------------- products */

struct columns {
	const struct blocked_job *job;
	struct shares shares; /* units: steps of columns, block of rows by block of rows */
};

static void run_columns(void *arg, u32 task, u32 thread)
{
	struct columns *c = arg;
	u32 first, end;
	(void)task;
	while (shares_take(&c->shares, thread, &first, &end))
		matmul_blocked_steps(c->job, first, end, thread);
}

bool matmul_blocked_fuses(const struct kern_matmul_args *a)
{
	const struct kern_matmul_fusion *f = a->fusion;
	const struct kern_matmul_args *then = f->then;
	if (then && (then->w->dtype != a->w->dtype || then->tokens != a->tokens || then->x != a->out))
		return false;
	if (then && then->fusion && !matmul_blocked_fuses(then))
		return false;
	if (f->rope || !(f->act_mul || f->norm_weight || then) || (f->norm_weight && a->w->order))
		return false;
	return !f->act_mul || (!a->accumulate && a->w->n % (2 * KERN_PANEL) == 0);
}

/* All but columns and memory. */
static struct blocked_job job_of(const struct kern_matmul_args *a, const struct blocked_kernel *kernel, u32 threads)
{
	struct blocked_job j = {.a = a, .kernel = kernel, .width = kern_dtype_group(a->w->dtype), .x_stride = a->x_stride};
	if (a->fusion && a->fusion->act_mul)
		j.fusion = a->fusion;
	if (a->fusion && a->fusion->norm_weight) {
		j.normed = a->fusion;
		j.x_stride = NORMED_STRIDE;
	}
	plan_rows(&j, threads);
	plan_k(&j);
	j.row_bytes = a->w->k / j.k_block * inputs_bytes(&j, j.k_block) + inputs_bytes(&j, a->w->k % j.k_block);
	j.panels = kern_ceil(a->w->n, KERN_PANEL);
	j.panel_bytes = kern_panel_bytes(a->w, a->w->k);
	j.block_bytes = kern_panel_bytes(a->w, j.k_block);
	return j;
}

/* Rows of a thread's own are packed into its own part of the scratch, where its sums are, too. */
static void plan_scratch(struct blocked_job *j, const struct kern_ctx *ctx, u32 threads)
{
	const u32 parts = j->row_blocks / j->part_blocks, tokens = j->a->tokens;
	const size_t part = kern_scratch_part(ctx, threads), row_bytes = j->row_bytes + (j->then ? j->then->row_bytes : 0);
	size_t rows = part_rows(j);
	j->lanes = ctx->scratch;
	j->lane_bytes = j->lane_apart = matmul_blocked_lane_bytes(tokens);
	ASSERT(threads * j->lane_bytes + laid(j, tokens) * row_bytes <= ctx->scratch_bytes);
	if (parts > 1 && j->lane_bytes + rows * row_bytes <= part) {
		j->x = j->lanes + j->lane_bytes;
		j->lane_apart = j->part_bytes = part;
	} else {
		j->x = j->lanes + threads * j->lane_bytes;
		j->part_blocks = j->row_blocks;
		rows = laid(j, tokens);
	}
	if (!j->then)
		return;
	j->then->lanes = j->lanes;
	j->then->lane_bytes = j->lane_bytes;
	j->then->lane_apart = j->lane_apart;
	j->then->part_blocks = j->part_blocks;
	j->then->part_bytes = j->part_bytes;
	j->then->x = j->x + rows * j->row_bytes;
}

/* How many steps a thread keeps: of its own rows as many as take no longer than fetching another's inputs, and giving back where the outputs
 * went, would. */
static u32 steps_kept(const struct blocked_job *j)
{
	const u64 rows = kern_ceil(j->a->tokens, j->row_blocks), columns = (u64)j->step_panels * KERN_PANEL;
	const u64 ns = rows * columns * j->a->w->k * j->kernel->value_bytes / BYTES_A_NS;
	return j->row_blocks == j->part_blocks ? 0 : (u32)kern_min(NEAR_KEEP * j->steps_at_once, TAKING_NS / (ns + 1));
}

static void run(struct kern_ctx *ctx, struct blocked_job *j, bool packed)
{
	const u32 threads = kern_thread_count(ctx);
	struct columns columns = {.job = j};
	plan_columns(j, threads);
	for (u32 b = 0; b < j->row_blocks; b++)
		j->tiles += rows_of(j, b).tiles;
	ASSERT(!j->normed || j->kernel->tile_rows * NORMED_STRIDE * sizeof(float) <= j->lane_bytes);
	if (!packed)
		parallel_near(ctx, j->a->tokens, j->normed ? j->tiles : j->tiles * j->k_blocks, matmul_blocked_pack_task, j);
	shares_init_even(&columns.shares, j->steps * j->row_blocks, threads, j->steps_at_once, steps_kept(j));
	kern_parallel(ctx, columns.shares.count, run_columns, &columns);
}

/* Whether inputs of `then` can be packed group by group, in the order of the columns, and steps of whole groups let the threads end
 * together as well as others do. Then j->handed is set. */
static bool hands_over(struct blocked_job *j, const struct kern_matmul_args *then, u32 threads)
{
	const u32 handed = j->width == 0 ? KERN_PANEL : j->width > HANDED_LEAST ? j->width : HANDED_LEAST;
	if (!then || !j->fusion || then->w->order || then->w->k % handed != 0 || then->tokens > BLOCKED_THEN_TOKENS)
		return false;
	const u32 apart = plan_columns(j, threads);
	j->handed = handed;
	if (plan_columns(j, threads) > apart)
		j->handed = 0;
	return j->handed > 0;
}

static void run_both(struct kern_ctx *ctx, struct blocked_job *j, const struct kern_matmul_args *then)
{
	const u32 threads = kern_thread_count(ctx);
	struct blocked_job next = job_of(then, j->kernel, threads);
	next.x_stride = j->handed;
	j->then = &next;
	plan_scratch(j, ctx, threads);
	run(ctx, j, false);
	run(ctx, &next, true);
}

/* The product that follows, or NULL. */
static const struct kern_matmul_args *then_of(const struct kern_matmul_args *a)
{
	return a->fusion ? a->fusion->then : NULL;
}

/* Memory of products that follow each other. Inputs of one lie where those of the one before did, but for those that are handed over while that
 * computes. False: there is not as much. */
static bool plan_stages(struct blocked_job *jobs, u32 count, const struct kern_ctx *ctx, u32 threads)
{
	const size_t part = kern_scratch_part(ctx, threads), lane = matmul_blocked_lane_bytes(jobs->a->tokens);
	const u32 rows = part_rows(jobs);
	size_t own = 0, handed = 0;
	for (u32 i = 0; i < count; i++) {
		size_t *most = i > 0 && jobs[i - 1].handed > 0 ? &handed : &own, bytes = kern_align(rows * jobs[i].row_bytes);
		*most = bytes > *most ? bytes : *most;
	}
	if (lane + own + handed > part)
		return false;
	for (u32 i = 0; i < count; i++) {
		struct blocked_job *j = &jobs[i];
		j->lanes = ctx->scratch;
		j->lane_bytes = lane;
		j->lane_apart = j->part_bytes = part;
		j->x = j->lanes + lane + (i > 0 && jobs[i - 1].handed > 0 ? own : 0);
	}
	return true;
}

/* All products that follow each other, every thread its own rows. False: nothing is computed. */
static bool run_stages(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct blocked_kernel *kernel)
{
	const u32 threads = kern_thread_count(ctx);
	struct blocked_job jobs[BLOCKED_STAGES];
	struct blocked_stages s;
	u32 count = 0;
	for (; a; a = then_of(a)) {
		if (count == BLOCKED_STAGES)
			return false;
		jobs[count++] = job_of(a, kernel, threads);
	}
	if (threads == 1 || threads > SHARES_MAX || jobs->row_blocks != threads * jobs->part_blocks)
		return false;
	for (u32 i = 0; i + 1 < count; i++) {
		if (!jobs[i].fusion)
			continue;
		if (!hands_over(&jobs[i], jobs[i + 1].a, threads))
			return false; /* `out` may be where another thread still reads inputs of the first product */
		jobs[i].then = &jobs[i + 1];
		jobs[i + 1].x_stride = jobs[i].handed;
	}
	if (!plan_stages(jobs, count, ctx, threads))
		return false;
	matmul_stages_init(&s, threads);
	for (u32 i = 0; i < count; i++) {
		plan_columns(&jobs[i], threads);
		matmul_stages_add(&s, &jobs[i], steps_kept(&jobs[i]), i > 0 && jobs[i - 1].handed > 0);
	}
	matmul_stages_run(ctx, &s);
	return true;
}

void matmul_blocked(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct blocked_kernel *kernel)
{
	const struct kern_matmul_args *then = then_of(a);
	ASSERT(kernel->k_block <= BLOCKED_K_MAX && kernel->tile_rows <= BLOCKED_TILE_MAX);
	if (a->tokens == 0 || (then && run_stages(ctx, a, kernel)))
		return;
	struct blocked_job j = job_of(a, kernel, kern_thread_count(ctx));
	if (hands_over(&j, then, kern_thread_count(ctx))) {
		run_both(ctx, &j, then);
		then = then_of(then);
	} else {
		plan_scratch(&j, ctx, kern_thread_count(ctx));
		run(ctx, &j, false);
	}
	if (then)
		matmul_blocked(ctx, then, kernel);
}
