/* Checks of the device's embedding, the norms and act_mul against the reference. */
#include <math.h>
#include <string.h>

#include "tests/kern/device.h"

/* Half a unit in the last place of bf16, and a little for the arithmetic before it. */
static const double BF16 = 0x1.04p-8;

/* `stream`: of floats, rows of the residual stream. */
static void embedding_case(struct device *d, u32 tokens, u32 hidden, float scale, bool stream, bool accumulate)
{
	enum { ROWS = 19, FIRST = 5 };
	u16 *halves;
	float *floats, *want,
		*host = stream ? device_floats(d, ROWS * hidden, false, &floats)
			       : device_bf16s(d, ROWS * hidden, false, &halves);
	u32 *ids = check_alloc(&d->check, (tokens + 1) * sizeof(u32));
	struct kern_embedding_args a = {.tokens = tokens,
					.hidden = hidden,
					.first = FIRST,
					.rows = ROWS,
					.scale = scale,
					.accumulate = accumulate};
	float *before, *host_before = device_floats(d, (size_t)tokens * hidden, false, &before);
	for (u32 t = 0; t < tokens; t++)
		ids[t] = check_random(&d->check, ROWS + 2 * FIRST);
	a.ids = device_upload(d, ids, tokens * sizeof(u32));
	a.table = stream ? (const void *)floats : halves;
	a.table_dtype = stream ? KERN_F32 : KERN_BF16;
	a.out = accumulate ? before : device_alloc(d, (size_t)tokens * hidden * sizeof(float));
	const char *problem = device_problem(d, d->ops.embedding(&d->ctx, &a));
	float *got = device_download(d, a.out, (size_t)tokens * hidden * sizeof(float));
	a.out = want = host_before;
	a.ids = ids;
	a.table = host;
	a.table_dtype = KERN_F32;
	(void)d->ref.embedding(&d->ref_ctx, &a);
	if (!problem)
		problem = device_close(got, want, (size_t)tokens * hidden, 0, 0);
	device_case_end(d, problem, "embedding tokens=%u hidden=%u stream=%d accumulate=%d", tokens, hidden, stream, accumulate);
}

/* Rows in 8 bits: right to half a step of the type. */
static const char *quantized_right(struct device *d, const struct kern_quantized *q, const float *want,
				   u32 tokens, u32 width)
{
	const u8 *data = device_download(d, q->data, (size_t)tokens * width);
	const float *scales = device_download(d, q->scales, tokens * sizeof(float));
	const bool f8 = q->dtype == KERN_F8E4M3;
	for (u32 t = 0; t < tokens; t++) {
		const float *row = want + (size_t)t * width;
		double largest = 0;
		for (u32 i = 0; i < width; i++)
			largest = fmax(largest, fabs((double)row[i]));
		if (!(fabs(scales[t] * (f8 ? 448.0 : 127.0) - largest) <= largest * 1e-5))
			return "a scale is not the row's largest value / that of the type";
		for (u32 i = 0; i < width; i++) {
			const size_t at = (size_t)t * width + i;
			double value = f8 ? device_e4m3(data[at]) : (double)(int8_t)data[at];
			double got = value * scales[t];
			double step =
				f8 ? fmax(fabs((double)row[i]) / 16, scales[t] * 0x1p-10) : scales[t] / 2;
			if (!(fabs(got - row[i]) <= step * 1.001 + 1e-6 * largest))
				return "a value is not the nearest of 8 bits";
		}
	}
	return NULL;
}

struct norm_case {
	u32 tokens, hidden;
	bool outliers, add, norm, stream; /* stream: x is float */
	enum kern_dtype quantized; /* KERN_F32: not */
};

static void norm_quantized(struct device *d, const struct norm_case *n, struct kern_quantized *q)
{
	q->dtype = n->quantized;
	q->data = device_alloc(d, (size_t)n->tokens * n->hidden);
	q->scales = device_alloc(d, n->tokens * sizeof(float));
}

/* x + add is what x becomes, rounded where x is bf16; the reference goes on from there. */
static const char *residual_right(struct device *d, const struct norm_case *n, const struct kern_rmsnorm_args *a,
				  float *want)
{
	const size_t count = (size_t)n->tokens * n->hidden;
	const float *got = n->stream ? device_download(d, a->x, count * sizeof(float))
				     : device_download_bf16(d, a->x_bf16, count);
	u16 *rounded = check_alloc(&d->check, count * sizeof(u16));

	kern_convert(rounded, KERN_BF16, want, KERN_F32, count);
	if (!n->stream)
		kern_convert(want, KERN_F32, rounded, KERN_BF16, count);
	return memcmp(got, want, count * sizeof(float)) != 0 ? "the residual is not x + add" : NULL;
}

