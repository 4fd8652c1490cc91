/* Rows of 4-byte units laid side by side, for tiles that take one unit of every row after the other. For files compiled for
 * AVX2. */
#ifndef TERCET_KERNELS_CPU_LACE_UNITS_PRIV_H
#define TERCET_KERNELS_CPU_LACE_UNITS_PRIV_H

#include <string.h>

#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

#if VEC_LANES == 16
enum {
	LACE_UNITS = 16, /* of every row that are laced at once */
	LACE_ROWS = 4,
};

/* The first `count` units of four neighbouring rows to [units][rows]; `to`: of the first of the four. */
static ALWAYS_INLINE void lace_store(const __m512i row[LACE_ROWS], char *to, u32 rows, u32 count)
{
	__m512i low[2] = {_mm512_unpacklo_epi32(row[0], row[1]), _mm512_unpacklo_epi32(row[2], row[3])};
	__m512i high[2] = {_mm512_unpackhi_epi32(row[0], row[1]), _mm512_unpackhi_epi32(row[2], row[3])};
	/* Lane l of four[u] has unit 4 * l + u. */
	const __m512i four[] = {_mm512_unpacklo_epi64(low[0], low[1]), _mm512_unpackhi_epi64(low[0], low[1]),
				_mm512_unpacklo_epi64(high[0], high[1]), _mm512_unpackhi_epi64(high[0], high[1])};
#define LACE_LANE(l)                                                                                    \
	_Pragma("GCC unroll 4") for (u32 u = 0; u < 4; u++) if ((l) * 4 + u < count)                    \
		_mm_storeu_si128((__m128i *)(void *)(to + ((l) * 4 + u) * (size_t)rows * 4),            \
				 _mm512_extracti32x4_epi32(four[u], l));
	LACE_LANE(0)
	LACE_LANE(1)
	LACE_LANE(2)
	LACE_LANE(3)
#undef LACE_LANE
}

/* `count` values of `rows` rows of floats, LACE_ROWS at least, `stride` apart, to [count][rows]. */
static ALWAYS_INLINE void lace_floats(const float *x, size_t stride, u32 rows, u32 count, char *to)
{
	for (u32 done = 0; done < count; done += LACE_UNITS, to += (size_t)LACE_UNITS * rows * 4) {
		const u32 units = kern_min(count - done, LACE_UNITS);
		for (u32 r = 0; r < rows; r += LACE_ROWS) {
			/* The last four rows: some of them may be here a second time. */
			const u32 first = kern_min(r, rows - LACE_ROWS);
			__m512i row[LACE_ROWS];
#pragma GCC unroll 4
			for (u32 i = 0; i < LACE_ROWS; i++)
				row[i] = _mm512_castps_si512(vec_load_n(x + (first + i) * stride + done, units));
			if (units == LACE_UNITS)
				lace_store(row, to + first * 4, rows, LACE_UNITS);
			else
				lace_store(row, to + first * 4, rows, units);
		}
	}
}
#endif

/* Four units of each of four rows, `stride` units apart, to [unit][rows]. */
static inline void lace_four(const float *from, size_t stride, u32 rows, float *to)
{
	__m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + stride), c = _mm_loadu_ps(from + 2 * stride),
	       d = _mm_loadu_ps(from + 3 * stride);
	_MM_TRANSPOSE4_PS(a, b, c, d);
	_mm_storeu_ps(to, a);
	_mm_storeu_ps(to + rows, b);
	_mm_storeu_ps(to + 2 * rows, c);
	_mm_storeu_ps(to + 3 * rows, d);
}

/* Units of two rows that lie side by side; they begin at any unit. */
static inline void lace_store_two(float *to, long long units)
{
	memcpy(to, &units, sizeof(units));
}

/* The same of two rows. */
static inline void lace_two(const float *from, size_t stride, u32 rows, float *to)
{
	__m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + stride);
	__m128i low = _mm_castps_si128(_mm_unpacklo_ps(a, b)), high = _mm_castps_si128(_mm_unpackhi_ps(a, b));
	lace_store_two(to, _mm_cvtsi128_si64(low));
	lace_store_two(to + rows, _mm_extract_epi64(low, 1));
	lace_store_two(to + 2 * rows, _mm_cvtsi128_si64(high));
	lace_store_two(to + 3 * rows, _mm_extract_epi64(high, 1));
}

/* `count` units of each of up to 7 rows, [row][stride], to [unit][rows]. Units are moved, whatever they hold. */
static inline void lace_units(const float *from, size_t stride, u32 rows, u32 count, float *to)
{
	u32 done = 0;
	for (; done + 4 <= count; done += 4, to += 4 * rows) {
		const float *row = from + done;
		u32 r = 0;
		if (rows >= 4) {
			lace_four(row, stride, rows, to);
			r = 4;
		}
		if (r + 2 <= rows) {
			lace_two(row + r * stride, stride, rows, to + r);
			r += 2;
		}
		if (r < rows)
			for (u32 i = 0; i < 4; i++)
				to[i * rows + r] = row[r * stride + i];
	}
	for (; done < count; done++, to += rows)
		for (u32 r = 0; r < rows; r++)
			to[r] = from[r * stride + done];
}

#endif
#endif
