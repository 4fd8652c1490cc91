/* Checks of matmul against the formula in double, in every type of weight. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/matmul_driver_priv.h"
#include "tests/kern/check_matmul.h"

static void round_to_bf16(float *values, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		u16 half;
		kern_convert(&half, KERN_BF16, &values[i], KERN_F32, 1);
		kern_convert(&values[i], KERN_F32, &half, KERN_BF16, 1);
	}
}

static void plain_matrix(struct check *c, const struct matmul_case *m, void *memory, u32 caps,
			 struct check_matrix *out)
{
	struct err_msg em = {""};
	out->values = check_floats(c, (size_t)m->n * m->k, m->outliers);
	if (m->dtype == KERN_BF16)
		round_to_bf16(out->values, (size_t)m->n * m->k);
	if (kern_weight_pack(&out->packed, out->values, KERN_F32, m->k, m->n, m->k, m->dtype, memory,
			     c->pools[1], caps, &em) != ERR_OK)
		printf("kern_weight_pack: %s\n", em.text);
}

/* Random values of q, scales (some of them zero) and zeros: all that the format can hold, and more than rounding produces.
 * Zeros are 8 where k is odd, eighths (as rounding makes them) where half of it is. */
static void quantized_matrix(struct check *c, const struct matmul_case *m, void *memory, u32 caps,
			     struct check_matrix *out)
{
	bool int8 = m->dtype == KERN_I8;
	u32 width = kern_dtype_group(m->dtype), groups = (m->k + width - 1) / width;
	u32 q_stride = m->k + check_random(c, 3), stride = groups + check_random(c, 2);
	u8 *q = check_alloc(c, (size_t)m->n * q_stride);
	float *scale = check_alloc(c, (size_t)m->n * stride * 4),
	      *zero = check_alloc(c, (size_t)m->n * stride * 4);
	bool zeros = !int8 && m->k % 2 == 0, eighths = m->k % 4 == 2;
	out->values = check_alloc(c, (size_t)m->n * m->k * 4);
	for (u32 i = 0; i < m->n * stride; i++) {
		scale[i] = (float)check_random(c, 2048) * (m->outliers && i % 16 == 0 ? 0x1p-6f : 0x1p-12f);
		scale[i] = int8 && (i % 3 == 1 || m->exponent > 104) ? ldexpf(scale[i], m->weights_exponent) : scale[i];
		zero[i] = eighths ? (float)check_random(c, 136) / 8 - 0.875f : (float)check_random(c, 1024) / 32 - 8;
	}
	for (u32 n = 0; n < m->n; n++)
		for (u32 k = 0; k < m->k; k++) {
			u32 value = check_random(c, int8 ? 256 : 16);
			float z = int8 ? 0 : zeros ? zero[n * stride + k / width] : 8;
			q[(size_t)n * q_stride + k] = (u8)value;
			out->values[(size_t)n * m->k + k] =
				scale[n * stride + k / width] *
				((int8 ? (float)(signed char)value : (float)value) - z);
		}
	struct kern_quantized_rows rows = {.q = q, .scale = scale, .q_stride = q_stride};
	rows.zero = zeros ? zero : NULL;
	rows.group_stride = stride;
	if (kern_weight_begin(&out->packed, m->n, m->k, m->dtype, memory, caps, NULL) == ERR_OK)
		kern_weight_rows_quantized(&out->packed, 0, m->n, &rows, c->pools[1]);
}