static void rmsnorm_case(struct device *d, const struct norm_case *n)
{
	const size_t count = (size_t)n->tokens * n->hidden;
	u16 *x, *add = NULL;
	float *stream, *weight, *out = check_alloc(&d->check, count * sizeof(float));
	struct kern_quantized q;
	struct kern_rmsnorm_args a = {
		.eps = 1e-5f, .tokens = n->tokens, .hidden = n->hidden, .dtype = KERN_BF16};
	struct kern_rmsnorm_args r = a;
	r.x = n->stream ? device_floats(d, count, n->outliers, &stream) : device_bf16s(d, count, n->outliers, &x);
	r.add = n->add ? device_bf16s(d, count, n->outliers, &add) : NULL;
	r.weight = device_floats(d, n->hidden, n->outliers, &weight);
	r.dtype = KERN_F32;
	a.x_dtype = n->stream ? KERN_F32 : KERN_BF16;
	if (n->stream)
		a.x = stream;
	else
		a.x_bf16 = x;
	a.add_bf16 = add;
	a.weight = weight;
	a.out_bf16 = n->norm ? device_alloc(d, count * sizeof(u16)) : NULL;
	if (n->quantized != KERN_F32) {
		norm_quantized(d, n, &q);
		a.quantized = &q;
	}
	const char *problem = device_problem(d, d->ops.rmsnorm(&d->ctx, &a));
	(void)d->ref.rmsnorm(&d->ref_ctx, &r); /* the addition */
	const char *residual = residual_right(d, n, &a, r.x);
	problem = problem ? problem : residual;
	r.add = NULL;
	r.out = out;
	(void)d->ref.rmsnorm(&d->ref_ctx, &r);
	if (!problem && n->norm)
		problem = device_close(device_download_bf16(d, a.out_bf16, count), out, count, BF16, 1e-30);
	if (!problem && a.quantized)
		problem = quantized_right(d, &q, out, n->tokens, n->hidden);
	device_case_end(d, problem, "rmsnorm tokens=%u hidden=%u outliers=%d add=%d norm=%d stream=%d quantized=%s",
			n->tokens, n->hidden, n->outliers, n->add, n->norm, n->stream,
			kern_dtype_name(n->quantized));
}

struct layer_case {
	u32 tokens, hidden;
	bool outliers, add, bias, norm;
};

static void layernorm_case(struct device *d, const struct layer_case *n)
{
	const size_t count = (size_t)n->tokens * n->hidden;
	float *stream, *weight, *bias = NULL, *out = check_alloc(&d->check, count * sizeof(float));
	float *before = check_floats(&d->check, count, n->outliers);
	u16 *add = NULL;
	struct kern_layernorm_args a = {
		.eps = 1e-5f, .tokens = n->tokens, .hidden = n->hidden, .dtype = KERN_BF16};
	struct kern_layernorm_args r = a;
	double largest = 0;
	for (size_t i = 0; i < count; i++)
		before[i] += 3; /* a mean far from 0 */
	stream = device_upload(d, before, count * sizeof(float));
	r.x = before;
	r.add = n->add ? device_bf16s(d, count, n->outliers, &add) : NULL;
	r.weight = device_floats(d, n->hidden, false, &weight);
	r.bias = n->bias ? device_floats(d, n->hidden, false, &bias) : NULL;
	r.out = n->norm ? out : NULL;
	r.dtype = KERN_F32;
	a.x = stream;
	a.add_bf16 = add;
	a.weight = weight;
	a.bias = bias;
	a.out_bf16 = n->norm ? device_alloc(d, count * sizeof(u16)) : NULL;
	const char *problem = device_problem(d, d->ops.layernorm(&d->ctx, &a));
	(void)d->ref.layernorm(&d->ref_ctx, &r);
	if (!problem && memcmp(device_download(d, a.x, count * sizeof(float)), r.x, count * sizeof(float)) != 0)
		problem = "the residual is not x + add";
	/* the mean is rounded as the largest value is, and where it is taken away nothing else may be left */
	for (u32 i = 0; i < n->hidden; i++)
		largest = fmax(largest, fabs((double)r.weight[i]));
	if (!problem && n->norm)
		problem = device_close(device_download_bf16(d, a.out_bf16, count), out, count, BF16,
				       4e-7 * largest * sqrt((double)n->hidden));
	device_case_end(d, problem, "layernorm tokens=%u hidden=%u outliers=%d add=%d bias=%d norm=%d", n->tokens,
			n->hidden, n->outliers, n->add, n->bias, n->norm);
}

