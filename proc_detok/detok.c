/* Owns the detokenizer's sockets towards scheduler and worker and its turn: drain all input into the streams,
 * then give out one chunk a client. Never blocks, and never loses a STOPPED: it stays queued in the streams
 * until the scheduler's channel took it. */
#include "proc_detok/detok.h"

#include <string.h>

#include "common/clock.h"
#include "common/log.h"

enum {
	CLIENTS_MAX = 1024,
	EARLY_MAX = 16384,
	EARLY_MS = 10 * 1000,
	CLOSE_MS = 5 * 1000,
	TICK_MS = 1000,
	ASK_MS = 200,		 /* at most that often is the scheduler asked for what is missing */
	TOKENS_QUEUE_MAX = 4096, /* results that may wait here while the worker goes on */
};

/* ---------------------------------------------------------------- input */

static void on_tokens(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct detok *d = ctx;
	(void)from;
	if (msg->type == IPC_TYPE_HELLO) {
		/* A new connection: what the worker sent before it may be lost, ends of sequences among it.
		 */
		d->ask = true;
		return;
	}
	if (msg->type != IPC_TYPE_RESULT) {
		if (ipc_channel_may_log(ch))
			LOG_WARN("UNEXPECTED_MESSAGE", "channel=tokens type=%s", ipc_type_name(msg->type));
		return;
	}
	u64 begin_ns = clock_now_ns();
	streams_result(d->streams, &msg->result, msg->epoch, begin_ns);
	trace_add(d->config.trace, TRACE_DECODE, begin_ns, clock_now_ns(), msg->result.step,
		  msg->result.seq_count);
}

static void on_tokens_error(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e,
			    const struct err_msg *em)
{
	struct detok *d = ctx;
	(void)from;
	if (ipc_channel_may_log(ch))
		LOG_WARN("TOKENS_ERROR", "code=%s text=\"%s\"", err_name(e), em->text);
	d->ask = true;
}

/* Greets the scheduler once more, which makes it open every sequence again with the tokens that it has. */
static void gaps_ask(struct detok *d, u64 now_ns)
{
	if (streams_take_gap(d->streams))
		d->ask = true;
	if (!d->ask || d->scheduler.v == 0 || now_ns - d->asked_ns < ASK_MS * 1000000ull)
		return;
	d->ask = false;
	d->asked_ns = now_ns;
	if (streams_live(d->streams) == 0)
		return;
	LOG_INFO("RESULTS_MISSING", "live=%u", streams_live(d->streams));
	if (ipc_greet(d->sched, d->scheduler) == ERR_GONE)
		d->scheduler.v = 0; /* it opens everything anyway when it comes */
}

/* A scheduler's greeting. One with another epoch is a new life: it knows nothing of what runs here. */
static void on_scheduler(struct detok *d, ipc_peer from, u64 epoch)
{
	if (d->scheduler_epoch != 0 && epoch != d->scheduler_epoch) {
		LOG_INFO("SCHEDULER_RESTARTED", "epoch=%llu streams=%u", (unsigned long long)epoch,
			 streams_live(d->streams));
		streams_scheduler_restarted(d->streams, epoch, clock_now_ns());
	}
	d->scheduler = from;
	d->scheduler_epoch = epoch;
}

static void on_streams(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct detok *d = ctx;
	if (msg->type == IPC_TYPE_HELLO && msg->hello.role == IPC_ROLE_SCHEDULER)
		on_scheduler(d, from, msg->epoch);
	else if (msg->type == IPC_TYPE_OPEN)
		streams_open(d->streams, &msg->open, msg->epoch, clock_now_ns());
	else if (msg->type == IPC_TYPE_RESULT) /* kept: the log-probabilities of streams opened again */
		streams_result(d->streams, &msg->result, msg->epoch, clock_now_ns());
	else if (msg->type == IPC_TYPE_CLOSE)
		streams_close(d->streams, &msg->close, clock_now_ns());
	else if (ipc_channel_may_log(ch))
		LOG_WARN("UNEXPECTED_MESSAGE", "channel=streams type=%s", ipc_type_name(msg->type));
}

/* ---------------------------------------------------------------- output */

static void stopped_send(struct detok *d)
{
	struct ipc_msg msg = {.type = IPC_TYPE_STOPPED};

	while (d->scheduler.v != 0 && streams_peek_stopped(d->streams, &msg.stopped)) {
		enum err e = ipc_send(d->sched, d->scheduler, &msg);
		if (e == ERR_OK)
			streams_pop_stopped(d->streams);
		else if (e == ERR_GONE)
			d->scheduler.v = 0; /* its successor, or itself, greets again */
		else
			return; /* the next turn or tick tries again */
	}
}

static void on_turn(void *ctx, u64 now_ns)
{
	struct detok *d = ctx;
	atomic_fetch_add_explicit(&d->config.stats->turns, 1, memory_order_relaxed);
	stopped_send(d); /* first: who reads an end may send the next turn of its session at once */
	output_socket_turn(&d->output, now_ns);
	stopped_send(d); /* of clients that left */
	gaps_ask(d, now_ns);
}

