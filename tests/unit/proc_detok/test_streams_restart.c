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
}

static void teardown(void)
{
	streams_destroy(&ss);
	free(view);
}

TestSuite(streams_restart, .init = setup, .fini = teardown);

static struct request_view *drained(u64 req_id)
{
	view_drain(view, ss);
	return view_request(view, req_id);
}

static void push_epoch(u64 epoch, u64 seq, u32 position, u32 token)
{
	struct ipc_result r = {.seq = &seq,
			       .seq_count = 1,
			       .position = &position,
			       .position_count = 1,
			       .token = &token,
			       .token_count = 1};
	streams_result(ss, &r, epoch, 0);
}

static void text_as_tokens(const char *text, u32 *tokens, struct ipc_open *open)
{
	u32 n = (u32)strlen(text);
	for (u32 i = 0; i < n; i++)
		tokens[i] = (u8)text[i];
	open->output_tokens = tokens;
	open->output_tokens_count = n;
}

Test(streams_restart, results_before_their_open_are_kept)
{
	fixture_ready(ss, 7);
	fixture_push_text(ss, 1, 0, "ab");
	fixture_push_text(ss, 2, 0, "x");
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 2, "c");
	cr_assert_str_eq(drained(100)->text, "abc");
	open = fixture_open(2, 7, 101);
	streams_open(ss, &open, 1, 0);
	cr_assert_str_eq(drained(101)->text, "x");
	cr_assert_eq(streams_counters(ss)->early, 3);
}

Test(streams_restart, a_request_may_end_within_its_early_results)
{
	fixture_ready(ss, 7);
	fixture_push_text(ss, 1, 0, "ab");
	fixture_push(ss, 1, 2, TOK_EOS);
	fixture_push_text(ss, 1, 3, "overrun");
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "ab");
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(streams_live(ss), 0);
}

Test(streams_restart, early_results_are_bounded_in_number_and_time)
{
	fixture_ready(ss, 7);
	for (u64 seq = 1; seq <= 100; seq++)
		fixture_push(ss, seq, 0, 'a');
	streams_expire(ss, 100);
	cr_assert_eq(streams_counters(ss)->early, 100);
	cr_assert_geq(streams_counters(ss)->early_dropped, 36);
	streams_expire(ss, 5000);
	cr_assert_eq(streams_counters(ss)->early_dropped, 100);
}

static void push_embedding(u64 seq, u32 position, u32 width, f32 first)
{
	static u32 dimensions[EMBEDDING_MAX + 1];
	static f32 values[EMBEDDING_MAX + 1];
	const u32 rank = 0;

	for (u32 i = 0; i < width; i++) {
		dimensions[i] = i;
		values[i] = first + (f32)i;
	}
	struct ipc_result r = {.plp_seq = &seq, .plp_seq_count = 1, .plp_position = &position, .plp_position_count = 1,
			       .plp_count = &width, .plp_count_count = 1, .plp_rank = &rank, .plp_rank_count = 1,
			       .plp_ids = dimensions, .plp_ids_count = width, .plp_values = values, .plp_values_count = width};
	streams_result(ss, &r, 1, 0);
}

static void expect_embedding(u32 width, f32 first)
{
	struct ipc_chunk chunk;

	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.plp_entry_count, 1);
	cr_assert_eq(chunk.plp_count[0], width);
	cr_assert_eq(chunk.plp_values_count, width);
	for (u32 i = 0; i < width; i++)
		cr_assert(chunk.plp_ids[i] == i && (double)chunk.plp_values[i] == (double)(first + (f32)i));
}

Test(streams_restart, embeddings_before_their_open_are_kept_whole)
{
	fixture_ready(ss, 7);
	push_embedding(1, 9, 5000, 1);
	push_embedding(2, 9, EMBEDDING_MAX, 2);
	push_embedding(3, 9, EMBEDDING_MAX + 1, 3); /* none that a worker makes */
	cr_assert_eq(streams_counters(ss)->early, 2);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	expect_embedding(5000, 1);
	open = fixture_open(2, 7, 101);
	streams_open(ss, &open, 1, 0);
	expect_embedding(EMBEDDING_MAX, 2);
	push_embedding(4, 9, 300, 4); /* nobody will open it: freed with the rest */
	push_embedding(5, 9, 300, 5);
	streams_expire(ss, 5000);
	cr_assert_eq(streams_counters(ss)->early_dropped, 2);
	push_embedding(6, 9, 300, 6);
}

Test(streams_restart, late_results_of_ended_sequences_are_not_early_ones)
{
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	open.output_max = 2;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "abcd");
	cr_assert_eq(streams_counters(ss)->late, 2);
	cr_assert_eq(streams_counters(ss)->early, 0);
	cr_assert_str_eq(drained(100)->text, "ab");
}

