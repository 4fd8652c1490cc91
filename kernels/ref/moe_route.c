/* Reference and only variant: routing of a mixture of experts. A few hundred exponentials a token are nothing
 * beside its products. */
#include <math.h>

#include "kernels/kern_priv.h"

enum { TOKENS_A_TASK = 16 };

/* `top` experts with the largest logits, in order, by insertion; ties to the lowest. */
static void select_top(const float *logits, u32 experts, u32 top, u32 *chosen)
{
	u32 count = 0;
	for (u32 e = 0; e < experts; e++) {
		if (count == top && !(logits[e] > logits[chosen[count - 1]]))
			continue;
		u32 at = count < top ? count++ : count - 1;
		for (; at > 0 && logits[e] > logits[chosen[at - 1]]; at--)
			chosen[at] = chosen[at - 1];
		chosen[at] = e;
	}
}

/* Experts (for the time being in `assignments`) and weights of one token. */
static void route_token(const struct kern_moe_route_args *a, u32 t)
{
	const float *logits = a->logits + (size_t)t * a->experts;
	u32 *chosen = a->assignments + (size_t)t * a->top;
	float *weights = a->weights + (size_t)t * a->top;
	double all = 0, sum = 0;
	select_top(logits, a->experts, a->top, chosen);
	double best = logits[chosen[0]];
	for (u32 e = 0; e < a->experts && !a->normalize; e++)
		all += exp(logits[e] - best);
	for (u32 j = 0; j < a->top; j++)
		sum += exp(logits[chosen[j]] - best);
	for (u32 j = 0; j < a->top; j++)
		weights[j] = (float)(exp(logits[chosen[j]] - best) / (a->normalize ? sum : all));
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
	kern_parallel(ctx, kern_ceil(a->tokens, TOKENS_A_TASK), route_tokens, &args);
	number(a);
	return ERR_OK;
}
