/* The plan without pressure on memory: order, budget, chunks, limits, ends, asynchronous depth. */
#include <criterion/criterion.h>
#include <string.h>

#include "common/buf.h"
#include "tests/unit/proc_scheduler/fixture.h"

/* How many tokens `seq` runs in `step`, from the exceptions. */
static u32 listed_run(const struct fixture *f, const struct ipc_step *step, u64 seq)
{
	const struct seq *q = seqs_find(&f->s->seqs, seq);

	for (u32 i = 0; q && i < step->run_row_count; i++)
		if (step->run_row[i] == q->row)
			return step->run_count[i];
	return UINT32_MAX;
}

Test(sched, new_requests_are_added_whole_with_their_prompts_to_run)
{
	struct sched_config c = fixture_config();
	c.max_num_batched_tokens = 512;
	c.max_num_seqs = 16;
	struct fixture *f = fixture_create(&c);

	for (u32 i = 0; i < 10; i++)
		fixture_submit(f, i * 50, 10 + i, 4);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 10);
	cr_assert_eq(step->run_row_count, 10);
	for (u32 i = 0; i < 10; i++)
		cr_assert_eq(step->run_count[i], 10 + i);
	cr_assert_eq(f->opened_count, 10, "each was opened before its first step");
	fixture_destroy(&f);
}

Test(sched, a_context_that_fits_into_no_message_is_refused)
{
	struct sched_config c = fixture_config();
	struct sched_sink sink = {0};
	struct sched *s;
	struct err_msg em;
	const u32 sizes[][2] = {{2u << 20, 1}, {15u << 20, 256}};

	for (u32 i = 0; i < COUNT_OF(sizes); i++) {
		c.max_model_len = sizes[i][0];
		c.block_size = sizes[i][1];
		c.block_count = sizes[i][0] / sizes[i][1];
		cr_assert_eq(sched_create(&s, &c, &sink, NULL, &em), ERR_TOO_LONG);
		cr_assert_not_null(strstr(em.text, "lower --max-model-len or raise --block-size"), "%s", em.text);
	}
}

Test(sched, an_ended_request_counts_its_limit_and_the_time_between_its_tokens)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	struct buf out = {0};

	fixture_submit(f, 1, 4, 3);
	fixture_submit(f, 100, 4, 1); /* no time between tokens */
	fixture_run(f);
	stats_export(&out, &(const struct stats_page *){f->stats}, 1, "m");
	const char *text = buf_cstr(&out);
	cr_assert_not_null(strstr(text, "vllm:request_params_max_tokens_sum{model_name=\"m\"} 4\n"), "%s", text);
	cr_assert_not_null(
		strstr(text, "vllm:request_time_per_output_token_seconds_count{model_name=\"m\"} 1\n"));
	/* a plan and a delivery are 1 us each */
	cr_assert_not_null(
		strstr(text, "vllm:request_time_per_output_token_seconds_sum{model_name=\"m\"} 2e-06\n"));
	buf_fini(&out);
	fixture_destroy(&f);
}

Test(sched, a_decoding_request_is_not_mentioned_until_a_block_fills)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	fixture_submit(f, 1, 4, 20);
	fixture_plan(f);
	fixture_deliver(f);
	for (u32 i = 0; i < 12; i++) {
		const struct ipc_step *step = fixture_plan(f);
		cr_assert_eq(step->add_row_count + step->run_row_count + step->drop_row_count, 0);
		cr_assert_eq(step->grow_row_count, i % 4 == 0, "step %u", i);
		fixture_deliver(f);
	}
	fixture_destroy(&f);
}