Test(streams_restart, doubled_results_are_recognised_by_position)
{
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "ab");
	fixture_push_text(ss, 1, 0, "abc");
	cr_assert_str_eq(drained(100)->text, "abc");
	cr_assert_eq(streams_counters(ss)->doubled, 2);
}

Test(streams_restart, a_gap_is_filled_by_another_open)
{
	u32 tokens[16];
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "ab");
	cr_assert_not(streams_take_gap(ss));
	fixture_push_text(ss, 1, 4, "ef");
	cr_assert(streams_take_gap(ss));
	cr_assert_not(streams_take_gap(ss));
	cr_assert_str_eq(drained(100)->text, "ab");
	/* the scheduler has not seen all of it either */
	text_as_tokens("abc", tokens, &open);
	streams_open(ss, &open, 1, 10);
	cr_assert(streams_take_gap(ss));
	cr_assert_str_eq(drained(100)->text, "abc");
	text_as_tokens("abcd", tokens, &open);
	streams_open(ss, &open, 1, 20);
	cr_assert_not(streams_take_gap(ss));
	fixture_push_text(ss, 1, 6, "g");
	cr_assert_str_eq(drained(100)->text, "abcdefg");
	streams_expire(ss, 5000);
	cr_assert_eq(drained(100)->finishes, 0);
}

Test(streams_restart, a_gap_that_stays_ends_the_request_with_an_error_and_stops_it)
{
	struct ipc_stopped stopped;
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 0, "ab");
	fixture_push_text(ss, 1, 4, "e");
	streams_expire(ss, 500);
	cr_assert_eq(drained(100)->finishes, 0);
	streams_expire(ss, 2000);
	struct request_view *r = drained(100);
	cr_assert_eq(r->finish, FINISH_ERROR);
	cr_assert_str_eq(r->error, "output tokens from number 2 on were lost on the way to the detokenizer");
	cr_assert_str_eq(r->text, "ab");
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 1);
	cr_assert_eq(streams_counters(ss)->lost, 1);
}

Test(streams_restart, an_ended_sequence_opened_again_is_stopped_and_ends_once)
{
	struct ipc_stopped stopped;
	struct ipc_close close = {.seq = 1, .reason = FINISH_ABORT};
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 0);
	streams_close(ss, &close, 0);
	cr_assert_eq(drained(100)->finishes, 1);
	streams_open(ss, &open, 1, 0);
	streams_close(ss, &close, 0);
	cr_assert_eq(drained(100)->finishes, 1);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 1);
}

Test(streams_restart, results_of_an_earlier_epoch_are_late)
{
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 3, 0);
	push_epoch(2, 1, 0, 'x');
	push_epoch(2, 9, 0, 'x');
	push_epoch(3, 1, 0, 'a');
	cr_assert_str_eq(drained(100)->text, "a");
	cr_assert_eq(streams_counters(ss)->late, 2);
	cr_assert_eq(streams_counters(ss)->early, 0);
}

Test(streams_restart, resubmitted_request_goes_on_without_gap_or_repeat)
{
	u32 tokens[16];
	struct stop_list list;
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	fixture_stops(&open, &list, (const char *[]){"cd!"}, 1);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "abcd");
	cr_assert_str_eq(drained(100)->text, "ab");

	streams_scheduler_restarted(ss, 2, 10);
	push_epoch(1, 5, 4, 'z');
	/* the client resubmits with the two tokens that it holds; sequences count from 1 again */
	open.seq = 1;
	text_as_tokens("ab", tokens, &open);
	streams_open(ss, &open, 2, 20);
	push_epoch(2, 1, 2, 'c');
	push_epoch(2, 1, 3, 'd');
	push_epoch(2, 1, 4, 'e');
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "abcde");
	cr_assert_eq(r->token_count, 5);
}

Test(streams_restart, regenerated_tokens_never_contradict_what_is_out)
{
	u32 tokens[16];
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "abcd");
	cr_assert_str_eq(drained(100)->text, "abcd");
	streams_scheduler_restarted(ss, 2, 10);
	text_as_tokens("ab", tokens, &open);
	streams_open(ss, &open, 2, 20);
	push_epoch(2, 5, 2, 'X');
	push_epoch(2, 5, 3, 'Y');
	push_epoch(2, 5, 4, 'e');
	cr_assert_str_eq(drained(100)->text, "abcde");
}

Test(streams_restart, a_regenerated_end_ends_the_request)
{
	u32 tokens[16];
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "abcd");
	streams_scheduler_restarted(ss, 2, 10);
	text_as_tokens("ab", tokens, &open);
	streams_open(ss, &open, 2, 20);
	push_epoch(2, 5, 2, TOK_EOS);
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "abcd");
	cr_assert_eq(r->finish, FINISH_STOP);
}

