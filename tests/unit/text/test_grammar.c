#include "grammar_text.h"

static void demo_init(struct tongue *t)
{
	tongue_init(t, SOURCE_ROOT "/demo");
}

Test(grammar, a_choice_is_taken_letter_by_letter)
{
	struct tongue t;
	demo_init(&t);
	const char *source = "[\"red\", \"reddish\", \"green\\n\\u00e9\", \"red\"]";
	cr_assert(takes(&t, GRAMMAR_CHOICE, source, "red"));
	cr_assert(takes(&t, GRAMMAR_CHOICE, source, "reddish"));
	cr_assert(takes(&t, GRAMMAR_CHOICE, source, "green\n\xc3\xa9"));
	cr_assert(!takes(&t, GRAMMAR_CHOICE, source, "redd"));
	cr_assert(!takes(&t, GRAMMAR_CHOICE, source, "blue"));
	cr_assert(!takes(&t, GRAMMAR_CHOICE, source, "redx"));
	tongue_fini(&t);
}

Test(grammar, choices_are_strings)
{
	refused(GRAMMAR_CHOICE, "[\"a\", 1]", ERR_FORMAT, "choice 1 is to be a string, not integer");
	refused(GRAMMAR_CHOICE, "[]", ERR_FORMAT, "not empty");
	refused(GRAMMAR_CHOICE, "{}", ERR_FORMAT, "array");
	refused(GRAMMAR_CHOICE, "[\"\"]", ERR_INVALID, "empty");
	refused(GRAMMAR_CHOICE, "[", ERR_FORMAT, "no JSON");
	refused(GRAMMAR_CHOICE, "[\"\xff\"]", ERR_FORMAT, "UTF-8");
}

struct match {
	const char *pattern, *text;
	bool wanted;
};

Test(grammar, expressions_match_the_whole_text)
{
	static const struct match matches[] = {
		{"a+b?", "aab", true},       {"a+b?", "b", false},          {"^a|b$", "b", true},
		{"(foo|ba[rz])", "baz", true},    {"(foo|ba[rz])", "bax", false},  {"[^a-c]", "\xc3\xa9", true},
		{"[^a-c]", "b", false},           {"\\d{3}-\\d{4}", "555-1234", true}, {"\\d{3}-\\d{4}", "555-123", false},
		{".", "\n", false},               {".", "\xf0\x9f\x98\x80", true}, {"\\w+\\s\\w+", "ab c", true},
		{"\\x41\\u0042\\u{43}", "ABC", true}, {"[\\]\\-x]+", "]-x", true},   {"a{2,}", "a", false},
		{"a{2,}", "aaaa", true},          {"a{,3}", "a{,3}", false},        {"(a|b)*c", "ababc", true},
		{"(?:x)(?<n>y)", "xy", true},     {"a*?b", "aab", true},           {"\\p{Lu}\\p{L}*", "\xc3\x89t\xc3\xa9", true},
		{"\\P{L}", "a", false},           {"[a-z]{1000}{2}", "a", false},  {"\xc3\xa9+", "\xc3\xa9\xc3\xa9", true},
		{"\\ud83d\\ude00", "\xf0\x9f\x98\x80", true}, {"[\\d.]+", "1.2", true}, {"(a*)*", "aaa", true},
		{"(a?){3}b", "aab", true},        {"\\.\\*", ".*", true},          {"a||b", "", true},
		{"(a?){3}b", "aaaab", false},     {"(a?b?){2}", "abab", true},     {"(a?b?){2}", "bab", true},
		{"(a?b?){2}", "bababa", false},   {"(a?b?){2}", "", true},         {"(a{2,3}|){2}c", "aaaac", true},
		{"(a{2,3}|){2}c", "ac", false},   {"(a{2,3}|){2}c", "aaaaaac", true}, {"(a{2,3}|){2}c", "aaaaaaac", false},
		{"((a*)b*(c?|d)){3,}", "cdcdab", true}, {"(){3}a", "a", true},      {"(|a|()){2,4}", "aaaa", true},
		{"(|a|()){2,4}", "aaaaa", false}, {"((a?){2}b?){2}", "aabaab", true}, {"((a?){2}b?){2}", "aaaab", true},
		{"((a?){2}b?){2}", "aaaaab", false}, {"(.?){9000}", "abc", true},
		{"a{,3}b", "aaab", true},         {"a{,3}", "aaaa", false},        {"a{,}", "a{,}", true},         {"a{,x}", "a{,x}", true},
	};
	struct tongue t;
	demo_init(&t);
	for (size_t i = 0; i < COUNT_OF(matches); i++)
		cr_assert_eq(takes(&t, GRAMMAR_REGEX, matches[i].pattern, matches[i].text), matches[i].wanted, "%s on %s",
			     matches[i].pattern, matches[i].text);
	tongue_fini(&t);
}

