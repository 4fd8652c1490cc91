/* Checks of the ops of layers that keep a state of each sequence: what all have in common, convolutions, and gates. Against formulas in
 * double; states that begin are NaNs, and what is nobody's must stay so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/check_recurrent.h"

const struct kern_limits check_recurrent_limits = {.tokens = 1, .rows = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .hidden = 2};

/* ---------------------------------------------------------------- rows and their states */

void check_rows_make(struct check *c, struct check_rows *r, u32 pattern, size_t size)
{
	static const u32 tokens[CHECK_ROWS_PATTERNS][CHECK_ROWS_MOST] = {{1}, {0, 3, 1}, {2, 1, 0, 1, 1, 1, 9, 4}, {17, 0, 40}, {1, 1, 1, 1}, {300, 2}};
	static const u32 counts[CHECK_ROWS_PATTERNS] = {1, 3, 8, 3, 4, 2};
	const u32 count = counts[pattern], slots = count + 2;
	*r = (struct check_rows){.count = count, .size = size, .stride = size + 5, .all = slots * (size + 5)};
	r->before = check_alloc(c, r->all * sizeof(float));
	for (u32 i = 0; i < count; i++) {
		const u32 n = tokens[pattern][i], past = (i + pattern) % 2 ? 1 + check_random(c, 9) : 0;
		r->tokens += n;
		r->query_start[i + 1] = r->tokens;
		r->context[i] = n + past;
		r->slots[i] = (i * 3 + 1) % slots;
		for (u32 j = 0; j < i; j++) /* 3 may divide the number of slots */
			if (r->slots[j] == r->slots[i]) {
				r->slots[i] = (r->slots[i] + 1) % slots;
				j = UINT32_MAX;
			}
		for (size_t v = 0; v < size && past > 0; v++)
			r->before[r->slots[i] * r->stride + v] = check_uniform(c);
	}
}

bool check_rows_begins(const struct check_rows *r, u32 row)
{
	return r->context[row] == r->query_start[row + 1] - r->query_start[row];
}

struct kern_state check_rows_state(const struct check_rows *r, float *data)
{
	return (struct kern_state){
		.data = data, .stride = r->stride, .query_start = r->query_start, .context = r->context, .slots = r->slots, .rows = r->count};
}

float *check_rows_copy(struct check *c, const struct check_rows *r)
{
	float *data = check_alloc(c, r->all * sizeof(float));
	memcpy(data, r->before, r->all * sizeof(float));
	return data;
}

const char *check_rows_kept(const struct check_rows *r, const float *data)
{
	for (size_t i = 0; i < r->all; i++) {
		bool written = false;
		for (u32 row = 0; row < r->count; row++)
			written |= r->slots[row] == i / r->stride && i % r->stride < r->size && r->query_start[row] < r->query_start[row + 1];
		if (!written && memcmp(&data[i], &r->before[i], sizeof(float)) != 0)
			return "wrote into a state that is not its own";
	}
	return NULL;
}

const char *check_columns_kept(const float *before, const float *after, u32 tokens, u32 stride, size_t first, size_t width)
{
	for (u32 t = 0; t < tokens; t++) {
		const float *a = before + (size_t)t * stride, *b = after + (size_t)t * stride;
		if (memcmp(a, b, first * sizeof(float)) != 0 ||
		    memcmp(a + first + width, b + first + width, (stride - first - width) * sizeof(float)) != 0)
			return "wrote between rows";
	}
	return NULL;
}

const char *check_rows_pieces(struct check *c, const struct check_rows *r, float *data, check_piece_fn run, void *arg)
{
	for (u32 row = 0; row < r->count; row++) {
		const u32 last = r->query_start[row + 1];
		for (u32 first = r->query_start[row], end; first < last; first = end) {
			end = first + 1 + check_random(c, last - first);
			const u32 bounds[2] = {first, end}, context = r->context[row] - (last - end);
			const struct kern_state state = {.data = data, .stride = r->stride, .query_start = bounds, .context = &context,
							 .slots = &r->slots[row], .rows = 1};
			const char *problem = run(arg, &state);
			if (problem)
				return problem;
		}
	}
	return NULL;
}

/* ---------------------------------------------------------------- conv */

