#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "proc_worker/collectives.h"
#include "tests/unit/proc_worker/driver.h"

enum { FLOATS = 40000, ROUNDS = 300, EPOCHS = 100000 };

static char run_dir[64];

static void make_dir(void)
{
	snprintf(run_dir, sizeof(run_dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(run_dir));
}

static void remove_dir(void)
{
	cr_assert_eq(rmdir(run_dir), 0, "the group leaves nothing behind: %s", strerror(errno));
}

static struct collectives_config config_of(u32 rank, u32 ranks)
{
	return (struct collectives_config){.run_dir = run_dir,
					   .rank = rank,
					   .ranks = ranks,
					   .buffer_bytes = FLOATS * sizeof(float),
					   .join_timeout_ms = 5000};
}

static enum err join(struct collectives **c, u32 rank, u32 ranks, struct err_msg *em)
{
	struct collectives_config config = config_of(rank, ranks);

	return collectives_join(c, &config, em);
}

static float value(u32 rank, u32 round, u32 i)
{
	return (float)((rank + 1) * 1000003u % 977u) / 7 + (float)(round * 31 + i % 113) / 3;
}

struct group {
	u32 ranks;
	float *results[DRIVER_RANKS_MAX];
	u32 wrong[DRIVER_RANKS_MAX];
	enum err e[DRIVER_RANKS_MAX];
	struct err_msg em[DRIVER_RANKS_MAX];
};

static void reduce_rounds(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	float *out = g->results[rank];

	g->e[rank] = join(&c, rank, g->ranks, &g->em[rank]);
	for (u32 round = 0; !g->e[rank] && round < ROUNDS; round++) {
		u32 count = round % 50 ? 1 + round * 3 : FLOATS;
		float *part = collectives_buffer(c);
		for (u32 i = 0; i < count; i++)
			part[i] = value(rank, round, i);
		g->e[rank] = collectives_all_reduce(c, out, count, &g->em[rank]);
		for (u32 i = 0; i < count; i++) {
			float sum = value(0, round, i);
			for (u32 r = 1; r < g->ranks; r++)
				sum += value(r, round, i);
			g->wrong[rank] += out[i] != sum;
		}
	}
	collectives_leave(&c);
}

static void check_group(u32 ranks)
{
	struct group g = {.ranks = ranks};

	make_dir();
	for (u32 r = 0; r < ranks; r++)
		g.results[r] = calloc(FLOATS, sizeof(float));
	driver_parallel(ranks, reduce_rounds, &g);
	for (u32 r = 0; r < ranks; r++) {
		cr_assert_eq(g.e[r], ERR_OK, "rank %u: %s", r, g.em[r].text);
		cr_assert_eq(g.wrong[r], 0, "rank %u", r);
		free(g.results[r]);
	}
	remove_dir();
}

Test(collectives, sums_are_taken_in_the_order_of_ranks_and_equal_everywhere, .timeout = 120)
{
	check_group(2);
	check_group(3);
}

static void gather_rounds(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];

	g->e[rank] = join(&c, rank, g->ranks, &g->em[rank]);
	for (u32 round = 0; !g->e[rank] && round < 2000; round++) {
		*(u32 *)collectives_buffer(c) = rank * 10000 + round;
		g->e[rank] = collectives_all_gather(c, sizeof(u32), parts, &g->em[rank]);
		if (round % 500 == rank)
			usleep(1000);
		for (u32 r = 0; r < g->ranks; r++)
			g->wrong[rank] += *(const u32 *)parts[r] != r * 10000 + round;
	}
	collectives_leave(&c);
}

Test(collectives, a_gathered_part_stays_until_the_reader_goes_on, .timeout = 120)
{
	struct group g = {.ranks = 3};

	make_dir();
	driver_parallel(3, gather_rounds, &g);
	for (u32 r = 0; r < 3; r++) {
		cr_assert_eq(g.e[r], ERR_OK, "rank %u: %s", r, g.em[r].text);
		cr_assert_eq(g.wrong[r], 0);
	}
	remove_dir();
}

/* Rank 1 in a process of its own: joins, takes part in `rounds` operations, then dies or hangs. */
static pid_t fork_rank(u32 rounds, bool hang)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;
	if (join(&c, 1, 2, &em))
		_exit(1);
	for (u32 i = 0; i < rounds; i++)
		if (collectives_all_gather(c, sizeof(u32), parts, &em))
			_exit(2);
	while (hang)
		pause();
	_exit(0);
}

