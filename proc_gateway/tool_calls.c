/* Owns the parting of an answer's text into content and tool calls; runs in the gateway. Takes whatever a
 * model writes: what is not a call is content, and nothing of it is lost. Never waits for a whole call before
 * telling its pieces. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "proc_gateway/tool_calls_priv.h"

enum { SCAN_DEPTH_MAX = 128, CALL_ID_GAP_MAX = 128 };

static const char python_tag[] = "<|python_tag|>", hermes_end[] = "</tool_call>",
		  mistral_arguments[] = "[ARGS]";

bool tool_name_has(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
	       c == '-' || c == '.';
}

enum tool_match tool_match_here(const struct tool_calls *t, const char *mark)
{
	size_t bytes = strlen(mark), there = tool_left(t) < bytes ? tool_left(t) : bytes;
	if (memcmp(t->held.data + t->at, mark, there) != 0)
		return MATCH_NO;
	return there == bytes ? MATCH_YES : MATCH_PARTLY;
}

/* The first `bytes` bytes that are held are content, and leave. */
static void put_content(struct tool_calls *t, size_t bytes, struct buf *content)
{
	size_t first = 0;
	while (t->drop_space && first < bytes && tool_is_space(t->held.data[first]))
		first++;
	if (first < bytes) {
		t->drop_space = false;
		buf_append(content, t->held.data + first, bytes - first);
	}
	buf_consume(&t->held, bytes);
	t->at = 0;
}

void tool_consume_seen(struct tool_calls *t)
{
	buf_consume(&t->held, t->at);
	t->at = t->mark_bytes = 0;
}

void tool_give_up(struct tool_calls *t, struct buf *content)
{
	t->state = t->format == TOOL_FORMAT_LLAMA3 ? TOOL_TEXT : TOOL_OUTSIDE;
	t->in_list = false;
	put_content(t, t->mark_bytes, content);
	t->mark_bytes = 0;
}

/* ---------------------------------------------------------------- calls */

json_val tool_function(const struct tool_calls *t, const struct buf *name)
{
	for (struct json_iter it = json_iterate(t->tools); json_next(&it);) {
		const char *text;
		size_t bytes;
		json_val inner = json_get(it.value, "function"), function = json_present(inner) ? inner : it.value;
		if (json_string(json_get(function, "name"), &text, &bytes) && bytes == name->bytes && memcmp(text, name->data, bytes) == 0)
			return function;
	}
	return json_get(t->tools, "");
}

static bool is_tool(const struct tool_calls *t, const struct buf *name)
{
	return json_present(tool_function(t, name));
}

/* Mistral's templates take ids of nine letters and digits only. */
static void make_id(const struct tool_calls *t, struct tool_call *call)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	bool mistral = tool_format_is_mistral(t->format);
	size_t length = mistral ? 9 : 24;
	char *out = call->id;
	if (!mistral) {
		memcpy(out, "call_", 5);
		out += 5;
	}
	for (u32 part = 0, k = 0; k < length; part++) {
		u32 of[2] = {t->count, part};
		u64 hash = XXH3_64bits_withSeed(of, sizeof(of), t->id_seed);
		for (u32 i = 0; i < 8 && k < length; i++, k++, hash /= 62)
			out[k] = digits[hash % 62];
	}
	out[length] = '\0';
}

void tool_open_call(struct tool_calls *t)
{
	t->open = true;
	t->dropped = t->one && t->count > 0;
	if (t->dropped)
		return;
	if (t->count == t->room) {
		u32 room = t->room ? t->room * 2 : 4;
		struct tool_call *calls = realloc(t->calls, room * sizeof(*calls));
		if (!calls) {
			t->failed = true;
			return;
		}
		t->calls = calls;
		t->room = room;
	}
	struct tool_call *call = &t->calls[t->count];
	*call = (struct tool_call){.name = t->name};
	t->name = (struct buf){0};
	make_id(t, call);
	t->count++;
}

