/* Activations of a vector. For the files that compute them, one object per instruction set. */
#ifndef TERCET_KERNELS_CPU_ACTIVATION_PRIV_H
#define TERCET_KERNELS_CPU_ACTIVATION_PRIV_H

#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

/* e^(z^2) erfc(z) / t for t = 1 / (1 + 0.4 z): fitted to 6e-8 of itself for z from 0 to 9.5, behind which e^(-z^2) is 0. */
static const float ERFC[] = {0.0402682871f, -0.135474890f, 0.0738498867f, 0.0997208581f, 0.0715142265f,
			     0.196960524f,  0.200959206f,  0.226575628f,  0.225626305f};

/* max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, which is x erfc(-x / sqrt 2) / 2 without a difference of neighbours. */
static inline vec gelu(vec x)
{
	vec size = vec_abs(x), z = vec_mul(size, vec_set1(0.7071067812f));
	vec t = vec_div(vec_set1(1), vec_fma(z, vec_set1(0.4f), vec_set1(1)));
	vec p = vec_set1(ERFC[0]);
	for (u32 i = 1; i < COUNT_OF(ERFC); i++)
		p = vec_fma(p, t, vec_set1(ERFC[i]));
	vec erfc = vec_mul(vec_mul(p, t), vec_exp(vec_sub(vec_zero(), vec_mul(z, z))));
	return vec_sub(vec_max(vec_zero(), x), vec_mul(vec_mul(size, erfc), vec_set1(0.5f)));
}

/* The y of an activation that is x / (1 + e^-y): SiLU with y = x; GELU's tanh form with y = 2 sqrt(2 / pi) (x + 0.044715 x^3), for
 * (1 + tanh z) / 2 = 1 / (1 + e^-2z). */
static ALWAYS_INLINE vec activation_exponent(enum kern_activation act, vec x)
{
	if (act != KERN_GELU_TANH)
		return x;
	return vec_mul(vec_mul(x, vec_fma(vec_mul(x, x), vec_set1(0.044715f), vec_set1(1))), vec_set1(1.5957691216f));
}

/* a / b for b from 1 to 2^127, to 2^-23 of itself. A division of 512 bits takes 16 cycles of an Intel core, these steps 3. */
static ALWAYS_INLINE vec vec_ratio(vec a, vec b)
{
#if VEC_LANES == 16
	vec r = _mm512_rcp14_ps(b);
	r = vec_fma(r, _mm512_fnmadd_ps(b, r, vec_set1(1)), r);
	return vec_mul(a, r);
#else
	return vec_div(a, b);
#endif
}

/* x / (1 + e^-y) of `count` vectors, in `out`. */
static ALWAYS_INLINE void activate_dividing(enum kern_activation act, const vec *x, const u32 count, vec *out)
{
	EACH_BESIDE(i, count) out[i] = vec_mul(activation_exponent(act, x[i]), vec_set1(-LOG2_E));
	vec_exp2_beside(out, count);
	EACH_BESIDE(i, count) out[i] = vec_ratio(x[i], vec_add(vec_set1(1), out[i]));
}

static inline vec activate(enum kern_activation act, vec x)
{
	vec out;
	if (act == KERN_GELU)
		return gelu(x);
	if (act == KERN_RELU)
		return vec_max(vec_zero(), x);
	if (act == KERN_RELU_SQUARED)
		return vec_mul(x, vec_max(vec_zero(), x));
	activate_dividing(act, &x, 1, &out);
	return out;
}

/* The same bits of VECS_BESIDE vectors from x on. */
static inline void activate_beside(enum kern_activation act, const float *x, vec *out)
{
	vec in[VECS_BESIDE];
	EACH_BESIDE(i, VECS_BESIDE) in[i] = vec_load(x + i * VEC_LANES);
	if (act == KERN_GELU || act == KERN_RELU || act == KERN_RELU_SQUARED)
		for (u32 i = 0; i < VECS_BESIDE; i++)
			out[i] = activate(act, in[i]);
	else
		activate_dividing(act, in, VECS_BESIDE, out);
}

#endif
#endif
