/* Preempted sequences whose KV goes to the host's memory. The fake worker moves cells with the copies of a STEP and
 * compares every one that a row reads with its prefix, so a block in the wrong place ends the test. */
#include <criterion/criterion.h>

#include "tests/unit/proc_scheduler/fixture.h"

/* 12 blocks of 4: three requests of 15 tokens take them all; each needs a fifth block two tokens later. */
static struct sched_config tight(u32 depth, u32 host_blocks)
{
	struct sched_config c = fixture_config();

	c.block_count = 12;
	c.host_block_count = host_blocks;
	c.max_model_len = 40;
	c.async_depth = depth;
	c.prefix_caching = false;
	return c;
}

static void submit_three(struct fixture *f, u64 seq[3])
{
	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 15, i == 2 ? 12 : 5); /* two of them fit */
}

static const struct seq_extra *extra(const struct fixture *f, const struct seq *q)
{
	return seqs_extra(&f->s->seqs, q);
}

/* The step that preempts. */
static const struct ipc_step *run_to_preemption(struct fixture *f)
{
	const struct ipc_step *step = NULL;

	for (u32 i = 0; i < 100 && !fixture_count(f, STATS_NUM_PREEMPTIONS); i++) {
		step = fixture_plan(f);
		if (!step || fixture_count(f, STATS_NUM_PREEMPTIONS) == 0)
			fixture_deliver(f);
	}
	cr_assert_eq(fixture_count(f, STATS_NUM_PREEMPTIONS), 1);
	return step;
}

/* Plans and delivers until `q` has a row again: the step that adds it. */
static const struct ipc_step *run_to_resumption(struct fixture *f, const struct seq *q)
{
	for (u32 i = 0; i < 1000; i++) {
		const struct ipc_step *step = fixture_plan(f);
		if (q->state == SEQ_RUNNING)
			return step;
		if (f->result_count)
			fixture_deliver(f);
	}
	cr_assert(false, "it never ran again");
	return NULL;
}

Test(swap, the_step_that_drops_copies_out_and_the_one_that_adds_copies_in)
{
	struct sched_config c = tight(0, 8);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	submit_three(f, seq);
	const struct ipc_step *out = run_to_preemption(f);
	struct seq *q = fixture_seq(f, seq[2]);
	cr_assert_eq(out->drop_row_count, 1);
	cr_assert_eq(out->copy_src_count, 4, "16 computed tokens are four blocks");
	for (u32 i = 0; i < 4; i++) {
		cr_assert_lt(out->copy_src[i], 12);
		cr_assert(out->copy_dst[i] >= 12 && out->copy_dst[i] < 20);
	}
	cr_assert_eq(extra(f, q)->host_computed, 16);
	cr_assert_eq(f->s->swapped_count, 1);
	cr_assert_eq(f->s->host.free_count, 4);
	fixture_deliver(f);
	const struct ipc_step *in = run_to_resumption(f, q);
	cr_assert_eq(in->add_row_count, 1);
	cr_assert_eq(in->add_computed[0], 16);
	cr_assert_eq(in->copy_src_count, 4);
	for (u32 i = 0; i < 4; i++) {
		cr_assert_geq(in->copy_src[i], 12);
		cr_assert_eq(in->copy_dst[i], in->add_blocks[i]);
	}
	cr_assert_eq(f->s->diff.tokens_run, in->run_row_count + 1, "one token of it, not sixteen");
	cr_assert_eq(f->s->swapped_count, 0);
	cr_assert_eq(f->s->host.free_count, 8);
	fixture_run(f);
	for (u32 i = 0; i < 3; i++)
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	cr_assert_gt(fixture_count(f, STATS_SWAPPED_OUT_BLOCKS), 3);
	cr_assert_eq(fixture_count(f, STATS_SWAPPED_OUT_BLOCKS), fixture_count(f, STATS_SWAPPED_IN_BLOCKS));
	fixture_destroy(&f);
}

Test(swap, tokens_are_the_same_at_every_depth_with_and_without_the_prefix_cache)
{
	for (u32 depth = 0; depth <= 2; depth++)
		for (u32 caching = 0; caching < 2; caching++) {
			struct sched_config c = tight(depth, 9);
			c.prefix_caching = caching;
			struct fixture *f = fixture_create(&c);
			for (u32 i = 0; i < 5; i++)
				fixture_submit(f, i * 100, 15, 12);
			fixture_run(f);
			cr_assert_gt(fixture_count(f, STATS_SWAPPED_OUT_BLOCKS), 0);
			cr_assert_gt(fixture_count(f, STATS_SWAPPED_IN_BLOCKS), 0);
			cr_assert_eq(f->end_count, 5);
			for (u32 i = 0; i < 5; i++)
				cr_assert(fixture_is_solo_run(&f->ends[i]));
			cr_assert_eq(f->s->host.free_count, 9);
			cr_assert_eq(f->s->kv.free_count, 12);
			fixture_destroy(&f);
		}
}

