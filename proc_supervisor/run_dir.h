/* The run directory: sockets, statistics pages and traces of one engine. */
#ifndef TERCET_PROC_SUPERVISOR_RUN_DIR_H
#define TERCET_PROC_SUPERVISOR_RUN_DIR_H

#include <stdbool.h>

#include "common/err.h"

struct run_dir {
	char path[128]; /* absolute */
	bool created;	/* by us: removed at the end */
	bool was_empty; /* everything in it is ours */
	int lock_fd;	/* held for life: one engine per directory */
};

/* Makes (or takes) the directory with mode 0700 and locks it. `wanted` is --run-dir; "" makes a fresh
 * tercet-XXXXXX in $XDG_RUNTIME_DIR or /tmp and clears away those that crashed engines of this user left
 * there. ERR_TOO_LONG: socket paths in it would be longer than 107 bytes. ERR_IO: cannot be made or written.
 * ERR_BUSY: another engine runs in it. ERR_DENIED: it holds something and others may enter it. */
MUST_CHECK enum err run_dir_open(struct run_dir *d, const char *wanted, struct err_msg *em);
/* Removes what the engine put there, and the directory when it made it. */
void run_dir_close(struct run_dir *d);

#endif
