/* Owns the columns of the step in the making and the scheduler's mirror of the workers' state; runs inside
 * the scheduling core. Never allocates after init, never decides what runs. */
#include "proc_scheduler/step_diff.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"

enum { ADD_TOKENS_MIN = 1 << 18, ADD_BLOCKS_MIN = 1 << 16, SWAPS_MAX = 1 << 16, GRAMMARS_MAX = 8 * GRAMMAR_SOURCE_MAX };

/* With a NULL base it only measures. */
static size_t lay_out(struct step_diff *d, char *base)
{
	size_t n = d->row_max, offset = 0;

#define COLUMN(name, count)			   d->name = region_carve(base, &offset, (count) * sizeof(*d->name));
#define PARAM_COLUMN(A, type, name, def, min, max) COLUMN(add_##name, n)
	COLUMN(rows, n)
	COLUMN(drop_row, n)
	COLUMN(copy_src, d->copy_max)
	COLUMN(copy_dst, d->copy_max)
	COLUMN(grow_row, n)
	COLUMN(grow_block, n)
	COLUMN(run_row, n)
	COLUMN(run_count, n)
	COLUMN(fork_row, n)
	COLUMN(fork_src, n)
	COLUMN(fork_seq, n)
	COLUMN(fork_block, n)
	COLUMN(set_row, n)
	COLUMN(set_token, n)
	COLUMN(add_row, n)
	COLUMN(add_seq, n)
	COLUMN(add_computed, n)
	COLUMN(add_prompt_count, n)
	COLUMN(add_token_count, n)
	COLUMN(add_block_count, n)
	COLUMN(add_stop_count, n)
	COLUMN(add_bias_count, n)
	SAMPLING_TABLE(PARAM_COLUMN, 0)
	COLUMN(add_stop_ids, n * STOP_IDS_MAX)
	COLUMN(add_bias_ids, n * BIAS_MAX)
	COLUMN(add_bias_values, n * BIAS_MAX)
	COLUMN(add_tokens, d->token_max)
	COLUMN(add_blocks, d->block_max)
	COLUMN(grammar_add, n)
	COLUMN(grammar_kind, n)
	COLUMN(grammar_flags, n)
	COLUMN(grammar_bytes, n)
	COLUMN(grammar_text, GRAMMARS_MAX)
	COLUMN(add_lora, n)
	COLUMN(load_slot, n)
	COLUMN(save_row, n)
	COLUMN(save_slot, n)
	COLUMN(save_tokens, n)
#undef PARAM_COLUMN
#undef COLUMN
	return offset;
}

/* The message's array pointers never change; only its counts do. */
static void bind_columns(struct step_diff *d)
{
	struct ipc_step *m = &d->msg;

#define BIND(name)				 m->name = d->name;
#define BIND_PARAM(A, type, name, def, min, max) BIND(add_##name)
	BIND(drop_row)
	BIND(copy_src)
	BIND(copy_dst)
	BIND(grow_row)
	BIND(grow_block)
	BIND(run_row)
	BIND(run_count)
	BIND(fork_row)
	BIND(fork_src)
	BIND(fork_seq)
	BIND(fork_block)
	BIND(set_row)
	BIND(set_token)
	BIND(add_row)
	BIND(add_seq)
	BIND(add_computed)
	BIND(add_prompt_count)
	BIND(add_token_count)
	BIND(add_tokens)
	BIND(add_block_count)
	BIND(add_blocks)
	BIND(add_stop_count)
	BIND(add_stop_ids)
	BIND(add_bias_count)
	BIND(add_bias_ids)
	BIND(add_bias_values)
	BIND(grammar_add)
	BIND(grammar_kind)
	BIND(grammar_flags)
	BIND(grammar_bytes)
	BIND(grammar_text)
	BIND(add_lora)
	BIND(load_slot)
	BIND(save_row)
	BIND(save_slot)
	BIND(save_tokens)
	SAMPLING_TABLE(BIND_PARAM, 0)
#undef BIND_PARAM
#undef BIND
}

