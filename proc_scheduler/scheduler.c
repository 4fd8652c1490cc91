/* Owns the scheduler process: channels, clients, the core, the loop. Every turn drains all input, then plans
 * once. Runs in one thread; never blocks but in its loop, wakes up once a second when there is nothing to do.
 */
#include "proc_scheduler/scheduler.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/scheduler_priv.h"

enum {
	LEASE_TIMER_MS = 1000,
	PARK_TIMER_MS = 20, /* only while a turn waits for the one before */
	FLUSH_TIMER_MS = 5, /* only while a full channel keeps something waiting */
	SUBMIT_OUTBOX_ITEMS = 16384,
	FAREWELL_TURNS = 4,
	FAREWELL_TURN_MS = 25,
	LINGER_MS = 100,
};
static const u64 SUBMIT_OUTBOX_BYTES = 16u << 20;

void scheduler_fail(struct scheduler *s, enum err e, const struct err_msg *em)
{
	s->fatal = e;
	s->fatal_text = *em;
	ipc_loop_stop(s->loop);
}

/* ---------------------------------------------------------------- detokenizer */

static void on_detok(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct scheduler *s = ctx;

	(void)from;
	s->streams.now_ns = clock_now_ns();
	switch (msg->type) {
	case IPC_TYPE_HELLO:
		if (streams_greeted(&s->streams) && s->sched) {
			LOG_WARN("DETOK_RESTARTED", "live=%u ended_lately=%u", sched_live_count(s->sched),
				 s->streams.end_count);
			streams_reopen_begin(&s->streams);
			sched_reopen_streams(s->sched);
			streams_resend_ends(&s->streams, s->streams.now_ns);
			streams_reopen_end(&s->streams);
		}
		break;
	case IPC_TYPE_STOPPED:
		if (s->sched)
			sched_stopped(s->sched, msg->stopped.seq, msg->stopped.output_count,
				      s->streams.now_ns);
		break;
	case IPC_TYPE_ERROR:
		LOG_ERROR("DETOK_ERROR", "reason=\"%.*s\"", (int)msg->error.text_count,
			  (const char *)msg->error.text);
		break;
	default:
		if (ipc_channel_may_log(ch))
			LOG_WARN("UNEXPECTED_MESSAGE", "channel=streams type=%s", ipc_type_name(msg->type));
	}
}

static void on_detok_error(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e,
			   const struct err_msg *em)
{
	struct scheduler *s = ctx;

	(void)from;
	if (ipc_channel_may_log(ch))
		LOG_WARN("DETOK_CHANNEL", "code=%s reason=\"%s\"", err_name(e), em->text);
	if (e == ERR_GONE)
		streams_lost(&s->streams);
}

/* ---------------------------------------------------------------- supervisor */

static void finish_all(struct scheduler *s)
{
	s->streams.now_ns = clock_now_ns();
	if (s->sched)
		sched_fail_all(s->sched, "the server is shutting down", s->streams.now_ns);
	scheduler_refuse_parked(s, ERR_SHUTDOWN, "the server is shutting down");
	ipc_loop_stop(s->loop);
}

static void on_boot(void *ctx, int fd, u32 events)
{
	struct scheduler *s = ctx;
	enum boot_command command;

	(void)fd;
	(void)events;
	while ((command = boot_poll(s->boot)) != BOOT_NONE) {
		LOG_INFO("SUPERVISOR_SAYS", "command=%s", command == BOOT_DRAIN ? "drain" : "stop");
		if (command == BOOT_STOP) {
			finish_all(s);
			return;
		}
		s->draining = true;
		if (s->sched)
			sched_drain(s->sched);
	}
}

/* ---------------------------------------------------------------- turns */

static void on_flush_timer(void *ctx, u64 now_ns)
{
	(void)ctx; /* the turn that follows does it */
	(void)now_ns;
}

/* Channels tell when they have something, not when they have room: while something waits, look again soon. */
static void flush(struct scheduler *s)
{
	bool empty = outbox_flush(&s->submit_outbox);

	empty &= outbox_flush(&s->workers.outbox);
	if (s->streams.connected || !s->streams.was_greeted)
		empty &= outbox_flush(&s->streams.outbox);
	if (empty && s->flush_timer_set) {
		ipc_loop_remove_timer(s->loop, s->flush_timer);
		s->flush_timer_set = false;
	}
	if (!empty && !s->flush_timer_set)
		s->flush_timer_set = ipc_loop_add_timer(s->loop, FLUSH_TIMER_MS, on_flush_timer, s,
							&s->flush_timer) == ERR_OK;
}

static void on_park_timer(void *ctx, u64 now_ns)
{
	(void)ctx; /* the turn that follows does it */
	(void)now_ns;
}