Test(streams_restart, the_longer_list_of_tokens_wins)
{
	u32 tokens[16];
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "ab");
	text_as_tokens("abcd", tokens, &open);
	streams_open(ss, &open, 2, 20);
	push_epoch(2, 5, 4, 'e');
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "abcde");
	cr_assert_eq(r->token_count, 5);
}

Test(streams_restart, orphans_end_when_nobody_asks_again)
{
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "ab");
	streams_scheduler_restarted(ss, 2, 1000);
	streams_expire(ss, 1500);
	cr_assert_eq(drained(100)->finishes, 0);
	streams_expire(ss, 2500);
	cr_assert_eq(drained(100)->finish, FINISH_ERROR);
	cr_assert_eq(streams_live(ss), 0);
}

Test(streams_restart, request_that_ended_before_its_resubmission_is_stopped)
{
	u32 tokens[16];
	struct ipc_stopped stopped;
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	open.output_max = 3;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "abc");
	cr_assert_eq(drained(100)->finish, FINISH_LENGTH);
	streams_scheduler_restarted(ss, 2, 10);
	open.seq = 1;
	text_as_tokens("ab", tokens, &open);
	streams_open(ss, &open, 2, 20);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.seq, 1);
	push_epoch(2, 1, 2, 'c');
	cr_assert_eq(drained(100)->finishes, 1);
	cr_assert_eq(streams_counters(ss)->late, 1);
}

Test(streams_restart, a_number_used_again_by_a_client_is_a_new_request)
{
	fixture_ready(ss, 7);
	struct ipc_open open = fixture_open(5, 7, 100);
	open.output_max = 1;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 5, 0, "a");
	cr_assert_eq(drained(100)->finishes, 1);
	memset(view, 0, sizeof(*view));
	open.seq = 6;
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 6, 0, "b");
	cr_assert_str_eq(drained(100)->text, "b");
}

Test(streams_restart, unattached_clients_wait_and_merge)
{
	struct ipc_open open = fixture_open(1, 7, 100);
	streams_open(ss, &open, 1, 50);
	fixture_push_text(ss, 1, 0, "abc");
	cr_assert_eq(drained(100)->entries, 0);
	u64 client = 0;
	cr_assert_not(streams_client_absent(ss, 50, 1000, &client));
	cr_assert(streams_client_absent(ss, 51, 1000, &client));
	cr_assert(streams_client_absent(ss, 50, 10, &client));
	cr_assert_eq(client, 7);
	fixture_ready(ss, 7);
	cr_assert_str_eq(drained(100)->text, "abc");
	cr_assert_not(streams_client_absent(ss, 51, 1000, &client));
}

Test(streams_restart, new_detokenizer_goes_on_behind_the_clients_tokens)
{
	u32 tokens[16];
	u64 live_req[] = {101, 100};
	u32 live_tokens[] = {0, 2};
	struct ipc_attach attach = {.client_id = 7,
				    .live_req_id = live_req,
				    .live_req_id_count = 2,
				    .live_token_count = live_tokens,
				    .live_token_count_count = 2};
	/* one opened before the client is back, one after */
	for (int after = 0; after < 2; after++) {
		struct ipc_open open = fixture_open(1 + (u64)after, 7, after ? 101 : 100);
		text_as_tokens("abcd", tokens, &open);
		if (after)
			cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
		streams_open(ss, &open, 1, 0);
		fixture_push_text(ss, open.seq, 4, "e");
	}
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "cde");
	cr_assert_eq(r->token_count, 5);
	cr_assert_str_eq(view_request(view, 101)->text, "abcde");
}

/* One token with one listed id, as a RESULT of its own. */
static void push_listed(u64 seq, u32 position, u32 token)
{
	const u32 entry = 0, one = 1;
	const f32 value = -0.25f;
	struct ipc_result r = {
		.seq = &seq, .seq_count = 1, .position = &position, .position_count = 1,
		.token = &token, .token_count = 1, .lp_entry = &entry, .lp_entry_count = 1,
		.lp_count = &one, .lp_count_count = 1, .lp_rank = &one, .lp_rank_count = 1,
		.lp_ids = &token, .lp_ids_count = 1, .lp_values = &value, .lp_values_count = 1,
	};
	streams_result(ss, &r, 1, 0);
}

