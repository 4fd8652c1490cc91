/* Latent attention on a device: what model/latent.c does on the CPU, between a layer's first product and the rotation, and behind attention. The
 * ranks, and queries and keys until they are rotated, are float; what products read is bf16. Runs in the worker in every step of such models;
 * queues, never waits, never allocates. */
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/model/latent.h"

bool gpu_is_latent(const struct gpu *g)
{
	return g->config.model->arch->latent;
}

/* Of the queries' low rank, if they have one, and of the latent behind it. */
static enum err norm_ranks(struct gpu *g, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	struct qk_norm_args a;

	latent_norm_args_init(&a, g->config.model, w, tokens, g->arena.low, g->arena.squares);
	enum err e = gpu_op(g->ops.qk_squares(&g->ctx, &a.squares), "qk_squares", em);
	return e ? e : gpu_op(g->ops.qk_norm(&g->ctx, &a.norm), "qk_norm", em);
}

/* Whole rows: what their products read of them begins them. */
static enum err round_ranks(struct gpu *g, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct kern_rmsnorm_args a = {.out_bf16 = g->arena.low_rounded,
					    .x = g->arena.low,
					    .tokens = tokens,
					    .hidden = w->qkv.n,
					    .dtype = KERN_BF16,
					    .x_dtype = KERN_F32};

	return gpu_op(g->ops.rmsnorm(&g->ctx, &a), "rmsnorm", em);
}

/* Queries of all heads from their low rank. */
static enum err raise_queries(struct gpu *g, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct kern_matmul_args a = {.out = g->arena.queries,
					   .x_bf16 = g->arena.low_rounded,
					   .w = &w->q_b,
					   .tokens = tokens,
					   .x_stride = w->qkv.n,
					   .out_stride = w->q_b.n,
					   .dtype = KERN_BF16,
					   .out_dtype = KERN_F32};
	enum err e = round_ranks(g, w, tokens, em);

	return e ? e : gpu_op(g->ops.matmul(&g->ctx, &a), "matmul", em);
}

/* Queries of all heads, which lie behind each other, become what is held against keys: as wide as these, what rotates in front. */
static enum err project_queries(struct gpu *g, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const bool raised = m->latent.q_rank > 0;
	const struct kern_head_matmul_args a = {.out = g->arena.qkv,
						.x = raised ? g->arena.queries : g->arena.low,
						.w = w->head_k,
						.tokens = tokens,
						.heads = g->config.shard->heads,
						.beside = m->latent.rope,
						.x_stride = raised ? w->q_b.n : w->qkv.n,
						.x_apart = latent_query_width(m),
						.out_stride = gpu_qkv_widest(g),
						.out_apart = m->head_dim,
						.dtype = KERN_F32,
						.out_dtype = KERN_F32};

	return gpu_op(g->ops.head_matmul(&g->ctx, &a), "head_matmul", em);
}

enum err gpu_latent_project(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const struct layer_weights *w = &g->weights.layers[layer];
	const struct kern_latent_kv_args kv = {.qkv = g->arena.qkv,
					       .latents = g->arena.low + (w->qkv.n - m->head_dim),
					       .tokens = tokens,
					       .heads = g->config.shard->heads,
					       .rank = m->latent.rank,
					       .rope = m->latent.rope,
					       .latent_stride = w->qkv.n,
					       .qkv_stride = gpu_qkv_widest(g)};

	enum err e = norm_ranks(g, w, tokens, em);
	if (!e && m->latent.q_rank > 0)
		e = raise_queries(g, w, tokens, em);
	if (!e)
		e = project_queries(g, w, tokens, em);
	return e ? e : gpu_op(g->ops.latent_kv(&g->ctx, &kv), "latent_kv", em);
}

enum err gpu_latent_values(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const u32 heads = g->config.shard->heads;
	const struct kern_head_matmul_args a = {.out_bf16 = g->arena.values,
						.x_bf16 = g->arena.attended + m->latent.rope,
						.w = g->weights.layers[layer].head_v,
						.tokens = tokens,
						.heads = heads,
						.x_stride = heads * m->head_dim,
						.x_apart = m->head_dim,
						.out_stride = heads * m->latent.value,
						.out_apart = m->latent.value,
						.dtype = KERN_BF16,
						.out_dtype = KERN_BF16};

	return gpu_op(g->ops.head_matmul(&g->ctx, &a), "head_matmul", em);
}
