#include <criterion/criterion.h>
#include <string.h>

#include "common/utf8.h"

static int next(const char *text, uint32_t *code)
{
	return utf8_next(text, strlen(text), code);
}

Test(utf8, every_code_point_survives_put_and_next)
{
	for (uint32_t c = 0; c <= 0x10ffff; c++) {
		char text[4];
		uint32_t back = 0xffffffff;
		if (c >= 0xd800 && c < 0xe000)
			continue;
		size_t n = utf8_put(text, c);
		if (utf8_next(text, n, &back) != (int)n || back != c || !utf8_valid(text, n))
			cr_assert_fail("U+%04X", c);
	}
}

Test(utf8, ill_formed_bytes_are_refused)
{
	static const char *const bad[] = {
		"\x80",
		"\xbf",
		"\xc0\x80",
		"\xc1\xbf",
		"\xe0\x80\x80",
		"\xe0\x9f\xbf",
		"\xed\xa0\x80",
		"\xed\xbf\xbf",
		"\xf0\x80\x80\x80",
		"\xf0\x8f\xbf\xbf",
		"\xf4\x90\x80\x80",
		"\xf5\x80\x80\x80",
		"\xff",
		"\xfe",
		"a\xc3",
		"\xe2\x82",
		"\xf0\x9f\x98",
		"\xc3\x28",
		"12345678\x80",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(utf8_valid(bad[i], strlen(bad[i])), "case %zu", i);
	cr_assert(utf8_valid("", 0));
	cr_assert(utf8_valid("a\0b", 3));
	cr_assert(utf8_valid("0123456789abc\xc3\xa9", 15));
}

Test(utf8, next_tells_incomplete_from_ill_formed)
{
	uint32_t c;

	cr_assert_eq(next("", &c), 0);
	cr_assert_eq(next("\xe2\x82", &c), 0);
	cr_assert_eq(next("\xf0\x9f\x98", &c), 0);
	cr_assert_eq(next("\xf0", &c), 0);
	cr_assert_eq(next("\xe0\x80", &c), -1);
	cr_assert_eq(next("\xed\xa0\x80", &c), -1);
	cr_assert_eq(next("\xe2\x82x", &c), -2);
	cr_assert_eq(next("\xf0\x9f\x98x", &c), -3);
	cr_assert_eq(next("\x80\x80", &c), -1);
}

/* Unicode Standard, table 3-8: U+FFFD for each maximal subpart. */
Test(utf8, ill_formed_runs_have_as_many_parts_as_the_standard_says)
{
	const char *text = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
	const uint32_t expected[] = {0x61, 0xfffd, 0xfffd, 0xfffd, 0x62, 0xfffd, 0x63, 0xfffd, 0xfffd, 0x64};
	size_t i = 0, k = 0;

	while (i < strlen(text)) {
		uint32_t c = 0;
		int n = next(text + i, &c);
		cr_assert_neq(n, 0);
		cr_assert_lt(k, sizeof(expected) / sizeof(expected[0]));
		cr_assert_eq(n > 0 ? c : 0xfffd, expected[k]);
		k++;
		i += (size_t)(n > 0 ? n : -n);
	}
	cr_assert_eq(k, sizeof(expected) / sizeof(expected[0]));
}

Test(utf8, complete_prefix_ends_before_an_unfinished_character)
{
	cr_assert_eq(utf8_complete_prefix("", 0), 0);
	cr_assert_eq(utf8_complete_prefix("abc", 3), 3);
	cr_assert_eq(utf8_complete_prefix("a\xc3", 2), 1);
	cr_assert_eq(utf8_complete_prefix("a\xc3\xa9", 3), 3);
	cr_assert_eq(utf8_complete_prefix("\xe2\x82", 2), 0);
	cr_assert_eq(utf8_complete_prefix("x\xf0\x9f\x98", 4), 1);
	cr_assert_eq(utf8_complete_prefix("x\xf0\x9f\x98\x80", 5), 5);
	/* Ill-formed ends are complete: nothing that follows can repair them. */
	cr_assert_eq(utf8_complete_prefix("a\x80", 2), 2);
	cr_assert_eq(utf8_complete_prefix("\xe0\x80", 2), 2);
	cr_assert_eq(utf8_complete_prefix("\x80\x80\x80\x80", 4), 4);
	cr_assert_eq(utf8_complete_prefix("\xff", 1), 1);
}
