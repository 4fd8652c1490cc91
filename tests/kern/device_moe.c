/* Checks of the device's mixture of experts against the reference. */
#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include "tests/kern/device.h"

/* What else `a` says of how experts are chosen; `bias`: with biases. */
static void route_case(struct device *d, struct kern_moe_route_args a, bool bias, bool ties)
{
	const u32 tokens = a.tokens, experts = a.experts, count = tokens * a.top;
	float *logits, *host = device_floats(d, (size_t)tokens * experts, false, &logits);
	float *biases, *host_biases = device_floats(d, experts, false, &biases);
	struct kern_moe_route_args r;
	if (ties) {
		for (u32 i = 0; i < tokens * experts; i++)
			host[i] = (float)(int)(host[i] * 3);
		logits = device_upload(d, host, (size_t)tokens * experts * sizeof(float));
	}
	r = a;
	r.logits = host;
	r.bias = bias ? host_biases : NULL;
	a.bias = bias ? biases : NULL;
	r.weights = check_alloc(&d->check, count * sizeof(float));
	r.assignments = check_alloc(&d->check, count * sizeof(u32));
	r.tokens_of = check_alloc(&d->check, count * sizeof(u32));
	r.expert_start = check_alloc(&d->check, (experts + 1) * sizeof(u32));
	a.logits = logits;
	a.weights = device_alloc(d, count * sizeof(float));
	a.assignments = device_alloc(d, count * sizeof(u32));
	a.tokens_of = device_alloc(d, count * sizeof(u32));
	a.expert_start = device_alloc(d, (experts + 1) * sizeof(u32));
	d->ctx.scratch = device_alloc(d, count * sizeof(u32));
	d->ctx.scratch_bytes = count * sizeof(u32);
	const char *problem = device_problem(d, d->ops.moe_route(&d->ctx, &a));
	(void)d->ref.moe_route(&d->ref_ctx, &r);
	const bool same = memcmp(device_download(d, a.assignments, count * sizeof(u32)), r.assignments,
				 count * sizeof(u32)) == 0 &&
			  memcmp(device_download(d, a.tokens_of, count * sizeof(u32)), r.tokens_of,
				 count * sizeof(u32)) == 0 &&
			  memcmp(device_download(d, a.expert_start, (experts + 1) * sizeof(u32)),
				 r.expert_start, (experts + 1) * sizeof(u32)) == 0;
	if (!problem && !same)
		problem = "another assignment";
	if (!problem)
		problem = device_close(device_download(d, a.weights, count * sizeof(float)), r.weights, count,
				       2e-6, 1e-9);
	d->ctx.scratch = NULL;
	d->ctx.scratch_bytes = 0;
	device_case_end(d, problem, "moe_route tokens=%u experts=%u top=%u normalize=%d ties=%d bias=%d sigmoid=%d groups=%u/%u best=%d by_logits=%d mixer=%g",
			tokens, experts, a.top, a.normalize, ties, bias, a.sigmoid, a.groups_top, a.groups, a.groups_best, a.by_logits, (double)a.mixer);
}

