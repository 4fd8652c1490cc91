/* What the files of the batch state share. */
#ifndef TERCET_PROC_WORKER_BATCH_STATE_PRIV_H
#define TERCET_PROC_WORKER_BATCH_STATE_PRIV_H

#include "proc_worker/batch_state.h"

/* Columns that belong together are equally long, and concatenated ones as long as their counts say. ERR_INVALID. */
MUST_CHECK enum err batch_state_check_columns(const struct ipc_step *s, struct err_msg *em);
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

#endif
