/* Ends that the scheduler has to keep before a client hears of them: the turns of sessions. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "common/finish.h"
#include "stream_fixture.h"

static struct streams *ss;
static struct client_view *view;

static void setup(void)
{
	ss = fixture_streams(32);
	view = calloc(1, sizeof(*view));
	fixture_ready(ss, 7);
}

static void teardown(void)
{
	streams_destroy(&ss);
	free(view);
}

TestSuite(streams_held, .init = setup, .fini = teardown);

static struct request_view *drained(void)
{
	view_drain(view, ss);
	return view_request(view, 100);
}

/* A turn of four outputs at most, as sequence `seq` of a scheduler's life. */
static struct ipc_open turn_open(u64 seq)
{
	struct ipc_open open = fixture_open(seq, 7, 100);

	open.output_max = 4;
	open.confirm = 1;
	return open;
}

static void close_at(u64 seq, enum finish_reason reason, u32 output_count)
{
	struct ipc_close close = {.seq = seq, .reason = reason, .output_count = output_count};

	streams_close(ss, &close, 0);
}

static void close_with(u64 seq, enum finish_reason reason)
{
	close_at(seq, reason, 4);
}

/* A turn that the stop string "bc" may end. */
static struct ipc_open stopping_open(u64 seq)
{
	static struct stop_list list;
	struct ipc_open open = turn_open(seq);

	fixture_stops(&open, &list, (const char *[]){"bc"}, 1);
	return open;
}

/* The next STOPPED, which must be of `seq` at `count` outputs; with a `count` of 0 there must be none. */
static void expect_stopped(u64 seq, u32 count)
{
	struct ipc_stopped stopped;

	if (!count) {
		cr_assert_not(streams_peek_stopped(ss, &stopped));
		return;
	}
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, seq);
	cr_assert_eq(stopped.output_count, count);
	streams_pop_stopped(ss);
}

/* The one request has ended with "bc" behind its third output. */
static void expect_ended_by_stop(void)
{
	struct request_view *r = drained();

	cr_assert_str_eq(r->text, "a");
	cr_assert_eq(r->token_count, 3);
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(r->stop_kind, 2);
	cr_assert_eq(r->finishes, 1);
}

Test(streams_held, an_end_waits_for_the_schedulers_word_whichever_comes_first)
{
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "ab");
	cr_assert_str_eq(drained()->text, "ab");
	fixture_push_text(ss, 1, 2, "cd");
	cr_assert_str_eq(drained()->text, "ab");
	cr_assert_eq(streams_live(ss), 1);
	expect_stopped(1, 0);
	close_with(1, FINISH_NONE);
	struct request_view *r = drained();
	cr_assert_str_eq(r->text, "abcd");
	cr_assert_eq(r->finish, FINISH_LENGTH);
	cr_assert_eq(streams_live(ss), 0);

	memset(view, 0, sizeof(*view));
	open = turn_open(2);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 2, 0, "abc");
	close_with(2, FINISH_NONE);
	cr_assert_eq(drained()->finishes, 0);
	fixture_push(ss, 2, 3, TOK_EOS);
	cr_assert_str_eq(drained()->text, "abc");
	cr_assert_eq(drained()->finish, FINISH_STOP);
}

Test(streams_held, a_word_on_what_needs_none_changes_nothing)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	open.output_max = 2;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "a");
	close_with(1, FINISH_NONE);
	cr_assert_eq(drained()->finishes, 0);
	fixture_push_text(ss, 1, 1, "b");
	cr_assert_eq(drained()->finish, FINISH_LENGTH);
	close_with(1, FINISH_NONE);
	cr_assert_eq(drained()->finishes, 1);
}

Test(streams_held, a_stop_string_is_told_at_once_and_given_out_later)
{
	struct ipc_open open = stopping_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abc");
	cr_assert_eq(drained()->finishes, 0);
	expect_stopped(1, 3);
	close_at(1, FINISH_NONE, 3);
	expect_ended_by_stop();
}

