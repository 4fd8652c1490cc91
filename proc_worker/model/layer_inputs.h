/* What every layer adds of a token by itself (Gemma 4's per-layer embeddings): a row of a table of its own and a projection of the token's
 * embedding, together and for all layers before the first; behind a layer's MLP they are weighed by the stream and go into it. */
#ifndef TERCET_PROC_WORKER_MODEL_LAYER_INPUTS_H
#define TERCET_PROC_WORKER_MODEL_LAYER_INPUTS_H

#include "proc_worker/model/decoder.h"

/* decoder.inputs from the step's tokens and their embeddings, which are the stream. The errors of the ops. */
MUST_CHECK enum err layer_inputs_begin(struct decoder *d, const struct inputs *in, struct err_msg *em);
/* The rows' last tokens move to the front, of layers from `index` on. */
void layer_inputs_narrow(struct decoder *d, u32 index, u32 rows);
/* decoder.delta from the stream, to which everything has been added, and what layer `index` has of its tokens. The errors of the ops. */
MUST_CHECK enum err layer_inputs_add(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);

#endif
