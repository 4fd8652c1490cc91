/* What attention should give: scores, weights and sums in double, from what the cache stands for; and how far a variant's arithmetic may be from
 * it. Written from kernels.h alone. */
#include <math.h>
#include <stdlib.h>

#include "tests/kern/check_attention.h"

static double query_at(const struct kern_attention_args *a, size_t i, bool rounded)
{
	const float unit = a->soft_cap > 0 ? 1 : check_attention_step;
	float x = a->q[i];
	u16 half;
	if (!rounded)
		return x * (double)a->scale;
	x *= a->scale / unit;
	kern_convert(&half, KERN_BF16, &x, KERN_F32, 1);
	kern_convert(&x, KERN_F32, &half, KERN_BF16, 1);
	return x * (double)unit;
}

struct check_kv_place check_attention_key(const struct kern_attention_args *a, u32 r, u32 head, u32 key,
				       bool value)
{
	const struct kern_kv *kv = &a->kv;
	return (struct check_kv_place){
		.block = a->block_tables[(size_t)r * a->block_stride + key / kv->block_size],
		.offset = key % kv->block_size,
		.head = head / (a->heads / kv->kv_heads),
		.value = value};
}

/* What numbers are rounded to multiples of that multiply keys or values of whole numbers: those of 16 bits have room for a sum of magnitudes,
 * too. */
static double unit_of(const struct kern_attention_args *a, double largest, double sum)
{
	return a->kv.dtype == KERN_I16 ? fmax(largest / 32767, sum / (2147483647 / 16383 - 512 - 64)) : largest / 32767;
}

struct check_attention_row check_attention_read(const struct kern_attention_args *a, u32 r, u32 kv_head)
{
	const u32 context = a->context[r], dim = a->kv.head_dim, head = kv_head * (a->heads / a->kv.kv_heads);
	struct check_attention_row c = {.k = malloc((size_t)context * dim * sizeof(double) + 1),
			      .v = malloc((size_t)context * dim * sizeof(double) + 1),
			      .scale = malloc(context * sizeof(double) + 1),
			      .size = calloc(context + 1, sizeof(double))};
	for (u32 key = 0; key < context; key++) {
		const struct check_kv_place k = check_attention_key(a, r, head, key, false), v = check_attention_key(a, r, head, key, true);
		check_kv_load_head(&a->kv, k, c.k + (size_t)key * dim);
		check_kv_load_head(&a->kv, v, c.v + (size_t)key * dim);
		for (u32 i = 0; i < dim; i++)
			c.size[key] += fabs(c.k[(size_t)key * dim + i]);
		c.scale[key] = check_kv_has_scales(a->kv.dtype) ? (double)check_kv_scale(&a->kv, &v) : 1;
	}
	return c;
}

void check_attention_free(struct check_attention_row *c)
{
	free(c->k);
	free(c->v);
	free(c->scale);
	free(c->size);
}

/* The score of a query's numbers and a key's. */
static double score_of(const struct kern_attention_args *a, const double *q, const double *k)
{
	double sums[4] = {0}; /* of every fourth product: they need not wait for each other */
	for (u32 i = 0; i < a->kv.head_dim; i++)
		sums[i % 4] += q[i] * k[i];
	const double score = sums[0] + sums[1] + (sums[2] + sums[3]);
	return a->soft_cap > 0 ? a->soft_cap * tanh(score / a->soft_cap) : score;
}

/* What a key's place adds to a head's scores. */
static double bias_of(const struct kern_attention_args *a, u32 head, u32 key, u32 last)
{
	double places[2];
	if (!a->slopes_rounded)
		return a->slopes[head] * ((double)key - last);
	for (u32 i = 0; i < 2; i++) {
		float x = (float)(i == 0 ? key : last);
		u16 half;
		for (u32 twice = 0; twice < 2; twice++) {
			x *= twice == 0 ? 1 : a->slopes[head];
			kern_convert(&half, KERN_BF16, &x, KERN_F32, 1);
			kern_convert(&x, KERN_F32, &half, KERN_BF16, 1);
		}
		places[i] = x;
	}
	return (places[0] - places[1]) * (double)a->scale;
}

