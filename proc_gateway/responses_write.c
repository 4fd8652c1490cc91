/* Owns the shape of responses and of their events; runs in the gateway. An item is what the model has thought, what it has
 * said, or a call. */
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "proc_gateway/responses.h"
#include "proc_gateway/sse.h"

static const char id_prefix[] = "resp_";

static json_val asked(const struct group *g, const char *key)
{
	return json_get(json_root(g->request.response), key);
}

/* ---------------------------------------------------------------- items */

/* "rs_", "msg_" or "fc_", the response's own id, and a number. */
static void put_item_id(const struct group *g, const struct reply_item *item, struct buf *out)
{
	static const char *const heads[] = {"rs", "msg", "fc"};
	char id[sizeof(g->id) + 16]; /* the client may have chosen what is in it */
	snprintf(id, sizeof(id), "%s_%s_%u", heads[item->kind < ITEM_CALL ? item->kind : ITEM_CALL], g->id + strlen(id_prefix),
		 item->number);
	json_escape(out, id, strlen(id));
}

static void put_text(const struct choice *c, const struct reply_item *item, bool whole, struct buf *out)
{
	reply_items_put_bytes(reply_items_text(c, item->kind), item->begin, whole ? reply_items_end(c, item) : item->begin, out);
}

static void put_part(const struct choice *c, const struct reply_item *item, bool whole, struct buf *out)
{
	const bool message = item->kind == ITEM_TEXT;
	buf_printf(out, "{\"type\":\"%s\",\"text\":", message ? "output_text" : "reasoning_text");
	put_text(c, item, whole, out);
	buf_append_str(out, message ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_item(const struct choice *c, const struct reply_item *item, bool whole, struct buf *out)
{
	/* only what came last is cut off, as its own event says */
	const bool last = c->done && item->number + 1 == c->group->items.count;
	const bool stopped = c->stop_kind != TERCET_STOP_NONE && c->tools.cut;
	const bool cut = last && (c->finish == TERCET_FINISH_LENGTH || (item->kind >= ITEM_CALL && stopped));
	buf_append_str(out, "{\"id\":");
	put_item_id(c->group, item, out);
	buf_printf(out, ",\"status\":\"%s\",", !whole ? "in_progress" : cut ? "incomplete" : "completed");
	if (item->kind >= ITEM_CALL) {
		const struct tool_call *call = &c->tools.calls[item->kind - ITEM_CALL];
		buf_append_str(out, "\"type\":\"function_call\",\"call_id\":");
		json_escape(out, call->id, strlen(call->id));
		buf_append_str(out, ",\"name\":");
		reply_items_put_bytes(&call->name, 0, call->name.bytes, out);
		buf_append_str(out, ",\"arguments\":");
		put_text(c, item, whole, out);
		buf_append_char(out, '}');
		return;
	}
	buf_append_str(out, item->kind == ITEM_TEXT
				    ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":["
				    : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
	if (whole)
		put_part(c, item, true, out);
	buf_append_str(out, "]}");
}

/* ---------------------------------------------------------------- the response */

/* A field as it was asked, or what it is without. */
static void put_asked(const struct group *g, const char *key, const char *otherwise, struct buf *out)
{
	struct json_writer w;
	json_val v = asked(g, key);
	buf_printf(out, ",\"%s\":", key);
	if (!json_present(v)) {
		buf_append_str(out, otherwise);
		return;
	}
	json_begin(&w, out);
	json_write_value(&w, v);
}

static void put_usage(const struct choice *c, struct buf *out)
{
	buf_printf(out,
		   "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
		   "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}",
		   c->prompt_count, c->cached_count, c->token_count, c->thought_tokens, c->prompt_count + c->token_count);
}

static void put_response(const struct group *g, u32 count, struct buf *out)
{
	const struct choice *c = &g->choices[0];
	const bool cut = c->done && c->finish == TERCET_FINISH_LENGTH;
	buf_append_str(out, "{\"id\":");
	json_escape(out, g->id, strlen(g->id));
	buf_printf(out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":false,\"error\":null,"
			"\"incomplete_details\":%s,\"model\":",
		   (long long)g->created_s, !c->done ? "in_progress" : cut ? "incomplete" : "completed",
		   cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
	json_escape(out, g->request.model, strlen(g->request.model));
	buf_append_str(out, ",\"output\":[");
	for (u32 i = 0; i < count; i++) {
		buf_append_str(out, i ? "," : "");
		put_item(c, &g->items.list[i], true, out);
	}
	buf_append_str(out, "],\"usage\":");
	if (c->done)
		put_usage(c, out);
	else
		buf_append_str(out, "null");
	put_asked(g, "instructions", "null", out);
	put_asked(g, "max_output_tokens", "null", out);
	put_asked(g, "metadata", "{}", out);
	put_asked(g, "parallel_tool_calls", "true", out);
	put_asked(g, "reasoning", "{\"effort\":null,\"summary\":null}", out);
	put_asked(g, "temperature", "null", out);
	put_asked(g, "text", "{\"format\":{\"type\":\"text\"}}", out);
	put_asked(g, "tool_choice", "\"auto\"", out);
	put_asked(g, "tools", "[]", out);
	put_asked(g, "top_p", "null", out);
	put_asked(g, "user", "null", out);
	buf_append_str(out, ",\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"}");
}

static void write_whole(struct group *g, struct buf *out)
{
	put_response(g, g->items.count, out);
}

/* ---------------------------------------------------------------- events */

static struct buf *event_begin(struct group *g, const char *type)
{
	struct buf *out = &g->requests->out;
	sse_named_event_begin(out, type);
	buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%u", type, g->items.sequence++);
	return out;
}

/* An event of a response, with all its items or none. */
static bool send_response(struct group *g, const char *type, bool items)
{
	struct buf *out = event_begin(g, type);
	buf_append_str(out, ",\"response\":");
	put_response(g, items ? g->items.count : 0, out);
	return reply_items_send(g);
}

/* An event of the newest item. */
enum said { SAID_ITEM, SAID_PART, SAID_DELTA, SAID_WHOLE };
static bool send_item(struct choice *c, const char *type, enum said said, bool whole)
{
	struct group *g = c->group;
	const struct reply_item *item = reply_items_newest(g);
	struct buf *out = event_begin(g, type);
	buf_printf(out, ",\"output_index\":%u", item->number);
	if (said != SAID_ITEM) {
		buf_append_str(out, ",\"item_id\":");
		put_item_id(g, item, out);
		if (item->kind < ITEM_CALL)
			buf_append_str(out, ",\"content_index\":0");
	}
	if (item->kind == ITEM_TEXT && (said == SAID_DELTA || said == SAID_WHOLE))
		buf_append_str(out, ",\"logprobs\":[]");
	switch (said) {
	case SAID_ITEM:
		buf_append_str(out, ",\"item\":");
		put_item(c, item, whole, out);
		break;
	case SAID_PART:
		buf_append_str(out, ",\"part\":");
		put_part(c, item, whole, out);
		break;
	case SAID_DELTA:
		buf_append_str(out, ",\"delta\":");
		reply_items_put_news(c, out);
		break;
	case SAID_WHOLE:
		buf_append_str(out, item->kind < ITEM_CALL ? ",\"text\":" : ",\"arguments\":");
		put_text(c, item, true, out);
		if (item->kind >= ITEM_CALL) {
			const struct buf *name = &c->tools.calls[item->kind - ITEM_CALL].name;
			buf_append_str(out, ",\"name\":");
			reply_items_put_bytes(name, 0, name->bytes, out);
		}
		break;
	}
	return reply_items_send(g);
}

/* How the events of an item's text are called. */
static const char *text_event(u32 kind, bool done)
{
	static const char *const names[][2] = {
		{"response.reasoning_text.delta", "response.reasoning_text.done"},
		{"response.output_text.delta", "response.output_text.done"},
		{"response.function_call_arguments.delta", "response.function_call_arguments.done"}};
	return names[kind < ITEM_CALL ? kind : ITEM_CALL][done];
}

static bool send_open(struct choice *c)
{
	return send_item(c, "response.output_item.added", SAID_ITEM, false) &&
	       (reply_items_newest(c->group)->kind >= ITEM_CALL ||
		send_item(c, "response.content_part.added", SAID_PART, false));
}

static bool send_delta(struct choice *c)
{
	return send_item(c, text_event(reply_items_newest(c->group)->kind, false), SAID_DELTA, false);
}

static bool send_close(struct choice *c)
{
	const u32 kind = reply_items_newest(c->group)->kind;
	return send_item(c, text_event(kind, true), SAID_WHOLE, true) &&
	       (kind >= ITEM_CALL || send_item(c, "response.content_part.done", SAID_PART, true)) &&
	       send_item(c, "response.output_item.done", SAID_ITEM, true);
}

static bool send_begin(struct choice *c)
{
	return send_response(c->group, "response.created", false) && send_response(c->group, "response.in_progress", false);
}

static bool send_end(struct choice *c)
{
	return send_response(c->group, c->finish == TERCET_FINISH_LENGTH ? "response.incomplete" : "response.completed", true);
}

static void send_error(struct group *g, const struct api_error *e)
{
	struct buf *out = event_begin(g, "error");
	buf_printf(out, ",\"code\":\"%s\",\"param\":null,\"message\":", e->code ? e->code : "server_error");
	json_escape(out, e->message, strlen(e->message));
	if (!reply_items_send(g))
		LOG_DEBUG("STREAM_GONE", "req=%s", g->id);
}

const struct reply_form responses_form = {.id_prefix = id_prefix,
					  .never_empty = true,
					  .write = write_whole,
					  .begin = send_begin,
					  .open = send_open,
					  .delta = send_delta,
					  .close = send_close,
					  .end = send_end,
					  .fail = send_error};
