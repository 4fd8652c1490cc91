/* Checks of the device's rope_kv against the reference. */
#include <math.h>
#include <string.h>

#include "tests/kern/device_cache.h"

enum { POSITIONS = 50 };

struct rope_case {
	u32 heads, kv_heads, head_dim, rope_dim, block_size, tokens;
	enum kern_dtype kv;
	bool bias, norm, interleaved, behind, scaled;
	float clip;
	u32 beside; /* floats behind a token's heads */
	u32 apart;
	bool norm_v, v_is_k;
};

static void rope_inputs(struct device *d, const struct rope_case *r, struct kern_rope_kv_args *a,
			struct kern_rope_kv_args *ref)
{
	const u32 all = r->heads + (r->v_is_k ? 1 : 2) * r->kv_heads, half = r->rope_dim / 2;
	u32 *positions = check_alloc(&d->check, r->tokens * sizeof(u32));
	i64 *slots = check_alloc(&d->check, r->tokens * sizeof(i64));
	float *bias = NULL, *q_norm = NULL, *k_norm = NULL, *cosine, *sine;
	float *qkv;
	*a = (struct kern_rope_kv_args){.tokens = r->tokens,
					.heads = r->heads,
					.rope_dim = r->rope_dim,
					.norm_eps = 1e-6f,
					.interleaved = r->interleaved,
					.norm_behind = r->behind,
					.clip = r->clip,
					.rope_apart = r->apart,
					.norm_v = r->norm_v,
					.v_is_k = r->v_is_k,
					.dtype = KERN_BF16};
	float *scales = NULL;
	*ref = *a;
	ref->dtype = KERN_F32;
	for (u32 t = 0; t < r->tokens; t++) {
		positions[t] = check_random(&d->check, POSITIONS);
		/* 7 and the number of slots share no divisor here: distinct slots in a scattered order */
		slots[t] = t % 5 == 3 ? -1 : (i64)(t * 7 % (16 * r->block_size - 1));
	}
	a->qkv_stride = ref->qkv_stride = r->beside > 0 ? all * r->head_dim + r->beside : 0;
	ref->qkv = device_floats(d, (size_t)r->tokens * (all * r->head_dim + r->beside), false, &qkv);
	ref->bias = r->bias ? device_floats(d, (size_t)all * r->head_dim, false, &bias) : NULL;
	ref->q_norm = r->norm ? device_floats(d, r->head_dim, false, &q_norm) : NULL;
	ref->k_norm = r->norm ? device_floats(d, r->head_dim, false, &k_norm) : NULL;
	ref->cos = device_floats(d, (size_t)POSITIONS * half, false, &cosine);
	ref->sin = device_floats(d, (size_t)POSITIONS * half, false, &sine);
	ref->q_scales = r->scaled ? device_floats(d, POSITIONS, false, &scales) : NULL;
	ref->positions = positions;
	ref->slots = r->kv_heads > 0 ? slots : NULL;
	a->q_scales = scales;
	a->qkv = qkv;
	a->bias = bias;
	a->q_norm = q_norm;
	a->k_norm = k_norm;
	a->cos = cosine;
	a->sin = sine;
	a->positions = device_upload(d, positions, r->tokens * sizeof(u32));
	a->slots = r->kv_heads > 0 ? device_upload(d, slots, r->tokens * sizeof(i64)) : NULL;
}

/* Keys and values of the step, and that nothing else was written: the rest of the cache is still poison. */
static const char *rope_cache_right(const struct device_cache *c, const struct kern_rope_kv_args *ref)
{
	const struct kern_kv *kv = &c->device;
	const double error = kv->dtype == KERN_BF16 ? 0x1.04p-8
			     : kv->dtype == KERN_I8 ? 0.51 / 127
						    : 0x1.04p-4;
	size_t written = 0, poison = 0;
	for (u32 t = 0; t < ref->tokens && kv->kv_heads > 0; t++) {
		const u64 block = (u64)ref->slots[t] / kv->block_size;
		const u32 offset = (u32)((u64)ref->slots[t] % kv->block_size);
		if (ref->slots[t] < 0)
			continue;
		written += kv->kv_heads * kv->head_dim * (device_cache_is_bytes(kv->dtype) ? 1 : 2) +
			   (device_cache_is_bytes(kv->dtype) ? kv->kv_heads * sizeof(float) : 0);
		for (u32 side = 0; side < 2; side++)
			for (u32 h = 0; h < kv->kv_heads; h++) {
				double largest = 0;
				for (u32 i = 0; i < kv->head_dim; i++)
					largest = fmax(largest, fabs((double)*(side ? device_cache_ref_v : device_cache_ref_k)(
									c, block, h, offset, i)));
				for (u32 i = 0; i < kv->head_dim; i++) {
					const double want = *(side ? device_cache_ref_v : device_cache_ref_k)(c, block, h, offset, i);
					const double got =
						device_cache_value(c, side ? c->v : c->k, block, h, offset, i);
					const double unit = kv->dtype == KERN_I8 ? largest : fabs(want);
					if (!(fabs(got - want) <= unit * error + largest * 4e-5))
						return side ? "a value in the cache is wrong"
							    : "a key in the cache is wrong";
				}
			}
	}
	for (size_t i = 0; i < device_cache_bytes(c); i++)
		poison += c->k[i] == 0xff;
	/* -1 as int8 and a byte of a float look like poison, so this bound is not exact for them */
	if (poison + written < device_cache_bytes(c))
		return "wrote keys to other slots than those given";
	return NULL;
}

