/* Owns the way from chat messages to one prompt: shapes that clients send are brought to those that chat
 * templates read, then the template renders them. Runs in the gateway. Never runs a template
 * that a client sent: a small one can be busy for seconds. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "proc_gateway/openai_request.h"
#include "proc_gateway/openai_session.h"

static bool bad_message(struct api_error *e, size_t index, json_val v, const char *wrong, const char *right)
{
	char name[64];
	snprintf(name, sizeof(name), "messages[%zu]", index);
	return api_error_field(e, name, v, wrong, right);
}

/* How a template takes content that clients send in parts. */
struct content_form {
	const char *between; /* texts that become one */
	bool parts;	     /* users' stay parts */
};

static void write_part(struct json_writer *w, const char *text, size_t bytes)
{
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "text");
	json_key(w, "text");
	json_write_string(w, text, bytes);
	json_object_end(w);
}

/* Text parts of one content array, as one text or as parts. */
static bool write_parts(struct json_writer *w, json_val parts, const char *between, bool in_parts, size_t index, struct api_error *e)
{
	struct buf joined = {0};
	bool first = true, ok = true;
	if (in_parts)
		json_array_begin(w);
	for (struct json_iter it = json_iterate(parts); ok && json_next(&it);) {
		const char *text = "";
		size_t bytes = 0;
		json_val type = json_get(it.value, "type");
		json_val value = json_type(it.value) == JSON_STRING ? it.value : json_get(it.value, "text");
		if (json_present(type) && !json_string_equals(type, "text") &&
		    !json_string_equals(type, "input_text") && !json_string_equals(type, "output_text"))
			ok = bad_message(e, index, type, "is a kind of content that this model does not take", "\"text\"");
		else if (!json_string(value, &text, &bytes))
			ok = bad_message(e, index, it.value, "is not a part of content", "{\"type\": \"text\", \"text\": \"...\"}");
		if (in_parts) {
			write_part(w, text, bytes);
			continue;
		}
		buf_append_str(&joined, first ? "" : between);
		first = false;
		buf_append(&joined, text, bytes);
	}
	if (in_parts)
		json_array_end(w);
	else
		json_write_string(w, joined.data ? joined.data : "", joined.bytes);
	buf_fini(&joined);
	return ok;
}

/* Around arguments stand the list, a message, its calls, a call and its function. */
enum { ARGUMENTS_LEVELS_MAX = JSON_LEVELS_MAX - 5 };

bool openai_arguments_fit(const char *arguments, size_t bytes)
{
	struct json_doc *doc = NULL;
	bool fit = json_parse(&doc, arguments, bytes, NULL) != ERR_OK || json_type(json_root(doc)) != JSON_OBJECT ||
		   json_depth(json_root(doc)) <= ARGUMENTS_LEVELS_MAX;
	json_free(&doc);
	return fit;
}

/* Templates walk through arguments as an object; clients send them as a string of JSON. That string may nest as deeply
 * as a whole body, and here it stands inside of one. */
static bool write_tool_call(struct json_writer *w, json_val call, size_t index, struct api_error *e)
{
	bool fits = true;
	json_object_begin(w);
	for (struct json_iter it = json_iterate(call); json_next(&it);) {
		json_key_of(w, &it);
		if (!json_is_member(&it, "function") || json_type(it.value) != JSON_OBJECT) {
			json_write_value(w, it.value);
			continue;
		}
		json_object_begin(w);
		for (struct json_iter f = json_iterate(it.value); json_next(&f);) {
			struct json_doc *parsed = NULL;
			const char *text;
			size_t bytes;
			json_key_of(w, &f);
			bool is_object = json_is_member(&f, "arguments") && json_string(f.value, &text, &bytes) &&
					 json_parse(&parsed, text, bytes, NULL) == ERR_OK &&
					 json_type(json_root(parsed)) == JSON_OBJECT;
			bool deep = is_object && json_depth(json_root(parsed)) > ARGUMENTS_LEVELS_MAX;
			json_write_value(w, is_object && !deep ? json_root(parsed) : f.value);
			json_free(&parsed);
			fits &= !deep;
		}
		json_object_end(w);
	}
	json_object_end(w);
	return fits || bad_message(e, index, call, "has arguments that are nested too deeply",
				   "JSON of fewer levels");
}

static bool write_member(struct json_writer *w, const struct json_iter *it, const struct content_form *form, bool user, size_t index, struct api_error *e)
{
	json_key_of(w, it);
	if (json_is_member(it, "content") && json_type(it->value) == JSON_ARRAY)
		return write_parts(w, it->value, form->between, user && form->parts, index, e);
	if (json_is_member(it, "tool_calls") && json_type(it->value) == JSON_ARRAY) {
		bool ok = true;
		json_array_begin(w);
		for (struct json_iter call = json_iterate(it->value); ok && json_next(&call);)
			ok = write_tool_call(w, call.value, index, e);
		json_array_end(w);
		return ok;
	}
	json_write_value(w, it->value);
	return true;
}