struct conv_shape {
	u32 channels, taps, pattern, options;
};
enum conv_option { CONV_BEFORE = 1, CONV_BEHIND = 2, CONV_BIAS = 4, CONV_SILU = 8 };

struct conv_run {
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	struct kern_conv_args a;
};

static const char *conv_piece(void *arg, const struct kern_state *state)
{
	struct conv_run *run = arg;
	run->a.state = *state;
	return run->ops->conv(run->ctx, &run->a) == ERR_OK ? NULL : "an error";
}

/* u of channel c at token t of row r, tokens in front of it being those of the state. */
static double conv_input(const struct kern_conv_args *a, const struct check_rows *r, u32 row, i64 t, u32 c)
{
	const i64 kept = t + a->taps - 1;
	if (t >= 0) {
		const size_t at = (r->query_start[row] + (size_t)t) * a->stride + c;
		return (double)(a->before ? a->x[at] * a->before[at] : a->x[at]);
	}
	return check_rows_begins(r, row) ? 0 : (double)r->before[r->slots[row] * r->stride + (size_t)kept * a->channels + c];
}

/* `a` with inputs as they were before any run. */
static const char *conv_right(const struct kern_conv_args *a, const struct check_rows *r, const float *out, const float *states, u32 row)
{
	const i64 tokens = r->query_start[row + 1] - (i64)r->query_start[row];
	const char *problem = NULL;
	for (u32 c = 0; c < a->channels && !problem; c++) {
		for (i64 t = 0; t < tokens && !problem; t++) {
			const size_t at = (r->query_start[row] + (size_t)t) * a->stride + c;
			double want = a->bias ? (double)a->bias[c] : 0, size = fabs(want) + 1e-30;
			for (u32 j = 0; j < a->taps; j++) {
				const double term = (double)a->weight[(size_t)j * a->channels + c] * conv_input(a, r, row, t - (a->taps - 1) + j, c);
				want += term;
				size += fabs(term);
			}
			const double behind = a->behind ? (double)a->behind[at] : 1;
			want *= behind / (a->silu ? 1 + exp(-want) : 1);
			size *= fabs(behind);
			problem = check_close(&out[at], &want, &size, 1, 2e-6);
		}
		for (u32 j = 0; j + 1 < a->taps && tokens > 0 && !problem; j++) {
			const double want = conv_input(a, r, row, tokens - (a->taps - 1) + j, c);
			problem = check_close(&states[r->slots[row] * r->stride + (size_t)j * a->channels + c], &want, NULL, 1, 0);
		}
	}
	return problem;
}

/* Out of place: where x, before and behind lie beside each other, and `out` on its own. Then pieces, and in place of each of the three. */
static const char *conv_runs(struct check *c, u32 target, struct kern_conv_args *a, const struct check_rows *r, const float *in)
{
	const size_t bytes = ((size_t)r->tokens * a->stride + 1) * sizeof(float), states = r->all * sizeof(float);
	struct kern_ctx ctx;
	struct conv_run run = {.ops = &c->targets[target].ops, .ctx = &ctx};
	float *poison = check_alloc(c, bytes), *data[6], *out[6];
	const char *problem = NULL;
	for (u32 i = 0; i < 6 && !problem; i++) {
		const u32 place = i - 3; /* 0: x, 1: before, 2: behind */
		check_ctx(c, &ctx, &check_recurrent_limits, i % CHECK_POOLS);
		data[i] = check_rows_copy(c, r);
		out[i] = check_alloc(c, bytes);
		run.a = *a;
		run.a.out = out[i];
		if ((i == 4 && !a->before) || (i == 5 && !a->behind))
			continue;
		if (i >= 3) {
			memcpy(out[i], in, bytes);
			run.a.x = out[i];
			run.a.before = a->before ? out[i] + a->channels : NULL;
			run.a.behind = a->behind ? out[i] + 2 * (size_t)a->channels : NULL;
			run.a.out += place * (size_t)a->channels;
		}
		const struct kern_state all = check_rows_state(r, data[i]);
		problem = i == 2 ? check_rows_pieces(c, r, data[i], conv_piece, &run) : conv_piece(&run, &all);
		for (u32 t = 0; t < r->tokens && !problem; t++)
			if (memcmp(run.a.out + (size_t)t * a->stride, out[0] + (size_t)t * a->stride, a->channels * sizeof(float)) != 0)
				problem = i == 2 ? "other bits in pieces" : i > 2 ? "other bits in place" : "another run gives other bits";
		if (!problem && memcmp(data[i], data[0], states) != 0)
			problem = "another state";
		if (!problem)
			problem = check_columns_kept(i < 3 ? poison : in, out[i], r->tokens, a->stride, i < 3 ? 0 : place * (size_t)a->channels,
						     a->channels);
	}
	for (u32 row = 0; row < r->count && !problem; row++)
		problem = conv_right(a, r, out[0], data[0], row);
	return problem ? problem : check_rows_kept(r, data[0]);
}

