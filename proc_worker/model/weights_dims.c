/* The sizes that the table of tensors names, in numbers, and a rank's share of them. Runs in the worker while a model loads. Owns nothing. */
#include "common/assert.h"
#include "proc_worker/model/weights_priv.h"

/* Of families whose layers differ. */
static u32 global_dim(const struct model_config *c, enum arch_dim d)
{
	switch (d) {
	case DIM_GLOBAL_HEAD:
		return c->global_head_dim;
	case DIM_GLOBAL_HEADS:
		return c->heads * c->global_head_dim;
	case DIM_GLOBAL_KV_HEADS:
		return c->global_kv_heads * c->global_head_dim;
	case DIM_INPUT:
		return c->input_width;
	case DIM_INPUTS:
		return c->layers * c->input_width;
	case DIM_INPUTS_VOCAB:
		return c->input_vocab;
	case DIM_WIDE_INTERMEDIATE:
		return c->wide_intermediate;
	case DIM_HALF_HEADS:
		return c->heads * c->head_dim / 2;
	case DIM_QUARTER_HEADS:
		return c->heads * c->head_dim / 4;
	case DIM_HALF_KV_HEADS:
		return c->kv_heads * c->head_dim / 2;
	case DIM_QUARTER_KV_HEADS:
		return c->kv_heads * c->head_dim / 4;
	case DIM_ADAPTER:
		return c->blocks.rank;
	case DIM_STREAMS:
		return c->altup.streams;
	case DIM_STREAMS_SQUARED:
		return c->altup.streams * c->altup.streams;
	case DIM_HYPER:
		return c->hyper.streams;
	case DIM_HYPER_TWO:
		return 2 * c->hyper.streams;
	case DIM_HYPER_WIDTH:
		return c->hyper.streams * c->hidden;
	case DIM_LAUREL:
		return c->altup.laurel_rank;
	default:
		ASSERT(!"a dimension of the table");
		return 0;
	}
}

static u32 latent_dim(const struct model_config *c, enum arch_dim d)
{
	const struct latent_config *l = &c->latent;

	switch (d) {
	case DIM_LATENT:
		return l->rank;
	case DIM_Q_RANK:
		return l->q_rank;
	case DIM_Q_RANK_TWO:
		return 2 * l->q_rank;
	case DIM_HEADS_QUERY_GATE:
		return c->heads * (l->key + l->rope + l->value);
	case DIM_NORM_GATE:
		return c->norm_gate_rank;
	case DIM_HEAD_KEY:
		return l->key;
	case DIM_HEAD_VALUE:
		return l->value;
	case DIM_HEADS_QUERY:
		return c->heads * (l->key + l->rope);
	case DIM_HEADS_VALUE:
		return c->heads * l->value;
	case DIM_HEADS_KEY_VALUE:
		return c->heads * (l->key + l->value);
	case DIM_INDEX:
		return c->index.width;
	case DIM_INDEX_HEADS:
		return c->index.heads;
	case DIM_INDEX_QUERIES:
		return c->index.heads * c->index.width;
	default:
		return global_dim(c, d);
	}
}

/* Of layers that keep a state. */
static u32 state_dim(const struct model_config *c, enum arch_dim d)
{
	const struct recurrent_config *r = &c->recurrent;
	const u32 keys = r->key_heads * r->key_dim, values = r->heads * r->value_dim;

	switch (d) {
	case DIM_TAPS:
		return r->taps;
	case DIM_CHANNELS:
		return c->hidden;
	case DIM_CHANNELS_TWO:
		return 2 * c->hidden;
	case DIM_CHANNELS_THREE:
		return 3 * c->hidden;
	case DIM_STATE_VALUE:
		return r->value_dim;
	case DIM_STATE_KEYS:
		return keys;
	case DIM_STATE_VALUES:
		return values;
	case DIM_STATE_HEADS:
		return r->heads;
	case DIM_STATE_QK:
		return 2 * keys;
	case DIM_STATE_QKV:
		return 2 * keys + values;
	case DIM_STATE_QKVZ:
		return 2 * keys + 2 * values;
	case DIM_STATE_HEADS_TWO:
		return 2 * r->heads;
	case DIM_STATE_VZ:
		return 2 * values;
	case DIM_STATE_KV:
		return keys + values;
	case DIM_STATE_KVZ:
		return keys + 2 * values;
	case DIM_STEP_RANK:
		return r->step_rank;
	case DIM_SELECTED:
		return r->step_rank + 2 * keys;
	case DIM_STATE_ALL:
		return 2 * keys + 2 * values + r->heads;
	default:
		return latent_dim(c, d);
	}
}

