/* The generic decoder on a device: the same composition of ops as model/decoder.c, with bf16 activations; the
 * residual stream, what is rotated, and logits are float. Steps of few tokens use products that are fused with what
 * surrounds them, others the separate ops. Runs in the worker in every step; queues, never waits, never allocates; knows
 * tokens, positions and slots only. */
#include "common/assert.h"
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/model/qk_norm.h"

enum err gpu_op(enum err e, const char *op, struct err_msg *em)
{
	return e ? err_set(em, e, "%s: %s", op, err_text(e)) : ERR_OK;
}

bool gpu_ends_in_stream(const struct gpu *g, bool few, const float *post_norm)
{
	return !post_norm && (few || !g->config.comm);
}

/* Over all ranks: the stream, or delta. */
static enum err sum(struct gpu *g, bool stream, u32 tokens, struct err_msg *em)
{
	struct kern_comm *c = g->config.comm;
	void *values = stream ? (void *)g->arena.x : (void *)g->arena.delta;
	size_t count = (size_t)tokens * g->config.model->hidden;

	return c ? g->api->comm_sum(c, g->ctx.stream, values, count, stream ? KERN_F32 : KERN_BF16, em) : ERR_OK;
}

/* ---------------------------------------------------------------- parts */

/* The step as the layers see it. `few`: no more tokens than fused products take, so they are. `pending`: delta is still
 * to be added to x. `begun`: what attention adds is where this block's products add up, and the MLP beside it adds to that. */
struct pass {
	struct gpu *g;
	u32 tokens;
	bool few, pending, begun;
	struct kern_attention_plan plans[GPU_ATTENTIONS];
};

static struct kern_rmsnorm_args norm_args(const struct gpu *g, u16 *out, const float *weight, u32 tokens)
{
	return (struct kern_rmsnorm_args){.out_bf16 = out,
					  .weight = weight,
					  .eps = g->config.model->norm_eps,
					  .tokens = tokens,
					  .hidden = g->config.model->hidden,
					  .dtype = KERN_BF16};
}

/* Of rows of the stream, after adding `add` where there is one. No `weight`: as they are. */
static enum err norm(struct gpu *g, u16 *out, float *x, const u16 *add, const float *weight, const float *bias,
		     u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	struct kern_rmsnorm_args a = norm_args(g, out, weight, tokens);
	struct kern_layernorm_args layer = {.out_bf16 = out,
					    .x = x,
					    .add_bf16 = add,
					    .weight = weight,
					    .bias = bias,
					    .eps = m->norm_eps,
					    .tokens = tokens,
					    .hidden = m->hidden,
					    .dtype = KERN_BF16};

	a.x = x;
	a.add_bf16 = add;
	a.x_dtype = KERN_F32;
	return m->arch->layer_norm ? gpu_op(g->ops.layernorm(&g->ctx, &layer), "layernorm", em)
				   : gpu_op(g->ops.rmsnorm(&g->ctx, &a), "rmsnorm", em);
}

/* Of delta, in place. */
static enum err norm_delta(struct gpu *g, const float *weight, u32 tokens, struct err_msg *em)
{
	struct kern_rmsnorm_args a = norm_args(g, g->arena.delta, weight, tokens);

	a.eps = g->config.model->post_norm_eps;
	a.x_bf16 = g->arena.delta;
	a.x_dtype = KERN_BF16;
	return gpu_op(g->ops.rmsnorm(&g->ctx, &a), "rmsnorm", em);
}

/* Whether the products of so many tokens are fused with the norm of what they read, which is RMSNorm. */
static bool norm_fits(const struct gpu *g, u32 tokens)
{
	return !g->config.model->arch->layer_norm &&
	       (size_t)tokens * g->config.model->hidden * sizeof(float) <= GPU_NORM_BYTES;
}

/* What a product reads: the stream, with the norm left to the product, or the normed stream, with delta added where
 * that is due. */
static enum err norm_in(struct pass *p, const float *weight, const float *bias, const struct kern_weight *w,
			struct kern_matmul_fusion *fusion, struct err_msg *em)
{
	struct gpu *g = p->g;

