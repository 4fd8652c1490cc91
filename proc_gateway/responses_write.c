/* Owns the shape of responses and of their events; runs in the gateway. An item is what the model has thought, what it has
 * said, or a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "proc_gateway/responses.h"
#include "proc_gateway/sse.h"

enum { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL }; /* ITEM_CALL + i: call i */

static json_val asked(const struct group *g, const char *key)
{
	return json_get(json_root(g->request.response), key);
}

/* The text that an item is a piece of. */
static const struct buf *text_of(const struct choice *c, u32 kind)
{
	return kind == ITEM_REASONING ? &c->thought
	       : kind == ITEM_MESSAGE ? &c->text
				      : &c->tools.calls[kind - ITEM_CALL].arguments;
}

static size_t end_of(const struct choice *c, const struct responses_item *item)
{
	return item->over ? item->end : text_of(c, item->kind)->bytes;
}

/* ---------------------------------------------------------------- items */

/* "rs_", "msg_" or "fc_", the response's own id, and a number. */
static void put_item_id(const struct group *g, const struct responses_item *item, struct buf *out)
{
	static const char *const heads[] = {"rs", "msg", "fc"};
	char id[sizeof(g->id) + 16]; /* the client may have chosen what is in it */
	snprintf(id, sizeof(id), "%s_%s_%u", heads[item->kind < ITEM_CALL ? item->kind : ITEM_CALL], g->id + strlen("resp_"),
		 item->number);
	json_escape(out, id, strlen(id));
}

static void put_bytes(const struct buf *text, size_t first, size_t end, struct buf *out)
{
	json_escape(out, text->data ? text->data + first : "", end - first);
}

static void put_text(const struct choice *c, const struct responses_item *item, bool whole, struct buf *out)
{
	put_bytes(text_of(c, item->kind), item->begin, whole ? end_of(c, item) : item->begin, out);
}

