/* The two orders of the scheduler: who waits and who runs. Lower priorities go first in both. Among equals those
 * wait in order of arrival, who was preempted in front of them, and those run in order of admission: the last one
 * is the one to preempt. */
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
/* Behind its equals; as far from the tail as there are lower ones. */
void waiting_push(struct waiting *w, struct seqs *t, struct seq *q);
/* In front of its equals; as far from the head as there are higher ones. */
void waiting_push_head(struct waiting *w, struct seqs *t, struct seq *q);
void waiting_remove(struct waiting *w, struct seqs *t, struct seq *q);
struct seq *waiting_head(const struct waiting *w, const struct seqs *t); /* NULL: empty */

/* Slots without holes. */
struct running {
	u32 *slots; /* [capacity] */
	u32 count, capacity;
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err running_init(struct running *r, u32 capacity);
void running_fini(struct running *r); /* zeroed accepted */
void running_push(struct running *r, const struct seqs *t, u32 slot);
/* Directly behind `before`, which is there. */
void running_put_behind(struct running *r, u32 slot, u32 before);
/* Keeps the order of the others. */
void running_remove(struct running *r, u32 slot);

#endif
