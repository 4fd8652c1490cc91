/* A handle when something dies: detokenizer, scheduler, or the client itself. Every token exactly once. */
#include "fake_engine.h"

static const struct tercet_config plain;

static void restart_output(struct fake_engine *f)
{
	ipc_channel_close(&f->output);
	struct tercet_event e = expect_event(f, TERCET_EVENT_LOST);
	cr_assert_eq((int)e.code, TERCET_GONE);
	cr_assert_not(tercet_is_ready(f->t));
	f->output = fake_bind(f, "output", IPC_ROLE_DETOK);
	fake_expect(f, f->output, IPC_TYPE_HELLO);
}

static void restart_submit(struct fake_engine *f)
{
	ipc_channel_close(&f->submit);
	expect_event(f, TERCET_EVENT_LOST);
	f->submit = fake_bind(f, "submit", IPC_ROLE_SCHEDULER);
	fake_expect(f, f->submit, IPC_TYPE_HELLO);
	fake_send_engine(f);
	expect_event(f, TERCET_EVENT_READY);
}

Test(resume, a_restarted_detokenizer_is_told_where_to_go_on)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	submit_simple(&f, 5);
	fake_send_entry(&f, 1, 4, 0, 2, "Once", 0);
	expect_output(&f, 4, 0, 2, "Once", TERCET_FINISH_NONE);
	fake_send_entry(&f, 2, 5, 0, 1, "A", 0);
	expect_output(&f, 5, 0, 1, "A", TERCET_FINISH_NONE);
	restart_output(&f);
	struct ipc_attach m = fake_expect(&f, f.output, IPC_TYPE_ATTACH).attach;
	cr_assert_eq(m.last_chunk, 2);
	cr_assert_eq(m.live_req_id_count, 2);
	cr_assert(m.live_req_id[0] == 4 && m.live_token_count[0] == 2 && m.live_text_bytes[0] == 4);
	cr_assert(m.live_req_id[1] == 5 && m.live_token_count[1] == 1 && m.live_text_bytes[1] == 1);
	fake_send_attached(&f, m.client_id, 3);
	expect_event(&f, TERCET_EVENT_READY);
	fake_send_entry(&f, 3, 4, 2, 1, " upon", TERCET_FINISH_LENGTH);
	expect_output(&f, 4, 2, 1, " upon", TERCET_FINISH_LENGTH);
	fake_end(&f);
}

Test(resume, chunks_that_come_again_are_delivered_once)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	fake_send_entry(&f, 2, 4, 1, 1, "b", 0);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	fake_send_entry(&f, 2, 4, 1, 1, "b", 0);
	fake_send_entry(&f, 3, 4, 2, 1, "c", 0);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_NONE);
	expect_output(&f, 4, 1, 1, "b", TERCET_FINISH_NONE);
	expect_output(&f, 4, 2, 1, "c", TERCET_FINISH_NONE);
	expect_nothing(&f);
	fake_end(&f);
}

Test(resume, a_missing_chunk_makes_it_attach_again)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	fake_send_entry(&f, 3, 4, 2, 1, "c", 0);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_NONE);
	struct ipc_attach m = fake_expect(&f, f.output, IPC_TYPE_ATTACH).attach;
	cr_assert_eq(m.last_chunk, 1);
	fake_send_attached(&f, m.client_id, 2);
	fake_send_entry(&f, 2, 4, 1, 1, "b", 0);
	fake_send_entry(&f, 3, 4, 2, 1, "c", 0);
	expect_output(&f, 4, 1, 1, "b", TERCET_FINISH_NONE);
	expect_output(&f, 4, 2, 1, "c", TERCET_FINISH_NONE);
	fake_end(&f);
}