Test(grammar, expressions_that_are_not_regular_are_refused_by_name)
{
	refused(GRAMMAR_REGEX, "(a)\\1", ERR_UNSUPPORTED, "back reference \\1 at byte 3");
	refused(GRAMMAR_REGEX, "a(?=b)", ERR_UNSUPPORTED, "group at byte 1");
	refused(GRAMMAR_REGEX, "a(?<!b)", ERR_UNSUPPORTED, "group at byte 1");
	refused(GRAMMAR_REGEX, "\\bword", ERR_UNSUPPORTED, "assertion \\b");
	refused(GRAMMAR_REGEX, "a^b", ERR_UNSUPPORTED, "anchors");
	refused(GRAMMAR_REGEX, "a*+", ERR_UNSUPPORTED, "possessive");
	refused(GRAMMAR_REGEX, "[[:alpha:]]", ERR_UNSUPPORTED, "POSIX");
	refused(GRAMMAR_REGEX, "\\p{Greek}", ERR_UNSUPPORTED, "general categories");
}

Test(grammar, malformed_expressions_are_refused_with_their_place)
{
	refused(GRAMMAR_REGEX, "(a", ERR_FORMAT, "( at byte 0 is not closed");
	refused(GRAMMAR_REGEX, "a)", ERR_FORMAT, ") at byte 1 closes nothing");
	refused(GRAMMAR_REGEX, "[a", ERR_FORMAT, "[ at byte 0 is not closed");
	refused(GRAMMAR_REGEX, "*a", ERR_FORMAT, "* at byte 0 repeats nothing");
	refused(GRAMMAR_REGEX, "[z-a]", ERR_FORMAT, "range at byte 2");
	refused(GRAMMAR_REGEX, "a\\", ERR_FORMAT, "backslash at the end");
	refused(GRAMMAR_REGEX, "\\q", ERR_FORMAT, "\\q at byte 0 is unknown");
	refused(GRAMMAR_REGEX, "a{3,2}", ERR_FORMAT, "maximum is below");
	refused(GRAMMAR_REGEX, "a{99999999999}", ERR_TOO_LONG, "the repetition at byte 1 is too long");
	refused(GRAMMAR_REGEX, "a{1,99999999999999999999999}", ERR_TOO_LONG, "the repetition at byte 1 is too long");
	refused(GRAMMAR_REGEX, "[^\\s\\S]", ERR_INVALID, "no text matches");
}

Test(grammar, what_is_too_large_is_refused)
{
	refused(GRAMMAR_REGEX, "a{100000}", ERR_TOO_LONG, "at most 65535");
	refused(GRAMMAR_REGEX, "((a{60000}b{60000}){2}c{60000}){3}((a{60000}b{60000}){2}c{60000}){3}", ERR_TOO_LONG, "too large");
	char classes[5 * 20000 + 1];
	for (u32 i = 0; i < 20000; i++)
		memcpy(classes + 5 * i, "\\p{L}", 6);
	refused(GRAMMAR_REGEX, classes, ERR_TOO_LONG, "too many classes of characters");
	char deep[1001];
	memset(deep, '(', 1000);
	deep[1000] = '\0';
	refused(GRAMMAR_REGEX, deep, ERR_TOO_LONG, "levels");
}

