/* Rounding rows of floats to bfloat16 and lacing them into each other, a pair of values of every row side by side, as the
 * products of pairs read them. For objects with AVX-512 and BF16. */
#ifndef TERCET_KERNELS_CPU_LACE_BF16_PRIV_H
#define TERCET_KERNELS_CPU_LACE_BF16_PRIV_H

#include "kernels/cpu/vec_priv.h"

#if defined(__AVX512BF16__) && defined(VEC_LANES)

enum {
	LACE_UNITS = 16, /* pairs of every row that are laced at once */
	LACE_ROWS = 4,
};

/* LACE_UNITS pairs of x * factor; zeros from the count-th value on. */
static inline __attribute__((always_inline)) __m512i lace_round(const float *x, u32 count, vec factor)
{
	vec low = vec_load_n(x, kern_min(count, VEC_LANES));
	vec high = count > VEC_LANES ? vec_load_n(x + VEC_LANES, count - VEC_LANES) : vec_zero();
	return (__m512i)_mm512_cvtne2ps_pbh(vec_mul(high, factor), vec_mul(low, factor));
}

/* The first `units` pairs of four neighbouring rows to [units][rows]; `to`: of the first of the four. */
static inline __attribute__((always_inline)) void lace_store(const __m512i row[LACE_ROWS], char *to, u32 rows, u32 units)
{
	__m512i low[2] = {_mm512_unpacklo_epi32(row[0], row[1]), _mm512_unpacklo_epi32(row[2], row[3])};
	__m512i high[2] = {_mm512_unpackhi_epi32(row[0], row[1]), _mm512_unpackhi_epi32(row[2], row[3])};
	/* Lane l of four[u] has unit 4 * l + u. */
	const __m512i four[] = {_mm512_unpacklo_epi64(low[0], low[1]), _mm512_unpackhi_epi64(low[0], low[1]),
				_mm512_unpacklo_epi64(high[0], high[1]), _mm512_unpackhi_epi64(high[0], high[1])};
#define LACE_LANE(l)                                                                                    \
	_Pragma("GCC unroll 4") for (u32 u = 0; u < 4; u++) if ((l) * 4 + u < units)                    \
		_mm_storeu_si128((__m128i *)(void *)(to + ((l) * 4 + u) * (size_t)rows * 4),            \
				 _mm512_extracti32x4_epi32(four[u], l));
	LACE_LANE(0)
	LACE_LANE(1)
	LACE_LANE(2)
	LACE_LANE(3)
#undef LACE_LANE
}

#endif

#endif