void tool_add_arguments(struct tool_calls *t, const char *text, size_t bytes)
{
	if (t->count > 0 && !t->dropped)
		buf_append(&t->calls[t->count - 1].arguments, text, bytes);
}

/* A string of JSON with its quotes; false when it is none. */
static bool decode_string(const char *text, size_t bytes, struct buf *out)
{
	struct json_doc *doc = NULL;
	const char *value;
	size_t value_bytes;
	bool ok = json_parse(&doc, text, bytes, NULL) == ERR_OK &&
		  json_string(json_root(doc), &value, &value_bytes);
	if (ok)
		buf_append(out, value, value_bytes);
	json_free(&doc);
	return ok;
}

/* ---------------------------------------------------------------- scanning an object */

static bool value_ends(struct tool_calls *t, size_t end)
{
	struct tool_scan *s = &t->scan;
	s->in_value = false;
	s->expects = SCAN_COMMA;
	if (s->member == MEMBER_ARGUMENTS) {
		s->arguments_begin = t->open ? s->arguments_begin : s->token_begin; /* those told stay told */
		s->arguments_end = end;
		return true;
	}
	if (s->member != MEMBER_NAME)
		return true;
	buf_clear(&t->name);
	return decode_string(t->held.data + s->token_begin, end - s->token_begin, &t->name) &&
	       t->name.bytes > 0;
}

static void key_ends(struct tool_calls *t, size_t end)
{
	struct tool_scan *s = &t->scan;
	const char *key = t->held.data + s->token_begin + 1;
	size_t bytes = end - s->token_begin - 2;
	s->expects = SCAN_COLON;
	s->member = MEMBER_OTHER;
	if (t->state == TOOL_ARGUMENTS || t->open)
		return;
	if (bytes == 4 && memcmp(key, "name", 4) == 0)
		s->member = MEMBER_NAME;
	else if ((bytes == 9 && memcmp(key, "arguments", 9) == 0) ||
		 (bytes == 10 && memcmp(key, "parameters", 10) == 0))
		s->member = MEMBER_ARGUMENTS;
}

static bool in_string_char(struct tool_calls *t, char c)
{
	struct tool_scan *s = &t->scan;
	if (s->escaped) {
		s->escaped = false;
	} else if (c == '\\') {
		s->escaped = true;
	} else if (c == '"') {
		s->in_string = false;
		if (s->depth == 1 && s->expects == SCAN_KEY)
			key_ends(t, t->at + 1);
		else if (s->depth == 1)
			return value_ends(t, t->at + 1);
	}
	return true;
}

static bool value_begins(struct tool_scan *s, size_t at)
{
	if (s->expects != SCAN_VALUE || s->in_value)
		return false;
	s->in_value = true;
	s->token_begin = at;
	return true;
}

/* A character of the first level that is no part of a string. False: this is no object. */
static bool first_level_char(struct tool_calls *t, char c)
{
	struct tool_scan *s = &t->scan;
	bool ends_plain = tool_is_space(c) || c == ',' || c == '}';
	if (ends_plain && s->in_value && !value_ends(t, t->at))
		return false;
	switch (c) {
	case '"':
		s->in_string = true;
		if (s->expects != SCAN_KEY)
			return value_begins(s, t->at);
		s->token_begin = t->at;
		return true;
	case '{':
	case '[':
		s->depth++;
		return value_begins(s, t->at);
	case '}':
		s->depth = 0;
		return s->expects == SCAN_COMMA || s->expects == SCAN_KEY;
	case ',':
		if (s->expects != SCAN_COMMA)
			return false;
		s->expects = SCAN_KEY;
		return true;
	case ':':
		if (s->expects != SCAN_COLON)
			return false;
		s->expects = SCAN_VALUE;
		return true;
	default:
		return tool_is_space(c) || (c != ']' && (s->in_value || value_begins(s, t->at)));
	}
}

