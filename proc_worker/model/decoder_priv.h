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

/* ---------------------------------------------------------------- decoder.c, for blocks of other files */

/* Rotates what is in d->qkv, writes K and V, and leaves what heads attend to there. */
enum err decoder_attend(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em);
/* Attention's last product, whose inputs the ranks share, to `out`: added to the stream where that is `out`. */
enum err decoder_attention_sum(struct decoder *d, float *out, u32 index, u32 tokens, struct err_msg *em);
/* The MLP of d->input, to where decoder_block_output says. */
enum err decoder_mlp(struct decoder *d, u32 index, u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- decoder_products.c */

/* What blocks have left beside the stream, [tokens][hidden], or NULL; whoever asks adds it. */
const float *decoder_take_delta(struct decoder *d);
/* Sets d->input to what a block reads, after adding `add`, or nothing, to the stream: its norm, or where there is no `weight` the stream. */
enum err decoder_block_input(struct decoder *d, const float *add, const float *weight, const float *bias, u32 tokens, struct err_msg *em);
/* Whether a product may norm what it reads by itself: it is of so many tokens. */
bool decoder_product_norms(const struct decoder *d, const float *weight, const float *bias, u32 tokens);
/* As decoder_block_input of what blocks have left; where the first product can norm by itself d->unnormed is what by. */
enum err decoder_product_input(struct decoder *d, const float *weight, const float *bias, u32 tokens, struct err_msg *em);
/* Norms tokens from `first` on, if no product has done so. */
enum err decoder_norm_input(struct decoder *d, u32 first, u32 tokens, struct err_msg *em);
/* Of arch.normed_residual, behind decoder_block_input or what is like it: the stream is what the block reads, times what of that is kept. */
void decoder_keep_input(struct decoder *d, enum residual_kind kind, u32 tokens);
/* Where a block's last product goes: the stream, or beside it. */
float *decoder_block_output(struct decoder *d, const float *post_norm, const float *bias);
/* Of a product of layer `index`, whose next one it names. */
struct kern_matmul_args decoder_product_args(const struct decoder *d, float *out, bool accumulate, const float *x, const struct kern_weight *w,
					     const float *bias, u32 index, u32 tokens);
/* The last product of attention, or of what a layer has instead. */
struct kern_matmul_args decoder_attention_args(const struct decoder *d, float *out, bool accumulate, u32 index, u32 tokens);
/* Adds what adapters make of a product that was just computed, of tokens from `first` on. */
enum err decoder_adapt(struct decoder *d, const struct kern_matmul_args *a, enum lora_product product, u32 index, u32 first, struct err_msg *em);

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
