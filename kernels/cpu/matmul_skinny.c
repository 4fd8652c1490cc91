/* Matrix products of few tokens, whose rows are one tile: decoding. Runs in the worker in every step; owns nothing.
 *
 * Such a product takes as long as its weights take to come from memory, so that all here is about memory never waiting:
 * every thread reads panels that follow each other and asks for the ones behind those it computes, also over the end of a panel;
 * or it reads some such streams at once, which the processor follows by itself. Before nothing is left to take it asks for the
 * beginning of the weights that come next, and while it waits it fetches more of them (kern_threads_ahead).
 */
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/shares_priv.h"

enum {
	LINE = 64,
	INPUT_BYTES = 2048, /* of packed inputs, of which the processor goes on by itself */
	/* Longer than memory takes to answer, at the speed that a core reads at; still in the L1 cache when used. Of pages in turns the
	 * first one's last lines are asked for when the block before has a page left. */
	AHEAD_BYTES = TILE_ORDERED,
	STRAIGHT_BYTES = MATMUL_TWICE_BYTES + 2048, /* the same where lines are asked for as they lie: 2 KB before they are asked for once more */
	TAKE_BYTES = 32 * 1024,		/* of weights at a time: long against taking them, short at the end */
	BEGIN_BYTES = 2048,		/* of the next weights: the processor has found the stream by their end */
	NEXT_BYTES = 256 * 1024,	/* of the next weights, for each thread: a part of the L2 cache */
	/* Of an L1 cache's sets, which the first bits of an address name, and how near each other lines are read at a time. */
	SETS_BYTES = 4096,
	SETS_NEAR = 512,
	STRETCH_UNEVEN = 8, /* panels: in shorter ones the last stretch would lack too much */
	PACK_TASK_VALUES = 4 * 1024,	/* a microsecond or two, more than waking a thread costs */
};

/* Copies of all that a thread needs to begin lie together in front: lines that the caller has just written come from its
 * processor one after the other where one leads to the next, and together where all are known. */
struct skinny {
	struct matmul_job job;
	struct kern_matmul_args args;
	struct kern_weight weight;
	u32 pack_values;
	size_t panel_bytes;
	u32 side; /* panels of a tile, side by side */
	u32 panels, share_panels;
	u32 stretch, last_stretch; /* panels, and units of a share, and of the last one: see struct stack */
	bool late;   /* stretches begin at the same places of the L1 cache */
	u32 next_panels, next_share_panels, next_stretch, next_last_stretch; /* of the next weights */
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
	if (j->kernel->pack_rows)
		j->kernel->pack_rows(j, a->x, a->tokens, j->in.data, first, end);
	for (u32 r = 0; r < a->tokens && !j->kernel->pack_rows; r++)
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
	const char *begin, *end, *then;
	size_t then_apart; /* bytes between panels of a tile there */
};

/* Panels of a tile. A share is cut into `side` stretches, and unit u of it is the u-th panel of each: so a thread that takes one
 * unit after the other reads some streams that go on without a break. */
struct stack {
	u32 panel, count, apart;
};

/* How much lines of two streams so many bytes apart are in each other's way. 1: they go into the same few sets of the L1 cache.
 * 2: in processors of AMD up to Zen 2, whose L1 cache finds a line by exclusive ors of bits of its address, under the same names,
 * too, where only one of two lines is found (Lipp et al., "Take A Way", 2020). */
static u32 clash(size_t apart)
{
	static const u8 names[][2] = {{12, 27}, {13, 26}, {14, 25}, {15, 20}, {16, 21}, {17, 22}, {18, 23}, {19, 24}};
	if ((apart + SETS_NEAR) % SETS_BYTES > 2 * SETS_NEAR)
		return 0;
	for (u32 i = 0; i < COUNT_OF(names); i++)
		if ((apart >> names[i][0] ^ apart >> names[i][1]) & 1)
			return 1;
	return 2;
}

