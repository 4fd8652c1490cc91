/* Rounding rows of floats to bfloat16, for lacing them into each other (cpu/lace_units_priv.h), a pair of values of every row side by side, as
 * the products of pairs read them. For objects with AVX-512 and BF16. */
#ifndef TERCET_KERNELS_CPU_LACE_BF16_PRIV_H
#define TERCET_KERNELS_CPU_LACE_BF16_PRIV_H

#include "kernels/cpu/lace_units_priv.h"

#if defined(__AVX512BF16__) && defined(VEC_LANES)

/* LACE_UNITS pairs of x * factor; zeros from the count-th value on. */
static inline __attribute__((always_inline)) __m512i lace_round(const float *x, u32 count, vec factor)
{
	vec low = vec_load_n(x, kern_min(count, VEC_LANES));
	vec high = count > VEC_LANES ? vec_load_n(x + VEC_LANES, count - VEC_LANES) : vec_zero();
	return (__m512i)_mm512_cvtne2ps_pbh(vec_mul(high, factor), vec_mul(low, factor));
}

#endif

#endif