static void rope_case(struct device *d, const struct rope_case *r)
{
	enum { BLOCKS = 16 };
	struct kern_rope_kv_args a, ref;
	struct device_cache c;
	const struct kern_kv kv = {.dtype = r->kv,
				   .block_size = r->block_size,
				   .kv_heads = r->kv_heads,
				   .head_dim = r->head_dim};
	const size_t q_count = (size_t)r->tokens * r->heads * r->head_dim;
	rope_inputs(d, r, &a, &ref);
	device_cache_init(d, &c, &kv, BLOCKS);
	device_cache_upload(d, &c);
	a.kv = c.device;
	ref.kv = c.ref;
	a.q_bf16 = device_alloc(d, q_count * sizeof(u16));
	ref.q = check_alloc(&d->check, q_count * sizeof(float));
	const char *problem = device_problem(d, d->ops.rope_kv(&d->ctx, &a));
	(void)d->ref.rope_kv(&d->ref_ctx, &ref);
	c.k = device_download(d, a.kv.k, device_cache_bytes(&c));
	c.v = device_download(d, a.kv.v, device_cache_bytes(&c));
	/* the rotation cancels: 2e-6 of the head's values, which are below 3 here but for norms */
	if (!problem)
		problem = device_close(device_download_bf16(d, a.q_bf16, q_count), ref.q, q_count, 0x1.04p-8,
				       4e-5);
	if (!problem)
		problem = rope_cache_right(&c, &ref);
	device_case_end(d, problem,
			"rope_kv %s tokens=%u heads=%u/%u head_dim=%u rope_dim=%u block=%u bias=%d norm=%d interleaved=%d behind=%d "
			"scaled=%d clip=%g beside=%u apart=%u norm_v=%d v_is_k=%d",
			kern_dtype_name(r->kv), r->tokens, r->heads, r->kv_heads, r->head_dim, r->rope_dim, r->block_size, r->bias,
			r->norm, r->interleaved, r->behind, r->scaled, (double)r->clip, r->beside, r->apart, r->norm_v, r->v_is_k);
}

void device_rope(struct device *d)
{
	static const struct rope_case ropes[] = {
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, false},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, true},
		{3, 1, 80, 32, 16, 7, KERN_BF16, false, true},
		{8, 8, 32, 32, 32, 21, KERN_BF16, false, false},
		{5, 1, 96, 96, 8, 12, KERN_I8, true, true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false},
		{2, 1, 256, 256, 8, 6, KERN_BF16, false, true},
		{2, 1, 256, 0, 8, 6, KERN_I8, true, false},
		{3, 3, 20, 12, 16, 13, KERN_F8E4M3, true, true},
		{2, 1, 32, 32, 16, 0, KERN_BF16, false, false},
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, false, true},
		{3, 1, 80, 32, 16, 7, KERN_BF16, true, true, true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false, true},
		{2, 1, 256, 256, 8, 6, KERN_I8, false, true, true},
		{3, 3, 20, 12, 16, 13, KERN_BF16, true, false, true},
		{2, 1, 64, 0, 8, 6, KERN_BF16, false, false, true},
		{4, 2, 64, 64, 16, 9, KERN_BF16, false, true, .behind = true},
		{3, 1, 80, 32, 16, 7, KERN_I8, true, true, .behind = true, .scaled = true},
		{2, 1, 256, 256, 8, 6, KERN_BF16, false, true, .behind = true, .clip = 0.7f},
		{8, 8, 32, 32, 32, 21, KERN_BF16, false, false, .scaled = true},
		{2, 2, 128, 64, 16, 11, KERN_F8E4M3, true, false, true, .scaled = true, .clip = 0.5f},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, false, .clip = 0.3f},
		{5, 1, 96, 96, 8, 12, KERN_I8, true, true, .clip = 0.9f},
		{4, 2, 64, 64, 16, 9, KERN_BF16, true, true, .beside = 256},
		{3, 1, 80, 32, 16, 7, KERN_I8, false, true, true, .beside = 2},
		/* large heads, pairs that lie apart, values that are normed or keys, queries alone */
		{2, 1, 576, 64, 16, 5, KERN_BF16, false, false, true},
		{3, 1, 512, 128, 8, 4, KERN_BF16, false, true, .apart = 256, .norm_v = true, .v_is_k = true},
		{2, 2, 64, 32, 16, 6, KERN_I8, true, false, .apart = 32, .norm_v = true, .beside = 4},
		{4, 0, 576, 64, 16, 3, KERN_BF16, false, false, true, .beside = 32},
		{3, 0, 128, 128, 16, 5, KERN_BF16, true, true, .scaled = true},
		{2, 2, 320, 64, 16, 5, KERN_F8E4M3, true, true, .clip = 0.8f, .v_is_k = true},
		{2, 1, 20, 8, 16, 6, KERN_BF16, true, true, .apart = 6},
		{1, 2, 96, 48, 16, 4, KERN_BF16, false, true, true, .norm_v = true},
	};
	for (u32 i = 0; i < COUNT_OF(ropes); i++)
		rope_case(d, &ropes[i]);
}
