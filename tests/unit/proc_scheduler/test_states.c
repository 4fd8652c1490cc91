/* States that are saved for others: their index, what the plan saves and where, and who begins with it. The fake worker compares every row's state
 * with its tokens. */
#include <criterion/criterion.h>

#include "tests/unit/proc_scheduler/fixture.h"

enum { SLOTS = 6, SIZE = 16 };

static struct block_hash hash(u64 n)
{
	return (struct block_hash){n, ~n};
}

Test(states, slots_are_taken_in_the_order_in_which_they_were_asked_for_last)
{
	struct state_cache c;

	cr_assert_eq(state_cache_init(&c, 3), ERR_OK);
	for (u32 i = 0; i < 3; i++) {
		cr_assert_eq(state_cache_take(&c, 1), i);
		state_cache_file(&c, i, hash(i + 16), 1); /* of one bucket are two of them */
	}
	cr_assert_eq(state_cache_take(&c, 1), STATE_SLOT_NONE, "this step saves into all of them");
	cr_assert_eq(state_cache_find(&c, hash(16), 1), STATE_SLOT_NONE, "it is there when step 1 has run");
	cr_assert_eq(state_cache_find(&c, hash(16), 2), 0);
	cr_assert_eq(state_cache_find(&c, hash(99), 2), STATE_SLOT_NONE);
	cr_assert_eq(state_cache_take(&c, 2), 1);
	cr_assert(!state_cache_has(&c, hash(17)) && state_cache_has(&c, hash(16)) && c.filed == 2);
	state_cache_give_back(&c, 1);
	state_cache_forget(&c, 2, hash(16), 2); /* it has another one */
	cr_assert_eq(c.filed, 2);
	state_cache_forget(&c, 0, hash(16), 1); /* step 1 itself saves it */
	cr_assert_eq(c.filed, 2);
	state_cache_forget(&c, 0, hash(16), 2);
	cr_assert_eq(c.filed, 1);
	cr_assert_eq(state_cache_take(&c, 2), 0, "forgotten last");
	cr_assert_eq(state_cache_take(&c, 2), 1);
	cr_assert_eq(state_cache_take(&c, 2), 2);
	cr_assert_eq(state_cache_take(&c, 3), STATE_SLOT_NONE);
	state_cache_reset(&c, 2);
	cr_assert_eq(state_cache_take(&c, 1), 0);
	cr_assert_eq(state_cache_take(&c, 1), 1);
	cr_assert_eq(state_cache_take(&c, 1), STATE_SLOT_NONE, "this epoch has two");
	state_cache_fini(&c);
}

static struct sched_config config_with(u32 slots)
{
	struct sched_config c = fixture_config();

	c.block_size = SIZE;
	c.max_num_batched_tokens = 256;
	c.max_model_len = 256;
	c.recurrent = true;
	c.state_slots = slots;
	return c;
}

/* The first `common` tokens are 1, 2, ..., the others begin at `then`. */
static u64 submit(struct fixture *f, u32 common, u32 then, u32 count, u32 max_tokens)
{
	static u32 tokens[FIXTURE_TOKENS_MAX];
	struct ipc_submit m = fixture_message(f->next_req_id++, 1, count, max_tokens);
	struct sched_admission a;
	struct err_msg em;

	for (u32 i = 0; i < count; i++)
		tokens[i] = i < common ? 1 + i : then + i;
	m.tokens = tokens;
	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

static void expect_solo(const struct fixture *f, u64 seq)
{
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
}

Test(states, a_prompt_begins_with_the_state_behind_the_last_full_block_of_another)
{
	struct sched_config c = config_with(SLOTS);
	struct fixture *f = fixture_create(&c);

	u64 a = submit(f, 55, 0, 55, 3);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->save_row_count, 1);
	cr_assert_eq(step->save_tokens[0], 48);
	u32 slot = step->save_slot[0];
	fixture_deliver(f);
	u64 b = submit(f, 60, 0, 60, 3);
	step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 48);
	cr_assert_eq(step->load_slot_count, 1);
	cr_assert_eq(step->load_slot[0], slot);
	cr_assert_eq(step->copy_src_count, 0);
	fixture_deliver(f);
	fixture_run(f);
	expect_solo(f, a);
	expect_solo(f, b);
	/* Where all of its tokens are there one has to run, and behind fewer there is no state. */
	submit(f, 48, 0, 48, 3);
	step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 0);
	fixture_destroy(&f);
}

