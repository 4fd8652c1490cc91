/* Owns the gateway's start, its loop and its end. Runs in the gateway. Never serves before the engine has
 * answered, and never leaves while an accepted request is unfinished, unless told to stop. */
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hub_cache.h"
#include "common/log.h"
#include "proc_gateway/gateway.h"
#include "proc_gateway/handlers.h"
#include "proc_gateway/sse.h"

enum {
	ENGINE_REQUESTS_SLACK = 1024, /* that end or begin while the engine is full */
	DESCRIPTORS_ASIDE = 64,	      /* for everything but HTTP connections */
	STOP_FLUSH_MS = 300,	      /* for the last replies, when told to stop */
	LISTEN_WAIT_MS = 10000,	      /* then the engine is starting itself, and clients are told so */
};

/* ---------------------------------------------------------------- the engine */

static void begin_listening(struct gateway *g)
{
	struct err_msg em;
	if (http_server_listen(g->http, &em) == ERR_OK)
		return;
	LOG_ERROR("LISTEN_FAILED", "text=\"%s\"", em.text);
	boot_failed(&g->boot, &em);
	g->failed = true;
}

static void begin_serving(struct gateway *g)
{
	struct tercet_engine engine;
	const char *host = *g->options->host ? g->options->host : "0.0.0.0";
	bool brackets = strchr(host, ':') != NULL; /* an IPv6 address */
	if (!tercet_get_engine(g->engine, &engine))
		return;
	g->model.max_model_len = engine.max_model_len;
	g->model.vocab_size = engine.vocab_size;
	g->model.embedding_width = engine.embedding_width;
	if (g->ready)
		return;
	g->ready = true;
	begin_listening(g);
	u32 tokens = tokenizer_vocab_size(g->tokenizer);
	if (tokens > engine.vocab_size && g->rank == 0) /* often a token for padding that nothing is written with */
		LOG_WARN("TOKENIZER_LARGER", "tokens=%u vocab_size=%u reason=\"tokens from vocab_size on are none of the model's: prompts with "
					     "them are refused; many of them mean that the tokenizer is another model's\"", tokens,
			 engine.vocab_size);
	LOG_INFO("GATEWAY_READY", "host=%s port=%u model=%s max_model_len=%u tool_calls=%s thoughts=%s", host,
		 http_server_port(g->http), g->model.names[0], engine.max_model_len,
		 tool_format_name(g->model.tool_format), thought_format_name(g->model.thought_format));
	boot_ready(&g->boot, "url=http://%s%s%s:%u", brackets ? "[" : "", host, brackets ? "]" : "",
		   http_server_port(g->http));
}

/* The engine is not there yet. */
static void on_listen_due(evutil_socket_t fd, short what, void *ctx)
{
	(void)fd;
	(void)what;
	begin_listening(ctx);
}

static void on_engine_event(void *ctx, const struct tercet_event *event)
{
	struct gateway *g = ctx;
	struct err_msg em;
	switch (event->type) {
	case TERCET_EVENT_READY:
		begin_serving(g);
		break;
	case TERCET_EVENT_LOST:
	case TERCET_EVENT_DETACHED:
		LOG_WARN("ENGINE_LOST", "code=%u text=\"%s\"", event->code, event->error_text);
		break;
	case TERCET_EVENT_ERROR:
		LOG_ERROR("ENGINE_ERROR", "code=%u req=%llu text=\"%s\"", event->code,
			  (unsigned long long)event->req_id, event->error_text);
		if (event->code == TERCET_VERSION && !g->ready) {
			err_set(&em, ERR_VERSION, "%s", event->error_text);
			boot_failed(&g->boot, &em);
			g->failed = true;
		}
		break;
	case TERCET_EVENT_SESSION:
		session_calls_on_event(&g->session_calls, event);
		break;
	default:
		requests_on_event(&g->requests, event);
		break;
	}
}

static void on_engine_readable(evutil_socket_t fd, short what, void *ctx)
{
	struct gateway *g = ctx;
	u64 begin_ns = clock_now_ns();
	(void)fd;
	(void)what;
	u32 events = tercet_dispatch(g->engine, on_engine_event, g);
	if (events > 0)
		trace_add(g->trace, TRACE_WRITE, begin_ns, clock_now_ns(), 0, events);
}

/* ---------------------------------------------------------------- the end */