static void route_cases(struct device *d)
{
	const struct kern_moe_route_args usual[] = {
		{.tokens = 1, .experts = 8, .top = 2, .normalize = true},    {.tokens = 13, .experts = 60, .top = 4},
		{.tokens = 70, .experts = 8, .top = 8, .normalize = true},   {.tokens = 150, .experts = 128, .top = 8, .normalize = true},
		{.tokens = 3, .experts = 512, .top = 10},
	};
	const struct kern_moe_route_args rich[] = {
		{.tokens = 9, .experts = 128, .top = 8, .normalize = true, .sigmoid = true, .sum_plus = 1e-20f, .scale = 1.5f},
		{.tokens = 17, .experts = 512, .top = 32, .groups = 64, .groups_top = 40, .sigmoid = true, .scale = 2.5f},
		{.tokens = 5, .experts = 16, .top = 5, .normalize = true, .groups = 4, .groups_top = 2, .sum_plus = 0.3f},
		{.tokens = 11, .experts = 72, .top = 6, .groups = 36, .groups_top = 3, .sum_least = 0.9f, .normalize = true},
		{.tokens = 19, .experts = 64, .top = 5, .groups = 16, .groups_top = 3, .groups_best = true, .scale = 16},
		{.tokens = 8, .experts = 96, .top = 7, .sigmoid = true, .normalize = true, .by_logits = true, .sum_plus = 1e-20f},
		{.tokens = 4, .experts = 40, .top = 3, .groups = 5, .groups_top = 2, .groups_best = true, .by_logits = true, .sigmoid = true},
		{.tokens = 3, .experts = 33, .top = 33 - 1, .sigmoid = true, .normalize = true, .sum_least = 40},
	};
	const struct kern_moe_route_args mixed[] = {
		{.tokens = 20, .experts = 16, .top = 2, .mixer = 0.5f},
		{.tokens = 3, .experts = 2, .top = 2, .mixer = 0.02f},
		{.tokens = 7, .experts = 100, .top = 5, .mixer = 1},
	};
	for (u32 i = 0; i < COUNT_OF(usual); i++)
		route_case(d, usual[i], false, i == 1 || i == 2);
	for (u32 i = 0; i < COUNT_OF(rich) * 4; i++)
		route_case(d, rich[i / 4], i & 1, i & 2);
	for (u32 i = 0; i < COUNT_OF(mixed) * 2; i++)
		route_case(d, mixed[i / 2], false, i & 1);
}

/* Logits that are no numbers: the results are none either, but every place is somebody's, or the products would read from
 * anywhere. */
static void route_nan_case(struct device *d, u32 tokens, u32 experts, u32 top, bool rich)
{
	const u32 count = tokens * top;
	float *host = check_floats(&d->check, (size_t)tokens * experts, false);
	struct kern_moe_route_args a = {.tokens = tokens, .experts = experts, .top = top, .normalize = true, .sum_plus = rich ? 0.1f : 0,
					.groups = rich ? 2 : 0, .groups_top = rich ? 2 : 0};
	bool *taken = check_alloc(&d->check, count * sizeof(bool));
	for (u32 i = 0; i < tokens * experts; i++)
		if (i / experts % 3 < 2 && (i % 7 < 5 || i / experts % 3 == 0)) /* of some tokens all, some, none */
			host[i] = NAN;
	a.logits = device_upload(d, host, (size_t)tokens * experts * sizeof(float));
	a.weights = device_alloc(d, count * sizeof(float));
	a.assignments = device_alloc(d, count * sizeof(u32));
	a.tokens_of = device_alloc(d, count * sizeof(u32));
	a.expert_start = device_alloc(d, (experts + 1) * sizeof(u32));
	d->ctx.scratch = device_alloc(d, count * sizeof(u32));
	d->ctx.scratch_bytes = count * sizeof(u32);
	const char *problem = device_problem(d, d->ops.moe_route(&d->ctx, &a));
	memset(taken, 0, count * sizeof(bool));
	const u32 *places = problem ? NULL : device_download(d, a.assignments, count * sizeof(u32));
	for (u32 i = 0; i < count && !problem; i++) {
		if (places[i] >= count || taken[places[i]])
			problem = "a place that is none, or is taken";
		else
			taken[places[i]] = true;
	}
	d->ctx.scratch = NULL;
	d->ctx.scratch_bytes = 0;
	device_case_end(d, problem, "moe_route of NaN tokens=%u experts=%u top=%u rich=%d", tokens, experts, top, rich);
}

/* The first assignments of expert `e` by themselves: the bits they had in company. */
static const char *products_alone(struct device *d, const struct kern_moe_matmul_args *all, u32 e, u32 first, u32 count)
{
	const u32 start[2] = {0, count}, n = all->w->n;
	struct kern_moe_matmul_args a = *all;
	a.w += e;
	a.bias = a.bias ? a.bias + (size_t)e * n : NULL;
	a.experts = 1;
	a.assignments = a.tokens = count;
	if (a.source)
		a.source += first;
	else
		a.x_bf16 += (size_t)first * a.w->k;
	a.expert_start = device_upload(d, start, sizeof(start));
	a.out_bf16 = device_alloc(d, (size_t)count * n * sizeof(u16));
	const char *problem = device_problem(d, d->ops.moe_matmul(&d->ctx, &a));
	if (!problem && memcmp(device_download(d, a.out_bf16, (size_t)count * n * sizeof(u16)),
			       device_download(d, all->out_bf16 + (size_t)first * n, (size_t)count * n * sizeof(u16)),
			       (size_t)count * n * sizeof(u16)) != 0)
		problem = "other bits than in company";
	return problem;
}

