/* Owns calls that are written in tags, each argument as plain text; runs in the gateway. The text becomes JSON by the tool's schema: what that has as
 * a string is told as it comes, anything else when it is whole. Nothing of it is lost: what is no JSON is a string. */
#include <string.h>

#include "proc_gateway/tool_calls_priv.h"

enum { NAME_BYTES_MAX = 256 };

static const char parameter_mark[] = "<parameter=", parameter_end[] = "</parameter>", function_end[] = "</function>",
		  call_end[] = "</tool_call>";

static void add_text(struct tool_calls *t, const char *text)
{
	tool_add_arguments(t, text, strlen(text));
}

/* As in a string of JSON; with its quotes, or what stands between them. */
static void add_escaped(struct tool_calls *t, const char *text, size_t bytes, bool quoted)
{
	struct buf out = {0};

	json_escape(&out, text, bytes);
	if (buf_ok(&out))
		tool_add_arguments(t, out.data + !quoted, out.bytes - (quoted ? 0 : 2));
	t->failed |= !buf_ok(&out);
	buf_fini(&out);
}

/* ---------------------------------------------------------------- names */

/* The name that ends by '>' begins where the reader is; it leaves, and is in t->name. MATCH_NO: there is none. */
static enum tool_match take_name(struct tool_calls *t)
{
	const char *begin = t->held.data + t->at, *end = memchr(begin, '>', tool_left(t));
	size_t bytes = end ? (size_t)(end - begin) : tool_left(t);

	if (bytes > NAME_BYTES_MAX)
		return MATCH_NO;
	if (!end)
		return MATCH_PARTLY;
	while (bytes > 0 && tool_is_space(begin[bytes - 1]))
		bytes--;
	while (bytes > 0 && tool_is_space(*begin)) {
		begin++;
		bytes--;
	}
	buf_clear(&t->name);
	buf_append(&t->name, begin, bytes);
	t->at = (size_t)(end - t->held.data) + 1;
	return bytes > 0 ? MATCH_YES : MATCH_NO;
}

static bool in_function(struct tool_calls *t, struct buf *content)
{
	enum tool_match match = take_name(t);

	if (match == MATCH_PARTLY)
		return false;
	if (match == MATCH_NO) {
		tool_give_up(t, content);
		return true;
	}
	t->properties = json_get(json_get(tool_function(t, &t->name), "parameters"), "properties");
	t->parameters = 0;
	tool_open_call(t);
	tool_consume_seen(t);
	t->state = TOOL_BETWEEN;
	return true;
}

/* ---------------------------------------------------------------- arguments */

static bool is_text_type(json_val type)
{
	if (json_type(type) != JSON_ARRAY)
		return json_string_equals(type, "string");
	for (struct json_iter it = json_iterate(type); json_next(&it);)
		if (json_string_equals(it.value, "string"))
			return true;
	return false;
}

/* Whether a schema takes strings, or says nothing of what it takes. */
static bool takes_text(json_val schema)
{
	static const char *const choices[] = {"anyOf", "oneOf"};

	if (json_present(json_get(schema, "type")))
		return is_text_type(json_get(schema, "type"));
	for (size_t i = 0; i < COUNT_OF(choices); i++) {
		json_val list = json_get(schema, choices[i]);
		if (json_type(list) != JSON_ARRAY)
			continue;
		for (struct json_iter it = json_iterate(list); json_next(&it);)
			if (takes_text(it.value))
				return true;
		return false;
	}
	return !json_present(json_get(schema, "$ref"));
}

static bool in_parameter(struct tool_calls *t)
{
	enum tool_match match = take_name(t);

	if (match == MATCH_PARTLY)
		return false;
	if (match == MATCH_YES) {
		t->as_text = takes_text(json_getn(t->properties, t->name.data, t->name.bytes));
		add_text(t, t->parameters++ ? ", " : "{");
		add_escaped(t, t->name.data, t->name.bytes, true);
		add_text(t, t->as_text ? ": \"" : ": ");
		t->fresh = true;
	}
	buf_clear(&t->name);
	tool_consume_seen(t);
	t->state = match == MATCH_YES ? TOOL_VALUE : TOOL_BETWEEN;
	return true;
}

/* What is no string. Models also write the words of Python. */
static void add_value(struct tool_calls *t, const char *text, size_t bytes)
{
	static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
	struct json_doc *doc = NULL;

	while (bytes > 0 && tool_is_space(text[bytes - 1]))
		bytes--;
	for (size_t i = 0; i < COUNT_OF(words); i++)
		if (bytes == strlen(words[i][0]) && memcmp(text, words[i][0], bytes) == 0) {
			add_text(t, words[i][1]);
			return;
		}
	if (json_parse(&doc, text, bytes, NULL) == ERR_OK)
		tool_add_arguments(t, text, bytes);
	else
		add_escaped(t, text, bytes, true);
	json_free(&doc);
}

