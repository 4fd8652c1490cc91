/* The child's side of the handshake with the supervisor: lines of text over an inherited socketpair. Runs in the main
 * thread of every process that the supervisor spawns. It must never block on a supervisor that does not read. */
#include "ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/sched_slice.h"

/* After prctl, so that a parent that dies at any moment is noticed: before it here, after it by the signal. */
static bool parent_is_there(int fd)
{
	struct ucred creator;
	socklen_t size = sizeof(creator);
	char byte;
	if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		return false;
	/* The creator of a socketpair is on record; 0 when it lives outside of our PID namespace. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &creator, &size))
		return false;
	return creator.pid == 0 || creator.pid == getppid();
}

void boot_raise_file_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		LOG_WARN("FILE_LIMIT", "reason=\"%s\"", strerror(errno));
}

enum err boot_attach(struct boot *b, struct err_msg *em)
{
	*b = (struct boot){.fd = -1};
	boot_raise_file_limit();
	const char *text = getenv("TERCET_BOOT_FD");
	if (!text)
		return ERR_OK;
	char *end;
	long fd = strtol(text, &end, 10);
	if (*text == '\0' || *end || fd < 0 || fd > 1 << 20 || fcntl((int)fd, F_GETFD) < 0)
		return err_set(em, ERR_INVALID, "TERCET_BOOT_FD='%s' is no open descriptor", text);
	unsetenv("TERCET_BOOT_FD"); /* children of ours must not take it for theirs */
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN); /* Slurm and service managers send it to every process, and the supervisor drains */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of the write, not the end of the process */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		return err_set(em, ERR_IO, "cannot ask for the parent-death signal: %s", strerror(errno));
	if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) || fcntl((int)fd, F_SETFL, O_NONBLOCK))
		return err_set(em, ERR_IO, "cannot set up the supervisor's socket: %s", strerror(errno));
	if (!parent_is_there((int)fd))
		return err_set(em, ERR_GONE, "the supervisor that started this process is gone");
	b->fd = (int)fd;
	sched_slice_short(); /* where the kernel knows it; nothing depends on it but waiting times */
	return ERR_OK;
}

/* One line, one send: the supervisor reads whole lines. Line ends inside the text would forge others. */
static PRINTF_LIKE(3, 0) void send_line(struct boot *b, const char *verb, const char *fmt, va_list args)
{
	if (b->fd < 0)
		return;
	char line[sizeof(b->line)];
	int head = snprintf(line, sizeof(line), "%s ", verb);
	vsnprintf(line + head, sizeof(line) - (size_t)head - 1, fmt, args);
	size_t bytes = strlen(line);
	for (size_t i = 0; i < bytes; i++)
		if (line[i] == '\n' || line[i] == '\r')
			line[i] = ' ';
	line[bytes++] = '\n';
	if (send(b->fd, line, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
		LOG_WARN("BOOT_LINE_LOST", "verb=%s reason=\"%s\"", verb, strerror(errno));
}

static PRINTF_LIKE(3, 4) void send_text(struct boot *b, const char *verb, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	send_line(b, verb, fmt, args);
	va_end(args);
}

void boot_progress(struct boot *b, double share, const char *what)
{
	send_text(b, "progress", "%.3f %s", share, what);
}

void boot_ready(struct boot *b, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	send_line(b, "ready", fmt, args);
	va_end(args);
}

void boot_note(struct boot *b, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	send_line(b, "note", fmt, args);
	va_end(args);
}

void boot_failed(struct boot *b, const struct err_msg *em)
{
	if (b->fd < 0)
		LOG_ERROR("FAILED", "reason=\"%s\"", em->text);
	else
		send_text(b, "failed", "%s", em->text);
}

/* Takes the first line off the buffer. */
static enum boot_command take_line(struct boot *b)
{
	enum boot_command command = BOOT_NONE;
	char *end;
	while (command == BOOT_NONE && (end = memchr(b->line, '\n', b->line_bytes)) != NULL) {
		size_t bytes = (size_t)(end - b->line);
		if (bytes == 4 && !memcmp(b->line, "ping", 4))
			(void)!write(b->fd, "pong\n", 5); /* lost only when the supervisor does not read */
		else if (bytes == 5 && !memcmp(b->line, "drain", 5))
			command = BOOT_DRAIN;
		else if (bytes == 4 && !memcmp(b->line, "stop", 4))
			command = BOOT_STOP;
		b->line_bytes -= bytes + 1;
		memmove(b->line, end + 1, b->line_bytes);
	}
	return command;
}

enum boot_command boot_poll(struct boot *b)
{
	if (b->fd < 0)
		return BOOT_NONE;
	enum boot_command command = take_line(b);
	if (command != BOOT_NONE)
		return command;
	if (b->line_bytes == sizeof(b->line))
		b->line_bytes = 0; /* longer than any command */
	ssize_t n = recv(b->fd, b->line + b->line_bytes, sizeof(b->line) - b->line_bytes, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return BOOT_NONE;
	b->orphaned = n <= 0;
	if (b->orphaned)
		return BOOT_STOP;
	b->line_bytes += (size_t)n;
	return take_line(b);
}
