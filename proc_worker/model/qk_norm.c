/* What the ops of norms over all heads are told. Runs in the worker in every step of such families; computes nothing itself. */
#include "proc_worker/model/qk_norm.h"

void qk_norm_args_init(struct qk_norm_args *a, const struct model_config *m, const struct model_shard *s,
		       const struct layer_weights *w, u32 tokens, float *qkv, float *own, const float *all)
{
	u32 owners = s->ranks > m->kv_heads ? s->ranks / m->kv_heads : 1; /* of a KV head, of which one counts it */

	a->squares = (struct kern_qk_squares_args){.qkv = qkv,
						   .squares = own,
						   .tokens = tokens,
						   .stride = w->qkv.n,
						   .q_width = s->heads * m->head_dim,
						   .k_width = s->kv_heads * m->head_dim,
						   .counts_k = s->rank % owners == 0};
	a->norm = (struct kern_qk_norm_args){.qkv = qkv,
					     .squares = all,
					     .q_weight = w->q_norm,
					     .k_weight = w->k_norm,
					     .eps = m->norm_eps,
					     .tokens = tokens,
					     .stride = a->squares.stride,
					     .q_width = a->squares.q_width,
					     .k_width = a->squares.k_width,
					     .q_total = m->heads * m->head_dim,
					     .k_total = m->kv_heads * m->head_dim};
}
