/* The supervisor: phases of an engine's life, signals, start and end. Runs in the main thread of `tercet
 * serve`; it creates no thread and no ZeroMQ socket, because it spawns, and it never touches a request. */
#include "proc_supervisor/supervisor.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/log.h"
#include "common/nodes.h"
#include "common/trace.h"
#include "proc_supervisor/supervisor_priv.h"

/* STOP_*: what processes get to end by themselves after "stop" before they are killed. */
enum { STOP_GRACE_MS = 5000, STOP_STAGE_MS = 1000, EVENTS_MAX = 64, ADDRESS_WAIT_MS = 30000 };

/* Clients end before those they are connected to, so that nobody reports a broken connection. */
static const enum ipc_role stop_order[] = {IPC_ROLE_GATEWAY, IPC_ROLE_WORKER, IPC_ROLE_SCHEDULER,
					   IPC_ROLE_DETOK};

static const u64 ms_ns = 1000000;

/* ---------------------------------------------------------------- service manager */

/* sd_notify(3) without its library. */
static void notify_manager(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, strlen(path));
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	if (sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, bytes) < 0)
		LOG_WARN("NOTIFY_FAILED", "reason=\"%s\"", strerror(errno));
	close(fd);
}

/* ---------------------------------------------------------------- phases */

static void enter(struct supervisor *s, enum phase phase, u64 now_ns, u64 limit_ms)
{
	s->phase = phase;
	s->deadline_ns = limit_ms != 0 ? now_ns + limit_ms * ms_ns : 0;
}

/* Tells the processes of the stage to end. */
static void stop_stage(struct supervisor *s, u64 now_ns)
{
	s->stage_ns = now_ns;
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == stop_order[s->stop_stage])
			supervisor_apply(s, &s->children[i], CHILD_ON_STOP, now_ns);
}

static bool stage_is_gone(const struct supervisor *s)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == stop_order[s->stop_stage] &&
		    child_has_process(s->children[i].state))
			return false;
	return true;
}

void supervisor_stop(struct supervisor *s, u64 now_ns)
{
	if (s->phase == PHASE_STOP)
		return;
	console_clear(&s->console);
	notify_manager("STOPPING=1");
	enter(s, PHASE_STOP, now_ns, STOP_GRACE_MS);
	s->stop_stage = 0;
	stop_stage(s, now_ns);
}

/* To whoever started us: a process or a person. */
static void say(struct supervisor *s, const struct err_msg *em)
{
	if (s->parent.fd >= 0)
		boot_failed(&s->parent, em);
	else
		console_error(&s->console, em);
	s->status = 1;
}

void supervisor_fail(struct supervisor *s, u64 now_ns, const char *fmt, ...)
{
	struct err_msg em;
	va_list args;

	if (s->phase == PHASE_STOP)
		return; /* what follows from the first failure is no news */
	va_start(args, fmt);
	vsnprintf(em.text, sizeof(em.text), fmt, args);
	va_end(args);
	say(s, &em);
	supervisor_stop(s, now_ns);
}

static void drain(struct supervisor *s, u64 now_ns)
{
	if (s->phase == PHASE_START || s->options->shutdown_timeout == 0) {
		supervisor_stop(s, now_ns);
		return;
	}
	if (s->phase != PHASE_RUN)
		return;
	LOG_INFO("DRAINING", "limit_s=%d", (int)s->options->shutdown_timeout);
	notify_manager("STOPPING=1");
	if (s->options->node_rank > 0) {
		/* Requests end on node 0, with the workers here; its workers tell ours when it is done. */
		enter(s, PHASE_DRAIN_ENGINE, now_ns, (u64)s->options->shutdown_timeout * 1000);
		return;
	}
	enter(s, PHASE_DRAIN_GATEWAYS, now_ns, (u64)s->options->shutdown_timeout * 1000);
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == IPC_ROLE_GATEWAY)
			supervisor_apply(s, &s->children[i], CHILD_ON_DRAIN, now_ns);
}

static void kill_all(struct supervisor *s, u64 now_ns)
{
	supervisor_stop(s, now_ns);
	supervisor_apply_all(s, CHILD_ON_KILL, now_ns);
	s->killed = true;
	s->deadline_ns = 0;
}

/* Whether every process of the role has finished what it had. */
static bool role_is_drained(const struct supervisor *s, enum ipc_role role)
{
	for (u32 i = 0; i < s->plan.count; i++) {
		const struct child *c = &s->children[i];
		if (c->spec->role == role && child_has_process(c->state) && !c->drained)
			return false;
	}
	return true;
}

