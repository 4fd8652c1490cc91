/* Children of the supervisor: spawning, reading their lines, their ends and restarts. What has to happen is
 * decided by the table in child.c; this file carries it out. */
#include "proc_supervisor/supervisor_priv.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_supervisor/spawn.h"

static u32 index_of(const struct supervisor *s, const struct child *c)
{
	return (u32)(c - s->children);
}

/* ---------------------------------------------------------------- actions */

static void close_process(struct child *c)
{
	if (c->pidfd >= 0)
		close(c->pidfd);
	if (c->boot_fd >= 0)
		close(c->boot_fd);
	c->pidfd = c->boot_fd = -1;
	c->pid = 0;
	c->stopped_ns = 0;
	c->line_bytes = 0;
}

static u32 secrets_of(enum ipc_role role)
{
	if (role == IPC_ROLE_GATEWAY)
		return SPAWN_API_KEYS;
	return role == IPC_ROLE_SCHEDULER || role == IPC_ROLE_WORKER ? SPAWN_CLUSTER_SECRET : 0;
}

static void spawn(struct supervisor *s, struct child *c, u64 now_ns)
{
	char path[PATH_MAX];
	struct spawned p;
	struct err_msg em;
	enum err e;

	c->heard_ns = now_ns;
	c->ready_ns = c->pinged_ns = 0;
	c->stopped_ns = 0;
	c->ping_is_out = false;
	c->progress = 0;
	c->drained = false;
	c->facts[0] = c->failure[0] = '\0';
	e = plan_find_program(path, sizeof(path), c->spec->program, &em);
	if (e == ERR_OK)
		e = spawn_process(&p, path, NULL, s->options, c->spec->rank, secrets_of(c->spec->role), &em);
	if (e == ERR_OK) {
		c->pid = p.pid;
		c->pidfd = p.pidfd;
		c->boot_fd = p.boot_fd;
		e = watch_add(&s->watch, p.pidfd, WATCH_EXIT, index_of(s, c), &em);
		if (e == ERR_OK)
			e = watch_add(&s->watch, p.boot_fd, WATCH_LINE, index_of(s, c), &em);
	}
	if (e != ERR_OK) { /* cannot be mended by trying again: no program, no descriptors */
		supervisor_fail(s, now_ns, "%s: %s", c->spec->name, em.text);
		if (c->pid == 0)
			c->state = CHILD_GONE;
		return;
	}
	LOG_DEBUG("SPAWNED", "process=%s pid=%d", c->spec->name, (int)c->pid);
}

