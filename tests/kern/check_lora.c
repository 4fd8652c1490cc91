/* Checks of low-rank adapters against the formula in double: several adapters in a step, parts that lie apart or share rows
 * of A, ranks and widths that fill no vector; and that a token's bits do not depend on its neighbours. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check.h"
#include "tests/kern/check_lora.h"

enum { ADAPTERS = 3 };

/* Plain matrices of one adapter, in the values that the packed ones hold. */
struct plain {
	float *a, *b[KERN_LORA_PARTS_MAX];
};

static float rounded(float x, enum kern_dtype dtype)
{
	u16 half;
	if (dtype == KERN_F32)
		return x;
	kern_convert(&half, KERN_BF16, &x, KERN_F32, 1);
	kern_convert(&x, KERN_F32, &half, KERN_BF16, 1);
	return x;
}

static float *matrix(struct check *c, u32 rows, u32 columns, enum kern_dtype dtype)
{
	float *p = check_floats(c, (size_t)rows * columns, false);
	for (size_t i = 0; i < (size_t)rows * columns; i++)
		p[i] = rounded(p[i], dtype);
	return p;
}

/* Parts of `s` of `rank` each; with `shared` all of the same rows of A. */
static void make_adapter(struct check *c, struct kern_lora *l, struct plain *plain, const struct lora_shape *s, u32 rank,
			 enum kern_dtype dtype, bool shared)
{
	u32 first = 3;
	*l = (struct kern_lora){.dtype = dtype, .k = s->k, .part_count = s->parts, .rank = shared ? rank : s->parts * rank};
	plain->a = matrix(c, l->rank, s->k, dtype);
	void *a = check_alloc(c, kern_lora_a_bytes(l->rank, s->k, dtype));
	kern_lora_set_a(a, dtype, 0, l->rank, s->k, plain->a, KERN_F32, s->k);
	l->a = a;
	for (u32 p = 0; p < s->parts; p++) {
		struct kern_lora_part *part = &l->parts[p];
		*part = (struct kern_lora_part){.scale = 0.5f + (float)p, .first = first, .n = s->n[p], .rank = rank};
		part->rank_first = shared ? 0 : p * rank;
		plain->b[p] = matrix(c, s->n[p], rank, dtype);
		void *b = check_alloc(c, kern_lora_b_bytes(s->n[p], rank, dtype));
		kern_lora_set_b(b, dtype, s->n[p], rank, plain->b[p], KERN_F32, rank);
		part->b = b;
		first += s->n[p] + 2;
	}
}

/* What one token's outputs become, and of what size the terms are. */
static void expect(const struct kern_lora *l, const struct plain *plain, const float *x, double *want, double *scale)
{
	for (u32 p = 0; p < l->part_count; p++) {
		const struct kern_lora_part *part = &l->parts[p];
		for (u32 r = 0; r < part->rank; r++) {
			double h = 0, size = 0;
			for (u32 k = 0; k < l->k; k++) {
				double term = (double)x[k] * plain->a[(size_t)(part->rank_first + r) * l->k + k];
				h += term;
				size += fabs(term);
			}
			for (u32 j = 0; j < part->n; j++) {
				double b = part->scale * plain->b[p][(size_t)j * part->rank + r];
				want[part->first + j] += b * h;
				scale[part->first + j] += fabs(b) * size;
			}
		}
	}
}

/* Tokens from `first` on: most of some adapter, some of none. */
static u32 deal(struct check *c, struct kern_lora_group *groups, const struct kern_lora *loras, u32 tokens, u32 first)
{
	u32 *of = check_alloc(c, (tokens + 1) * sizeof(u32)), count = 0;
	for (u32 t = 0; t < tokens; t++)
		of[t] = check_random(c, ADAPTERS + 1);
	for (u32 i = 0; i < ADAPTERS; i++) {
		u32 *list = check_alloc(c, (tokens + 1) * sizeof(u32));
		struct kern_lora_group g = {&loras[i], list, 0};
		for (u32 t = 0; t < tokens; t++)
			if (of[t] == i)
				list[g.count++] = first + t;
		if (g.count || i == 1) /* an empty one does nothing */
			groups[count++] = g;
	}
	return count;
}

