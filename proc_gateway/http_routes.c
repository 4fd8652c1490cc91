/* Owns the table of routes and what stands in front of every handler: ids, CORS, keys, methods, readiness.
 * Runs in the gateway. Never reads a body before the client was found to be allowed to send it. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "proc_gateway/api_error.h"
#include "proc_gateway/gateway.h"
#include "proc_gateway/handlers.h"
#include "proc_gateway/metrics.h"

enum {
	ROUTE_OPEN = 1 << 0,	/* no key needed */
	ROUTE_PREFIX = 1 << 1,	/* the path goes on behind it */
	ROUTE_ENGINE = 1 << 2,	/* needs an engine that has answered */
	ROUTE_NEW_WORK = 1 << 3 /* refused while draining */
};

struct route {
	const char *path;
	u32 methods;
	u32 flags;
	void (*handle)(struct gateway *g, struct http_request *r);
};

static const struct route routes[] = {
	{"/v1/chat/completions", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_chat},
	{"/v1/completions", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_completions},
	{"/v1/responses", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_responses},
	{"/v1/messages", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_messages},
	{"/v1/messages/count_tokens", HTTP_METHOD_POST, ROUTE_ENGINE, handle_count_tokens},
	{"/v1/embeddings", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_embeddings},
	{"/completion", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_llama_completion},
	{"/completions", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_llama_completion},
	{"/infill", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_llama_infill},
	{"/embedding", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_llama_embedding},
	{"/embeddings", HTTP_METHOD_POST, ROUTE_ENGINE | ROUTE_NEW_WORK, handle_llama_embedding},
	{"/apply-template", HTTP_METHOD_POST, ROUTE_ENGINE, handle_llama_template},
	{"/props", HTTP_METHOD_GET, ROUTE_ENGINE, handle_llama_props},
	{"/v1/models", HTTP_METHOD_GET, ROUTE_ENGINE, handle_models},
	{"/v1/models/", HTTP_METHOD_GET, ROUTE_ENGINE | ROUTE_PREFIX, handle_model},
	{"/v1/sessions/", HTTP_METHOD_GET | HTTP_METHOD_DELETE, ROUTE_ENGINE | ROUTE_PREFIX, handle_session},
	{"/tokenize", HTTP_METHOD_POST, ROUTE_ENGINE, handle_tokenize},
	{"/detokenize", HTTP_METHOD_POST, ROUTE_ENGINE, handle_detokenize},
	{"/health", HTTP_METHOD_GET, ROUTE_OPEN, handle_health},
	{"/v1/health", HTTP_METHOD_GET, ROUTE_OPEN, handle_health},
	{"/ping", HTTP_METHOD_GET | HTTP_METHOD_POST, ROUTE_OPEN, handle_health},
	{"/version", HTTP_METHOD_GET, 0, handle_version},
	{"/load", HTTP_METHOD_GET, 0, handle_load},
	{"/metrics", HTTP_METHOD_GET, 0, handle_metrics},
	{"/", HTTP_METHOD_GET, ROUTE_OPEN, handle_page},
};

static const struct route *find_route(const char *path)
{
	for (size_t i = 0; i < COUNT_OF(routes); i++) {
		size_t bytes = strlen(routes[i].path);
		if (routes[i].flags & ROUTE_PREFIX ? strncmp(path, routes[i].path, bytes) == 0 && path[bytes]
						   : strcmp(path, routes[i].path) == 0)
			return &routes[i];
	}
	return NULL;
}

/* What those who know another server, or write a slash too many, mean: "" or "; ...". */
static void hint_at_route(const char *path, char *out, size_t bytes)
{
	static const struct {
		const char *path, *hint;
	} known[] = {
		{"/chat/completions", "; /v1/chat/completions is"},
		{"/v1/chat", "; /v1/chat/completions is"},
		{"/responses", "; /v1/responses is"},
		{"/models", "; /v1/models is"},
		{"/slots", "; /load and /metrics say how much is going on"},
		{"/lora-adapters", "; /v1/models lists adapters"},
		{"/pooling", "; /v1/embeddings is"},
		{"/messages", "; /v1/messages is"},
		{"/v1/messages/batches", "; /v1/messages is, for one message each"},
	};
	char shorter[64];
	size_t length = strlen(path);
	out[0] = '\0';
	while (length > 1 && path[length - 1] == '/')
		length--;
	snprintf(shorter, sizeof(shorter), "%.*s", (int)(length < sizeof(shorter) ? length : 0), path);
	if (path[length] && find_route(shorter)) {
		snprintf(out, bytes, "; %s is, without a slash behind it", shorter);
		return;
	}
	for (size_t i = 0; i < COUNT_OF(known); i++)
		if (!strcmp(known[i].path, shorter))
			snprintf(out, bytes, "%s", known[i].hint);
}