/* Panels of the stretches, the last of which may be shorter; longer by one where that keeps the streams out of each other's way. */
static u32 stretch_of(u32 share_panels, u32 side, size_t panel_bytes)
{
	const u32 even = kern_ceil(share_panels, side);
	if (side > 1 && even >= STRETCH_UNEVEN && clash((even + 1) * panel_bytes) < clash(even * panel_bytes))
		return even + 1;
	return even;
}

/* Of the last share. */
static u32 last_panels(u32 panels, u32 share_panels)
{
	return (panels - 1) % share_panels + 1;
}

static struct stack stack_of(const struct skinny *s, u32 unit)
{
	if (s->side == 1) /* without divisions, of which a small matrix would notice */
		return (struct stack){unit, 1, 1};
	u32 first = unit / s->stretch * s->share_panels, at = unit % s->stretch;
	u32 left = kern_min(s->share_panels, s->panels - first) - at;
	u32 apart = first + s->share_panels < s->panels ? s->stretch : s->last_stretch;
	return (struct stack){first + at, kern_ceil(left, apart), apart};
}

static const char *panel_at(const struct skinny *s, u32 panel)
{
	return (const char *)s->weight.data + panel * s->panel_bytes;
}

/* All rows times columns [n, n + columns) of one panel, or times panels of several from column n on. */
static void run_tile(const struct skinny *s, const struct stack *stack, u32 n, u32 columns, bool last, struct stream stream)
{
	const struct matmul_job *j = &s->job;
	const struct kern_matmul_args *a = j->a;
	const struct kern_weight *w = a->w;
	const struct matmul_inputs *in = &j->in;
	struct matmul_tile t = {.weights = panel_at(s, stack->panel),
				.column = n % KERN_PANEL,
				.columns = s->side > 1 ? w->n - n : kern_min(w->n - n, columns),
				.k_count = w->k,
				.width = in->width,
				.units = in->data,
				.scales = in->data + (size_t)in->scales_at * a->tokens,
				.sums = in->data + (size_t)in->sums_at * a->tokens,
				.out = a->out + n,
				.out_stride = a->out_stride,
				.bias = a->bias ? a->bias + n : NULL,
				.resume = a->accumulate,
				.panels = stack->count,
				.panel_columns = stack->apart * KERN_PANEL,
				.panel_bytes = stack->apart * s->panel_bytes,
				.next = last ? stream.then : NULL,
				.next_panel_bytes = stream.then_apart,
				.late = s->late,
				.near_bytes = j->near_bytes};
	t.prefetch = t.weights;
	if (stack->count == 2 && j->paired) {
		t.prefetch += TILE_PAIR_AHEAD;
		t.prefetch_far = j->prefetch_far;
		t.prefetch_end = stream.then ? stream.end : NULL;
		t.prefetch_then = stream.then;
	} else if (!j->prefetch_off) {
		t.prefetch += j->straight ? STRAIGHT_BYTES : AHEAD_BYTES;
		t.prefetch_step = KERN_GROUP_UNIT;
		t.prefetch_far = j->prefetch_far;
		t.asks_twice = j->prefetch_far == MATMUL_FAR;
		t.prefetch_end = stream.then ? stream.end : NULL;
		t.prefetch_then = stream.then;
		if (j->kernel->asks_in_order && !j->straight && !j->paired && j->prefetch_far == MATMUL_FAR) {
			t.prefetch_base = stream.begin;
			t.prefetch_ordered = stream.begin + (size_t)(stream.end - stream.begin) / TILE_ORDERED * TILE_ORDERED;
		}
	}
	j->kernel->tile(&t, a->tokens);
}