Test(swap, who_does_not_fit_is_recomputed)
{
	struct sched_config c = tight(0, 3);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	submit_three(f, seq);
	const struct ipc_step *step = run_to_preemption(f);
	cr_assert_eq(step->copy_src_count, 0);
	cr_assert_eq(f->s->host.free_count, 3);
	struct seq *q = fixture_seq(f, seq[2]);
	fixture_deliver(f);
	step = run_to_resumption(f, q);
	cr_assert_eq(step->add_computed[0], 0);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[2])));
	fixture_destroy(&f);
}

Test(swap, what_the_prefix_cache_still_has_is_not_copied_in)
{
	struct sched_config c = tight(0, 8);
	c.prefix_caching = true;
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, 15, i == 2 ? 12 : 5);
	run_to_preemption(f);
	struct seq *q = fixture_seq(f, seq[2]);
	u32 host_count = extra(f, q)->host_count;
	cr_assert_eq(host_count, 4);
	fixture_deliver(f);
	const struct ipc_step *in = run_to_resumption(f, q);
	cr_assert_lt(in->copy_src_count, host_count, "the beginning was free, not gone");
	cr_assert_gt(in->copy_src_count, 0, "its last block was never in the cache");
	cr_assert_eq(in->copy_dst[0], in->add_blocks[host_count - in->copy_src_count]);
	cr_assert_eq(f->s->host.free_count, 8);
	fixture_run(f);
	for (u32 i = 0; i < 3; i++)
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	fixture_destroy(&f);
}

Test(swap, an_abort_gives_the_host_blocks_back)
{
	struct sched_config c = tight(2, 8);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	submit_three(f, seq);
	run_to_preemption(f);
	cr_assert_eq(f->s->swapped_count, 1);
	cr_assert(sched_abort(f->s, 1, 3, f->now_ns));
	cr_assert_eq(f->s->swapped_count, 0);
	cr_assert_eq(f->s->host.free_count, 8);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, seq[2])->reason, FINISH_ABORT);
	for (u32 i = 0; i < 2; i++)
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	fixture_destroy(&f);
}

Test(swap, restarted_workers_have_lost_what_was_swapped)
{
	struct sched_config c = tight(2, 8);
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	submit_three(f, seq);
	run_to_preemption(f);
	struct seq *q = fixture_seq(f, seq[2]);
	cr_assert_gt(extra(f, q)->host_count, 0);
	sched_restart_workers(f->s, c.block_count, 5, 0, f->now_ns);
	fake_worker_reset(&f->worker, c.block_count, f->s->context_max);
	f->result_count = 0;
	cr_assert_eq(extra(f, q)->host_count, 0);
	cr_assert_eq(f->s->host.count, 5);
	cr_assert_eq(f->s->host.free_count, 5);
	fixture_run(f);
	for (u32 i = 0; i < 3; i++)
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq[i])));
	cr_assert_eq(f->s->host.free_count, 5);
	fixture_destroy(&f);
}

/* Its KV is another one beyond a length of 18, which it reaches while it waits. */
Test(swap, kv_of_another_kind_is_not_copied_in)
{
	struct sched_config c = tight(2, 8);
	c.kv_switch_len = 18;
	c.block_count = 13;
	struct fixture *f = fixture_create(&c);
	u64 seq[3];

	for (u32 i = 0; i < 3; i++)
		seq[i] = fixture_submit(f, i * 100, i == 2 ? 17 : 15, 12);
	run_to_preemption(f);
	struct seq *q = fixture_seq(f, seq[2]);
	while (q->in_flight)
		fixture_deliver(f);
	cr_assert_eq(extra(f, q)->host_computed, 18);
	cr_assert_eq(q->known, 19);
	cr_assert_gt(extra(f, q)->host_count, 0);
	const struct ipc_step *step = run_to_resumption(f, q);
	cr_assert(q->beyond);
	u32 i = 0;
	while (step->add_seq[i] != seq[2])
		cr_assert_lt(++i, step->add_row_count);
	cr_assert_eq(step->add_computed[i], 0);
	fixture_run(f);
	cr_assert_eq(f->end_count, 3);
	cr_assert_eq(f->s->host.free_count, 8);
	fixture_destroy(&f);
}