u32 weights_dim(const struct model_config *c, enum arch_dim d, u32 layer)
{
	switch (d) {
	case DIM_NONE:
	case DIM_ONE:
		return 1;
	case DIM_TWO:
		return 2;
	case DIM_VOCAB:
		return c->vocab_size;
	case DIM_EMBED_VOCAB:
		return c->embed_vocab;
	case DIM_CONTEXT:
		return c->context_max;
	case DIM_CONTEXT_PADDED:
		return c->context_max + 2;
	case DIM_HIDDEN:
		return c->hidden;
	case DIM_HIDDEN_TWO:
		return 2 * c->hidden;
	case DIM_HEAD:
		return c->head_dim;
	case DIM_HEAD_COUNT:
		return model_heads(c, layer);
	case DIM_HEAD_GATES:
		return model_heads(c, layer) * (c->gate_by_head ? 1 : c->head_dim);
	case DIM_KV_HEAD_COUNT:
		return model_kv_heads(c, layer);
	case DIM_HEADS:
		return model_heads(c, layer) * c->head_dim;
	case DIM_KV_HEADS:
		return model_kv_heads(c, layer) * c->head_dim;
	case DIM_HEADS_KV:
		return (model_heads(c, layer) + model_kv_heads(c, layer)) * c->head_dim;
	case DIM_KV_HEADS_TWO:
		return 2 * model_kv_heads(c, layer) * c->head_dim;
	case DIM_HEADS_TWO:
		return 2 * c->heads * c->head_dim;
	case DIM_QKV:
		return (model_heads(c, layer) + 2 * model_kv_heads(c, layer)) * c->head_dim;
	case DIM_INTERMEDIATE:
		return model_intermediate(c, layer);
	case DIM_GATE_UP:
		return 2 * model_intermediate(c, layer);
	case DIM_EXPERTS:
		return c->experts;
	case DIM_ROUTED:
		return c->experts + c->zero_experts;
	case DIM_EXPERT_INTERMEDIATE:
		return c->expert_intermediate;
	case DIM_EXPERT_WIDTH:
		return c->experts_narrow > 0 ? c->experts_narrow : c->hidden;
	case DIM_EXPERT_GATE_UP:
		return 2 * c->expert_intermediate;
	case DIM_SHARED_INTERMEDIATE:
		return c->shared_intermediate;
	case DIM_SHARED_GATE_UP:
		return 2 * c->shared_intermediate;
	default:
		return state_dim(c, d);
	}
}

struct weights_range weights_dim_share(const struct weights_plan *p, enum arch_dim d, u32 layer)
{
	const struct model_config *c = p->config;
	const struct model_shard *s = p->shard;
	const u32 kv_heads = c->arch->by_layer ? model_shard_kv_heads(s, c, layer) : s->kv_heads;
	const u32 intermediate = c->arch->by_layer ? model_intermediate(c, layer) / s->ranks : s->intermediate;

	switch (d) {
	case DIM_VOCAB:
		return (struct weights_range){s->vocab_first, s->vocab_rows};
	case DIM_HEAD_COUNT:
	case DIM_HEAD_GATES:
		return (struct weights_range){weights_dim(c, d, layer) / s->ranks * s->rank, weights_dim(c, d, layer) / s->ranks};
	case DIM_KV_HEAD_COUNT:
		return (struct weights_range){model_shard_kv_first(s, c, layer), kv_heads};
	case DIM_HEADS:
		return (struct weights_range){s->rank * model_shard_heads(s, c, layer) * c->head_dim, model_shard_heads(s, c, layer) * c->head_dim};
	case DIM_HALF_HEADS:
	case DIM_QUARTER_HEADS:
	case DIM_QUARTER_KV_HEADS:
	case DIM_HEADS_QUERY:
	case DIM_HEADS_QUERY_GATE:
	case DIM_HEADS_VALUE:
		return (struct weights_range){weights_dim(c, d, layer) / s->ranks * s->rank, weights_dim(c, d, layer) / s->ranks};
	case DIM_KV_HEADS:
		return (struct weights_range){model_shard_kv_first(s, c, layer) * c->head_dim, kv_heads * c->head_dim};
	case DIM_GLOBAL_HEADS:
		return (struct weights_range){s->rank * s->heads * c->global_head_dim, s->heads * c->global_head_dim};
	case DIM_GLOBAL_KV_HEADS:
		return (struct weights_range){s->global_kv_first * c->global_head_dim, s->global_kv_heads * c->global_head_dim};
	case DIM_CHANNELS:
		return (struct weights_range){s->rank * s->recurrent_channels, s->recurrent_channels};
	case DIM_STATE_KEYS:
	case DIM_STATE_VALUES:
	case DIM_STATE_HEADS: /* key heads are a multiple of the ranks, and heads of key heads */
		return (struct weights_range){weights_dim(c, d, layer) / s->ranks * s->rank, weights_dim(c, d, layer) / s->ranks};
	case DIM_WIDE_INTERMEDIATE:
		return (struct weights_range){s->rank * s->wide_intermediate, s->wide_intermediate};
	case DIM_INTERMEDIATE:
		return (struct weights_range){s->rank * intermediate, intermediate};
	case DIM_EXPERT_INTERMEDIATE:
		return (struct weights_range){s->rank * s->expert_intermediate, s->expert_intermediate};
	case DIM_EXPERT_GATE_UP:
		return (struct weights_range){s->rank * 2 * s->expert_intermediate, 2 * s->expert_intermediate};
	case DIM_SHARED_INTERMEDIATE:
		return (struct weights_range){s->rank * s->shared_intermediate, s->shared_intermediate};
	default:
		return (struct weights_range){0, weights_dim(c, d, layer)};
	}
}
