/* Owns the shape of messages and of their events; runs in the gateway. A block is what the model has thought, what it has
 * said, or a call. */
#include <string.h>

#include "common/log.h"
#include "proc_gateway/messages.h"
#include "proc_gateway/sse.h"

/* ---------------------------------------------------------------- blocks */

/* The id that the reader of calls made, with the API's mark. */
static void put_call_id(const struct tool_call *call, struct buf *out)
{
	static const char chats[] = "call_";
	const size_t skipped = strncmp(call->id, chats, sizeof(chats) - 1) == 0 ? sizeof(chats) - 1 : 0;
	buf_printf(out, "\"" MESSAGES_CALL_MARK "%s\"", call->id + skipped); /* letters and digits */
}

/* The arguments as they are, when they are an object: an answer that was cut off has none. */
static void put_input(const struct buf *arguments, struct buf *out)
{
	struct json_doc *doc = NULL;
	bool whole = arguments->bytes > 0 && json_parse(&doc, arguments->data, arguments->bytes, NULL) == ERR_OK &&
		     json_type(json_root(doc)) == JSON_OBJECT;
	buf_append(out, whole ? arguments->data : "{}", whole ? arguments->bytes : 2);
	json_free(&doc);
}

/* A block with its text, or as it begins. */
static void put_block(const struct choice *c, const struct reply_item *item, bool whole, struct buf *out)
{
	const struct buf *text = reply_items_text(c, item->kind);
	if (item->kind >= ITEM_CALL) {
		const struct tool_call *call = &c->tools.calls[item->kind - ITEM_CALL];
		buf_append_str(out, "{\"type\":\"tool_use\",\"id\":");
		put_call_id(call, out);
		buf_append_str(out, ",\"name\":");
		reply_items_put_bytes(&call->name, 0, call->name.bytes, out);
		buf_append_str(out, ",\"input\":");
		if (whole)
			put_input(text, out);
		else
			buf_append_str(out, "{}");
		buf_append_char(out, '}');
		return;
	}
	const bool thought = item->kind == ITEM_THOUGHT;
	buf_append_str(out, thought ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
	reply_items_put_bytes(text, item->begin, whole ? reply_items_end(c, item) : item->begin, out);
	buf_append_str(out, thought ? ",\"signature\":\"\"}" : "}"); /* thoughts are nobody's secret here */
}

/* ---------------------------------------------------------------- the message */

/* Tokens of the prompt that were in the cache count by themselves. */
static void put_usage(const struct choice *c, struct buf *out)
{
	const u32 cached = c->cached_count < c->prompt_count ? c->cached_count : c->prompt_count;
	buf_printf(out,
		   "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,"
		   "\"output_tokens\":%u",
		   c->prompt_count - cached, cached, c->token_count);
	if (c->done)
		buf_printf(out, ",\"output_tokens_details\":{\"thinking_tokens\":%u}", c->thought_tokens);
	buf_append_char(out, '}');
}

static void put_stop(const struct choice *c, struct buf *out)
{
	const struct openai_request *r = &c->group->request;
	const bool stopped = c->done && c->stop_kind == TERCET_STOP_STRING && c->stop_value < r->stop_count;
	const char *reason = c->finish == TERCET_FINISH_LENGTH ? (r->cut_to_fit ? "model_context_window_exceeded" : "max_tokens")
			     : c->tools.count > 0 && !(stopped && c->tools.cut) ? "tool_use"
			     : stopped			       ? "stop_sequence"
							       : "end_turn";
	if (c->done)
		buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
	else
		buf_append_str(out, "\"stop_reason\":null,\"stop_sequence\":");
	if (stopped)
		json_escape(out, r->stops[c->stop_value], strlen(r->stops[c->stop_value]));
	else
		buf_append_str(out, "null");
}

static void put_message(struct group *g, struct buf *out)
{
	const struct choice *c = &g->choices[0];
	buf_append_str(out, "{\"id\":");
	json_escape(out, g->id, strlen(g->id));
	buf_append_str(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
	json_escape(out, g->request.model, strlen(g->request.model));
	buf_append_str(out, ",\"content\":[");
	for (u32 i = 0; i < g->items.count; i++) {
		buf_append_str(out, i ? "," : "");
		put_block(c, &g->items.list[i], true, out);
	}
	buf_append_str(out, "],");
	put_stop(c, out);
	buf_append_char(out, ',');
	put_usage(c, out);
	buf_append_char(out, '}');
}

/* ---------------------------------------------------------------- events */

static struct buf *event_begin(struct group *g, const char *type)
{
	struct buf *out = &g->requests->out;
	sse_named_event_begin(out, type);
	buf_printf(out, "{\"type\":\"%s\"", type);
	return out;
}

/* An event of the newest block. */
static struct buf *block_event_begin(struct choice *c, const char *type)
{
	struct buf *out = event_begin(c->group, type);
	buf_printf(out, ",\"index\":%u", reply_items_newest(c->group)->number);
	return out;
}

static bool send_begin(struct choice *c)
{
	struct buf *out = event_begin(c->group, "message_start");
	buf_append_str(out, ",\"message\":");
	put_message(c->group, out);
	return reply_items_send(c->group);
}

static bool send_open(struct choice *c)
{
	const struct reply_item *item = reply_items_newest(c->group);
	struct buf *out = block_event_begin(c, "content_block_start");
	buf_append_str(out, ",\"content_block\":");
	put_block(c, item, false, out);
	if (!reply_items_send(c->group) || item->number > 0)
		return !c->group->gone;
	event_begin(c->group, "ping");
	return reply_items_send(c->group);
}

static bool send_delta(struct choice *c)
{
	static const char *const kinds[][2] = {{"thinking_delta", "thinking"}, {"text_delta", "text"}, {"input_json_delta", "partial_json"}};
	const u32 kind = reply_items_newest(c->group)->kind;
	const char *const *names = kinds[kind < ITEM_CALL ? kind : ITEM_CALL];
	struct buf *out = block_event_begin(c, "content_block_delta");
	buf_printf(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", names[0], names[1]);
	reply_items_put_news(c, out);
	buf_append_char(out, '}');
	return reply_items_send(c->group);
}

static bool send_close(struct choice *c)
{
	if (reply_items_newest(c->group)->kind == ITEM_THOUGHT) { /* some clients wait for one */
		buf_append_str(block_event_begin(c, "content_block_delta"), ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}");
		if (!reply_items_send(c->group))
			return false;
	}
	block_event_begin(c, "content_block_stop");
	return reply_items_send(c->group);
}

static bool send_end(struct choice *c)
{
	struct buf *out = event_begin(c->group, "message_delta");
	buf_append_str(out, ",\"delta\":{");
	put_stop(c, out);
	buf_append_str(out, "},");
	put_usage(c, out);
	if (!reply_items_send(c->group))
		return false;
	event_begin(c->group, "message_stop");
	return reply_items_send(c->group);
}

static void send_error(struct group *g, const struct api_error *e)
{
	struct buf *out = &g->requests->out;
	sse_named_event_begin(out, "error");
	api_error_write(e, API_ANTHROPIC, out);
	if (sse_event_send(g->http, out) != ERR_OK)
		LOG_DEBUG("STREAM_GONE", "req=%s", g->id);
}

const struct reply_form messages_form = {.id_prefix = "msg_",
					 .write = put_message,
					 .begin = send_begin,
					 .open = send_open,
					 .delta = send_delta,
					 .close = send_close,
					 .end = send_end,
					 .fail = send_error};
