/* Reference and only variant: bias, penalties and masks on logits. They touch a few ids of a row, so vectors gain
 * nothing; but a set of allowed ids goes over the whole row, and such rows are shared out among the threads. */
#include <math.h>

#include "kernels/kern_priv.h"

static void penalize(const struct kern_logits_row *row, u32 id, u32 times)
{
	float x = row->logits[id];

	x = x > 0 ? x / row->repetition_penalty : x * row->repetition_penalty;
	if (times > 0)
		x -= row->frequency_penalty * (float)times + row->presence_penalty;
	row->logits[id] = x;
}

/* A count is 1 + how often the id was an output. */
static void penalize_history(const struct kern_logits_row *row, u32 vocab)
{
	for (u32 i = 0; i < *row->known; i++) {
		u32 id = row->tokens[i];
		if (id < vocab)
			row->counts[id] += (row->counts[id] == 0) + (i >= row->prompt_count);
	}
	for (u32 i = 0; i < *row->known; i++) {
		u32 id = row->tokens[i];
		if (id >= vocab || row->counts[id] == 0)
			continue;
		penalize(row, id, row->counts[id] - 1);
		row->counts[id] = 0;
	}
}

static void penalize_seen(const struct kern_logits_row *row, u32 vocab)
{
	for (u32 i = 0; i < row->seen_count; i++)
		if (row->seen_ids[i] < vocab)
			penalize(row, row->seen_ids[i], row->seen_outputs[i]);
}

/* A word at a time: most hold no id of the set, some hold all. */
static void keep_allowed(const struct kern_logits_row *row, u32 vocab)
{
	for (u32 first = 0; first < vocab; first += 32) {
		u32 word = row->allowed[first / 32], n = vocab - first < 32 ? vocab - first : 32;
		float *x = row->logits + first;
		if (word == UINT32_MAX)
			continue;
		for (u32 i = 0; i < n; i++)
			x[i] = word >> i & 1 ? x[i] : -INFINITY;
	}
}

static void one_row(void *arg, u32 task, u32 thread)
{
	const struct kern_logits_args *a = arg;
	const struct kern_logits_row *row = &a->rows[task];

	(void)thread;
	for (u32 i = 0; i < row->bias_count; i++)
		if (row->bias_ids[i] < a->vocab)
			row->logits[row->bias_ids[i]] += row->bias_values[i];
	if (row->counts)
		penalize_history(row, a->vocab);
	else
		penalize_seen(row, a->vocab);
	for (u32 i = 0; i < row->masked_count; i++)
		if (row->masked_ids[i] < a->vocab)
			row->logits[row->masked_ids[i]] = -INFINITY;
	if (row->allowed)
		keep_allowed(row, a->vocab);
}

enum err logits_ref(struct kern_ctx *ctx, const struct kern_logits_args *a)
{
	struct kern_logits_args args = *a;
	u32 sets = 0;

	for (u32 r = 0; r < a->row_count; r++)
		sets += a->rows[r].allowed != NULL;
	if (sets > 1) {
		kern_parallel(ctx, a->row_count, one_row, &args);
		return ERR_OK;
	}
	for (u32 r = 0; r < a->row_count; r++)
		one_row(&args, r, 0);
	return ERR_OK;
}
