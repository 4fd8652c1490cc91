/* Layers of lightning attention (RECURRENT_LIGHTNING; Qin et al. 2024): what stands before their recurrence and behind it, and the weights that no file has. */
#ifndef TERCET_PROC_WORKER_MODEL_LIGHTNING_H
#define TERCET_PROC_WORKER_MODEL_LIGHTNING_H

#include "proc_worker/model/recurrent.h"
#include "proc_worker/model/weights.h"

/* Queries, keys and values through the activation, in place. The errors of the op. */
MUST_CHECK enum err lightning_begin(struct decoder *d, const struct recurrent_layout *l, u32 tokens, struct err_msg *em);
/* The norm of all heads together, which ranks share, and the gate. All ranks call it together. Errors of the ops and of the collectives. */
MUST_CHECK enum err lightning_end(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em);
/* How many values SLOT_RATE_LOG, SLOT_DECAY_BIAS and SLOT_SKIP have on this rank, which are in no file; 0: of another slot, or no such layer. */
u32 lightning_plain_width(const struct weights_plan *p, enum weight_slot slot, u32 layer);
/* These: how fast heads forget follows from their numbers and the layer's. */
void lightning_plain_values(const struct weights_plan *p, enum weight_slot slot, u32 layer, float *out);

#endif
