/* Writes the body of a chat out of a conversation that another API words otherwise: system texts in front are one message,
 * and what the model has thought, said and called in a row is one of the assistant. For the readers of /v1/responses and
 * /v1/messages. Memory that ran out shows as `failed` of the writer's buffer. */
#ifndef TERCET_PROC_GATEWAY_CHAT_WRITER_H
#define TERCET_PROC_GATEWAY_CHAT_WRITER_H

#include "common/buf.h"
#include "common/json.h"
#include "proc_gateway/api_error.h"

/* Zeroed, but for `w` and `e`, which are borrowed. */
struct chat_writer {
	struct json_writer *w; /* inside of the list of messages */
	struct api_error *e;
	struct buf system;
	bool begun;   /* the system message is written */
	bool pending; /* an assistant's message is being collected */
	bool said;    /* it has content */
	struct buf content, reasoning, calls;
};

/* One message as it is. */
void chat_writer_message(struct chat_writer *c, const char *role, const struct buf *content);
/* One of the role "tool". */
void chat_writer_result(struct chat_writer *c, const char *id, size_t id_bytes, const struct buf *content);
/* Adds a text to the system message, while that is not written. */
void chat_writer_add_system(struct chat_writer *c, const struct buf *text);
/* Adds a call to the assistant's message; `arguments` are a text of JSON. */
void chat_writer_add_call(struct chat_writer *c, json_val name, const char *id, size_t id_bytes, const char *arguments,
			  size_t bytes);
/* Writes the system message, if there is one, unless that is done. */
void chat_writer_flush_system(struct chat_writer *c);
/* Writes the assistant's message, if one was collected. */
void chat_writer_flush_assistant(struct chat_writer *c);
/* Frees what was collected. */
void chat_writer_fini(struct chat_writer *c);

/* A field of `root`, and what the chat's is called; NULL: the same. */
struct chat_field {
	const char *name, *chat;
};
/* Copies those of the fields that are there. */
void chat_writer_copy(struct json_writer *w, json_val root, const struct chat_field *fields, size_t count);
/* What `e` says of a chat's field it says of the one that stands for it, wherever that has another name. */
void chat_writer_rename(struct api_error *e, const struct chat_field *fields, size_t count);
/* response_format: JSON that follows a schema. `format` has "schema" in it. */
void chat_writer_schema(struct json_writer *w, json_val format);

#endif
