/* Workers that guess tokens ahead: results with several tokens of a sequence, blocks for them, and ends among them. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"


Test(sched_guesses, workers_that_guess_ahead_need_fewer_steps_for_the_same_tokens)
{
	struct sched_config c = fixture_config();
	c.draft_max = 5;
	struct fixture *f = fixture_create(&c);
	u64 seqs[4], steps = 0, run = 0;
	for (u32 i = 0; i < COUNT_OF(seqs); i++)
		seqs[i] = fixture_submit(f, 1 + i * 20, 9, 40 + i);
	while (fixture_plan(f)) {
		steps += f->s->diff.tokens_run > 0;
		run += f->s->diff.tokens_run;
		if (f->result_count) /* the last step only drops */
			fixture_deliver(f);
	}
	for (u32 i = 0; i < COUNT_OF(seqs); i++) {
		const struct fixture_end *e = fixture_end_of(f, seqs[i]);
		cr_assert_eq(e->token_count, 9 + 40 + i);
		cr_assert_eq(e->reason, FINISH_LENGTH);
		cr_assert(fixture_is_solo_run(e));
	}
	cr_assert_lt(steps, 30, "%lu steps", (unsigned long)steps);
	cr_assert_lt(run, 4 * 9 + 4 * 41);
	cr_assert_eq(f->s->kv.free_count, c.block_count);
	cr_assert_eq(fixture_count(f, STATS_GENERATION_TOKENS), 40 + 41 + 42 + 43);
	fixture_destroy(&f);
}

Test(sched_guesses, rows_get_blocks_for_guesses_while_some_are_free_and_none_behind_their_end)
{
	struct sched_config c = fixture_config();
	c.draft_max = 3;
	c.block_count = 4;
	c.max_model_len = 16;
	struct fixture *f = fixture_create(&c);
	u64 seq = fixture_submit(f, 1, 6, 6); /* 12 tokens, the last of which needs no KV */
	fixture_plan(f);
	fixture_deliver(f);
	while (fixture_seq(f, seq)) {
		const struct seq *q = fixture_seq(f, seq);
		u32 needed = q->computed + 1 + 3 < 11 ? q->computed + 1 + 3 : 11;
		fixture_plan(f);
		cr_assert_geq(q->capacity, needed, "%u of %u", q->capacity, needed);
		cr_assert_leq(q->block_count, 3);
		fixture_deliver(f);
	}
	cr_assert(fixture_is_solo_run(fixture_end_of(f, seq)));
	fixture_destroy(&f);
}

/* A result of one sequence: tokens of its own, at the positions from `first` on. */
static enum err guessed_result(struct fixture *f, u64 seq, u32 first, u32 count, struct err_msg *em)
{
	u64 seqs[16];
	u32 positions[16], tokens[16];

	for (u32 i = 0; i < count; i++) {
		seqs[i] = seq;
		positions[i] = first + i;
		tokens[i] = 7;
	}
	struct ipc_result m = {.step = f->s->diff.step, .seq = seqs, .seq_count = count, .position = positions,
			       .position_count = count, .token = tokens, .token_count = count};
	return sched_result(f->s, &m, f->now_ns, em);
}

Test(sched_guesses, a_result_with_more_tokens_than_can_be_guessed_ends_the_epoch)
{
	static const struct {
		u32 draft_max, count;
		enum err e;
	} cases[] = {{0, 1, ERR_OK}, {0, 2, ERR_DIVERGED}, {2, 1, ERR_OK}, {2, 2, ERR_OK}, {2, 3, ERR_OK}, {2, 4, ERR_DIVERGED}};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct sched_config c = fixture_config();
		struct err_msg em = {""};
		c.draft_max = cases[i].draft_max;
		struct fixture *f = fixture_create(&c);
		u64 seq = fixture_submit(f, 1, 5, 20);
		cr_assert_not_null(sched_plan(f->s, f->now_ns));
		cr_assert_eq(guessed_result(f, seq, 0, cases[i].count, &em), cases[i].e, "case %zu: %s", i, em.text);
		if (cases[i].e == ERR_OK)
			cr_assert_eq(seq_output_count(fixture_seq(f, seq)), cases[i].count);
		fixture_destroy(&f);
	}
}

Test(sched_guesses, tokens_that_no_block_could_hold_end_the_epoch)
{
	struct sched_config c = fixture_config();
	struct err_msg em = {""};
	c.draft_max = 8;
	struct fixture *f = fixture_create(&c);
	u64 seq = fixture_submit(f, 1, 6, 20); /* two blocks of four */
	cr_assert_not_null(sched_plan(f->s, f->now_ns));
	cr_assert_eq(guessed_result(f, seq, 0, 4, &em), ERR_DIVERGED);
	cr_assert(strstr(em.text, "blocks"), "%s", em.text);
	fixture_destroy(&f);
}

Test(sched_guesses, a_guessed_end_ends_the_sequence_and_what_is_behind_it_is_ignored)
{
	struct sched_config c = fixture_config();
	struct err_msg em = {""};
	c.draft_max = 4;
	c.eos_count = 1;
	c.eos_ids[0] = 7;
	struct fixture *f = fixture_create(&c);
	u64 seq = fixture_submit(f, 1, 8, 20);
	cr_assert_not_null(sched_plan(f->s, f->now_ns));
	cr_assert_eq(guessed_result(f, seq, 0, 3, &em), ERR_OK, "%s", em.text);
	const struct fixture_end *e = fixture_end_of(f, seq);
	cr_assert_eq(e->reason, FINISH_STOP);
	cr_assert_eq(e->token_count, 9);
	fixture_destroy(&f);
}
