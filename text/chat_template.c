/* Owns chat templates: finding a model's template, the variables that transformers gives it, limits, and the cut for
 * continue_final_message. Runs in the gateway and the tercet command. A parsed template is constant and shared by
 * threads; each rendering has an arena of its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/utf8.h"
#include "text/jinja_str_priv.h"
#include "text/mistral_template_priv.h"
#include "text/text.h"

enum { PATH_BYTES_MAX = 4096, ARENA_CHUNK_BYTES = 64 * 1024 };

/* Whose messages a template may read as parts alone: of content that is one string it makes nothing. In the order in which that is found out. */
static const char *const ROLES[] = {"user", "system", "developer", "assistant", "tool"};

struct chat_template {
	struct jinja_template plain;
	struct jinja_template tool_use; /* for requests with tools, where the model has one of its own */
	bool has_tool_use;
	unsigned plain_parts, tool_use_parts; /* a bit for each of ROLES */
	const char *between_parts;
	char *source;
};

/* ---- loading ---- */

enum err chat_template_parse(struct chat_template **out, const char *source, size_t bytes, struct err_msg *em)
{
	struct chat_template *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!utf8_valid(source, bytes)) {
		free(t);
		return err_set(em, ERR_FORMAT, "the template is not valid UTF-8");
	}
	t->source = strndup(source, bytes);
	enum err e = t->source ? jinja_parse(&t->plain, source, bytes, em) : err_set(em, ERR_NO_MEMORY, "out of memory");
	if (e != ERR_OK) {
		free(t->source);
		free(t);
		return e;
	}
	t->between_parts = "\n";
	*out = t;
	return ERR_OK;
}

const char *chat_template_between_parts(const struct chat_template *t)
{
	return t->between_parts;
}

const char *chat_template_source(const struct chat_template *t)
{
	return t->source;
}

void chat_template_free(struct chat_template **t)
{
	if (*t == NULL)
		return;
	jinja_template_fini(&(*t)->plain);
	if ((*t)->has_tool_use)
		jinja_template_fini(&(*t)->tool_use);
	free((*t)->source);
	free(*t);
	*t = NULL;
}

static enum err read_source(struct buf *out, const char *path, struct err_msg *em)
{
	FILE *f = fopen(path, "rb");
	if (f == NULL)
		return err_set(em, ERR_IO, "chat template %s: %m", path);
	enum err e = ERR_OK;
	while (e == ERR_OK && !feof(f) && out->bytes <= JINJA_SOURCE_MAX) {
		if (!buf_reserve(out, 65536))
			e = err_set(em, ERR_NO_MEMORY, "chat template %s: out of memory", path);
		else
			out->bytes += fread(out->data + out->bytes, 1, out->capacity - out->bytes, f);
		if (e == ERR_OK && ferror(f))
			e = err_set(em, ERR_IO, "chat template %s: %m", path);
	}
	fclose(f);
	return e;
}

static enum err load_source_file(struct chat_template **out, const char *path, struct err_msg *em)
{
	struct buf source = {0};
	enum err e = read_source(&source, path, em);
	if (e == ERR_OK) {
		e = chat_template_parse(out, buf_cstr(&source), source.bytes, em);
		if (e != ERR_OK)
			err_prefix(em, "chat template %s", path);
	}
	buf_fini(&source);
	return e;
}

/* [{"name": "default", "template": "..."}, {"name": "tool_use", ...}] */
static enum err load_named(struct chat_template **out, json_val list, struct err_msg *em)
{
	json_val plain = {NULL}, tool_use = {NULL};
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		if (json_string_equals(json_get(it.value, "name"), "default"))
			plain = json_get(it.value, "template");
		if (json_string_equals(json_get(it.value, "name"), "tool_use"))
			tool_use = json_get(it.value, "template");
	}
	const char *source;
	size_t bytes;
	if (!json_string(plain, &source, &bytes))
		return err_set(em, ERR_FORMAT, "none of the named chat templates is called \"default\"");
	enum err e = chat_template_parse(out, source, bytes, em);
	if (e != ERR_OK || !json_string(tool_use, &source, &bytes))
		return e;
	e = jinja_parse(&(*out)->tool_use, source, bytes, em);
	(*out)->has_tool_use = e == ERR_OK;
	if (e != ERR_OK) {
		err_prefix(em, "template \"tool_use\"");
		chat_template_free(out);
	}
	return e;
}

