/* One step on the CPU: apply, inputs, forward, logits of the rows that sample, sampling, RESULT; steps on a device are
 * handed to runner_device.c. Runs in the worker; owns nothing that runner_load.c did not make; never allocates. */
#include "proc_worker/runner_device.h"

#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/finish.h"

enum err runner_begin(struct runner *r, u64 epoch, u32 block_count, u32 max_model_len, struct err_msg *em)
{
	if (r->device)
		return runner_device_begin(r, epoch, block_count, max_model_len, em);
	r->in_flight = 0;
	enum err e = batch_state_reset(r->batch, block_count, max_model_len, em);

	if (!e && r->collectives)
		e = collectives_begin(r->collectives, epoch, em);
	return e;
}

static enum err copy_blocks(struct runner *r, struct err_msg *em)
{
	struct kern_block_copy_args a = {.layers = r->kv.layers,
					 .layer_count = r->kv.own_count,
					 .src = r->batch->copy_src,
					 .dst = r->batch->copy_dst,
					 .count = r->batch->copy_count};
	enum err e = a.count ? r->ops.block_copy(&r->ctx, &a) : ERR_OK;

	return e ? err_set(em, e, "copying KV blocks: %s", err_text(e)) : ERR_OK;
}

/* Rank 0 draws, the others learn: two ranks can never disagree about a token. */
static enum err share_tokens(struct runner *r, struct err_msg *em)
{
	size_t bytes = r->batch->sample_count * sizeof(u32);
	const void *parts[COLLECTIVES_RANKS_MAX];

	if (!r->collectives || bytes == 0)
		return ERR_OK;
	if (r->config.rank == 0)
		memcpy(collectives_buffer(r->collectives), r->sampled, bytes);
	enum err e = collectives_all_gather(r->collectives, r->config.rank == 0 ? bytes : 0, parts, em);
	if (!e && r->config.rank != 0)
		memcpy(r->sampled, parts[0], bytes);
	return e;
}

static enum err sample(struct runner *r, struct err_msg *em)
{
	struct batch_state *b = r->batch;
	float *logits = NULL;

	enum err e = decoder_logits(&r->decoder, r->inputs.sample_index, b->sample_count, &logits, em);
	if (!e && r->config.rank == 0)
		runner_embeddings(r);
	if (!e && r->constraints)
		r->constrained = constraints_finish(r->constraints);
	if (!e && r->config.rank == 0)
		e = sampler_run(r->sampler, &r->ops, &r->ctx, b, r->constrained ? r->constrained->allowed : NULL, logits,
				r->sampled, &r->columns.lp, em);
	if (!e)
		runner_forget_unguided(r);
	if (!e)
		e = share_tokens(r, em);
	return e;
}

static void fill_result(struct runner *r)
{
	const struct batch_state *b = r->batch;
	struct runner_columns *c = &r->columns;
	struct ipc_result *out = &r->result;
	u32 n = b->sample_count, beams = 0;

	for (u32 i = 0; i < n; i++) {
		u32 row = b->sample_rows[i];
		c->seq[i] = b->rows[row].seq;
		c->position[i] = batch_state_sample_index(b, i) - b->rows[row].prompt_count;
		if (b->rows[row].params.beam_width)
			c->beam_entry[beams++] = i;
	}
	out->seq = c->seq;
	out->position = c->position;
	out->token = r->sampled;
	out->seq_count = out->position_count = out->token_count = n;
	out->beam_entry = c->beam_entry;
	out->beam_entry_count = beams;
#define COLUMN(name, array, count)  \
	out->name = c->array;       \
	out->name##_count = c->count;
	RUNNER_LOGPROB_COLUMNS(COLUMN)
#undef COLUMN
}

bool runner_ends(void *ctx, u32 row, u32 output, u32 token)
{
	const struct runner *r = ctx;
	const struct batch_state *b = r->batch;
	const struct batch_row *br = &b->rows[row];
	u32 room = b->limits.max_model_len - br->prompt_count;
	struct finish_rule rule = {.output_max = br->params.max_tokens < room ? br->params.max_tokens : room,
				   .output_min = br->params.min_tokens,
				   .ignore_eos = br->params.flags & SAMPLING_IGNORE_EOS,
				   .eos_ids = r->model.eos_ids,
				   .eos_count = r->model.eos_count,
				   .stop_ids = b->stop_ids + (size_t)row * STOP_IDS_MAX,
				   .stop_count = br->stop_count};

	if (br->params.beam_width) /* the scheduler decides it, and by other tokens */
		return false;
	return finish_check(&rule, output, token).reason != FINISH_NONE;
}

