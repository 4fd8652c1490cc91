/* Checks of embedding, rmsnorm, layernorm, the norms over all heads and act_mul against formulas in double.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/check.h"

static const struct kern_limits small_limits = {.tokens = 64,
						.rows = 64,
						.heads = 8,
						.kv_heads = 8,
						.head_dim = 64,
						.hidden = 512,
						.intermediate = 1024,
						.vocab = 512,
						.context = 128};

/* ---------------------------------------------------------------- embedding */

static void embedding_case(struct check *c, u32 target, enum kern_dtype type, u32 tokens, u32 hidden, u32 pool)
{
	enum { ROWS = 37, FIRST = 5 };
	struct kern_ctx ctx;
	const char *problem = NULL;
	void *table = type == KERN_F32 ? (void *)check_floats(c, ROWS * hidden, false)
				       : (void *)check_bf16s(c, ROWS * hidden, false); /* any bits of a half but those of no number */
	for (u32 i = 0; type == KERN_F16 && i < ROWS * hidden; i++)
		((u16 *)table)[i] &= 0xbfff;
	u32 *ids = check_alloc(c, (tokens + 1) * sizeof(u32));
	float *out = check_alloc(c, ((size_t)tokens * hidden + 1) * sizeof(float));
	for (u32 t = 0; t < tokens; t++)
		ids[t] = check_random(c, ROWS + 2 * FIRST);
	struct kern_embedding_args a = {
		.out = out, .ids = ids, .table = table, .table_dtype = type};
	a.tokens = tokens;
	a.hidden = hidden;
	a.first = FIRST;
	a.rows = ROWS;
	a.scale = pool ? 1.7f : 0;
	check_ctx(c, &ctx, &small_limits, pool);
	if (c->targets[target].ops.embedding(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 t = 0; t < tokens && !problem; t++)
		for (u32 i = 0; i < hidden && !problem; i++) {
			size_t at = (size_t)(ids[t] - FIRST) * hidden + i;
			bool inside = ids[t] >= FIRST && ids[t] < FIRST + ROWS;
			double want = inside ? (double)kern_load(table, type, at) : 0;
			want *= pool ? (double)a.scale : 1;
			double size = fabs(want);
			problem = check_close(&out[(size_t)t * hidden + i], &want, &size, 1, pool ? 1e-7 : 0);
		}
	check_case_end(c, problem, "embedding=%s %s tokens=%u hidden=%u",
		       c->targets[target].ops.embedding_variant, kern_dtype_name(type), tokens, hidden);
}

/* ---------------------------------------------------------------- rmsnorm */

static void rmsnorm_want(const struct kern_rmsnorm_args *a, const float *x, double *want)
{
	for (u32 t = 0; t < a->tokens; t++) {
		double sum = 0;
		for (u32 i = 0; i < a->hidden; i++)
			sum += (double)x[t * a->hidden + i] * x[t * a->hidden + i];
		for (u32 i = 0; i < a->hidden; i++)
			want[t * a->hidden + i] =
				x[t * a->hidden + i] / sqrt(sum / a->hidden + (double)a->eps) * a->weight[i];
	}
}

static void rmsnorm_case(struct check *c, u32 target, u32 tokens, u32 hidden, bool outliers, bool add,
			 bool norm, bool scaled)
{
	size_t count = (size_t)tokens * hidden, bytes = count * sizeof(float);
	float *before = check_floats(c, count, outliers), *after = check_alloc(c, bytes),
	      *x = check_alloc(c, bytes);
	float *out[CHECK_RUNS];
	double *want = check_alloc(c, count * sizeof(double)),
	       *scale = check_alloc(c, count * sizeof(double));
	struct kern_rmsnorm_args a = {.x = x, .eps = 1e-5f, .tokens = tokens, .hidden = hidden};
	const char *problem = NULL;
	a.weight = check_floats(c, hidden, outliers);
	a.add = add ? check_floats(c, count, outliers) : NULL;
	a.scale = scaled ? check_floats(c, 1, false) : NULL;
	for (size_t i = 0; i < count; i++)
		after[i] = (before[i] + (add ? a.add[i] : 0)) * (scaled ? a.scale[0] : 1);
	rmsnorm_want(&a, after, want);
	for (size_t i = 0; i < count; i++)
		scale[i] = fabs(want[i]) + 1e-30;
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		memcpy(x, before, bytes);
		out[run] = check_alloc(c, bytes);
		a.out = norm ? out[run] : NULL;
		if (c->targets[target].ops.rmsnorm(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(x, after, bytes) != 0)
			problem = "the residual is not x + add";
		else if (norm && memcmp(out[0], out[run], bytes) != 0)
			problem = "another run gives other bits";
	}
	if (!problem && norm)
		problem = check_close(out[0], want, scale, count, 1e-6);
	check_case_end(c, problem, "rmsnorm=%s tokens=%u hidden=%u outliers=%d add=%d norm=%d scaled=%d",
		       c->targets[target].ops.rmsnorm_variant, tokens, hidden, outliers, add, norm, scaled);
}

/* ---------------------------------------------------------------- layernorm */

static void layernorm_want(const struct kern_layernorm_args *a, const float *x, double *want, double *scale)
{
	for (u32 t = 0; t < a->tokens; t++) {
		const float *row = x + (size_t)t * a->hidden;
		double mean = 0, square = 0, largest = 0;
		for (u32 i = 0; i < a->hidden; i++) {
			mean += (double)row[i] / a->hidden;
			largest = fmax(largest, fabs((double)row[i]));
		}
		for (u32 i = 0; i < a->hidden; i++)
			square += (row[i] - mean) * (row[i] - mean) / a->hidden;
		double deviation = sqrt(square + (double)a->eps);
		for (u32 i = 0; i < a->hidden; i++) {
			double bias = a->bias ? (double)a->bias[i] : 0;
			size_t at = (size_t)t * a->hidden + i;
			want[at] = (row[i] - mean) / deviation * a->weight[i] + bias;
			/* the mean is rounded as the largest is */
			scale[at] = largest / deviation * fabs((double)a->weight[i]) + fabs(bias) + 1e-30;
		}
	}
}

static void layernorm_case(struct check *c, u32 target, u32 tokens, u32 hidden, u32 kind)
{
	size_t count = (size_t)tokens * hidden, bytes = count * sizeof(float);
	float *before = check_floats(c, count, kind & 1), *after = check_alloc(c, bytes),
	      *x = check_alloc(c, bytes);
	float *out[CHECK_RUNS];
	double *want = check_alloc(c, count * sizeof(double)),
	       *scale = check_alloc(c, count * sizeof(double));
	struct kern_layernorm_args a = {.x = x, .eps = 1e-5f, .tokens = tokens, .hidden = hidden};
	const char *problem = NULL;
	a.weight = check_floats(c, hidden, false);
	a.bias = kind & 1 ? check_floats(c, hidden, false) : NULL;
	a.add = kind & 2 ? check_floats(c, count, false) : NULL;
	for (size_t i = 0; i < count; i++) {
		before[i] += kind & 2 ? 3 : 0; /* a mean far from 0 */
		after[i] = before[i] + (a.add ? a.add[i] : 0);
	}
	layernorm_want(&a, after, want, scale);
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		memcpy(x, before, bytes);
		out[run] = check_alloc(c, bytes);
		a.out = kind & 4 ? NULL : out[run];
		if (c->targets[target].ops.layernorm(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(x, after, bytes) != 0)
			problem = "the residual is not x + add";
		else if (a.out && memcmp(out[0], out[run], bytes) != 0)
			problem = "another run gives other bits";
	}
	if (!problem && a.out)
		problem = check_close(out[0], want, scale, count, 2e-6);
	check_case_end(c, problem, "layernorm=%s tokens=%u hidden=%u kind=%u",
		       c->targets[target].ops.layernorm_variant, tokens, hidden, kind);
}

/* ---------------------------------------------------------------- qk_squares, qk_norm */

/* A row of the projection: q, k, and `rest` values behind them that stay as they are. */
struct qk_shape {
	u32 tokens, q_width, k_width, rest;
	bool counts_k, outliers;
};

/* The rank has a third of q and half of k. */
static void qk_want(const struct kern_qk_norm_args *a, const float *in, double *squares, double *want)
{
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 part = 0; part < 2; part++) {
			u32 first = part ? a->q_width : 0, width = part ? a->k_width : a->q_width;
			u32 total = part ? a->k_total : a->q_total;
			const float *x = in + (size_t)t * a->stride + first,
				    *weight = part ? a->k_weight : a->q_weight;
			double sum = 0, all = a->squares[2 * t + part];
			for (u32 i = 0; i < width; i++) {
				sum += (double)x[i] * x[i];
				want[(size_t)t * a->stride + first + i] =
					x[i] / sqrt(all / total + (double)a->eps) * weight[i];
			}
			squares[2 * t + part] = sum;
		}
}

