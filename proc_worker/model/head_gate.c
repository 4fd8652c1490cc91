/* Gates of heads between attention and its last product. Runs in the worker, in every step of families that have some; owns no memory. */
#include "proc_worker/model/head_gate.h"

#include <math.h>

#include "proc_worker/model/decoder_priv.h"

enum { TOKENS_A_TASK = 16 };

/* One for each value or for each head: there are few beside a layer's products. */
struct gates {
	float *x;
	const float *gates;
	u32 tokens, heads, head_dim, stride, gate_stride;
	bool by_head;
	float (*act)(float x);
};

static float softplus(float x)
{
	return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

static float sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

static void weigh(const struct gates *g, float *x, const float *gates)
{
	for (u32 h = 0; h < g->heads; h++) {
		const float whole = g->by_head ? g->act(gates[h]) : 1;
		for (u32 i = h * g->head_dim; i < (h + 1) * g->head_dim; i++)
			x[i] *= g->by_head ? whole : g->act(gates[i]);
	}
}

static void weigh_task(void *arg, u32 task, u32 thread)
{
	const struct gates *g = arg;

	(void)thread;
	for (u32 t = task * TOKENS_A_TASK; t < g->tokens && t < (task + 1) * TOKENS_A_TASK; t++)
		weigh(g, g->x + (size_t)t * g->stride, g->gates + (size_t)t * g->gate_stride);
}

static void weigh_all(struct kern_ctx *ctx, struct gates *g)
{
	const u32 tasks = (g->tokens + TOKENS_A_TASK - 1) / TOKENS_A_TASK;

	if (ctx->threads)
		kern_threads_run(ctx->threads, tasks, weigh_task, g);
	for (u32 i = 0; i < tasks && !ctx->threads; i++)
		weigh_task(g, i, 0);
}

static void weigh_heads(struct decoder *d, u32 index, u32 heads, u32 width, u32 tokens)
{
	const struct decoder_config *c = &d->config;
	const u32 stride = decoder_qkv_stride(d, index);
	struct gates g = {.x = d->qkv, .gates = d->qkv + stride - width, .tokens = tokens, .heads = heads, .head_dim = model_head_dim(c->model, index),
			  .stride = stride, .gate_stride = stride, .by_head = c->model->gate_by_head, .act = c->model->arch->gate_softplus ? softplus : sigmoid};

	weigh_all(c->ctx, &g);
}

void head_gate_values(struct decoder *d, u32 index, u32 tokens)
{
	const struct model_config *m = d->config.model;
	const u32 heads = d->config.shard->heads;
	struct gates g = {.x = d->values, .gates = d->low, .tokens = tokens, .heads = heads, .head_dim = m->latent.value, .stride = heads * m->latent.value,
			  .gate_stride = d->config.weights->layers[index].qkv.n, .by_head = m->gate_by_head, .act = sigmoid};

	if (m->output_gate)
		weigh_all(d->config.ctx, &g);
}

enum err head_gate(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const u32 heads = model_shard_heads(c->shard, c->model, index), width = heads * (c->model->gate_by_head ? 1 : model_head_dim(c->model, index));
	const struct kern_gate_args a = {.x = d->qkv,
					 .gate = d->qkv + decoder_qkv_stride(d, index) - width,
					 .tokens = tokens,
					 .groups = 1,
					 .width = width,
					 .stride = decoder_qkv_stride(d, index),
					 .sigmoid = true};

	if (c->model->arch->latent) /* head_gate_values */
		return ERR_OK;
	if (c->model->output_gate && (c->model->arch->gate_softplus || c->model->gate_by_head))
		weigh_heads(d, index, heads, width, tokens);
	else if (c->model->output_gate)
		return decoder_failed(c->ops->gate(c->ctx, &a), "gate", em);
	return ERR_OK;
}
