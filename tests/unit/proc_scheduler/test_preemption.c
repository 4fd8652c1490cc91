/* The plan when blocks run out, and recovery from restarts. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

/* 12 blocks of 4: three requests of 15 tokens take them all; each needs a fifth block two tokens later. */
static struct sched_config tight(u32 depth)
{
	struct sched_config c = fixture_config();

	c.block_count = 12;
	c.max_model_len = 40;
	c.async_depth = depth;
	c.prefix_caching = false;
	return c;
}

Test(preemption, the_most_recently_admitted_goes_and_nobody_new_comes_in_that_step)
{
	struct sched_config c = tight(0);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 15, 12);
	fixture_plan(f);
	fixture_deliver(f);
	cr_assert_eq(f->s->kv.free_count, 0);
	u64 late = fixture_submit(f, 900, 2, 3);
	fixture_plan(f);
	fixture_deliver(f);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->drop_row_count, 1);
	cr_assert_eq(step->add_row_count, 0);
	cr_assert_eq(fixture_seq(f, seq[2])->state, SEQ_WAITING);
	cr_assert_eq(f->results[0].count, 2, "the others advance");
	cr_assert_eq(waiting_head(&f->s->waiting, &f->s->seqs), fixture_seq(f, seq[2]),
		     "it stands before the new one");
	cr_assert_eq(fixture_seq(f, late)->state, SEQ_WAITING);
	cr_assert_eq(fixture_count(f, STATS_NUM_PREEMPTIONS), 1);
	fixture_destroy(&f);
}

Test(preemption, a_preempted_request_resumes_and_its_tokens_are_the_same)
{
	for (u32 depth = 0; depth <= 2; depth++) {
		struct sched_config c = tight(depth);
		struct fixture *f = fixture_create(&c);
		for (u32 i = 0; i < 4; i++)
			fixture_submit(f, i * 100, 15, 12);
		fixture_run(f);
		cr_assert_gt(fixture_count(f, STATS_NUM_PREEMPTIONS), 0);
		cr_assert_eq(f->end_count, 4);
		for (u32 i = 0; i < 4; i++) {
			cr_assert_eq(f->ends[i].token_count, 27);
			cr_assert(fixture_is_solo_run(&f->ends[i]));
		}
		cr_assert_eq(f->s->kv.free_count, c.block_count);
		fixture_destroy(&f);
	}
}

Test(preemption, tokens_in_flight_arrive_once_and_only_then_is_it_admitted)
{
	struct sched_config c = tight(2);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 14, 12);
	while (f->s->running.count == 3 || !f->s->running.count) {
		while (f->s->running.count != 2 && fixture_plan(f))
			;
		if (f->s->running.count == 2)
			break;
		fixture_deliver(f);
	}
	struct seq *q = fixture_seq(f, seq[2]);
	cr_assert_eq(q->state, SEQ_WAITING);
	u32 known = q->known, in_flight = q->in_flight;
	cr_assert_gt(in_flight, 0);
	sched_abort(f->s, 1, 1, f->now_ns); /* blocks come free: it could be admitted now */
	while (fixture_plan(f))
		;
	cr_assert_eq(q->state, SEQ_WAITING);
	while (q->in_flight)
		fixture_deliver(f);
	cr_assert_eq(q->known, known + in_flight);
	fixture_plan(f);
	cr_assert_eq(q->state, SEQ_RUNNING);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[2])));
	fixture_destroy(&f);
}

Test(preemption, an_end_in_flight_is_found_while_it_waits)
{
	struct sched_config c = tight(2);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	/* The third may have five outputs; the block it lacks shows when the last ones are in flight. */
	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 14, i == 2 ? 4 : 12);
	for (u32 i = 0; i < 20 && !fixture_count(f, STATS_NUM_PREEMPTIONS); i++)
		if (!fixture_plan(f))
			fixture_deliver(f);
	struct seq *q = fixture_seq(f, seq[2]);
	cr_assert(q && q->state == SEQ_WAITING && q->in_flight > 0);
	sched_stopped(f->s, seq[2], 1, f->now_ns);
	cr_assert_eq(f->s->waiting.count, 0);
	fixture_run(f);
	cr_assert_eq(f->end_count, 3);
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	fixture_destroy(&f);
}

Test(preemption, a_prefix_that_survived_is_not_computed_again)
{
	struct sched_config c = tight(0);
	c.prefix_caching = true;
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 15, i ? 12 : 3);
	u64 hits = fixture_count(f, STATS_PREFIX_CACHE_HITS);
	while (!fixture_count(f, STATS_NUM_PREEMPTIONS)) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	while (fixture_seq(f, seq[2])->state == SEQ_WAITING) {
		fixture_plan(f);
		if (fixture_seq(f, seq[2])->state == SEQ_RUNNING)
			break;
		fixture_deliver(f);
	}
	cr_assert_gt(fixture_seq(f, seq[2])->filed, 0);
	cr_assert_lt(f->s->diff.tokens_run, 15, "only the tail is run");
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), hits,
		     "hits count at the first schedule only");
	fixture_run(f);
	for (u32 i = 0; i < 3; i++)
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	fixture_destroy(&f);
}