Test(states, where_a_prompt_parts_from_another_its_state_is_saved)
{
	struct sched_config c = config_with(SLOTS);
	struct fixture *f = fixture_create(&c);

	u64 a = submit(f, 100, 0, 100, 1);
	fixture_run(f);
	u64 b = submit(f, 40, 300, 100, 1);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 0);
	cr_assert_eq(step->run_count[0], 2 * SIZE, "one state can be saved in a step");
	cr_assert_eq(step->save_tokens[0], 2 * SIZE);
	fixture_deliver(f);
	step = fixture_plan(f);
	cr_assert_eq(step->run_count[0], 100 - 2 * SIZE);
	cr_assert_eq(step->save_tokens[0], 96);
	fixture_deliver(f);
	fixture_run(f);
	u64 third = submit(f, 40, 600, 100, 1);
	step = fixture_plan(f);
	cr_assert_eq(step->add_computed[0], 2 * SIZE);
	cr_assert_eq(step->save_tokens[0], 96);
	fixture_deliver(f);
	fixture_run(f);
	expect_solo(f, a);
	expect_solo(f, b);
	expect_solo(f, third);
	cr_assert_eq(f->s->states.filed, 4);
	fixture_destroy(&f);
}

Test(states, of_an_answer_the_newest_state_is_kept)
{
	for (u32 depth = 0; depth <= SCHED_DEPTH_MAX; depth++) {
		struct sched_config c = config_with(SLOTS);
		c.async_depth = depth;
		struct fixture *f = fixture_create(&c);
		u64 a = submit(f, 10, 0, 10, 60);
		fixture_run(f);
		expect_solo(f, a);
		cr_assert_eq(f->s->states.filed, 1, "depth %u: %u", depth, f->s->states.filed);
		const struct fixture_end *e = fixture_end_of(f, a);
		struct ipc_submit m = fixture_message(99, 1, 80, 2);
		u32 tokens[80] = {0};
		for (u32 i = 0; i < e->token_count; i++)
			tokens[i] = e->tokens[i];
		m.tokens = tokens;
		struct sched_admission admission;
		struct err_msg em;
		cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &admission, &em), ERR_OK, "%s", em.text);
		const struct ipc_step *step = fixture_plan(f);
		cr_assert_eq(step->add_computed[0], 64, "depth %u: %u", depth, step->add_computed[0]);
		fixture_deliver(f);
		fixture_run(f);
		expect_solo(f, admission.seq);
		fixture_destroy(&f);
	}
}

Test(states, a_prompt_that_runs_token_by_token_takes_no_more_slots)
{
	struct sched_config c = config_with(SLOTS);
	c.long_prefill_token_threshold = 1;
	struct fixture *f = fixture_create(&c);

	u64 a = submit(f, 70, 0, 70, 2);
	fixture_run(f);
	expect_solo(f, a);
	cr_assert_eq(f->s->states.filed, 1, "%u", f->s->states.filed);
	submit(f, 70, 0, 70, 1);
	cr_assert_eq(fixture_plan(f)->add_computed[0], 64);
	fixture_destroy(&f);
}

Test(states, few_slots_go_around_and_none_are_missed)
{
	for (u32 slots = 0; slots <= 2; slots++) {
		struct sched_config c = config_with(slots);
		struct fixture *f = fixture_create(&c);
		u64 all[6];
		for (u32 i = 0; i < 6; i++)
			all[i] = submit(f, 20 * i, 100 * i, 60 + i, 40);
		fixture_run(f);
		for (u32 i = 0; i < 6; i++)
			expect_solo(f, all[i]);
		cr_assert_leq(f->s->states.filed, slots);
		submit(f, 0, 0, 60, 1); /* as the first one */
		const struct ipc_step *step = fixture_plan(f);
		if (slots == 0) {
			cr_assert_eq(step->add_computed[0], 0);
			cr_assert_eq(step->save_row_count, 0);
		}
		fixture_destroy(&f);
	}
}

