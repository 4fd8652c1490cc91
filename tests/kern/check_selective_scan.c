/* Checks of the recurrence of Mamba's first generation against its formula in double, whose state is in double, too. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check_recurrent.h"

struct scan_shape {
	u32 channels, state_dim, pattern;
};

struct scan_run {
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	struct kern_selective_scan_args a;
};

static const char *piece(void *arg, const struct kern_state *state)
{
	struct scan_run *run = arg;
	run->a.state = *state;
	return run->ops->selective_scan(run->ctx, &run->a) == ERR_OK ? NULL : "an error";
}

/* ---------------------------------------------------------------- the formula */

/* One token of channel c: S, its output, and what that is measured by, the largest values of the channel so far times the weights they got. */
static double step(const struct kern_selective_scan_args *a, u32 t, u32 c, double *S, double *largest, double *size)
{
	const float *k = a->k + (size_t)t * a->key_stride, *q = a->q + (size_t)t * a->key_stride;
	const double x = (double)a->x[(size_t)t * a->stride + c], z = (double)a->step[(size_t)t * a->step_stride + c] + (double)a->step_bias[c];
	const double d = z > 30 ? z : log1p(exp(z));
	double out = (double)a->skip[c] * x, weights = 0;
	*largest = fmax(*largest, fabs(d * x));
	for (u32 i = 0; i < a->state_dim; i++) {
		S[i] = exp(-(double)a->rate[(size_t)i * a->channels + c] * d) * S[i] + d * k[i] * x;
		out += S[i] * q[i];
		weights += fabs((double)q[i]);
		*largest = fmax(*largest, fabs(S[i]));
	}
	*size = *largest * weights + fabs((double)a->skip[c] * x) + 1e-30;
	return out;
}

/* One channel of one row: all its outputs, and the state that it leaves. */
static const char *channel_right(struct check *c, const struct kern_selective_scan_args *a, const struct check_rows *r, const float *out,
				 const float *states, u32 row, u32 channel)
{
	const u32 kept = c->buffer_count, first = r->query_start[row], end = r->query_start[row + 1];
	const double error = 0x1p-24 * (40 + 4 * sqrt(a->state_dim));
	const size_t at = r->slots[row] * r->stride + channel;
	double *S = check_alloc(c, a->state_dim * sizeof(double)), largest = 0, size;
	const char *problem = NULL;
	for (u32 i = 0; i < a->state_dim; i++) {
		S[i] = check_rows_begins(r, row) ? 0 : (double)r->before[at + (size_t)i * a->channels];
		largest = fmax(largest, fabs(S[i]));
	}
	for (u32 t = first; t < end && !problem; t++) {
		const double want = step(a, t, channel, S, &largest, &size);
		problem = check_close(&out[(size_t)t * a->stride + channel], &want, &size, 1, error);
	}
	size = largest + 1e-30;
	for (u32 i = 0; i < a->state_dim && first < end && !problem; i++)
		problem = check_close(&states[at + (size_t)i * a->channels], &S[i], &size, 1, error);
	const char *guards = check_release(c, kept);
	return problem ? problem : guards;
}

/* ---------------------------------------------------------------- runs */

