/* Reference and only variant: routing of a mixture of experts. A few hundred exponentials a token are nothing
 * beside its products. */
#include <math.h>

#include "kernels/kern_priv.h"

enum { TOKENS_A_TASK = 16 };

/* A token's scores: numbers that are scores times `unit`. */
struct scores {
	const struct kern_moe_route_args *a;
	const float *logits; /* [experts] */
	double best, unit;
	u64 groups; /* a bit each: whose experts may be chosen */
};

static double score(const struct scores *s, u32 e)
{
	return s->a->sigmoid ? 1 / (1 + exp(-(double)s->logits[e])) : exp(s->logits[e] - s->best);
}

/* What experts are chosen by. Logits have the order of scores, and no two that differ round to one. */
static float key(const struct scores *s, u32 e)
{
	if (!s->a->bias && s->a->groups <= 1)
		return s->logits[e];
	if (s->a->by_logits)
		return (float)((double)s->logits[e] + (s->a->bias ? (double)s->a->bias[e] : 0));
	return (float)(score(s, e) / s->unit + (s->a->bias ? (double)s->a->bias[e] : 0));
}

static float group_key(const struct scores *s, u32 group)
{
	u32 size = s->a->experts / s->a->groups;
	float first = -INFINITY, second = -INFINITY;
	for (u32 e = group * size; e < (group + 1) * size; e++) {
		float k = key(s, e);
		second = k > first ? first : k > second ? k : second;
		first = k > first ? k : first;
	}
	return s->a->groups_best ? first : first + second;
}

static void choose_groups(struct scores *s)
{
	float keys[KERN_EXPERT_GROUPS_MAX];
	u32 groups = s->a->groups;
	s->groups = ~0ull;
	if (groups <= 1)
		return;
	s->groups = 0;
	for (u32 g = 0; g < groups; g++)
		keys[g] = group_key(s, g);
	for (u32 i = 0; i < s->a->groups_top; i++) {
		u32 best = groups;
		for (u32 g = 0; g < groups; g++)
			if (!(s->groups >> g & 1) && (best == groups || keys[g] > keys[best]))
				best = g;
		s->groups |= 1ull << best;
	}
}

static struct scores scores_of(const struct kern_moe_route_args *a, u32 t)
{
	struct scores s = {.a = a, .logits = a->logits + (size_t)t * a->experts, .unit = 1};
	float best = s.logits[0];
	for (u32 e = 1; e < a->experts; e++)
		best = s.logits[e] > best ? s.logits[e] : best;
	s.best = best;
	bool whole = !a->normalize || a->bias || a->groups > 1 || a->sum_plus > 0 || a->sum_least > 0;
	if (!a->sigmoid && whole) { /* else a common factor, which no weight has */
		s.unit = 0;
		for (u32 e = 0; e < a->experts; e++)
			s.unit += exp(s.logits[e] - s.best);
	}
	choose_groups(&s);
	return s;
}

/* `top` experts with the largest keys, in order, by insertion; ties to the lowest. `keys` [top] are theirs. */
static void select_top(const struct scores *s, u32 *chosen, float *keys)
{
	u32 count = 0, top = s->a->top, size = s->a->groups > 1 ? s->a->experts / s->a->groups : s->a->experts;
	for (u32 e = 0; e < s->a->experts; e++) {
		if (!(s->groups >> e / size & 1))
			continue;
		float k = key(s, e);
		if (count == top && !(k > keys[count - 1]))
			continue;
		u32 at = count < top ? count++ : count - 1;
		for (; at > 0 && k > keys[at - 1]; at--) {
			chosen[at] = chosen[at - 1];
			keys[at] = keys[at - 1];
		}
		chosen[at] = e;
		keys[at] = k;
	}
}

/* The share of chosen[j] among those near it that come behind chosen[0..j). */
static float mixed_weight(const struct scores *s, const u32 *chosen, u32 j)
{
	double m = s->logits[chosen[j]], sum = 0;
	for (u32 e = 0; e < s->a->experts; e++) {
		double x = s->logits[e], size = fabs(x) > m ? fabs(x) : m;
		bool before = false;
		for (u32 i = 0; i < j; i++)
			before |= chosen[i] == e;
		if (!before && m - x <= (double)s->a->mixer * size)
			sum += exp(x - m);
	}
	return (float)(1 / sum);
}

/* Experts (for the time being in `assignments`, their keys in `weights`) and weights of one token. */
static void route_token(const struct kern_moe_route_args *a, u32 t)
{
	struct scores s = scores_of(a, t);
	u32 *chosen = a->assignments + (size_t)t * a->top;
	float *weights = a->weights + (size_t)t * a->top;
	double sum = 0, least = (double)a->sum_least * s.unit;
	select_top(&s, chosen, weights);
	for (u32 j = 0; j < a->top && a->mixer > 0; j++)
		weights[j] = mixed_weight(&s, chosen, j);
	if (a->mixer > 0)
		return;
	for (u32 j = 0; j < a->top; j++)
		sum += score(&s, chosen[j]);
	sum += (double)a->sum_plus * s.unit;
	double whole = !a->normalize ? s.unit : sum < least ? least : sum;
	for (u32 j = 0; j < a->top; j++) {
		const double own = a->expert_scales ? (double)a->expert_scales[chosen[j]] : 1;
		weights[j] = (float)(score(&s, chosen[j]) / whole * (a->scale > 0 ? (double)a->scale : 1) * own);
	}
}

static void route_tokens(void *arg, u32 task, u32 thread)
{
	const struct kern_moe_route_args *a = arg;
	u32 end = kern_min((task + 1) * TOKENS_A_TASK, a->tokens);
	(void)thread;
	for (u32 t = task * TOKENS_A_TASK; t < end; t++)
		route_token(a, t);
}

/* A counting sort by expert that keeps the order of tokens. */
static void number(const struct kern_moe_route_args *a)
{
	u32 count = a->tokens * a->top, *start = a->expert_start;
	memset(start, 0, (a->experts + 1) * sizeof(*start));
	for (u32 i = 0; i < count; i++)
		start[a->assignments[i] + 1]++;
	for (u32 e = 0; e < a->experts; e++)
		start[e + 1] += start[e];
	for (u32 i = 0; i < count; i++) {
		u32 expert = a->assignments[i];
		a->tokens_of[start[expert]] = i / a->top;
		a->assignments[i] = start[expert]++;
	}
	/* Every start has moved to its end, which is the next one's start. */
	memmove(start + 1, start, a->experts * sizeof(*start));
	start[0] = 0;
}

enum err moe_route_ref(struct kern_ctx *ctx, const struct kern_moe_route_args *a)
{
	struct kern_moe_route_args args = *a;
	ASSERT(a->top > 0 && a->top <= a->experts);
	ASSERT(!(a->mixer > 0) ||
	       (!a->bias && !a->expert_scales && !a->sigmoid && a->groups <= 1 && !(a->scale > 0) && !(a->sum_plus > 0) && !(a->sum_least > 0)));
	ASSERT(a->groups <= 1 || (a->groups <= KERN_EXPERT_GROUPS_MAX && a->experts % a->groups == 0 && a->experts >= 2 * a->groups &&
				  a->groups_top > 0 && a->groups_top <= a->groups && a->top <= a->experts / a->groups * a->groups_top));
	kern_parallel(ctx, kern_ceil(a->tokens, TOKENS_A_TASK), route_tokens, &args);
	number(a);
	return ERR_OK;
}