enum { EXPERTS = 5, EXPERTS_MAX = 512 };

/* Of sums that are near 1,024 from the first value of k to the middle one (make_experts): every step on the way rounds by up to 2^-14, some
 * hundred of them. One that is rounded to bfloat16 on its way is off by 4. */
static const double LARGE_TERMS = 4e-3;

/* Of bf16, two columns cancel each other where the inputs are alike: in floats the order of sums shows. On the device experts
 * lie equally far apart. */
static const char *make_experts(struct device *d, enum kern_dtype type, struct kern_weight *weights,
				struct kern_weight *refs, u32 experts, u32 n, u32 k)
{
	struct check *c = &d->check;
	struct err_msg em = {""};
	const size_t between = (kern_weight_device_bytes(n, k, type) + 63) / 64 * 64 + 64, /* KERN_ALIGN */
		bytes = (kern_weight_bytes(n, k, type, 0) + 63) / 64 * 64, values_count = (size_t)n * k;
	u8 *device = check_alloc(c, experts * between), *packed = check_alloc(c, type == KERN_F8E4M3 ? 1 : experts * bytes);
	float *values = check_floats(c, type == KERN_F8E4M3 ? 1 : experts * values_count, false);
	const char *problem = NULL;
	for (u32 e = 0; e < experts; e++) {
		if (type == KERN_F8E4M3) {
			problem = device_weight_f8(d, n, k, &weights[e], &refs[e]) ? problem : "no weight";
			(void)cudaMemcpy(device + e * between, weights[e].data, kern_weight_device_bytes(n, k, type), cudaMemcpyDeviceToHost);
			continue;
		}
		for (u32 i = 0; i < n && type == KERN_BF16; i++) {
			values[e * values_count + i * k] = 1024;
			values[e * values_count + i * k + k / 2] = -1024;
		}
		if (kern_weight_pack(&refs[e], values + e * values_count, KERN_F32, k, n, k, type, packed + e * bytes, NULL, 0, &em) ||
		    kern_weight_to_device(&weights[e], &refs[e], device + e * between, NULL, &em))
			problem = "no weight";
	}
	u8 *there = device_upload(d, device, experts * between);
	for (u32 e = 0; e < experts; e++)
		weights[e].data = there + e * between;
	return problem;
}

/* Into bf16; into floats, which is exact but for the order of sums; added to what is there; and with an expert of all
 * tokens, by its gate and without one. */
enum { COMBINE_WAYS = 5 };
static const char *combine_right(struct device *d, struct kern_moe_combine_args *a, struct kern_moe_combine_args *want,
				 u32 way)
{
	const size_t count = (size_t)a->tokens * a->hidden;
	float *before, *host = device_floats(d, count, false, &before), *gate;
	u16 *shared;

	want->shared = way >= 3 ? device_bf16s(d, count, false, &shared) : NULL;
	want->shared_gate = way == 3 ? device_floats(d, a->tokens, true, &gate) : NULL;
	a->shared_bf16 = way >= 3 ? shared : NULL;
	a->shared_gate = way == 3 ? gate : NULL;

	a->dtype = KERN_BF16;
	a->out_dtype = way == 0 ? KERN_BF16 : KERN_F32;
	a->accumulate = way == 2;
	a->out = way == 0 ? device_alloc(d, count * sizeof(u16)) : before;
	want->out = check_alloc(&d->check, count * sizeof(float));
	const char *problem = device_problem(d, d->ops.moe_combine(&d->ctx, a));
	(void)d->ref.moe_combine(&d->ref_ctx, want);
	for (size_t i = 0; i < count && a->accumulate; i++)
		want->out[i] += host[i];
	const float *got = way == 0 ? device_download_bf16(d, a->out_bf16, count)
				    : device_download(d, a->out, count * sizeof(float));
	return problem ? problem : device_close(got, want->out, count, way == 0 ? 0x1.1p-8 : 1e-6, 1e-4);
}

