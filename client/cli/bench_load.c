/* Drives the connections of a load from one epoll loop. Runs in tercet bench serve; owns connections and results. It
 * must never slow the server down by itself: nothing waits but epoll, and output is kept only when it is compared. */
#include "client/cli/bench_load.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/step_digest.h"

enum { PROGRESS_MS = 200, IDLE = UINT32_MAX, FIND_MODEL_MS = 10000 };

struct slot {
	struct bench_http http;
	u32 request;    /* IDLE: none */
	u32 watched;    /* epoll events; 0: not in the set */
	int watched_fd;
};

struct load {
	const struct bench_load_config *config;
	struct bench_outcome *out;
	struct slot *slots; /* [concurrency] */
	int epoll_fd;
	u32 begun;
	u32 finished;
	u32 running;
	u64 start_ns;
	u64 arrival_ns; /* of the next request, with a rate */
	u64 random;
	u64 tokens;     /* seen so far, for the progress line */
	u64 drawn_ns;
	struct buf body;
};

static u64 next_random(u64 *state)
{
	return step_digest_mix(*state += 0x9e3779b97f4a7c15u);
}

/* ---------------------------------------------------------------- requests */

static const char *const words[] = {
	"the",    "little", "king",   "went",  "into",   "forest", "and",    "saw",    "a",      "bird",  "that",
	"sang",   "about",  "gold",   "in",    "old",    "house",  "where",  "two",    "sisters", "lived", "with",
	"their",  "mother", "who",    "said",  "you",    "must",   "never",  "open",   "door",   "until", "morning",
	"comes",  "but",    "one",    "day",   "wolf",   "came",   "asked",  "for",    "bread",  "water", "so",
	"they",   "gave",   "him",    "what",  "he",     "wanted", "then",   "all",    "of",     "them",  "danced",
	"under",  "moon",   "by",     "river", "happy",
};

/* Request number `n` of the load: always the same words, and a seed of its own. */
static void build_body(struct load *l, u32 n)
{
	const struct bench_load_config *c = l->config;
	struct json_writer w;
	struct buf prompt = {0};
	u64 state = c->seed * 0x2545f4914f6cdd1du + n;
	buf_append_str(&prompt, "Once upon a time");
	for (u32 i = 4; i < c->input_words; i++)
		buf_printf(&prompt, " %s", words[next_random(&state) % COUNT_OF(words)]);
	buf_clear(&l->body);
	json_begin(&w, &l->body);
	json_object_begin(&w);
	json_key(&w, "model");
	json_write_cstr(&w, c->model);
	json_key(&w, "prompt");
	json_write_string(&w, prompt.data, prompt.bytes);
	json_key(&w, "max_tokens");
	json_write_uint(&w, c->output_tokens);
	json_key(&w, "temperature");
	json_write_double(&w, c->temperature);
	json_key(&w, "seed");
	json_write_uint(&w, c->seed + n);
	json_key(&w, "stream");
	json_write_bool(&w, true);
	json_key(&w, "stream_options");
	json_write_raw(&w, "{\"include_usage\":true}", 22);
	if (c->ignore_eos) {
		json_key(&w, "ignore_eos");
		json_write_bool(&w, true);
	}
	if (c->keep_output) {
		json_key(&w, "return_token_ids");
		json_write_bool(&w, true);
	}
	json_object_end(&w);
	buf_fini(&prompt);
}

/* ---------------------------------------------------------------- responses */

static void add_gap(struct bench_gaps *g, double ms)
{
	if (g->count == g->capacity) {
		size_t capacity = g->capacity ? g->capacity * 2 : 4096;
		float *grown = realloc(g->ms, capacity * sizeof(*grown));
		if (!grown)
			return; /* a sample less */
		g->ms = grown;
		g->capacity = capacity;
	}
	g->ms[g->count++] = (float)ms;
}

static void fail(struct bench_result *r, const char *text)
{
	if (!r->failed)
		snprintf(r->error, sizeof(r->error), "%s", text);
	r->failed = true;
}