Test(resume, a_restarted_scheduler_gets_the_requests_with_their_tokens)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	submit_simple(&f, 5);
	fake_accept(&f, 4);
	expect_event(&f, TERCET_EVENT_ACCEPTED);
	fake_send_entry(&f, 1, 4, 0, 3, "abc", 0);
	expect_output(&f, 4, 0, 3, "abc", TERCET_FINISH_NONE);
	restart_submit(&f);
	struct ipc_submit m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == 4 && m.tokens_count == 6 && m.output_count == 3);
	cr_assert(m.tokens[2] == 12 && m.tokens[3] == 100 && m.tokens[5] == 102);
	m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == 5 && m.tokens_count == 3 && m.output_count == 0);
	fake_accept(&f, 4); /* it is no news to the caller */
	fake_send_entry(&f, 2, 4, 3, 1, "d", 0);
	expect_output(&f, 4, 3, 1, "d", TERCET_FINISH_NONE);
	fake_end(&f);
}

/* The detokenizer still sends what the dead scheduler's worker made, then the new life makes it again, cut in other
 * places. */
Test(resume, what_is_made_twice_is_delivered_once)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 3, "abc", 0);
	expect_output(&f, 4, 0, 3, "abc", TERCET_FINISH_NONE);
	restart_submit(&f);
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit.output_count, 3);
	fake_send_entry(&f, 2, 4, 3, 2, "DdEe", 0); /* of the old life */
	expect_output(&f, 4, 3, 2, "DdEe", TERCET_FINISH_NONE);
	fake_send_entry(&f, 3, 4, 3, 1, "Dd", 0); /* of the new one */
	expect_nothing(&f);
	fake_send_entry(&f, 4, 4, 4, 3, "EeFfGg", 0);
	expect_output(&f, 4, 5, 2, "FfGg", TERCET_FINISH_NONE);
	fake_send_entry(&f, 5, 4, 7, 1, "Hh", TERCET_FINISH_STOP);
	expect_output(&f, 4, 7, 1, "Hh", TERCET_FINISH_STOP);
	fake_end(&f);
}

Test(resume, a_scheduler_that_still_has_the_request_is_no_refusal)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	restart_submit(&f);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	struct ipc_msg msg = {.type = IPC_TYPE_REFUSED, .refused = {.req_id = 4, .code = ERR_EXISTS}};
	fake_send(f.submit, f.submit_peer, &msg);
	expect_nothing(&f);
	fake_send_entry(&f, 1, 4, 0, 1, "a", TERCET_FINISH_STOP);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_STOP);
	fake_end(&f);
}

/* What it has generated belongs to the session: the engine's next life has to hear of it, and of the abort. */
Test(resume, a_turn_that_was_given_up_is_submitted_again_and_aborted)
{
	u32 tokens[3] = {10, 11, 12};
	struct tercet_request q = {.tokens = tokens, .token_count = 3, .session = "talk"};
	struct fake_engine f;
	tercet_params_init(&q.params);
	q.params.max_tokens = 30;
	fake_begin(&f);
	fake_connect(&f, &plain);
	for (q.req_id = 4; q.req_id < 7; q.req_id++) {
		q.session_flags = q.req_id == 5 ? TERCET_SESSION_END : 0;
		cr_assert_eq((int)tercet_submit(f.t, &q, NULL, NULL), TERCET_OK);
		fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	}
	fake_send_entry(&f, 1, 4, 0, 2, "ab", 0);
	expect_output(&f, 4, 0, 2, "ab", TERCET_FINISH_NONE);
	cr_assert_eq((int)tercet_abort(f.t, 4), TERCET_OK);
	cr_assert_eq((int)tercet_abort(f.t, 5), TERCET_OK); /* nothing of it is to be kept */
	fake_expect(&f, f.submit, IPC_TYPE_ABORT);
	ipc_channel_close(&f.submit);
	expect_event(&f, TERCET_EVENT_LOST);
	cr_assert_eq((int)tercet_abort(f.t, 6), TERCET_OK);
	f.submit = fake_bind(&f, "submit", IPC_ROLE_SCHEDULER);
	fake_expect(&f, f.submit, IPC_TYPE_HELLO);
	fake_send_engine(&f);
	expect_event(&f, TERCET_EVENT_READY);
	expect_output(&f, 5, 0, 0, "", TERCET_FINISH_ABORT);
	struct ipc_submit m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == 4 && m.tokens_count == 5 && m.output_count == 2 && (m.session_flags & SESSION_AGAIN));
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 4);
	m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == 6 && m.output_count == 0 && (m.session_flags & SESSION_AGAIN));
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 6);
	fake_send_entry(&f, 2, 4, 2, 0, "", TERCET_FINISH_ABORT);
	expect_output(&f, 4, 2, 0, "", TERCET_FINISH_ABORT);
	fake_end(&f);
}

