/* The other end of the handshake: an engine whose supervisor is our child. Runs in the tercet command. */
#include "proc_supervisor/engine.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proc_supervisor/console.h"
#include "proc_supervisor/spawn.h"

/* Longer than the supervisor itself takes to kill what does not end. */
enum { STOP_WAIT_MS = 8000, LINE_BYTES = 2048 };

struct reader {
	struct engine *engine;
	engine_progress_fn progress;
	void *ctx;
	struct err_msg *em;
	char line[LINE_BYTES];
	size_t bytes;
	bool ready, failed;
};

static void on_line(struct reader *r, const char *line)
{
	double share;
	int used = 0;

	if (sscanf(line, "progress %lf %n", &share, &used) >= 1 && used > 0) {
		if (r->progress != NULL)
			r->progress(r->ctx, share, line + used);
	} else if (strncmp(line, "ready ", 6) == 0) {
		r->ready = console_fact(line + 6, "run_dir", r->engine->run_dir, sizeof(r->engine->run_dir));
	} else if (strncmp(line, "failed ", 7) == 0) {
		err_set(r->em, ERR_IO, "%s", line + 7);
		r->failed = true;
	}
}

/* False when the engine closed its end. */
static bool read_lines(struct reader *r)
{
	ssize_t n = recv(r->engine->boot_fd, r->line + r->bytes, sizeof(r->line) - r->bytes, MSG_DONTWAIT);
	char *end;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	r->bytes += (size_t)n;
	while ((end = memchr(r->line, '\n', r->bytes)) != NULL) {
		*end = '\0';
		on_line(r, r->line);
		r->bytes -= (size_t)(end + 1 - r->line);
		memmove(r->line, end + 1, r->bytes);
	}
	if (r->bytes == sizeof(r->line))
		r->bytes = 0;
	return n > 0;
}

static enum err wait_until_ready(struct reader *r, int signal_fd)
{
	struct pollfd fds[] = {{.fd = r->engine->boot_fd, .events = POLLIN},
			       {.fd = signal_fd, .events = POLLIN}};

	while (!r->ready) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return err_set(r->em, ERR_IO, "poll: %s", strerror(errno));
		if (fds[1].revents != 0)
			return err_set(r->em, ERR_ABORTED, "interrupted while the engine started");
		bool open = read_lines(r);
		if (r->failed)
			return ERR_IO;
		if (!open && !r->ready)
			return err_set(r->em, ERR_IO, "the engine ended while it started");
	}
	return ERR_OK;
}

enum err engine_start(struct engine *e, const struct options *o, engine_progress_fn progress, void *ctx,
		      struct err_msg *em)
{
	struct reader r = {.engine = e, .progress = progress, .ctx = ctx, .em = em};
	struct spawned p;
	char path[PATH_MAX];
	sigset_t set, old;
	enum err error;

	*e = (struct engine){.pidfd = -1, .boot_fd = -1};
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (n < 0)
		return err_set(em, ERR_IO, "/proc/self/exe: %s", strerror(errno));
	path[n] = '\0';
	error = spawn_process(&p, path, "serve", o, 0, SPAWN_API_KEYS | SPAWN_CLUSTER_SECRET, em);
	if (error != ERR_OK)
		return error;
	e->pid = p.pid;
	e->pidfd = p.pidfd;
	e->boot_fd = p.boot_fd;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, &old);
	int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	error = wait_until_ready(&r, signal_fd);
	if (signal_fd >= 0)
		close(signal_fd);
	if (error != ERR_OK)
		engine_stop(e);
	/* An interrupt that came now is still pending and ends this process as it would have before. */
	sigprocmask(SIG_SETMASK, &old, NULL);
	return error;
}

bool engine_is_alive(const struct engine *e)
{
	siginfo_t info = {.si_pid = 0};

	return e->pid > 0 && waitid(P_PID, (id_t)e->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       info.si_pid == 0;
}

void engine_stop(struct engine *e)
{
	if (e->pid == 0)
		return;
	struct pollfd end = {.fd = e->pidfd, .events = POLLIN};
	siginfo_t info;

	if (e->boot_fd >= 0)
		close(e->boot_fd); /* says "stop" */
	if (poll(&end, 1, STOP_WAIT_MS) != 1) {
		/* Its children end with it. */
		syscall(SYS_pidfd_send_signal, e->pidfd, SIGKILL, NULL, 0);
	}
	waitid(P_PID, (id_t)e->pid, &info, WEXITED);
	close(e->pidfd);
	*e = (struct engine){.pidfd = -1, .boot_fd = -1};
}
