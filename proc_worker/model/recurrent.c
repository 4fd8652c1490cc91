/* Recurrent layers on the CPU: a short convolution alone (LFM2), or one in front of the gated delta rule (Qwen 3.5), of Kimi delta attention or of
 * Mamba, whose first generation selective.c has, or of RecurrentGemma (lru.c). Runs in the
 * worker, in every step of models that have them; owns no memory, never allocates. */
#include "proc_worker/model/recurrent.h"

#include "common/assert.h"
#include "proc_worker/model/decay_bound.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/lightning.h"
#include "proc_worker/model/lru.h"
#include "proc_worker/model/selective.h"

static struct recurrent_layout lay_out(const struct model_config *m, const struct model_shard *s)
{
	const struct recurrent_config *r = &m->recurrent;
	const u32 keys = s->recurrent_key_heads * r->key_dim, values = s->recurrent_heads * r->value_dim, heads = s->recurrent_heads;
	const u32 mixed = 2 * keys + values, channels = s->recurrent_channels;

	switch (r->kind) {
	case RECURRENT_CONV:
		return (struct recurrent_layout){.channels = channels, .gate = channels, .v = 2 * channels, .out_width = channels,
						 .width = 3 * channels};
	case RECURRENT_DELTA:
		return (struct recurrent_layout){.channels = mixed, .k = keys, .v = 2 * keys, .gate = mixed, .beta = mixed + values,
						 .decay = mixed + values + heads, .out = 2 * keys, .out_width = values,
						 .width = mixed + values + 2 * heads};
	case RECURRENT_SCAN:
		return (struct recurrent_layout){.channels = mixed, .k = values, .q = values + keys, .gate = mixed, .decay = mixed + values,
						 .out_width = values, .width = mixed + values + heads};
	case RECURRENT_SELECTIVE:
		return (struct recurrent_layout){.channels = heads, .gate = heads, .out_width = heads, .width = 2 * heads};
	case RECURRENT_LIGHTNING:
		return (struct recurrent_layout){.k = keys, .v = 2 * keys, .gate = mixed, .out = 2 * keys, .out_width = values, .width = mixed + values};
	case RECURRENT_LRU:
		return (struct recurrent_layout){.channels = values, .gate = values, .out_width = values, .width = 2 * values};
	case RECURRENT_KDA:
		if (m->arch->state_wide)
			return (struct recurrent_layout){.channels = mixed, .k = keys, .v = 2 * keys, .beta = mixed, .decay = mixed + heads,
							 .gate = mixed + heads + keys, .out = 2 * keys, .out_width = values,
							 .width = mixed + heads + keys + values};
		return (struct recurrent_layout){.channels = mixed, .k = keys, .v = 2 * keys, .beta = mixed, .low_decay = mixed + heads,
						 .low_gate = mixed + heads + r->key_dim, .decay = mixed + heads + 2 * r->key_dim,
						 .gate = mixed + heads + 2 * r->key_dim + keys, .out = 2 * keys, .out_width = values,
						 .width = mixed + heads + 2 * r->key_dim + keys + values, .tail = keys + values};
	case RECURRENT_NONE:
		break;
	}
	return (struct recurrent_layout){0};
}

struct recurrent_layout recurrent_layout(const struct model_config *m, const struct model_shard *s)
{
	struct recurrent_layout l = lay_out(m, s);

	l.stride = l.width + (m->arch->state_beside ? (s->heads + 2 * s->kv_heads) * m->head_dim : 0);
	return l;
}

size_t recurrent_conv_floats(const struct model_config *m, const struct recurrent_layout *l)
{
	return (size_t)(m->recurrent.taps - 1) * l->channels;
}

size_t recurrent_floats(const struct model_config *m, const struct model_shard *s, u32 index)
{
	const struct recurrent_config *r = &m->recurrent;
	const struct recurrent_layout l = recurrent_layout(m, s);

	if (!(m->layer_flags[index] & LAYER_RECURRENT))
		return 0;
	return recurrent_conv_floats(m, &l) + (r->kind == RECURRENT_CONV ? 0 : (size_t)s->recurrent_heads * r->key_dim * r->value_dim);
}

