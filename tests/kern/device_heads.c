/* Checks of what stands around latent attention on devices, head_matmul and latent_kv, against the reference. */
#include <string.h>

#include "kernels/kern_priv.h"
#include "tests/kern/device.h"

enum { HEADS_MOST = 5 };

struct heads_case {
	u32 tokens, heads, n, k, beside;
	bool x_f32, out_f32;
	u32 loose; /* values of the output between heads, and between tokens, that no head has */
};

static const char *make_heads(struct device *d, const struct heads_case *s, struct kern_weight *device, struct kern_weight *ref)
{
	struct check *c = &d->check;
	struct err_msg em = {""};
	const size_t bytes = kern_weight_device_bytes(s->n, s->k, KERN_BF16);
	for (u32 h = 0; h < s->heads; h++) {
		const float *values = check_floats(c, (size_t)s->n * s->k, false);
		void *memory = check_alloc(c, kern_weight_bytes(s->n, s->k, KERN_BF16, 0)), *laid = check_alloc(c, bytes);
		if (kern_weight_pack(&ref[h], values, KERN_F32, s->k, s->n, s->k, KERN_BF16, memory, NULL, 0, &em) ||
		    kern_weight_to_device(&device[h], &ref[h], laid, NULL, &em))
			return "no weight";
		device[h].data = device_upload(d, laid, bytes);
	}
	return NULL;
}

/* Inputs of which the product's are numbers of bf16, and what stands beside them only where all are. */
static float *make_inputs(struct device *d, const struct heads_case *s, struct kern_head_matmul_args *a)
{
	const size_t count = (size_t)s->tokens * a->x_stride;
	float *x = check_floats(&d->check, count, false);
	for (size_t i = 0; i < count; i++) {
		const u32 within = (u32)(i % a->x_stride) % a->x_apart;
		if (!s->x_f32 || within < s->k || within >= s->k + s->beside)
			x[i] = kern_bf16_to_float(kern_float_to_bf16(x[i]));
	}
	if (s->x_f32)
		a->x = device_upload(d, x, count * sizeof(float));
	else
		a->x_bf16 = device_upload_bf16(d, x, count);
	return x;
}

/* What no head has is as it was. */
static const char *gaps_right(const struct heads_case *s, const struct kern_head_matmul_args *a, const u8 *out)
{
	const size_t element = s->out_f32 ? sizeof(float) : sizeof(u16);
	for (size_t i = 0; i < (size_t)s->tokens * a->out_stride * element; i++) {
		const u32 in_row = (u32)(i / element % a->out_stride), head = in_row / a->out_apart;
		if ((head >= s->heads || in_row % a->out_apart >= s->beside + s->n) && out[i] != 0xff)
			return "what is no head's was written";
	}
	return NULL;
}

static void heads_case(struct device *d, const struct heads_case *s)
{
	struct kern_weight weights[HEADS_MOST], refs[HEADS_MOST];
	struct kern_head_matmul_args a = {.w = weights,
					  .tokens = s->tokens,
					  .heads = s->heads,
					  .beside = s->beside,
					  .x_apart = (s->k + s->beside + 15) / 8 * 8,
					  .out_apart = s->n + s->beside + s->loose,
					  .dtype = s->x_f32 ? KERN_F32 : KERN_BF16,
					  .out_dtype = s->out_f32 ? KERN_F32 : KERN_BF16};
	const char *problem = make_heads(d, s, weights, refs);
	a.x_stride = s->heads * a.x_apart + 8;
	a.out_stride = s->heads * a.out_apart + s->loose;
	const size_t count = (size_t)s->tokens * a.out_stride, bytes = count * (s->out_f32 ? sizeof(float) : sizeof(u16));
	float *x = make_inputs(d, s, &a);
	a.out = device_alloc(d, bytes);
	if (!problem)
		problem = device_problem(d, d->ops.head_matmul(&d->ctx, &a));
	const u8 *raw = device_download(d, a.out, bytes);
	const float *got = s->out_f32 ? (const float *)(const void *)raw : device_download_bf16(d, a.out_bf16, count);
	struct kern_head_matmul_args r = a;
	r.x = x;
	r.w = refs;
	r.out = check_alloc(&d->check, count * sizeof(float));
	r.dtype = r.out_dtype = KERN_F32;
	r.ops = &d->ref;
	(void)d->ref.head_matmul(&d->ref_ctx, &r);
	for (size_t row = 0; row < (size_t)s->tokens * s->heads && !problem; row++) {
		const size_t at = row / s->heads * a.out_stride + row % s->heads * a.out_apart;
		const double error = s->out_f32 ? 0x1p-20 : 0x1.04p-8;
		problem = device_close(got + at, r.out + at, s->beside, s->out_f32 ? 0 : error, 0);
		if (!problem)
			problem = device_close(got + at + s->beside, r.out + at + s->beside, s->n, error, 5e-5);
	}
	if (!problem)
		problem = gaps_right(s, &a, raw);
	device_case_end(d, problem, "head_matmul tokens=%u heads=%u n=%u k=%u beside=%u x=%s out=%s loose=%u", s->tokens, s->heads, s->n,
			s->k, s->beside, kern_dtype_name(a.dtype), kern_dtype_name(a.out_dtype), s->loose);
}

