/* Vectors of four floats in the compiler's own terms, for processors that none of the variants with intrinsics is for (NEON, SSE2). */
#ifndef TERCET_KERNELS_CPU_VEC_PORTABLE_PRIV_H
#define TERCET_KERNELS_CPU_VEC_PORTABLE_PRIV_H

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/cpu/checked_priv.h"
#include "kernels/cpu/exp_terms_priv.h"
#include "kernels/kern_priv.h"

enum { LANES = 4 }; /* registers of 128 bits */

typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef u32 uvec __attribute__((vector_size(LANES * sizeof(u32)), aligned(4)));
typedef i32 ivec __attribute__((vector_size(LANES * sizeof(i32)), aligned(4)));
typedef u16 halves __attribute__((vector_size(LANES * sizeof(u16)), aligned(2)));

static ALWAYS_INLINE vec vec_set1(float x)
{
	return (vec){x, x, x, x};
}

static ALWAYS_INLINE vec load_floats(const void *p)
{
	vec v;
	memcpy(&v, p, sizeof(v));
	return v;
}

static ALWAYS_INLINE void store_floats(void *p, vec v)
{
	memcpy(p, &v, sizeof(v));
}

static ALWAYS_INLINE uvec load_words(const void *p)
{
	uvec w;
	memcpy(&w, p, sizeof(w));
	return w;
}

static ALWAYS_INLINE vec floats_of(uvec bits)
{
	vec v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

static ALWAYS_INLINE uvec bits_of(vec v)
{
	uvec w;
	memcpy(&w, &v, sizeof(w));
	return w;
}

static ALWAYS_INLINE vec load_bf16(const void *p)
{
	halves h;
	memcpy(&h, p, sizeof(h));
	return floats_of(__builtin_convertvector(h, uvec) << 16);
}

/* sum + a * b, rounded once where the processor does so in one instruction. */
static ALWAYS_INLINE vec add_product(vec sum, vec a, vec b)
{
#if defined(__aarch64__)
	return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
	return sum + a * b;
#endif
}

/* Lanes of a where `mask` has all bits set, of b where it has none. */
static ALWAYS_INLINE vec select_lanes(ivec mask, vec a, vec b)
{
	const uvec m = (uvec)mask;
	return floats_of((bits_of(a) & m) | (bits_of(b) & ~m));
}

/* The larger one; b where a is no number. */
static ALWAYS_INLINE vec larger(vec a, vec b)
{
	return select_lanes(a > b, a, b);
}

static ALWAYS_INLINE float largest_lane(vec v)
{
	const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
	return a > b ? a : b;
}

static ALWAYS_INLINE float sum_of_lanes(vec v)
{
	return (v[0] + v[2]) + (v[1] + v[3]);
}

/* e^x for x <= 0: exactly 1 for 0, 0 for what is below some -61 or no number. */
static ALWAYS_INLINE vec exp_negative(vec x)
{
	const vec magic = vec_set1(0x1.8p23f); /* added, it leaves the nearest whole number in the lowest bits */
	x = larger(x, vec_set1(EXP_LEAST));
	const vec whole = x * vec_set1(LOG2_E) + magic, rest = add_product(magic - whole, x, vec_set1(LOG2_E));
	vec p = vec_set1(EXP2_TERMS[0]);
#pragma GCC unroll 8
	for (u32 c = 1; c < COUNT_OF(EXP2_TERMS); c++)
		p = add_product(vec_set1(EXP2_TERMS[c]), p, rest);
	const vec result = floats_of(bits_of(p) + (bits_of(whole) << 23));
	return select_lanes(whole > vec_set1(0x1.8p23f + EXP_LEAST_POWER), result, vec_set1(0));
}

#endif