static void drain(struct gateway *g)
{
	if (g->draining)
		return;
	g->draining = true;
	LOG_INFO("DRAINING", "requests=%u", g->requests.group_count);
	http_server_drain(g->http);
}

static void on_boot_readable(evutil_socket_t fd, short what, void *ctx)
{
	struct gateway *g = ctx;
	(void)fd;
	(void)what;
	/* all of them: what came together is not told of again */
	for (enum boot_command command; (command = boot_poll(&g->boot)) != BOOT_NONE;) {
		if (command == BOOT_DRAIN) {
			drain(g);
			continue;
		}
		g->stopping = true;
		event_del(g->boot_event);
		return;
	}
}

/* Started by hand: the first signal drains, the second stops. */
static void on_signal(evutil_socket_t signal_number, short what, void *ctx)
{
	struct gateway *g = ctx;
	(void)signal_number;
	(void)what;
	if (g->draining)
		g->stopping = true;
	drain(g);
}

static bool is_drained(const struct gateway *g)
{
	return g->draining && g->requests.group_count == 0 && http_server_active_count(g->http) == 0 &&
	       http_server_pending_count(g->http) == 0;
}

/* Told to stop: what is unfinished is answered, and the answers get a moment to leave. */
static void stop_now(struct gateway *g)
{
	u64 end_ns = clock_now_ns() + STOP_FLUSH_MS * 1000000ull;
	drain(g);
	requests_fail_all(&g->requests, "The server is shutting down.");
	session_calls_fail_all(&g->session_calls, "The server is shutting down.");
	while (http_server_pending_count(g->http) > 0 && clock_now_ns() < end_ns)
		event_base_loop(g->base, EVLOOP_ONCE);
}

static void publish_stats(struct gateway *g)
{
	const struct http_server_stats *s = http_server_get_stats(g->http);
	stats_set(g->stats, STATS_HTTP_REQUESTS, s->requests);
	stats_set(g->stats, STATS_HTTP_ERRORS, s->errors);
	stats_set(g->stats, STATS_HTTP_CONNECTIONS, s->connections);
	atomic_fetch_add_explicit(&g->stats->turns, 1, memory_order_relaxed);
}

int gateway_run(struct gateway *g)
{
	while (!g->stopping && !g->failed && !is_drained(g)) {
		if (event_base_loop(g->base, EVLOOP_ONCE) < 0) {
			LOG_ERROR("EVENT_LOOP_FAILED", "gateway=%u", g->rank);
			return 1;
		}
		publish_stats(g);
	}
	if (g->failed)
		return 1;
	if (g->stopping)
		stop_now(g);
	LOG_INFO("GATEWAY_END", "requests_unfinished=%u", g->requests.group_count);
	return 0;
}

/* ---------------------------------------------------------------- the start */

static enum err load_template(struct gateway *g, struct err_msg *em)
{
	enum err e = chat_template_load(&g->chat_template, g->options->model, g->options->chat_template, em);
	if (e == ERR_NOT_FOUND && !*g->options->chat_template) {
		LOG_WARN("NO_CHAT_TEMPLATE", "model=%s effect=\"chats need a chat_template of their own\" reason=\"%s\"",
			 g->options->model, em->text);
		return ERR_OK;
	}
	return e;
}

static void name_model(struct gateway *g)
{
	const struct option_list *names = &g->options->served_model_name;
	char path[4096], file[sizeof(g->root)];
	hub_cache_name_of(g->default_name, sizeof(g->default_name), g->options->model);
	g->only_name = g->default_name;
	g->model.names = names->count ? (const char *const *)names->items : &g->only_name;
	g->model.name_count = names->count ? names->count : 1;
	snprintf(g->root, sizeof(g->root), "%s", g->options->model);
	/* the folder that a file in GGUF was made into has a link to it (text/text.h, model_folder) */
	if (snprintf(path, sizeof(path), "%s/model.gguf", g->options->model) < (int)sizeof(path)) {
		const ssize_t bytes = readlink(path, file, sizeof(file));
		if (bytes > 0 && bytes < (ssize_t)sizeof(file) && file[0] == '/')
			snprintf(g->root, sizeof(g->root), "%.*s", (int)bytes, file);
	}
}

static const enum tool_format tool_format_of_option[] = {
	[OPTION_TOOLS_NONE] = TOOL_FORMAT_NONE,
	[OPTION_TOOLS_HERMES] = TOOL_FORMAT_HERMES,
	[OPTION_TOOLS_LLAMA3_JSON] = TOOL_FORMAT_LLAMA3,
	[OPTION_TOOLS_MISTRAL] = TOOL_FORMAT_MISTRAL,
	[OPTION_TOOLS_QWEN3_CODER] = TOOL_FORMAT_QWEN3_CODER,
};

