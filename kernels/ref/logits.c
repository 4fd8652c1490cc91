/* Reference and only variant: bias, penalties and masks on logits. They touch a few ids of a row, so vectors
 * gain nothing. */
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

enum err logits_ref(struct kern_ctx *ctx, const struct kern_logits_args *a)
{
	(void)ctx;
	for (u32 r = 0; r < a->row_count; r++) {
		const struct kern_logits_row *row = &a->rows[r];
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
	}
	return ERR_OK;
}
