/* How inputs of products of many rows with weights in 8 and 4 bits are rounded with AVX-512, 8 rows at once: cpu/rounding_priv.h's rules, to the bit. */
#ifndef TERCET_KERNELS_CPU_MATMUL_ROUND_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_ROUND_AVX512_PRIV_H

#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/rounding_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum {
	ROUND_ROWS = 8,
	ROUND_CHUNK = 64, /* values of a row that are rounded at once */
};

/* The largest lane of each of 8 vectors of unsigned numbers. */
static ALWAYS_INLINE __m256i highest_of_eight(const __m512i rows[ROUND_ROWS])
{
	const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13));
	__m512i pair[4], four[2], all;
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		pair[i] = _mm512_max_epu32(_mm512_shuffle_i32x4(rows[2 * i], rows[2 * i + 1], 0x44),
					   _mm512_shuffle_i32x4(rows[2 * i], rows[2 * i + 1], 0xee));
#pragma GCC unroll 2
	for (u32 i = 0; i < 2; i++) /* a lane of 128 bits is a row */
		four[i] = _mm512_max_epu32(_mm512_shuffle_i32x4(pair[2 * i], pair[2 * i + 1], 0x88),
					   _mm512_shuffle_i32x4(pair[2 * i], pair[2 * i + 1], 0xdd));
	all = _mm512_max_epu32(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
	all = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
	return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, all));
}

/* largest_bits of 8 rows. */
static ALWAYS_INLINE __m256i largest_of_eight(const float *const x[ROUND_ROWS], u32 count)
{
	const __m512i sign = _mm512_set1_epi32(0x7fffffff);
	__m512i most[ROUND_ROWS];
#pragma GCC unroll 8
	for (u32 r = 0; r < ROUND_ROWS; r++) {
		most[r] = _mm512_and_si512(_mm512_castps_si512(vec_load(x[r])), sign);
#pragma GCC unroll 8
		for (u32 i = VEC_LANES; i < count; i += VEC_LANES)
			most[r] = _mm512_max_epu32(most[r],
						   _mm512_and_si512(_mm512_castps_si512(vec_load(x[r] + i)), sign));
	}
	return highest_of_eight(most);
}

/* rounding_by_eighths of 8 rows, to the bit; and whether that makes scales that BLOCKED_EIGHTHS cannot do with. */
static ALWAYS_INLINE bool eighth_scales(__m256i bits, float inverse[ROUND_ROWS], __m256 *scale)
{
	const __m256i rest = _mm256_set1_epi32((1 << EIGHTHS_SHIFT) - 1);
	__mmask8 finite = _mm256_cmplt_epu32_mask(bits, _mm256_set1_epi32(0x7f800000));
	__m256 share = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(1 / EIGHTHS_MOST));
	__m256i eighths = _mm256_andnot_si256(rest, _mm256_add_epi32(_mm256_castps_si256(share), rest));
	eighths = _mm256_max_epu32(eighths, _mm256_set1_epi32(POWER_LEAST << POWER_SHIFT));
	__m256 back = _mm256_div_ps(_mm256_set1_ps(1), _mm256_castsi256_ps(eighths));
	_mm256_storeu_ps(inverse, _mm256_maskz_mov_ps(finite, back));
	*scale = _mm256_mask_mov_ps(_mm256_set1_ps(NAN), finite, _mm256_castsi256_ps(eighths));
	return _mm256_cmpge_epu32_mask(eighths, _mm256_set1_epi32((POWER_MOST + 1) << POWER_SHIFT)) != 0 || finite != 0xff;
}

/* The same of rounding_by_power. */
static ALWAYS_INLINE bool power_scales(__m256i bits, float inverse[ROUND_ROWS], __m256 *scale)
{
	const __m256i six = _mm256_set1_epi32(6);
	__m256i power = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x10000)), POWER_SHIFT);
	power = _mm256_sub_epi32(_mm256_max_epu32(power, _mm256_set1_epi32(POWER_LEAST + 6)), six);
	__mmask8 finite = _mm256_cmplt_epu32_mask(bits, _mm256_set1_epi32(0x7f800000));
	__m256i back = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), power), POWER_SHIFT);
	_mm256_storeu_ps(inverse, _mm256_maskz_mov_ps(finite, _mm256_castsi256_ps(back)));
	*scale = _mm256_mask_mov_ps(_mm256_set1_ps(NAN), finite,
				    _mm256_castsi256_ps(_mm256_slli_epi32(power, POWER_SHIFT)));
	return _mm256_cmpgt_epu32_mask(power, _mm256_set1_epi32(POWER_MOST)) != 0 || finite != 0xff;
}

/* ROUND_CHUNK values, rounded. Lane l of 128 bits holds units l, 4 + l, 8 + l and 12 + l. */
static ALWAYS_INLINE __m512i round_chunk(const float *x, float inverse)
{
	__m512i whole[4];
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		whole[i] = _mm512_cvtps_epi32(vec_mul(vec_load(x + i * VEC_LANES), vec_set1(inverse)));
	return _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
}

/* How 8 rows of a group are rounded. */
struct group_scales {
	float inverse[ROUND_ROWS];
	__m256 scale;
	bool any; /* blocked_kernel.pack's answer */
};

/* Those of `count` values, a multiple of ROUND_CHUNK. */
static ALWAYS_INLINE void find_scales(const float *const row[ROUND_ROWS], u32 k, u32 count, bool int8, struct group_scales *s)
{
	const float *x[ROUND_ROWS];
#pragma GCC unroll 8
	for (u32 r = 0; r < ROUND_ROWS; r++)
		x[r] = row[r] + k;
	__m256i bits = count == ROUND_CHUNK ? largest_of_eight(x, ROUND_CHUNK) : largest_of_eight(x, 2 * ROUND_CHUNK);
	s->any = int8 ? eighth_scales(bits, s->inverse, &s->scale) : power_scales(bits, s->inverse, &s->scale);
}

/* Values of the group at k that 8 rows at once can do with; 0: none. */
static inline u32 whole_values(const struct blocked_job *j, u32 k, u32 end)
{
	u32 own = k < end ? kern_min(end - k, j->width) : 0;
	return j->a->w->order || own % ROUND_CHUNK != 0 ? 0 : own;
}

#endif
#endif
