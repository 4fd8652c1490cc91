/* Per-layer inputs on a device, as model/layer_inputs.c computes them, and the factor that a layer has behind it. Every rank computes all of
 * both. Runs in the worker in every step of models that have them; queues, never waits, never allocates. */
#include <math.h>

#include "proc_worker/gpu/gpu_priv.h"

/* The projection of the embeddings, which are the stream, normed layer by layer, and the rows of the table; their sum. */
enum err gpu_inputs_begin(struct gpu *g, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const struct gpu_arena *a = &g->arena;
	const u32 width = m->layers * m->input_width;
	const struct kern_rmsnorm_args round = {.out_bf16 = a->normed, .x = a->x, .tokens = tokens, .hidden = m->hidden, .dtype = KERN_BF16, .x_dtype = KERN_F32};
	const struct kern_matmul_args project = {.out_bf16 = a->inputs_projected,
						 .x_bf16 = a->normed,
						 .w = &g->weights.inputs_projection,
						 .tokens = tokens,
						 .x_stride = m->hidden,
						 .out_stride = width,
						 .dtype = KERN_BF16,
						 .out_dtype = KERN_BF16};
	/* Of what is divided by sqrt(hidden) for, but for its epsilon. */
	const struct kern_rmsnorm_args norm = {.out_bf16 = a->inputs_projected,
					       .x_bf16 = a->inputs_projected,
					       .weight = g->weights.inputs_norm,
					       .eps = m->norm_eps * (float)m->hidden,
					       .tokens = tokens * m->layers,
					       .hidden = m->input_width,
					       .dtype = KERN_BF16,
					       .x_dtype = KERN_BF16};
	const struct kern_embedding_args look_up = {.out = a->inputs,
						    .ids = a->ids,
						    .table = g->weights.inputs_embed,
						    .table_dtype = KERN_BF16,
						    .tokens = tokens,
						    .hidden = width,
						    .rows = m->input_vocab,
						    .scale = sqrtf((float)m->input_width) * WEIGHTS_INPUTS_SHARE};
	const struct kern_rmsnorm_args sum = {.x = a->inputs, .add_bf16 = a->inputs_projected, .tokens = tokens, .hidden = width, .dtype = KERN_BF16, .x_dtype = KERN_F32};

	enum err e = gpu_op(g->ops.rmsnorm(&g->ctx, &round), "rmsnorm", em);
	if (!e)
		e = gpu_op(g->ops.matmul(&g->ctx, &project), "matmul", em);
	if (!e)
		e = gpu_op(g->ops.rmsnorm(&g->ctx, &norm), "rmsnorm of per-layer inputs", em);
	if (!e)
		e = gpu_op(g->ops.embedding(&g->ctx, &look_up), "embedding of per-layer inputs", em);
	return e ? e : gpu_op(g->ops.rmsnorm(&g->ctx, &sum), "sum of per-layer inputs", em);
}

/* The layer's inputs as the right half of rows whose left half the gate fills: two heads that rope_kv rounds and does not rotate, of which the
 * first is what lies in front. */
static enum err place_inputs(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const struct kern_rope_kv_args a = {.q_bf16 = g->arena.input_gate,
					    .qkv = g->arena.inputs + (size_t)layer * m->input_width - m->input_width,
					    .cos = g->arena.cos,
					    .sin = g->arena.sin,
					    .positions = g->arena.positions,
					    .kv = {.dtype = KERN_BF16, .block_size = g->config.limits.block_size, .head_dim = m->input_width},
					    .tokens = tokens,
					    .heads = 2,
					    .qkv_stride = m->layers * m->input_width,
					    .dtype = KERN_BF16};

	return gpu_op(g->ops.rope_kv(&g->ctx, &a), "rope_kv of per-layer inputs", em);
}

/* Of arena.normed, which is the stream as it is, rounded. */
enum err gpu_inputs_add(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = g->config.model;
	const struct gpu_arena *a = &g->arena;
	const struct layer_weights *w = &g->weights.layers[layer];
	const struct kern_matmul_args gate = {.out_bf16 = a->input_gate,
					      .x_bf16 = a->normed,
					      .w = &w->input_gate,
					      .tokens = tokens,
					      .x_stride = m->hidden,
					      .out_stride = 2 * m->input_width,
					      .dtype = KERN_BF16,
					      .out_dtype = KERN_BF16};
	const struct kern_act_mul_args act = {.out_bf16 = a->input_activated,
					      .gate_up_bf16 = a->input_gate,
					      .tokens = tokens,
					      .size = m->input_width,
					      .act = m->activation,
					      .dtype = KERN_BF16};
	const struct kern_matmul_args out = {.out_bf16 = a->delta,
					     .x_bf16 = a->input_activated,
					     .w = &w->input_out,
					     .tokens = tokens,
					     .x_stride = m->input_width,
					     .out_stride = m->hidden,
					     .dtype = KERN_BF16,
					     .out_dtype = KERN_BF16};
	const struct kern_rmsnorm_args norm = {.out_bf16 = a->delta,
					       .x_bf16 = a->delta,
					       .weight = w->input_post_norm,
					       .eps = m->norm_eps,
					       .tokens = tokens,
					       .hidden = m->hidden,
					       .dtype = KERN_BF16,
					       .x_dtype = KERN_BF16};

	enum err e = place_inputs(g, layer, tokens, em);
	if (!e)
		e = gpu_op(g->ops.matmul(&g->ctx, &gate), "matmul", em);
	if (!e)
		e = gpu_op(g->ops.act_mul(&g->ctx, &act), "act_mul", em);
	if (!e)
		e = gpu_op(g->ops.matmul(&g->ctx, &out), "matmul", em);
	return e ? e : gpu_op(g->ops.rmsnorm(&g->ctx, &norm), "rmsnorm", em);
}

/* Every row looked up where it is: the embedding's op multiplies what it finds. */
enum err gpu_scale_stream(struct gpu *g, float factor, u32 tokens, struct err_msg *em)
{
	const struct kern_embedding_args a = {.out = g->arena.x,
					      .ids = g->arena.rows_themselves,
					      .table = g->arena.x,
					      .table_dtype = KERN_F32,
					      .tokens = tokens,
					      .hidden = g->config.model->hidden,
					      .rows = tokens,
					      .scale = factor};

	return gpu_op(g->ops.embedding(&g->ctx, &a), "embedding", em);
}
