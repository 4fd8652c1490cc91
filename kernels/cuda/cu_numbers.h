/* The words of kernels/cuda/cu.h for bits, approximations and conversions of numbers, for nvcc: a part of cu_device.h. Include cu.h, not
 * this. */
#ifndef TERCET_KERNELS_CUDA_CU_NUMBERS_H
#define TERCET_KERNELS_CUDA_CU_NUMBERS_H

CU_DEVICE u32 cu_bits(float v)
{
	return __float_as_uint(v);
}

CU_DEVICE float cu_float(u32 bits)
{
	return __uint_as_float(bits);
}

CU_DEVICE float cu_exp2(float v)
{
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

CU_DEVICE float cu_log2(float v)
{
	float r;
	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

CU_DEVICE float cu_rcp(float v)
{
	float r;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

CU_DEVICE float cu_rsqrt(float v)
{
	return rsqrtf(v);
}

CU_DEVICE float cu_tanh(float v)
{
	float r;
	asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

CU_DEVICE u32 cu_popc(u32 v)
{
	return (u32)__popc(v);
}

CU_DEVICE u32 cu_clz(u32 v)
{
	return (u32)__clz((int)v);
}

CU_DEVICE u32 cu_ffs(u32 v)
{
	return (u32)__ffs((int)v);
}

CU_DEVICE u32 cu_mulhi(u32 a, u32 b)
{
	return __umulhi(a, b);
}

CU_DEVICE u32 cu_byte_perm(u32 a, u32 b, u32 selector)
{
	return __byte_perm(a, b, selector);
}

CU_DEVICE u32 cu_funnel_right(u32 lo, u32 hi, u32 shift)
{
	return __funnelshift_r(lo, hi, shift);
}

CU_DEVICE int cu_dp4a(u32 a, u32 b, int c)
{
	return __dp4a((int)a, (int)b, c);
}

CU_DEVICE int cu_round(float v)
{
	return __float2int_rn(v);
}

CU_DEVICE u32 cu_pack_bf16(float lo, float hi)
{
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

CU_DEVICE u32 cu_fma_bf16x2(u32 a, u32 b, u32 c)
{
	u32 r;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
	return r;
}

CU_DEVICE u32 cu_pack_f16(float lo, float hi)
{
	u32 r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

CU_DEVICE u32 cu_add_f16x2(u32 a, u32 b)
{
	u32 r;
	asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}

CU_DEVICE float cu_f16_to_f32(u16 v)
{
	float r;
	asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
	return r;
}

CU_DEVICE u16 cu_f32_to_f16(float v)
{
	u16 r;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
	return r;
}

/* The exponent of a half is 8 more than that of an e4m3 in the same place, so one multiplication by 2^8 converts
 * normal and subnormal numbers alike. NaN (0x7f) needs its own case. */
CU_DEVICE u32 cu_e4m3x2_to_f16x2(u16 pair)
{
	u32 r;
#if __CUDA_ARCH__ >= 890
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(pair));
#else
	u32 low = pair & 0xffu, high = (u32)pair >> 8;
	u32 spread = (low & 0x80u) << 8 | (low & 0x7fu) << 7 | (high & 0x80u) << 24 | (high & 0x7fu) << 23;
	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(spread), "r"(0x5c005c00u));
	if ((low & 0x7fu) == 0x7fu)
		r |= 0x7fffu;
	if ((high & 0x7fu) == 0x7fu)
		r |= 0x7fff0000u;
#endif
	return r;
}

CU_DEVICE float cu_e4m3_to_f32(u8 v)
{
	return cu_f16_to_f32((u16)cu_e4m3x2_to_f16x2(v));
}

/* Rounds to the nearest, ties to even; beyond 448 gives 448, NaN stays NaN. */
CU_DEVICE u8 cu_f32_to_e4m3(float v)
{
#if __CUDA_ARCH__ >= 890
	u16 r;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(v));
	return (u8)r;
#else
	u32 sign = __float_as_uint(v) >> 24 & 0x80u, bits;
	float a = fabsf(v);
	if (!(a == a))
		return (u8)(sign | 0x7fu);
	if (a >= 448.0f)
		return (u8)(sign | 0x7eu);
	if (a < 0x1p-6f) /* subnormal: a multiple of 2^-9 */
		return (u8)(sign | (u32)__float2int_rn(a * 512.0f));
	bits = __float_as_uint(a);
	bits += 0x7ffffu + (bits >> 20 & 1u);
	return (u8)(sign | ((bits >> 20) - (120u << 3)));
#endif
}

#endif
