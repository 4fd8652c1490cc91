#include <criterion/criterion.h>
#include <string.h>

#include "text/regex_priv.h"

/* Does the pattern, as Oniguruma reads it, match the whole text at its start? */
static bool matches(const char *pattern, const char *text)
{
	struct regex r;
	struct regex_scratch s;
	struct err_msg em = {.text = ""};
	size_t begin = 1, end = 0;
	cr_assert(regex_compile(&r, pattern, strlen(pattern), &em) == ERR_OK, "%s", em.text);
	cr_assert(regex_scratch_init(&s) == ERR_OK);
	enum err e = regex_match(&r, &s, text, strlen(text), 0, &begin, &end);
	regex_scratch_fini(&s);
	regex_fini(&r);
	return e == ERR_OK && begin == 0 && end == strlen(text);
}

static void refused(const char *pattern, enum err wanted, const char *word)
{
	struct regex r;
	struct err_msg em = {.text = ""};
	cr_assert_eq(regex_compile(&r, pattern, strlen(pattern), &em), wanted, "%s", pattern);
	cr_assert_not_null(strstr(em.text, word), "%s", em.text);
}

Test(regex, white_space_has_no_mongolian_vowel_separator)
{
	cr_assert(matches("\\s", " ") && matches("\\s", "\xe2\x80\xa8") && matches("[\\s]", "\xc2\x85"));
	cr_assert(!matches("\\s", "\xe1\xa0\x8e") && matches("\\S", "\xe1\xa0\x8e"));
	cr_assert(matches("[^\\s]", "\xe1\xa0\x8e"));
}

Test(regex, word_characters_have_marks_and_numbers)
{
	cr_assert(matches("\\w", "\xcc\x81") && matches("\\w", "_") && matches("[\\w]", "\xe0\xa5\x8d"));
	cr_assert(matches("\\w", "\xc2\xb2"), "alone, the superscripts of Latin-1 are word characters");
	cr_assert(!matches("[\\w]", "\xc2\xb2"), "in a class they are not");
	cr_assert(matches("\\W", "-") && !matches("\\W", "a") && matches("[\\W_]", "_"));
}

Test(regex, h_is_a_hex_digit)
{
	cr_assert(matches("\\h+", "09aF") && !matches("\\h", " ") && matches("\\H", "g"));
}

Test(regex, scripts_are_scripts_and_long_names_are_known)
{
	cr_assert(matches("\\p{Han}", "\xe4\xbd\xa0"));
	cr_assert(!matches("\\p{Han}", "\xe3\x80\x81"), "a comma of the script extensions is not of the script");
	cr_assert(matches("\\p{Letter}\\p{Number}\\p{Uppercase_Letter}", "a1Z") && matches("\\p{^L}", "1"));
	cr_assert(matches("\\p{Punct}", "!") && !matches("\\p{Punct}", "<") && matches("[[:punct:]]", "<"));
}

Test(regex, classes_nest_and_intersect)
{
	cr_assert(matches("[\\p{L}&&[^\\p{Han}]]+", "abc"));
	cr_assert(!matches("[\\p{L}&&[^\\p{Han}]]", "\xe4\xbd\xa0"));
	cr_assert(matches("[a[bc]d]+", "abcd") && matches("[^a[^b]]", "b") && !matches("[^a[^b]]", "c"));
	cr_assert(matches("[a-z&&[^aeiou]&&[^x]]", "b") && !matches("[a-z&&[^aeiou]&&[^x]]", "x"));
	cr_assert(matches("[]a]+", "]a"));
}

Test(regex, a_counted_repeat_with_plus_repeats)
{
	cr_assert(matches("a{1,2}+", "aaaaa"), "not possessive");
	cr_assert(matches("(?:ab){2}+", "abababab"));
}

Test(regex, m_is_dot_all_and_lines_have_ends)
{
	cr_assert(matches("(?m).", "\n") && !matches(".", "\n"));
	cr_assert(matches("(?:a$\n^b)", "a\nb"));
}

Test(regex, what_cannot_be_read_is_refused_with_a_reason)
{
	refused("(?~ab)", ERR_UNSUPPORTED, "absent operator");
	refused("[ab", ERR_FORMAT, "\"]\"");
	refused("a(b", ERR_FORMAT, "does not compile");
	refused("\\p{Nonsense}", ERR_FORMAT, "does not compile");
}

Test(regex, exponential_patterns_end)
{
	struct regex r;
	struct regex_scratch s;
	struct err_msg em;
	char text[64];
	size_t begin, end;
	memset(text, 'a', sizeof(text));
	cr_assert(regex_compile(&r, "(?:a|aa)+b", 10, &em) == ERR_OK && regex_scratch_init(&s) == ERR_OK);
	enum err e = regex_match(&r, &s, text, sizeof(text), 0, &begin, &end);
	cr_assert(e == ERR_TOO_LONG || e == ERR_NOT_FOUND);
	regex_scratch_fini(&s);
	regex_fini(&r);
}
