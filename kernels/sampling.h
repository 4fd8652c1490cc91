/* Ops between the last product and a token: logits, sample and logprobs. A part of the op table (kernels.h), whose rules hold here, too. */
#ifndef TERCET_KERNELS_SAMPLING_H
#define TERCET_KERNELS_SAMPLING_H

#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Per row of logits, in place, in this order: logit_bias, repetition penalty (over prompt and outputs; CTRL: positive logits divided, negative
 * multiplied), frequency and presence penalties (over outputs), masking of ids to -inf, masking of all ids but those of a set. */
struct kern_logits_row {
	float *logits; /* [V] */
	float repetition_penalty, presence_penalty, frequency_penalty;
	const u32 *seen_ids;	 /* distinct ids of prompt and outputs */
	const u32 *seen_outputs; /* how often each of seen_ids was an output (0: only in the prompt) */
	u32 seen_count;
	/* Where `counts` is not NULL, instead of those lists the tokens themselves, as many as are known when the op runs. */
	const u32 *tokens, *known; /* [*known], [1] */
	u32 prompt_count;	   /* the first ones */
	u32 *counts;		   /* [V] zeros, and zeros again afterwards; of this row alone */
	const u32 *bias_ids; /* distinct */
	const float *bias_values;
	u32 bias_count;
	const u32 *masked_ids; /* set to -inf (min_tokens) */
	u32 masked_count;
	const u32 *allowed; /* [(V + 31) / 32] bit i % 32 of word i / 32: clear sets id i to -inf (grammars); NULL: all stay */
};
struct kern_logits_args {
	const struct kern_logits_row *rows;
	u32 row_count, vocab;
};

/* One token per row. temperature 0: arg-max, ties to the lowest id. Else, of softmax(logits / temperature)
 * restricted by top_k, then top_p (smallest set of the most probable that reaches top_p, at least one), then
 * min_p (relative to the best), by Gumbel-max with Philox-4x32-10 (Salmon et al. 2011) keyed by seed, counter
 * (position, id / 4): the same request gives the same token whatever shares its batch. */
struct kern_sample_row {
	const float *logits; /* [V], processed */
	float temperature, top_p, min_p;
	u32 top_k;
	u64 seed;
	u32 position; /* number of this output in the request */
};
struct kern_sample_args {
	const struct kern_sample_row *rows;
	u32 *tokens; /* out [row_count] */
	u32 row_count, vocab;
};

/* log softmax of raw logits: of `token` and of the `top` best (ties to the lowest id; on devices at most 256),
 * and the rank of `token` from 1. */
struct kern_logprobs_row {
	const float *logits; /* [V] */
	u32 token, top;
	u32 *ids;      /* out [1 + top]: token first, then the best */
	float *values; /* out [1 + top] */
	u32 *rank;     /* out */
	const u32 *sampled; /* devices: where the token will stand when the kernel runs, instead of `token`; or NULL */
};
struct kern_logprobs_args {
	const struct kern_logprobs_row *rows;
	u32 row_count, vocab;
};

#ifdef __cplusplus
}
#endif
#endif
