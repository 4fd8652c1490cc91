/* The fields of sessions, and the turn that a chat's new messages are. */
#ifndef TERCET_PROC_GATEWAY_OPENAI_SESSION_H
#define TERCET_PROC_GATEWAY_OPENAI_SESSION_H

#include "proc_gateway/openai_request.h"

/* Whether the request goes on with a session that is there; its prompt is then the new turn only, and may be empty. */
static inline bool openai_session_goes_on(const struct openai_request *r)
{
	return r->fields.session_id && !r->fields.session_start;
}

/* A name that may be a session's. */
bool openai_session_name_ok(const char *name);
/* Checks what the fields of sessions say, and those that do not go with them. */
bool openai_session_check(const struct openai_request *r, struct api_error *e);
/* Renders the new messages as what comes behind the turns before, and encodes that as the one prompt. */
bool openai_session_messages(struct openai_request *r, const struct openai_model *m, const struct chat_request *chat,
			     struct api_error *e);
/* No new messages: where the last prompt is answered again, which is not at hand, it is taken to end as that of any question. */
void openai_session_again(struct openai_request *r, const struct openai_model *m, const struct chat_request *chat);

#endif
