#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/kern_priv.h"

static float from_bits(u32 bits)
{
	float f;
	memcpy(&f, &bits, 4);
	return f;
}

static u16 to_bf16(float x)
{
	u16 h;
	kern_convert(&h, KERN_BF16, &x, KERN_F32, 1);
	return h;
}

static float from_half(u16 h, enum kern_dtype type)
{
	float x;
	kern_convert(&x, KERN_F32, &h, type, 1);
	return x;
}

Test(convert, sizes_of_types)
{
	cr_assert_eq(kern_dtype_bytes(KERN_F32), 4);
	cr_assert_eq(kern_dtype_bytes(KERN_BF16), 2);
	cr_assert_eq(kern_dtype_bytes(KERN_F16), 2);
	cr_assert_eq(kern_dtype_bytes(KERN_I8), 1);
	cr_assert_eq(kern_dtype_bytes(KERN_I4_64), 0);
	cr_assert_eq(kern_dtype_group(KERN_BF16), 0);
	cr_assert_eq(kern_dtype_group(KERN_I4_32), 32);
	cr_assert_eq(kern_dtype_group(KERN_I4_STEPS), 128);
}

Test(convert, every_bf16_survives_a_round_trip)
{
	for (u32 h = 0; h < 65536; h++) {
		float x = from_half((u16)h, KERN_BF16);
		if (isnan(x))
			cr_assert(isnan(from_half(to_bf16(x), KERN_BF16)), "NaN %04x became a number", h);
		else
			cr_assert_eq(to_bf16(x), h, "%04x became %04x", h, to_bf16(x));
	}
}

Test(convert, floats_round_to_the_nearest_bf16_and_ties_to_even)
{
	cr_assert_eq(to_bf16(from_bits(0x3f808000)), 0x3f80, "a tie goes down to the even neighbour");
	cr_assert_eq(to_bf16(from_bits(0x3f818000)), 0x3f82, "a tie goes up to the even neighbour");
	cr_assert_eq(to_bf16(from_bits(0x3f808001)), 0x3f81);
	cr_assert_eq(to_bf16(from_bits(0x3f807fff)), 0x3f80);
	cr_assert_eq(to_bf16(from_bits(0x7f7fffff)), 0x7f80, "the largest float rounds to infinity");
	cr_assert_eq(to_bf16(-INFINITY), 0xff80);
	cr_assert_eq(to_bf16(from_bits(0x7f800001)), 0x7fc0, "a NaN whose bits all lie below stays a NaN");
}

Test(convert, every_f16_has_its_value)
{
	for (u32 h = 0; h < 65536; h++) {
		float x = from_half((u16)h, KERN_F16);
		u32 exponent = h >> 10 & 31, mantissa = h & 1023;
		double want = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
		want = h & 0x8000 ? -want : want;
		if (exponent == 31)
			cr_assert(mantissa ? isnan(x) : (isinf(x) && !signbit(x) == !(h >> 15)), "%04x is %g",
				  h, (double)x);
		else
			cr_assert((double)x == want && !signbit(x) == !(h >> 15), "%04x is %g, not %g", h,
				  (double)x, want);
	}
}

Test(convert, f16_becomes_bf16_by_way_of_float)
{
	const u16 in[] = {0x3c00, 0x3555, 0xfbff, 0x0001};
	u16 out[4];
	kern_convert(out, KERN_BF16, in, KERN_F16, 4);
	for (u32 i = 0; i < 4; i++)
		cr_assert_eq(out[i], to_bf16(from_half(in[i], KERN_F16)));
}

/* As in a checkpoint whose header has an odd length; only the sanitizer tells loads that a processor merely forgives. */
Test(convert, values_may_begin_at_any_byte)
{
	enum { COUNT = 77 };
	static const enum kern_dtype from[] = {KERN_F32, KERN_BF16, KERN_F16}, to[] = {KERN_F32, KERN_BF16};
	float values[COUNT], want[COUNT], got[COUNT];
	char bytes[sizeof(values) + 4];

	for (u32 i = 0; i < 2 * COUNT; i++) { /* finite ones of every type */
		u16 half = (u16)(0x3000 + i * 37);
		memcpy((char *)values + i * 2, &half, 2);
	}
	for (u32 shift = 0; shift < 4; shift++)
		for (u32 f = 0; f < 3; f++)
			for (u32 t = 0; t < 2; t++) {
				if (from[f] == KERN_BF16 && to[t] == KERN_BF16)
					continue;
				memcpy(bytes + shift, values, sizeof(values));
				kern_convert(want, to[t], values, from[f], COUNT);
				kern_convert(got, to[t], bytes + shift, from[f], COUNT);
				cr_assert_eq(memcmp(got, want, COUNT * kern_dtype_bytes(to[t])), 0, "%s to %s, %u bytes on",
					     kern_dtype_name(from[f]), kern_dtype_name(to[t]), shift);
			}
}