static const enum thought_format thought_format_of_option[] = {
	[OPTION_REASONING_NONE] = THOUGHT_FORMAT_NONE,
	[OPTION_REASONING_THINK] = THOUGHT_FORMAT_THINK,
	[OPTION_REASONING_MISTRAL] = THOUGHT_FORMAT_MISTRAL,
	[OPTION_REASONING_SEED_OSS] = THOUGHT_FORMAT_SEED,
	[OPTION_REASONING_HARMONY] = THOUGHT_FORMAT_HARMONY,
};

static enum err load_model(struct gateway *g, struct err_msg *em)
{
	const struct options *o = g->options;
	if (!*o->model)
		return err_set(em, ERR_INVALID,
			       "no model is given; it must be a directory with tokenizer.json");
	enum err e = tokenizer_load(&g->tokenizer, o->model, em);
	if (!e)
		e = text_scratch_create(&g->scratch);
	if (!e)
		e = load_template(g, em);
	generation_config_default(&g->model.defaults);
	const char *defaults = NULL;
	if (!e)
		e = options_generation_dir(o, &defaults, em);
	if (!e && defaults)
		e = generation_config_load(&g->model.defaults, defaults, em);
	if (e)
		return e;
	name_model(g);
	e = lora_modules_read(&g->loras, o, em);
	if (e)
		return e;
	g->model.loras = &g->loras;
	g->model.tokenizer = g->tokenizer;
	g->model.scratch = g->scratch;
	g->model.chat_template = g->chat_template;
	g->model.trust_chat_template = o->trust_request_chat_template;
	const enum tool_format written = tool_format_of_template(g->chat_template);
	const bool of_template = o->tool_call_parser == OPTION_TOOLS_AUTO || (o->tool_call_parser == OPTION_TOOLS_MISTRAL && tool_format_is_mistral(written));
	g->model.tool_format = of_template ? written : tool_format_of_option[o->tool_call_parser];
	g->model.thought_format = o->reasoning_parser == OPTION_REASONING_AUTO
					  ? thought_format_of_model(g->chat_template, g->tokenizer)
					  : thought_format_of_option[o->reasoning_parser];
	/* whose reader hands calls on in that form */
	if (g->model.thought_format == THOUGHT_FORMAT_HARMONY && o->tool_call_parser == OPTION_TOOLS_AUTO)
		g->model.tool_format = TOOL_FORMAT_HERMES;
	g->model.token_bytes_max = openai_token_bytes_max(g->tokenizer);
	g->model.logprobs_max = (u32)o->max_logprobs;
	g->model.seed = (u64)o->seed;
	return ERR_OK;
}

/* As many connections as descriptors are left for (boot_attach has raised the limit): the transport to the engine ends
 * the process when it gets none. */
static u32 connections_max(const struct options *o)
{
	struct rlimit limit;
	u64 wanted = (u64)o->max_connections;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
	    wanted + DESCRIPTORS_ASIDE <= limit.rlim_cur)
		return (u32)wanted;
	u64 possible = limit.rlim_cur > 2 * DESCRIPTORS_ASIDE ? limit.rlim_cur - DESCRIPTORS_ASIDE
							      : limit.rlim_cur / 2;
	LOG_WARN("CONNECTIONS_CUT",
		 "max_connections=%llu taken=%llu reason=\"the limit of open files (ulimit -Hn) is %llu\"",
		 (unsigned long long)wanted, (unsigned long long)possible, (unsigned long long)limit.rlim_cur);
	return (u32)possible;
}

static enum err listen_http(struct gateway *g, struct err_msg *em)
{
	const struct options *o = g->options;
	struct http_server_config config = {
		.host = o->host,
		.port = (u16)o->port,
		.share_port = o->api_server_count > 1,
		.connections_max = connections_max(o),
		.body_bytes_max = o->max_body_size,
		.read_timeout_ms = (u32)o->http_read_timeout * 1000,
		.stream_ping = SSE_PING,
		.on_head = routes_on_head,
		.on_request = routes_on_request,
		.error_body = routes_error_body,
		.ctx = g,
	};
	return http_server_create(&g->http, g->base, &config, em);
}

