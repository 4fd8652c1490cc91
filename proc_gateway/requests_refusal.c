/* Owns what HTTP says of an engine's refusal: status, code, the field that it is about, and when to come again. Runs in the
 * gateway. Never replies itself. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/api_error.h"
#include "proc_gateway/requests.h"

static int refusal_status(enum tercet_result code)
{
	switch (code) {
	case TERCET_AGAIN:
	case TERCET_BUSY:
		return 429;
	case TERCET_GONE:
	case TERCET_SHUTDOWN:
	case TERCET_NO_MEMORY:
	case TERCET_TIMEOUT:
		return 503;
	case TERCET_INVALID:
	case TERCET_TOO_LONG:
	case TERCET_UNSUPPORTED:
	case TERCET_NEVER_FITS:
		return 400;
	case TERCET_NOT_FOUND:
		return 404;
	case TERCET_CONFLICT:
		return 409;
	case TERCET_DROPPED:
		return 410;
	default:
		return 500;
	}
}

static const char *refusal_name(enum tercet_result code, int status)
{
	switch (code) {
	case TERCET_TOO_LONG:
		return "context_length_exceeded";
	case TERCET_NOT_FOUND:
		return "session_not_found";
	case TERCET_CONFLICT:
		return "session_conflict";
	case TERCET_DROPPED:
		return "session_dropped";
	default:
		return status == 429 ? "server_busy" : NULL;
	}
}

/* The field that a refusal is about: its first word, where that is or has what it should not. NULL: none. */
static const char *refused_field(const char *text, char *out, size_t bytes)
{
	size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
	if (length == 0 || length >= bytes || (strncmp(text + length, " is ", 4) != 0 && strncmp(text + length, " has ", 5) != 0))
		return NULL;
	snprintf(out, bytes, "%.*s", (int)length, text);
	return out;
}

void requests_refusal(struct api_error *e, enum tercet_result code, const char *text, u32 retry_after_ms)
{
	int status = refusal_status(code);
	char name[32];
	bool of_session = code == TERCET_NOT_FOUND || code == TERCET_CONFLICT || code == TERCET_DROPPED;
	const char *field = of_session ? "session_id" : status == 400 ? refused_field(text, name, sizeof(name)) : NULL;
	api_error_set(e, status, field, refusal_name(code, status), "%s",
		      *text ? text : tercet_result_text(code));
	e->retry_after_ms = retry_after_ms == 0 && (status == 429 || status == 503) ? 1000 : retry_after_ms;
}
