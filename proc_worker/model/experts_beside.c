/* Runs in the worker, in every step; owns no memory, never allocates. */
#include "proc_worker/model/experts_beside.h"

#include "proc_worker/model/decoder_priv.h"

void experts_add_bias(const struct decoder *d, float *out, const float *bias, u32 tokens)
{
	const u32 hidden = d->config.model->hidden;

	for (u32 t = 0; t < tokens && bias && d->config.shard->rank == 0; t++)
		for (u32 i = 0; i < hidden; i++)
			out[(size_t)t * hidden + i] += bias[i];
}

enum err experts_sum(struct decoder *d, const struct layer_weights *w, const float *x, const float *routed, float *out, u32 tokens, struct err_msg *em)
{
	struct collectives *c = d->config.collectives;

	float *own = c ? collectives_buffer(c) : out;

	d->moe.layer = (u32)(w - d->config.weights->layers);
	enum err e = moe_run(&d->moe, w, x, routed, own, tokens, em);
	if (!e && d->config.model->arch->head_experts)
		experts_add_bias(d, own, w->down_bias, tokens);
	return e || !c ? e : collectives_all_reduce(c, out, (size_t)tokens * d->config.model->hidden, em);
}

enum err experts_beside_add(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	enum err e = decoder_norm(d, d->delta, d->delta, NULL, w->beside_post_norm, NULL, tokens, em);

	if (!e)
		e = decoder_norm(d, d->routed, d->x, NULL, w->router_norm, NULL, tokens, em);
	if (!e)
		e = decoder_norm(d, d->normed, d->x, NULL, w->experts_norm, NULL, tokens, em);
	if (!e)
		e = experts_sum(d, w, d->normed, d->routed, d->beside, tokens, em);
	if (!e)
		e = decoder_norm(d, d->beside, d->beside, NULL, w->experts_post_norm, NULL, tokens, em);
	return e ? e : decoder_norm(d, NULL, d->delta, d->beside, NULL, NULL, tokens, em);
}

enum err experts_shortcut(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	return experts_sum(d, w, d->input, d->input, d->shortcut, tokens, em);
}

enum err experts_shortcut_add(struct decoder *d, u32 tokens, struct err_msg *em)
{
	return decoder_norm(d, NULL, d->x, d->shortcut, NULL, NULL, tokens, em);
}