void supervisor_send(struct child *c, const char *line)
{
	/* A child that does not read has a full socket; the deadline of the phase takes care of it. */
	if (c->boot_fd >= 0 && send(c->boot_fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		LOG_WARN("LINE_NOT_SENT", "process=%s reason=\"%s\"", c->spec->name, strerror(errno));
}

/* The session of a child is its process group too: whatever it started ends with it. */
static void kill_group(const struct child *c)
{
	if (c->pid > 0)
		kill(-c->pid, SIGKILL);
	if (c->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
}

static bool same_scope(const struct child *a, const struct child *b)
{
	return a == b ||
	       (a->spec->role == b->spec->role && child_restart_scope(a->spec->role) == RESTART_GROUP);
}

/* The group shares one history: the first member's. */
void supervisor_restart(struct supervisor *s, struct child *c, u64 now_ns, const char *why)
{
	struct child *first = c;
	u32 delay_ms;

	for (u32 i = s->plan.count; i-- > 0;)
		if (same_scope(c, &s->children[i]))
			first = &s->children[i];
	if (!restart_allowed(&first->restarts, restart_is_for_ever(c->spec->role), now_ns, &delay_ms)) {
		supervisor_fail(s, now_ns,
				"%s %s; it was restarted %d times within a minute, which did not help",
				c->spec->name, why, RESTARTS_MAX);
		return;
	}
	log_event(delay_ms == RESTART_DELAY_MS_MAX ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN, "RESTARTING",
		  "process=%s why=\"%s\" delay_ms=%u", c->spec->name, why, delay_ms);
	s->liveness_from_ns = now_ns;
	for (u32 i = 0; i < s->plan.count; i++) {
		struct child *peer = &s->children[i];
		if (!same_scope(c, peer))
			continue;
		peer->spawn_at_ns = now_ns + delay_ms * 1000000ull;
		if (peer != c)
			supervisor_apply(s, peer, CHILD_ON_RECYCLE, now_ns);
	}
}

static void lost(struct supervisor *s, struct child *c, u64 now_ns)
{
	const char *why = c->failure[0] != '\0' ? c->failure : "ended unexpectedly";

	switch (s->phase) {
	case PHASE_START:
		if (c->failure[0] != '\0')
			supervisor_fail(s, now_ns, "%s", c->failure);
		else
			supervisor_fail(s, now_ns, "%s ended while it started", c->spec->name);
		break;
	case PHASE_RUN:
		supervisor_restart(s, c, now_ns, why);
		break;
	case PHASE_DRAIN_GATEWAYS:
	case PHASE_DRAIN_ENGINE:
		c->state = CHILD_GONE;
		if (c->spec->role == IPC_ROLE_GATEWAY)
			break; /* its own requests are lost, those of others go on */
		s->status = 1;
		LOG_ERROR("DRAIN_CUT_SHORT", "process=%s why=\"%s\"", c->spec->name, why);
		supervisor_stop(s, now_ns);
		break;
	case PHASE_STOP:
		c->state = CHILD_GONE;
		break;
	}
}

void supervisor_apply(struct supervisor *s, struct child *c, enum child_event event, u64 now_ns)
{
	struct child_move move = child_move(c->state, event);

	if (move.next != c->state)
		LOG_DEBUG("CHILD", "process=%s from=%s to=%s", c->spec->name, child_state_name(c->state),
			  child_state_name(move.next));
	c->state = move.next;
	switch (move.action) {
	case CHILD_DO_NONE:
	case CHILD_DO_FINISHED:
		break;
	case CHILD_DO_SPAWN:
		spawn(s, c, now_ns);
		break;
	case CHILD_DO_ANNOUNCE:
		c->ready_ns = now_ns;
		c->progress = 1;
		if (s->phase == PHASE_RUN)
			LOG_INFO("RESTARTED", "process=%s pid=%d", c->spec->name, (int)c->pid);
		s->liveness_from_ns = now_ns;
		break;
	case CHILD_DO_SEND_DRAIN:
		supervisor_send(c, "drain\n");
		break;
	case CHILD_DO_SEND_STOP:
		supervisor_send(c, "stop\n");
		break;
	case CHILD_DO_KILL:
		kill_group(c);
		break;
	case CHILD_DO_LOST:
		lost(s, c, now_ns);
		break;
	case CHILD_DO_RESTART:
		break; /* spawn_at_ns was set with the decision */
	case CHILD_ACTION_COUNT:
		break;
	}
}

void supervisor_apply_all(struct supervisor *s, enum child_event event, u64 now_ns)
{
	for (u32 i = 0; i < s->plan.count; i++)
		supervisor_apply(s, &s->children[i], event, now_ns);
}

/* ---------------------------------------------------------------- lines */

static void on_progress(struct supervisor *s, struct child *c, const char *text, u64 now_ns)
{
	double sum = 0, share = 0;
	u32 loading = 0;
	int used = 0;

	if (sscanf(text, "%lf %n", &share, &used) < 1)
		return;
	c->progress = share < 0 ? 0 : share > 1 ? 1 : share;
	if (s->phase != PHASE_START)
		return;
	/* Loading weights is what takes long: the bar shows the workers. */
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == IPC_ROLE_WORKER) {
			sum += s->children[i].progress;
			loading++;
		}
	if (c->spec->role != IPC_ROLE_WORKER || loading == 0)
		return;
	console_progress(&s->console, sum / loading, text + used, now_ns);
	boot_progress(&s->parent, sum / loading, text + used);
}

static void on_whole_line(struct supervisor *s, struct child *c, const char *line, u64 now_ns)
{
	c->heard_ns = now_ns;
	if (strncmp(line, "progress ", 9) == 0) {
		on_progress(s, c, line + 9, now_ns);
	} else if (strncmp(line, "ready", 5) == 0) {
		snprintf(c->facts, sizeof(c->facts), "%.1000s", line + 5 + strspn(line + 5, " "));
		supervisor_apply(s, c, CHILD_ON_READIED, now_ns);
	} else if (strcmp(line, "pong") == 0) {
		c->ping_is_out = false;
	} else if (strncmp(line, "failed ", 7) == 0) {
		snprintf(c->failure, sizeof(c->failure), "%.760s", line + 7);
	} else if (strncmp(line, "note ", 5) == 0) {
		char value[8];
		if (console_fact(line + 5, "drained", value, sizeof(value)))
			c->drained = true;
		if (console_fact(line + 5, "engine_stopped", value, sizeof(value)))
			supervisor_stop(s, now_ns); /* node 0 has; whatever was to be drained is */
	} else {
		LOG_WARN("LINE_UNKNOWN", "process=%s line=\"%.100s\"", c->spec->name, line);
	}
}

void supervisor_on_line(struct supervisor *s, struct child *c, u64 now_ns)
{
	while (c->boot_fd >= 0) {
		ssize_t n = recv(c->boot_fd, c->line + c->line_bytes, sizeof(c->line) - c->line_bytes,
				 MSG_DONTWAIT);
		if (n <= 0) {
			/* Closed: its exit follows. Watched on, an end of file would be reported for ever. */
			if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
				close(c->boot_fd);
				c->boot_fd = -1;
			}
			return;
		}
		c->line_bytes += (size_t)n;
		char *end;
		while ((end = memchr(c->line, '\n', c->line_bytes)) != NULL) {
			char line[sizeof(c->line)];
			size_t bytes = (size_t)(end - c->line);
			memcpy(line, c->line, bytes);
			line[bytes] = '\0';
			c->line_bytes -= bytes + 1;
			memmove(c->line, end + 1, c->line_bytes);
			on_whole_line(s, c, line, now_ns);
		}
		if (c->line_bytes == sizeof(c->line))
			c->line_bytes = 0; /* longer than any line of the protocol */
	}
}

/* ---------------------------------------------------------------- ends */

static void describe_end(struct child *c, const siginfo_t *info)
{
	if (c->failure[0] != '\0')
		return;
	if (info->si_code == CLD_EXITED)
		snprintf(c->failure, sizeof(c->failure), "%s ended unexpectedly with status %d",
			 c->spec->name, info->si_status);
	else
		snprintf(c->failure, sizeof(c->failure), "%s was ended by signal %d (%s)", c->spec->name,
			 info->si_status, strsignal(info->si_status));
}

void supervisor_on_exit(struct supervisor *s, struct child *c, u64 now_ns)
{
	siginfo_t info = {.si_pid = 0};

	if (c->pidfd < 0 || waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
	    info.si_pid == 0)
		return;
	supervisor_on_line(s, c, now_ns); /* its last words */
	describe_end(c, &info);
	kill_group(c); /* before the number is free again */
	waitid(P_PID, (id_t)c->pid, &info, WEXITED);
	LOG_DEBUG("ENDED", "process=%s pid=%d status=%d", c->spec->name, (int)c->pid, info.si_status);
	close_process(c);
	supervisor_apply(s, c, CHILD_ON_EXITED, now_ns);
}

void supervisor_reap(struct supervisor *s, u64 now_ns)
{
	for (;;) {
		siginfo_t info = {.si_pid = 0};
		struct child *ours = NULL;
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
			return;
		for (u32 i = 0; i < s->plan.count; i++)
			if (s->children[i].pid == info.si_pid)
				ours = &s->children[i];
		if (ours != NULL)
			supervisor_on_exit(s, ours, now_ns);
		else
			waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
	}
}

/* ---------------------------------------------------------------- time */

static bool scheduler_is_ready(const struct supervisor *s)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == IPC_ROLE_SCHEDULER)
			return s->children[i].state == CHILD_READY;
	return false;
}