/* Random q, and of every part m and c within all that makes bytes, written as the layout is said to be. */
static void stepped_matrix(struct check *c, const struct matmul_case *m, void *memory, u32 caps, struct check_matrix *out)
{
	enum { PANEL = 32, GROUP = 128, PART = 32, HEAD = 256, UNIT = 128, GROUP_BYTES = HEAD + GROUP / 8 * UNIT };
	const u32 groups = m->k / GROUP + (m->k % GROUP > 0), units = (m->k + 7) / 8;
	out->values = check_alloc(c, (size_t)m->n * m->k * 4);
	if (kern_weight_begin(&out->packed, m->n, m->k, m->dtype, memory, caps, NULL) != ERR_OK)
		return;
	for (u32 n = 0; n < m->n; n++)
		for (u32 g = 0; g < groups; g++) {
			u8 *group = (u8 *)memory + n / PANEL * ((size_t)groups * HEAD + (size_t)units * UNIT) + g * (size_t)GROUP_BYTES;
			u32 scale = (check_random(c, m->outliers && g % 16 == 0 ? 0x4780 - 0x3380 : 0x400) + 0x3380) << 16, centres = 0;
			float value;
			memcpy(&value, &scale, 4);
			for (u32 k = g * GROUP; k < m->k && k < (g + 1) * GROUP; k++) {
				const u32 part = k % GROUP / PART, q = check_random(c, 16);
				if (k % PART == 0) {
					const u32 step = check_random(c, 16);
					scale |= step << 4 * part;
					centres |= ((check_random(c, 256 - 15 * step) + 8 * step - 128) & 255) << 8 * part;
				}
				const i32 byte = (i32)(scale >> 4 * part & 15) * ((i32)q - 8) + (signed char)(centres >> 8 * part);
				u8 *both = group + HEAD + k % GROUP / 8 * UNIT + n % PANEL * 4 + k % 4;
				*both = (u8)(k % 8 < 4 ? q : *both | q << 4);
				out->values[(size_t)n * m->k + k] = value * (float)byte;
			}
			memcpy(group + n % PANEL * 4, &scale, 4);
			memcpy(group + (PANEL + n % PANEL) * 4, &centres, 4);
		}
}

void check_matrix_make(struct check *c, const struct matmul_case *m, u32 caps, struct check_matrix *out)
{
	void *memory = check_alloc(c, kern_weight_bytes(m->n, m->k, m->dtype, caps));
	if (m->dtype == KERN_I4_STEPS)
		stepped_matrix(c, m, memory, caps, out);
	else if (kern_dtype_group(m->dtype) > 0)
		quantized_matrix(c, m, memory, caps, out);
	else
		plain_matrix(c, m, memory, caps, out);
	if (m->order) { /* some permutation */
		u32 *order = check_alloc(c, m->k * sizeof(u32));
		for (u32 i = 0; i < m->k; i++)
			order[i] = m->k - 1 - i;
		out->packed.order = order;
	}
}

/* Half a step of a group's inputs in 8 bits: of the least number of 4 significant bits or, beside weights in 4 bits, the least power of two
 * with which the largest is below 127.5, and at least 2^-96. Where the largest is next to 127.45 of the former, floats may take the number behind it. */
static double half_step(enum kern_dtype dtype, double most)
{
	const double least = most / 127.45 * (1 + 0x1p-22), eighth = exp2(floor(log2(least)) - 3);
	return dtype == KERN_I8 ? fmax(most > 0 ? ceil(least / eighth) * eighth : 0, 0x1p-96) / 2
				: exp2(fmax(floor(log2(most / 127.5)) + 1, -96) - 1);
}

/* What rounding inputs to 8 bits in the groups of the weights may cost: half a step for every term. */
struct rounding_cost {
	u32 groups;
	double *steps;	 /* [tokens][groups]: half a step */
	double *weights; /* [n][groups]: sums of magnitudes */
};

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static u32 input_of(const struct matmul_case *m, u32 k)
{
	return m->order ? m->k - 1 - k : k;
}

static struct rounding_cost rounding_cost(struct check *c, const struct matmul_case *m, const struct kern_matmul_args *a, const float *w)
{
	const u32 width = kern_dtype_group(m->dtype), groups = (m->k + width - 1) / width;
	struct rounding_cost r = {groups, check_alloc(c, (size_t)m->tokens * groups * sizeof(double)),
				  check_alloc(c, (size_t)m->n * groups * sizeof(double))};
	for (u32 t = 0; t < m->tokens; t++)
		for (u32 g = 0; g < groups; g++) {
			double most = 0;
			for (u32 k = g * width; k < (g + 1) * width && k < m->k; k++)
				most = larger(most, fabsf(a->x[(size_t)t * a->x_stride + input_of(m, k)]));
			r.steps[t * groups + g] = half_step(m->dtype, most);
		}
	for (u32 n = 0; n < m->n; n++)
		for (u32 g = 0; g < groups; g++) {
			double sum = 0;
			for (u32 k = g * width; k < (g + 1) * width && k < m->k; k++)
				sum += fabsf(w[(size_t)n * m->k + k]);
			r.weights[n * groups + g] = sum;
		}
	return r;
}