static const char *qk_run(struct check *c, u32 target, u32 pool, const struct kern_qk_squares_args *s,
			  const struct kern_qk_norm_args *n)
{
	const struct kern_ops *ops = &c->targets[target].ops;
	struct kern_ctx ctx;
	check_ctx(c, &ctx, &small_limits, pool);
	if (ops->qk_squares(&ctx, s) != ERR_OK || ops->qk_norm(&ctx, n) != ERR_OK)
		return "an error";
	return NULL;
}

static void qk_case(struct check *c, u32 target, const struct qk_shape *s)
{
	u32 stride = s->q_width + s->k_width + s->rest;
	size_t count = (size_t)s->tokens * stride, pairs = 2 * (size_t)s->tokens;
	float *in = check_floats(c, count, s->outliers), *all = check_floats(c, pairs, false),
	      *x[CHECK_RUNS], *found[CHECK_RUNS];
	double *squares = check_alloc(c, pairs * sizeof(double)),
	       *want = check_alloc(c, count * sizeof(double)), *size = check_alloc(c, count * sizeof(double));
	struct kern_qk_squares_args sums = {.qkv = in,
					    .tokens = s->tokens,
					    .stride = stride,
					    .q_width = s->q_width,
					    .k_width = s->k_width,
					    .counts_k = s->counts_k};
	struct kern_qk_norm_args norm = {.squares = all,
					 .q_weight = check_floats(c, s->q_width, false),
					 .k_weight = check_floats(c, s->k_width, false),
					 .eps = 1e-5f,
					 .tokens = s->tokens,
					 .stride = stride,
					 .q_width = s->q_width,
					 .k_width = s->k_width,
					 .q_total = 3 * s->q_width,
					 .k_total = 2 * s->k_width};
	const char *problem = NULL;
	for (size_t i = 0; i < pairs; i++)
		all[i] = fabsf(all[i]) + 0.5f;
	for (size_t i = 0; i < count; i++)
		want[i] = (double)in[i];
	qk_want(&norm, in, squares, want);
	for (size_t i = 0; i < count; i++)
		size[i] = fabs(want[i]) + 1e-30;
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		x[run] = check_alloc(c, count * sizeof(float));
		found[run] = check_alloc(c, pairs * sizeof(float));
		memcpy(x[run], in, count * sizeof(float));
		norm.qkv = x[run];
		sums.squares = found[run];
		problem = qk_run(c, target, run % CHECK_POOLS, &sums, &norm);
		if (!problem && (memcmp(x[0], x[run], count * sizeof(float)) != 0 ||
				 memcmp(found[0], found[run], pairs * sizeof(float)) != 0))
			problem = "another run gives other bits";
	}
	for (size_t i = 1; i < pairs && !s->counts_k; i += 2)
		squares[i] = 0;
	for (size_t i = 0; i < pairs && !problem; i++)
		if (!(fabs((double)found[0][i] - squares[i]) <= 1e-6 * squares[i]))
			problem = "a wrong sum of squares";
	if (!problem)
		problem = check_close(x[0], want, size, count, 1e-6);
	check_case_end(c, problem,
		       "qk_squares+qk_norm=%s tokens=%u q=%u k=%u behind=%u counts_k=%d outliers=%d",
		       c->targets[target].ops.qk_norm_variant, s->tokens, s->q_width, s->k_width, s->rest,
		       s->counts_k, s->outliers);
}

