/* The scheduler process: the I/O shell around the scheduling core. */
#ifndef TERCET_PROC_SCHEDULER_SCHEDULER_H
#define TERCET_PROC_SCHEDULER_SCHEDULER_H

#include "common/options.h"
#include "ipc/ipc.h"

struct scheduler;

/* Opens the channels of `o->run_dir` and waits in its loop for the workers. `o` and `boot` are borrowed for
 * its life. ERR_IO, ERR_NO_MEMORY, ERR_INVALID with a text for people. */
MUST_CHECK enum err scheduler_create(struct scheduler **out, const struct options *o, struct boot *boot,
				     struct err_msg *em);
void scheduler_destroy(struct scheduler **s);
/* Serves until the supervisor says stop. ERR_*: it cannot go on; `em` says why. */
MUST_CHECK enum err scheduler_run(struct scheduler *s, struct err_msg *em);

#endif
