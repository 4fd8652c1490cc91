/* Blocks that layers share, on the CPU (Zamba 2). Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/shared_block.h"

#include <string.h>

#include "common/region.h"
#include "proc_worker/model/decoder_priv.h"

enum { ADAPTED = 3 /* products that attention's first one is made of, each with an adapter */ };

static float *carve(char *base, size_t *offset, size_t count)
{
	return region_carve(base, offset, count * sizeof(float));
}

void shared_block_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens)
{
	const struct model_config *m = d->config.model;
	struct shared_block_memory *s = &d->block;

	if (!m->arch->shared_blocks)
		return;
	s->embedded = carve(base, offset, tokens * m->hidden);
	s->joined = carve(base, offset, tokens * 2 * m->hidden);
	s->said = carve(base, offset, tokens * m->hidden);
	s->low = carve(base, offset, tokens * ADAPTED * m->blocks.rank);
}

void shared_block_begin(struct decoder *d, u32 tokens)
{
	d->block.waits = false;
	if (d->config.model->arch->shared_blocks)
		memcpy(d->block.embedded, d->x, (size_t)tokens * d->config.model->hidden * sizeof(float));
}

/* The block's input: a norm of the stream and the embedding, side by side. */
static enum err join(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const size_t hidden = d->config.model->hidden;
	float *joined = d->block.joined;
	const struct kern_rmsnorm_args a = {
		.out = joined, .x = joined, .weight = w->attn_norm, .eps = d->config.model->norm_eps, .tokens = tokens, .hidden = 2 * (u32)hidden};
	const float *add = decoder_take_delta(d);

	enum err e = add ? decoder_norm(d, NULL, d->x, add, NULL, NULL, tokens, em) : ERR_OK;
	for (size_t t = 0; !e && t < tokens; t++) {
		memcpy(joined + 2 * t * hidden, d->x + t * hidden, hidden * sizeof(float));
		memcpy(joined + (2 * t + 1) * hidden, d->block.embedded + t * hidden, hidden * sizeof(float));
	}
	return e ? e : decoder_failed(d->config.ops->rmsnorm(d->config.ctx, &a), "rmsnorm", em);
}

static enum err product(struct decoder *d, const struct kern_matmul_args *a, struct err_msg *em)
{
	return decoder_failed(d->config.ops->matmul(d->config.ctx, a), "matmul", em);
}

/* What adapters add to queries, keys and values. */
static enum err adapt_qkv(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct kern_weight *out[ADAPTED] = {&w->adapter_q, &w->adapter_k, &w->adapter_v};
	const u32 rank = d->config.model->blocks.rank, stride = w->qkv.n;
	struct kern_matmul_args a = {.out = d->block.low, .x = d->block.joined, .w = &w->adapter_in, .tokens = tokens, .x_stride = w->adapter_in.k,
				     .out_stride = w->adapter_in.n, .next = &w->adapter_q};
	u32 at = 0;

	if (!w->adapter_in.n)
		return ERR_OK;
	enum err e = product(d, &a, em);
	for (u32 i = 0; !e && i < ADAPTED; at += out[i++]->n) {
		a = (struct kern_matmul_args){.out = d->qkv + at, .x = d->block.low + (size_t)i * rank, .w = out[i], .tokens = tokens, .x_stride = ADAPTED * rank,
					      .out_stride = stride, .accumulate = true, .next = i + 1 < ADAPTED ? out[i + 1] : &w->attn_out};
		e = product(d, &a, em);
	}
	return e;
}

enum err shared_block_adapt_mlp(struct decoder *d, u32 index, const struct kern_matmul_args *a, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct kern_weight *in = &w->mlp_adapter_in, *out = &w->mlp_adapter_out;
	const struct kern_matmul_args low = {.out = d->block.low, .x = a->x, .w = in, .tokens = a->tokens, .x_stride = in->k, .out_stride = in->n, .next = out};
	const struct kern_matmul_args add = {.out = a->out, .x = d->block.low, .w = out, .tokens = a->tokens, .x_stride = out->k, .out_stride = out->n,
					     .accumulate = true, .next = &w->down};

	if (!in->n)
		return ERR_OK;
	enum err e = product(d, &low, em);
	return e ? e : product(d, &add, em);
}

/* To d->delta, and of what it says the MLP's norm to d->input. */
static enum err attention(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct kern_matmul_args qkv = decoder_product_args(d, d->qkv, false, d->block.joined, &w->qkv, NULL, index, in->tokens);

	enum err e = join(d, w, in->tokens, em);
	if (!e)
		e = product(d, &qkv, em);
	if (!e)
		e = adapt_qkv(d, w, in->tokens, em);
	if (!e)
		e = decoder_attend(d, index, in, kv, em);
	if (!e)
		e = decoder_attention_sum(d, d->delta, index, in->tokens, em);
	d->input = d->normed;
	d->unnormed = NULL;
	return e ? e : decoder_norm(d, d->normed, d->delta, NULL, w->mlp_norm, NULL, in->tokens, em);
}

enum err shared_block_run(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	const struct kern_weight *last = &d->config.weights->layers[index].block_out;

	enum err e = attention(d, index, in, kv, em);
	if (!e)
		e = decoder_mlp(d, index, in->tokens, em); /* to d->delta: decoder_block_output */
	const struct kern_matmul_args a = decoder_product_args(d, d->block.said, false, d->delta, last, NULL, index, in->tokens);
	if (!e)
		e = product(d, &a, em);
	d->pending = false;
	d->block.waits = true;
	return e;
}

enum err shared_block_input(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	d->block.waits = false;
	d->input = d->normed;
	d->unnormed = NULL;
	return decoder_norm(d, d->normed, d->block.said, d->x, d->config.weights->layers[index].attn_norm, NULL, tokens, em);
}