static bool scan_char(struct tool_calls *t, char c)
{
	struct tool_scan *s = &t->scan;
	if (s->in_string)
		return in_string_char(t, c);
	if (s->depth == 1)
		return first_level_char(t, c);
	if (c == '"') {
		s->in_string = true;
	} else if (c == '{' || c == '[') {
		return ++s->depth <= SCAN_DEPTH_MAX;
	} else if ((c == '}' || c == ']') && --s->depth == 1) {
		return value_ends(t, t->at + 1);
	}
	return true;
}

static void scan_begin(struct tool_calls *t, enum tool_state state)
{
	t->scan = (struct tool_scan){.depth = 1, .expects = SCAN_KEY};
	t->open = false;
	t->state = state;
	t->at++; /* the brace */
}

/* Opens the call as soon as its name is known and its arguments begin as an object. Looked at after every
 * character, so that it does not depend on pieces. False: this is no call. */
static bool try_open(struct tool_calls *t)
{
	struct tool_scan *s = &t->scan;
	bool coming = s->member == MEMBER_ARGUMENTS && s->in_value;
	if (t->open || t->name.bytes == 0 || (!coming && s->arguments_end == 0))
		return true;
	size_t begin = coming ? s->token_begin : s->arguments_begin;
	if (t->held.data[begin] != '{')
		return true;
	if (t->format == TOOL_FORMAT_LLAMA3 && !is_tool(t, &t->name))
		return false;
	tool_open_call(t);
	s->arguments_begin = begin;
	return true;
}

/* Adds to an open call what has come of its arguments. */
static void stream_arguments(struct tool_calls *t)
{
	struct tool_scan *s = &t->scan;
	size_t end = s->arguments_end ? s->arguments_end : t->at;
	if (!t->open || end <= s->arguments_begin)
		return;
	tool_add_arguments(t, t->held.data + s->arguments_begin, end - s->arguments_begin);
	s->arguments_begin = end;
}

/* The object is whole. Arguments that are no object: a string of JSON is taken as what it holds, none as no
 * arguments. */
static bool finish_object(struct tool_calls *t)
{
	struct tool_scan *s = &t->scan;
	const char *arguments = t->held.data + s->arguments_begin;
	size_t bytes = s->arguments_end - s->arguments_begin;
	if (t->open)
		return true;
	if (t->name.bytes == 0 || (t->format == TOOL_FORMAT_LLAMA3 && !is_tool(t, &t->name)))
		return false;
	tool_open_call(t);
	if (s->arguments_end == 0 || (bytes == 4 && memcmp(arguments, "null", 4) == 0)) {
		tool_add_arguments(t, "{}", 2);
		return true;
	}
	struct buf text = {0};
	if (arguments[0] == '"' && decode_string(arguments, bytes, &text))
		tool_add_arguments(t, text.data ? text.data : "", text.bytes);
	else
		tool_add_arguments(t, arguments, bytes);
	t->failed |= text.failed;
	buf_fini(&text);
	return true;
}

static bool in_object(struct tool_calls *t, struct buf *content)
{
	bool ok = true;
	while (ok && t->scan.depth > 0 && t->at < t->held.bytes) {
		ok = scan_char(t, t->held.data[t->at]);
		t->at += ok;
		ok = ok && (t->state == TOOL_ARGUMENTS || try_open(t));
	}
	if (ok && t->state == TOOL_ARGUMENTS && t->scan.depth == 0)
		t->scan.arguments_end = t->at;
	stream_arguments(t);
	if (ok && t->scan.depth > 0)
		return false;
	ok = ok && (t->state == TOOL_ARGUMENTS || finish_object(t));
	if (!ok && !t->open) {
		tool_give_up(t, content);
		return true;
	}
	/* whole, or told already: then what is no JSON any more is content */
	buf_clear(&t->name);
	tool_consume_seen(t);
	t->state = TOOL_AFTER;
	return true;
}

/* ---------------------------------------------------------------- around objects */