/* Newer clients call the thoughts of an earlier turn so; templates know them by the name that replies have. */
static bool has_reasoning(json_val message)
{
	return json_type(json_get(message, "reasoning")) == JSON_STRING &&
	       !json_present(json_get(message, "reasoning_content"));
}

/* Templates would pass over what is no call, or fail. */
static bool check_calls(json_val calls, size_t index, struct api_error *e)
{
	if (json_present(calls) && json_type(calls) != JSON_ARRAY)
		return bad_message(e, index, calls, "are no tool calls", "an array of {\"function\": {\"name\": ..., \"arguments\": ...}}");
	for (struct json_iter it = json_iterate(calls); json_next(&it);) {
		json_val function = json_get(it.value, "function");
		if (json_type(it.value) != JSON_OBJECT || (json_present(function) && json_type(function) != JSON_OBJECT))
			return bad_message(e, index, it.value, "is no tool call", "{\"function\": {\"name\": ..., \"arguments\": ...}}");
	}
	return true;
}

/* Checks one message; `*rewrite` when a template could not read it as it is. */
static bool check_message(json_val message, size_t index, bool *rewrite, struct api_error *e)
{
	json_val role = json_get(message, "role"), content = json_get(message, "content");
	if (json_type(message) != JSON_OBJECT)
		return bad_message(e, index, message, "is not an object",
				   "{\"role\": ..., \"content\": ...}");
	if (json_type(role) != JSON_STRING)
		return bad_message(e, index, message, "has no 'role'",
				   "{\"role\": \"user\", \"content\": ...}");
	switch (json_type(content)) {
	case JSON_STRING:
		break;
	case JSON_ARRAY:
		*rewrite = true;
		break;
	case JSON_MISSING:
	case JSON_NULL:
		if (!json_string_equals(role, "assistant"))
			return bad_message(e, index, message, "has no 'content'",
					   "{\"role\": ..., \"content\": \"...\"}");
		break;
	default:
		return bad_message(e, index, content, "is not content", "a string or an array of text parts");
	}
	static const char *const thoughts[] = {"reasoning_content", "reasoning"};
	for (size_t i = 0; i < COUNT_OF(thoughts); i++) { /* templates would write them as they are */
		json_val thought = json_get(message, thoughts[i]);
		if (json_present(thought) && json_type(thought) != JSON_STRING)
			return bad_message(e, index, thought, "is no thought", "a string, as 'reasoning_content' or 'reasoning'");
	}
	json_val calls = json_get(message, "tool_calls");
	if (json_type(calls) == JSON_ARRAY || has_reasoning(message))
		*rewrite = true;
	return check_calls(calls, index, e);
}

static bool no_memory(struct api_error *e)
{
	return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
}

static bool rewrite_messages(struct openai_request *r, const struct content_form *form, json_val *messages, struct api_error *e)
{
	struct buf text = {0};
	struct json_writer w;
	bool ok = true;
	size_t index = 0;
	json_begin(&w, &text);
	json_array_begin(&w);
	for (struct json_iter it = json_iterate(*messages); ok && json_next(&it); index++) {
		const bool user = json_string_equals(json_get(it.value, "role"), "user");
		json_object_begin(&w);
		for (struct json_iter m = json_iterate(it.value); ok && json_next(&m);)
			ok = write_member(&w, &m, form, user, index, e);
		if (has_reasoning(it.value)) {
			json_key(&w, "reasoning_content");
			json_write_value(&w, json_get(it.value, "reasoning"));
		}
		json_object_end(&w);
	}
	json_array_end(&w);
	if (ok && (!buf_ok(&text) || json_parse(&r->messages, text.data, text.bytes, NULL) != ERR_OK))
		ok = no_memory(e);
	if (ok)
		*messages = json_root(r->messages);
	buf_fini(&text);
	return ok;
}

static bool check_messages(struct openai_request *r, const struct content_form *form, json_val *messages, struct api_error *e)
{
	bool rewrite = false;
	size_t index = 0;
	*messages = r->fields.messages;
	if (!r->fields.has_messages)
		return api_error_set(e, 400, "messages", NULL,
				     "Field 'messages' is missing; it must be an array of messages.");
	if (json_count(*messages) == 0 && openai_session_goes_on(r))
		return true;
	if (json_count(*messages) == 0)
		return api_error_field(e, "messages", *messages, "is empty",
				       "an array of at least one message");
	for (struct json_iter it = json_iterate(*messages); json_next(&it); index++) {
		if (!check_message(it.value, index, &rewrite, e))
			return false;
	}
	return !rewrite || rewrite_messages(r, form, messages, e);
}

