/* The 8-bit types of the KV cache. */
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/kv_priv.h"

Test(kv, every_fp8_code_survives_a_round_trip)
{
	for (u32 code = 0; code < 256; code++) {
		float x = kern_f8_to_float((u8)code);
		if ((code & 127) == 127)
			cr_assert(isnan(x) && (kern_float_to_f8(x) & 127) == 127);
		else
			cr_assert_eq(kern_float_to_f8(x), code, "%02x is %g", code, (double)x);
	}
	cr_assert_eq(kern_f8_to_float(0x01), 0x1p-9f);
	cr_assert_eq(kern_f8_to_float(0x08), 0x1p-6f);
	cr_assert_eq(kern_f8_to_float(0x38), 1.0f);
	cr_assert_eq(kern_f8_to_float(0xfe), -448.0f);
}

Test(kv, fp8_rounds_to_nearest_with_ties_to_even)
{
	for (u8 code = 0; code < 126; code++) {
		float low = kern_f8_to_float(code), high = kern_f8_to_float((u8)(code + 1)),
		      middle = (low + high) / 2;
		u8 even = code % 2 ? (u8)(code + 1) : code;
		cr_assert_eq(kern_float_to_f8(middle), even, "between %g and %g", (double)low, (double)high);
		cr_assert_eq(kern_float_to_f8(nextafterf(middle, 0)), code);
		cr_assert_eq(kern_float_to_f8(nextafterf(middle, 1e9f)), code + 1);
		cr_assert_eq(kern_float_to_f8(-middle), even | 128);
	}
	cr_assert_eq(kern_float_to_f8(1e9f), 126);
	cr_assert_eq(kern_float_to_f8(-INFINITY), 254);
	cr_assert_eq(kern_float_to_f8(1e-30f), 0);
}

Test(kv, int8_rounds_to_nearest_and_stays_within_127)
{
	const struct {
		float x;
		int want;
	} cases[] = {{0, 0},	      {0.5f, 0},	 {1.5f, 2},  {2.5f, 2},	   {-0.5f, 0},
		     {-1.5f, -2},     {126.6f, 127},	 {127, 127}, {1000, 127},  {-1000, -127},
		     {INFINITY, 127}, {-INFINITY, -127}, {0.49f, 0}, {-0.51f, -1}, {99.4f, 99}};
	for (u32 i = 0; i < COUNT_OF(cases); i++)
		cr_assert_eq((int)kern_float_to_i8(cases[i].x) - KERN_KV_OFFSET, cases[i].want, "%g",
			     (double)cases[i].x);
}

Test(kv, a_head_of_int16_with_a_number_that_is_none_is_none)
{
	u32 v[4] = {0};
	const struct kern_kv kv = {v, v, KERN_I16, 1, 1, 6};
	float x[6] = {1, -2, 0.25f, 0, 2, -1}, back[6];

	cr_assert_eq(kern_kv_block_bytes(&kv), sizeof(v));
	kern_kv_store(&kv, v, 1, kern_kv_scale(&kv, v, 0, 0, 0), x);
	kern_kv_load(&kv, back, v, 1, kern_kv_scale(&kv, v, 0, 0, 0));
	for (u32 i = 0; i < 6; i++)
		cr_assert_float_eq(back[i], x[i], 2 / 16383.0f / 2 + 1e-7f);
	for (u32 way = 0; way < 3; way++) {
		x[4] = way == 0 ? NAN : way == 1 ? INFINITY : -INFINITY;
		kern_kv_store(&kv, v, 1, kern_kv_scale(&kv, v, 0, 0, 0), x);
		kern_kv_load(&kv, back, v, 1, kern_kv_scale(&kv, v, 0, 0, 0));
		for (u32 i = 0; i < 6; i++)
			cr_assert(isnan(back[i]), "%g", (double)back[i]);
	}
}

Test(kv, a_head_is_stored_with_its_scale_behind_the_words)
{
	/* blocks of 2 tokens, one head of 6 dimensions: 2 words of 4 bytes a token, then 2 scales */
	u32 k[6] = {0}, v[6] = {0};
	const struct kern_kv kv = {k, v, KERN_I8, 2, 1, 6};
	const float x[6] = {1, -2, 0.5f, 0, 2, -1};
	float back[6];

	cr_assert_eq(kern_kv_block_bytes(&kv), sizeof(k));
	kern_kv_store(&kv, kern_kv_value(&kv, 0, 0, 1), 1, kern_kv_scale(&kv, v, 0, 0, 1), x);
	kern_kv_store(&kv, kern_kv_key(&kv, 0, 0, 1), 2, kern_kv_scale(&kv, k, 0, 0, 1), x);
	cr_assert_float_eq(((const float *)(const void *)v)[5], 2 / 127.0f, 1e-9f);
	cr_assert(v[0] == 0 && v[1] == 0 && v[4] == 0, "another token was written");
	cr_assert(k[0] == 0 && k[2] == 0 && k[4] == 0, "another token was written");
	cr_assert(k[1] == v[2] && k[3] == v[3]);
	const u8 *bytes = (const u8 *)&v[2];
	const u8 want[8] = {128 + 64, 1, 128 + 32, 128, 255, 128 - 64, 128, 128};
	cr_assert_arr_eq(bytes, want, 8);
	kern_kv_load(&kv, back, kern_kv_key(&kv, 0, 0, 1), 2, kern_kv_scale(&kv, k, 0, 0, 1));
	for (u32 i = 0; i < 6; i++)
		cr_assert_float_eq(back[i], x[i], 2 / 127.0f / 2 + 1e-6f);
}
