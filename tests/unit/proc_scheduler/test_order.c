/* Who goes first: priorities, and what a budget of few tokens leaves of them. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

static u64 submit(struct fixture *f, i32 priority, u32 first, u32 count, u32 max_tokens)
{
	struct ipc_submit m = fixture_message(++f->next_req_id, first, count, max_tokens);
	struct sched_admission a;
	struct err_msg em;

	m.priority = priority;
	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

static struct sched_config by_priority(void)
{
	struct sched_config c = fixture_config();

	c.by_priority = true;
	c.prefix_caching = false;
	return c;
}

Test(order, the_lowest_priority_is_admitted_first_and_equals_as_they_came)
{
	struct sched_config c = by_priority();
	c.max_num_seqs = 1;
	struct fixture *f = fixture_create(&c);
	const i32 priorities[] = {0, 5, -1, 0, INT32_MIN, 5, -1, INT32_MAX};
	const u32 expected[] = {4, 2, 6, 0, 3, 1, 5, 7};
	u64 seq[COUNT_OF(priorities)];

	for (u32 i = 0; i < COUNT_OF(priorities); i++)
		seq[i] = submit(f, priorities[i], i * 50, 8, 2);
	fixture_run(f);
	cr_assert_eq(f->opened_count, COUNT_OF(priorities));
	for (u32 i = 0; i < COUNT_OF(priorities); i++)
		cr_assert_eq(f->opened[i], seq[expected[i]], "place %u", i);
	fixture_destroy(&f);
}

Test(order, the_highest_priority_number_is_preempted_whoever_came_last)
{
	struct sched_config c = by_priority();
	c.block_count = 12;
	c.max_model_len = 40;
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	/* 12 blocks of 4: three requests of 15 tokens take them all. */
	seq[0] = submit(f, 1, 0, 15, 12);
	seq[1] = submit(f, 9, 100, 15, 12);
	fixture_plan(f);
	fixture_deliver(f);
	seq[2] = submit(f, -1, 200, 15, 12);
	while (!fixture_count(f, STATS_NUM_PREEMPTIONS)) {
		fixture_plan(f);
		fixture_deliver(f);
	}
	cr_assert_eq(fixture_seq(f, seq[1])->state, SEQ_WAITING);
	cr_assert_eq(fixture_seq(f, seq[0])->state, SEQ_RUNNING);
	cr_assert_eq(fixture_seq(f, seq[2])->state, SEQ_RUNNING);
	submit(f, 8, 300, 4, 2);
	cr_assert_eq(waiting_head(&f->s->waiting, &f->s->seqs)->priority, 8, "goes in front of a preempted 9");
	fixture_run(f);
	cr_assert_eq(f->end_count, 4);
	for (u32 i = 0; i < 4; i++)
		cr_assert(fixture_is_solo_run(&f->ends[i]));
	fixture_destroy(&f);
}

Test(order, a_long_prompt_of_a_low_priority_does_not_stop_those_that_decode)
{
	struct sched_config c = by_priority();
	c.max_num_batched_tokens = 16;
	struct fixture *f = fixture_create(&c);
	u64 decoding = submit(f, 3, 0, 4, 30);

	fixture_plan(f);
	fixture_deliver(f);
	u64 prompt = submit(f, -3, 100, 90, 2);
	for (u32 outputs = 2; fixture_seq(f, prompt)->known < 91; outputs++) {
		cr_assert_not_null(fixture_plan(f));
		fixture_deliver(f);
		cr_assert_eq(seq_output_count(fixture_seq(f, decoding)), outputs);
	}
	fixture_destroy(&f);
}

Test(order, a_restart_of_the_workers_keeps_the_order_of_priorities)
{
	struct sched_config c = by_priority();
	c.max_num_seqs = 2;
	struct fixture *f = fixture_create(&c);
	const i32 priorities[] = {4, 2, 3, 1};

	for (u32 i = 0; i < 4; i++) {
		submit(f, priorities[i], i * 50, 8, 6);
		fixture_plan(f);
		fixture_deliver(f);
	}
	sched_restart_workers(f->s, c.block_count, c.host_block_count, 0, f->now_ns);
	fake_worker_reset(&f->worker, c.block_count, f->s->context_max);
	i32 last = INT32_MIN;
	for (u32 slot = f->s->waiting.head; slot != SEQ_NONE; slot = f->s->seqs.slots[slot].next) {
		cr_assert_geq(f->s->seqs.slots[slot].priority, last);
		last = f->s->seqs.slots[slot].priority;
	}
	fixture_run(f);
	cr_assert_eq(f->end_count, 4);
	fixture_destroy(&f);
}

Test(order, a_budget_below_the_number_of_rows_limits_who_runs_and_starves_nobody)
{
	struct sched_config c = fixture_config();
	c.max_num_batched_tokens = 3;
	struct fixture *f = fixture_create(&c);
	u64 seq[8];

	for (u32 i = 0; i < 8; i++)
		seq[i] = fixture_submit(f, i * 50, 4, 30);
	for (u32 i = 0; i < 200 && f->end_count < 8; i++) {
		u32 before[8], running = 0;
		for (u32 k = 0; k < 8; k++)
			before[k] = fixture_seq(f, seq[k]) ? fixture_seq(f, seq[k])->computed : 0;
		cr_assert_not_null(fixture_plan(f));
		for (u32 k = 0; k < 8; k++) {
			const struct seq *q = fixture_seq(f, seq[k]);
			bool runs = q && q->state == SEQ_RUNNING;
			cr_assert(!runs || q->computed > before[k], "request %u has a row and does not run", k);
			running += runs;
		}
		cr_assert_leq(running, 3);
		fixture_deliver(f);
	}
	cr_assert_eq(f->end_count, 8);
	for (u32 i = 1; i < 8; i++)
		cr_assert_lt(f->ends[i - 1].seq, f->ends[i].seq, "they end as they came");
	fixture_destroy(&f);
}

Test(order, all_end_whole_with_a_budget_of_one_token)
{
	for (u32 depth = 0; depth <= 2; depth++) {
		struct sched_config c = fixture_config();
		c.max_num_batched_tokens = 1;
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		for (u32 i = 0; i < 6; i++)
			fixture_submit(f, i * 50, 3 + i, 10);
		fixture_run(f);
		cr_assert_eq(f->end_count, 6);
		for (u32 i = 0; i < 6; i++) {
			cr_assert_eq(f->ends[i].reason, FINISH_LENGTH);
			cr_assert(fixture_is_solo_run(&f->ends[i]));
		}
		fixture_destroy(&f);
	}
}