static enum err open_engine(struct gateway *g, struct err_msg *em)
{
	const struct options *o = g->options;
	struct tercet_error error;
	char name[32];
	snprintf(name, sizeof(name), "gateway-%u", g->rank);
	struct tercet_config config = {
		.run_dir = o->run_dir,
		.name = name,
		/* the engine refuses what is beyond its own limits */
		.max_requests = (u32)(o->max_num_seqs + o->max_queued_requests) + ENGINE_REQUESTS_SLACK,
		.record_dir = *o->trace_messages ? o->trace_messages : NULL,
	};
	enum tercet_result result = tercet_open(&g->engine, &config, &error);
	if (result != TERCET_OK)
		return err_set(em, (enum err)result, "%s", error.text);
	return ERR_OK;
}

static bool add_events(struct gateway *g)
{
	const struct timeval listen_wait = {.tv_sec = LISTEN_WAIT_MS / 1000,
					    .tv_usec = LISTEN_WAIT_MS % 1000 * 1000};
	g->engine_event =
		event_new(g->base, tercet_fd(g->engine), EV_READ | EV_PERSIST, on_engine_readable, g);
	g->term_event = evsignal_new(g->base, SIGTERM, on_signal, g);
	g->int_event = evsignal_new(g->base, SIGINT, on_signal, g);
	if (!g->engine_event || !g->term_event || !g->int_event || event_add(g->engine_event, NULL) != 0)
		return false;
	event_active(g->engine_event, EV_READ, 1); /* something may be there already */
	/* a gateway that begins anew beside others would refuse what they would serve */
	g->listen_event = evtimer_new(g->base, on_listen_due, g);
	if (!g->listen_event || evtimer_add(g->listen_event, &listen_wait) != 0)
		return false;
	if (g->boot.fd < 0)
		return event_add(g->term_event, NULL) == 0 && event_add(g->int_event, NULL) == 0;
	g->boot_event = event_new(g->base, g->boot.fd, EV_READ | EV_PERSIST, on_boot_readable, g);
	return g->boot_event && event_add(g->boot_event, NULL) == 0;
}

enum err gateway_init(struct gateway *g, const struct options *o, u32 rank, struct err_msg *em)
{
	char process[32];
	memset(g, 0, sizeof(*g));
	g->options = o;
	g->rank = rank;
	g->boot.fd = -1;
	g->start_s = clock_wall_s();
	enum err e = boot_attach(&g->boot, em);
	if (e)
		return e;
	if (getrandom(&g->id_secret, sizeof(g->id_secret), 0) != (ssize_t)sizeof(g->id_secret))
		return err_set(em, ERR_IO, "the system gives no random numbers");
	auth_init(&g->auth, &o->api_key);
	cors_init(&g->cors, &o->allowed_origins);
	g->base = event_base_new();
	if (!g->base)
		return err_set(em, ERR_NO_MEMORY, "no memory for the event loop");
	snprintf(process, sizeof(process), "gateway-%u", rank);
	e = stats_create(&g->stats, *o->run_dir ? o->run_dir : NULL, process, em);
	if (!e && *o->trace)
		e = trace_create(&g->trace, o->run_dir, process, em);
	if (!e)
		e = load_model(g, em);
	if (!e)
		e = reader_create(&g->reader, g->base, handlers_on_read, g, em);
	if (!e)
		e = listen_http(g, em);
	if (!e)
		e = open_engine(g, em);
	if (e)
		return e;
	g->session_calls.engine = g->engine;
	requests_open(&g->requests, g->engine, &g->model, g->stats);
	return add_events(g) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "no memory for the event loop");
}

static void free_event(struct event **event)
{
	if (*event)
		event_free(*event);
	*event = NULL;
}

void gateway_fini(struct gateway *g)
{
	requests_close(&g->requests);
	session_calls_fail_all(&g->session_calls, "The server is shutting down.");
	http_server_destroy(&g->http);
	reader_destroy(&g->reader);
	free_event(&g->engine_event);
	free_event(&g->boot_event);
	free_event(&g->term_event);
	free_event(&g->int_event);
	free_event(&g->listen_event);
	tercet_close(&g->engine);
	chat_template_free(&g->chat_template);
	text_scratch_free(&g->scratch);
	tokenizer_free(&g->tokenizer);
	lora_modules_fini(&g->loras);
	trace_destroy(&g->trace);
	stats_destroy(&g->stats);
	if (g->base)
		event_base_free(g->base);
	g->base = NULL;
}