static void run_unit(const struct skinny *s, u32 unit, bool last, struct stream stream)
{
	const struct stack stack = stack_of(s, unit);
	const u32 columns = matmul_columns(&s->job), n = stack.panel * KERN_PANEL;
	if (s->side > 1) {
		run_tile(s, &stack, n, columns, last, stream);
		return;
	}
	for (u32 i = 0; i < KERN_PANEL && n + i < s->weight.n; i += columns)
		run_tile(s, &stack, n + i, columns, last, stream);
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

/* A thread without a share of the next weights has nothing to ask for. */
static struct stream begin_stream(const struct skinny *s, u32 thread)
{
	const struct kern_weight *next = s->args.next;
	const u32 first = thread * s->next_share_panels, end = first + s->next_share_panels;
	struct stream stream = {0};
	if (!next || first >= s->next_panels)
		return stream;
	const size_t bytes = kern_panel_bytes(next, next->k);
	stream.then = (const char *)next->data + first * bytes;
	stream.then_apart = (end < s->next_panels ? s->next_stretch : s->next_last_stretch) * bytes;
	return stream;
}

static void run_panels(void *arg, u32 task, u32 thread)
{
	struct skinny *s = arg;
	const struct matmul_job *j = &s->job;
	struct stream stream = begin_stream(s, thread);
	u32 first, end, before = UINT32_MAX;
	(void)task;
	if (thread > 0)
		fetch_inputs(s, thread);
	while (shares_take(&s->shares, thread, &first, &end)) {
		const u32 run_end = shares_run_end(&s->shares, thread, end);
		if (s->side == 1 || j->paired)
			stream.end = panel_at(s, stack_of(s, run_end - 1).panel + 1); /* of a pair, of its first panels */
		if (s->side == 1 && first != before)
			stream.begin = panel_at(s, stack_of(s, first).panel);
		before = end;
		for (u32 unit = first; unit < end; unit++)
			run_unit(s, unit, unit + 1 == run_end, stream);
	}
	if (j->prefetch_off && stream.then)
		fetch_beginning(stream.then);
}

/* Each thread its share's beginning. */
static void fetch_next(struct kern_ctx *ctx, struct skinny *s)
{
	const struct kern_weight *w = s->args.next;
	size_t share = 0;
	s->next_panels = s->next_share_panels = s->next_stretch = s->next_last_stretch = 0;
	if (w && w->n > 0) {
		s->next_panels = kern_ceil(w->n, KERN_PANEL);
		s->next_share_panels = shares_units(s->next_panels, kern_thread_count(ctx));
		s->next_stretch = stretch_of(s->next_share_panels, s->side, kern_panel_bytes(w, w->k));
		s->next_last_stretch = stretch_of(last_panels(s->next_panels, s->next_share_panels), s->side, kern_panel_bytes(w, w->k));
		share = s->next_share_panels * kern_panel_bytes(w, w->k);
	}
	if (ctx->threads)
		kern_threads_ahead(ctx->threads, w ? w->data : NULL, share, share < NEXT_BYTES ? share : NEXT_BYTES);
}

static void plan(struct skinny *s, u32 threads)
{
	s->panel_bytes = kern_panel_bytes(&s->weight, s->weight.k);
	s->panels = kern_ceil(s->weight.n, KERN_PANEL);
	s->share_panels = shares_units(s->panels, threads);
	s->stretch = stretch_of(s->share_panels, s->side, s->panel_bytes);
	s->last_stretch = stretch_of(last_panels(s->panels, s->share_panels), s->side, s->panel_bytes);
	s->late = s->side > 1 && clash(s->stretch * s->panel_bytes) > 0;
	u32 units = (s->panels - 1) / s->share_panels * s->stretch + kern_min(s->last_stretch, last_panels(s->panels, s->share_panels));
	shares_init_each(&s->shares, units, s->stretch, (u32)(TAKE_BYTES / (s->panel_bytes * s->side)) + 1);
}

void matmul_skinny_run(struct kern_ctx *ctx, const struct matmul_job *j)
{
	struct skinny s;
	u32 threads = kern_thread_count(ctx);
	s.job = *j;
	s.args = *j->a;
	s.weight = *j->a->w;
	s.args.w = &s.weight;
	s.job.a = &s.args;
	s.side = kern_ceil(matmul_columns(j), KERN_PANEL);
	for (size_t i = 0; i < input_bytes(&s); i += LINE)
		__builtin_prefetch(s.job.in.data + i, 1, 3); /* other processors have these lines from the product before */
	pack(ctx, &s);
	plan(&s, threads);
	fetch_next(ctx, &s);
	kern_parallel(ctx, kern_min(threads, s.shares.count), run_panels, &s);
}