void runner_mark_finished(struct runner *r, u32 row, u32 output, u32 token)
{
	if (runner_ends(r, row, output, token))
		r->finished[row] = r->batch->rows[row].incarnation;
}

static void mark_finished(struct runner *r)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i];
		runner_mark_finished(r, row, batch_state_sample_index(b, i) - b->rows[row].prompt_count + 1, r->sampled[i]);
	}
}

bool runner_is_live(const struct runner *r)
{
	const struct batch_state *b = r->batch;

	for (u32 i = 0; i < b->run_row_count; i++)
		if (r->finished[b->run_rows[i]] != b->rows[b->run_rows[i]].incarnation)
			return true;
	return false;
}

static void count_step(struct runner *r)
{
	r->counts.rows = r->batch->row_count;
	r->counts.run_rows = r->inputs.rows;
	r->counts.tokens = r->inputs.tokens;
	r->counts.samples = r->batch->sample_count;
}

static enum err compute(struct runner *r, const struct ipc_step *step, struct err_msg *em)
{
	struct batch_state *b = r->batch;

	r->times.begin = clock_now_ns();
	r->columns.lp.entries = r->columns.lp.id_count = 0;
	r->columns.plp_entries = r->columns.plp_id_count = 0;
	r->constrained = NULL;
	r->counts = (struct runner_counts){0};
	enum err e = batch_state_apply(b, step, em);
	r->times.applied = clock_now_ns();
	if (e)
		return e;
	runner_draft(r);
	inputs_build(&r->inputs, b);
	if (r->constraints)
		constraints_begin(r->constraints, b);
	r->times.built = clock_now_ns();
	e = copy_blocks(r, em);
	runner_copy_states(r);
	r->inputs.last_only = !r->keeps_tokens && b->draft_count == 0 && !runner_prompt_logprobs_wanted(b);
	if (!e && b->run_row_count)
		e = decoder_forward(&r->decoder, &r->inputs, r->kv.layers, em);
	r->times.forwarded = clock_now_ns();
	if (!e)
		e = runner_prompt_logprobs(r, em);
	if (!e)
		e = sample(r, em);
	if (!e)
		runner_accept(r);
	r->times.sampled = r->times.collected = clock_now_ns();
	if (e) {
		if (r->constraints)
			(void)constraints_finish(r->constraints);
		b->broken = true;
		b->applied = false;
	}
	return e;
}

enum err runner_submit(struct runner *r, const struct ipc_step *step, struct err_msg *em)
{
	if (r->device)
		return runner_device_submit(r, step, em);
	ASSERT(r->in_flight == 0);
	if (r->collectives)
		collectives_step(r->collectives);
	enum err e = compute(r, step, em);
	if (e)
		return e;
	r->result = (struct ipc_result){.step = r->batch->step};
	if (r->config.rank == 0)
		fill_result(r);
	mark_finished(r);
	count_step(r);
	batch_state_commit(r->batch, r->sampled);
	r->in_flight = 1;
	return ERR_OK;
}

enum err runner_collect(struct runner *r, struct err_msg *em)
{
	if (r->device)
		return runner_device_collect(r, em);
	if (r->in_flight == 0)
		return ERR_AGAIN;
	r->in_flight = 0;
	return ERR_OK;
}

int runner_fd(const struct runner *r)
{
	return r->device ? r->device->fd : -1;
}

enum err runner_wait(struct runner *r, struct err_msg *em)
{
	if (r->device)
		return runner_device_wait(r, em);
	return r->in_flight ? ERR_OK : ERR_AGAIN;
}

enum err runner_look(struct runner *r, struct err_msg *em)
{
	return r->device ? runner_device_look(r, em) : ERR_OK;
}

const char *runner_device_kind(const struct runner *r)
{
	return r->device ? "cuda" : "cpu";
}

const char *runner_device_name(const struct runner *r)
{
	return r->device ? r->device->device.info.name : "";
}