Test(streams_restart, kept_results_bring_the_log_probabilities_that_an_open_cannot)
{
	u32 tokens[16];
	u64 live_req = 100;
	u32 live_tokens = 3;
	struct ipc_attach attach = {.client_id = 7,
				    .live_req_id = &live_req,
				    .live_req_id_count = 1,
				    .live_token_count = &live_tokens,
				    .live_token_count_count = 1};
	struct ipc_open open = fixture_open(1, 7, 100);
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
	push_listed(1, 5, 'f'); /* the worker was faster */
	text_as_tokens("ab", tokens, &open);
	streams_open(ss, &open, 1, 0);
	push_listed(1, 6, 'g');
	const u64 seq = 1;
	const u32 one = 1;
	const f32 value = -2;
	struct ipc_result prompt = {.plp_seq = &seq, .plp_seq_count = 1, .plp_position = &one, .plp_position_count = 1,
				    .plp_count = &one, .plp_count_count = 1, .plp_rank = &one, .plp_rank_count = 1,
				    .plp_ids = &one, .plp_ids_count = 1, .plp_values = &value, .plp_values_count = 1};
	streams_result(ss, &prompt, 1, 0);
	struct ipc_chunk chunk;
	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.plp_entry_count, 1);
	cr_assert_eq(chunk.first_token[0], 3, "an entry without tokens stands where the client is");
	for (u32 i = 2; i < 5; i++)
		push_listed(1, i, 'a' + i);
	push_listed(1, 3, 'd');
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "defg", "the client had three; nothing waits for another OPEN");
	cr_assert_eq(r->lp_count, 4);
	for (u32 i = 0; i < 4; i++)
		cr_assert_eq(r->lp_tokens[i], 3 + i);
}

Test(streams_restart, without_a_claim_it_goes_on_behind_what_the_request_came_with)
{
	u32 tokens[16];
	struct ipc_open open = fixture_open(1, 7, 100);
	text_as_tokens("ab\xe2\x82", tokens, &open);
	open.held_count = 4;
	fixture_ready(ss, 7);
	streams_open(ss, &open, 1, 0);
	cr_assert_eq(drained(100)->entries, 0);
	fixture_push_text(ss, 1, 4, "\xac!");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "\xe2\x82\xac!", "whatever of the character was held is not lost");
}

/* A new detokenizer: the client was here first, and had asked for one more when the scheduler came. */
Test(streams_restart, what_was_asked_for_after_the_attach_is_told_from_its_beginning)
{
	u32 tokens[16];
	struct ipc_chunk chunk;
	struct ipc_open open = fixture_open(1, 7, 100);
	fixture_ready(ss, 7);
	text_as_tokens("abcd", tokens, &open);
	streams_open(ss, &open, 1, 0);
	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.first_token[0], 0);
	cr_assert_eq(chunk.token_count[0], 4);
	open = fixture_open(2, 7, 101);
	text_as_tokens("abcd", tokens, &open);
	open.held_count = 3;
	streams_open(ss, &open, 1, 0);
	cr_assert(streams_next_chunk(ss, &chunk));
	cr_assert_eq(chunk.first_token[0], 3);
	cr_assert_eq(chunk.token_count[0], 1);
}

Test(streams_restart, a_client_ahead_of_the_scheduler_hears_nothing_twice)
{
	u32 tokens[16];
	u64 live_req = 100;
	u32 live_tokens = 4;
	struct ipc_attach attach = {.client_id = 7,
				    .live_req_id = &live_req,
				    .live_req_id_count = 1,
				    .live_token_count = &live_tokens,
				    .live_token_count_count = 1};
	struct ipc_open open = fixture_open(1, 7, 100);
	text_as_tokens("ab", tokens, &open);
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
	streams_open(ss, &open, 1, 0);
	fixture_push_text(ss, 1, 2, "cd");
	cr_assert_eq(drained(100)->entries, 0);
	fixture_push_text(ss, 1, 4, "ef");
	struct request_view *r = drained(100);
	cr_assert_str_eq(r->text, "ef");
	cr_assert_eq(r->token_count, 6);
}

Test(streams_restart, a_stop_string_the_scheduler_never_heard_of_is_found_again)
{
	u32 tokens[16];
	struct stop_list list;
	struct ipc_stopped stopped;
	struct ipc_open open = fixture_open(1, 7, 100);
	fixture_stops(&open, &list, (const char *[]){"cd"}, 1);
	text_as_tokens("abcdxy", tokens, &open);
	u64 live_req = 100;
	u32 live_tokens = 2;
	struct ipc_attach attach = {.client_id = 7,
				    .live_req_id = &live_req,
				    .live_req_id_count = 1,
				    .live_token_count = &live_tokens,
				    .live_token_count_count = 1};
	streams_open(ss, &open, 1, 0);
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
	struct request_view *r = drained(100);
	cr_assert_eq(r->finish, FINISH_STOP);
	cr_assert_eq(r->text_bytes, 0);
	cr_assert_eq(r->token_count, 4);
	cr_assert(streams_peek_stopped(ss, &stopped));
	cr_assert_eq(stopped.output_count, 4);
}
