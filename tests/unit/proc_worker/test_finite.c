/* Tensors with values that are no finite numbers: found, and refused by name and place. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proc_worker/model/finite.h"

static struct st_tensor tensor_of(const void *data, u64 bytes, enum kern_dtype dtype, u64 rows, u64 columns)
{
	return (struct st_tensor){.name = "some",
				  .file = "a.safetensors",
				  .data = data,
				  .bytes = bytes,
				  .usable = true,
				  .dtype = dtype,
				  .dims = columns ? 2 : 1,
				  .shape = {rows, columns}};
}

Test(finite, values_are_finite_in_the_type_in_which_they_are_held)
{
	static const float held = 3.3895e38f, too_large = 3.4e38f; /* the largest of bfloat16, and what rounds to infinity */
	struct err_msg em;
	float values[5000] = {0};
	struct st_tensor t = tensor_of(values, sizeof(values), KERN_F32, 50, 100);

	values[4999] = -held;
	cr_assert_eq(finite_check(&t, KERN_F32, NULL, &em), ERR_OK);
	cr_assert_eq(finite_check(&t, KERN_BF16, NULL, &em), ERR_OK);
	values[4999] = -too_large;
	cr_assert_eq(finite_check(&t, KERN_F32, NULL, &em), ERR_OK);
	cr_assert_eq(finite_check(&t, KERN_BF16, NULL, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "a.safetensors: tensor some has the value -3.4e+38 at [49, 99], which is too large for bfloat16");
	char odd[2 * 3 + 1] = {0, 0, 0, 0, 0, 0, 0x7c}; /* 0, 0 and infinity, behind one byte */
	t = tensor_of(odd + 1, 6, KERN_F16, 3, 0);
	cr_assert_eq(finite_check(&t, KERN_BF16, NULL, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "the value infinity at [2]; all must be finite"), "%s", em.text);
	odd[6] = 0x7b;
	cr_assert_eq(finite_check(&t, KERN_BF16, NULL, &em), ERR_OK);
}

/* Several pieces, in two threads: it is the first one that is named, and rows that were not asked for do not count. */
Test(finite, the_first_value_of_the_rows_is_named)
{
	enum { ROWS = 400, COLUMNS = 1001 };
	static u16 values[ROWS * COLUMNS];
	struct st_tensor t = tensor_of(values, sizeof(values), KERN_BF16, ROWS, COLUMNS);
	struct kern_threads *threads;
	struct err_msg em;
	char place[64];

	cr_assert_eq(kern_threads_create(&threads, 2, NULL), ERR_OK);
	values[ROWS * COLUMNS - 1] = 0xff80;
	for (u32 row = 0; row < ROWS; row += 13) {
		u32 column = row * 7 % COLUMNS;
		values[row * COLUMNS + column] = 0x7fc0;
		cr_assert_eq(finite_check(&t, KERN_BF16, threads, &em), ERR_FORMAT);
		snprintf(place, sizeof(place), "the value NaN at [%u, %u];", row, column);
		cr_assert(strstr(em.text, place), "%s, not %s", em.text, place);
		cr_assert_eq(finite_check_rows(&t, 0, row, KERN_BF16, threads, &em), ERR_OK);
		cr_assert_eq(finite_check_rows(&t, row + 1, ROWS - row - 2, KERN_BF16, threads, &em), ERR_OK);
		cr_assert_eq(finite_check_rows(&t, row, 1, KERN_BF16, NULL, &em), ERR_FORMAT);
		cr_assert(strstr(em.text, place), "%s, not %s", em.text, place);
		values[row * COLUMNS + column] = 0;
	}
	cr_assert_eq(finite_check_rows(&t, 0, ROWS - 1, KERN_BF16, threads, &em), ERR_OK);
	cr_assert_eq(finite_check(&t, KERN_BF16, threads, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "the value -infinity at [399, 1000];"), "%s", em.text);
	kern_threads_destroy(&threads);
}
