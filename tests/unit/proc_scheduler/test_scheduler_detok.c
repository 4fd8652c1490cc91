/* The scheduler process over real sockets: a detokenizer that begins anew, and what it is told again. */
#include <criterion/criterion.h>

#include "common/finish.h"
#include "tests/unit/proc_scheduler/shell.h"

TestSuite(scheduler_detok, .timeout = 120);

Test(scheduler_detok, a_new_detokenizer_is_told_of_live_streams_and_of_late_ends)
{
	static struct fake_result r;
	struct shell *s = shell_start((const char *const[]){"async_depth=0", NULL});
	struct peer worker, client, stream;
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 30);
	shell_submit(&client, 5, 2, 30, 2);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	while (w.batch->row_count != 1 || w.batch->step < 2)
		shell_serve_step(&worker, &w, &r);

	shell_restart_detok(s);
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.req_id, 1);
	cr_assert_geq(m->open.output_tokens_count, 1);
	m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.req_id, 2, "it ended lately: the old one may not have delivered it");
	cr_assert_eq(m->open.output_tokens_count, 2);
	m = shell_expect_stream(s, &stream, IPC_TYPE_CLOSE);
	cr_assert_eq(m->close.reason, FINISH_LENGTH);
	cr_assert_eq(m->close.output_count, 2);
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

/* The result of a step with one listed id for each of its tokens. */
static void serve_step_listed(struct peer *worker, struct fake_worker *w, struct fake_result *r)
{
	static const u32 entries[] = {0, 1}, ones[] = {1, 1};
	static const f32 values[] = {-0.5f, -0.5f};
	struct ipc_msg out = {0};
	struct err_msg em;

	const struct ipc_msg *m = shell_expect(worker, IPC_TYPE_STEP);
	cr_assert_eq(fake_worker_step(w, &m->step, r, &em), ERR_OK, "%s", em.text);
	out.epoch = m->epoch;
	out.result = fake_result_message(r);
	u32 n = out.result.seq_count;
	cr_assert_leq(n, 2);
	if (n == 0 && w->batch->tokens_run == 0)
		return;
	out.result.lp_entry = entries;
	out.result.lp_count = out.result.lp_rank = ones;
	out.result.lp_ids = out.result.token;
	out.result.lp_values = values;
	out.result.lp_entry_count = out.result.lp_count_count = out.result.lp_rank_count = n;
	out.result.lp_ids_count = out.result.lp_values_count = n;
	shell_send(worker, IPC_TYPE_RESULT, out);
}

Test(scheduler_detok, a_new_detokenizer_gets_the_log_probabilities_again)
{
	static struct fake_result r;
	struct shell *s = shell_start((const char *const[]){"async_depth=0", NULL});
	struct peer worker, client, stream;
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 30);
	shell_submit(&client, 5, 2, 30, 2);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	while (w.batch->row_count != 1 || w.batch->step < 2)
		serve_step_listed(&worker, &w, &r);

	shell_restart_detok(s);
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.req_id, 1);
	cr_assert_eq(m->open.output_tokens_count, 0, "they come as results");
	u64 first = m->open.seq;
	m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.output_tokens_count, 0);
	u64 ended = m->open.seq;
	m = shell_expect_stream(s, &stream, IPC_TYPE_CLOSE);
	cr_assert_eq(m->close.output_count, 2);
	u32 next[2] = {0, 0};
	while (next[0] < 2 || next[1] < 2) {
		m = shell_expect_stream(s, &stream, IPC_TYPE_RESULT);
		cr_assert(m->result.seq_count > 0 && m->result.lp_ids_count == m->result.seq_count);
		for (u32 i = 0; i < m->result.seq_count; i++) {
			cr_assert(m->result.seq[i] == first || m->result.seq[i] == ended);
			cr_assert_eq(m->result.position[i], next[m->result.seq[i] == ended]++);
			cr_assert_eq(m->result.lp_ids[i], m->result.token[i]);
		}
	}
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

/* The same with rows of the prompt alone, one for each sequence that samples for the first time. */
static void serve_step_prompts(struct peer *worker, struct fake_worker *w, struct fake_result *r)
{
	static u32 ones[IPC_ROWS_MAX], ids[IPC_ROWS_MAX];
	static f32 values[IPC_ROWS_MAX];
	static u64 seqs[IPC_ROWS_MAX];
	struct ipc_msg out = {0};
	struct err_msg em;
	u32 n = 0;

	const struct ipc_msg *m = shell_expect(worker, IPC_TYPE_STEP);
	cr_assert_eq(fake_worker_step(w, &m->step, r, &em), ERR_OK, "%s", em.text);
	out.epoch = m->epoch;
	out.result = fake_result_message(r);
	if (out.result.seq_count == 0 && w->batch->tokens_run == 0)
		return;
	for (u32 i = 0; i < out.result.seq_count; i++)
		if (out.result.position[i] == 0) {
			seqs[n] = out.result.seq[i];
			ones[n] = 1;
			ids[n++] = 7;
		}
	out.result.plp_seq = seqs;
	out.result.plp_position = out.result.plp_count = out.result.plp_rank = ones;
	out.result.plp_ids = ids;
	out.result.plp_values = values;
	out.result.plp_seq_count = out.result.plp_position_count = out.result.plp_count_count = n;
	out.result.plp_rank_count = out.result.plp_ids_count = out.result.plp_values_count = n;
	shell_send(worker, IPC_TYPE_RESULT, out);
}