static bool all_ready(const struct supervisor *s)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].state != CHILD_READY)
			return false;
	return true;
}

static bool any_process(const struct supervisor *s)
{
	for (u32 i = 0; i < s->plan.count; i++)
		if (child_has_process(s->children[i].state))
			return true;
	return false;
}

/* ---------------------------------------------------------------- readiness */

/* The value of `key` in the ready line of the first process of a role, or "". */
static const char *fact(const struct supervisor *s, enum ipc_role role, const char *key, char *out,
			size_t bytes)
{
	out[0] = '\0';
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].spec->role == role && console_fact(s->children[i].facts, key, out, bytes))
			break;
	return out;
}

static u64 number_fact(const struct supervisor *s, enum ipc_role role, const char *key)
{
	char text[32];

	return strtoull(fact(s, role, key, text, sizeof(text)), NULL, 10);
}

static void announce(struct supervisor *s, u64 now_ns)
{
	const struct options *o = s->options;
	char device[64], device_name[160], dtype[32], kv_dtype[32], threads[16], url[300];
	bool json = o->log_format == OPTION_LOG_JSON;

	fact(s, IPC_ROLE_GATEWAY, "url", url, sizeof(url));
	if (url[0] == '\0' && o->api_server_count > 0 && o->node_rank == 0)
		snprintf(url, sizeof(url),
			 strchr(o->host, ':') != NULL ? "http://[%.200s]:%d" : "http://%.200s:%d", o->host,
			 (int)o->port);
	struct console_banner banner = {
		.model = o->model,
		.device = fact(s, IPC_ROLE_WORKER, "device", device, sizeof(device)),
		.device_name = fact(s, IPC_ROLE_WORKER, "device_name", device_name, sizeof(device_name)),
		.dtype = fact(s, IPC_ROLE_WORKER, "dtype", dtype, sizeof(dtype)),
		.kv_dtype = fact(s, IPC_ROLE_WORKER, "kv_dtype", kv_dtype, sizeof(kv_dtype)),
		.threads = fact(s, IPC_ROLE_WORKER, "threads", threads, sizeof(threads)),
		.url = url,
		.run_dir = s->run_dir.path,
		.workers = (u64)o->tensor_parallel_size,
		.node = (u64)o->node_rank,
		.nodes = (u64)o->nnodes,
		.master = o->master_addr,
		.blocks = number_fact(s, IPC_ROLE_SCHEDULER, "block_count"),
		.host_blocks = number_fact(s, IPC_ROLE_SCHEDULER, "host_block_count"),
		.block_size = (u64)o->block_size,
		.max_model_len = number_fact(s, IPC_ROLE_SCHEDULER, "max_model_len"),
		.start_s = (double)(now_ns - s->started_ns) / 1e9,
	};
	console_banner(&s->console, &banner, json);
	boot_ready(&s->parent, "run_dir=%s", s->run_dir.path);
	notify_manager("READY=1");
}

/* ---------------------------------------------------------------- events */

static void on_signal(struct supervisor *s, int signal, u64 now_ns)
{
	if (signal == SIGCHLD) {
		supervisor_reap(s, now_ns);
		supervisor_note_stops(s, now_ns);
		return;
	}
	LOG_INFO("SIGNAL", "signal=%d", signal);
	s->stop_signals++;
	if (signal == SIGQUIT || s->stop_signals > 1) {
		s->status = 128 + signal;
		kill_all(s, now_ns);
	} else {
		drain(s, now_ns);
	}
}

static void on_parent(struct supervisor *s, u64 now_ns)
{
	enum boot_command command;

	while ((command = boot_poll(&s->parent)) != BOOT_NONE) {
		if (command == BOOT_DRAIN) {
			drain(s, now_ns);
			continue;
		}
		supervisor_stop(s, now_ns);
		close(s->parent.fd); /* an end of file would be reported for ever */
		s->parent.fd = -1;
		return;
	}
}

static void on_event(struct supervisor *s, const struct watch_event *event, u64 now_ns)
{
	int signal;

	switch (event->kind) {
	case WATCH_SIGNAL:
		while ((signal = watch_next_signal(&s->watch)) != 0)
			on_signal(s, signal, now_ns);
		break;
	case WATCH_EXIT:
		supervisor_on_exit(s, &s->children[event->index], now_ns);
		break;
	case WATCH_LINE:
		supervisor_on_line(s, &s->children[event->index], now_ns);
		break;
	case WATCH_PARENT:
		on_parent(s, now_ns);
		break;
	}
}

