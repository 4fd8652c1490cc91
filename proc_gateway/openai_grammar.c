/* Owns what a request's output may be: response_format, structured_outputs, guided_*, grammar, json_schema and a tool call
 * that is asked for become one grammar, which is compiled here to see what is wrong with it. Runs in the gateway; never
 * follows an answer. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/openai_request.h"
#include "text/grammar.h"

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

/* Where the one grammar comes from. */
struct source {
	struct openai_request *r;
	struct api_error *e;
	char field[64]; /* "": none yet */
};

/* The next grammar; there may be only one. */
static bool begin(struct source *s, const char *field, enum tercet_grammar kind)
{
	if (s->field[0])
		return api_error_set(s->e, 400, field, NULL,
				     "Field '%s': the output is constrained by '%s' already; only one of them can be given.",
				     field, s->field);
	snprintf(s->field, sizeof(s->field), "%s", field);
	s->r->grammar_kind = kind;
	return true;
}

static bool take_text(struct source *s, const char *field, enum tercet_grammar kind, const char *text, size_t bytes)
{
	if (!begin(s, field, kind))
		return false;
	buf_append(&s->r->grammar, text, bytes);
	return true;
}

static bool take_value(struct source *s, const char *field, enum tercet_grammar kind, json_val v)
{
	struct json_writer w;

	if (!begin(s, field, kind))
		return false;
	json_begin(&w, &s->r->grammar);
	json_write_value(&w, v);
	return true;
}

/* What asks for nothing is no answer without a grammar, but a mistake: null leaves a field out. */
static bool refuse_empty(const struct source *s, const char *field, const char *right)
{
	return api_error_set(s->e, 400, field, NULL, "Field '%s' is empty; it must be %s, or null or left out.", field, right);
}

/* A schema as it is, or as text. */
static bool take_schema(struct source *s, const char *field, json_val v)
{
	const char *text;
	size_t bytes;

	if (json_string(v, &text, &bytes))
		return bytes ? take_text(s, field, TERCET_GRAMMAR_JSON_SCHEMA, text, bytes)
			     : refuse_empty(s, field, "a JSON Schema");
	if (json_type(v) != JSON_OBJECT && json_type(v) != JSON_BOOL)
		return api_error_field(s->e, field, v, "is not a schema", "an object, or the text of one");
	return take_value(s, field, TERCET_GRAMMAR_JSON_SCHEMA, v);
}

/* ---------------------------------------------------------------- fields */

/* vLLM's: free text with tags in it, {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, or the text of that. */
static bool take_tags(struct source *s, const char *field, json_val v)
{
	struct json_doc *doc = NULL;
	struct json_writer w;
	struct err_msg em;
	const char *text;
	size_t bytes;
	bool ok;

	if (json_string(v, &text, &bytes)) {
		if (json_parse(&doc, text, bytes, &em) != ERR_OK)
			return api_error_set(s->e, 400, field, NULL, "Field '%s' is no JSON: %s.", field, em.text);
		v = json_root(doc);
	}
	if (json_depth(v) > JSON_LEVELS_MAX - 2) { /* a text of its own may be as deep as a body, and here more is around it */
		ok = api_error_field(s->e, field, v, "is nested too deeply", "JSON of fewer levels");
		json_free(&doc);
		return ok;
	}
	if (json_type(json_get(v, "structures")) != JSON_ARRAY || json_type(json_get(v, "triggers")) != JSON_ARRAY) {
		ok = api_error_field(s->e, field, v, "has no tags",
				     "an object with 'structures', an array of {\"begin\", \"schema\", \"end\"}, and 'triggers', an array of strings");
	} else if ((ok = begin(s, field, TERCET_GRAMMAR_PARTS))) {
		s->r->grammar_is_tags = true;
		json_begin(&w, &s->r->grammar);
		json_array_begin(&w);
		json_object_begin(&w);
		json_key(&w, "tags");
		json_write_value(&w, v);
		json_object_end(&w);
		json_array_end(&w);
	}
	json_free(&doc);
	return ok;
}

