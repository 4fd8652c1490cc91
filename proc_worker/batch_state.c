/* Owns the rows of the batch: tokens, block tables, parameters. Runs in the worker (and in the scheduler's
 * tests, as the other side of its diffs). Never does I/O, never reads a clock, never allocates after create,
 * never decides anything: the STEP messages do. */
#include "proc_worker/batch_state_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"
#include "ipc/ipc.h"

/* ---------------------------------------------------------------- storage */

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static size_t lay_out(struct batch_state *b, char *base)
{
	size_t rows = b->created.rows_max;
	size_t offset = 0;

	b->known = region_carve(base, &offset, rows * sizeof(u32));
	b->computed = region_carve(base, &offset, rows * sizeof(u32));
	b->capacity = region_carve(base, &offset, rows * sizeof(u32));
	b->run = region_carve(base, &offset, rows * sizeof(u32));
	b->last_token = region_carve(base, &offset, rows * sizeof(u32));
	b->run_rows = region_carve(base, &offset, rows * sizeof(u32));
	b->sample_rows = region_carve(base, &offset, batch_samples_max(&b->created) * sizeof(u32));
	b->sample_ahead = region_carve(base, &offset, batch_samples_max(&b->created) * sizeof(u32));
	b->drafts = region_carve(base, &offset, rows * sizeof(u32));
	b->run_stamp = region_carve(base, &offset, rows * sizeof(u64));
	b->rows = region_carve(base, &offset, rows * sizeof(struct batch_row));
	b->block_stamp = region_carve(base, &offset, batch_state_block_total(&b->created) * sizeof(u64));
	b->load_row = region_carve(base, &offset, rows * sizeof(u32));
	b->load_slot = region_carve(base, &offset, rows * sizeof(u32));
	b->save_tokens = region_carve(base, &offset, rows * sizeof(u32));
	b->save_slot = region_carve(base, &offset, rows * sizeof(u32));
	b->state_stamp = region_carve(base, &offset, b->created.state_slots * sizeof(u64));
	b->blocks = region_carve(base, &offset, rows * b->block_stride * sizeof(u32));
	b->stop_ids = region_carve(base, &offset, rows * STOP_IDS_MAX * sizeof(u32));
	b->bias_ids = region_carve(base, &offset, rows * BIAS_MAX * sizeof(u32));
	b->bias_values = region_carve(base, &offset, rows * BIAS_MAX * sizeof(f32));
	b->tokens = region_carve(base, &offset, rows * b->token_stride * sizeof(u32));
	b->grammars = region_carve(base, &offset, rows * GRAMMAR_SOURCE_MAX);
	return offset;
}

static enum err check_limits(const struct batch_limits *l, struct err_msg *em)
{
	const struct {
		const char *name;
		u32 value, max;
	} limits[] = {
		{"max_num_seqs", l->rows_max, IPC_ROWS_MAX},
		{"max_num_batched_tokens", l->tokens_max, IPC_TOKENS_MAX},
		{"max_model_len", l->max_model_len, IPC_TOKENS_MAX},
		{"block_size", l->block_size, 65536},
		{"block_count", l->block_count, UINT32_MAX},
		{"vocab_size", l->vocab_size, UINT32_MAX},
	};

	for (size_t i = 0; i < COUNT_OF(limits); i++)
		if (limits[i].value == 0 || limits[i].value > limits[i].max)
			return err_set(em, ERR_INVALID, "%s is %u; it must be 1 to %u", limits[i].name,
				       limits[i].value, limits[i].max);
	if (batch_state_block_total(l) >= UINT32_MAX)
		return err_set(em, ERR_INVALID, "%u blocks and %u of the host's memory are more than ids, %u",
			       l->block_count, l->host_block_count, UINT32_MAX - 1);
	return ERR_OK;
}

enum err batch_state_create(struct batch_state **out, const struct batch_limits *limits, struct err_msg *em)
{
	*out = NULL;
	enum err e = check_limits(limits, em);
	if (e)
		return e;
	struct batch_state *b = calloc(1, sizeof(*b));
	if (!b)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	b->created = *limits;
	/* Not a multiple of a large power of two: the rows' newest tokens must not all fall into one cache
	 * set. */
	b->token_stride = round_up(limits->max_model_len, 16) + 16;
	b->block_stride =
		round_up((limits->max_model_len + limits->block_size - 1) / limits->block_size, 16) + 16;
	b->memory_bytes = lay_out(b, NULL);
	b->memory = region_reserve(b->memory_bytes);
	if (!b->memory) {
		size_t bytes = b->memory_bytes;
		free(b);
		return region_refuse(em,
			       "cannot reserve %zu bytes for %u rows of %u tokens; lower --max-num-seqs or "
			       "--max-model-len",
			       bytes, limits->rows_max, limits->max_model_len);
	}
	lay_out(b, b->memory);
	b->limits = *limits;
	*out = b;
	return ERR_OK;
}

