#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kern_priv.h"

enum { N = 77, K = 131, STRIDE = 140 };

static void *memory_for(enum kern_dtype dtype, u32 caps)
{
	size_t bytes = kern_weight_bytes(N, K, dtype, caps);
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	cr_assert_not_null(p);
	memset(p, 0xff, bytes);
	return p;
}

static float value_of(u32 n, u32 k)
{
	return (float)(n * 200 + k) / 64; /* more than bf16 can hold, so rounding shows */
}

static float *plain_rows(void)
{
	float *rows = malloc(N * STRIDE * sizeof(float));
	for (u32 n = 0; n < N; n++)
		for (u32 k = 0; k < STRIDE; k++)
			rows[n * STRIDE + k] = k < K ? value_of(n, k) : -1;
	return rows;
}

Test(weight, every_layout_holds_every_element)
{
	const u32 caps[] = {0, KERN_CAP_AVX2, KERN_CAP_AVX2 | KERN_CAP_AVX512};
	const enum kern_dtype dtypes[] = {KERN_F32, KERN_BF16};
	float *rows = plain_rows();
	for (u32 i = 0; i < 6; i++) {
		struct kern_weight w;
		void *memory = memory_for(dtypes[i % 2], caps[i / 2]);
		cr_assert_eq(kern_weight_pack(&w, rows, KERN_F32, STRIDE, N, K, dtypes[i % 2], memory, NULL,
					      caps[i / 2], NULL),
			     ERR_OK);
		for (u32 n = 0; n < N; n++)
			for (u32 k = 0; k < K; k++) {
				float want = value_of(n, k);
				if (dtypes[i % 2] == KERN_BF16)
					want = kern_bf16_to_float(kern_float_to_bf16(want));
				cr_assert_eq(kern_weight_at(&w, n, k), want, "[%u][%u] of case %u", n, k, i);
			}
		kern_weight_fini(&w);
		free(memory);
	}
	free(rows);
}

Test(weight, rows_in_pieces_and_in_any_order_give_the_same_bytes)
{
	const u32 caps = KERN_CAP_AVX2;
	float *rows = plain_rows();
	void *whole = memory_for(KERN_BF16, caps), *pieces = memory_for(KERN_BF16, caps);
	struct kern_weight w;
	struct kern_threads *threads;
	cr_assert_eq(kern_threads_create(&threads, 2, NULL), ERR_OK);
	cr_assert_eq(
		kern_weight_pack(&w, rows, KERN_F32, STRIDE, N, K, KERN_BF16, whole, threads, caps, NULL),
		ERR_OK);
	cr_assert_eq(kern_weight_begin(&w, N, K, KERN_BF16, pieces, caps, NULL), ERR_OK);
	kern_weight_rows(&w, 33, N - 33, rows + 33 * STRIDE, KERN_F32, STRIDE, threads);
	kern_weight_rows(&w, 0, 5, rows, KERN_F32, STRIDE, threads);
	kern_weight_rows(&w, 5, 28, rows + 5 * STRIDE, KERN_F32, STRIDE, threads);
	kern_weight_rows(&w, 5, 0, rows, KERN_F32, STRIDE, threads);
	cr_assert_eq(memcmp(whole, pieces, kern_weight_bytes(N, K, KERN_BF16, caps)), 0);
	kern_threads_destroy(&threads);
	free(whole);
	free(pieces);
	free(rows);
}

Test(weight, bf16_sources_are_packed_without_rounding)
{
	u16 rows[2 * 3] = {0x3f80, 0x4000, 0x7f80, 0xbf80, 0x0001, 0x8000};
	struct kern_weight w;
	void *memory = aligned_alloc(64, kern_weight_bytes(2, 3, KERN_BF16, KERN_CAP_AVX2));
	cr_assert_eq(
		kern_weight_pack(&w, rows, KERN_BF16, 3, 2, 3, KERN_BF16, memory, NULL, KERN_CAP_AVX2, NULL),
		ERR_OK);
	for (u32 i = 0; i < 6; i++)
		cr_assert_eq(kern_float_to_bf16(kern_weight_at(&w, i / 3, i % 3)), rows[i]);
	free(memory);
}

