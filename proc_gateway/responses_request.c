/* Owns the bodies of /v1/responses: what they say becomes the body of a chat, so that everything behind reads one kind of
 * request. Runs in the gateway. Never keeps a response: clients send the conversation with each request. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/chat_writer.h"
#include "proc_gateway/responses.h"

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

static bool bad_item(struct api_error *e, size_t index, json_val item, const char *wrong, const char *right)
{
	char name[64];
	snprintf(name, sizeof(name), "input[%zu]", index);
	return api_error_field(e, name, item, wrong, right);
}

/* ---------------------------------------------------------------- items */

/* The text of a string, or of a list of parts. */
static bool read_text(struct chat_writer *c, json_val content, size_t index, struct buf *out)
{
	const char *text;
	size_t bytes;
	if (json_string(content, &text, &bytes)) {
		buf_append(out, text, bytes);
		return true;
	}
	if (json_type(content) != JSON_ARRAY)
		return bad_item(c->e, index, content, "is no content", "a string or an array of parts");
	const size_t begin = out->bytes;
	for (struct json_iter it = json_iterate(content); json_next(&it);) {
		const char *kind = json_cstr(json_get(it.value, "type"), "");
		const bool refusal = strcmp(kind, "refusal") == 0;
		if (!refusal && strcmp(kind, "input_text") != 0 && strcmp(kind, "output_text") != 0 &&
		    strcmp(kind, "reasoning_text") != 0 && strcmp(kind, "text") != 0)
			return bad_item(c->e, index, it.value, "is a kind of content that this server does not take",
					"{\"type\": \"input_text\", \"text\": \"...\"}");
		if (!json_string(json_get(it.value, refusal ? "refusal" : "text"), &text, &bytes))
			return bad_item(c->e, index, it.value, "has no text", "{\"type\": \"input_text\", \"text\": \"...\"}");
		if (out->bytes > begin)
			buf_append_char(out, '\n');
		buf_append(out, text, bytes);
	}
	return true;
}

static bool take_message(struct chat_writer *c, json_val item, size_t index)
{
	const char *role = json_cstr(json_get(item, "role"), "");
	json_val content = json_get(item, "content");
	const bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
	struct buf text = {0};
	if (strcmp(role, "assistant") == 0) {
		if (c->said || c->calls.bytes > 0)
			chat_writer_flush_assistant(c);
		c->pending = c->said = true;
		return read_text(c, content, index, &c->content);
	}
	if (!system && strcmp(role, "user") != 0)
		return bad_item(c->e, index, item, "has no role that is known",
				"a message of \"user\", \"assistant\", \"system\" or \"developer\"");
	chat_writer_flush_assistant(c);
	bool ok = read_text(c, content, index, &text);
	if (system && !c->begun) {
		chat_writer_add_system(c, &text);
	} else if (ok) {
		chat_writer_flush_system(c);
		chat_writer_message(c, system ? "system" : "user", &text);
	}
	buf_fini(&text);
	return ok;
}

static bool take_call(struct chat_writer *c, json_val item, size_t index)
{
	json_val name = json_get(item, "name");
	const char *id, *arguments;
	size_t id_bytes, bytes;
	if (!json_string(json_get(item, "call_id"), &id, &id_bytes) || json_type(name) != JSON_STRING ||
	    !json_string(json_get(item, "arguments"), &arguments, &bytes))
		return bad_item(c->e, index, item, "is no call of a function",
				"{\"type\": \"function_call\", \"call_id\": ..., \"name\": ..., \"arguments\": \"{...}\"}");
	if (!openai_arguments_fit(arguments, bytes)) /* the reader of chats would name its message, which has another number */
		return bad_item(c->e, index, item, "has arguments that are nested too deeply", "JSON of fewer levels");
	chat_writer_add_call(c, name, id, id_bytes, arguments, bytes);
	return true;
}

static bool take_call_output(struct chat_writer *c, json_val item, size_t index)
{
	const char *id;
	size_t id_bytes;
	struct buf text = {0};
	if (!json_string(json_get(item, "call_id"), &id, &id_bytes))
		return bad_item(c->e, index, item, "is no output of a function",
				"{\"type\": \"function_call_output\", \"call_id\": ..., \"output\": \"...\"}");
	chat_writer_flush_assistant(c);
	chat_writer_flush_system(c);
	bool ok = read_text(c, json_get(item, "output"), index, &text);
	chat_writer_result(c, id, id_bytes, &text);
	buf_fini(&text);
	return ok;
}

/* Several in a row are thoughts of one message. */
static bool take_reasoning(struct chat_writer *c, json_val item, size_t index)
{
	struct buf text = {0};
	if (c->said || c->calls.bytes > 0)
		chat_writer_flush_assistant(c);
	bool ok = !json_present(json_get(item, "content")) || read_text(c, json_get(item, "content"), index, &text);
	if (c->reasoning.bytes > 0 && text.bytes > 0)
		buf_append_str(&c->reasoning, "\n\n");
	buf_append(&c->reasoning, text.data, text.bytes);
	c->pending |= text.bytes > 0; /* many have a summary alone, or what is encrypted */
	c->w->out->failed |= text.failed;
	buf_fini(&text);
	return ok;
}

