/* Drives the matrix products with packed inputs. Runs in the worker in every product; owns nothing.
 *
 * Weights are read from memory once: a panel's block of k serves all tiles of rows while it is in the cache,
 * and meanwhile the tiles fetch the block that follows, so that computing and reading overlap. Nothing here
 * touches the order in which a sum is taken. */
#include <stdatomic.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/matmul_driver_priv.h"

enum {
	AHEAD_BYTES = 4096,
	LINE_FLOATS = 16, /* of a line of the caches */
	SMALL_L1 = 32 * 1024,
	NEAR_BYTES = 512, /* of each of up to four streams: as many lines as a core waits for at once, and some */
	FAR_BYTES = 2048, /* the same where the L2 cache is asked */
};

u64 matmul_tasks(const struct kern_matmul_args *a, u32 threads)
{
	u64 tasks = (u64)a->tokens * a->w->k * a->w->n / MATMUL_TASK_WORK;
	if (threads == 1 || tasks < 2)
		return 1;
	if (tasks < (u64)MATMUL_TASKS_A_THREAD * threads)
		return (tasks + threads - 1) / threads * threads;
	return (u64)MATMUL_TASKS_A_THREAD * threads;
}

/* Splits by columns, and by tiles of rows where there are few columns. Tasks come in whole turns of all
 * threads and are few enough that taking them costs nothing, many enough that a late thread is made up for.
 */
static void plan(struct matmul_job *j, u32 threads)
{
	const struct kern_matmul_args *a = j->a;
	u64 tasks = matmul_tasks(a, threads);
	u32 row_tasks = 1;
	j->tiles = kern_ceil(a->tokens, j->kernel->tile_rows);
	j->pairs = kern_ceil(a->w->n, KERN_COLUMNS);
	j->pairs_a_task = tasks < j->pairs ? kern_ceil(j->pairs, (u32)tasks) : 1;
	j->column_tasks = kern_ceil(j->pairs, j->pairs_a_task);
	if (tasks > j->column_tasks)
		row_tasks = kern_min(kern_ceil((u32)tasks, j->column_tasks), j->tiles);
	j->tiles_a_task = kern_ceil(j->tiles, row_tasks);
	j->tasks = j->column_tasks * kern_ceil(j->tiles, j->tiles_a_task);
}

static u32 tile_first(const struct matmul_job *j, u32 tile)
{
	return (u32)((u64)j->a->tokens * tile / j->tiles);
}

/* Inputs are packed by tiles, cut along k: rows of a tile lie interleaved, so two threads that packed a row each would
 * write to the same lines of the cache in turn. */
static void plan_packing(struct matmul_job *j)
{
	u32 k = j->a->w->k, rows = kern_ceil(j->a->tokens, j->tiles);
	u32 cuts = kern_ceil(k, kern_rows_a_task(rows));
	j->pack_values = kern_ceil(kern_ceil(k, cuts), MATMUL_PACK_VALUES) * MATMUL_PACK_VALUES;
	j->pack_cuts = kern_ceil(k, j->pack_values);
}

static void pack_task(void *arg, u32 task, u32 thread)
{
	const struct matmul_job *j = arg;
	u32 tile = task / j->pack_cuts, first = tile_first(j, tile), rows = tile_first(j, tile + 1) - first;
	u32 begin = task % j->pack_cuts * j->pack_values, end = kern_min(begin + j->pack_values, j->a->w->k);
	(void)thread;
	for (u32 k = begin; k < end; k += MATMUL_PACK_VALUES)
		for (u32 r = 0; r < rows; r++)
			j->kernel->pack(j, j->a->x + (size_t)(first + r) * j->a->x_stride, r, rows,
					j->in.data + first * j->in.row_bytes, k, kern_min(k + MATMUL_PACK_VALUES, end));
}

struct span {
	u32 first, end;
};

/* Rows of a wide output are pages apart and in no cache: what a tile will store is asked for before it computes, or its
 * stores would wait for memory and the next tile for them. */
static void ask_for_outputs(const struct matmul_tile *t, u32 rows)
{
	for (u32 r = 0; r < rows; r++)
		for (u32 n = 0; n < t->columns; n += LINE_FLOATS)
			__builtin_prefetch(t->out + r * t->out_stride + n, 1);
}

