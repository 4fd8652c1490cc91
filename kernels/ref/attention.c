/* Reference: paged causal attention, one query head at a time, softmax with a running maximum in double. */
#include <math.h>

#include "kernels/kv_priv.h"

struct job {
	const struct kern_attention_args *a;
};

static double score(const struct kern_attention_args *a, const float *q, size_t block, u32 head, u32 offset)
{
	float key[KERN_HEAD_DIM_MAX];
	double sum = 0;
	kern_kv_load(&a->kv, key, kern_kv_key(&a->kv, block, head, offset), a->kv.block_size,
		     kern_kv_scale(&a->kv, a->kv.k, block, head, offset));
	for (u32 i = 0; i < a->kv.head_dim; i++)
		sum += (double)q[i] * key[i];
	sum *= a->scale;
	return a->soft_cap > 0 ? a->soft_cap * tanh(sum / a->soft_cap) : sum;
}

/* Query head `head` at token `t` of row `r`, which sees keys first .. last. */
static void attend(const struct kern_attention_args *a, u32 r, u32 t, u32 head, u32 first, u32 last)
{
	u32 dim = a->kv.head_dim, kv_head = head / (a->heads / a->kv.kv_heads);
	size_t at = t * kern_attention_stride(a) + head * dim;
	double best = -INFINITY, total = 0, acc[KERN_HEAD_DIM_MAX] = {0};
	float value[KERN_HEAD_DIM_MAX];
	for (u32 key = first; key <= last; key++) {
		size_t block = a->block_tables[(size_t)r * a->block_stride + key / a->kv.block_size];
		u32 offset = key % a->kv.block_size;
		double s = score(a, a->q + at, block, kv_head, offset);
		if (s > best) {
			double shrink = exp(best - s);
			total *= shrink;
			for (u32 i = 0; i < dim; i++)
				acc[i] *= shrink;
			best = s;
		}
		double p = exp(s - best);
		total += p;
		kern_kv_load(&a->kv, value, kern_kv_value(&a->kv, block, kv_head, offset), 1,
			     kern_kv_scale(&a->kv, a->kv.v, block, kv_head, offset));
		for (u32 i = 0; i < dim; i++)
			acc[i] += p * value[i];
	}
	if (a->sinks) { /* both sums by the larger of the two maxima */
		double base = fmax(best, a->sinks[head]), shrink = exp(best - base);
		total = total * shrink + exp(a->sinks[head] - base);
		for (u32 i = 0; i < dim; i++)
			acc[i] *= shrink;
	}
	for (u32 i = 0; i < dim; i++)
		a->out[at + i] = (float)(acc[i] / total);
}

static void row_head(void *arg, u32 task, u32 thread)
{
	const struct kern_attention_args *a = ((struct job *)arg)->a;
	u32 r = task / a->heads, head = task % a->heads;
	u32 count = a->query_start[r + 1] - a->query_start[r];
	(void)thread;
	for (u32 i = 0; i < count; i++) {
		u32 last = a->context[r] - count + i;
		u32 first = a->window > 0 && last >= a->window ? last - a->window + 1 : 0;
		attend(a, r, a->query_start[r] + i, head, first, last);
	}
}

enum err attention_ref(struct kern_ctx *ctx, const struct kern_attention_args *a)
{
	struct job job = {a};
	ASSERT(a->kv.head_dim <= KERN_HEAD_DIM_MAX && a->heads % a->kv.kv_heads == 0);
	kern_parallel(ctx, a->rows * a->heads, row_head, &job);
	return ERR_OK;
}