Test(resume, a_request_refused_when_taken_up_again_ends_in_an_error)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_NONE);
	restart_submit(&f);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	struct ipc_msg msg = {.type = IPC_TYPE_REFUSED,
			      .refused = {.req_id = 4, .code = ERR_BUSY, .text = (const u8 *)"full", .text_count = 4}};
	fake_send(f.submit, f.submit_peer, &msg);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 4 && e.finish == TERCET_FINISH_ERROR && e.code == TERCET_BUSY && e.first_token == 1);
	cr_assert_str_eq(e.error_text, "full");
	fake_end(&f);
}

Test(resume, tokens_that_are_lost_end_the_request_with_an_error)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_NONE);
	fake_send_entry(&f, 2, 4, 5, 1, "f", 0);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.finish == TERCET_FINISH_ERROR && e.code == TERCET_SEQUENCE && e.req_id == 4);
	cr_assert_str_eq(e.error_text, "output 5 came when 1 was due");
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 4);
	fake_end(&f);
}

Test(resume, a_detached_client_ends_its_requests_and_begins_anew)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 1, "a", 0);
	expect_output(&f, 4, 0, 1, "a", TERCET_FINISH_NONE);
	struct ipc_msg msg = {.type = IPC_TYPE_DETACHED,
			      .detached = {.code = ERR_GONE, .text = (const u8 *)"too slow", .text_count = 8}};
	fake_send(f.output, f.output_peer, &msg);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_DETACHED);
	cr_assert_str_eq(e.error_text, "too slow");
	e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 4 && e.finish == TERCET_FINISH_ERROR && e.code == TERCET_GONE);
	cr_assert_str_eq(e.error_text, "too slow");
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 4);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	struct ipc_attach m = fake_expect(&f, f.output, IPC_TYPE_ATTACH).attach;
	cr_assert_eq(m.last_chunk, 0);
	fake_send_attached(&f, m.client_id, 1);
	expect_event(&f, TERCET_EVENT_READY);
	submit_simple(&f, 5);
	fake_send_entry(&f, 1, 5, 0, 1, "b", 0);
	expect_output(&f, 5, 0, 1, "b", TERCET_FINISH_NONE);
	fake_end(&f);
}

Test(resume, a_client_taken_over_by_another_does_not_fight_for_it)
{
	struct fake_engine f;
	struct tercet_event event;
	fake_begin(&f);
	fake_connect(&f, &plain);
	struct ipc_msg msg = {.type = IPC_TYPE_DETACHED, .detached = {.code = ERR_EXISTS}};
	fake_send(f.output, f.output_peer, &msg);
	expect_event(&f, TERCET_EVENT_DETACHED);
	u64 begin = clock_now_ns();
	while (clock_now_ns() - begin < 1300000000) {
		struct ipc_msg got;
		ipc_peer from;
		tercet_wait(f.t, 50, &event);
		while (ipc_recv(f.output, &from, &got, NULL) == ERR_OK)
			cr_assert_neq(got.type, IPC_TYPE_ATTACH);
	}
	fake_end(&f);
}