static bool is_finite(u32 bits, enum kern_dtype type, enum kern_dtype as)
{
	return kern_all_finite(&bits, type, as, 1);
}

Test(convert, every_half_is_finite_or_not_as_its_float_is)
{
	for (u32 h = 0; h < 65536; h++) {
		cr_assert_eq(is_finite(h, KERN_BF16, KERN_F32), isfinite(from_half((u16)h, KERN_BF16)) != 0, "bf16 %04x", h);
		cr_assert_eq(is_finite(h, KERN_F16, KERN_BF16), isfinite(from_half((u16)h, KERN_F16)) != 0, "f16 %04x", h);
	}
}

Test(convert, values_are_finite_in_the_type_that_is_to_hold_them)
{
	const enum kern_dtype fours[] = {KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS};

	cr_assert(is_finite(0x7f7fffff, KERN_F32, KERN_F32) && is_finite(0xff7fffff, KERN_F32, KERN_I8), "the largest float");
	cr_assert(!is_finite(0x7f800000, KERN_F32, KERN_F32) && !is_finite(0x7fc00000, KERN_F32, KERN_F32));
	cr_assert(!is_finite(0xff800000, KERN_F32, KERN_I8) && !is_finite(0x7f800001, KERN_F32, KERN_BF16));
	for (u32 bits = 0x7f7f7000; bits < 0x7f7f9000; bits++) {
		float held = kern_bf16_to_float(to_bf16(from_bits(bits)));
		cr_assert_eq(is_finite(bits, KERN_F32, KERN_BF16), isfinite(held) != 0, "%08x becomes %g in bfloat16", bits, (double)held);
	}
	for (u32 i = 0; i < COUNT_OF(fours); i++) {
		for (u32 bits = 0x477fe000; bits < 0x47800100; bits++)
			cr_assert_eq(is_finite(bits | 1u << 31, KERN_F32, fours[i]), from_bits(bits) < 65520, "%08x", bits);
		cr_assert(is_finite(0x477f, KERN_BF16, fours[i]) && !is_finite(0x4780, KERN_BF16, fours[i]), "65280 and 65536");
		cr_assert(is_finite(0x7bff, KERN_F16, fours[i]) && !is_finite(0x7c00, KERN_F16, fours[i]), "65504 and infinity");
	}
}

Test(convert, rounding_to_4_bits_is_in_steps_where_products_with_them_are_fast)
{
	const u32 all = KERN_CAP_PORTABLE | KERN_CAP_AVX2 | KERN_CAP_AVX512 | KERN_CAP_AVX512_VNNI;
	cr_assert_eq(kern_dtype_int4(all), KERN_I4_STEPS);
	cr_assert_eq(kern_dtype_int4(KERN_CAP_ALL), KERN_I4_STEPS);
	cr_assert_eq(kern_dtype_int4(all & ~KERN_CAP_AVX512_VNNI), KERN_I4_64);
	cr_assert_eq(kern_dtype_int4(all & ~KERN_CAP_AVX512), KERN_I4_64);
	cr_assert_eq(kern_dtype_int4(all & ~KERN_CAP_AVX2), KERN_I4_64);
	cr_assert_eq(kern_dtype_int4(0), KERN_I4_64);
}

/* At an odd address, and in every place of a vector and behind the last whole one. */
Test(convert, one_value_among_many_is_enough)
{
	const enum kern_dtype types[] = {KERN_F32, KERN_BF16, KERN_F16};
	char bytes[1 + 4 * 150] = {0};

	for (u32 t = 0; t < COUNT_OF(types); t++) {
		size_t size = kern_dtype_bytes(types[t]);
		const u32 bad = types[t] == KERN_F32 ? 0xff800000 : types[t] == KERN_BF16 ? 0xff80 : 0xfc00;
		for (size_t i = 0; i < 150; i++) {
			memcpy(bytes + 1 + i * size, &bad, size);
			cr_assert_not(kern_all_finite(bytes + 1, types[t], KERN_F32, 150), "value %zu", i);
			cr_assert(kern_all_finite(bytes + 1, types[t], KERN_F32, i), "those before value %zu", i);
			memset(bytes + 1 + i * size, 0, size);
			cr_assert(kern_all_finite(bytes + 1, types[t], KERN_F32, 150));
		}
	}
}
