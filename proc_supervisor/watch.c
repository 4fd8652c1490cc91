/* One epoll for everything the supervisor reacts to. An event names a child by its index: after a restart the
 * same index stands for the new process, whose descriptors are read without blocking, so that a late event
 * does no harm. */
#include "proc_supervisor/watch.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void signal_set(sigset_t *set)
{
	struct sigaction hang_up;

	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGQUIT);
	sigaddset(set, SIGCHLD);
	if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
		sigaddset(set, SIGHUP);
}

enum err watch_open(struct watch *w, struct err_msg *em)
{
	sigset_t set;

	*w = (struct watch){.epoll_fd = -1, .signal_fd = -1};
	signal_set(&set);
	sigprocmask(SIG_BLOCK, &set, &w->old_mask);
	/* A signal that is ignored never reaches a descriptor, and a shell starts background jobs with SIGINT
	 * ignored. */
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGQUIT, SIG_DFL);
	w->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (w->signal_fd < 0 || w->epoll_fd < 0) {
		enum err e = err_set(em, ERR_IO, "cannot watch for signals: %s", strerror(errno));
		watch_close(w);
		return e;
	}
	enum err e = watch_add(w, w->signal_fd, WATCH_SIGNAL, 0, em);
	if (e != ERR_OK)
		watch_close(w);
	return e;
}

void watch_close(struct watch *w)
{
	if (w->epoll_fd >= 0)
		close(w->epoll_fd);
	if (w->signal_fd >= 0)
		close(w->signal_fd);
	w->epoll_fd = w->signal_fd = -1;
	sigprocmask(SIG_SETMASK, &w->old_mask, NULL);
}

enum err watch_add(struct watch *w, int fd, enum watch_kind kind, u32 index, struct err_msg *em)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (u64)kind << 32 | index};

	if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return err_set(em, ERR_IO, "cannot watch a descriptor: %s", strerror(errno));
	return ERR_OK;
}

u32 watch_wait(struct watch *w, int timeout_ms, struct watch_event *events, u32 max)
{
	struct epoll_event ready[64];

	if (max > COUNT_OF(ready))
		max = COUNT_OF(ready);
	int n = epoll_wait(w->epoll_fd, ready, (int)max, timeout_ms);
	for (int i = 0; i < n; i++)
		events[i] = (struct watch_event){(enum watch_kind)(ready[i].data.u64 >> 32),
						 (u32)ready[i].data.u64};
	return n > 0 ? (u32)n : 0;
}

int watch_next_signal(struct watch *w)
{
	struct signalfd_siginfo info;

	if (read(w->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return 0;
	return (int)info.ssi_signo;
}