/* How many bytes at the end of what is held may be the beginning of what ends a value, with the newline in front of it. */
static size_t undecided(const struct tool_calls *t)
{
	static const char *const marks[] = {"\n</parameter>", "</parameter>", "\n</function>", "</function>"};
	size_t most = 0;

	for (size_t i = 0; i < COUNT_OF(marks); i++) {
		size_t bytes = strlen(marks[i]) - 1, keep = bytes < t->held.bytes ? bytes : t->held.bytes;
		while (keep > most && memcmp(t->held.data + t->held.bytes - keep, marks[i], keep) != 0)
			keep--;
		most = keep > most ? keep : most;
	}
	return most;
}

/* Where a value ends, at the tag that says so: its own, or, where that was forgotten, the function's. NULL: not yet. */
static const char *value_end(const struct tool_calls *t, size_t *mark_bytes)
{
	const char *own = memmem(t->held.data, t->held.bytes, parameter_end, sizeof(parameter_end) - 1);
	size_t before = own ? (size_t)(own - t->held.data) : t->held.bytes;
	const char *all = memmem(t->held.data, before, function_end, sizeof(function_end) - 1);

	*mark_bytes = all ? 0 : sizeof(parameter_end) - 1;
	return all ? all : own;
}

static bool in_value(struct tool_calls *t)
{
	size_t mark_bytes;

	if (t->held.bytes == 0)
		return false;
	if (t->fresh && t->held.data[0] == '\n')
		buf_consume(&t->held, 1);
	t->fresh = false;
	const char *end = t->held.bytes ? value_end(t, &mark_bytes) : NULL;
	if (!end) {
		size_t told = t->as_text ? t->held.bytes - undecided(t) : 0;
		if (told > 0)
			add_escaped(t, t->held.data, told, false);
		buf_consume(&t->held, told);
		return false;
	}
	size_t bytes = (size_t)(end - t->held.data), value = bytes;
	if (value > 0 && t->held.data[value - 1] == '\n')
		value--;
	if (t->as_text) {
		add_escaped(t, t->held.data, value, false);
		add_text(t, "\"");
	} else {
		add_value(t, t->held.data, value);
	}
	t->at = bytes + mark_bytes;
	tool_consume_seen(t);
	t->state = TOOL_BETWEEN;
	return true;
}

/* ---------------------------------------------------------------- around them */

static void close_arguments(struct tool_calls *t)
{
	add_text(t, t->parameters ? "}" : "{}");
}

/* Tags alone are of interest here: whatever else there is belongs to no argument. */
static bool between(struct tool_calls *t)
{
	tool_skip_space(t);
	tool_consume_seen(t);
	if (tool_left(t) == 0)
		return false;
	enum tool_match parameter = tool_match_here(t, parameter_mark), over = tool_match_here(t, function_end),
			all_over = tool_match_here(t, call_end);
	if (parameter == MATCH_YES) {
		t->at += sizeof(parameter_mark) - 1;
		t->state = TOOL_PARAMETER;
	} else if (over == MATCH_YES || all_over == MATCH_YES) {
		close_arguments(t);
		t->at += over == MATCH_YES ? sizeof(function_end) - 1 : 0;
		tool_consume_seen(t);
		t->state = TOOL_AFTER;
	} else if (parameter == MATCH_PARTLY || over == MATCH_PARTLY || all_over == MATCH_PARTLY) {
		return false;
	} else {
		t->at++;
	}
	return true;
}

bool tool_tags_advance(struct tool_calls *t, struct buf *content)
{
	switch (t->state) {
	case TOOL_FUNCTION:
		return in_function(t, content);
	case TOOL_BETWEEN:
		return between(t);
	case TOOL_PARAMETER:
		return in_parameter(t);
	default:
		return in_value(t);
	}
}

void tool_tags_end(struct tool_calls *t)
{
	if (t->state == TOOL_BETWEEN)
		close_arguments(t);
	else if (t->state == TOOL_VALUE && t->as_text)
		add_escaped(t, t->held.data ? t->held.data : "", t->held.bytes, false);
	else if (t->state == TOOL_VALUE && t->held.bytes > 0)
		tool_add_arguments(t, t->held.data, t->held.bytes);
}