/* The next stage of the end, or its last means. */
static void advance_stop(struct supervisor *s, u64 now_ns)
{
	while (s->stop_stage + 1 < COUNT_OF(stop_order) &&
	       (stage_is_gone(s) || now_ns >= s->stage_ns + STOP_STAGE_MS * ms_ns)) {
		s->stop_stage++;
		stop_stage(s, now_ns);
	}
	if (s->killed || s->deadline_ns == 0 || now_ns < s->deadline_ns)
		return;
	for (u32 i = 0; i < s->plan.count; i++)
		if (child_has_process(s->children[i].state))
			LOG_WARN("KILLED", "process=%s why=\"it did not end within %d ms\"",
				 s->children[i].spec->name, STOP_GRACE_MS);
	kill_all(s, now_ns);
}

/* What follows from the state everything is in now. */
static void advance(struct supervisor *s, u64 now_ns)
{
	bool late = s->deadline_ns != 0 && now_ns >= s->deadline_ns;

	supervisor_spawn_due(s, now_ns);
	supervisor_check_liveness(s, now_ns);
	if (s->phase == PHASE_START && all_ready(s)) {
		enter(s, PHASE_RUN, now_ns, 0);
		s->was_ready = true;
		announce(s, now_ns);
	}
	if (s->phase == PHASE_DRAIN_GATEWAYS && !late && role_is_drained(s, IPC_ROLE_GATEWAY)) {
		s->phase = PHASE_DRAIN_ENGINE; /* within the same deadline */
		for (u32 i = 0; i < s->plan.count; i++)
			if (s->children[i].spec->role == IPC_ROLE_SCHEDULER)
				supervisor_apply(s, &s->children[i], CHILD_ON_DRAIN, now_ns);
	}
	if ((s->phase == PHASE_DRAIN_ENGINE && s->options->node_rank <= 0 && role_is_drained(s, IPC_ROLE_SCHEDULER)) ||
	    (late && s->phase != PHASE_STOP)) {
		if (late)
			LOG_WARN("DRAIN_TIMED_OUT", "limit_s=%d", (int)s->options->shutdown_timeout);
		supervisor_stop(s, now_ns);
	}
	if (s->phase == PHASE_STOP)
		advance_stop(s, now_ns);
}

/* Milliseconds until something has to be done although nothing happens; -1: never. */
static int timeout_of(const struct supervisor *s, u64 now_ns)
{
	u64 next_ns = supervisor_next_deadline(s, now_ns);

	if (s->phase == PHASE_STOP && !s->killed && s->stop_stage + 1 < COUNT_OF(stop_order) &&
	    s->stage_ns + STOP_STAGE_MS * ms_ns < next_ns)
		next_ns = s->stage_ns + STOP_STAGE_MS * ms_ns;
	if (next_ns == UINT64_MAX)
		return -1;
	return next_ns <= now_ns ? 0 : (int)((next_ns - now_ns + ms_ns - 1) / ms_ns);
}

static void run(struct supervisor *s)
{
	struct watch_event events[EVENTS_MAX];

	for (;;) {
		u64 now_ns = clock_now_ns();
		advance(s, now_ns);
		if (s->phase == PHASE_STOP && !any_process(s))
			return;
		u32 count = watch_wait(&s->watch, timeout_of(s, now_ns), events, EVENTS_MAX);
		now_ns = clock_now_ns();
		for (u32 i = 0; i < count; i++)
			on_event(s, &events[i], now_ns);
	}
}

/* ---------------------------------------------------------------- start and end */

static enum err check_trace(const char *path, struct err_msg *em)
{
	if (path[0] == '\0')
		return ERR_OK;
	FILE *f = fopen(path, "ae"); /* now, not after hours of running */
	if (f == NULL)
		return err_set(em, ERR_IO, "--trace %s: %s", path, strerror(errno));
	fclose(f);
	return ERR_OK;
}

/* Recordings hold prompts: a fresh directory is for this user alone. */
static enum err check_recordings(const char *dir, struct err_msg *em)
{
	if (dir[0] == '\0')
		return ERR_OK;
	if (mkdir(dir, 0700) != 0 && errno != EEXIST)
		return err_set(em, ERR_IO, "--trace-messages %.300s: %s", dir, strerror(errno));
	if (access(dir, W_OK | X_OK) != 0)
		return err_set(em, ERR_IO, "--trace-messages %.300s: %s; it must be a directory to write in",
			       dir, strerror(errno));
	return ERR_OK;
}

