/* Latent attention: what stands between its first product and the rotation, and behind attention. Runs in the worker, in every step
 * of such models; owns no memory, never allocates. */
#include "proc_worker/model/latent.h"

#include <math.h>
#include <string.h>

#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/recurrent.h"

/* Whatever config.json says of other norms. */
static const f32 NORM_EPS = 1e-6f;

u32 latent_query_width(const struct model_config *m)
{
	return m->latent.key + m->latent.rope;
}

u32 latent_gate_width(const struct model_config *m, const struct model_shard *s)
{
	return m->output_gate ? s->heads * (m->gate_by_head ? 1 : m->latent.value) : 0;
}

u32 latent_low_width(const struct model_config *m, const struct model_shard *s)
{
	return latent_gate_width(m, s) + (m->latent.q_rank > 0 ? (m->latent.gated ? 2 : 1) * m->latent.q_rank : s->heads * latent_query_width(m)) + m->head_dim;
}

/* Of a head in SLOT_Q_B: its query, and its gates where it has some. */
static u32 made_width(const struct model_config *m)
{
	return latent_query_width(m) + (m->latent.gated ? m->latent.value : 0);
}

u32 latent_head_width(const struct model_config *m)
{
	u32 width = m->head_dim > made_width(m) ? m->head_dim : made_width(m);

	return m->latent.value > width ? m->latent.value : width;
}

u32 latent_attended_width(const struct model_config *m, const struct model_shard *s)
{
	const u32 attended = s->heads * m->latent.value, mixed = recurrent_layout(m, s).out_width;

	return attended > mixed ? attended : mixed;
}

void latent_norm_args_init(struct qk_norm_args *a, const struct model_config *m, const struct layer_weights *w, u32 tokens, float *low,
			   float *squares)
{
	const struct latent_config *l = &m->latent;
	float *first = low + (w->qkv.n - m->head_dim) - l->q_rank;

	a->squares = (struct kern_qk_squares_args){.qkv = first,
						   .squares = squares,
						   .tokens = tokens,
						   .stride = w->qkv.n,
						   .q_width = l->q_rank,
						   .k_width = l->rank,
						   .counts_k = true};
	a->norm = (struct kern_qk_norm_args){.qkv = first,
					     .squares = squares,
					     .q_weight = w->q_norm,
					     .k_weight = w->k_norm,
					     .eps = NORM_EPS,
					     .tokens = tokens,
					     .stride = w->qkv.n,
					     .q_width = l->q_rank,
					     .k_width = l->rank,
					     .q_total = l->q_rank > 0 ? l->q_rank : 1,
					     .k_total = l->rank};
}

static enum err norm_one(struct decoder *d, struct qk_norm_args *a, float *x, const float *weight, u32 width, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;

	a->squares.qkv = a->norm.qkv = x;
	a->squares.q_width = a->norm.q_width = 0;
	a->squares.k_width = a->norm.k_width = a->norm.k_total = width;
	a->norm.q_total = 1;
	a->norm.k_weight = weight;
	enum err e = decoder_failed(c->ops->qk_squares(c->ctx, &a->squares), "qk_squares", em);
	return e ? e : decoder_failed(c->ops->qk_norm(c->ctx, &a->norm), "qk_norm", em);
}

/* Where the low rank of queries is there once more as it is, between both. */
static enum err norm_apart(struct decoder *d, const struct layer_weights *w, struct qk_norm_args *a, struct err_msg *em)
{
	const struct latent_config *l = &d->config.model->latent;

	enum err e = norm_one(d, a, d->low, w->q_norm, l->q_rank, em);
	return e ? e : norm_one(d, a, d->low + 2 * (size_t)l->q_rank, w->k_norm, l->rank, em);
}

static enum err norm_ranks(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct qk_norm_args a;

	latent_norm_args_init(&a, c->model, w, tokens, d->low, d->squares);
	if (c->model->latent.gated)
		return norm_apart(d, w, &a, em);
	enum err e = decoder_failed(c->ops->qk_squares(c->ctx, &a.squares), "qk_squares", em);
	return e ? e : decoder_failed(c->ops->qk_norm(c->ctx, &a.norm), "qk_norm", em);
}