static bool take_item(struct chat_writer *c, json_val item, size_t index)
{
	const char *type = json_cstr(json_get(item, "type"), "message");
	json_val kind = json_get(item, "type");
	if (json_type(item) != JSON_OBJECT || (json_present(kind) && json_type(kind) != JSON_STRING))
		return bad_item(c->e, index, item, "is no item", "an object with 'role' and 'content', or with 'type', a string");
	if (strcmp(type, "message") == 0)
		return take_message(c, item, index);
	if (strcmp(type, "function_call") == 0)
		return take_call(c, item, index);
	if (strcmp(type, "function_call_output") == 0)
		return take_call_output(c, item, index);
	if (strcmp(type, "reasoning") == 0)
		return take_reasoning(c, item, index);
	return bad_item(c->e, index, item, "is a kind of item that this server does not take",
			"a message, a reasoning, a function_call or a function_call_output");
}

static bool write_messages(struct json_writer *w, json_val root, struct api_error *e)
{
	struct chat_writer c = {.w = w, .e = e};
	json_val input = json_get(root, "input"), instructions = json_get(root, "instructions");
	const char *text;
	size_t bytes, index = 0;
	bool ok = true;
	if (json_present(instructions) && json_type(instructions) != JSON_STRING)
		return api_error_field(e, "instructions", instructions, "is not a string", "a string");
	if (json_string(instructions, &text, &bytes))
		buf_append(&c.system, text, bytes);
	if (json_type(input) != JSON_STRING && (json_type(input) != JSON_ARRAY || json_count(input) == 0)) {
		ok = json_present(input)
			     ? api_error_field(e, "input", input, "is not input", "a string, or an array of at least one item")
			     : api_error_set(e, 400, "input", NULL,
					     "Field 'input' is missing; it must be a string or an array of items.");
	}
	json_key(w, "messages");
	json_array_begin(w);
	if (ok && json_string(input, &text, &bytes)) {
		struct buf said = {0};
		buf_append(&said, text, bytes);
		chat_writer_flush_system(&c);
		chat_writer_message(&c, "user", &said);
		buf_fini(&said);
	}
	for (struct json_iter it = json_iterate(input); ok && json_type(input) == JSON_ARRAY && json_next(&it); index++)
		ok = take_item(&c, it.value, index);
	chat_writer_flush_assistant(&c);
	chat_writer_flush_system(&c);
	json_array_end(w);
	chat_writer_fini(&c);
	return ok;
}

/* ---------------------------------------------------------------- fields */

/* Tools without the object around that chats have. */
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
		char name[64];
		snprintf(name, sizeof(name), "tools[%zu]", index);
		if (!json_string_equals(json_get(it.value, "type"), "function") ||
		    json_type(json_get(it.value, "name")) != JSON_STRING)
			return api_error_field(e, name, it.value, "is a tool that this server does not have",
					       "{\"type\": \"function\", \"name\": \"...\", \"parameters\": {...}}");
		json_object_begin(w);
		json_key(w, "type");
		json_write_cstr(w, "function");
		json_key(w, "function");
		json_object_begin(w);
		for (struct json_iter m = json_iterate(it.value); json_next(&m);) {
			if (strcmp(m.key, "type") == 0)
				continue;
			json_key(w, m.key);
			json_write_value(w, m.value);
		}
		json_object_end(w);
		json_object_end(w);
	}
	json_array_end(w);
	return true;
}

static bool write_tool_choice(struct json_writer *w, json_val choice, struct api_error *e)
{
	if (!json_present(choice))
		return true;
	json_key(w, "tool_choice");
	if (json_type(choice) != JSON_OBJECT) {
		json_write_value(w, choice);
		return true;
	}
	/* a name that nests would be deeper in a chat's body than it may be */
	if (!json_string_equals(json_get(choice, "type"), "function") || json_type(json_get(choice, "name")) != JSON_STRING)
		return api_error_field(e, "tool_choice", choice, "is not known",
				       "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": \"...\"}");
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "function");
	json_key(w, "function");
	json_object_begin(w);
	json_key(w, "name");
	json_write_value(w, json_get(choice, "name"));
	json_object_end(w);
	json_object_end(w);
	return true;
}

/* text.format is what chats call response_format, with name and schema one level higher. */
static bool write_format(struct json_writer *w, json_val text, struct api_error *e)
{
	json_val format = json_get(text, "format");
	if (json_present(text) && json_type(text) != JSON_OBJECT)
		return api_error_field(e, "text", text, "is not an object", "{\"format\": {...}}");
	if (!json_present(format))
		return true;
	if (!json_string_equals(json_get(format, "type"), "json_schema")) {
		json_key(w, "response_format");
		json_write_value(w, format);
		return true;
	}
	if (!json_present(json_get(format, "schema")))
		return api_error_set(e, 400, "text.format", NULL,
				     "Field 'text.format.schema' is missing; it must be a JSON Schema.");
	chat_writer_schema(w, format);
	return true;
}

