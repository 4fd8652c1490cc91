#include <criterion/criterion.h>

#include "common/step_digest.h"
#include "proc_scheduler/step_diff.h"

static const u32 tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const u32 blocks[2] = {10, 11};
static struct seq_extra extra;

static struct seq sequence(u64 id, u32 row)
{
	return (struct seq){
		.id = id, .row = row, .known = 8, .prompt_count = 6, .computed = 4, .block_count = 2};
}

Test(step_diff, an_added_row_is_sent_whole)
{
	struct step_diff d;
	struct seq q = sequence(7, 3);

	cr_assert_eq(step_diff_init(&d, 4, 64, 16), ERR_OK);
	q.params.temperature = 0.5f;
	step_diff_begin(&d);
	step_diff_add(&d, &q, &extra, tokens, blocks);
	step_diff_run(&d, 3, 4, 0);
	const struct ipc_step *m = step_diff_finish(&d);
	cr_assert_eq(m->step, 1);
	cr_assert_eq(m->add_row_count, 1);
	cr_assert_eq(m->add_seq[0], 7);
	cr_assert_eq(m->add_computed[0], 4);
	cr_assert_eq(m->add_prompt_count[0], 6);
	cr_assert_eq(m->add_tokens_count, 8);
	cr_assert_eq(m->add_blocks[1], 11);
	cr_assert_eq(m->add_temperature_count, 1);
	cr_assert_float_eq(m->add_temperature[0], 0.5f, 1e-9);
	cr_assert_eq(m->run_row[0], 3);
	cr_assert_eq(m->run_count[0], 4);
	step_diff_fini(&d);
}

Test(step_diff, what_the_rule_says_is_not_sent)
{
	struct step_diff d;
	struct seq q = sequence(7, 0);

	cr_assert_eq(step_diff_init(&d, 4, 64, 16), ERR_OK);
	q.computed = 7;
	step_diff_begin(&d);
	step_diff_add(&d, &q, &extra, tokens, blocks);
	step_diff_run(&d, 0, 1, 1);
	cr_assert_eq(step_diff_finish(&d)->run_row_count, 0);
	step_diff_begin(&d);
	step_diff_run(&d, 0, 1, 1);
	const struct ipc_step *m = step_diff_finish(&d);
	cr_assert_eq(m->run_row_count + m->add_row_count + m->grow_row_count + m->drop_row_count, 0);
	cr_assert_eq(m->step, 2);
	step_diff_fini(&d);
}

Test(step_diff, the_digest_is_that_of_the_state_however_it_came_about)
{
	struct step_diff d;
	struct seq a = sequence(7, 0), b = sequence(8, 1);

	cr_assert_eq(step_diff_init(&d, 4, 64, 16), ERR_OK);
	step_diff_begin(&d);
	step_diff_add(&d, &a, &extra, tokens, blocks);
	step_diff_add(&d, &b, &extra, tokens, blocks);
	step_diff_finish(&d);
	step_diff_drop(&d, 0, 4);
	step_diff_begin(&d);
	step_diff_grow(&d, 1, 2, 12);
	step_diff_run(&d, 1, 3, 0);
	u64 set_sum = step_digest_row(1, 8, 6, 8, 4) + step_digest_block(1, 0, 10) +
		      step_digest_block(1, 1, 11) + step_digest_block(1, 2, 12);
	cr_assert_eq(step_diff_finish(&d)->digest, step_digest_step(2, set_sum, 1, 3, 4));
	step_diff_begin(&d);
	step_diff_run(&d, 1, 1, 0);
	cr_assert_eq(step_diff_finish(&d)->digest, step_digest_step(3, set_sum, 1, 1, 7),
		     "the three tokens count now");
	step_diff_fini(&d);
}

Test(step_diff, a_drop_between_steps_goes_into_the_next_one_only)
{
	struct step_diff d;
	struct seq q = sequence(7, 2);

	cr_assert_eq(step_diff_init(&d, 4, 64, 16), ERR_OK);
	step_diff_begin(&d);
	step_diff_add(&d, &q, &extra, tokens, blocks);
	step_diff_finish(&d);
	step_diff_drop(&d, 2, 4);
	step_diff_begin(&d);
	cr_assert_not(step_diff_is_empty(&d));
	const struct ipc_step *m = step_diff_finish(&d);
	cr_assert_eq(m->drop_row_count, 1);
	cr_assert_eq(m->drop_row[0], 2);
	cr_assert_eq(m->add_row_count, 0, "the columns of the step before are gone");
	cr_assert_eq(m->digest, step_digest_step(2, 0, 0, 0, 0));
	step_diff_begin(&d);
	cr_assert(step_diff_is_empty(&d));
	step_diff_fini(&d);
}

Test(step_diff, room_is_bounded_by_tokens_and_blocks)
{
	struct step_diff d;

	cr_assert_eq(step_diff_init(&d, 4, 16, 4), ERR_OK);
	cr_assert(step_diff_has_room(&d, d.token_max, d.block_max, 0));
	cr_assert_not(step_diff_has_room(&d, d.token_max + 1, 1, 0));
	cr_assert_not(step_diff_has_room(&d, 1, d.block_max + 1, 0));
	step_diff_fini(&d);
}
