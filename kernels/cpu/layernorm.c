/* Residual addition and LayerNorm for AVX2 and AVX-512. A row is one task's; four running sums. The squares are those of
 * distances from the mean, so that a mean far from 0 costs no digits. */
#include <math.h>

#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { SUMS = 4 };

static float total(const vec *sums)
{
	return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

/* x += add, and the sum of x. */
static float add_and_sum(float *x, const float *add, u32 hidden)
{
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	for (u32 i = 0, s = 0; i < hidden; i += VEC_LANES, s = (s + 1) % SUMS) {
		u32 n = kern_min(hidden - i, VEC_LANES);
		vec v = vec_load_n(x + i, n);
		if (add) {
			v = vec_add(v, vec_load_n(add + i, n));
			vec_store_n(x + i, v, n);
		}
		sums[s] = vec_add(sums[s], v);
	}
	return total(sums);
}

static float squares(const float *x, float mean, u32 hidden)
{
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()}, middle = vec_set1(mean);
	for (u32 i = 0, s = 0; i < hidden; i += VEC_LANES, s = (s + 1) % SUMS) {
		u32 n = kern_min(hidden - i, VEC_LANES);
		vec v = vec_sub(vec_load_n(x + i, n), middle);
		v = n < VEC_LANES ? vec_select_n(v, vec_zero(), n) : v;
		sums[s] = vec_fma(v, v, sums[s]);
	}
	return total(sums);
}

static void norm_row(float *out, const float *x, float mean, float scale, const struct kern_layernorm_args *a)
{
	vec middle = vec_set1(mean), factor = vec_set1(scale);
	for (u32 i = 0; i < a->hidden; i += VEC_LANES) {
		u32 n = kern_min(a->hidden - i, VEC_LANES);
		vec v = vec_mul(vec_sub(vec_load_n(x + i, n), middle), factor);
		v = vec_mul(v, vec_load_n(a->weight + i, n));
		vec_store_n(out + i, a->bias ? vec_add(v, vec_load_n(a->bias + i, n)) : v, n);
	}
}

static void rows(void *arg, u32 task, u32 thread)
{
	const struct kern_layernorm_args *a = arg;
	u32 count = kern_rows_a_task(a->hidden), end = kern_min((task + 1) * count, a->tokens);
	float width = (float)a->hidden;
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		size_t at = (size_t)t * a->hidden;
		float mean = add_and_sum(a->x + at, a->add ? a->add + at : NULL, a->hidden) / width;
		if (a->out)
			norm_row(a->out + at, a->x + at, mean,
				 1 / sqrtf(squares(a->x + at, mean, a->hidden) / width + a->eps), a);
	}
}

enum err VARIANT(layernorm)(struct kern_ctx *ctx, const struct kern_layernorm_args *a)
{
	struct kern_layernorm_args args = *a;
	kern_parallel(ctx, kern_ceil(a->tokens, kern_rows_a_task(a->hidden)), rows, &args);
	return ERR_OK;
}
