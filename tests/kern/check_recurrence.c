/* Checks of linear recurrences against their formula in double, whose state is in double, too. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check_recurrent.h"

struct recurrence_shape {
	u32 heads, key_heads, key_dim, value_dim, pattern;
	enum kern_recurrence kind;
	bool limits;
};

struct recurrence_run {
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	struct kern_recurrent_args a;
};

static const char *piece(void *arg, const struct kern_state *state)
{
	struct recurrence_run *run = arg;
	run->a.state = *state;
	return run->ops->recurrent(run->ctx, &run->a) == ERR_OK ? NULL : "an error";
}

/* ---------------------------------------------------------------- the formula */

/* What a token and head are multiplied by. */
struct factors {
	double w[KERN_RECURRENT_DIM_MAX], d, b, k, q;
};

static double length(const float *x, u32 count)
{
	double sum = 1e-6;
	for (u32 i = 0; i < count; i++)
		sum += (double)x[i] * x[i];
	return sqrt(sum);
}

static struct factors factors_of(const struct kern_recurrent_args *a, u32 t, u32 h, const float *k, const float *q)
{
	const size_t at = (size_t)t * a->stride + h;
	struct factors f = {.k = 1, .q = 1};
	for (u32 i = 0; i < a->key_dim; i++) {
		const size_t fade = a->kind == KERN_KDA ? (size_t)h * a->key_dim + i : h;
		const double x = (double)a->decay[(size_t)t * a->stride + fade] + (double)a->decay_bias[fade];
		f.d = x > 30 ? x : log1p(exp(x));
		if (a->kind == KERN_SCAN && a->step_max > 0)
			f.d = fmax(fmin(f.d, (double)a->step_max), (double)a->step_min);
		f.w[i] = exp(-exp((double)a->rate_log[h]) * f.d);
	}
	if (a->kind == KERN_SCAN)
		return f;
	f.b = (a->beta_scale > 0 ? (double)a->beta_scale : 1) / (1 + exp(-(double)a->beta[at]));
	f.k = 1 / length(k, a->key_dim);
	f.q = 1 / length(q, a->key_dim) / sqrt(a->key_dim);
	return f;
}

/* One token: S, and out with what its error is measured by: the largest values that the head had so far times the weights they got. */
static void step(const struct kern_recurrent_args *a, u32 t, u32 h, double *S, double *largest, double *want, double *size)
{
	const u32 keys = a->key_dim, values = a->value_dim, group = h * a->key_heads / a->heads;
	const float *k = a->k + (size_t)t * a->stride + group * keys, *q = a->q + (size_t)t * a->stride + group * keys,
		    *v = a->v + (size_t)t * a->stride + h * values;
	const struct factors f = factors_of(a, t, h, k, q);
	double weights = 0;
	for (u32 i = 0; i < keys; i++)
		weights += fabs((double)q[i]) * f.q;
	for (u32 j = 0; j < values; j++) {
		double found = 0, out = 0;
		for (u32 i = 0; i < keys; i++)
			found += f.w[i] * S[i * values + j] * k[i] * f.k;
		const double add = a->kind == KERN_SCAN ? f.d * v[j] : f.b * (v[j] - found);
		for (u32 i = 0; i < keys; i++) {
			double *at = &S[i * values + j];
			*at = f.w[i] * *at + k[i] * f.k * add;
			out += *at * q[i] * f.q;
			*largest = fmax(*largest, fabs(*at));
		}
		*largest = fmax(*largest, fabs((double)v[j]));
		want[j] = out;
		if (a->kind == KERN_SCAN)
			want[j] += (double)a->skip[h] * v[j];
		size[j] = *largest * (weights + (a->kind == KERN_SCAN ? fabs((double)a->skip[h]) : 0)) + 1e-30;
	}
}