/* A chunk that carries text or tokens. */
static void take_tokens(struct load *l, struct bench_result *r, json_val choice, u64 now)
{
	const char *text = "";
	size_t text_bytes = 0;
	u64 id;
	json_val ids = json_get(choice, "token_ids");
	json_string(json_get(choice, "text"), &text, &text_bytes);
	if (!text_bytes && !json_count(ids))
		return;
	if (r->first_ns)
		add_gap(&l->out->gaps, (double)(now - r->last_ns) / 1e6);
	else
		r->first_ns = now;
	r->last_ns = now;
	l->tokens += json_count(ids) ? json_count(ids) : 1;
	if (!l->config->keep_output)
		return;
	buf_append(&r->text, text, text_bytes);
	for (struct json_iter it = json_iterate(ids); json_next(&it);)
		if (json_uint(it.value, &id))
			u32_vec_push(&r->ids, (u32)id);
}

static void take_event(struct load *l, struct bench_result *r, const char *data, size_t bytes, u64 now)
{
	struct json_doc *doc;
	struct err_msg em;
	u64 count;
	if (bytes == 6 && memcmp(data, "[DONE]", 6) == 0) {
		r->done = true;
		return;
	}
	if (json_parse(&doc, data, bytes, &em) != ERR_OK) {
		fail(r, em.text);
		return;
	}
	json_val root = json_root(doc);
	json_val error = json_get(root, "error");
	if (json_present(error))
		fail(r, json_cstr(json_get(error, "message"), "an error without a message"));
	for (struct json_iter it = json_iterate(json_get(root, "choices")); json_next(&it);) {
		take_tokens(l, r, it.value, now);
		const char *finish = json_cstr(json_get(it.value, "finish_reason"), NULL);
		if (finish && r->finish[0])
			fail(r, "two finish reasons came");
		if (finish)
			snprintf(r->finish, sizeof(r->finish), "%s", finish);
	}
	json_val usage = json_get(root, "usage");
	if (json_uint(json_get(usage, "completion_tokens"), &count))
		r->output_tokens = (u32)count;
	if (json_uint(json_get(usage, "prompt_tokens"), &count))
		r->prompt_tokens = (u32)count;
	json_free(&doc);
}

static void take_plain_error(struct bench_result *r, struct bench_http *h)
{
	struct json_doc *doc;
	char text[200];
	const char *body = buf_cstr(&h->body);
	snprintf(text, sizeof(text), "HTTP %d: %.120s", h->status, body);
	if (json_parse(&doc, body, h->body.bytes, NULL) == ERR_OK) {
		json_val message = json_get(json_get(json_root(doc), "error"), "message");
		snprintf(text, sizeof(text), "HTTP %d: %.150s", h->status, json_cstr(message, body));
		json_free(&doc);
	}
	fail(r, text);
}

/* ---------------------------------------------------------------- slots */

static enum err watch(struct load *l, struct slot *s, struct err_msg *em)
{
	u32 events = EPOLLIN | (bench_http_wants_write(&s->http) ? EPOLLOUT : 0);
	if (s->watched_fd == s->http.fd && s->watched == events)
		return ERR_OK;
	struct epoll_event ev = {.events = events, .data.u32 = (u32)(s - l->slots)};
	/* A descriptor leaves the set by being closed; a new one may have its number. */
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, s->http.fd, &ev) &&
	    epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, s->http.fd, &ev))
		return err_set(em, ERR_IO, "epoll: %s", strerror(errno));
	s->watched_fd = s->http.fd;
	s->watched = events;
	return ERR_OK;
}

static void finish(struct load *l, struct slot *s)
{
	struct bench_result *r = &l->out->results[s->request];
	r->end_ns = clock_now_ns();
	if (!r->failed && !r->done)
		fail(r, "the stream ended without [DONE]");
	if (!r->failed && !r->finish[0])
		fail(r, "the stream ended without a finish reason");
	if (!r->failed && l->config->keep_output && r->ids.count != r->output_tokens) {
		char text[100];
		snprintf(text, sizeof(text), "%zu token ids came, usage says %u", r->ids.count, r->output_tokens);
		fail(r, text);
	}
	if (r->failed || !s->http.keep_alive)
		bench_http_close(&s->http);
	if (s->http.fd < 0)
		s->watched_fd = -1;
	s->request = IDLE;
	l->running--;
	l->finished++;
}

