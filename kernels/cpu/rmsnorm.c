/* Residual addition and RMSNorm for AVX2. A row is one task's; four running sums. Products of many rows norm their inputs by it, too. */
#include <math.h>

#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { SUMS = 4 };

/* x = (x + add) * factor, unless there is nothing to add, and the sum of its squares. */
static float add_and_square(float *x, const float *add, float factor, u32 hidden)
{
	const vec f = vec_set1(factor);
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + SUMS * VEC_LANES <= hidden; i += SUMS * VEC_LANES)
#pragma GCC unroll 4
		for (u32 s = 0; s < SUMS; s++) {
			float *at = x + i + s * VEC_LANES;
			vec v = vec_load(at);
			if (add) {
				v = vec_mul(vec_add(v, vec_load(add + i + s * VEC_LANES)), f);
				vec_store(at, v);
			}
			sums[s] = vec_fma(v, v, sums[s]);
		}
	for (; i < hidden; i += VEC_LANES) {
		u32 n = kern_min(hidden - i, VEC_LANES);
		vec v = vec_load_n(x + i, n);
		if (add) {
			v = vec_mul(vec_add(v, vec_load_n(add + i, n)), f);
			vec_store_n(x + i, v, n);
		}
		sums[0] = vec_fma(v, v, sums[0]);
	}
	return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static void scale_row(float *out, const float *x, const float *weight, float scale, u32 hidden)
{
	vec s = vec_set1(scale);
	u32 i = 0;
	for (; i + VEC_LANES <= hidden; i += VEC_LANES)
		vec_store(out + i, vec_mul(vec_mul(vec_load(x + i), s), vec_load(weight + i)));
	if (i < hidden) {
		u32 n = hidden - i;
		vec_store_n(out + i, vec_mul(vec_mul(vec_load_n(x + i, n), s), vec_load_n(weight + i, n)), n);
	}
}

static float factor_of(float squares, u32 hidden, float eps)
{
	return 1 / sqrtf(squares / (float)hidden + eps);
}

/* Without anything added nothing is written. */
static float row_factor(const float *x, u32 hidden, float eps)
{
	return factor_of(add_and_square((float *)(uintptr_t)x, NULL, 1, hidden), hidden, eps);
}

const struct blocked_norm blocked_norm_avx2 = {row_factor, scale_row};

static void rows(void *arg, u32 task, u32 thread)
{
	const struct kern_rmsnorm_args *a = arg;
	u32 count = kern_rows_a_task(a->hidden), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		size_t at = (size_t)t * a->hidden;
		float squares = add_and_square(a->x + at, a->add ? a->add + at : NULL, a->scale ? a->scale[0] : 1, a->hidden);
		if (a->out)
			scale_row(a->out + at, a->x + at, a->weight, factor_of(squares, a->hidden, a->eps), a->hidden);
	}
}

enum err VARIANT(rmsnorm)(struct kern_ctx *ctx, const struct kern_rmsnorm_args *a)
{
	struct kern_rmsnorm_args args = *a;
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens, kern_rows_a_task(a->hidden)), rows, &args);
	return ERR_OK;
}
