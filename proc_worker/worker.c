/* The worker's loop: owns its channels, its runner and its statistics page. What it does with steps is in
 * worker_step.c. */
#include "proc_worker/worker_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/nodes.h"
#include "common/sched_slice.h"
#include "kernels/device.h"

enum { NODES_JOIN_MS = 600 * 1000, LOOK_MS = 500 };

void worker_fail(struct worker *w, enum err e, const struct err_msg *em)
{
	if (!w->fatal) {
		w->fatal = e;
		w->fatal_text = *em;
	}
	ipc_loop_stop(w->loop);
}

bool worker_check_nodes(struct worker *w)
{
	struct err_msg em;
	enum err e = w->runner->collectives ? collectives_check(w->runner->collectives, &em) : ERR_OK;

	if (e == ERR_SHUTDOWN) {
		LOG_INFO("ENGINE_STOPPED", "reason=\"%s\"", em.text);
		boot_note(w->boot, "engine_stopped=1");
		w->stopping = true;
		ipc_loop_stop(w->loop);
	} else if (e) {
		worker_fail(w, e, &em);
	}
	return e != ERR_OK;
}

void worker_on_command(struct worker *w)
{
	/* all of them: what came together is not told of again */
	for (enum boot_command command; (command = boot_poll(w->boot)) != BOOT_NONE;) {
		if (command == BOOT_DRAIN) { /* what is in work comes from the scheduler, which drains */
			boot_note(w->boot, "drained=1");
			continue;
		}
		w->stopping = true;
		if (w->runner->collectives && !w->boot->orphaned) /* else this node fails */
			collectives_farewell(w->runner->collectives);
		ipc_loop_stop(w->loop);
		return;
	}
}

/* ---------------------------------------------------------------- messages */

static void on_refusal(struct worker *w, const struct ipc_error *m)
{
	struct err_msg em;

	err_set(&em, ERR_VERSION, "the scheduler says: %.*s", (int)m->text_count, (const char *)m->text);
	if (m->code == ERR_VERSION)
		worker_fail(w, ERR_VERSION, &em); /* another build: waiting will not help */
	else
		LOG_ERROR("SCHEDULER_ERROR", "reason=\"%s\"", em.text);
}

static void on_scheduler(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct worker *w = ctx;
	(void)ch;
	(void)from;

	if (w->fatal || w->stopping)
		return;
	switch (msg->type) {
	case IPC_TYPE_HELLO: /* a scheduler, perhaps a new one, which knows nothing of this worker */
		worker_send_ready(w);
		break;
	case IPC_TYPE_INIT:
		worker_begin_epoch(w, msg->epoch, &msg->init);
		break;
	case IPC_TYPE_STEP:
		if (msg->epoch == w->epoch && !w->broken)
			worker_run_step(w, &msg->step);
		break;
	case IPC_TYPE_ERROR:
		on_refusal(w, &msg->error);
		break;
	default:
		LOG_WARN("UNEXPECTED_MESSAGE", "channel=step type=%s", ipc_type_name(msg->type));
	}
}

/* A lost STEP shows as a gap in the step numbers, which ends the epoch; a broken connection as the next
 * HELLO. */
static void on_channel_error(void *ctx, struct ipc_channel *ch, ipc_peer from, enum err e,
			     const struct err_msg *em)
{
	struct worker *w = ctx;
	(void)from;

	if (ch == w->step_channel)
		w->idle_since_ns = 0;
	if (e == ERR_VERSION) {
		worker_fail(w, e, em);
		return;
	}
	LOG_WARN("CHANNEL", "channel=%s code=%s reason=\"%s\"", ch == w->step_channel ? "step" : "tokens",
		 err_name(e), em->text);
}

static void on_detok(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	(void)ctx;
	(void)ch;
	(void)from;
	LOG_WARN("UNEXPECTED_MESSAGE", "channel=tokens type=%s", ipc_type_name(msg->type));
}

static void on_boot(void *ctx, int fd, u32 events)
{
	(void)fd;
	(void)events;
	worker_on_command(ctx);
}

static void on_node_lost(void *ctx, int fd, u32 events)
{
	struct worker *w = ctx;
	(void)events;

	ipc_loop_remove_fd(w->loop, fd); /* it stays readable */
	(void)!worker_check_nodes(w);
}