/* Where the assignments of each expert begin: experts without any and one with most of them; one with all; about as
 * many for each, of no multiple of anything. */
enum spread { SPREAD_MOST, SPREAD_ONE, SPREAD_EVEN };
static void spread_out(enum spread spread, u32 count, u32 experts, u32 *start)
{
	const u32 end = spread == SPREAD_MOST ? count - 2 : count;
	for (u32 e = 0; e <= experts; e++)
		start[e] = spread == SPREAD_EVEN ? count * e / experts - (e > 0 && e < experts ? e % 3 : 0)
			   : e < 3		 ? spread == SPREAD_MOST && e == 2
						 : e < experts ? end : count;
}

/* Some of expert 2's assignments alone, but by the same kernel. */
static const char *products_in_company(struct device *d, const struct kern_moe_matmul_args *a, const u32 *start)
{
	const bool tiled = a->assignments >= KERN_EXPERT_TILED * a->experts;
	const u32 first = start[2], end = start[3];
	const char *problem = NULL;

	for (u32 i = first; i + 8 <= end && i < 50 && !tiled && !problem; i += 8)
		problem = products_alone(d, a, 2, i, 8);
	if (!problem && !tiled && end - first >= KERN_EXPERT_TILED)
		problem = products_alone(d, a, 2, first, KERN_EXPERT_TILED - 1);
	/* few of them, which is the small tile, and as many as take the large one */
	if (!problem && tiled && end - first >= 20)
		problem = products_alone(d, a, 2, end - 20, 20);
	if (!problem && tiled && end - first >= 60)
		problem = products_alone(d, a, 2, end - 60, 60);
	return problem;
}

/* Products and their sum, over an assignment made by hand. */
static void products_of(struct device *d, enum kern_dtype type, enum spread spread, u32 experts, u32 tokens, u32 n, u32 k)
{
	enum { TOP = 2 };
	struct check *c = &d->check;
	struct kern_weight weights[EXPERTS_MAX], refs[EXPERTS_MAX];
	const u32 count = tokens * TOP;
	u32 *source = check_alloc(c, count * sizeof(u32)),
	    start[EXPERTS_MAX + 1];
	u32 *numbers = check_alloc(c, count * sizeof(u32));
	u16 *x;
	const u32 rows = spread == SPREAD_EVEN ? count : tokens; /* of x: each assignment's own */
	float *combine, *x_host = device_bf16s(d, (size_t)rows * k, false, &x),
			*combine_host = device_floats(d, count, false, &combine);
	/* as of make_experts */
	for (u32 t = 0; t < rows && type == KERN_BF16; t++)
		x_host[t * k + k / 2] = x_host[t * k];
	x = device_upload_bf16(d, x_host, (size_t)rows * k);
	const char *problem = make_experts(d, type, weights, refs, experts, n, k);
	spread_out(spread, count, experts, start);
	for (u32 i = 0; i < count; i++) {
		source[i] = check_random(c, tokens);
		numbers[i] = (i * 3 + 1) % count; /* any distinct ones do */
	}
	struct kern_moe_matmul_args a = {
		.x_bf16 = x, .w = weights, .experts = experts, .assignments = count, .tokens = count};
	struct kern_moe_matmul_args r = {.x = x_host,
					 .w = refs,
					 .experts = experts,
					 .assignments = count,
					 .tokens = count,
					 .ops = &d->ref};
	if (n % 16 != 0) {
		float *bias;
		r.bias = device_floats(d, (size_t)experts * n, false, &bias);
		a.bias = bias;
	}
	a.dtype = KERN_BF16;
	a.source = rows == tokens ? device_upload(d, source, count * sizeof(u32)) : NULL;
	a.expert_start = device_upload(d, start, (experts + 1) * sizeof(u32));
	a.out_bf16 = device_alloc(d, (size_t)count * n * sizeof(u16));
	r.source = rows == tokens ? source : NULL;
	r.expert_start = start;
	r.out = check_alloc(c, (size_t)count * n * sizeof(float));
	const size_t scratch = ((size_t)count * k * sizeof(float) + 63) & ~(size_t)63;
	struct kern_ctx ref = {
		.threads = d->ref_ctx.threads, .scratch = check_alloc(c, scratch), .scratch_bytes = scratch};
	if (!problem)
		problem = device_problem(d, d->ops.moe_matmul(&d->ctx, &a));
	for (u32 e = 0; e < experts && count >= KERN_EXPERT_TILED * experts; e++)
		device_round_weight(d, &refs[e]);
	(void)d->ref.moe_matmul(&ref, &r);
	float *got = device_download_bf16(d, a.out_bf16, (size_t)count * n);
	if (!problem)
		problem = device_close(got, r.out, (size_t)count * n, 0x1.1p-8, type == KERN_BF16 ? LARGE_TERMS : 1e-3);
	if (!problem)
		problem = products_in_company(d, &a, start);
	struct kern_moe_combine_args sum = {.tokens = tokens, .top = TOP, .hidden = n, .weights = combine};
	sum.x_bf16 = a.out_bf16;
	sum.assignments = device_upload(d, numbers, count * sizeof(u32));
	struct kern_moe_combine_args want = sum;
	want.x = got;
	want.weights = combine_host;
	want.assignments = numbers;
	for (u32 way = 0; way < COMBINE_WAYS && !problem && n % 8 == 0; way++)
		problem = combine_right(d, &sum, &want, way);
	device_case_end(d, problem, "moe_matmul+moe_combine %s spread=%d experts=%u tokens=%u n=%u k=%u", kern_dtype_name(type),
			(int)spread, experts, tokens, n, k);
}

