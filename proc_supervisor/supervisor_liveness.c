/* Liveness: of the processes that are ready, which one has stopped getting on. Judged by what they count in
 * their statistics pages and by their answers to pings; the supervisor never asks them for more. */
#include <stdatomic.h>
#include <sys/wait.h>

#include "common/log.h"
#include "proc_supervisor/supervisor_priv.h"

/* A process that starts and says nothing for so long is stuck. Loading a large checkpoint from a slow disk
 * says something every per cent. */
enum { START_SILENCE_S = 600, LIVENESS_PERIOD_S = 5, PINGS_PER_LIMIT = 4 };
/* A process that a signal has stopped gets on with nothing, however busy the machine is: others of its group wait
 * for it meanwhile. So long a pause may be meant. */
enum { STOPPED_S = 3 };

static const u64 second_ns = 1000000000;

/* Who waits for nobody first. */
static const enum ipc_role downstream[] = {IPC_ROLE_WORKER, IPC_ROLE_DETOK, IPC_ROLE_SCHEDULER,
					   IPC_ROLE_GATEWAY};

/* Where the process counts what it completes, or NULL. */
static const struct stats_page *page_of(struct supervisor *s, struct child *c)
{
	if (c->stats == NULL && stats_map_one(&c->stats, s->run_dir.path, c->spec->name, NULL) != ERR_OK)
		return NULL;
	return c->stats->pid == c->pid ? c->stats : NULL;
}

static u64 later(u64 a, u64 b)
{
	return a > b ? a : b;
}

static u64 elapsed(u64 since_ns, u64 now_ns)
{
	return now_ns > since_ns ? now_ns - since_ns : 0;
}

/* For how long a process that is ready owes an answer to a ping. One that computes a long step does not
 * answer, but completes parts of it. */
static u64 silent_for(struct supervisor *s, struct child *c, u64 now_ns)
{
	const struct stats_page *page = page_of(s, c);
	u64 progress_ns = page != NULL ? atomic_load_explicit(&page->progress_ns, memory_order_relaxed) : 0;

	if (c->state != CHILD_READY || !c->ping_is_out)
		return 0;
	return elapsed(later(c->pinged_ns, progress_ns), now_ns);
}

/* When a worker last got on with a step. */
static u64 worker_progress(struct supervisor *s)
{
	u64 last = 0;

	for (u32 i = 0; i < s->plan.count; i++) {
		struct child *c = &s->children[i];
		const struct stats_page *page = c->spec->role == IPC_ROLE_WORKER ? page_of(s, c) : NULL;
		if (page != NULL)
			last = later(last, atomic_load_explicit(&page->progress_ns, memory_order_relaxed));
	}
	return last;
}

/* For how long a process that is ready has had work and completed none. While a long step gets on, those that
 * wait for it are not to blame. */
static u64 fruitless_for(struct supervisor *s, struct child *c, u64 now_ns)
{
	const struct stats_page *page = page_of(s, c);
	u64 waits_since = c->spec->role != IPC_ROLE_WORKER ? worker_progress(s) : 0;

	if (c->state != CHILD_READY || page == NULL ||
	    atomic_load_explicit(&page->work_pending, memory_order_acquire) == 0)
		return 0;
	u64 progress_ns = atomic_load_explicit(&page->progress_ns, memory_order_relaxed);
	/* Whoever waited for a process that was restarted gets its time anew. */
	return elapsed(later(later(progress_ns, waits_since), s->liveness_from_ns), now_ns);
}

static void ping(struct supervisor *s, u64 now_ns, u64 period_ns)
{
	for (u32 i = 0; i < s->plan.count; i++) {
		struct child *c = &s->children[i];
		if (c->state != CHILD_READY || c->ping_is_out || now_ns - c->pinged_ns < period_ns)
			continue;
		c->pinged_ns = now_ns;
		c->ping_is_out = true;
		supervisor_send(c, "ping\n");
	}
}

static void recycle(struct supervisor *s, struct child *c, u64 now_ns, const char *why)
{
	LOG_ERROR("STUCK", "process=%s pid=%d why=\"%s\"", c->spec->name, (int)c->pid, why);
	supervisor_restart(s, c, now_ns, why);
	supervisor_apply(s, c, CHILD_ON_RECYCLE, now_ns);
}

/* A worker that hangs makes the scheduler hang, not the other way round: of several that could be it, the one
 * furthest down is. When somebody completes nothing, whoever owes an answer for a while already is more
 * suspect than he. */
