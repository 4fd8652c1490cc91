/* Conversions and bit operations, as a device has them. */
#include <criterion/criterion.h>

#include "kernels/cuda/cu.h"

Test(cuda_emu_numbers, every_half_goes_to_float_and_back)
{
	for (u32 i = 0; i < 0x10000; i++) {
		float v = cu_f16_to_f32((u16)i);
		if ((i & 0x7fff) > 0x7c00)
			cr_assert(v != v);
		else
			cr_assert_eq(cu_f32_to_f16(v), i, "%04x gave %g", i, (double)v);
	}
	cr_assert_eq(cu_f16_to_f32(0x3c01), 1.0f + 0x1p-10f);
	cr_assert_eq(cu_f16_to_f32(0x0001), 0x1p-24f);
	cr_assert_eq(cu_f16_to_f32(0x7bff), 65504.0f);
}

Test(cuda_emu_numbers, halves_round_to_even)
{
	cr_assert_eq(cu_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
	cr_assert_eq(cu_f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
	cr_assert_eq(cu_f32_to_f16(65519.0f), 0x7bff);
	cr_assert_eq(cu_f32_to_f16(65520.0f), 0x7c00);
	cr_assert_eq(cu_f32_to_f16(-0x1p-25f), 0x8000);
	cr_assert_eq(cu_f32_to_f16(0x1.8p-24f), 0x0002);
	cr_assert_eq(cu_pack_f16(1.0f, -2.0f), 0xc0003c00u);
}

Test(cuda_emu_numbers, bf16_rounds_to_even)
{
	cr_assert_eq(cu_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
	cr_assert_eq(cu_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
	cr_assert_eq(cu_f32_to_bf16(3.4e38f), 0x7f80);
	cr_assert_eq(cu_f32_to_bf16(NAN), 0x7fff);
	cr_assert_eq(cu_pack_bf16(1.0f, 2.0f), 0x40003f80u);
	cr_assert_eq(cu_bf16_lo(0x40003f80u), 1.0f);
	cr_assert_eq(cu_bf16_hi(0x40003f80u), 2.0f);
}

Test(cuda_emu_numbers, every_e4m3_goes_to_float_and_back)
{
	for (u32 i = 0; i < 256; i++) {
		float v = cu_e4m3_to_f32((u8)i);
		if ((i & 0x7f) == 0x7f)
			cr_assert(v != v);
		else
			cr_assert_eq(cu_f32_to_e4m3(v), i, "%02x gave %g", i, (double)v);
	}
	cr_assert_eq(cu_e4m3_to_f32(0x7e), 448.0f);
	cr_assert_eq(cu_e4m3_to_f32(0x01), 0x1p-9f);
	cr_assert_eq(cu_e4m3x2_to_f16x2(0xb838), 0xbc003c00u);
}

Test(cuda_emu_numbers, bf16_multiply_add_rounds_once)
{
	cr_assert_eq(cu_fma_bf16x2(0x43804300u, 0xbf80bf80u, 0x43004302u), 0xc3004000u, "128 - 256 and 130 - 128");
	cr_assert_eq(cu_fma_bf16x2(0x3f813f81u, 0x3f813f81u, 0), 0x3f823f82u, "1.0078125 squared is nearest to 1.015625");
	cr_assert_eq(cu_fma_bf16x2(0x3f813f81u, 0x3f813f81u, 0xbf82bf82u), 0x38803880u, "of which 2^-14 is left unless it is rounded before");
}

Test(cuda_emu_numbers, sums_of_halves_round_to_even)
{
	for (u32 i = 0; i < 256; i++) /* the last bits of 1024, less 1024 and 128 */
		cr_assert_eq(cu_f16_to_f32((u16)cu_add_f16x2(0x6400u | i, 0xe480u)), (float)i - 128);
	cr_assert_eq(cu_add_f16x2(0x3c003c00u, 0x10011000u), 0x3c013c00u, "2^-11 is half of the last bit of 1");
	cr_assert_eq(cu_add_f16x2(0x7bff0001u, 0x7bff0001u), 0x7c000002u);
}

Test(cuda_emu_numbers, e4m3_rounds_to_even_and_saturates)
{
	cr_assert_eq(cu_f32_to_e4m3(1e9f), 0x7e);
	cr_assert_eq(cu_f32_to_e4m3(-INFINITY), 0xfe);
	cr_assert_eq(cu_f32_to_e4m3(17.0f), 0x58);
	cr_assert_eq(cu_f32_to_e4m3(19.0f), 0x5a);
	cr_assert_eq(cu_f32_to_e4m3(0x1p-10f), 0x00);
	cr_assert_eq(cu_f32_to_e4m3(0x1.8p-9f), 0x02);
	cr_assert_eq(cu_f32_to_e4m3(NAN), 0x7f);
}

Test(cuda_emu_numbers, bit_operations_are_those_of_the_device)
{
	cr_assert_eq(cu_byte_perm(0x33221100, 0x77665544, 0x7531), 0x77553311u);
	cr_assert_eq(cu_byte_perm(0x80000000, 0, 0x000b), 0x000000ffu);
	cr_assert_eq(cu_funnel_right(0x11223344, 0xaabbccdd, 8), 0xdd112233u);
	cr_assert_eq(cu_funnel_right(5, 6, 32), 5u);
	cr_assert_eq(cu_dp4a(0x01ff0203, 0x7f800405, 10), 10 + 127 + 128 + 8 + 15);
	cr_assert_eq(cu_clz(0), 32u);
	cr_assert_eq(cu_ffs(0), 0u);
	cr_assert_eq(cu_ffs(8), 4u);
	cr_assert_eq(cu_mulhi(0xffffffffu, 0xffffffffu), 0xfffffffeu);
	cr_assert_eq(cu_round(2.5f), 2);
	cr_assert_eq(cu_round(-3.5f), -4);
	cr_assert_eq(cu_round(1e20f), INT32_MAX);
	cr_assert_eq(cu_round(NAN), 0);
	cr_assert_eq(cu_exp2(-130.0f), 0.0f, "subnormal numbers are flushed");
}
