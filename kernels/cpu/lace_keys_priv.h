/* Keys of neighbouring slots on their way into the cache: one 32-bit word of each lies beside the same word of the others, so
 * that words of up to 16 keys are stored at once. For files compiled for AVX2 and AVX-512. */
#ifndef TERCET_KERNELS_CPU_LACE_KEYS_PRIV_H
#define TERCET_KERNELS_CPU_LACE_KEYS_PRIV_H

#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

/* Words of keys as floats, [key][stride]: they are moved, whatever they hold. To [word][apart]. */
struct lace_keys {
	const float *from;
	float *to;
	size_t stride, apart;
};

#if VEC_LANES == 16
/* Words [d, d + 16) of 16 keys. */
static ALWAYS_INLINE void lace_sixteen(const struct lace_keys *l, u32 d)
{
	vec key[16], other[16];
#pragma GCC unroll 16
	for (u32 i = 0; i < 16; i++)
		key[i] = vec_load(l->from + i * l->stride + d);
#pragma GCC unroll 8
	for (u32 i = 0; i < 16; i += 2) {
		other[i] = _mm512_unpacklo_ps(key[i], key[i + 1]);
		other[i + 1] = _mm512_unpackhi_ps(key[i], key[i + 1]);
	}
#pragma GCC unroll 4
	for (u32 i = 0; i < 16; i += 4) /* quarter q of key[i + w]: word 4 q + w of the four keys from i on */
#pragma GCC unroll 2
		for (u32 k = 0; k < 2; k++) {
			key[i + 2 * k] = _mm512_shuffle_ps(other[i + k], other[i + k + 2], 0x44);
			key[i + 2 * k + 1] = _mm512_shuffle_ps(other[i + k], other[i + k + 2], 0xee);
		}
#pragma GCC unroll 4
	for (u32 w = 0; w < 4; w++) {
		vec even[2] = {_mm512_shuffle_f32x4(key[w], key[w + 4], 0x88), _mm512_shuffle_f32x4(key[w + 8], key[w + 12], 0x88)};
		vec odd[2] = {_mm512_shuffle_f32x4(key[w], key[w + 4], 0xdd), _mm512_shuffle_f32x4(key[w + 8], key[w + 12], 0xdd)};
		vec_store(l->to + (d + w) * l->apart, _mm512_shuffle_f32x4(even[0], even[1], 0x88));
		vec_store(l->to + (d + w + 4) * l->apart, _mm512_shuffle_f32x4(odd[0], odd[1], 0x88));
		vec_store(l->to + (d + w + 8) * l->apart, _mm512_shuffle_f32x4(even[0], even[1], 0xdd));
		vec_store(l->to + (d + w + 12) * l->apart, _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd));
	}
}
#endif

/* Words [d, d + 8) of the eight keys from the k-th on. */
static ALWAYS_INLINE void lace_eight(const struct lace_keys *l, u32 k, u32 d)
{
	__m256 key[8], pair[8];
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++) { /* four words of key i, and of key i + 4 */
		const float *low = l->from + (k + i) * l->stride + d, *high = low + 4 * l->stride;
		key[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
		key[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
	}
#pragma GCC unroll 4
	for (u32 i = 0; i < 8; i += 2) {
		pair[i] = _mm256_unpacklo_ps(key[i], key[i + 1]);
		pair[i + 1] = _mm256_unpackhi_ps(key[i], key[i + 1]);
	}
#pragma GCC unroll 2
	for (u32 i = 0; i < 8; i += 4)
#pragma GCC unroll 2
		for (u32 j = 0; j < 2; j++) {
			float *to = l->to + (d + i + 2 * j) * l->apart + k;
			_mm256_storeu_ps(to, _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44));
			_mm256_storeu_ps(to + l->apart, _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee));
		}
}

/* Words of up to 16 keys. */
static inline void lace_keys(const struct lace_keys *l, u32 keys, u32 words)
{
	u32 whole = 0;
#if VEC_LANES == 16
	for (; keys == 16 && whole + 16 <= words; whole += 16)
		lace_sixteen(l, whole);
#endif
	for (u32 k = 0, part; k < keys; k += part) {
		const float *from = l->from + k * l->stride;
		float *to = l->to + k;
		u32 d = whole;
		part = keys - k >= 8 ? 8 : keys - k >= 4 ? 4 : 1;
		for (; part == 8 && d + 8 <= words; d += 8)
			lace_eight(l, k, d);
		for (; part == 4 && d + 4 <= words; d += 4)
			lace_four(from + d, l->stride, (u32)l->apart, to + d * l->apart);
		for (; d < words; d++)
			for (u32 i = 0; i < part; i++)
				memcpy(to + d * l->apart + i, from + i * l->stride + d, sizeof(float));
	}
}

#endif

#endif
