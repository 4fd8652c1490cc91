/* Reference: bias, head norms, rotation and the write into the KV cache. */
#include <math.h>

#include "kernels/kv_priv.h"

/* `weight` NULL: of ones. */
static void norm_head(float *x, const float *weight, u32 dim, float eps)
{
	double sum = 0;
	for (u32 i = 0; i < dim; i++)
		sum += (double)x[i] * x[i];
	double scale = 1 / sqrt(sum / dim + (double)eps);
	for (u32 i = 0; i < dim; i++)
		x[i] = (float)(x[i] * scale * (weight ? weight[i] : 1));
}

static void layer_norm_head(float *x, const float *weight, u32 dim, float eps)
{
	double mean = 0, sum = 0;
	for (u32 i = 0; i < dim; i++)
		mean += (double)x[i] / dim;
	for (u32 i = 0; i < dim; i++)
		sum += (x[i] - mean) * (x[i] - mean);
	double scale = 1 / sqrt(sum / dim + (double)eps);
	for (u32 i = 0; i < dim; i++)
		x[i] = (float)((x[i] - mean) * scale * (double)weight[i]);
}

/* Pairs (2 i, 2 i + 1) become halves. */
static void unlace(float *x, u32 rope_dim)
{
	float pairs[KERN_HEAD_DIM_MAX];
	memcpy(pairs, x, rope_dim * sizeof(float));
	for (u32 i = 0; i < rope_dim / 2; i++) {
		x[i] = pairs[2 * i];
		x[rope_dim / 2 + i] = pairs[2 * i + 1];
	}
}

static void rotate_head(const struct kern_rope_kv_args *a, float *x, const float *cosine, const float *sine)
{
	u32 apart = kern_rope_apart(a);
	if (a->interleaved)
		unlace(x, a->rope_dim);
	for (u32 i = 0; i < a->rope_dim / 2; i++) {
		double low = x[i], high = x[i + apart];
		x[i] = (float)(low * cosine[i] - high * sine[i]);
		x[i + apart] = (float)(high * cosine[i] + low * sine[i]);
	}
}

/* Head `head` of token `t` of the fused projection, with bias, into `x`. */
static void read_head(const struct kern_rope_kv_args *a, u32 t, u32 head, float *x)
{
	u32 dim = a->kv.head_dim;
	const float *in = a->qkv + t * kern_rope_qkv_stride(a) + (size_t)head * dim;
	for (u32 i = 0; i < dim; i++) {
		float value = in[i] + (a->bias ? a->bias[head * dim + i] : 0);
		bool out = a->clip > 0 && fabsf(value) > a->clip; /* a NaN is not */
		x[i] = out ? copysignf(a->clip, value) : value;
	}
}

/* Norm and rotation of head `head`, of q or of k, at position `p`. */
static void turn_head(const struct kern_rope_kv_args *a, float *x, const float *norm, u32 head, u32 p)
{
	const size_t at = (size_t)p * (a->rope_dim / 2);
	if (norm && a->layer_norms)
		layer_norm_head(x, norm + (size_t)head * a->kv.head_dim, a->kv.head_dim, a->norm_eps);
	else if (norm && !a->norm_behind)
		norm_head(x, norm, a->kv.head_dim, a->norm_eps);
	rotate_head(a, x, a->cos + at, a->sin + at);
	if (norm && a->norm_behind)
		norm_head(x, norm, a->kv.head_dim, a->norm_eps);
}

enum err rope_kv_ref(struct kern_ctx *ctx, const struct kern_rope_kv_args *a)
{
	const struct kern_kv *kv = &a->kv;
	u32 dim = kv->head_dim;
	float x[KERN_HEAD_DIM_MAX];
	(void)ctx;
	ASSERT(kern_rope_is_sound(a));
	for (u32 t = 0; t < a->tokens; t++) {
		i64 slot = kv->kv_heads > 0 ? a->slots[t] : -1;
		for (u32 h = 0; h < a->heads; h++) {
			read_head(a, t, h, x);
			turn_head(a, x, a->q_norm, h, a->positions[t]);
			for (u32 i = 0; i < dim && a->q_scales; i++)
				x[i] *= a->q_scales[a->positions[t]];
			memcpy(a->q + t * kern_rope_q_stride(a) + h * dim, x, dim * sizeof(float));
		}
		if (slot < 0)
			continue;
		size_t block = (size_t)slot / kv->block_size;
		u32 offset = (u32)((size_t)slot % kv->block_size);
		for (u32 h = 0; h < kv->kv_heads; h++) {
			read_head(a, t, a->heads + h, x);
			turn_head(a, x, a->k_norm, h, a->positions[t]);
			kern_kv_store(kv, kern_kv_key(kv, block, h, offset), kv->block_size,
				      kern_kv_scale(kv, kv->k, block, h, offset), x);
			read_head(a, t, kern_rope_first_value(a) + h, x);
			if (a->norm_v)
				norm_head(x, NULL, dim, a->norm_eps);
			kern_kv_store(kv, kern_kv_value(kv, block, h, offset), 1,
				      kern_kv_scale(kv, kv->v, block, h, offset), x);
		}
	}
	return ERR_OK;
}