/* Results come with turns; the timer is for those that wait in vain. */
static void try_parked(struct scheduler *s, u64 now_ns)
{
	if (s->parked.count)
		scheduler_try_parked(s, now_ns);
	if (s->parked.count == 0 && s->park_timer_set) {
		ipc_loop_remove_timer(s->loop, s->park_timer);
		s->park_timer_set = false;
	}
	if (s->parked.count && !s->park_timer_set)
		s->park_timer_set =
			ipc_loop_add_timer(s->loop, PARK_TIMER_MS, on_park_timer, s, &s->park_timer) == ERR_OK;
}

static void account(struct scheduler *s, u64 now_ns)
{
	bool busy = s->sched && !sched_is_idle(s->sched);

	atomic_fetch_add_explicit(&s->stats->turns, 1, memory_order_relaxed);
	if (s->busy_since_ns)
		stats_add(s->stats, STATS_BUSY_NS, now_ns - s->busy_since_ns);
	s->busy_since_ns = busy ? now_ns : 0;
	/* Without workers there is nothing that this process could complete: loading may take minutes. */
	if (busy && s->workers.up)
		stats_busy(s->stats, now_ns);
	else
		stats_idle(s->stats);
}

static void on_turn(void *ctx, u64 now_ns)
{
	struct scheduler *s = ctx;

	flush(s);
	try_parked(s, now_ns);
	scheduler_plan(s);
	account(s, now_ns);
	/* A turn that waits for the word on the one before it has not had its answer yet. */
	if (s->draining && !s->drain_told && s->parked.count == 0 && (!s->sched || sched_live_count(s->sched) == 0)) {
		boot_note(s->boot, "drained=1");
		s->drain_told = true;
	}
}

static void on_lease_timer(void *ctx, u64 now_ns)
{
	struct scheduler *s = ctx;

	s->streams.now_ns = now_ns;
	streams_expire(&s->streams, now_ns);
	scheduler_expire_clients(s, now_ns);
	scheduler_tick_sessions(s, now_ns);
}

/* ---------------------------------------------------------------- life */

static enum err open_channel(struct scheduler *s, struct ipc_channel **out, const char *name,
			     enum ipc_pattern pattern, struct err_msg *em)
{
	char endpoint[256];
	const struct options *o = s->options;
	enum err e = ipc_endpoint(endpoint, sizeof(endpoint), o->run_dir, name, em);

	if (e)
		return e;
	struct ipc_channel_config config = {
		.name = name,
		.endpoint = endpoint,
		.pattern = pattern,
		.bind = pattern == IPC_ROUTER,
		.epoch = s->epoch,
		.role = IPC_ROLE_SCHEDULER,
		.record_dir = o->trace_messages[0] ? o->trace_messages : NULL,
		.linger_ms = LINGER_MS,
	};
	return ipc_channel_open(out, s->ipc, &config, em);
}

/* Workers of other nodes come to the address that they were given for this one; where it is none of this machine (it
 * stands behind a translated one), to any. */
static enum err listen_to_nodes(struct scheduler *s, struct err_msg *em)
{
	const struct options *o = s->options;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
	struct cluster_secret secret;
	struct ipc_curve curve;
	char host[NI_MAXHOST], endpoint[NI_MAXHOST + 32];

	if (o->nnodes <= 1)
		return ERR_OK;
	enum err e = cluster_secret_read(&secret, o->cluster_secret_file, em);
	if (e)
		return e;
	ipc_curve_init(&curve, &secret);
	int failed = getaddrinfo(o->master_addr, NULL, &hints, &list);
	if (failed)
		return err_set(em, ERR_NOT_FOUND, "--master-addr %s: %s", o->master_addr, gai_strerror(failed));
	e = ERR_NOT_FOUND;
	for (const struct addrinfo *a = list; e == ERR_NOT_FOUND && a; a = a->ai_next) {
		if (getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof(host), NULL, 0, NI_NUMERICHOST))
			continue;
		e = ipc_tcp_endpoint(endpoint, sizeof(endpoint), host, (u32)o->master_port, em);
		if (!e)
			e = ipc_channel_listen(s->step_channel, endpoint, &curve, em);
	}
	freeaddrinfo(list);
	if (e == ERR_NOT_FOUND && !ipc_tcp_endpoint(endpoint, sizeof(endpoint), "*", (u32)o->master_port, em))
		e = ipc_channel_listen(s->step_channel, endpoint, &curve, em);
	if (!e)
		LOG_INFO("LISTENS_TO_NODES", "endpoint=%s nodes=%d", endpoint, (int)o->nnodes);
	if (e == ERR_BUSY)
		err_prefix(em, "--master-port %d", (int)o->master_port);
	return e;
}

static enum err open_channels(struct scheduler *s, struct err_msg *em)
{
	enum err e = ipc_context_create(&s->ipc, em);

	if (!e)
		e = open_channel(s, &s->submit_channel, "submit", IPC_ROUTER, em);
	if (!e)
		e = open_channel(s, &s->step_channel, "step", IPC_ROUTER, em);
	if (!e)
		e = listen_to_nodes(s, em);
	if (!e)
		e = open_channel(s, &s->stream_channel, "streams", IPC_DEALER, em);
	return e;
}

