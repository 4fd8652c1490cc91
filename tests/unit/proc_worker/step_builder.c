#include "tests/unit/proc_worker/step_builder.h"

#include <string.h>

#include "common/step_digest.h"

void mirror_init(struct mirror *m, u32 block_size)
{
	memset(m, 0, sizeof(*m));
	m->block_size = block_size;
}

void mirror_begin(struct mirror *m)
{
	struct ipc_step *s = &m->msg;

	memset(s, 0, sizeof(*s));
	s->step = ++m->step;
	s->drop_row = m->drop_row;
	s->copy_src = m->copy_src;
	s->copy_dst = m->copy_dst;
	s->grow_row = m->grow_row;
	s->grow_block = m->grow_block;
	s->run_row = m->run_row;
	s->run_count = m->run_count;
	s->add_row = m->add_row;
	s->add_seq = m->add_seq;
	s->add_computed = m->add_computed;
	s->add_prompt_count = m->add_prompt_count;
	s->add_token_count = m->add_token_count;
	s->add_tokens = m->add_tokens;
	s->add_block_count = m->add_block_count;
	s->add_blocks = m->add_blocks;
	s->add_stop_count = m->add_stop_count;
	s->add_stop_ids = m->add_stop_ids;
	s->add_bias_count = m->add_bias_count;
	s->add_bias_ids = m->add_bias_ids;
	s->add_bias_values = m->add_bias_values;
	s->fork_row = m->fork_row;
	s->fork_src = m->fork_src;
	s->fork_seq = m->fork_seq;
	s->fork_block = m->fork_block;
	s->set_row = m->set_row;
	s->set_token = m->set_token;
	s->grammar_add = m->grammar_add;
	s->grammar_kind = m->grammar_kind;
	s->grammar_flags = m->grammar_flags;
	s->grammar_bytes = m->grammar_bytes;
	s->grammar_text = m->grammar_text;
	s->add_lora = m->add_lora;
	s->load_slot = m->load_slot;
	s->save_row = m->save_row;
	s->save_slot = m->save_slot;
	s->save_tokens = m->save_tokens;
#define PARAM(A, type, name, def, min, max) s->add_##name = m->add_##name;
	SAMPLING_TABLE(PARAM, 0)
#undef PARAM
}

void mirror_drop(struct mirror *m, u32 row)
{
	m->drop_row[m->msg.drop_row_count++] = row;
	m->rows[row].present = false;
}

void mirror_copy(struct mirror *m, u32 src, u32 dst)
{
	m->copy_src[m->msg.copy_src_count++] = src;
	m->copy_dst[m->msg.copy_dst_count++] = dst;
}

static void add_grammar(struct mirror *m, const struct mirror_add *add)
{
	struct ipc_step *s = &m->msg;
	u32 i = s->grammar_add_count++, bytes = add->grammar ? (u32)strlen(add->grammar) : 0;

	m->grammar_add[i] = s->add_row_count - 1;
	m->grammar_kind[i] = add->grammar_kind;
	m->grammar_flags[i] = 0;
	m->grammar_bytes[i] = bytes;
	if (bytes)
		memcpy(m->grammar_text + s->grammar_text_count, add->grammar, bytes);
	s->grammar_text_count += bytes;
	s->grammar_kind_count = s->grammar_flags_count = s->grammar_bytes_count = s->grammar_add_count;
}

void mirror_add(struct mirror *m, const struct mirror_add *add)
{
	struct ipc_step *s = &m->msg;
	u32 i = s->add_row_count++;
	struct mirror_row *r = &m->rows[add->row];
	struct sampling_params greedy;

	sampling_params_default(&greedy);
	greedy.temperature = 0;
	const struct sampling_params *params = add->params ? add->params : &greedy;
	m->add_row[i] = add->row;
	m->add_seq[i] = add->seq;
	m->add_computed[i] = add->computed;
	m->add_prompt_count[i] = add->prompt_count;
	m->add_token_count[i] = add->token_count;
	m->add_block_count[i] = add->block_count;
	m->add_stop_count[i] = add->stop_count;
	m->add_bias_count[i] = add->bias_count;
#define PARAM(A, type, name, def, min, max) \
	m->add_##name[i] = params->name;    \
	s->add_##name##_count++;
	SAMPLING_TABLE(PARAM, 0)
#undef PARAM
	s->add_seq_count = s->add_computed_count = s->add_prompt_count_count = s->add_row_count;
	s->add_token_count_count = s->add_block_count_count = s->add_stop_count_count = s->add_row_count;
	s->add_bias_count_count = s->add_row_count;
	for (u32 j = 0; j < add->token_count; j++)
		m->add_tokens[s->add_tokens_count++] = r->tokens[j] = add->tokens[j];
	for (u32 j = 0; j < add->block_count; j++)
		m->add_blocks[s->add_blocks_count++] = r->blocks[j] = add->blocks[j];
	for (u32 j = 0; j < add->stop_count; j++)
		m->add_stop_ids[s->add_stop_ids_count++] = add->stop_ids[j];
	for (u32 j = 0; j < add->bias_count; j++) {
		m->add_bias_ids[s->add_bias_ids_count++] = add->bias_ids[j];
		m->add_bias_values[s->add_bias_values_count++] = add->bias_values[j];
	}
	if (add->grammar_kind)
		add_grammar(m, add);
	m->add_lora[s->add_lora_count++] = add->lora;
	r->present = true;
	r->seq = add->seq;
	r->prompt_count = add->prompt_count;
	r->added_tokens = r->known = add->token_count;
	r->added_computed = r->computed = add->computed;
	r->block_count = add->block_count;
}

