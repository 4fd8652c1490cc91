/* Checks of the device's matrix product, with what may be fused to it, against the reference ops in a row. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kern_priv.h"
#include "tests/kern/device.h"

struct matmul_case {
	u32 n, k, tokens;
	enum kern_dtype weight;
	bool bias, accumulate, f32, outliers, norm, act_mul, order;
	bool widened; /* so many tokens that the weight is widened: the reference's is rounded, too */
	enum kern_activation act; /* of act_mul */
};

/* A weight with its device form, and the floats that it stands for. */
struct weights {
	struct kern_weight device, ref;
};

static void upload_weight(struct device *d, struct weights *w)
{
	w->device.data = device_upload(d, w->device.data,
				       kern_weight_device_bytes(w->ref.n, w->ref.k, w->device.dtype));
	if (w->device.order)
		w->device.order = device_upload(d, w->device.order, w->ref.k * sizeof(u32));
}

/* Through the CPU's packing, whose reference reads it as it is. */
static const char *make_weight(struct device *d, const struct matmul_case *m, struct weights *w)
{
	struct check *c = &d->check;
	struct err_msg em = {""};
	float *values = check_floats(c, (size_t)m->n * m->k, m->outliers);
	void *memory = check_alloc(c, kern_weight_bytes(m->n, m->k, m->weight, 0)),
	     *device = check_alloc(c, kern_weight_device_bytes(m->n, m->k, m->weight));
	if (kern_weight_pack(&w->ref, values, KERN_F32, m->k, m->n, m->k, m->weight, memory, NULL, 0, &em) ||
	    kern_weight_to_device(&w->device, &w->ref, device, NULL, &em))
		return "no weight";
	if (m->order) {
		u32 *order = check_alloc(c, m->k * sizeof(u32));
		for (u32 i = 0; i < m->k; i++) {
			const u32 j = check_random(c, i + 1);
			order[i] = order[j];
			order[j] = i;
		}
		w->ref.order = w->device.order = order;
	}
	upload_weight(d, w);
	return NULL;
}

/* The norm's outputs as the product of few tokens takes them: bf16 times the norm's weight, in bf16, and times the
 * scale of its token, which the sums are multiplied with. What the rounding costs is no error of the product. */
static void normed_inputs(const struct matmul_case *m, float *x, u32 x_stride, const float *norm, float eps)
{
	for (u32 t = 0; t < m->tokens; t++) {
		float *row = x + (size_t)t * x_stride;
		double squares = 0;
		for (u32 i = 0; i < m->k; i++)
			squares += (double)row[i] * row[i];
		const double scale = 1 / sqrt(squares / m->k + eps);
		for (u32 i = 0; i < m->k; i++)
			row[i] = (float)(kern_bf16_to_float(kern_float_to_bf16(row[i] * norm[i])) * scale);
	}
}

/* What the reference makes of the same inputs. `product` [tokens][n] has what is accumulated to, and is `out`
 * [tokens][width] unless an activation follows. */
static void matmul_want(struct device *d, const struct matmul_case *m, const struct weights *w,
			const float *x, u32 x_stride, const float *bias, float *product, float *out)
{
	const struct kern_matmul_args a = {.out = product,
					   .x = x,
					   .w = &w->ref,
					   .bias = bias,
					   .tokens = m->tokens,
					   .x_stride = x_stride,
					   .out_stride = m->n,
					   .accumulate = m->accumulate};
	(void)d->ref.matmul(&d->ref_ctx, &a);
	const struct kern_act_mul_args act = {
		.out = out, .gate_up = product, .tokens = m->tokens, .size = m->n / 2, .act = m->act};
	if (m->act_mul)
		(void)d->ref.act_mul(&d->ref_ctx, &act);
}

