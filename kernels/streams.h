/* Ops of models whose residual stream is several, which every layer mixes (AltUp; Baykal et al. 2023). A part of the op table (kernels.h), whose
 * rules hold here, too. Only the CPU has them. */
#ifndef TERCET_KERNELS_STREAMS_H
#define TERCET_KERNELS_STREAMS_H

#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KERN_STREAMS_MAX = 8 };

/* streams[t][q] = sum_p mix[t][q][p] * streams[t][p] (+ mix[t][q][count] * extra[t]), for all q at once; then out[t] = streams[t][pick] (* out_weight).
 * Sums are in rising order of p. */
struct kern_stream_mix_args {
	float *streams;		 /* [T][count][hidden], in place */
	const float *extra;	 /* [T][hidden], or NULL: there is none, and `mix` has no column for it */
	const float *mix;	 /* [T][mix_stride]: [count][count], with `extra` [count][count + 1] */
	float *out;		 /* [T][hidden], may be `extra`; or NULL */
	const float *out_weight; /* [hidden], or NULL: ones */
	u32 tokens, count, hidden;
	u32 mix_stride; /* 0: all tokens have the same */
	u32 pick;
};

/* Of each row the mean of its values and the sum of their squared distances from it: out[t] = {mean, sum}. In float, by a first pass for the mean and
 * a second one for the distances. A width of 0 makes zeros. */
struct kern_moments_args {
	float *out;	/* [T][2] */
	const float *x; /* [T][stride], of which the first `width` values are meant */
	u32 tokens, width, stride;
};

#ifdef __cplusplus
}
#endif

#endif
