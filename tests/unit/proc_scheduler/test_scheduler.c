/* The scheduler process over real sockets: handshake, requests, restarts of workers, ends. */
#include <criterion/criterion.h>
#include <string.h>

#include "common/finish.h"
#include "common/shm_stats.h"
#include "tests/unit/proc_scheduler/shell.h"

/* Serves until every row is gone. */
static void serve_all(struct peer *worker, struct fake_worker *w)
{
	static struct fake_result r;

	do
		shell_serve_step(worker, w, &r);
	while (w->batch->row_count);
}

TestSuite(scheduler, .timeout = 120);

Test(scheduler, is_ready_when_all_ranks_are_and_takes_the_least)
{
	struct shell *s = shell_start((const char *const[]){"tensor_parallel_size=2", NULL});
	struct peer a, b, client;
	char line[256];

	shell_worker(s, &a, 0, 64);
	shell_connect(s, &client, "submit", IPC_ROLE_CLIENT, 0, 5);
	shell_submit(&client, 5, 1, 4, 2);
	const struct ipc_msg *m = shell_expect(&client, IPC_TYPE_REFUSED);
	cr_assert_eq(m->refused.code, ERR_BUSY);
	cr_assert_gt(m->refused.retry_after_ms, 0);
	shell_worker(s, &b, 1, 50);
	cr_assert_str_eq(shell_line(s, line, sizeof(line)),
			 "ready block_count=50 host_block_count=0 max_model_len=256 vocab_size=500");
	cr_assert_eq(shell_expect(&a, IPC_TYPE_INIT)->init.block_count, 50);
	u64 epoch = a.msg.epoch;
	cr_assert_eq(shell_expect(&b, IPC_TYPE_INIT)->epoch, epoch);
	m = shell_expect(&client, IPC_TYPE_ENGINE);
	cr_assert_eq(m->engine.block_count, 50);
	cr_assert_eq(m->engine.vocab_size, 500);
	cr_assert_eq(m->engine.model_count, 4);
	shell_disconnect(&a);
	shell_disconnect(&b);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
}

Test(scheduler, a_worker_that_offers_nothing_ends_the_start)
{
	struct shell *s = shell_start((const char *const[]){NULL});
	struct peer worker;

	shell_worker(s, &worker, 0, 0);
	shell_join(s);
	cr_assert_eq(s->run_result, ERR_UNSUPPORTED);
	cr_assert_not_null(strstr(s->run_text.text, "worker 0 offers 0 KV blocks"), "%s", s->run_text.text);
	shell_disconnect(&worker);
	cr_assert_eq(shell_stop(&s), ERR_UNSUPPORTED);
}

Test(scheduler, a_request_goes_through_open_steps_and_results)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client, stream;
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 77, 20, 6);
	const struct ipc_msg *m = shell_expect(&client, IPC_TYPE_ACCEPTED);
	cr_assert_eq(m->accepted.req_id, 77);
	u64 seq = m->accepted.seq;
	m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.seq, seq);
	cr_assert_eq(m->open.client_id, 5);
	cr_assert_eq(m->open.req_id, 77);
	cr_assert_eq(m->open.prompt_count, 20);
	cr_assert_eq(m->open.output_max, 6);
	cr_assert_eq(m->open.prompt_tail_count, 20);
	cr_assert_eq(m->open.eos_ids_count, 1);
	serve_all(&worker, &w);
	cr_assert_not(shell_comes(&worker, IPC_TYPE_STEP, 50), "nothing is left to do");
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