static void conv_case(struct check *c, u32 target, const struct conv_shape *s)
{
	struct check_rows r;
	check_rows_make(c, &r, s->pattern, (size_t)(s->taps - 1) * s->channels);
	const u32 stride = 3 * s->channels + 3;
	const float *in = check_floats(c, (size_t)r.tokens * stride + 1, s->options & CONV_BIAS);
	struct kern_conv_args a = {.x = in, .channels = s->channels, .stride = stride, .taps = s->taps, .silu = s->options & CONV_SILU};
	a.before = s->options & CONV_BEFORE ? in + s->channels : NULL;
	a.behind = s->options & CONV_BEHIND ? in + 2 * (size_t)s->channels : NULL;
	a.weight = check_floats(c, (size_t)s->taps * s->channels, false);
	a.bias = s->options & CONV_BIAS ? check_floats(c, s->channels, false) : NULL;
	const char *problem = conv_runs(c, target, &a, &r, in);
	check_case_end(c, problem, "conv=%s channels=%u taps=%u rows=%u options=%u", c->targets[target].ops.conv_variant, s->channels, s->taps,
		       s->pattern, s->options);
}

static void conv_cases(struct check *c, u32 target)
{
	static const u32 channels[] = {1, 7, 16, 33, 64, 130, 515};
	for (u32 w = 0; w < COUNT_OF(channels); w++)
		for (u32 taps = 2; taps <= KERN_CONV_TAPS_MAX; taps++)
			for (u32 pattern = 0; pattern < CHECK_ROWS_PATTERNS; pattern++) {
				const struct conv_shape s = {channels[w], taps, pattern, (w * 5 + taps * 3 + pattern) % 16};
				if (pattern + 1 < CHECK_ROWS_PATTERNS || w % 3 == 1)
					conv_case(c, target, &s);
			}
}

/* ---------------------------------------------------------------- gate */

struct gate_shape {
	u32 tokens, groups, width, options;
};
enum gate_option { GATE_SIGMOID = 1, GATE_FIRST = 2, GATE_WEIGHT = 4, GATE_APART = 8 };

static void gate_want(const struct kern_gate_args *a, const float *x, const float *gate, double *want, double *size)
{
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 g = 0; g < a->groups; g++) {
			double square = 0;
			for (u32 pass = 0; pass < 2; pass++)
				for (u32 i = 0; i < a->width; i++) {
					const size_t in = (size_t)g * a->width + i, at = (size_t)t * a->stride + in;
					const double sigmoid = 1 / (1 + exp(-(double)gate[at])), f = a->sigmoid ? sigmoid : sigmoid * gate[at];
					const double value = a->gate_first ? x[at] * f : (double)x[at];
					const double w = a->weight ? (double)a->weight[a->weights_apart ? in : i] : 1;
					square += pass == 0 ? value * value / a->width : 0;
					if (pass == 0)
						continue;
					want[at] = value * (a->weight ? w / sqrt(square + (double)a->eps) : 1) * (a->gate_first ? 1 : f);
					size[at] = fabs(want[at]) * (1 + fabs((double)gate[at]) / 16) + 1e-16; /* e^-x is 2 to the power of a rounded number, and from e^61 on may be infinite */
				}
		}
}

