/* An engine for a command that needs one, and the streaming of a reply to the terminal. Runs in the tercet command;
 * owns the child engine and the libtercet handle. Never prints anything but the reply to stdout. */
#include "client/cli/cli_session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/speculative.h"

enum { READY_MS = 60000, ALIVE_CHECK_MS = 500 };

/* ---------------------------------------------------------------- sampling flags */

static enum err take_real(int *argc, char **argv, const char *name, double min, double max, float *value, bool *given,
			  struct err_msg *em)
{
	double v = *value;
	int before = *argc;
	enum err e = cli_take_real(argc, argv, name, min, max, &v, em);
	*value = (float)v;
	*given = *argc != before;
	return e;
}

static enum err take_int(int *argc, char **argv, const char *name, long long min, long long max, uint32_t *value,
			 bool *given, struct err_msg *em)
{
	long long v = *value;
	int before = *argc;
	enum err e = cli_take_int(argc, argv, name, min, max, &v, em);
	*value = (uint32_t)v;
	*given = *argc != before;
	return e;
}

enum err cli_sampling_take(struct cli_sampling *s, int *argc, char **argv, struct err_msg *em)
{
	long long seed = 0;
	bool given;
	*s = (struct cli_sampling){0};
	tercet_params_init(&s->params);
	struct tercet_params *p = &s->params;
	p->temperature = 0.8f;
	p->max_tokens = 256;
	enum err e = take_int(argc, argv, "--max-tokens", 1, INT32_MAX, &p->max_tokens, &given, em);
	if (e == ERR_OK)
		e = take_real(argc, argv, "--temperature", 0, 100, &p->temperature, &s->have_temperature, em);
	if (e == ERR_OK)
		e = take_real(argc, argv, "--top-p", 0, 1, &p->top_p, &s->have_top_p, em);
	if (e == ERR_OK)
		e = take_real(argc, argv, "--min-p", 0, 1, &p->min_p, &s->have_min_p, em);
	if (e == ERR_OK)
		e = take_int(argc, argv, "--top-k", 0, INT32_MAX, &p->top_k, &s->have_top_k, em);
	if (e == ERR_OK)
		e = take_real(argc, argv, "--repetition-penalty", 0.01, 100, &p->repetition_penalty,
			      &s->have_repetition_penalty, em);
	int before = *argc;
	if (e == ERR_OK)
		e = cli_take_int(argc, argv, "--seed", 0, INT64_MAX, &seed, em);
	s->have_seed = *argc != before;
	p->seed = (uint64_t)seed;
	if (e == ERR_OK)
		e = cli_take_text(argc, argv, "--stop", &s->stop, em);
	if (cli_take_flag(argc, argv, "--ignore-eos"))
		p->flags |= TERCET_IGNORE_EOS;
	s->ids_out = cli_take_flag(argc, argv, "--output-ids");
	return e;
}

/* As gateways read it. What was given on the line wins, but what the file says must be right all the same. */
static enum err fill_real(json_val root, const char *key, bool given, double min, double max, float *value, struct err_msg *em)
{
	json_val v = json_get(root, key);
	double x;
	if (!json_present(v))
		return ERR_OK;
	if (!json_double(v, &x))
		return err_set(em, ERR_INVALID, "%s has to be a number from %g to %g, not %s", key, min, max, json_type_name(v));
	if (!(x >= min && x <= max))
		return err_set(em, ERR_INVALID, "%s is %g, but has to be from %g to %g", key, x, min, max);
	if (!given)
		*value = (float)x;
	return ERR_OK;
}

