/* Several residual streams that are gated (hyper-connections; Zhu et al. 2024), of families with arch.hyper: what a block reads is a sum of all streams, and
 * each stream adds what the block says, both by weights that all streams decide. All begin as the embedding, and behind the last layer a sum of them is
 * the one that the final norm reads. Every rank computes all of it. */
#ifndef TERCET_PROC_WORKER_MODEL_HYPER_H
#define TERCET_PROC_WORKER_MODEL_HYPER_H

#include "proc_worker/model/decoder.h"

/* Lays out d->hyper in the decoder's memory from `*offset` on, which moves behind it, for so many tokens of a step and rows of logits. Nothing where the
 * family has no such streams. */
void hyper_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens, size_t rows);

/* The errors of the following are those of ops. `tokens`: of the step, or what it was narrowed to. In models without such streams nothing happens. */

/* Makes all streams of d->x, the embeddings. */
void hyper_begin(struct decoder *d, u32 tokens);
/* Leaves in d->x what a block reads, by the weights `w`, and keeps how much of what it says each stream adds. */
MUST_CHECK enum err hyper_gather(struct decoder *d, const struct hyper_weights *w, u32 tokens, struct err_msg *em);
/* Adds d->delta, which the block has left, to all streams. */
void hyper_add(struct decoder *d, u32 tokens);
/* Rows' last tokens, which d->last has, to the front. */
void hyper_narrow(struct decoder *d, u32 rows);
/* Takes the streams of the token that is at `at` for row `row` < logit_rows_max of hyper_collapse. */
void hyper_pick(struct decoder *d, u32 row, u32 at);
/* d->picked[r] = what the streams of row r are together, for the first `count` rows that were picked. */
MUST_CHECK enum err hyper_collapse(struct decoder *d, u32 count, struct err_msg *em);

#endif