/* A token's latent, behind what of its key rotates, as K; and as V, where no query asks for what stands in front of it. */
static void place_latents(const struct decoder *d, const struct layer_weights *w, u32 tokens)
{
	const struct model_config *m = d->config.model;
	const u32 heads = d->config.shard->heads;
	const size_t latent = m->latent.rank * sizeof(float), rope = m->latent.rope * sizeof(float);

	for (u32 t = 0; t < tokens; t++) {
		const float *from = d->low + (size_t)(t + 1) * w->qkv.n - m->head_dim;
		float *k = d->qkv + ((size_t)t * (heads + 2) + heads) * m->head_dim, *v = k + m->head_dim;
		memcpy(k, from + m->latent.rank, rope);
		memcpy(k + m->latent.rope, from, latent);
		memset(v, 0, rope);
		memcpy(v + m->latent.rope, from, latent);
	}
}

enum err latent_project(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct model_config *m = c->model;
	const float *low = d->low + latent_gate_width(m, c->shard);
	struct kern_matmul_args whole = {.out = d->queries,
					 .x = low,
					 .w = &w->q_b,
					 .tokens = tokens,
					 .x_stride = w->qkv.n,
					 .out_stride = w->q_b.n,
					 .next = &w->attn_out};
	struct kern_head_matmul_args heads = {.out = d->qkv,
					      .x = m->latent.q_rank > 0 ? d->queries : low,
					      .w = w->head_k,
					      .tokens = tokens,
					      .heads = c->shard->heads,
					      .beside = m->latent.rope,
					      .x_stride = m->latent.q_rank > 0 ? w->q_b.n : w->qkv.n,
					      .x_apart = made_width(m),
					      .out_stride = (c->shard->heads + 2) * m->head_dim,
					      .out_apart = m->head_dim,
					      .ops = c->ops};

	enum err e = norm_ranks(d, w, tokens, em);
	if (!e && m->latent.q_rank > 0)
		e = decoder_failed(c->ops->matmul(c->ctx, &whole), "matmul", em);
	if (!e)
		e = decoder_failed(c->ops->head_matmul(c->ctx, &heads), "head_matmul", em);
	if (!e)
		place_latents(d, w, tokens);
	return e;
}

/* What heads' values are weighed by, which lies where queries were made, of tokens as they were before a layer kept a few. */
struct gates {
	const struct decoder *d;
	u32 tokens;
};
enum { GATE_TOKENS = 8 /* of a task */ };

static void weigh(void *arg, u32 task, u32 thread)
{
	const struct gates *g = arg;
	const struct decoder *d = g->d;
	const struct model_config *m = d->config.model;
	const u32 heads = d->config.shard->heads, value = m->latent.value;

	(void)thread;
	for (u32 t = task * GATE_TOKENS; t < g->tokens && t < (task + 1) * GATE_TOKENS; t++)
		for (u32 h = 0; h < heads; h++) {
			float *x = d->values + ((size_t)t * heads + h) * value;
			const float *gate = d->queries + ((size_t)(d->narrowed ? d->last[t] : t) * heads + h) * made_width(m) + latent_query_width(m);
			for (u32 i = 0; i < value; i++)
				x[i] /= 1 + expf(-gate[i]);
		}
}

enum err latent_values(struct decoder *d, const struct layer_weights *w, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct model_config *m = c->model;
	struct kern_head_matmul_args a = {.out = d->values,
					  .x = d->qkv + m->latent.rope,
					  .w = w->head_v,
					  .tokens = tokens,
					  .heads = c->shard->heads,
					  .x_stride = (c->shard->heads + 2) * m->head_dim,
					  .x_apart = m->head_dim,
					  .out_stride = c->shard->heads * m->latent.value,
					  .out_apart = m->latent.value,
					  .ops = c->ops};

	struct gates g = {d, tokens};

	enum err e = decoder_failed(c->ops->head_matmul(c->ctx, &a), "head_matmul", em);
	if (!e && m->latent.gated)
		kern_threads_run(c->ctx->threads, (tokens + GATE_TOKENS - 1) / GATE_TOKENS, weigh, &g);
	return e;
}