static void latent_case(struct device *d, u32 tokens, u32 heads, u32 rank, u32 rope)
{
	enum { BESIDE = 8 };
	struct kern_latent_kv_args a = {.tokens = tokens, .heads = heads, .rank = rank, .rope = rope};
	a.latent_stride = rank + rope + BESIDE;
	a.qkv_stride = (heads + 2) * (rank + rope) + BESIDE;
	const size_t bytes = (size_t)tokens * a.qkv_stride * sizeof(float);
	struct kern_latent_kv_args r = a;
	float *latents;
	r.latents = device_floats(d, (size_t)tokens * a.latent_stride, false, &latents);
	a.latents = latents;
	a.qkv = device_alloc(d, bytes);
	r.qkv = check_alloc(&d->check, bytes);
	memset(r.qkv, 0xff, bytes);
	const char *problem = device_problem(d, d->ops.latent_kv(&d->ctx, &a));
	(void)d->ref.latent_kv(&d->ref_ctx, &r);
	if (!problem && memcmp(device_download(d, a.qkv, bytes), r.qkv, bytes) != 0)
		problem = "other bytes than the reference's";
	device_case_end(d, problem, "latent_kv tokens=%u heads=%u rank=%u rope=%u", tokens, heads, rank, rope);
}

/* What there is no kernel for, and what no call may ask for. */
static void refused_case(struct device *d)
{
	struct kern_weight w = {.n = 16, .k = 32, .dtype = KERN_BF16, .data = device_alloc(d, 16 * 32 * sizeof(u16))};
	const struct kern_head_matmul_args a = {.w = &w,
						.tokens = 1,
						.heads = 1,
						.x_stride = 32,
						.x_apart = 32,
						.out_stride = 16,
						.out_apart = 16,
						.dtype = KERN_BF16,
						.out_dtype = KERN_BF16,
						.x_bf16 = device_alloc(d, 32 * sizeof(u16)),
						.out_bf16 = device_alloc(d, 16 * sizeof(u16))};
	struct kern_head_matmul_args odd = a, many = a, narrow = a;
	struct kern_weight thin = w;
	const char *problem = NULL;
	odd.x_apart = 33;
	many.heads = 257;
	thin.k = 31;
	narrow.w = &thin;
	if (d->ops.head_matmul(&d->ctx, &odd) != ERR_INVALID || d->ops.head_matmul(&d->ctx, &many) != ERR_UNSUPPORTED ||
	    d->ops.head_matmul(&d->ctx, &narrow) != ERR_UNSUPPORTED)
		problem = "takes what it has no kernel for";
	device_case_end(d, problem, "head_matmul refuses");
}

void device_heads(struct device *d)
{
	static const struct heads_case cases[] = {
		{1, 3, 512, 128, 64, true, true, 2},  {5, 2, 128, 512, 0, false, false, 4}, {16, 3, 41, 160, 3, true, true, 3},
		{17, 2, 64, 96, 64, false, true, 2},  {29, 1, 24, 544, 0, false, false, 0}, {70, 2, 136, 160, 8, false, true, 0},
		{130, 1, 23, 64, 5, true, false, 1},  {40, 5, 80, 32, 2, true, false, 6},   {0, 2, 16, 32, 8, false, true, 0},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		heads_case(d, &cases[i]);
	latent_case(d, 3, 2, 512, 64);
	latent_case(d, 1, 1, 8, 4);
	latent_case(d, 5, 3, 36, 0);
	latent_case(d, 0, 2, 16, 4);
	refused_case(d);
}