/* |got - want| <= error * |want| + floor, where an error of `floor` in gate and up goes through the activation. */
static const char *act_mul_close(struct device *d, const struct matmul_case *m, const float *got, const float *want,
				 float *product, double error, double floor)
{
	const u32 width = m->n / 2;
	const size_t count = (size_t)m->tokens * width;
	float *off = check_alloc(&d->check, count * sizeof(float)), *moved = check_alloc(&d->check, count * sizeof(float));
	const struct kern_act_mul_args act = {
		.out = moved, .gate_up = product, .tokens = m->tokens, .size = width, .act = m->act};
	memset(off, 0, count * sizeof(float));
	for (u32 way = 0; way < 4; way++) {
		const float by[2] = {(float)(way % 2 ? floor : -floor), (float)(way / 2 ? floor : -floor)};
		float *kept = check_alloc(&d->check, (size_t)m->tokens * m->n * sizeof(float));
		memcpy(kept, product, (size_t)m->tokens * m->n * sizeof(float));
		for (u32 i = 0; i < m->tokens * m->n; i++)
			product[i] += by[i % m->n / width];
		(void)d->ref.act_mul(&d->ref_ctx, &act);
		for (size_t i = 0; i < count; i++)
			off[i] = fmaxf(off[i], fabsf(moved[i] - want[i]));
		memcpy(product, kept, (size_t)m->tokens * m->n * sizeof(float));
	}
	const char *problem = NULL;
	for (size_t i = 0; i < count && !problem; i++)
		problem = device_close(&got[i], &want[i], 1, error, off[i] + floor);
	return problem;
}

static void matmul_case(struct device *d, const struct matmul_case *m)
{
	struct check *c = &d->check;
	const u32 width = m->act_mul ? m->n / 2 : m->n, x_stride = m->k + 8 * check_random(c, 2);
	const size_t count = (size_t)m->tokens * width;
	struct weights w;
	struct kern_matmul_fusion fusion = {.norm_eps = 1e-5f, .act_mul = m->act_mul, .act = m->act};
	u16 *x = NULL;
	float *stream = NULL, *bias = NULL, *norm = NULL;
	const char *problem = m->weight != KERN_F8E4M3		  ? make_weight(d, m, &w)
			      : device_weight_f8(d, m->n, m->k, &w.device, &w.ref) ? NULL
										   : "no weight";
	const size_t x_count = (size_t)m->tokens * x_stride;
	float *x_host = m->norm ? device_floats(d, x_count, m->outliers, &stream)
				: device_bf16s(d, x_count, m->outliers, &x);
	float *bias_host = m->bias ? device_floats(d, m->n, false, &bias) : NULL;
	float *norm_host = m->norm ? device_floats(d, m->k, false, &norm) : NULL;
	u16 *before;
	float *want = device_bf16s(d, count, false, &before), *got;
	struct kern_matmul_args a = {.x_bf16 = x,
				     .w = &w.device,
				     .bias = bias,
				     .tokens = m->tokens,
				     .x_stride = x_stride,
				     .out_stride = width,
				     .accumulate = m->accumulate,
				     .dtype = m->norm ? KERN_F32 : KERN_BF16,
				     .out_dtype = m->f32 ? KERN_F32 : KERN_BF16};
	if (m->norm)
		a.x = stream;
	fusion.norm_weight = norm;
	a.fusion = m->norm || m->act_mul ? &fusion : NULL;
	a.out_bf16 = before;
	if (m->f32)
		a.out = device_upload(d, want, count * sizeof(float));
	if (!problem) {
		device_arrives_late(d, (void *)a.x, x_count * (m->norm ? sizeof(float) : sizeof(u16)));
		problem = device_problem(d, d->ops.matmul(&d->ctx, &a));
	}
	got = m->f32 ? device_download(d, a.out, count * sizeof(float))
		     : device_download_bf16(d, a.out_bf16, count);
	float *product = m->act_mul ? check_alloc(c, (size_t)m->tokens * m->n * sizeof(float)) : want;
	if (m->norm)
		normed_inputs(m, x_host, x_stride, norm_host, fusion.norm_eps);
	if (m->widened)
		device_round_weight(d, &w.ref);
	matmul_want(d, m, &w, x_host, x_stride, bias_host, product, want);
	/* Sums of k products of values up to 1 in floats; with 4 bits the products are 128 times as large at first.
	 * Beyond 16 tokens the bias is rounded to bf16, and, on an H100, a product before it is added to bf16. */
	const bool rounded = m->bias || (m->accumulate && !m->f32 && m->weight == KERN_BF16);
	const double rounding = m->tokens > 16 && rounded	   ? 0x1p-9
				: kern_dtype_bytes(m->weight) == 0 ? 0x1p-16
								   : 0x1p-20;
	const double error = m->f32 ? 1e-5 : 0x1.1p-8, floor = sqrt(m->k) * rounding * (m->outliers ? 300 : 1.5);
	if (!problem)
		problem = m->act_mul ? act_mul_close(d, m, got, want, product, error, floor)
				     : device_close(got, want, count, error, floor);
	device_case_end(
		d, problem,
		"matmul %s n=%u k=%u tokens=%u bias=%d accumulate=%d f32=%d outliers=%d norm=%d act_mul=%d "
		"order=%d",
		kern_dtype_name(m->weight), m->n, m->k, m->tokens, m->bias, m->accumulate, m->f32,
		m->outliers, m->norm, m->act_mul, m->order);
}

