/* Decays of Kimi delta attention that end at a bound (Ling 3's "kda_safe_gate"). */
#ifndef TERCET_PROC_WORKER_MODEL_DECAY_BOUND_H
#define TERCET_PROC_WORKER_MODEL_DECAY_BOUND_H

#include "kernels/kernels.h"

/* Of what decays are made of, and what by. */
struct decay_bound_args {
	float *decay;		   /* [tokens][stride], of which heads * key_dim are a token's */
	const float *bias, *rate_log; /* [heads * key_dim], [heads] */
	u32 tokens, heads, key_dim, stride;
	float bound; /* above 0 */
};

/* Turns each x into what kern_recurrent_args makes the decay exp(-bound sigmoid(exp(rate_log) (x + bias))) of by itself, with a bias and a rate_log of 0. */
void decay_bound(struct kern_ctx *ctx, const struct decay_bound_args *a);

#endif
