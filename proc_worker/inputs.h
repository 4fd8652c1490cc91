/* The arrays that the ops read in one step, made from the batch state. */
#ifndef TERCET_PROC_WORKER_INPUTS_H
#define TERCET_PROC_WORKER_INPUTS_H

#include "proc_worker/batch_state.h"

/* Row i of a step is run_rows[i] of the batch; tokens of a row are neighbours. Read-only outside inputs.c. */
struct inputs {
	u32 tokens, rows;
	u32 *ids, *positions; /* [tokens] */
	i64 *slots;	      /* [tokens] where the token's K and V go */
	u32 *query_start;     /* [rows + 1] */
	u32 *context;	      /* [rows] computed tokens after the step */
	u32 *prompt_count;    /* [rows] tokens of the prompt */
	u32 *added_count;     /* [rows] tokens known when the row was added */
	u32 *lora;	      /* [rows] number of the adapter; 0: none */
	u32 lora_rows;	      /* rows that have one */
	u32 *batch_rows;      /* [rows] the row of the batch: where recurrent layers keep its state */
	u32 *save_at, *save_slots; /* [rows] behind so many of the row's tokens its state goes into that slot, too; 0: it does not */
	u32 save_count;	      /* rows whose does */
	u32 *block_tables;    /* [rows][block_stride] */
	u32 block_stride;
	u32 *sample_index; /* [batch sample_count] token that the logits are of */
	bool last_only;	   /* set by whoever runs the step: of no other tokens than rows' last ones are logits wanted */

	u32 tokens_max, rows_max, samples_max;
	u64 *table_owner;  /* [rows_max] incarnation whose table stands in the row, and how much of it: tables
			      only */
	u32 *table_blocks; /* grow, so a steady step copies nothing */
	void *memory;
	size_t memory_bytes;
};

/* ERR_NO_MEMORY. */
MUST_CHECK enum err inputs_init(struct inputs *in, const struct batch_limits *limits, struct err_msg *em);
void inputs_fini(struct inputs *in);
/* Between batch_state_apply and batch_state_commit, behind the drafts where there are some. A row whose prompt is computed gets the token that was
 * sampled for it last. Never fails, never allocates. */
void inputs_build(struct inputs *in, const struct batch_state *b);

#endif
