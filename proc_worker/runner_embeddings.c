/* Embeddings of prompts: the hidden state behind the final norm of a prompt's last token, which the step's samples have made, as
 * one more element of its log-probabilities. Runs in the worker, within a step on the CPU and where a device's step is collected. */
#include <string.h>

#include "kernels/weight.h"
#include "proc_worker/runner_device.h"

/* Room for the values of one more, which the caller fills. */
static f32 *add_embedding(struct runner *r, u64 seq, u32 prompt_count)
{
	struct runner_columns *c = &r->columns;
	u32 hidden = r->model.hidden, at = c->plp_entries++;
	f32 *values = c->plp_values + c->plp_id_count;

	c->plp_seq[at] = seq;
	c->plp_position[at] = prompt_count;
	c->plp_count[at] = hidden;
	c->plp_rank[at] = 0;
	for (u32 i = 0; i < hidden; i++)
		c->plp_ids[c->plp_id_count + i] = i;
	c->plp_id_count += hidden;
	return values;
}

/* The final norm's weights have what logits are divided by (weights_read.c). */
static f32 scale_of(const struct runner *r)
{
	return r->model.logits_scale != 0 ? 1 / r->model.logits_scale : 1;
}

void runner_embeddings(struct runner *r)
{
	const struct batch_state *b = r->batch;
	f32 scale = scale_of(r);

	for (u32 i = 0; i < b->sample_count; i++) {
		const struct batch_row *row = &b->rows[b->sample_rows[i]];
		if (!(row->params.flags & SAMPLING_EMBEDDING) || batch_state_sample_index(b, i) != row->prompt_count)
			continue;
		const f32 *x = r->decoder.picked_normed + (size_t)i * r->model.hidden;
		f32 *values = add_embedding(r, row->seq, row->prompt_count);
		for (u32 j = 0; j < r->model.hidden; j++)
			values[j] = x[j] * scale;
	}
}

/* ---------------------------------------------------------------- of devices */

static void take_prompt_logprobs(struct runner_columns *c, const struct gpu_result *g)
{
	size_t entries = g->plp_entries, ids = g->plp_id_count;

	memcpy(c->plp_seq, g->plp_seq, entries * sizeof(u64));
	memcpy(c->plp_position, g->plp_position, entries * sizeof(u32));
	memcpy(c->plp_count, g->plp_count, entries * sizeof(u32));
	memcpy(c->plp_rank, g->plp_rank, entries * sizeof(u32));
	memcpy(c->plp_ids, g->plp_ids, ids * sizeof(u32));
	memcpy(c->plp_values, g->plp_values, ids * sizeof(f32));
	c->plp_entries = g->plp_entries;
	c->plp_id_count = g->plp_id_count;
}

void runner_device_embeddings(struct runner *r, const struct runner_flight *f, const struct gpu_result *g)
{
	struct runner_columns *c = &r->columns;
	struct ipc_result *out = &r->result;
	f32 scale = scale_of(r);

	take_prompt_logprobs(c, g);
	for (u32 i = 0; i < g->embedding_count; i++) {
		f32 *values = add_embedding(r, f->seq[g->embedded[i]], f->index[g->embedded[i]]);
		kern_convert(values, KERN_F32, g->embeddings + (size_t)i * r->model.hidden, KERN_BF16, r->model.hidden);
		for (u32 j = 0; j < r->model.hidden; j++)
			values[j] *= scale;
	}
#define COLUMN(name, array, count)    \
	out->name = c->array;         \
	out->name##_count = c->count;
	RUNNER_PROMPT_LOGPROB_COLUMNS(COLUMN)
#undef COLUMN
}
