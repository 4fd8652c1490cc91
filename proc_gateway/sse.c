/* Owns the framing of event streams; runs in the gateway. Never sends an event in more than one write. */
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "proc_gateway/sse.h"

void sse_begin(struct http_request *r)
{
	http_reply_header(r, "Cache-Control", "no-cache");
	http_reply_header(r, "X-Accel-Buffering", "no"); /* nginx would hold events back */
	http_stream_begin(r, 200, "text/event-stream; charset=utf-8");
}

void sse_event_begin(struct buf *event)
{
	buf_clear(event);
	buf_append_str(event, "data: ");
}

void sse_named_event_begin(struct buf *event, const char *name)
{
	buf_clear(event);
	buf_printf(event, "event: %s\ndata: ", name);
}

enum err sse_event_send(struct http_request *r, struct buf *event)
{
	buf_append(event, "\n\n", 2);
	if (!buf_ok(event))
		return ERR_NO_MEMORY;
	DASSERT(!memchr(memmem(event->data, event->bytes, "data: ", 6), '\n',
			event->bytes - 2 - (size_t)((char *)memmem(event->data, event->bytes, "data: ", 6) - event->data)));
	return http_stream_write(r, event->data, event->bytes);
}

void sse_end(struct http_request *r)
{
	static const char done[] = "data: [DONE]\n\n";
	if (http_stream_write(r, done, sizeof(done) - 1) != ERR_OK)
		LOG_DEBUG("STREAM_GONE", "at=end");
	http_stream_end(r);
}
