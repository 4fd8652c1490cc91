#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proc_detok/stop_strings.h"

static void set_init(struct stop_strings *s, const char *const *stops, u32 count)
{
	u32 lengths[STOP_STRINGS_MAX];
	u8 text[STOP_STRING_BYTES_MAX];
	u32 at = 0;
	for (u32 i = 0; i < count; i++) {
		lengths[i] = (u32)strlen(stops[i]);
		memcpy(text + at, stops[i], lengths[i]);
		at += lengths[i];
	}
	cr_assert_eq(stop_strings_init(s, lengths, count, text, at), ERR_OK);
}

/* Feeds byte by byte; the number of bytes read when a stop completed, or 0. */
static size_t feed(struct stop_strings *s, const char *text, struct stop_match *m)
{
	for (size_t i = 0; text[i]; i++)
		if (stop_strings_push(s, text + i, 1, true, m))
			return i + 1;
	return 0;
}

Test(stop_strings, empty_set_never_matches_and_holds_nothing)
{
	struct stop_strings s = {0};
	struct stop_match m;
	cr_assert_not(stop_strings_push(&s, "abc", 3, true, &m));
	cr_assert_eq(stop_strings_held(&s), 0);
}

Test(stop_strings, match_across_pieces_is_found)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"abc"}, 1);
	cr_assert_not(stop_strings_push(&s, "xxa", 3, true, &m));
	cr_assert_eq(stop_strings_held(&s), 1);
	cr_assert_not(stop_strings_push(&s, "b", 1, true, &m));
	cr_assert_eq(stop_strings_held(&s), 2);
	cr_assert(stop_strings_push(&s, "cyy", 3, true, &m));
	cr_assert_eq(m.index, 0);
	cr_assert_eq(m.bytes, 3);
	cr_assert_eq(m.consumed, 1);
}

Test(stop_strings, only_a_proper_prefix_of_a_stop_is_held)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"\n\nUser:", "END"}, 2);
	cr_assert_not(stop_strings_push(&s, "some text without", 17, true, &m));
	cr_assert_eq(stop_strings_held(&s), 0);
	cr_assert_not(stop_strings_push(&s, "\n\nUs", 4, true, &m));
	cr_assert_eq(stop_strings_held(&s), 4);
	cr_assert_not(stop_strings_push(&s, "E", 1, true, &m));
	cr_assert_eq(stop_strings_held(&s), 1);
}

Test(stop_strings, the_one_that_completes_first_wins)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"bcdef", "cd"}, 2);
	cr_assert(stop_strings_push(&s, "abcdef", 6, true, &m));
	cr_assert_eq(m.index, 1);
	cr_assert_eq(m.consumed, 4);
}

Test(stop_strings, the_first_listed_wins_a_tie)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"b", "ab"}, 2);
	cr_assert(stop_strings_push(&s, "ab", 2, true, &m));
	cr_assert_eq(m.index, 0);
	set_init(&s, (const char *[]){"ab", "b"}, 2);
	cr_assert(stop_strings_push(&s, "ab", 2, true, &m));
	cr_assert_eq(m.index, 0);
	cr_assert_eq(m.bytes, 2);
}

Test(stop_strings, failed_attempts_fall_back_to_borders)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"aabaaab"}, 1);
	cr_assert_eq(feed(&s, "aabaabaaab", &m), 10);
}

Test(stop_strings, passed_over_matches_may_begin_a_later_one)
{
	struct stop_strings s;
	struct stop_match m;
	set_init(&s, (const char *[]){"aa"}, 1);
	cr_assert_not(stop_strings_push(&s, "xaa", 3, false, &m));
	cr_assert_eq(stop_strings_held(&s), 1);
	cr_assert(stop_strings_push(&s, "a", 1, true, &m));
	cr_assert_eq(m.consumed, 1);
}

Test(stop_strings, bad_lists_are_refused)
{
	struct stop_strings s;
	u32 zero = 0, two = 2, half = 1, many[STOP_STRINGS_MAX + 1];
	for (u32 i = 0; i <= STOP_STRINGS_MAX; i++)
		many[i] = 1;
	cr_assert_eq(stop_strings_init(&s, &zero, 1, (const u8 *)"", 0), ERR_INVALID);
	cr_assert_eq(stop_strings_init(&s, &two, 1, (const u8 *)"abc", 3), ERR_INVALID);
	cr_assert_eq(stop_strings_init(&s, &two, 1, (const u8 *)"a", 1), ERR_INVALID);
	cr_assert_eq(stop_strings_init(&s, &half, 1, (const u8 *)"\xc3", 1), ERR_INVALID);
	cr_assert_eq(stop_strings_init(&s, many, STOP_STRINGS_MAX + 1, (const u8 *)"abcdefghijklmnopq", 17),
		     ERR_INVALID);
	cr_assert_eq(s.count, 0);
}

/* The naive oracle: every end, every string. */
static size_t oracle(const char *text, size_t bytes, const char *const *stops, u32 count, u32 *index)
{
	for (size_t end = 1; end <= bytes; end++) {
		for (u32 i = 0; i < count; i++) {
			size_t n = strlen(stops[i]);
			if (n <= end && memcmp(text + end - n, stops[i], n) == 0) {
				*index = i;
				return end;
			}
		}
	}
	return 0;
}

static size_t oracle_held(const char *text, size_t bytes, const char *const *stops, u32 count)
{
	size_t held = 0;
	for (u32 i = 0; i < count; i++) {
		for (size_t n = 1; n < strlen(stops[i]) && n <= bytes; n++)
			if (n > held && memcmp(text + bytes - n, stops[i], n) == 0)
				held = n;
	}
	return held;
}

Test(stop_strings, agrees_with_the_naive_search_on_random_text)
{
	srand(4711);
	for (int round = 0; round < 20000; round++) {
		char stops[4][8], text[41];
		const char *list[4];
		u32 count = 1 + (u32)rand() % 4;
		for (u32 i = 0; i < count; i++) {
			int n = 1 + rand() % 6;
			for (int k = 0; k < n; k++)
				stops[i][k] = (char)('a' + rand() % 2);
			stops[i][n] = 0;
			list[i] = stops[i];
		}
		size_t bytes = 40;
		for (size_t k = 0; k < bytes; k++)
			text[k] = (char)('a' + rand() % (round % 2 ? 2 : 3));
		text[bytes] = 0;

		struct stop_strings s;
		set_init(&s, list, count);
		u32 want_index = 0;
		size_t want = oracle(text, bytes, list, count, &want_index);
		size_t at = 0, got = 0;
		struct stop_match m = {0};
		while (at < bytes && got == 0) {
			size_t n = 1 + (size_t)rand() % 5;
			if (n > bytes - at)
				n = bytes - at;
			if (stop_strings_push(&s, text + at, n, true, &m))
				got = at + m.consumed;
			at += n;
			if (got == 0)
				cr_assert_eq(stop_strings_held(&s), oracle_held(text, at, list, count),
					     "round %d", round);
		}
		cr_assert_eq(got, want, "round %d: %zu instead of %zu in %s", round, got, want, text);
		if (got > 0)
			cr_assert_eq(m.index, want_index, "round %d", round);
	}
}