/* By one thread, by two, in pieces, and in place. */
static const char *runs(struct check *c, u32 target, const struct kern_selective_scan_args *a, const struct check_rows *r)
{
	const size_t bytes = ((size_t)r->tokens * a->stride + 1) * sizeof(float);
	struct kern_ctx ctx;
	struct scan_run run = {.ops = &c->targets[target].ops, .ctx = &ctx};
	float *poison = check_alloc(c, bytes), *out[4], *data[4];
	const char *problem = NULL;
	for (u32 i = 0; i < 4 && !problem; i++) {
		check_ctx(c, &ctx, &check_recurrent_limits, i == 3 ? 1 : i % CHECK_POOLS);
		data[i] = check_rows_copy(c, r);
		out[i] = check_alloc(c, bytes);
		run.a = *a;
		run.a.out = out[i];
		if (i == 3) {
			memcpy(out[i], a->x, bytes);
			run.a.x = out[i];
		}
		const struct kern_state all = check_rows_state(r, data[i]);
		problem = i == 2 ? check_rows_pieces(c, r, data[i], piece, &run) : piece(&run, &all);
		for (u32 t = 0; t < r->tokens && !problem; t++)
			if (memcmp(out[i] + (size_t)t * a->stride, out[0] + (size_t)t * a->stride, a->channels * sizeof(float)) != 0)
				problem = i == 3 ? "other bits in place" : i == 2 ? "other bits in pieces" : "other bits by two threads";
		if (!problem && memcmp(data[0], data[i], r->all * sizeof(float)) != 0)
			problem = "another state";
		if (!problem)
			problem = check_columns_kept(i < 3 ? poison : a->x, out[i], r->tokens, a->stride, 0, a->channels);
	}
	for (u32 row = 0; row < r->count && !problem; row++)
		for (u32 channel = 0; channel < a->channels && !problem; channel++)
			problem = channel_right(c, a, r, out[0], data[0], row, channel);
	return problem ? problem : check_rows_kept(r, data[0]);
}

/* Steps near 0 and far above; keys of zeros; rates of 0, and such that nothing is kept. */
static void unusual(struct check *c, const struct kern_selective_scan_args *a, u32 tokens, float *steps, float *keys, float *rates)
{
	static const float far[] = {-90, -25, 19, 60};
	for (u32 t = 0; t < tokens; t++) {
		for (u32 i = 0; i < a->channels; i++) {
			float *at = &steps[(size_t)t * a->step_stride + i];
			*at = check_random(c, 8) == 0 ? far[check_random(c, COUNT_OF(far))] : *at * 4;
		}
		for (u32 i = 0; i < a->state_dim && check_random(c, 8) == 0; i++)
			keys[(size_t)t * a->key_stride + i] = 0;
	}
	for (size_t i = 0; i < (size_t)a->state_dim * a->channels; i++) {
		const u32 kind = check_random(c, 16);
		rates[i] = kind == 0 ? 0 : kind == 1 ? 1e30f : expf(3 * rates[i]);
	}
}

static void scan_case(struct check *c, u32 target, const struct scan_shape *s)
{
	struct check_rows r;
	check_rows_make(c, &r, s->pattern, (size_t)s->channels * s->state_dim);
	struct kern_selective_scan_args a = {.channels = s->channels, .state_dim = s->state_dim, .stride = 2 * s->channels + CHECK_LOOSE,
					     .step_stride = s->channels + CHECK_LOOSE, .key_stride = 2 * s->state_dim + 2 * CHECK_LOOSE};
	float *steps = check_floats(c, (size_t)r.tokens * a.step_stride + 1, false), *keys = check_floats(c, (size_t)r.tokens * a.key_stride + 1, false);
	float *rates = check_floats(c, (size_t)s->state_dim * s->channels, false);
	a.x = check_floats(c, (size_t)r.tokens * a.stride + 1, true);
	a.step = steps;
	a.k = keys;
	a.q = keys + s->state_dim + CHECK_LOOSE;
	a.rate = rates;
	a.step_bias = check_floats(c, s->channels, false);
	a.skip = check_floats(c, s->channels, false);
	unusual(c, &a, r.tokens, steps, keys, rates);
	const char *problem = runs(c, target, &a, &r);
	check_case_end(c, problem, "selective_scan=%s channels=%u state=%u rows=%u", c->targets[target].ops.selective_scan_variant, s->channels,
		       s->state_dim, s->pattern);
}

void check_selective_scan(struct check *c, u32 target)
{
	static const u32 shapes[][2] = {{1, 1}, {7, 3}, {16, 16}, {17, 5}, {33, 16}, {64, 1}, {90, 8}, {160, 16}, {5, 256}, {24, 33}, {200, 64}};
	for (u32 s = 0; s < COUNT_OF(shapes); s++)
		for (u32 pattern = 0; pattern < CHECK_ROWS_PATTERNS; pattern++) {
			const struct scan_shape one = {shapes[s][0], shapes[s][1], pattern};
			if (pattern + 1 < CHECK_ROWS_PATTERNS || s % 3 == 1)
				scan_case(c, target, &one);
		}
}