static void on_step_done(void *ctx, int fd, u32 events)
{
	(void)fd;
	(void)events;
	worker_collect(ctx);
}

/* A device that hangs says nothing by itself. */
static void on_look(void *ctx, u64 now_ns)
{
	struct worker *w = ctx;
	struct err_msg em;
	(void)now_ns;

	enum err e = runner_look(w->runner, &em);
	if (e && !((e == ERR_GONE || e == ERR_SHUTDOWN) && worker_check_nodes(w)))
		worker_fail(w, e, &em);
}

/* ---------------------------------------------------------------- life */

static void on_progress(void *ctx, double share, const char *what)
{
	struct worker *w = ctx;

	boot_progress(w->boot, share, what);
}

static enum err find_nodes(struct worker *w, struct err_msg *em)
{
	const struct options *o = w->options;
	i64 each = nodes_ranks_each(o);

	if (o->node_rank < 0 || w->rank / each != o->node_rank)
		return err_set(em, ERR_INVALID, "rank %u is not on --node-rank %d, whose ranks are %d to %d", w->rank,
			       (int)o->node_rank, (int)(o->node_rank * each), (int)((o->node_rank + 1) * each - 1));
	w->nodes = (struct collectives_nodes){.index = (u32)o->node_rank,
					      .count = (u32)o->nnodes,
					      .address = o->master_addr,
					      .port = (u32)o->master_port,
					      .secret = &w->secret,
					      .join_timeout_ms = NODES_JOIN_MS};
	return cluster_secret_read(&w->secret, o->cluster_secret_file, em);
}

static enum err load(struct worker *w, struct err_msg *em)
{
	struct runner_config c = runner_config_from(w->options, w->rank);
	u64 begin = clock_now_ns();

	c.constrains = true;
	c.loras = &w->loras;
	c.progress = on_progress;
	c.progress_ctx = w;
	c.nodes = w->options->nnodes > 1 ? &w->nodes : NULL;
	enum err e = speculative_parse(&c.speculative, w->options->speculative_config, em);
	if (!e)
		e = lora_modules_read(&w->loras, w->options, em);
	if (!e && c.nodes)
		e = find_nodes(w, em);
	if (!e)
		e = runner_create(&w->runner, &c, em);
	if (!e) /* of layers on the CPU; on a device steps are what progresses */
		w->runner->decoder.config.progress_ns = &w->stats->progress_ns;
	if (!e)
		trace_add(w->trace, TRACE_LOAD, begin, clock_now_ns(), 0, 0);
	return e;
}

/* To processes of node 0: over its run directory there, over the network elsewhere. */
static enum err open_channel(struct worker *w, const char *name, enum ipc_pattern pattern,
			     struct ipc_channel **out, struct err_msg *em)
{
	const struct options *o = w->options;
	bool afar = o->nnodes > 1 && o->node_rank > 0;
	struct ipc_curve curve;
	char endpoint[512];
	struct ipc_channel_config c = {.name = name,
				       .endpoint = endpoint,
				       .pattern = pattern,
				       .role = IPC_ROLE_WORKER,
				       .rank = w->rank,
				       .record_dir = o->trace_messages[0] ? o->trace_messages : NULL};

	if (afar) {
		ipc_curve_init(&curve, &w->secret);
		c.curve = &curve;
	}
	enum err e = afar ? ipc_tcp_endpoint(endpoint, sizeof(endpoint), o->master_addr, (u32)o->master_port, em)
			  : ipc_endpoint(endpoint, sizeof(endpoint), o->run_dir, name, em);
	return e ? e : ipc_channel_open(out, w->ipc, &c, em);
}

static enum err open_channels(struct worker *w, struct err_msg *em)
{
	u32 look_timer;
	enum err e = ipc_context_create(&w->ipc, em);