enum err step_diff_init(struct step_diff *d, u32 row_max, u32 sequence_tokens, u32 sequence_blocks)
{
	ASSERT(row_max > 0 && row_max <= IPC_ROWS_MAX);
	memset(d, 0, sizeof(*d));
	d->row_max = row_max;
	d->token_max = sequence_tokens > ADD_TOKENS_MIN ? sequence_tokens : ADD_TOKENS_MIN;
	d->block_max = sequence_blocks > ADD_BLOCKS_MIN ? sequence_blocks : ADD_BLOCKS_MIN;
	d->copy_max = row_max + SWAPS_MAX;
	d->memory_bytes = lay_out(d, NULL);
	void *memory = region_reserve(d->memory_bytes);
	if (!memory)
		return ERR_NO_MEMORY;
	d->memory = memory;
	lay_out(d, memory);
	bind_columns(d);
	return ERR_OK;
}

void step_diff_fini(struct step_diff *d)
{
	region_release(d->memory, d->memory_bytes);
	memset(d, 0, sizeof(*d));
}

static void clear(struct step_diff *d)
{
	struct ipc_step *m = &d->msg;

	m->drop_row_count = m->copy_src_count = m->copy_dst_count = 0;
	m->grow_row_count = m->grow_block_count = 0;
	m->run_row_count = m->run_count_count = 0;
	m->fork_row_count = m->fork_src_count = m->fork_seq_count = m->fork_block_count = 0;
	m->set_row_count = m->set_token_count = 0;
	m->load_slot_count = m->save_row_count = m->save_slot_count = m->save_tokens_count = 0;
	if (m->add_row_count) {
#define CLEAR_PARAM(A, type, name, def, min, max) m->add_##name##_count = 0;
		m->add_row_count = m->add_seq_count = m->add_computed_count = 0;
		m->add_prompt_count_count = m->add_token_count_count = m->add_tokens_count = 0;
		m->add_block_count_count = m->add_blocks_count = 0;
		m->add_stop_count_count = m->add_stop_ids_count = 0;
		m->add_bias_count_count = m->add_bias_ids_count = m->add_bias_values_count = 0;
		m->grammar_add_count = m->grammar_kind_count = m->grammar_flags_count = 0;
		m->grammar_bytes_count = m->grammar_text_count = 0;
		m->add_lora_count = 0;
		SAMPLING_TABLE(CLEAR_PARAM, 0)
#undef CLEAR_PARAM
	}
	d->rows_run = d->tokens_run = 0;
	d->finished = false;
}

void step_diff_begin(struct step_diff *d)
{
	if (d->finished)
		clear(d);
}

void step_diff_reset(struct step_diff *d)
{
	clear(d);
	memset(d->rows, 0, d->row_max * sizeof(*d->rows));
	d->step = d->set_sum = d->computed_sum = 0;
}

void step_diff_drop(struct step_diff *d, u32 row, u32 computed)
{
	struct step_row *r = &d->rows[row];

	ASSERT(row < d->row_max && r->present);
	step_diff_begin(d);
	d->drop_row[d->msg.drop_row_count++] = row;
	d->set_sum -= r->set_sum;
	d->computed_sum -= computed;
	r->present = false;
}

void step_diff_copy(struct step_diff *d, u32 src, u32 dst)
{
	u32 i = d->msg.copy_src_count;

	ASSERT(i < d->copy_max);
	d->copy_src[i] = src;
	d->copy_dst[i] = dst;
	d->msg.copy_src_count = d->msg.copy_dst_count = i + 1;
}

bool step_diff_has_copy_room(const struct step_diff *d, u32 count)
{
	return (u64)d->msg.copy_src_count + count + d->row_max <= d->copy_max;
}

