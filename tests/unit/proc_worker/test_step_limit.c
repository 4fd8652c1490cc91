#include <criterion/criterion.h>

#include "proc_worker/step_limit.h"

static const u64 MS = 1000000;
enum { MOST_MS = 30000 };

static struct step_limit made(u64 most_ms)
{
	struct step_limit l;

	step_limit_init(&l, most_ms * MS);
	return l;
}

static void learn(struct step_limit *l, u32 tokens, u64 ms, u32 times)
{
	for (u32 i = 0; i < times; i++)
		step_limit_learn(l, tokens, ms * MS);
}

Test(step_limit, what_is_not_known_gets_the_longest_time)
{
	struct step_limit l = made(MOST_MS);

	cr_assert_eq(step_limit_ns(&l, 0), MOST_MS * MS);
	cr_assert_eq(step_limit_ns(&l, UINT32_MAX), MOST_MS * MS);
	learn(&l, 5, 20, STEP_LIMIT_SETTLED - 1);
	cr_assert_eq(step_limit_ns(&l, 5), MOST_MS * MS, "first steps load and record");
	cr_assert_eq(step_limit_usual_ns(&l, 5), 0);
}

Test(step_limit, sizes_are_known_each_for_itself)
{
	struct step_limit l = made(MOST_MS);

	learn(&l, 8, 20, STEP_LIMIT_SETTLED);
	learn(&l, 2048, 1000, STEP_LIMIT_SETTLED);
	cr_assert_eq(step_limit_ns(&l, 8), STEP_LIMIT_LEAST_MS * MS);
	cr_assert_eq(step_limit_ns(&l, 15), STEP_LIMIT_LEAST_MS * MS, "of about as many tokens");
	cr_assert_eq(step_limit_ns(&l, 16), MOST_MS * MS);
	cr_assert_eq(step_limit_ns(&l, 2048), 20 * 1000 * MS);
}

Test(step_limit, a_slow_step_is_forgotten_slowly)
{
	struct step_limit l = made(MOST_MS);

	learn(&l, 1, 10, STEP_LIMIT_SETTLED);
	learn(&l, 1, 1000, 1);
	cr_assert_eq(step_limit_ns(&l, 1), 20 * 1000 * MS);
	u64 before = step_limit_usual_ns(&l, 1);
	learn(&l, 1, 10, 4);
	cr_assert(step_limit_usual_ns(&l, 1) < before && step_limit_usual_ns(&l, 1) > before / 2);
	learn(&l, 1, 10, 100);
	cr_assert_lt(step_limit_usual_ns(&l, 1), 11 * MS);
	cr_assert_geq(step_limit_usual_ns(&l, 1), 10 * MS);
}

Test(step_limit, no_limit_is_above_the_longest_time)
{
	struct step_limit l = made(MOST_MS), small = made(2000), none = made(0);

	learn(&l, 1, 60 * 60 * 1000, STEP_LIMIT_SETTLED);
	cr_assert_eq(step_limit_ns(&l, 1), MOST_MS * MS);
	step_limit_learn(&l, 1, UINT64_MAX);
	cr_assert_eq(step_limit_ns(&l, 1), MOST_MS * MS);
	learn(&small, 1, 1, STEP_LIMIT_SETTLED);
	cr_assert_eq(step_limit_ns(&small, 1), 2000 * MS);
	learn(&none, 1, 1, STEP_LIMIT_SETTLED);
	cr_assert_eq(step_limit_ns(&none, 1), 0, "for ever");
}