	*fusion = (struct kern_matmul_fusion){.norm_eps = g->config.model->norm_eps};
	if (p->few && weight && !p->pending && !w->order && norm_fits(g, p->tokens)) {
		fusion->norm_weight = weight;
		return ERR_OK;
	}
	enum err e = norm(g, g->arena.normed, g->arena.x, p->pending ? g->arena.delta : NULL, weight, bias,
			  p->tokens, em);
	p->pending = false;
	return e;
}

static struct kern_matmul_args product(void *out, const u16 *in, const struct kern_weight *w,
				       const float *bias, u32 tokens)
{
	return (struct kern_matmul_args){.out = out,
					 .x_bf16 = in,
					 .w = w,
					 .bias = bias,
					 .tokens = tokens,
					 .x_stride = w->k,
					 .out_stride = w->n,
					 .dtype = KERN_BF16,
					 .out_dtype = KERN_BF16};
}

/* A product of the normed stream, or of the stream itself where `fusion` has its norm. */
static struct kern_matmul_args product_in(const struct gpu *g, void *out, const struct kern_weight *w,
					  const struct kern_matmul_fusion *fusion, u32 first, u32 tokens)
{
	struct kern_matmul_args a = product(out, g->arena.normed + (size_t)first * w->k, w, NULL, tokens);

	if (fusion->norm_weight) {
		a.x = g->arena.x + (size_t)first * w->k;
		a.dtype = KERN_F32;
	}
	return a;
}

static enum err run_product(struct gpu *g, const struct kern_matmul_args *a, struct err_msg *em)
{
	return gpu_op(g->ops.matmul(&g->ctx, a), "matmul", em);
}

/* A product that ends a block: into the residual stream or into delta. Of several ranks one brings the stream (and
 * the bias), and their sum is the new one. `first`: of the tokens. */
static enum err end_product(struct pass *p, const u16 *in, const struct kern_weight *w, const float *bias,
			    const float *post_norm, u32 first, u32 tokens, struct err_msg *em)
{
	struct gpu *g = p->g;
	bool leads = g->config.shard->rank == 0, stream = gpu_ends_in_stream(g, p->few, post_norm);
	struct kern_matmul_args a = product(NULL, in, w, leads ? bias : NULL, tokens);

	if (stream)
		a.out = g->arena.x + (size_t)first * w->n;
	else
		a.out_bf16 = g->arena.delta + (size_t)first * w->n;
	a.out_dtype = stream ? KERN_F32 : KERN_BF16;
	a.accumulate = (stream && leads) || p->begun;
	return run_product(g, &a, em);
}

static enum err end_block(struct pass *p, const float *post_norm, struct err_msg *em)
{
	bool stream = gpu_ends_in_stream(p->g, p->few, post_norm);

	enum err e = sum(p->g, stream, p->tokens, em);
	p->pending = !stream;
	p->begun = false;
	return e || !post_norm ? e : norm_delta(p->g, post_norm, p->tokens, em);
}

/* ---------------------------------------------------------------- attention */

static struct kern_rope_kv_args rope_args(struct gpu *g, u32 layer, u32 tokens)
{
	const struct gpu_arena *a = &g->arena;
	const struct model_config *m = g->config.model;
	const struct layer_weights *w = &g->weights.layers[layer];
	bool local = m->layer_flags[layer] & LAYER_LOCAL_ROPE, together = m->arch->traits & ARCH_QK_NORMS, gated = m->output_gate, latent = gpu_is_latent(g);
	const u32 flags = m->layer_flags[layer];
	const struct rope_config *by = local ? &m->local_rope : &m->rope;
	struct kern_kv kv = g->kv[layer];
	size_t first = local ? (size_t)g->config.rope->local * (m->rope.dim / 2) : 0;