/* How many bytes at the end of what is held may be a mark's beginning, with white space in front of it. */
static size_t undecided(const struct tool_calls *t, const char *mark)
{
	size_t bytes = strlen(mark), keep = bytes - 1 < t->held.bytes ? bytes - 1 : t->held.bytes;
	while (keep > 0 && memcmp(t->held.data + t->held.bytes - keep, mark, keep) != 0)
		keep--;
	while (keep < t->held.bytes && tool_is_space(t->held.data[t->held.bytes - keep - 1]))
		keep++;
	return keep;
}

static bool outside(struct tool_calls *t, struct buf *content)
{
	const char *mark = tool_format_is_mistral(t->format) ? "[TOOL_CALLS]" : "<tool_call>";
	const char *found = t->held.bytes ? memmem(t->held.data, t->held.bytes, mark, strlen(mark)) : NULL;
	if (!found) {
		put_content(t, t->held.bytes - undecided(t, mark), content);
		return false;
	}
	size_t bytes = (size_t)(found - t->held.data), text = bytes;
	while (text > 0 && tool_is_space(t->held.data[text - 1]))
		text--;
	put_content(t, text, content);
	t->at = t->mark_bytes = bytes - text + strlen(mark);
	t->state = TOOL_BEFORE;
	return true;
}

/* Llama 3 has no mark but for some tools: the first character decides. */
static bool begin_llama3(struct tool_calls *t)
{
	t->at = 0;
	tool_skip_space(t);
	if (tool_left(t) == 0)
		return false;
	enum tool_match match = tool_match_here(t, python_tag);
	if (match == MATCH_PARTLY)
		return false;
	t->state = match == MATCH_YES || t->held.data[t->at] == '{' ? TOOL_BEFORE : TOOL_TEXT;
	if (match == MATCH_YES)
		t->at += sizeof(python_tag) - 1;
	return true;
}

static bool before(struct tool_calls *t, struct buf *content)
{
	tool_skip_space(t);
	if (tool_left(t) == 0)
		return false;
	char c = t->held.data[t->at];
	bool bare = tool_format_is_mistral(t->format) && !t->in_list;
	enum tool_match tag = t->format == TOOL_FORMAT_QWEN3_CODER ? tool_match_here(t, tool_function_mark) : MATCH_NO;
	if (tag == MATCH_PARTLY)
		return false;
	if (tag == MATCH_YES) {
		t->at += sizeof(tool_function_mark) - 1;
		t->state = TOOL_FUNCTION;
	} else if (c == '{') {
		buf_clear(&t->name);
		scan_begin(t, TOOL_OBJECT);
	} else if (bare && c == '[') {
		t->in_list = true;
		t->at++;
	} else if (bare && tool_name_has(c)) {
		t->scan.token_begin = t->at;
		t->state = TOOL_NAME;
	} else {
		tool_give_up(t, content);
	}
	return true;
}

/* name{...}, name[ARGS]{...} or name[CALL_ID]...[ARGS]{...} */
static bool in_name(struct tool_calls *t, struct buf *content)
{
	size_t begin = t->scan.token_begin, end;
	for (end = begin; end < t->held.bytes && tool_name_has(t->held.data[end]);)
		end++;
	t->at = end;
	if (tool_left(t) == 0)
		return false;
	if (t->held.data[end] == '[') {
		size_t gap = tool_left(t) < CALL_ID_GAP_MAX ? tool_left(t) : CALL_ID_GAP_MAX;
		const char *mark =
			memmem(t->held.data + end, gap, mistral_arguments, sizeof(mistral_arguments) - 1);
		if (!mark && tool_left(t) < CALL_ID_GAP_MAX)
			return false;
		if (mark)
			t->at = (size_t)(mark - t->held.data) + sizeof(mistral_arguments) - 1;
	}
	tool_skip_space(t);
	if (tool_left(t) == 0)
		return false;
	if (t->held.data[t->at] != '{') {
		tool_give_up(t, content);
		return true;
	}
	size_t object = t->at;
	scan_begin(t, TOOL_ARGUMENTS);
	t->scan.arguments_begin = object;
	buf_clear(&t->name);
	buf_append(&t->name, t->held.data + begin, end - begin);
	tool_open_call(t);
	return true;
}