/* The place among the nodes, as options, which the children get; and a secret is there before anything starts. */
static enum err find_nodes(struct options *o, struct err_msg *em)
{
	struct cluster_secret secret;
	struct nodes n;
	enum err e = nodes_find(&n, o, NULL, NULL, em);

	if (e == ERR_OK && n.count > 1)
		e = cluster_secret_read(&secret, o->cluster_secret_file, em);
	if (e == ERR_OK)
		e = nodes_check_address(&n, ADDRESS_WAIT_MS, em);
	if (e != ERR_OK)
		return e;
	o->nnodes = n.count;
	o->node_rank = n.index;
	o->master_port = n.port;
	if (n.count > 1)
		LOG_INFO("NODES", "node=%u of=%u master=%s port=%u from=\"%s\"", n.index, n.count, n.address, n.port, n.source);
	return options_set(o, "master-addr", n.address, "--master-addr", em);
}

static enum err prepare(struct supervisor *s, struct err_msg *em)
{
	struct options *o = s->options;
	enum err e;

	if (o->model[0] == '\0')
		return err_set(em, ERR_INVALID,
			       "no model: tercet serve DIRECTORY (config.json, *.safetensors, "
			       "tokenizer.json)");
	e = find_nodes(o, em);
	if (e != ERR_OK)
		return e;
	plan_make(&s->plan, o);
	e = plan_check_files(&s->plan, em);
	if (e == ERR_OK)
		e = check_trace(o->trace, em);
	if (e == ERR_OK)
		e = check_recordings(o->trace_messages, em);
	if (e == ERR_OK && o->api_server_count > 0 && o->node_rank == 0)
		e = plan_claim_port(o->host, &o->port, em);
	if (e == ERR_OK)
		e = run_dir_open(&s->run_dir, o->run_dir, em);
	if (e != ERR_OK)
		return e;
	e = options_set(o, "run-dir", s->run_dir.path, "--run-dir", em);
	if (e == ERR_OK)
		e = watch_open(&s->watch, em);
	if (e == ERR_OK && s->parent.fd >= 0)
		e = watch_add(&s->watch, s->parent.fd, WATCH_PARENT, 0, em);
	if (e != ERR_OK)
		return e;
	for (u32 i = 0; i < s->plan.count; i++)
		s->children[i] = (struct child){.spec = &s->plan.specs[i], .pidfd = -1, .boot_fd = -1};
	return ERR_OK;
}

/* Takes over what children of ours leave behind, and turns the death of our own parent into an orderly stop.
 */
static enum err attach(struct supervisor *s, struct err_msg *em)
{
	enum err e = boot_attach(&s->parent, em);

	if (e != ERR_OK)
		return e;
	if (s->parent.fd >= 0)
		prctl(PR_SET_PDEATHSIG, SIGTERM);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return ERR_OK;
}

static void finish(struct supervisor *s)
{
	struct err_msg em;

	if (s->options->trace[0] != '\0' && s->was_ready) {
		if (trace_write_json(s->run_dir.path, s->options->trace, &em) != ERR_OK) {
			console_error(&s->console, &em);
			s->status = s->status != 0 ? s->status : 1;
		} else if (!s->console.quiet) {
			fprintf(stderr,
				"tercet: timeline written to %s (open it in https://ui.perfetto.dev)\n",
				s->options->trace);
		}
	}
	for (u32 i = 0; i < s->plan.count; i++)
		if (s->children[i].stats != NULL)
			stats_unmap(&s->children[i].stats, 1);
	run_dir_close(&s->run_dir);
	if (s->watch.epoll_fd >= 0)
		watch_close(&s->watch);
}

int supervisor_serve(struct options *o)
{
	struct supervisor *s = calloc(1, sizeof(*s));
	struct err_msg em = {""};
	enum err e;

	if (s == NULL) {
		fprintf(stderr, "tercet: out of memory\n");
		return 1;
	}
	s->options = o;
	s->started_ns = clock_now_ns();
	s->parent.fd = s->run_dir.lock_fd = s->watch.epoll_fd = s->watch.signal_fd = -1;
	log_init("supervisor", (enum log_level)o->log_level, o->log_format == OPTION_LOG_JSON);
	e = attach(s, &em);
	console_init(&s->console, s->parent.fd >= 0, o->log_format == OPTION_LOG_JSON);
	if (e == ERR_OK)
		e = prepare(s, &em);
	if (e == ERR_OK)
		run(s);
	else if (e == ERR_GONE)
		s->status = 1; /* who started us changed its mind: nobody wants to read about it */
	else
		say(s, &em);
	finish(s);
	int status = s->status;
	free(s);
	return status;
}