/* chat_template_kwargs, with reasoning_effort as one more of them. */
static bool template_kwargs(struct openai_request *r, json_val *out, struct api_error *e)
{
	*out = r->fields.chat_template_kwargs;
	if (!r->fields.has_reasoning_effort)
		return true;
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_object_begin(&w);
	json_key(&w, "reasoning_effort");
	json_write_cstr(&w, r->fields.reasoning_effort);
	for (struct json_iter it = json_iterate(*out); json_next(&it);) {
		json_key_of(&w, &it);
		json_write_value(&w, it.value);
	}
	json_object_end(&w);
	bool ok = buf_ok(&text) && json_parse(&r->kwargs, text.data, text.bytes, NULL) == ERR_OK;
	buf_fini(&text);
	if (!ok)
		return no_memory(e);
	*out = json_root(r->kwargs);
	return true;
}

/* The request's own template, within limits that keep the others served. */
static bool render_own(const char *source, struct chat_request *chat, struct buf *out, struct api_error *e)
{
	struct chat_template *own = NULL;
	struct err_msg em = {.text = ""};
	enum err err = chat_template_parse(&own, source, strlen(source), &em);
	chat->template_from_client = true;
	if (!err)
		err = chat_template_render(own, chat, out, &em);
	chat_template_free(&own);
	if (err == ERR_NO_MEMORY || !buf_ok(out))
		return no_memory(e);
	return !err || api_error_set(e, 400, "chat_template", NULL, "Field 'chat_template': %s.", em.text);
}

static bool render(const struct openai_model *m, const struct chat_request *chat, struct buf *out,
		   struct api_error *e)
{
	struct err_msg em;
	if (!m->chat_template)
		return api_error_set(
			e, 400, "messages", NULL,
			"This model has no chat template: use /v1/completions, or start the server with "
			"--chat-template FILE.");
	enum err err = chat_template_render(m->chat_template, chat, out, &em);
	if (err == ERR_NO_MEMORY || !buf_ok(out))
		return no_memory(e);
	if (err)
		return api_error_set(e, 400, "messages", NULL, "The chat template refused the messages: %s.",
				     em.text);
	return true;
}

/* With 'echo' a chat's answer begins with the last message, when it is the assistant's; one that is continued begins it either way. */
static void read_chat_begun(struct openai_request *r, json_val messages)
{
	json_val last = json_at(messages, json_count(messages) - 1);
	if (r->fields.echo ? json_string_equals(json_get(last, "role"), "assistant") : r->fields.continue_final_message)
		(void)json_string(json_get(last, "content"), &r->chat_begun, &r->chat_begun_bytes);
}

bool openai_tools_shown(const struct openai_fields *f)
{
	return f->has_tools && !json_string_equals(f->tool_choice, "none") && json_count(f->tools) > 0;
}

bool openai_messages_read(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const struct openai_fields *f = &r->fields;
	struct chat_request chat = {0};
	struct buf prompt = {0};
	const bool own = f->has_chat_template && f->chat_template[0];
	struct content_form form = {.between = "\n"};
	if (!own && m->chat_template)
		form = (struct content_form){chat_template_between_parts(m->chat_template), chat_template_reads_parts(m->chat_template, openai_tools_shown(f))};
	if (!check_messages(r, &form, &chat.messages, e) || !template_kwargs(r, &chat.kwargs, e))
		return false;
	if (f->continue_final_message && f->has_add_generation_prompt && f->add_generation_prompt)
		return api_error_set(
			e, 400, "continue_final_message", NULL,
			"Field 'continue_final_message' goes only with \"add_generation_prompt\": false.");
	if (openai_tools_shown(f))
		chat.tools = f->tools;
	chat.documents = f->documents;
	chat.add_generation_prompt = f->add_generation_prompt && !f->continue_final_message;
	chat.continue_final_message = f->continue_final_message;
	chat.now_s = clock_wall_s();
	chat.bos_token = tokenizer_bos(m->tokenizer);
	chat.eos_token = tokenizer_eos(m->tokenizer);
	read_chat_begun(r, chat.messages);
	if (openai_session_goes_on(r)) {
		bool empty = json_count(chat.messages) == 0;
		if (empty)
			openai_session_again(r, m, &chat);
		return (empty || openai_session_messages(r, m, &chat, e)) && openai_prompt_from_ids(r, m, e);
	}
	bool ok = own ? render_own(f->chat_template, &chat, &prompt, e) : render(m, &chat, &prompt, e);
	if (ok && r->asked == OPENAI_LLAMA_TEMPLATE) {
		r->rendered = prompt;
		return true;
	}
	ok = ok && openai_prompt_from_text(r, m, &prompt, f->has_add_special_tokens && f->add_special_tokens, e);
	if (ok)
		openai_thoughts_begin(r, &chat, prompt.data, prompt.bytes);
	buf_fini(&prompt);
	return ok;
}