static void gate_case(struct check *c, u32 target, const struct gate_shape *s)
{
	const u32 wide = s->groups * s->width, stride = 2 * wide + 3;
	const size_t count = (size_t)s->tokens * stride + 1, bytes = count * sizeof(float);
	const float *in = check_floats(c, count, true);
	double *want = check_alloc(c, count * sizeof(double)), *size = check_alloc(c, count * sizeof(double));
	struct kern_gate_args a = {.eps = 1e-6f, .tokens = s->tokens, .groups = s->groups, .width = s->width, .stride = stride,
				   .sigmoid = s->options & GATE_SIGMOID, .gate_first = s->options & GATE_FIRST,
				   .weights_apart = s->options & GATE_APART};
	const char *problem = NULL;
	float *out[CHECK_RUNS];
	a.weight = s->options & GATE_WEIGHT ? check_floats(c, a.weights_apart ? wide : s->width, false) : NULL;
	gate_want(&a, in, in + wide, want, size);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &check_recurrent_limits, run % CHECK_POOLS);
		out[run] = check_alloc(c, bytes);
		memcpy(out[run], in, bytes);
		a.x = out[run];
		a.gate = out[run] + wide;
		if (c->targets[target].ops.gate(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(out[0], out[run], bytes) != 0)
			problem = "another run gives other bits";
		else
			problem = check_columns_kept(in, out[run], s->tokens, stride, 0, wide);
	}
	for (u32 t = 0; t < s->tokens && !problem; t++)
		problem = check_close(out[0] + (size_t)t * stride, want + (size_t)t * stride, size + (size_t)t * stride, wide, 2e-6);
	check_case_end(c, problem, "gate=%s tokens=%u groups=%u width=%u options=%u", c->targets[target].ops.gate_variant, s->tokens, s->groups,
		       s->width, s->options);
}

/* Values that are their own gates, which makes SiLU of them: the gates may lie where they do. */
static void gate_itself(struct check *c, u32 target, u32 width)
{
	const u32 tokens = 3, stride = width + 5;
	const size_t count = (size_t)tokens * stride + 1;
	const float *in = check_floats(c, count, true);
	float *apart = check_alloc(c, count * sizeof(float)), *own = check_alloc(c, count * sizeof(float));
	struct kern_gate_args a = {.x = apart, .gate = in, .tokens = tokens, .groups = 1, .width = width, .stride = stride, .sigmoid = true};
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &check_recurrent_limits, 1);
	memcpy(apart, in, count * sizeof(float));
	memcpy(own, in, count * sizeof(float));
	enum err e = c->targets[target].ops.gate(&ctx, &a);
	a.x = own;
	a.gate = own;
	e = e ? e : c->targets[target].ops.gate(&ctx, &a);
	const char *problem = e ? "an error" : memcmp(apart, own, count * sizeof(float)) != 0 ? "other bits where gates are the values" : NULL;
	check_case_end(c, problem, "gate=%s of itself width=%u", c->targets[target].ops.gate_variant, width);
}

static void gate_cases(struct check *c, u32 target)
{
	static const u32 shapes[][2] = {{1, 1}, {3, 7}, {4, 16}, {1, 33}, {5, 64}, {2, 130}, {1, 515}, {32, 128}, {1, 5000}}, tokens[] = {0, 1, 2, 19};
	for (u32 w = 0; w < COUNT_OF(shapes); w++)
		for (u32 t = 0; t < COUNT_OF(tokens); t++)
			for (u32 options = 0; options < 16; options++) {
				const struct gate_shape s = {tokens[t], shapes[w][0], shapes[w][1], options};
				if ((options & GATE_WEIGHT) || !(options & GATE_APART))
					gate_case(c, target, &s);
			}
	for (u32 w = 0; w < COUNT_OF(shapes); w++)
		gate_itself(c, target, shapes[w][1]);
}

void check_recurrent(struct check *c)
{
	for (u32 i = 0; i < c->target_count; i++) {
		if (CHECK_DISTINCT(c, i, conv))
			conv_cases(c, i);
		if (CHECK_DISTINCT(c, i, gate))
			gate_cases(c, i);
		if (CHECK_DISTINCT(c, i, recurrent))
			check_recurrence(c, i);
		if (CHECK_DISTINCT(c, i, selective_scan))
			check_selective_scan(c, i);
		if (CHECK_DISTINCT(c, i, lru))
			check_lru(c, i);
	}
}