void mirror_fork(struct mirror *m, u32 row, u32 src, u64 seq, u32 block)
{
	struct ipc_step *s = &m->msg;
	u32 i = s->fork_row_count++;

	m->fork_row[i] = row;
	m->fork_src[i] = src;
	m->fork_seq[i] = seq;
	m->fork_block[i] = block;
	s->fork_src_count = s->fork_seq_count = s->fork_block_count = s->fork_row_count;
	if (row >= MIRROR_ROWS || m->rows[row].present)
		return; /* a wrong one */
	struct mirror_row *r = &m->rows[row];
	*r = m->rows[src];
	r->seq = seq;
	if (block != UINT32_MAX && r->block_count)
		r->blocks[r->block_count - 1] = block;
}

void mirror_set(struct mirror *m, u32 row, u32 token)
{
	u32 i = m->msg.set_row_count++;

	m->set_row[i] = row;
	m->set_token[i] = token;
	m->msg.set_token_count = m->msg.set_row_count;
	if (m->rows[row].present)
		m->rows[row].tokens[m->rows[row].known - 1] = token;
}

void mirror_grow(struct mirror *m, u32 row, u32 block)
{
	m->grow_row[m->msg.grow_row_count++] = row;
	m->grow_block[m->msg.grow_block_count++] = block;
	m->rows[row].blocks[m->rows[row].block_count++] = block;
}

void mirror_load(struct mirror *m, u32 slot)
{
	m->load_slot[m->msg.load_slot_count++] = slot;
}

void mirror_save(struct mirror *m, u32 row, u32 slot, u32 tokens)
{
	u32 i = m->msg.save_row_count;

	m->save_row[i] = row;
	m->save_slot[i] = slot;
	m->save_tokens[i] = tokens;
	m->msg.save_row_count = m->msg.save_slot_count = m->msg.save_tokens_count = i + 1;
}

void mirror_run(struct mirror *m, u32 row, u32 count)
{
	m->run_row[m->msg.run_row_count++] = row;
	m->run_count[m->msg.run_count_count++] = count;
}

/* From scratch, over everything, so that no incremental bookkeeping of the worker is repeated here. */
static u64 digest(const struct mirror *m)
{
	u64 set = 0, computed = 0;
	u32 rows = 0, tokens = 0;

	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		const struct mirror_row *r = &m->rows[row];
		if (!r->present)
			continue;
		set += step_digest_row(row, r->seq, r->prompt_count, r->added_tokens, r->added_computed);
		for (u32 i = 0; i < r->block_count; i++)
			set += step_digest_block(row, i, r->blocks[i]);
		computed += r->computed;
		rows += r->run > 0;
		tokens += r->run;
	}
	return step_digest_step(m->step, set, rows, tokens, computed);
}

const struct ipc_step *mirror_end(struct mirror *m)
{
	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		struct mirror_row *r = &m->rows[row];
		r->run = r->present && r->known - r->computed == 1;
	}
	for (u32 i = 0; i < m->msg.run_row_count; i++)
		m->rows[m->run_row[i]].run = m->run_count[i];
	m->msg.digest = digest(m);
	return &m->msg;
}

bool mirror_samples(const struct mirror *m, u32 row)
{
	const struct mirror_row *r = &m->rows[row];

	return r->present && r->run > 0 && r->computed + r->run == r->known;
}

u32 mirror_commit(struct mirror *m, const u32 *tokens)
{
	u32 n = 0;

	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		struct mirror_row *r = &m->rows[row];
		if (!r->present)
			continue;
		bool samples = mirror_samples(m, row);
		r->computed += r->run;
		if (samples)
			r->tokens[r->known++] = tokens[n++];
	}
	return n;
}
