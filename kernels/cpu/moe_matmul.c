/* The products of a mixture's experts that have several rows each. Runs in the worker in prefill and in batches; owns
 * nothing.
 *
 * A task is some rows of an expert times some of its columns, and the thread that takes it does all of it alone: it
 * gathers the rows into memory of its own, packs and multiplies them by the table's matmul. So threads meet once and not
 * twice or three times an expert, and what was gathered is still in the L2 cache when it is packed. Which rows and columns
 * are computed side by side is no matter of a product's bits. */
#include <stdatomic.h>

#include "kernels/cpu/moe_matmul_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	FEW_ROWS = 4,	     /* of an expert, in the mean: fewer wait for memory, which all threads read best in order */
	FINE_CHUNKS = 2,     /* for each thread: the last ones, which are cut so that all end together */
	FINE_PIECES = 4,     /* for each thread, of them all: more, and their rows are packed too often */
	LEAST_COLUMNS = 256, /* of a piece */
};

struct job {
	const struct kern_moe_matmul_args *a;
	char *scratch;
	size_t slice_bytes; /* of a thread */
	u32 whole;	    /* chunks of rows in front that have all columns */
	u32 fine_cuts;	    /* of the columns of the others */
	_Atomic u32 error;
};

struct span {
	u32 first, count;
};

struct task {
	u32 expert, column, columns;
	struct span rows; /* among the assignments */
};

/* How an expert is cut. */
struct cuts {
	u32 chunks, columns, column_cuts;
};

static u32 expert_rows(const struct kern_moe_matmul_args *a, u32 expert)
{
	return a->expert_start[expert + 1] - a->expert_start[expert];
}

/* `before`: chunks of the experts in front. */
static struct cuts cuts_of(const struct job *j, u32 expert, u32 before)
{
	u32 n = j->a->w->n, rows = expert_rows(j->a, expert);
	struct cuts c = {kern_ceil(rows, MOE_CHUNK_ROWS), n, 1};
	if (c.chunks == 0 || before + c.chunks <= j->whole)
		return c;
	u32 cuts = kern_min(j->fine_cuts, kern_ceil(n, LEAST_COLUMNS));
	c.columns = kern_ceil(kern_ceil(n, cuts), KERN_COLUMNS) * KERN_COLUMNS;
	c.column_cuts = kern_ceil(n, c.columns);
	return c;
}

static struct task find_task(const struct job *j, u32 number)
{
	u32 e = 0, before = 0;
	struct cuts c = cuts_of(j, e, before);
	while (number >= c.chunks * c.column_cuts) {
		number -= c.chunks * c.column_cuts;
		before += c.chunks;
		c = cuts_of(j, ++e, before);
	}
	u32 chunk = number / c.column_cuts, column = number % c.column_cuts * c.columns;
	u64 rows = expert_rows(j->a, e);
	u32 first = (u32)(rows * chunk / c.chunks), end = (u32)(rows * (chunk + 1) / c.chunks);
	return (struct task){.expert = e,
			     .column = column,
			     .columns = kern_min(j->a->w->n - column, c.columns),
			     .rows = {j->a->expert_start[e] + first, end - first}};
}

/* Some columns of a weight, which are whole pairs of panels in front and follow each other. */
static struct kern_weight columns_of(const struct kern_weight *w, u32 n, u32 columns)
{
	struct kern_weight part = *w;
	size_t at = w->packed == KERN_LAYOUT_GROUPS
			    ? kern_group_offset(w, n, 0)
			    : kern_panel_index(w->k, w->dtype, n, 0) * kern_dtype_bytes(w->dtype);
	part.data = (const char *)w->data + at;
	part.n = columns;
	return part;
}

static const float *gather(const struct kern_moe_matmul_args *a, const struct span *rows, float *to)
{
	const u32 k = a->w->k;
	if (!a->source)
		return a->x + (size_t)rows->first * k;
	for (u32 i = 0; i < rows->count; i++)
		memcpy(to + (size_t)i * k, a->x + (size_t)a->source[rows->first + i] * k, k * sizeof(float));
	return to;
}

static void run_task(void *arg, u32 number, u32 thread)
{
	struct job *j = arg;
	const struct kern_moe_matmul_args *a = j->a;
	const struct task t = find_task(j, number);
	const struct kern_weight w = columns_of(&a->w[t.expert], t.column, t.columns);
	char *slice = j->scratch + thread * j->slice_bytes;
	size_t gathered = a->source ? kern_align((size_t)t.rows.count * w.k * sizeof(float)) : 0;
	ASSERT(gathered <= j->slice_bytes);
	struct kern_ctx alone = {.scratch = slice + gathered, .scratch_bytes = j->slice_bytes - gathered};
	struct kern_matmul_args m = {.out = a->out + (size_t)t.rows.first * a->w->n + t.column,
				     .x = gather(a, &t.rows, (float *)(void *)slice),
				     .w = &w,
				     .bias = a->bias ? a->bias + (size_t)t.expert * a->w->n + t.column : NULL,
				     .tokens = t.rows.count,
				     .x_stride = w.k,
				     .out_stride = a->w->n,
				     .dtype = a->dtype};
	enum err e = a->ops->matmul(&alone, &m);
	if (e)
		atomic_store_explicit(&j->error, (u32)e, memory_order_relaxed);
}

enum err VARIANT(moe_matmul)(struct kern_ctx *ctx, const struct kern_moe_matmul_args *a)
{
	u32 threads = kern_thread_count(ctx), busy = 0, chunks = 0, tasks = 0, before = 0;
	struct job j = {.a = a, .scratch = ctx->scratch};
	ASSERT(a->w->packed != KERN_LAYOUT_PLAIN && a->expert_start[a->experts] == a->assignments);
	for (u32 e = 0; e < a->experts; e++) {
		busy += expert_rows(a, e) > 0;
		chunks += kern_ceil(expert_rows(a, e), MOE_CHUNK_ROWS);
	}
	if ((u64)a->assignments < (u64)busy * FEW_ROWS || busy == 0)
		return moe_matmul_ref(ctx, a);
	u32 fine = threads == 1 ? 0 : kern_min(chunks, FINE_CHUNKS * threads);
	j.whole = chunks - fine;
	j.fine_cuts = fine > 0 ? kern_ceil(FINE_PIECES * threads, fine) : 1;
	for (u32 e = 0; e < a->experts; e++) {
		struct cuts c = cuts_of(&j, e, before);
		tasks += c.chunks * c.column_cuts;
		before += c.chunks;
	}
	j.slice_bytes = ctx->scratch_bytes / threads / KERN_ALIGN * KERN_ALIGN;
	kern_parallel(ctx, tasks, run_task, &j);
	return (enum err)atomic_load_explicit(&j.error, memory_order_relaxed);
}