static enum err convolve(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, const struct kern_state *state,
			 struct err_msg *em)
{
	const enum recurrent_kind kind = d->config.model->recurrent.kind;
	const bool alone = kind == RECURRENT_CONV;
	struct kern_conv_args a = {.out = d->qkv,
				   .x = d->qkv,
				   .weight = w->conv,
				   .bias = w->conv_bias,
				   .state = *state,
				   .channels = l->channels,
				   .stride = l->stride,
				   .taps = d->config.model->recurrent.taps,
				   .silu = !alone && kind != RECURRENT_LRU};

	if (alone) {
		a.x = d->qkv + l->v;
		a.before = d->qkv;
		a.behind = d->qkv + l->gate;
	}
	return decoder_failed(d->config.ops->conv(d->config.ctx, &a), "conv", em);
}

static enum err recur(struct decoder *d, u32 index, const struct recurrent_layout *l, const struct kern_state *state, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct recurrent_config *r = &d->config.model->recurrent;
	const bool scan = r->kind == RECURRENT_SCAN || r->kind == RECURRENT_LIGHTNING;
	struct kern_recurrent_args a = {.out = d->qkv + l->out,
					.q = d->qkv + l->q,
					.k = d->qkv + l->k,
					.v = d->qkv + l->v,
					.decay = d->qkv + l->decay,
					.beta = scan ? NULL : d->qkv + l->beta,
					.decay_bias = w->decay_bias,
					.rate_log = w->rate_log,
					.skip = w->skip,
					.state = *state,
					.kind = scan ? KERN_SCAN : r->kind == RECURRENT_KDA ? KERN_KDA : KERN_DELTA,
					.heads = d->config.shard->recurrent_heads,
					.key_heads = d->config.shard->recurrent_key_heads,
					.key_dim = r->key_dim,
					.value_dim = r->value_dim,
					.stride = l->stride,
					.beta_scale = r->beta_scale,
					.step_min = r->step_min,
					.step_max = r->step_max};

	if (r->decay_bound > 0)
		a.decay_bias = a.rate_log = d->zeros;
	a.state.data += recurrent_conv_floats(d->config.model, l);
	if (r->kind == RECURRENT_SELECTIVE)
		return selective_recur(d, index, l, &a.state, em);
	if (r->kind == RECURRENT_LRU)
		return lru_recur(d, index, l, &a.state, em);
	return decoder_failed(d->config.ops->recurrent(d->config.ctx, &a), "recurrent", em);
}

/* The delta rule's norm is of each head and before the gate, that of Mamba 2 of each group of heads with one key and behind it. */
static enum err gate(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const enum recurrent_kind kind = d->config.model->recurrent.kind;
	const bool scan = kind == RECURRENT_SCAN;
	const u32 groups = scan ? d->config.shard->recurrent_key_heads : d->config.shard->recurrent_heads;
	struct kern_gate_args a = {.x = d->qkv + l->out,
				   .gate = d->qkv + l->gate,
				   .weight = w->gate_norm,
				   .eps = d->config.model->recurrent.gate_eps,
				   .tokens = tokens,
				   .groups = groups,
				   .width = l->out_width / groups,
				   .stride = l->stride,
				   .sigmoid = kind == RECURRENT_KDA,
				   .gate_first = scan && !d->config.model->recurrent.norm_first,
				   .weights_apart = scan};

	return decoder_failed(d->config.ops->gate(d->config.ctx, &a), "gate", em);
}

/* Decays and gates of Kimi delta attention, from what the first product makes of them. */
static enum err expand(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const struct {
		const struct kern_weight *w, *next;
		u32 from, to;
	} products[] = {{&w->decay_b, &w->gate_b, l->low_decay, l->decay}, {&w->gate_b, &w->attn_out, l->low_gate, l->gate}};
	enum err e = ERR_OK;

	for (size_t i = 0; !e && i < COUNT_OF(products); i++) {
		const struct kern_matmul_args a = {.out = d->qkv + products[i].to,
						   .x = d->qkv + products[i].from,
						   .w = products[i].w,
						   .tokens = tokens,
						   .x_stride = l->stride,
						   .out_stride = l->stride,
						   .next = products[i].next};
		e = decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
	}
	return e;
}

/* Once for all tokens, before rows are told apart. */
static void bound_decays(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens)
{
	const struct recurrent_config *r = &d->config.model->recurrent;
	const struct decay_bound_args a = {.decay = d->qkv + l->decay, .bias = w->decay_bias, .rate_log = w->rate_log, .tokens = tokens,
					   .heads = d->config.shard->recurrent_heads, .key_dim = r->key_dim, .stride = l->stride, .bound = r->decay_bound};

	decay_bound(d->config.ctx, &a);
}

