/* Times of a mixture of experts as large as a layer of Qwen3-30B-A3B with a quarter of its experts, which is
 * more than any cache holds, and of soft caps over Gemma's vocabulary. */
#include <stdio.h>
#include <string.h>

#include "tests/kern/bench.h"

enum { EXPERTS = 32, TOP = 8, WIDTH = 768, HIDDEN = 2048, GEMMA_VOCAB = 256000 };

BENCH_RUNNER(moe_route)
BENCH_RUNNER(moe_matmul)
BENCH_RUNNER(moe_combine)
BENCH_RUNNER(head_matmul)
BENCH_RUNNER(soft_cap)

struct layer {
	struct kern_moe_route_args route;
	struct kern_limits limits;
	u32 touched; /* experts that have tokens */
};

static void route(struct check *c, u32 target, u32 pool, u32 tokens, struct layer *l)
{
	struct kern_moe_route_args *a = &l->route;
	size_t count = (size_t)tokens * TOP;
	char shape[100];
	*a = (struct kern_moe_route_args){
		.tokens = tokens, .experts = EXPERTS, .top = TOP, .normalize = true};
	l->limits = (struct kern_limits){
		.tokens = tokens, .hidden = HIDDEN, .intermediate = WIDTH, .experts = EXPERTS};
	a->logits = check_floats(c, (size_t)tokens * EXPERTS, false);
	a->weights = check_alloc(c, count * sizeof(float));
	a->assignments = check_alloc(c, count * sizeof(u32));
	a->tokens_of = check_alloc(c, count * sizeof(u32));
	a->expert_start = check_alloc(c, (EXPERTS + 1) * sizeof(u32));
	snprintf(shape, sizeof(shape), "experts=%u top=%u tokens=%u", EXPERTS, TOP, tokens);
	BENCH(moe_route, c, target, pool, a, &l->limits, shape, 0, 0);
	l->touched = 0;
	for (u32 e = 0; e < EXPERTS; e++)
		l->touched += a->expert_start[e + 1] > a->expert_start[e];
}

/* The first product of the experts: gate and up. */
static void products(struct check *c, u32 target, u32 pool, u32 tokens, enum kern_dtype dtype)
{
	struct layer l;
	struct kern_weight w[EXPERTS];
	struct err_msg em;
	u32 caps = c->targets[target].caps;
	size_t bytes = kern_weight_bytes(2 * WIDTH, HIDDEN, dtype, caps);
	float *plain = check_floats(c, (size_t)2 * WIDTH * HIDDEN, false);
	char *memory = check_alloc(c, EXPERTS * bytes), shape[100];
	for (u32 e = 0; e < EXPERTS; e++)
		if (kern_weight_pack(&w[e], plain, KERN_F32, HIDDEN, 2 * WIDTH, HIDDEN, dtype,
				     memory + e * bytes, c->pools[1], caps, &em) != ERR_OK)
			return;
	route(c, target, pool, tokens, &l);
	struct kern_moe_matmul_args a = {.source = l.route.tokens_of,
					 .w = w,
					 .expert_start = l.route.expert_start,
					 .experts = EXPERTS,
					 .assignments = tokens * TOP,
					 .tokens = tokens,
					 .ops = &c->targets[target].ops};
	a.x = check_floats(c, (size_t)tokens * HIDDEN, false);
	a.out = check_alloc(c, (size_t)tokens * TOP * 2 * WIDTH * sizeof(float));
	snprintf(shape, sizeof(shape), "%s n=%u k=%u experts=%u/%u tokens=%u", kern_dtype_name(dtype),
		 2 * WIDTH, HIDDEN, l.touched, EXPERTS, tokens);
	BENCH(moe_matmul, c, target, pool, &a, &l.limits, shape, 2.0 * 2 * WIDTH * HIDDEN * tokens * TOP,
	      (double)(l.touched * bytes));
	check_case_end(c, NULL, "moe_matmul");
}

