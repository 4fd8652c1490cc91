/* Slopes of ALiBi (Press et al. 2022): what a head's scores fall by from a key to the one before it. */
#ifndef TERCET_PROC_WORKER_MODEL_ALIBI_H
#define TERCET_PROC_WORKER_MODEL_ALIBI_H

#include "proc_worker/model/config.h"

/* Those of heads [first, first + count) of a model with c->alibi, into `out` [count]. */
void alibi_slopes(const struct model_config *c, u32 first, u32 count, float *out);

/* Sine and cosine of every position of a family with arch.sinusoids (Vaswani et al. 2017), [count][hidden]. The position that `padding` is the row of
 * (config.sinusoid_padding) is zeros. */
void sinusoids_fill(float *out, u32 count, u32 hidden, u32 padding);

#endif
