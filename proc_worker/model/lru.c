/* Real-gated linear recurrent units on the CPU (RecurrentGemma): a channel's two gates are products of what the convolution has made of its block of
 * channels, and the branch beside them weighs what comes out. Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/lru.h"

#include "common/assert.h"
#include "proc_worker/model/decoder_priv.h"

u32 lru_width(const struct model_config *m, const struct model_shard *s)
{
	return m->recurrent.kind == RECURRENT_LRU ? s->recurrent_heads * m->recurrent.value_dim : 0;
}

/* What `out` gets of the block of channels of every head. */
static enum err make_gates(struct decoder *d, const struct kern_weight *w, const struct recurrent_layout *l, float *out, u32 first, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const u32 block = c->model->recurrent.value_dim;
	const struct kern_head_matmul_args a = {.out = out + (size_t)first * l->channels,
						.x = d->qkv + (size_t)first * l->stride + l->v,
						.w = w,
						.tokens = tokens,
						.heads = c->shard->recurrent_heads,
						.x_stride = l->stride,
						.x_apart = block,
						.out_stride = l->channels,
						.out_apart = block,
						.ops = c->ops};

	return decoder_failed(c->ops->head_matmul(c->ctx, &a), "head_matmul", em);
}

enum err lru_recur(struct decoder *d, u32 index, const struct recurrent_layout *l, const struct kern_state *state, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const u32 first = state->query_start[0], tokens = state->query_start[state->rows] - first;
	const struct kern_lru_args a = {.out = d->qkv + l->out,
					.x = d->qkv + l->v,
					.gate = d->qkv + l->gate,
					.input = d->low,
					.fade = d->steps,
					.input_bias = w->lru_input_bias,
					.fade_bias = w->lru_fade_bias,
					.rate = w->lru_rate,
					.state = *state,
					.act = d->config.model->activation,
					.channels = l->channels,
					.stride = l->stride,
					.gate_stride = l->channels};

	ASSERT(l->channels == lru_width(d->config.model, d->config.shard));
	if (tokens == 0)
		return ERR_OK;
	enum err e = make_gates(d, w->lru_input, l, d->low, first, tokens, em);
	if (!e)
		e = make_gates(d, w->lru_fade, l, d->steps, first, tokens, em);
	return e ? e : decoder_failed(d->config.ops->lru(d->config.ctx, &a), "lru", em);
}