/* Odd numbers of columns and rows that fill neither a vector nor a panel among them. */
Test(weight, sources_that_are_read_in_place_are_packed_as_converted_ones)
{
	const u32 caps = KERN_CAP_AVX2, widths[] = {1, 2, 7, 8, 126, 128, 130, K};
	float *rows = plain_rows();
	u16 *halves = malloc(N * STRIDE * sizeof(u16));
	kern_convert(halves, KERN_BF16, rows, KERN_F32, N * STRIDE);
	for (u32 i = 0; i < COUNT_OF(widths); i++)
		for (u32 n = 1; n <= N; n++) {
			struct kern_weight w;
			void *converted = memory_for(KERN_BF16, caps), *in_place = memory_for(KERN_BF16, caps);
			cr_assert_eq(kern_weight_begin(&w, n, widths[i], KERN_BF16, converted, caps, NULL), ERR_OK);
			kern_weight_rows(&w, 0, n, rows, KERN_F32, STRIDE, NULL);
			cr_assert_eq(kern_weight_begin(&w, n, widths[i], KERN_BF16, in_place, caps, NULL), ERR_OK);
			kern_weight_rows(&w, 0, n, halves, KERN_BF16, STRIDE, NULL);
			cr_assert_eq(memcmp(converted, in_place, kern_weight_bytes(N, K, KERN_BF16, caps)), 0, "%u rows of %u", n,
				     widths[i]);
			for (u32 k = 0; k < widths[i]; k++)
				cr_assert_eq(kern_float_to_bf16(kern_weight_at(&w, n - 1, k)), halves[(n - 1) * STRIDE + k]);
			free(converted);
			free(in_place);
		}
	free(halves);
	free(rows);
}

Test(weight, a_value_that_is_not_finite_is_told_wherever_it_is)
{
	const enum kern_dtype types[] = {KERN_F32, KERN_BF16, KERN_I8, KERN_I4_64};
	const u32 caps[] = {0, KERN_CAP_AVX2};
	float *rows = plain_rows();
	struct kern_threads *threads;
	cr_assert_eq(kern_threads_create(&threads, 2, NULL), ERR_OK);
	for (u32 i = 0; i < 2 * COUNT_OF(types); i++) {
		struct kern_weight w;
		void *memory = memory_for(types[i / 2], caps[i % 2]);
		cr_assert_eq(kern_weight_begin(&w, N, K, types[i / 2], memory, caps[i % 2], NULL), ERR_OK);
		for (u32 n = 0; n < N; n++)
			for (u32 k = n % 19; k < STRIDE; k += 19) {
				float *value = &rows[n * STRIDE + k], before = *value;
				*value = n % 2 ? NAN : -INFINITY;
				cr_assert_eq(kern_weight_rows(&w, 5, N - 5, rows + 5 * STRIDE, KERN_F32, STRIDE, threads), n < 5 || k >= K,
					     "type %u, [%u][%u]", i / 2, n, k);
				*value = before;
			}
		cr_assert(kern_weight_rows(&w, 0, N, rows, KERN_F32, STRIDE, threads));
		free(memory);
	}
	kern_threads_destroy(&threads);
	free(rows);
}

Test(weight, other_types_are_refused_by_name)
{
	struct kern_weight w;
	struct err_msg em;
	_Alignas(64) char memory[64];
	cr_assert_eq(kern_weight_begin(&w, 1, 1, KERN_F16, memory, 0, &em), ERR_UNSUPPORTED);
	cr_assert_neq(strstr(em.text, "bfloat16"), NULL);
	cr_assert_eq(kern_weight_pack(&w, memory, KERN_I8, 1, 1, 1, KERN_F32, memory, NULL, 0, &em),
		     ERR_UNSUPPORTED);
	cr_assert_neq(strstr(em.text, "float16"), NULL);
}

/* ---------------------------------------------------------------- quantized */

/* The last is of what is rounded here alone. */
static const enum kern_dtype QUANTIZED[] = {KERN_I8, KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS};