/* The member "chat_template" of a JSON file. ERR_NOT_FOUND: no such file or member. */
static enum err load_json_file(struct chat_template **out, const char *path, struct err_msg *em)
{
	struct json_doc *doc;
	if (access(path, F_OK) != 0)
		return ERR_NOT_FOUND;
	enum err e = json_parse_file(&doc, path, em);
	if (e != ERR_OK)
		return e;
	json_val v = json_get(json_root(doc), "chat_template");
	const char *source;
	size_t bytes;
	if (json_type(v) == JSON_ARRAY)
		e = load_named(out, v, em);
	else if (json_string(v, &source, &bytes))
		e = chat_template_parse(out, source, bytes, em);
	else if (json_present(v))
		e = err_set(em, ERR_FORMAT, "\"chat_template\" must be a string, or an array of {\"name\", \"template\"}, found %s",
			    json_type_name(v));
	else
		e = ERR_NOT_FOUND;
	if (e != ERR_OK && e != ERR_NOT_FOUND)
		err_prefix(em, "%s", path);
	json_free(&doc);
	return e;
}

/* additional_chat_templates/tool_use.jinja, beside a default template that has none of its own for tools. */
static enum err load_additional(struct chat_template *t, const char *model_dir, struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	snprintf(path, sizeof(path), "%s/additional_chat_templates/tool_use.jinja", model_dir);
	if (t->has_tool_use || access(path, F_OK) != 0)
		return ERR_OK;
	struct buf source = {0};
	enum err e = read_source(&source, path, em);
	if (e == ERR_OK && !utf8_valid(buf_cstr(&source), source.bytes))
		e = err_set(em, ERR_FORMAT, "the template is not valid UTF-8");
	if (e == ERR_OK)
		e = jinja_parse(&t->tool_use, buf_cstr(&source), source.bytes, em);
	t->has_tool_use = e == ERR_OK;
	if (e == ERR_FORMAT)
		err_prefix(em, "chat template %s", path);
	buf_fini(&source);
	return e;
}

/* Of files that hold none. */
static enum err load_known(struct chat_template **out, const char *model_dir, struct err_msg *em)
{
	struct buf source = {0};
	const char *between_parts = NULL;
	enum err e = mistral_template(&source, &between_parts, model_dir, em);
	if (e == ERR_OK)
		e = chat_template_parse(out, buf_cstr(&source), source.bytes, em);
	if (e == ERR_OK)
		(*out)->between_parts = between_parts;
	buf_fini(&source);
	return e;
}

static enum err load_default(struct chat_template **out, const char *model_dir, struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	snprintf(path, sizeof(path), "%s/chat_template.jinja", model_dir);
	if (access(path, F_OK) == 0)
		return load_source_file(out, path, em);
	snprintf(path, sizeof(path), "%s/chat_template.json", model_dir);
	enum err e = load_json_file(out, path, em);
	if (e != ERR_NOT_FOUND)
		return e;
	snprintf(path, sizeof(path), "%s/tokenizer_config.json", model_dir);
	e = load_json_file(out, path, em);
	if (e == ERR_NOT_FOUND && mistral_template_is_wanted(model_dir))
		return load_known(out, model_dir, em);
	if (e == ERR_NOT_FOUND)
		return err_set(em, e, "%s has no chat template (chat_template.jinja, chat_template.json or "
				      "tokenizer_config.json); give one with --chat-template FILE",
			       model_dir);
	return e;
}