/* ---------------------------------------------------------------- with rotation and the write into the cache
 */

/* Keys and values of the step as the reference has them in its own layout. */
static const char *rope_cache_right(struct device *d, const struct kern_kv *kv,
				    const struct kern_rope_kv_args *ref, size_t count)
{
	const float *k = device_download_bf16(d, kv->k, count), *v = device_download_bf16(d, kv->v, count);
	const float *ref_k = ref->kv.k, *ref_v = ref->kv.v;
	const char *problem = NULL;
	for (u32 t = 0; t < ref->tokens; t++)
		for (u32 h = 0; h < kv->kv_heads && ref->slots[t] >= 0; h++)
			for (u32 i = 0; i < kv->head_dim && !problem; i++) {
				const size_t block = (u64)ref->slots[t] / kv->block_size * kv->kv_heads + h,
					     offset = (u64)ref->slots[t] % kv->block_size;
				const size_t at = (block * kv->block_size + offset) * kv->head_dim + i,
					     ref_at = (block * kv->head_dim + i) * kv->block_size + offset;
				problem = device_close(k + at, ref_k + ref_at, 1, 0x1.1p-8, 1e-4);
				if (!problem)
					problem = device_close(v + at, ref_v + at, 1, 0x1.1p-8, 1e-4);
			}
	return problem;
}

