/* Owns the bodies of /v1/messages: what they say becomes the body of a chat, so that everything behind reads one kind of
 * request. Runs in the gateway. Never keeps a message: clients send the conversation with each request. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/chat_writer.h"
#include "proc_gateway/messages.h"

enum { NAME_BYTES = 64 };

static const char text_block[] = "{\"type\": \"text\", \"text\": \"...\"}";

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

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

static bool write_messages(struct json_writer *w, json_val root, struct api_error *e)
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

/* ---------------------------------------------------------------- tools */

static bool write_tool(struct json_writer *w, json_val tool, const char *name, struct api_error *e)
{
	static const struct chat_field members[] = {
		{"name", NULL}, {"description", NULL}, {"input_schema", "parameters"}, {"strict", NULL}};
	json_val type = json_get(tool, "type");
	if (json_present(type) && !json_string_equals(type, "custom"))
		return api_error_field(e, name, type, "is a tool that this server does not have",
				       "one of the client's: {\"name\": \"...\", \"input_schema\": {...}}");
	if (!*json_cstr(json_get(tool, "name"), "") || json_type(json_get(tool, "input_schema")) != JSON_OBJECT)
		return api_error_field(e, name, tool, "is no tool", "{\"name\": \"...\", \"input_schema\": {...}}");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "function");
	json_key(w, "function");
	json_object_begin(w);
	chat_writer_copy(w, tool, members, COUNT_OF(members));
	json_object_end(w);
	json_object_end(w);
	return true;
}

static bool write_tools(struct json_writer *w, json_val tools, struct api_error *e)
{
	size_t index = 0;
	if (!json_present(tools))
		return true;
	if (json_type(tools) != JSON_ARRAY)
		return api_error_field(e, "tools", tools, "is not a list", "an array of tools");
	if (json_depth(tools) > JSON_LEVELS_MAX - 3)
		return api_error_field(e, "tools", tools, "is nested too deeply", "JSON of fewer levels");
	json_key(w, "tools");
	json_array_begin(w);
	for (struct json_iter it = json_iterate(tools); json_next(&it); index++) {
		char name[NAME_BYTES];
		snprintf(name, sizeof(name), "tools[%zu]", index);
		if (!write_tool(w, it.value, name, e))
			return false;
	}
	json_array_end(w);
	return true;
}

/* `*choice`: what chats call it; NULL: a tool by its name. */
static bool read_tool_choice(json_val v, const char **choice, struct api_error *e)
{
	static const char *const names[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}, {"tool", NULL}};
	*choice = "auto";
	if (!json_present(v))
		return true;
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		if (!json_string_equals(json_get(v, "type"), names[i][0]))
			continue;
		*choice = names[i][1];
		if (*choice || json_type(json_get(v, "name")) == JSON_STRING)
			return true;
	}
	return api_error_field(e, "tool_choice", v, "is not known",
			       "{\"type\": \"auto\"}, {\"type\": \"any\"}, {\"type\": \"none\"} or {\"type\": \"tool\", \"name\": \"...\"}");
}

static bool write_tool_choice(struct json_writer *w, json_val v, struct api_error *e)
{
	json_val one = json_get(v, "disable_parallel_tool_use");
	const char *choice;
	bool single = false;
	if (!read_tool_choice(v, &choice, e))
		return false;
	if (json_present(one) && !json_bool(one, &single))
		return api_error_field(e, "tool_choice.disable_parallel_tool_use", one, "is no switch", "true or false");
	if (single) {
		json_key(w, "parallel_tool_calls");
		json_write_bool(w, false);
	}
	if (!json_present(v))
		return true;
	json_key(w, "tool_choice");
	if (choice) {
		json_write_cstr(w, choice);
		return true;
	}
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "function");
	json_key(w, "function");
	json_object_begin(w);
	json_key(w, "name");
	json_write_value(w, json_get(v, "name"));
	json_object_end(w);
	json_object_end(w);
	return true;
}

/* ---------------------------------------------------------------- fields */