Test(scheduler, bad_submits_are_refused_with_a_reason)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client, other;

	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_client(s, &other, 6);
	shell_submit(&client, 5, 1, 256, 1);
	const struct ipc_msg *m = shell_expect(&client, IPC_TYPE_REFUSED);
	cr_assert_eq(m->refused.code, ERR_TOO_LONG);
	cr_assert_eq(m->refused.retry_after_ms, 0);
	cr_assert(memmem(m->refused.text, m->refused.text_count, "256", 3));
	shell_submit(&client, 0, 2, 5, 1);
	cr_assert_eq(shell_expect(&client, IPC_TYPE_REFUSED)->refused.code, ERR_INVALID);
	shell_submit(&client, 6, 3, 5, 1);
	cr_assert_eq(shell_expect(&client, IPC_TYPE_REFUSED)->refused.code, ERR_DENIED,
		     "6 is another peer's");
	shell_send(&client, IPC_TYPE_ACK, (struct ipc_msg){.ack = {5, 1}});
	cr_assert_eq(shell_expect(&client, IPC_TYPE_ERROR)->error.code, ERR_INVALID);
	shell_disconnect(&worker);
	shell_disconnect(&client);
	shell_disconnect(&other);
	cr_assert_eq(shell_stop(&s), ERR_OK);
}

Test(scheduler, a_new_worker_gets_what_the_old_one_had)
{
	static struct fake_result r;
	struct shell *s = shell_start((const char *const[]){"async_depth=0", NULL});
	struct peer worker, client, stream;
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	u64 epoch = shell_expect(&worker, IPC_TYPE_INIT)->epoch;
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 6);
	shell_serve_step(&worker, &w, &r);
	shell_serve_step(&worker, &w, &r);
	shell_expect(&worker, IPC_TYPE_STEP);
	shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	shell_disconnect(&worker);

	fake_worker_reset(&w, SHELL_BLOCKS, 256);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	cr_assert_gt(shell_expect(&worker, IPC_TYPE_INIT)->epoch, epoch);
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.output_tokens_count, 2, "the detokenizer is told what is known");
	struct ipc_msg old = {.epoch = epoch, .result = fake_result_message(&r)};
	old.result.step = 1;
	shell_send(&worker, IPC_TYPE_RESULT, old);
	shell_serve_step(&worker, &w, &r);
	cr_assert_eq(r.position[0], 2, "the result of the old epoch was ignored");
	serve_all(&worker, &w);
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

Test(scheduler, a_stop_string_ends_a_request)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client, stream;
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 200);
	struct ipc_msg m = {.type = IPC_TYPE_STOPPED};
	m.stopped = (struct ipc_stopped){shell_expect_stream(s, &stream, IPC_TYPE_OPEN)->open.seq, 1};
	cr_assert_eq(ipc_send(s->detok, s->detok_peer, &m), ERR_OK);
	cr_assert_eq(ipc_send(s->detok, s->detok_peer, &m), ERR_OK); /* once more does nothing */
	serve_all(&worker, &w);
	cr_assert_leq(w.batch->step, 100, "it did not run to its limit");
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

/* The sequence. */
static u64 check_closed(struct shell *s, u32 reason)
{
	struct peer stream;
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_CLOSE);

	cr_assert_eq(m->close.reason, reason);
	return m->close.seq;
}

Test(scheduler, abort_bye_and_silence_end_requests)
{
	struct shell *s = shell_start((const char *const[]){"client_lease=1", NULL});
	struct peer worker, a, b, c;

	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &a, 5);
	shell_submit(&a, 5, 1, 20, 200);
	shell_send(&a, IPC_TYPE_ABORT, (struct ipc_msg){.abort = {5, 1}});
	check_closed(s, FINISH_ABORT);
	shell_client(s, &b, 6);
	shell_submit(&b, 6, 1, 20, 200);
	shell_send(&b, IPC_TYPE_BYE, (struct ipc_msg){.bye = {6}});
	check_closed(s, FINISH_ABORT);
	shell_client(s, &c, 7);
	shell_submit(&c, 7, 1, 20, 200);
	check_closed(s, FINISH_ABORT);
	shell_disconnect(&worker);
	shell_disconnect(&a);
	shell_disconnect(&b);
	shell_disconnect(&c);
	cr_assert_eq(shell_stop(&s), ERR_OK);
}