Test(grammar, the_end_comes_where_the_text_may_end_only)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g = compiled(GRAMMAR_REGEX, "ab?");
	struct grammar_state *s;
	cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
	u32 *bits = calloc(grammar_mask_words(tokenizer_vocab_size(t.tokenizer)), sizeof(*bits));
	cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
	cr_assert(!(bits[t.eos / 32] >> t.eos % 32 & 1) && !grammar_state_may_end(s));
	cr_assert_eq(grammar_state_advance(s, t.eos), ERR_INVALID);
	cr_assert_eq(grammar_state_advance(s, t.byte_token['a']), ERR_OK);
	cr_assert(grammar_state_may_end(s) && !grammar_state_must_end(s));
	cr_assert_eq(grammar_state_advance(s, t.byte_token['b']), ERR_OK);
	cr_assert(grammar_state_must_end(s));
	cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
	u32 set = 0;
	for (size_t i = 0; i < grammar_mask_words(tokenizer_vocab_size(t.tokenizer)); i++)
		set += (u32)__builtin_popcount(bits[i]);
	cr_assert_eq(set, 1, "nothing but the end");
	cr_assert(bits[t.eos / 32] >> t.eos % 32 & 1);
	cr_assert_eq(grammar_state_advance(s, t.eos), ERR_OK);
	cr_assert_eq(grammar_state_advance(s, t.byte_token['a']), ERR_INVALID);
	cr_assert_eq(grammar_state_advance(s, UINT32_MAX), ERR_INVALID);
	grammar_state_destroy(&s);
	grammar_unref(&g);
	free(bits);
	tongue_fini(&t);
}

Test(grammar, copies_and_replays_are_at_the_same_place)
{
	struct tongue t;
	demo_init(&t);
	struct grammar *g = compiled(GRAMMAR_REGEX, "[a-z]{3}[0-9]+");
	struct grammar_state *s, *copy, *again;
	u32 ids[] = {t.byte_token['a'], t.byte_token['b'], t.byte_token['c'], t.byte_token['1']};
	size_t failed = 99;
	cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
	cr_assert_eq(grammar_state_create(&again, g, t.vocab), ERR_OK);
	grammar_unref(&g);
	for (size_t i = 0; i < 3; i++)
		cr_assert_eq(grammar_state_advance(s, ids[i]), ERR_OK);
	cr_assert_eq(grammar_state_copy(&copy, s), ERR_OK);
	cr_assert_eq(grammar_state_advance(s, ids[3]), ERR_OK);
	cr_assert(grammar_state_may_end(s) && !grammar_state_may_end(copy));
	cr_assert_eq(grammar_state_replay(again, ids, 4, &failed), ERR_OK);
	cr_assert(grammar_state_may_end(again));
	ids[2] = t.byte_token['9'];
	cr_assert_eq(grammar_state_replay(again, ids, 4, &failed), ERR_INVALID);
	cr_assert_eq(failed, 2);
	cr_assert_eq(grammar_state_advance(again, t.byte_token['z']), ERR_OK);
	grammar_state_destroy(&s);
	grammar_state_destroy(&copy);
	grammar_state_destroy(&again);
	tongue_fini(&t);
}

Test(grammar, a_vocabulary_needs_an_end)
{
	struct tongue t;
	demo_init(&t);
	struct grammar_vocab *v;
	struct err_msg em = {.text = ""};
	u32 size = tokenizer_vocab_size(t.tokenizer);
	cr_assert_eq(grammar_vocab_create(&v, t.tokenizer, size, &size, 1, &em), ERR_INVALID);
	cr_assert_not_null(strstr(em.text, "ends an answer"), "%s", em.text);
	cr_assert_null(v);
	tongue_fini(&t);
}

/* Here each byte leads to 256 calls that end, before any that eats the next byte. */
Test(grammar, ambiguous_repetitions_of_calls_take_what_their_masks_allow)
{
	struct tongue t;
	tongue_init(&t, SOURCE_ROOT "/demo");
	static const char *const sources[] = {"root ::= x{2000} \"x\"\nx ::= .?", "root ::= x{5000} \"b\"\nx ::= \"a\"?", "root ::= x{9000}\nx ::= .?"};
	u32 *bits = calloc(grammar_mask_words(tokenizer_vocab_size(t.tokenizer)), sizeof(*bits));
	for (size_t i = 0; i < COUNT_OF(sources); i++) {
		struct grammar *g = compiled(GRAMMAR_EBNF, sources[i]);
		struct grammar_state *s;
		u32 a = t.byte_token['a'];
		cr_assert_eq(grammar_state_create(&s, g, t.vocab), ERR_OK);
		for (u32 k = 0; k < 4; k++) {
			cr_assert_eq(grammar_state_mask(s, bits), ERR_OK);
			cr_assert(bits[a / 32] >> a % 32 & 1, "%s: %u", sources[i], k);
			cr_assert_eq(grammar_state_advance(s, a), ERR_OK, "%s: %u", sources[i], k);
		}
		grammar_state_destroy(&s);
		grammar_unref(&g);
	}
	free(bits);
	tongue_fini(&t);
}