/* What is right, and how far a variant may be off: rounding inputs to bf16 costs half a unit of 8 bits each,
 * a running float sum some units of 24 bits. */
static void matmul_want(struct check *c, const struct matmul_case *m, const struct kern_matmul_args *a, const float *w,
			const float *before, bool rounds, double *want, double *allowed)
{
	double error = (rounds && m->dtype == KERN_BF16 ? 0x1p-8 : 0) + 0x1p-24 * (4 + 3 * sqrt(m->k));
	const bool in_groups = rounds && kern_dtype_group(m->dtype) > 0;
	const struct rounding_cost r = in_groups ? rounding_cost(c, m, a, w) : (struct rounding_cost){0};
	for (u32 t = 0; t < m->tokens; t++)
		for (u32 n = 0; n < m->n; n++) {
			const float *x = a->x + (size_t)t * a->x_stride, *row = w + (size_t)n * m->k;
			double sum = (a->bias ? a->bias[n] : 0) +
				     (m->accumulate ? before[t * a->out_stride + n] : 0);
			double size = fabs(sum), cost = 0;
			for (u32 k = 0; k < m->k; k++) {
				double term = (double)x[input_of(m, k)] * row[k];
				sum += term;
				size += fabs(term);
			}
			for (u32 g = 0; g < r.groups; g++)
				cost += r.steps[t * r.groups + g] * r.weights[n * r.groups + g];
			want[(size_t)t * m->n + n] = sum;
			allowed[(size_t)t * m->n + n] = error * (size + 1e-30) + 1.001 * cost;
		}
}

/* The reference looks up every weight, which with each row alone took most of all checks' time: its rows are computed again in groups, of a size
 * that puts them at every place of its blocks of tokens. */
enum { REFERENCE_ROWS = 7 };

/* Tiles of few rows are of two panels for some processors and of one for others: here, in turn, of either. */
static enum matmul_pairs pairs_in_turn(const struct matmul_case *m, u32 turn)
{
	return (m->tokens + m->n + turn) % 2 ? MATMUL_PAIRS_ALWAYS : MATMUL_PAIRS_NEVER;
}

/* Runs one variant with one thread and with two, and each row alone, with and without weights that come next; all have to agree to the bit. */
static const char *matmul_runs_in_turn(struct check *c, u32 target, const struct matmul_case *m,
			       struct kern_matmul_args *a, const float *before, float *out)
{
	size_t bytes = (size_t)m->tokens * a->out_stride * sizeof(float);
	struct kern_limits limits = {.tokens = m->tokens, .hidden = m->k};
	struct kern_ctx ctx;
	float *again = check_alloc(c, bytes);
	for (u32 run = 0; run < CHECK_RUNS; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		matmul_pair(pairs_in_turn(m, run + run / CHECK_POOLS)); /* one thread with pairs and without */
		a->next = run % 2 == m->tokens % 2 ? a->w : NULL;
		a->out = run == 0 ? out : again;
		memcpy(a->out, before, bytes);
		if (c->targets[target].ops.matmul(&ctx, a) != ERR_OK)
			return "an error";
		if (memcmp(a->out, out, bytes) != 0)
			return "another run gives other bits";
	}
	struct kern_matmul_args one = *a;
	const u32 rows = c->targets[target].caps ? 1 : REFERENCE_ROWS;
	memcpy(again, before, bytes);
	for (u32 t = 0; t < m->tokens; t += rows) {
		one.tokens = m->tokens - t < rows ? m->tokens - t : rows;
		one.out = again + (size_t)t * a->out_stride;
		one.x = a->x + (size_t)t * a->x_stride;
		matmul_pair(pairs_in_turn(m, t));
		if (c->targets[target].ops.matmul(&ctx, &one) != ERR_OK)
			return "an error for a row alone";
	}
	return memcmp(again, out, bytes) != 0 ? "a row alone gives other bits than among others" : NULL;
}

