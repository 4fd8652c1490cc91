/* Checks of the real-gated linear recurrent unit against its formula in double, whose state is in double, too. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check_recurrent.h"

struct lru_shape {
	u32 channels, pattern;
	enum kern_activation act;
};

/* Of many tokens, with each of which the state is rounded. */
#define ERROR 4e-6

struct lru_run {
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	struct kern_lru_args a;
};

static const char *piece(void *arg, const struct kern_state *state)
{
	struct lru_run *run = arg;
	run->a.state = *state;
	return run->ops->lru(run->ctx, &run->a) == ERR_OK ? NULL : "an error";
}

/* ---------------------------------------------------------------- the formula */

static double logistic(double x)
{
	return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); /* no sum that cancels */
}

static double activated(enum kern_activation act, double x)
{
	if (act == KERN_SILU)
		return x * logistic(x);
	if (act == KERN_GELU)
		return x * 0.5 * (1 + erf(x / sqrt(2)));
	if (act == KERN_GELU_TANH)
		return x * logistic(2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * pow(x, 3)));
	return x > 0 ? act == KERN_RELU ? x : x * x : 0;
}

/* One token of channel c, `first` of its sequence or not: S, and its output. */
static double step(const struct kern_lru_args *a, u32 t, u32 c, bool first, double *S)
{
	const size_t at = (size_t)t * a->stride + c, gate = (size_t)t * a->gate_stride + c;
	const double taken = logistic((double)a->input[gate] + (double)a->input_bias[c]) * (double)a->x[at];
	const double w = exp(-8 * (double)a->rate[c] * logistic((double)a->fade[gate] + (double)a->fade_bias[c]));
	*S = first ? taken : w * *S + sqrt((1 - w) * (1 + w)) * taken;
	return *S * activated(a->act, (double)a->gate[at]);
}

/* One channel of one row: all its outputs, and the state that it leaves. */
static const char *channel_right(const struct kern_lru_args *a, const struct check_rows *r, const float *out, const float *states, u32 row, u32 channel)
{
	const u32 first = r->query_start[row], end = r->query_start[row + 1];
	const size_t at = r->slots[row] * r->stride + channel;
	double S = check_rows_begins(r, row) ? 0 : (double)r->before[at], largest = fabs(S), size;
	const char *problem = NULL;
	for (u32 t = first; t < end && !problem; t++) {
		const double want = step(a, t, channel, check_rows_begins(r, row) && t == first, &S);
		largest = fmax(largest, fabs(S));
		size = largest * (fabs(activated(a->act, (double)a->gate[(size_t)t * a->stride + channel])) + 1e-3) + 1e-30;
		problem = check_close(&out[(size_t)t * a->stride + channel], &want, &size, 1, ERROR);
	}
	size = largest + 1e-30;
	if (first < end && !problem)
		problem = check_close(&states[at], &S, &size, 1, ERROR);
	return problem;
}

/* ---------------------------------------------------------------- runs */

/* By one thread, by two, in pieces, and in place of x and of gate. */
static const char *runs(struct check *c, u32 target, const struct kern_lru_args *a, const struct check_rows *r)
{
	const size_t bytes = ((size_t)r->tokens * a->stride + 1) * sizeof(float);
	struct kern_ctx ctx;
	struct lru_run run = {.ops = &c->targets[target].ops, .ctx = &ctx};
	float *poison = check_alloc(c, bytes), *out[5], *data[5];
	const char *problem = NULL;
	for (u32 i = 0; i < 5 && !problem; i++) {
		check_ctx(c, &ctx, &check_recurrent_limits, i >= 3 ? 1 : i % CHECK_POOLS);
		data[i] = check_rows_copy(c, r);
		out[i] = check_alloc(c, bytes);
		run.a = *a;
		run.a.out = out[i];
		if (i >= 3)
			memcpy(out[i], i == 3 ? a->x : a->gate, bytes);
		if (i == 3)
			run.a.x = out[i];
		if (i == 4)
			run.a.gate = out[i];
		const struct kern_state all = check_rows_state(r, data[i]);
		problem = i == 2 ? check_rows_pieces(c, r, data[i], piece, &run) : piece(&run, &all);
		for (u32 t = 0; t < r->tokens && !problem; t++)
			if (memcmp(out[i] + (size_t)t * a->stride, out[0] + (size_t)t * a->stride, a->channels * sizeof(float)) != 0)
				problem = i >= 3 ? "other bits in place" : i == 2 ? "other bits in pieces" : "other bits by two threads";
		if (!problem && memcmp(data[0], data[i], r->all * sizeof(float)) != 0)
			problem = "another state";
		if (!problem)
			problem = check_columns_kept(i < 3 ? poison : i == 3 ? a->x : a->gate, out[i], r->tokens, a->stride, 0, a->channels);
	}
	for (u32 row = 0; row < r->count && !problem; row++)
		for (u32 channel = 0; channel < a->channels && !problem; channel++)
			problem = channel_right(a, r, out[0], data[0], row, channel);
	return problem ? problem : check_rows_kept(r, data[0]);
}

static void lru_case(struct check *c, u32 target, const struct lru_shape *s)
{
	static const float unusual[] = {0, 1e-6f, 60};
	struct check_rows r;
	check_rows_make(c, &r, s->pattern, s->channels);
	struct kern_lru_args a = {.act = s->act, .channels = s->channels, .stride = s->channels + CHECK_LOOSE, .gate_stride = s->channels + 2 * CHECK_LOOSE};
	float *rates = check_floats(c, s->channels, false);
	a.x = check_floats(c, (size_t)r.tokens * a.stride + 1, true);
	a.gate = check_floats(c, (size_t)r.tokens * a.stride + 1, false);
	a.input = check_floats(c, (size_t)r.tokens * a.gate_stride + 1, true);
	a.fade = check_floats(c, (size_t)r.tokens * a.gate_stride + 1, true);
	a.input_bias = check_floats(c, s->channels, false);
	a.fade_bias = check_floats(c, s->channels, false);
	a.rate = rates;
	for (u32 i = 0; i < s->channels; i++)
		rates[i] = check_random(c, 8) == 0 ? unusual[check_random(c, COUNT_OF(unusual))] : fabsf(rates[i]);
	const char *problem = runs(c, target, &a, &r);
	check_case_end(c, problem, "lru=%s channels=%u act=%d rows=%u", c->targets[target].ops.lru_variant, s->channels, (int)s->act, s->pattern);
}

void check_lru(struct check *c, u32 target)
{
	static const u32 widths[] = {1, 7, 64, 65, 130};
	for (u32 w = 0; w < COUNT_OF(widths); w++)
		for (u32 pattern = 0; pattern < CHECK_ROWS_PATTERNS; pattern++) {
			const struct lru_shape one = {widths[w], pattern, (enum kern_activation)((w + pattern) % (KERN_RELU_SQUARED + 1))};
			lru_case(c, target, &one);
		}
}