Test(scheduler, a_drain_finishes_and_tells_the_supervisor)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client;
	struct fake_worker w;
	char line[256];

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_line(s, line, sizeof(line));
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 4);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_command(s, "drain\n");
	/* The command comes by another way than the requests: some may be taken before it. */
	u64 req_id = 2;
	do
		shell_submit(&client, 5, req_id++, 20, 1);
	while (!shell_comes(&client, IPC_TYPE_REFUSED, 50) && req_id < 100);
	cr_assert_eq(client.msg.type, IPC_TYPE_REFUSED);
	cr_assert_eq(client.msg.refused.code, ERR_SHUTDOWN);
	serve_all(&worker, &w);
	cr_assert_str_eq(shell_line(s, line, sizeof(line)), "note drained=1");
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

Test(scheduler, a_stop_closes_what_runs_with_an_error)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client, stream;

	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 200);
	shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	shell_command(s, "stop\n");
	check_closed(s, FINISH_ERROR);
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
}

static void submit_turn(struct peer *client, u64 client_id, u32 flags)
{
	static const u32 tokens[] = {1, 2, 3, 4}, bytes[] = {3};
	struct sampling_params params;
	struct ipc_msg m = {0};

	sampling_params_default(&params);
	params.max_tokens = 100;
	params.flags |= SAMPLING_IGNORE_EOS;
	m.submit = (struct ipc_submit){.client_id = client_id,
				       .req_id = 1,
				       .tokens = tokens,
				       .tokens_count = COUNT_OF(tokens),
				       .stop_string_bytes = bytes,
				       .stop_string_bytes_count = 1,
				       .stop_strings = (const u8 *)"end",
				       .stop_strings_count = 3,
				       .session = (const u8 *)"talk",
				       .session_count = 4,
				       .session_flags = flags};
#define SET_PARAM(A, type, name, def, min, max) m.submit.name = params.name;
	SAMPLING_TABLE(SET_PARAM, 0)
#undef SET_PARAM
	shell_send(client, IPC_TYPE_SUBMIT, m);
}

static u64 count_refused(const struct shell *s)
{
	const struct stats_page *page;
	struct err_msg em;

	cr_assert_eq(stats_map_one(&page, s->run_dir, "scheduler", &em), ERR_OK, "%s", em.text);
	u64 count = atomic_load(&page->values[STATS_REQUESTS_REFUSED]);
	stats_unmap(&page, 1);
	return count;
}

/* A turn waits for the detokenizer's word on the one that was given up in front of it, while nothing else is left to do. It is
 * answered when that comes, and before the scheduler goes. */
Test(scheduler, a_turn_that_waits_is_answered_and_counted_once)
{
	static const char *const commands[] = {"", "drain\n", "stop\n"};
	static struct fake_result r;

	for (u32 i = 0; i < COUNT_OF(commands); i++) {
		struct shell *s = shell_start(NULL);
		struct peer worker, a, b;
		struct fake_worker w;
		char line[256];
		fake_worker_init(&w, &shell_limits);
		shell_worker(s, &worker, 0, SHELL_BLOCKS);
		shell_line(s, line, sizeof(line));
		shell_client(s, &a, 5);
		shell_client(s, &b, 6);
		submit_turn(&a, 5, SESSION_BEGIN);
		for (u32 step = 0; step < 5; step++)
			shell_serve_step(&worker, &w, &r);
		shell_send(&a, IPC_TYPE_ABORT, (struct ipc_msg){.abort = {5, 1}});
		struct ipc_msg stopped = {.type = IPC_TYPE_STOPPED};
		stopped.stopped = (struct ipc_stopped){check_closed(s, FINISH_ABORT), 3};
		submit_turn(&b, 6, 0);
		cr_assert_not(shell_comes(&b, IPC_TYPE_ACCEPTED, 20), "it waits");
		if (i == 0)
			cr_assert_eq(ipc_send(s->detok, s->detok_peer, &stopped), ERR_OK);
		else
			shell_command(s, commands[i]);
		if (i == 1)
			cr_assert_str_eq(shell_line(s, line, sizeof(line)), "note drained=1");
		cr_assert(shell_comes(&b, i ? IPC_TYPE_REFUSED : IPC_TYPE_ACCEPTED, i == 1 ? 100 : 5000), "after %s", commands[i]);
		if (i)
			cr_assert_eq(b.msg.refused.code, ERR_SHUTDOWN);
		cr_assert_eq(count_refused(s), i > 0);
		shell_disconnect(&worker);
		shell_disconnect(&a);
		shell_disconnect(&b);
		cr_assert_eq(shell_stop(&s), ERR_OK);
		fake_worker_fini(&w);
	}
}

