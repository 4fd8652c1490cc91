/* Mixtures of experts on all ranks, and those that stand beside a layer's MLP and read the stream as it does: of Gemma 4, whose experts have norms of their own, and of
 * layers with LAYER_SHORTCUT, whose experts' answer is added behind the next layer (LongCat Flash; Cai et al. 2024). */
#ifndef TERCET_PROC_WORKER_MODEL_EXPERTS_BESIDE_H
#define TERCET_PROC_WORKER_MODEL_EXPERTS_BESIDE_H

#include "proc_worker/model/decoder.h"

/* The errors of all are those of the ops and of the collectives, whose buffer they use: every rank calls them for as many tokens. */

/* out = what the experts of all ranks together make of `x`, chosen by `routed`; all [tokens][hidden]. */
MUST_CHECK enum err experts_sum(struct decoder *d, const struct layer_weights *w, const float *x, const float *routed, float *out, u32 tokens,
				struct err_msg *em);

/* Adds to d->delta, what the MLP of a layer has left beside the stream, what its experts make of that, after a norm each. */
MUST_CHECK enum err experts_beside_add(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em);

/* d->shortcut = what the experts of a layer make of d->input, the stream normed for its MLP. */
MUST_CHECK enum err experts_shortcut(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em);
/* Adds that to the stream, behind the layer after it. */
MUST_CHECK enum err experts_shortcut_add(struct decoder *d, u32 tokens, struct err_msg *em);

/* What one rank adds to what experts say together, out [tokens][hidden]; `bias` [hidden] or NULL. */
void experts_add_bias(const struct decoder *d, float *out, const float *bias, u32 tokens);

#endif