static enum err fill_sampling(struct cli_sampling *s, json_val root, struct err_msg *em)
{
	uint64_t top_k;
	enum err e = fill_real(root, "temperature", s->have_temperature, 0, 100, &s->params.temperature, em);
	if (e == ERR_OK)
		e = fill_real(root, "top_p", s->have_top_p, 1e-6, 1, &s->params.top_p, em);
	if (e == ERR_OK)
		e = fill_real(root, "min_p", s->have_min_p, 0, 1, &s->params.min_p, em);
	if (e == ERR_OK)
		e = fill_real(root, "repetition_penalty", s->have_repetition_penalty, 0.01, 100, &s->params.repetition_penalty, em);
	if (!s->have_top_k && json_uint(json_get(root, "top_k"), &top_k) && top_k <= INT32_MAX)
		s->params.top_k = (uint32_t)top_k;
	return e;
}

enum err cli_sampling_defaults(struct cli_sampling *s, const struct options *o, struct err_msg *em)
{
	char path[4096];
	const char *dir;
	struct json_doc *doc;
	enum err e = options_generation_dir(o, &dir, em);
	if (e != ERR_OK || !dir || dir[0] == '\0')
		return e;
	int n = snprintf(path, sizeof(path), "%s/generation_config.json", dir);
	if (n < 0 || (size_t)n >= sizeof(path) || access(path, F_OK) != 0)
		return ERR_OK; /* most models have none */
	e = json_parse_file(&doc, path, em);
	if (e != ERR_OK)
		return e;
	e = fill_sampling(s, json_root(doc), em);
	if (e != ERR_OK)
		err_prefix(em, "%s", path);
	json_free(&doc);
	return e;
}

uint64_t cli_random_seed(void)
{
	uint32_t seed = 0;
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = (uint32_t)clock_now_ns();
	return seed;
}

/* ---------------------------------------------------------------- engine */

static void show_progress(void *ctx, double share, const char *what)
{
	(void)ctx;
	fprintf(stderr, "\r\033[K%3.0f%% %s", share * 100, what);
}

static enum err start_engine(struct cli_session *s, struct err_msg *em)
{
	bool terminal = isatty(STDERR_FILENO);
	struct speculative speculative;
	enum err e = speculative_parse(&speculative, s->options.speculative_config, em); /* else the engine writes of it, and ends */
	if (e != ERR_OK)
		return e;
	s->options.api_server_count = 0;
	if (s->options.log_level == LOG_LEVEL_INFO) /* the terminal belongs to the reply, not to the log */
		s->options.log_level = LOG_LEVEL_ERROR;
	e = engine_start(&s->engine, &s->options, terminal ? show_progress : NULL, NULL, em);
	if (terminal)
		fprintf(stderr, "\r\033[K");
	return e;
}

enum err cli_find_socket(const char *run_dir, const char *name, struct err_msg *em)
{
	char path[4096];
	struct stat st;
	int n = snprintf(path, sizeof(path), "%s/%s", run_dir, name);
	if (n > 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0 && S_ISSOCK(st.st_mode))
		return ERR_OK;
	return err_set(em, ERR_NOT_FOUND,
		       "no engine runs in \"%.200s\" (it has no socket \"%s\"); \"tercet serve\" prints the run directory",
		       run_dir, name);
}

enum err cli_session_open(struct cli_session *s, const char *name, struct err_msg *em)
{
	struct tercet_error *error = (struct tercet_error *)em;
	bool own = !s->options.run_dir[0];
	enum err e = own ? start_engine(s, em) : cli_find_socket(s->options.run_dir, "submit", em);
	if (e != ERR_OK)
		return e;
	struct tercet_config config = {.run_dir = own ? s->engine.run_dir : s->options.run_dir, .name = name};
	if (s->options.trace_messages[0])
		config.record_dir = s->options.trace_messages;
	e = (enum err)tercet_open(&s->client, &config, error);
	if (e == ERR_OK)
		e = (enum err)tercet_wait_ready(s->client, READY_MS, error);
	if (e == ERR_TIMEOUT && !own)
		err_prefix(em, "no engine in %s", config.run_dir);
	if (e != ERR_OK)
		cli_session_close(s);
	return e;
}

void cli_session_close(struct cli_session *s)
{
	tercet_close(&s->client);
	engine_stop(&s->engine);
}