/* Bell-shaped values with a few large ones, as weights are. */
static float *bell_rows(void)
{
	float *rows = malloc(N * STRIDE * sizeof(float));
	u32 random = 1;
	for (u32 i = 0; i < N * STRIDE; i++) {
		float sum = 0;
		for (u32 j = 0; j < 6; j++) {
			random = random * 1664525 + 1013904223;
			sum += (float)(random >> 8) * 0x1p-24f - 0.5f;
		}
		rows[i] = sum * 0.1f;
	}
	return rows;
}

static double squared_error(const struct kern_weight *w, const float *rows)
{
	double sum = 0;
	for (u32 n = 0; n < N; n++)
		for (u32 k = 0; k < K; k++) {
			double off = (double)kern_weight_at(w, n, k) - rows[n * STRIDE + k];
			sum += off * off;
		}
	return sum;
}

/* The same with the range of every group cut into equal steps and nothing else. */
static double plain_error(enum kern_dtype dtype, const float *rows)
{
	u32 width = dtype == KERN_I4_STEPS ? KERN_STEPS_PART : kern_dtype_group(dtype);
	double sum = 0;
	for (u32 n = 0; n < N; n++)
		for (u32 g = 0; g < K; g += width) {
			u32 end = g + width < K ? g + width : K;
			const float *x = rows + n * STRIDE;
			double low = x[g], high = x[g];
			for (u32 k = g; k < end; k++) {
				low = fmin(low, x[k]);
				high = fmax(high, x[k]);
			}
			double most = fmax(high, -low),
			       step = dtype == KERN_I8 ? most / 127 : (high - low) / 15;
			if (dtype == KERN_I8)
				low = -most;
			for (u32 k = g; k < end; k++) {
				double off = x[k] - (low + step * nearbyint((x[k] - low) / step));
				sum += off * off;
			}
		}
	return sum;
}

Test(weight, rounding_to_8_and_4_bits_is_no_worse_than_equal_steps_over_the_range)
{
	float *rows = bell_rows();
	for (u32 i = 0; i < COUNT_OF(QUANTIZED); i++) {
		struct kern_weight w;
		void *memory = memory_for(QUANTIZED[i], 0);
		cr_assert_eq(kern_weight_pack(&w, rows, KERN_F32, STRIDE, N, K, QUANTIZED[i], memory, NULL, 0,
					      NULL),
			     ERR_OK);
		double got = squared_error(&w, rows), plain = plain_error(QUANTIZED[i], rows);
		cr_assert(got <= plain * 1.01, "%s: %g, plain %g", kern_dtype_name(QUANTIZED[i]), got, plain);
		cr_assert(got > plain * 0.2, "%s: %g, plain %g", kern_dtype_name(QUANTIZED[i]), got, plain);
		free(memory);
	}
	free(rows);
}

Test(weight, rounding_gives_the_same_bytes_with_every_instruction_set_and_in_pieces)
{
	const u32 all = kern_caps_detect(), caps[] = {0, all & KERN_CAP_AVX2, all};
	struct kern_threads *threads;
	float *rows = bell_rows();
	cr_assert_eq(kern_threads_create(&threads, 2, NULL), ERR_OK);
	for (u32 i = 0; i < COUNT_OF(QUANTIZED) * COUNT_OF(caps); i++) {
		enum kern_dtype dtype = QUANTIZED[i % COUNT_OF(QUANTIZED)];
		void *whole = memory_for(dtype, 0), *pieces = memory_for(dtype, 0);
		struct kern_weight w, v;
		cr_assert_eq(kern_weight_pack(&w, rows, KERN_F32, STRIDE, N, K, dtype, whole, NULL, 0, NULL),
			     ERR_OK);
		cr_assert_eq(kern_weight_begin(&v, N, K, dtype, pieces, caps[i / COUNT_OF(QUANTIZED)], NULL),
			     ERR_OK);
		kern_weight_rows(&v, 33, N - 33, rows + 33 * STRIDE, KERN_F32, STRIDE, threads);
		kern_weight_rows(&v, 0, 33, rows, KERN_F32, STRIDE, threads);
		for (u32 n = 0; n < N; n++)
			for (u32 k = 0; k < K; k++)
				cr_assert_eq(kern_weight_at(&w, n, k), kern_weight_at(&v, n, k),
					     "%s [%u][%u]", kern_dtype_name(dtype), n, k);
		free(whole);
		free(pieces);
	}
	kern_threads_destroy(&threads);
	free(rows);
}

