/* Log-probabilities of prompt tokens: every position of a prompt chunk predicts the token behind it. Runs in
 * the worker within a step, in portions that fit the logits buffer. */
#include "proc_worker/runner.h"

/* The next position whose successor in the prompt is asked for. */
struct cursor {
	u32 i;	  /* of the step's rows */
	u32 done; /* of the row's tokens of this step */
};

struct portion {
	u32 count;
	u32 *token; /* [logit_rows_max] of the step */
	struct kern_logprobs_row *rows;
};

static bool row_asks(const struct batch_state *b, u32 row)
{
	return b->rows[row].params.prompt_logprobs >= 0 && b->computed[row] + 1 < b->rows[row].prompt_count;
}

bool runner_prompt_logprobs_wanted(const struct batch_state *b)
{
	for (u32 i = 0; i < b->run_row_count; i++)
		if (row_asks(b, b->run_rows[i]))
			return true;
	return false;
}

static void add_position(struct runner *r, struct portion *p, u32 row, u32 token, u32 position)
{
	const struct batch_row *br = &r->batch->rows[row];
	struct runner_columns *c = &r->columns;
	u32 vocab = r->model.vocab_size;
	u32 top = (u32)br->params.prompt_logprobs < vocab ? (u32)br->params.prompt_logprobs : vocab;
	u32 at = c->plp_entries++;

	c->plp_seq[at] = br->seq;
	c->plp_position[at] = position + 1;
	c->plp_count[at] = top + 1;
	p->token[p->count] = token;
	p->rows[p->count] =
		(struct kern_logprobs_row){.token = batch_state_tokens(r->batch, row)[position + 1],
					   .top = top,
					   .ids = c->plp_ids + c->plp_id_count,
					   .values = c->plp_values + c->plp_id_count,
					   .rank = c->plp_rank + at};
	c->plp_id_count += top + 1;
	p->count++;
}

/* Collects positions until the portion is full; false when there are no more. */
static bool collect(struct runner *r, struct cursor *at, struct portion *p)
{
	const struct batch_state *b = r->batch;

	p->count = 0;
	for (; at->i < b->run_row_count; at->i++, at->done = 0) {
		u32 row = b->run_rows[at->i];
		if (!row_asks(b, row))
			continue;
		for (; at->done < b->run[row]; at->done++) {
			u32 position = b->computed[row] + at->done;
			if (position + 1 >= b->rows[row].prompt_count)
				break;
			if (p->count == r->decoder.config.logit_rows_max)
				return true;
			add_position(r, p, row, r->inputs.query_start[at->i] + at->done, position);
		}
	}
	return p->count > 0;
}

enum err runner_prompt_logprobs(struct runner *r, struct err_msg *em)
{
	struct cursor at = {0};
	struct portion p = {.token = r->columns.portion_token, .rows = r->columns.portion_rows};
	u32 vocab = r->model.vocab_size;
	float *logits;

	while (collect(r, &at, &p)) {
		enum err e = decoder_logits(&r->decoder, p.token, p.count, &logits, em);
		if (e)
			return e;
		if (r->config.rank != 0)
			continue;
		for (u32 i = 0; i < p.count; i++)
			p.rows[i].logits = logits + (size_t)i * vocab;
		struct kern_logprobs_args a = {.rows = p.rows, .row_count = p.count, .vocab = vocab};
		e = r->ops.logprobs(&r->ctx, &a);
		if (e)
			return err_set(em, e, "log-probabilities of the prompt: %s", err_text(e));
	}
	return ERR_OK;
}