static void layernorm_cases(struct device *d)
{
	static const struct layer_case sizes[] = {
		{0, 64, false, true, true, true},    {5, 2048, false, true, false, true},
		{2, 4104, true, true, true, true},   {2, 6144, false, false, true, true},
		{1, 16384, true, true, false, true}, {1, 16384, false, true, true, false},
	};
	static const u32 widths[] = {8, 64, 200, 264, 1024, 2056};
	for (u32 w = 0; w < COUNT_OF(widths); w++)
		for (u32 bits = 0; bits < 8; bits++)
			layernorm_case(d, &(struct layer_case){1 + (w + bits) % 3, widths[w], bits & 1, bits & 2,
							       bits & 4, bits != 2});
	for (u32 i = 0; i < COUNT_OF(sizes); i++)
		layernorm_case(d, &sizes[i]);
}

/* The stream without a norm: rounded, after the addition. */
static void unnormed_case(struct device *d, u32 tokens, u32 hidden, bool add)
{
	const size_t count = (size_t)tokens * hidden;
	u16 *added = NULL;
	float *stream, *x = device_floats(d, count, true, &stream);
	const float *more = add ? device_bf16s(d, count, true, &added) : NULL;
	struct kern_rmsnorm_args a = {.x = stream,
				      .add_bf16 = added,
				      .eps = 1e-5f,
				      .tokens = tokens,
				      .hidden = hidden,
				      .dtype = KERN_BF16,
				      .x_dtype = KERN_F32};
	a.out_bf16 = device_alloc(d, count * sizeof(u16));
	const char *problem = device_problem(d, d->ops.rmsnorm(&d->ctx, &a));
	for (size_t i = 0; i < count; i++)
		x[i] += more ? more[i] : 0;
	if (!problem && memcmp(device_download(d, a.x, count * sizeof(float)), x, count * sizeof(float)) != 0)
		problem = "the residual is not x + add";
	if (!problem)
		problem = device_close(device_download_bf16(d, a.out_bf16, count), x, count, BF16, 0);
	device_case_end(d, problem, "rmsnorm without a norm tokens=%u hidden=%u add=%d", tokens, hidden, add);
}

struct qk_case {
	u32 tokens, q_width, k_width, rest;
	bool counts_k, outliers;
};

/* The rank has a third of q and half of k. */
static void qk_case(struct device *d, const struct qk_case *c)
{
	const u32 stride = c->q_width + c->k_width + c->rest;
	const size_t count = (size_t)c->tokens * stride, pairs = 2 * (size_t)c->tokens;
	float *in, *all, *q_weight, *k_weight, *squares = check_alloc(&d->check, pairs * sizeof(float));
	float *host = device_floats(d, count, c->outliers, &in), *sums = check_floats(&d->check, pairs, false);
	struct kern_qk_squares_args s = {.qkv = in,
					 .tokens = c->tokens,
					 .stride = stride,
					 .q_width = c->q_width,
					 .k_width = c->k_width,
					 .counts_k = c->counts_k}, rs = s;
	struct kern_qk_norm_args n = {.qkv = in,
				      .eps = 1e-5f,
				      .tokens = c->tokens,
				      .stride = stride,
				      .q_width = c->q_width,
				      .k_width = c->k_width,
				      .q_total = 3 * c->q_width,
				      .k_total = 2 * c->k_width}, rn = n;
	for (size_t i = 0; i < pairs; i++)
		sums[i] = fabsf(sums[i]) * (float)c->q_width + 0.5f;
	all = device_upload(d, sums, pairs * sizeof(float));
	s.squares = device_alloc(d, pairs * sizeof(float));
	rs.qkv = host;
	rs.squares = squares;
	rn.qkv = host;
	rn.squares = sums;
	rn.q_weight = device_floats(d, c->q_width, false, &q_weight);
	rn.k_weight = device_floats(d, c->k_width, false, &k_weight);
	n.squares = all;
	n.q_weight = q_weight;
	n.k_weight = k_weight;
	const char *problem = device_problem(d, d->ops.qk_squares(&d->ctx, &s));
	(void)d->ref.qk_squares(&d->ref_ctx, &rs);
	if (!problem)
		problem = device_close(device_download(d, s.squares, pairs * sizeof(float)), squares, pairs, 2e-6, 0);
	if (!problem)
		problem = device_problem(d, d->ops.qk_norm(&d->ctx, &n));
	(void)d->ref.qk_norm(&d->ref_ctx, &rn);
	const float *got = device_download(d, in, count * sizeof(float));
	if (!problem)
		problem = device_close(got, host, count, 1e-6, 0);
	for (u32 t = 0; t < c->tokens && !problem; t++)
		if (memcmp(got + (size_t)(t + 1) * stride - c->rest, host + (size_t)(t + 1) * stride - c->rest,
			   c->rest * sizeof(float)) != 0)
			problem = "what lies behind k has changed";
	device_case_end(d, problem, "qk_squares+qk_norm tokens=%u q=%u k=%u behind=%u counts_k=%d outliers=%d", c->tokens,
			c->q_width, c->k_width, c->rest, c->counts_k, c->outliers);
}

