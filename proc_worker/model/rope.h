/* Tables of rotary position embeddings (Su et al. 2021). */
#ifndef TERCET_PROC_WORKER_MODEL_ROPE_H
#define TERCET_PROC_WORKER_MODEL_ROPE_H

#include "proc_worker/inputs.h"
#include "proc_worker/model/config.h"

/* Angle per position of frequency `i` (0 .. dim/2 - 1) in a sequence of `length` tokens, scaling applied.
 * Only ROPE_DYNAMIC and ROPE_LONGROPE look at the length. */
double rope_frequency(const struct rope_config *r, u32 i, u32 length);

/* Cosines and sines [rows][dim / 2]; one allocation, owned. */
struct rope_tables {
	const struct rope_config *config; /* borrowed */
	float *cos, *sin;
	float *q_scales; /* [rows] what queries are multiplied by; NULL: nothing */
	u32 near; /* rows for sequences within the original context; row = position */
	u32 far; /* rows for longer ones, behind them: a row a position, or (ROPE_DYNAMIC) a token of the step
		  */
	u32 local; /* rows before those of layers with LAYER_LOCAL_ROPE, which may be of another width; 0: there are none */
	u32 rows;  /* of all of them */
	u32 *token_rows; /* [tokens_max] where a step's tokens need not be in the row of their position */
};
/* For sequences of up to `positions` tokens and steps of up to `tokens_max`. `local` (NULL: none): of layers that rotate
 * otherwise, and not by length; not kept. ERR_NO_MEMORY. */
MUST_CHECK enum err rope_tables_init(struct rope_tables *t, const struct rope_config *r,
				     const struct rope_config *local, u32 positions, u32 tokens_max,
				     struct err_msg *em);
void rope_tables_fini(struct rope_tables *t);

/* The rows of a step's tokens [tokens]; lives until the next call. A sequence longer than the original
 * context rotates otherwise from its first token on (longrope), or by its prompt's length and then token by
 * token (dynamic), as transformers does. */
const u32 *rope_tables_rows(struct rope_tables *t, const struct inputs *in);

#endif
