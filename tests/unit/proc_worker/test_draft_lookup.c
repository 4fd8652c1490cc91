/* Guesses from a row's own tokens, against a search that looks at every place. */
#include <stdlib.h>

#include "proc_worker/draft_lookup.h"
#include "tests/unit/proc_worker/batch_fixture.h"

enum { CONTEXT = 600, GUESS_MAX = 8 };

struct bench {
	struct batch_state *batch;
	struct draft_lookup *lookup;
	u64 next_seq;
};

static struct bench open_bench(u32 tokens_min, u32 tokens_max)
{
	struct batch_limits limits = LIMITS;
	struct draft_lookup_config config = {LIMITS.rows_max, CONTEXT, tokens_min, tokens_max};
	struct bench t = {.next_seq = 1};
	struct err_msg em;

	limits.max_model_len = CONTEXT;
	cr_assert_eq(batch_state_create(&t.batch, &limits, &em), ERR_OK);
	cr_assert_eq(draft_lookup_create(&t.lookup, &config, &em), ERR_OK);
	return t;
}

static void close_bench(struct bench *t)
{
	draft_lookup_destroy(&t->lookup);
	batch_state_destroy(&t->batch);
}

/* A row of these tokens, as an add leaves it; there are no steps here. */
static void put(struct bench *t, u32 row, const u32 *tokens, u32 count)
{
	memcpy(t->batch->tokens + row * t->batch->token_stride, tokens, count * sizeof(u32));
	t->batch->known[row] = count;
	t->batch->rows[row].incarnation = t->next_seq++;
}

static void append(struct bench *t, u32 row, u32 token)
{
	t->batch->tokens[row * t->batch->token_stride + t->batch->known[row]++] = token;
}

static void expect(struct bench *t, u32 row, u32 max, const u32 *wanted, u32 count)
{
	u32 out[GUESS_MAX];
	u32 n = draft_lookup_find(t->lookup, t->batch, row, max, out);

	cr_assert_eq(n, count, "%u tokens, not %u", n, count);
	for (u32 i = 0; i < n; i++)
		cr_assert_eq(out[i], wanted[i], "token %u is %u, not %u", i, out[i], wanted[i]);
}

#define EXPECT(t, row, max, ...)                                        \
	do {                                                            \
		const u32 wanted[] = {__VA_ARGS__};                     \
		expect(t, row, max, wanted, (u32)COUNT_OF(wanted));     \
	} while (0)

Test(draft_lookup, what_stood_behind_the_same_tokens_is_guessed)
{
	struct bench t = open_bench(2, 3);
	const u32 tokens[] = {1, 2, 3, 4, 5, 6, 7, 9, 2, 3};

	put(&t, 3, tokens, COUNT_OF(tokens));
	EXPECT(&t, 3, 3, 4, 5, 6);
	EXPECT(&t, 3, 1, 4);
	append(&t, 3, 4);
	EXPECT(&t, 3, 2, 5, 6);
	append(&t, 3, 8);
	expect(&t, 3, 4, NULL, 0);
	close_bench(&t);
}

Test(draft_lookup, the_longest_match_counts_and_of_equals_the_newest)
{
	struct bench t = open_bench(1, 3);
	const u32 longest[] = {1, 2, 3, 50, 9, 3, 60, 8, 2, 3, 70, 1, 2, 3};
	const u32 newest[] = {1, 2, 3, 50, 1, 2, 3, 60, 4, 3, 70, 1, 2, 3};

	put(&t, 0, longest, COUNT_OF(longest));
	EXPECT(&t, 0, 1, 50);
	put(&t, 1, newest, COUNT_OF(newest));
	EXPECT(&t, 1, 1, 60);
	close_bench(&t);
}

Test(draft_lookup, what_repeats_itself_goes_on_behind_the_newest_token)
{
	struct bench t = open_bench(1, 4);
	const u32 tokens[] = {7, 8, 9, 7, 8};

	put(&t, 0, tokens, COUNT_OF(tokens));
	EXPECT(&t, 0, 8, 9, 7, 8, 9, 7, 8, 9, 7);
	const u32 same[] = {5, 5};
	put(&t, 1, same, COUNT_OF(same));
	EXPECT(&t, 1, 4, 5, 5, 5, 5);
	close_bench(&t);
}

