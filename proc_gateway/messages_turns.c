/* Owns the conversation in bodies of /v1/messages: its turns and their blocks become the messages of a chat. Runs in the gateway. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/messages.h"
#include "proc_gateway/messages_priv.h"

enum { NAME_BYTES = 64 };

static const char text_block[] = "{\"type\": \"text\", \"text\": \"...\"}";

/* ---------------------------------------------------------------- blocks */

/* What users say in a row is one message, as what the assistant says is. */
struct conversation {
	struct chat_writer chat;
	struct buf user;
	bool asked;	/* the user's message is being collected */
	bool continued; /* the answer goes on where the last message ends */
};

static void add_line(struct buf *out, const char *text, size_t bytes, const char *between)
{
	if (out->bytes > 0 && bytes > 0)
		buf_append_str(out, between);
	buf_append(out, text, bytes);
}

/* The type of a block; NULL: it is none. */
static const char *block_type(json_val block, const char *name, struct api_error *e)
{
	const char *type = json_cstr(json_get(block, "type"), NULL);
	if (!type)
		api_error_field(e, name, block, "is no block of content", text_block);
	return type;
}

static bool foreign_block(const char *name, json_val block, const char *right, struct api_error *e)
{
	return api_error_field(e, name, json_get(block, "type"), "is a kind of content that this server does not take here", right);
}

static bool add_text(struct buf *out, json_val block, const char *name, struct api_error *e)
{
	const char *text;
	size_t bytes;
	if (!json_string(json_get(block, "text"), &text, &bytes))
		return api_error_field(e, name, block, "has no text", text_block);
	add_line(out, text, bytes, "\n");
	return true;
}

/* A string, or blocks of text. */
static bool read_text(struct buf *out, json_val content, const char *name, struct api_error *e)
{
	const char *text, *type;
	size_t bytes, index = 0;
	if (json_string(content, &text, &bytes)) {
		add_line(out, text, bytes, "\n");
		return true;
	}
	if (json_type(content) != JSON_ARRAY)
		return api_error_field(e, name, content, "is no text", "a string or an array of blocks of text");
	for (struct json_iter it = json_iterate(content); json_next(&it); index++) {
		char block[NAME_BYTES];
		snprintf(block, sizeof(block), "%s[%zu]", name, index);
		if (!(type = block_type(it.value, block, e)))
			return false;
		if (strcmp(type, "text") != 0)
			return foreign_block(block, it.value, "\"text\"", e);
		if (!add_text(out, it.value, block, e))
			return false;
	}
	return true;
}

static void flush_user(struct conversation *v)
{
	if (v->asked)
		chat_writer_message(&v->chat, "user", &v->user);
	buf_clear(&v->user);
	v->asked = false;
}

/* The id of a call as the model's template knows it: of those that templates look at, without the mark that ours have. */
static void strip_mark(const char **id, size_t *bytes)
{
	const size_t mark = strlen(MESSAGES_CALL_MARK);
	if (*bytes != mark + MESSAGES_SHORT_ID_BYTES || memcmp(*id, MESSAGES_CALL_MARK, mark) != 0)
		return;
	*id += mark;
	*bytes -= mark;
}

static bool take_result(struct conversation *v, json_val block, const char *name)
{
	static const char mark[] = "Error: ";
	char content_name[NAME_BYTES + 16];
	struct api_error *e = v->chat.e;
	struct buf text = {0};
	const char *id;
	size_t id_bytes;
	json_val content = json_get(block, "content"), error = json_get(block, "is_error");
	bool failed = false;
	if (!json_string(json_get(block, "tool_use_id"), &id, &id_bytes))
		return api_error_field(e, name, block, "is no result of a tool",
				       "{\"type\": \"tool_result\", \"tool_use_id\": \"...\", \"content\": ...}");
	if (json_present(error) && !json_bool(error, &failed))
		return api_error_field(e, name, error, "as 'is_error' is no switch", "true or false");
	strip_mark(&id, &id_bytes);
	flush_user(v);
	snprintf(content_name, sizeof(content_name), "%s.content", name);
	bool ok = !json_present(content) || read_text(&text, content, content_name, e);
	if (failed && (text.bytes < 5 || memcmp(text.data, mark, 5) != 0)) { /* templates know of no failed calls */
		struct buf marked = {0};
		buf_append_str(&marked, mark);
		buf_append(&marked, text.data, text.bytes);
		marked.failed |= text.failed;
		buf_fini(&text);
		text = marked;
	}
	chat_writer_result(&v->chat, id, id_bytes, &text);
	buf_fini(&text);
	return ok;
}