static void check_qk(struct check *c, u32 target)
{
	static const u32 widths[][2] = {{2, 2}, {8, 16}, {48, 12}, {33, 31}, {257, 66}, {2048, 512}};
	for (u32 w = 0; w < COUNT_OF(widths); w++)
		for (u32 tokens = 0; tokens < 40; tokens += tokens < 2 ? 1 : 17) {
			struct qk_shape s = {tokens,	   widths[w][0], widths[w][1],
					     widths[w][1], w % 2,	 tokens % 2};
			qk_case(c, target, &s);
		}
}

/* ---------------------------------------------------------------- act_mul */

/* NULL, or what is wrong with the outputs of some runs, by one and by several threads. */
static const char *act_mul_close(struct check *c, u32 target, const struct kern_act_mul_args *args, const double *want, const double *scale)
{
	const size_t count = (size_t)args->tokens * args->size;
	float *out[CHECK_RUNS];
	for (u32 run = 0; run < CHECK_RUNS; run++) {
		struct kern_act_mul_args a = *args;
		struct kern_ctx ctx;
		check_ctx(c, &ctx, &small_limits, run % CHECK_POOLS);
		a.out = out[run] = check_alloc(c, (count + 1) * sizeof(float));
		if (c->targets[target].ops.act_mul(&ctx, &a) != ERR_OK)
			return "an error";
		if (memcmp(out[0], out[run], count * sizeof(float)) != 0)
			return "another run gives other bits";
	}
	return check_close(out[0], want, scale, count, 2e-6);
}

