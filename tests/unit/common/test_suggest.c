#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "common/suggest.h"

static size_t distance(const char *word, const char *known)
{
	return suggest_distance(word, strlen(word), known);
}

Test(suggest, counts_the_edits)
{
	cr_assert_eq(distance("port", "port"), 0);
	cr_assert_eq(distance("prot", "port"), 1);
	cr_assert_eq(distance("prt", "port"), 1);
	cr_assert_eq(distance("poort", "port"), 1);
	cr_assert_eq(distance("pork", "port"), 1);
	cr_assert_eq(distance("", "port"), 4);
	cr_assert_eq(distance("kitten", "sitting"), 3);
}

Test(suggest, dashes_and_underscores_are_the_same)
{
	cr_assert_eq(distance("max-model-len", "max_model_len"), 0);
}

Test(suggest, an_ending_counts_once)
{
	cr_assert_eq(distance("max_model_length", "max_model_len"), 1);
	cr_assert_eq(distance("serv", "serve_all_of_them"), 1);
}

Test(suggest, words_beyond_the_limit_are_infinitely_far)
{
	char word[65];

	memset(word, 'a', 64);
	word[64] = '\0';
	cr_assert_eq(distance(word, "port"), SIZE_MAX);
	cr_assert_eq(distance("port", word), SIZE_MAX);
	cr_assert_not(suggest_is_near(SIZE_MAX, 64));
}

Test(suggest, only_a_third_of_a_word_may_be_wrong)
{
	cr_assert(suggest_is_near(1, 4));
	cr_assert_not(suggest_is_near(2, 4));
	cr_assert_not(suggest_is_near(0, 1));
}
