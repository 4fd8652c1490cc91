/* Recurrent layers on a device: what model/recurrent.c does on the CPU, between the first product of a layer and its last one; and the
 * gates of attention's heads. Where the parts of a token's row are, recurrent_layout says. What is convolved and what recurs is float, what the
 * last product reads bf16. Runs in the worker in every step; queues, never waits, never allocates. */
#include "common/assert.h"
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/model/recurrent.h"

/* Rows of floats that begin at whole vectors, and at sectors of memory. */
enum { STRIDE_FLOATS = 8 };

static struct recurrent_layout layout(const struct gpu *g)
{
	return recurrent_layout(g->config.model, g->config.shard);
}

static u32 round_up(u32 floats)
{
	return (floats + STRIDE_FLOATS - 1) / STRIDE_FLOATS * STRIDE_FLOATS;
}

static u32 heads_width(const struct gpu *g, u32 layer)
{
	return g->config.shard->heads * model_head_dim(g->config.model, layer);
}

static u32 most(u32 a, u32 b)
{
	return a > b ? a : b;
}

bool gpu_is_recurrent(const struct gpu *g, u32 layer)
{
	return g->config.model->layer_flags[layer] & LAYER_RECURRENT;
}

u32 gpu_qkv_stride(const struct gpu *g, u32 layer)
{
	if (gpu_is_latent(g))
		return gpu_qkv_widest(g);
	return gpu_is_recurrent(g, layer) ? round_up(g->weights.layers[layer].qkv.n) : g->weights.layers[layer].qkv.n;
}

u32 gpu_qkv_widest(const struct gpu *g)
{
	const struct model_config *m = g->config.model;
	const struct model_shard *s = g->config.shard;
	const u32 heads = m->output_gate ? 2 * s->heads : s->heads;
	const u32 attention = most((heads + 2 * s->kv_heads) * m->head_dim, (heads + 2 * s->global_kv_heads) * m->global_head_dim);

	return most(attention, round_up(layout(g).width));
}

u32 gpu_attended_widest(const struct gpu *g)
{
	const struct model_config *m = g->config.model;

	return most(g->config.shard->heads * most(m->head_dim, m->global_head_dim), layout(g).out_width);
}

/* Row r of the batch has slot r. Rows without tokens in this step have none by query_start, and padding tokens are no row's. */
static struct kern_state state_of(const struct gpu *g, u32 layer)
{
	const struct state_memory *s = g->config.states;
	const struct gpu_arena *a = &g->arena;

	return (struct kern_state){.data = g->states.data + s->offsets[layer],
				   .stride = s->stride,
				   .query_start = a->query_start,
				   .context = a->context,
				   .rows = a->batch.rows,
				   .save_at = a->saves,
				   .save_slots = a->saves + a->batch.rows};
}

static enum err convolve(struct gpu *g, u32 layer, const struct recurrent_layout *l, struct err_msg *em)
{
	const bool alone = g->config.model->recurrent.kind == RECURRENT_CONV;
	float *qkv = g->arena.qkv;
	struct kern_conv_args a = {.out = qkv,
				   .x = qkv,
				   .weight = g->weights.layers[layer].conv,
				   .bias = g->weights.layers[layer].conv_bias,
				   .state = state_of(g, layer),
				   .channels = l->channels,
				   .stride = gpu_qkv_stride(g, layer),
				   .taps = g->config.model->recurrent.taps,
				   .silu = !alone};

	if (alone) {
		a.out = NULL;
		a.out_bf16 = g->arena.attended;
		a.out_stride = l->out_width;
		a.x = qkv + l->v;
		a.before = qkv;
		a.behind = qkv + l->gate;
	}
	return gpu_op(g->ops.conv(&g->ctx, &a), "conv", em);
}

static enum err recur(struct gpu *g, u32 layer, const struct recurrent_layout *l, struct err_msg *em)
{
	const struct recurrent_config *r = &g->config.model->recurrent;
	const struct layer_weights *w = &g->weights.layers[layer];
	const bool delta = r->kind == RECURRENT_DELTA;
	float *qkv = g->arena.qkv;
	struct kern_recurrent_args a = {.out = qkv + l->out,
					.q = qkv + l->q,
					.k = qkv + l->k,
					.v = qkv + l->v,
					.decay = qkv + l->decay,
					.beta = delta ? qkv + l->beta : NULL,
					.decay_bias = w->decay_bias,
					.rate_log = w->rate_log,
					.skip = w->skip,
					.state = state_of(g, layer),
					.kind = delta ? KERN_DELTA : KERN_SCAN,
					.heads = g->config.shard->recurrent_heads,
					.key_heads = g->config.shard->recurrent_key_heads,
					.key_dim = r->key_dim,
					.value_dim = r->value_dim,
					.stride = gpu_qkv_stride(g, layer),
					.beta_scale = r->beta_scale,
					.step_min = r->step_min,
					.step_max = r->step_max};

	a.state.data += recurrent_conv_floats(g->config.model, l);
	return gpu_op(g->ops.recurrent(&g->ctx, &a), "recurrent", em);
}

static enum err gate(struct gpu *g, u32 layer, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const bool delta = g->config.model->recurrent.kind == RECURRENT_DELTA;
	const u32 groups = delta ? g->config.shard->recurrent_heads : g->config.shard->recurrent_key_heads;
	struct kern_gate_args a = {.x = g->arena.qkv + l->out,
				   .out_bf16 = g->arena.attended,
				   .gate = g->arena.qkv + l->gate,
				   .weight = g->weights.layers[layer].gate_norm,
				   .eps = g->config.model->recurrent.gate_eps,
				   .tokens = tokens,
				   .groups = groups,
				   .width = l->out_width / groups,
				   .stride = gpu_qkv_stride(g, layer),
				   .out_stride = l->out_width,
				   .gate_first = !delta,
				   .weights_apart = !delta};

	return gpu_op(g->ops.gate(&g->ctx, &a), "gate", em);
}

enum err gpu_recurrent_mix(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &g->weights.layers[layer];
	const struct recurrent_layout l = layout(g);

	ASSERT(w->qkv.n == l.width && w->attn_out.k == l.out_width);
	enum err e = convolve(g, layer, &l, em);
	if (e || g->config.model->recurrent.kind == RECURRENT_CONV)
		return e;
	e = recur(g, layer, &l, em);
	return e ? e : gate(g, layer, &l, tokens, em);
}

enum err gpu_gate_heads(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const u32 width = heads_width(g, layer), stride = gpu_qkv_stride(g, layer);
	struct kern_gate_args a = {.out_bf16 = g->arena.attended,
				   .gate = g->arena.qkv + stride - width,
				   .tokens = tokens,
				   .groups = 1,
				   .width = width,
				   .stride = stride,
				   .out_stride = width,
				   .sigmoid = true};

	return g->config.model->output_gate ? gpu_op(g->ops.gate(&g->ctx, &a), "gate", em) : ERR_OK;
}
