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

TestSuite(streams, .init = setup, .fini = teardown);

static struct request_view *drained(u64 req_id)
{
	view_drain(view, ss);
	return view_request(view, req_id);
}

Test(streams, tokens_of_a_turn_leave_in_one_entry)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "hello");
	struct request_view *r = drained(100);
	cr_assert_eq(view->chunks, 1);
	cr_assert_eq(r->entries, 1);
	cr_assert_str_eq(r->text, "hello");
	cr_assert_eq(r->token_count, 5);
	cr_assert_eq(r->finishes, 0);
}

Test(streams, requests_of_a_client_share_a_chunk_and_clients_do_not)
{
	struct ipc_open a = fixture_open(1, 7, 100), b = fixture_open(2, 7, 101), c = fixture_open(3, 8, 100);
	fixture_ready(ss, 8);
	streams_open(ss, &a, 1, 0);
	streams_open(ss, &b, 1, 0);
	streams_open(ss, &c, 1, 0);
	fixture_push(ss, 1, 0, 'a');
	fixture_push(ss, 2, 0, 'b');
	fixture_push(ss, 3, 0, 'c');
	struct ipc_chunk chunk;
	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.client_id, 7);
	cr_assert_eq(chunk.req_id_count, 2);
	cr_assert_eq(memcmp(chunk.text, "ab", 2), 0);
	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.client_id, 8);
	cr_assert_eq(chunk.req_id_count, 1);
	cr_assert_not(streams_next_chunk(ss, &chunk));
}

Test(streams, half_a_character_is_held_with_its_tokens)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "a\xe2\x82");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "a");
	cr_assert_eq(r->token_count, 1);
	fixture_push_text(ss, 1, 3, "\xac");
	r = drained(100);
	cr_assert_str_eq(r->text, "a\xe2\x82\xac");
	cr_assert_eq(r->token_count, 4);
}

Test(streams, unfinished_character_at_the_end_becomes_a_replacement_character)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	open.output_max = 2;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "a\xe2");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "a\xef\xbf\xbd");
	cr_assert_eq(r->token_count, 2);
	cr_assert_eq(r->finish, FINISH_LENGTH);
}

Test(streams, stop_over_three_tokens_streams_nothing_of_it)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	struct ipc_stopped stopped;
	fixture_stops(&open, &list, (const char *[]){"abc"}, 1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "xya");
	cr_assert_str_eq(drained(100)->text, "xy");
	fixture_push_text(ss, 1, 3, "b");
	cr_assert_str_eq(drained(100)->text, "xy");
	cr_assert_eq(view_request(view, 100)->token_count, 2);
	fixture_push_text(ss, 1, 4, "c");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "xy");
	cr_assert_eq(r->token_count, 5);
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(r->stop_kind, 2);
	cr_assert_eq(r->stop_value, 0);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 1);
	cr_assert_eq(stopped.output_count, 5);
	streams_pop_stopped(ss);
	cr_assert_not(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(streams_live(ss), 0);
}

Test(streams, included_stop_stays_and_nothing_is_held)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	open.flags |= SAMPLING_INCLUDE_STOP;
	fixture_stops(&open, &list, (const char *[]){"abc"}, 1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "xyab");
	cr_assert_str_eq(drained(100)->text, "xyab");
	fixture_words[0] = "cdef";
	fixture_push(ss, 1, 4, TOK_WORDS);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "xyabc");
	cr_assert_eq(r->finish, FINISH_STOP);
}

Test(streams, held_text_without_a_match_is_flushed_at_the_end)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_stops(&open, &list, (const char *[]){"abc"}, 1);
	open.output_max = 4;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "xya");
	cr_assert_str_eq(drained(100)->text, "xy");
	fixture_push_text(ss, 1, 3, "b");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "xyab");
	cr_assert_eq(r->finish, FINISH_LENGTH);
	cr_assert_eq(r->token_count, 4);
}

Test(streams, a_token_leaves_only_with_its_whole_text)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_words[0] = "hello wo";
	fixture_words[1] = "nder";
	fixture_stops(&open, &list, (const char *[]){"world"}, 1);
	streams_open(ss, &open, 1, 0);
	fixture_push(ss, 1, 0, TOK_WORDS);
	cr_assert_eq(drained(100)->entries, 0);
	fixture_push(ss, 1, 1, TOK_WORDS + 1);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "hello wonder");
	cr_assert_eq(r->token_count, 2);
}

