/* LayerNorm with biases over the heads of q and k, before they rotate (arch.head_norm_biases). */
#ifndef TERCET_PROC_WORKER_MODEL_HEAD_NORM_H
#define TERCET_PROC_WORKER_MODEL_HEAD_NORM_H

#include "proc_worker/model/decoder.h"

/* Norms what is in d->qkv of `tokens` tokens, in place. Nothing happens in models without such norms. */
void head_norm(struct decoder *d, u32 index, u32 tokens);

#endif