	if (flags & LAYER_SHARED_KV) /* which is another layer's */
		kv.kv_heads = 0;
	return (struct kern_rope_kv_args){.q_bf16 = a->q,
					  .qkv = a->qkv,
					  .bias = gated || latent ? NULL : w->qkv_bias,
					  .q_norm = together || latent ? NULL : w->q_norm,
					  .k_norm = together || latent ? NULL : w->k_norm,
					  .norm_eps = m->norm_eps,
					  .clip = m->clip,
					  .cos = a->cos + first,
					  .sin = a->sin + first,
					  .q_scales = a->q_scales,
					  .positions = local ? a->positions : a->rope_rows,
					  .slots = a->slots,
					  .kv = kv,
					  .tokens = tokens,
					  .heads = g->config.shard->heads,
					  .rope_dim = flags & LAYER_NO_ROPE ? 0 : by->dim,
					  .rope_apart = by->head / 2,
					  .qkv_stride = gated || m->arch->global_heads ? gpu_qkv_stride(g, layer) : 0,
					  .interleaved = m->interleaved,
					  .norm_behind = m->arch->norm_behind,
					  .norm_v = m->arch->global_heads,
					  .v_is_k = flags & LAYER_GLOBAL && m->value_is_key,
					  .dtype = KERN_BF16};
}

/* Over all heads of q and of k, which ranks share: their sums of squares meet in between. */
static enum err norm_heads(struct gpu *g, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	struct qk_norm_args a;

	qk_norm_args_init(&a, g->config.model, g->config.shard, w, tokens, g->arena.qkv, g->arena.squares, g->arena.squares);
	enum err e = gpu_op(g->ops.qk_squares(&g->ctx, &a.squares), "qk_squares", em);
	if (!e && g->config.comm)
		e = g->api->comm_sum(g->config.comm, g->ctx.stream, g->arena.squares, 2 * (size_t)tokens, KERN_F32, em);
	return e ? e : gpu_op(g->ops.qk_norm(&g->ctx, &a.norm), "qk_norm", em);
}

/* The first product of a layer: what it makes of a token is q, k and v, and gates of q where there are some, or what a recurrent layer has instead.
 * Their bias is rope_kv's to add, but where there is more. */
static enum err first_product(struct pass *p, u32 layer, struct kern_matmul_fusion *fusion, struct kern_matmul_args *a, struct err_msg *em)
{
	struct gpu *g = p->g;
	const struct layer_weights *w = &g->weights.layers[layer];
	const bool latent = gpu_is_latent(g);

	enum err e = norm_in(p, w->attn_norm, w->attn_norm_bias, &w->qkv, fusion, em);
	*a = product_in(g, latent ? g->arena.low : g->arena.qkv, &w->qkv, fusion, 0, p->tokens);
	a->bias = latent || gpu_is_recurrent(g, layer) || g->config.model->output_gate ? w->qkv_bias : NULL;
	a->out_dtype = KERN_F32;
	a->out_stride = latent ? w->qkv.n : gpu_qkv_stride(g, layer);
	a->fusion = p->few ? fusion : NULL;
	return e;
}

/* q, and K and V in the cache: in one kernel if there is one for it. */
static enum err project(struct pass *p, u32 layer, struct err_msg *em)
{
	struct gpu *g = p->g;
	const struct layer_weights *w = &g->weights.layers[layer];
	struct kern_rope_kv_args rope = rope_args(g, layer, p->tokens);
	struct kern_matmul_fusion fusion;
	struct kern_matmul_args a;
	const bool together = g->config.model->arch->traits & ARCH_QK_NORMS, latent = gpu_is_latent(g);

	enum err e = first_product(p, layer, &fusion, &a, em);
	if (e)
		return e;
	if (p->few && !together && !latent && !g->config.model->output_gate && !g->config.model->arch->global_heads) {
		fusion.rope = &rope;
		e = g->ops.matmul(&g->ctx, &a);
		if (e != ERR_UNSUPPORTED)
			return gpu_op(e, "matmul with rope_kv", em);
		fusion.rope = NULL;
	}
	e = run_product(g, &a, em);
	if (!e && together)
		e = norm_heads(g, w, p->tokens, em);
	if (!e && latent)
		e = gpu_latent_project(g, layer, p->tokens, em);
	return e ? e : gpu_op(g->ops.rope_kv(&g->ctx, &rope), "rope_kv", em);
}