/* ---- variables ---- */

/* Names that the template does not mention need no value. */
static bool set_var(struct jinja *j, const char *name, size_t bytes, struct jv v)
{
	const char *known = jinja_name(j->template, name, bytes);
	return known == NULL || jinja_scope_set(j, j->scope, known, v);
}

static bool set_json(struct jinja *j, const char *name, size_t bytes, json_val value)
{
	struct jv v;
	if (jinja_name(j->template, name, bytes) == NULL)
		return true;
	return jv_from_json(j, value, &v) && set_var(j, name, bytes, v);
}

static bool set_token(struct jinja *j, const char *name, const char *text)
{
	struct jv v;
	if (text == NULL || text[0] == '\0')
		return true; /* transformers leaves what a model does not have undefined */
	return jv_string(j, text, strlen(text), &v) && set_var(j, name, strlen(name), v);
}

/* In transformers' order: tokens, then the request's own variables, then what no request may replace. */
static bool set_variables(struct jinja *j, const struct chat_request *r)
{
	j->scope = jinja_scope_push(j, NULL, NULL);
	if (j->scope == NULL || !set_token(j, "bos_token", r->bos_token) || !set_token(j, "eos_token", r->eos_token))
		return false;
	for (struct json_iter it = json_iterate(r->kwargs); json_next(&it);)
		if (!set_json(j, it.key, it.key_bytes, it.value))
			return false;
	if (json_type(r->messages) == JSON_MISSING) /* a bare template: the request's variables are all */
		return true;
	return set_json(j, "messages", 8, r->messages) && set_json(j, "tools", 5, r->tools) &&
	       set_json(j, "documents", 9, r->documents) &&
	       set_var(j, "add_generation_prompt", 21, JV_BOOLEAN(r->add_generation_prompt));
}

/* ---- continue_final_message ---- */

/* The last text of the last message: its content, or the last text part of it. */
static bool final_text(json_val messages, const char **text, size_t *bytes)
{
	size_t count = json_count(messages);
	json_val content = json_get(json_at(messages, count > 0 ? count - 1 : 0), "content");
	if (json_string(content, text, bytes))
		return true;
	bool found = false;
	for (struct json_iter it = json_iterate(content); json_next(&it);)
		found = json_string(json_get(it.value, "text"), text, bytes) || found;
	return found;
}

static const char *last_occurrence(const char *text, size_t bytes, const char *what, size_t what_bytes)
{
	for (size_t at = bytes >= what_bytes ? bytes - what_bytes + 1 : 0; at-- > 0;)
		if (memcmp(text + at, what, what_bytes) == 0)
			return text + at;
	return NULL;
}

/* Cuts the rendering behind the final message, as transformers does: with the message's own trailing white space where
 * the template kept it. */
static enum err cut_behind_final(const struct chat_request *r, struct buf *rendered, struct err_msg *em)
{
	struct jstr message = {.chars = SIZE_MAX};
	size_t from, to, left, end;
	if (r->add_generation_prompt)
		return err_set(em, ERR_INVALID,
			       "continue_final_message and add_generation_prompt exclude each other: one continues a "
			       "message, the other starts one");
	if (!final_text(r->messages, &message.data, &message.bytes))
		return err_set(em, ERR_INVALID, "continue_final_message is set but the final message has no text");
	jstr_strip(&message, NULL, true, true, &from, &to);
	jstr_strip(&message, NULL, true, false, &left, &end);
	const char *hit = last_occurrence(buf_cstr(rendered), rendered->bytes, message.data + from, to - from);
	if (hit == NULL)
		return err_set(em, ERR_INVALID,
			       "continue_final_message is set but the final message does not appear in the prompt: the "
			       "chat template changes or drops it");
	size_t at = (size_t)(hit - rendered->data), whole = message.bytes - left;
	bool kept = left == 0 && rendered->bytes - at >= whole && memcmp(hit, message.data, whole) == 0;
	rendered->bytes = at + (kept ? whole : to - from);
	return ERR_OK;
}