static void matmul_rope_case(struct device *d, u32 tokens, u32 heads, u32 kv_heads, u32 head_dim,
			     u32 rope_dim)
{
	enum { POSITIONS = 20, BLOCKS = 4, BLOCK_SIZE = 16 };
	struct check *c = &d->check;
	const u32 n = (heads + 2 * kv_heads) * head_dim;
	const struct matmul_case m = {.n = n, .k = 96, .tokens = tokens, .weight = KERN_BF16};
	const size_t q_count = (size_t)tokens * heads * head_dim,
		     kv_count = (size_t)BLOCKS * BLOCK_SIZE * kv_heads * head_dim;
	struct weights w;
	u16 *x;
	float *cosine, *sine, *bias;
	u32 *positions = check_alloc(c, tokens * sizeof(u32));
	i64 *slots = check_alloc(c, tokens * sizeof(i64));
	const char *problem = make_weight(d, &m, &w);
	const float *x_host = device_bf16s(d, (size_t)tokens * m.k, false, &x),
		    *cos_host = device_floats(d, (size_t)POSITIONS * rope_dim / 2, false, &cosine),
		    *sin_host = device_floats(d, (size_t)POSITIONS * rope_dim / 2, false, &sine),
		    *bias_host = device_floats(d, n, false, &bias);
	for (u32 t = 0; t < tokens; t++) {
		positions[t] = check_random(c, POSITIONS);
		slots[t] = t % 4 == 2 ? -1 : (i64)(t * 5 % (BLOCKS * BLOCK_SIZE - 1));
	}
	struct kern_rope_kv_args r = {
		.tokens = tokens, .heads = heads, .rope_dim = rope_dim, .dtype = KERN_BF16, .bias = bias, .qkv_stride = n + 2};
	r.kv = (struct kern_kv){
		.dtype = KERN_BF16, .block_size = BLOCK_SIZE, .kv_heads = kv_heads, .head_dim = head_dim};
	r.kv.k = device_alloc(d, kv_count * sizeof(u16));
	r.kv.v = device_alloc(d, kv_count * sizeof(u16));
	r.q_bf16 = device_alloc(d, q_count * sizeof(u16));
	r.cos = cosine;
	r.sin = sine;
	r.positions = device_upload(d, positions, tokens * sizeof(u32));
	r.slots = device_upload(d, slots, tokens * sizeof(i64));
	const struct kern_matmul_fusion fusion = {.rope = &r};
	const struct kern_matmul_args a = {.x_bf16 = x,
					   .w = &w.device,
					   .tokens = tokens,
					   .x_stride = m.k,
					   .dtype = KERN_BF16,
					   .out_dtype = KERN_BF16,
					   .fusion = &fusion};
	if (!problem && d->ops.matmul(&d->ctx, &a) != ERR_UNSUPPORTED)
		problem = "other values between heads of tokens are not refused";
	r.qkv_stride = n;
	if (!problem) {
		device_arrives_late(d, x, (size_t)tokens * m.k * sizeof(u16));
		problem = device_problem(d, d->ops.matmul(&d->ctx, &a));
	}
	float *product = check_alloc(c, (size_t)tokens * n * sizeof(float));
	matmul_want(d, &m, &w, x_host, m.k, NULL, product, product);
	struct kern_rope_kv_args ref = r;
	ref.dtype = KERN_F32;
	ref.qkv = product;
	ref.q = check_alloc(c, q_count * sizeof(float));
	ref.kv.dtype = KERN_F32;
	ref.kv.k = check_alloc(c, kv_count * sizeof(float));
	ref.kv.v = check_alloc(c, kv_count * sizeof(float));
	ref.bias = bias_host;
	ref.cos = cos_host;
	ref.sin = sin_host;
	ref.positions = positions;
	ref.slots = slots;
	(void)d->ref.rope_kv(&d->ref_ctx, &ref);
	if (!problem)
		problem = device_close(device_download_bf16(d, r.q_bf16, q_count), ref.q, q_count, 0x1.1p-8,
				       1e-4);
	if (!problem)
		problem = rope_cache_right(d, &r.kv, &ref, kv_count);
	device_case_end(d, problem, "matmul with rope tokens=%u heads=%u/%u head_dim=%u rope_dim=%u", tokens,
			heads, kv_heads, head_dim, rope_dim);
}

/* Where whole heads are needed: the bits of the product and rope_kv one after the other, in q and in all of the cache. */
struct heads_case {
	u32 tokens, k, heads, kv_heads, head_dim, rope_dim;
	enum kern_dtype weight, kv;
	bool head_norms, norm, interleaved, behind, scaled;
	float clip;
};

