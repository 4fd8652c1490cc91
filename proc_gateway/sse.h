/* Server-sent events: "data: ...\n\n". */
#ifndef TERCET_PROC_GATEWAY_SSE_H
#define TERCET_PROC_GATEWAY_SSE_H

#include "common/buf.h"
#include "proc_gateway/http_server.h"

/* A comment, which clients ignore; keeps proxies from closing a silent stream. */
#define SSE_PING ": ping\n\n"

/* Replies 200 with the headers of an event stream. */
void sse_begin(struct http_request *r);
/* An event is made in place: sse_event_begin, append JSON without line ends, sse_event_send. ERR_GONE,
 * ERR_NO_MEMORY. */
void sse_event_begin(struct buf *event);
/* The same with "event: NAME" in front; NAME has no line ends. */
void sse_named_event_begin(struct buf *event, const char *name);
MUST_CHECK enum err sse_event_send(struct http_request *r, struct buf *event);
/* "data: [DONE]", and the end of the reply. */
void sse_end(struct http_request *r);

#endif
