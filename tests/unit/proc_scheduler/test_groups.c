/* Beam searches in the scheduling core, with the fake worker: what a SUBMIT may say, what steps say, and what is left
 * behind. The simulator compares their answers with a search of its own. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

static struct fixture *f;
static struct err_msg em;

static void setup(void)
{
	struct sched_config c = fixture_config();

	f = fixture_create(&c);
}

static void teardown(void)
{
	fixture_destroy(&f);
}

TestSuite(groups, .init = setup, .fini = teardown);

static struct ipc_submit message(u64 req_id, u32 width, u32 answers, u32 prompt, u32 max_tokens)
{
	struct ipc_submit m = fixture_message(req_id, 1, prompt, max_tokens);

	m.temperature = 0;
	m.beam_width = width;
	m.answer_count = answers;
	m.length_penalty = 1;
	return m;
}

static u64 submit(const struct ipc_submit *m)
{
	struct sched_admission a;

	cr_assert_eq(sched_submit(f->s, m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

static void refuse(const struct ipc_submit *m, enum err code, const char *part)
{
	struct sched_admission a;
	u32 live = sched_live_count(f->s);

	cr_assert_eq(sched_submit(f->s, m, f->now_ns, &a, &em), code, "%s", em.text);
	cr_assert(strstr(em.text, part), "'%s' is not in '%s'", part, em.text);
	cr_assert_eq(sched_live_count(f->s), live);
}

static void nothing_is_left(void)
{
	cr_assert_eq(sched_live_count(f->s), 0);
	cr_assert_eq(f->s->kv.free_count, f->s->kv.count);
	cr_assert_eq(f->s->free_row_count, f->s->config.max_num_seqs);
	cr_assert(f->s->groups.used == 0 && f->s->groups.spare_rows == 0);
	cr_assert(sched_is_idle(f->s));
}

Test(groups, every_answer_ends_as_a_request_of_its_own)
{
	struct ipc_submit m = message(10, 4, 3, 9, 12);
	m.logprobs = 2;
	u64 seq = submit(&m);

	fixture_run(f);
	cr_assert_eq(f->end_count, 3);
	for (u32 i = 0; i < 3; i++) {
		cr_assert_eq(f->ends[i].req_id, 10 + i);
		cr_assert_eq(f->ends[i].reason, FINISH_LENGTH);
		cr_assert_eq(f->ends[i].token_count, 21);
	}
	cr_assert_eq(f->ends[0].seq, seq);
	cr_assert(memcmp(f->ends[0].tokens, f->ends[1].tokens, 21 * sizeof(u32)), "two answers are the same");
	cr_assert_eq(f->opened_count, 3);
	cr_assert(f->opened_outputs[0] == 0 && f->told_rows == 36 && f->told_lists == 36);
	cr_assert_eq(f->closed_count, 0);
	fixture_plan(f);
	nothing_is_left();
}

Test(groups, a_step_says_what_has_changed_only)
{
	struct ipc_submit m = message(1, 4, 1, 9, 20);
	const struct ipc_step *step;

	submit(&m);
	step = fixture_plan(f);
	cr_assert(step->add_row_count == 1 && step->fork_row_count == 0);
	fixture_deliver(f);
	step = fixture_plan(f);
	/* Of 9 tokens one is in the third block: three beams get a copy of it and share the other two. */
	cr_assert(step->fork_row_count == 3 && step->copy_src_count == 3 && step->add_row_count == 0);
	cr_assert(step->copy_src[0] == step->copy_src[1] && step->copy_dst[0] != step->copy_dst[1]);
	cr_assert_eq(f->s->kv.count - f->s->kv.free_count, 2 + 4);
	for (u32 i = 0; i < 15; i++) {
		fixture_deliver(f);
		step = fixture_plan(f);
		cr_assert_eq(step->drop_row_count, step->fork_row_count);
		cr_assert_leq(step->set_row_count, 4);
		cr_assert(step->run_row_count == 0 && step->add_row_count == 0);
	}
}

