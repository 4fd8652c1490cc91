/* A layer's mixture of experts on a device: as model/moe.c, with bf16 activations. Runs in the worker in
 * every step; queues, never waits. */
#include "proc_worker/gpu/gpu_priv.h"
#include "proc_worker/model/moe.h"

/* `out`: of values of `dtype`. */
static enum err product(struct gpu *g, void *out, enum kern_dtype dtype, const u16 *x, const struct kern_weight *w,
			const float *bias, u32 tokens, struct err_msg *em)
{
	struct kern_matmul_args a = {.out = out,
				     .x_bf16 = x,
				     .w = w,
				     .bias = bias,
				     .tokens = tokens,
				     .x_stride = w->k,
				     .out_stride = w->n,
				     .dtype = KERN_BF16,
				     .out_dtype = dtype};

	return gpu_op(g->ops.matmul(&g->ctx, &a), "matmul", em);
}

static enum err route(struct gpu *g, const struct layer_weights *w, const u16 *x, u32 tokens, struct err_msg *em)
{
	const struct gpu_arena *a = &g->arena;
	struct kern_moe_route_args choice;

	moe_route_args_init(&choice, g->config.model, w);
	choice.logits = a->router_logits;
	choice.weights = a->expert_weights;
	choice.assignments = a->assignments;
	choice.tokens_of = a->tokens_of;
	choice.expert_start = a->expert_start;
	choice.tokens = tokens;
	enum err e = product(g, a->router_logits, KERN_F32, x, &w->router, w->router_bias, tokens, em);
	return e ? e : gpu_op(g->ops.moe_route(&g->ctx, &choice), "moe_route", em);
}

static enum err products(struct gpu *g, u16 *out, const u16 *x, const u32 *source,
			 const struct kern_weight *w, const float *bias, u32 tokens, struct err_msg *em)
{
	struct kern_moe_matmul_args a = {.out_bf16 = out,
					 .x_bf16 = x,
					 .source = source,
					 .w = w,
					 .bias = bias,
					 .expert_start = g->arena.expert_start,
					 .experts = g->config.model->experts,
					 .assignments = tokens * g->config.model->experts_per_token,
					 .tokens = tokens,
					 .dtype = KERN_BF16};

	return gpu_op(g->ops.moe_matmul(&g->ctx, &a), "moe_matmul", em);
}

/* What the expert of all tokens says, and how much it counts. */
static enum err run_shared(struct gpu *g, const struct layer_weights *w, const u16 *x, u32 tokens, struct err_msg *em)
{
	const struct gpu_arena *a = &g->arena;
	struct kern_act_mul_args act = {.out_bf16 = a->shared_activated,
					.gate_up_bf16 = a->shared_gate_up,
					.tokens = tokens,
					.size = w->down.k,
					.act = g->config.model->activation,
					.ungated = g->config.model->arch->ungated,
					.dtype = KERN_BF16};
	const float *down_bias = g->config.shard->rank == 0 ? w->down_bias : NULL; /* ranks add what they have */

	enum err e = product(g, a->shared_gate_up, KERN_BF16, x, &w->gate_up, w->gate_up_bias, tokens, em);
	if (!e)
		e = gpu_op(g->ops.act_mul(&g->ctx, &act), "act_mul", em);
	if (!e)
		e = product(g, a->shared, KERN_BF16, a->shared_activated, &w->down, down_bias, tokens, em);
	return e || !w->shared_gate.n ? e : product(g, a->shared_gate, KERN_F32, x, &w->shared_gate, NULL, tokens, em);
}

/* At most moe_tokens of them. */
static enum err run_part(struct gpu *g, const struct layer_weights *w, const struct gpu_moe_out *out, u32 first,
			 u32 tokens, struct err_msg *em)
{
	const struct gpu_arena *a = &g->arena;
	u32 top = g->config.model->experts_per_token;
	size_t at = (size_t)first * g->config.model->hidden;
	const u16 *x = a->normed + at;
	const float *down_bias = g->config.shard->rank == 0 ? w->expert_down_bias : NULL; /* ranks add what they have */
	struct kern_act_mul_args act = {.out_bf16 = a->expert_activated,
					.gate_up_bf16 = a->expert_gate_up,
					.tokens = tokens * top,
					.size = w->expert_down->k,
					.act = g->config.model->activation,
					.ungated = g->config.model->arch->ungated,
					.alpha = g->config.model->swiglu_alpha,
					.limit = g->config.model->swiglu_limit,
					.dtype = KERN_BF16};
	struct kern_moe_combine_args combine = {.x_bf16 = a->expert_down,
						.shared_bf16 = a->shared,
						.shared_gate = w->shared_gate.n ? a->shared_gate : NULL,
						.weights = a->expert_weights,
						.assignments = a->assignments,
						.tokens = tokens,
						.top = top,
						.hidden = g->config.model->hidden,
						.accumulate = out->accumulate,
						.dtype = KERN_BF16,
						.out_dtype = out->stream ? KERN_F32 : KERN_BF16};

	if (out->stream)
		combine.out = a->x + at;
	else
		combine.out_bf16 = a->delta + at;

	enum err e = a->shared ? run_shared(g, w, x, tokens, em) : ERR_OK;
	if (!e)
		e = route(g, w, x, tokens, em);
	if (!e)
		e = products(g, a->expert_gate_up, x, a->tokens_of, w->expert_gate_up, w->expert_gate_up_bias, tokens, em);
	if (!e)
		e = gpu_op(g->ops.act_mul(&g->ctx, &act), "act_mul", em);
	if (!e)
		e = products(g, a->expert_down, a->expert_activated, NULL, w->expert_down, down_bias, tokens, em);
	return e ? e : gpu_op(g->ops.moe_combine(&g->ctx, &combine), "moe_combine", em);
}

enum err gpu_experts(struct gpu *g, const struct layer_weights *w, const struct gpu_moe_out *out, u32 tokens,
		     struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 first = 0, n; !e && first < tokens; first += n) {
		n = tokens - first < g->moe_tokens ? tokens - first : g->moe_tokens;
		e = run_part(g, w, out, first, n, em);
	}
	return e;
}