static void check_running(struct supervisor *s, u64 now_ns, u64 limit_ns)
{
	bool fruitless = false;

	for (u32 i = 0; i < s->plan.count; i++)
		fruitless |= fruitless_for(s, &s->children[i], now_ns) > limit_ns;
	for (size_t k = 0; k < COUNT_OF(downstream); k++)
		for (u32 i = 0; i < s->plan.count; i++) {
			struct child *c = &s->children[i];
			if (c->spec->role != downstream[k])
				continue;
			if (silent_for(s, c, now_ns) > (fruitless ? limit_ns / PINGS_PER_LIMIT : limit_ns))
				recycle(s, c, now_ns, "does not answer");
			else if (fruitless_for(s, c, now_ns) > limit_ns)
				recycle(s, c, now_ns, "has work and completes none");
			else
				continue;
			return;
		}
}

static u64 stopped_limit(const struct supervisor *s)
{
	i64 limit_s = s->options->progress_timeout;

	return (u64)(limit_s < STOPPED_S ? limit_s : STOPPED_S) * second_ns;
}

/* A stopped process whose time runs. */
static bool is_stopped(const struct supervisor *s, const struct child *c)
{
	return c->stopped_ns != 0 && s->phase == PHASE_RUN && s->options->progress_timeout > 0 &&
	       (c->state == CHILD_STARTING || c->state == CHILD_READY);
}

void supervisor_note_stops(struct supervisor *s, u64 now_ns)
{
	for (u32 i = 0; i < s->plan.count; i++) {
		struct child *c = &s->children[i];
		siginfo_t info = {.si_pid = 0};
		while (c->pid > 0 && waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
		       info.si_pid != 0) {
			c->stopped_ns = info.si_code == CLD_STOPPED ? now_ns : 0;
			info.si_pid = 0;
		}
	}
}

static void check_stopped(struct supervisor *s, u64 now_ns)
{
	u64 limit_ns = stopped_limit(s);

	for (u32 i = 0; i < s->plan.count; i++) {
		struct child *c = &s->children[i];
		u64 for_ns = elapsed(c->stopped_ns, now_ns);
		if (!is_stopped(s, c) || for_ns < limit_ns)
			continue;
		if (for_ns > limit_ns + second_ns) /* nobody looked: the supervisor itself was stopped */
			c->stopped_ns = now_ns;
		else
			recycle(s, c, now_ns, "was stopped by a signal and not continued");
	}
}

/* Processes that start wait for each other, the scheduler for workers that load for an hour: only when none
 * of them says anything, the one furthest down has stopped. */
static void check_starting(struct supervisor *s, u64 now_ns)
{
	struct child *suspect = NULL;
	u64 heard_ns = 0;

	for (size_t k = COUNT_OF(downstream); k-- > 0;)
		for (u32 i = 0; i < s->plan.count; i++) {
			struct child *c = &s->children[i];
			if (c->spec->role != downstream[k] || c->state != CHILD_STARTING)
				continue;
			suspect = c;
			heard_ns = later(heard_ns, c->heard_ns);
		}
	if (suspect == NULL || elapsed(heard_ns, now_ns) < START_SILENCE_S * second_ns)
		return;
	if (s->phase == PHASE_START)
		supervisor_fail(s, now_ns, "%s said nothing for %d seconds while it started",
				suspect->spec->name, START_SILENCE_S);
	else if (s->phase == PHASE_RUN)
		recycle(s, suspect, now_ns, "says nothing while it starts");
}

static void forgive(struct supervisor *s, u64 now_ns)
{
	s->liveness_from_ns = now_ns;
	for (u32 i = 0; i < s->plan.count; i++)
		s->children[i].pinged_ns = now_ns;
}

void supervisor_check_liveness(struct supervisor *s, u64 now_ns)
{
	u64 limit_ns = (u64)s->options->progress_timeout * second_ns;

	check_starting(s, now_ns);
	if (s->phase != PHASE_RUN || limit_ns == 0)
		return;
	/* Whoever was itself kept from running (a machine that slept, a paused container) judges nobody by that time. */
	if (elapsed(s->liveness_checked_ns, now_ns) > limit_ns / 2)
		forgive(s, now_ns);
	s->liveness_checked_ns = now_ns;
	supervisor_note_stops(s, now_ns);
	check_stopped(s, now_ns);
	ping(s, now_ns, limit_ns / PINGS_PER_LIMIT);
	check_running(s, now_ns, limit_ns);
}

/* Often enough for the limit, and hardly ever; but for who is stopped, when his time is over. */
u64 supervisor_next_liveness(const struct supervisor *s, u64 now_ns)
{
	u64 period_ns = (u64)s->options->progress_timeout * second_ns / (2 * PINGS_PER_LIMIT);
	u64 next_ns = now_ns + (period_ns != 0 && period_ns < LIVENESS_PERIOD_S * second_ns
					? period_ns
					: LIVENESS_PERIOD_S * second_ns);

	for (u32 i = 0; i < s->plan.count; i++) {
		const struct child *c = &s->children[i];
		if (is_stopped(s, c) && c->stopped_ns + stopped_limit(s) < next_ns)
			next_ns = c->stopped_ns + stopped_limit(s);
	}
	return next_ns;
}