Test(states, workers_that_begin_anew_have_none)
{
	struct sched_config c = config_with(SLOTS);
	struct fixture *f = fixture_create(&c);

	submit(f, 55, 0, 55, 1);
	fixture_run(f);
	u64 running = submit(f, 0, 400, 33, 40);
	fixture_plan(f);
	fixture_deliver(f);
	cr_assert_eq(f->s->states.filed, 2);
	f->result_count = 0;
	sched_restart_workers(f->s, c.block_count, 0, 3, f->now_ns);
	fake_worker_reset(&f->worker, f->s->kv.count, f->s->context_max);
	cr_assert_eq(f->s->states.filed, 0);
	cr_assert_eq(f->s->states.count, 3);
	u64 again = submit(f, 55, 0, 55, 1);
	fixture_run(f);
	expect_solo(f, running);
	expect_solo(f, again);
	fixture_destroy(&f);
}

/* Of a prompt of 20 tokens, its first outputs added. */
static u64 submit_further_on(struct fixture *f, u32 count, u32 max_tokens)
{
	static u32 tokens[FIXTURE_TOKENS_MAX];
	struct ipc_submit m = fixture_message(f->next_req_id++, 1, count, max_tokens);
	struct sched_admission a;
	struct err_msg em;

	for (u32 i = 0; i < count; i++)
		tokens[i] = i < 20 ? 1 + i : fake_next_token(tokens, i, FIXTURE_VOCAB);
	m.tokens = tokens;
	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

Test(states, one_that_another_has_saved_anew_in_this_step_is_not_forgotten)
{
	struct sched_config c = config_with(2);
	struct fixture *f = fixture_create(&c);
	u64 all[6] = {submit_further_on(f, 20, 60), submit_further_on(f, 21 + SIZE, 60)}; /* which takes a step more: it parts from the other one */
	u32 count = 2;

	/* The second one is a block ahead of the first one all the time, which comes first in every step. */
	while (fixture_seq(f, all[1])->known < 64) {
		const u32 known = fixture_seq(f, all[1])->known;
		if (known == 52 || known == 54 || known == 56) { /* what the second one had saved is gone, and the next slot is that one again */
			all[count] = submit(f, 0, 100 * count, 40, 1);
			count++;
		}
		fixture_plan(f);
		fixture_deliver(f);
	}
	cr_assert_eq(fixture_seq(f, all[0])->known, 48);
	cr_assert_eq(count, 5);
	all[count++] = submit(f, 0, 700, 40, 1);
	const struct ipc_step *step = fixture_plan(f); /* two slots: two states */
	cr_assert_eq(step->save_row_count, 2);
	cr_assert_neq(step->save_slot[0], step->save_slot[1]);
	fixture_deliver(f);
	fixture_run(f);
	for (u32 i = 0; i < count; i++)
		expect_solo(f, all[i]);
	fixture_destroy(&f);
}

Test(states, equal_prompts_wait_for_the_first_of_them)
{
	struct sched_config c = config_with(SLOTS);
	c.max_num_batched_tokens = 64;
	struct fixture *f = fixture_create(&c);
	u64 all[4], short_one[2];

	for (u32 i = 0; i < 4; i++)
		all[i] = submit(f, 150, 0, 150, 20);
	for (u32 chunk = 0; chunk < 3; chunk++) { /* the first one's prompt, and nobody else's */
		const struct ipc_step *step = fixture_plan(f);
		cr_assert_eq(step->add_row_count, chunk == 0);
		fixture_deliver(f);
	}
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 3);
	cr_assert_eq(step->load_slot_count, 3);
	for (u32 i = 0; i < 3; i++)
		cr_assert_eq(step->add_computed[i], 144);
	fixture_deliver(f);
	/* What is not worth a step is not waited for. */
	for (u32 i = 0; i < 2; i++)
		short_one[i] = submit(f, 0, 500, 50, 3);
	step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 2);
	fixture_deliver(f);
	fixture_run(f);
	for (u32 i = 0; i < 4; i++)
		expect_solo(f, all[i]);
	expect_solo(f, short_one[0]);
	expect_solo(f, short_one[1]);
	fixture_destroy(&f);
}

Test(states, nobody_waits_for_one_that_has_gone)
{
	struct sched_config c = config_with(SLOTS);
	c.max_num_batched_tokens = 64;
	struct fixture *f = fixture_create(&c);

	u64 first = submit(f, 150, 0, 150, 20), second = submit(f, 150, 0, 150, 20);
	fixture_plan(f);
	fixture_deliver(f);
	sched_abort(f->s, 1, fixture_seq(f, first)->req_id, f->now_ns);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 1);
	fixture_deliver(f);
	fixture_run(f);
	expect_solo(f, second);
	fixture_destroy(&f);
}