Test(sched, long_prompts_share_the_budget_in_chunks)
{
	struct sched_config c = fixture_config();
	c.max_num_batched_tokens = 1024;
	c.long_prefill_token_threshold = 400;
	c.max_model_len = 1024;
	c.block_count = 1024;
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = {0};
	u32 prompt[800];
	u64 seq[3];

	for (u32 i = 0; i < 3; i++) {
		struct sched_admission a;
		struct err_msg em;
		m = fixture_message(i + 1, 0, 1, 8);
		for (u32 j = 0; j < 800; j++)
			prompt[j] = (i * 300 + j) % FIXTURE_VOCAB;
		m.tokens = prompt;
		m.tokens_count = 800;
		cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK, "%s", em.text);
		seq[i] = a.seq;
	}
	for (u32 i = 0; i < 2; i++) {
		const struct ipc_step *step = fixture_plan(f);
		cr_assert_eq(listed_run(f, step, seq[0]), 400);
		cr_assert_eq(listed_run(f, step, seq[1]), 400);
		cr_assert_eq(listed_run(f, step, seq[2]), 224);
		fixture_deliver(f);
	}
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(listed_run(f, step, seq[0]), UINT32_MAX, "decodes: not mentioned");
	cr_assert_eq(listed_run(f, step, seq[1]), UINT32_MAX, "decodes: not mentioned");
	cr_assert_eq(listed_run(f, step, seq[2]), 352);
	fixture_destroy(&f);
}

Test(sched, a_token_comes_only_after_the_last_chunk)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 100, 5);
	cr_assert_eq(listed_run(f, fixture_plan(f), seq), 64);
	cr_assert_eq(f->results[0].count, 0);
	fixture_deliver(f);
	cr_assert_eq(listed_run(f, fixture_plan(f), seq), 36);
	cr_assert_eq(f->results[0].count, 1);
	fixture_deliver(f);
	cr_assert_eq(seq_output_count(fixture_seq(f, seq)), 1);
	fixture_destroy(&f);
}

Test(sched, rows_are_bounded_and_an_end_makes_room)
{
	struct sched_config c = fixture_config();
	c.max_num_seqs = 4;
	struct fixture *f = fixture_create(&c);
	u64 seq[6];

	for (u32 i = 0; i < 6; i++)
		seq[i] = fixture_submit(f, i * 100, 5, i == 1 ? 1 : 30);
	cr_assert_eq(fixture_plan(f)->add_row_count, 4);
	cr_assert_eq(f->s->waiting.count, 2);
	fixture_deliver(f);
	cr_assert_eq(fixture_end_of(f, seq[1])->reason, FINISH_LENGTH);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->drop_row_count, 1);
	cr_assert_eq(step->add_row_count, 1);
	cr_assert_eq(step->add_row[0], step->drop_row[0], "the row is used again in the same step");
	cr_assert_eq(step->add_seq[0], seq[4]);
	fixture_destroy(&f);
}

Test(sched, the_last_end_is_flushed_in_one_step_and_then_there_is_none)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	fixture_submit(f, 1, 5, 1);
	fixture_plan(f);
	fixture_deliver(f);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->drop_row_count, 1);
	cr_assert_eq(step->add_row_count + step->run_row_count, 0);
	cr_assert_eq(f->worker.batch->row_count, 0);
	cr_assert_null(fixture_plan(f));
	cr_assert(sched_is_idle(f->s));
	fixture_destroy(&f);
}

Test(sched, an_abort_frees_blocks_at_once_and_late_results_are_ignored)
{
	struct sched_config c = fixture_config();
	c.async_depth = 1;
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 10, 20);
	fixture_plan(f);
	fixture_plan(f);
	cr_assert(sched_abort(f->s, 1, 1, f->now_ns));
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_ABORT);
	cr_assert_eq(f->closed_count, 1);
	fixture_deliver(f);
	fixture_deliver(f);
	cr_assert_eq(f->end_count, 1);
	cr_assert_eq(fixture_plan(f)->drop_row_count, 1);
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	fixture_destroy(&f);
}

Test(sched, an_aborted_waiting_request_is_opened_and_closed_but_never_sent)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 10, 20);
	cr_assert(sched_abort(f->s, 1, 1, f->now_ns));
	cr_assert_eq(f->opened[0], seq);
	cr_assert_eq(f->closed[0], seq);
	cr_assert_null(fixture_plan(f));
	fixture_destroy(&f);
}

Test(sched, aborting_the_unknown_has_no_effect)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	cr_assert_not(sched_abort(f->s, 1, 77, 1));
	u64 seq = fixture_submit(f, 1, 4, 1);
	fixture_run(f);
	cr_assert_not(sched_abort(f->s, 1, 1, 1));
	sched_stopped(f->s, seq, 1, 1);
	sched_stopped(f->s, 0, 1, 1);
	cr_assert_eq(f->end_count, 1);
	fixture_destroy(&f);
}

