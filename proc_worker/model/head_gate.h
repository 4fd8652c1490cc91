/* What heads' outputs are weighed by, in families with gates of heads. */
#ifndef TERCET_PROC_WORKER_MODEL_HEAD_GATE_H
#define TERCET_PROC_WORKER_MODEL_HEAD_GATE_H

#include "proc_worker/model/decoder.h"

/* Multiplies what the heads of layer `index` have made of `tokens` tokens, in place, by what lies behind q, k and v: after a sigmoid, or softplus of
 * families with arch.gate_softplus, a number for each value or, with model_config.gate_by_head, for each head. Nothing happens in models without
 * output_gate, nor in those of latent attention. Errors are those of the op. */
MUST_CHECK enum err head_gate(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* The same of latent attention, of decoder.values, by what is in front of decoder.low's rows: always after a sigmoid. */
void head_gate_values(struct decoder *d, u32 index, u32 tokens);

#endif
