/* The plan and the prefix cache. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

static struct sched_config config16(void)
{
	struct sched_config c = fixture_config();

	c.block_size = 16;
	c.max_num_batched_tokens = 256;
	c.max_model_len = 256;
	return c;
}

/* Runs a prompt of `count` tokens to its end with one output. */
static void warm(struct fixture *f, u32 first, u32 count)
{
	fixture_submit(f, first, count, 1);
	fixture_run(f);
}

Test(sched_cache, full_blocks_of_a_prompt_are_found_again)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	u64 a = fixture_submit(f, 1, 55, 40);
	fixture_plan(f);
	fixture_deliver(f);
	cr_assert_eq(fixture_seq(f, a)->block_count, 4);
	cr_assert_eq(f->s->cache.count, 3);
	u64 b = fixture_submit(f, 1, 50, 40); /* 48 tokens in common blocks */
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 48);
	cr_assert_eq(fixture_seq(f, b)->cached_count, 48);
	for (u32 i = 0; i < 3; i++)
		cr_assert_eq(kv_blocks_refs(&f->s->kv, sched_blocks(f->s, fixture_seq(f, b))[i]), 2);
	cr_assert_eq(kv_blocks_refs(&f->s->kv, sched_blocks(f->s, fixture_seq(f, b))[3]), 1);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, a)) && fixture_is_solo_run(fixture_end_of(f, b)));
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_QUERIES), 105);
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), 48);
	fixture_destroy(&f);
}

Test(sched_cache, two_equal_prompts_in_one_step_run_the_common_part_once)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	u64 a = fixture_submit(f, 1, 50, 5), b = fixture_submit(f, 1, 50, 5);
	fixture_plan(f);
	cr_assert_eq(f->s->diff.tokens_run, 50 + 2);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, a)) && fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, a_whole_cached_prompt_runs_one_token_in_one_copied_block)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	warm(f, 1, 48);
	u64 b = fixture_submit(f, 1, 48, 20);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->copy_src_count, 1);
	cr_assert_eq(step->add_computed[0], 47);
	cr_assert_eq(step->copy_dst[0], step->add_blocks[2]);
	cr_assert_neq(step->copy_src[0], step->copy_dst[0]);
	cr_assert_eq(step->run_row_count, 0, "one token is the rule");
	cr_assert_eq(f->s->diff.tokens_run, 1);
	cr_assert_eq(fixture_seq(f, b)->cached_count, 47);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	fixture_destroy(&f);
}

Test(sched_cache, a_block_that_the_same_step_computes_is_not_copied)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	u64 a = fixture_submit(f, 1, 48, 5), b = fixture_submit(f, 1, 48, 5);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->copy_src_count, 0);
	cr_assert_eq(f->s->diff.tokens_run, 48 + 16);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, a)) && fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, many_copies_of_one_block_in_one_step_do_not_disturb_each_other)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	warm(f, 1, 32);
	for (u32 i = 0; i < 6; i++)
		fixture_submit(f, 1, 32, 10);
	cr_assert_eq(fixture_plan(f)->copy_src_count, 6);
	fixture_deliver(f);
	fixture_run(f);
	for (u32 i = 0; i < f->end_count; i++)
		cr_assert(fixture_is_solo_run(&f->ends[i]));
	fixture_destroy(&f);
}

Test(sched_cache, without_room_for_the_copy_the_block_is_computed_again)
{
	struct sched_config c = config16();
	c.block_count = 3;
	c.max_model_len = 48;
	struct fixture *f = fixture_create(&c);

	warm(f, 1, 47); /* two full blocks cached, the third is not full */
	warm(f, 1, 32);
	u64 b = fixture_submit(f, 1, 32, 16);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, b)->token_count, 48);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

static u64 submit_salted(struct fixture *f, u64 salt, u32 flags, i32 prompt_logprobs)
{
	struct ipc_submit m = fixture_message(++f->next_req_id, 1, 40, 1);
	struct sched_admission a;
	struct err_msg em;

	m.cache_salt = salt;
	m.flags |= flags;
	m.prompt_logprobs = prompt_logprobs;
	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

Test(sched_cache, a_salt_keeps_tenants_apart)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	submit_salted(f, 7, 0, -1);
	fixture_run(f);
	submit_salted(f, 8, 0, -1);
	fixture_run(f);
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), 0);
	submit_salted(f, 7, 0, -1);
	fixture_run(f);
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), 32);
	fixture_destroy(&f);
}

Test(sched_cache, prompt_logprobs_and_no_cache_read_do_not_read_but_write)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	submit_salted(f, 0, 0, 3);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert_gt(f->s->cache.count, 0);
	submit_salted(f, 0, 0, 3);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	fixture_deliver(f);
	fixture_run(f);
	submit_salted(f, 0, SAMPLING_NO_CACHE_READ, -1);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	fixture_deliver(f);
	fixture_run(f);
	submit_salted(f, 0, 0, -1);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 32);
	fixture_destroy(&f);
}

Test(sched_cache, the_next_turn_of_a_conversation_hits_generated_blocks)
{
	for (u32 depth = 0; depth <= 2; depth++) {
		struct sched_config c = config16();
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		u64 a = fixture_submit(f, 1, 20, 40);
		fixture_run(f);
		const struct fixture_end *e = fixture_end_of(f, a);
		struct ipc_submit m = fixture_message(50, 1, 70, 4);
		u32 tokens[70];
		memcpy(tokens, m.tokens, sizeof(tokens));
		memcpy(tokens, e->tokens,
		       60 * sizeof(u32)); /* prompt, answer, and ten tokens of a question */
		m.tokens = tokens;
		struct sched_admission adm;
		struct err_msg em;
		cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &adm, &em), ERR_OK);
		cr_assert_eq(fixture_plan(f)->add_computed[0], 48, "depth %u", depth);
		fixture_deliver(f);
		fixture_run(f);
		cr_assert(fixture_is_solo_run(fixture_end_of(f, adm.seq)));
		fixture_destroy(&f);
	}
}