/* The scheduler was at its fourth output, the last one, before it could read STOPPED: should it die now, it comes back with all
 * four, and a client that had heard of three would not be asked to submit its turn again. */
Test(streams_held, a_word_on_more_outputs_than_it_has_is_not_that_on_its_end)
{
	static const enum finish_reason reasons[] = {FINISH_NONE, FINISH_ABORT, FINISH_ERROR};
	for (u32 i = 0; i < 6; i++) {
		struct ipc_open open = stopping_open(1 + i);
		streams_open(ss, &open, 1, 0);
		if (i % 2) { /* the word comes in front of the tokens */
			fixture_push_text(ss, 1 + i, 0, "ab");
			close_with(1 + i, reasons[i / 2]);
			fixture_push_text(ss, 1 + i, 2, "c");
		} else {
			fixture_push_text(ss, 1 + i, 0, "abc");
			close_with(1 + i, reasons[i / 2]);
		}
		cr_assert_eq(drained()->finishes, 0);
		expect_stopped(1 + i, 3);
		fixture_push_text(ss, 1 + i, 3, "d");
		cr_assert_eq(drained()->finishes, 0);
		close_at(1 + i, FINISH_NONE, 3);
		expect_ended_by_stop();
		memset(view, 0, sizeof(*view));
	}
}

Test(streams_held, a_scheduler_that_died_with_more_outputs_is_told_of_the_stop_string_again)
{
	struct ipc_open open = stopping_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abc");
	close_with(1, FINISH_NONE);
	streams_scheduler_restarted(ss, 2, 10); /* with the STOPPED that nobody read */
	cr_assert_eq(drained()->finishes, 0);
	open = stopping_open(9);
	streams_open(ss, &open, 2, 20);
	expect_stopped(9, 3);
	close_with(9, FINISH_NONE); /* once more it was faster */
	cr_assert_eq(drained()->finishes, 0);
	close_at(9, FINISH_NONE, 3);
	expect_ended_by_stop();
}

/* Its ends are told to a new detokenizer as they were when they were kept first. */
Test(streams_held, a_detokenizer_that_is_told_of_more_outputs_finds_the_stop_string_again)
{
	static const u32 known[] = {'a', 'b', 'c', 'd'};
	struct ipc_open open = stopping_open(1);
	open.output_tokens = known;
	open.output_tokens_count = 4;
	streams_open(ss, &open, 1, 0);
	close_with(1, FINISH_LENGTH);
	cr_assert_eq(drained()->finishes, 0);
	expect_stopped(1, 3);
	close_at(1, FINISH_NONE, 3);
	expect_ended_by_stop();
}

Test(streams_held, an_abort_of_what_is_held_ends_it_as_it_was_to)
{
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	close_with(1, FINISH_ABORT);
	cr_assert_eq(drained()->finish, FINISH_LENGTH);
	cr_assert_eq(drained()->finishes, 1);
}

Test(streams_held, the_schedulers_next_life_is_told_where_it_ends_and_says_when_it_is_there)
{
	static const u32 known[] = {'a'};
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "a");
	cr_assert_str_eq(drained()->text, "a");
	fixture_push_text(ss, 1, 1, "bc");
	fixture_push(ss, 1, 3, TOK_EOS);
	streams_scheduler_restarted(ss, 2, 10);
	close_with(1, FINISH_NONE); /* nobody's any more */
	cr_assert_eq(drained()->finishes, 0);
	open = turn_open(9);
	open.output_tokens = known;
	open.output_tokens_count = 1;
	streams_open(ss, &open, 2, 20);
	expect_stopped(9, 4);
	struct ipc_result again = {.seq = (u64[]){9}, .seq_count = 1, .position = (u32[]){1}, .position_count = 1,
				   .token = (u32[]){'b'}, .token_count = 1};
	streams_result(ss, &again, 2, 30);
	cr_assert_eq(drained()->finishes, 0);
	close_with(9, FINISH_NONE);
	struct request_view *r = drained();
	cr_assert_str_eq(r->text, "abc");
	cr_assert_eq(r->token_count, 4);
	cr_assert_eq(r->finish, FINISH_STOP);
}