static void stream_cases(struct device *d)
{
	static const struct qk_case cases[] = {
		{1, 64, 32, 32, true, false},	   {3, 16, 16, 16, false, true}, {2, 1028, 260, 260, true, true},
		{5, 96, 24, 24, true, true},	   {0, 64, 64, 64, true, false}, {2, 4096, 1024, 1024, true, false},
		{17, 2048, 2052, 4, false, false}, {1, 4, 8, 4, true, false},
	};
	static const u32 widths[] = {8, 200, 2056, 4104};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		qk_case(d, &cases[i]);
	for (u32 i = 0; i < COUNT_OF(widths); i++)
		unnormed_case(d, 1 + i % 3, widths[i], i % 2);
}

/* NULL, or how the device's output, and its rounded one, are off from the reference's of the same numbers. */
static const char *act_mul_close(struct device *d, const struct kern_act_mul_args *a, const struct kern_act_mul_args *ref)
{
	const size_t count = (size_t)a->tokens * a->size;
	const char *problem = device_problem(d, d->ops.act_mul(&d->ctx, a));
	(void)d->ref.act_mul(&d->ref_ctx, ref);
	/* 1 + tanh cancels where the gate is far below zero */
	if (!problem)
		problem = device_close(device_download_bf16(d, a->out_bf16, count), ref->out, count, BF16, 3e-5);
	return problem || !a->quantized ? problem : quantized_right(d, a->quantized, ref->out, a->tokens, a->size);
}

static void act_mul_case(struct device *d, enum kern_activation act, u32 tokens, u32 size,
			 enum kern_dtype quantized, bool ungated)
{
	const struct norm_case n = {.tokens = tokens, .hidden = size, .quantized = quantized};
	const size_t count = (size_t)tokens * size;
	struct kern_quantized q;
	struct kern_act_mul_args a = {.tokens = tokens, .size = size, .act = act, .ungated = ungated, .dtype = KERN_BF16},
				 r = a;
	u16 *in;
	r.gate_up = device_bf16s(d, (ungated ? 1 : 2) * count, true, &in);
	r.out = check_alloc(&d->check, count * sizeof(float));
	r.dtype = KERN_F32;
	a.gate_up_bf16 = in;
	a.out_bf16 = device_alloc(d, count * sizeof(u16));
	if (quantized != KERN_F32) {
		norm_quantized(d, &n, &q);
		a.quantized = &q;
	}
	const char *problem = act_mul_close(d, &a, &r);
	device_case_end(d, problem, "act_mul act=%d tokens=%u size=%u quantized=%s ungated=%d", act, tokens, size,
			kern_dtype_name(quantized), ungated);
}

