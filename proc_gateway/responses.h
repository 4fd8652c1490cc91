/* OpenAI's Responses API (/v1/responses), on top of chats: its bodies are read into the request of a chat, and what comes
 * back is written as a response with items, whole or as its own kinds of events. */
#ifndef TERCET_PROC_GATEWAY_RESPONSES_H
#define TERCET_PROC_GATEWAY_RESPONSES_H

#include "proc_gateway/reply_items.h"

/* Like openai_request_read; `r->response` is the body as it came. */
bool responses_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
		    struct api_error *e);

/* How its replies and events are written. */
extern const struct reply_form responses_form;

#endif
