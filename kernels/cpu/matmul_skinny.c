/* Matrix products of few tokens, whose rows are one tile: decoding. Runs in the worker in every step; owns nothing.
 *
 * Such a product takes as long as its weights take to come from memory, so that all here is about memory never waiting:
 * every thread reads panels that follow each other, asks for the ones behind those it computes, also over the end of a
 * panel, and when nothing is left to take, fetches the beginning of the weights that come next (kern_threads_ahead).
 */
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/shares_priv.h"

enum {
	/* Longer than memory takes to answer, at the speed that a core reads at; still in the L1 cache when used. */
	AHEAD_BYTES = 16 * 1024,
	TAKE_BYTES = 32 * 1024,		/* of weights at a time: long against taking them, short at the end */
	NEXT_BYTES = 256 * 1024,	/* of the next weights, for each thread: a part of the L2 cache */
	PACK_TASK_VALUES = 4 * 1024,	/* a microsecond or two, more than waking a thread costs */
};

struct skinny {
	const struct matmul_job *job;
	struct shares shares;
	u32 pack_values;
};

static void pack_task(void *arg, u32 task, u32 thread)
{
	const struct skinny *s = arg;
	const struct matmul_job *j = s->job;
	const struct kern_matmul_args *a = j->a;
	u32 first = task * s->pack_values, end = kern_min(first + s->pack_values, a->w->k);
	(void)thread;
	for (u32 r = 0; r < a->tokens; r++)
		j->kernel->pack(j, a->x + (size_t)r * a->x_stride, r, a->tokens, j->in.data, first, end);
}

static void pack(struct kern_ctx *ctx, struct skinny *s)
{
	u32 k = s->job->a->w->k, cuts = kern_ceil(k * s->job->a->tokens, PACK_TASK_VALUES);
	s->pack_values = kern_ceil(kern_ceil(k, kern_min(cuts, kern_thread_count(ctx))), KERN_GROUP_MAX) * KERN_GROUP_MAX;
	kern_parallel(ctx, kern_ceil(k, s->pack_values), pack_task, s);
}

/* All rows times columns [n, n + columns) of one panel. */
static void run_panel(const struct matmul_job *j, u32 n, u32 columns)
{
	const struct kern_matmul_args *a = j->a;
	const struct kern_weight *w = a->w;
	const struct matmul_inputs *in = &j->in;
	struct matmul_tile t = {.weights = matmul_weights_at(w, n, 0),
				.column = n % KERN_PANEL,
				.columns = kern_min(w->n - n, columns),
				.k_count = w->k,
				.width = in->width,
				.units = in->data,
				.scales = in->data + (size_t)in->scales_at * a->tokens,
				.sums = in->data + (size_t)in->sums_at * a->tokens,
				.out = a->out + n,
				.out_stride = a->out_stride,
				.bias = a->bias ? a->bias + n : NULL,
				.resume = a->accumulate,
				.prefetch_step = KERN_GROUP_UNIT};
	t.prefetch = t.weights + AHEAD_BYTES;
	j->kernel->tile(&t, a->tokens);
}

static void run_panels(void *arg, u32 task, u32 thread)
{
	struct skinny *s = arg;
	const struct matmul_job *j = s->job;
	u32 first, end, columns = j->a->tokens == 1 ? j->kernel->one_columns : j->kernel->tile_columns;
	(void)task;
	while (shares_take(&s->shares, thread, &first, &end))
		for (u32 n = first * KERN_PANEL; n < end * KERN_PANEL && n < j->a->w->n; n += columns)
			run_panel(j, n, columns);
}

/* Each thread its share's beginning. */
static void fetch_next(struct kern_ctx *ctx, const struct kern_weight *w)
{
	if (!ctx->threads)
		return;
	if (!w) {
		kern_threads_ahead(ctx->threads, NULL, 0, 0);
		return;
	}
	size_t share = shares_units(kern_ceil(w->n, KERN_PANEL), kern_thread_count(ctx)) * matmul_panel_bytes(w);
	kern_threads_ahead(ctx->threads, w->data, share, share < NEXT_BYTES ? share : NEXT_BYTES);
}

void matmul_skinny_run(struct kern_ctx *ctx, const struct matmul_job *j)
{
	const struct kern_weight *w = j->a->w;
	struct skinny s;
	u32 panels = kern_ceil(w->n, KERN_PANEL), threads = kern_thread_count(ctx);
	s.job = j;
	pack(ctx, &s);
	shares_init(&s.shares, panels, threads, (u32)(TAKE_BYTES / matmul_panel_bytes(w)) + 1);
	fetch_next(ctx, j->a->next);
	kern_parallel(ctx, kern_min(threads, s.shares.count), run_panels, &s);
}