void batch_state_destroy(struct batch_state **b)
{
	if (!*b)
		return;
	region_release((*b)->memory, (*b)->memory_bytes);
	free(*b);
	*b = NULL;
}

enum err batch_state_reset(struct batch_state *b, u32 block_count, u32 max_model_len, struct err_msg *em)
{
	size_t rows = b->created.rows_max;

	if (block_count == 0 || block_count > b->created.block_count)
		return err_set(em, ERR_INVALID, "INIT: block_count is %u; this worker has 1 to %u",
			       block_count, b->created.block_count);
	if (max_model_len == 0 || max_model_len > b->created.max_model_len)
		return err_set(em, ERR_INVALID, "INIT: max_model_len is %u; this worker takes 1 to %u",
			       max_model_len, b->created.max_model_len);
	b->limits.block_count = block_count;
	b->limits.max_model_len = max_model_len;
	b->step = 0;
	b->row_count = b->grammar_count = 0;
	b->set_sum = 0;
	b->computed_sum = 0;
	b->broken = false;
	b->applied = false;
	b->run_row_count = b->sample_count = b->tokens_run = b->copy_count = b->fork_count = b->draft_count = 0;
	memset(b->sample_ahead, 0, batch_samples_max(&b->created) * sizeof(u32));
	memset(b->drafts, 0, rows * sizeof(u32));
	memset(b->known, 0, rows * sizeof(u32));
	memset(b->computed, 0, rows * sizeof(u32));
	memset(b->capacity, 0, rows * sizeof(u32));
	memset(b->run, 0, rows * sizeof(u32));
	memset(b->run_stamp, 0, rows * sizeof(u64));
	memset(b->block_stamp, 0, batch_state_block_total(&b->created) * sizeof(u64));
	memset(b->state_stamp, 0, b->created.state_slots * sizeof(u64));
	memset(b->save_tokens, 0, rows * sizeof(u32));
	b->load_count = b->save_count = 0;
	return ERR_OK;
}

/* ---------------------------------------------------------------- run */

static enum err apply_exceptions(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->run_row_count; i++) {
		u32 row = s->run_row[i];
		u32 count = s->run_count[i];
		enum err e = batch_state_check_present(b, "run_row", i, row, em);
		if (e)
			return e;
		if (b->run_stamp[row] == s->step)
			return err_set(em, ERR_INVALID, "run_row[%u]: row %u is listed twice", i, row);
		b->run_stamp[row] = s->step;
		if (count > b->known[row] - b->computed[row])
			return err_set(em, ERR_INVALID,
				       "run_count[%u] is %u; row %u has %u tokens to compute", i, count, row,
				       b->known[row] - b->computed[row]);
		b->run[row] = count;
	}
	return ERR_OK;
}

static enum err explain_run(const struct batch_state *b, struct err_msg *em)
{
	for (u32 row = 0; row < b->created.rows_max; row++) {
		u32 end = b->computed[row] + b->run[row];
		if (b->run[row] == 0)
			continue;
		if (end > b->capacity[row])
			return err_set(
				em, ERR_INVALID,
				"row %u (sequence %llu): its %u blocks hold %u tokens, this step needs %u",
				row, (unsigned long long)b->rows[row].seq, b->rows[row].block_count,
				b->capacity[row], end);
		if (end == b->known[row] && end >= b->limits.max_model_len)
			return err_set(em, ERR_INVALID,
				       "row %u (sequence %llu): a token behind the context length of %u", row,
				       (unsigned long long)b->rows[row].seq, b->limits.max_model_len);
	}
	return err_set(em, ERR_INVALID, "the step runs %u tokens; at most %u", b->tokens_run,
		       b->limits.tokens_max);
}

/* What the rule and the exceptions give: the lists of rows that run and that sample. Free of branches, since
 * it visits every row in every step. */
