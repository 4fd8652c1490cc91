/* Mixture of experts of one layer. Runs in the worker, in every step; owns no memory, never allocates. */
#include "proc_worker/model/moe.h"

#include <string.h>

#include "common/region.h"
#include "proc_worker/model/gate_limit.h"

enum { BUFFER_BYTES = 256 << 20 };

/* Values that an expert reads and writes. */
static u32 width_of(const struct model_config *model)
{
	return model->experts_narrow > 0 ? model->experts_narrow : model->hidden;
}

/* The more at once, the more rows an expert's weights are read for. As many assignments as a step has tokens
 * take the memory of a dense layer of that width; narrow experts get more, up to a sum that is little beside
 * their weights. */
static u32 tokens_at_a_time(const struct model_config *model, const struct model_shard *shard,
			    u32 step_tokens)
{
	size_t width = 3 * (size_t)shard->expert_intermediate + width_of(model);
	size_t least = step_tokens / model->experts_per_token;
	size_t more = BUFFER_BYTES / (width * sizeof(float) * model->experts_per_token);
	size_t tokens = more > least ? more : least;

	return tokens < 1 ? 1 : tokens < step_tokens ? (u32)tokens : step_tokens;
}

size_t moe_lay_out(struct moe *m, const struct model_config *model, const struct model_shard *shard,
		   u32 step_tokens, char *base)
{
	u32 top = model->experts_per_token;
	size_t offset = 0;

	m->model = model;
	m->shard = shard;
	if (!model->experts)
		return 0;
	m->tokens_max = tokens_at_a_time(model, shard, step_tokens);
	size_t tokens = m->tokens_max, rows = tokens * top;
	m->gate_up = region_carve(base, &offset, rows * 2 * shard->expert_intermediate * sizeof(float));
	m->activated = region_carve(base, &offset, rows * shard->expert_intermediate * sizeof(float));
	m->down = region_carve(base, &offset, rows * width_of(model) * sizeof(float));
	m->tokens_of = region_carve(base, &offset, rows * sizeof(u32));
	m->router_logits = region_carve(base, &offset, tokens * (model->experts + model->zero_experts) * sizeof(float));
	m->weights = region_carve(base, &offset, rows * sizeof(float));
	m->assignments = region_carve(base, &offset, rows * sizeof(u32));
	m->factors = model->arch->router_reads ? region_carve(base, &offset, rows * sizeof(float)) : NULL;
	m->expert_start = region_carve(base, &offset, (model->experts + model->zero_experts + 1) * sizeof(u32));
	if (model->experts_narrow > 0) {
		m->narrow_in = region_carve(base, &offset, tokens * model->experts_narrow * sizeof(float));
		m->narrow_out = region_carve(base, &offset, tokens * model->experts_narrow * sizeof(float));
	}
	if (model->shared_intermediate) {
		m->shared_gate_up = region_carve(base, &offset, tokens * 2 * shard->shared_intermediate * sizeof(float));
		m->shared_activated = region_carve(base, &offset, tokens * shard->shared_intermediate * sizeof(float));
		m->shared = region_carve(base, &offset, tokens * model->hidden * sizeof(float));
		m->shared_gate = region_carve(base, &offset, tokens * sizeof(float));
	}
	return offset;
}

static enum err failed(enum err e, const char *op, struct err_msg *em)
{
	return e ? err_set(em, e, "%s: %s", op, err_text(e)) : ERR_OK;
}

static enum err product_to(struct moe *m, float *out, bool accumulate, const float *x, const struct kern_weight *w, const float *bias, u32 tokens,
			   struct err_msg *em)
{
	struct kern_matmul_args a = {.out = out, .x = x, .w = w, .bias = bias, .tokens = tokens, .x_stride = w->k, .out_stride = w->n, .accumulate = accumulate};

	return failed(m->ops->matmul(m->ctx, &a), "matmul", em);
}

static enum err product(struct moe *m, float *out, const float *x, const struct kern_weight *w, const float *bias,
			u32 tokens, struct err_msg *em)
{
	return product_to(m, out, false, x, w, bias, tokens, em);
}