static void put_part(const struct choice *c, const struct responses_item *item, bool whole, struct buf *out)
{
	const bool message = item->kind == ITEM_MESSAGE;
	buf_printf(out, "{\"type\":\"%s\",\"text\":", message ? "output_text" : "reasoning_text");
	put_text(c, item, whole, out);
	buf_append_str(out, message ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_item(const struct choice *c, const struct responses_item *item, bool whole, struct buf *out)
{
	/* only what came last is cut off, as its own event says */
	const bool cut = c->done && c->finish == TERCET_FINISH_LENGTH && item->number + 1 == c->group->response.count;
	buf_append_str(out, "{\"id\":");
	put_item_id(c->group, item, out);
	buf_printf(out, ",\"status\":\"%s\",", !whole ? "in_progress" : cut ? "incomplete" : "completed");
	if (item->kind >= ITEM_CALL) {
		const struct tool_call *call = &c->tools.calls[item->kind - ITEM_CALL];
		buf_append_str(out, "\"type\":\"function_call\",\"call_id\":");
		json_escape(out, call->id, strlen(call->id));
		buf_append_str(out, ",\"name\":");
		put_bytes(&call->name, 0, call->name.bytes, out);
		buf_append_str(out, ",\"arguments\":");
		put_text(c, item, whole, out);
		buf_append_char(out, '}');
		return;
	}
	buf_append_str(out, item->kind == ITEM_MESSAGE
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
		put_item(c, &g->response.items[i], true, out);
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

/* One more item, of the text that comes; NULL without memory. */
static struct responses_item *item_add(struct choice *c, u32 kind)
{
	struct responses_stream *s = &c->group->response;
	if (s->count == s->room) {
		const u32 room = s->room ? 2 * s->room : 4;
		struct responses_item *items = realloc(s->items, room * sizeof(*items));
		if (!items)
			return NULL;
		s->items = items;
		s->room = room;
	}
	size_t begin = 0;
	for (u32 i = 0; i < s->count; i++)
		begin = s->items[i].kind == kind ? s->items[i].end : begin;
	s->items[s->count] = (struct responses_item){.kind = kind, .number = s->count, .begin = begin};
	return &s->items[s->count++];
}

void responses_write(struct group *g, struct buf *out)
{
	struct choice *c = &g->choices[0];
	bool ok = c->thought.bytes == 0 || item_add(c, ITEM_REASONING);
	if (c->text.bytes > 0 || (c->tools.count == 0 && c->thought.bytes == 0))
		ok &= item_add(c, ITEM_MESSAGE) != NULL;
	for (u32 i = 0; i < c->tools.count; i++)
		ok &= item_add(c, ITEM_CALL + i) != NULL;
	put_response(g, g->response.count, out);
	out->failed |= !ok;
}

/* ---------------------------------------------------------------- events */

static struct buf *event_begin(struct group *g, const char *type)
{
	struct buf *out = &g->requests->out;
	sse_named_event_begin(out, type);
	buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%u", type, g->response.sequence++);
	return out;
}

static bool event_send(struct group *g)
{
	buf_append_char(&g->requests->out, '}');
	if (sse_event_send(g->http, &g->requests->out) == ERR_OK)
		return true;
	g->gone = true;
	return false;
}

/* An event of a response, with all its items or none. */
static bool send_response(struct group *g, const char *type, bool items)
{
	struct buf *out = event_begin(g, type);
	buf_append_str(out, ",\"response\":");
	put_response(g, items ? g->response.count : 0, out);
	return event_send(g);
}

static struct responses_item *newest(struct group *g)
{
	return g->response.count ? &g->response.items[g->response.count - 1] : NULL;
}

/* An event of the newest item. */
enum said { SAID_ITEM, SAID_PART, SAID_DELTA, SAID_WHOLE };
static bool send_item(struct choice *c, const char *type, enum said said, bool whole)
{
	struct group *g = c->group;
	const struct responses_item *item = newest(g);
	struct buf *out = event_begin(g, type);
	buf_printf(out, ",\"output_index\":%u", item->number);
	if (said != SAID_ITEM) {
		buf_append_str(out, ",\"item_id\":");
		put_item_id(g, item, out);
		if (item->kind < ITEM_CALL)
			buf_append_str(out, ",\"content_index\":0");
	}
	if (item->kind == ITEM_MESSAGE && (said == SAID_DELTA || said == SAID_WHOLE))
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
		put_bytes(text_of(c, item->kind), g->response.told, end_of(c, item), out);
		g->response.told = end_of(c, item);
		break;
	case SAID_WHOLE:
		buf_append_str(out, item->kind < ITEM_CALL ? ",\"text\":" : ",\"arguments\":");
		put_text(c, item, true, out);
		if (item->kind >= ITEM_CALL) {
			const struct buf *name = &c->tools.calls[item->kind - ITEM_CALL].name;
			buf_append_str(out, ",\"name\":");
			put_bytes(name, 0, name->bytes, out);
		}
		break;
	}
	return event_send(g);
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

static bool item_open(struct choice *c, u32 kind)
{
	const struct responses_item *item = item_add(c, kind);
	if (!item) {
		c->group->requests->out.failed = true;
		return event_send(c->group);
	}
	c->group->response.told = item->begin;
	return send_item(c, "response.output_item.added", SAID_ITEM, false) &&
	       (kind >= ITEM_CALL || send_item(c, "response.content_part.added", SAID_PART, false));
}

static bool item_close(struct choice *c)
{
	struct responses_item *item = newest(c->group);
	if (!item || item->over)
		return true;
	item->end = end_of(c, item);
	item->over = true;
	return send_item(c, text_event(item->kind, true), SAID_WHOLE, true) &&
	       (item->kind >= ITEM_CALL || send_item(c, "response.content_part.done", SAID_PART, true)) &&
	       send_item(c, "response.output_item.done", SAID_ITEM, true);
}

/* How much of a text stands in items that are over. */
static size_t told_of(const struct group *g, u32 kind)
{
	size_t told = 0;
	for (u32 i = 0; i < g->response.count; i++)
		told = g->response.items[i].kind == kind ? g->response.items[i].end : told;
	return told;
}

/* What is new of a text goes to the newest item, when it is of that kind, else to a new one, behind the one before. */
static bool send_text(struct choice *c, u32 kind)
{
	struct group *g = c->group;
	const struct responses_item *item = newest(g);
	const bool open = item && !item->over && item->kind == kind;
	if (!open && text_of(c, kind)->bytes == told_of(g, kind) && (kind < ITEM_CALL || told_of(g, kind) > 0))
		return true;
	if (!open && !(item_close(c) && item_open(c, kind)))
		return false;
	return g->response.told == text_of(c, kind)->bytes || send_item(c, text_event(kind, false), SAID_DELTA, false);
}

/* Text that comes in one piece with calls was in front of them, unless there have been calls. */
static bool send_news(struct choice *c)
{
	struct responses_stream *s = &c->group->response;
	const bool behind = s->calls > 0;
	if (!send_text(c, ITEM_REASONING) || (!behind && !send_text(c, ITEM_MESSAGE)))
		return false;
	for (u32 i = s->calls ? s->calls - 1 : 0; i < c->tools.count; i++) {
		const struct responses_item *item = newest(c->group);
		bool same = item && item->kind == ITEM_CALL + i;
		if (i + 1 == s->calls && !(same && !item->over)) /* it was the last one, and is over */
			continue;
		if (!send_text(c, ITEM_CALL + i))
			return false;
		s->calls = i + 1;
	}
	return !behind || send_text(c, ITEM_MESSAGE);
}

bool responses_stream(struct choice *c)
{
	struct group *g = c->group;
	if (!g->response.begun) {
		g->response.begun = true;
		if (!send_response(g, "response.created", false) || !send_response(g, "response.in_progress", false))
			return false;
	}
	if (!send_news(c))
		return false;
	if (!c->done)
		return true;
	if (g->response.count == 0 && !item_open(c, ITEM_MESSAGE))
		return false;
	return item_close(c) &&
	       send_response(g, c->finish == TERCET_FINISH_LENGTH ? "response.incomplete" : "response.completed", true);
}

void responses_stream_error(struct group *g, const struct api_error *e)
{
	struct buf *out = event_begin(g, "error");
	buf_printf(out, ",\"code\":\"%s\",\"param\":null,\"message\":", e->code ? e->code : "server_error");
	json_escape(out, e->message, strlen(e->message));
	if (!event_send(g))
		LOG_DEBUG("STREAM_GONE", "req=%s", g->id);
}

void responses_stream_fini(struct responses_stream *s)
{
	free(s->items);
	s->items = NULL;
}
