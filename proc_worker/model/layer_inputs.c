/* Per-layer inputs on the CPU. Runs in the worker, in every step of models that have them; owns no memory, never allocates. Every rank
 * computes all of it: it is little, and sums over ranks would take longer. */
#include "proc_worker/model/layer_inputs.h"

#include <math.h>
#include <string.h>

#include "proc_worker/model/decoder_priv.h"

/* The norm of the projection would be that of what it is divided by sqrt(hidden) for, but for its epsilon. */
static struct kern_rmsnorm_args projection_norm(const struct decoder *d, u32 tokens)
{
	const struct model_config *m = d->config.model;

	return (struct kern_rmsnorm_args){.out = d->inputs_projected,
					  .x = d->inputs_projected,
					  .weight = d->config.weights->inputs_norm,
					  .eps = m->norm_eps * (float)m->hidden,
					  .tokens = tokens * m->layers,
					  .hidden = m->input_width};
}

/* Of tokens that the table does not have that of the first one is taken. */
static const u32 *table_ids(struct decoder *d, const struct inputs *in)
{
	if (!d->input_ids)
		return in->ids;
	for (u32 t = 0; t < in->tokens; t++)
		d->input_ids[t] = in->ids[t] < d->config.model->input_vocab ? in->ids[t] : 0;
	return d->input_ids;
}

enum err layer_inputs_begin(struct decoder *d, const struct inputs *in, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct model_config *m = c->model;
	const u32 width = m->layers * m->input_width;
	const struct kern_rmsnorm_args norm = projection_norm(d, in->tokens);
	const struct kern_rmsnorm_args sum = {.x = d->inputs, .add = d->inputs_projected, .tokens = in->tokens, .hidden = width};
	const struct kern_embedding_args embed = {.out = d->inputs,
						  .ids = table_ids(d, in),
						  .table = c->weights->inputs_embed,
						  .table_dtype = c->weights->inputs_embed_dtype,
						  .tokens = in->tokens,
						  .hidden = width,
						  .rows = m->input_vocab,
						  .scale = sqrtf((float)m->input_width) * WEIGHTS_INPUTS_SHARE};

	enum err e = decoder_product(d, d->inputs_projected, d->x, &c->weights->inputs_projection, NULL, 0, in->tokens, em);
	if (!e)
		e = decoder_failed(c->ops->rmsnorm(c->ctx, &norm), "rmsnorm of per-layer inputs", em);
	if (!e)
		e = decoder_failed(c->ops->embedding(c->ctx, &embed), "embedding of per-layer inputs", em);
	return e ? e : decoder_failed(c->ops->rmsnorm(c->ctx, &sum), "sum of per-layer inputs", em);
}

void layer_inputs_narrow(struct decoder *d, u32 index, u32 rows)
{
	const struct model_config *m = d->config.model;
	const size_t width = (size_t)m->layers * m->input_width, first = (size_t)index * m->input_width;

	for (u32 r = 0; r < rows; r++)
		memmove(d->inputs + r * width + first, d->inputs + d->last[r] * width + first, (width - first) * sizeof(float));
}

enum err layer_inputs_add(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	const size_t width = c->model->input_width, all = width * c->model->layers;
	const struct kern_matmul_args gate = {.out = d->input_gate,
					      .x = d->x,
					      .w = &w->input_gate,
					      .tokens = tokens,
					      .x_stride = w->input_gate.k,
					      .out_stride = 2 * w->input_gate.n,
					      .next = &w->input_out};
	const struct kern_act_mul_args act = {.out = d->input_activated,
					      .gate_up = d->input_gate,
					      .tokens = tokens,
					      .size = c->model->input_width,
					      .act = c->model->activation};

	enum err e = decoder_failed(c->ops->matmul(c->ctx, &gate), "matmul", em);
	if (e)
		return e;
	for (u32 t = 0; t < tokens; t++)
		memcpy(d->input_gate + (2 * t + 1) * width, d->inputs + t * all + index * width, width * sizeof(float));
	e = decoder_failed(c->ops->act_mul(c->ctx, &act), "act_mul", em);
	if (!e)
		e = decoder_product(d, d->delta, d->input_activated, &w->input_out, NULL, index, tokens, em);
	return e ? e : decoder_norm(d, d->delta, d->delta, NULL, w->input_post_norm, NULL, tokens, em);
}
