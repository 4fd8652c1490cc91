#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/clock.h"
#include "kernels/kernels.h"

enum { TASKS_MAX = 500 };

struct tally {
	atomic_uint times[TASKS_MAX];
	atomic_uint threads_seen[16];
};

static void count_task(void *arg, u32 task, u32 thread)
{
	struct tally *t = arg;
	atomic_fetch_add(&t->times[task], 1);
	atomic_fetch_add(&t->threads_seen[thread], 1);
}

static struct kern_threads *pool_of(u32 threads)
{
	struct kern_threads *t;
	struct err_msg em;
	cr_assert_eq(kern_threads_create(&t, threads, &em), ERR_OK, "%s", em.text);
	return t;
}

static void sleep_us(long us)
{
	struct timespec t = {.tv_nsec = us * 1000};
	nanosleep(&t, NULL);
}

Test(threads, each_task_runs_once)
{
	for (u32 threads = 1; threads <= 5; threads++) {
		struct kern_threads *t = pool_of(threads);
		cr_assert_eq(kern_threads_count(t), threads);
		for (u32 tasks = 0; tasks < TASKS_MAX; tasks += 1 + tasks / 3) {
			struct tally tally;
			memset(&tally, 0, sizeof(tally));
			kern_threads_run(t, tasks, count_task, &tally);
			for (u32 i = 0; i < TASKS_MAX; i++)
				cr_assert_eq(tally.times[i], i < tasks, "task %u of %u ran %u times", i,
					     tasks, tally.times[i]);
			for (u32 i = threads; i < 16; i++)
				cr_assert_eq(tally.threads_seen[i], 0, "thread %u of %u", i, threads);
		}
		kern_threads_destroy(&t);
		cr_assert_null(t);
	}
}

/* Runs close together meet spinning threads, runs far apart sleeping ones, and some fall between. */
Test(threads, runs_are_complete_whether_threads_spin_or_sleep)
{
	struct kern_threads *t = pool_of(3);
	for (u32 run = 0; run < 400; run++) {
		struct tally tally;
		memset(&tally, 0, sizeof(tally));
		kern_threads_run(t, 7, count_task, &tally);
		for (u32 i = 0; i < 7; i++)
			cr_assert_eq(tally.times[i], 1, "run %u task %u", run, i);
		if (run % 8 == 0)
			sleep_us(run);
	}
	kern_threads_destroy(&t);
}

/* Waiting threads read ahead of memory that may be gone, of an end that is none, and of nothing. */
Test(threads, memory_that_is_fetched_ahead_need_not_exist)
{
	const size_t bytes = (size_t)64 << 10;
	const void *bases[] = {NULL, (const void *)4096, malloc(bytes), (const void *)SIZE_MAX};
	struct kern_threads *t = pool_of(3);
	free((void *)bases[2]);
	for (u32 i = 0; i < 400; i++) {
		struct tally tally;
		memset(&tally, 0, sizeof(tally));
		kern_threads_ahead(t, bases[i % 4], bytes, i % 3 * bytes + 1);
		kern_threads_run(t, 6, count_task, &tally);
		for (u32 task = 0; task < 6; task++)
			cr_assert_eq(tally.times[task], 1);
	}
	kern_threads_destroy(&t);
}

static void slow_task(void *arg, u32 task, u32 thread)
{
	(void)task;
	sleep_us(300);
	atomic_fetch_add((atomic_uint *)arg, 1 + 1000 * (thread > 0));
}

Test(threads, the_caller_waits_for_tasks_that_others_took)
{
	struct kern_threads *t = pool_of(4);
	for (u32 run = 0; run < 20; run++) {
		atomic_uint sum = 0;
		kern_threads_run(t, 8, slow_task, &sum);
		cr_assert_eq(sum % 1000, 8);
	}
	kern_threads_destroy(&t);
}

static double cpu_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

Test(threads, an_idle_pool_uses_no_processor_time)
{
	struct kern_threads *t = pool_of(4);
	struct tally tally;
	memset(&tally, 0, sizeof(tally));
	kern_threads_run(t, 16, count_task, &tally);
	sleep_us(20000);
	double used = 1;
	for (u32 i = 0; i < 10 && used >= 0.003; i++) { /* on a busy machine they fall asleep later */
		double before = cpu_seconds();
		sleep_us(300000);
		used = cpu_seconds() - before;
	}
	cr_assert_lt(used, 0.003, "%g s of processor time in 0.3 s of idleness", used);
	kern_threads_destroy(&t);
}

Test(threads, the_automatic_count_is_at_least_one)
{
	struct kern_threads *t = pool_of(0);
	cr_assert_geq(kern_threads_count(t), 1);
	kern_threads_destroy(&t);
	kern_threads_destroy(&t);
}

Test(threads, too_many_threads_are_refused_with_the_limit)
{
	struct kern_threads *t;
	struct err_msg em;
	cr_assert_eq(kern_threads_create(&t, 5000, &em), ERR_INVALID);
	cr_assert_neq(strstr(em.text, "at most 1024"), NULL, "%s", em.text);
	cr_assert_null(t);
}
