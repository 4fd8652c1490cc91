/* Owns the activations of a forward pass. Runs in the worker, in every step. Never allocates after init,
 * never looks at requests: it knows tokens, positions and KV slots. */
#include "proc_worker/model/decoder_priv.h"

#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/region.h"
#include "proc_worker/model/altup.h"
#include "proc_worker/model/differential.h"
#include "proc_worker/model/experts_beside.h"
#include "proc_worker/model/gate_limit.h"
#include "proc_worker/model/head_experts.h"
#include "proc_worker/model/head_gate.h"
#include "proc_worker/model/head_norm.h"
#include "proc_worker/model/hyper.h"
#include "proc_worker/model/indexer.h"
#include "proc_worker/model/latent.h"
#include "proc_worker/model/layer_inputs.h"
#include "proc_worker/model/norm_gate.h"
#include "proc_worker/model/qk_norm.h"
#include "proc_worker/model/recurrent.h"
#include "proc_worker/model/shared_block.h"
#include "proc_worker/model/sparse_gate.h"
#include "proc_worker/model/sub_norm.h"

/* ---------------------------------------------------------------- layers */

/* What a state beside attention has made, to where `attention` is to go, which is then to be added. */
static enum err state_sum(struct decoder *d, struct kern_matmul_args *attention, u32 index, struct err_msg *em)
{
	const struct recurrent_layout l = recurrent_layout(d->config.model, d->config.shard);
	const struct kern_weight *w = &d->config.weights->layers[index].state_out;
	struct kern_matmul_args a = decoder_product_args(d, attention->out, attention->accumulate, d->qkv + l.out, w, NULL, index, attention->tokens);

	a.x_stride = l.stride;
	attention->accumulate = true;
	return decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
}

/* The sum of all ranks' parts, one of which brings the bias. */
enum err decoder_attention_sum(struct decoder *d, float *out, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *config = &d->config;
	struct collectives *c = config->collectives;
	struct kern_matmul_args a = decoder_attention_args(d, c ? collectives_buffer(c) : out, out == d->x, index, tokens);

	if (config->shard->rank == 0)
		a.bias = config->weights->layers[index].attn_out_bias;
	enum err e = decoder_is_beside(d, index) ? state_sum(d, &a, index, em) : ERR_OK;
	if (!e)
		e = decoder_failed(config->ops->matmul(config->ctx, &a), "matmul", em);
	if (!e)
		e = decoder_adapt(d, &a, LORA_ATTN_OUT, index, 0, em);
	if (!e && c)
		e = collectives_all_reduce(c, out, (size_t)tokens * a.w->n, em);
	return e;
}

/* Into `delta`, which the first block adds to the stream as it adds what blocks leave there. */
static enum err embed_positions(struct decoder *d, const struct inputs *in, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct kern_embedding_args a = {.out = d->delta,
					.ids = in->positions,
					.table = c->weights->positions,
					.table_dtype = c->weights->positions_dtype,
					.tokens = in->tokens,
					.hidden = c->model->hidden,
					.rows = c->model->context_max,
					.scale = 1};

	return decoder_failed(c->ops->embedding(c->ctx, &a), "embedding of positions", em);
}

static enum err embed(struct decoder *d, const struct inputs *in, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct kern_embedding_args a = {.out = c->collectives ? collectives_buffer(c->collectives) : d->x,
					.ids = in->ids,
					.table = c->weights->embed,
					.table_dtype = c->weights->embed_dtype,
					.tokens = in->tokens,
					.hidden = c->model->hidden,
					.first = c->shard->vocab_first,
					.rows = c->shard->vocab_rows,
					.scale = c->model->embed_scale};

	enum err e = decoder_failed(c->ops->embedding(c->ctx, &a), "embedding", em);
	if (!e && c->collectives)
		e = collectives_all_reduce(c->collectives, d->x, (size_t)in->tokens * a.hidden, em);
	if (!e && c->weights->embed_norm)
		e = decoder_norm(d, d->x, d->x, NULL, c->weights->embed_norm, c->weights->embed_norm_bias, in->tokens, em);
	d->pending = c->weights->positions;
	return e || !d->pending ? e : embed_positions(d, in, em);
}