static enum err attend(struct pass *p, u32 layer, struct err_msg *em)
{
	struct gpu *g = p->g;
	const struct gpu_arena *a = &g->arena;
	const struct kern_attention_plan *plan = &p->plans[gpu_attention_of(g, layer)];
	struct kern_attention_args args = {.out_bf16 = a->attended,
					   .q_bf16 = a->q,
					   .kv = g->kv[layer],
					   .query_start = a->query_start,
					   .context = a->context,
					   .block_tables = a->batch.blocks,
					   .block_stride = a->batch.block_stride,
					   .rows = a->batch.rows,
					   .tokens = p->tokens,
					   .heads = g->config.shard->heads,
					   .scale = g->config.model->attention_scale,
					   .soft_cap = g->config.model->attention_soft_cap,
					   .window = plan->window,
					   .sinks = g->weights.layers[layer].sinks,
					   .dtype = KERN_BF16,
					   .plan = plan};

	enum err e = gpu_op(g->ops.attention(&g->ctx, &args), "attention", em);
	if (!e && gpu_is_latent(g))
		e = gpu_latent_values(g, layer, p->tokens, em);
	return e ? e : gpu_gate_heads(g, layer, p->tokens, em);
}

static enum err mix(struct pass *p, u32 layer, struct err_msg *em)
{
	struct kern_matmul_fusion fusion;
	struct kern_matmul_args a;

	enum err e = first_product(p, layer, &fusion, &a, em);
	if (!e)
		e = run_product(p->g, &a, em);
	return e ? e : gpu_recurrent_mix(p->g, layer, p->tokens, em);
}

static enum err project_and_attend(struct pass *p, u32 layer, struct err_msg *em)
{
	enum err e = project(p, layer, em);

	return e ? e : attend(p, layer, em);
}

/* Of attention, or of what a layer has instead. */
static enum err attention_block(struct pass *p, u32 layer, struct err_msg *em)
{
	struct gpu *g = p->g;
	const struct layer_weights *w = &g->weights.layers[layer];

	enum err e = gpu_is_recurrent(g, layer) ? mix(p, layer, em) : project_and_attend(p, layer, em);
	if (!e && g->config.model->parallel && w->mlp_norm) /* of the stream as attention has read it */
		e = norm(g, g->arena.normed, g->arena.x, NULL, w->mlp_norm, w->mlp_norm_bias, p->tokens, em);
	if (!e)
		e = end_product(p, gpu_is_latent(g) ? g->arena.values : g->arena.attended, &w->attn_out, w->attn_out_bias,
				w->attn_post_norm, 0, p->tokens, em);
	if (g->config.model->parallel) { /* the MLP reads what attention has read, or its own norm of that, and its block ends with this one */
		p->begun = true;
		return e;
	}
	return e ? e : end_block(p, w->attn_post_norm, em);
}

/* ---------------------------------------------------------------- MLP */

/* act(gate) * up of some tokens, or where there is no gate act(up): in one kernel, or in two. */
static enum err activated(struct pass *p, const struct layer_weights *w, struct kern_matmul_fusion *fusion, u32 first,
		      u32 tokens, struct err_msg *em)
{
	struct gpu *g = p->g;
	bool ungated = g->config.model->arch->ungated;
	u32 size = ungated ? w->gate_up.n : w->gate_up.n / 2;
	struct kern_matmul_args a = product_in(g, g->arena.gate_up, &w->gate_up, fusion, first, tokens);
	struct kern_act_mul_args act = {.out_bf16 = g->arena.activated,
					.gate_up_bf16 = g->arena.gate_up,
					.tokens = tokens,
					.size = size,
					.act = g->config.model->activation,
					.ungated = ungated,
					.xielu = w->xielu,
					.dtype = KERN_BF16};

	a.bias = w->gate_up_bias;
	a.fusion = p->few ? fusion : NULL;
	if (p->few && !ungated) {
		fusion->act_mul = true;
		fusion->act = act.act;
		a.out_bf16 = g->arena.activated;
		a.out_stride = size;
		enum err fused = g->ops.matmul(&g->ctx, &a);
		if (fused != ERR_UNSUPPORTED)
			return gpu_op(fused, "matmul with act_mul", em);
		fusion->act_mul = false;
		a.out_bf16 = g->arena.gate_up;
		a.out_stride = w->gate_up.n;
	}
	enum err e = run_product(g, &a, em);
	return e ? e : gpu_op(g->ops.act_mul(&g->ctx, &act), "act_mul", em);
}

/* In portions: what lies between its products is the widest of all activations. */
static enum err mlp(struct pass *p, const struct layer_weights *w, struct err_msg *em)
{
	struct kern_matmul_fusion fusion = {0}; /* side by side with attention: of a stream that is normed already */

