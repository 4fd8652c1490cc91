/* Embeddings of prompts: the hidden state behind the final norm of a prompt's last token, which the step's samples have made.
 * Runs in the worker within a step. */
#include "proc_worker/runner.h"

static void add_embedding(struct runner *r, u32 sample, const struct batch_row *row)
{
	struct runner_columns *c = &r->columns;
	const f32 *x = r->decoder.picked_normed + (size_t)sample * r->model.hidden;
	u32 hidden = r->model.hidden, at = c->plp_entries++;
	f32 scale = r->model.logits_scale != 0 ? 1 / r->model.logits_scale : 1; /* which the final norm's weights have (weights_read.c) */

	c->plp_seq[at] = row->seq;
	c->plp_position[at] = row->prompt_count;
	c->plp_count[at] = hidden;
	c->plp_rank[at] = 0;
	for (u32 i = 0; i < hidden; i++) {
		c->plp_ids[c->plp_id_count + i] = i;
		c->plp_values[c->plp_id_count + i] = x[i] * scale;
	}
	c->plp_id_count += hidden;
}

void runner_embeddings(struct runner *r)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0; i < b->sample_count; i++) {
		const struct batch_row *row = &b->rows[b->sample_rows[i]];
		if ((row->params.flags & SAMPLING_EMBEDDING) && batch_state_sample_index(b, i) == row->prompt_count)
			add_embedding(r, i, row);
	}
}
