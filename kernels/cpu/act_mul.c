/* Gated activation for AVX2 and AVX-512 (one object each). */
#include "kernels/cpu/activation_priv.h"
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { WIDTH = 4096 }; /* of a row's part: threads share a single row, too */

static u32 parts_of(const struct kern_act_mul_args *a)
{
	return kern_ceil(a->size, WIDTH);
}

/* Columns [from, to) of a row of neighbours: gate, up. What is no number stays none: of two, min and max give the second
 * one where either is none. */
static void clamped_part(const struct kern_act_mul_args *a, const float *pairs, float *out, u32 from, u32 to)
{
	const vec limit = vec_set1(a->limit), least = vec_set1(-a->limit), alpha = vec_set1(-a->alpha), one = vec_set1(1);
	for (u32 i = from; i < to; i += VEC_LANES) {
		u32 n = kern_min(to - i, VEC_LANES), second = 2 * n > VEC_LANES ? 2 * n - VEC_LANES : 0;
		vec low = vec_load_n(pairs + 2 * (size_t)i, kern_min(2 * n, VEC_LANES));
		vec high = second ? vec_load_n(pairs + 2 * (size_t)i + VEC_LANES, second) : vec_zero();
		vec gate = vec_min(limit, vec_even(low, high));
		vec up = vec_max(least, vec_min(limit, vec_odd(low, high)));
		vec share = vec_div(gate, vec_add(one, vec_exp(vec_mul(alpha, gate))));
		vec_store_n(out + i, vec_mul(share, vec_add(up, one)), n);
	}
}

/* Lanes of `above` where x is above 0, of `below` elsewhere. */
static inline vec where_positive(vec x, vec above, vec below)
{
#if VEC_LANES == 16
	return _mm512_mask_mov_ps(below, _mm512_cmp_ps_mask(x, vec_zero(), _CMP_GT_OQ), above);
#else
	return _mm256_blendv_ps(below, above, _mm256_cmp_ps(x, vec_zero(), _CMP_GT_OQ));
#endif
}

/* e^x - 1 - x for x up to 0: near it by its series, where the difference would have few digits. */
static inline vec exp_beyond_line(vec x)
{
	const vec near = vec_set1(0.35f);
	vec series = vec_set1(1 / 5040.0f);
	series = vec_fma(series, x, vec_set1(1 / 720.0f));
	series = vec_fma(series, x, vec_set1(1 / 120.0f));
	series = vec_fma(series, x, vec_set1(1 / 24.0f));
	series = vec_fma(series, x, vec_set1(1 / 6.0f));
	series = vec_fma(series, x, vec_set1(1 / 2.0f));
	return where_positive(vec_sub(near, vec_abs(x)), vec_mul(series, vec_mul(x, x)), vec_sub(vec_sub(vec_exp(x), vec_set1(1)), x));
}

/* Columns [from, to) of a row. */
static void xielu_part(const float *n, const float *in, float *out, u32 from, u32 to)
{
	const vec positive = vec_set1(n[KERN_XIELU_POSITIVE]), negative = vec_set1(n[KERN_XIELU_NEGATIVE]);
	const vec beta = vec_set1(n[KERN_XIELU_BETA]), eps = vec_set1(n[KERN_XIELU_EPS]);
	for (u32 i = from; i < to; i += VEC_LANES) {
		u32 count = kern_min(to - i, VEC_LANES);
		vec x = vec_load_n(in + i, count), low = vec_min(x, eps);
		vec below = vec_mul(negative, vec_add(exp_beyond_line(low), vec_sub(low, x)));
		vec above = vec_mul(positive, vec_mul(x, x));
		vec_store_n(out + i, vec_fma(beta, x, where_positive(x, above, below)), count);
	}
}

