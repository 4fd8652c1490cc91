/* Norms over all heads of q and of k, which some families have (ARCH_QK_NORMS), as the ops of kernels/kernels.h are told of
 * them: the same on CPUs and on devices. */
#ifndef TERCET_PROC_WORKER_MODEL_QK_NORM_H
#define TERCET_PROC_WORKER_MODEL_QK_NORM_H

#include "kernels/kernels.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/weights.h"

struct qk_norm_args {
	struct kern_qk_squares_args squares; /* first: sums of squares of this rank's heads */
	struct kern_qk_norm_args norm;	     /* then, with the sums of all ranks together */
};

/* For `tokens` rows of `qkv` [tokens][w->qkv.n], in place. The rank's sums go to `own` [tokens][2], those of all ranks are
 * read from `all` [tokens][2]; with one rank, or where ranks add them in place, the two are one. All pointers are borrowed,
 * and all of memory that the ops compute in. */
void qk_norm_args_init(struct qk_norm_args *a, const struct model_config *m, const struct model_shard *s,
		       const struct layer_weights *w, u32 tokens, float *qkv, float *own, const float *all);

#endif