	enum err e = p->begun ? ERR_OK : norm_in(p, w->mlp_norm, w->mlp_norm_bias, &w->gate_up, &fusion, em);
	for (u32 first = 0, n; !e && first < p->tokens; first += n) {
		n = p->tokens - first < GPU_MLP_TOKENS ? p->tokens - first : (u32)GPU_MLP_TOKENS;
		e = activated(p, w, &fusion, first, n, em);
		if (!e)
			e = end_product(p, p->g->arena.activated, &w->down, w->down_bias,
					w->mlp_post_norm, first, n, em);
	}
	return e ? e : end_block(p, w->mlp_post_norm, em);
}

static enum err experts(struct pass *p, const struct layer_weights *w, struct err_msg *em)
{
	struct gpu *g = p->g;
	bool stream = gpu_ends_in_stream(g, p->few, w->mlp_post_norm);
	const struct gpu_moe_out out = {stream, stream && g->config.shard->rank == 0};

	enum err e = norm(g, g->arena.normed, g->arena.x, p->pending ? g->arena.delta : NULL, w->mlp_norm,
			  w->mlp_norm_bias, p->tokens, em);
	if (!e)
		e = gpu_experts(g, w, &out, p->tokens, em);
	return e ? e : end_block(p, w->mlp_post_norm, em);
}

/* ---------------------------------------------------------------- the pass */

static enum err embed(struct gpu *g, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	struct kern_embedding_args a = {.out = g->arena.x,
					.ids = g->arena.ids,
					.table = g->weights.embed,
					.table_dtype = KERN_BF16,
					.tokens = tokens,
					.hidden = m->hidden,
					.first = g->config.shard->vocab_first,
					.rows = g->config.shard->vocab_rows,
					.scale = m->embed_scale};

	enum err e = gpu_op(g->ops.embedding(&g->ctx, &a), "embedding", em);
	if (!e && g->weights.positions && g->config.shard->rank == 0) { /* ranks add what they have */
		a.ids = g->arena.positions;
		a.table = g->weights.positions;
		a.first = 0;
		a.rows = m->context_max;
		a.scale = 0;
		a.accumulate = true;
		e = gpu_op(g->ops.embedding(&g->ctx, &a), "embedding of positions", em);
	}
	return e ? e : sum(g, true, tokens, em);
}

static enum err plan_attention(struct pass *p, bool decode, struct err_msg *em)
{
	struct gpu *g = p->g;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < g->attention_count; i++) {
		p->plans[i] = (struct kern_attention_plan){.memory = g->arena.plans[i],
							   .limits = gpu_attention_limits(g, &g->attentions[i], decode),
							   .window = g->attentions[i].window};
		struct kern_attention_plan_args a = {.plan = &p->plans[i],
						     .query_start = g->arena.query_start,
						     .context = g->arena.context,
						     .rows = g->arena.batch.rows};
		e = gpu_op(g->device_ops.attention_plan(&g->ctx, &a), "attention_plan", em);
	}
	return e;
}

/* What the layer adds of its tokens, if anything, and what the stream is multiplied by behind it. */
static enum err layer_end(struct pass *p, u32 layer, struct err_msg *em)
{
	struct gpu *g = p->g;
	const float factor = g->weights.layers[layer].scale_value;
	enum err e = ERR_OK;

	if (g->arena.inputs) {
		e = norm(g, g->arena.normed, g->arena.x, p->pending ? g->arena.delta : NULL, NULL, NULL, p->tokens, em);
		if (!e)
			e = gpu_inputs_add(g, layer, p->tokens, em);
		p->pending = true;
	}
	if (e || factor == 0)
		return e;
	if (p->pending)
		e = norm(g, NULL, g->arena.x, g->arena.delta, NULL, NULL, p->tokens, em);
	p->pending = false;
	return e ? e : gpu_scale_stream(g, factor, p->tokens, em);
}