/* Variables of the template: what is said of thinking, and behind it what the request itself has. */
static bool write_kwargs(struct json_writer *w, json_val root, struct api_error *e)
{
	static const char *const switches[] = {"enable_thinking", "thinking"}; /* as most call it; as DeepSeek and Granite do */
	json_val thinking = json_get(root, "thinking"), type = json_get(thinking, "type"), own = json_get(root, "chat_template_kwargs");
	json_val effort = json_get(json_get(root, "output_config"), "effort");
	const bool on = json_string_equals(type, "enabled"), off = json_string_equals(type, "disabled");
	if (json_present(thinking) && !on && !off && !json_string_equals(type, "adaptive"))
		return api_error_field(e, "thinking", thinking, "is not known",
				       "{\"type\": \"enabled\", \"budget_tokens\": ...}, {\"type\": \"adaptive\"} or {\"type\": \"disabled\"}");
	if (json_present(effort) && json_type(effort) != JSON_STRING)
		return api_error_field(e, "output_config.effort", effort, "is not a string", "\"low\", \"medium\" or \"high\"");
	if (json_present(own) && json_type(own) != JSON_OBJECT)
		return api_error_field(e, "chat_template_kwargs", own, "is no object", "an object");
	json_key(w, "chat_template_kwargs");
	json_object_begin(w);
	for (size_t i = 0; i < COUNT_OF(switches) && (on || off); i++) {
		json_key(w, switches[i]);
		json_write_bool(w, on);
	}
	if (json_present(effort)) { /* templates know no more than three */
		bool more = json_string_equals(effort, "xhigh") || json_string_equals(effort, "max");
		json_key(w, "reasoning_effort");
		json_write_cstr(w, more ? "high" : json_cstr(effort, ""));
	}
	for (struct json_iter it = json_iterate(own); json_next(&it);) {
		json_key_of(w, &it);
		json_write_value(w, it.value);
	}
	json_object_end(w);
	return true;
}

/* Thoughts that are not to be, or not to be seen, are left out of the reply, should the model have any. */
static bool write_thoughts(struct json_writer *w, json_val root, struct api_error *e)
{
	json_val thinking = json_get(root, "thinking"), budget = json_get(thinking, "budget_tokens");
	i64 tokens;
	if (json_present(budget) && (!json_int(budget, &tokens) || tokens < 1))
		return api_error_field(e, "thinking.budget_tokens", budget, "is no number of tokens", "an integer of at least 1");
	if (json_string_equals(json_get(thinking, "type"), "disabled") || json_string_equals(json_get(thinking, "display"), "omitted")) {
		json_key(w, "include_reasoning");
		json_write_bool(w, false);
	}
	return true;
}

/* output_config.format, or output_format as it was called before. */
static bool write_format(struct json_writer *w, json_val root, struct api_error *e)
{
	json_val config = json_get(root, "output_config"), format = json_get(config, "format");
	const char *name = json_present(format) ? "output_config.format" : "output_format";
	if (json_present(config) && json_type(config) != JSON_OBJECT)
		return api_error_field(e, "output_config", config, "is no object", "{\"format\": {...}, \"effort\": \"...\"}");
	if (!json_present(format))
		format = json_get(root, "output_format");
	if (!json_present(format))
		return true;
	if (!json_string_equals(json_get(format, "type"), "json_schema") || !json_present(json_get(format, "schema")))
		return api_error_field(e, name, format, "is not known", "{\"type\": \"json_schema\", \"schema\": {...}}");
	if (json_depth(format) > JSON_LEVELS_MAX - 2)
		return api_error_field(e, name, format, "is nested too deeply", "JSON of fewer levels");
	chat_writer_schema(w, format);
	return true;
}

static const struct chat_field sampling[] = {
	{"stop_sequences", "stop"}, {"stream", NULL}, {"temperature", NULL}, {"top_p", NULL}, {"top_k", NULL}, {"min_p", NULL},
	{"seed", NULL}, {"stop_token_ids", NULL}, {"presence_penalty", NULL}, {"frequency_penalty", NULL},
	{"repetition_penalty", NULL}, {"logit_bias", NULL}, {"min_tokens", NULL}, {"ignore_eos", NULL},
	{"skip_special_tokens", NULL}, {"cache_salt", NULL}, {"priority", NULL}, {"request_id", NULL}, {"documents", NULL},
	{"reasoning_format", NULL}, {"structured_outputs", NULL}};

static bool check_supported(json_val root, struct api_error *e)
{
	json_val stops = json_get(root, "stop_sequences"), servers = json_get(root, "mcp_servers");
	if (json_present(json_get(root, "container")))
		return refuse(e, "container", "this server runs no code; leave it out");
	if (json_present(servers) && json_count(servers) > 0)
		return refuse(e, "mcp_servers", "this server calls no others; leave it out");
	if (json_present(json_get(root, "session_id")))
		return refuse(e, "session_id", "sessions are had from /v1/chat/completions and /v1/completions");
	if (json_present(stops) && json_type(stops) != JSON_ARRAY)
		return api_error_field(e, "stop_sequences", stops, "is not a list", "an array of strings");
	return true;
}