Test(preemption, one_request_alone_never_outgrows_the_pool)
{
	struct sched_config c = fixture_config();
	c.block_count = 5;
	struct fixture *f = fixture_create(&c);

	cr_assert_eq(f->s->context_max, 20);
	u64 seq = fixture_submit(f, 1, 12, 1000);
	fixture_run(f);
	const struct fixture_end *e = fixture_end_of(f, seq);
	cr_assert_eq(e->reason, FINISH_LENGTH);
	cr_assert_eq(e->token_count, 20);
	cr_assert(fixture_is_solo_run(e));
	fixture_destroy(&f);
}

Test(preemption, a_pool_that_shrank_ends_what_no_longer_fits_with_a_clear_error)
{
	struct sched_config c = fixture_config();
	struct fixture *f = fixture_create(&c);

	u64 grows = fixture_submit(f, 1, 12, 60), too_long = fixture_submit(f, 300, 30, 60);
	fixture_plan(f);
	fixture_deliver(f);
	sched_restart_workers(f->s, 5, 0, 0, f->now_ns);
	fake_worker_reset(&f->worker, 5, f->s->context_max);
	fixture_run(f);
	const struct fixture_end *a = fixture_end_of(f, grows), *b = fixture_end_of(f, too_long);
	cr_assert_eq(a->reason, FINISH_ERROR);
	cr_assert(strstr(a->text, "6 KV blocks") && strstr(a->text, "has 5"), "%s", a->text);
	cr_assert(fixture_is_solo_run(a));
	cr_assert_eq(b->reason, FINISH_ERROR);
	cr_assert(strstr(b->text, "8 KV blocks") && strstr(b->text, "has 5"), "%s", b->text);
	fixture_destroy(&f);
}

Test(recover, restarted_workers_get_every_running_request_again_in_order)
{
	struct sched_config c = fixture_config();
	c.async_depth = 2;
	c.max_num_seqs = 3;
	struct fixture *f = fixture_create(&c);
	u64 seq[4];

	for (u32 i = 0; i < 4; i++)
		seq[i] = fixture_submit(f, i * 100, 10, 12);
	for (u32 i = 0; i < 4; i++) {
		while (fixture_plan(f))
			;
		fixture_deliver(f);
	}
	u32 opened = f->opened_count;
	sched_restart_workers(f->s, c.block_count, c.host_block_count, 0, f->now_ns);
	fake_worker_reset(&f->worker, c.block_count, f->s->context_max);
	f->result_count = 0; /* lost with them */
	cr_assert_eq(f->opened_count, opened + 3, "the detokenizer is told the tokens again");
	cr_assert_eq(f->opened_outputs[opened], 4);
	cr_assert_eq(f->s->cache.count, 0);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->step, 1);
	for (u32 i = 0; i < 3; i++)
		cr_assert_eq(step->add_seq[i], seq[i]);
	cr_assert_eq(step->add_token_count[0], 14);
	fixture_run(f);
	for (u32 i = 0; i < 4; i++) {
		cr_assert_eq(fixture_end_of(f, seq[i])->token_count, 22);
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	}
	fixture_destroy(&f);
}

Test(recover, a_request_whose_last_token_was_in_flight_computes_it_again)
{
	struct sched_config c = fixture_config();
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);

	u64 seq = fixture_submit(f, 1, 10, 2);
	while (fixture_plan(f))
		;
	cr_assert_eq(fixture_seq(f, seq)->state, SEQ_DRAINING);
	sched_restart_workers(f->s, c.block_count, c.host_block_count, 0, f->now_ns);
	fake_worker_reset(&f->worker, c.block_count, f->s->context_max);
	f->result_count = 0;
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, seq)->token_count, 12);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
	fixture_destroy(&f);
}

Test(recover, a_new_detokenizer_is_told_of_open_streams_only)
{
	struct sched_config c = fixture_config();
	c.max_num_seqs = 1;
	struct fixture *f = fixture_create(&c);

	u64 running = fixture_submit(f, 1, 10, 20);
	fixture_submit(f, 100, 10, 20);
	fixture_plan(f);
	fixture_deliver(f);
	f->opened_count = 0;
	sched_reopen_streams(f->s);
	cr_assert_eq(f->opened_count, 1);
	cr_assert_eq(f->opened[0], running);
	cr_assert_eq(f->opened_outputs[0], 1);
	fixture_destroy(&f);
}