/* Over all heads of q and of k, which ranks share: their sums of squares meet in between. */
static enum err norm_heads(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	float *own = c->collectives ? collectives_buffer(c->collectives) : d->squares;
	struct qk_norm_args a;

	qk_norm_args_init(&a, c->model, c->shard, w, tokens, d->qkv, own, d->squares);
	enum err e = decoder_failed(c->ops->qk_squares(c->ctx, &a.squares), "qk_squares", em);
	if (!e && c->collectives)
		e = collectives_all_reduce(c->collectives, d->squares, 2 * (size_t)tokens, em);
	return e ? e : decoder_failed(c->ops->qk_norm(c->ctx, &a.norm), "qk_norm", em);
}

static struct kern_rope_kv_args rope_args(const struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv)
{
	const struct decoder_config *c = &d->config;
	const struct model_config *m = c->model;
	const struct layer_weights *w = &c->weights->layers[index];
	const u32 flags = m->layer_flags[index];
	const bool local = flags & LAYER_LOCAL_ROPE, latent = m->arch->latent, normed = latent || m->arch->head_norm_biases || m->arch->traits & ARCH_QK_NORMS;
	const struct rope_config *by = local ? &m->local_rope : &m->rope;
	const size_t first = local ? (size_t)c->rope->local * (m->rope.dim / 2) : 0;
	const u32 *rows = d->narrowed ? d->last_rope_rows : d->rope_rows, *positions = d->narrowed ? d->last_positions : in->positions;
	struct kern_kv to = *kv;

	if (flags & LAYER_SHARED_KV) /* which is another layer's */
		to.kv_heads = 0;
	return (struct kern_rope_kv_args){.q = d->qkv + decoder_attention_at(d, index),
					  .qkv = d->qkv + decoder_attention_at(d, index),
					  .bias = latent || m->output_gate || m->arch->head_norm_biases ? NULL : w->qkv_bias,
					  .q_norm = normed ? NULL : w->q_norm,
					  .k_norm = normed ? NULL : w->k_norm,
					  .norm_eps = m->norm_eps,
					  .clip = m->clip,
					  .cos = c->rope->cos + first,
					  .sin = c->rope->sin + first,
					  .q_scales = m->rope.query_unrotated && !(flags & LAYER_NO_ROPE) ? NULL : c->rope->q_scales,
					  .positions = local ? positions : rows,
					  .slots = in->slots,
					  .kv = to,
					  .tokens = d->narrowed ? in->rows : in->tokens,
					  .heads = model_shard_heads(c->shard, m, index),
					  .rope_dim = flags & LAYER_NO_ROPE ? 0 : by->dim,
					  .rope_apart = by->head / 2,
					  .q_stride = decoder_qkv_stride(d, index),
					  .qkv_stride = decoder_qkv_stride(d, index),
					  .interleaved = m->interleaved,
					  .norm_behind = m->arch->norm_behind,
					  .layer_norms = m->arch->head_layer_norms,
					  .norm_v = m->arch->global_heads || m->arch->altup,
					  .v_is_k = flags & LAYER_GLOBAL && m->value_is_key};
}

