/* Checks of several residual streams mixed, of moments of rows, and of activations whose gate is cut, against formulas in double; and that a
 * token's bits do not depend on its neighbours. */
#include <math.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/check.h"

static const struct kern_limits small_limits = {
	.tokens = 64, .rows = 64, .heads = 8, .kv_heads = 8, .head_dim = 64, .hidden = 512, .intermediate = 1024, .vocab = 512, .context = 128};

/* ---------------------------------------------------------------- stream_mix */

struct mix_case {
	u32 tokens, count, hidden, pick;
	bool extra, same, weighed, in_place; /* in_place: what is picked takes the place of `extra` */
};

/* Of a value its sum, and the sum of its terms' sizes. */
static void mix_want(const struct kern_stream_mix_args *a, double *want, double *size)
{
	const u32 inputs = a->count + (a->extra ? 1 : 0);
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 q = 0; q < a->count; q++)
			for (u32 i = 0; i < a->hidden; i++) {
				const size_t at = ((size_t)t * a->count + q) * a->hidden + i;
				want[at] = 0;
				size[at] = 1e-30;
				for (u32 p = 0; p < inputs; p++) {
					double x = p < a->count ? (double)a->streams[((size_t)t * a->count + p) * a->hidden + i]
								: (double)a->extra[(size_t)t * a->hidden + i];
					double term = x * a->mix[(size_t)t * a->mix_stride + q * inputs + p];
					want[at] += term;
					size[at] += fabs(term);
				}
			}
}

static const char *mix_picked(const struct kern_stream_mix_args *a)
{
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 i = 0; i < a->hidden; i++) {
			float want = a->streams[((size_t)t * a->count + a->pick) * a->hidden + i];
			want = a->out_weight ? want * a->out_weight[i] : want;
			if (memcmp(&want, &a->out[(size_t)t * a->hidden + i], sizeof(want)) != 0)
				return "what is picked is not the stream";
		}
	return NULL;
}

/* The last token as the only one. */
static const char *mix_alone(struct check *c, u32 target, const struct kern_stream_mix_args *a, const float *in, const float *extra)
{
	const size_t row = (size_t)a->count * a->hidden, last = a->tokens - 1;
	struct kern_stream_mix_args one = *a;
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &small_limits, 0);
	one.streams = check_alloc(c, row * sizeof(float));
	memcpy(one.streams, in + last * row, row * sizeof(float));
	one.extra = extra ? extra + last * a->hidden : NULL;
	one.mix += last * a->mix_stride;
	one.out = NULL;
	one.tokens = 1;
	if (c->targets[target].ops.stream_mix(&ctx, &one) != ERR_OK)
		return "an error";
	return memcmp(one.streams, a->streams + last * row, row * sizeof(float)) ? "a token alone gives other bits than among others" : NULL;
}

static void mix_case(struct check *c, u32 target, const struct mix_case *s)
{
	const size_t count = (size_t)s->tokens * s->count * s->hidden, picked = (size_t)s->tokens * s->hidden;
	const u32 stride = s->count * (s->count + s->extra);
	float *in = check_floats(c, count, true), *extra = s->extra ? check_floats(c, picked, false) : NULL, *first = NULL;
	double *want = check_alloc(c, count * sizeof(double)), *size = check_alloc(c, count * sizeof(double));
	struct kern_stream_mix_args a = {.streams = in, .extra = extra, .mix = check_floats(c, (size_t)(s->same ? 1 : s->tokens) * stride, false),
					 .out_weight = s->weighed ? check_floats(c, s->hidden, false) : NULL, .tokens = s->tokens, .count = s->count,
					 .hidden = s->hidden, .mix_stride = s->same ? 0 : stride, .pick = s->pick};
	const char *problem = NULL;
	mix_want(&a, want, size);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		a.streams = check_alloc(c, count * sizeof(float));
		a.out = check_alloc(c, picked * sizeof(float));
		memcpy(a.streams, in, count * sizeof(float));
		if (s->in_place && extra) {
			memcpy(a.out, extra, picked * sizeof(float));
			a.extra = a.out;
		}
		if (c->targets[target].ops.stream_mix(&ctx, &a) != ERR_OK)
			problem = "an error";
		first = first ? first : a.streams;
		if (!problem && memcmp(first, a.streams, count * sizeof(float)) != 0)
			problem = "another run gives other bits";
		if (!problem)
			problem = mix_picked(&a);
	}
	if (!problem)
		problem = check_close(a.streams, want, size, count, 2e-6);
	if (!problem && s->tokens > 0)
		problem = mix_alone(c, target, &a, in, extra);
	check_case_end(c, problem, "stream_mix=%s tokens=%u streams=%u hidden=%u pick=%u extra=%d same=%d weighed=%d in_place=%d",
		       c->targets[target].ops.stream_mix_variant, s->tokens, s->count, s->hidden, s->pick, s->extra, s->same, s->weighed, s->in_place);
}

/* ---------------------------------------------------------------- moments */