void moe_route_args_init(struct kern_moe_route_args *a, const struct model_config *model, const struct layer_weights *w)
{
	const struct router_config *r = &model->router;

	*a = (struct kern_moe_route_args){.bias = w->choice_bias,
					  .expert_scales = w->expert_scales,
					  .experts = model->experts + model->zero_experts,
					  .top = model->experts_per_token,
					  .groups = r->groups,
					  .groups_top = r->groups_top,
					  .groups_best = r->groups_best,
					  .sum_plus = r->sum_plus,
					  .sum_least = r->sum_least,
					  .scale = r->scale,
					  .mixer = r->mixer,
					  .sigmoid = r->sigmoid,
					  .by_logits = model->arch->router_by_logits,
					  .normalize = model->normalize_experts};
}

static enum err route(struct moe *m, const struct layer_weights *w, const float *x, u32 tokens, struct err_msg *em)
{
	struct kern_moe_route_args a;

	moe_route_args_init(&a, m->model, w);
	a.logits = m->router_logits;
	a.weights = m->weights;
	a.assignments = m->assignments;
	a.tokens_of = m->tokens_of;
	a.expert_start = m->expert_start;
	a.tokens = tokens;
	enum err e = product(m, m->router_logits, x, &w->router, w->router_bias, tokens, em);
	return e ? e : failed(m->ops->moe_route(m->ctx, &a), "moe_route", em);
}

static enum err products(struct moe *m, float *out, const float *x, const u32 *source,
			 const struct kern_weight *w, const float *bias, u32 tokens, struct err_msg *em)
{
	struct kern_moe_matmul_args a = {.out = out,
					 .x = x,
					 .source = source,
					 .w = w,
					 .bias = bias,
					 .expert_start = m->expert_start,
					 .experts = m->model->experts,
					 .assignments = m->expert_start[m->model->experts],
					 .tokens = tokens,
					 .ops = m->ops};

	return a.assignments > 0 ? failed(m->ops->moe_matmul(m->ctx, &a), "moe_matmul", em) : ERR_OK;
}

/* What the expert of all tokens says, to `out`, and how much it counts. */
static enum err run_shared(struct moe *m, const struct layer_weights *w, const float *x, float *out, u32 tokens, struct err_msg *em)
{
	struct kern_act_mul_args act = {.out = m->shared_activated,
					.gate_up = m->shared_gate_up,
					.tokens = tokens,
					.size = m->shard->shared_intermediate,
					.act = m->model->activation,
					.ungated = m->model->arch->ungated};

	const float *down_bias = m->shard->rank == 0 ? w->down_bias : NULL; /* ranks add what they have */

	enum err e = product(m, m->shared_gate_up, x, &w->gate_up, w->gate_up_bias, tokens, em);
	if (!e) {
		gate_limit(m->ctx, &m->model->mlp_limits[m->layer], m->shared_gate_up, tokens, act.size);
		e = failed(m->ops->act_mul(m->ctx, &act), "act_mul", em);
	}
	if (!e)
		e = product(m, out, m->shared_activated, &w->down, down_bias, tokens, em);
	return e || !w->shared_gate.n ? e : product(m, m->shared_gate, x, &w->shared_gate, NULL, tokens, em);
}

/* Where an expert's weight multiplies what it reads: the same as to multiply what its first product makes of that. What it says then counts once. */
static void weigh_inputs(struct moe *m, u32 assignments)
{
	for (u32 i = 0; i < assignments; i++) {
		m->factors[m->assignments[i]] = m->weights[i];
		m->weights[i] = 1;
	}
}

/* What experts answer that do nothing: what they read, of which one rank tells the others. */
static void answer_zero_experts(struct moe *m, const float *x, u32 assignments)
{
	const size_t width = width_of(m->model);

	for (u32 i = m->expert_start[m->model->experts]; i < assignments; i++)
		if (m->shard->rank == 0)
			memcpy(m->down + i * width, x + m->tokens_of[i] * width, width * sizeof(float));
		else
			memset(m->down + i * width, 0, width * sizeof(float));
}