/* The block [k) of columns [n, n + columns) times one tile of rows, the i-th of `tiles` that follow each
 * other. */
static void run_one(const struct matmul_job *j, u32 n, u32 columns, struct span k, u32 tile, u32 i, u32 tiles)
{
	const struct kern_matmul_args *a = j->a;
	const struct kern_weight *w = a->w;
	const struct matmul_inputs *in = &j->in;
	u32 first = tile_first(j, tile), rows = tile_first(j, tile + 1) - first;
	const char *inputs = in->data + first * in->row_bytes;
	struct matmul_tile t = {.weights = matmul_weights_at(w, n, k.first),
				.column = n % KERN_PANEL,
				.columns = kern_min(w->n - n, columns),
				.k_count = k.end - k.first,
				.width = in->width,
				.units = inputs + (size_t)(k.first / in->unit_values) * rows * 4,
				.out = a->out + (size_t)first * a->out_stride + n,
				.out_stride = a->out_stride,
				.bias = a->bias && k.first == 0 ? a->bias + n : NULL,
				.resume = k.first > 0 || a->accumulate,
				.prefetch_far = j->prefetch_far,
				.asks_twice = tiles == 1 && j->prefetch_far == MATMUL_FAR};
	if (in->width > 0) {
		t.scales = inputs + ((size_t)in->scales_at + k.first / in->width * 4) * rows;
		t.sums = inputs + ((size_t)in->sums_at + k.first / in->width * in->sum_words * 4) * rows;
	}
	/* One tile: the processor follows a stream by itself until there is much to compute between its
	 * lines. */
	t.prefetch = t.weights + (rows > 2 ? AHEAD_BYTES : 0);
	t.prefetch_step = rows > 2 ? KERN_GROUP_UNIT : 0;
	if (tiles > 1) {
		size_t bytes = kern_panel_bytes(w, w->k) / w->k * t.k_count;
		t.prefetch = t.weights + bytes + bytes * i / tiles;
		t.prefetch_step = kern_ceil(KERN_GROUP_UNIT, tiles);
	}
	ask_for_outputs(&t, rows);
	j->kernel->tile(&t, rows);
}

static void run_task(void *arg, u32 task, u32 thread)
{
	const struct matmul_job *j = arg;
	const struct matmul_kernel *kernel = j->kernel;
	u32 k_total = j->a->w->k, n_first = task % j->column_tasks * j->pairs_a_task * KERN_COLUMNS;
	u32 n_end = kern_min(n_first + j->pairs_a_task * KERN_COLUMNS, j->a->w->n);
	u32 tile = task / j->column_tasks * j->tiles_a_task,
	    tile_end = kern_min(tile + j->tiles_a_task, j->tiles);
	u32 tiles = tile_end - tile, block = tiles == 1 ? k_total : kernel->k_block;
	u32 columns = matmul_columns(j);
	(void)thread;
	for (u32 n = n_first; n < n_end; n += columns)
		for (u32 k = 0; k < k_total; k += block)
			for (u32 i = 0; i < tiles; i++)
				run_one(j, n, columns, (struct span){k, kern_min(k + block, k_total)},
					tile + i, i, tiles);
}

static bool small_l1(void)
{
#ifdef _SC_LEVEL1_DCACHE_SIZE
	long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE); /* 0 or -1: not known */
	return bytes > 0 && bytes <= SMALL_L1;
#else
	return false;
#endif
}

static bool is_intel(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_is("intel");
#else
	return false;
#endif
}

#if defined(__x86_64__)
/* Family and model of an Intel processor; Intel SDM volume 2, CPUID. */
static u32 model_of(u32 signature)
{
	const u32 family = signature >> 8 & 15, model = signature >> 4 & 15;
	return family << 8 | (signature >> 16 & 15) << 4 | model;
}

/* Sapphire and Emerald Rapids (the latter was measured) read a third more by pages in turns than line by line. */
static bool model_reads_by_pages(void)
{
	enum { SAPPHIRE_RAPIDS = 0x68f, EMERALD_RAPIDS = 0x6cf };
	u32 signature, b, c, d;
	if (!__get_cpuid(1, &signature, &b, &c, &d))
		return false;
	return model_of(signature) == SAPPHIRE_RAPIDS || model_of(signature) == EMERALD_RAPIDS;
}
#else
static bool model_reads_by_pages(void)
{
	return false;
}
#endif