Test(collectives, a_dead_rank_is_an_error_at_once, .timeout = 120)
{
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;

	make_dir();
	pid_t pid = fork_rank(3, false); /* not waited for: a zombie is dead, too */
	cr_assert_eq(join(&c, 0, 2, &em), ERR_OK, "%s", em.text);
	for (u32 i = 0; i < 3; i++)
		cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_OK);
	u64 begin = clock_now_ns();
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_GONE);
	cr_assert_lt(clock_now_ns() - begin, 10000000000ull);
	cr_assert(strstr(em.text, "worker 1 (pid"), "%s", em.text);
	waitpid(pid, NULL, 0);
	collectives_leave(&c);
	remove_dir();
}

Test(collectives, a_stuck_rank_is_an_error_after_the_timeout, .timeout = 120)
{
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;

	make_dir();
	pid_t pid = fork_rank(1, true);
	cr_assert_eq(join(&c, 0, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_OK);
	collectives_set_timeout(c, 200, 200);
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_TIMEOUT);
	cr_assert(strstr(em.text, "worker 1 did not come within 200 ms"), "%s", em.text);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	collectives_leave(&c);
	remove_dir();
}

/* Rank 0 works `work_ms` for its part, as its peer should have; the wait ends after 20 times that, within limits. */
static u64 ms_until_stuck(struct collectives *c, u32 work_ms)
{
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;

	collectives_step(c);
	usleep(work_ms * 1000);
	u64 begin = clock_now_ns();
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_TIMEOUT);
	return (clock_now_ns() - begin) / 1000000;
}

Test(collectives, a_stuck_rank_is_told_by_how_long_the_same_work_takes_here, .timeout = 120)
{
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;

	make_dir();
	pid_t pid = fork_rank(3, true);
	cr_assert_eq(join(&c, 0, 2, &em), ERR_OK, "%s", em.text);
	collectives_set_timeout(c, 100, 20000);
	for (u32 i = 0; i < 3; i++) {
		collectives_step(c);
		cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_OK);
	}
	u64 quick = ms_until_stuck(c, 0);
	cr_assert(quick >= 100 && quick < 20000, "%llu ms", (unsigned long long)quick);
	u64 long_part = ms_until_stuck(c, 50);
	cr_assert(long_part >= 20 * 50 && long_part < 20000, "%llu ms", (unsigned long long)long_part);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	collectives_leave(&c);
	remove_dir();
}

/* Rank 1 in a process of its own: comes to the second operation late, and says meanwhile that it lives. */
static pid_t fork_beating_rank(u32 beats)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;
	if (join(&c, 1, 2, &em) || collectives_all_gather(c, sizeof(u32), parts, &em))
		_exit(1);
	for (u32 i = 0; i < beats; i++) {
		usleep(30000);
		collectives_beat(c);
	}
	_exit(collectives_all_gather(c, sizeof(u32), parts, &em));
}

Test(collectives, a_rank_that_waits_for_others_itself_is_not_stuck, .timeout = 120)
{
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg em;
	int status;

	make_dir();
	pid_t pid = fork_beating_rank(60);
	cr_assert_eq(join(&c, 0, 2, &em), ERR_OK, "%s", em.text);
	collectives_set_timeout(c, 1000, 1000);
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_OK);
	u64 begin = clock_now_ns();
	cr_assert_eq(collectives_all_gather(c, sizeof(u32), parts, &em), ERR_OK, "%s", em.text);
	cr_assert_gt(clock_now_ns() - begin, 1500000000u, "longer than the limit");
	cr_assert_geq(collectives_beats(c), 60);
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	collectives_leave(&c);
	remove_dir();
}

Test(collectives, a_rank_that_never_joins_is_named, .timeout = 120)
{
	struct collectives *c;
	struct collectives_config config = config_of(0, 2);
	struct err_msg em;

	make_dir();
	config.join_timeout_ms = 100;
	cr_assert_eq(collectives_join(&c, &config, &em), ERR_TIMEOUT);
	cr_assert(strstr(em.text, "worker 1 did not come"), "%s", em.text);
	cr_assert_null(c);
	config.rank = 1;
	cr_assert_eq(collectives_join(&c, &config, &em), ERR_TIMEOUT);
	cr_assert(strstr(em.text, "worker 0 did not make"), "%s", em.text);
	remove_dir();
}