static const char *matmul_runs(struct check *c, u32 target, const struct matmul_case *m, struct kern_matmul_args *a, const float *before, float *out)
{
	const char *problem = matmul_runs_in_turn(c, target, m, a, before, out);
	matmul_pair(MATMUL_PAIRS_BEST);
	return problem;
}

/* Whether a variant rounds inputs for weights of a type. */
static bool rounds_inputs(enum kern_dtype dtype, u32 caps)
{
	if (dtype == KERN_BF16)
		return caps & (KERN_CAP_AVX512_BF16 | KERN_CAP_AMX);
	return dtype == KERN_I4_STEPS ? kern_dtype_int4(caps) == dtype : (caps & KERN_CAP_AVX2) != 0;
}

/* Quantized products are the same to the bit in all variants that round their inputs, and those of bfloat16 by tiles whether these are the
 * processor's or emulated. */
static bool sums_agree(enum kern_dtype dtype, u32 caps)
{
	return dtype == KERN_BF16 ? (caps & KERN_CAP_AMX) != 0 : kern_dtype_group(dtype) > 0 && rounds_inputs(dtype, caps);
}

static const char *matmul_agrees(struct check *c, const struct kern_matmul_args *a, const float *before,
				 const float *out)
{
	size_t bytes = (size_t)a->tokens * a->out_stride * sizeof(float);
	struct kern_limits limits = {.tokens = a->tokens, .hidden = a->w->k};
	struct kern_matmul_args first = *a;
	struct kern_ctx ctx;
	u32 rounding = 0;
	while (!sums_agree(a->w->dtype, c->targets[rounding].caps))
		rounding++;
	check_ctx(c, &ctx, &limits, 0);
	first.out = check_alloc(c, bytes);
	memcpy(first.out, before, bytes);
	if (c->targets[rounding].ops.matmul(&ctx, &first) != ERR_OK)
		return "an error of the first variant";
	return memcmp(first.out, out, bytes) != 0 ? "other bits than the first variant gives" : NULL;
}

static const float *exponent_inputs(struct check *c, const struct matmul_case *m, u32 x_stride)
{
	float *x = check_floats(c, (size_t)m->tokens * x_stride, m->outliers);
	for (size_t i = 0; i < (size_t)m->tokens * x_stride; i++)
		x[i] = i / x_stride % 3 == 1 ? ldexpf(x[i], m->exponent) : x[i];
	return x;
}

static void matmul_case(struct check *c, u32 target, const struct matmul_case *m)
{
	u32 x_stride = m->k + check_random(c, 3), out_stride = m->n + check_random(c, 3);
	size_t count = (size_t)m->tokens * out_stride;
	const struct check_target *t = &c->targets[target];
	float *before = check_floats(c, count, false), *out = check_alloc(c, count * sizeof(float));
	double *want = check_alloc(c, (size_t)m->tokens * m->n * 8),
	       *allowed = check_alloc(c, (size_t)m->tokens * m->n * 8);
	struct check_matrix w;
	const char *problem;
	check_matrix_make(c, m, t->caps, &w);
	struct kern_matmul_args a = {
		.w = &w.packed, .tokens = m->tokens, .x_stride = x_stride, .out_stride = out_stride};
	a.x = exponent_inputs(c, m, x_stride);
	float *bias = m->bias ? check_floats(c, m->n, false) : NULL;
	for (u32 n = 0; n < m->n && m->zero_bias; n++)
		bias[n] = -0.0f;
	a.bias = bias;
	a.accumulate = m->accumulate;
	bool rounds = rounds_inputs(m->dtype, t->caps);
	matmul_want(c, m, &a, w.values, before, rounds, want, allowed);
	problem = matmul_runs(c, target, m, &a, before, out);
	for (u32 row = 0; row < m->tokens && !problem; row++) {
		const float *got = out + (size_t)row * out_stride;
		problem = check_close(got, want + (size_t)row * m->n, allowed + (size_t)row * m->n, m->n, 1);
		if (!problem && memcmp(got + m->n, before + (size_t)row * out_stride + m->n,
				       (out_stride - m->n) * 4) != 0)
			problem = "wrote between rows";
	}
	if (!problem && sums_agree(m->dtype, t->caps))
		problem = matmul_agrees(c, &a, before, out);
	kern_weight_fini(&w.packed);
	check_case_end(c, problem,
		       "matmul=%s %s n=%u k=%u tokens=%u outliers=%d bias=%d accumulate=%d order=%d exponent=%d,%d",
		       t->ops.matmul_variant, kern_dtype_name(m->dtype), m->n, m->k, m->tokens, m->outliers,
		       m->bias, m->accumulate, m->order, m->exponent, m->weights_exponent);
}

