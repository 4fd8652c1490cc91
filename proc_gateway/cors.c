/* Owns the CORS headers; runs in the gateway. Never allows credentials: API keys travel in the Authorization
 * header, which pages set themselves. */
#include <string.h>

#include "common/options.h"
#include "proc_gateway/cors.h"
#include "proc_gateway/http_server.h"

void cors_init(struct cors *c, const struct option_list *origins)
{
	*c = (struct cors){.origins = origins->items, .count = origins->count};
}

static bool allows_all(const struct cors *c)
{
	for (u32 i = 0; i < c->count; i++) {
		if (strcmp(c->origins[i], "*") == 0)
			return true;
	}
	return c->count == 0;
}

static bool allows(const struct cors *c, const char *origin)
{
	for (u32 i = 0; i < c->count; i++) {
		if (strcmp(c->origins[i], origin) == 0)
			return true;
	}
	return allows_all(c);
}

void cors_add_headers(const struct cors *c, struct http_request *r)
{
	const char *origin = http_head_get(http_request_head(r), "origin");
	bool all = allows_all(c);
	if (!all)
		http_reply_header(r, "Vary", "Origin");
	if (!origin || !allows(c, origin))
		return;
	http_reply_header(r, "Access-Control-Allow-Origin", all ? "*" : origin);
	http_reply_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

bool cors_reply_preflight(const struct cors *c, struct http_request *r)
{
	const struct http_head *head = http_request_head(r);
	const char *origin = http_head_get(head, "origin");
	const char *headers = http_head_get(head, "access-control-request-headers");
	if (head->method != HTTP_METHOD_OPTIONS || !origin ||
	    !http_head_get(head, "access-control-request-method"))
		return false;
	if (!allows(c, origin)) {
		static const char text[] = "This origin is not allowed (--allowed-origins).\n";
		http_reply(r, 403, "text/plain", text, sizeof(text) - 1);
		return true;
	}
	http_reply_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
	if (headers)
		http_reply_header(r, "Access-Control-Allow-Headers", headers);
	http_reply_header(r, "Access-Control-Max-Age", "600");
	http_reply(r, 204, NULL, "", 0);
	return true;
}
