/* Numbers as a device treats them: conversions between formats, bit operations, approximations. Pure functions,
 * used by device code under g++ and by the emulated matrix unit and libraries. */
#ifndef CUDA_EMU_NUMBERS_H
#define CUDA_EMU_NUMBERS_H

#include <math.h>
#include <string.h>

#include "common/types.h"

static inline u32 cu_bits(float v)
{
	u32 bits;
	memcpy(&bits, &v, sizeof(bits));
	return bits;
}

static inline float cu_float(u32 bits)
{
	float v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

/* Subnormal results are zero (.ftz). */
static inline float emu_flush(float v)
{
	return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v;
}

static inline float cu_exp2(float v)
{
	return emu_flush(exp2f(emu_flush(v)));
}

static inline float cu_log2(float v)
{
	return log2f(emu_flush(v));
}

static inline float cu_rcp(float v)
{
	return emu_flush(1.0f / emu_flush(v));
}

static inline float cu_rsqrt(float v)
{
	return 1.0f / sqrtf(v);
}

static inline float cu_tanh(float v)
{
	return tanhf(v);
}

static inline u32 cu_popc(u32 v)
{
	return (u32)__builtin_popcount(v);
}

static inline u32 cu_clz(u32 v)
{
	return v == 0 ? 32 : (u32)__builtin_clz(v);
}

static inline u32 cu_ffs(u32 v)
{
	return (u32)__builtin_ffs((int)v);
}

static inline u32 cu_mulhi(u32 a, u32 b)
{
	return (u32)((u64)a * b >> 32);
}

/* Byte i of the result is byte (selector >> 4i & 7) of b:a, or its sign in all bits where bit 3 is set. */
static inline u32 cu_byte_perm(u32 a, u32 b, u32 selector)
{
	u64 bytes = (u64)b << 32 | a;
	u32 r = 0;
	for (u32 i = 0; i < 4; i++) {
		u32 s = selector >> (4 * i) & 0xf, byte = (u32)(bytes >> (8 * (s & 7))) & 0xff;
		if (s & 8)
			byte = byte & 0x80 ? 0xff : 0;
		r |= byte << (8 * i);
	}
	return r;
}

static inline u32 cu_funnel_right(u32 lo, u32 hi, u32 shift)
{
	return (u32)(((u64)hi << 32 | lo) >> (shift & 31));
}

static inline int cu_dp4a(u32 a, u32 b, int c)
{
	u32 sum = (u32)c;
	for (u32 i = 0; i < 32; i += 8)
		sum += (u32)((i32)(int8_t)(a >> i) * (i32)(int8_t)(b >> i));
	return (int)sum;
}

/* Saturating, NaN gives 0: cvt.rni.s32.f32. */
static inline int cu_round(float v)
{
	if (!(v == v))
		return 0;
	if (v >= 0x1p31f)
		return INT32_MAX;
	return v <= -0x1p31f ? INT32_MIN : (int)rintf(v);
}

static inline u32 emu_bf16(float v)
{
	u32 bits = cu_bits(v);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return 0x7fff;
	return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static inline u32 cu_pack_bf16(float lo, float hi)
{
	return emu_bf16(lo) | emu_bf16(hi) << 16;
}

/* The product of two bf16 is exact in a float, and so is the sum in a double unless they are 2^37 apart. */
static inline u32 cu_fma_bf16x2(u32 a, u32 b, u32 c)
{
	u32 r = 0;
	for (u32 i = 0; i < 32; i += 16) {
		const float x = cu_float(a >> i << 16), y = cu_float(b >> i << 16), z = cu_float(c >> i << 16);
		r |= emu_bf16((float)((double)(x * y) + (double)z)) << i;
	}
	return r;
}

/* A half's exponent and mantissa, moved to a float's place, are off by 2^112: for subnormal numbers, too. */
static inline float cu_f16_to_f32(u16 v)
{
	u32 sign = (u32)(v & 0x8000u) << 16, magnitude = v & 0x7fffu;
	if (magnitude >= 0x7c00u)
		return cu_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
	return cu_float(sign | cu_bits(cu_float(magnitude << 13) * 0x1p112f));
}

static inline u16 cu_f32_to_f16(float v)
{
	u32 sign = cu_bits(v) >> 16 & 0x8000u, bits = cu_bits(v) & 0x7fffffffu;
	if (bits > 0x7f800000u)
		return 0x7fff;
	if (bits >= 0x477ff000u) /* 65520 and more */
		return (u16)(sign | 0x7c00u);
	if (bits < 0x38800000u) /* below 2^-14: a multiple of 2^-24 */
		return (u16)(sign | (u32)rintf(cu_float(bits) * 0x1p24f));
	bits += 0xfffu + (bits >> 13 & 1u);
	return (u16)(sign | ((bits >> 13) - (112u << 10)));
}

static inline u32 cu_pack_f16(float lo, float hi)
{
	return (u32)cu_f32_to_f16(lo) | (u32)cu_f32_to_f16(hi) << 16;
}

/* A float has 24 bits, two more than twice a half's 11: rounded to it first, a sum is rounded to a half as if at once. */
static inline u32 cu_add_f16x2(u32 a, u32 b)
{
	return cu_pack_f16(cu_f16_to_f32((u16)a) + cu_f16_to_f32((u16)b),
			   cu_f16_to_f32((u16)(a >> 16)) + cu_f16_to_f32((u16)(b >> 16)));
}

static inline float cu_e4m3_to_f32(u8 v)
{
	u32 sign = (u32)(v & 0x80u) << 24, magnitude = v & 0x7fu;
	if (magnitude == 0x7f)
		return cu_float(sign | 0x7fc00000u);
	return cu_float(sign | cu_bits(cu_float(magnitude << 20) * 0x1p120f));
}

static inline u32 cu_e4m3x2_to_f16x2(u16 pair)
{
	return cu_pack_f16(cu_e4m3_to_f32((u8)pair), cu_e4m3_to_f32((u8)(pair >> 8)));
}

/* To the nearest, ties to even; beyond 448 gives 448. */
static inline u8 cu_f32_to_e4m3(float v)
{
	u32 sign = cu_bits(v) >> 24 & 0x80u, bits = cu_bits(v) & 0x7fffffffu;
	if (bits > 0x7f800000u)
		return 0x7f;
	if (bits >= 0x43e00000u) /* 448 */
		return (u8)(sign | 0x7eu);
	if (bits < 0x3c800000u) /* below 2^-6: a multiple of 2^-9 */
		return (u8)(sign | (u32)rintf(cu_float(bits) * 0x1p9f));
	bits += 0x7ffffu + (bits >> 20 & 1u);
	return (u8)(sign | ((bits >> 20) - (120u << 3)));
}

#endif