static void methods_text(u32 methods, char *out, size_t bytes)
{
	static const struct {
		u32 method;
		const char *text;
	} names[] = {{HTTP_METHOD_GET, "GET, HEAD"}, {HTTP_METHOD_POST, "POST"}, {HTTP_METHOD_DELETE, "DELETE"}};
	out[0] = '\0';
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		size_t used = strlen(out);
		if (methods & names[i].method)
			snprintf(out + used, bytes - used, "%s%s", used ? ", " : "", names[i].text);
	}
}

/* ---------------------------------------------------------------- ids */

static bool is_good_id(const char *text)
{
	size_t bytes = strlen(text);
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
	return bytes > 0 && bytes <= 128 && strspn(text, allowed) == bytes;
}

/* splitmix64 (Steele, Lea, Flood 2014), for numbers that differ wherever what they are made of does. They are no secrets. */
static u64 mix(u64 x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

void routes_request_id(const struct gateway *g, const struct http_request *r, char out[ROUTES_ID_BYTES])
{
	const char *given = http_head_get(http_request_head(r), "x-request-id");
	u64 number = (u64)(uintptr_t)http_request_user(r);
	if (given && is_good_id(given))
		snprintf(out, ROUTES_ID_BYTES, "%s", given);
	else
		snprintf(out, ROUTES_ID_BYTES, "%016llx%016llx",
			 (unsigned long long)mix(g->id_secret ^ number),
			 (unsigned long long)mix(mix(g->id_secret) ^ number));
}

/* ---------------------------------------------------------------- in front of the body */

static bool check_key(struct gateway *g, const struct route *route, struct http_request *r)
{
	struct api_error e;
	u64 tenant;
	struct auth_shown shown = auth_shown(http_request_head(r));
	if ((route && route->flags & ROUTE_OPEN) || auth_check(&g->auth, shown, &tenant))
		return true;
	api_error_set(&e, 401, NULL, "invalid_api_key",
		      shown.authorization || shown.api_key
			      ? "The API key is not one of this server's."
			      : "An API key is needed: send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\".");
	http_reply_header(r, "WWW-Authenticate", "Bearer");
	api_error_reply(&e, r);
	return false;
}

static bool check_method(const struct route *route, struct http_request *r)
{
	struct api_error e;
	char allowed[32];
	const struct http_head *head = http_request_head(r);
	u32 method = head->method == HTTP_METHOD_HEAD ? HTTP_METHOD_GET : head->method;
	if (route->methods & method)
		return true;
	methods_text(route->methods, allowed, sizeof(allowed));
	http_reply_header(r, "Allow", allowed);
	if (head->method == HTTP_METHOD_OPTIONS) {
		http_reply(r, 204, NULL, "", 0);
		return false;
	}
	api_error_set(&e, 405, NULL, "method_not_allowed", "%.32s is not allowed for %.100s; it takes %s.",
		      head->method_text, head->path, allowed);
	api_error_reply(&e, r);
	return false;
}

static bool check_state(const struct gateway *g, const struct route *route, struct http_request *r)
{
	struct api_error e;
	if (g->draining && route->flags & ROUTE_NEW_WORK)
		api_error_set(&e, 503, NULL, "shutting_down",
			      "The server is shutting down and takes no new requests.");
	else if (!g->ready && route->flags & ROUTE_ENGINE)
		api_error_set(&e, 503, NULL, "not_ready", "The engine is still starting; try again.");
	else
		return true;
	e.retry_after_ms = 1000;
	api_error_reply(&e, r);
	return false;
}

void routes_on_head(void *ctx, struct http_request *r)
{
	struct gateway *g = ctx;
	struct api_error e;
	char id[ROUTES_ID_BYTES];
	const struct http_head *head = http_request_head(r);
	const struct route *route = find_route(head->path);
	http_request_set_user(r, (void *)(uintptr_t)++g->id_count);
	routes_request_id(g, r, id);
	http_reply_header(r, "X-Request-Id", id);
	if (api_form_of_path(head->path) == API_ANTHROPIC)
		http_reply_header(r, "Request-Id", id);
	cors_add_headers(&g->cors, r);
	if (cors_reply_preflight(&g->cors, r))
		return;
	if (!check_key(g, route, r))
		return;
	if (!route) {
		char instead[128];
		hint_at_route(head->path, instead, sizeof(instead));
		api_error_set(&e, 404, NULL, "unknown_url", "There is no %.200s here%s.", head->path, instead);
		api_error_reply(&e, r);
		return;
	}
	if (check_method(route, r))
		check_state(g, route, r);
}

void routes_on_request(void *ctx, struct http_request *r)
{
	const struct route *route = find_route(http_request_head(r)->path);
	route->handle(ctx, r);
}

void routes_error_body(void *ctx, const char *path, int status, const char *text, struct buf *out, const char **content_type)
{
	struct api_error e;
	(void)ctx;
	api_error_set(&e, status, NULL, NULL, "%s%s", text, status == 413 ? " --max-body-size sets it." : "");
	api_error_write(&e, api_form_of_path(path), out);
	*content_type = "application/json";
}
