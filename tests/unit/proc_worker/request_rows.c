#include "tests/unit/proc_worker/request_rows.h"

#include <criterion/criterion.h>
#include <string.h>

void request_take_logprobs(struct driver_request *q, u32 output, const struct logprob_list *l)
{
	q->lp_count[output] = l->count;
	q->lp_rank[output] = l->rank;
	memcpy(q->lp_ids[output], l->ids, l->count * sizeof(u32));
	memcpy(q->lp_values[output], l->values, l->count * sizeof(f32));
}

void request_take_prompt_logprobs(struct driver_request *q, u32 position, const struct logprob_list *l)
{
	q->plp_count[position] = l->count;
	q->plp_rank[position] = l->rank;
	memcpy(q->plp_ids[position], l->ids, l->count * sizeof(u32));
	memcpy(q->plp_values[position], l->values, l->count * sizeof(f32));
}

void request_rows_init(struct request_rows *r, u32 blocks)
{
	cr_assert_leq(blocks, ROW_BLOCKS_MAX);
	for (u32 i = 0; i < blocks; i++)
		r->free_blocks[i] = i;
	r->free_count = blocks;
	for (u32 i = 0; i < MIRROR_ROWS; i++)
		r->of_row[i] = -1;
}

u32 request_rows_draw(struct request_rows *r)
{
	r->random = r->random * 6364136223846793005u + 1442695040888963407u;
	return (u32)(r->random >> 33);
}

u32 request_rows_take_block(struct request_rows *r)
{
	cr_assert_gt(r->free_count, 0);
	u32 at = request_rows_draw(r) % r->free_count, block = r->free_blocks[at];

	r->free_blocks[at] = r->free_blocks[--r->free_count];
	return block;
}

u32 request_rows_take_blocks(struct request_rows *r, u32 request, u32 blocks[MIRROR_BLOCKS])
{
	const struct driver_request *q = &r->requests[request];
	u32 count = (q->prompt_count + q->outputs + r->block_size - 1) / r->block_size;

	for (u32 i = 0; i < count; i++)
		blocks[i] = request_rows_take_block(r);
	return count;
}

void request_rows_add(struct request_rows *r, struct mirror *m, u32 row, u32 request, const u32 *blocks, u32 block_count,
		      u32 computed)
{
	const struct driver_request *q = &r->requests[request];
	u32 tokens[MIRROR_TOKENS];

	memcpy(tokens, q->prompt, q->prompt_count * sizeof(u32));
	memcpy(tokens + q->prompt_count, q->output, q->outputs * sizeof(u32));
	struct mirror_add a = {.row = row,
			       .seq = ++r->next_seq,
			       .tokens = tokens,
			       .token_count = q->prompt_count + q->outputs,
			       .prompt_count = q->prompt_count,
			       .computed = computed,
			       .blocks = blocks,
			       .block_count = block_count,
			       .params = q->params,
			       .lora = q->lora,
			       .stop_ids = q->stop_ids,
			       .stop_count = q->stop_count,
			       .bias_ids = q->bias_ids,
			       .bias_values = q->bias_values,
			       .bias_count = q->bias_count};
	mirror_add(m, &a);
	r->of_row[row] = (int)request;
}

void request_rows_drop(struct request_rows *r, struct mirror *m, u32 row)
{
	const struct mirror_row *old = &m->rows[row];

	for (u32 i = 0; i < old->block_count; i++)
		r->free_blocks[r->free_count++] = old->blocks[i];
	mirror_drop(m, row);
	r->of_row[row] = -1;
}

void request_rows_plan(struct request_rows *r, struct mirror *m, u32 pause_every)
{
	u32 budget = r->tokens_max - r->rows_max;

	for (u32 row = 0; row < r->rows_max; row++) {
		struct mirror_row *one = &m->rows[row];
		if (!one->present)
			continue;
		u32 left = one->known - one->computed;
		if (left > 1) {
			u32 run = left < r->chunk ? left : r->chunk;
			run = run < budget ? run : budget;
			budget -= run;
			mirror_run(m, row, run);
		} else if (one->computed + 1 > one->block_count * r->block_size) {
			mirror_grow(m, row, request_rows_take_block(r));
		} else if (pause_every && request_rows_draw(r) % pause_every == 0) {
			mirror_run(m, row, 0);
		}
	}
}
