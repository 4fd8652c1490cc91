/* The two orders of the scheduler: who waits (first come, first served; who was preempted goes to the head)
 * and who runs (in order of admission). */
#ifndef TERCET_PROC_SCHEDULER_QUEUES_H
#define TERCET_PROC_SCHEDULER_QUEUES_H

#include "common/err.h"
#include "proc_scheduler/seqs.h"

/* A doubly linked list through struct seq. Zeroed is not valid: waiting_init. */
struct waiting {
	u32 head, tail; /* slots; SEQ_NONE: empty */
	u32 count;
};

void waiting_init(struct waiting *w);
void waiting_push(struct waiting *w, struct seqs *t, struct seq *q);
void waiting_push_head(struct waiting *w, struct seqs *t, struct seq *q);
void waiting_remove(struct waiting *w, struct seqs *t, struct seq *q);
struct seq *waiting_head(const struct waiting *w, const struct seqs *t); /* NULL: empty */

/* Slots in order of admission, without holes. */
struct running {
	u32 *slots; /* [capacity] */
	u32 count, capacity;
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err running_init(struct running *r, u32 capacity);
void running_fini(struct running *r); /* zeroed accepted */
void running_push(struct running *r, u32 slot);
/* Keeps the order of the others. */
void running_remove(struct running *r, u32 slot);

#endif
