/* Gates of norms. Runs in the worker, in every step of families that have some; owns no memory, never allocates. */
#include "proc_worker/model/norm_gate.h"

#include "proc_worker/model/decoder_priv.h"

static enum err product(struct decoder *d, float *out, const float *x, const struct kern_weight *w, const struct kern_weight *next, u32 tokens, struct err_msg *em)
{
	const struct kern_matmul_args a = {.out = out, .x = x, .w = w, .tokens = tokens, .x_stride = w->k, .out_stride = w->n, .next = next};

	return decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul of a norm's gate", em);
}

enum err norm_gate(struct decoder *d, const struct kern_weight *down, const struct kern_weight *up, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const u32 hidden = c->model->hidden;
	const struct kern_act_mul_args act = {
		.out = d->norm_low_activated, .gate_up = d->norm_low, .tokens = tokens, .size = down->n, .act = KERN_SILU, .ungated = true};
	const struct kern_gate_args gate = {
		.x = d->normed, .gate = d->norm_gates, .tokens = tokens, .groups = 1, .width = hidden, .stride = hidden, .sigmoid = true};

	if (down->n == 0)
		return ERR_OK;
	enum err e = product(d, d->norm_low, d->normed, down, up, tokens, em);
	if (!e)
		e = decoder_failed(c->ops->act_mul(c->ctx, &act), "act_mul", em);
	if (!e)
		e = product(d, d->norm_gates, d->norm_low_activated, up, NULL, tokens, em);
	return e ? e : decoder_failed(c->ops->gate(c->ctx, &gate), "gate", em);
}
