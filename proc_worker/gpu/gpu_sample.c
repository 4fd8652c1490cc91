/* From logits to tokens on a device: the second half of a step. What sampler.c does on the CPU, in the same
 * order and with the same arithmetic, so that equal logits give equal tokens. Runs in the worker in every
 * step; queues, never allocates. */
#include "common/assert.h"
#include "ipc/ipc.h"
#include "proc_worker/gpu/gpu_priv.h"

/* No group but the last has fewer rows than places for unchanged logits or for counts. */
enum { GROUP_ROWS_MIN = GPU_RAW_ROWS < GPU_COUNTED_ROWS ? GPU_RAW_ROWS : GPU_COUNTED_ROWS,
       GROUPS_MAX = (IPC_ROWS_MAX + GROUP_ROWS_MIN - 1) / GROUP_ROWS_MIN };

/* Rows that sample together: as many as there are such places. */
struct group {
	u32 first, end; /* of the rows that sample */
	u32 logits, logits_count;
	u32 logprobs, logprobs_count;
	u32 raw[GPU_RAW_ROWS], raw_count; /* rows whose logits are kept */
	u32 counted;			  /* rows whose tokens are counted, for their penalties */
};

struct sampling {
	struct gpu *g;
	const struct batch_state *b;
	const u32 *const *allowed; /* NULL: no row has a mask */
	struct gpu_slot *slot;
	struct kern_logits_row *logits; /* in the stage */
	struct kern_logprobs_row *logprobs;
	u32 logits_count, logprobs_count;
	struct group groups[GROUPS_MAX];
	u32 group_count;
};

static bool has_penalties(const struct sampling_params *p)
{
	return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static u32 position_of(const struct batch_state *b, u32 row)
{
	return b->known[row] - b->rows[row].prompt_count;
}

static bool changes(const struct batch_state *b, u32 row)
{
	const struct batch_row *r = &b->rows[row];

	return r->bias_count || has_penalties(&r->params) || position_of(b, row) < r->params.min_tokens;
}

static bool wants_prompt_logprobs(const struct batch_state *b, u32 row)
{
	return b->rows[row].params.prompt_logprobs >= 0 && b->computed[row] + 1 < b->rows[row].prompt_count;
}

bool gpu_samples_plainly(const struct batch_state *b)
{
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i];
		if (changes(b, row) || b->rows[row].grammar_kind || sampling_listed(&b->rows[row].params) >= 0)
			return false;
	}
	return true;
}

/* ---------------------------------------------------------------- kernels */

enum err gpu_queue_sampling(struct gpu *g, u32 first, u32 count, struct err_msg *em)
{
	struct kern_sample_args a = {.rows = g->arena.sample + first,
				     .tokens = g->arena.sampled + first,
				     .row_count = count,
				     .vocab = g->config.model->vocab_size};

	return count ? gpu_op(g->ops.sample(&g->ctx, &a), "sample", em) : ERR_OK;
}

enum err gpu_queue_commit(struct gpu *g, struct err_msg *em)
{
	struct kern_commit_args a = {.batch = &g->arena.batch,
				     .sampled = g->arena.sampled,
				     .sample_rows = g->arena.sample_rows,
				     .counts = g->arena.counts};

	return gpu_op(g->device_ops.commit(&g->ctx, &a), "commit", em);
}

/* ---------------------------------------------------------------- one row */

static u32 masked_count(const struct gpu *g, const struct batch_state *b, u32 row)
{
	const struct batch_row *r = &b->rows[row];

	if (position_of(b, row) >= r->params.min_tokens)
		return 0;
	return r->stop_count + (r->params.flags & SAMPLING_IGNORE_EOS ? 0 : g->config.model->eos_count);
}

/* The row's tokens lie on the device, those of earlier steps that nobody has seen yet among them. */
static void fill_history(struct sampling *s, struct group *group, u32 row, struct kern_logits_row *out)
{
	const struct gpu_arena *a = &s->g->arena;

	out->tokens = a->batch.tokens + (size_t)row * a->batch.token_stride;
	out->known = a->batch.known + row;
	out->prompt_count = s->b->rows[row].prompt_count;
	out->counts = a->token_counts + (size_t)group->counted++ * s->g->config.model->vocab_size;
}

static const u32 *mask_of(const struct sampling *s, u32 i)
{
	u32 words = (s->g->config.model->vocab_size + 31) / 32;

	return s->allowed && s->allowed[i] ? s->g->arena.allowed + (size_t)i * words : NULL;
}

