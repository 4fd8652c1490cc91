/* Several residual streams mixed, and the moments of rows, for AVX2. A row is one task's; sums of moments are four running ones. */
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { SUMS = 4 };

/* ---------------------------------------------------------------- stream_mix */

/* `n` columns from `i` on of one token, of all streams before any is written. */
static ALWAYS_INLINE void mix_columns(const struct kern_stream_mix_args *a, u32 count, u32 t, u32 i, u32 n)
{
	const float *mix = a->mix + (size_t)t * a->mix_stride;
	const u32 inputs = count + (a->extra ? 1 : 0);
	float *streams = a->streams + (size_t)t * count * a->hidden + i;
	vec in[KERN_STREAMS_MAX + 1], picked = vec_zero();

	for (u32 p = 0; p < count; p++)
		in[p] = vec_load_n(streams + (size_t)p * a->hidden, n);
	if (a->extra)
		in[count] = vec_load_n(a->extra + (size_t)t * a->hidden + i, n);
	for (u32 q = 0; q < count; q++) {
		vec sum = vec_mul(vec_set1(mix[q * inputs]), in[0]);
		for (u32 p = 1; p < inputs; p++)
			sum = vec_fma(vec_set1(mix[q * inputs + p]), in[p], sum);
		vec_store_n(streams + (size_t)q * a->hidden, sum, n);
		if (q == a->pick)
			picked = sum;
	}
	if (a->out && a->out_weight)
		picked = vec_mul(picked, vec_load_n(a->out_weight + i, n));
	if (a->out)
		vec_store_n(a->out + (size_t)t * a->hidden + i, picked, n);
}

static ALWAYS_INLINE void mix_token(const struct kern_stream_mix_args *a, u32 count, u32 t)
{
	u32 i = 0;

	for (; i + VEC_LANES <= a->hidden; i += VEC_LANES)
		mix_columns(a, count, t, i, VEC_LANES);
	if (i < a->hidden)
		mix_columns(a, count, t, i, a->hidden - i);
}

static u32 tokens_a_task(const struct kern_stream_mix_args *a)
{
	return kern_rows_a_task(a->count * a->hidden);
}

/* Four, as all models so far have, in loops of which the compiler knows that. */
static void mix_tokens(void *arg, u32 task, u32 thread)
{
	const struct kern_stream_mix_args *a = arg;
	u32 count = tokens_a_task(a), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++)
		if (a->count == 4)
			mix_token(a, 4, t);
		else
			mix_token(a, a->count, t);
}

enum err VARIANT(stream_mix)(struct kern_ctx *ctx, const struct kern_stream_mix_args *a)
{
	struct kern_stream_mix_args args = *a;
	ASSERT(a->count > 0 && a->count <= KERN_STREAMS_MAX && a->pick < a->count);
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens, tokens_a_task(a)), mix_tokens, &args);
	return ERR_OK;
}

/* ---------------------------------------------------------------- moments */

static float sum_of(const float *x, u32 width)
{
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + SUMS * VEC_LANES <= width; i += SUMS * VEC_LANES)
#pragma GCC unroll 4
		for (u32 s = 0; s < SUMS; s++)
			sums[s] = vec_add(sums[s], vec_load(x + i + s * VEC_LANES));
	for (; i < width; i += VEC_LANES)
		sums[0] = vec_add(sums[0], vec_load_n(x + i, kern_min(width - i, VEC_LANES)));
	return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

/* Lanes behind the end hold the mean itself, whose distance is 0. */
static float distances_of(const float *x, u32 width, float mean)
{
	const vec m = vec_set1(mean);
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + SUMS * VEC_LANES <= width; i += SUMS * VEC_LANES)
#pragma GCC unroll 4
		for (u32 s = 0; s < SUMS; s++) {
			vec far = vec_sub(vec_load(x + i + s * VEC_LANES), m);
			sums[s] = vec_fma(far, far, sums[s]);
		}
	for (; i < width; i += VEC_LANES) {
		u32 n = kern_min(width - i, VEC_LANES);
		vec far = vec_sub(vec_select_n(vec_load_n(x + i, n), m, n), m);
		sums[0] = vec_fma(far, far, sums[0]);
	}
	return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static void moments_rows(void *arg, u32 task, u32 thread)
{
	const struct kern_moments_args *a = arg;
	u32 count = kern_rows_a_task(a->width), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		const float *x = a->x + (size_t)t * a->stride;
		const float mean = a->width ? sum_of(x, a->width) / (float)a->width : 0;
		a->out[2 * (size_t)t] = mean;
		a->out[2 * (size_t)t + 1] = distances_of(x, a->width, mean);
	}
}

enum err VARIANT(moments)(struct kern_ctx *ctx, const struct kern_moments_args *a)
{
	struct kern_moments_args args = *a;
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens, kern_rows_a_task(a->width)), moments_rows, &args);
	return ERR_OK;
}
