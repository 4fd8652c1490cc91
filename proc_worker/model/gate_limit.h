/* Bounds of an MLP's gate and of what it multiplies, before the activation. */
#ifndef TERCET_PROC_WORKER_MODEL_GATE_LIMIT_H
#define TERCET_PROC_WORKER_MODEL_GATE_LIMIT_H

#include "kernels/kernels.h"
#include "proc_worker/model/config.h"

/* gate_up [tokens][2 size], gates before the others: gates above l->gate become that, and the others are brought to -l->up .. l->up. Nothing where
 * l->up is 0. Never fails. */
void gate_limit(struct kern_ctx *ctx, const struct gate_limit *l, float *gate_up, u32 tokens, u32 size);

#endif