enum err decoder_attend(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	const struct kern_rope_kv_args rope = rope_args(d, index, in, kv);
	struct kern_attention_args attention = {.out = d->qkv + decoder_attention_at(d, index),
						.q = d->qkv + decoder_attention_at(d, index),
						.kv = *kv,
						.query_start = d->narrowed ? d->single_start : in->query_start,
						.context = in->context,
						.block_tables = in->block_tables,
						.block_stride = in->block_stride,
						.rows = in->rows,
						.tokens = rope.tokens,
						.heads = model_shard_heads(c->shard, c->model, index),
						.stride = decoder_qkv_stride(d, index),
						.scale = c->model->attention_scale,
						.soft_cap = c->model->attention_soft_cap,
						.window = c->model->layer_flags[index] & LAYER_WINDOW ? c->model->window : 0,
						.chunked = c->model->arch->chunked,
						.sinks = w->sinks,
						.slopes = d->slopes,
						.slopes_rounded = c->model->alibi.kind == ALIBI_ROUNDED};

	head_norm(d, index, in->tokens);
	enum err e = c->model->arch->traits & ARCH_QK_NORMS ? norm_heads(d, w, in->tokens, em) : ERR_OK;
	if (!e)
		e = decoder_failed(c->ops->rope_kv(c->ctx, &rope), "rope_kv", em);
	if (!e && decoder_narrows(d, index, in)) {
		decoder_narrow(d, index, in);
		attention.query_start = d->single_start;
		attention.tokens = in->rows;
	}
	if (!e)
		e = c->model->index.top ? indexer_attend(d, index, in, kv, &attention, em)
					: decoder_failed(c->ops->attention(c->ctx, &attention), "attention", em);
	if (!e && c->model->arch->differential)
		differential_combine(d, index, attention.tokens);
	if (!e)
		e = head_gate(d, index, attention.tokens, em);
	const u32 width = attention.heads * c->model->head_dim;
	return e ? e : sub_norm(d, d->qkv + decoder_attention_at(d, index), w->attn_sub_norm, attention.tokens, attention.stride, width,
				c->model->heads * c->model->head_dim, em);
}

/* What a layer has instead of attention, or beside it. All its tokens move the states on; behind that only those that somebody wants are needed. */
static enum err mix(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	enum err e = recurrent_mix(d, index, in, em);

	if (!e && decoder_is_beside(d, index))
		return decoder_attend(d, index, in, kv, em);
	if (!e && decoder_narrows(d, index, in))
		decoder_narrow(d, index, in);
	return e;
}

static bool is_sparse(const struct decoder *d, u32 index)
{
	return d->config.model->layer_flags[index] & LAYER_SPARSE;
}

/* The product with gate and up and what the activation makes of it, at once; with `then`, not NULL, the one behind it, too, and with `before`
 * the one that it reads. Of tokens [first, first + tokens) of `input`. ERR_UNSUPPORTED, and nothing written: apart. */
static enum err product_activated(struct decoder *d, u32 index, u32 first, u32 tokens, const struct kern_matmul_args *then,
				  const struct kern_matmul_args *before)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	const struct kern_matmul_fusion fusion = {.norm_weight = d->unnormed, .norm_eps = c->model->norm_eps, .act_mul = true,
						  .act = c->model->activation, .then = then};
	const struct kern_matmul_args a = {.out = d->activated,
					   .x = (d->unnormed ? d->x : d->input) + (size_t)first * w->gate_up.k,
					   .w = &w->gate_up,
					   .bias = w->gate_up_bias,
					   .tokens = tokens,
					   .x_stride = w->gate_up.k,
					   .out_stride = w->down.k,
					   .fusion = &fusion};
	const struct kern_matmul_fusion joined = {.then = &a};
	struct kern_matmul_args all = before ? *before : a;

	if (tokens <= KERN_CPU_UNFUSED_TOKENS || c->model->arch->ungated || d->lora.active_count || is_sparse(d, index) || c->model->limited || w->mlp_adapter_in.n || (then && w->mlp_sub_norm))
		return ERR_UNSUPPORTED;
	if (before)
		all.fusion = &joined;
	return c->ops->matmul(c->ctx, &all);
}

static enum err activate(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	struct kern_act_mul_args a = {.out = d->activated,
				      .gate_up = d->gate_up,
				      .tokens = tokens,
				      .size = w->down.k,
				      .act = c->model->activation,
				      .ungated = c->model->arch->ungated,
				      .xielu = w->xielu,
				      .cutoffs = is_sparse(d, index) ? d->altup.cutoffs : NULL};

	gate_limit(c->ctx, &c->model->mlp_limits[index], d->gate_up, tokens, w->down.k);
	enum err e = is_sparse(d, index) ? sparse_gate_cutoffs(d, index, tokens, em) : ERR_OK;
	return e ? e : decoder_failed(c->ops->act_mul(c->ctx, &a), "act_mul", em);
}