static void fill_logits_row(struct sampling *s, struct group *group, u32 i, u32 row, float *logits)
{
	struct gpu *g = s->g;
	const u32 *allowed = mask_of(s, i);
	const struct batch_row *r = &s->b->rows[row];
	struct kern_logits_row *out = &s->logits[s->logits_count++];

	*out = (struct kern_logits_row){.logits = logits,
					.repetition_penalty = r->params.repetition_penalty,
					.presence_penalty = r->params.presence_penalty,
					.frequency_penalty = r->params.frequency_penalty,
					.bias_ids = g->arena.bias_ids + (size_t)row * BIAS_MAX,
					.bias_values = g->arena.bias_values + (size_t)row * BIAS_MAX,
					.bias_count = r->bias_count,
					.masked_ids = g->arena.masked + (size_t)row * GPU_MASKED_MAX,
					/* a grammar's set looks after ends itself */
					.masked_count = allowed ? 0 : masked_count(g, s->b, row),
					.allowed = allowed};
	if (has_penalties(&r->params))
		fill_history(s, group, row, out);
}

/* Results go straight into the slot. */
static void fill_logprobs_row(struct sampling *s, u32 i, u32 row, const float *logits)
{
	struct gpu_slot *slot = s->slot;
	u32 vocab = s->g->config.model->vocab_size, wanted = (u32)sampling_listed(&s->b->rows[row].params);
	u32 top = wanted < vocab ? wanted : vocab;

	s->logprobs[s->logprobs_count++] =
		(struct kern_logprobs_row){.logits = logits,
					   .top = top,
					   .ids = slot->lp_ids + slot->lp_id_count,
					   .values = slot->lp_values + slot->lp_id_count,
					   .rank = slot->lp_rank + slot->lp_entries,
					   .sampled = s->g->arena.sampled + i};
	slot->lp_entry[slot->lp_entries] = i;
	slot->lp_count[slot->lp_entries++] = top + 1;
	slot->lp_id_count += top + 1;
}

/* ---------------------------------------------------------------- groups */

static void fill_group(struct sampling *s, u32 first)
{
	ASSERT(s->group_count < GROUPS_MAX);
	struct group *group = &s->groups[s->group_count++];
	const struct gpu_arena *a = &s->g->arena;
	size_t vocab = s->g->config.model->vocab_size;
	u32 i = first;

	*group = (struct group){.first = first, .logits = s->logits_count, .logprobs = s->logprobs_count};
	for (; i < s->b->sample_count && group->raw_count < GPU_RAW_ROWS && group->counted < GPU_COUNTED_ROWS; i++) {
		u32 row = s->b->sample_rows[i];
		float *own = a->logits + i * vocab;
		const float *unchanged = own;
		bool changed = changes(s->b, row) || mask_of(s, i);
		if (changed)
			fill_logits_row(s, group, i, row, own);
		if (sampling_listed(&s->b->rows[row].params) < 0)
			continue;
		if (changed && !s->b->rows[row].params.beam_width) { /* beams are chosen by what the changes have made of it */
			unchanged = a->raw + group->raw_count * vocab;
			group->raw[group->raw_count++] = i;
		}
		fill_logprobs_row(s, i, row, unchanged);
	}
	group->end = i;
	group->logits_count = s->logits_count - group->logits;
	group->logprobs_count = s->logprobs_count - group->logprobs;
}

static enum err keep_raw(struct gpu *g, const struct group *group, struct err_msg *em)
{
	size_t vocab = g->config.model->vocab_size;
	enum err e = ERR_OK;

	for (u32 k = 0; !e && k < group->raw_count; k++)
		e = g->api->copy(g->ctx.stream, g->arena.raw + k * vocab,
				 g->arena.logits + group->raw[k] * vocab, vocab * sizeof(float),
				 KERN_COPY_DEVICE, em);
	return e;
}

static enum err run_group(struct gpu *g, const struct group *group, const struct kern_logits_row *logits_rows,
			  const struct kern_logprobs_row *logprobs_rows, struct err_msg *em)
{
	u32 vocab = g->config.model->vocab_size;
	struct kern_logits_args logits = {
		.rows = logits_rows + group->logits, .row_count = group->logits_count, .vocab = vocab};
	struct kern_logprobs_args logprobs = {
		.rows = logprobs_rows + group->logprobs, .row_count = group->logprobs_count, .vocab = vocab};

	enum err e = keep_raw(g, group, em);
	if (!e && logits.row_count)
		e = gpu_op(g->ops.logits(&g->ctx, &logits), "logits", em);
	if (!e)
		e = gpu_queue_sampling(g, group->first, group->end - group->first, em);
	if (!e && logprobs.row_count)
		e = gpu_op(g->ops.logprobs(&g->ctx, &logprobs), "logprobs", em);
	return e;
}

enum err gpu_sample_rows(struct gpu *g, const struct batch_state *b, const u32 *const *allowed,
			 struct gpu_slot *slot, struct err_msg *em)
{
	size_t rows_bytes = b->sample_count * sizeof(struct kern_logits_row);
	struct sampling s = {.g = g, .b = b, .allowed = allowed, .slot = slot};
	struct gpu_stage *stage;

