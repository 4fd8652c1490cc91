/* What the files of the batch state share. */
#ifndef TERCET_PROC_WORKER_BATCH_STATE_PRIV_H
#define TERCET_PROC_WORKER_BATCH_STATE_PRIV_H

#include "proc_worker/batch_state.h"

/* Columns that belong together are equally long, and concatenated ones as long as their counts say. ERR_INVALID. */
MUST_CHECK enum err batch_state_check_columns(const struct ipc_step *s, struct err_msg *em);
/* What a step does to rows before any runs: drops, copies of blocks, adds with their states, grammars and adapters, forks, sets and grows, in this
 * order. The columns are checked. ERR_INVALID: some of it is done, and the state of no use. */
MUST_CHECK enum err batch_state_change_rows(struct batch_state *b, const struct ipc_step *s, struct err_msg *em);
/* Whether `row`, element `index` of the column `field`, is one that holds a sequence. ERR_INVALID. */
MUST_CHECK enum err batch_state_check_present(const struct batch_state *b, const char *field, u32 index, u32 row, struct err_msg *em);
/* The grammars of the rows that were just added. ERR_INVALID. */
MUST_CHECK enum err batch_state_add_grammars(struct batch_state *b, const struct ipc_step *s, struct err_msg *em);
/* The adapters of the rows that were just added. ERR_INVALID. */
MUST_CHECK enum err batch_state_add_loras(struct batch_state *b, const struct ipc_step *s, struct err_msg *em);
/* The states that rows which were just added begin with. ERR_INVALID. */
MUST_CHECK enum err batch_state_load(struct batch_state *b, const struct ipc_step *s, struct err_msg *em);
/* When it is known what runs: the states that are saved. ERR_INVALID. */
MUST_CHECK enum err batch_state_save(struct batch_state *b, const struct ipc_step *s, struct err_msg *em);

/* Of a step with drafts, before it ends: what came true is computed. */
void batch_state_count_drafts(struct batch_state *b);

/* Of both pools. */
static inline size_t batch_state_block_total(const struct batch_limits *l)
{
	return (size_t)l->block_count + l->host_block_count;
}

#endif