Test(draft_lookup, rows_too_short_for_a_match_get_nothing)
{
	struct bench t = open_bench(3, 5);
	const u32 tokens[] = {5, 5, 5, 5};

	for (u32 n = 1; n <= 3; n++) {
		put(&t, 0, tokens, n);
		expect(&t, 0, 4, NULL, 0);
	}
	put(&t, 0, tokens, 4);
	EXPECT(&t, 0, 2, 5, 5);
	close_bench(&t);
}

Test(draft_lookup, another_sequence_in_the_row_knows_nothing_of_the_one_before)
{
	struct bench t = open_bench(2, 2);
	const u32 old[] = {1, 2, 3, 1, 2}, fresh[] = {4, 5, 6, 1, 2};

	put(&t, 0, old, COUNT_OF(old));
	EXPECT(&t, 0, 1, 3);
	put(&t, 0, fresh, COUNT_OF(fresh));
	expect(&t, 0, 1, NULL, 0);
	close_bench(&t);
}

Test(draft_lookup, guesses_that_are_wrong_again_and_again_pause)
{
	static const u32 pauses[] = {0, 1, 3, 7, 15, 31, 31, 31};
	struct bench t = open_bench(1, 2);
	const u32 tokens[] = {5, 5, 5};
	u32 out[GUESS_MAX];

	put(&t, 0, tokens, COUNT_OF(tokens));
	for (u32 round = 0; round < COUNT_OF(pauses); round++) {
		cr_assert_eq(draft_lookup_find(t.lookup, t.batch, 0, 2, out), 2);
		draft_lookup_tell(t.lookup, 0, 0);
		for (u32 i = 0; i < pauses[round]; i++)
			cr_assert_eq(draft_lookup_find(t.lookup, t.batch, 0, 2, out), 0, "round %u, step %u", round, i);
	}
	cr_assert_eq(draft_lookup_find(t.lookup, t.batch, 0, 2, out), 2);
	draft_lookup_tell(t.lookup, 0, 1);
	cr_assert_eq(draft_lookup_find(t.lookup, t.batch, 0, 2, out), 2, "one that came true makes good for all");
	close_bench(&t);
}

/* The newest of the longest matches, by looking at every place. */
static u32 look_everywhere(const u32 *tokens, u32 known, u32 min, u32 max)
{
	u32 best = min - 1, place = 0;

	for (u32 end = known - 1; end-- > 0;) {
		u32 n = 0;
		while (n < max && n <= end && tokens[end - n] == tokens[known - 1 - n])
			n++;
		if (n > best) {
			best = n;
			place = end + 1;
		}
	}
	return place;
}

Test(draft_lookup, agrees_with_a_search_of_every_place_as_the_row_grows)
{
	u32 state = 12345, found = 0;

	for (u32 round = 0; round < 40; round++) {
		u32 min = 1 + round % 3, max = min + round / 3 % 4, letters = 8 + round * 3;
		struct bench t = open_bench(min, max);
		u32 first = 0;
		put(&t, 2, &first, 1);
		while (t.batch->known[2] < 400) {
			state = state * 1103515245 + 12345;
			append(&t, 2, (state >> 16) % letters);
			if (state >> 28 == 0) /* now and then several at once */
				continue;
			const u32 *tokens = batch_state_tokens(t.batch, 2);
			u32 known = t.batch->known[2], out;
			u32 place = look_everywhere(tokens, known, min, max);
			/* At most 64 places are looked at: few enough for all only where letters are many. */
			if (min == 1 && letters < 20)
				continue;
			cr_assert_eq(draft_lookup_find(t.lookup, t.batch, 2, 1, &out), place > 0);
			cr_assert(place == 0 || out == tokens[place], "round %u at %u", round, known);
			found += place > 0;
		}
		close_bench(&t);
	}
	cr_assert_gt(found, 1000);
}
