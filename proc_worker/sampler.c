/* Owns what sampling remembers between steps: which tokens each row with penalties has seen. Runs in rank 0
 * of the workers. Never changes the batch, never draws a random number that is not keyed by (seed, position).
 */
#include "proc_worker/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"

enum {
	MASKED_MAX = EOS_IDS_MAX + STOP_IDS_MAX,
	RAW_ROWS = 8, /* rows of a group whose unchanged logits are kept for their log-probabilities */
};

/* Tokens seen by the row's present sequence; kept for rows with penalties only. */
struct seen {
	u64 owner;  /* incarnation */
	u32 tokens; /* of the row's known ones that are counted, and within a step of its drafts */
	u32 count;
	u32 known_count; /* without what drafts have added */
};

struct sampler {
	struct sampler_config config;
	size_t seen_stride;
	struct seen *seen; /* [rows] */
	u32 *seen_ids;	   /* [rows][seen_stride] distinct ids */
	u32 *seen_outputs; /* [rows][seen_stride] how often each was an output */
	u32 *seen_index;   /* [rows][vocab] 1 + place in seen_ids; 0: not seen */
	u32 *masked;	   /* [samples][MASKED_MAX] */
	float *raw;	   /* [RAW_ROWS][vocab] */
	struct kern_logits_row *logits_rows;
	struct kern_sample_row *sample_rows;
	struct kern_logprobs_row *logprobs_rows;
	void *memory;
	size_t memory_bytes;
};

/* ---------------------------------------------------------------- storage */

static size_t lay_out(struct sampler *s, char *base)
{
	size_t rows = s->config.rows_max, samples = s->config.samples_max, vocab = s->config.vocab;
	size_t offset = 0;

	s->seen_stride = s->config.max_model_len < vocab ? s->config.max_model_len : vocab;
	s->seen = region_carve(base, &offset, rows * sizeof(*s->seen));
	s->logits_rows = region_carve(base, &offset, samples * sizeof(*s->logits_rows));
	s->sample_rows = region_carve(base, &offset, samples * sizeof(*s->sample_rows));
	s->logprobs_rows = region_carve(base, &offset, samples * sizeof(*s->logprobs_rows));
	s->masked = region_carve(base, &offset, samples * MASKED_MAX * sizeof(u32));
	s->raw = region_carve(base, &offset, RAW_ROWS * vocab * sizeof(float));
	s->seen_ids = region_carve(base, &offset, rows * s->seen_stride * sizeof(u32));
	s->seen_outputs = region_carve(base, &offset, rows * s->seen_stride * sizeof(u32));
	s->seen_index = region_carve(base, &offset, rows * vocab * sizeof(u32));
	return offset;
}

enum err sampler_create(struct sampler **out, const struct sampler_config *config, struct err_msg *em)
{
	*out = NULL;
	struct sampler *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	s->config = *config;
	if (s->config.samples_max < s->config.rows_max)
		s->config.samples_max = s->config.rows_max;
	s->memory_bytes = lay_out(s, NULL);
	void *memory = region_reserve(s->memory_bytes);
	if (!memory) {
		size_t bytes = s->memory_bytes;
		free(s);
		return region_refuse(em,
			       "cannot reserve %zu bytes for sampling; lower --max-num-seqs", bytes);
	}
	s->memory = memory;
	lay_out(s, memory);
	*out = s;
	return ERR_OK;
}

void sampler_destroy(struct sampler **s)
{
	if (!*s)
		return;
	region_release((*s)->memory, (*s)->memory_bytes);
	free(*s);
	*s = NULL;
}

/* ---------------------------------------------------------------- what a row has seen */