/* Each token alone gives the bits that all together gave. */
static const char *alone(const struct check *c, u32 target, struct kern_ctx *ctx, const struct kern_lora_args *all,
			 const float *before, const float *together, float *out, u32 width)
{
	for (u32 g = 0; g < all->group_count; g++)
		for (u32 i = 0; i < all->groups[g].count; i++) {
			u32 token = all->groups[g].tokens[i] - all->first;
			struct kern_lora_group one = {all->groups[g].lora, &all->groups[g].tokens[i], 1};
			struct kern_lora_args a = *all;
			a.groups = &one;
			a.group_count = 1;
			a.out = out;
			memcpy(out + (size_t)token * width, before + (size_t)token * width, width * sizeof(float));
			if (c->targets[target].ops.lora(ctx, &a) != ERR_OK)
				return "an error";
			if (memcmp(out + (size_t)token * width, together + (size_t)token * width, width * sizeof(float)) != 0)
				return "a token alone has other bits";
		}
	return NULL;
}

static void lora_case(struct check *c, u32 target, const struct lora_shape *s, u32 rank, u32 tokens, enum kern_dtype dtype,
		      bool shared)
{
	const struct kern_limits limits = {.tokens = tokens, .lora_rank = KERN_LORA_PARTS_MAX * (rank + ADAPTERS)};
	u32 width = 5 + s->parts * 2, first = check_random(c, 9);
	struct kern_lora loras[ADAPTERS];
	struct plain plain[ADAPTERS];
	struct kern_lora_group groups[ADAPTERS];
	const char *problem = NULL;
	for (u32 p = 0; p < s->parts; p++)
		width += s->n[p];
	for (u32 i = 0; i < ADAPTERS; i++)
		make_adapter(c, &loras[i], &plain[i], s, rank + i, dtype, shared);
	size_t count = (size_t)tokens * width;
	float *x = check_floats(c, (size_t)tokens * (s->k + 1), true), *before = check_floats(c, count, false), *out[CHECK_RUNS + 1];
	double *want = check_alloc(c, count * sizeof(double)), *scale = check_alloc(c, count * sizeof(double));
	struct kern_lora_args a = {.x = x, .groups = groups, .first = first, .x_stride = s->k + 1, .out_stride = width};
	a.group_count = deal(c, groups, loras, tokens, first);
	for (size_t i = 0; i < count; i++) {
		want[i] = before[i];
		scale[i] = fabs(want[i]);
	}
	for (u32 g = 0; g < a.group_count; g++)
		for (u32 i = 0; i < groups[g].count; i++) {
			size_t t = groups[g].tokens[i] - first;
			expect(groups[g].lora, &plain[groups[g].lora - loras], x + t * a.x_stride, want + t * width,
			       scale + t * width);
		}
	for (u32 run = 0; run <= CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		a.out = out[run] = check_alloc(c, count * sizeof(float));
		memcpy(a.out, before, count * sizeof(float));
		if (run == CHECK_RUNS)
			problem = alone(c, target, &ctx, &a, before, out[0], a.out, width);
		else if (c->targets[target].ops.lora(&ctx, &a) != ERR_OK)
			problem = "an error";
		if (!problem && memcmp(out[0], out[run], count * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	if (!problem)
		problem = check_close(out[0], want, scale, count, 2e-6);
	check_case_end(c, problem, "lora=%s %s tokens=%u k=%u rank=%u parts=%u shared=%d",
		       c->targets[target].ops.lora_variant, kern_dtype_name(dtype), tokens, s->k, rank, s->parts, shared);
}

void check_lora(struct check *c)
{
	static const struct lora_shape shapes[] = {
		{64, 1, {64}}, {37, 3, {96, 17, 33}}, {257, 2, {130, 130}}, {1, 1, {1}}, {128, 1, {1500}},
	};
	static const u32 tokens[] = {0, 1, 4, 7, 70}, ranks[] = {1, 4, 8, 19};
	for (u32 i = 0; i < c->target_count; i++)
		for (u32 s = 0; s < COUNT_OF(shapes) && CHECK_DISTINCT(c, i, lora); s++)
			for (u32 t = 0; t < COUNT_OF(tokens); t++)
				for (u32 r = 0; r < COUNT_OF(ranks); r++) {
					lora_case(c, i, &shapes[s], ranks[r], tokens[t], KERN_F32, false);
					lora_case(c, i, &shapes[s], ranks[r], tokens[t], KERN_BF16, r % 2);
				}
}

/* ---------------------------------------------------------------- times */

BENCH_RUNNER(lora)

/* In bfloat16; values in any layout do. */
static void random_adapter(struct check *c, struct kern_lora *l, const struct lora_shape *s, u32 rank)
{
	u32 first = 0;
	*l = (struct kern_lora){.dtype = KERN_BF16, .k = s->k, .part_count = s->parts, .rank = s->parts * rank};
	l->a = check_bf16s(c, kern_lora_a_bytes(l->rank, s->k, KERN_BF16) / sizeof(u16), false);
	for (u32 p = 0; p < s->parts; p++) {
		l->parts[p] = (struct kern_lora_part){.scale = 1, .first = first, .n = s->n[p], .rank_first = p * rank, .rank = rank};
		l->parts[p].b = check_bf16s(c, kern_lora_b_bytes(s->n[p], rank, KERN_BF16) / sizeof(u16), false);
		first += s->n[p];
	}
}

/* Every token of an adapter of its own, or all of the first. */
static void bench_case(struct check *c, u32 target, u32 pool, const struct lora_shape *s, u32 tokens, u32 adapters)
{
	enum { RANK = 16, MOST = 8 };
	struct kern_limits limits = {.tokens = tokens, .lora_rank = RANK * KERN_LORA_PARTS_MAX};
	struct kern_lora loras[MOST];
	struct kern_lora_group groups[MOST];
	u32 width = 16;
	char shape[100];
	for (u32 p = 0; p < s->parts; p++)
		width += s->n[p];
	for (u32 i = 0; i < adapters; i++) {
		random_adapter(c, &loras[i], s, RANK);
		u32 *list = check_alloc(c, tokens * sizeof(u32));
		groups[i] = (struct kern_lora_group){&loras[i], list, 0};
		for (u32 t = i; t < tokens; t += adapters)
			list[groups[i].count++] = t;
	}
	struct kern_lora_args a = {.groups = groups, .group_count = adapters, .x_stride = s->k, .out_stride = width};
	a.x = check_floats(c, (size_t)tokens * s->k, false);
	a.out = check_floats(c, (size_t)tokens * width, false);
	snprintf(shape, sizeof(shape), "n=%u k=%u rank=%u adapters=%u tokens=%u", width - 16, s->k, RANK, adapters, tokens);
	double terms = (double)RANK * (s->parts * s->k + width);
	BENCH(lora, c, target, pool, &a, &limits, shape, 2 * terms * tokens, 2 * terms * adapters);
	check_case_end(c, NULL, "lora");
}

void bench_lora(struct check *c, u32 target, u32 pool)
{
	static const struct lora_shape shapes[] = {
		{2048, 3, {2048, 512, 512}}, {2048, 1, {2048}}, {2048, 2, {8192, 8192}}, {8192, 1, {2048}}};
	for (u32 s = 0; s < COUNT_OF(shapes); s++) {
		bench_case(c, target, pool, &shapes[s], 1, 1);
		bench_case(c, target, pool, &shapes[s], 8, 1);
		bench_case(c, target, pool, &shapes[s], 8, 8);
		bench_case(c, target, pool, &shapes[s], 512, 1);
	}
}
