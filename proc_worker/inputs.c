/* Turns the rows of a step into flat arrays. Runs in the worker in every step; work follows the tokens of the
 * step and the blocks that are new. */
#include "proc_worker/inputs.h"

#include <string.h>

#include "common/assert.h"
#include "common/region.h"

static size_t lay_out(struct inputs *in, char *base)
{
	size_t tokens = in->tokens_max, rows = in->rows_max;
	size_t offset = 0;

	in->ids = region_carve(base, &offset, tokens * sizeof(u32));
	in->positions = region_carve(base, &offset, tokens * sizeof(u32));
	in->slots = region_carve(base, &offset, tokens * sizeof(i64));
	in->query_start = region_carve(base, &offset, (rows + 1) * sizeof(u32));
	in->context = region_carve(base, &offset, rows * sizeof(u32));
	in->prompt_count = region_carve(base, &offset, rows * sizeof(u32));
	in->added_count = region_carve(base, &offset, rows * sizeof(u32));
	in->lora = region_carve(base, &offset, rows * sizeof(u32));
	in->batch_rows = region_carve(base, &offset, rows * sizeof(u32));
	in->save_at = region_carve(base, &offset, rows * sizeof(u32));
	in->save_slots = region_carve(base, &offset, rows * sizeof(u32));
	in->sample_index = region_carve(base, &offset, in->samples_max * sizeof(u32));
	in->table_owner = region_carve(base, &offset, rows * sizeof(u64));
	in->table_blocks = region_carve(base, &offset, rows * sizeof(u32));
	in->block_tables = region_carve(base, &offset, rows * in->block_stride * sizeof(u32));
	return offset;
}

enum err inputs_init(struct inputs *in, const struct batch_limits *limits, struct err_msg *em)
{
	*in = (struct inputs){.tokens_max = limits->tokens_max,
			      .rows_max = limits->rows_max,
			      .samples_max = batch_samples_max(limits)};
	in->block_stride = (limits->max_model_len + limits->block_size - 1) / limits->block_size;
	in->memory_bytes = lay_out(in, NULL);
	void *memory = region_reserve(in->memory_bytes);
	if (!memory)
		return region_refuse(em, "cannot reserve %zu bytes for the inputs of a step; lower --max-num-seqs or --max-model-len",
				     in->memory_bytes);
	in->memory = memory;
	lay_out(in, memory);
	return ERR_OK;
}

void inputs_fini(struct inputs *in)
{
	region_release(in->memory, in->memory_bytes);
	*in = (struct inputs){0};
}

static void update_table(struct inputs *in, const struct batch_state *b, u32 i, u32 row)
{
	const struct batch_row *r = &b->rows[row];
	u32 have = in->table_owner[i] == r->incarnation ? in->table_blocks[i] : 0;

	memcpy(in->block_tables + (size_t)i * in->block_stride + have, batch_state_blocks(b, row) + have,
	       (r->block_count - have) * sizeof(u32));
	in->table_owner[i] = r->incarnation;
	in->table_blocks[i] = r->block_count;
}

static void add_tokens(struct inputs *in, const struct batch_state *b, u32 row, u32 run, u32 at)
{
	const u32 *tokens = batch_state_tokens(b, row);
	const u32 *blocks = batch_state_blocks(b, row);
	u32 block_size = b->limits.block_size;
	u32 computed = b->computed[row];

	if (run == 1) {
		in->ids[at] = computed + 1 == b->known[row] ? b->last_token[row] : tokens[computed];
		in->positions[at] = computed;
		in->slots[at] = (i64)blocks[computed / block_size] * block_size + computed % block_size;
		return;
	}
	for (u32 i = 0; i < run; i++) {
		u32 position = computed + i;
		in->ids[at + i] = tokens[position];
		in->positions[at + i] = position;
		in->slots[at + i] = (i64)blocks[position / block_size] * block_size + position % block_size;
	}
}

void inputs_build(struct inputs *in, const struct batch_state *b)
{
	u32 at = 0, samples = 0;

	in->lora_rows = 0;
	in->save_count = b->save_count;
	ASSERT(b->applied && b->run_row_count <= in->rows_max && b->tokens_run + b->draft_count <= in->tokens_max &&
	       b->sample_count <= in->samples_max);
	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i];
		u32 drafts = b->drafts[row], run = b->run[row] + drafts;
		add_tokens(in, b, row, run, at);
		update_table(in, b, i, row);
		in->query_start[i] = at;
		in->context[i] = b->computed[row] + run;
		in->prompt_count[i] = b->rows[row].prompt_count;
		in->added_count[i] = b->rows[row].added_tokens;
		in->lora[i] = b->rows[row].lora;
		in->lora_rows += in->lora[i] != 0;
		in->batch_rows[i] = row;
		in->save_at[i] = b->save_tokens[row] ? b->save_tokens[row] - b->computed[row] : 0;
		in->save_slots[i] = b->limits.rows_max + b->save_slot[row];
		at += run;
		if (in->context[i] == b->known[row] + drafts)
			for (u32 first = at - 1 - drafts; first < at; first++)
				in->sample_index[samples++] = first;
	}
	in->query_start[b->run_row_count] = at;
	in->rows = b->run_row_count;
	in->tokens = at;
	ASSERT(at == b->tokens_run + b->draft_count && samples == b->sample_count);
}
