/* Runs in the worker, in every step; owns no memory, never allocates. */
#include "proc_worker/model/experts_beside.h"

#include "proc_worker/model/decoder_priv.h"

enum err experts_sum(struct decoder *d, const struct layer_weights *w, const float *x, const float *routed, float *out, u32 tokens, struct err_msg *em)
{
	struct collectives *c = d->config.collectives;

	enum err e = moe_run(&d->moe, w, x, routed, c ? collectives_buffer(c) : out, tokens, em);
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