static void matmul_heads_case(struct device *d, const struct heads_case *h)
{
	enum { POSITIONS = 20, BLOCKS = 3, BLOCK_SIZE = 16 };
	struct check *c = &d->check;
	const u32 all = h->heads + 2 * h->kv_heads, n = all * h->head_dim;
	const struct matmul_case m = {.n = n, .k = h->k, .tokens = h->tokens, .weight = h->weight};
	const size_t q_bytes = (size_t)h->tokens * h->heads * h->head_dim * sizeof(u16),
		     cache_bytes = (size_t)BLOCKS * BLOCK_SIZE * h->kv_heads * (2 * h->head_dim + sizeof(float));
	struct weights w;
	const size_t x_count = (size_t)h->tokens * h->k;
	u16 *x;
	float *stream, *cosine, *sine, *scales, *bias, *q_norm, *k_norm, *norm;
	u32 *positions = check_alloc(c, h->tokens * sizeof(u32));
	i64 *slots = check_alloc(c, h->tokens * sizeof(i64));
	const char *problem = make_weight(d, &m, &w);
	(void)device_bf16s(d, x_count, false, &x);
	(void)device_floats(d, x_count, false, &stream);
	(void)device_floats(d, (size_t)POSITIONS * h->rope_dim / 2, false, &cosine);
	(void)device_floats(d, (size_t)POSITIONS * h->rope_dim / 2, false, &sine);
	(void)device_floats(d, POSITIONS, false, &scales);
	(void)device_floats(d, n, false, &bias);
	(void)device_floats(d, h->head_dim, false, &q_norm);
	(void)device_floats(d, h->head_dim, false, &k_norm);
	(void)device_floats(d, h->k, false, &norm);
	for (u32 t = 0; t < h->tokens; t++) {
		positions[t] = check_random(c, POSITIONS);
		slots[t] = t % 4 == 2 ? -1 : (i64)(t * 5 % (BLOCKS * BLOCK_SIZE - 1));
	}
	struct kern_rope_kv_args r[2];
	const char *parts[2][3];
	for (u32 i = 0; i < 2; i++) { /* in one kernel; one op after the other */
		r[i] = (struct kern_rope_kv_args){.tokens = h->tokens, .heads = h->heads, .rope_dim = h->rope_dim,
						  .dtype = KERN_BF16, .bias = bias, .norm_eps = 1e-6f, .cos = cosine,
						  .sin = sine, .interleaved = h->interleaved, .norm_behind = h->behind,
						  .clip = h->clip, .q_scales = h->scaled ? scales : NULL};
		r[i].q_norm = h->head_norms ? q_norm : NULL;
		r[i].k_norm = h->head_norms ? k_norm : NULL;
		r[i].kv = (struct kern_kv){.dtype = h->kv, .block_size = BLOCK_SIZE, .kv_heads = h->kv_heads,
					   .head_dim = h->head_dim};
		r[i].kv.k = device_alloc(d, cache_bytes);
		r[i].kv.v = device_alloc(d, cache_bytes);
		r[i].q_bf16 = device_alloc(d, q_bytes);
		r[i].qkv = device_alloc(d, (size_t)h->tokens * n * sizeof(float));
		r[i].positions = device_upload(d, positions, h->tokens * sizeof(u32));
		r[i].slots = device_upload(d, slots, h->tokens * sizeof(i64));
		const struct kern_matmul_fusion fusion = {.norm_weight = h->norm ? norm : NULL, .norm_eps = 1e-5f,
							  .rope = i == 0 ? &r[0] : NULL};
		struct kern_matmul_args a = {.x_bf16 = x, .w = &w.device, .tokens = h->tokens, .x_stride = h->k,
					     .out_stride = n, .dtype = h->norm ? KERN_F32 : KERN_BF16,
					     .out_dtype = KERN_F32, .fusion = &fusion};
		if (h->norm)
			a.x = stream;
		a.out = (float *)r[i].qkv;
		if (i == 0)
			device_arrives_late(d, (void *)a.x, x_count * (h->norm ? sizeof(float) : sizeof(u16)));
		if (!problem)
			problem = device_problem(d, d->ops.matmul(&d->ctx, &a));
		if (!problem && i == 1)
			problem = device_problem(d, d->ops.rope_kv(&d->ctx, &r[1]));
		parts[i][0] = device_download(d, r[i].q_bf16, q_bytes);
		parts[i][1] = device_download(d, r[i].kv.k, cache_bytes);
		parts[i][2] = device_download(d, r[i].kv.v, cache_bytes);
	}
	for (u32 p = 0; p < 3 && !problem; p++)
		if (memcmp(parts[0][p], parts[1][p], p == 0 ? q_bytes : cache_bytes) != 0)
			problem = p == 0 ? "q differs" : p == 1 ? "the keys differ" : "the values differ";
	device_case_end(d, problem, "matmul with rope %s %s tokens=%u k=%u heads=%u/%u head_dim=%u rope_dim=%u norms=%d%d interleaved=%d "
			"behind=%d scaled=%d clip=%g",
			kern_dtype_name(h->weight), kern_dtype_name(h->kv), h->tokens, h->k, h->heads, h->kv_heads, h->head_dim,
			h->rope_dim, h->head_norms, h->norm, h->interleaved, h->behind, h->scaled, (double)h->clip);
}