/* The chosen experts' answers to what they read of the stream, or of what experts_in makes of it, summed to `out`. */
static enum err run_chosen(struct moe *m, const struct layer_weights *w, const float *x, const float *shared, float *out, u32 tokens, struct err_msg *em)
{
	u32 top = m->model->experts_per_token;
	const float *down_bias = m->shard->rank == 0 ? w->expert_down_bias : NULL; /* ranks add what they have */
	struct kern_act_mul_args act = {.out = m->activated,
					.gate_up = m->gate_up,
					.tokens = m->expert_start[m->model->experts], /* but for those of experts that do nothing */
					.size = m->shard->expert_intermediate,
					.act = m->model->activation,
					.ungated = m->model->arch->ungated,
					.alpha = m->model->swiglu_alpha,
					.limit = m->model->swiglu_limit,
					.factors = m->factors};
	struct kern_moe_combine_args combine = {.out = out,
						.x = m->down,
						.shared = shared,
						.shared_gate = w->shared_gate.n ? m->shared_gate : NULL,
						.weights = m->weights,
						.assignments = m->assignments,
						.tokens = tokens,
						.top = top,
						.hidden = width_of(m->model)};

	enum err e = products(m, m->gate_up, x, m->tokens_of, w->expert_gate_up, w->expert_gate_up_bias, tokens, em);
	if (!e && act.tokens > 0) {
		gate_limit(m->ctx, &m->model->expert_limits[m->layer], m->gate_up, act.tokens, act.size);
		e = failed(m->ops->act_mul(m->ctx, &act), "act_mul", em);
	}
	if (!e)
		e = products(m, m->down, m->activated, NULL, w->expert_down, down_bias, tokens, em);
	if (!e && m->model->zero_experts > 0)
		answer_zero_experts(m, x, tokens * top);
	return e ? e : failed(m->ops->moe_combine(m->ctx, &combine), "moe_combine", em);
}

/* Of experts of another width than the stream. What ranks have of their answer may be brought to its width before it is added up. */
static enum err run_narrow(struct moe *m, const struct layer_weights *w, const float *x, float *out, u32 tokens, struct err_msg *em)
{
	const float *bias = m->shard->rank == 0 ? w->experts_out_bias : NULL;

	enum err e = m->shared ? run_shared(m, w, x, out, tokens, em) : ERR_OK;
	if (!e)
		e = product(m, m->narrow_in, x, &w->experts_in, w->experts_in_bias, tokens, em);
	if (!e)
		e = run_chosen(m, w, m->narrow_in, NULL, m->narrow_out, tokens, em);
	return e ? e : product_to(m, out, m->shared != NULL, m->narrow_out, &w->experts_out, bias, tokens, em);
}

/* At most tokens_max of them. */
static enum err run_part(struct moe *m, const struct layer_weights *w, const float *x, const float *routed, float *out, u32 tokens,
			 struct err_msg *em)
{
	enum err e = route(m, w, routed, tokens, em);
	if (!e && m->factors)
		weigh_inputs(m, tokens * m->model->experts_per_token);
	if (!e && m->model->experts_narrow > 0)
		return run_narrow(m, w, x, out, tokens, em);
	if (!e && m->shared)
		e = run_shared(m, w, x, m->shared, tokens, em);
	return e ? e : run_chosen(m, w, x, m->shared, out, tokens, em);
}

enum err moe_run(struct moe *m, const struct layer_weights *w, const float *x, const float *routed, float *out, u32 tokens,
		 struct err_msg *em)
{
	size_t hidden = m->model->hidden;
	enum err e = ERR_OK;

	for (u32 first = 0; !e && first < tokens; first += m->tokens_max) {
		u32 count = tokens - first < m->tokens_max ? tokens - first : m->tokens_max;
		e = run_part(m, w, x + first * hidden, routed + first * hidden, out + first * hidden, count, em);
	}
	return e;
}
