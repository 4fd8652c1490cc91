/* Norms over all heads of q and of k together for AVX2. A row is one task's; four running sums. */
#include <math.h>

#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { SUMS = 4 };

static float squares_of(const float *x, u32 width)
{
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + SUMS * VEC_LANES <= width; i += SUMS * VEC_LANES)
#pragma GCC unroll 4
		for (u32 s = 0; s < SUMS; s++) {
			vec v = vec_load(x + i + s * VEC_LANES);
			sums[s] = vec_fma(v, v, sums[s]);
		}
	for (; i < width; i += VEC_LANES) {
		vec v = vec_load_n(x + i, kern_min(width - i, VEC_LANES));
		sums[0] = vec_fma(v, v, sums[0]);
	}
	return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static void scale(float *x, const float *weight, u32 width, float factor)
{
	vec f = vec_set1(factor);
	for (u32 i = 0; i < width; i += VEC_LANES) {
		u32 n = kern_min(width - i, VEC_LANES);
		vec_store_n(x + i, vec_mul(vec_mul(vec_load_n(x + i, n), f), vec_load_n(weight + i, n)), n);
	}
}

static void square_rows(void *arg, u32 task, u32 thread)
{
	const struct kern_qk_squares_args *a = arg;
	u32 count = kern_rows_a_task(a->q_width + a->k_width), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		const float *q = a->qkv + (size_t)t * a->stride;
		a->squares[2 * (size_t)t] = squares_of(q, a->q_width);
		a->squares[2 * (size_t)t + 1] = a->counts_k ? squares_of(q + a->q_width, a->k_width) : 0;
	}
}

static void norm_rows(void *arg, u32 task, u32 thread)
{
	const struct kern_qk_norm_args *a = arg;
	u32 count = kern_rows_a_task(a->q_width + a->k_width), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		const float *squares = a->squares + 2 * (size_t)t;
		float *q = a->qkv + (size_t)t * a->stride;
		scale(q, a->q_weight, a->q_width, 1 / sqrtf(squares[0] / (float)a->q_total + a->eps));
		scale(q + a->q_width, a->k_weight, a->k_width,
		      1 / sqrtf(squares[1] / (float)a->k_total + a->eps));
	}
}

enum err VARIANT(qk_squares)(struct kern_ctx *ctx, const struct kern_qk_squares_args *a)
{
	struct kern_qk_squares_args args = *a;
	kern_parallel(ctx, kern_ceil(a->tokens, kern_rows_a_task(a->q_width + a->k_width)), square_rows,
		      &args);
	return ERR_OK;
}

enum err VARIANT(qk_norm)(struct kern_ctx *ctx, const struct kern_qk_norm_args *a)
{
	struct kern_qk_norm_args args = *a;
	kern_parallel(ctx, kern_ceil(a->tokens, kern_rows_a_task(a->q_width + a->k_width)), norm_rows, &args);
	return ERR_OK;
}
