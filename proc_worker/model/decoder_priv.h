/* What the files of the decoder share: one op each, with an error that names it. */
#ifndef TERCET_PROC_WORKER_MODEL_DECODER_PRIV_H
#define TERCET_PROC_WORKER_MODEL_DECODER_PRIV_H

#include "proc_worker/model/decoder.h"

/* Of the MLP's products at once. */
enum {
	MLP_TOKENS = 512, /* enough that weights are read seldom, few enough for a cache */
	MLP_TOKENS_ALONE = 256, /* of one thread, which has one core's caches */
};

static inline size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Places the arrays for a step of so many tokens: what a step has left there is lost. */
void decoder_lay_out(struct decoder *d, u32 tokens);

/* `e` as it is, with a text that names the op if it is an error. */
enum err decoder_failed(enum err e, const char *op, struct err_msg *em);

/* x += add, unless `add` is NULL, and then times decoder.scale, which is done with where x is the stream; out = the family's norm of x [tokens][hidden], unless `out` is NULL. */
enum err decoder_norm(struct decoder *d, float *out, float *x, const float *add, const float *weight, const float *bias, u32 tokens,
		      struct err_msg *em);

/* out [tokens][w->n] = x [tokens][w->k] times `w`, plus `bias`, unless that is NULL. `index`: the layer, by which the product after
 * this one is known. */
enum err decoder_product(struct decoder *d, float *out, const float *x, const struct kern_weight *w, const float *bias, u32 index,
			 u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- decoder_rows.c */

bool decoder_is_recurrent(const struct decoder *d, u32 index);
bool decoder_is_beside(const struct decoder *d, u32 index);
bool decoder_is_latent(const struct decoder *d, u32 index); /* attends to latents */
/* Floats from a token's queries, keys and values, or what a layer has instead or beside them, to the next one's; where in a row queries begin; and
 * where the layer's last product reads. */
u32 decoder_qkv_stride(const struct decoder *d, u32 index);
u32 decoder_attention_at(const struct decoder *d, u32 index);
u32 decoder_mixed_at(const struct decoder *d, u32 index);
/* Whether the last layer that writes K and V needs behind them no more than the last token of each row, and those behind it: of the others
 * nobody wants logits. */
bool decoder_narrows(const struct decoder *d, u32 index, const struct inputs *in);
/* Moves the rows' last tokens to the front. */
void decoder_narrow(struct decoder *d, u32 index, const struct inputs *in);

#endif
