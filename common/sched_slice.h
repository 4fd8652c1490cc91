/* How long a thread wants to run at a stretch. Linux picks, of the threads that are owed time, the one whose
 * slice ends first, and lets a waking thread of short slices cut in on one of long slices. The total share of
 * each stays the same, and no privilege is needed. */
#ifndef TERCET_COMMON_SCHED_SLICE_H
#define TERCET_COMMON_SCHED_SLICE_H

#include <stdbool.h>

/* For threads that answer: woken for some microseconds of work that others wait for. Holds for the calling
 * thread and for those that it creates from now on. Returns false where the kernel (before Linux 6.12, or a
 * container's filter) has no such thing; nothing is changed then. */
bool sched_slice_short(void);
/* For threads that compute: back to the kernel's own choice. */
bool sched_slice_default(void);

#endif
