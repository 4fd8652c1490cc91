/* Checks of the ops of mixtures of experts, and of soft capping, against formulas in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/check.h"

/* ---------------------------------------------------------------- soft_cap */

static void soft_cap_case(struct check *c, u32 target, u32 rows, u32 width, float cap, bool outliers)
{
	const struct kern_limits limits = {.tokens = rows, .vocab = width};
	size_t count = (size_t)rows * width;
	float *in = check_floats(c, count, outliers), *out[CHECK_RUNS];
	double *want = check_alloc(c, count * sizeof(double)), *scale = check_alloc(c, count * sizeof(double));
	const char *problem = NULL;
	for (size_t i = 0; i < count; i++)
		in[i] *= 10;
	for (size_t i = 0; i < count; i++) {
		want[i] = cap * tanh((double)in[i] / cap);
		scale[i] = fmin(fabs(want[i]), cap / 2); /* far below the cap and at it */
	}
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		out[run] = check_alloc(c, count * sizeof(float));
		memcpy(out[run], in, count * sizeof(float));
		struct kern_soft_cap_args a = {.x = out[run], .cap = cap, .rows = rows, .width = width};
		if (c->targets[target].ops.soft_cap(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(out[0], out[run], count * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	if (!problem)
		problem = check_close(out[0], want, scale, count, 1e-6);
	check_case_end(c, problem, "soft_cap=%s rows=%u width=%u cap=%g outliers=%d",
		       c->targets[target].ops.soft_cap_variant, rows, width, (double)cap, outliers);
}

/* ---------------------------------------------------------------- moe_route */

static void route_alloc(struct check *c, struct kern_moe_route_args *a)
{
	size_t count = (size_t)a->tokens * a->top;
	a->weights = check_alloc(c, (count + 1) * sizeof(float));
	a->assignments = check_alloc(c, (count + 1) * sizeof(u32));
	a->tokens_of = check_alloc(c, (count + 1) * sizeof(u32));
	a->expert_start = check_alloc(c, (a->experts + 1) * sizeof(u32));
}

/* The expert that an assignment belongs to. */
static u32 expert_of(const struct kern_moe_route_args *a, u32 assignment)
{
	u32 e = 0;
	while (e < a->experts && a->expert_start[e + 1] <= assignment)
		e++;
	return e;
}

/* Numbers are a permutation, in the order of experts and, within one, of tokens. */
static const char *route_numbers(const struct kern_moe_route_args *a)
{
	u32 count = a->tokens * a->top;
	if (a->expert_start[0] != 0 || a->expert_start[a->experts] != count)
		return "the experts' ranges do not cover the assignments";
	for (u32 e = 0; e < a->experts; e++)
		for (u32 i = a->expert_start[e]; i + 1 < a->expert_start[e + 1]; i++)
			if (a->tokens_of[i] >= a->tokens_of[i + 1])
				return "an expert's tokens are not in order";
	for (u32 i = 0; i < count; i++)
		if (a->assignments[i] >= count || a->tokens_of[a->assignments[i]] != i / a->top)
			return "a number does not lead back to its token";
	return NULL;
}

enum { ROUTE_EXPERTS = 130 }; /* at most */

/* By the formulas: the experts' scores; what one is chosen by, where that is not the logit. */
static void route_scores(const struct kern_moe_route_args *a, const float *x, double *scores)
{
	double all = 0, best = x[0];
	for (u32 i = 1; i < a->experts; i++)
		best = fmax(best, x[i]);
	for (u32 i = 0; i < a->experts; i++)
		all += exp(x[i] - best);
	for (u32 e = 0; e < a->experts; e++)
		scores[e] = a->sigmoid ? 1 / (1 + exp(-(double)x[e])) : exp(x[e] - best) / all;
}

static float route_key(const struct kern_moe_route_args *a, const double *scores, u32 e)
{
	return (float)(scores[e] + (a->bias ? (double)a->bias[e] : 0));
}

/* The same where logits are what experts are chosen by. */
static float route_chooser(const struct kern_moe_route_args *a, const float *x, const double *scores, u32 e)
{
	return a->by_logits ? (float)((double)x[e] + (a->bias ? (double)a->bias[e] : 0)) : route_key(a, scores, e);
}

/* The largest of all pairs of a group, or of all of it. */
static float route_group(const struct kern_moe_route_args *a, const double *scores, u32 group)
{
	u32 size = a->experts / a->groups;
	float keys[64], best = -INFINITY;
	for (u32 i = 0; i < size; i++)
		keys[i] = route_key(a, scores, group * size + i);
	for (u32 i = 0; i < size && a->groups_best; i++)
		best = fmaxf(best, keys[i]);
	for (u32 i = a->groups_best ? size : 0; i < size; i++)
		for (u32 j = 0; j < i; j++)
			best = fmaxf(best, keys[i] + keys[j]);
	return best;
}

/* How many of `count` keys come before that of `own`, ties to the lowest. */
static u32 place_of(const float *keys, u32 count, u32 own)
{
	u32 before = 0;
	for (u32 i = 0; i < count; i++)
		before += keys[i] > keys[own] || (keys[i] == keys[own] && i < own);
	return before;
}

/* What each expert is chosen by; of groups that are not chosen nothing is. */
static void route_keys(const struct kern_moe_route_args *a, const float *x, const double *scores, float *keys)
{
	float groups[KERN_EXPERT_GROUPS_MAX];
	for (u32 e = 0; e < a->experts; e++)
		keys[e] = a->bias || a->groups > 1 ? route_chooser(a, x, scores, e) : x[e];
	for (u32 g = 0; g < a->groups && a->groups > 1; g++)
		groups[g] = route_group(a, scores, g);
	for (u32 e = 0; e < a->experts && a->groups > 1; e++)
		if (place_of(groups, a->groups, e / (a->experts / a->groups)) >= a->groups_top)
			keys[e] = -INFINITY;
}

/* The share of the j-th expert of a token among those that are near it and not chosen before it. */
static double route_mixed(const struct kern_moe_route_args *a, const float *x, const u32 *assignments, u32 j)
{
	double left[ROUTE_EXPERTS], m = x[expert_of(a, assignments[j])], all = 0;
	for (u32 e = 0; e < a->experts; e++)
		left[e] = (m - x[e]) / fmax(fabs((double)x[e]), m) > (double)a->mixer ? -INFINITY : x[e];
	for (u32 i = 0; i < j; i++)
		left[expert_of(a, assignments[i])] = -INFINITY;
	for (u32 e = 0; e < a->experts; e++)
		all += exp(left[e] - m);
	return 1 / all;
}

/* Experts in their order, and what they count. */
static const char *route_values(const struct kern_moe_route_args *a)
{
	for (u32 t = 0; t < a->tokens; t++) {
		const float *x = a->logits + (size_t)t * a->experts;
		double sum = 0, scores[ROUTE_EXPERTS];
		float keys[ROUTE_EXPERTS];
		route_scores(a, x, scores);
		route_keys(a, x, scores, keys);
		for (u32 j = 0; j < a->top; j++)
			sum += scores[expert_of(a, a->assignments[t * a->top + j])];
		sum = fmax(sum + (double)a->sum_plus, (double)a->sum_least);
		for (u32 j = 0; j < a->top; j++) {
			u32 at = t * a->top + j, chosen = expert_of(a, a->assignments[at]);
			double want = scores[chosen] / (a->normalize ? sum : 1) * (a->scale > 0 ? (double)a->scale : 1) *
				      (a->expert_scales ? (double)a->expert_scales[chosen] : 1);
			if (a->mixer > 0)
				want = route_mixed(a, x, a->assignments + t * a->top, j);
			if (keys[chosen] == -INFINITY || place_of(keys, a->experts, chosen) != j)
				return "not the best experts in order";
			const double size = fabs(want);
			const char *problem = check_close(&a->weights[at], &want, &size, 1, 1e-6);
			if (problem)
				return problem;
		}
	}
	return NULL;
}

/* Alone a token has the same experts and weights. */
static const char *route_alone(struct check *c, u32 target, struct kern_ctx *ctx,
			       const struct kern_moe_route_args *a)
{
	struct kern_moe_route_args one = *a;
	one.tokens = 1;
	route_alloc(c, &one);
	for (u32 t = 0; t < a->tokens; t++) {
		one.logits = a->logits + (size_t)t * a->experts;
		if (c->targets[target].ops.moe_route(ctx, &one) != ERR_OK)
			return "an error";
		for (u32 j = 0; j < a->top; j++)
			if (expert_of(&one, one.assignments[j]) !=
			    expert_of(a, a->assignments[t * a->top + j]))
				return "a token alone has other experts";
		if (memcmp(one.weights, a->weights + (size_t)t * a->top, a->top * sizeof(float)) != 0)
			return "a token alone has other weights";
	}
	return NULL;
}

static const char *route_right(struct check *c, u32 target, const struct kern_limits *limits, struct kern_moe_route_args *a)
{
	const char *problem = NULL;
	for (u32 run = 0; run < 4 && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, limits, run % CHECK_POOLS);
		a->normalize = run / CHECK_POOLS;
		route_alloc(c, a);
		if (c->targets[target].ops.moe_route(&ctx, a) != ERR_OK)
			problem = "an error";
		if (!problem)
			problem = route_numbers(a);
		if (!problem)
			problem = route_values(a);
		if (!problem)
			problem = route_alone(c, target, &ctx, a);
	}
	return problem;
}

static void route_case(struct check *c, u32 target, u32 tokens, u32 experts, u32 top, bool ties)
{
	const struct kern_limits limits = {.tokens = tokens, .hidden = 64, .experts = experts};
	float *logits = check_floats(c, (size_t)tokens * experts + 1, false);
	struct kern_moe_route_args a = {.logits = logits, .tokens = tokens, .experts = experts, .top = top};
	for (size_t i = 0; i < (size_t)tokens * experts; i++)
		logits[i] = ties ? (float)check_random(c, 4) : logits[i] * 8;
	const char *problem = route_right(c, target, &limits, &a);
	check_case_end(c, problem, "moe_route=%s tokens=%u experts=%u top=%u ties=%d",
		       c->targets[target].ops.moe_route_variant, tokens, experts, top, ties);
}

/* Logits near each other, also around 0, where what counts as near is narrow. */
static void route_mixed_case(struct check *c, u32 target, u32 tokens, u32 experts, u32 top, float mixer, bool ties)
{
	const struct kern_limits limits = {.tokens = tokens, .hidden = 64, .experts = experts};
	float *logits = check_floats(c, (size_t)tokens * experts + 1, false), middle = check_random(c, 2) ? 3 : -0.2f;
	struct kern_moe_route_args a = {.logits = logits, .tokens = tokens, .experts = experts, .top = top, .mixer = mixer};
	for (size_t i = 0; i < (size_t)tokens * experts; i++)
		logits[i] = ties ? (float)check_random(c, 3) - 1 : middle + logits[i];
	const char *problem = route_right(c, target, &limits, &a);
	check_case_end(c, problem, "moe_route=%s tokens=%u experts=%u top=%u mixer=%g ties=%d",
		       c->targets[target].ops.moe_route_variant, tokens, experts, top, (double)mixer, ties);
}

/* Scores, biases, groups and bounds of sums of a model's own. */
enum { ROUTE_BIASED = 1, ROUTE_SIGMOID = 2, ROUTE_TIES = 4, ROUTE_BOUNDED = 8, ROUTE_BEST = 16, ROUTE_WAYS = 32, ROUTE_BY_LOGITS = 32 /* of one group */ };
static void route_rich_case(struct check *c, u32 target, u32 tokens, u32 groups, u32 size, u32 groups_top, u32 ways)
{
	u32 experts = (groups ? groups : 1) * size, most = (groups ? groups_top : 1) * size;
	const struct kern_limits limits = {.tokens = tokens, .hidden = 64, .experts = experts};
	float *logits = check_floats(c, (size_t)tokens * experts + 1, false), *bias = check_floats(c, experts, false);
	struct kern_moe_route_args a = {.logits = logits,
					.bias = ways & ROUTE_BIASED ? bias : NULL,
					.tokens = tokens,
					.experts = experts,
					.top = 1 + check_random(c, most < 9 ? most : 9),
					.groups = groups,
					.groups_top = groups_top,
					.scale = ways & ROUTE_BOUNDED ? 2.5f : 0,
					.sum_plus = ways & ROUTE_BOUNDED ? 0.3f : 0,
					.sum_least = ways & ROUTE_BOUNDED ? 0.9f : 0,
					.sigmoid = ways & ROUTE_SIGMOID,
					.groups_best = ways & ROUTE_BEST,
					.by_logits = ways & ROUTE_BY_LOGITS,
					.expert_scales = ways & ROUTE_BEST && groups <= 1 ? check_floats(c, experts, false) : NULL};
	for (size_t i = 0; i < (size_t)tokens * experts; i++)
		logits[i] = ways & ROUTE_TIES ? (float)check_random(c, 3) : logits[i] * 4;
	for (u32 i = 0; i < experts; i++)
		bias[i] = ways & ROUTE_TIES ? (float)check_random(c, 2) : bias[i] / 2;
	const char *problem = route_right(c, target, &limits, &a);
	check_case_end(c, problem, "moe_route=%s tokens=%u experts=%u top=%u groups=%u/%u ways=%u",
		       c->targets[target].ops.moe_route_variant, tokens, experts, a.top, groups_top, groups, ways);
}

static void route_rich_cases(struct check *c, u32 target, u32 tokens)
{
	for (u32 ties = 0; ties < 2; ties++) {
		route_mixed_case(c, target, tokens, 16, 2, 0.02f, ties);
		route_mixed_case(c, target, tokens, 16, 2, 0.5f, ties);
		route_mixed_case(c, target, tokens, 2, 2, 0.3f, ties);
		route_mixed_case(c, target, tokens, 70, 5, 1, ties);
	}
	for (u32 ways = 0; ways < ROUTE_WAYS; ways++) {
		route_rich_case(c, target, tokens, 0, 7, 0, ways);
		route_rich_case(c, target, tokens, 1, 64, 1, ways);
		route_rich_case(c, target, tokens, 0, 7, 0, ways | ROUTE_BY_LOGITS);
		route_rich_case(c, target, tokens, 1, 64, 1, ways | ROUTE_BY_LOGITS);
		route_rich_case(c, target, tokens, 4, 2, 1, ways);
		route_rich_case(c, target, tokens, 8, 16, 4, ways);
		route_rich_case(c, target, tokens, 64, 2, 3, ways);
	}
}

/* ---------------------------------------------------------------- moe_matmul */

struct group_case {
	u32 n, k, tokens, experts, top;
	bool bf16, source, bias;
};

/* Every token goes to about `top` experts; some experts get none, some all. */
static void draw_groups(struct check *c, const struct group_case *g, u32 *source, u32 *start)
{
	u32 count = 0, shift = check_random(c, g->experts);
	for (u32 e = 0; e < g->experts; e++) {
		start[e] = count;
		for (u32 t = 0; t < g->tokens; t++)
			if ((t % 3 * 7 + e * 3 + shift) % g->experts < g->top)
				source[count++] = t;
	}
	start[g->experts] = count;
}

static const char *groups_want(const struct group_case *g, const struct kern_moe_matmul_args *a,
			       float **plain, double error)
{
	for (u32 e = 0; e < g->experts; e++)
		for (u32 i = a->expert_start[e]; i < a->expert_start[e + 1]; i++) {
			const float *x = a->x + (size_t)(a->source ? a->source[i] : i) * g->k;
			for (u32 n = 0; n < g->n; n++) {
				double want = a->bias ? (double)a->bias[(size_t)e * g->n + n] : 0, size = fabs(want) + 1e-30;
				for (u32 k = 0; k < g->k; k++) {
					double term = (double)x[k] * plain[e][(size_t)n * g->k + k];
					want += term;
					size += fabs(term);
				}
				const char *problem =
					check_close(&a->out[(size_t)i * g->n + n], &want, &size, 1, error);
				if (problem)
					return problem;
			}
		}
	return NULL;
}

/* Each assignment as the only one. */
static const char *groups_alone(struct check *c, u32 target, struct kern_ctx *ctx, const struct group_case *g,
				const struct kern_moe_matmul_args *a)
{
	struct kern_moe_matmul_args one = *a;
	u32 *start = check_alloc(c, (g->experts + 1) * sizeof(u32)), zero = 0;
	one.out = check_alloc(c, g->n * sizeof(float));
	one.assignments = one.tokens = 1;
	one.expert_start = start;
	for (u32 e = 0; e < g->experts; e++)
		for (u32 i = a->expert_start[e]; i < a->expert_start[e + 1]; i++) {
			for (u32 j = 0; j <= g->experts; j++)
				start[j] = j > e;
			one.x = a->x + (size_t)(a->source ? a->source[i] : i) * g->k;
			one.source = a->source ? &zero : NULL;
			if (c->targets[target].ops.moe_matmul(ctx, &one) != ERR_OK)
				return "an error";
			if (memcmp(one.out, a->out + (size_t)i * g->n, g->n * sizeof(float)) != 0)
				return "a row alone gives other bits than among others";
		}
	return NULL;
}

static struct kern_weight *pack_experts(struct check *c, const struct group_case *g, u32 caps, float **plain)
{
	enum kern_dtype dtype = g->bf16 ? KERN_BF16 : KERN_F32;
	struct kern_weight *w = check_alloc(c, g->experts * sizeof(*w));
	struct err_msg em = {""};
	for (u32 e = 0; e < g->experts; e++) {
		size_t count = (size_t)g->n * g->k;
		u16 half;
		plain[e] = check_floats(c, count, false);
		for (size_t i = 0; i < count && g->bf16; i++) {
			kern_convert(&half, KERN_BF16, &plain[e][i], KERN_F32, 1);
			kern_convert(&plain[e][i], KERN_F32, &half, KERN_BF16, 1);
		}
		void *memory = check_alloc(c, kern_weight_bytes(g->n, g->k, dtype, caps));
		if (kern_weight_pack(&w[e], plain[e], KERN_F32, g->k, g->n, g->k, dtype, memory, c->pools[1],
				     caps, &em) != ERR_OK)
			printf("kern_weight_pack: %s\n", em.text);
	}
	return w;
}

static void groups_case(struct check *c, u32 target, const struct group_case *g)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	const struct kern_limits limits = {
		.tokens = g->tokens, .hidden = g->k, .intermediate = g->k, .experts = g->experts};
	float *plain[8];
	u32 *source = check_alloc(c, (size_t)g->tokens * g->experts * sizeof(u32));
	u32 *start = check_alloc(c, (g->experts + 1) * sizeof(u32));
	const char *problem = NULL;
	struct kern_ctx ctx;
	draw_groups(c, g, source, start);
	u32 count = start[g->experts];
	struct kern_moe_matmul_args a = {.w = pack_experts(c, g, c->targets[target].caps, plain),
					 .source = g->source ? source : NULL,
					 .expert_start = start,
					 .experts = g->experts,
					 .assignments = count,
					 .tokens = g->tokens,
					 .ops = ops};
	a.x = check_floats(c, (size_t)(g->source ? g->tokens : count) * g->k, false);
	a.bias = g->bias ? check_floats(c, (size_t)g->experts * g->n, false) : NULL;
	float *out[CHECK_RUNS];
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		a.out = out[run] = check_alloc(c, (size_t)count * g->n * sizeof(float));
		if (ops->moe_matmul(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(out[0], out[run], (size_t)count * g->n * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	bool rounds = g->bf16 && (c->targets[target].caps & (KERN_CAP_AVX512_BF16 | KERN_CAP_AMX));
	if (!problem)
		problem = groups_want(g, &a, plain, (rounds ? 0x1p-8 : 0) + 0x1p-24 * (4 + 3 * sqrt(g->k)));
	if (!problem)
		problem = groups_alone(c, target, &ctx, g, &a);
	check_case_end(c, problem, "moe_matmul=%s/%s %s n=%u k=%u tokens=%u experts=%u top=%u source=%d bias=%d",
		       ops->moe_matmul_variant, ops->matmul_variant, g->bf16 ? "bf16" : "f32", g->n, g->k,
		       g->tokens, g->experts, g->top, g->source, g->bias);
}

/* Quantized experts: how rows and columns are shared out is no matter of bits, so the variant has those of the reference,
 * which multiplies one expert after the other by the same table's matmul. */
static void quantized_groups_case(struct check *c, u32 target, const struct group_case *g, enum kern_dtype dtype)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	const struct kern_limits limits = {
		.tokens = g->tokens, .hidden = g->k, .intermediate = g->k, .experts = g->experts};
	const u32 caps = c->targets[target].caps;
	u32 *source = check_alloc(c, (size_t)g->tokens * g->experts * sizeof(u32));
	u32 *start = check_alloc(c, (g->experts + 1) * sizeof(u32));
	struct kern_weight *w = check_alloc(c, g->experts * sizeof(*w));
	const char *problem = NULL;
	struct err_msg em = {""};
	draw_groups(c, g, source, start);
	for (u32 e = 0; e < g->experts && !problem; e++) {
		float *plain = check_floats(c, (size_t)g->n * g->k, false);
		if (kern_weight_pack(&w[e], plain, KERN_F32, g->k, g->n, g->k, dtype,
				     check_alloc(c, kern_weight_bytes(g->n, g->k, dtype, caps)), c->pools[1], caps, &em))
			problem = "no weight";
	}
	const size_t count = start[g->experts], bytes = count * g->n * sizeof(float);
	struct kern_moe_matmul_args a = {.w = w,
					 .source = g->source ? source : NULL,
					 .expert_start = start,
					 .experts = g->experts,
					 .assignments = (u32)count,
					 .tokens = g->tokens,
					 .ops = ops};
	a.x = check_floats(c, (g->source ? g->tokens : count) * g->k, false);
	float *want = check_alloc(c, bytes);
	for (u32 pool = 0; pool < CHECK_POOLS && !problem; pool++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, pool);
		a.out = want;
		enum err e = moe_matmul_ref(&ctx, &a);
		a.out = check_alloc(c, bytes);
		if (e != ERR_OK || ops->moe_matmul(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(a.out, want, bytes) != 0)
			problem = "other bits than one expert after the other";
	}
	check_case_end(c, problem, "moe_matmul=%s/%s %s n=%u k=%u tokens=%u experts=%u source=%d", ops->moe_matmul_variant,
		       ops->matmul_variant, kern_dtype_name(dtype), g->n, g->k, g->tokens, g->experts, g->source);
}

/* Experts with more rows than a thread takes at once, and more columns. */
static void large_groups(struct check *c, u32 target)
{
	static const struct group_case large = {1100, 33, 140, 2, 1, true, true, true}, even = {1030, 32, 260, 2, 1, false, false},
				       wide = {1100, 96, 140, 3, 1, false, true}, few = {600, 160, 12, 7, 3, false, false};
	static const enum kern_dtype types[] = {KERN_I8, KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS};
	groups_case(c, target, &large);
	groups_case(c, target, &even);
	for (u32 i = 0; i < COUNT_OF(types); i++) {
		quantized_groups_case(c, target, &wide, types[i]);
		quantized_groups_case(c, target, &few, types[i]);
	}
}

/* ---------------------------------------------------------------- moe_combine */

enum shared { SHARED_NONE, SHARED_GATED, SHARED_WHOLE };
static void combine_case(struct check *c, u32 target, u32 tokens, u32 top, u32 hidden, enum shared with_shared)
{
	const struct kern_limits limits = {.tokens = tokens, .hidden = hidden, .experts = 8};
	size_t rows = (size_t)tokens * top, count = (size_t)tokens * hidden;
	float *x = check_floats(c, rows * hidden, true), *weights = check_floats(c, rows, false);
	float *shared = check_floats(c, count, true), *gate = check_floats(c, tokens, true);
	float *out[CHECK_RUNS];
	u32 *assignments = check_alloc(c, (rows + 1) * sizeof(u32));
	double *want = check_alloc(c, count * sizeof(double)),
	       *scale = check_alloc(c, count * sizeof(double));
	const char *problem = NULL;
	for (u32 i = 0; i < rows; i++)
		assignments[i] = (i * 5 + 3) % (u32)rows;
	for (u32 t = 0; t < tokens; t++)
		for (u32 i = 0; i < hidden; i++) {
			size_t at = (size_t)t * hidden + i;
			want[at] = 0, scale[at] = 1e-30;
			for (u32 j = 0; j < top; j++) {
				double term = (double)weights[t * top + j] *
					      x[(size_t)assignments[t * top + j] * hidden + i];
				want[at] += term;
				scale[at] += fabs(term);
			}
			double share = with_shared == SHARED_GATED ? 1 / (1 + exp(-(double)gate[t])) : with_shared == SHARED_WHOLE;
			double term = share * shared[at];
			want[at] += term;
			scale[at] += fabs(term);
		}
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		out[run] = check_alloc(c, (count + 1) * sizeof(float));
		struct kern_moe_combine_args a = {.out = out[run], .x = x, .weights = weights};
		a.assignments = assignments;
		a.shared = with_shared ? shared : NULL;
		a.shared_gate = with_shared == SHARED_GATED ? gate : NULL;
		a.tokens = tokens;
		a.top = top;
		a.hidden = hidden;
		if (c->targets[target].ops.moe_combine(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(out[0], out[run], count * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	if (!problem)
		problem = check_close(out[0], want, scale, count, 1e-6);
	check_case_end(c, problem, "moe_combine=%s tokens=%u top=%u hidden=%u shared=%d",
		       c->targets[target].ops.moe_combine_variant, tokens, top, hidden, (int)with_shared);
}

/* ---------------------------------------------------------------- all */

static void moe_cases(struct check *c, u32 target)
{
	static const u32 experts[] = {1, 2, 7, 8, 64, 130}, tokens[] = {0, 1, 2, 17, 50};
	static const u32 shapes[][2] = {{1, 1}, {17, 33}, {64, 64}, {70, 255}, {130, 96}};
	for (u32 t = 0; t < COUNT_OF(tokens); t++) {
		for (u32 e = 0; e < COUNT_OF(experts) && CHECK_DISTINCT(c, target, moe_route); e++)
			for (u32 top = 1; top <= experts[e] && top <= 16; top *= 2)
				route_case(c, target, tokens[t], experts[e], top, top % 4 == 2);
		if (CHECK_DISTINCT(c, target, moe_route))
			route_rich_cases(c, target, tokens[t]);
		for (u32 s = 0; s < COUNT_OF(shapes) && tokens[t] > 0; s++)
			for (u32 bits = 0; bits < 8 && CHECK_DISTINCT(c, target, matmul); bits++) {
				struct group_case g = {shapes[s][0],  shapes[s][1], tokens[t], s % 2 ? 8 : 3,
						       s % 2 ? 3 : 1, bits & 1,	    bits & 2,	    bits & 4};
				groups_case(c, target, &g);
			}
		for (u32 top = 1; top <= 8 && CHECK_DISTINCT(c, target, moe_combine); top += 3) {
			combine_case(c, target, tokens[t], top, 1, t % 3);
			combine_case(c, target, tokens[t], top, 64, (t + 1) % 3);
			combine_case(c, target, tokens[t], top, 101, SHARED_NONE);
			combine_case(c, target, tokens[t], top, 101, SHARED_GATED);
			combine_case(c, target, tokens[t], top, 101, SHARED_WHOLE);
		}
	}
	if (CHECK_DISTINCT(c, target, matmul) && c->targets[target].ops.moe_matmul != moe_matmul_ref)
		large_groups(c, target);
}

void check_moe(struct check *c)
{
	static const u32 widths[] = {1, 7, 16, 33, 1000, 20000};
	static const float caps[] = {3, 30, 4e9f, 1e5f, 1e19f};
	for (u32 i = 0; i < c->target_count; i++) {
		for (u32 w = 0; w < COUNT_OF(widths) && CHECK_DISTINCT(c, i, soft_cap); w++)
			for (u32 rows = 0; rows < 4; rows++)
				soft_cap_case(c, i, rows, widths[w], caps[(rows + w) % COUNT_OF(caps)], rows > 1);
		moe_cases(c, i);
	}
}