/* ---- content in parts ---- */

static void write_content(struct json_writer *w, json_val content)
{
	if (json_type(content) != JSON_STRING) {
		json_write_value(w, content);
		return;
	}
	json_array_begin(w);
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "text");
	json_key(w, "text");
	json_write_value(w, content);
	json_object_end(w);
	json_array_end(w);
}

static bool has_role(json_val message, unsigned roles)
{
	for (unsigned i = 0; i < COUNT_OF(ROLES); i++)
		if (roles & 1u << i && json_string_equals(json_get(message, "role"), ROLES[i]))
			return true;
	return false;
}

/* The messages, texts of these roles as lists of one part. */
static enum err messages_in_parts(struct json_doc **out, json_val messages, unsigned roles, struct err_msg *em)
{
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_array_begin(&w);
	for (struct json_iter it = json_iterate(messages); json_next(&it);) {
		if (!has_role(it.value, roles)) {
			json_write_value(&w, it.value);
			continue;
		}
		json_object_begin(&w);
		for (struct json_iter member = json_iterate(it.value); json_next(&member);) {
			json_key_of(&w, &member);
			if (json_is_member(&member, "content"))
				write_content(&w, member.value);
			else
				json_write_value(&w, member.value);
		}
		json_object_end(&w);
	}
	json_array_end(&w);
	enum err e = buf_ok(&text) ? json_parse(out, text.data, text.bytes, em) : err_set(em, ERR_NO_MEMORY, "out of memory for the prompt");
	buf_fini(&text);
	return e;
}

/* ---- rendering ---- */

/* The template's own scope lies inside the one of the request's variables. */
static bool enter_template(struct jinja *j)
{
	struct jscope *s = jinja_scope_push(j, j->scope, j->template->unset);
	if (s != NULL)
		j->scope = s;
	return s != NULL;
}

/* Requests with tools may have a template of their own. */
static bool for_tools(const struct chat_template *t, const struct chat_request *request)
{
	return t->has_tool_use && json_count(request->tools) > 0;
}

static enum err render(const struct chat_template *t, const struct chat_request *request, struct buf *out, struct err_msg *em)
{
	bool tools = for_tools(t, request);
	struct buf rendered = {0};
	struct jinja j = {.template = tools ? &t->tool_use : &t->plain,
			  .limits = request->template_from_client ? JINJA_REQUEST_LIMITS : JINJA_LIMITS,
			  .out = &rendered,
			  .now_s = request->now_s};
	enum err e = ERR_OK;
	j.arena = (struct arena){.chunk_bytes = ARENA_CHUNK_BYTES, .limit_bytes = j.limits.memory};
	if (!set_variables(&j, request) || !enter_template(&j) || jinja_exec(&j, &j.template->body) == JFLOW_FAIL || j.failed)
		e = err_set(em, ERR_INVALID, "%s", j.error.text);
	if (e == ERR_OK && request->continue_final_message)
		e = cut_behind_final(request, &rendered, em);
	if (e == ERR_OK) {
		buf_append(out, rendered.data, rendered.bytes);
		if (!buf_ok(out))
			e = err_set(em, ERR_NO_MEMORY, "out of memory for the prompt");
	}
	buf_fini(&rendered);
	arena_fini(&j.arena);
	return e;
}

enum err chat_template_render(const struct chat_template *t, const struct chat_request *request, struct buf *out, struct err_msg *em)
{
	const unsigned roles = for_tools(t, request) ? t->tool_use_parts : t->plain_parts;
	struct chat_request in_parts = *request;
	struct json_doc *doc = NULL;
	if (!roles || json_type(request->messages) != JSON_ARRAY)
		return render(t, request, out, em);
	enum err e = messages_in_parts(&doc, request->messages, roles, em);
	if (e == ERR_OK) {
		in_parts.messages = json_root(doc);
		e = render(t, &in_parts, out, em);
	}
	json_free(&doc);
	return e;
}