/* Another one comes just when the detokenizer's word is no longer waited for. */
Test(scheduler, the_turn_that_waited_is_first)
{
	static struct fake_result r;

	for (u32 i = 0; i < 4; i++) {
		struct shell *s = shell_start(NULL);
		struct peer worker, a, b, c;
		struct fake_worker w;
		fake_worker_init(&w, &shell_limits);
		shell_worker(s, &worker, 0, SHELL_BLOCKS);
		shell_client(s, &a, 5);
		shell_client(s, &b, 6);
		shell_client(s, &c, 7);
		submit_turn(&a, 5, SESSION_BEGIN);
		for (u32 step = 0; step < 5; step++)
			shell_serve_step(&worker, &w, &r);
		shell_send(&a, IPC_TYPE_ABORT, (struct ipc_msg){.abort = {5, 1}});
		check_closed(s, FINISH_ABORT);
		submit_turn(&b, 6, 0);
		cr_assert_not(shell_comes(&b, IPC_TYPE_REFUSED, 200 + 2 * i), "it waits, or is taken");
		submit_turn(&c, 7, 0);
		shell_expect(&c, IPC_TYPE_REFUSED);
		shell_disconnect(&worker);
		shell_disconnect(&a);
		shell_disconnect(&b);
		shell_disconnect(&c);
		cr_assert_eq(shell_stop(&s), ERR_OK);
		fake_worker_fini(&w);
	}
}

Test(scheduler, a_diverged_worker_begins_anew_but_not_for_ever)
{
	struct shell *s = shell_start(NULL);
	struct peer worker, client;
	u64 epoch = 0;

	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 200);
	for (u32 i = 0; i < 6; i++) {
		struct ipc_msg m = {0};
		u64 next = shell_expect(&worker, IPC_TYPE_INIT)->epoch;
		cr_assert_gt(next, epoch);
		epoch = m.epoch = next;
		shell_expect(&worker, IPC_TYPE_STEP);
		m.error = (struct ipc_error){
			.code = ERR_DIVERGED, .text = (const u8 *)"digest differs", .text_count = 14};
		shell_send(&worker, IPC_TYPE_ERROR, m);
	}
	shell_join(s);
	cr_assert_eq(s->run_result, ERR_DIVERGED);
	cr_assert(strstr(s->run_text.text, "6 times") && strstr(s->run_text.text, "digest differs"), "%s",
		  s->run_text.text);
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_DIVERGED);
}

Test(scheduler, without_a_run_directory_it_says_so)
{
	struct options o;
	struct scheduler *s;
	struct boot boot = {.fd = -1};
	struct err_msg em;

	cr_assert_eq(options_init(&o), ERR_OK);
	cr_assert_eq(scheduler_create(&s, &o, &boot, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "--run-dir"));
	cr_assert_null(s);
	cr_assert_eq(options_set(&o, "run_dir", "/nonexistent", "test", &em), ERR_OK);
	cr_assert_eq(scheduler_create(&s, &o, &boot, &em), ERR_IO);
	cr_assert(strstr(em.text, "/nonexistent"), "%s", em.text);
	options_fini(&o);
}