static enum err begin(struct load *l, struct slot *s, struct err_msg *em)
{
	struct err_msg why;
	s->request = l->begun++;
	l->running++;
	struct bench_result *r = &l->out->results[s->request];
	build_body(l, s->request % l->config->distinct);
	r->begin_ns = clock_now_ns();
	enum err e = bench_http_begin(&s->http, l->config->target, "/v1/completions", l->body.data, l->body.bytes, &why);
	if (e == ERR_OK)
		return watch(l, s, em);
	fail(r, why.text);
	finish(l, s);
	return ERR_OK;
}

static enum err step(struct load *l, struct slot *s, struct err_msg *em)
{
	struct err_msg why;
	const char *data;
	size_t bytes;
	if (s->request == IDLE) { /* the server ended a connection that nobody used */
		bench_http_close(&s->http);
		s->watched_fd = -1;
		return ERR_OK;
	}
	struct bench_result *r = &l->out->results[s->request];
	enum err e = bench_http_step(&s->http, &why);
	u64 now = clock_now_ns();
	if (s->http.status == 200)
		while (bench_http_next_event(&s->http, &data, &bytes))
			take_event(l, r, data, bytes, now);
	if (e == ERR_AGAIN)
		return watch(l, s, em);
	if (e != ERR_OK)
		fail(r, why.text);
	else if (s->http.status != 200)
		take_plain_error(r, &s->http);
	finish(l, s);
	return ERR_OK;
}

/* ---------------------------------------------------------------- the loop */

static void draw_progress(struct load *l, bool end)
{
	u64 now = clock_now_ns();
	if (!l->config->progress || (!end && now - l->drawn_ns < PROGRESS_MS * 1000000ull))
		return;
	l->drawn_ns = now;
	double seconds = (double)(now - l->start_ns) / 1e9;
	fprintf(stderr, "\r\033[K%s: %u of %u done, %u running, %.0f tokens/s%s", l->config->phase, l->finished,
		l->config->request_count, l->running, (double)l->tokens / (seconds > 0 ? seconds : 1),
		end ? "\n" : "");
}

static struct slot *idle_slot(struct load *l)
{
	for (u32 i = 0; i < l->config->concurrency; i++)
		if (l->slots[i].request == IDLE)
			return &l->slots[i];
	return NULL;
}

/* Begins what is due. Arrivals of an open load that find no room begin late: that is in their time to first token,
 * since it counts from the arrival. */
static enum err begin_due(struct load *l, struct err_msg *em)
{
	const struct bench_load_config *c = l->config;
	struct slot *s;
	enum err e = ERR_OK;
	while (e == ERR_OK && l->begun < c->request_count && (s = idle_slot(l)) != NULL) {
		u64 now = clock_now_ns();
		if (c->request_rate > 0 && now < l->arrival_ns)
			break;
		u64 arrival = l->arrival_ns;
		u32 request = l->begun;
		e = begin(l, s, em);
		if (c->request_rate <= 0)
			continue;
		l->out->results[request].begin_ns = arrival;
		double uniform = ((double)(next_random(&l->random) >> 11) + 0.5) / 9007199254740992.0;
		l->arrival_ns += (u64)(-log(uniform) / c->request_rate * 1e9);
	}
	return e;
}

static void end_overdue(struct load *l)
{
	u64 now = clock_now_ns();
	for (u32 i = 0; i < l->config->concurrency; i++) {
		struct slot *s = &l->slots[i];
		if (s->request == IDLE ||
		    now - l->out->results[s->request].begin_ns < l->config->timeout_s * 1000000000ull)
			continue;
		fail(&l->out->results[s->request], "timed out");
		finish(l, s);
	}
}

static int wait_ms(const struct load *l)
{
	u64 now = clock_now_ns();
	if (l->config->request_rate <= 0 || l->begun == l->config->request_count)
		return PROGRESS_MS;
	if (l->arrival_ns <= now)
		return l->running == l->config->concurrency ? PROGRESS_MS : 0;
	u64 ms = (l->arrival_ns - now + 999999) / 1000000;
	return ms < PROGRESS_MS ? (int)ms : PROGRESS_MS;
}

