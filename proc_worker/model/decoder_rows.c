/* A step's rows in the decoder: where in a token's row of the first product what is, and the rows' last tokens moved to the front where those before
 * them are no longer needed. Runs in the worker, in every step; owns no memory. */
#include <string.h>

#include "proc_worker/model/altup.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/hyper.h"
#include "proc_worker/model/latent.h"
#include "proc_worker/model/layer_inputs.h"
#include "proc_worker/model/recurrent.h"

u32 decoder_qkv_stride(const struct decoder *d, u32 index)
{
	const struct model_shard *s = d->config.shard;
	const struct model_config *m = d->config.model;

	if (decoder_is_recurrent(d, index)) /* where there may be more than SLOT_QKV makes */
		return recurrent_layout(m, s).stride;
	return m->arch->latent || m->arch->head_experts ? (s->heads + 2 * s->kv_heads) * m->head_dim : d->config.weights->layers[index].qkv.n;
}

bool decoder_is_recurrent(const struct decoder *d, u32 index)
{
	return d->config.model->layer_flags[index] & LAYER_RECURRENT;
}

bool decoder_is_beside(const struct decoder *d, u32 index)
{
	return d->config.model->layer_flags[index] & LAYER_BESIDE;
}

bool decoder_is_latent(const struct decoder *d, u32 index)
{
	return d->config.model->arch->latent && !decoder_is_recurrent(d, index);
}

u32 decoder_attention_at(const struct decoder *d, u32 index)
{
	return decoder_is_beside(d, index) ? recurrent_layout(d->config.model, d->config.shard).width : 0;
}

u32 decoder_mixed_at(const struct decoder *d, u32 index)
{
	const bool state = decoder_is_recurrent(d, index) && !decoder_is_beside(d, index);

	return state ? recurrent_layout(d->config.model, d->config.shard).out : decoder_attention_at(d, index);
}

bool decoder_narrows(const struct decoder *d, u32 index, const struct inputs *in)
{
	if (!in->last_only || d->config.model->arch->head_experts || index + 1 != d->config.model->own_kv_layers || in->tokens == in->rows)
		return false;
	for (u32 r = 0; r < in->rows; r++)
		if (in->query_start[r + 1] == in->query_start[r])
			return false;
	return true;
}

/* The values of a token that narrowing keeps of its queries, keys and values: `*at` is where they begin. */
static size_t kept_width(const struct decoder *d, u32 index, size_t *at)
{
	const size_t heads = (size_t)model_shard_heads(d->config.shard, d->config.model, index) * model_head_dim(d->config.model, index);

	*at = decoder_is_beside(d, index) ? 0 : decoder_mixed_at(d, index);
	if (decoder_is_beside(d, index))
		return decoder_qkv_stride(d, index);
	if (decoder_is_recurrent(d, index))
		return recurrent_layout(d->config.model, d->config.shard).out_width;
	return d->config.model->output_gate && !d->config.model->arch->latent ? decoder_qkv_stride(d, index) : heads; /* gates are behind all the others */
}

void decoder_narrow(struct decoder *d, u32 index, const struct inputs *in)
{
	const size_t hidden = d->config.model->hidden, stride = decoder_qkv_stride(d, index);
	const size_t gates = decoder_is_latent(d, index) ? latent_gate_width(d->config.model, d->config.shard) : 0, low = d->config.weights->layers[index].qkv.n;
	size_t at, width = kept_width(d, index, &at);

	d->narrowed = true;
	for (u32 r = 0; r < in->rows; r++) {
		u32 token = in->query_start[r + 1] - 1;
		d->last[r] = token;
		d->last_positions[r] = in->positions[token];
		d->last_rope_rows[r] = d->rope_rows[token];
		memmove(d->x + r * hidden, d->x + token * hidden, hidden * sizeof(float));
		if (d->config.model->parallel) /* the MLP reads it once more */
			memmove(d->normed + r * hidden, d->normed + token * hidden, hidden * sizeof(float));
		if (d->shortcut)
			memmove(d->shortcut + r * hidden, d->shortcut + token * hidden, hidden * sizeof(float));
		if (gates > 0)
			memmove(d->low + r * low, d->low + token * low, gates * sizeof(float));
		memmove(d->qkv + r * stride + at, d->qkv + token * stride + at, width * sizeof(float));
	}
	if (d->inputs)
		layer_inputs_narrow(d, index, in->rows);
	if (d->altup.streams)
		altup_narrow(d, in->rows);
	hyper_narrow(d, in->rows);
}

