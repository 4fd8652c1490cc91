/* Reference: paged causal attention, softmax with a running maximum in double. Some query heads of a KV head, of one token or of several,
 * go through its keys together, for each key and value takes long to find; what they compute they compute alone. */
#include <math.h>

#include "kernels/kv_priv.h"

enum { TOGETHER = 16 };

struct job {
	const struct kern_attention_args *a;
};

/* A query head of a token, which sees keys first .. last. */
struct query {
	size_t at; /* in floats, of the query and of its output */
	u32 head, first, last;
	double best, total, acc[KERN_HEAD_DIM_MAX];
};

static double score(const struct kern_attention_args *a, const float *q, const float *key)
{
	double sum = 0;
	for (u32 i = 0; i < a->kv.head_dim; i++)
		sum += (double)q[i] * key[i];
	sum *= a->scale;
	return a->soft_cap > 0 ? a->soft_cap * tanh(sum / a->soft_cap) : sum;
}

static float as_bf16(float x)
{
	return kern_bf16_to_float(kern_float_to_bf16(x));
}

/* What position `key` adds to scores, but for what it adds to all. */
static double bias(const struct kern_attention_args *a, u32 head, u32 key)
{
	if (!a->slopes_rounded)
		return (double)a->slopes[head] * key;
	return (double)as_bf16(a->slopes[head] * as_bf16((float)key)) * (double)a->scale;
}

/* `k`: its place. */
static void add_key(const struct kern_attention_args *a, struct query *q, u32 k, const float *key, const float *value)
{
	u32 dim = a->kv.head_dim;
	double s = score(a, a->q + q->at, key);
	if (a->slopes)
		s += bias(a, q->head, k) - bias(a, q->head, q->last);
	if (s > q->best) {
		double shrink = exp(q->best - s);
		q->total *= shrink;
		for (u32 i = 0; i < dim; i++)
			q->acc[i] *= shrink;
		q->best = s;
	}
	double p = exp(s - q->best);
	q->total += p;
	for (u32 i = 0; i < dim; i++)
		q->acc[i] += p * value[i];
}

static void write_out(const struct kern_attention_args *a, struct query *q)
{
	u32 dim = a->kv.head_dim;
	if (a->sinks) { /* both sums by the larger of the two maxima */
		double base = fmax(q->best, a->sinks[q->head]), shrink = exp(q->best - base);
		q->total = q->total * shrink + exp(a->sinks[q->head] - base);
		for (u32 i = 0; i < dim; i++)
			q->acc[i] *= shrink;
	}
	for (u32 i = 0; i < dim; i++)
		a->out[q->at + i] = (float)(q->acc[i] / q->total);
}

/* `count` queries of row r, by rising tokens. */
static void attend(const struct kern_attention_args *a, u32 r, u32 kv_head, struct query *queries, u32 count)
{
	float key[KERN_HEAD_DIM_MAX], value[KERN_HEAD_DIM_MAX];
	for (u32 k = queries[0].first; k <= queries[count - 1].last; k++) {
		size_t block = a->block_tables[(size_t)r * a->block_stride + k / a->kv.block_size];
		u32 offset = k % a->kv.block_size;
		kern_kv_load(&a->kv, key, kern_kv_key(&a->kv, block, kv_head, offset), a->kv.block_size,
			     kern_kv_scale(&a->kv, a->kv.k, block, kv_head, offset));
		kern_kv_load(&a->kv, value, kern_kv_value(&a->kv, block, kv_head, offset), 1,
			     kern_kv_scale(&a->kv, a->kv.v, block, kv_head, offset));
		for (u32 i = 0; i < count; i++)
			if (k >= queries[i].first && k <= queries[i].last)
				add_key(a, &queries[i], k, key, value);
	}
	for (u32 i = 0; i < count; i++)
		write_out(a, &queries[i]);
}

static void row_head(void *arg, u32 task, u32 thread)
{
	const struct kern_attention_args *a = ((struct job *)arg)->a;
	u32 r = task / a->kv.kv_heads, kv_head = task % a->kv.kv_heads, group = a->heads / a->kv.kv_heads;
	u32 tokens = a->query_start[r + 1] - a->query_start[r], count = 0;
	struct query queries[TOGETHER];
	(void)thread;
	for (u32 i = 0; i < tokens * group; i++) {
		u32 token = i / group, last = a->context[r] - tokens + token;
		struct query *q = &queries[count++];
		q->head = kv_head * group + i % group;
		q->at = (a->query_start[r] + token) * kern_attention_stride(a) + (size_t)q->head * a->kv.head_dim;
		q->last = last;
		q->first = kern_attention_first(a, last);
		q->best = -INFINITY;
		q->total = 0;
		memset(q->acc, 0, a->kv.head_dim * sizeof(*q->acc));
		if (count < TOGETHER && i + 1 < tokens * group)
			continue;
		attend(a, r, kv_head, queries, count);
		count = 0;
	}
}

enum err attention_ref(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	struct job job = {a};
	ASSERT(a->kv.head_dim <= KERN_HEAD_DIM_MAX && a->heads % a->kv.kv_heads == 0);
	kern_parallel(ctx, a->rows * a->kv.kv_heads, row_head, &job);
	return ERR_OK;
}