Test(streams, stop_inside_a_token_cuts_its_text_and_keeps_the_token)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_words[0] = "one END two";
	fixture_stops(&open, &list, (const char *[]){"two", " END"}, 2);
	streams_open(ss, &open, 1, 0);
	fixture_push(ss, 1, 0, TOK_WORDS);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "one");
	cr_assert_eq(r->token_count, 1);
	cr_assert_eq(r->stop_value, 1);
}

Test(streams, stop_that_ends_in_a_split_character_is_found)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_stops(&open, &list, (const char *[]){"z\xc3\xa9"}, 1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "oz\xc3");
	cr_assert_str_eq(drained(100)->text, "o");
	fixture_push_text(ss, 1, 3, "\xa9");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "o");
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(r->token_count, 4);
}

Test(streams, no_stop_string_before_min_tokens)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_stops(&open, &list, (const char *[]){"b"}, 1);
	open.output_min = 3;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abbcb");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "abbc");
	cr_assert_eq(r->token_count, 5);
}

Test(streams, end_of_sequence_counts_and_gives_no_text)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct ipc_stopped stopped;
	open.flags = 0;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "hi");
	fixture_push(ss, 1, 2, TOK_SPECIAL);
	fixture_push(ss, 1, 3, TOK_EOS);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "hi<s>");
	cr_assert_eq(r->token_count, 4);
	cr_assert_eq(r->tokens[3], TOK_EOS);
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(r->stop_kind, 0);
	cr_assert_not(streams_peek_stopped(ss, &stopped), "the scheduler found the same end itself");
}

Test(streams, stop_token_is_reported_and_included_on_request)
{
	struct ipc_open open = fixture_open(1, 7, 100), with = fixture_open(2, 7, 101);
	u32 stop_id = 'q';
	open.stop_ids = with.stop_ids = &stop_id;
	open.stop_ids_count = with.stop_ids_count = 1;
	with.flags |= SAMPLING_INCLUDE_STOP;
	streams_open(ss, &open, 1, 0);
	streams_open(ss, &with, 1, 0);
	fixture_push_text(ss, 1, 0, "abq");
	fixture_push_text(ss, 2, 0, "abq");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "ab");
	cr_assert_eq(r->token_count, 3);
	cr_assert_eq(r->stop_kind, 1);
	cr_assert_eq(r->stop_value, 'q');
	cr_assert_str_eq(view_request(view, 101)->text, "abq");
}

Test(streams, stop_string_goes_before_length_at_the_same_token)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	struct ipc_stopped stopped;
	fixture_stops(&open, &list, (const char *[]){"c"}, 1);
	open.output_max = 3;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abc");
	struct request_view *r = drained(100);
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_str_eq(r->text, "ab");
	cr_assert_not(streams_peek_stopped(ss, &stopped), "the scheduler ended it by length");
}

Test(streams, tokens_only_requests_get_no_text)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	open.flags |= SAMPLING_NO_TEXT;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "\xe2\x82");
	struct request_view *r = drained(100);
	cr_assert_eq(r->token_count, 2);
	cr_assert_eq(r->text_bytes, 0);
}

static void push_with_logprobs(u64 seq, u32 position, u32 token, u32 listed, f32 value)
{
	u32 ids[LOGPROBS_MAX + 1], entry = 0, rank = listed;
	f32 values[LOGPROBS_MAX + 1];
	for (u32 i = 0; i < listed; i++) {
		ids[i] = i == 0 ? token : 1000 + i;
		values[i] = value - (f32)i;
	}
	struct ipc_result r = {
		.seq = &seq,
		.seq_count = 1,
		.position = &position,
		.position_count = 1,
		.token = &token,
		.token_count = 1,
		.lp_entry = &entry,
		.lp_entry_count = 1,
		.lp_count = &listed,
		.lp_count_count = 1,
		.lp_rank = &rank,
		.lp_rank_count = 1,
		.lp_ids = ids,
		.lp_ids_count = listed,
		.lp_values = values,
		.lp_values_count = listed,
	};
	streams_result(ss, &r, 1, 0);
}

Test(streams, logprobs_wait_with_held_tokens_and_come_once)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct stop_list list;
	fixture_stops(&open, &list, (const char *[]){"abc"}, 1);
	streams_open(ss, &open, 1, 0);
	push_with_logprobs(1, 0, 'x', 3, -0.5f);
	push_with_logprobs(1, 1, 'a', 4, -1.5f);
	push_with_logprobs(1, 2, 'b', 3, -2.5f);
	struct request_view *r = drained(100);
	cr_assert_eq(r->lp_count, 1);
	push_with_logprobs(1, 3, 'x', 3, -3.5f);
	r = drained(100);
	cr_assert_eq(r->lp_count, 4);
	for (u32 i = 0; i < 4; i++) {
		cr_assert_eq(r->lp_tokens[i], i);
		cr_assert_eq(r->lp_first[i], -0.5f - (f32)i);
		cr_assert_eq(r->lp_listed[i], i == 1 ? 4 : 3);
		cr_assert_eq(r->lp_rank[i], r->lp_listed[i]);
	}
	cr_assert_str_eq(r->text, "xabx");
}

