/* Owns what is to be said of a STEP's columns before any of them is read, and the sparse ones that bring grammars and
 * adapters. Runs in
 * the worker, inside batch_state_apply. Never changes more than the rows that the STEP adds. */
#include <string.h>

#include "proc_worker/batch_state_priv.h"

#include "ipc/ipc.h"

/* ---------------------------------------------------------------- shape of the message */

static enum err check_column(const char *name, u64 count, u64 expected, struct err_msg *em)
{
	if (count == expected)
		return ERR_OK;
	return err_set(em, ERR_INVALID, "%s has %llu elements; %llu are needed", name,
		       (unsigned long long)count, (unsigned long long)expected);
}

static u64 sum(const u32 *counts, u32 n)
{
	u64 total = 0;

	for (u32 i = 0; i < n; i++)
		total += counts[i];
	return total;
}

enum err batch_state_check_columns(const struct ipc_step *s, struct err_msg *em)
{
	u32 adds = s->add_row_count;
	enum err e = ERR_OK;

#define CHECK(column, expected) \
	if (!e)                 \
		e = check_column(#column, s->column##_count, expected, em);
#define CHECK_PARAM(A, type, name, def, min, max) CHECK(add_##name, adds)
	CHECK(copy_dst, s->copy_src_count)
	CHECK(grow_block, s->grow_row_count)
	CHECK(run_count, s->run_row_count)
	CHECK(add_seq, adds)
	CHECK(add_computed, adds)
	CHECK(add_prompt_count, adds)
	CHECK(add_token_count, adds)
	CHECK(add_block_count, adds)
	CHECK(add_stop_count, adds)
	CHECK(add_bias_count, adds)
	CHECK(fork_src, s->fork_row_count)
	CHECK(fork_seq, s->fork_row_count)
	CHECK(fork_block, s->fork_row_count)
	CHECK(set_token, s->set_row_count)
	CHECK(save_slot, s->save_row_count)
	CHECK(save_tokens, s->save_row_count)
	SAMPLING_TABLE(CHECK_PARAM, 0)
	if (e)
		return e;
	CHECK(add_tokens, sum(s->add_token_count, adds))
	CHECK(add_blocks, sum(s->add_block_count, adds))
	CHECK(add_stop_ids, sum(s->add_stop_count, adds))
	CHECK(add_bias_ids, sum(s->add_bias_count, adds))
	CHECK(add_bias_values, s->add_bias_ids_count)
	CHECK(add_lora, s->add_lora_count ? adds : 0)
	CHECK(grammar_kind, s->grammar_add_count)
	CHECK(grammar_flags, s->grammar_add_count)
	CHECK(grammar_bytes, s->grammar_add_count)
	CHECK(grammar_text, sum(s->grammar_bytes, s->grammar_bytes_count))
#undef CHECK_PARAM
#undef CHECK
	return e;
}

/* ---------------------------------------------------------------- grammars */

static enum err check_grammar(const struct ipc_step *s, u32 i, struct err_msg *em)
{
	u32 adds = s->add_row_count, first = i ? s->grammar_add[i - 1] + 1 : 0;
	u32 kind = s->grammar_kind[i], bytes = s->grammar_bytes[i];

	if (s->grammar_add[i] < first || s->grammar_add[i] >= adds)
		return err_set(em, ERR_INVALID, "grammar_add[%u] is %u; it must be an index from %u into the %u rows added", i,
			       s->grammar_add[i], first, adds);
	if (kind == GRAMMAR_KIND_NONE || kind >= GRAMMAR_KIND_COUNT)
		return err_set(em, ERR_INVALID, "grammar_kind[%u] is %u; it must be 1 to %u", i, kind,
			       (u32)GRAMMAR_KIND_COUNT - 1);
	if (bytes > GRAMMAR_SOURCE_MAX)
		return err_set(em, ERR_INVALID, "grammar_bytes[%u] is %u; at most %u", i, bytes, (u32)GRAMMAR_SOURCE_MAX);
	return ERR_OK;
}

enum err batch_state_add_grammars(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	const u8 *text = s->grammar_text;

	for (u32 i = 0; i < s->grammar_add_count; i++) {
		enum err e = check_grammar(s, i, em);
		if (e)
			return e;
		u32 row = s->add_row[s->grammar_add[i]], bytes = s->grammar_bytes[i];
		b->rows[row].grammar_kind = s->grammar_kind[i];
		b->rows[row].grammar_flags = s->grammar_flags[i];
		b->rows[row].grammar_bytes = bytes;
		if (bytes)
			memcpy(b->grammars + (size_t)row * GRAMMAR_SOURCE_MAX, text, bytes);
		text += bytes;
		b->grammar_count++;
	}
	return ERR_OK;
}

/* ---------------------------------------------------------------- adapters */

enum err batch_state_add_loras(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->add_lora_count; i++) {
		if (s->add_lora[i] > b->limits.lora_count)
			return err_set(em, ERR_INVALID, "add_lora[%u] is %u; this worker has %u adapters", i, s->add_lora[i],
				       b->limits.lora_count);
		b->rows[s->add_row[i]].lora = s->add_lora[i];
	}
	return ERR_OK;
}