	if (!e)
		e = open_channel(w, "step", IPC_DEALER, &w->step_channel, em);
	if (!e && w->rank == 0)
		e = open_channel(w, "tokens", IPC_PUSH, &w->tokens_channel, em);
	if (!e)
		e = ipc_loop_create(&w->loop, em);
	if (e)
		return e;
	e = ipc_loop_add_channel(w->loop, w->step_channel, on_scheduler, on_channel_error, w);
	if (!e && w->tokens_channel)
		e = ipc_loop_add_channel(w->loop, w->tokens_channel, on_detok, on_channel_error, w);
	if (!e && w->boot->fd >= 0)
		e = ipc_loop_add_fd(w->loop, w->boot->fd, EPOLLIN, on_boot, w);
	int lost_fd = w->runner->collectives ? collectives_lost_fd(w->runner->collectives) : -1;
	if (!e && lost_fd >= 0)
		e = ipc_loop_add_fd(w->loop, lost_fd, EPOLLIN, on_node_lost, w);
	if (!e && runner_fd(w->runner) >= 0)
		e = ipc_loop_add_fd(w->loop, runner_fd(w->runner), EPOLLIN, on_step_done, w);
	if (!e && runner_fd(w->runner) >= 0)
		e = ipc_loop_add_timer(w->loop, LOOK_MS, on_look, w, &look_timer);
	return e ? err_set(em, e, "cannot set up the event loop: %s", err_text(e)) : ERR_OK;
}

static enum err open_observation(struct worker *w, struct err_msg *em)
{
	char process[32];

	snprintf(process, sizeof(process), "worker-%u", w->rank);
	enum err e = stats_create(&w->stats, w->options->run_dir, process, em);
	if (!e && w->options->trace[0])
		e = trace_create(&w->trace, w->options->run_dir, process, em);
	return e;
}

enum err worker_create(struct worker **out, const struct options *o, u32 rank, struct boot *boot,
		       struct err_msg *em)
{
	*out = NULL;
	if (!o->run_dir[0])
		return err_set(em, ERR_INVALID,
			       "--run-dir is missing: the directory of the engine's sockets");
	if (!o->model[0])
		return err_set(em, ERR_INVALID,
			       "--model is missing: a directory with config.json and weights");
	struct worker *w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	w->options = o;
	w->boot = boot;
	w->rank = rank;
	enum err e = open_observation(w, em);
	/* What computes has the kernel's own slices; the transport's threads, born with the channels, answer.
	 */
	sched_slice_default();
	if (!e)
		e = load(w, em);
	sched_slice_short();
	if (!e)
		e = open_channels(w, em);
	if (e || runner_fd(w->runner) < 0) /* with a device, this thread only answers */
		sched_slice_default();
	if (e)
		worker_destroy(&w);
	else
		*out = w;
	return e;
}

void worker_destroy(struct worker **out)
{
	struct worker *w = *out;

	if (!w)
		return;
	ipc_loop_destroy(&w->loop);
	ipc_channel_close(&w->step_channel);
	ipc_channel_close(&w->tokens_channel);
	ipc_context_destroy(&w->ipc);
	runner_destroy(&w->runner);
	lora_modules_fini(&w->loras);
	trace_destroy(&w->trace);
	stats_destroy(&w->stats);
	buf_fini(&w->frame);
	free(w);
	*out = NULL;
}

/* Facts are words; the supervisor turns '_' into spaces again. */
static void device_name_word(const struct runner *r, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s", runner_device_name(r));
	for (char *p = out; *p; p++)
		if (*p == ' ')
			*p = '_';
}

enum err worker_run(struct worker *w, struct err_msg *em)
{
	const struct runner *r = w->runner;
	char name[KERN_DEVICE_NAME_MAX];

	device_name_word(r, name, sizeof(name));
	boot_ready(w->boot, "device=%s%s%s dtype=%s kv_dtype=%s threads=%u block_count=%u max_model_len=%u",
		   runner_device_kind(r), name[0] ? " device_name=" : "", name, kern_dtype_name(r->dtype), kv_dtype_name(r->kv_shape.dtype),
		   kern_threads_count(r->ctx.threads), r->block_count, r->max_model_len);
	enum err e = ipc_loop_run(w->loop);
	if (e)
		return err_set(em, e, "the event loop failed: %s", err_text(e));
	if (w->fatal)
		*em = w->fatal_text;
	return w->fatal;
}

enum err worker_parse_rank(const char *text, u32 ranks, u32 *rank, struct err_msg *em)
{
	char *end;

	*rank = 0;
	if (!text)
		return ERR_OK;
	errno = 0;
	unsigned long n = strtoul(text, &end, 10);
	if (errno || end == text || *end || n >= ranks)
		return err_set(em, ERR_INVALID,
			       "TERCET_RANK is '%.32s'; it must be 0 to %u (--tensor-parallel-size %u)", text,
			       ranks - 1, ranks);
	*rank = (u32)n;
	return ERR_OK;
}
