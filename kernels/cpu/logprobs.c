/* Log probabilities for AVX2 and AVX-512 (one object each): sums of exponentials by vectors, and for the best
 * ids only chunks that hold a candidate are looked into. */
#include <math.h>

#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { CHUNK = 256 };

static bool better(const float *logits, u32 a, u32 b)
{
	return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static float highest(const float *logits, u32 count)
{
	vec best = vec_set1(-INFINITY);
	for (u32 i = 0; i < count; i += VEC_LANES) {
		u32 n = kern_min(count - i, VEC_LANES);
		best = vec_max(vec_select_n(vec_load_n(logits + i, n), best, n), best);
	}
	return vec_highest(best);
}

static double sum_exp(const float *logits, u32 count, float best)
{
	vec sum = vec_zero();
	for (u32 i = 0; i < count; i += VEC_LANES) {
		u32 n = kern_min(count - i, VEC_LANES);
		vec e = vec_exp(vec_sub(vec_load_n(logits + i, n), vec_set1(best)));
		sum = vec_add(sum, vec_select_n(e, vec_zero(), n));
	}
	return (double)vec_sum(sum);
}

static double log_sum_exp(const float *logits, u32 vocab)
{
	float best = -INFINITY;
	double sum = 0;
	for (u32 i = 0; i < vocab; i += CHUNK) {
		float here = highest(logits + i, kern_min(vocab - i, CHUNK));
		best = here > best ? here : best;
	}
	if (isinf(best))
		return best;
	for (u32 i = 0; i < vocab; i += CHUNK)
		sum += sum_exp(logits + i, kern_min(vocab - i, CHUNK), best);
	return best + log(sum);
}

static u32 rank_of(const float *logits, u32 vocab, u32 token)
{
	float x = logits[token];
	u32 rank = 1;
	for (u32 id = 0; id < token; id++)
		rank += logits[id] >= x;
	for (u32 id = token + 1; id < vocab; id++)
		rank += logits[id] > x;
	return rank;
}

/* The `top` best ids in order, by insertion. */
static void select_top(const float *logits, u32 vocab, u32 top, u32 *ids)
{
	u32 count = 0;
	for (u32 first = 0; first < vocab && top > 0; first += CHUNK) {
		u32 end = kern_min(first + CHUNK, vocab);
		/* Later ids lose ties, so only a larger logit gets in. */
		if (count == top && !(highest(logits + first, end - first) > logits[ids[count - 1]]))
			continue;
		for (u32 id = first; id < end; id++) {
			if (count == top && !better(logits, id, ids[count - 1]))
				continue;
			u32 at = count < top ? count++ : count - 1;
			for (; at > 0 && better(logits, id, ids[at - 1]); at--)
				ids[at] = ids[at - 1];
			ids[at] = id;
		}
	}
}

static void one_row(void *arg, u32 task, u32 thread)
{
	const struct kern_logprobs_args *a = arg;
	const struct kern_logprobs_row *row = &a->rows[task];
	double norm = log_sum_exp(row->logits, a->vocab);
	u32 top = kern_min(row->top, a->vocab);
	(void)thread;
	ASSERT(row->token < a->vocab);
	*row->rank = rank_of(row->logits, a->vocab, row->token);
	row->ids[0] = row->token;
	select_top(row->logits, a->vocab, top, row->ids + 1);
	for (u32 i = 0; i <= top; i++)
		row->values[i] = (float)(row->logits[row->ids[i]] - norm);
}

enum err VARIANT(logprobs)(struct kern_ctx *ctx, const struct kern_logprobs_args *a)
{
	struct kern_logprobs_args args = *a;
	kern_parallel(ctx, a->row_count, one_row, &args);
	return ERR_OK;
}