Test(weight, groups_of_one_value_of_zeros_and_of_tiny_values_survive)
{
	const float values[] = {0, 0.75f, -3, 1e-42f, 0x1p-20f};
	float rows[N * STRIDE];
	for (u32 i = 0; i < COUNT_OF(QUANTIZED) * COUNT_OF(values); i++) {
		enum kern_dtype dtype = QUANTIZED[i % COUNT_OF(QUANTIZED)];
		float value = values[i / COUNT_OF(QUANTIZED)];
		void *memory = memory_for(dtype, 0);
		struct kern_weight w;
		for (u32 j = 0; j < N * STRIDE; j++)
			rows[j] = value;
		cr_assert_eq(kern_weight_pack(&w, rows, KERN_F32, STRIDE, N, K, dtype, memory, NULL, 0, NULL),
			     ERR_OK);
		float got = kern_weight_at(&w, N - 1, K - 1);
		cr_assert(fabsf(got - value) <= fabsf(value) * 1e-3f + 1e-37f, "%s: %g became %g",
			  kern_dtype_name(dtype), (double)value, (double)got);
		free(memory);
	}
}

/* Parts of a group as wide as can be, narrower, hardly so and not at all, about zero and far from it on either side. */
Test(weight, parts_in_steps_are_rounded_by_their_own_range_and_a_step_of_their_group)
{
	enum { PARTS = 4, WIDTH = PARTS * KERN_STEPS_PART };
	static const float widths[PARTS] = {1, 0.3f, 0.01f, 0}, middles[][PARTS] = {{0}, {0, 3, -3, 3}, {-2, -2, -2, -2}, {0.5f, 0.4f, 0.2f, -0.7f}};
	for (u32 c = 0; c < COUNT_OF(middles) * PARTS; c++) {
		const float *middle = middles[c / PARTS];
		_Alignas(64) static char memory[64 * 1024];
		float row[WIDTH], most = 0, widest = 0;
		struct kern_weight w;
		for (u32 k = 0; k < WIDTH; k++) {
			const u32 part = (k / KERN_STEPS_PART + c) % PARTS;
			row[k] = middle[part] + widths[part] * ((float)(k * 7 % KERN_STEPS_PART) / (KERN_STEPS_PART - 1) - 0.5f);
			most = fmaxf(most, fabsf(row[k]));
			widest = fmaxf(widest, widths[part]);
		}
		cr_assert(kern_weight_bytes(1, WIDTH, KERN_I4_STEPS, 0) <= sizeof(memory));
		cr_assert_eq(kern_weight_pack(&w, row, KERN_F32, WIDTH, 1, WIDTH, KERN_I4_STEPS, memory, NULL, 0, NULL), ERR_OK);
		const float step = fmaxf(widest / (15 * 15), most / 127) * 1.01f;
		for (u32 k = 0; k < WIDTH; k++) {
			const float own = widths[(k / KERN_STEPS_PART + c) % PARTS] / 15, off = fabsf(kern_weight_at(&w, 0, k) - row[k]);
			cr_assert(off <= 2 * own + step / 2, "case %u, [%u]: %g is off by %g, steps %g and %g", c, k, (double)row[k], (double)off,
				  (double)own, (double)step);
		}
	}
}