/* Rows with values that are no finite numbers: one, all of a group, and none. Nothing finite comes of them, and of rows beside them
 * what comes of them alone. What sums of such rows overflow is for the build with sanitizers to find. */
static void matmul_not_finite_case(struct check *c, u32 target, const struct matmul_case *m)
{
	size_t bytes = (size_t)m->tokens * m->n * sizeof(float);
	float *x = check_floats(c, (size_t)m->tokens * m->k, false), *clean = check_alloc(c, bytes), *out = check_alloc(c, bytes);
	const struct check_target *t = &c->targets[target];
	struct kern_limits limits = {.tokens = m->tokens, .hidden = m->k};
	const char *problem = NULL;
	struct kern_ctx ctx;
	struct check_matrix w;
	check_matrix_make(c, m, t->caps, &w);
	struct kern_matmul_args a = {.w = &w.packed, .x = x, .tokens = m->tokens, .x_stride = m->k, .out_stride = m->n, .out = clean};
	check_ctx(c, &ctx, &limits, 1);
	if (t->ops.matmul(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 row = 0; row < m->tokens; row++)
		for (u32 k = m->k / 2; row % 4 && k < (row % 4 == 1 ? m->k / 2 + 1 : m->k); k++)
			x[(size_t)row * m->k + k] = row % 4 == 3 ? INFINITY : NAN;
	a.out = out;
	if (!problem && t->ops.matmul(&ctx, &a) != ERR_OK)
		problem = "an error with values that are not finite";
	for (u32 row = 0; row < m->tokens && !problem; row++) {
		const size_t at = (size_t)row * m->n;
		if (row % 4 == 0 && memcmp(out + at, clean + at, m->n * sizeof(float)) != 0)
			problem = "a row beside one that is not finite gives other bits";
		for (u32 n = 0; row % 4 && n < m->n; n++)
			if (isfinite(out[at + n]))
				problem = "a finite value of a row that is not";
	}
	kern_weight_fini(&w.packed);
	check_case_end(c, problem, "matmul=%s %s not finite n=%u k=%u tokens=%u order=%d", t->ops.matmul_variant,
		       kern_dtype_name(m->dtype), m->n, m->k, m->tokens, m->order);
}

/* Weights of 4 bits that are all their largest, times inputs of one sign whose rounded values come to `sum` in the even or in
 * the odd pairs of each 64: with 2,184 what 16 bits hold of such products is full, with 2,185 it is not enough. All is whole, so
 * sums are exact. */
static void matmul_full_case(struct check *c, u32 target, enum kern_dtype dtype, u32 tokens, u32 sum)
{
	enum { N = 40, K = 320, PAIRS = 32, LEAST = 68, WEIGHT = 15 - 8 }; /* 31 x 68 + 76 = 2,184 */
	const struct check_target *t = &c->targets[target];
	struct kern_limits limits = {.tokens = tokens, .hidden = K};
	u8 *q = check_alloc(c, N * K);
	float *scale = check_alloc(c, N * (K / PAIRS) * sizeof(float)), *x = check_alloc(c, (size_t)tokens * K * sizeof(float));
	float *out = check_alloc(c, (size_t)tokens * N * sizeof(float));
	const char *problem = NULL;
	struct kern_weight w;
	struct kern_ctx ctx;
	memset(q, 15, N * K);
	for (u32 i = 0; i < N * (K / PAIRS); i++)
		scale[i] = 1;
	for (u32 i = 0; i < tokens * K; i++) {
		const u32 k = i % K, row = i / K, full = k % 64 == row % 2 * 2;
		x[i] = (float)(full ? sum - (PAIRS - 1) * LEAST : LEAST) * (row % 3 == 2 ? -1.0f : 1.0f) / 128;
	}
	struct kern_quantized_rows rows = {.q = q, .scale = scale, .q_stride = K, .group_stride = K / PAIRS};
	struct kern_matmul_args a = {.w = &w, .x = x, .tokens = tokens, .x_stride = K, .out = out, .out_stride = N};
	if (kern_weight_begin(&w, N, K, dtype, check_alloc(c, kern_weight_bytes(N, K, dtype, t->caps)), t->caps, NULL) != ERR_OK)
		problem = "an error of the weight";
	else
		kern_weight_rows_quantized(&w, 0, N, &rows, c->pools[1]);
	check_ctx(c, &ctx, &limits, 1);
	if (!problem && t->ops.matmul(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 row = 0; row < tokens && !problem; row++) {
		float want = 0;
		for (u32 k = 0; k < K; k++)
			want += x[(size_t)row * K + k] * WEIGHT;
		for (u32 n = 0; n < N; n++)
			if (out[(size_t)row * N + n] != want)
				problem = "a sum is not exact";
	}
	kern_weight_fini(&w);
	check_case_end(c, problem, "matmul=%s %s full tokens=%u sum=%u", t->ops.matmul_variant, kern_dtype_name(dtype), tokens, sum);
}

/* The same of weights in steps that are all their least or largest, times inputs that are all the largest: sums of parts are as large as
 * can be. */
static void matmul_full_steps_case(struct check *c, u32 target, u32 tokens, u32 q)
{
	enum { N = 40, K = 320, M = 15, C = 20, PANELS = 2 };
	const struct check_target *t = &c->targets[target];
	struct kern_limits limits = {.tokens = tokens, .hidden = K};
	float *x = check_alloc(c, (size_t)tokens * K * sizeof(float)), *out = check_alloc(c, (size_t)tokens * N * sizeof(float));
	u8 *memory = check_alloc(c, kern_weight_bytes(N, K, KERN_I4_STEPS, t->caps));
	const u32 head = 0x3f800000 | M * 0x1111, centres = C * 0x01010101;
	const char *problem = NULL;
	struct kern_weight w;
	struct kern_ctx ctx;
	for (u32 i = 0; i < tokens * K; i++)
		x[i] = i / K % 3 == 2 ? -127 : 127;
	struct kern_matmul_args a = {.w = &w, .x = x, .tokens = tokens, .x_stride = K, .out = out, .out_stride = N};
	if (kern_weight_begin(&w, N, K, KERN_I4_STEPS, memory, t->caps, NULL) != ERR_OK)
		problem = "an error of the weight";
	for (u32 panel = 0; panel < PANELS; panel++) {
		u8 *group = memory + panel * (size_t)(3 * 256 + K / 8 * 128);
		for (u32 k = 0; k < K; k += 128) {
			for (u32 i = 0; i < 32; i++) {
				memcpy(group + i * 4, &head, 4);
				memcpy(group + 128 + i * 4, &centres, 4);
			}
			memset(group + 256, (int)(q * 0x11), (K - k < 128 ? K - k : 128) / 8 * 128);
			group += 256 + 16 * 128;
		}
	}
	check_ctx(c, &ctx, &limits, 1);
	if (!problem && t->ops.matmul(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 i = 0; i < tokens * N && !problem; i++)
		if (out[i] != (float)K * x[i / N * K] * (float)(M * ((i32)q - 8) + C))
			problem = "a sum is not exact";
	kern_weight_fini(&w);
	check_case_end(c, problem, "matmul=%s steps full tokens=%u q=%u", t->ops.matmul_variant, tokens, q);
}

static void full_cases(struct check *c, u32 target)
{
	static const enum kern_dtype dtypes[] = {KERN_I4_32, KERN_I4_64, KERN_I4_128};
	static const u32 tokens[] = {1, 4, 9, 40}, sums[] = {2183, 2184, 2185, 2200, 2231};
	for (u32 d = 0; d < COUNT_OF(dtypes); d++)
		for (u32 t = 0; t < COUNT_OF(tokens); t++)
			for (u32 s = 0; s < COUNT_OF(sums); s++)
				matmul_full_case(c, target, dtypes[d], tokens[t], sums[s]);
	for (u32 t = 0; t < 2 * COUNT_OF(tokens); t++)
		matmul_full_steps_case(c, target, tokens[t / 2], t % 2 * 15);
}

/* ---------------------------------------------------------------- cases */

const enum kern_dtype check_matmul_types[CHECK_MATMUL_TYPES] = {KERN_F32, KERN_BF16, KERN_I8, KERN_I4_32, KERN_I4_64, KERN_I4_128,
								   KERN_I4_STEPS};

static void matmul_cases(struct check *c, u32 target)
{
	static const u32 shapes[][2] = {{1, 1},	   {1, 7},    {15, 2},	  {16, 33},  {17, 64},
					{31, 65},  {33, 31},  {64, 128},  {65, 17},  {100, 255},
					{130, 96}, {257, 40}, {40, 1030}, {70, 2500}};
	static const u32 tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 21, 24, 29, 32, 33, 40, 48, 57, 64};
	for (u32 s = 0; s < COUNT_OF(shapes); s++)
		for (u32 t = 0; t < COUNT_OF(tokens); t++)
			for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
				struct matmul_case m = {shapes[s][0], shapes[s][1], tokens[t], check_matmul_types[d],
							(s + t) % 2};
				m.bias = t % 3 == 0;
				m.accumulate = t % 4 == 1 || t % 4 == 2;
				m.order = kern_dtype_group(m.dtype) > 0 && (s + t) % 5 == 0;
				matmul_case(c, target, &m);
			}
	for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++) {
		struct matmul_case wide = {.n = 300, .k = 64, .tokens = 450, .dtype = check_matmul_types[d]};
		/* Tiles of unequal height, two blocks of k; two blocks of rows of unequal height. */
		struct matmul_case uneven = {
			.n = 50, .k = 1100, .tokens = 37, .dtype = check_matmul_types[d], .bias = true, .accumulate = true};
		struct matmul_case odd = {.n = 33, .k = 35, .tokens = 257, .dtype = check_matmul_types[d], .accumulate = true};
		/* Blocks of whole tiles but for the last one's rest, of a row and of 20, two blocks of k; and of threads with rows of their own. */
		struct matmul_case rest = {.n = 50, .k = 1100, .tokens = 289, .dtype = check_matmul_types[d], .accumulate = true};
		struct matmul_case own = {.n = 70, .k = 330, .tokens = 628, .dtype = check_matmul_types[d], .bias = true};
		/* Rows that are mostly what fills their group up. */
		struct matmul_case narrow = {.n = 40, .k = 5, .tokens = 100, .dtype = check_matmul_types[d]};
		/* One group, and sums that begin with another value in every row. */
		struct matmul_case begun = {.n = 70, .k = 30, .tokens = 75, .dtype = check_matmul_types[d], .bias = true, .accumulate = true};
		/* So many values are one block of k for some kernels, two for others. */
		struct matmul_case whole = {.n = 40, .k = d % 2 ? 610 : 850, .tokens = 70, .dtype = check_matmul_types[d], .accumulate = true};
		matmul_case(c, target, &whole);
		whole.k = d % 2 ? 850 : 610;
		matmul_case(c, target, &whole);
		matmul_case(c, target, &narrow);
		matmul_case(c, target, &begun);
		matmul_case(c, target, &wide);
		matmul_case(c, target, &uneven);
		matmul_case(c, target, &odd);
		matmul_case(c, target, &rest);
		matmul_case(c, target, &own);
		for (u32 t = 0; t < COUNT_OF(tokens); t++) {
			struct matmul_case m = {.n = 40, .k = t % 2 ? 256 : 200, .tokens = tokens[t], .dtype = check_matmul_types[d]};
			m.order = kern_dtype_group(m.dtype) > 0 && t % 3 == 0;
			matmul_not_finite_case(c, target, &m);
		}
	}
}

