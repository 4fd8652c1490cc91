/* GET and DELETE of /v1/sessions/{id}: asks the engine and replies when it answers. */
#ifndef TERCET_PROC_GATEWAY_SESSION_CALLS_H
#define TERCET_PROC_GATEWAY_SESSION_CALLS_H

#include "client/tercet.h"
#include "proc_gateway/http_server.h"

struct session_calls {
	struct tercet *engine; /* borrowed */
	struct session_call *calls;
};

/* Replies at once when the name cannot be a session's, else when the engine has answered. `owner`: whose sessions. */
void session_calls_start(struct session_calls *sc, struct http_request *http, const char *name, u64 owner, bool end);
/* A TERCET_EVENT_SESSION. */
void session_calls_on_event(struct session_calls *sc, const struct tercet_event *event);
/* Replies 503 to what is unanswered. */
void session_calls_fail_all(struct session_calls *sc, const char *text);

#endif