/* Outputs that come before them could end the stream: by a stop string that nobody has told of, or by their number. */
Test(scheduler_detok, a_new_detokenizer_gets_the_log_probabilities_of_a_prompt_before_its_outputs)
{
	static struct fake_result r;
	struct shell *s = shell_start((const char *const[]){"async_depth=0", NULL});
	struct peer worker, client, stream;
	struct fake_worker w;
	u32 next[2] = {0, 0}, prompts = 0;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 30);
	shell_submit(&client, 5, 2, 30, 4);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	while (w.batch->row_count != 1 || w.batch->step < 4)
		serve_step_prompts(&worker, &w, &r);

	shell_restart_detok(s);
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	u64 live = m->open.seq;
	cr_assert_eq(m->open.output_tokens_count, 0);
	m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.output_tokens_count, 0);
	u64 ended = m->open.seq;
	m = shell_expect_stream(s, &stream, IPC_TYPE_CLOSE);
	cr_assert_eq(m->close.seq, ended);
	cr_assert_eq(m->close.output_count, 4);
	while (next[0] < 4 || next[1] < 4) {
		m = shell_expect_stream(s, &stream, IPC_TYPE_RESULT);
		prompts += m->result.plp_seq_count;
		cr_assert(m->result.seq_count == 0 || prompts == 2, "outputs come first");
		for (u32 i = 0; i < m->result.seq_count; i++) {
			cr_assert(m->result.seq[i] == live || m->result.seq[i] == ended);
			cr_assert_eq(m->result.position[i], next[m->result.seq[i] == ended]++);
		}
	}
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}

/* The detokenizer may have read the result that the stop string is in, and the scheduler not yet. */
Test(scheduler_detok, what_a_stop_string_ends_is_told_again_to_its_last_token)
{
	static struct fake_result r;
	struct shell *s = shell_start((const char *const[]){"async_depth=0", NULL});
	struct peer worker, client, stream;
	struct ipc_msg stopped = {.type = IPC_TYPE_STOPPED};
	struct fake_worker w;

	fake_worker_init(&w, &shell_limits);
	shell_worker(s, &worker, 0, SHELL_BLOCKS);
	shell_client(s, &client, 5);
	shell_submit(&client, 5, 1, 20, 30);
	shell_submit(&client, 5, 2, 30, 8); /* tells that the results in front of its end were read */
	u64 seq = shell_expect_stream(s, &stream, IPC_TYPE_OPEN)->open.seq;
	stopped.stopped = (struct ipc_stopped){seq, 2};
	cr_assert_eq(ipc_send(s->detok, s->detok_peer, &stopped), ERR_OK);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	shell_expect(&client, IPC_TYPE_ACCEPTED);
	while (w.batch->row_count != 1 || w.batch->step < 4)
		serve_step_prompts(&worker, &w, &r);

	shell_restart_detok(s);
	const struct ipc_msg *m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	while (m->open.seq != seq)
		m = shell_expect_stream(s, &stream, IPC_TYPE_OPEN);
	cr_assert_eq(m->open.output_tokens_count, 0);
	m = shell_expect_stream(s, &stream, IPC_TYPE_CLOSE);
	cr_assert_eq(m->close.seq, seq);
	cr_assert_eq(m->close.reason, FINISH_STOP);
	cr_assert_eq(m->close.output_count, 2);
	u32 outputs = 0, prompts = 0;
	while (outputs < 2) {
		m = shell_expect_stream(s, &stream, IPC_TYPE_RESULT);
		for (u32 i = 0; i < m->result.plp_seq_count; i++)
			prompts += m->result.plp_seq[i] == seq;
		for (u32 i = 0; i < m->result.seq_count; i++)
			outputs += m->result.seq[i] == seq;
		cr_assert(prompts == 1 || outputs == 0);
	}
	shell_disconnect(&worker);
	shell_disconnect(&client);
	cr_assert_eq(shell_stop(&s), ERR_OK);
	fake_worker_fini(&w);
}