static void act_mul_with(struct check *c, u32 target, enum kern_activation act, u32 tokens, u32 size,
			 bool ungated, const float *factors)
{
	size_t count = (size_t)tokens * size;
	float *in = check_floats(c, 2 * count, true);
	double *want = check_alloc(c, count * sizeof(double)),
	       *scale = check_alloc(c, count * sizeof(double));
	for (u32 t = 0; t < tokens; t++)
		for (u32 i = 0; i < size; i++) {
			double x = in[(size_t)t * (ungated ? 1 : 2) * size + i], y;
			double up = ungated ? 1 : (double)in[((size_t)t * 2 + 1) * size + i];
			x *= factors ? (double)factors[t] : 1;
			up *= factors ? (double)factors[t] : 1;
			if (act == KERN_SILU)
				y = x / (1 + exp(-x));
			else if (act == KERN_GELU_TANH)
				y = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
			else if (act == KERN_GELU)
				y = 0.5 * x * (1 + erf(x / sqrt(2)));
			else
				y = fmax(x, 0) * (act == KERN_RELU_SQUARED ? x : 1);
			want[(size_t)t * size + i] = y * up;
			scale[(size_t)t * size + i] = (fabs(y) + fmin(fabs(x), 1) * 0.1) * fabs(up) + 1e-30;
		}
	const struct kern_act_mul_args a = {.gate_up = in, .tokens = tokens, .size = size, .act = act, .ungated = ungated, .factors = factors};
	const char *problem = act_mul_close(c, target, &a, want, scale);
	check_case_end(c, problem, "act_mul=%s act=%d tokens=%u size=%u ungated=%d factors=%d",
		       c->targets[target].ops.act_mul_variant, act, tokens, size, ungated, factors != NULL);
}

static void act_mul_case(struct check *c, u32 target, enum kern_activation act, u32 tokens, u32 size, bool ungated)
{
	act_mul_with(c, target, act, tokens, size, ungated, NULL);
}

/* Rows that are multiplied first. */
static void act_mul_factors_case(struct check *c, u32 target, enum kern_activation act, u32 tokens, u32 size)
{
	static const float factors[] = {0.25f, 1, 0, 0.9990234f};
	act_mul_with(c, target, act, tokens, size, false, factors);
}

/* Gate and up are neighbours, and clamped. */
static void act_mul_clamped_case(struct check *c, u32 target, u32 tokens, u32 size)
{
	size_t count = (size_t)tokens * size;
	float *in = check_floats(c, 2 * count + 1, true);
	double *want = check_alloc(c, (count + 1) * sizeof(double)), *scale = check_alloc(c, (count + 1) * sizeof(double));
	const double alpha = (double)1.702f, limit = 7;
	for (size_t i = 0; i < count; i++) {
		double gate = fmin(in[2 * i] *= 4, limit), up = fmax(fmin(in[2 * i + 1] *= 4, limit), -limit);
		want[i] = gate / (1 + exp(-alpha * gate)) * (up + 1);
		scale[i] = (fabs(want[i]) + fmin(fabs(gate), 1) * 0.1 * fabs(up + 1)) + fabs(gate) * 1e-3 + 1e-30;
	}
	const struct kern_act_mul_args a = {.gate_up = in, .tokens = tokens, .size = size, .alpha = (float)alpha, .limit = (float)limit};
	const char *problem = act_mul_close(c, target, &a, want, scale);
	check_case_end(c, problem, "act_mul=%s clamped tokens=%u size=%u", c->targets[target].ops.act_mul_variant, tokens, size);
}

