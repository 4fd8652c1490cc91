/* Anthropic's Messages API (/v1/messages), on top of chats: its bodies are read into the request of a chat, and what comes
 * back is written as a message with blocks, whole or as its own kinds of events. */
#ifndef TERCET_PROC_GATEWAY_MESSAGES_H
#define TERCET_PROC_GATEWAY_MESSAGES_H

#include "proc_gateway/reply_items.h"

/* What ids of calls begin with. Templates that look at ids want so many letters and digits, and get them without it. */
#define MESSAGES_CALL_MARK "toolu_"
enum { MESSAGES_SHORT_ID_BYTES = 9 };

/* Like openai_request_read; `r->response` is the body as it came. */
bool messages_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
		   struct api_error *e);
/* A body of /v1/messages/count_tokens, read as one of /tokenize: the ids are those of the prompt, however many. */
bool messages_count_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			 struct api_error *e);

/* How its replies and events are written. */
extern const struct reply_form messages_form;

#endif
