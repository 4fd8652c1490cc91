#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "common/buf.h"

Test(buf, appended_pieces_stand_one_behind_the_other)
{
	struct buf b = {0};

	buf_append_str(&b, "one ");
	buf_append_char(&b, '2');
	buf_printf(&b, " %s%d", "three", 4);
	buf_append(&b, "", 0);
	cr_assert(buf_ok(&b));
	cr_assert_str_eq(buf_cstr(&b), "one 2 three4");
	cr_assert_eq(b.bytes, strlen("one 2 three4"));
	buf_fini(&b);
	cr_assert_eq(b.data, NULL);
}

Test(buf, printf_longer_than_the_room_is_whole)
{
	struct buf b = {0};
	char text[5000];

	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	buf_append_str(&b, "<");
	buf_printf(&b, "%s>", text);
	cr_assert_eq(b.bytes, sizeof(text) + 1);
	cr_assert_eq(b.data[b.bytes - 1], '>');
	cr_assert_eq(b.data[1], 'y');
	buf_fini(&b);
}

Test(buf, cstr_of_an_empty_buffer_is_an_empty_string)
{
	struct buf b = {0};

	cr_assert_str_eq(buf_cstr(&b), "");
}

Test(buf, consume_removes_the_front)
{
	struct buf b = {0};

	buf_append_str(&b, "headbody");
	buf_consume(&b, 4);
	cr_assert_str_eq(buf_cstr(&b), "body");
	buf_consume(&b, 4);
	cr_assert_eq(b.bytes, 0);
	buf_fini(&b);
}

Test(buf, growth_that_fails_is_remembered_until_the_buffer_is_cleared)
{
	struct buf b = {0};

	buf_append_str(&b, "kept");
	cr_assert_not(buf_reserve(&b, SIZE_MAX - 2));
	cr_assert_not(buf_ok(&b));
	buf_append_str(&b, "dropped");
	buf_printf(&b, "%d", 1);
	buf_append_char(&b, 'x');
	cr_assert_eq(b.bytes, 4);
	cr_assert_str_eq(buf_cstr(&b), "");
	buf_clear(&b);
	cr_assert(buf_ok(&b));
	buf_append_str(&b, "again");
	cr_assert_str_eq(buf_cstr(&b), "again");
	buf_fini(&b);
}

Test(buf, clear_keeps_the_memory)
{
	struct buf b = {0};

	cr_assert(buf_reserve(&b, 10000));
	char *data = b.data;
	buf_clear(&b);
	buf_append_str(&b, "x");
	cr_assert_eq(b.data, data);
	buf_fini(&b);
}

Test(u32_vec, pushes_and_appends_in_order)
{
	struct u32_vec v = {0};
	uint32_t more[] = {7, 8, 9};

	for (uint32_t i = 0; i < 1000; i++)
		u32_vec_push(&v, i);
	u32_vec_append(&v, more, 3);
	u32_vec_append(&v, NULL, 0);
	cr_assert_eq(v.count, 1003);
	cr_assert_eq(v.data[999], 999);
	cr_assert_eq(v.data[1002], 9);
	u32_vec_fini(&v);
}

Test(u32_vec, growth_that_fails_is_remembered_until_cleared)
{
	struct u32_vec v = {0};

	cr_assert_not(u32_vec_reserve(&v, SIZE_MAX / 2));
	u32_vec_push(&v, 1);
	cr_assert_eq(v.count, 0);
	cr_assert(v.failed);
	u32_vec_clear(&v);
	u32_vec_push(&v, 1);
	cr_assert_eq(v.count, 1);
	u32_vec_fini(&v);
}