/* Inputs that the L2 cache does not hold: more panels than otherwise share them, and there are more than as many. */
static void far_cases(struct check *c, u32 target)
{
	static const enum kern_dtype types[] = {KERN_BF16, KERN_I8};
	for (u32 d = 0; d < COUNT_OF(types); d++) {
		struct matmul_case m = {.n = 520, .k = types[d] == KERN_BF16 ? 3100 : 6000, .tokens = 255, .dtype = types[d], .accumulate = true};
		matmul_case(c, target, &m);
	}
}

/* Few rows take several panels at a time: of three to nine, one not whole, and sums that are added to. */
static void panel_cases(struct check *c, u32 target)
{
	static const u32 columns[] = {90, 128, 129, 190, 224, 225, 257};
	for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++)
		for (u32 n = 0; n < COUNT_OF(columns); n++)
			for (u32 tokens = 1; tokens < 7; tokens++) {
				struct matmul_case m = {.n = columns[n], .k = n % 2 ? 201 : 70, .tokens = tokens, .dtype = check_matmul_types[d]};
				m.bias = (n + tokens) % 2;
				m.accumulate = (n + d) % 2;
				matmul_case(c, target, &m);
			}
}

/* 32 and 64 panels of 1,024 values, whose quarters would begin at the same places of the L1 cache: one is made longer. */
static void uneven_cases(struct check *c, u32 target)
{
	for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++)
		for (u32 tokens = 1; tokens < 4; tokens++) {
			struct matmul_case m = {.n = tokens == 2 ? 2048 : 993, .k = 1024, .tokens = tokens, .dtype = check_matmul_types[d]};
			m.bias = m.accumulate = tokens == 1;
			matmul_case(c, target, &m);
		}
}