/* In a virtual machine the instruction that tells takes longer than a product of few rows. */
static bool reads_by_pages(void)
{
	enum { UNKNOWN, NO, YES };
	static _Atomic u32 known = UNKNOWN;
	u32 is = atomic_load_explicit(&known, memory_order_relaxed);
	if (is == UNKNOWN) {
		is = model_reads_by_pages() ? YES : NO;
		atomic_store_explicit(&known, is, memory_order_relaxed);
	}
	return is == YES;
}

static _Atomic u32 *pairs(void)
{
	static _Atomic u32 how = MATMUL_PAIRS_BEST;
	return &how;
}

void matmul_pair(enum matmul_pairs how)
{
	atomic_store_explicit(pairs(), how, memory_order_relaxed);
}

static bool pairs_panels(const struct matmul_job *j, bool best)
{
	const u32 how = atomic_load_explicit(pairs(), memory_order_relaxed);
	const struct kern_weight *w = j->a->w;
	if (how == MATMUL_PAIRS_NEVER || j->a->tokens > j->kernel->paired_rows || w->n <= KERN_PANEL)
		return false;
	if (how == MATMUL_PAIRS_ALWAYS)
		return true;
	return best && (j->kernel->paired_bytes == 0 || kern_panel_bytes(w, w->k) <= j->kernel->paired_bytes);
}

/* A core of AMD up to Zen 2 gets more of several streams if it is asked for what they bring next, and so does one of Intel; one of Zen 3 got less by
 * asking 1 KB and more ahead, and is left alone. */
static u32 near_bytes(const struct matmul_job *j)
{
#if defined(__x86_64__)
	if (__builtin_cpu_is("znver1") || __builtin_cpu_is("znver2"))
		return NEAR_BYTES;
#endif
	return j->prefetch_far == MATMUL_FAR ? FAR_BYTES : 0;
}

void matmul_run(struct kern_ctx *ctx, const struct kern_matmul_args *a, const struct matmul_kernel *kernel,
		const struct matmul_inputs *in)
{
	struct matmul_job j = {.a = a, .kernel = kernel, .in = *in};
	u32 units = kern_ceil(a->w->k, in->unit_values);
	bool far_places = false;
	if (a->tokens == 0)
		return;
	/* A core of Intel (Emerald Rapids was measured), with places for 16 lines in the L1 cache and 48 in the L2 cache, reads 6 to 20 % faster when
	 * lines are asked into the latter first, of one row as of twelve. */
	if (is_intel()) {
		j.prefetch_far = MATMUL_FAR;
		far_places = !reads_by_pages();
		j.straight = kernel->asks_in_order && far_places && a->tokens <= (kernel->paired_rows > 0 ? kernel->paired_rows : 1);
	} else if (!kernel->asks_always && small_l1()) {
		j.prefetch_off = a->tokens <= (kernel->alone_rows ? kernel->alone_rows : MATMUL_ALONE_ROWS);
		j.prefetch_far = j.prefetch_off ? MATMUL_NEAR : MATMUL_FAR_BYTES;
	}
	j.paired = pairs_panels(&j, far_places);
	j.near_bytes = near_bytes(&j);
	if (in->whole_units > 0)
		units = kern_ceil(units, in->whole_units) * in->whole_units;
	if (in->width > 0) {
		j.in.groups = kern_ceil(a->w->k, in->width);
		units = j.in.groups * in->width / in->unit_values;
		j.in.scales_at = units * 4;
		j.in.sums_at = j.in.scales_at + j.in.groups * 4;
	}
	j.in.data = ctx->scratch;
	j.in.row_bytes = (units + (1 + in->sum_words) * (size_t)j.in.groups) * 4;
	ASSERT(a->tokens * j.in.row_bytes <= ctx->scratch_bytes);
	if (a->tokens <= kernel->tile_rows) {
		matmul_skinny_run(ctx, &j);
		return;
	}
	plan(&j, kern_thread_count(ctx));
	plan_packing(&j);
	kern_parallel(ctx, j.tiles * j.pack_cuts, pack_task, &j);
	kern_parallel(ctx, j.tasks, run_task, &j);
}