bool step_diff_has_room(const struct step_diff *d, u32 tokens, u32 blocks, u32 grammar_bytes)
{
	return d->msg.add_row_count < d->row_max && tokens <= d->token_max - d->msg.add_tokens_count &&
	       blocks <= d->block_max - d->msg.add_blocks_count &&
	       grammar_bytes <= GRAMMARS_MAX - d->msg.grammar_text_count;
}

static void put_block_item(struct step_diff *d, u32 row, u32 index, u32 block)
{
	u64 item = step_digest_block(row, index, block);

	d->rows[row].set_sum += item;
	d->set_sum += item;
}

static void set_add_counts(struct ipc_step *m, u32 n)
{
#define SET_PARAM(A, type, name, def, min, max) m->add_##name##_count = n;
	m->add_row_count = m->add_seq_count = m->add_computed_count = n;
	m->add_prompt_count_count = m->add_token_count_count = n;
	m->add_block_count_count = m->add_stop_count_count = m->add_bias_count_count = n;
	SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
}

void step_diff_add(struct step_diff *d, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		   const u32 *blocks)
{
	struct ipc_step *m = &d->msg;
	u32 i = m->add_row_count;
	struct step_row *r = &d->rows[q->row];

	ASSERT(q->row < d->row_max && !r->present);
	ASSERT(step_diff_has_room(d, q->known, q->block_count, x->grammar_bytes));
	d->add_row[i] = q->row;
	d->add_seq[i] = q->id;
	d->add_computed[i] = q->computed;
	d->add_prompt_count[i] = q->prompt_count;
	d->add_token_count[i] = q->known;
	d->add_block_count[i] = q->block_count;
	d->add_stop_count[i] = x->stop_count;
	d->add_bias_count[i] = x->bias_count;
#define ADD_PARAM(A, type, name, def, min, max) d->add_##name[i] = q->params.name;
	SAMPLING_TABLE(ADD_PARAM, 0)
#undef ADD_PARAM
	memcpy(d->add_tokens + m->add_tokens_count, tokens, q->known * sizeof(u32));
	memcpy(d->add_blocks + m->add_blocks_count, blocks, q->block_count * sizeof(u32));
	memcpy(d->add_stop_ids + m->add_stop_ids_count, x->stop_ids, x->stop_count * sizeof(u32));
	memcpy(d->add_bias_ids + m->add_bias_ids_count, x->bias_ids, x->bias_count * sizeof(u32));
	memcpy(d->add_bias_values + m->add_bias_values_count, x->bias_values, x->bias_count * sizeof(f32));
	m->add_tokens_count += q->known;
	m->add_blocks_count += q->block_count;
	m->add_stop_ids_count += x->stop_count;
	m->add_bias_ids_count += x->bias_count;
	m->add_bias_values_count += x->bias_count;
	set_add_counts(m, i + 1);
	if (x->lora && !m->add_lora_count) /* rows before it have none */
		memset(d->add_lora, 0, i * sizeof(u32));
	d->add_lora[i] = x->lora;
	if (x->lora || m->add_lora_count)
		m->add_lora_count = i + 1;

	*r = (struct step_row){step_digest_row(q->row, q->id, q->prompt_count, q->known, q->computed), q->known,
			       q->computed, true};
	d->set_sum += r->set_sum;
	d->computed_sum += q->computed;
	for (u32 j = 0; j < q->block_count; j++)
		put_block_item(d, q->row, j, blocks[j]);
}

void step_diff_constrain(struct step_diff *d, const struct seq_extra *x, const u8 *source)
{
	struct ipc_step *m = &d->msg;
	u32 i = m->grammar_add_count;

	ASSERT(m->add_row_count > 0 && (i == 0 || d->grammar_add[i - 1] < m->add_row_count - 1));
	d->grammar_add[i] = m->add_row_count - 1;
	d->grammar_kind[i] = x->grammar_kind;
	d->grammar_flags[i] = x->grammar_flags;
	d->grammar_bytes[i] = x->grammar_bytes;
	memcpy(d->grammar_text + m->grammar_text_count, source, x->grammar_bytes);
	m->grammar_add_count = m->grammar_kind_count = m->grammar_flags_count = m->grammar_bytes_count = i + 1;
	m->grammar_text_count += x->grammar_bytes;
}

