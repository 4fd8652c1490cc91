/* Errors as OpenAI's API words them, {"error": {"message", "type", "param", "code"}}, or, on its paths, Anthropic's:
 * {"type": "error", "error": {"type", "message"}}, or llama-server's: {"error": {"code", "message", "type"}}. */
#ifndef TERCET_PROC_GATEWAY_API_ERROR_H
#define TERCET_PROC_GATEWAY_API_ERROR_H

#include "common/buf.h"
#include "common/json.h"
#include "common/types.h"

struct http_request;

struct api_error {
	int status;	  /* HTTP */
	const char *code; /* static; NULL: none */
	char param[64];	  /* the field that is wrong; "" none */
	char message[1024];
	u32 retry_after_ms; /* 0: no Retry-After header */
};

/* Fills `e` and returns false, so that `return api_error_set(...)` reads well. `param` and `code` may be
 * NULL. */
bool api_error_set(struct api_error *e, int status, const char *param, const char *code, const char *fmt, ...)
	PRINTF_LIKE(5, 6);
/* A field's value is wrong: 400 with "Field 'NAME': VALUE <wrong>; it must be <right>." Long values are cut.
 */
bool api_error_field(struct api_error *e, const char *name, json_val value, const char *wrong,
		     const char *right);
enum api_form { API_OPENAI, API_ANTHROPIC, API_LLAMA };
/* Whose errors the requests for a path get. */
enum api_form api_form_of_path(const char *path);
/* The status of the reply: Anthropic's API has one of its own for a server that is overloaded. */
int api_error_status(const struct api_error *e, enum api_form form);
/* Appends the JSON body. */
void api_error_write(const struct api_error *e, enum api_form form, struct buf *out);
/* The whole reply, in the form of the request's path, with Retry-After where it helps. */
void api_error_reply(const struct api_error *e, struct http_request *r);

#endif