Test(sched, an_id_used_again_before_the_next_step_is_another_request)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	u64 first = fixture_submit(f, 1, 5, 30);
	fixture_plan(f);
	sched_abort(f->s, 1, 1, 1);
	f->next_req_id = 0;
	u64 second = fixture_submit(f, 300, 6, 2);
	cr_assert_gt(second, first);
	fixture_deliver(f);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->drop_row_count, 1);
	cr_assert_eq(step->add_row_count, 1);
	cr_assert_eq(step->add_seq[0], second);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, second)));
	fixture_destroy(&f);
}

Test(sched, decodes_go_before_a_long_prompt)
{
	struct sched_config c = fixture_config();
	c.max_num_batched_tokens = 8;
	struct fixture *f = fixture_create(&c);

	fixture_submit(f, 1, 4, 30);
	fixture_submit(f, 100, 4, 30);
	fixture_plan(f);
	fixture_deliver(f);
	u64 prompt = fixture_submit(f, 200, 50, 3);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(f->results[0].count, 2, "both decode");
	cr_assert_eq(listed_run(f, step, prompt), 6);
	fixture_destroy(&f);
}

Test(sched, a_decode_that_the_budget_does_not_reach_is_paused_by_name)
{
	struct sched_config c = fixture_config();
	c.max_num_batched_tokens = 2;
	struct fixture *f = fixture_create(&c);

	for (u32 i = 0; i < 3; i++)
		fixture_submit(f, i * 100, 2, 6);
	for (u32 i = 0; i < 40 && f->s->running.count < 2; i++) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	fixture_run(f);
	cr_assert_eq(f->end_count, 3);
	for (u32 i = 0; i < 3; i++)
		cr_assert(fixture_is_solo_run(&f->ends[i]));
	fixture_destroy(&f);
}

Test(sched, the_context_length_ends_a_request_and_its_last_position_is_never_run)
{
	struct sched_config c = fixture_config();
	c.max_model_len = 16;
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 10, 1000);
	fixture_run(f);
	const struct fixture_end *e = fixture_end_of(f, seq);
	cr_assert_eq(e->reason, FINISH_LENGTH);
	cr_assert_eq(e->token_count, 16);
	cr_assert(fixture_is_solo_run(e));
	fixture_destroy(&f);
}

Test(sched, the_tokens_run_are_exactly_prompt_and_outputs_but_one)
{
	for (u32 depth = 0; depth <= 2; depth++) {
		struct sched_config c = fixture_config();
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		u64 seq = fixture_submit(f, 1, 11, 9);
		u64 run = 0;
		for (u32 i = 0; i < 100; i++) {
			while (fixture_plan(f))
				run += f->s->diff.tokens_run;
			if (!f->result_count)
				break;
			fixture_deliver(f);
		}
		cr_assert_eq(run, 11 + 9 - 1, "depth %u ran %lu", depth, (unsigned long)run);
		cr_assert_eq(fixture_end_of(f, seq)->token_count, 11 + 9);
		fixture_destroy(&f);
	}
}

Test(sched, short_steps_are_planned_one_further_ahead_at_depth_2_only)
{
	static const struct {
		u32 depth, forward_us, in_flight;
	} cases[] = {{2, 999, 4}, {2, 1000, 3}, {2, 0, 3}, {1, 10, 2}, {0, 10, 1}};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct sched_config c = fixture_config();
		c.async_depth = cases[i].depth;
		struct fixture *f = fixture_create(&c);
		fixture_submit(f, 1, 8, 50);
		cr_assert_not_null(fixture_plan(f));
		f->forward_us = cases[i].forward_us;
		fixture_deliver(f);
		while (fixture_plan(f))
			;
		cr_assert_eq(f->s->flight_count, cases[i].in_flight, "case %zu: %u", i, f->s->flight_count);
		fixture_destroy(&f);
	}
}

