/* States of rows: which saved one a row begins with, whose are saved, and what of that is refused. */

#include "tests/unit/proc_worker/batch_fixture.h"

static struct batch_state *create_recurrent(u32 slots)
{
	struct batch_limits limits = LIMITS;
	struct batch_state *b;
	struct err_msg em;

	limits.recurrent = true;
	limits.state_slots = slots;
	cr_assert_eq(batch_state_create(&b, &limits, &em), ERR_OK);
	return b;
}

static struct mirror_add half(u32 row, u64 seq)
{
	struct mirror_add a = prompt(row, seq, 10, 3);

	a.computed = 8;
	return a;
}

Test(batch_states, rows_begin_with_saved_states_in_the_order_of_their_adds)
{
	struct batch_state *b = create_recurrent(3);
	struct mirror *m = mirror();
	struct mirror_add first = half(4, 1), whole = prompt(2, 2, 3, 1), second = half(0, 3);

	mirror_begin(m);
	mirror_add(m, &first);
	mirror_load(m, 2);
	mirror_add(m, &whole);
	mirror_add(m, &second);
	mirror_load(m, 2);
	mirror_run(m, 4, 2);
	mirror_run(m, 2, 3);
	mirror_run(m, 0, 1);
	mirror_save(m, 2, 1, 2);
	struct err_msg em = {{0}};
	cr_assert_eq(batch_state_apply(b, mirror_end(m), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(b->load_count, 2);
	cr_assert(b->load_row[0] == 4 && b->load_slot[0] == 2 && b->load_row[1] == 0 && b->load_slot[1] == 2);
	cr_assert_eq(b->save_count, 1);
	cr_assert(b->save_tokens[2] == 2 && b->save_slot[2] == 1 && b->save_tokens[4] == 0 && b->save_tokens[0] == 0);
	batch_state_commit(b, TOKENS);
	mirror_commit(m, TOKENS);
	cr_assert(b->load_count == 0 && b->save_count == 0 && b->save_tokens[2] == 0);
	mirror_begin(m);
	mirror_fork(m, 7, 4, 9, 30);
	mirror_drop(m, 2);
	cr_assert_eq(batch_state_apply(b, mirror_end(m), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(b->fork_count, 1);
	cr_assert(b->fork_src[0] == 4 && b->fork_row[0] == 7);
	batch_state_destroy(&b);
}

/* A step of a row with ten tokens, of which eight are computed, in a batch with two slots. */
struct bad {
	bool loads;
	u32 slot;
	u32 saves, save_row[2], save_slot[2], save_tokens[2];
	const char *text;
};

Test(batch_states, what_does_not_fit_is_refused)
{
	static const struct bad cases[] = {
		{.text = "add_computed[0] is 8, and load_slot has 0 elements: no state is named for the row"},
		{.loads = true, .slot = 2, .text = "load_slot[0] is 2; it must be below 2"},
		{true, 1, 1, {5}, {0}, {9}, "save_row[0]: there is no row 5"},
		{true, 1, 1, {99}, {0}, {9}, "save_row[0]: there is no row 99"},
		{true, 1, 1, {0}, {2}, {9}, "save_slot[0] is 2; it must be below 2"},
		{true, 1, 1, {0}, {0}, {8}, "save_tokens[0] is 8; of row 0 this step runs the tokens behind 8, up to 10"},
		{true, 1, 1, {0}, {0}, {11}, "save_tokens[0] is 11"},
		{true, 1, 2, {0, 0}, {0, 1}, {9, 10}, "save_row[1]: the state of row 0 is saved twice"},
		{true, 1, 2, {0, 1}, {1, 1}, {9, 3}, "save_slot[1]: two states are saved in slot 1"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		const struct bad *bad = &cases[i];
		struct batch_state *b = create_recurrent(2);
		struct mirror *m = mirror();
		struct mirror_add row = half(0, 1), other = prompt(1, 2, 3, 1);
		mirror_begin(m);
		mirror_add(m, &row);
		if (bad->loads)
			mirror_load(m, bad->slot);
		mirror_add(m, &other);
		mirror_run(m, 0, 2);
		mirror_run(m, 1, 3);
		for (u32 j = 0; j < bad->saves; j++)
			mirror_save(m, bad->save_row[j], bad->save_slot[j], bad->save_tokens[j]);
		cr_assert_eq(refused(m, b, bad->text), ERR_INVALID);
		batch_state_destroy(&b);
	}
}

Test(batch_states, states_that_nobody_asks_for_are_refused)
{
	struct batch_state *b = create_recurrent(2), *plain = create();
	struct mirror *m = mirror();
	struct mirror_add row = prompt(0, 1, 3, 1);

	mirror_begin(m);
	mirror_add(m, &row);
	mirror_load(m, 0);
	mirror_run(m, 0, 3);
	cr_assert_eq(refused(m, b, "load_slot has 1 elements; 0 rows are added that begin with a state"), ERR_INVALID);
	m = mirror();
	mirror_begin(m);
	mirror_add(m, &row);
	mirror_run(m, 0, 3);
	mirror_save(m, 0, 0, 2);
	cr_assert_eq(refused(m, plain, "save_slot[0] is 0; it must be below 0"), ERR_INVALID);
	batch_state_destroy(&b);
	batch_state_destroy(&plain);
}