Test(resume, a_new_process_takes_up_an_earlier_life)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &(struct tercet_config){.client_id = 4242});
	submit_simple(&f, 4);
	fake_send_entry(&f, 1, 4, 0, 2, "ab", 0);
	expect_output(&f, 4, 0, 2, "ab", TERCET_FINISH_NONE);
	expect_nothing(&f);
	u64 last = tercet_last_chunk(f.t);
	cr_assert_eq(last, 1);
	tercet_leave(&f.t);
	struct tercet_config config = {.run_dir = f.dir, .client_id = 4242, .last_chunk = last};
	cr_assert_eq((int)tercet_open(&f.t, &config, NULL), TERCET_OK);
	cr_assert_eq((int)tercet_adopt(f.t, 4, 2, 2, &f), TERCET_OK);
	cr_assert_eq((int)tercet_adopt(f.t, 4, 2, 2, &f), TERCET_EXISTS);
	struct ipc_attach m = fake_expect(&f, f.output, IPC_TYPE_ATTACH).attach;
	cr_assert(m.client_id == 4242 && m.last_chunk == 1 && m.live_req_id_count == 1 && m.live_token_count[0] == 2);
	fake_send_attached(&f, 4242, 2);
	fake_send_entry(&f, 2, 4, 2, 1, "c", TERCET_FINISH_STOP);
	expect_output(&f, 4, 2, 1, "c", TERCET_FINISH_STOP);
	fake_end(&f);
}

Test(resume, a_chunk_whose_columns_do_not_fit_is_an_error_for_all)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_simple(&f, 4);
	fake_expect(&f, f.submit, IPC_TYPE_SUBMIT);
	u64 ids[] = {4, 5};
	struct ipc_msg msg = {.type = IPC_TYPE_CHUNK, .chunk = {.chunk = 1, .req_id = ids, .req_id_count = 2}};
	fake_send(f.output, f.output_peer, &msg);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_ERROR);
	cr_assert_eq((int)e.code, TERCET_FORMAT);
	cr_assert_not_null(strstr(e.error_text, "first_token has 0 elements"), "%s", e.error_text);
	e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 4 && e.finish == TERCET_FINISH_ERROR && e.code == TERCET_FORMAT);
	fake_end(&f);
}

/* ---------------------------------------------------------------- beam searches */

static void submit_search(struct fake_engine *f, u64 req_id, u32 answers)
{
	struct tercet_request q = simple_request(req_id);
	struct tercet_error error = {.text = ""};
	q.params.beam_width = 4;
	q.params.temperature = 0;
	q.answer_count = answers;
	cr_assert_eq((int)tercet_submit(f->t, &q, NULL, &error), TERCET_OK, "%s", error.text);
	struct ipc_submit m = fake_expect(f, f->submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == req_id && m.beam_width == 4 && m.answer_count == answers && m.length_penalty == 1);
}

static void expect_answer(struct fake_engine *f, u64 req_id, u32 answer, enum tercet_finish finish)
{
	struct tercet_event e = expect_event(f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == req_id && e.answer == answer && e.finish == finish);
}

Test(search, answers_are_requests_of_their_own)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_search(&f, 20, 3);
	cr_assert_eq(tercet_unfinished_count(f.t), 3);
	struct tercet_request q = simple_request(22);
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, NULL), TERCET_EXISTS);
	fake_accept(&f, 20);
	expect_event(&f, TERCET_EVENT_ACCEPTED);
	fake_send_entry(&f, 1, 21, 0, 2, "no", TERCET_FINISH_STOP);
	fake_send_entry(&f, 2, 20, 0, 3, "yes", TERCET_FINISH_LENGTH);
	expect_answer(&f, 21, 1, TERCET_FINISH_STOP);
	expect_answer(&f, 20, 0, TERCET_FINISH_LENGTH);
	cr_assert_eq(tercet_unfinished_count(f.t), 1);
	cr_assert_eq((int)tercet_abort(f.t, 20), TERCET_NOT_FOUND);
	fake_send_entry(&f, 3, 22, 0, 1, "x", TERCET_FINISH_LENGTH);
	expect_answer(&f, 22, 2, TERCET_FINISH_LENGTH);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	submit_search(&f, 20, 2); /* the ids are free again */
	fake_end(&f);
}

