#include <criterion/criterion.h>
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

Test(weight, other_types_are_refused_by_name)
{
	struct kern_weight w;
	struct err_msg em;
	_Alignas(64) char memory[64];
	cr_assert_eq(kern_weight_begin(&w, 1, 1, KERN_I8, memory, 0, &em), ERR_UNSUPPORTED);
	cr_assert_neq(strstr(em.text, "bfloat16"), NULL);
	cr_assert_eq(kern_weight_pack(&w, memory, KERN_I8, 1, 1, 1, KERN_F32, memory, NULL, 0, &em),
		     ERR_UNSUPPORTED);
	cr_assert_neq(strstr(em.text, "float16"), NULL);
}
