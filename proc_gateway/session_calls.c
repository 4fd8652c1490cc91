/* Owns the HTTP requests that wait for the engine's word about a session. Runs in the gateway, in the event loop. */
#include "proc_gateway/session_calls.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/session.h"
#include "proc_gateway/api_error.h"
#include "proc_gateway/openai_session.h"
#include "proc_gateway/requests.h"

struct session_call {
	struct session_calls *owner;
	struct session_call *previous, *next;
	struct http_request *http;
	u64 query_id;
	bool end;
	char name[SESSION_NAME_MAX + 1];
};

static void unlink_call(struct session_call *c)
{
	*(c->previous ? &c->previous->next : &c->owner->calls) = c->next;
	if (c->next)
		c->next->previous = c->previous;
}

static void on_http_close(void *ctx, struct http_request *http)
{
	struct session_call *c = ctx;
	(void)http;
	tercet_session_discard(c->owner->engine, c->query_id);
	unlink_call(c);
	free(c);
}

static void fail(struct session_call *c, const struct api_error *e)
{
	http_request_on_close(c->http, NULL, NULL);
	api_error_reply(e, c->http);
	unlink_call(c);
	free(c);
}

void session_calls_start(struct session_calls *sc, struct http_request *http, const char *name, u64 owner, bool end)
{
	struct api_error e;
	struct tercet_error error = {""};
	struct session_call *c = NULL;
	if (!openai_session_name_ok(name)) {
		api_error_set(&e, 404, "session_id", "session_not_found",
			      "There is no session of this name; it would be 1 to 64 letters, digits and \"._:-\".");
		api_error_reply(&e, http);
		return;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		api_error_set(&e, 503, NULL, NULL, "There is no memory for the request.");
		api_error_reply(&e, http);
		return;
	}
	c->owner = sc;
	c->http = http;
	c->end = end;
	memcpy(c->name, name, strlen(name));
	c->next = sc->calls;
	if (c->next)
		c->next->previous = c;
	sc->calls = c;
	http_request_on_close(http, on_http_close, c);
	enum tercet_result result = end ? tercet_session_end(sc->engine, name, owner, c, &c->query_id, &error)
					: tercet_session_get(sc->engine, name, owner, c, &c->query_id, &error);
	if (result == TERCET_OK)
		return;
	api_error_set(&e, result == TERCET_BUSY ? 429 : 503, NULL, NULL, "%s", error.text);
	e.retry_after_ms = 1000;
	fail(c, &e);
}

static void write_state(const struct session_call *c, const struct tercet_session_state *s, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "id");
	json_write_cstr(&w, c->name);
	json_key(&w, "object");
	json_write_cstr(&w, c->end ? "session.deleted" : "session");
	if (c->end) {
		json_key(&w, "deleted");
		json_write_bool(&w, true);
	}
	json_key(&w, "tokens");
	json_write_uint(&w, s->token_count);
	json_key(&w, "turns");
	json_write_uint(&w, s->turn_count);
	json_key(&w, "cached_tokens");
	json_write_uint(&w, s->cached_count);
	json_key(&w, "running");
	json_write_bool(&w, s->running != 0);
	json_key(&w, "age_s");
	json_write_uint(&w, s->age_s);
	json_key(&w, "idle_s");
	json_write_uint(&w, s->idle_s);
	json_key(&w, "expires_in_s");
	if (s->ttl_s && !c->end)
		json_write_uint(&w, s->idle_s < s->ttl_s ? s->ttl_s - s->idle_s : 0);
	else
		json_write_null(&w);
	json_object_end(&w);
}

void session_calls_on_event(struct session_calls *sc, const struct tercet_event *event)
{
	struct session_call *c = event->user;
	struct buf body = {0};
	struct api_error e;
	(void)sc;
	if (!c)
		return;
	if (event->code != TERCET_OK) {
		requests_refusal(&e, event->code, event->error_text, 0);
		fail(c, &e);
		return;
	}
	write_state(c, &event->session, &body);
	http_request_on_close(c->http, NULL, NULL);
	if (buf_ok(&body)) {
		http_reply(c->http, 200, "application/json", body.data, body.bytes);
	} else {
		api_error_set(&e, 503, NULL, NULL, "There is no memory for the reply.");
		api_error_reply(&e, c->http);
	}
	buf_fini(&body);
	unlink_call(c);
	free(c);
}

void session_calls_fail_all(struct session_calls *sc, const char *text)
{
	struct api_error e;
	api_error_set(&e, 503, NULL, NULL, "%s", text);
	while (sc->calls) {
		tercet_session_discard(sc->engine, sc->calls->query_id);
		fail(sc->calls, &e);
	}
}