/* What a block adds to the residual stream goes through a norm of its own in some families. */
static enum err post_norm(struct decoder *d, const float *weight, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct kern_rmsnorm_args a = {
		.out = d->delta, .x = d->delta, .weight = weight, .eps = c->model->post_norm_eps, .tokens = tokens, .hidden = c->model->hidden};

	return weight ? decoder_failed(c->ops->rmsnorm(c->ctx, &a), "rmsnorm", em) : ERR_OK;
}

/* Queries, keys and values. */
static enum err project(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct kern_weight *w = &c->weights->layers[index].qkv;
	const bool latent = decoder_is_latent(d, index), now = latent || c->model->output_gate || c->model->arch->head_norm_biases || decoder_is_recurrent(d, index);
	const float *bias = now ? c->weights->layers[index].qkv_bias : NULL; /* of others rope_kv adds it */
	const struct kern_matmul_fusion fusion = {.norm_weight = d->unnormed, .norm_eps = c->model->norm_eps};
	struct kern_matmul_args a = decoder_product_args(d, latent ? d->low : d->qkv, false, d->x, w, bias, index, tokens);
	enum err e = ERR_UNSUPPORTED;

	a.fusion = &fusion;
	a.out_stride = latent ? w->n : decoder_qkv_stride(d, index);
	if (d->unnormed && !c->model->parallel) /* there the MLP reads it once more */
		e = c->ops->matmul(c->ctx, &a);
	if (e != ERR_UNSUPPORTED)
		return decoder_failed(e, "matmul of a norm", em);
	e = decoder_norm_input(d, 0, tokens, em);
	a.x = d->input;
	a.fusion = NULL;
	return e ? e : decoder_failed(c->ops->matmul(c->ctx, &a), "matmul", em);
}

/* Whether attention's last product goes with the MLP's: nothing but the MLP's norm comes between them. */
static bool puts_off(const struct decoder *d, u32 index, u32 tokens)
{
	const struct model_config *m = d->config.model;
	const struct layer_weights *w = &d->config.weights->layers[index];

	return kern_threads_count(d->config.ctx->threads) > 1 && tokens <= MLP_TOKENS && !d->pending && !m->arch->ungated && !m->arch->differential && !m->arch->hyper &&
	       !(m->layer_flags[index] & (LAYER_EXPERTS | LAYER_SHORTCUT | LAYER_NO_MLP | LAYER_BESIDE)) && decoder_product_norms(d, w->mlp_norm, w->mlp_norm_bias, tokens);
}

/* Of a mixture of heads, which has its input: no step moves its tokens. */
static enum err head_attention(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	enum err e = decoder_norm_input(d, 0, in->tokens, em);

	if (!e)
		e = head_experts_project(d, index, in->tokens, em);
	if (!e)
		e = decoder_attend(d, index, in, kv, em);
	d->pending = true;
	return e ? e : head_experts_sum(d, index, d->delta, in->tokens, em);
}

static enum residual_kind kind_of(const struct decoder *d, u32 index)
{
	return decoder_is_recurrent(d, index) ? RESIDUAL_STATE : RESIDUAL_ATTENTION;
}

/* What the stream is multiplied by when the next norm adds to it what a block of layer `index` has left; `usual` where no family says otherwise. */
static const float *scale_behind(const struct decoder *d, enum residual_kind kind, const float *usual)
{
	static const float half_root = 0.70710678f; /* of the sum of what attention and what stands beside it add */

	if (d->altup.streams && kind != RESIDUAL_MLP)
		return &half_root;
	return d->config.model->arch->normed_residual ? &d->config.model->residuals[kind].said : usual;
}