static void matmul_heads_cases(struct device *d)
{
	static const struct heads_case cases[] = {
		{3, 96, 4, 2, 64, 64, KERN_BF16, KERN_I8, false, true},
		{16, 160, 3, 1, 80, 32, KERN_BF16, KERN_F8E4M3, false, false},
		{9, 96, 2, 2, 32, 0, KERN_BF16, KERN_BF16, true, false},
		{8, 640, 2, 1, 128, 128, KERN_BF16, KERN_BF16, true, true},
		{2, 128, 3, 1, 256, 64, KERN_I8, KERN_I8, true, true},
		{11, 256, 2, 1, 64, 64, KERN_I4_64, KERN_F8E4M3, true, true},
		{5, 96, 4, 2, 64, 32, KERN_BF16, KERN_BF16, false, true, true},
		{16, 160, 2, 1, 80, 80, KERN_I8, KERN_I8, false, false, true},
		{7, 96, 4, 2, 64, 64, KERN_BF16, KERN_BF16, true, true, .behind = true},
		{3, 96, 2, 1, 64, 32, KERN_BF16, KERN_BF16, false, true, .scaled = true},
		{12, 128, 3, 3, 32, 32, KERN_I8, KERN_BF16, false, true, .clip = 0.4f},
	};
	const struct kern_cuda_config config = {NULL, 0, NULL};
	struct err_msg em = {""};
	if (kern_cuda_create(&d->ctx.device, &config, &em) != ERR_OK) {
		device_case_end(d, em.text, "kern_cuda_create");
		return;
	}
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		matmul_heads_case(d, &cases[i]);
	kern_cuda_destroy(&d->ctx.device);
}

/* ---------------------------------------------------------------- many tokens, by cuBLASLt */

static u32 lines_of(const char *path)
{
	u32 lines = 0;
	FILE *f = fopen(path, "r");
	for (int c = 0; f && (c = fgetc(f)) != EOF;)
		lines += c == '\n';
	if (f)
		fclose(f);
	return lines;
}

/* The choice of an algorithm is measured once and then read from the file, which may be rubbish before. */
static void tune_case(struct device *d, const char *path)
{
	const struct matmul_case m = {.n = 64, .k = 64, .tokens = 40, .weight = KERN_BF16};
	struct weights w;
	const char *problem = make_weight(d, &m, &w);
	u16 *x;
	FILE *f = fopen(path, "w");
	(void)device_bf16s(d, (size_t)m.tokens * m.k, false, &x);
	struct kern_matmul_args a = {.x_bf16 = x,
				     .w = &w.device,
				     .tokens = m.tokens,
				     .x_stride = m.k,
				     .out_stride = m.n,
				     .dtype = KERN_BF16,
				     .out_dtype = KERN_BF16};
	a.out_bf16 = device_alloc(d, (size_t)m.tokens * m.n * sizeof(u16));
	if (!f || fputs("tercet-cublaslt 2 another device\n64 64 64 0 16 1 2 3\n", f) < 0 || fclose(f) != 0)
		problem = "no file";
	struct kern_cuda *kept = d->ctx.device;
	const struct kern_cuda_config config = {NULL, 0, path};
	struct err_msg em = {""};
	for (u32 run = 0; run < 2 && !problem; run++) {
		if (kern_cuda_create(&d->ctx.device, &config, &em) != ERR_OK) {
			problem = "kern_cuda_create failed";
			break;
		}
		problem = device_problem(d, kern_cuda_tune(&d->ctx, &a));
		if (!problem && lines_of(path) != 2)
			problem = "the file has other lines than a header and the shape";
		if (!problem)
			problem = device_problem(d, d->ops.matmul(&d->ctx, &a));
		if (!problem && *device_report())
			problem = "the library does not know the algorithm"; /* and another one was taken */
		if (run == 0)
			kern_cuda_destroy(&d->ctx.device);
	}
	a.tokens = 33; /* the same power of two */
	if (!problem)
		problem = device_problem(d, kern_cuda_tune(&d->ctx, &a));
	if (!problem && lines_of(path) != 2)
		problem = "33 and 40 tokens are two shapes";
	kern_cuda_destroy(&d->ctx.device);
	d->ctx.device = kept;
	(void)remove(path);
	device_case_end(d, problem, "kern_cuda_tune");
}

/* Quantized weights with more tokens than the kernel of few of them takes, and with fewer than are worth widening: all
 * shapes of tiles, and tiles of which several blocks have parts. */
