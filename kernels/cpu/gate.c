/* Norms and gates in front of a block's last product. A task has some groups; of each, sums of squares first, where it has a norm. */
#include <math.h>

#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"

/* x times its gate, of `count` vectors of which the last has n lanes. */
static ALWAYS_INLINE void gated(const struct kern_gate_args *a, const float *x, const float *gate, vec *out, const u32 count, u32 n)
{
	vec g[VECS_BESIDE];
	EACH_BESIDE(i, count) g[i] = vec_load_n(gate + i * VEC_LANES, i + 1 < count ? VEC_LANES : n);
	if (a->sigmoid)
		vec_sigmoids(g, count, out);
	else
		vec_silus(g, count, out);
	EACH_BESIDE(i, count) out[i] = vec_mul(out[i], vec_load_n(x + i * VEC_LANES, i + 1 < count ? VEC_LANES : n));
}

/* x = x * f(gate), and with `weight` * scale * weight. */
static ALWAYS_INLINE void gate_vectors(const struct kern_gate_args *a, float *x, const float *gate, const float *weight, vec scale, const u32 count, u32 n)
{
	vec v[VECS_BESIDE];
	gated(a, x, gate, v, count, n);
	EACH_BESIDE(i, count)
	{
		const u32 lanes = i + 1 < count ? VEC_LANES : n;
		if (weight)
			v[i] = vec_mul(vec_mul(v[i], scale), vec_load_n(weight + i * VEC_LANES, lanes));
		vec_store_n(x + i * VEC_LANES, v[i], lanes);
	}
}

static void gate_all(const struct kern_gate_args *a, float *x, const float *gate, const float *weight, float scale)
{
	u32 i = 0;
	for (; i + VECS_BESIDE * VEC_LANES <= a->width; i += VECS_BESIDE * VEC_LANES)
		gate_vectors(a, x + i, gate + i, weight ? weight + i : NULL, vec_set1(scale), VECS_BESIDE, VEC_LANES);
	for (; i < a->width; i += VEC_LANES)
		gate_vectors(a, x + i, gate + i, weight ? weight + i : NULL, vec_set1(scale), 1, kern_min(a->width - i, VEC_LANES));
}

static float norm_scale(const struct kern_gate_args *a, const float *x)
{
	enum { SUMS = 4 };
	vec sums[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
	u32 i = 0;
	for (; i + SUMS * VEC_LANES <= a->width; i += SUMS * VEC_LANES)
#pragma GCC unroll 4
		for (u32 s = 0; s < SUMS; s++) {
			const vec v = vec_load(x + i + s * VEC_LANES);
			sums[s] = vec_fma(v, v, sums[s]);
		}
	for (; i < a->width; i += VEC_LANES) {
		const vec v = vec_load_n(x + i, kern_min(a->width - i, VEC_LANES));
		sums[0] = vec_fma(v, v, sums[0]);
	}
	return 1 / sqrtf(vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3]))) / (float)a->width + a->eps);
}

static void weigh(float *x, const float *weight, float scale, u32 width)
{
	for (u32 i = 0; i < width; i += VEC_LANES) {
		const u32 n = kern_min(width - i, VEC_LANES);
		vec_store_n(x + i, vec_mul(vec_mul(vec_load_n(x + i, n), vec_set1(scale)), vec_load_n(weight + i, n)), n);
	}
}

static void gate_group(const struct kern_gate_args *a, u32 t, u32 g)
{
	const size_t in_token = (size_t)g * a->width, at = (size_t)t * a->stride + in_token;
	const float *weight = a->weight && a->weights_apart ? a->weight + in_token : a->weight;
	float *x = a->x + at;
	if (weight && a->gate_first) {
		gate_all(a, x, a->gate + at, NULL, 1);
		weigh(x, weight, norm_scale(a, x), a->width);
	} else
		gate_all(a, x, a->gate + at, weight, weight ? norm_scale(a, x) : 1);
}

static void groups(void *arg, u32 task, u32 thread)
{
	const struct kern_gate_args *a = arg;
	const u32 count = kern_rows_a_task(a->width), end = kern_min((task + 1) * count, a->tokens * a->groups);
	(void)thread;
	for (u32 i = task * count; i < end; i++)
		gate_group(a, i / a->groups, i % a->groups);
}

enum err VARIANT(gate)(struct kern_ctx *ctx, const struct kern_gate_args *a)
{
	struct kern_gate_args args = *a;
	parallel_near(ctx, a->tokens, kern_ceil(a->tokens * a->groups, kern_rows_a_task(a->width)), groups, &args);
	return ERR_OK;
}
