/* Vectors of floats for sources that are compiled for processors without AVX2, too, with KERN_ISA `portable`: the names of vec_priv.h, which
 * vec_portable_priv.h has the arithmetic for there. And what the ops of layers with a state compute by them. */
#ifndef TERCET_KERNELS_CPU_VEC_ANY_PRIV_H
#define TERCET_KERNELS_CPU_VEC_ANY_PRIV_H

#include "kernels/cpu/activation_priv.h"

#ifndef VEC_LANES
#include "kernels/cpu/vec_portable_priv.h"

#define VEC_LANES 4
enum { VECS_BESIDE = 4 };
#define EACH_BESIDE(i, count) _Pragma("GCC unroll 4") for (u32 i = 0; i < (count); i++)

static ALWAYS_INLINE vec vec_zero(void)
{
	return vec_set1(0);
}

static ALWAYS_INLINE vec vec_load(const float *p)
{
	return load_floats(p);
}

static ALWAYS_INLINE void vec_store(float *p, vec v)
{
	store_floats(p, v);
}

static ALWAYS_INLINE vec vec_load_n(const float *p, u32 n)
{
	float few[VEC_LANES] = {0};
	if (n == VEC_LANES)
		return load_floats(p);
	for (u32 i = 0; i < n; i++)
		few[i] = p[i];
	return load_floats(few);
}

static ALWAYS_INLINE void vec_store_n(float *p, vec v, u32 n)
{
	if (n == VEC_LANES)
		store_floats(p, v);
	else
		for (u32 i = 0; i < n; i++)
			p[i] = v[i];
}

static ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return add_product(c, a, b);
}

static ALWAYS_INLINE vec vec_add(vec a, vec b)
{
	return a + b;
}

static ALWAYS_INLINE vec vec_sub(vec a, vec b)
{
	return a - b;
}

static ALWAYS_INLINE vec vec_mul(vec a, vec b)
{
	return a * b;
}

static ALWAYS_INLINE vec vec_div(vec a, vec b)
{
	return a / b;
}

static ALWAYS_INLINE vec vec_max(vec a, vec b)
{
	return larger(a, b);
}

static ALWAYS_INLINE vec vec_min(vec a, vec b)
{
	return select_lanes(a < b, a, b);
}

static ALWAYS_INLINE vec vec_abs(vec v)
{
	return floats_of(bits_of(v) & 0x7fffffffu);
}

static ALWAYS_INLINE float vec_sum(vec v)
{
	return sum_of_lanes(v);
}

static ALWAYS_INLINE vec vec_exp_negative(vec x)
{
	return exp_negative(x);
}

/* 1 / (1 + e^-x), and x times that, of `count` vectors, VECS_BESIDE at most. `out` is not x. */
static ALWAYS_INLINE void vec_sigmoids(const vec *x, const u32 count, vec *out)
{
	EACH_BESIDE(i, count)
	{
		const vec e = exp_negative(-vec_abs(x[i]));
		out[i] = select_lanes(x[i] >= 0, vec_set1(1), e) / (e + 1);
	}
}

static ALWAYS_INLINE void vec_silus(const vec *x, const u32 count, vec *out)
{
	vec_sigmoids(x, count, out);
	EACH_BESIDE(i, count) out[i] *= x[i];
}
#else
/* e^x for x <= 0: 0 where that is no normal number. */
static ALWAYS_INLINE vec vec_exp_negative(vec x)
{
	return vec_exp(x);
}

static ALWAYS_INLINE void vec_sigmoids(const vec *x, const u32 count, vec *out)
{
	EACH_BESIDE(i, count) out[i] = vec_mul(x[i], vec_set1(-LOG2_E));
	vec_exp2_beside(out, count);
	EACH_BESIDE(i, count) out[i] = vec_ratio(vec_set1(1), vec_add(vec_set1(1), out[i]));
}

static ALWAYS_INLINE void vec_silus(const vec *x, const u32 count, vec *out)
{
	activate_dividing(KERN_SILU, x, count, out);
}
#endif

/* log(1 + e^x): the larger of x and 0, and log(1 + y) for y = e^-|x|, from the series of 2 artanh(z), z = y / (2 + y) <= 1/3. */
static ALWAYS_INLINE vec vec_softplus(vec x)
{
	const vec y = vec_exp_negative(vec_sub(vec_zero(), vec_abs(x))), z = vec_div(y, vec_add(y, vec_set1(2))), square = vec_mul(z, z);
	vec p = vec_set1(2 / 15.0f);
#pragma GCC unroll 6
	for (u32 n = 13; n >= 3; n -= 2)
		p = vec_fma(p, square, vec_set1(2 / (float)n));
	return vec_add(vec_max(vec_zero(), x), vec_fma(vec_mul(p, square), z, vec_add(z, z)));
}

#endif