/* Weights times scales of a part of 256 keys, all rounded to multiples of one unit, and what its values are stored as. */
struct part_found {
	double widest, sum, stored[1024];
};

static void part_add(struct part_found *part, u32 dim, const double *v, double scale, double weight)
{
	const double inverse = 1 / scale;
	part->widest = fmax(part->widest, weight * scale);
	part->sum += weight * scale;
	for (u32 i = 0; i < dim && scale > 0; i++)
		part->stored[i] += fabs(v[i]) * inverse;
}

static void part_end(const struct kern_attention_args *a, struct part_found *part, double slack[])
{
	const double unit = unit_of(a, part->widest, part->sum);
	for (u32 i = 0; i < a->kv.head_dim; i++)
		slack[i] += unit / 2 * part->stored[i], part->stored[i] = 0;
	part->widest = part->sum = 0;
}

void check_attention_want(const struct kern_attention_args *a, const struct check_attention_row *c, u32 r, u32 query, u32 head, bool rounded,
			   struct check_attention_want *w)
{
	u32 dim = a->kv.head_dim, count = a->query_start[r + 1] - a->query_start[r],
	    t = a->query_start[r] + query;
	u32 last = a->context[r] - count + query,
	    first = a->chunked ? last / a->window * a->window : a->window && last >= a->window ? last + 1 - a->window : 0;
	double *scores = malloc((last + 1) * sizeof(double)), best = -INFINITY, total = 0, widest = 0, q[1024], largest = 0, sum = 0;
	struct part_found part;
	for (u32 i = 0; i < dim; i++) {
		q[i] = query_at(a, ((size_t)t * a->heads + head) * dim + i, rounded);
		largest = fmax(largest, fabs(q[i]));
		sum += fabs(q[i]);
		part.stored[i] = 0;
	}
	part.widest = part.sum = 0;
	for (u32 key = first; key <= last; key++) {
		scores[key] = score_of(a, q, c->k + (size_t)key * dim) + (a->slopes ? bias_of(a, head, key, last) : 0);
		best = fmax(best, scores[key]);
		widest = fmax(widest, c->size[key]);
	}
	const double slack = unit_of(a, largest, sum) / 2 * widest; /* what a score is off by at most when the query's numbers are rounded */
	for (u32 i = 0; i < dim; i++)
		w->value[i] = w->size[i] = w->slack[i] = 0;
	if (a->sinks) {
		best = fmax(best, a->sinks[head]);
		total = exp(a->sinks[head] - best);
	}
	for (u32 key = first; key <= last; key++) {
		const double weight = exp(scores[key] - best), *v = c->v + (size_t)key * dim;
		total += weight;
		for (u32 i = 0; i < dim; i++) {
			const double term = weight * v[i];
			w->value[i] += term;
			w->size[i] += fabs(term);
		}
		if (check_kv_has_scales(a->kv.dtype))
			part_add(&part, dim, v, c->scale[key], weight);
		if (key % 256 == 255 || key == last)
			part_end(a, &part, w->slack);
	}
	for (u32 i = 0; i < dim; i++) {
		w->value[i] /= total;
		w->size[i] /= total;
		/* scores off by `slack` move sum and total */
		w->slack[i] = w->slack[i] / total + expm1(slack) * (w->size[i] + fabs(w->value[i]));
	}
	free(scores);
}

/* Weights in bfloat16 are off by 5.4e-3 of each at most: 2^-8 for rounding them, the rest for the table that they are made by. */
const char *check_attention_close(const struct kern_attention_args *a, const float *got,
				   const struct check_attention_want *w, bool rounded, bool outliers)
{
	double allowed[1024], error = outliers ? 2e-4 : 1e-5;
	for (u32 i = 0; i < a->kv.head_dim; i++)
		allowed[i] = error + (rounded ? w->size[i] * 5.5e-3 : 0) +
			     (a->kv.dtype == KERN_I8 || a->kv.dtype == KERN_I16 ? w->slack[i] : 0);
	return check_close(got, w->value, allowed, a->kv.head_dim, 1);
}
