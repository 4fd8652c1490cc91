/* The slice of a thread under Linux's EEVDF scheduler, through sched_setattr, which glibc does not wrap. */
#include "common/sched_slice.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in linux/sched/types.h, first version (48 bytes). */
struct attributes {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static const uint64_t SHORT_NS = 100000; /* the least that the kernel takes */

static bool set_slice(uint64_t ns)
{
	struct attributes a = {.size = sizeof(a)};

	if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0))
		return false;
	if (a.policy != 0) /* not SCHED_OTHER: somebody has decided otherwise */
		return false;
	a.size = sizeof(a);
	a.runtime = ns;
	return syscall(SYS_sched_setattr, 0, &a, 0) == 0;
}

bool sched_slice_short(void)
{
	return set_slice(SHORT_NS);
}

bool sched_slice_default(void)
{
	return set_slice(0);
}