static void join_differently(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	struct collectives_config config = config_of(rank, 2);

	config.buffer_bytes += 64 * rank;
	config.join_timeout_ms = 500;
	g->e[rank] = collectives_join(&c, &config, &g->em[rank]);
	collectives_leave(&c);
}

Test(collectives, ranks_with_other_options_are_refused, .timeout = 120)
{
	struct group g = {.ranks = 2};

	make_dir();
	driver_parallel(2, join_differently, &g);
	cr_assert_eq(g.e[0], ERR_TIMEOUT);
	cr_assert_eq(g.e[1], ERR_INVALID);
	cr_assert(strstr(g.em[1].text, "need the same options"), "%s", g.em[1].text);
	remove_dir();
}

/* What an earlier group left is not taken for the new one. */
Test(collectives, a_file_of_a_dead_group_is_passed_over, .timeout = 120)
{
	struct group g = {.ranks = 2};
	int status;

	make_dir();
	for (u32 r = 0; r < 2; r++)
		g.results[r] = calloc(FLOATS, sizeof(float));
	pid_t pid = fork();
	if (!pid) {
		struct collectives *c;
		struct collectives_config config = config_of(0, 2);
		struct err_msg em;
		config.join_timeout_ms = 10000;
		alarm(1); /* dies while it waits for rank 1, and leaves its file */
		_exit(collectives_join(&c, &config, &em));
	}
	waitpid(pid, &status, 0);
	cr_assert(WIFSIGNALED(status));
	driver_parallel(2, reduce_rounds, &g);
	for (u32 r = 0; r < 2; r++) {
		cr_assert_eq(g.e[r], ERR_OK, "rank %u: %s", r, g.em[r].text);
		cr_assert_eq(g.wrong[r], 0);
		free(g.results[r]);
	}
	remove_dir();
}

/* Rank 0 waits in an operation of epoch 5; rank 1 begins epoch 6 instead of coming. Both then work on in 6.
 */
static void change_epoch(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];
	struct err_msg *em = &g->em[rank];

	g->e[rank] = join(&c, rank, 2, em);
	if (!g->e[rank])
		g->e[rank] = collectives_begin(c, 5, em);
	for (u32 i = 0; !g->e[rank] && i < 3; i++)
		g->e[rank] = collectives_all_gather(c, sizeof(u32), parts, em);
	if (rank == 0 && !g->e[rank])
		g->wrong[0] += collectives_all_gather(c, sizeof(u32), parts, em) != ERR_ABORTED;
	else
		usleep(150000);
	if (!g->e[rank])
		g->e[rank] = collectives_begin(c, 6, em);
	for (u32 i = 0; !g->e[rank] && i < 100; i++) {
		*(u32 *)collectives_buffer(c) = rank * 1000 + i;
		g->e[rank] = collectives_all_gather(c, sizeof(u32), parts, em);
		for (u32 r = 0; r < 2; r++)
			g->wrong[rank] += *(const u32 *)parts[r] != r * 1000 + i;
	}
	collectives_leave(&c);
}

Test(collectives, a_new_epoch_frees_ranks_that_wait_in_the_old_one, .timeout = 120)
{
	struct group g = {.ranks = 2};

	make_dir();
	driver_parallel(2, change_epoch, &g);
	for (u32 r = 0; r < 2; r++) {
		cr_assert_eq(g.e[r], ERR_OK, "rank %u: %s", r, g.em[r].text);
		cr_assert_eq(g.wrong[r], 0, "rank %u", r);
	}
	remove_dir();
}

static void begin_rounds(void *ctx, u32 rank)
{
	struct group *g = ctx;
	struct collectives *c;
	const void *parts[COLLECTIVES_RANKS_MAX];

	g->e[rank] = join(&c, rank, g->ranks, &g->em[rank]);
	for (u32 round = 0; !g->e[rank] && round < EPOCHS; round++) {
		g->e[rank] = collectives_all_gather(c, 0, parts, &g->em[rank]);
		if (!g->e[rank])
			g->e[rank] = collectives_begin(c, round + 1, &g->em[rank]);
	}
	collectives_leave(&c);
}

/* Its arrival is seen before its next epoch, however late one looks. */
Test(collectives, a_rank_may_begin_the_next_epoch_as_soon_as_it_has_arrived, .timeout = 120)
{
	struct group g = {.ranks = 2};

	make_dir();
	driver_parallel(2, begin_rounds, &g);
	for (u32 r = 0; r < 2; r++)
		cr_assert_eq(g.e[r], ERR_OK, "rank %u: %s", r, g.em[r].text);
	remove_dir();
}