static enum err attention_block(struct decoder *d, u32 index, const struct inputs *in,
				const struct kern_kv *kv, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const bool latent = decoder_is_latent(d, index);
	u32 tokens = d->narrowed ? in->rows : in->tokens; /* by an earlier layer */

	enum err e = hyper_gather(d, &w->attn_hyper, tokens, em);
	if (!e)
		e = d->block.waits ? shared_block_input(d, index, tokens, em) : decoder_product_input(d, w->attn_norm, w->attn_norm_bias, tokens, em);
	if (!e && d->config.model->arch->normed_residual)
		decoder_keep_input(d, kind_of(d, index), tokens);
	if (!e && d->altup.streams) {
		e = decoder_norm_input(d, 0, tokens, em);
		e = e ? e : altup_laurel(d, index, tokens, em);
	}
	if (!e && d->config.model->arch->head_experts)
		return head_attention(d, index, in, kv, em);
	if (!e && (d->config.model->index.top || w->attn_norm_down.n)) /* the indexer reads it, too */
		e = decoder_norm_input(d, 0, tokens, em);
	if (!e)
		e = norm_gate(d, &w->attn_norm_down, &w->attn_norm_up, tokens, em);
	if (!e)
		e = project(d, index, tokens, em);
	const struct kern_matmul_args projected = decoder_product_args(d, d->qkv, false, d->input, &w->qkv, NULL, index, tokens);
	if (!e)
		e = latent ? latent_project(d, w, tokens, em) : decoder_adapt(d, &projected, LORA_QKV, index, 0, em);
	if (!e && d->config.model->index.top)
		e = indexer_project(d, index, in, kv, em);
	if (!e)
		e = decoder_is_recurrent(d, index) ? mix(d, index, in, kv, em) : decoder_attend(d, index, in, kv, em);
	tokens = d->narrowed ? in->rows : tokens;
	if (!e && latent)
		e = latent_values(d, w, tokens, em);
	if (e)
		return e;
	if (latent)
		head_gate_values(d, index, tokens);
	float *out = decoder_block_output(d, w->attn_post_norm, w->attn_out_bias);
	d->put_off = puts_off(d, index, tokens);
	if (d->put_off)
		return ERR_OK;
	e = decoder_attention_sum(d, out, index, tokens, em);
	if (!e)
		e = post_norm(d, w->attn_post_norm, tokens, em);
	if (!e)
		hyper_add(d, tokens);
	return e;
}

/* Of tokens [first, first + count), normed. */
static enum err gate_and_up(struct decoder *d, u32 index, u32 first, u32 count, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const float *x = d->input + (size_t)first * w->gate_up.k;
	const struct kern_matmul_args a = decoder_product_args(d, d->gate_up, false, x, &w->gate_up, w->gate_up_bias, index, count);
	enum err e = product_activated(d, index, first, count, NULL, NULL);

	if (e != ERR_UNSUPPORTED)
		return decoder_failed(e, "matmul with act_mul", em);
	e = decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
	if (!e)
		e = shared_block_adapt_mlp(d, index, &a, em);
	if (!e)
		e = decoder_adapt(d, &a, LORA_GATE_UP, index, first, em);
	return e ? e : activate(d, index, count, em);
}

/* In portions of nearly equal size: what lies between its products is the widest of all activations, and for a few tokens alone
 * weights would be read once more. Between the products ranks tell each other something where gates are sparse or the last product has a norm, of the same portions
 * and through the buffer. */
