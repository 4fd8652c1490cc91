/* Lightning attention on the CPU (MiniMax): linear attention whose heads forget at rates of their own, the same for every token, which is the recurrence of
 * Mamba 2 with steps of 1. Runs in the worker, in every step of such models, and while they load; owns no memory, never allocates. */
#include "proc_worker/model/lightning.h"

#include <math.h>

#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/sub_norm.h"

enum err lightning_begin(struct decoder *d, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	/* SiLU is a number times its sigmoid */
	const struct kern_gate_args a = {
		.x = d->qkv, .gate = d->qkv, .tokens = tokens, .groups = 1, .width = l->gate, .stride = l->stride, .sigmoid = true};

	return decoder_failed(d->config.ops->gate(d->config.ctx, &a), "gate", em);
}

enum err lightning_end(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const struct recurrent_config *r = &d->config.model->recurrent;
	const struct sub_norm_rows rows = {tokens, l->stride, l->out_width, r->heads * r->value_dim};
	const struct kern_gate_args a = {
		.x = d->qkv + l->out, .gate = d->qkv + l->gate, .tokens = tokens, .groups = 1, .width = l->out_width, .stride = l->stride, .sigmoid = true};

	enum err e = sub_norm_by(d, d->qkv + l->out, w->gate_norm, &rows, r->gate_eps, em);
	return e ? e : decoder_failed(d->config.ops->gate(d->config.ctx, &a), "gate", em);
}

u32 lightning_plain_width(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	const bool made = slot == SLOT_RATE_LOG || slot == SLOT_DECAY_BIAS || slot == SLOT_SKIP;

	return made && p->config->recurrent.kind == RECURRENT_LIGHTNING && p->config->layer_flags[layer] & LAYER_RECURRENT ? p->shard->recurrent_heads : 0;
}

void lightning_plain_values(const struct weights_plan *p, enum weight_slot slot, u32 layer, float *out)
{
	const struct model_config *c = p->config;
	const u32 heads = p->shard->recurrent_heads;
	const double deep = 1 - layer / (c->layers - 1 + 1e-5) + 1e-5;

	for (u32 h = 0; h < heads; h++) {
		const u32 number = p->shard->rank * heads + h + 1;
		out[h] = slot == SLOT_RATE_LOG ? (float)(log(deep) - number * 8 * log(2) / c->heads) : 0;
	}
}
