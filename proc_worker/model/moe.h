/* A layer's mixture of experts: router, the products of the chosen experts, their weighted sum. With several
 * ranks each holds a share of every expert's intermediate values, so that all have the same work whatever is
 * chosen; what comes out is this rank's part of the sum. */
#ifndef TERCET_PROC_WORKER_MODEL_MOE_H
#define TERCET_PROC_WORKER_MODEL_MOE_H

#include "proc_worker/model/config.h"
#include "proc_worker/model/weights.h"

struct moe {
	const struct model_config *model;
	const struct model_shard *shard;
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	u32 layer; /* which runs: the caller says it before */
	u32 tokens_max; /* worked on at a time; a token's result does not depend on it */
	/* [tokens_max * experts_per_token][...], owned by the decoder */
	float *gate_up, *activated, *down;
	u32 *tokens_of;
	/* [tokens_max][...] */
	float *router_logits, *weights;
	u32 *assignments;
	float *factors; /* [tokens_max * experts_per_token] what gate and up are multiplied by; NULL: nothing */
	u32 *expert_start; /* [experts + 1] */
	/* Of the expert of all tokens, where there is one. [tokens_max][...] */
	float *shared_gate_up, *shared_activated, *shared, *shared_gate;
	/* Of experts of another width than the stream: what they read and what they say. [tokens_max][experts_narrow] */
	float *narrow_in, *narrow_out;
};

/* For steps of up to `step_tokens`. Lays the buffers out from `base` on (NULL: only counts) and returns their
 * bytes; 0 for a model without experts. */
size_t moe_lay_out(struct moe *m, const struct model_config *model, const struct model_shard *shard,
		   u32 step_tokens, char *base);

/* out[t] = this rank's part of the experts' answer to x[t], who are chosen by routed[t]; all [tokens][hidden]. The errors of the ops. */
MUST_CHECK enum err moe_run(struct moe *m, const struct layer_weights *w, const float *x, const float *routed, float *out,
			    u32 tokens, struct err_msg *em);

/* How `model` routes a layer's tokens: all of `a` but its arrays and the number of tokens, which are zeroed. */
void moe_route_args_init(struct kern_moe_route_args *a, const struct model_config *model, const struct layer_weights *w);

#endif
