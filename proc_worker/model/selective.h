/* Layers of Mamba's first generation (RECURRENT_SELECTIVE): what stands between their convolution and their gate. */
#ifndef TERCET_PROC_WORKER_MODEL_SELECTIVE_H
#define TERCET_PROC_WORKER_MODEL_SELECTIVE_H

#include "proc_worker/model/recurrent.h"

/* Values of a token that x_proj makes, of all ranks together: what steps are made of, then keys and queries (B and C). */
u32 selective_low_width(const struct model_config *m);

/* From what decoder.qkv has behind the convolution to what the recurrence makes of it, in place, of the tokens of the rows of `state`, whose data is
 * the recurrence's; in decoder.low and decoder.steps lies what is made on the way. All ranks call it together. Errors of the ops and of the
 * collectives. */
MUST_CHECK enum err selective_recur(struct decoder *d, u32 index, const struct recurrent_layout *l, const struct kern_state *state, struct err_msg *em);

#endif