static void counters_log(struct detok *d)
{
	const struct streams_counters *c = streams_counters(d->streams), *l = &d->logged;
	if (c->lost == l->lost && c->early_dropped == l->early_dropped && c->refused == l->refused &&
	    c->malformed == l->malformed)
		return;
	LOG_WARN("RESULTS_LOST", "streams=%llu early_dropped=%llu refused=%llu malformed=%llu",
		 (unsigned long long)c->lost, (unsigned long long)c->early_dropped,
		 (unsigned long long)c->refused, (unsigned long long)c->malformed);
	d->logged = *c;
}

static void on_tick(void *ctx, u64 now_ns)
{
	struct detok *d = ctx;
	streams_expire(d->streams, now_ns);
	output_socket_expire(&d->output, now_ns);
	counters_log(d);
}

/* ---------------------------------------------------------------- life */

static enum err channel_open(struct detok *d, struct ipc_channel **out, const char *name,
			     enum ipc_pattern pattern, u32 queue_max, ipc_message_fn fn,
			     ipc_error_fn on_error, u64 epoch, struct err_msg *em)
{
	char endpoint[128];
	enum err e = ipc_endpoint(endpoint, sizeof(endpoint), d->config.run_dir, name, em);
	if (e != ERR_OK)
		return e;
	struct ipc_channel_config config = {
		.name = name,
		.endpoint = endpoint,
		.pattern = pattern,
		.bind = true,
		.queue_max = queue_max,
		.epoch = epoch,
		.role = IPC_ROLE_DETOK,
		.record_dir = d->config.record_dir,
	};
	e = ipc_channel_open(out, d->ctx, &config, em);
	if (e == ERR_OK)
		e = ipc_loop_add_channel(d->loop, *out, fn, on_error, d);
	return e;
}

static enum err streams_open_table(struct detok *d, u64 secret, struct err_msg *em)
{
	struct streams_config config = {
		.tokenizer = d->config.tokenizer,
		.streams_max = d->config.streams_max,
		/* those that are attached, and as many that are not (yet) as there can be requests */
		.clients_max = CLIENTS_MAX + d->config.streams_max,
		.early_max = EARLY_MAX,
		.secret = secret,
		.orphan_ns = d->config.retention_s * 1000000000ull,
		.early_ns = EARLY_MS * 1000000ull,
		.close_ns = CLOSE_MS * 1000000ull,
	};
	enum err e = streams_create(&d->streams, &config);
	return e == ERR_OK ? e : err_set(em, e, "no memory for %u streams", config.streams_max);
}

static enum err output_open(struct detok *d, u64 secret, u64 epoch, struct err_msg *em)
{
	char output[128], tap[128];
	enum err e = ipc_endpoint(output, sizeof(output), d->config.run_dir, "output", em);
	if (e == ERR_OK)
		e = ipc_endpoint(tap, sizeof(tap), d->config.run_dir, "tap", em);
	if (e != ERR_OK)
		return e;
	struct output_socket_config config = {
		.ctx = d->ctx,
		.loop = d->loop,
		.streams = d->streams,
		.stats = d->config.stats,
		.trace = d->config.trace,
		.output_endpoint = output,
		.tap_endpoint = tap,
		.record_dir = d->config.record_dir,
		.epoch = epoch,
		.clients = {.clients_max = CLIENTS_MAX,
			    .retention_bytes = d->config.retention_bytes,
			    .retention_ns = d->config.retention_s * 1000000000ull,
			    .secret = secret + 100},
	};
	return output_socket_open(&d->output, &config, em);
}

enum err detok_open(struct detok *d, const struct detok_config *config, struct err_msg *em)
{
	u64 epoch = clock_now_ns(); /* another one for every life */
	u64 secret = epoch * 0x9e3779b97f4a7c15u;

	*d = (struct detok){.config = *config};
	enum err e = ipc_context_create(&d->ctx, em);
	if (e == ERR_OK)
		e = ipc_loop_create(&d->loop, em);
	if (e == ERR_OK)
		e = streams_open_table(d, secret, em);
	/* the scheduler's channel goes first: an OPEN is then seldom behind its results */
	if (e == ERR_OK)
		e = channel_open(d, &d->sched, "streams", IPC_ROUTER, 0, on_streams, NULL, epoch, em);
	if (e == ERR_OK)
		e = channel_open(d, &d->tokens, "tokens", IPC_PULL, TOKENS_QUEUE_MAX, on_tokens,
				 on_tokens_error, epoch, em);
	if (e == ERR_OK)
		e = output_open(d, secret, epoch, em);
	if (e == ERR_OK)
		e = ipc_loop_add_timer(d->loop, TICK_MS, on_tick, d, NULL);
	if (e != ERR_OK) {
		detok_close(d);
		return e;
	}
	ipc_loop_on_turn(d->loop, on_turn, d);
	return ERR_OK;
}

void detok_close(struct detok *d)
{
	if (d->output.output)
		output_socket_close(&d->output);
	ipc_channel_close(&d->tokens);
	ipc_channel_close(&d->sched);
	streams_destroy(&d->streams);
	ipc_loop_destroy(&d->loop);
	ipc_context_destroy(&d->ctx);
	*d = (struct detok){0};
}