Test(sched, one_step_more_than_the_depth_is_in_flight_and_no_further)
{
	for (u32 depth = 0; depth <= 2; depth++) {
		struct sched_config c = fixture_config();
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		fixture_submit(f, 1, 8, 50);
		for (u32 i = 0; i <= depth; i++)
			cr_assert_not_null(fixture_plan(f));
		cr_assert_null(fixture_plan(f));
		const struct seq *q = &f->s->seqs.slots[f->s->running.slots[0]];
		cr_assert_eq(q->known, 8);
		cr_assert_eq(q->in_flight, depth + 1);
		cr_assert_eq(q->computed, 8 + depth);
		fixture_deliver(f);
		cr_assert_not_null(fixture_plan(f));
		fixture_destroy(&f);
	}
}

Test(sched, a_row_whose_last_token_is_in_flight_is_dropped_without_waiting)
{
	struct sched_config c = fixture_config();
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 8, 2);
	fixture_plan(f);
	fixture_plan(f);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->drop_row_count, 1);
	cr_assert_null(fixture_end_of(f, seq), "its tokens are still to come");
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	fixture_deliver(f);
	fixture_deliver(f);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_LENGTH);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
	fixture_destroy(&f);
}

Test(sched, a_stop_found_late_costs_rows_whose_results_are_ignored)
{
	struct sched_config c = fixture_config();
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = fixture_message(1, 1, 8, 50);
	struct sched_admission a;
	struct err_msg em;
	u32 tokens[8];

	memcpy(tokens, m.tokens, sizeof(tokens));
	u32 stop = fake_next_token(tokens, 8, FIXTURE_VOCAB);
	m.stop_ids = &stop;
	m.stop_ids_count = 1;
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK);
	while (fixture_plan(f))
		;
	fixture_deliver(f);
	const struct fixture_end *e = fixture_end_of(f, a.seq);
	cr_assert_eq(e->reason, FINISH_STOP);
	cr_assert_eq(e->token_count, 9);
	cr_assert_eq(f->closed_count, 0, "the detokenizer finds this end by itself");
	fixture_deliver(f);
	fixture_deliver(f);
	cr_assert_eq(f->end_count, 1);
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	fixture_destroy(&f);
}

Test(sched, doubled_stale_and_foreign_results_are_ignored)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	struct err_msg em;

	u64 seq = fixture_submit(f, 1, 8, 5);
	fixture_plan(f);
	struct fake_result copy = f->results[0];
	struct ipc_result m = fake_result_message(&copy);
	fixture_deliver(f);
	cr_assert_eq(sched_result(f->s, &m, 1, &em), ERR_OK);
	fixture_plan(f);
	cr_assert_eq(sched_result(f->s, &m, 1, &em), ERR_OK);
	cr_assert_eq(seq_output_count(fixture_seq(f, seq)), 1);
	m.step = 999;
	cr_assert_eq(sched_result(f->s, &m, 1, &em), ERR_OK);
	cr_assert_eq(f->s->flight_count, 1);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
	fixture_destroy(&f);
}

Test(sched, a_lost_result_and_a_wrong_one_are_reported)
{
	struct sched_config c = fixture_config();
	c.async_depth = 1;
	struct fixture *f = fixture_create(&c);
	struct err_msg em;

	fixture_submit(f, 1, 8, 5);
	fixture_plan(f);
	fixture_plan(f);
	struct ipc_result second = fake_result_message(&f->results[1]);
	cr_assert_eq(sched_result(f->s, &second, 1, &em), ERR_SEQUENCE);
	cr_assert(strstr(em.text, "step 1"), "%s", em.text);
	struct ipc_result first = fake_result_message(&f->results[0]);
	first.seq_count = first.position_count = first.token_count = 0;
	cr_assert_eq(sched_result(f->s, &first, 1, &em), ERR_DIVERGED);
	f->results[0].token[0] = FIXTURE_VOCAB;
	first = fake_result_message(&f->results[0]);
	cr_assert_eq(sched_result(f->s, &first, 1, &em), ERR_DIVERGED);
	fixture_destroy(&f);
}

Test(sched, the_queue_is_bounded_and_says_when_to_come_back)
{
	struct sched_config c = fixture_config();
	c.max_queued_requests = 3;
	c.max_num_seqs = 2;
	struct fixture *f = fixture_create(&c);
	struct sched_admission a;
	struct err_msg em;

	for (u32 i = 0; i < 5; i++)
		fixture_submit(f, i * 10, 4, 5);
	struct ipc_submit m = fixture_message(99, 1, 4, 5);
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_BUSY);
	cr_assert_gt(a.retry_after_ms, 0);
	cr_assert_eq(fixture_count(f, STATS_REQUESTS_REFUSED), 1);
	fixture_run(f);
	cr_assert_eq(f->end_count, 5, "those that were there are not disturbed");
	fixture_destroy(&f);
}