/* Of the last part there are 4 values, much smaller than the row's first. */
Test(weight, the_rest_of_a_row_in_steps_is_rounded_by_its_own_range)
{
	enum { WIDTH = KERN_STEPS_PART + 4 };
	_Alignas(64) static char memory[16 * 1024];
	float row[WIDTH];
	struct kern_weight w;
	for (u32 k = 0; k < WIDTH; k++)
		row[k] = k == 0 ? 3 : k < KERN_STEPS_PART ? 0.1f * (float)(k % 9) : 0.05f * (float)(k % 4);
	cr_assert(kern_weight_bytes(1, WIDTH, KERN_I4_STEPS, 0) <= sizeof(memory));
	cr_assert_eq(kern_weight_pack(&w, row, KERN_F32, WIDTH, 1, WIDTH, KERN_I4_STEPS, memory, NULL, 0, NULL), ERR_OK);
	for (u32 k = KERN_STEPS_PART; k < WIDTH; k++)
		cr_assert(fabsf(kern_weight_at(&w, 0, k) - row[k]) < 3.0f / 127, "[%u] %g became %g", k, (double)row[k], (double)kern_weight_at(&w, 0, k));
}

Test(weight, what_is_no_number_stays_none)
{
	float rows[STRIDE] = {0};
	for (u32 i = 0; i < 2 * COUNT_OF(QUANTIZED); i++) {
		void *memory = memory_for(QUANTIZED[i / 2], 0);
		struct kern_weight w;
		rows[5] = i % 2 ? INFINITY : NAN;
		cr_assert_eq(kern_weight_pack(&w, rows, KERN_F32, STRIDE, 1, K, QUANTIZED[i / 2], memory,
					      NULL, 0, NULL),
			     ERR_OK);
		cr_assert(!isfinite(kern_weight_at(&w, 0, 5)), "%s", kern_dtype_name(QUANTIZED[i / 2]));
		free(memory);
	}
}

Test(weight, rows_that_are_quantized_already_are_kept_exactly)
{
	static u8 q[N * K];
	for (u32 i = 0; i < COUNT_OF(QUANTIZED) - 1; i++) {
		enum kern_dtype dtype = QUANTIZED[i];
		u32 width = kern_dtype_group(dtype), groups = (K + width - 1) / width;
		float scale[N * 5], zero[N * 5];
		void *memory = memory_for(dtype, 0);
		struct kern_weight w;
		for (u32 j = 0; j < N * K; j++)
			q[j] = (u8)(dtype == KERN_I8 ? j * 37 : j * 7 % 16);
		for (u32 j = 0; j < N * groups; j++) {
			scale[j] = (float)(j + 1) * 0x1p-12f;
			zero[j] = (float)(j % 17);
		}
		struct kern_quantized_rows rows = {q, scale, dtype == KERN_I8 ? NULL : zero, K, groups};
		cr_assert_eq(kern_weight_begin(&w, N, K, dtype, memory, 0, NULL), ERR_OK);
		kern_weight_rows_quantized(&w, 0, N, &rows, NULL);
		for (u32 n = 0; n < N; n++)
			for (u32 k = 0; k < K; k++) {
				u32 g = n * groups + k / width;
				float value = dtype == KERN_I8 ? (float)(signed char)q[n * K + k]
							       : (float)q[n * K + k] - zero[g];
				cr_assert_eq(kern_weight_at(&w, n, k), scale[g] * value, "%s [%u][%u]",
					     kern_dtype_name(dtype), n, k);
			}
		free(memory);
	}
}

Test(weight, every_half_survives_a_round_trip_and_others_go_to_the_nearest)
{
	for (u32 h = 0; h < 65536; h++) {
		float x = kern_f16_to_float((u16)h);
		if (x == x)
			cr_assert_eq(kern_float_to_f16(x), h);
	}
	for (u32 h = 0; h < 0x7bff; h++) {
		float x = kern_f16_to_float((u16)h), y = kern_f16_to_float((u16)(h + 1)),
		      middle = (x + y) / 2;
		cr_assert_eq(kern_float_to_f16(middle), h + h % 2, "%u", h); /* ties to even */
		cr_assert_eq(kern_float_to_f16(nextafterf(middle, x)), h);
		cr_assert_eq(kern_float_to_f16(-nextafterf(middle, y)), 0x8000 | (h + 1));
	}
	cr_assert_eq(kern_float_to_f16(65519), 0x7bff);
	cr_assert_eq(kern_float_to_f16(65520), 0x7c00);
	cr_assert_eq(kern_float_to_f16(NAN) & 0x7fff, 0x7e00);
}
