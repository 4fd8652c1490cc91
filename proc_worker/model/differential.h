/* Differential attention (arch.differential; Ye et al. 2024): of two heads that read the same values what the second attends to is taken from what the first
 * does. Keys are there twice, with either half of the values, so that ordinary attention computes what each head makes of both. */
#ifndef TERCET_PROC_WORKER_MODEL_DIFFERENTIAL_H
#define TERCET_PROC_WORKER_MODEL_DIFFERENTIAL_H

#include "proc_worker/model/decoder.h"

/* From what attention has left in decoder.qkv to decoder.values, [tokens][half as many values], what the last product reads. */
void differential_combine(struct decoder *d, u32 index, u32 tokens);

#endif