/* Rows [first, first + rows) of the step. */
static struct kern_state state_of(const struct decoder *d, u32 index, const struct inputs *in, u32 first, u32 rows)
{
	const struct state_memory *s = d->config.states;

	return (struct kern_state){.data = s->data + s->offsets[index],
				   .stride = s->stride,
				   .query_start = in->query_start + first,
				   .context = in->context + first,
				   .slots = in->batch_rows + first,
				   .rows = rows};
}

static enum err run(struct decoder *d, u32 index, const struct kern_state *state, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct recurrent_layout l = recurrent_layout(d->config.model, d->config.shard);
	const enum recurrent_kind kind = d->config.model->recurrent.kind;
	enum err e = kind == RECURRENT_LIGHTNING ? ERR_OK : convolve(d, w, &l, state, em);

	return e || kind == RECURRENT_CONV ? e : recur(d, index, &l, state, em);
}

/* A row whose state is saved before its tokens are through: up to there, and then the others. */
static enum err run_in_two(struct decoder *d, u32 index, const struct inputs *in, u32 row, struct err_msg *em)
{
	const u32 middle = in->query_start[row] + in->save_at[row], end = in->query_start[row + 1];
	const u32 starts[] = {in->query_start[row], middle, end}, contexts[] = {in->context[row] - (end - middle), in->context[row]};
	struct kern_state state = state_of(d, index, in, row, 1);

	state.query_start = &starts[0];
	state.context = &contexts[0];
	enum err e = run(d, index, &state, em);
	if (e)
		return e;
	state_memory_copy_layer(d->config.states, index, in->batch_rows[row], in->save_slots[row]);
	state.query_start = &starts[1];
	state.context = &contexts[1];
	return run(d, index, &state, em);
}

static bool is_saved_within(const struct inputs *in, u32 row)
{
	return in->save_at[row] && in->save_at[row] < in->query_start[row + 1] - in->query_start[row];
}

/* Of a step that saves states: rows up to the next one that is in two parts at once. */
static enum err run_and_save(struct decoder *d, u32 index, const struct inputs *in, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 row = 0, first = 0; !e && row <= in->rows; row++) {
		if (row < in->rows && !is_saved_within(in, row))
			continue;
		const struct kern_state state = state_of(d, index, in, first, row - first);
		if (row > first)
			e = run(d, index, &state, em);
		if (!e && row < in->rows)
			e = run_in_two(d, index, in, row, em);
		first = row + 1;
	}
	for (u32 row = 0; !e && row < in->rows; row++)
		if (in->save_at[row] && !is_saved_within(in, row))
			state_memory_copy_layer(d->config.states, index, in->batch_rows[row], in->save_slots[row]);
	return e;
}

/* Before states move on, and behind that: of all tokens of the step. */
static enum err begin(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const enum recurrent_kind kind = d->config.model->recurrent.kind;

	if (kind == RECURRENT_LIGHTNING)
		return lightning_begin(d, l, tokens, em);
	enum err e = w->decay_b.n ? expand(d, w, l, tokens, em) : ERR_OK;
	if (!e && d->config.model->recurrent.decay_bound > 0)
		bound_decays(d, w, l, tokens);
	return e;
}

static enum err end(struct decoder *d, const struct layer_weights *w, const struct recurrent_layout *l, u32 tokens, struct err_msg *em)
{
	const enum recurrent_kind kind = d->config.model->recurrent.kind;

	if (kind == RECURRENT_CONV || kind == RECURRENT_LRU)
		return ERR_OK;
	return kind == RECURRENT_LIGHTNING ? lightning_end(d, w, l, tokens, em) : gate(d, w, l, tokens, em);
}

enum err recurrent_mix(struct decoder *d, u32 index, const struct inputs *in, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct recurrent_layout l = recurrent_layout(d->config.model, d->config.shard);
	const struct kern_state all = state_of(d, index, in, 0, in->rows);

	const struct kern_weight *last = w->state_out.n ? &w->state_out : &w->attn_out;

	ASSERT(w->qkv.n + l.tail == l.stride && last->k == l.out_width && !d->narrowed);
	enum err e = begin(d, w, &l, in->tokens, em);
	if (!e)
		e = in->save_count ? run_and_save(d, index, in, em) : run(d, index, &all, em);
	return e ? e : end(d, w, &l, in->tokens, em);
}