Test(search, a_restarted_scheduler_gets_it_again_while_an_answer_is_missing)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_search(&f, 20, 3);
	fake_send_entry(&f, 1, 20, 0, 2, "ab", TERCET_FINISH_STOP);
	fake_send_entry(&f, 2, 21, 0, 1, "c", 0);
	expect_answer(&f, 20, 0, TERCET_FINISH_STOP);
	expect_answer(&f, 21, 1, TERCET_FINISH_NONE);
	restart_submit(&f);
	struct ipc_submit m = fake_expect(&f, f.submit, IPC_TYPE_SUBMIT).submit;
	cr_assert(m.req_id == 20 && m.answer_count == 3 && m.output_count == 0 && m.tokens_count == 3);
	fake_accept(&f, 20);
	fake_send_entry(&f, 3, 20, 0, 2, "ab", TERCET_FINISH_STOP); /* had ended */
	fake_send_entry(&f, 4, 21, 0, 2, "cd", TERCET_FINISH_STOP);
	fake_send_entry(&f, 5, 22, 0, 1, "e", TERCET_FINISH_STOP);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_OUTPUT);
	cr_assert(e.req_id == 21 && e.first_token == 1 && e.token_count == 1 && e.text_bytes == 1 && e.text[0] == 'd');
	expect_answer(&f, 22, 2, TERCET_FINISH_STOP);
	expect_nothing(&f);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	restart_submit(&f);
	expect_nothing(&f);
	fake_end(&f);
}

Test(search, an_abort_or_a_refusal_is_for_all_answers)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	submit_search(&f, 20, 3);
	cr_assert_eq((int)tercet_abort(f.t, 22), TERCET_OK);
	cr_assert_eq(fake_expect(&f, f.submit, IPC_TYPE_ABORT).abort.req_id, 20);
	for (u32 i = 0; i < 3; i++)
		fake_send_entry(&f, 1 + i, 20 + i, 0, 0, "", TERCET_FINISH_ABORT);
	for (u32 i = 0; i < 3; i++)
		expect_answer(&f, 20 + i, i, TERCET_FINISH_ABORT);
	submit_search(&f, 30, 4);
	struct ipc_msg refused = {.type = IPC_TYPE_REFUSED,
				  .refused = {.req_id = 30, .code = ERR_NEVER_FITS, .text = (const u8 *)"no", .text_count = 2}};
	fake_send(f.submit, f.submit_peer, &refused);
	struct tercet_event e = expect_event(&f, TERCET_EVENT_REFUSED);
	cr_assert(e.req_id == 30 && e.code == TERCET_NEVER_FITS && tercet_event_is_last(&e));
	expect_nothing(&f);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	fake_end(&f);
}

Test(search, one_that_was_never_sent_is_aborted_here)
{
	struct fake_engine f;
	fake_begin(&f);
	fake_connect(&f, &plain);
	ipc_channel_close(&f.submit);
	expect_event(&f, TERCET_EVENT_LOST);
	struct tercet_request q = simple_request(20);
	q.params.beam_width = q.answer_count = 2;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, NULL), TERCET_OK);
	cr_assert_eq((int)tercet_abort(f.t, 21), TERCET_OK);
	expect_answer(&f, 20, 0, TERCET_FINISH_ABORT);
	expect_answer(&f, 21, 1, TERCET_FINISH_ABORT);
	cr_assert_eq(tercet_unfinished_count(f.t), 0);
	q.answer_count = 3;
	struct tercet_error error;
	cr_assert_eq((int)tercet_submit(f.t, &q, NULL, &error), TERCET_INVALID);
	cr_assert(strstr(error.text, "answer_count is 3; it must be at most 2"));
	f.submit = fake_bind(&f, "submit", IPC_ROLE_SCHEDULER);
	fake_end(&f);
}