Test(groups, others_keep_their_steps_ahead_while_beams_wait)
{
	struct sched_config c = fixture_config();
	fixture_destroy(&f);
	c.async_depth = 2;
	f = fixture_create(&c);
	struct ipc_submit m = message(100, 3, 1, 9, 20);
	submit(&m);
	u64 other = fixture_submit(f, 50, 6, 30);

	cr_assert(fixture_plan(f));
	const struct ipc_step *ahead = fixture_plan(f);
	cr_assert(ahead && f->s->diff.tokens_run == 1, "the other one runs ahead, the beam does not");
	cr_assert(ahead->run_row_count == 1 && ahead->run_count[0] == 0);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, other)));
	cr_assert_eq(f->end_count, 2);
	fixture_plan(f);
	nothing_is_left();
}

Test(groups, an_abort_of_one_answer_ends_them_all)
{
	for (u32 steps = 0; steps < 6; steps++) {
		u64 first = 100 + 10 * steps;
		u32 ends = f->end_count;
		struct ipc_submit m = message(first, 4, 3, 9, 20);
		submit(&m);
		for (u32 i = 0; i < steps; i++) {
			fixture_plan(f);
			if (i % 2 == 0)
				fixture_deliver(f);
		}
		cr_assert(sched_abort(f->s, 1, first + 2, f->now_ns));
		cr_assert_not(sched_abort(f->s, 1, first, f->now_ns));
		cr_assert_eq(f->end_count, ends + 3);
		for (u32 i = 0; i < 3; i++)
			cr_assert(f->ends[ends + i].reason == FINISH_ABORT && f->ends[ends + i].token_count == 9);
		fixture_run(f);
		fixture_plan(f);
		nothing_is_left();
	}
}

Test(groups, what_the_detokenizer_stops_it_is_not_told_of)
{
	struct ipc_submit m = message(1, 4, 2, 9, 20);
	u64 seq = submit(&m);

	fixture_plan(f);
	sched_stopped(f->s, seq, 0, f->now_ns);
	cr_assert(f->end_count == 2 && f->closed_count == 1 && f->closed[0] != seq);
	fixture_run(f);
	fixture_plan(f);
	nothing_is_left();
}

Test(groups, restarted_workers_compute_the_beams_again_and_share_what_they_shared)
{
	struct ipc_submit m = message(1, 4, 4, 18, 30);

	submit(&m);
	fixture_run(f);
	struct fixture_end wanted[4];
	memcpy(wanted, f->ends, sizeof(wanted));
	m.req_id = 11;
	submit(&m);
	for (u32 i = 0; i < 9; i++) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	sched_restart_workers(f->s, 64, 0, 0, f->now_ns);
	fake_worker_reset(&f->worker, 64, f->s->context_max);
	f->result_count = 0;
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 4);
	u32 used = f->s->kv.count - f->s->kv.free_count, each = f->s->row_blocks ? step->add_block_count[0] : 0;
	cr_assert_leq(used, 4 + 4 * (each - 4), "the prompt's four full blocks are there once");
	fixture_run(f);
	for (u32 i = 0; i < 4; i++) {
		const struct fixture_end *e = &f->ends[4 + i];
		cr_assert_eq(e->token_count, wanted[i].token_count);
		cr_assert_arr_eq(e->tokens, wanted[i].tokens, e->token_count * sizeof(u32));
	}
}

/* Computed again in more than one step, the first beam reaches the length at which the KV is to be another one while the
 * second is still in work. */
Test(groups, beams_that_outgrow_a_length_while_others_are_computed_go_on)
{
	struct sched_config c = fixture_config();
	fixture_destroy(&f);
	c.kv_switch_len = 13;
	c.max_num_batched_tokens = 7;
	c.prefix_caching = false;
	f = fixture_create(&c);
	struct ipc_submit m = message(1, 3, 3, 9, 20);
	u64 seq = submit(&m);
	while (fixture_seq(f, seq)->known < 13) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	sched_restart_workers(f->s, 64, 0, 0, f->now_ns);
	fake_worker_reset(&f->worker, 64, f->s->context_max);
	f->result_count = 0;
	fixture_run(f);
	cr_assert_eq(f->end_count, 3);
	for (u32 i = 0; i < 3; i++)
		cr_assert(f->ends[i].reason == FINISH_LENGTH && f->ends[i].token_count == 29);
	fixture_plan(f);
	nothing_is_left();
}