static void dense_cases(struct device *d)
{
	static const enum kern_dtype types[] = {KERN_I8, KERN_F8E4M3, KERN_I4_32, KERN_I4_64, KERN_I4_128};
	static const u32 shapes[][2] = {{16, 32}, {130, 352}, {264, 1184}, {515, 416}, {288, 544}};
	static const u32 tokens[] = {17, 31, 32, 33, 50, 64, 18, 40, 47, 63};
	enum { SCRATCH = 24 << 20 };
	const struct kern_cuda_config config = {NULL, 0, NULL};
	struct err_msg em = {""};
	void *scratch = NULL;
	if (cudaMalloc(&scratch, SCRATCH) != cudaSuccess || kern_cuda_create(&d->ctx.device, &config, &em) != ERR_OK) {
		device_case_end(d, "no memory", "products of quantized weights");
		(void)cudaFree(scratch);
		return;
	}
	d->ctx.scratch = scratch;
	d->ctx.scratch_bytes = SCRATCH;
	for (u32 type = 0; type < COUNT_OF(types); type++)
		for (u32 i = 0; i < COUNT_OF(tokens); i++) {
			const u32 s = (type + i) % COUNT_OF(shapes);
			const struct matmul_case m = {.n = shapes[s][0],
						      .k = shapes[s][1],
						      .tokens = tokens[i],
						      .weight = types[type],
						      .bias = i % 3 == 0,
						      .accumulate = i % 4 == 1,
						      .f32 = i % 2 == 1,
						      .outliers = i % 5 == 4,
						      .order = types[type] != KERN_F8E4M3 && i % 3 == 2};
			matmul_case(d, &m);
		}
	/* More, where there is no memory to widen the weight in. */
	d->ctx.scratch_bytes = 1 << 20;
	for (u32 type = 0; type < COUNT_OF(types); type++) {
		const struct matmul_case m = {.n = 515, .k = 1184, .tokens = 65 + 50 * type, .weight = types[type],
					      .bias = type == 1, .f32 = type == 2, .accumulate = type == 3};
		matmul_case(d, &m);
	}
	kern_cuda_destroy(&d->ctx.device);
	d->ctx.scratch = NULL;
	d->ctx.scratch_bytes = 0;
	(void)cudaFree(scratch);
}

/* More than the kernel of tens to hundreds of tokens takes. */
enum { MANY = 65 };

