/* Tables of rotary position embeddings (Su et al. 2021). */
#ifndef TERCET_PROC_WORKER_MODEL_ROPE_H
#define TERCET_PROC_WORKER_MODEL_ROPE_H

#include "proc_worker/model/config.h"

/* Angle per position of frequency `i` (0 .. dim/2 - 1), scaling applied. */
double rope_frequency(const struct rope_config *r, u32 i);

/* Cosines and sines [positions][dim / 2]; one allocation, owned. */
struct rope_tables {
	float *cos, *sin;
	u32 positions;
};
MUST_CHECK enum err rope_tables_init(struct rope_tables *t, const struct rope_config *r, u32 positions,
				     struct err_msg *em);
void rope_tables_fini(struct rope_tables *t);

#endif
