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

/* Of both pools. */
static size_t block_total(const struct batch_limits *l)
{
	return (size_t)l->block_count + l->host_block_count;
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
	b->block_stamp = region_carve(base, &offset, block_total(&b->created) * sizeof(u64));
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
	if (block_total(l) >= UINT32_MAX)
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
	memset(b->block_stamp, 0, block_total(&b->created) * sizeof(u64));
	memset(b->state_stamp, 0, b->created.state_slots * sizeof(u64));
	memset(b->save_tokens, 0, rows * sizeof(u32));
	b->load_count = b->save_count = 0;
	return ERR_OK;
}

/* ---------------------------------------------------------------- drop, copy, add, grow */

static enum err check_present(const struct batch_state *b, const char *field, u32 index, u32 row,
			      struct err_msg *em)
{
	if (row >= b->created.rows_max)
		return err_set(em, ERR_INVALID, "%s[%u] is %u; rows are 0 to %u", field, index, row,
			       b->created.rows_max - 1);
	if (!batch_state_present(b, row))
		return err_set(em, ERR_INVALID, "%s[%u]: row %u is empty", field, index, row);
	return ERR_OK;
}

static enum err check_ids(const char *field, const u32 *ids, u32 count, u32 limit, struct err_msg *em)
{
	for (u32 i = 0; i < count; i++)
		if (ids[i] >= limit)
			return err_set(em, ERR_INVALID, "%s: %u is not below %u", field, ids[i], limit);
	return ERR_OK;
}

static enum err apply_drops(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->drop_row_count; i++) {
		u32 row = s->drop_row[i];
		enum err e = check_present(b, "drop_row", i, row, em);
		if (e)
			return e;
		const struct batch_row *r = &b->rows[row];
		const u32 *blocks = batch_state_blocks(b, row);
		b->set_sum -=
			step_digest_row(row, r->seq, r->prompt_count, r->added_tokens, r->added_computed);
		for (u32 j = 0; j < r->block_count; j++)
			b->set_sum -= step_digest_block(row, j, blocks[j]);
		b->computed_sum -= b->computed[row];
		b->known[row] = b->computed[row] = b->capacity[row] = 0;
		b->row_count--;
		b->grammar_count -= r->grammar_kind != GRAMMAR_KIND_NONE;
	}
	return ERR_OK;
}

/* The copies of a step have no order among each other: no block is read and written, and none is written
 * twice. */
static enum err apply_copies(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	u32 n = s->copy_src_count;
	u64 stamp = s->step;
	u32 total = (u32)block_total(&b->limits);
	enum err e = check_ids("copy_src", s->copy_src, n, total, em);
	if (!e)
		e = check_ids("copy_dst", s->copy_dst, n, total, em);
	if (e)
		return e;
	for (u32 i = 0; i < n; i++) {
		if (s->copy_src[i] >= b->limits.block_count && s->copy_dst[i] >= b->limits.block_count)
			return err_set(em, ERR_INVALID,
				       "copy_src[%u], copy_dst[%u]: blocks %u and %u are both the host's", i, i,
				       s->copy_src[i], s->copy_dst[i]);
		if (b->block_stamp[s->copy_dst[i]] == stamp)
			return err_set(em, ERR_INVALID, "copy_dst[%u]: block %u is written twice", i,
				       s->copy_dst[i]);
		b->block_stamp[s->copy_dst[i]] = stamp;
	}
	for (u32 i = 0; i < n; i++)
		if (b->block_stamp[s->copy_src[i]] == stamp)
			return err_set(em, ERR_INVALID, "copy_src[%u]: block %u is read and written", i,
				       s->copy_src[i]);
	b->copy_src = s->copy_src;
	b->copy_dst = s->copy_dst;
	b->copy_count = n;
	return ERR_OK;
}