static void products_case(struct device *d, enum kern_dtype type, enum spread spread, u32 tokens, u32 n, u32 k)
{
	products_of(d, type, spread, EXPERTS, tokens, n, k);
}

void device_moe(struct device *d)
{
	route_cases(d);
	for (u32 rich = 0; rich < 2; rich++) {
		route_nan_case(d, 9, 8, 4, rich);
		route_nan_case(d, 3, 60, 20, rich);
	}
	products_case(d, KERN_BF16, SPREAD_MOST, 4, 40, 96);
	products_case(d, KERN_BF16, SPREAD_MOST, 23, 24, 288);
	products_case(d, KERN_I8, SPREAD_MOST, 3, 48, 160);
	products_case(d, KERN_I4_64, SPREAD_MOST, 13, 40, 192);
	products_case(d, KERN_I4_128, SPREAD_MOST, 4, 16, 352);
	/* as many experts as there may be */
	products_of(d, KERN_BF16, SPREAD_EVEN, 512, 1030, 16, 32);
	products_of(d, KERN_I8, SPREAD_MOST, 384, 200, 16, 32);
	products_of(d, KERN_BF16, SPREAD_EVEN, 512, 3100, 16, 32);
	products_of(d, KERN_I4_32, SPREAD_EVEN, 400, 2410, 24, 32);
	/* tiles: small ones, then large ones */
	products_case(d, KERN_BF16, SPREAD_MOST, 70, 40, 640);
	products_case(d, KERN_BF16, SPREAD_EVEN, 57, 136, 96);
	products_case(d, KERN_I8, SPREAD_MOST, 66, 24, 160);
	products_case(d, KERN_I4_32, SPREAD_MOST, 69, 16, 128);
	products_case(d, KERN_F8E4M3, SPREAD_EVEN, 44, 41, 192);
	products_case(d, KERN_I4_128, SPREAD_ONE, 31, 152, 288);
	products_case(d, KERN_BF16, SPREAD_MOST, 131, 264, 96);
	products_case(d, KERN_BF16, SPREAD_ONE, 560, 264, 32);
	products_case(d, KERN_BF16, SPREAD_EVEN, 125, 41, 416);
	products_case(d, KERN_BF16, SPREAD_MOST, 330, 280, 352);
	products_case(d, KERN_I8, SPREAD_EVEN, 125, 40, 416);
	products_case(d, KERN_F8E4M3, SPREAD_MOST, 120, 21, 288);
	products_case(d, KERN_I4_64, SPREAD_ONE, 122, 24, 352);
}
