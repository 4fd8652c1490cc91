#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/added_priv.h"

static struct added_set set;

static void add(const char *text, u32 id, u32 flags)
{
	cr_assert(added_set_add(&set, text, strlen(text), id, flags) == ERR_OK);
}

/* "gap<id>gap<id>gap" */
static const char *found(const char *text)
{
	static char out[512];
	struct added_cursor c = {0};
	struct added_match m;
	size_t n = 0, bytes = strlen(text);
	added_set_finish(&set);
	while (added_set_next(&set, text, bytes, &c, &m)) {
		if (c.gap < m.begin)
			n += (size_t)sprintf(out + n, "%.*s", (int)(m.begin - c.gap), text + c.gap);
		n += (size_t)sprintf(out + n, "<%u>", m.id);
		c.gap = m.end;
	}
	sprintf(out + n, "%s", text + (c.gap < bytes ? c.gap : bytes));
	added_set_fini(&set);
	return out;
}

Test(added, the_longest_match_wins)
{
	add("ab", 1, 0);
	add("abcd", 2, 0);
	add("abc", 3, 0);
	add("x", 4, 0);
	cr_assert_str_eq(found("abcdxabcxab_a"), "<2><4><3><4><1>_a");
}

Test(added, of_two_equal_texts_the_first_wins)
{
	add("ab", 1, 0);
	add("ab", 2, 0);
	cr_assert_str_eq(found("ab"), "<1>");
}

Test(added, strips_take_white_space_in)
{
	add("L", 1, ADDED_LSTRIP);
	add("R", 2, ADDED_RSTRIP);
	cr_assert_str_eq(found("a \xc2\xa0L b R \n c"), "a<1> b <2>c");
}

Test(added, white_space_belongs_to_the_match_that_took_it)
{
	add("R", 1, ADDED_RSTRIP);
	add("L", 2, ADDED_LSTRIP);
	cr_assert_str_eq(found("R   L"), "<1><2>");
}

Test(added, a_token_within_what_was_taken_is_gone)
{
	add("\n", 1, ADDED_LSTRIP | ADDED_RSTRIP);
	cr_assert_str_eq(found("a\n\n\nb\n"), "a<1>b<1>");
}

Test(added, single_words_stand_alone)
{
	add("he", 1, ADDED_SINGLE_WORD);
	cr_assert_str_eq(found("he she the he's h\xc3\xa9 he"), "<1> she the <1>'s h\xc3\xa9 <1>");
	add("he", 1, ADDED_SINGLE_WORD);
	cr_assert_str_eq(found("he\xcc\x81"), "he\xcc\x81");
}

Test(added, long_white_space_takes_no_time, .timeout = 120)
{
	size_t bytes = 1 << 20, count = 0;
	char *text = malloc(bytes);
	struct added_cursor c = {0};
	struct added_match m;
	memset(text, ' ', bytes);
	add("  ", 1, ADDED_RSTRIP);
	add("   ", 2, ADDED_LSTRIP);
	added_set_finish(&set);
	while (added_set_next(&set, text, bytes, &c, &m)) {
		c.gap = m.end > c.gap ? m.end : c.gap;
		count++;
	}
	cr_assert_gt(count, 0);
	added_set_fini(&set);
	free(text);
}