Test(streams_held, one_that_nobody_asks_for_again_ends_with_an_error)
{
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	streams_scheduler_restarted(ss, 2, 1000);
	streams_expire(ss, 1900);
	cr_assert_eq(drained()->finishes, 0);
	streams_expire(ss, 2100);
	cr_assert_eq(drained()->finish, FINISH_ERROR);
	cr_assert_str_eq(drained()->error, "the scheduler was restarted and nobody asked again");
	cr_assert_eq(streams_live(ss), 0);
}

Test(streams_held, a_word_that_does_not_come_is_asked_for)
{
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	streams_expire(ss, 100);
	streams_expire(ss, 1100);
	cr_assert_not(streams_take_gap(ss));
	streams_expire(ss, 1101);
	cr_assert(streams_take_gap(ss));
	cr_assert_eq(drained()->finishes, 0);
	/* asked, it tells of the end once more */
	streams_open(ss, &open, 1, 1200);
	close_with(1, FINISH_LENGTH);
	cr_assert_eq(drained()->finish, FINISH_LENGTH);
}

Test(streams_held, a_client_that_is_dropped_takes_it_along)
{
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	streams_client_drop(ss, 7);
	cr_assert_eq(streams_live(ss), 0);
	close_with(1, FINISH_NONE);
	cr_assert_eq(drained()->finishes, 0);
}

/* The client asked again while its end was on the way: a history must not end before what the client has. */
Test(streams_held, what_has_ended_says_where_when_it_is_asked_for_again)
{
	static const u32 known[] = {'a', 'b'};
	struct ipc_open open = turn_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	close_with(1, FINISH_NONE);
	streams_scheduler_restarted(ss, 2, 10);
	open = turn_open(9);
	open.output_tokens = known;
	open.output_tokens_count = 2;
	streams_open(ss, &open, 2, 20);
	expect_stopped(9, 4);
	streams_open(ss, &open, 2, 30);
	expect_stopped(9, 4);
	cr_assert_eq(drained()->finishes, 1);
}

/* The scheduler lets no turn follow before it knows. */
Test(streams_held, where_a_turn_that_was_given_up_ended_is_told_when_it_may_have_a_stop_string)
{
	struct ipc_open open = stopping_open(1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "ax");
	close_at(1, FINISH_ABORT, 2);
	expect_stopped(1, 2);
	cr_assert_eq(drained()->finish, FINISH_ABORT);

	open = stopping_open(2); /* its outputs come later */
	streams_open(ss, &open, 1, 0);
	close_at(2, FINISH_ABORT, 2);
	expect_stopped(2, 0);
	fixture_push_text(ss, 2, 0, "ax");
	expect_stopped(2, 2);

	open = stopping_open(3); /* and end with the stop string, */
	streams_open(ss, &open, 1, 0);
	close_at(3, FINISH_ABORT, 3);
	fixture_push_text(ss, 3, 0, "abc");
	expect_stopped(3, 3);

	open = stopping_open(4); /* or go on behind it */
	streams_open(ss, &open, 1, 0);
	close_at(4, FINISH_ABORT, 4);
	fixture_push_text(ss, 4, 0, "abc");
	expect_stopped(4, 3);
	close_at(4, FINISH_NONE, 3);
	expect_stopped(4, 0);

	open = stopping_open(5); /* found before: the scheduler had not more */
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "abc");
	expect_stopped(5, 3);
	close_at(5, FINISH_ABORT, 2);
	expect_stopped(5, 3);

	open = turn_open(6); /* no stop string, no question */
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 6, 0, "ax");
	close_at(6, FINISH_ABORT, 2);
	expect_stopped(6, 0);
	cr_assert_eq(streams_live(ss), 0);
}
