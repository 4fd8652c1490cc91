/* Matrix products of few tokens, whose rows are one tile: decoding. Runs in the worker in every step; owns nothing.
 *
 * Such a product takes as long as its weights take to come from memory, so that all here is about memory never waiting:
 * every thread reads panels that follow each other, asks for the ones behind those it computes, also over the end of a
 * panel, and when nothing is left to take, fetches the beginning of the weights that come next (kern_threads_ahead).
 */
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/shares_priv.h"

enum {
	LINE = 64,
	INPUT_BYTES = 2048, /* of packed inputs, of which the processor goes on by itself */
	/* Longer than memory takes to answer, at the speed that a core reads at; still in the L1 cache when used. */
	AHEAD_BYTES = 16 * 1024,
	TAKE_BYTES = 32 * 1024,		/* of weights at a time: long against taking them, short at the end */
	BEGIN_BYTES = 2048,		/* of the next weights: the processor has found the stream by their end */
	NEXT_BYTES = 256 * 1024,	/* of the next weights, for each thread: a part of the L2 cache */
	PACK_TASK_VALUES = 4 * 1024,	/* a microsecond or two, more than waking a thread costs */
};

/* Copies of all that a thread needs to begin lie together in front: lines that the caller has just written come from its
 * processor one after the other where one leads to the next, and together where all are known. */
struct skinny {
	struct matmul_job job;
	struct kern_matmul_args args;
	struct kern_weight weight;
	u32 pack_values;
	size_t next_share; /* bytes of a thread's share of the next weights */
	struct shares shares;
};

static size_t input_bytes(const struct skinny *s)
{
	size_t bytes = s->job.in.row_bytes * s->args.tokens;
	return bytes < INPUT_BYTES ? bytes : INPUT_BYTES;
}

static void pack_task(void *arg, u32 task, u32 thread)
{
	const struct skinny *s = arg;
	const struct matmul_job *j = &s->job;
	const struct kern_matmul_args *a = j->a;
	u32 first = task * s->pack_values, end = kern_min(first + s->pack_values, a->w->k);
	(void)thread;
	for (u32 r = 0; r < a->tokens; r++)
		j->kernel->pack(j, a->x + (size_t)r * a->x_stride, r, a->tokens, j->in.data, first, end);
}

static void pack(struct kern_ctx *ctx, struct skinny *s)
{
	u32 k = s->weight.k, cuts = kern_ceil(k * s->args.tokens, PACK_TASK_VALUES);
	s->pack_values = kern_ceil(kern_ceil(k, kern_min(cuts, kern_thread_count(ctx))), KERN_GROUP_MAX) * KERN_GROUP_MAX;
	kern_parallel(ctx, kern_ceil(k, s->pack_values), pack_task, s);
}

/* The weights that a thread reads one after the other: up to `end`, then from `then` on. */
struct stream {
	const char *end, *then;
};

static void tell_next(struct matmul_tile *t, const struct matmul_job *j, struct stream stream)
{
	t->panel_bytes = t->next_panel_bytes = matmul_panel_bytes(j->a->w);
	t->next = t->weights + kern_ceil(t->columns, KERN_PANEL) * t->panel_bytes;
	if (t->next < stream.end)
		return;
	t->next = stream.then;
	t->next_panel_bytes = stream.then ? matmul_panel_bytes(j->a->next) : 0;
}

/* All rows times columns [n, n + columns) of one panel, or of several. */
static void run_panel(const struct matmul_job *j, u32 n, u32 columns, struct stream stream)
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
				.resume = a->accumulate};
	t.prefetch = t.weights;
	if (!j->prefetch_off) {
		t.prefetch += AHEAD_BYTES;
		t.prefetch_step = KERN_GROUP_UNIT;
		t.prefetch_far = j->prefetch_far;
		t.prefetch_end = stream.then ? stream.end : NULL;
		t.prefetch_then = stream.then;
	}
	tell_next(&t, j, stream);
	j->kernel->tile(&t, a->tokens);
}

/* What the caller has written since the product before. */
static void fetch_inputs(const struct skinny *s, u32 thread)
{
	__builtin_prefetch(&s->shares.of[thread % SHARES_MAX], 1, 3);
	for (size_t i = 0; i < input_bytes(s); i += LINE)
		__builtin_prefetch(s->job.in.data + i, 0, 3);
}

/* Where nothing was asked for while computing. */
static void fetch_beginning(const char *weights)
{
	for (size_t i = 0; i < BEGIN_BYTES; i += LINE)
		__builtin_prefetch(weights + i, 0, 2);
}

static void run_panels(void *arg, u32 task, u32 thread)
{
	struct skinny *s = arg;
	const struct matmul_job *j = &s->job;
	const struct kern_weight *w = j->a->w, *next = j->a->next;
	u32 first, end, columns = matmul_columns(j);
	struct stream stream = {.then = next ? (const char *)next->data + thread * s->next_share : NULL};
	(void)task;
	if (thread > 0)
		fetch_inputs(s, thread);
	while (shares_take(&s->shares, thread, &first, &end)) {
		stream.end = (const char *)w->data + shares_run_end(&s->shares, thread, end) * matmul_panel_bytes(w);
		const u32 n_end = kern_min(end * KERN_PANEL, w->n);
		for (u32 n = first * KERN_PANEL; n < n_end; n += columns)
			run_panel(j, n, kern_min(columns, n_end - n), stream);
	}
	if (j->prefetch_off && stream.then)
		fetch_beginning(stream.then);
}

/* Each thread its share's beginning. */
static void fetch_next(struct kern_ctx *ctx, struct skinny *s)
{
	const struct kern_weight *w = s->args.next;
	if (w)
		s->next_share = shares_units(kern_ceil(w->n, KERN_PANEL), kern_thread_count(ctx)) * matmul_panel_bytes(w);
	if (ctx->threads)
		kern_threads_ahead(ctx->threads, w ? w->data : NULL, s->next_share,
				   s->next_share < NEXT_BYTES ? s->next_share : NEXT_BYTES);
}

void matmul_skinny_run(struct kern_ctx *ctx, const struct matmul_job *j)
{
	struct skinny s;
	u32 panels = kern_ceil(j->a->w->n, KERN_PANEL), threads = kern_thread_count(ctx);
	u32 tile = kern_ceil(matmul_columns(j), KERN_PANEL); /* panels */
	u32 at_once = (u32)(TAKE_BYTES / matmul_panel_bytes(j->a->w)) + 1;
	s.job = *j;
	s.args = *j->a;
	s.weight = *j->a->w;
	s.args.w = &s.weight;
	s.job.a = &s.args;
	s.next_share = 0;
	for (size_t i = 0; i < input_bytes(&s); i += LINE)
		__builtin_prefetch(s.job.in.data + i, 1, 3); /* other processors have these lines from the product before */
	pack(ctx, &s);
	shares_init(&s.shares, panels, threads, kern_ceil(at_once, tile) * tile);
	fetch_next(ctx, &s);
	kern_parallel(ctx, kern_min(threads, s.shares.count), run_panels, &s);
}