static void many_cases(struct device *d)
{
	static const struct matmul_case cases[] = {
		{.n = 64, .k = 64, .tokens = 17, .weight = KERN_BF16, .bias = true},
		{.n = 40, .k = 96, .tokens = 33, .weight = KERN_BF16, .accumulate = true},
		{.n = 48, .k = 160, .tokens = 70, .weight = KERN_BF16, .accumulate = true, .bias = true},
		{.n = 48, .k = 160, .tokens = 20, .weight = KERN_BF16, .f32 = true, .outliers = true},
		{.n = 40, .k = 96, .tokens = 34, .weight = KERN_BF16, .f32 = true, .accumulate = true, .bias = true},
		{.n = 24, .k = 160, .tokens = MANY, .weight = KERN_I8, .f32 = true, .accumulate = true, .widened = true},
		{.n = 40, .k = 352, .tokens = MANY, .weight = KERN_I8, .bias = true, .f32 = true, .widened = true},
		{.n = 33, .k = 160, .tokens = MANY + 1, .weight = KERN_F8E4M3, .accumulate = true, .widened = true},
		{.n = 24, .k = 288, .tokens = MANY, .weight = KERN_I4_64, .order = true, .widened = true},
		{.n = 24, .k = 288, .tokens = MANY, .weight = KERN_I4_128, .bias = true, .widened = true},
		{.n = 512, .k = 64, .tokens = 1, .weight = KERN_BF16},
		/* blocks that take more than one tile, and warps more than one item of it */
		{.n = 400, .k = 1152, .tokens = 3, .weight = KERN_I4_128, .f32 = true},
		{.n = 400, .k = 1088, .tokens = 11, .weight = KERN_I4_64, .order = true},
		{.n = 416, .k = 2176, .tokens = 16, .weight = KERN_I4_32, .accumulate = true, .f32 = true},
		{.n = 400, .k = 1152, .tokens = 2, .weight = KERN_I8, .order = true, .bias = true},
		{.n = 416, .k = 2112, .tokens = 7, .weight = KERN_F8E4M3},
		{.n = 520, .k = 96, .tokens = 9, .weight = KERN_BF16, .f32 = true, .accumulate = true},
		{.n = 96, .k = 96, .tokens = 16, .weight = KERN_BF16, .bias = true}, /* narrow: not cuBLASLt's */
	};
	enum { WORKSPACE = 4096, SCRATCH = 40 * 352 * 2 };
	char path[] = "/tmp/checkkern-cuda-XXXXXX";
	const int fd = mkstemp(path);
	struct err_msg em = {""};
	void *workspace = NULL, *scratch = NULL;
	if (fd < 0 || close(fd) != 0 || cudaMalloc(&workspace, WORKSPACE) != cudaSuccess ||
	    cudaMalloc(&scratch, SCRATCH) != cudaSuccess) {
		device_case_end(d, "no file or memory", "products of many tokens");
		return;
	}
	const struct kern_cuda_config config = {workspace, WORKSPACE, NULL};
	if (kern_cuda_create(&d->ctx.device, &config, &em) != ERR_OK) {
		device_case_end(d, em.text, "kern_cuda_create");
		return;
	}
	d->ctx.scratch = scratch;
	for (u32 i = 0; i < COUNT_OF(cases); i++) {
		d->ctx.scratch_bytes = SCRATCH;
		matmul_case(d, &cases[i]);
	}
	d->ctx.scratch_bytes = 100; /* too small: slices take it */
	struct matmul_case sliced = cases[6];
	sliced.widened = false;
	sliced.tokens = 65;
	matmul_case(d, &sliced);
	tune_case(d, path);
	kern_cuda_destroy(&d->ctx.device);
	d->ctx.scratch = NULL;
	d->ctx.scratch_bytes = 0;
	(void)cudaFree(workspace);
	(void)cudaFree(scratch);
}

void device_matmul(struct device *d)
{
	static const enum kern_dtype types[] = {KERN_BF16,  KERN_I8,	KERN_F8E4M3,
						KERN_I4_32, KERN_I4_64, KERN_I4_128};
	static const u32 shapes[][2] = {{16, 32}, {40, 64}, {70, 352}, {33, 1184}, {128, 2080}};
	static const u32 tokens[] = {1, 3, 8, 9, 16, 21};
	for (u32 type = 0; type < COUNT_OF(types); type++)
		for (u32 s = 0; s < COUNT_OF(shapes); s++)
			for (u32 i = s % 2; i < COUNT_OF(tokens); i += 2) {
				struct matmul_case m = {shapes[s][0], shapes[s][1], tokens[i], types[type]};
				m.bias = (i + s) % 3 == 0;
				m.accumulate = (i + type) % 3 == 1;
				m.f32 = (s + type) % 3 == 2;
				m.outliers = (s + i) % 4 == 3;
				m.order = types[type] != KERN_BF16 && types[type] != KERN_F8E4M3 && s == 3;
				matmul_case(d, &m);
			}
	for (u32 i = 0; i < 5; i++) {
		const struct matmul_case
			norm = {.n = 48, .k = 160, .tokens = tokens[i], .norm = true, .bias = i % 2},
			act = {.n = 48, .k = 96, .tokens = tokens[i], .act_mul = true},
			both = {.n = 80, .k = 288, .tokens = tokens[i], .act_mul = true, .norm = true};
		struct matmul_case cases[] = {norm, act, both};
		for (u32 j = 0; j < COUNT_OF(cases); j++) {
			cases[j].weight = types[(i + j) % COUNT_OF(types)];
			cases[j].act = (enum kern_activation)((i + j) % 5);
			matmul_case(d, &cases[j]);
		}
	}
	dense_cases(d);
	many_cases(d);
	matmul_rope_case(d, 3, 4, 2, 64, 64);
	matmul_rope_case(d, 16, 3, 1, 80, 32);
	matmul_rope_case(d, 9, 2, 2, 32, 0);
	matmul_heads_cases(d);
}