static enum err add_block(struct batch_state *b, u32 row, u32 block, struct err_msg *em)
{
	struct batch_row *r = &b->rows[row];
	u32 blocks_max = (b->limits.max_model_len + b->limits.block_size - 1) / b->limits.block_size;

	if (block >= b->limits.block_count)
		return err_set(em, ERR_INVALID, "row %u: block %u is not below %u", row, block,
			       b->limits.block_count);
	if (r->block_count >= blocks_max)
		return err_set(em, ERR_INVALID, "row %u: more than the %u blocks of %u tokens", row,
			       blocks_max, b->limits.max_model_len);
	b->blocks[row * b->block_stride + r->block_count] = block;
	b->set_sum += step_digest_block(row, r->block_count, block);
	r->block_count++;
	b->capacity[row] += b->limits.block_size;
	return ERR_OK;
}

/* Where row i of the concatenated add columns begins. */
struct add_cursor {
	u32 tokens, blocks, stops, biases;
};

static enum err check_add(const struct batch_state *b, const struct ipc_step *s, u32 i, struct err_msg *em)
{
	u32 row = s->add_row[i];
	u32 tokens = s->add_token_count[i];

	if (row >= b->created.rows_max)
		return err_set(em, ERR_INVALID, "add_row[%u] is %u; rows are 0 to %u", i, row,
			       b->created.rows_max - 1);
	if (batch_state_present(b, row))
		return err_set(em, ERR_INVALID, "add_row[%u]: row %u still holds sequence %llu", i, row,
			       (unsigned long long)b->rows[row].seq);
	if (tokens == 0 || tokens > b->limits.max_model_len)
		return err_set(em, ERR_INVALID, "add_token_count[%u] is %u; a row has 1 to %u tokens", i,
			       tokens, b->limits.max_model_len);
	if (s->add_prompt_count[i] == 0 || s->add_prompt_count[i] > tokens)
		return err_set(em, ERR_INVALID, "add_prompt_count[%u] is %u; it must be 1 to %u", i,
			       s->add_prompt_count[i], tokens);
	if (s->add_computed[i] >= tokens)
		return err_set(em, ERR_INVALID, "add_computed[%u] is %u; it must be below the %u tokens", i,
			       s->add_computed[i], tokens);
	if (s->add_stop_count[i] > STOP_IDS_MAX)
		return err_set(em, ERR_INVALID, "add_stop_count[%u] is %u; at most %u", i,
			       s->add_stop_count[i], (u32)STOP_IDS_MAX);
	if (s->add_bias_count[i] > BIAS_MAX)
		return err_set(em, ERR_INVALID, "add_bias_count[%u] is %u; at most %u", i,
			       s->add_bias_count[i], (u32)BIAS_MAX);
	return ERR_OK;
}

/* Parameters and lists of row i of the message; the ids are checked by the caller. */
static enum err read_params(struct batch_state *b, const struct ipc_step *s, u32 i,
			    const struct add_cursor *at, struct err_msg *em)
{
	u32 row = s->add_row[i];
	u32 vocab = b->limits.vocab_size;
	struct batch_row *r = &b->rows[row];

#define READ_PARAM(A, type, name, def, min, max) r->params.name = s->add_##name[i];
	SAMPLING_TABLE(READ_PARAM, 0)
#undef READ_PARAM
	enum err e = sampling_params_check(&r->params, em);
	if (e) {
		err_prefix(em, "added row %u", i);
		return e;
	}
	r->stop_count = s->add_stop_count[i];
	r->bias_count = s->add_bias_count[i];
	if (r->stop_count) {
		e = check_ids("add_stop_ids", s->add_stop_ids + at->stops, r->stop_count, vocab, em);
		if (e)
			return e;
		memcpy(b->stop_ids + (size_t)row * STOP_IDS_MAX, s->add_stop_ids + at->stops,
		       r->stop_count * sizeof(u32));
	}
	if (r->bias_count) {
		e = check_ids("add_bias_ids", s->add_bias_ids + at->biases, r->bias_count, vocab, em);
		if (e)
			return e;
		memcpy(b->bias_ids + (size_t)row * BIAS_MAX, s->add_bias_ids + at->biases,
		       r->bias_count * sizeof(u32));
		memcpy(b->bias_values + (size_t)row * BIAS_MAX, s->add_bias_values + at->biases,
		       r->bias_count * sizeof(f32));
	}
	return ERR_OK;
}

