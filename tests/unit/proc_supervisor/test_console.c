#include <criterion/criterion.h>

#include "proc_supervisor/console.h"

Test(console, facts_are_found_by_their_whole_name)
{
	char value[16];
	const char *facts = "block_count=64 max=7  url=http://x:1 empty=";

	cr_assert(console_fact(facts, "block_count", value, sizeof(value)));
	cr_assert_str_eq(value, "64");
	cr_assert(console_fact(facts, "url", value, sizeof(value)));
	cr_assert_str_eq(value, "http://x:1");
	cr_assert_not(console_fact(facts, "block", value, sizeof(value)));
	cr_assert_not(console_fact(facts, "count", value, sizeof(value)));
	cr_assert_not(console_fact("", "max", value, sizeof(value)));
}

Test(console, facts_that_do_not_fit_are_cut)
{
	char value[4];

	cr_assert(console_fact("k=abcdef", "k", value, sizeof(value)));
	cr_assert_str_eq(value, "abc");
}