/* One head of one row: all its outputs, and the state that it leaves. */
static const char *head_right(struct check *c, const struct kern_recurrent_args *a, const struct check_rows *r, const float *out, const float *states,
			      u32 row, u32 h)
{
	const size_t count = (size_t)a->key_dim * a->value_dim, at = r->slots[row] * r->stride + h * count;
	const u32 kept = c->buffer_count;
	double *S = check_alloc(c, count * sizeof(double)), *sizes = check_alloc(c, count * sizeof(double));
	double *want = check_alloc(c, a->value_dim * sizeof(double)), *size = check_alloc(c, a->value_dim * sizeof(double)), largest = 0;
	const char *problem = NULL;
	for (size_t i = 0; i < count; i++) {
		S[i] = check_rows_begins(r, row) ? 0 : (double)r->before[at + i];
		largest = fmax(largest, fabs(S[i]));
	}
	/* Sums over keys, and a weight of every token that is a power of e and has its error. */
	const double error = 0x1p-24 * (40 + 4 * sqrt(a->key_dim));
	for (u32 t = r->query_start[row]; t < r->query_start[row + 1] && !problem; t++) {
		step(a, t, h, S, &largest, want, size);
		problem = check_close(out + (size_t)t * a->stride + h * a->value_dim, want, size, a->value_dim, error);
	}
	for (size_t i = 0; i < count; i++)
		sizes[i] = largest + 1e-30;
	if (!problem && r->query_start[row] < r->query_start[row + 1])
		problem = check_close(states + at, S, sizes, count, error);
	const char *guards = check_release(c, kept);
	return problem ? problem : guards;
}

/* ---------------------------------------------------------------- runs */

/* By one thread, by two, in pieces, and in place. */
static const char *runs(struct check *c, u32 target, struct kern_recurrent_args *a, const struct check_rows *r, const float *in)
{
	const size_t bytes = ((size_t)r->tokens * a->stride + 1) * sizeof(float), width = (size_t)a->heads * a->value_dim;
	struct kern_ctx ctx;
	struct recurrence_run run = {.ops = &c->targets[target].ops, .ctx = &ctx};
	float *poison = check_alloc(c, bytes), *out[4], *data[4];
	const char *problem = NULL;
	for (u32 i = 0; i < 4 && !problem; i++) {
		const size_t first = i == 3 ? (size_t)(a->v - in) : 0;
		check_ctx(c, &ctx, &check_recurrent_limits, i == 3 ? 1 : i % CHECK_POOLS);
		data[i] = check_rows_copy(c, r);
		out[i] = check_alloc(c, bytes);
		run.a = *a;
		run.a.out = out[i];
		if (i == 3) {
			memcpy(out[i], in, bytes);
			run.a.out = out[i] + first;
			run.a.v = run.a.out;
			run.a.q = out[i] + (a->q - in);
			run.a.k = out[i] + (a->k - in);
		}
		const struct kern_state all = check_rows_state(r, data[i]);
		problem = i == 2 ? check_rows_pieces(c, r, data[i], piece, &run) : piece(&run, &all);
		for (u32 t = 0; t < r->tokens && !problem; t++)
			if (memcmp(run.a.out + (size_t)t * a->stride, out[0] + (size_t)t * a->stride, width * sizeof(float)) != 0)
				problem = i == 3 ? "other bits in place" : i == 2 ? "other bits in pieces" : "other bits by two threads";
		if (!problem && memcmp(data[0], data[i], r->all * sizeof(float)) != 0)
			problem = "another state";
		if (!problem)
			problem = check_columns_kept(i < 3 ? poison : in, out[i], r->tokens, a->stride, first, width);
	}
	for (u32 row = 0; row < r->count && !problem; row++)
		for (u32 h = 0; h < a->heads && !problem; h++)
			problem = head_right(c, a, r, out[0], data[0], row, h);
	return problem ? problem : check_rows_kept(r, data[0]);
}

static u32 decays(const struct kern_recurrent_args *a)
{
	return a->kind == KERN_KDA ? a->heads * a->key_dim : a->heads;
}