static bool take_user_block(struct conversation *v, json_val block, const char *type, const char *name)
{
	if (strcmp(type, "tool_result") == 0)
		return take_result(v, block, name);
	if (strcmp(type, "text") != 0)
		return foreign_block(name, block, "\"text\" or \"tool_result\"", v->chat.e);
	v->asked = true;
	return add_text(&v->user, block, name, v->chat.e);
}

static bool take_call(struct conversation *v, json_val block, const char *name)
{
	struct buf arguments = {0};
	struct json_writer w;
	json_val called = json_get(block, "name"), input = json_get(block, "input");
	const char *id;
	size_t id_bytes;
	if (!json_string(json_get(block, "id"), &id, &id_bytes) || json_type(called) != JSON_STRING ||
	    json_type(input) != JSON_OBJECT)
		return api_error_field(v->chat.e, name, block, "is no call of a tool",
				       "{\"type\": \"tool_use\", \"id\": \"...\", \"name\": \"...\", \"input\": {...}}");
	strip_mark(&id, &id_bytes);
	json_begin(&w, &arguments);
	json_write_value(&w, input);
	chat_writer_add_call(&v->chat, called, id, id_bytes, arguments.data ? arguments.data : "", arguments.bytes);
	v->chat.w->out->failed |= arguments.failed;
	buf_fini(&arguments);
	return true;
}

static bool take_assistant_block(struct conversation *v, json_val block, const char *type, const char *name)
{
	const char *text;
	size_t bytes;
	if (strcmp(type, "text") == 0)
		return add_text(&v->chat.content, block, name, v->chat.e);
	if (strcmp(type, "tool_use") == 0)
		return take_call(v, block, name);
	if (strcmp(type, "redacted_thinking") == 0) /* which only its maker can read */
		return true;
	if (strcmp(type, "thinking") != 0)
		return foreign_block(name, block, "\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\"", v->chat.e);
	if (!json_string(json_get(block, "thinking"), &text, &bytes))
		return api_error_field(v->chat.e, name, block, "has no thoughts", "{\"type\": \"thinking\", \"thinking\": \"...\"}");
	add_line(&v->chat.reasoning, text, bytes, "\n\n");
	return true;
}

/* ---------------------------------------------------------------- messages */

static bool take_system(struct conversation *v, json_val content, const char *name)
{
	struct buf text = {0};
	chat_writer_flush_assistant(&v->chat);
	flush_user(v);
	bool ok = read_text(&text, content, name, v->chat.e);
	if (ok && !v->chat.begun)
		chat_writer_add_system(&v->chat, &text);
	else if (ok)
		chat_writer_message(&v->chat, "system", &text);
	buf_fini(&text);
	return ok;
}

static bool take_turn(struct conversation *v, json_val content, bool user, bool last, const char *name)
{
	struct buf *said = user ? &v->user : &v->chat.content;
	const char *text, *type;
	size_t bytes, index = 0;
	chat_writer_flush_system(&v->chat);
	if (user)
		chat_writer_flush_assistant(&v->chat);
	else
		flush_user(v);
	v->chat.pending = !user;
	if (!last || user) {
		bool empty = json_type(content) == JSON_ARRAY ? json_count(content) == 0 : json_string(content, &text, &bytes) && bytes == 0;
		if (empty)
			return api_error_field(v->chat.e, name, content, "is empty",
					       "a text or an array of at least one block; only the last message, if it is the assistant's, may be empty");
	}
	if (json_string(content, &text, &bytes)) {
		v->asked = user;
		add_line(said, text, bytes, "\n");
		return true;
	}
	if (json_type(content) != JSON_ARRAY)
		return api_error_field(v->chat.e, name, content, "is no content", "a string or an array of blocks");
	for (struct json_iter it = json_iterate(content); json_next(&it); index++) {
		char block[NAME_BYTES];
		snprintf(block, sizeof(block), "%s[%zu]", name, index);
		if (!(type = block_type(it.value, block, v->chat.e)) ||
		    !(user ? take_user_block(v, it.value, type, block) : take_assistant_block(v, it.value, type, block)))
			return false;
	}
	return true;
}