/* ---------------------------------------------------------------- streaming */

static void print_output(const struct tercet_event *event, bool ids_out, bool first)
{
	for (uint32_t i = 0; ids_out && i < event->token_count; i++)
		printf("%s%" PRIu32, first && i == 0 ? "" : ",", event->tokens[i]);
	if (!ids_out)
		fwrite(event->text, 1, event->text_bytes, stdout);
	fflush(stdout);
}

/* Waits for the next event or for the user; TERCET_AGAIN: neither came for a while. */
static enum tercet_result next_event(struct cli_session *s, int signal_fd, uint64_t req_id, struct cli_reply *reply,
				     struct tercet_event *event)
{
	struct pollfd fds[] = {{.fd = tercet_fd(s->client), .events = POLLIN}, {.fd = signal_fd, .events = POLLIN}};
	enum tercet_result r = tercet_next(s->client, event);
	if (r != TERCET_AGAIN)
		return r;
	if (poll(fds, 2, ALIVE_CHECK_MS) > 0 && fds[1].revents & POLLIN) {
		struct signalfd_siginfo info;
		if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
			reply->interrupted = true;
			tercet_abort(s->client, req_id);
		}
	}
	return TERCET_AGAIN;
}

static void take_output(const struct tercet_event *event, bool ids_out, uint64_t begin_ns, struct cli_reply *reply)
{
	if (event->token_count && !reply->token_count)
		reply->first_s = (double)(clock_now_ns() - begin_ns) / 1e9;
	print_output(event, ids_out, reply->token_count == 0);
	buf_append(&reply->text, event->text, event->text_bytes);
	reply->token_count += event->token_count;
	reply->finish = event->finish;
	reply->prompt_count = event->prompt_count;
}

enum err cli_session_stream(struct cli_session *s, const struct tercet_request *request, bool ids_out, int signal_fd,
			    struct cli_reply *reply, struct err_msg *em)
{
	struct tercet_event event = {.type = TERCET_EVENT_NONE};
	uint64_t req_id;
	uint64_t begin = clock_now_ns();
	*reply = (struct cli_reply){0};
	enum err e = (enum err)tercet_submit(s->client, request, &req_id, (struct tercet_error *)em);
	if (e != ERR_OK)
		return e;
	while (!tercet_event_is_last(&event)) {
		enum tercet_result r = next_event(s, signal_fd, req_id, reply, &event);
		if (r == TERCET_AGAIN && s->engine.pid && !engine_is_alive(&s->engine))
			return err_set(em, ERR_GONE, "the engine has ended");
		if (r == TERCET_AGAIN)
			continue;
		if (r != TERCET_OK)
			return err_set(em, (enum err)r, "%s", tercet_result_text(r));
		if (event.type == TERCET_EVENT_OUTPUT)
			take_output(&event, ids_out, begin, reply);
		else if (event.type == TERCET_EVENT_LOST)
			fprintf(stderr, "\n[%s]\n", event.error_text);
	}
	reply->total_s = (double)(clock_now_ns() - begin) / 1e9;
	if (event.type == TERCET_EVENT_REFUSED || event.finish == TERCET_FINISH_ERROR)
		return err_set(em, event.code ? (enum err)event.code : ERR_INTERNAL, "%s", event.error_text);
	return ERR_OK;
}

void cli_reply_summary(const struct cli_reply *reply, uint64_t seed, bool always)
{
	if (!always && !isatty(STDERR_FILENO))
		return;
	double decode_s = reply->total_s - reply->first_s;
	fprintf(stderr, "[%s, %u tokens in %.2f s", tercet_finish_name(reply->finish), reply->token_count,
		reply->total_s);
	if (reply->token_count > 1 && decode_s > 0)
		fprintf(stderr, ", first after %.0f ms, then %.1f tokens/s", reply->first_s * 1e3,
			(reply->token_count - 1) / decode_s);
	fprintf(stderr, ", seed %" PRIu64 "]\n", seed);
}
