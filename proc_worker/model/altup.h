/* Several residual streams of a token (AltUp; Baykal et al. 2023), of families with arch.altup. One of them is active: a layer reads it and adds to
 * it. Before the layer all streams are predicted, each a sum of all with weights that the active one decides (`altup_predict`); behind it each is
 * corrected by what the layer has made of the active one's prediction, with weights that this decides (`altup_correct`). The others begin as
 * products of the embedding, and become one again by products of their own. Every rank computes all of it. */
#ifndef TERCET_PROC_WORKER_MODEL_ALTUP_H
#define TERCET_PROC_WORKER_MODEL_ALTUP_H

#include "proc_worker/model/decoder.h"

/* Lays out d->altup in the decoder's memory from `*offset` on, which moves behind it, for so many tokens of a step and rows of logits. Nothing
 * where the family has one stream. */
void altup_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens, size_t rows);

/* The errors of the following are those of ops. `tokens`: of the step, or what it was narrowed to. */

/* Makes the streams of d->x, the embeddings, and leaves the active one there. */
MUST_CHECK enum err altup_begin(struct decoder *d, u32 tokens, struct err_msg *em);
/* Predicts all streams for layer `index` by the active one, d->x, and leaves its prediction there. */
MUST_CHECK enum err altup_predict(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* Adds to d->x what the layer makes of its norm, d->normed, beside attention: the norm itself and a low-rank product of it. */
MUST_CHECK enum err altup_laurel(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* Corrects all streams by d->x plus d->delta, what the layer has made of the active one's prediction, adds the layer's own input of a token to all
 * but the first, and leaves the active one in d->x. */
MUST_CHECK enum err altup_correct(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);
/* Rows' last tokens, which d->last has, to the front. */
void altup_narrow(struct decoder *d, u32 rows);
/* Takes the streams of the token that is at `at` for row `row` < logit_rows_max of altup_collapse. */
void altup_pick(struct decoder *d, u32 row, u32 at);
/* d->picked[r] = what the streams of row r are together, for the first `count` rows that were picked. */
MUST_CHECK enum err altup_collapse(struct decoder *d, u32 count, struct err_msg *em);

#endif
