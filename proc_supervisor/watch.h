/* What the supervisor waits for, in one epoll: signals, ends of children, lines from children, the parent. */
#ifndef TERCET_PROC_SUPERVISOR_WATCH_H
#define TERCET_PROC_SUPERVISOR_WATCH_H

#include <signal.h>

#include "common/err.h"
#include "common/types.h"

enum watch_kind { WATCH_SIGNAL, WATCH_EXIT, WATCH_LINE, WATCH_PARENT };

struct watch_event {
	enum watch_kind kind;
	u32 index; /* of the child, for WATCH_EXIT and WATCH_LINE */
};

struct watch {
	int epoll_fd, signal_fd;
	sigset_t old_mask;
};

/* Blocks SIGTERM, SIGINT, SIGQUIT, SIGCHLD and (unless it is ignored, as nohup wants) SIGHUP, and takes them
 * from a descriptor. ERR_IO. */
MUST_CHECK enum err watch_open(struct watch *w, struct err_msg *em);
void watch_close(struct watch *w); /* restores the signal mask; zero-initialised is not valid */

/* Watches a descriptor until it is closed. ERR_IO. */
MUST_CHECK enum err watch_add(struct watch *w, int fd, enum watch_kind kind, u32 index, struct err_msg *em);
/* Waits up to `timeout_ms` (-1: for ever) and writes at most `max` events; returns how many. */
u32 watch_wait(struct watch *w, int timeout_ms, struct watch_event *events, u32 max);
/* The next signal that came, or 0. */
int watch_next_signal(struct watch *w);

#endif
