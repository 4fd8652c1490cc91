/* OpenAI's Responses API (/v1/responses), on top of chats: its bodies are read into the request of a chat, and what comes
 * back is written as a response with items, whole or as its own kinds of events. */
#ifndef TERCET_PROC_GATEWAY_RESPONSES_H
#define TERCET_PROC_GATEWAY_RESPONSES_H

#include "proc_gateway/requests.h"

/* Like openai_request_read; `r->response` is the body as it came. */
bool responses_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
		    struct api_error *e);

/* Appends the whole reply of a group that is done. */
void responses_write(struct group *g, struct buf *out);
/* Sends the events that are due: of the beginning, of what is new, and of the end once the choice is done. The choice keeps
 * its text. False: the client is gone, or memory ran out, nothing more can be written. */
bool responses_stream(struct choice *c);
/* Sends the event of an error; what was begun stays as it is. */
void responses_stream_error(struct group *g, const struct api_error *e);
void responses_stream_fini(struct responses_stream *s);

#endif
