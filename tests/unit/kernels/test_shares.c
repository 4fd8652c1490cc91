/* Shares of neighbouring units: who may take which, and that each is taken once. */
#include <criterion/criterion.h>

#include "kernels/cpu/shares_priv.h"

enum { UNITS_MAX = 100 };

static u32 take_all(struct shares *p, u32 thread, u32 taken[UNITS_MAX])
{
	u32 first, end, count = 0;
	while (shares_take(p, thread, &first, &end))
		for (; first < end; first++, count++)
			taken[first]++;
	return count;
}

Test(shares, even_ones_differ_by_one_unit_at_most)
{
	struct shares p;
	for (u32 units = 1; units <= UNITS_MAX; units++)
		for (u32 threads = 1; threads <= 20; threads++) {
			u32 at = 0;
			shares_init_even(&p, units, threads, 1, 0);
			cr_assert_eq(p.count, units < threads ? units : threads);
			for (u32 i = 0; i < p.count; i++) {
				u64 left = atomic_load(&p.of[i].left);
				cr_assert_eq((u32)left, at);
				at += shares_left(left);
				cr_assert(shares_left(left) == units / p.count || shares_left(left) == units / p.count + 1);
			}
			cr_assert_eq(at, units);
		}
}

Test(shares, of_a_thread_that_has_not_begun_all_can_be_taken)
{
	struct shares p;
	u32 taken[UNITS_MAX] = {0};
	shares_init_even(&p, 40, 4, 1, 3);
	cr_assert_eq(take_all(&p, 2, taken), 40);
	for (u32 i = 0; i < 40; i++)
		cr_assert_eq(taken[i], 1);
	cr_assert_eq(take_all(&p, 0, taken), 0);
}

Test(shares, a_thread_that_has_begun_keeps_its_last_units)
{
	struct shares p;
	u32 taken[UNITS_MAX] = {0}, first, end;
	shares_init_even(&p, 40, 4, 1, 3);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert(first == 0 && end == 1);
	taken[0]++;
	cr_assert_eq(take_all(&p, 1, taken), 36, "all but the one that is taken and the three that are kept");
	for (u32 i = 1; i < 4; i++)
		cr_assert_eq(taken[i], 0);
	cr_assert_eq(take_all(&p, 0, taken), 3);
	for (u32 i = 0; i < 40; i++)
		cr_assert_eq(taken[i], 1);
}

Test(shares, what_is_kept_is_not_taken_beside_what_is_free)
{
	struct shares p;
	u32 taken[UNITS_MAX] = {0}, first, end;
	shares_init_even(&p, 12, 2, 4, 3);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert(first == 0 && end == 3, "of six half, not four");
	cr_assert(shares_take(&p, 1, &first, &end));
	cr_assert(first == 6 && end == 9);
	cr_assert_eq(take_all(&p, 1, taken), 3, "three are left to the first thread, which keeps them");
	cr_assert_eq(take_all(&p, 0, taken), 3);
	for (u32 i = 3; i < 12; i++)
		cr_assert_eq(taken[i], i < 6 || i > 8 ? 1 : 0);
	shares_init_even(&p, 12, 2, 4, 2);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert_eq(take_all(&p, 1, taken), 7, "and the one that is free");
}

Test(shares, a_single_share_is_taken_in_whole_pieces)
{
	struct shares p;
	u32 first, end;
	shares_init_even(&p, 7, 1, 4, 0);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert(first == 0 && end == 4);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert(first == 4 && end == 7);
	cr_assert(!shares_take(&p, 0, &first, &end));
}

Test(shares, without_keeping_all_can_be_taken)
{
	struct shares p;
	u32 taken[UNITS_MAX] = {0}, first, end;
	shares_init_even(&p, 40, 4, 1, 0);
	cr_assert(shares_take(&p, 0, &first, &end));
	cr_assert_eq(take_all(&p, 1, taken), 39);
}

static void count_task(void *arg, u32 task, u32 thread)
{
	atomic_uint *times = arg;
	(void)thread;
	atomic_fetch_add(&times[task], 1);
}

Test(shares, each_task_of_many_rows_and_of_few_runs_once)
{
	for (u32 threads = 1; threads <= 5; threads++) {
		struct kern_ctx ctx = {0};
		struct err_msg em;
		cr_assert_eq(kern_threads_create(&ctx.threads, threads, &em), ERR_OK, "%s", em.text);
		for (u32 round = 0; round < 200; round++)
			for (u32 tasks = 1; tasks <= 33; tasks += 4) {
				atomic_uint times[UNITS_MAX] = {0};
				parallel_near(&ctx, round % 2 ? 1000 : 1, tasks, count_task, times);
				for (u32 i = 0; i < UNITS_MAX; i++)
					cr_assert_eq(atomic_load(&times[i]), i < tasks);
			}
		kern_threads_destroy(&ctx.threads);
	}
}