static enum err apply_run(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	u32 rows = b->created.rows_max;
	u32 context = b->limits.max_model_len;

	for (u32 row = 0; row < rows; row++)
		b->run[row] = b->known[row] - b->computed[row] == 1;
	enum err e = apply_exceptions(b, s, em);
	if (e)
		return e;

	u32 running = 0, sampling = 0, bad = 0;
	u64 tokens = 0;
	for (u32 row = 0; row < rows; row++) {
		u32 run = b->run[row];
		u32 end = b->computed[row] + run;
		u32 runs = run != 0;
		u32 samples = runs & (end == b->known[row]);
		bad |= runs & ((end > b->capacity[row]) | (samples & (end >= context)));
		b->run_rows[running] = row;
		running += runs;
		b->sample_rows[sampling] = row;
		sampling += samples;
		tokens += run;
	}
	b->run_row_count = running;
	b->sample_count = sampling;
	b->tokens_run = (u32)tokens;
	return bad || tokens > b->limits.tokens_max ? explain_run(b, em) : ERR_OK;
}

/* ---------------------------------------------------------------- the step */

u64 batch_state_digest(const struct batch_state *b)
{
	return step_digest_step(b->step, b->set_sum, b->run_row_count, b->tokens_run, b->computed_sum);
}

static enum err apply_parts(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	enum err e = batch_state_check_columns(s, em);

	if (!e)
		e = batch_state_change_rows(b, s, em);
	if (!e)
		e = apply_run(b, s, em);
	return e ? e : batch_state_save(b, s, em);
}

enum err batch_state_apply(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	ASSERT(!b->applied);
	if (b->broken)
		return err_set(em, ERR_DIVERGED, "the state was lost after step %llu; an INIT is needed",
			       (unsigned long long)b->step);
	if (s->step != b->step + 1) {
		b->broken = true;
		return err_set(em, ERR_SEQUENCE, "STEP %llu came after step %llu",
			       (unsigned long long)s->step, (unsigned long long)b->step);
	}
	b->step = s->step;
	enum err e = apply_parts(b, s, em);
	if (e) {
		b->broken = true;
		err_prefix(em, "STEP %llu", (unsigned long long)s->step);
		return e;
	}
	u64 digest = batch_state_digest(b);
	if (digest != s->digest) {
		b->broken = true;
		return err_set(em, ERR_DIVERGED,
			       "STEP %llu: digest %016llx here, %016llx at the scheduler (%u rows, %u run "
			       "%u tokens, %llu computed)",
			       (unsigned long long)s->step, (unsigned long long)digest,
			       (unsigned long long)s->digest, b->row_count, b->run_row_count, b->tokens_run,
			       (unsigned long long)b->computed_sum);
	}
	b->applied = true;
	return ERR_OK;
}

static void end_step(struct batch_state *b)
{
	for (u32 row = 0; row < b->created.rows_max; row++)
		b->computed[row] += b->run[row];
	b->computed_sum += b->tokens_run;
	if (b->save_count)
		memset(b->save_tokens, 0, b->created.rows_max * sizeof(u32));
	b->copy_count = b->fork_count = b->load_count = b->save_count = 0;
	b->applied = false;
}

void batch_state_advance(struct batch_state *b)
{
	ASSERT(b->applied && b->draft_count == 0);
	for (u32 i = 0; i < b->sample_count; i++)
		b->known[b->sample_rows[i]]++;
	end_step(b);
}

void batch_state_tokens_known(struct batch_state *b, const struct batch_tokens *t)
{
	for (u32 i = 0; i < t->count; i++) {
		u32 row = t->rows[i], index = t->index[i];
		if (!batch_state_present(b, row) || b->rows[row].incarnation != t->incarnation[i])
			continue;
		DASSERT(t->tokens[i] < b->limits.vocab_size && index < b->known[row]);
		b->tokens[row * b->token_stride + index] = t->tokens[i];
		if (index + 1 == b->known[row])
			b->last_token[row] = t->tokens[i];
	}
}

void batch_state_commit(struct batch_state *b, const u32 *sampled)
{
	ASSERT(b->applied);
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i];
		DASSERT(sampled[i] < b->limits.vocab_size);
		b->tokens[row * b->token_stride + b->known[row]] = sampled[i];
		b->last_token[row] = sampled[i];
		b->known[row]++;
	}
	if (b->draft_count)
		batch_state_count_drafts(b);
	end_step(b);
}