Test(sched_cache, what_was_aborted_before_its_step_cannot_be_hit)
{
	struct sched_config c = config16();
	struct fixture *f = fixture_create(&c);

	fixture_submit(f, 1, 50, 5);
	sched_abort(f->s, 1, 1, 1);
	cr_assert_eq(f->s->cache.count, 0);
	u64 b = fixture_submit(f, 1, 50, 5);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, only_the_chunks_that_are_planned_can_be_hit)
{
	struct sched_config c = config16();
	c.max_num_batched_tokens = 40;
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);

	u64 a = fixture_submit(f, 1, 100, 5);
	fixture_plan(f);
	cr_assert_eq(f->s->cache.count, 2, "40 tokens are planned: two full blocks");
	u64 b = fixture_submit(f, 1, 100, 5);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, a)) && fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, an_aborted_request_in_flight_leaves_blocks_that_hold_what_they_say)
{
	struct sched_config c = config16();
	c.async_depth = 2;
	struct fixture *f = fixture_create(&c);

	fixture_submit(f, 1, 50, 20);
	fixture_plan(f);
	sched_abort(f->s, 1, 1, 1);
	u64 b = fixture_submit(f, 1, 50, 20);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 48);
	fixture_run(f); /* the worker would see wrong contents */
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, eviction_takes_the_least_recently_used_and_what_hangs_on_it_is_lost)
{
	struct sched_config c = config16();
	c.block_count = 6;
	c.max_model_len = 96;
	struct fixture *f = fixture_create(&c);

	warm(f, 1, 47);	  /* two cached blocks, a third unknown */
	warm(f, 300, 47); /* two more */
	warm(f, 600, 80); /* five blocks: everything unknown and the older ones go */
	u64 b = fixture_submit(f, 1, 47, 1);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert(fixture_is_solo_run(fixture_end_of(f, b)));
	fixture_destroy(&f);
}

Test(sched_cache, without_the_cache_nothing_is_hashed)
{
	struct sched_config c = config16();
	c.prefix_caching = false;
	struct fixture *f = fixture_create(&c);

	warm(f, 1, 48);
	u64 b = fixture_submit(f, 1, 48, 1);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 0);
	cr_assert_eq(fixture_seq(f, b)->hashed, 0);
	cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_QUERIES), 0);
	fixture_destroy(&f);
}

/* A model whose sequences of more than 32 tokens have another KV than shorter ones. */
static struct sched_config switching(bool by_prompt, u32 depth)
{
	struct sched_config c = config16();

	c.kv_switch_len = 32;
	c.kv_by_prompt = by_prompt;
	c.async_depth = depth;
	return c;
}

Test(sched_cache, long_and_short_sequences_share_nothing_where_their_kv_differs)
{
	for (u32 by_prompt = 0; by_prompt < 2; by_prompt++) {
		struct sched_config c = switching(by_prompt, 0);
		struct fixture *f = fixture_create(&c);

		warm(f, 1, 30); /* one block, of a short sequence */
		u64 longer = fixture_submit(f, 1, 50, 1);
		fixture_run(f);
		cr_assert_eq(fixture_end_of(f, longer)->token_count, 51);
		cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), 0);
		fixture_submit(f, 1, 60, 1);
		fixture_run(f);
		cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), by_prompt ? 0 : 48);
		fixture_submit(f, 1, 60, 1);
		fixture_run(f);
		cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), by_prompt ? 48 : 96);
		fixture_submit(f, 1, 31, 1);
		fixture_run(f);
		cr_assert_eq(fixture_count(f, STATS_PREFIX_CACHE_HITS), by_prompt ? 64 : 112);
		fixture_destroy(&f);
	}
}

Test(sched_cache, a_sequence_that_grows_into_another_kv_is_computed_anew_from_its_first_token)
{
	for (u32 depth = 0; depth <= SCHED_DEPTH_MAX; depth++) {
		struct sched_config c = switching(false, depth);
		struct fixture *f = fixture_create(&c);
		u32 added = 0;

		u64 seq = fixture_submit(f, 1, 30, 20), other = fixture_submit(f, 500, 5, 40);
		for (u32 i = 0; i < 400 && f->end_count < 2; i++) {
			const struct ipc_step *step = fixture_plan(f);
			for (u32 r = 0; step && r < step->add_row_count; r++) {
				cr_assert_eq(step->add_computed[r], 0);
				added = step->add_seq[r] == seq ? step->add_token_count[r] : added;
			}
			if (!step)
				fixture_deliver(f);
			const struct seq *q = seqs_find(&f->s->seqs, seq);
			cr_assert(!q || q->state != SEQ_RUNNING || q->beyond || q->computed <= 32);
		}
		cr_assert_eq(added, 33, "it came back with its first token beyond");
		cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
		cr_assert(fixture_is_solo_run(fixture_end_of(f, other)));
		cr_assert_eq(fixture_count(f, STATS_NUM_PREEMPTIONS), 2, "both grow beyond");
		cr_assert_eq(f->s->kv.free_count, c.block_count);
		fixture_destroy(&f);
	}
}
