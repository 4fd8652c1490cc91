/* Owns the bodies of /v1/messages: what they say becomes the body of a chat, so that everything behind reads one kind of
 * request. Runs in the gateway. Never keeps a message: clients send the conversation with each request. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/messages.h"
#include "proc_gateway/messages_priv.h"

enum { NAME_BYTES = 64 };

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
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
	return messages_write_turns(w, root, e) && write_kwargs(w, root, e) &&
	       (!shown || write_tools(w, json_get(root, "tools"), e));
}

static bool write_chat(struct json_writer *w, json_val root, struct api_error *e)
{
	chat_writer_copy(w, root, sampling, COUNT_OF(sampling));
	json_key(w, "max_completion_tokens");
	json_write_int(w, -1); /* what fits: openai_request_fit */
	return check_supported(root, e) && write_prompt(w, root, e) && write_thoughts(w, root, e) && write_format(w, root, e) &&
	       write_tool_choice(w, json_get(root, "tool_choice"), e);
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
				     openai_request_fit(r, max_tokens, e);
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
