/* The rows that a step's diff drops, adds, forks and grows, with the copies of blocks that go with them: every id and count is checked before it
 * is used. Runs in the worker, where batch_state.c applies a step. Never decides anything: the STEP messages do. */
#include <string.h>

#include "common/step_digest.h"
#include "ipc/ipc.h"
#include "proc_worker/batch_state_priv.h"

/* ---------------------------------------------------------------- drop, copy, add, grow */

enum err batch_state_check_present(const struct batch_state *b, const char *field, u32 index, u32 row,
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
		enum err e = batch_state_check_present(b, "drop_row", i, row, em);
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
	u32 total = (u32)batch_state_block_total(&b->limits);
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
	enum err e = batch_state_check_present(b, "fork_src", i, src, em);
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
		e = batch_state_check_present(b, "set_row", i, row, em);
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
		enum err e = batch_state_check_present(b, "grow_row", i, s->grow_row[i], em);
		if (!e)
			e = add_block(b, s->grow_row[i], s->grow_block[i], em);
		if (e)
			return e;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- all of them */

enum err batch_state_change_rows(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	enum err e = apply_drops(b, s, em);

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
	return e;
}