bool chat_template_reads_parts(const struct chat_template *t, bool tools)
{
	return ((tools && t->has_tool_use ? t->tool_use_parts : t->plain_parts) & 1) != 0;
}

/* ---- a model's template ---- */

/* A word that filters leave as it is, but for its case. */
#define PROBE "tercetprobe"

/* Whether the template has the probe's message in the prompt. */
static bool shows_probe(const struct chat_template *t, const struct chat_request *request)
{
	struct buf out = {0};
	struct err_msg em;
	bool shown = chat_template_render(t, request, &out, &em) == ERR_OK;
	for (size_t i = 0; shown && i < out.bytes; i++)
		out.data[i] = (char)(out.data[i] >= 'A' && out.data[i] <= 'Z' ? out.data[i] + 'a' - 'A' : out.data[i]);
	shown = shown && strstr(buf_cstr(&out), PROBE) != NULL;
	buf_fini(&out);
	return shown;
}

/* Templates of models that see images may look for parts of text alone, and leave out what is no part. Of a role whose messages a template does not show,
 * texts stay what they are. */
static enum err find_parts(const struct chat_template *t, unsigned *roles, bool tools, struct err_msg *em)
{
	static const char *const chats[] = {
		"[{\"role\": \"user\", \"content\": \"" PROBE "\"}]",
		"[{\"role\": \"system\", \"content\": \"" PROBE "\"}, {\"role\": \"user\", \"content\": \"a\"}]",
		"[{\"role\": \"developer\", \"content\": \"" PROBE "\"}, {\"role\": \"user\", \"content\": \"a\"}]",
		"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"" PROBE "\"}, {\"role\": \"user\", \"content\": \"b\"}]",
		"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": "
		"\"call00000\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call00000\", \"name\": \"f\", "
		"\"content\": \"" PROBE "\"}]",
	};
	static const char own[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"f\", \"parameters\": {\"type\": "
				  "\"object\", \"properties\": {}}}}]";
	struct json_doc *tool_list = NULL;
	enum err e = tools ? json_parse(&tool_list, own, sizeof(own) - 1, em) : ERR_OK;
	_Static_assert(COUNT_OF(chats) == COUNT_OF(ROLES), "a chat for every role");
	for (unsigned i = 0; e == ERR_OK && i < COUNT_OF(ROLES); i++) {
		struct json_doc *doc = NULL;
		e = json_parse(&doc, chats[i], strlen(chats[i]), em);
		if (e != ERR_OK)
			break;
		struct chat_request r = {.messages = json_root(doc), .template_from_client = true, .bos_token = "<s>", .eos_token = "</s>"};
		if (tools)
			r.tools = json_root(tool_list);
		if (!shows_probe(t, &r)) {
			*roles |= 1u << i;
			if (!shows_probe(t, &r))
				*roles &= ~(1u << i);
		}
		json_free(&doc);
	}
	json_free(&tool_list);
	return e;
}

enum err chat_template_load(struct chat_template **out, const char *model_dir, const char *file, struct err_msg *em)
{
	const bool given = file != NULL && file[0] != '\0';
	if (!given && strlen(model_dir) > PATH_BYTES_MAX - 64)
		return err_set(em, ERR_IO, "the model's path is longer than %d bytes", PATH_BYTES_MAX - 64);
	enum err e = given ? load_source_file(out, file, em) : load_default(out, model_dir, em);
	if (e != ERR_OK)
		return e;
	e = given ? ERR_OK : load_additional(*out, model_dir, em);
	if (e == ERR_OK)
		e = find_parts(*out, &(*out)->plain_parts, false, em);
	if (e == ERR_OK && (*out)->has_tool_use)
		e = find_parts(*out, &(*out)->tool_use_parts, true, em);
	if (e != ERR_OK)
		chat_template_free(out);
	return e;
}