/* Fields that chats call otherwise, or the same. */
static void write_plain(struct json_writer *w, json_val root)
{
	static const struct chat_field names[] = {
		{"max_output_tokens", "max_completion_tokens"}, {"model", NULL}, {"stream", NULL}, {"temperature", NULL},
		{"top_p", NULL}, {"top_k", NULL}, {"min_p", NULL}, {"seed", NULL}, {"stop", NULL}, {"stop_token_ids", NULL},
		{"presence_penalty", NULL}, {"frequency_penalty", NULL}, {"repetition_penalty", NULL}, {"logit_bias", NULL},
		{"min_tokens", NULL}, {"ignore_eos", NULL}, {"skip_special_tokens", NULL}, {"parallel_tool_calls", NULL},
		{"chat_template", NULL}, {"chat_template_kwargs", NULL}, {"documents", NULL}, {"cache_salt", NULL},
		{"priority", NULL}, {"request_id", NULL}, {"user", NULL}, {"include_reasoning", NULL},
		{"reasoning_format", NULL},
		{"structured_outputs", NULL}};
	chat_writer_copy(w, root, names, COUNT_OF(names));
	json_val effort = json_get(json_get(root, "reasoning"), "effort");
	if (json_present(effort)) {
		json_key(w, "reasoning_effort");
		json_write_value(w, effort);
	}
}

/* What would need a kept response, or is not there. */
static bool check_supported(json_val root, struct api_error *e)
{
	static const char *const kept[] = {"previous_response_id", "conversation"};
	json_val reasoning = json_get(root, "reasoning"), later = json_get(root, "background"), include = json_get(root, "include");
	bool background = false;
	for (size_t i = 0; i < COUNT_OF(kept); i++)
		if (json_present(json_get(root, kept[i])))
			return refuse(e, kept[i], "responses are not kept by this server; send the whole conversation in 'input'");
	if (json_present(json_get(root, "session_id")))
		return refuse(e, "session_id", "sessions are had from /v1/chat/completions and /v1/completions");
	if (json_present(json_get(root, "prompt")))
		return refuse(e, "prompt", "this server keeps no prompts; send 'instructions' and 'input'");
	if (json_present(reasoning) && json_type(reasoning) != JSON_OBJECT)
		return api_error_field(e, "reasoning", reasoning, "is not an object", "{\"effort\": \"...\"}");
	if (json_present(later) && !json_bool(later, &background))
		return api_error_field(e, "background", later, "is not true or false", "false");
	if (background)
		return refuse(e, "background", "responses are not kept by this server; it must be false");
	if (json_present(json_get(root, "truncation")) && !json_string_equals(json_get(root, "truncation"), "disabled"))
		return refuse(e, "truncation", "input is not shortened by this server; it must be \"disabled\"");
	json_val logprobs = json_get(root, "top_logprobs");
	i64 top = 0;
	if (json_present(logprobs) && (!json_int(logprobs, &top) || top < 0))
		return api_error_field(e, "top_logprobs", logprobs, "is no number of tokens", "0");
	if (top > 0)
		return refuse(e, "top_logprobs", "log-probabilities are had from /v1/chat/completions");
	if (json_present(include) && json_type(include) != JSON_ARRAY)
		return api_error_field(e, "include", include, "is not a list", "an array of strings");
	for (struct json_iter it = json_iterate(include); json_next(&it);)
		if (json_string_equals(it.value, "message.output_text.logprobs"))
			return refuse(e, "include", "log-probabilities are had from /v1/chat/completions");
	return true;
}

static bool write_chat(struct buf *out, json_val root, struct api_error *e)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	write_plain(&w, root);
	bool ok = check_supported(root, e) && write_messages(&w, root, e) && write_tools(&w, json_get(root, "tools"), e) &&
		  write_tool_choice(&w, json_get(root, "tool_choice"), e) && write_format(&w, json_get(root, "text"), e);
	if (ok)
		json_object_end(&w);
	return ok;
}

bool responses_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
		    struct api_error *e)
{
	static const struct chat_field renamed[] = {{"max_output_tokens", "max_completion_tokens"},
						    {"input", "messages"},
						    {"text.format", "response_format"},
						    {"reasoning.effort", "reasoning_effort"}};
	struct json_doc *doc = NULL;
	struct err_msg em;
	struct buf chat = {0};
	memset(r, 0, sizeof(*r));
	enum err err = bytes == 0 ? ERR_FORMAT : json_parse(&doc, body, bytes, &em);
	if (err || json_type(json_root(doc)) != JSON_OBJECT) { /* the reader of chats says what is wrong */
		json_free(&doc);
		return openai_request_read(r, m, OPENAI_CHAT, body, bytes, tenant, e);
	}
	bool ok = write_chat(&chat, json_root(doc), e);
	if (ok && !buf_ok(&chat))
		ok = api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	if (ok) {
		ok = openai_request_read(r, m, OPENAI_CHAT, chat.data, chat.bytes, tenant, e);
		if (!ok)
			chat_writer_rename(e, renamed, COUNT_OF(renamed));
	}
	buf_fini(&chat);
	r->asked = OPENAI_RESPONSES;
	r->response = doc;
	return ok;
}
