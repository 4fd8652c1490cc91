/* Cross-origin requests of browsers (Fetch standard, "CORS protocol"). */
#ifndef TERCET_PROC_GATEWAY_CORS_H
#define TERCET_PROC_GATEWAY_CORS_H

#include "common/types.h"

struct option_list;
struct http_request;

/* Borrowed from the options; none: every origin. */
struct cors {
	char *const *origins;
	u32 count;
};

void cors_init(struct cors *c, const struct option_list *origins);
/* Adds the headers that let the request's origin read the reply. Before the reply begins. */
void cors_add_headers(const struct cors *c, struct http_request *r);
/* Replies to a preflight (OPTIONS with Access-Control-Request-Method). False: it is none, nothing was done.
 */
bool cors_reply_preflight(const struct cors *c, struct http_request *r);

#endif