	enum err e = gpu_stage_take(g, &stage, em);
	if (e)
		return e;
	s.logits = (struct kern_logits_row *)(void *)stage->memory;
	s.logprobs = (struct kern_logprobs_row *)(void *)(stage->memory + rows_bytes);
	for (u32 at = 0; at < b->sample_count; at = s.groups[s.group_count - 1].end)
		fill_group(&s, at);
	size_t bytes = rows_bytes + s.logprobs_count * sizeof(*s.logprobs);
	e = gpu_stage_copy(g, stage, g->arena.upload, 0, bytes, em);
	if (!e)
		e = gpu_stage_sent(g, stage, em);
	const u8 *there = g->arena.upload;
	for (u32 i = 0; !e && i < s.group_count; i++)
		e = run_group(g, &s.groups[i], (const struct kern_logits_row *)(const void *)there,
			      (const struct kern_logprobs_row *)(const void *)(there + rows_bytes), em);
	return e;
}

/* ---------------------------------------------------------------- log-probabilities of the prompt */

/* Every position of a prompt chunk predicts the token behind it. */
static void fill_prompt_row(struct gpu *g, const struct batch_state *b, struct gpu_slot *slot, u32 row,
			    u32 position, struct kern_logprobs_row *out)
{
	const struct batch_row *r = &b->rows[row];
	u32 vocab = g->config.model->vocab_size, at = slot->plp_entries++;
	u32 top = (u32)r->params.prompt_logprobs < vocab ? (u32)r->params.prompt_logprobs : vocab;

	*out = (struct kern_logprobs_row){.logits = g->arena.logits + (size_t)(at % g->samples_max) * vocab,
					  .token = batch_state_tokens(b, row)[position + 1],
					  .top = top,
					  .ids = slot->plp_ids + slot->plp_id_count,
					  .values = slot->plp_values + slot->plp_id_count,
					  .rank = slot->plp_rank + at};
	slot->plp_seq[at] = r->seq;
	slot->plp_position[at] = position + 1;
	slot->plp_count[at] = top + 1;
	slot->plp_id_count += top + 1;
}

static void list_prompt_rows(struct gpu *g, const struct batch_state *b, struct gpu_slot *slot, u32 *tokens,
			     struct kern_logprobs_row *rows)
{
	u32 begin = 0;

	for (u32 i = 0; i < b->run_row_count; begin += b->run[b->run_rows[i++]]) {
		u32 row = b->run_rows[i];
		if (!wants_prompt_logprobs(b, row))
			continue;
		for (u32 j = 0; j < b->run[row]; j++) {
			u32 position = b->computed[row] + j, at = slot->plp_entries;
			if (position + 1 >= b->rows[row].prompt_count)
				break;
			tokens[at] = begin + j;
			fill_prompt_row(g, b, slot, row, position, &rows[at]);
		}
	}
}

enum err gpu_prompt_logprobs(struct gpu *g, const struct batch_state *b, struct gpu_slot *slot,
			     struct err_msg *em)
{
	size_t rows_at = (b->tokens_run * sizeof(u32) + 15) / 16 * 16;
	struct gpu_stage *stage;
	bool wanted = false;

	for (u32 i = 0; i < b->run_row_count && !wanted; i++)
		wanted = wants_prompt_logprobs(b, b->run_rows[i]);
	if (!wanted)
		return ERR_OK;
	enum err e = gpu_stage_take(g, &stage, em);
	if (e)
		return e;
	list_prompt_rows(g, b, slot, (u32 *)(void *)stage->memory,
			 (struct kern_logprobs_row *)(void *)(stage->memory + rows_at));
	e = gpu_stage_copy(g, stage, g->arena.upload, 0,
			   rows_at + slot->plp_entries * sizeof(struct kern_logprobs_row), em);
	if (!e)
		e = gpu_stage_sent(g, stage, em);
	const u32 *tokens = (const u32 *)(const void *)g->arena.upload;
	const u8 *rows = g->arena.upload + rows_at;
	for (u32 at = 0, n; !e && at < slot->plp_entries; at += n) {
		n = slot->plp_entries - at < g->samples_max ? slot->plp_entries - at : g->samples_max;
		struct kern_logprobs_args a = {.rows = (const struct kern_logprobs_row *)(const void *)rows +
						       at,
					       .row_count = n,
					       .vocab = g->config.model->vocab_size};
		e = gpu_logits(g, tokens + at, n, b->tokens_run, em);
		if (!e)
			e = gpu_op(g->ops.logprobs(&g->ctx, &a), "logprobs", em);
	}
	return e;
}
