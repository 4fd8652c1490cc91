/* Checks of products of many rows that follow each other in one call, as the layers of a decoder have them: attention's output into the stream, a norm
 * of it, gate and up, the activation, and down into the stream. All of it has the bits of one after the other, with one, two and three threads: threads
 * that have rows of their own go through all products without waiting for each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kern/check_matmul.h"

enum { POOLS = 3, PRODUCTS = 3 };

struct layer_case {
	u32 tokens, attended, hidden, intermediate;
	bool bias, order; /* order: of down's inputs */
};

struct layer_products {
	struct check_matrix w[PRODUCTS]; /* attention's output, gate and up, down */
	struct kern_matmul_args a[PRODUCTS];
	struct kern_matmul_fusion fusions[PRODUCTS];
	const float *stream; /* before */
	float *x, *activated;
	size_t stream_bytes, activated_bytes;
	struct kern_limits limits;
};

static void layer_make(struct check *c, u32 caps, const struct layer_case *l, enum kern_dtype dtype, struct layer_products *p)
{
	const u32 n[PRODUCTS] = {l->hidden, 2 * l->intermediate, l->hidden}, k[PRODUCTS] = {l->attended, l->hidden, l->intermediate};
	*p = (struct layer_products){.stream_bytes = (size_t)l->tokens * l->hidden * sizeof(float),
				     .activated_bytes = (size_t)l->tokens * l->intermediate * sizeof(float),
				     .limits = {.tokens = l->tokens, .hidden = l->hidden, .intermediate = l->intermediate, .threads = POOLS, .heads = 1,
						.head_dim = l->attended, .caps = caps}};
	p->stream = check_floats(c, (size_t)l->tokens * l->hidden, false);
	p->x = check_alloc(c, p->stream_bytes);
	p->activated = check_alloc(c, p->activated_bytes);
	const float *x[PRODUCTS] = {check_floats(c, (size_t)l->tokens * l->attended, false), p->x, p->activated};
	float *out[PRODUCTS] = {p->x, p->activated, p->x};
	for (u32 i = 0; i < PRODUCTS; i++) {
		const struct matmul_case m = {.n = n[i], .k = k[i], .tokens = l->tokens, .dtype = dtype, .order = l->order && i == 2};
		check_matrix_make(c, &m, caps, &p->w[i]);
		p->a[i] = (struct kern_matmul_args){.out = out[i], .x = x[i], .w = &p->w[i].packed, .tokens = l->tokens, .x_stride = k[i],
						    .out_stride = i == 1 ? l->intermediate : n[i], .accumulate = i % 2 == 0};
		p->a[i].bias = l->bias && i > 0 ? check_floats(c, n[i], false) : NULL;
		p->fusions[i] = (struct kern_matmul_fusion){.norm_eps = 1e-5f, .norm_weight = i % 2 == 1 ? check_floats(c, l->hidden, false) : NULL,
							    .act_mul = i == 1};
	}
}

/* One call for the first `count` products, one for each behind them. */
static enum err layer_run(const struct kern_ops *ops, struct kern_ctx *ctx, struct layer_products *p, u32 count)
{
	enum err e = ERR_OK;
	memcpy(p->x, p->stream, p->stream_bytes);
	check_poison(p->activated, p->activated_bytes);
	for (u32 i = 0; i < PRODUCTS; i++) {
		p->fusions[i].then = i + 1 < count ? &p->a[i + 1] : NULL;
		p->a[i].fusion = i % 2 == 1 || p->fusions[i].then ? &p->fusions[i] : NULL;
	}
	for (u32 i = 0; !e && i < PRODUCTS; i = i == 0 ? count : i + 1)
		e = ops->matmul(ctx, &p->a[i]);
	return e;
}