/* Columns [from, to) of a row that is multiplied by `factor` first. */
static void multiplied_part(enum kern_activation act, float factor, const float *gate, const float *up, float *out, u32 from, u32 to)
{
	const vec f = vec_set1(factor);
	for (u32 i = from; i < to; i += VEC_LANES) {
		u32 n = kern_min(to - i, VEC_LANES);
		vec share = activate(act, vec_mul(f, vec_load_n(gate + i, n)));
		vec_store_n(out + i, vec_mul(share, vec_mul(f, vec_load_n(up + i, n))), n);
	}
}

/* Columns [from, to) of a row of whose gate only what is above `cutoff` counts. What is no number stays none: of two, max gives the second one where
 * either is none. */
static void cut_part(enum kern_activation act, float cutoff, const float *gate, const float *up, float *out, u32 from, u32 to)
{
	const vec c = vec_set1(cutoff);
	for (u32 i = from; i < to; i += VEC_LANES) {
		u32 n = kern_min(to - i, VEC_LANES);
		vec above = vec_max(vec_zero(), vec_sub(vec_load_n(gate + i, n), c));
		vec_store_n(out + i, vec_mul(activate(act, above), vec_load_n(up + i, n)), n);
	}
}

/* Columns [from, to) of row t. */
static void part_of_row(const struct kern_act_mul_args *a, u32 t, u32 from, u32 to)
{
	const float *gate = a->gate_up + (size_t)t * (a->ungated ? 1 : 2) * a->size, *up = gate + a->size;
	float *out = a->out + (size_t)t * a->size;
	u32 i = from;
	if (a->limit > 0) {
		clamped_part(a, a->gate_up + 2 * (size_t)t * a->size, out, from, to);
		return;
	}
	if (a->xielu) {
		xielu_part(a->xielu, gate, out, from, to);
		return;
	}
	if (a->factors) {
		multiplied_part(a->act, a->factors[t], gate, up, out, from, to);
		return;
	}
	if (a->cutoffs) {
		cut_part(a->act, a->cutoffs[t], gate, up, out, from, to);
		return;
	}
	for (; a->ungated && i < to; i += VEC_LANES) {
		u32 n = kern_min(to - i, VEC_LANES);
		vec_store_n(out + i, activate(a->act, vec_load_n(gate + i, n)), n);
	}
	for (; i + VECS_BESIDE * VEC_LANES <= to; i += VECS_BESIDE * VEC_LANES) {
		vec shares[VECS_BESIDE];
		activate_beside(a->act, gate + i, shares);
		EACH_BESIDE(v, VECS_BESIDE) vec_store(out + i + v * VEC_LANES, vec_mul(shares[v], vec_load(up + i + v * VEC_LANES)));
	}
	for (; i + VEC_LANES <= to; i += VEC_LANES)
		vec_store(out + i, vec_mul(activate(a->act, vec_load(gate + i)), vec_load(up + i)));
	if (i < to) {
		u32 n = to - i;
		vec_store_n(out + i, vec_mul(activate(a->act, vec_load_n(gate + i, n)), vec_load_n(up + i, n)), n);
	}
}

/* A part of a wide row, or some narrow rows. */
static void rows(void *arg, u32 task, u32 thread)
{
	const struct kern_act_mul_args *a = arg;
	u32 parts = parts_of(a), count = kern_rows_a_task(a->size), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	if (parts > 1) {
		u32 from = task % parts * WIDTH;
		part_of_row(a, task / parts, from, kern_min(from + WIDTH, a->size));
		return;
	}
	for (u32 t = task * count; t < end; t++)
		part_of_row(a, t, 0, a->size);
}

enum err VARIANT(act_mul)(struct kern_ctx *ctx, const struct kern_act_mul_args *a)
{
	struct kern_act_mul_args args = *a;
	u32 parts = parts_of(a);
	parallel_near(ctx, a->tokens, parts > 1 ? a->tokens * parts : kern_ceil(a->tokens, kern_rows_a_task(a->size)), rows, &args);
	return ERR_OK;
}
