/* Which request is in which row, and with which blocks: what the drivers of a runner (driver.h) and of a device's engine
 * (device_run.h) share. Everything is drawn from a seed. For tests. */
#ifndef TERCET_TESTS_REQUEST_ROWS_H
#define TERCET_TESTS_REQUEST_ROWS_H

#include "tests/unit/proc_worker/step_builder.h"

enum { ROW_BLOCKS_MAX = 512 };

struct driver_request {
	const u32 *prompt;
	u32 prompt_count;
	u32 output_count;		      /* wanted */
	const struct sampling_params *params; /* NULL: greedy */
	const u32 *stop_ids;
	u32 stop_count;
	const u32 *bias_ids;
	const f32 *bias_values;
	u32 bias_count;
	u32 lora;	      /* number of the adapter; 0: none */
	float *prompt_logits; /* [prompt_count][vocab] of the caller, or NULL */
	/* What came out. */
	u32 output[MIRROR_TOKENS];
	u32 outputs;
	u32 lp_ids[64][LOGPROBS_MAX + 1]; /* of the first outputs */
	f32 lp_values[64][LOGPROBS_MAX + 1];
	u32 lp_count[64], lp_rank[64];
	u32 plp_ids[MIRROR_TOKENS][LOGPROBS_MAX + 1];
	f32 plp_values[MIRROR_TOKENS][LOGPROBS_MAX + 1];
	u32 plp_count[MIRROR_TOKENS], plp_rank[MIRROR_TOKENS];
};

/* The entries of a list of log-probabilities that are of one token. */
struct logprob_list {
	u32 count, rank;
	const u32 *ids;
	const f32 *values;
};

void request_take_logprobs(struct driver_request *q, u32 output, const struct logprob_list *l);
void request_take_prompt_logprobs(struct driver_request *q, u32 position, const struct logprob_list *l);

struct request_rows {
	u32 rows_max, tokens_max, block_size;
	u32 chunk; /* prompt tokens of one row in a step */
	u64 random, next_seq;
	struct driver_request *requests; /* borrowed */
	int of_row[MIRROR_ROWS];	 /* the request; -1: free */
	u32 free_blocks[ROW_BLOCKS_MAX], free_count;
};

/* All rows free, and `blocks` (at most ROW_BLOCKS_MAX) blocks. */
void request_rows_init(struct request_rows *r, u32 blocks);
/* 31 random bits. */
u32 request_rows_draw(struct request_rows *r);
/* Any that is free, so that tables are not contiguous. There must be one. */
u32 request_rows_take_block(struct request_rows *r);
/* Blocks for the tokens that the request has; how many. */
u32 request_rows_take_blocks(struct request_rows *r, u32 request, u32 blocks[MIRROR_BLOCKS]);
/* Puts the request into a free row, `computed` of its tokens with the KV that these blocks have. */
void request_rows_add(struct request_rows *r, struct mirror *m, u32 row, u32 request, const u32 *blocks, u32 block_count,
		      u32 computed);
/* Ends the row and frees its blocks. */
void request_rows_drop(struct request_rows *r, struct mirror *m, u32 row);
/* Prompts in chunks within the budget, and a block for each row that needs one. One row in `pause_every` that decodes is
 * left out; 0: none. */
void request_rows_plan(struct request_rows *r, struct mirror *m, u32 pause_every);

#endif
