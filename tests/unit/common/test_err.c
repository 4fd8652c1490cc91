#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

Test(err, every_code_has_a_name_and_a_text_of_its_own)
{
	for (int a = 0; a < ERR_COUNT; a++) {
		cr_assert(strlen(err_text((enum err)a)) > 3);
		cr_assert(strcmp(err_text((enum err)a), "unknown error") != 0);
		for (int b = 0; b < a; b++) {
			cr_assert_str_neq(err_text((enum err)a), err_text((enum err)b));
			cr_assert_str_neq(err_name((enum err)a), err_name((enum err)b));
		}
	}
}

Test(err, names_are_those_of_the_table)
{
	cr_assert_eq(ERR_OK, 0);
	cr_assert_str_eq(err_name(ERR_KV_FULL), "KV_FULL");
	cr_assert_str_eq(err_name(ERR_INTERNAL), "INTERNAL");
}

Test(err, numbers_outside_of_the_table_are_unknown)
{
	cr_assert_str_eq(err_text((enum err)ERR_COUNT), "unknown error");
	cr_assert_str_eq(err_name((enum err)12345), "UNKNOWN");
}

Test(err, set_writes_the_message_and_returns_the_code)
{
	struct err_msg em;

	cr_assert_eq(err_set(&em, ERR_IO, "%s: %d", "file", 7), ERR_IO);
	cr_assert_str_eq(em.text, "file: 7");
	cr_assert_eq(err_set(NULL, ERR_BUSY, "nobody reads this"), ERR_BUSY);
}

Test(err, set_cuts_what_does_not_fit)
{
	struct err_msg em;
	char text[2000];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	err_set(&em, ERR_IO, "%s", text);
	cr_assert_eq(strlen(em.text), sizeof(em.text) - 1);
}

Test(err, prefix_goes_in_front)
{
	struct err_msg em;

	err_set(&em, ERR_IO, "no such file");
	err_prefix(&em, "layer %d", 3);
	cr_assert_str_eq(em.text, "layer 3: no such file");
	err_prefix(NULL, "nothing");
}

Test(err, prefix_keeps_the_message_terminated_whatever_the_lengths)
{
	for (int old = 0; old < 1024; old += 13)
		for (int prefix = 0; prefix < 800; prefix += 17) {
			struct err_msg em;
			err_set(&em, ERR_IO, "%*s", old, "");
			err_prefix(&em, "%*s", prefix, "");
			size_t expected = (size_t)old + (size_t)prefix + 2;
			size_t got = strnlen(em.text, sizeof(em.text));
			cr_assert_lt(got, sizeof(em.text));
			if (expected < sizeof(em.text))
				cr_assert_eq(got, expected);
		}
}