Test(streams, entries_have_logprobs_for_all_their_tokens_or_for_none)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct ipc_chunk c;
	u32 tokens[] = {'a', 'b'};
	u64 live_req = 100;
	u32 live_tokens = 0;
	struct ipc_attach attach = {.client_id = 9,
				    .live_req_id = &live_req,
				    .live_req_id_count = 1,
				    .live_token_count = &live_tokens,
				    .live_token_count_count = 1};
	open.client_id = 9;
	open.output_tokens = tokens;
	open.output_tokens_count = 2;
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
	streams_open(ss, &open, 1, 0);
	push_with_logprobs(1, 2, 'c', 2, -1.0f);
	push_with_logprobs(1, 3, 'd', 2, -1.0f);
	cr_assert(streams_next_chunk(ss, &c));
	cr_assert_eq(c.tokens_count, 2);
	cr_assert_eq(c.lp_token_count, 0);
	cr_assert(streams_next_chunk(ss, &c));
	cr_assert_eq(c.tokens_count, 2);
	cr_assert_eq(c.first_token[0], 2);
	cr_assert_eq(c.lp_token_count, 2);
	cr_assert_not(streams_next_chunk(ss, &c));
}

static void push_prompt(u64 seq, u32 position)
{
	u32 count = 2, rank = 1, ids[2] = {5, 6};
	f32 values[2] = {-1, -2};
	struct ipc_result r = {
		.plp_seq = &seq,
		.plp_seq_count = 1,
		.plp_position = &position,
		.plp_position_count = 1,
		.plp_count = &count,
		.plp_count_count = 1,
		.plp_rank = &rank,
		.plp_rank_count = 1,
		.plp_ids = ids,
		.plp_ids_count = 2,
		.plp_values = values,
		.plp_values_count = 2,
	};
	streams_result(ss, &r, 1, 0);
}

Test(streams, prompt_logprobs_of_a_recomputed_prompt_come_once)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	push_prompt(1, 1);
	push_prompt(1, 2);
	cr_assert_eq(drained(100)->plp_count, 2);
	push_prompt(1, 1);
	push_prompt(1, 2);
	push_prompt(1, 3);
	struct request_view *r = drained(100);
	cr_assert_eq(r->plp_count, 3);
	cr_assert_eq(r->token_count, 0);
}

Test(streams, close_ends_a_request_that_never_ran)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct ipc_close close = {
		.seq = 1, .reason = FINISH_ERROR, .text = (const u8 *)"no room", .text_count = 7};
	streams_open(ss, &open, 1, 0);
	streams_close(ss, &close, 0);
	struct request_view *r = drained(100);
	cr_assert_eq(r->entries, 1);
	cr_assert_eq(r->finish, FINISH_ERROR);
	cr_assert_str_eq(r->error, "no room");
	cr_assert_eq(streams_live(ss), 0);
}

Test(streams, close_waits_for_the_results_in_front_of_it)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct ipc_close close = {.seq = 1, .reason = FINISH_ABORT, .output_count = 3};
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "a");
	streams_close(ss, &close, 0);
	cr_assert_eq(drained(100)->finishes, 0);
	fixture_push_text(ss, 1, 1, "bc");
	struct request_view *r = drained(100);
	cr_assert_eq(r->finish, FINISH_ABORT);
	cr_assert_str_eq(r->text, "abc");
}

Test(streams, close_does_not_wait_for_ever)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	struct ipc_close close = {.seq = 1, .reason = FINISH_ABORT, .output_count = 3};
	streams_open(ss, &open, 1, 0);
	streams_close(ss, &close, 5000);
	streams_expire(ss, 5500);
	cr_assert_eq(drained(100)->finishes, 0);
	streams_expire(ss, 7000);
	cr_assert_eq(drained(100)->finish, FINISH_ABORT);
}

