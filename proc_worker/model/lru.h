/* Layers with a real-gated linear recurrent unit (RECURRENT_LRU): what stands between their convolution and their last product. */
#ifndef TERCET_PROC_WORKER_MODEL_LRU_H
#define TERCET_PROC_WORKER_MODEL_LRU_H

#include "proc_worker/model/recurrent.h"

/* Values of a token that each of its two gates has on this rank; 0: the model has no such layers. */
u32 lru_width(const struct model_config *m, const struct model_shard *s);

/* From what decoder.qkv has behind the convolution to what the recurrence makes of it, weighed by the activated branch beside it, in place, of the tokens of
 * the rows of `state`, whose data is the recurrence's; in decoder.low and decoder.steps lie the gates. Errors of the ops. */
MUST_CHECK enum err lru_recur(struct decoder *d, u32 index, const struct recurrent_layout *l, const struct kern_state *state, struct err_msg *em);

#endif
