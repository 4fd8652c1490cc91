/* LayerNorm with biases over the heads of q and k (Persimmon), on the CPU. Runs in the worker, in every step of such models; owns no memory. */
#include "proc_worker/model/head_norm.h"

#include <math.h>

#include "proc_worker/model/decoder_priv.h"

enum { TOKENS_A_TASK = 16 };

struct norms {
	float *qkv;
	const struct layer_weights *w;
	u32 tokens, stride, heads, kv_heads, dim;
	double eps;
};

static void norm_head(float *x, const float *weight, const float *bias, u32 dim, double eps)
{
	double sum = 0, squares = 0;

	for (u32 i = 0; i < dim; i++)
		sum += (double)x[i];
	const double mean = sum / dim;
	for (u32 i = 0; i < dim; i++)
		squares += ((double)x[i] - mean) * ((double)x[i] - mean);
	const double factor = 1 / sqrt(squares / dim + eps);
	for (u32 i = 0; i < dim; i++)
		x[i] = (float)(((double)x[i] - mean) * factor) * weight[i] + bias[i];
}

static void norm_task(void *arg, u32 task, u32 thread)
{
	const struct norms *n = arg;

	(void)thread;
	for (u32 t = task * TOKENS_A_TASK; t < n->tokens && t < (task + 1) * TOKENS_A_TASK; t++)
		for (u32 h = 0; h < n->heads + n->kv_heads; h++) { /* k are behind q */
			const bool q = h < n->heads;
			norm_head(n->qkv + (size_t)t * n->stride + (size_t)h * n->dim, q ? n->w->q_norm : n->w->k_norm, q ? n->w->q_norm_bias : n->w->k_norm_bias,
				  n->dim, n->eps);
		}
}

void head_norm(struct decoder *d, u32 index, u32 tokens)
{
	const struct decoder_config *c = &d->config;
	struct norms n = {.qkv = d->qkv, .w = &c->weights->layers[index], .tokens = tokens, .stride = decoder_qkv_stride(d, index), .heads = c->shard->heads,
			  .kv_heads = c->shard->kv_heads, .dim = c->model->head_dim, .eps = (double)c->model->norm_eps};
	const u32 tasks = (tokens + TOKENS_A_TASK - 1) / TOKENS_A_TASK;

	if (!n.w->q_norm_bias)
		return;
	if (c->ctx->threads)
		kern_threads_run(c->ctx->threads, tasks, norm_task, &n);
	for (u32 i = 0; i < tasks && !c->ctx->threads; i++)
		norm_task(&n, i, 0);
}