Test(groups, a_last_token_that_is_masked_away_leaves_fewer_answers_and_an_error)
{
	struct sched_config c = fixture_config();
	fixture_destroy(&f);
	c.vocab_size = 3; /* three continuations of the prompt for four beams, and one output only */
	f = fixture_create(&c);
	struct ipc_submit m = message(1, 4, 4, 2, 1);
	submit(&m);
	fixture_run(f);
	cr_assert_eq(f->end_count, 4);
	cr_assert_eq(f->ends[0].reason, FINISH_ERROR);
	cr_assert(strstr(f->ends[0].text, "3 answers of 4"), "%s", f->ends[0].text);
	fixture_plan(f);
	nothing_is_left();
}

/* ---------------------------------------------------------------- refusals */

Test(groups, what_a_search_cannot_do_is_refused_by_name)
{
	static const f32 big = 2;
	static const u32 bytes = 1;
	struct ipc_submit m;

#define CASE(change, part)                 \
	m = message(1, 4, 2, 9, 10);       \
	change;                            \
	refuse(&m, ERR_INVALID, part);
	CASE(m.temperature = 0.5f, "temperature is 0.5; with beam search it must be 0")
	CASE(m.top_p = 0.5f, "top_p is 0.5")
	CASE(m.min_p = 0.1f, "min_p")
	CASE(m.top_k = 4, "top_k is 4")
	CASE(m.repetition_penalty = big, "repetition_penalty is 2; with beam search it must be 1")
	CASE(m.presence_penalty = 1, "presence_penalty")
	CASE(m.frequency_penalty = 1, "frequency_penalty")
	CASE(m.answer_count = 5, "answer_count is 5; it must be at most beam_width, 4")
	CASE(m.length_penalty = 11, "length_penalty is 11; it must be between -10 and 10")
	CASE(m.length_penalty = (f64)NAN, "length_penalty")
	CASE(m.beam_width = 11, "beam_width is 11")
	CASE(m.output_count = 1, "output_count is 1")
	CASE((m.stop_string_bytes = &bytes, m.stop_string_bytes_count = 1, m.stop_strings = (const u8 *)"x",
	      m.stop_strings_count = 1),
	     "stop strings")
	CASE(m.req_id = UINT64_MAX - 1, "req_id")
	CASE((m.beam_width = 0, m.answer_count = 2), "without beam search it must be 0 or 1")
#undef CASE
}

Test(groups, what_can_never_fit_is_refused_with_the_numbers)
{
	struct ipc_submit m = message(1, 9, 1, 9, 4);

	refuse(&m, ERR_NEVER_FITS, "beam_width is 9, and each beam is a row; --max-num-seqs allows 8");
	m = message(1, 8, 1, 9, 24); /* 2 blocks of the prompt, 8 * 6 of their own: 50 */
	submit(&m);
	m = message(2, 8, 1, 9, 32); /* 2 + 8 * 8 */
	refuse(&m, ERR_NEVER_FITS, "can need 66 KV blocks of 4 for 32 outputs each; the pool has 64");
}

Test(groups, ids_of_answers_must_be_free)
{
	struct ipc_submit m = message(5, 4, 3, 9, 10);
	struct ipc_submit other = fixture_message(7, 1, 5, 5);

	submit(&m);
	refuse(&other, ERR_EXISTS, "request 7");
	m.req_id = 3;
	refuse(&m, ERR_EXISTS, "request 5 of this client, which answer 2 would be");
}

Test(groups, there_are_so_many_searches_at_once_and_no_more)
{
	struct sched_config c = fixture_config();
	fixture_destroy(&f);
	c.max_queued_requests = 200;
	f = fixture_create(&c);
	for (u32 i = 0; i < GROUPS_MAX; i++) {
		struct ipc_submit m = message(10 + 10 * i, 2, 2, 5, 4);
		submit(&m);
	}
	struct ipc_submit m = message(5000, 2, 2, 5, 4);
	refuse(&m, ERR_BUSY, "64 beam searches");
	fixture_run(f);
	submit(&m);
	fixture_run(f);
	fixture_plan(f);
	nothing_is_left();
}
