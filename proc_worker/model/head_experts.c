/* Mixtures of attention heads on the CPU (JetMoE). Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/head_experts.h"

#include <string.h>

#include "common/region.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/experts_beside.h"
#include "proc_worker/model/moe.h"

/* Queries of one expert on this rank: one for each KV head. */
static u32 width_of(const struct decoder *d)
{
	return d->config.shard->kv_heads * d->config.model->head_dim;
}

void head_experts_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens)
{
	const struct model_config *m = d->config.model;
	const size_t rows = m->arch->head_experts ? tokens * m->experts_per_token : 0;
	struct head_experts_memory *h = &d->heads;

	if (rows == 0)
		return;
	h->rows = region_carve(base, offset, rows * width_of(d) * sizeof(float));
	h->said = region_carve(base, offset, rows * m->hidden * sizeof(float));
	h->logits = region_carve(base, offset, tokens * m->experts * sizeof(float));
	h->weights = region_carve(base, offset, rows * sizeof(float));
	h->assignments = region_carve(base, offset, rows * sizeof(u32));
	h->tokens_of = region_carve(base, offset, rows * sizeof(u32));
	h->expert_start = region_carve(base, offset, (m->experts + 1) * sizeof(u32));
}

static enum err route(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct head_experts_memory *h = &d->heads;
	const struct kern_matmul_args scores = {.out = h->logits,
						.x = d->normed,
						.w = &w->heads_router,
						.tokens = tokens,
						.x_stride = w->heads_router.k,
						.out_stride = w->heads_router.n};
	struct kern_moe_route_args a;

	moe_route_args_init(&a, c->model, w);
	a.logits = h->logits;
	a.weights = h->weights;
	a.assignments = h->assignments;
	a.tokens_of = h->tokens_of;
	a.expert_start = h->expert_start;
	a.tokens = tokens;
	enum err e = decoder_failed(c->ops->matmul(c->ctx, &scores), "matmul", em);
	return e ? e : decoder_failed(c->ops->moe_route(c->ctx, &a), "moe_route", em);
}

static enum err products(struct decoder *d, float *out, const float *x, const u32 *source, const struct kern_weight *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct kern_moe_matmul_args a = {.out = out,
					       .x = x,
					       .source = source,
					       .w = w,
					       .expert_start = d->heads.expert_start,
					       .experts = c->model->experts,
					       .assignments = tokens * c->model->experts_per_token,
					       .tokens = tokens,
					       .ops = c->ops};

	return decoder_failed(c->ops->moe_matmul(c->ctx, &a), "moe_matmul", em);
}

/* Between the rows of assignments and the queries of tokens, those of one KV head side by side. */
static void move_queries(struct decoder *d, u32 index, u32 tokens, bool to_tokens)
{
	const struct model_config *m = d->config.model;
	const u32 top = m->experts_per_token, stride = decoder_qkv_stride(d, index), heads = d->config.shard->kv_heads, dim = m->head_dim;

	for (u32 i = 0; i < tokens * top; i++) {
		float *row = d->heads.rows + (size_t)d->heads.assignments[i] * width_of(d), *token = d->qkv + (size_t)(i / top) * stride;
		for (u32 h = 0; h < heads; h++) {
			float *query = token + ((size_t)h * top + i % top) * dim, *part = row + (size_t)h * dim;
			memcpy(to_tokens ? query : part, to_tokens ? part : query, dim * sizeof(float));
		}
	}
}

enum err head_experts_project(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	const struct kern_matmul_args keys = {.out = d->qkv + (size_t)c->shard->heads * c->model->head_dim,
					      .x = d->normed,
					      .w = &w->qkv,
					      .tokens = tokens,
					      .x_stride = w->qkv.k,
					      .out_stride = decoder_qkv_stride(d, index)};

	enum err e = decoder_failed(c->ops->matmul(c->ctx, &keys), "matmul", em);
	if (!e)
		e = route(d, w, tokens, em);
	if (!e)
		e = products(d, d->heads.rows, d->normed, d->heads.tokens_of, w->heads_in, tokens, em);
	if (!e)
		move_queries(d, index, tokens, true);
	return e;
}

enum err head_experts_sum(struct decoder *d, u32 index, float *out, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	float *own = c->collectives ? collectives_buffer(c->collectives) : out;
	const struct kern_moe_combine_args combine = {.out = own,
						      .x = d->heads.said,
						      .weights = d->heads.weights,
						      .assignments = d->heads.assignments,
						      .tokens = tokens,
						      .top = c->model->experts_per_token,
						      .hidden = c->model->hidden};

	move_queries(d, index, tokens, false);
	enum err e = products(d, d->heads.said, d->heads.rows, NULL, w->heads_out, tokens, em);
	if (!e)
		e = decoder_failed(c->ops->moe_combine(c->ctx, &combine), "moe_combine", em);
	if (e)
		return e;
	experts_add_bias(d, own, w->attn_out_bias, tokens);
	return c->collectives ? collectives_all_reduce(c->collectives, out, (size_t)tokens * c->model->hidden, em) : ERR_OK;
}