static enum err init_parts(struct scheduler *s, struct err_msg *em)
{
	u64 secret;

	memcpy(&secret, s->secret, sizeof(secret));
	enum err e = clients_init(&s->clients, secret);
	if (!e)
		e = outbox_init(&s->submit_outbox, s->submit_channel, SUBMIT_OUTBOX_ITEMS,
				SUBMIT_OUTBOX_BYTES);
	if (!e)
		e = workers_init(&s->workers, s->step_channel, (u32)s->options->tensor_parallel_size);
	if (!e)
		e = streams_init(&s->streams, s->stream_channel);
	s->streams.epoch = s->epoch;
	return e ? err_set(em, e, "out of memory") : ERR_OK;
}

static enum err init_loop(struct scheduler *s, struct err_msg *em)
{
	u32 lease_timer;
	enum err e = ipc_loop_create(&s->loop, em);

	if (e)
		return e;
	/* Read in this order: where the detokenizer ended a session's turn is known before the next turn, which follows it. */
	e = ipc_loop_add_channel(s->loop, s->stream_channel, on_detok, on_detok_error, s);
	if (!e)
		e = ipc_loop_add_channel(s->loop, s->submit_channel, scheduler_on_client, NULL, s);
	if (!e)
		e = ipc_loop_add_channel(s->loop, s->step_channel, scheduler_on_worker, NULL, s);
	if (!e && s->boot->fd >= 0)
		e = ipc_loop_add_fd(s->loop, s->boot->fd, EPOLLIN, on_boot, s);
	if (!e)
		e = ipc_loop_add_timer(s->loop, LEASE_TIMER_MS, on_lease_timer, s, &lease_timer);
	ipc_loop_on_turn(s->loop, on_turn, s);
	return e ? err_set(em, e, "cannot set up the event loop: %s", err_text(e)) : ERR_OK;
}

enum err scheduler_create(struct scheduler **out, const struct options *o, struct boot *boot,
			  struct err_msg *em)
{
	*out = NULL;
	if (!o->run_dir[0])
		return err_set(em, ERR_INVALID,
			       "--run-dir is missing: the directory of the engine's sockets");
	struct scheduler *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	s->options = o;
	s->boot = boot;
	s->epoch = clock_now_ns(); /* above that of any earlier life on this host */
	enum err e = speculative_parse(&s->speculative, o->speculative_config, em);
	if (!e && getrandom(s->secret, sizeof(s->secret), 0) != (ssize_t)sizeof(s->secret))
		e = err_set(em, ERR_IO, "no random bytes: %s", strerror(errno));
	if (!e && s->speculative.tokens && o->async_depth)
		LOG_INFO("ASYNC_DEPTH", "async_depth=0 reason=\"--speculative-config: a step's positions are known when the one before "
					"has told what came true\"");
	if (!e)
		e = lora_modules_read(&s->loras, o, em);
	if (!e)
		e = stats_create(&s->stats, o->run_dir, "scheduler", em);
	if (!e && o->trace[0])
		e = trace_create(&s->trace, o->run_dir, "scheduler", em);
	if (!e)
		e = scheduler_open_sessions(s, em);
	if (!e)
		e = open_channels(s, em);
	if (!e)
		e = init_parts(s, em);
	if (!e)
		e = init_loop(s, em);
	if (e)
		scheduler_destroy(&s);
	*out = s;
	return e;
}

void scheduler_destroy(struct scheduler **out)
{
	struct scheduler *s = *out;

	if (!s)
		return;
	ipc_loop_destroy(&s->loop);
	sched_destroy(&s->sched);
	scheduler_close_sessions(s);
	parked_fini(&s->parked);
	streams_fini(&s->streams);
	workers_fini(&s->workers);
	outbox_fini(&s->submit_outbox);
	clients_fini(&s->clients);
	ipc_channel_close(&s->submit_channel);
	ipc_channel_close(&s->step_channel);
	ipc_channel_close(&s->stream_channel);
	ipc_context_destroy(&s->ipc);
	trace_destroy(&s->trace);
	stats_destroy(&s->stats);
	buf_fini(&s->frame);
	lora_modules_fini(&s->loras);
	free(s);
	*out = NULL;
}

enum err scheduler_run(struct scheduler *s, struct err_msg *em)
{
	enum err e = ipc_loop_run(s->loop);

	if (e)
		return err_set(em, e, "the event loop failed: %s", err_text(e));
	if (s->fatal) {
		*em = s->fatal_text;
		return s->fatal;
	}
	/* What was told at the end needs a moment to leave. */
	for (u32 i = 0; i < FAREWELL_TURNS && (s->streams.outbox.count || s->submit_outbox.count); i++)
		if (ipc_loop_turn(s->loop, FAREWELL_TURN_MS))
			break;
	return ERR_OK;
}