/* Of neighbours, clamped. */
static void act_mul_clamped_case(struct device *d, u32 tokens, u32 size, float limit, float alpha)
{
	const size_t count = (size_t)tokens * size;
	struct kern_act_mul_args a = {.tokens = tokens, .size = size, .limit = limit, .alpha = alpha, .dtype = KERN_BF16}, r = a;
	u16 *in;
	float *host = device_bf16s(d, 2 * count, true, &in);
	for (u32 i = 0; i < 2 * count; i++)
		host[i] *= 4;
	in = device_upload_bf16(d, host, 2 * count);
	r.gate_up = host;
	r.out = check_alloc(&d->check, count * sizeof(float));
	r.dtype = KERN_F32;
	a.gate_up_bf16 = in;
	a.out_bf16 = device_alloc(d, count * sizeof(u16));
	const char *problem = act_mul_close(d, &a, &r);
	device_case_end(d, problem, "act_mul clamped tokens=%u size=%u limit=%g alpha=%g", tokens, size, (double)limit, (double)alpha);
}

static void act_mul_xielu_case(struct device *d, u32 tokens, u32 size, enum kern_dtype quantized, float eps)
{
	const struct norm_case n = {.tokens = tokens, .hidden = size, .quantized = quantized};
	const size_t count = (size_t)tokens * size;
	const float numbers[KERN_XIELU_COUNT] = {0.8f, 0.9f, 0.5f, eps};
	struct kern_act_mul_args a = {.tokens = tokens, .size = size, .ungated = true, .act = KERN_RELU, .dtype = KERN_BF16}, r = a;
	struct kern_quantized q;
	u16 *in;
	r.gate_up = device_bf16s(d, count, true, &in);
	r.out = check_alloc(&d->check, count * sizeof(float));
	r.dtype = KERN_F32;
	r.xielu = numbers;
	a.gate_up_bf16 = in;
	a.out_bf16 = device_alloc(d, count * sizeof(u16));
	a.xielu = device_upload(d, numbers, sizeof(numbers));
	if (quantized != KERN_F32) {
		norm_quantized(d, &n, &q);
		a.quantized = &q;
	}
	const char *problem = act_mul_close(d, &a, &r);
	device_case_end(d, problem, "act_mul xielu tokens=%u size=%u quantized=%s", tokens, size, kern_dtype_name(quantized));
}

void device_linear(struct device *d)
{
	static const u32 widths[] = {8, 64, 200, 1024, 2056};
	static const enum kern_dtype quantized[] = {KERN_F32, KERN_I8, KERN_F8E4M3};
	static const enum kern_activation acts[] = {KERN_GELU_TANH, KERN_SILU, KERN_GELU, KERN_RELU,
						     KERN_RELU_SQUARED};
	for (u32 w = 0; w < COUNT_OF(widths); w++) {
		embedding_case(d, 1 + w * 3, widths[w], w % 2 ? 11.3f : 0, w == 3, w == 2);
		for (u32 bits = 0; bits < 8; bits++)
			rmsnorm_case(d, &(struct norm_case){1 + w % 3, widths[w], bits & 1, bits & 2, bits & 4,
							    (bits + w) % 3 != 0,
							    quantized[bits & 4 ? (bits / 2 + w) % 3 : 0]});
		for (u32 i = 0; i < COUNT_OF(acts); i++) {
			act_mul_case(d, acts[i], 3 - w % 3, widths[w], quantized[(w + i) % 3], false);
			act_mul_case(d, acts[i], 1 + w % 3, widths[w], quantized[(w + i + 1) % 3], true);
		}
	}
	act_mul_clamped_case(d, 3, 8, 7, 1.702f);
	act_mul_clamped_case(d, 2, 1440, 0.5f, 1.2f);
	for (u32 w = 0; w < COUNT_OF(widths); w++)
		act_mul_xielu_case(d, 1 + w % 3, widths[w], quantized[w % 3], w % 2 ? -1e-6f : -0.5f);
	layernorm_cases(d);
	stream_cases(d);
	embedding_case(d, 0, 64, 0, false, false);
	embedding_case(d, 9, 40, 0, true, true);
	rmsnorm_case(d, &(struct norm_case){0, 64, false, true, true, true, KERN_F32});
	rmsnorm_case(d, &(struct norm_case){2, 4104, true, true, true, true, KERN_I8});
	rmsnorm_case(d, &(struct norm_case){2, 4104, true, true, true, false, KERN_F32});
	rmsnorm_case(d, &(struct norm_case){1, 16384, true, true, false, false, KERN_F8E4M3});
	rmsnorm_case(d, &(struct norm_case){1, 16384, true, true, true, true, KERN_F32});
}