static bool read_max_tokens(json_val root, i64 *out, struct api_error *e)
{
	static const char right[] = "an integer of at least 1";
	json_val v = json_get(root, "max_tokens");
	f64 real;
	if (!json_present(v))
		return api_error_set(e, 400, "max_tokens", NULL, "Field 'max_tokens' is missing; it must be %s.", right);
	if (!json_int(v, out)) {
		if (!json_double(v, &real) || !(real >= 1 && real <= 9e15) || real != (f64)(i64)real)
			return api_error_field(e, "max_tokens", v, "is no number of tokens", right);
		*out = (i64)real;
	}
	return *out >= 1 || api_error_field(e, "max_tokens", v, "is out of range", right);
}

/* ---------------------------------------------------------------- the whole */

/* What the prompt is made of. */
static bool write_prompt(struct json_writer *w, json_val root, struct api_error *e)
{
	static const struct chat_field same[] = {{"model", NULL}, {"chat_template", NULL}};
	json_val choice = json_get(root, "tool_choice");
	const bool shown = !json_string_equals(json_get(choice, "type"), "none");
	chat_writer_copy(w, root, same, COUNT_OF(same));
	return write_messages(w, root, e) && write_kwargs(w, root, e) &&
	       (!shown || write_tools(w, json_get(root, "tools"), e));
}

static bool write_chat(struct json_writer *w, json_val root, struct api_error *e)
{
	chat_writer_copy(w, root, sampling, COUNT_OF(sampling));
	json_key(w, "max_completion_tokens");
	json_write_int(w, -1); /* what fits: fit_max_tokens */
	return check_supported(root, e) && write_prompt(w, root, e) && write_thoughts(w, root, e) && write_format(w, root, e) &&
	       write_tool_choice(w, json_get(root, "tool_choice"), e);
}

/* A client of this API asks for what it would take at most: more than there is room for is no error. */
static bool fit_max_tokens(struct openai_request *r, i64 wanted, struct api_error *e)
{
	if (wanted <= (i64)r->params.max_tokens)
		r->params.max_tokens = (u32)wanted;
	else
		r->cut_to_fit = true;
	if (r->params.min_tokens <= r->params.max_tokens)
		return true;
	return api_error_set(e, 400, "min_tokens", NULL, "Field 'min_tokens': %u is more than the %u tokens that may be generated.",
			     r->params.min_tokens, r->params.max_tokens);
}

/* What chats say of a field, in this API's words. Programs look for its words of a prompt that is too long, to shorten it. */
static void reword(struct api_error *e)
{
	static const struct chat_field renamed[] = {
		{"stop_sequences", "stop"}, {"output_config.format", "response_format"}, {"max_tokens", "max_completion_tokens"}};
	char text[sizeof(e->message)];
	chat_writer_rename(e, renamed, COUNT_OF(renamed));
	if (!e->code || strcmp(e->code, "context_length_exceeded") != 0)
		return;
	snprintf(text, sizeof(text), "prompt is too long: %s", e->message);
	memcpy(e->message, text, sizeof(text));
}

/* Reads a body as that of a chat, or of /tokenize. */
static bool read_as(struct openai_request *r, const struct openai_model *m, enum openai_endpoint asked, const char *body,
		    size_t bytes, u64 tenant, struct api_error *e)
{
	const bool count = asked == OPENAI_COUNT_TOKENS;
	struct json_doc *doc = NULL;
	struct json_writer w;
	struct err_msg em;
	struct buf chat = {0};
	i64 max_tokens = 0;
	memset(r, 0, sizeof(*r));
	enum err err = bytes == 0 ? ERR_FORMAT : json_parse(&doc, body, bytes, &em);
	if (err || json_type(json_root(doc)) != JSON_OBJECT) { /* the reader of chats says what is wrong */
		json_free(&doc);
		return openai_request_read(r, m, OPENAI_CHAT, body, bytes, tenant, e);
	}
	json_val root = json_root(doc);
	json_begin(&w, &chat);
	json_object_begin(&w);
	bool ok = count ? write_prompt(&w, root, e) : read_max_tokens(root, &max_tokens, e) && write_chat(&w, root, e);
	if (ok)
		json_object_end(&w);
	if (ok && !buf_ok(&chat))
		ok = api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	if (ok) {
		ok = count ? openai_tokenize_read(r, m, chat.data, chat.bytes, e)
			   : openai_request_read(r, m, OPENAI_CHAT, chat.data, chat.bytes, tenant, e) &&
				     fit_max_tokens(r, max_tokens, e);
		if (!ok)
			reword(e);
	}
	buf_fini(&chat);
	r->asked = asked;
	r->response = doc;
	return ok;
}

bool messages_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
		   struct api_error *e)
{
	return read_as(r, m, OPENAI_MESSAGES, body, bytes, tenant, e);
}

bool messages_count_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			 struct api_error *e)
{
	return read_as(r, m, OPENAI_COUNT_TOKENS, body, bytes, 0, e);
}