void step_diff_load(struct step_diff *d, u32 slot)
{
	ASSERT(d->msg.add_row_count > d->msg.load_slot_count);
	d->load_slot[d->msg.load_slot_count++] = slot;
}

void step_diff_save(struct step_diff *d, u32 row, u32 slot, u32 tokens)
{
	u32 i = d->msg.save_row_count;

	ASSERT(i < d->row_max && d->rows[row].present);
	d->save_row[i] = row;
	d->save_slot[i] = slot;
	d->save_tokens[i] = tokens;
	d->msg.save_row_count = d->msg.save_slot_count = d->msg.save_tokens_count = i + 1;
}

void step_diff_fork(struct step_diff *d, const struct seq *q, u32 src, const u32 *blocks, u32 block)
{
	struct ipc_step *m = &d->msg;
	u32 i = m->fork_row_count;
	struct step_row *r = &d->rows[q->row];
	const struct step_row *from = &d->rows[src];

	ASSERT(i < d->row_max && !r->present && from->present);
	d->fork_row[i] = q->row;
	d->fork_src[i] = src;
	d->fork_seq[i] = q->id;
	d->fork_block[i] = block;
	m->fork_row_count = m->fork_src_count = m->fork_seq_count = m->fork_block_count = i + 1;
	*r = (struct step_row){.added_tokens = from->added_tokens, .added_computed = from->added_computed, .present = true};
	r->set_sum = step_digest_row(q->row, q->id, q->prompt_count, r->added_tokens, r->added_computed);
	d->set_sum += r->set_sum;
	d->computed_sum += q->computed;
	for (u32 j = 0; j < q->block_count; j++)
		put_block_item(d, q->row, j, blocks[j]);
}

void step_diff_set(struct step_diff *d, u32 row, u32 token)
{
	u32 i = d->msg.set_row_count;

	ASSERT(i < d->row_max && d->rows[row].present);
	d->set_row[i] = row;
	d->set_token[i] = token;
	d->msg.set_row_count = d->msg.set_token_count = i + 1;
}

void step_diff_grow(struct step_diff *d, u32 row, u32 index, u32 block)
{
	u32 i = d->msg.grow_row_count;

	ASSERT(i < d->row_max && d->rows[row].present);
	d->grow_row[i] = row;
	d->grow_block[i] = block;
	d->msg.grow_row_count = d->msg.grow_block_count = i + 1;
	put_block_item(d, row, index, block);
}

void step_diff_run(struct step_diff *d, u32 row, u32 count, u32 rule)
{
	if (count != rule) {
		u32 i = d->msg.run_row_count;
		ASSERT(i < d->row_max);
		d->run_row[i] = row;
		d->run_count[i] = count;
		d->msg.run_row_count = d->msg.run_count_count = i + 1;
	}
	d->rows_run += count != 0;
	d->tokens_run += count;
}

void step_diff_computed(struct step_diff *d, u32 count)
{
	d->computed_sum += count;
}

bool step_diff_is_empty(struct step_diff *d)
{
	if (d->tokens_run || d->msg.drop_row_count || d->msg.add_row_count || d->msg.grow_row_count ||
	    d->msg.fork_row_count || d->msg.set_row_count)
		return false;
	d->msg.run_row_count = d->msg.run_count_count = 0;
	return true;
}

const struct ipc_step *step_diff_finish(struct step_diff *d)
{
	d->msg.step = ++d->step;
	d->msg.digest = step_digest_step(d->step, d->set_sum, d->rows_run, d->tokens_run, d->computed_sum);
	d->computed_sum += d->tokens_run;
	d->finished = true;
	return &d->msg;
}