/* Rows far from 0 have distances that are no difference of squares. */
static void moments_case(struct check *c, u32 target, u32 tokens, u32 width, u32 behind, float far)
{
	const u32 stride = width + behind;
	float *x = check_floats(c, (size_t)tokens * stride, false), *out[CHECK_RUNS];
	const char *problem = NULL;
	for (size_t i = 0; i < (size_t)tokens * stride; i++)
		x[i] += far;
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		out[run] = check_alloc(c, 2 * (size_t)tokens * sizeof(float));
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		const struct kern_moments_args a = {.out = out[run], .x = x, .tokens = tokens, .width = width, .stride = stride};
		if (c->targets[target].ops.moments(&ctx, &a) != ERR_OK)
			problem = "an error";
		if (!problem && memcmp(out[0], out[run], 2 * (size_t)tokens * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	for (u32 t = 0; t < tokens && !problem; t++) {
		double mean = 0, sum = 0;
		for (u32 i = 0; i < width; i++)
			mean += (double)x[(size_t)t * stride + i] / width;
		for (u32 i = 0; i < width; i++)
			sum += pow((double)x[(size_t)t * stride + i] - mean, 2);
		if (!(fabs((double)out[0][2 * t] - mean) <= 1e-6 * (fabs((double)far) + 1)))
			problem = "a wrong mean";
		else if (!(fabs((double)out[0][2 * t + 1] - sum) <= 1e-5 * sum + 1e-10 * width * (far * far + 1)))
			problem = "a wrong sum of distances";
	}
	check_case_end(c, problem, "moments=%s tokens=%u width=%u behind=%u far=%g", c->targets[target].ops.moments_variant, tokens, width, behind,
		       (double)far);
}

/* ---------------------------------------------------------------- act_mul with a cut gate */

static void cutoffs_case(struct check *c, u32 target, u32 tokens, u32 size)
{
	const size_t count = (size_t)tokens * size;
	float *in = check_floats(c, 2 * count + 1, true), *cutoffs = check_floats(c, tokens + 1u, false), *out[CHECK_RUNS];
	double *want = check_alloc(c, (count + 1) * sizeof(double)), *scale = check_alloc(c, (count + 1) * sizeof(double));
	const char *problem = NULL;
	for (u32 t = 0; t < tokens; t++)
		for (u32 i = 0; i < size; i++) {
			const double gate = in[(size_t)t * 2 * size + i], up = in[((size_t)t * 2 + 1) * size + i];
			const double x = fmax(gate - (double)cutoffs[t], 0), y = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
			want[(size_t)t * size + i] = y * up;
			scale[(size_t)t * size + i] = (fabs(y) + 0.1 * fabs(gate) + 0.1 * fabs((double)cutoffs[t])) * fabs(up) + 1e-30;
		}
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		out[run] = check_alloc(c, (count + 1) * sizeof(float));
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		const struct kern_act_mul_args a = {.out = out[run], .gate_up = in, .tokens = tokens, .size = size, .act = KERN_GELU_TANH, .cutoffs = cutoffs};
		if (c->targets[target].ops.act_mul(&ctx, &a) != ERR_OK)
			problem = "an error";
		if (!problem && memcmp(out[0], out[run], count * sizeof(float)) != 0)
			problem = "another run gives other bits";
	}
	if (!problem)
		problem = check_close(out[0], want, scale, count, 2e-6);
	check_case_end(c, problem, "act_mul=%s cutoffs tokens=%u size=%u", c->targets[target].ops.act_mul_variant, tokens, size);
}

static void mix_cases(struct check *c, u32 target)
{
	static const u32 widths[] = {1, 7, 8, 9, 33, 64, 257, 2048};
	static const u32 tokens[] = {0, 1, 3, 37};
	for (u32 w = 0; w < COUNT_OF(widths); w++)
		for (u32 t = 0; t < COUNT_OF(tokens); t++)
			for (u32 n = 1; n <= KERN_STREAMS_MAX; n++) {
				const u32 bits = check_random(c, 16);
				const struct mix_case s = {tokens[t], n, widths[w], check_random(c, n), bits & 1, bits & 2, bits & 4, bits & 8};
				mix_case(c, target, &s);
			}
}

void check_streams(struct check *c)
{
	static const u32 widths[] = {1, 2, 7, 8, 31, 32, 33, 100, 1000, 8200};
	for (u32 i = 0; i < c->target_count; i++) {
		if (CHECK_DISTINCT(c, i, stream_mix))
			mix_cases(c, i);
		for (u32 w = 0; w < COUNT_OF(widths); w++)
			for (u32 t = 0; t < 40; t += t < 2 ? 1 : 17) {
				if (CHECK_DISTINCT(c, i, moments)) {
					moments_case(c, i, t, widths[w], w % 3, 0);
					moments_case(c, i, t, widths[w], widths[w], 30);
				}
				if (CHECK_DISTINCT(c, i, act_mul))
					cutoffs_case(c, i, t, widths[w]);
			}
		if (CHECK_DISTINCT(c, i, moments))
			moments_case(c, i, 2, 0, 3, 0);
	}
}
