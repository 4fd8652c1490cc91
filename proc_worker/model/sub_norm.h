/* Norms of what the last products of attention and of an MLP read, over what all ranks have of a token together (BitNet; Wang et al. 2022). */
#ifndef TERCET_PROC_WORKER_MODEL_SUB_NORM_H
#define TERCET_PROC_WORKER_MODEL_SUB_NORM_H

#include "proc_worker/model/decoder.h"

/* x[t] = RMSNorm of x[t] * weight, in place, for `tokens` rows [width] that are `stride` floats apart: this rank's part of rows [total].
 * With `weight` NULL nothing happens. Ranks tell each other two numbers a token, so that all of them must call it for as many tokens; what is in
 * the collectives' buffer is lost. Errors are those of the ops and of the collectives. */
MUST_CHECK enum err sub_norm(struct decoder *d, float *x, const float *weight, u32 tokens, u32 stride, u32 width, u32 total, struct err_msg *em);

/* Rows of a norm, as above. */
struct sub_norm_rows {
	u32 tokens, stride, width, total;
};
/* The same with an epsilon of its own. */
MUST_CHECK enum err sub_norm_by(struct decoder *d, float *x, const float *weight, const struct sub_norm_rows *rows, f32 eps, struct err_msg *em);

#endif