static bool read_response_format(struct source *s, const struct openai_fields *f)
{
	json_val format = f->response_format, type = json_get(format, "type");

	if (!f->has_response_format || json_string_equals(type, "text"))
		return true;
	if (json_string_equals(type, "json_object") && json_present(json_get(format, "schema"))) /* llama-server's */
		return take_schema(s, "response_format", json_get(format, "schema"));
	if (json_string_equals(type, "json_object"))
		return begin(s, "response_format", TERCET_GRAMMAR_JSON_OBJECT);
	if (json_string_equals(type, "structural_tag"))
		return take_tags(s, "response_format", format);
	if (!json_string_equals(type, "json_schema"))
		return api_error_field(s->e, "response_format.type", type, "is not known",
				       "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
	json_val schema = json_get(json_get(format, "json_schema"), "schema");
	if (!json_present(schema)) /* as llama-server has it */
		schema = json_get(format, "schema");
	if (!json_present(schema))
		return api_error_set(s->e, 400, "response_format", NULL,
				     "Field 'response_format.json_schema.schema' is missing; it must be a JSON Schema.");
	return take_schema(s, "response_format", schema);
}

static bool take_choice(struct source *s, const char *field, json_val v)
{
	if (json_type(v) != JSON_ARRAY)
		return api_error_field(s->e, field, v, "is not a list", "an array of strings");
	return json_count(v) ? take_value(s, field, TERCET_GRAMMAR_CHOICE, v)
			     : refuse_empty(s, field, "an array of one string or more");
}

static bool take_string(struct source *s, const char *field, enum tercet_grammar kind, json_val v)
{
	const char *text;
	size_t bytes;

	if (!json_string(v, &text, &bytes))
		return api_error_field(s->e, field, v, "is not text", "a string");
	return bytes ? take_text(s, field, kind, text, bytes) : refuse_empty(s, field, "a text of one character or more");
}

static bool read_switch(struct source *s, const char *field, json_val v, bool *on)
{
	*on = false;
	return !json_present(v) || json_bool(v, on) || api_error_field(s->e, field, v, "is not a switch", "true or false");
}

/* White space between the tokens of JSON: as ever where the pattern matches that, else none. */
static bool read_space(struct source *s, json_val v)
{
	static const char field[] = "structured_outputs.whitespace_pattern";
	struct err_msg em = {""};
	const char *text;
	size_t bytes;
	u32 flags = 0;

	if (!json_string(v, &text, &bytes))
		return api_error_field(s->e, field, v, "is not text", "a regular expression");
	if (grammar_space_flags(&flags, text, bytes, &em) != ERR_OK)
		return api_error_set(s->e, 400, field, NULL, "Field '%s': %s.", field, em.text);
	s->r->grammar_flags |= flags;
	return true;
}

static bool read_structured_outputs(struct source *s, json_val o)
{
	json_val json = json_get(o, "json"), regex = json_get(o, "regex"), choice = json_get(o, "choice"),
		 grammar = json_get(o, "grammar"), tags = json_get(o, "structural_tag"), space = json_get(o, "whitespace_pattern");
	bool any_object, compact;

	if (!read_switch(s, "structured_outputs.json_object", json_get(o, "json_object"), &any_object) ||
	    !read_switch(s, "structured_outputs.disable_any_whitespace", json_get(o, "disable_any_whitespace"), &compact))
		return false;
	s->r->grammar_flags |= compact ? TERCET_GRAMMAR_COMPACT : 0;
	if (json_present(space) && !read_space(s, space))
		return false;
	if (!any_object && !json_present(tags) && !json_present(json) && !json_present(regex) && !json_present(choice) && !json_present(grammar))
		return api_error_set(s->e, 400, "structured_outputs", NULL,
				     "Field 'structured_outputs' asks for nothing; it must have one of 'json', 'regex', "
				     "'choice', 'grammar', 'structural_tag' and 'json_object', or be null or left out.");
	return (!json_present(json) || take_schema(s, "structured_outputs.json", json)) &&
	       (!json_present(regex) || take_string(s, "structured_outputs.regex", TERCET_GRAMMAR_REGEX, regex)) &&
	       (!json_present(choice) || take_choice(s, "structured_outputs.choice", choice)) &&
	       (!json_present(grammar) || take_string(s, "structured_outputs.grammar", TERCET_GRAMMAR_EBNF, grammar)) &&
	       (!json_present(tags) || take_tags(s, "structured_outputs.structural_tag", tags)) &&
	       (!any_object || begin(s, "structured_outputs.json_object", TERCET_GRAMMAR_JSON_OBJECT));
}

static bool take_field(struct source *s, const char *field, enum tercet_grammar kind, const char *text)
{
	if (text && !*text)
		return refuse_empty(s, field, "a text of one character or more");
	return !text || take_text(s, field, kind, text, strlen(text));
}

static bool read_fields(struct source *s, const struct openai_fields *f)
{
	return read_response_format(s, f) && (!f->has_structured_outputs || read_structured_outputs(s, f->structured_outputs)) &&
	       (!f->has_guided_json || take_schema(s, "guided_json", f->guided_json)) &&
	       take_field(s, "guided_regex", TERCET_GRAMMAR_REGEX, f->guided_regex) &&
	       (!f->has_guided_choice || take_choice(s, "guided_choice", f->guided_choice)) &&
	       take_field(s, "guided_grammar", TERCET_GRAMMAR_EBNF, f->guided_grammar) &&
	       (!f->has_grammar || !*f->grammar || /* an empty one is none to llama-server */
		take_field(s, "grammar", TERCET_GRAMMAR_EBNF, f->grammar)) &&
	       (!f->has_json_schema || take_schema(s, "json_schema", f->json_schema));
}

/* ---------------------------------------------------------------- tool calls */

/* {"name": ..., "parameters": {...}}, with or without an object around. */
static json_val function_of(json_val tool)
{
	json_val function = json_get(tool, "function");

	return json_present(function) ? function : tool;
}

/* What the arguments may be: an object, whatever else the schema says or leaves open. */
static void write_schema(struct json_writer *w, json_val parameters)
{
	json_object_begin(w);
	json_key(w, "type");
	json_write_cstr(w, "object");
	if (json_type(parameters) != JSON_OBJECT) { /* it takes none */
		json_key(w, "additionalProperties");
		json_write_bool(w, false);
	}
	for (struct json_iter it = json_iterate(parameters); json_type(parameters) == JSON_OBJECT && json_next(&it);) {
		if (strcmp(it.key, "type") == 0) /* said above */
			continue;
		json_key(w, it.key);
		json_write_value(w, it.value);
	}
	json_object_end(w);
}

static void write_parameters(struct json_writer *w, json_val parameters)
{
	json_object_begin(w);
	json_key(w, "json_schema");
	write_schema(w, parameters);
	json_object_end(w);
}

/* The parts of one call of a function, as templates write it. */
static void write_call(struct json_writer *w, json_val function, enum tool_format format)
{
	struct buf text = {0};
	struct json_writer head;
	const char *name = json_cstr(json_get(function, "name"), "");

	buf_append_str(&text, "{\"name\": ");
	json_begin(&head, &text);
	json_write_cstr(&head, name);
	buf_append_str(&text, format == TOOL_FORMAT_LLAMA3 ? ", \"parameters\": " : ", \"arguments\": ");
	json_array_begin(w);
	json_write_string(w, text.data ? text.data : "", text.bytes);
	write_parameters(w, json_get(function, "parameters"));
	json_write_cstr(w, "}");
	json_array_end(w);
	buf_fini(&text);
}

/* Any call of the tools, or of the one that is named. How many there were. */
static u32 write_calls(struct json_writer *w, const struct openai_fields *f, const char *named, enum tool_format format)
{
	u32 count = 0;

	json_object_begin(w);
	json_key(w, "any");
	json_array_begin(w);
	for (struct json_iter it = json_iterate(f->tools); json_next(&it);) {
		json_val function = function_of(it.value);
		if (named && !json_string_equals(json_get(function, "name"), named))
			continue;
		write_call(w, function, format);
		count++;
	}
	json_array_end(w);
	json_object_end(w);
	return count;
}

static void write_regex(struct json_writer *w, const char *regex)
{
	json_object_begin(w);
	json_key(w, "regex");
	json_write_cstr(w, regex);
	json_object_end(w);
}

/* One call or more behind each other. */
static u32 write_hermes(struct json_writer *w, const struct openai_fields *f, const char *named, bool several)
{
	if (several) {
		json_object_begin(w);
		json_key(w, "repeat");
		json_array_begin(w);
	}
	json_write_cstr(w, "<tool_call>");
	json_write_cstr(w, "\n");
	u32 count = write_calls(w, f, named, TOOL_FORMAT_HERMES);
	json_write_cstr(w, "\n");
	json_write_cstr(w, "</tool_call>");
	if (several) {
		write_regex(w, "\\n?");
		json_array_end(w);
		json_object_end(w);
	}
	return count;
}

static u32 write_mistral(struct json_writer *w, const struct openai_fields *f, const char *named, bool several)
{
	json_write_cstr(w, "[TOOL_CALLS]");
	write_regex(w, " ?\\[");
	u32 count = write_calls(w, f, named, TOOL_FORMAT_MISTRAL);
	if (several) { /* nothing, or more of them */
		json_object_begin(w);
		json_key(w, "any");
		json_array_begin(w);
		json_array_begin(w);
		json_array_end(w);
		json_array_begin(w);
		json_object_begin(w);
		json_key(w, "repeat");
		json_array_begin(w);
		json_write_cstr(w, ", ");
		(void)write_calls(w, f, named, TOOL_FORMAT_MISTRAL);
		json_array_end(w);
		json_object_end(w);
		json_array_end(w);
		json_array_end(w);
		json_object_end(w);
	}
	json_write_cstr(w, "]");
	return count;
}

/* Whether calls in that form can be read again: names end where a mark begins. */
static bool can_be_named(const struct openai_fields *f)
{
	for (struct json_iter it = json_iterate(f->tools); json_next(&it);) {
		const char *name = "";
		size_t bytes = 0;
		(void)json_string(json_get(function_of(it.value), "name"), &name, &bytes);
		for (size_t i = 0; i < bytes; i++)
			if (!tool_name_has(name[i]))
				return false;
	}
	return true;
}

/* One call or more, each behind its mark. */
static u32 write_mistral_args(struct json_writer *w, const struct openai_fields *f, const char *named, bool several)
{
	u32 count = 0;

	if (several) {
		json_object_begin(w);
		json_key(w, "repeat");
		json_array_begin(w);
	}
	json_write_cstr(w, "[TOOL_CALLS]");
	json_object_begin(w);
	json_key(w, "any");
	json_array_begin(w);
	for (struct json_iter it = json_iterate(f->tools); json_next(&it);) {
		json_val function = function_of(it.value);
		const char *name = json_cstr(json_get(function, "name"), "");
		if (named && strcmp(name, named) != 0)
			continue;
		json_array_begin(w);
		json_write_cstr(w, name);
		json_object_begin(w); /* an identity, as some versions write it */
		json_key(w, "any");
		json_array_begin(w);
		json_array_begin(w);
		json_array_end(w);
		json_array_begin(w);
		json_write_cstr(w, "[CALL_ID]");
		write_regex(w, "[a-zA-Z0-9]{9}");
		json_array_end(w);
		json_array_end(w);
		json_object_end(w);
		json_write_cstr(w, "[ARGS]");
		write_parameters(w, json_get(function, "parameters"));
		json_array_end(w);
		count++;
	}
	json_array_end(w);
	json_object_end(w);
	if (several) {
		json_array_end(w);
		json_object_end(w);
	}
	return count;
}

/* What parts put around the parameters of a function, at most: of Mistral's calls behind the first one. */
enum { PARTS_LEVELS = 10 };

/* Arguments are objects. */
static bool check_parameters(const struct source *s)
{
	for (struct json_iter it = json_iterate(s->r->fields.tools); json_next(&it);) {
		json_val function = function_of(it.value), type = json_get(json_get(function, "parameters"), "type");
		if (json_present(type) && json_type(type) != JSON_NULL && !json_string_equals(type, "object"))
			return api_error_set(s->e, 400, "tools", NULL,
					     "Field 'tools': the parameters of the function '%.80s' have a type that is no "
					     "object; 'type' must be \"object\" or be left out.",
					     json_cstr(json_get(function, "name"), ""));
		if (json_depth(json_get(function, "parameters")) > JSON_LEVELS_MAX - PARTS_LEVELS)
			return api_error_set(s->e, 400, "tools", NULL,
					     "Field 'tools': the parameters of the function '%.80s' are nested too deeply for a "
					     "call that is asked for; they may have %d levels.",
					     json_cstr(json_get(function, "name"), ""), JSON_LEVELS_MAX - PARTS_LEVELS);
	}
	return true;
}

static bool take_tool_call(struct source *s, const char *named)
{
	const struct openai_fields *f = &s->r->fields;
	bool several = !named && f->parallel_tool_calls;
	struct json_writer w;
	u32 count;

	if (!f->has_tools || json_count(f->tools) == 0)
		return api_error_set(s->e, 400, "tool_choice", NULL,
				     "Field 'tool_choice' asks for a tool call, but there are no 'tools'; it must be \"none\" "
				     "or \"auto\", or tools be given.");
	if (s->r->tool_format == TOOL_FORMAT_NONE)
		return refuse(s->e, "tool_choice",
			      "the model's chat template writes no tool calls that this server can read, so none can be asked "
			      "for; \"none\" and \"auto\" are possible");
	if (s->field[0])
		return api_error_set(s->e, 400, "tool_choice", NULL,
				     "Field 'tool_choice': the answer is to be a tool call, and '%s' says otherwise; only one of "
				     "them can be given.",
				     s->field);
	if (!check_parameters(s) || !begin(s, "tool_choice", TERCET_GRAMMAR_PARTS))
		return false;
	json_begin(&w, &s->r->grammar);
	json_array_begin(&w);
	if (s->r->tool_format == TOOL_FORMAT_HERMES || s->r->tool_format == TOOL_FORMAT_QWEN3_CODER) /* which is read as well */
		count = write_hermes(&w, f, named, several);
	else if (s->r->tool_format == TOOL_FORMAT_MISTRAL_ARGS && can_be_named(f))
		count = write_mistral_args(&w, f, named, several);
	else if (tool_format_is_mistral(s->r->tool_format)) /* a list is read of either */
		count = write_mistral(&w, f, named, several);
	else
		count = write_calls(&w, f, named, TOOL_FORMAT_LLAMA3);
	json_array_end(&w);
	if (count == 0)
		return api_error_set(s->e, 400, "tool_choice", NULL,
				     "Field 'tool_choice' names the function '%.80s', which is not among the tools; it must be "
				     "one of theirs.",
				     named);
	return true;
}

static bool read_tool_choice(struct source *s, const struct openai_fields *f)
{
	static const char right[] = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
				    "\"...\"}}";

	if (!f->has_tool_choice || json_string_equals(f->tool_choice, "none") ||
	    json_string_equals(f->tool_choice, "auto"))
		return true;
	if (json_string_equals(f->tool_choice, "required"))
		return take_tool_call(s, NULL);
	const char *name = json_cstr(json_get(function_of(f->tool_choice), "name"), "");
	if (json_type(f->tool_choice) != JSON_OBJECT || !*name)
		return api_error_field(s->e, "tool_choice", f->tool_choice, "is not known", right);
	return take_tool_call(s, name);
}

/* ---------------------------------------------------------------- the whole */

static bool check_together(const struct source *s)
{
	if (s->r->beam_width)
		return refuse(s->e, s->field, "a beam search cannot be constrained; leave out this field or 'use_beam_search'");
	if (s->r->fields.ignore_eos)
		return refuse(s->e, s->field,
			      "'ignore_eos' asks for text behind the end, and there is none; leave out one of them");
	if (s->r->grammar.failed)
		return api_error_set(s->e, 503, NULL, NULL, "There is no memory for the request.");
	return true;
}

/* Of a tool call that is asked for: which function's parameters are wrong. False: none of them is. */
static bool name_tool(const struct source *s)
{
	bool found = false;

	for (struct json_iter it = json_iterate(s->r->fields.tools); !found && json_next(&it);) {
		json_val function = function_of(it.value);
		struct buf schema = {0};
		struct json_writer w;
		struct grammar *g = NULL;
		struct err_msg em = {""};
		json_begin(&w, &schema);
		write_schema(&w, json_get(function, "parameters"));
		enum err e = grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, schema.data ? schema.data : "", schema.bytes, &em);
		grammar_unref(&g);
		buf_fini(&schema);
		found = e != ERR_OK && e != ERR_NO_MEMORY;
		if (found)
			api_error_set(s->e, 400, "tools", e == ERR_UNSUPPORTED ? "unsupported_parameter" : NULL,
				      "Field 'tools': the parameters of the function '%.80s': %s.",
				      json_cstr(json_get(function, "name"), ""), em.text);
	}
	return found;
}

static bool compile(const struct source *s)
{
	const struct openai_request *r = s->r;
	struct grammar *g = NULL;
	struct err_msg em = {""};

	enum err e = grammar_compile(&g, (enum grammar_kind)r->grammar_kind, r->grammar_flags,
				     r->grammar.data ? r->grammar.data : "", r->grammar.bytes, &em);
	grammar_unref(&g);
	if (e == ERR_NO_MEMORY)
		return api_error_set(s->e, 503, NULL, NULL, "There is no memory for the request.");
	if (e != ERR_OK && strcmp(s->field, "tool_choice") == 0 && name_tool(s))
		return false;
	return e == ERR_OK || api_error_set(s->e, 400, s->field, e == ERR_UNSUPPORTED ? "unsupported_parameter" : NULL,
					    "Field '%s': %s.", s->field, em.text);
}

bool openai_grammar_read(struct openai_request *r, struct api_error *e)
{
	struct source s = {.r = r, .e = e};

	if (!read_fields(&s, &r->fields) || !read_tool_choice(&s, &r->fields))
		return false;
	return !s.field[0] || (check_together(&s) && compile(&s));
}