static bool take_message(struct conversation *v, json_val message, size_t index, bool last)
{
	char name[NAME_BYTES];
	json_val role = json_get(message, "role"), content = json_get(message, "content");
	snprintf(name, sizeof(name), "messages[%zu]", index);
	if (json_type(message) != JSON_OBJECT || json_type(role) != JSON_STRING)
		return api_error_field(v->chat.e, name, message, "is no message", "{\"role\": \"user\", \"content\": ...}");
	snprintf(name, sizeof(name), "messages[%zu].content", index);
	if (json_string_equals(role, "user") || json_string_equals(role, "assistant"))
		return take_turn(v, content, json_string_equals(role, "user"), last, name);
	if (json_string_equals(role, "system"))
		return take_system(v, content, name);
	snprintf(name, sizeof(name), "messages[%zu].role", index);
	return api_error_field(v->chat.e, name, role, "is not known", "\"user\", \"assistant\" or \"system\"");
}

static bool is_blank(const struct buf *text)
{
	for (size_t i = 0; i < text->bytes; i++)
		if (!strchr(" \t\r\n", text->data[i]))
			return false;
	return true;
}

/* A last message of the assistant is the beginning of the answer. */
static bool end_messages(struct conversation *v, size_t count)
{
	char name[NAME_BYTES];
	snprintf(name, sizeof(name), "messages[%zu]", count - 1);
	if (v->chat.pending && v->chat.calls.bytes > 0)
		return api_error_set(v->chat.e, 400, name, NULL,
				     "Field '%s': it calls a tool, and nothing follows; a message of the user with the tool_result "
				     "must.", name);
	if (v->chat.pending && is_blank(&v->chat.content) && v->chat.reasoning.bytes == 0) { /* nothing that the answer could go on with */
		v->chat.pending = false;
		buf_clear(&v->chat.content);
	}
	v->continued = v->chat.pending && !is_blank(&v->chat.content);
	flush_user(v);
	chat_writer_flush_assistant(&v->chat);
	chat_writer_flush_system(&v->chat);
	return true;
}

bool messages_write_turns(struct json_writer *w, json_val root, struct api_error *e)
{
	struct conversation v = {.chat = {.w = w, .e = e}};
	json_val messages = json_get(root, "messages"), system = json_get(root, "system");
	size_t index = 0;
	bool ok = true;
	if (!json_present(messages))
		return api_error_set(e, 400, "messages", NULL, "Field 'messages' is missing; it must be an array of messages.");
	if (json_type(messages) != JSON_ARRAY || json_count(messages) == 0)
		return api_error_field(e, "messages", messages, "are no messages", "an array of at least one message");
	json_key(w, "messages");
	json_array_begin(w);
	if (json_present(system))
		ok = take_system(&v, system, "system");
	for (struct json_iter it = json_iterate(messages); ok && json_next(&it); index++)
		ok = take_message(&v, it.value, index, index + 1 == json_count(messages));
	ok = ok && end_messages(&v, index);
	json_array_end(w);
	if (v.continued) {
		json_key(w, "continue_final_message");
		json_write_bool(w, true);
		json_key(w, "add_generation_prompt");
		json_write_bool(w, false);
	}
	w->out->failed |= v.user.failed;
	buf_fini(&v.user);
	chat_writer_fini(&v.chat);
	return ok;
}