enum err gpu_decode(struct gpu *g, const struct gpu_shape *shape, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	struct pass p = {.g = g, .tokens = shape->tokens, .few = shape->tokens <= KERN_FUSED_TOKENS};

	ASSERT(shape->tokens > 0 && shape->tokens <= g->config.limits.tokens_max);
	enum err e = plan_attention(&p, shape->decode, em);
	if (!e)
		e = embed(g, shape->tokens, em);
	if (!e && g->arena.inputs)
		e = gpu_inputs_begin(g, shape->tokens, em);
	for (u32 i = 0; !e && i < m->layers; i++) {
		const struct layer_weights *w = &g->weights.layers[i];
		const u32 flags = m->layer_flags[i];
		if (!(flags & LAYER_NO_MIXER))
			e = attention_block(&p, i, em);
		if (!e && !(flags & LAYER_NO_MLP))
			e = flags & LAYER_EXPERTS ? experts(&p, w, em) : mlp(&p, w, em);
		if (!e)
			e = layer_end(&p, i, em);
		if (e)
			err_prefix(em, "layer %u", i);
	}
	if (!e && p.pending)
		e = norm(g, NULL, g->arena.x, g->arena.delta, NULL, NULL, p.tokens, em);
	return e;
}

/* ---------------------------------------------------------------- logits */

/* Rows of x: the embedding op looks rows up in whatever table it is given. */
static enum err pick(struct gpu *g, const u32 *index, u32 count, u32 tokens, struct err_msg *em)
{
	struct kern_embedding_args a = {.out = g->arena.picked,
					.ids = index,
					.table = g->arena.x,
					.table_dtype = KERN_F32,
					.tokens = count,
					.hidden = g->config.model->hidden,
					.rows = tokens};

	return gpu_op(g->ops.embedding(&g->ctx, &a), "embedding", em);
}

/* Shares of the vocabulary lie side by side in a row, on every rank. */
static enum err join(struct gpu *g, u32 count, struct err_msg *em)
{
	struct kern_join_logits_args a = {.parts = g->arena.logit_parts,
					  .logits = g->arena.logits,
					  .ranks = g->config.shard->ranks,
					  .rows = count,
					  .vocab = g->config.model->vocab_size,
					  .share_max = g->share_max};
	size_t bytes = (size_t)count * g->share_max * sizeof(float);

	enum err e = g->api->comm_gather(g->config.comm, g->ctx.stream, g->arena.logit_part,
					 g->arena.logit_parts, bytes, em);
	return e ? e : gpu_op(g->device_ops.join_logits(&g->ctx, &a), "join_logits", em);
}

enum err gpu_norm_samples(struct gpu *g, bool picked, u32 count, struct err_msg *em)
{
	return norm(g, g->arena.picked_normed, picked ? g->arena.picked : g->arena.x, NULL, g->weights.final_norm, g->weights.final_norm_bias, count,
		    em);
}

enum err gpu_logits(struct gpu *g, const u32 *index, u32 count, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const struct kern_weight *w = &g->weights.lm_head;
	bool shared = g->config.comm != NULL,
	     fused = count <= KERN_FUSED_TOKENS && !w->order && norm_fits(g, count);
	struct kern_matmul_fusion fusion = {.norm_weight = g->weights.final_norm, .norm_eps = m->norm_eps};

	ASSERT(count <= g->samples_max);
	if (count == 0)
		return ERR_OK;
	enum err e = index ? pick(g, index, count, tokens, em) : ERR_OK;
	if (!e && !fused)
		e = gpu_norm_samples(g, index != NULL, count, em);
	if (e)
		return e;
	struct kern_matmul_args a = product(NULL, g->arena.picked_normed, w, g->weights.lm_head_bias, count);
	if (fused) {
		a.x = index ? g->arena.picked : g->arena.x;
		a.dtype = KERN_F32;
	}
	a.out = shared ? g->arena.logit_part : g->arena.logits;
	a.out_stride = shared ? g->share_max : w->n;
	a.out_dtype = KERN_F32;
	a.fusion = fused ? &fusion : NULL;
	e = run_product(g, &a, em);
	if (!e && shared)
		e = join(g, count, em);
	struct kern_soft_cap_args cap = {
		.x = g->arena.logits, .cap = m->logits_soft_cap, .rows = count, .width = m->vocab_size};
	return e || cap.cap == 0 ? e : gpu_op(g->ops.soft_cap(&g->ctx, &cap), "soft_cap", em);
}
