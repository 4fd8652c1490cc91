/* Reference: log probabilities of a token and of the best. */
#include <math.h>

#include "kernels/kern_priv.h"

static bool better(const float *logits, u32 a, u32 b)
{
	return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* The `top` best ids in order into ids[0..top), by insertion: `top` is at most a few dozen. */
static void select_top(const float *logits, u32 vocab, u32 top, u32 *ids)
{
	u32 count = 0;
	for (u32 id = 0; id < vocab && top > 0; id++) {
		if (count == top && !better(logits, id, ids[count - 1]))
			continue;
		u32 at = count < top ? count++ : count - 1;
		for (; at > 0 && better(logits, id, ids[at - 1]); at--)
			ids[at] = ids[at - 1];
		ids[at] = id;
	}
}

static double log_sum_exp(const float *logits, u32 vocab)
{
	double best = -INFINITY, sum = 0;
	for (u32 i = 0; i < vocab; i++)
		if (logits[i] > best)
			best = logits[i];
	if (isinf(best))
		return best;
	for (u32 i = 0; i < vocab; i++)
		sum += exp(logits[i] - best);
	return best + log(sum);
}

static void one_row(void *arg, u32 task, u32 thread)
{
	const struct kern_logprobs_args *a = arg;
	const struct kern_logprobs_row *row = &a->rows[task];
	double norm = log_sum_exp(row->logits, a->vocab);
	u32 top = kern_min(row->top, a->vocab), rank = 1;
	(void)thread;
	ASSERT(row->token < a->vocab);
	for (u32 id = 0; id < a->vocab; id++)
		rank += id != row->token && better(row->logits, id, row->token);
	*row->rank = rank;
	row->ids[0] = row->token;
	select_top(row->logits, a->vocab, top, row->ids + 1);
	for (u32 i = 0; i <= top; i++)
		row->values[i] = (float)(row->logits[row->ids[i]] - norm);
}

enum err logprobs_ref(struct kern_ctx *ctx, const struct kern_logprobs_args *a)
{
	struct kern_logprobs_args args = *a;
	kern_parallel(ctx, a->row_count, one_row, &args);
	return ERR_OK;
}
