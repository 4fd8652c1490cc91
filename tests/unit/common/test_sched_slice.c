/* The slice of a thread, as the kernel tells it back. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/sched_slice.h"

struct told {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static struct told ask(void)
{
	struct told t = {0};

	cr_assert_eq(syscall(SYS_sched_getattr, 0, &t, sizeof(t), 0), 0);
	return t;
}

static void *in_a_thread(void *runtime)
{
	*(uint64_t *)runtime = ask().runtime;
	return NULL;
}

Test(sched_slice, is_short_for_the_thread_and_its_children_until_it_is_taken_back)
{
	struct told before = ask();
	if (!sched_slice_short()) /* a kernel without slices: nothing may have changed */
		cr_assert_eq(ask().runtime, before.runtime);
	else
		cr_assert_eq(ask().runtime, 100000);
	cr_assert_eq(ask().nice, before.nice);
	cr_assert_eq(ask().policy, before.policy);

	uint64_t inherited = 0;
	pthread_t id;
	cr_assert_eq(pthread_create(&id, NULL, in_a_thread, &inherited), 0);
	pthread_join(id, NULL);
	cr_assert_eq(inherited, ask().runtime);

	if (sched_slice_default())
		cr_assert_eq(ask().runtime, before.runtime);
}
