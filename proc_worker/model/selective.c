/* Mamba's first generation on the CPU: a token's step, key and query are products of what the convolution has made, which ranks share, so that their
 * parts are added up before anything is made of them. Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/selective.h"

#include "common/assert.h"
#include "proc_worker/model/decoder_priv.h"

u32 selective_low_width(const struct model_config *m)
{
	return m->recurrent.kind == RECURRENT_SELECTIVE ? m->recurrent.step_rank + 2 * m->recurrent.key_dim : 0;
}

/* To decoder.low, the sum of all ranks. */
static enum err select_values(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 first, u32 tokens, struct err_msg *em)
{
	struct collectives *c = d->config.collectives;
	float *low = d->low + (size_t)first * w->x_proj.n;
	const struct kern_matmul_args a = {.out = c ? collectives_buffer(c) : low,
					   .x = d->qkv + (size_t)first * l->stride + l->v,
					   .w = &w->x_proj,
					   .tokens = tokens,
					   .x_stride = l->stride,
					   .out_stride = w->x_proj.n,
					   .next = &w->dt_proj};

	enum err e = decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
	return e || !c ? e : collectives_all_reduce(c, low, (size_t)tokens * a.out_stride, em);
}

/* Of two neighbours among a token's values, the first of which may be none. */
static enum err norm_pair(struct decoder *d, float *x, u32 stride, u32 tokens, const float *first, u32 first_width, const float *second, u32 second_width,
			  struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct kern_qk_squares_args squares = {
		.qkv = x, .squares = d->squares, .tokens = tokens, .stride = stride, .q_width = first_width, .k_width = second_width, .counts_k = true};
	const struct kern_qk_norm_args norm = {.qkv = x,
					       .squares = d->squares,
					       .q_weight = first,
					       .k_weight = second,
					       .eps = c->model->recurrent.gate_eps,
					       .tokens = tokens,
					       .stride = stride,
					       .q_width = first_width,
					       .k_width = second_width,
					       .q_total = first_width > 0 ? first_width : 1,
					       .k_total = second_width};

	enum err e = decoder_failed(c->ops->qk_squares(c->ctx, &squares), "qk_squares", em);
	return e ? e : decoder_failed(c->ops->qk_norm(c->ctx, &norm), "qk_norm", em);
}

/* What steps are made of, keys, and queries: each by itself. */
static enum err norm_selected(struct decoder *d, const struct layer_weights *w, u32 first, u32 tokens, struct err_msg *em)
{
	const struct recurrent_config *r = &d->config.model->recurrent;
	const u32 stride = w->x_proj.n;
	float *low = d->low + (size_t)first * stride;

	if (!r->normed)
		return ERR_OK;
	enum err e = norm_pair(d, low, stride, tokens, w->dt_norm, r->step_rank, w->b_norm, r->key_dim, em);
	return e ? e : norm_pair(d, low + r->step_rank + r->key_dim, stride, tokens, NULL, 0, w->c_norm, r->key_dim, em);
}

/* Of this rank's channels. */
static enum err make_steps(struct decoder *d, const struct layer_weights *w, u32 first, u32 tokens, struct err_msg *em)
{
	const struct kern_matmul_args a = {.out = d->steps + (size_t)first * w->dt_proj.n,
					   .x = d->low + (size_t)first * w->x_proj.n,
					   .w = &w->dt_proj,
					   .tokens = tokens,
					   .x_stride = w->x_proj.n,
					   .out_stride = w->dt_proj.n,
					   .next = &w->attn_out};

	return decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
}

enum err selective_recur(struct decoder *d, u32 index, const struct recurrent_layout *l, const struct kern_state *state, struct err_msg *em)
{
	const struct recurrent_config *r = &d->config.model->recurrent;
	const struct layer_weights *w = &d->config.weights->layers[index];
	const u32 first = state->query_start[0], tokens = state->query_start[state->rows] - first;
	const struct kern_selective_scan_args scan = {.out = d->qkv + l->out,
						      .x = d->qkv + l->v,
						      .step = d->steps,
						      .k = d->low + r->step_rank,
						      .q = d->low + r->step_rank + r->key_dim,
						      .rate = w->rates,
						      .step_bias = w->decay_bias,
						      .skip = w->skip,
						      .state = *state,
						      .channels = l->channels,
						      .state_dim = r->key_dim,
						      .stride = l->stride,
						      .step_stride = w->dt_proj.n,
						      .key_stride = w->x_proj.n};

	ASSERT(w->x_proj.n == selective_low_width(d->config.model) && w->dt_proj.n == l->channels);
	if (tokens == 0) /* on no rank */
		return ERR_OK;
	enum err e = select_values(d, w, l, first, tokens, em);
	if (!e)
		e = norm_selected(d, w, first, tokens, em);
	if (!e)
		e = make_steps(d, w, first, tokens, em);
	return e ? e : decoder_failed(d->config.ops->selective_scan(d->config.ctx, &scan), "selective_scan", em);
}
