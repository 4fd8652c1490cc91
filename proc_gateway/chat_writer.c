/* Owns how a conversation of another API becomes the messages of a chat. Runs in the gateway. Never reads a body: its
 * callers do. */
#include "proc_gateway/chat_writer.h"

#include <stdio.h>
#include <string.h>

static void put_member(struct json_writer *w, const char *key, const struct buf *text)
{
	json_key(w, key);
	json_write_string(w, text->data ? text->data : "", text->bytes);
	w->out->failed |= text->failed;
}

static void put_role(struct json_writer *w, const char *role)
{
	json_object_begin(w);
	json_key(w, "role");
	json_write_cstr(w, role);
}

void chat_writer_message(struct chat_writer *c, const char *role, const struct buf *content)
{
	put_role(c->w, role);
	put_member(c->w, "content", content);
	json_object_end(c->w);
}

void chat_writer_result(struct chat_writer *c, const char *id, size_t id_bytes, const struct buf *content)
{
	put_role(c->w, "tool");
	json_key(c->w, "tool_call_id");
	json_write_string(c->w, id, id_bytes);
	put_member(c->w, "content", content);
	json_object_end(c->w);
}

void chat_writer_add_system(struct chat_writer *c, const struct buf *text)
{
	if (c->system.bytes > 0 && text->bytes > 0)
		buf_append_str(&c->system, "\n\n");
	buf_append(&c->system, text->data, text->bytes);
	c->w->out->failed |= text->failed;
}

void chat_writer_add_call(struct chat_writer *c, json_val name, const char *id, size_t id_bytes, const char *arguments,
			  size_t bytes)
{
	struct json_writer w;
	c->pending = true;
	buf_append_char(&c->calls, c->calls.bytes ? ',' : '[');
	json_begin(&w, &c->calls);
	json_object_begin(&w);
	json_key(&w, "id");
	json_write_string(&w, id, id_bytes);
	json_key(&w, "type");
	json_write_cstr(&w, "function");
	json_key(&w, "function");
	json_object_begin(&w);
	json_key(&w, "name");
	json_write_value(&w, name);
	json_key(&w, "arguments");
	json_write_string(&w, arguments, bytes);
	json_object_end(&w);
	json_object_end(&w);
}

void chat_writer_flush_system(struct chat_writer *c)
{
	if (!c->begun && c->system.bytes > 0)
		chat_writer_message(c, "system", &c->system);
	c->begun = true;
}

void chat_writer_flush_assistant(struct chat_writer *c)
{
	if (!c->pending)
		return;
	chat_writer_flush_system(c);
	put_role(c->w, "assistant");
	put_member(c->w, "content", &c->content);
	if (c->reasoning.bytes > 0)
		put_member(c->w, "reasoning_content", &c->reasoning);
	if (c->calls.bytes > 0) {
		buf_append_char(&c->calls, ']');
		json_key(c->w, "tool_calls");
		json_write_raw(c->w, c->calls.data, c->calls.bytes);
	}
	json_object_end(c->w);
	c->w->out->failed |= c->reasoning.failed | c->calls.failed;
	buf_clear(&c->content);
	buf_clear(&c->reasoning);
	buf_clear(&c->calls);
	c->pending = c->said = false;
}

void chat_writer_fini(struct chat_writer *c)
{
	c->w->out->failed |= c->system.failed;
	buf_fini(&c->system);
	buf_fini(&c->content);
	buf_fini(&c->reasoning);
	buf_fini(&c->calls);
}

void chat_writer_copy(struct json_writer *w, json_val root, const struct chat_field *fields, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		json_val v = json_get(root, fields[i].name);
		if (!json_present(v))
			continue;
		json_key(w, fields[i].chat ? fields[i].chat : fields[i].name);
		json_write_value(w, v);
	}
}

void chat_writer_rename(struct api_error *e, const struct chat_field *fields, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		char quoted[64], text[sizeof(e->message)];
		const char *chat = fields[i].chat ? fields[i].chat : fields[i].name;
		if (strcmp(e->param, chat) == 0)
			snprintf(e->param, sizeof(e->param), "%s", fields[i].name);
		snprintf(quoted, sizeof(quoted), "'%s", chat);
		const char *at = strstr(e->message, quoted), *behind = at ? at + strlen(quoted) : "";
		if (!*behind || !strchr("'.[", *behind))
			continue;
		snprintf(text, sizeof(text), "%.*s'%s%s", (int)(at - e->message), e->message, fields[i].name, behind);
		memcpy(e->message, text, sizeof(text));
	}
}

void chat_writer_schema(struct json_writer *w, json_val format)
{
	json_key(w, "response_format");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "json_schema");
	json_key(w, "json_schema");
	json_write_value(w, format);
	json_object_end(w);
}
