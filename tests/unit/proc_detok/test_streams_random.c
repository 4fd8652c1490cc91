#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "common/finish.h"
#include "stream_oracle.h"

/* Some requests at once, their tokens in steps of random size with chunks taken at random moments. */
static void play(struct streams *ss, const struct scenario *cases, u32 count, u64 first_seq,
		 struct client_view *view)
{
	struct stop_list lists[8];
	u32 at[8] = {0}, left = 0;
	bool opened[8] = {false};

	for (u32 i = 0; i < count; i++)
		left += cases[i].token_count;
	while (left > 0) {
		u32 i = (u32)rand() % count;
		if (at[i] == cases[i].token_count)
			continue;
		if (!opened[i] && rand() % 3 > 0) {
			struct ipc_open open = scenario_open(&cases[i], first_seq + i, &lists[i]);
			streams_open(ss, &open, 1, 0);
			opened[i] = true;
		}
		fixture_push(ss, first_seq + i, at[i], cases[i].tokens[at[i]]);
		at[i]++;
		left--;
		if (rand() % 3 == 0)
			view_drain(view, ss);
	}
	for (u32 i = 0; i < count; i++) {
		if (opened[i])
			continue;
		struct ipc_open open = scenario_open(&cases[i], first_seq + i, &lists[i]);
		streams_open(ss, &open, 1, 0);
	}
	view_drain(view, ss);
}

Test(streams_random, any_split_into_tokens_and_steps_gives_the_text_of_one_go)
{
	struct streams *ss = fixture_streams(32);
	struct client_view *view = calloc(1, sizeof(*view));
	struct ipc_stopped stopped;
	u64 seq = 1;

	oracle_words();
	fixture_ready(ss, 7);
	srand(20251);
	for (int round = 0; round < 6000; round++) {
		struct scenario cases[8];
		u32 count = 1 + (u32)rand() % 6;
		for (u32 i = 0; i < count; i++)
			scenario_draw(&cases[i]);
		memset(view, 0, sizeof(struct request_view) * 8);
		view->count = 0;
		play(ss, cases, count, seq, view);
		for (u32 i = 0; i < count; i++) {
			struct oracle o;
			oracle_run(&cases[i], &o);
			struct request_view *r = view_request(view, seq + i);
			cr_assert_eq(r->finish, o.finish, "round %d", round);
			if (o.finish == FINISH_NONE) {
				/* nothing that was given out may be more or other than the whole text */
				cr_assert_leq(r->text_bytes, o.text_bytes);
				cr_assert_eq(memcmp(r->text, o.text, r->text_bytes), 0, "round %d", round);
				struct ipc_close close = {.seq = seq + i,
							  .reason = FINISH_ABORT,
							  .output_count = cases[i].token_count};
				streams_close(ss, &close, 0);
				view_drain(view, ss);
				o.text_bytes =
					naive_text(&cases[i], cases[i].token_count, false, true, o.text);
			}
			cr_assert_eq(r->token_count, o.token_count, "round %d: %u tokens instead of %u",
				     round, r->token_count, o.token_count);
			cr_assert_eq(memcmp(r->tokens, cases[i].tokens, o.token_count * sizeof(u32)), 0);
			cr_assert_eq(r->text_bytes, o.text_bytes, "round %d: '%s' instead of '%.*s'", round,
				     r->text, (int)o.text_bytes, o.text);
			cr_assert_eq(memcmp(r->text, o.text, o.text_bytes), 0, "round %d", round);
			cr_assert_eq(r->finishes, 1);
			if (o.finish != FINISH_NONE)
				cr_assert(r->stop_kind == o.stop_kind && r->stop_value == o.stop_value);
		}
		while (streams_peek_stopped(ss, &stopped))
			streams_pop_stopped(ss);
		cr_assert_eq(streams_live(ss), 0);
		seq += count;
	}
	cr_assert_eq(streams_counters(ss)->gaps, 0);
	free(view);
	streams_destroy(&ss);
}
