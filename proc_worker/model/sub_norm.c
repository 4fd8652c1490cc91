/* Norms before last products on the CPU. Runs in the worker, in every step of models that have them; owns no memory, never allocates. */
#include "proc_worker/model/sub_norm.h"

#include "proc_worker/model/decoder_priv.h"

/* The ops of norms over all heads, without keys: sums of squares of all ranks meet in between. */
enum err sub_norm_by(struct decoder *d, float *x, const float *weight, const struct sub_norm_rows *rows, f32 eps, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct kern_qk_squares_args squares = {.qkv = x,
						     .squares = c->collectives ? collectives_buffer(c->collectives) : d->squares,
						     .tokens = rows->tokens,
						     .stride = rows->stride,
						     .q_width = rows->width};
	const struct kern_qk_norm_args norm = {.qkv = x,
					       .squares = d->squares,
					       .q_weight = weight,
					       .k_weight = weight,
					       .eps = eps,
					       .tokens = rows->tokens,
					       .stride = rows->stride,
					       .q_width = rows->width,
					       .q_total = rows->total,
					       .k_total = 1};

	if (!weight)
		return ERR_OK;
	enum err e = decoder_failed(c->ops->qk_squares(c->ctx, &squares), "qk_squares", em);
	if (!e && c->collectives)
		e = collectives_all_reduce(c->collectives, d->squares, 2 * (size_t)rows->tokens, em);
	return e ? e : decoder_failed(c->ops->qk_norm(c->ctx, &norm), "qk_norm", em);
}

enum err sub_norm(struct decoder *d, float *x, const float *weight, u32 tokens, u32 stride, u32 width, u32 total, struct err_msg *em)
{
	const struct sub_norm_rows rows = {tokens, stride, width, total};

	return sub_norm_by(d, x, weight, &rows, d->config.model->norm_eps, em);
}