static enum err apply_adds(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	struct add_cursor at = {0};

	for (u32 i = 0; i < s->add_row_count; i++) {
		enum err e = check_add(b, s, i, em);
		if (e)
			return e;
		u32 row = s->add_row[i];
		u32 tokens = s->add_token_count[i];
		struct batch_row *r = &b->rows[row];
		e = check_ids("add_tokens", s->add_tokens + at.tokens, tokens, b->limits.vocab_size, em);
		if (!e)
			e = read_params(b, s, i, &at, em);
		if (e)
			return e;
		r->seq = s->add_seq[i];
		r->incarnation = ++b->adds;
		r->prompt_count = s->add_prompt_count[i];
		r->added_tokens = tokens;
		r->added_computed = s->add_computed[i];
		r->block_count = 0;
		r->grammar_kind = r->grammar_flags = r->grammar_bytes = r->lora = 0;
		memcpy(b->tokens + row * b->token_stride, s->add_tokens + at.tokens, tokens * sizeof(u32));
		b->last_token[row] = s->add_tokens[at.tokens + tokens - 1];
		b->known[row] = tokens;
		b->computed[row] = r->added_computed;
		b->capacity[row] = 0;
		b->computed_sum += r->added_computed;
		b->set_sum += step_digest_row(row, r->seq, r->prompt_count, tokens, r->added_computed);
		b->row_count++;
		for (u32 j = 0; !e && j < s->add_block_count[i]; j++)
			e = add_block(b, row, s->add_blocks[at.blocks + j], em);
		if (e)
			return e;
		at.tokens += tokens;
		at.blocks += s->add_block_count[i];
		at.stops += r->stop_count;
		at.biases += r->bias_count;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- fork and set */

static enum err check_fork(const struct batch_state *b, const struct ipc_step *s, u32 i, struct err_msg *em)
{
	u32 row = s->fork_row[i], src = s->fork_src[i], block_size = b->limits.block_size;

	if (row >= b->created.rows_max)
		return err_set(em, ERR_INVALID, "fork_row[%u] is %u; rows are 0 to %u", i, row, b->created.rows_max - 1);
	if (batch_state_present(b, row))
		return err_set(em, ERR_INVALID, "fork_row[%u]: row %u still holds sequence %llu", i, row,
			       (unsigned long long)b->rows[row].seq);
	enum err e = check_present(b, "fork_src", i, src, em);
	if (e)
		return e;
	/* Only a block that nobody writes any more can be shared. */
	u32 full = b->computed[src] / block_size, blocks = b->rows[src].block_count;
	bool own = s->fork_block[i] != UINT32_MAX;
	if (blocks != full + own)
		return err_set(em, ERR_INVALID,
			       "fork_block[%u] is %s, but %u of the %u blocks of row %u are full of computed tokens", i,
			       own ? "given" : "none", full, blocks, src);
	if (own && s->fork_block[i] >= b->limits.block_count)
		return err_set(em, ERR_INVALID, "fork_block[%u] is %u; it must be below %u", i, s->fork_block[i],
			       b->limits.block_count);
	return ERR_OK;
}

static void copy_row(struct batch_state *b, u32 row, u32 src, u64 seq)
{
	struct batch_row *r = &b->rows[row];

	*r = b->rows[src];
	r->seq = seq;
	r->incarnation = ++b->adds;
	b->known[row] = b->known[src];
	b->computed[row] = b->computed[src];
	b->capacity[row] = b->capacity[src];
	b->last_token[row] = b->last_token[src];
	memcpy(b->tokens + row * b->token_stride, b->tokens + src * b->token_stride, b->known[src] * sizeof(u32));
	memcpy(b->blocks + row * b->block_stride, b->blocks + src * b->block_stride, r->block_count * sizeof(u32));
	memcpy(b->stop_ids + (size_t)row * STOP_IDS_MAX, b->stop_ids + (size_t)src * STOP_IDS_MAX,
	       r->stop_count * sizeof(u32));
	memcpy(b->bias_ids + (size_t)row * BIAS_MAX, b->bias_ids + (size_t)src * BIAS_MAX, r->bias_count * sizeof(u32));
	memcpy(b->bias_values + (size_t)row * BIAS_MAX, b->bias_values + (size_t)src * BIAS_MAX,
	       r->bias_count * sizeof(f32));
	memcpy(b->grammars + (size_t)row * GRAMMAR_SOURCE_MAX, b->grammars + (size_t)src * GRAMMAR_SOURCE_MAX,
	       r->grammar_bytes);
	b->grammar_count += r->grammar_kind != GRAMMAR_KIND_NONE;
}

static enum err apply_forks(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->fork_row_count; i++) {
		u32 row = s->fork_row[i];
		enum err e = check_fork(b, s, i, em);
		if (e)
			return e;
		copy_row(b, row, s->fork_src[i], s->fork_seq[i]);
		const struct batch_row *r = &b->rows[row];
		u32 *blocks = b->blocks + row * b->block_stride;
		if (s->fork_block[i] != UINT32_MAX)
			blocks[r->block_count - 1] = s->fork_block[i];
		b->computed_sum += b->computed[row];
		b->set_sum += step_digest_row(row, r->seq, r->prompt_count, r->added_tokens, r->added_computed);
		for (u32 j = 0; j < r->block_count; j++)
			b->set_sum += step_digest_block(row, j, blocks[j]);
		b->row_count++;
	}
	b->fork_src = s->fork_src;
	b->fork_row = s->fork_row;
	b->fork_count = s->fork_row_count;
	return ERR_OK;
}

static enum err apply_sets(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	enum err e = check_ids("set_token", s->set_token, s->set_row_count, b->limits.vocab_size, em);

	for (u32 i = 0; !e && i < s->set_row_count; i++) {
		u32 row = s->set_row[i];
		e = check_present(b, "set_row", i, row, em);
		if (e)
			return e;
		if (b->known[row] == b->computed[row] || b->known[row] <= b->rows[row].prompt_count)
			return err_set(em, ERR_INVALID, "set_row[%u]: the newest token of row %u is computed or the prompt's", i,
				       row);
		b->tokens[row * b->token_stride + b->known[row] - 1] = s->set_token[i];
		b->last_token[row] = s->set_token[i];
	}
	return e;
}

static enum err apply_grows(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->grow_row_count; i++) {
		enum err e = check_present(b, "grow_row", i, s->grow_row[i], em);
		if (!e)
			e = add_block(b, s->grow_row[i], s->grow_block[i], em);
		if (e)
			return e;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- run */

static enum err apply_exceptions(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->run_row_count; i++) {
		u32 row = s->run_row[i];
		u32 count = s->run_count[i];
		enum err e = check_present(b, "run_row", i, row, em);
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
		e = apply_drops(b, s, em);
	if (!e)
		e = apply_copies(b, s, em);
	if (!e)
		e = apply_adds(b, s, em);
	if (!e)
		e = batch_state_load(b, s, em);
	if (!e)
		e = batch_state_add_grammars(b, s, em);
	if (!e)
		e = batch_state_add_loras(b, s, em);
	if (!e)
		e = apply_forks(b, s, em);
	if (!e)
		e = apply_sets(b, s, em);
	if (!e)
		e = apply_grows(b, s, em);
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