enum err decoder_mlp(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	struct collectives *c = d->config.collectives;
	const float *bias = d->config.shard->rank == 0 ? w->down_bias : NULL;
	const bool told = is_sparse(d, index) || w->mlp_sub_norm;
	float *to = decoder_block_output(d, w->mlp_post_norm, w->down_bias), *out = c && !told ? collectives_buffer(c) : to;
	const u32 most = kern_threads_count(d->config.ctx->threads) > 1 && !told ? MLP_TOKENS : MLP_TOKENS_ALONE;
	const u32 portions = (tokens + most - 1) / most, portion = portions ? (tokens + portions - 1) / portions : 0;
	enum err e = ERR_OK;

	for (u32 first = 0; !e && first < tokens; first += portion) {
		u32 count = (u32)least(tokens - first, portion);
		float *y = out + (size_t)first * w->down.n;
		struct kern_matmul_args down = decoder_product_args(d, y, to == d->x, d->activated, &w->down, bias, index, count);
		e = product_activated(d, index, first, count, &down, NULL);
		if (e != ERR_UNSUPPORTED) {
			e = decoder_failed(e, "matmul with act_mul and another", em);
			continue;
		}
		e = decoder_norm_input(d, first, tokens, em);
		if (!e)
			e = gate_and_up(d, index, first, count, em);
		if (!e)
			e = sub_norm(d, d->activated, w->mlp_sub_norm, count, w->down.k, w->down.k, d->config.model->intermediate, em);
		if (!e)
			e = decoder_failed(d->config.ops->matmul(d->config.ctx, &down), "matmul", em);
		if (!e)
			e = decoder_adapt(d, &down, LORA_DOWN, index, first, em);
	}
	if (!e && c && told)
		memcpy(collectives_buffer(c), out, (size_t)tokens * w->down.n * sizeof(float));
	return e || !c ? e : collectives_all_reduce(c, d->delta, (size_t)tokens * w->down.n, em);
}

/* With the product that attention has put off. ERR_UNSUPPORTED: that one is computed, the MLP is not. */
static enum err mlp_behind(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct kern_matmul_args before = decoder_attention_args(d, d->x, true, index, tokens);
	float *to = decoder_block_output(d, w->mlp_post_norm, w->down_bias);
	const struct kern_matmul_args down = decoder_product_args(d, to, to == d->x, d->activated, &w->down, w->down_bias, index, tokens);
	enum err e = product_activated(d, index, 0, tokens, &down, &before);

	if (e != ERR_UNSUPPORTED)
		return decoder_failed(e, "matmul and others behind it", em);
	e = decoder_failed(d->config.ops->matmul(d->config.ctx, &before), "matmul", em);
	return e ? e : ERR_UNSUPPORTED;
}

static enum err experts(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	d->pending = true;
	return experts_sum(d, w, d->input, d->input, d->delta, tokens, em);
}

/* What the MLP reads, with what attention has added in the stream: if they stand side by side, a norm of the stream before
 * that, if the family has a second one, or what attention read. */
static enum err mlp_input(struct decoder *d, const struct layer_weights *w, bool has_experts, u32 tokens, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (!d->config.model->parallel && !has_experts)
		return decoder_product_input(d, w->mlp_norm, w->mlp_norm_bias, tokens, em);
	if (!d->config.model->parallel)
		return decoder_block_input(d, decoder_take_delta(d), w->mlp_norm, w->mlp_norm_bias, tokens, em);
	if (w->mlp_norm)
		e = decoder_block_input(d, NULL, w->mlp_norm, w->mlp_norm_bias, tokens, em);
	return e ? e : decoder_norm(d, NULL, d->x, decoder_take_delta(d), NULL, NULL, tokens, em);
}

static enum err mlp_block(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const u32 flags = d->config.model->layer_flags[index];
	bool has_experts = flags & LAYER_EXPERTS, beside = w->experts_norm;

	enum err e = hyper_gather(d, &w->mlp_hyper, tokens, em), behind = ERR_UNSUPPORTED;
	if (!e)
		e = mlp_input(d, w, flags & (LAYER_EXPERTS | LAYER_SHORTCUT), tokens, em);
	if (!e && d->config.model->arch->normed_residual)
		decoder_keep_input(d, RESIDUAL_MLP, tokens);
	if (!e)
		e = norm_gate(d, &w->mlp_norm_down, &w->mlp_norm_up, tokens, em);
	if (!e && flags & LAYER_SHORTCUT)
		e = experts_shortcut(d, w, tokens, em);
	if (!e && d->put_off)
		e = (behind = mlp_behind(d, index, tokens, em)) == ERR_UNSUPPORTED ? ERR_OK : behind;
	if (!e && behind == ERR_UNSUPPORTED)
		e = has_experts && !beside ? experts(d, w, tokens, em) : decoder_mlp(d, index, tokens, em);
	if (!e && beside)
		e = experts_beside_add(d, w, tokens, em);
	if (!e && d->shortcut && !(flags & LAYER_SHORTCUT))
		e = experts_shortcut_add(d, tokens, em);
	if (!e)
		e = post_norm(d, w->mlp_post_norm, tokens, em);
	if (!e)
		hyper_add(d, tokens);
	return e;
}