static const char *layer_runs(struct check *c, u32 target, struct layer_products *p, struct kern_ctx ctx[POOLS])
{
	const struct kern_ops *ops = &c->targets[target].ops;
	float *stream = check_alloc(c, p->stream_bytes);
	const enum err e = layer_run(ops, &ctx[0], p, 1);
	if (e != ERR_OK && e != ERR_UNSUPPORTED)
		return "an error of the products apart";
	memcpy(stream, p->x, p->stream_bytes);
	for (u32 run = 0; run < 2 * POOLS; run++) {
		const u32 count = run < POOLS ? PRODUCTS : PRODUCTS - 1;
		check_poison(ctx[run % POOLS].scratch, ctx[run % POOLS].scratch_bytes);
		const enum err at_once = layer_run(ops, &ctx[run % POOLS], p, count);
		if (e == ERR_UNSUPPORTED && (at_once != e || memcmp(p->x, p->stream, p->stream_bytes) != 0))
			return "no refusal of what apart is refused, or written though refused";
		if (e == ERR_OK && at_once != ERR_OK)
			return "an error of the products at once";
		if (e == ERR_OK && memcmp(p->x, stream, p->stream_bytes) != 0)
			return "other bits than one after the other";
	}
	return NULL;
}

static void layer_case(struct check *c, u32 target, const struct layer_case *l, enum kern_dtype dtype, struct kern_threads *pools[POOLS])
{
	const struct check_target *t = &c->targets[target];
	struct kern_ctx ctx[POOLS] = {0};
	struct layer_products p;
	layer_make(c, t->caps, l, dtype, &p);
	for (u32 i = 0; i < POOLS; i++) {
		ctx[i].threads = pools[i];
		ctx[i].scratch_bytes = kern_scratch_bytes(&p.limits);
		ctx[i].scratch = check_alloc(c, ctx[i].scratch_bytes);
	}
	const char *problem = layer_runs(c, target, &p, ctx);
	for (u32 i = 0; i < PRODUCTS; i++)
		kern_weight_fini(&p.w[i].packed);
	check_case_end(c, problem, "matmul=%s of a layer %s tokens=%u attended=%u hidden=%u intermediate=%u bias=%d order=%d", t->ops.matmul_variant,
		       kern_dtype_name(dtype), l->tokens, l->attended, l->hidden, l->intermediate, l->bias, l->order);
}

void check_stages(struct check *c)
{
	/* Rows of every thread's own; of two threads alone; of none; with several blocks of rows; where down's inputs are not packed at once: too many tokens, an
	 * order of their own. */
	static const struct layer_case cases[] = {
		{.tokens = 200, .attended = 96, .hidden = 64, .intermediate = 128},
		{.tokens = 192, .attended = 200, .hidden = 576, .intermediate = 256, .bias = true},
		{.tokens = 130, .attended = 64, .hidden = 140, .intermediate = 1280},
		{.tokens = 70, .attended = 64, .hidden = 64, .intermediate = 64},
		{.tokens = 512, .attended = 64, .hidden = 64, .intermediate = 128, .bias = true},
		{.tokens = 530, .attended = 64, .hidden = 32, .intermediate = 128},
		{.tokens = 200, .attended = 64, .hidden = 64, .intermediate = 128, .order = true},
	};
	struct kern_threads *pools[POOLS] = {0};
	struct err_msg em = {""};
	for (u32 i = 0; i < POOLS; i++)
		if (kern_threads_create(&pools[i], i + 1, &em) != ERR_OK) {
			fprintf(stderr, "%s\n", em.text);
			abort();
		}
	for (u32 target = 0; target < c->target_count; target++)
		for (u32 i = 0; CHECK_DISTINCT(c, target, matmul) && i < COUNT_OF(cases); i++)
			for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
				struct layer_case l = cases[i];
				l.order = l.order && kern_dtype_group(check_matmul_types[d]) > 0;
				layer_case(c, target, &l, check_matmul_types[d], pools);
			}
	for (u32 i = 0; i < POOLS; i++)
		kern_threads_destroy(&pools[i]);
}