static void act_mul_xielu_case(struct check *c, u32 target, u32 tokens, u32 size, const float n[KERN_XIELU_COUNT])
{
	size_t count = (size_t)tokens * size;
	float *in = check_floats(c, count + 1, true);
	double *want = check_alloc(c, (count + 1) * sizeof(double)), *scale = check_alloc(c, (count + 1) * sizeof(double));
	const double beta = (double)n[KERN_XIELU_BETA], eps = (double)n[KERN_XIELU_EPS];
	for (size_t i = 0; i < count; i++) {
		double x = i % 7 == 6 ? (double)in[i] * 1e-5 : (double)in[i];
		in[i] = (float)x;
		x = (double)in[i];
		double curve = x > 0 ? (double)n[KERN_XIELU_POSITIVE] * x * x : (double)n[KERN_XIELU_NEGATIVE] * (exp(fmin(x, eps)) - 1 - x);
		want[i] = curve + beta * x;
		scale[i] = fabs(curve) + fabs(beta * x) + 1e-12;
	}
	const struct kern_act_mul_args a = {.gate_up = in, .tokens = tokens, .size = size, .ungated = true, .act = KERN_RELU, .xielu = n};
	const char *problem = act_mul_close(c, target, &a, want, scale);
	check_case_end(c, problem, "act_mul=%s xielu tokens=%u size=%u", c->targets[target].ops.act_mul_variant, tokens, size);
}

void check_linear(struct check *c)
{
	static const float xielu[2][KERN_XIELU_COUNT] = {{0.8f, 0.8f, 0.5f, -1e-6f}, {1.7f, 0.9f, 0.3f, -0.5f}};
	static const u32 widths[] = {1, 2, 8, 15, 16, 17, 33, 64, 100, 257, 1024};
	static const u32 tokens[] = {0, 1, 3, 40};
	for (u32 i = 0; i < c->target_count; i++) {
		if (CHECK_DISTINCT(c, i, qk_norm))
			check_qk(c, i);
		if (CHECK_DISTINCT(c, i, act_mul)) { /* rows that threads share */
			act_mul_case(c, i, KERN_SILU, 1, 8205, false);
			act_mul_case(c, i, KERN_GELU_TANH, 3, 4097, false);
			act_mul_case(c, i, KERN_GELU, 2, 4103, false);
			act_mul_case(c, i, KERN_RELU, 1, 4100, false);
			act_mul_case(c, i, KERN_GELU_TANH, 2, 4105, true);
			act_mul_clamped_case(c, i, 2, 4105);
			act_mul_xielu_case(c, i, 2, 4105, xielu[0]);
			act_mul_factors_case(c, i, KERN_SILU, 2, 4105);
			for (u32 size = 1; size < 40; size++)
				act_mul_factors_case(c, i, size % 2 ? KERN_SILU : KERN_GELU, 4, size);
			for (u32 size = 1; size < 40; size++)
				act_mul_clamped_case(c, i, 3, size);
			for (u32 size = 1; size < 40; size++)
				act_mul_xielu_case(c, i, 3, size, xielu[size % 2]);
		}
		for (u32 w = 0; w < COUNT_OF(widths); w++)
			for (u32 t = 0; t < COUNT_OF(tokens); t++) {
				if (CHECK_DISTINCT(c, i, embedding)) {
					embedding_case(c, i, KERN_F32, tokens[t], widths[w], t % 2);
					embedding_case(c, i, KERN_BF16, tokens[t], widths[w], t % 2);
					embedding_case(c, i, KERN_F16, tokens[t], widths[w], t % 2);
				}
				if (CHECK_DISTINCT(c, i, rmsnorm))
					for (u32 bits = 0; bits < 8; bits++)
						for (u32 scaled = 0; scaled <= (bits & 2); scaled += 2) /* with what is added */
							rmsnorm_case(c, i, tokens[t], widths[w], bits & 1, bits & 2, bits & 4,
								     scaled);
				for (u32 kind = 0; kind < 8 && CHECK_DISTINCT(c, i, layernorm); kind++)
					layernorm_case(c, i, tokens[t], widths[w], kind);
				if (CHECK_DISTINCT(c, i, act_mul)) {
					act_mul_case(c, i, KERN_SILU, tokens[t], widths[w], false);
					act_mul_case(c, i, KERN_GELU_TANH, tokens[t], widths[w], false);
					act_mul_case(c, i, KERN_GELU, tokens[t], widths[w], false);
					act_mul_case(c, i, KERN_RELU, tokens[t], widths[w], false);
					act_mul_case(c, i, KERN_RELU_SQUARED, tokens[t], widths[w], t % 2);
					act_mul_case(c, i, KERN_GELU, tokens[t], widths[w], true);
				}
			}
	}
}