/* A matrix in place of a block, of the block's norm. All ranks compute the same of all of it. */
static enum err linear_block(struct decoder *d, u32 index, enum lora_product product, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *l = &d->config.weights->layers[index];
	const struct kern_weight *w = product == LORA_ATTN_OUT ? &l->attn_out : &l->down;

	enum err e = decoder_block_input(d, decoder_take_delta(d), w == &l->down ? l->mlp_norm : l->attn_norm, NULL, tokens, em);
	const struct kern_matmul_args a = decoder_product_args(d, d->x, true, d->input, w, NULL, index, tokens);
	if (!e)
		e = decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul", em);
	return e ? e : decoder_adapt(d, &a, product, index, 0, em);
}

/* What the layer adds of its tokens, if anything, by the stream with all that was added before. */
static enum err inputs_block(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	if (!d->inputs)
		return ERR_OK;
	if (d->altup.streams) {
		d->pending = false;
		return altup_correct(d, index, tokens, em);
	}
	enum err e = decoder_norm(d, NULL, d->x, decoder_take_delta(d), NULL, NULL, tokens, em);
	if (!e)
		e = layer_inputs_add(d, index, tokens, em);
	d->pending = true;
	return e;
}

static enum err layer(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv,
		      struct err_msg *em)
{
	const u32 flags = d->config.model->layer_flags[index];
	enum err e = d->altup.streams ? altup_predict(d, index, d->narrowed ? in->rows : in->tokens, em) : ERR_OK;

	d->put_off = false;
	if (flags & LAYER_SHARED_BLOCK)
		return shared_block_run(d, index, in, kv, em);
	if (!e && !(flags & LAYER_NO_MIXER))
		e = attention_block(d, index, in, kv, em);
	else if (!e && flags & LAYER_LINEAR_MIXER)
		e = linear_block(d, index, LORA_ATTN_OUT, d->narrowed ? in->rows : in->tokens, em);
	const u32 tokens = d->narrowed ? in->rows : in->tokens;
	d->scale = scale_behind(d, kind_of(d, index), d->scale);
	if (!e && !(flags & LAYER_NO_MLP))
		e = mlp_block(d, index, tokens, em);
	else if (!e && flags & LAYER_LINEAR_MLP)
		e = linear_block(d, index, LORA_DOWN, tokens, em);
	if (!e)
		e = inputs_block(d, index, tokens, em);
	d->scale = scale_behind(d, RESIDUAL_MLP, d->config.weights->layers[index].scale);
	ASSERT(e || !d->scale || d->pending); /* with what the layer has left */
	return e;
}

enum err decoder_forward(struct decoder *d, const struct inputs *in, const struct kern_kv *kv,
			 struct err_msg *em)
{
	ASSERT(in->tokens > 0);
	decoder_lay_out(d, in->tokens);
	d->tokens = in->tokens;
	d->rope_rows = rope_tables_rows(d->config.rope, in);
	d->narrowed = false;
	d->pending = false;
	d->scale = NULL;
	d->rows = in->rows;
	lora_step_begin(&d->lora, in);
	enum err e = embed(d, in, em);
	if (!e && d->inputs)
		e = layer_inputs_begin(d, in, em);
	if (!e && d->altup.streams)
		e = altup_begin(d, in->tokens, em);
	if (!e)
		hyper_begin(d, in->tokens);
	if (!e)
		shared_block_begin(d, in->tokens);
	for (u32 i = 0; !e && i < d->config.model->layers; i++) {
		e = layer(d, i, in, &kv[i], em);
		if (e)
			err_prefix(em, "layer %u", i);
		if (d->config.progress_ns) /* a long step is no hanging step */
			atomic_store_explicit(d->config.progress_ns, clock_now_ns(), memory_order_relaxed);
	}
	return e;
}