static void call_over(struct tool_calls *t, enum tool_state state)
{
	tool_consume_seen(t);
	t->state = state;
	t->drop_space = state == TOOL_OUTSIDE || state == TOOL_TEXT;
}

static bool after(struct tool_calls *t)
{
	tool_skip_space(t);
	if (tool_left(t) == 0)
		return false;
	char c = t->held.data[t->at];
	bool comma = c == ',' || (c == ';' && t->format == TOOL_FORMAT_LLAMA3);
	if (t->format == TOOL_FORMAT_HERMES || t->format == TOOL_FORMAT_QWEN3_CODER) {
		enum tool_match match = tool_match_here(t, hermes_end);
		if (match == MATCH_PARTLY)
			return false;
		t->at += match == MATCH_YES ? sizeof(hermes_end) - 1 : 0;
		call_over(t, TOOL_OUTSIDE);
	} else if ((t->in_list || t->format == TOOL_FORMAT_LLAMA3) && (comma || c == '{')) {
		t->at += comma;
		call_over(t, TOOL_BEFORE);
	} else {
		t->at += t->in_list && c == ']';
		t->in_list = false;
		call_over(t, t->format == TOOL_FORMAT_LLAMA3 ? TOOL_TEXT : TOOL_OUTSIDE);
	}
	return true;
}

/* False: nothing more can be said before more text comes. */
static bool advance(struct tool_calls *t, struct buf *content)
{
	switch (t->state) {
	case TOOL_OUTSIDE:
		return t->format == TOOL_FORMAT_LLAMA3 ? begin_llama3(t) : outside(t, content);
	case TOOL_BEFORE:
		return before(t, content);
	case TOOL_NAME:
		return in_name(t, content);
	case TOOL_OBJECT:
	case TOOL_ARGUMENTS:
		return in_object(t, content);
	case TOOL_AFTER:
		return after(t);
	case TOOL_FUNCTION:
	case TOOL_BETWEEN:
	case TOOL_PARAMETER:
	case TOOL_VALUE:
		return tool_tags_advance(t, content);
	case TOOL_TEXT:
		put_content(t, t->held.bytes, content);
		return false;
	}
	return false;
}

void tool_calls_feed(struct tool_calls *t, const char *text, size_t bytes, struct buf *content)
{
	buf_append(&t->held, text, bytes);
	while (tool_calls_ok(t) && t->held.bytes > 0 && advance(t, content))
		;
}

void tool_calls_end(struct tool_calls *t, struct buf *content)
{
	bool tags = t->state == TOOL_BETWEEN || t->state == TOOL_PARAMETER || t->state == TOOL_VALUE;
	bool cut_off = tags || ((t->state == TOOL_OBJECT || t->state == TOOL_ARGUMENTS) && t->open);
	t->cut = cut_off && t->open && !t->dropped && t->count > 0;
	if (tags)
		tool_tags_end(t);
	if (!cut_off && t->state != TOOL_AFTER)
		put_content(t, t->held.bytes, content);
	buf_fini(&t->held);
	t->at = t->mark_bytes = 0;
	t->state = TOOL_TEXT;
}

bool tool_calls_ok(const struct tool_calls *t)
{
	bool ok = !t->failed && !t->held.failed && !t->name.failed;
	for (u32 i = 0; i < t->count; i++)
		ok = ok && !t->calls[i].arguments.failed;
	return ok;
}

void tool_calls_fini(struct tool_calls *t)
{
	for (u32 i = 0; i < t->count; i++) {
		buf_fini(&t->calls[i].name);
		buf_fini(&t->calls[i].arguments);
	}
	free(t->calls);
	buf_fini(&t->held);
	buf_fini(&t->name);
	*t = (struct tool_calls){0};
}