Test(sched, a_draining_scheduler_refuses_and_finishes)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = fixture_message(9, 1, 4, 5);
	struct sched_admission a;
	struct err_msg em;

	u64 seq = fixture_submit(f, 1, 4, 5);
	sched_drain(f->s);
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_SHUTDOWN);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_LENGTH);
	fixture_destroy(&f);
}

Test(sched, a_drawn_seed_is_never_zero_and_differs_between_requests)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	u64 a = fixture_seq(f, fixture_submit(f, 1, 4, 5))->params.seed;
	u64 b = fixture_seq(f, fixture_submit(f, 1, 4, 5))->params.seed;
	cr_assert_neq(a, 0);
	cr_assert_neq(a, b);
	fixture_destroy(&f);
	c.seed = 42;
	f = fixture_create(&c);
	cr_assert_eq(fixture_seq(f, fixture_submit(f, 1, 4, 5))->params.seed, 42);
	fixture_destroy(&f);
}

Test(sched, outputs_of_an_earlier_life_go_on_where_they_were)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = fixture_message(1, 1, 10, 8);
	struct sched_admission a;
	struct err_msg em;
	u32 tokens[32];

	memcpy(tokens, m.tokens, 10 * sizeof(u32));
	for (u32 n = 10; n < 13; n++)
		tokens[n] = fake_next_token(tokens, n, FIXTURE_VOCAB);
	m.tokens = tokens;
	m.tokens_count = 13;
	m.output_count = 3;
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK);
	fixture_run(f);
	const struct fixture_end *e = fixture_end_of(f, a.seq);
	cr_assert_eq(e->prompt_count, 10);
	cr_assert_eq(e->token_count, 18);
	cr_assert(fixture_is_solo_run(e));
	fixture_destroy(&f);
}

Test(sched, an_earlier_life_that_had_ended_is_closed_at_once)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);
	struct ipc_submit m = fixture_message(1, 1, 10, 3);
	struct sched_admission a;
	struct err_msg em;

	m.output_count = 3;
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK);
	cr_assert_eq(fixture_end_of(f, a.seq)->reason, FINISH_LENGTH);
	cr_assert_eq(f->opened_count, 1);
	cr_assert_eq(f->closed_count, 1);
	cr_assert_null(fixture_plan(f));
	fixture_destroy(&f);
}

Test(sched, a_stop_of_the_detokenizer_ends_a_request_in_any_state)
{
	struct sched_config c = fixture_config();
	c.max_num_seqs = 1;
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);

	u64 running = fixture_submit(f, 1, 8, 50), waiting = fixture_submit(f, 50, 8, 50);
	fixture_plan(f);
	fixture_plan(f);
	sched_stopped(f->s, running, 1, 1);
	sched_stopped(f->s, waiting, 0, 1);
	cr_assert_null(fixture_end_of(f, running), "its output is on the way here");
	cr_assert_eq(fixture_end_of(f, waiting)->reason, FINISH_STOP);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, running)->reason, FINISH_STOP);
	cr_assert_eq(fixture_end_of(f, running)->token_count, 9);
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	cr_assert_eq(f->end_count, 2);
	fixture_destroy(&f);
}

Test(sched, depth_chunks_and_cache_do_not_change_a_token)
{
	for (u32 i = 0; i < 12; i++) {
		struct sched_config c = fixture_config();
		c.async_depth = i % 3;
		c.max_num_batched_tokens = i & 1 ? 5 : 64;
		c.prefix_caching = i & 2;
		struct fixture *f = fixture_create(&c);
		for (u32 j = 0; j < 12; j++)
			fixture_submit(f, (j % 3) * 100, 8 + j % 4 * 4, 10);
		fixture_run(f);
		cr_assert_eq(f->end_count, 12);
		for (u32 j = 0; j < 12; j++)
			cr_assert(fixture_is_solo_run(&f->ends[j]));
		fixture_destroy(&f);
	}
}