/* Inputs so small or large that exponents of scales leave the range in which they can be added, in few rows and in many; 103
 * and -90 are about where powers of two end. With 118 a group's sum in 4 bits is just short of overflow, as eight times that is
 * not; in 8 bits it is beyond. */
static void exponent_cases(struct check *c, u32 target)
{
	static const int exponents[] = {-140, -110, -96, -90, -89, 90, 102, 103, 104, 110, 118, 118};
	for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++)
		for (u32 i = 0; i < COUNT_OF(exponents); i++)
			for (u32 t = 0; t < 3 && (exponents[i] < 118 || check_matmul_types[d] != KERN_I8); t++) {
				struct matmul_case m = {.n = 40, .tokens = 4 + 33 * t, .dtype = check_matmul_types[d]};
				m.exponent = exponents[i];
				m.k = i % 2 ? 255 : 322;
				matmul_case(c, target, &m);
			}
	/* Weights' scales about 2^-30 and 2^29, within which they are multiplied by eighths in advance, also with inputs as small as count; and
	 * beyond. The last: inputs that are too large for that. */
	static const int weights[][2] = {{0, -140}, {-92, -26}, {-92, -8}, {-92, -19}, {0, -60}, {40, 30}, {40, 31}, {40, 32}, {0, 100}, {114, -16}};
	for (u32 i = 0; i < COUNT_OF(weights); i++)
		for (u32 t = 0; t < 3; t++) {
			struct matmul_case m = {.n = 70, .k = i % 2 ? 255 : 400, .tokens = 4 + 33 * t, .dtype = KERN_I8};
			m.exponent = weights[i][0];
			m.k = m.exponent > 104 ? 384 : m.k; /* whole groups */
			m.weights_exponent = weights[i][1];
			matmul_case(c, target, &m);
		}
	/* Products that are too small for any float, of both signs, to which a negative zero is added. */
	for (u32 d = 0; d < CHECK_MATMUL_TYPES; d++)
		for (u32 t = 0; t < 4; t++) {
			struct matmul_case m = {.n = 64, .k = 100, .tokens = 5 + 12 * t, .dtype = check_matmul_types[d], .bias = true};
			m.exponent = -80;
			m.weights_exponent = -100;
			m.zero_bias = true;
			matmul_case(c, target, &m);
		}
}

void check_matmul(struct check *c)
{
	for (u32 i = 0; i < c->target_count; i++)
		if (CHECK_DISTINCT(c, i, matmul)) {
			matmul_cases(c, i);
			panel_cases(c, i);
			far_cases(c, i);
			uneven_cases(c, i);
			exponent_cases(c, i);
			full_cases(c, i);
		}
}