/* Now and then steps near 0 and far above, keys of zeros, and keys and queries that are large. */
static void unusual(struct check *c, const struct kern_recurrent_args *a, const struct check_rows *r, float *in)
{
	static const float steps[] = {-110, -25, 19, 60}; /* the first is none even at the largest rate */
	for (u32 t = 0; t < r->tokens; t++) {
		float *decay = in + (a->decay - in) + (size_t)t * a->stride, *k = in + (a->k - in) + (size_t)t * a->stride;
		const u32 kind = check_random(c, 8);
		for (u32 h = 0; h < decays(a); h++)
			decay[h] = check_random(c, 8) == 0 ? steps[check_random(c, COUNT_OF(steps))] : decay[h] * 4;
		for (u32 i = 0; i < a->key_heads * a->key_dim && kind < 2; i++)
			k[i] *= kind == 0 ? 0 : a->kind == KERN_SCAN ? 2 : 1000;
	}
}

static void recurrence_case(struct check *c, u32 target, const struct recurrence_shape *s)
{
	struct check_rows r;
	check_rows_make(c, &r, s->pattern, (size_t)s->heads * s->key_dim * s->value_dim);
	struct kern_recurrent_args a = {.heads = s->heads, .key_heads = s->key_heads, .key_dim = s->key_dim, .value_dim = s->value_dim, .kind = s->kind};
	const u32 keys = s->key_heads * s->key_dim, values = s->heads * s->value_dim;
	a.stride = 2 * keys + values + decays(&a) + s->heads + 5 * CHECK_LOOSE;
	float *in = check_floats(c, (size_t)r.tokens * a.stride + 1, false);
	float *bias = check_floats(c, decays(&a), false), *rates = check_floats(c, s->heads, false);
	a.q = in;
	a.k = a.q + keys + CHECK_LOOSE;
	a.v = a.k + keys + CHECK_LOOSE;
	a.decay = a.v + values + CHECK_LOOSE;
	a.beta = s->kind == KERN_SCAN ? NULL : a.decay + decays(&a) + CHECK_LOOSE;
	a.decay_bias = bias;
	a.rate_log = rates;
	a.skip = s->kind == KERN_SCAN ? check_floats(c, s->heads, false) : NULL;
	a.beta_scale = s->limits ? 2 : 0;
	a.step_min = s->limits ? 0.01f : 0;
	a.step_max = s->limits ? 0.7f : 0;
	for (u32 h = 0; h < s->heads; h++)
		rates[h] = check_random(c, 8) == 0 ? KERN_RATE_LOG_MAX : rates[h] * 3;
	unusual(c, &a, &r, in);
	static const char *const kinds[] = {[KERN_DELTA] = "delta", [KERN_SCAN] = "scan", [KERN_KDA] = "kda"};
	const char *problem = runs(c, target, &a, &r, in);
	check_case_end(c, problem, "recurrent=%s %s heads=%u/%u keys=%u values=%u rows=%u limits=%d", c->targets[target].ops.recurrent_variant,
		       kinds[s->kind], s->heads, s->key_heads, s->key_dim, s->value_dim, s->pattern, s->limits);
}

void check_recurrence(struct check *c, u32 target)
{
	/* heads, key heads, key_dim, value_dim */
	static const u32 shapes[][4] = {{1, 1, 1, 1},	{3, 1, 5, 7},	  {4, 2, 16, 16}, {2, 2, 33, 17}, {6, 3, 64, 64},  {4, 1, 128, 64},
					{2, 1, 128, 128}, {3, 3, 40, 100}, {1, 1, 3, 512}, {1, 1, 512, 9},  {2, 1, 256, 129}, {5, 5, 24, 31}};
	for (u32 s = 0; s < COUNT_OF(shapes); s++)
		for (u32 pattern = 0; pattern < CHECK_ROWS_PATTERNS; pattern++)
			for (u32 kind = KERN_DELTA; kind <= KERN_KDA; kind++) {
				const struct recurrence_shape one = {
					shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], pattern, (enum kern_recurrence)kind, (s + pattern) % 2};
				if (pattern + 1 < CHECK_ROWS_PATTERNS || s % 3 == 1)
					recurrence_case(c, target, &one);
			}
}
