/* Owns the form of error bodies; runs in the gateway. Never puts more of a client's input into a message than
 * a short piece of the value that is wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/utf8.h"
#include "proc_gateway/api_error.h"
#include "proc_gateway/http_server.h"

enum { VALUE_BYTES_MAX = 80, STATUS_OVERLOADED = 529 };

bool api_error_set(struct api_error *e, int status, const char *param, const char *code, const char *fmt, ...)
{
	va_list args;
	*e = (struct api_error){.status = status, .code = code};
	snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
	va_start(args, fmt);
	vsnprintf(e->message, sizeof(e->message), fmt, args);
	va_end(args);
	return false;
}

bool api_error_field(struct api_error *e, const char *name, json_val value, const char *wrong,
		     const char *right)
{
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_write_value(&w, value);
	if (text.bytes > VALUE_BYTES_MAX) {
		text.bytes = utf8_complete_prefix(text.data, VALUE_BYTES_MAX);
		buf_append_str(&text, "...");
	}
	const char *json = buf_cstr(&text);
	api_error_set(e, 400, name, NULL, "Field '%s': %s %s; it must be %s.", name,
		      *json ? json : "the value", wrong, right);
	buf_fini(&text);
	return false;
}

static const char *error_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 404:
		return "not_found_error";
	case 429:
		return "rate_limit_error";
	case 503:
		return "service_unavailable_error";
	default:
		return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

/* As Anthropic's API calls them. */
static const char *anthropic_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 408:
		return "timeout_error";
	case 413:
		return "request_too_large";
	case 429:
		return "rate_limit_error";
	case 503:
		return "overloaded_error";
	default:
		return status >= 500 ? "api_error" : "invalid_request_error";
	}
}

enum api_form api_form_of_path(const char *path)
{
	static const char messages[] = "/v1/messages";
	const size_t bytes = sizeof(messages) - 1;
	static const char *const llama[] = {"/completion", "/completions", "/infill", "/props", "/apply-template", "/embedding", "/embeddings"};
	for (size_t i = 0; i < COUNT_OF(llama); i++)
		if (strcmp(path, llama[i]) == 0)
			return API_LLAMA;
	return strncmp(path, messages, bytes) == 0 && (!path[bytes] || path[bytes] == '/') ? API_ANTHROPIC : API_OPENAI;
}

int api_error_status(const struct api_error *e, enum api_form form)
{
	return form == API_ANTHROPIC && e->status == 503 ? STATUS_OVERLOADED : e->status;
}

static void write_anthropic(const struct api_error *e, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "type");
	json_write_cstr(&w, "error");
	json_key(&w, "error");
	json_object_begin(&w);
	json_key(&w, "type");
	json_write_cstr(&w, anthropic_type(e->status));
	json_key(&w, "message");
	json_write_cstr(&w, e->message);
	json_object_end(&w);
	json_object_end(&w);
}

/* As llama-server calls them. */
static const char *llama_type(const struct api_error *e)
{
	if (e->code && strcmp(e->code, "context_length_exceeded") == 0)
		return "exceed_context_size_error";
	switch (e->status) {
	case 403:
		return "permission_error";
	case 501:
		return "not_supported_error";
	case 503:
		return "unavailable_error";
	default:
		return error_type(e->status);
	}
}

/* The field that is wrong stands beside what llama-server has. */
static void write_llama(const struct api_error *e, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "error");
	json_object_begin(&w);
	json_key(&w, "code");
	json_write_int(&w, e->status);
	json_key(&w, "message");
	json_write_cstr(&w, e->message);
	json_key(&w, "type");
	json_write_cstr(&w, llama_type(e));
	if (e->param[0]) {
		json_key(&w, "param");
		json_write_cstr(&w, e->param);
	}
	json_object_end(&w);
	json_object_end(&w);
}

void api_error_write(const struct api_error *e, enum api_form form, struct buf *out)
{
	struct json_writer w;
	if (form == API_LLAMA) {
		write_llama(e, out);
		return;
	}
	if (form == API_ANTHROPIC) {
		write_anthropic(e, out);
		return;
	}
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "error");
	json_object_begin(&w);
	json_key(&w, "message");
	json_write_cstr(&w, e->message);
	json_key(&w, "type");
	json_write_cstr(&w, error_type(e->status));
	json_key(&w, "param");
	if (e->param[0])
		json_write_cstr(&w, e->param);
	else
		json_write_null(&w);
	json_key(&w, "code");
	if (e->code)
		json_write_cstr(&w, e->code);
	else
		json_write_int(&w, e->status);
	json_object_end(&w);
	json_object_end(&w);
}

void api_error_reply(const struct api_error *e, struct http_request *r)
{
	struct buf body = {0};
	const enum api_form form = api_form_of_path(http_request_head(r)->path);
	api_error_write(e, form, &body);
	if (e->retry_after_ms > 0) {
		char seconds[16];
		snprintf(seconds, sizeof(seconds), "%u", (e->retry_after_ms + 999) / 1000);
		http_reply_header(r, "Retry-After", seconds);
	}
	http_reply(r, api_error_status(e, form), "application/json", body.data ? body.data : "", body.bytes);
	buf_fini(&body);
}
