/* From logits to tokens: bias, penalties, masks, sampling and log-probabilities of the rows that sample in a
 * step. */
#ifndef TERCET_PROC_WORKER_SAMPLER_H
#define TERCET_PROC_WORKER_SAMPLER_H

#include "kernels/kernels.h"
#include "proc_worker/batch_state.h"

struct sampler_config {
	u32 rows_max, vocab, max_model_len;
	u32 samples_max; /* of a step; 0: rows_max */
	const u32 *eos_ids; /* borrowed */
	u32 eos_count;
};

struct sampler;

/* Columns of a RESULT; room for samples_max entries and samples_max * (LOGPROBS_MAX + 1) ids. Counts are those of
 * the last sampler_run. */
struct sampler_logprobs {
	u32 *entry, *count, *rank; /* [entries]; entry: index into the samples */
	u32 *ids;		   /* [id_count], concatenated */
	f32 *values;
	u32 entries, id_count;
};

/* ERR_NO_MEMORY. The caller owns `*out`. */
MUST_CHECK enum err sampler_create(struct sampler **out, const struct sampler_config *config,
				   struct err_msg *em);
void sampler_destroy(struct sampler **s);

/* Between batch_state_apply and batch_state_commit: `logits` [sample_count][vocab] (changed in place) give
 * tokens[sample_count]. `allowed`: of struct constraints_step, or NULL. Log-probabilities are those of the logits before any change, of beams those behind all changes.
 * Never allocates.
 * Errors are those of the ops. */
MUST_CHECK enum err sampler_run(struct sampler *s, const struct kern_ops *ops, struct kern_ctx *ctx,
				const struct batch_state *b, const u32 *const *allowed, float *logits,
				u32 *tokens, struct sampler_logprobs *lp, struct err_msg *em);

#endif