/* A group starts again only once its last member is gone: ranks share memory. */
static bool scope_is_dying(const struct supervisor *s, const struct child *c)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (same_scope(c, &s->children[i]) && s->children[i].state == CHILD_RECYCLING)
			return true;
	return false;
}

static bool may_spawn(const struct supervisor *s, const struct child *c)
{
	if (c->state != CHILD_WAITING || s->phase == PHASE_STOP || scope_is_dying(s, c))
		return false;
	if (c->spec->role == IPC_ROLE_GATEWAY && s->phase > PHASE_RUN)
		return false; /* what it would accept could not be finished */
	return !c->spec->needs_scheduler || s->phase == PHASE_RUN || scheduler_is_ready(s);
}

void supervisor_spawn_due(struct supervisor *s, u64 now_ns)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (may_spawn(s, &s->children[i]) && s->children[i].spawn_at_ns <= now_ns)
			supervisor_apply(s, &s->children[i], CHILD_ON_SPAWN, now_ns);
}

u64 supervisor_next_deadline(const struct supervisor *s, u64 now_ns)
{
	u64 next = s->deadline_ns != 0 ? s->deadline_ns : UINT64_MAX;

	u64 liveness_ns = s->phase <= PHASE_RUN ? supervisor_next_liveness(s, now_ns) : UINT64_MAX;

	if (liveness_ns < next)
		next = liveness_ns;
	for (u32 i = 0; i < s->plan.count; i++)
		if (may_spawn(s, &s->children[i]) && s->children[i].spawn_at_ns < next)
			next = s->children[i].spawn_at_ns;
	return next;
}