static enum err run_loop(struct load *l, struct err_msg *em)
{
	struct epoll_event events[256];
	enum err e = ERR_OK;
	while (e == ERR_OK && l->finished < l->config->request_count) {
		e = begin_due(l, em);
		int n = epoll_wait(l->epoll_fd, events, COUNT_OF(events), wait_ms(l));
		if (n < 0 && errno != EINTR)
			return err_set(em, ERR_IO, "epoll: %s", strerror(errno));
		for (int i = 0; i < n && e == ERR_OK; i++)
			e = step(l, &l->slots[events[i].data.u32], em);
		end_overdue(l);
		draw_progress(l, false);
	}
	return e;
}

enum err bench_load_run(const struct bench_load_config *config, struct bench_outcome *out, struct err_msg *em)
{
	struct load l = {.config = config, .out = out, .random = config->seed, .start_ns = clock_now_ns()};
	*out = (struct bench_outcome){.count = config->request_count};
	l.arrival_ns = l.start_ns;
	out->results = calloc(config->request_count, sizeof(*out->results));
	l.slots = calloc(config->concurrency, sizeof(*l.slots));
	l.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	enum err e = ERR_OK;
	if (!out->results || !l.slots)
		e = err_set(em, ERR_NO_MEMORY, "no memory for %u requests", config->request_count);
	else if (l.epoll_fd < 0)
		e = err_set(em, ERR_IO, "epoll: %s", strerror(errno));
	for (u32 i = 0; l.slots && i < config->concurrency; i++) {
		l.slots[i].http.fd = l.slots[i].watched_fd = -1;
		l.slots[i].request = IDLE;
	}
	if (e == ERR_OK)
		e = run_loop(&l, em);
	draw_progress(&l, true);
	out->duration_s = (double)(clock_now_ns() - l.start_ns) / 1e9;
	for (u32 i = 0; l.slots && i < config->concurrency; i++)
		bench_http_fini(&l.slots[i].http);
	free(l.slots);
	buf_fini(&l.body);
	if (l.epoll_fd >= 0)
		close(l.epoll_fd);
	return e;
}

void bench_outcome_fini(struct bench_outcome *out)
{
	for (u32 i = 0; out->results && i < out->count; i++) {
		buf_fini(&out->results[i].text);
		u32_vec_fini(&out->results[i].ids);
	}
	free(out->results);
	free(out->gaps.ms);
	*out = (struct bench_outcome){0};
}

enum err bench_find_model(const struct bench_target *target, char *name, size_t bytes, struct err_msg *em)
{
	struct bench_http h = {.fd = -1};
	struct json_doc *doc = NULL;
	u64 begin_ns = clock_now_ns();
	enum err e = bench_http_begin(&h, target, "/v1/models", NULL, 0, em);
	if (e == ERR_OK)
		e = ERR_AGAIN;
	while (e == ERR_AGAIN) {
		struct pollfd p = {.fd = h.fd, .events = POLLIN | (bench_http_wants_write(&h) ? POLLOUT : 0)};
		if (clock_now_ns() - begin_ns > FIND_MODEL_MS * 1000000ull)
			e = err_set(em, ERR_TIMEOUT, "no answer to GET /v1/models");
		else if (poll(&p, 1, 100) > 0)
			e = bench_http_step(&h, em);
	}
	if (e == ERR_OK && h.status != 200)
		e = err_set(em, ERR_IO, "GET /v1/models: HTTP %d: %.200s", h.status, buf_cstr(&h.body));
	if (e == ERR_OK)
		e = json_parse(&doc, buf_cstr(&h.body), h.body.bytes, em);
	const char *id = NULL;
	if (e == ERR_OK)
		id = json_cstr(json_get(json_at(json_get(json_root(doc), "data"), 0), "id"), NULL);
	if (e == ERR_OK && !id)
		e = err_set(em, ERR_FORMAT, "GET /v1/models lists no model");
	if (e == ERR_OK)
		snprintf(name, bytes, "%s", id);
	else
		err_prefix(em, "%s", target->host);
	json_free(&doc);
	bench_http_fini(&h);
	return e;
}
