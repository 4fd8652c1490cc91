/* Owns the JSON of tool calls in replies and chunks; runs in the gateway. */
#include <string.h>

#include "proc_gateway/tool_calls.h"

static void put_bytes(struct buf *out, const struct buf *text, size_t first)
{
	json_escape(out, text->data ? text->data + first : "", text->bytes - first);
}

static void put_id_and_name(const struct tool_call *call, struct buf *out)
{
	buf_append_str(out, "\"id\":");
	json_escape(out, call->id, strlen(call->id));
	buf_append_str(out, ",\"type\":\"function\",\"function\":{\"name\":");
	put_bytes(out, &call->name, 0);
	buf_append_str(out, ",\"arguments\":");
}

void tool_calls_write(const struct tool_calls *t, struct buf *out)
{
	buf_append_char(out, '[');
	for (u32 i = 0; i < t->count; i++) {
		buf_append_str(out, i ? ",{" : "{");
		put_id_and_name(&t->calls[i], out);
		put_bytes(out, &t->calls[i].arguments, 0);
		buf_append_str(out, "}}");
	}
	buf_append_char(out, ']');
}

static bool call_due(const struct tool_call *call)
{
	return !call->told || call->told_bytes < call->arguments.bytes;
}

bool tool_calls_due(const struct tool_calls *t)
{
	for (u32 i = 0; i < t->count; i++) {
		if (call_due(&t->calls[i]))
			return true;
	}
	return false;
}

void tool_calls_write_delta(struct tool_calls *t, struct buf *out)
{
	bool first = true;
	buf_append_char(out, '[');
	for (u32 i = 0; i < t->count; i++) {
		struct tool_call *call = &t->calls[i];
		if (!call_due(call))
			continue;
		buf_printf(out, first ? "{\"index\":%u," : ",{\"index\":%u,", i);
		first = false;
		if (call->told)
			buf_append_str(out, "\"function\":{\"arguments\":");
		else
			put_id_and_name(call, out);
		put_bytes(out, &call->arguments, call->told_bytes);
		buf_append_str(out, "}}");
		call->told = true;
		call->told_bytes = call->arguments.bytes;
	}
	buf_append_char(out, ']');
}