/* Those of a layer of DeepSeek V2 Lite before attention. */
static void heads(struct check *c, u32 target, u32 pool, u32 tokens)
{
	enum { HEADS = 16, KEY = 128, ROPE = 64, LATENT = 512 };
	const struct kern_limits limits = {
		.tokens = tokens, .heads = HEADS, .kv_heads = 1, .head_dim = LATENT + ROPE, .hidden = KEY, .attended = KEY};
	const u32 caps = c->targets[target].caps;
	const size_t bytes = kern_weight_bytes(LATENT, KEY, KERN_BF16, caps);
	float *plain = check_floats(c, (size_t)LATENT * KEY, false);
	char *memory = check_alloc(c, HEADS * bytes), shape[100];
	struct kern_weight w[HEADS];
	struct err_msg em;
	for (u32 h = 0; h < HEADS; h++)
		if (kern_weight_pack(&w[h], plain, KERN_F32, KEY, LATENT, KEY, KERN_BF16, memory + h * bytes, c->pools[1], caps, &em) != ERR_OK)
			return;
	struct kern_head_matmul_args a = {.w = w,
					  .tokens = tokens,
					  .heads = HEADS,
					  .beside = ROPE,
					  .x_stride = HEADS * (KEY + ROPE),
					  .x_apart = KEY + ROPE,
					  .out_stride = HEADS * (LATENT + ROPE),
					  .out_apart = LATENT + ROPE,
					  .ops = &c->targets[target].ops};
	a.x = check_floats(c, (size_t)tokens * a.x_stride, false);
	a.out = check_alloc(c, (size_t)tokens * a.out_stride * sizeof(float));
	snprintf(shape, sizeof(shape), "bfloat16 n=%u k=%u heads=%u tokens=%u", (u32)LATENT, (u32)KEY, (u32)HEADS, tokens);
	BENCH(head_matmul, c, target, pool, &a, &limits, shape, 2.0 * LATENT * KEY * HEADS * tokens, (double)(HEADS * bytes));
	check_case_end(c, NULL, "head_matmul");
}

static void combine(struct check *c, u32 target, u32 pool, u32 tokens)
{
	struct layer l;
	char shape[100];
	route(c, target, pool, tokens, &l);
	struct kern_moe_combine_args a = {.weights = l.route.weights,
					  .assignments = l.route.assignments,
					  .tokens = tokens,
					  .top = TOP,
					  .hidden = HIDDEN};
	a.x = check_floats(c, (size_t)tokens * TOP * HIDDEN, false);
	a.out = check_alloc(c, (size_t)tokens * HIDDEN * sizeof(float));
	snprintf(shape, sizeof(shape), "top=%u hidden=%u tokens=%u", TOP, HIDDEN, tokens);
	BENCH(moe_combine, c, target, pool, &a, &l.limits, shape, 0, (double)tokens * (TOP + 1) * HIDDEN * 4);
	check_case_end(c, NULL, "moe_combine");
}

static void cap(struct check *c, u32 target, u32 pool)
{
	struct kern_limits limits = {.vocab = GEMMA_VOCAB};
	struct kern_soft_cap_args a = {.cap = 30, .rows = 1, .width = GEMMA_VOCAB};
	char shape[100];
	a.x = check_floats(c, GEMMA_VOCAB, false);
	snprintf(shape, sizeof(shape), "vocab=%u", GEMMA_VOCAB);
	BENCH(soft_cap, c, target, pool, &a, &limits, shape, 0, GEMMA_VOCAB * 8.0);
	check_case_end(c, NULL, "soft_cap");
}

void bench_moe(struct check *c, u32 target, u32 pool, const char *only)
{
	static const u32 tokens[] = {1, 4, 16, 256};
	static const enum kern_dtype types[] = {KERN_BF16, KERN_I8, KERN_I4_64};
	bool last = target + 1 == c->target_count; /* products are the table's matmul: by the best one */
	for (u32 t = 0; t < COUNT_OF(tokens); t++) {
		for (u32 d = 0; d < COUNT_OF(types) && last && (!only || !strcmp(only, "moe_matmul")); d++)
			products(c, target, pool, tokens[t], types[d]);
		if (last && (!only || !strcmp(only, "head_matmul")))
			heads(c, target, pool, tokens[t]);
		if (CHECK_DISTINCT(c, target, moe_combine) && (!only || !strcmp(only, "moe_combine")))
			combine(c, target, pool, tokens[t]);
	}
	if (CHECK_DISTINCT(c, target, soft_cap) && (!only || !strcmp(only, "soft_cap")))
		cap(c, target, pool);
}