static bool has_penalties(const struct sampling_params *p)
{
	return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static void forget(struct sampler *s, u32 row)
{
	struct seen *seen = &s->seen[row];
	const u32 *ids = s->seen_ids + row * s->seen_stride;
	u32 *index = s->seen_index + (size_t)row * s->config.vocab;

	for (u32 i = 0; i < seen->count; i++)
		index[ids[i]] = 0;
	seen->count = seen->tokens = 0;
}

/* Counts the tokens that became known since the last look, and of a sample behind drafts those. */
static void look(struct sampler *s, const struct batch_state *b, u32 row, u32 ahead)
{
	struct seen *seen = &s->seen[row];
	const struct batch_row *r = &b->rows[row];
	const u32 *tokens = batch_state_tokens(b, row);
	u32 *ids = s->seen_ids + row * s->seen_stride;
	u32 *outputs = s->seen_outputs + row * s->seen_stride;
	u32 *index = s->seen_index + (size_t)row * s->config.vocab;

	if (seen->owner != r->incarnation) {
		forget(s, row);
		seen->owner = r->incarnation;
	}
	for (; seen->tokens < b->known[row] + ahead; seen->tokens++) {
		u32 id = tokens[seen->tokens];
		if (!index[id]) {
			ids[seen->count] = id;
			outputs[seen->count] = 0;
			index[id] = ++seen->count;
		}
		outputs[index[id] - 1] += seen->tokens >= r->prompt_count;
	}
	if (ahead == 0)
		seen->known_count = seen->count;
}

/* Those that come true are counted again when they are known. */
static void forget_drafts(struct sampler *s, const struct batch_state *b, u32 row)
{
	struct seen *seen = &s->seen[row];
	const u32 *tokens = batch_state_tokens(b, row);
	const u32 *ids = s->seen_ids + row * s->seen_stride;
	u32 *outputs = s->seen_outputs + row * s->seen_stride;
	u32 *index = s->seen_index + (size_t)row * s->config.vocab;

	while (seen->tokens > b->known[row])
		outputs[index[tokens[--seen->tokens]] - 1]--;
	while (seen->count > seen->known_count)
		index[ids[--seen->count]] = 0;
}

/* ---------------------------------------------------------------- one row */

/* Of sample `i`: its number among the row's outputs. */
static u32 output_position(const struct batch_state *b, u32 i)
{
	return batch_state_sample_index(b, i) - b->rows[b->sample_rows[i]].prompt_count;
}

/* Ids that would end the sequence before its least length. */
static u32 mask_ends(const struct sampler *s, const struct batch_state *b, u32 i, u32 *masked)
{
	u32 row = b->sample_rows[i], n = 0;
	const struct batch_row *r = &b->rows[row];

	if (output_position(b, i) >= r->params.min_tokens)
		return 0;
	if (!(r->params.flags & SAMPLING_IGNORE_EOS))
		for (u32 j = 0; j < s->config.eos_count; j++)
			masked[n++] = s->config.eos_ids[j];
	for (u32 j = 0; j < r->stop_count; j++)
		masked[n++] = b->stop_ids[(size_t)row * STOP_IDS_MAX + j];
	return n;
}

/* False: the row's logits stay as they are. */
static bool fill_logits_row(struct sampler *s, const struct batch_state *b, u32 i, float *logits,
			    const u32 *allowed, u32 *masked, struct kern_logits_row *out)
{
	u32 row = b->sample_rows[i];
	const struct batch_row *r = &b->rows[row];
	const struct sampling_params *p = &r->params;

	*out = (struct kern_logits_row){.logits = logits,
					.repetition_penalty = p->repetition_penalty,
					.presence_penalty = p->presence_penalty,
					.frequency_penalty = p->frequency_penalty,
					.bias_ids = b->bias_ids + (size_t)row * BIAS_MAX,
					.bias_values = b->bias_values + (size_t)row * BIAS_MAX,
					.bias_count = r->bias_count,
					.masked_ids = masked,
					.allowed = allowed};
	out->masked_count = allowed ? 0 : mask_ends(s, b, i, masked); /* the set looks after them itself */
	if (has_penalties(p)) {
		look(s, b, row, b->sample_ahead[i]);
		out->seen_ids = s->seen_ids + row * s->seen_stride;
		out->seen_outputs = s->seen_outputs + row * s->seen_stride;
		out->seen_count = s->seen[row].count;
	}
	return out->seen_count || out->bias_count || out->masked_count || allowed;
}

static void fill_logprobs_row(const struct sampler *s, const struct sampling_params *p, u32 entry,
			      const float *logits, struct sampler_logprobs *lp, struct kern_logprobs_row *out)
{
	u32 listed = (u32)sampling_listed(p), top = listed < s->config.vocab ? listed : s->config.vocab;

	*out = (struct kern_logprobs_row){.logits = logits,
					  .top = top,
					  .ids = lp->ids + lp->id_count,
					  .values = lp->values + lp->id_count,
					  .rank = lp->rank + lp->entries};
	lp->entry[lp->entries] = entry;
	lp->count[lp->entries++] = top + 1;
	lp->id_count += top + 1;
}

/* ---------------------------------------------------------------- a group of rows */

struct group {
	u32 first, end; /* of the rows that sample */
	u32 logits_count, logprobs_count;
	u32 first_entry; /* of the log-probabilities */
};

/* Takes rows until the places for unchanged logits are used up; rows that need none cost none. */
static void fill_group(struct sampler *s, const struct batch_state *b, const u32 *const *allowed, float *logits,
		       struct sampler_logprobs *lp, struct group *g)
{
	size_t vocab = s->config.vocab;
	u32 raw_used = 0;

	g->logits_count = g->logprobs_count = 0;
	g->first_entry = lp->entries;
	for (g->end = g->first; g->end < b->sample_count && raw_used < RAW_ROWS; g->end++) {
		u32 i = g->end, row = b->sample_rows[i];
		const struct sampling_params *p = &b->rows[row].params;
		/* Its penalties see a draft more than those of the sample before, and both would read one list. */
		if (b->sample_ahead[i] && i > g->first && has_penalties(p))
			break;
		float *own = logits + i * vocab;
		const float *unchanged = own;
		bool changes = fill_logits_row(s, b, i, own, allowed ? allowed[i] : NULL,
					       s->masked + (size_t)i * MASKED_MAX, &s->logits_rows[g->logits_count]);
		g->logits_count += changes;
		if (sampling_listed(p) >= 0) {
			if (changes && !p->beam_width) /* beams are chosen by what biases and least lengths have made of it */
				unchanged = memcpy(s->raw + raw_used++ * vocab, own, vocab * sizeof(float));
			fill_logprobs_row(s, p, i, unchanged, lp, &s->logprobs_rows[g->logprobs_count++]);
		}
		s->sample_rows[i - g->first] = (struct kern_sample_row){.logits = own,
									.temperature = p->temperature,
									.top_p = p->top_p,
									.min_p = p->min_p,
									.top_k = p->top_k,
									.seed = p->seed,
									.position = output_position(b, i)};
	}
}

static enum err run_group(struct sampler *s, const struct kern_ops *ops, struct kern_ctx *ctx, u32 *tokens,
			  const struct sampler_logprobs *lp, const struct group *g, struct err_msg *em)
{
	u32 vocab = s->config.vocab;
	struct kern_logits_args logits = {
		.rows = s->logits_rows, .row_count = g->logits_count, .vocab = vocab};
	struct kern_sample_args sample = {.rows = s->sample_rows,
					  .tokens = tokens + g->first,
					  .row_count = g->end - g->first,
					  .vocab = vocab};
	struct kern_logprobs_args logprobs = {
		.rows = s->logprobs_rows, .row_count = g->logprobs_count, .vocab = vocab};

	enum err e = g->logits_count ? ops->logits(ctx, &logits) : ERR_OK;
	if (!e)
		e = ops->sample(ctx, &sample);
	for (u32 i = 0; !e && i < g->logprobs_count; i++)
		s->logprobs_rows[i].token = tokens[lp->entry[g->first_entry + i]];
	if (!e && g->logprobs_count)
		e = ops->logprobs(ctx, &logprobs);
	return e ? err_set(em, e, "sampling: %s", err_text(e)) : ERR_OK;
}

enum err sampler_run(struct sampler *s, const struct kern_ops *ops, struct kern_ctx *ctx,
		     const struct batch_state *b, const u32 *const *allowed, float *logits, u32 *tokens,
		     struct sampler_logprobs *lp, struct err_msg *em)
{
	struct group g = {0};

	enum err e = ERR_OK;

	ASSERT(b->applied && b->sample_count <= s->config.samples_max);
	lp->entries = lp->id_count = 0;
	for (g.first = 0; !e && g.first < b->sample_count; g.first = g.end) {
		fill_group(s, b, allowed, logits, lp, &g);
		e = run_group(s, ops, ctx, tokens, lp, &g, em);
	}
	for (u32 i = 0; b->draft_count && i < b->sample_count; i++)
		if (b->sample_ahead[i] == 1 && has_penalties(&b->rows[b->sample_rows[i]].params))
			forget_drafts(s, b, b->sample_rows[i]);
	return e;
}