Test(streams, different_errors_go_into_different_chunks)
{
	for (u64 i = 1; i <= 3; i++) {
		struct ipc_open open = fixture_open(i, 7, 100 + i);
		struct ipc_close close = {.seq = i,
					  .reason = FINISH_ERROR,
					  .text = (const u8 *)(i < 3 ? "a" : "b"),
					  .text_count = 1};
		streams_open(ss, &open, 1, 0);
		streams_close(ss, &close, 0);
	}
	view_drain(view, ss);
	cr_assert_eq(view->chunks, 2);
	cr_assert_str_eq(view_request(view, 101)->error, "a");
	cr_assert_str_eq(view_request(view, 102)->error, "a");
	cr_assert_str_eq(view_request(view, 103)->error, "b");
}

Test(streams, held_client_merges_its_news)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	streams_client_hold(ss, 7, true);
	u32 at = 0;
	for (int i = 0; i < 100; i++) {
		at = fixture_push_text(ss, 1, at, "x");
		view_drain(view, ss);
	}
	cr_assert_eq(view->chunks, 0);
	cr_assert_eq(streams_client_bytes(ss, 7), 500);
	streams_client_hold(ss, 7, false);
	struct request_view *r = drained(100);
	cr_assert_eq(view->chunks, 1);
	cr_assert_eq(r->token_count, 100);
	cr_assert_eq(streams_client_bytes(ss, 7), 0);
}

Test(streams, large_news_are_cut_into_chunks)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	char *word = malloc(10001);
	memset(word, 'w', 10000);
	word[10000] = 0;
	fixture_words[0] = word;
	streams_open(ss, &open, 1, 0);
	for (u32 i = 0; i < 6; i++)
		fixture_push(ss, 1, i, TOK_WORDS);
	streams_client_hold(ss, 7, true);
	for (u32 i = 6; i < 60; i++)
		fixture_push(ss, 1, i, TOK_WORDS);
	streams_client_hold(ss, 7, false);
	struct ipc_chunk chunk;
	u32 chunks = 0, tokens = 0;
	while (streams_next_chunk(ss, &chunk)) {
		cr_assert_lt(chunk.text_count, 300000);
		cr_assert_eq(chunk.first_token[0], tokens);
		tokens += chunk.tokens_count;
		chunks++;
	}
	cr_assert_eq(tokens, 60);
	cr_assert_eq(chunks, 3);
	fixture_words[0] = NULL;
	free(word);
}

Test(streams, dropped_client_stops_its_requests_and_no_others)
{
	struct ipc_open a = fixture_open(1, 7, 100), b = fixture_open(2, 8, 100);
	struct ipc_stopped stopped;
	fixture_ready(ss, 8);
	streams_open(ss, &a, 1, 0);
	streams_open(ss, &b, 1, 0);
	fixture_push_text(ss, 1, 0, "abc");
	streams_client_drop(ss, 7);
	cr_assert_eq(drained(100)->entries, 0);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 1);
	cr_assert_eq(stopped.output_count, 3);
	streams_pop_stopped(ss);
	cr_assert_not(streams_peek_stopped(ss, &stopped));
	fixture_push_text(ss, 1, 3, "late");
	fixture_push_text(ss, 2, 0, "b");
	cr_assert_str_eq(drained(100)->text, "b");
	cr_assert_eq(streams_counters(ss)->late, 4);
	cr_assert_eq(streams_live(ss), 1);
}

Test(streams, too_many_requests_end_in_an_error_and_a_stop)
{
	for (u64 i = 1; i <= 33; i++) {
		struct ipc_open open = fixture_open(i, 7, 100 + i);
		streams_open(ss, &open, 1, 0);
	}
	struct ipc_stopped stopped;
	struct request_view *r = drained(133);
	cr_assert_eq(r->finish, FINISH_ERROR);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 33);
	cr_assert_eq(streams_live(ss), 32);
}

Test(streams, invalid_stop_strings_end_the_request_with_an_error)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	u32 length = 1;
	open.stop_string_bytes = &length;
	open.stop_string_bytes_count = 1;
	open.stop_strings = (const u8 *)"\xc3";
	open.stop_strings_count = 1;
	streams_open(ss, &open, 1, 0);
	struct request_view *r = drained(100);
	cr_assert_eq(r->finish, FINISH_ERROR);
	cr_assert(strstr(r->error, "stop strings"));
}

Test(streams, slots_are_used_again)
{
	for (u64 i = 1; i <= 1000; i++) {
		struct ipc_open open = fixture_open(i, 7, i);
		struct ipc_chunk chunk;
		open.output_max = 1;
		streams_open(ss, &open, 1, 0);
		fixture_push(ss, i, 0, 'a');
		cr_assert(streams_next_chunk(ss, &chunk));
		cr_assert_eq(chunk.finish[0], FINISH_LENGTH);
	}
	cr_assert_eq(streams_counters(ss)->refused, 0);
	cr_assert_eq(streams_live(ss), 0);
}
