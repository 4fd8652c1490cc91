/* Owns the filters that work on text. Runs where chat templates are rendered. */
#include <string.h>

#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

static bool finish(struct jinja *j, struct buf *b, bool safe, struct jv *out)
{
	bool ok = jv_string_buf(j, b, out);
	out->safe = safe;
	buf_fini(b);
	return ok;
}

/* ---- case ---- */

typedef void (*case_fn)(struct buf *out, const char *text, size_t bytes);

static bool change_case(struct jinja *j, struct jv self, case_fn change, struct jv *out)
{
	struct buf b = {0};
	if (!jv_to_string(j, self, &self))
		return false;
	change(&b, self.s->data, self.s->bytes);
	return finish(j, &b, self.safe, out);
}

FILTER(filter_upper)
{
	(void)args, (void)all;
	return change_case(j, self, jstr_upper, out);
}

FILTER(filter_lower)
{
	(void)args, (void)all;
	return change_case(j, self, jstr_lower, out);
}

FILTER(filter_capitalize)
{
	(void)args, (void)all;
	return change_case(j, self, jstr_capitalize, out);
}

/* Words begin behind white space and - ( { [ <. */
FILTER(filter_title)
{
	(void)args, (void)all;
	struct buf b = {0};
	bool start = true;
	if (!jv_to_string(j, self, &self))
		return false;
	for (size_t at = 0; at < self.s->bytes;) {
		size_t from = at;
		u32 c = unicode_next(self.s->data, &at);
		bool separator = jstr_is_space(c) || (c != 0 && c < 0x80 && strchr("-({[<", (int)c) != NULL);
		if (start && !separator)
			jstr_put_upper(&b, c);
		else
			jstr_put_lower(&b, self.s->data, self.s->bytes, from, c);
		start = separator;
	}
	return finish(j, &b, false, out);
}

/* ---- stripping, replacing, padding ---- */

FILTER(filter_trim)
{
	(void)all;
	struct jstr *chars = NULL;
	size_t from, to;
	if (!jv_to_string(j, self, &self))
		return false;
	if (args[0].type != JV_MISSING && args[0].type != JV_NONE &&
	    !jinja_arg_string(j, args[0], "the characters to strip", &chars))
		return false;
	jstr_strip(self.s, chars, true, true, &from, &to);
	bool ok = jv_string(j, self.s->data + from, to - from, out);
	out->safe = self.safe;
	return ok;
}

FILTER(filter_replace)
{
	(void)all;
	struct jv old, new;
	int64_t count = -1;
	if (!jv_to_string(j, self, &self) || !jv_to_string(j, args[0], &old) || !jv_to_string(j, args[1], &new))
		return false;
	if (args[2].type != JV_NONE && !jinja_arg_int(j, args[2], -1, &count))
		return false;
	struct buf b = {0};
	jstr_replace(&b, self.s, old.s, new.s, count, j->limits.output);
	return finish(j, &b, false, out);
}

FILTER(filter_center)
{
	(void)all;
	int64_t width;
	if (!jv_to_string(j, self, &self) || !jinja_arg_int(j, args[0], 80, &width))
		return false;
	int64_t chars = (int64_t)jstr_chars(self.s), total = width > chars ? width - chars : 0;
	int64_t left = total / 2 + (total & width & 1);
	struct buf b = {0};
	if (total > (int64_t)j->limits.output)
		return jinja_fail_memory(j);
	for (int64_t i = 0; i < left; i++)
		buf_append_char(&b, ' ');
	buf_append(&b, self.s->data, self.s->bytes);
	for (int64_t i = left; i < total; i++)
		buf_append_char(&b, ' ');
	return finish(j, &b, self.safe, out);
}

/* What lines are indented by: a number of spaces or a text. */
static bool indention(struct jinja *j, struct jv v, struct jv *out)
{
	int64_t width;
	struct jv space;
	if (v.type == JV_STRING) {
		*out = v;
		return true;
	}
	return jinja_arg_int(j, v, 4, &width) && jv_string(j, " ", 1, &space) &&
	       jv_binary(j, TOK_MUL, space, JV_INTEGER(width), out);
}

FILTER(filter_indent)
{
	(void)all;
	struct jv by, newline;
	bool first = jinja_arg_bool(args[1], false), blank = jinja_arg_bool(args[2], false);
	if (!indention(j, args[0], &by) || !jv_string(j, "\n", 1, &newline))
		return false;
	newline.safe = self.safe;
	if (!jv_binary(j, TOK_ADD, self, newline, &self))
		return false;
	struct buf b = {0};
	for (size_t from = 0, next; from < self.s->bytes; from = next) {
		size_t end = jstr_line(self.s, from, &next);
		if (from > 0)
			buf_append_char(&b, '\n');
		if (from > 0 ? blank || end > from : first)
			buf_append(&b, by.s->data, by.s->bytes);
		buf_append(&b, self.s->data + from, end - from);
		if (b.bytes > j->limits.output)
			break;
	}
	return finish(j, &b, self.safe, out);
}

FILTER(filter_truncate)
{
	(void)all;
	int64_t length, leeway;
	struct jv end = args[2];
	size_t chars;
	if (!jinja_arg_int(j, args[0], 255, &length) ||
	    !jinja_arg_int(j, args[3].type == JV_NONE ? (struct jv){.type = JV_MISSING} : args[3], 5, &leeway) ||
	    !jv_length(j, self, &chars))
		return false;
	if (end.type == JV_MISSING && !jv_string(j, "...", 3, &end))
		return false;
	if (end.type != JV_STRING)
		return jinja_fail(j, "truncate: the end must be a string");
	int64_t keep = length - (int64_t)jstr_chars(end.s);
	if (keep < 0 || leeway < 0)
		return jinja_fail(j, "truncate: the length is shorter than the end, or the leeway negative");
	if ((int64_t)chars <= length + leeway) {
		*out = self;
		return true;
	}
	if (self.type != JV_STRING)
		return jinja_fail(j, "truncate works on strings, not on %s", jv_type_name(self));
	size_t cut = jstr_offset(self.s, (size_t)keep);
	if (!jinja_arg_bool(args[1], false)) {
		const char *space = memrchr(self.s->data, ' ', cut);
		cut = space != NULL ? (size_t)(space - self.s->data) : cut;
	}
	struct jv head;
	if (!jv_string(j, self.s->data, cut, &head))
		return false;
	head.safe = self.safe;
	return jv_binary(j, TOK_ADD, head, end, out);
}

FILTER(filter_wordcount)
{
	(void)args, (void)all;
	int64_t count = 0;
	bool inside = false;
	if (!jv_to_string(j, self, &self))
		return false;
	for (size_t at = 0; at < self.s->bytes;) {
		bool word = unicode_is_word(unicode_next(self.s->data, &at));
		count += word && !inside;
		inside = word;
	}
	*out = JV_INTEGER(count);
	return true;
}

/* ---- escaping ---- */

FILTER(filter_escape)
{
	(void)args, (void)all;
	return jv_escape(j, self, out);
}

FILTER(filter_forceescape)
{
	(void)args, (void)all;
	self.safe = self.type == JV_STRING ? false : self.safe;
	return jv_escape(j, self, out);
}

FILTER(filter_safe)
{
	(void)args, (void)all;
	bool ok = jv_to_string(j, self, out);
	out->safe = true;
	return ok;
}

FILTER(filter_string)
{
	(void)args, (void)all;
	return jv_to_string(j, self, out);
}

/* urllib.parse.quote; `query`: "/" too, and spaces become "+". */
static bool quote(struct jinja *j, struct jv v, bool query, struct buf *out)
{
	struct jv text;
	if (!jv_to_string(j, v, &text))
		return false;
	for (size_t i = 0; i < text.s->bytes; i++) {
		u8 c = (u8)text.s->data[i];
		bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			     (c != 0 && strchr("_.-~", c) != NULL) || (c == '/' && !query);
		if (plain)
			buf_append_char(out, (char)c);
		else if (c == ' ' && query)
			buf_append_char(out, '+');
		else
			buf_printf(out, "%%%02X", c);
	}
	return true;
}

FILTER(filter_urlencode)
{
	(void)args, (void)all;
	struct buf b = {0};
	struct jv list;
	bool ok = true, pairs = self.type == JV_DICT || jv_is_sequence(self) || self.type == JV_VIEW ||
				self.type == JV_ITERATOR || self.type == JV_RANGE || self.type == JV_UNDEFINED;
	if (!pairs) {
		ok = quote(j, self, false, &b);
	} else {
		struct jview view = {.kind = JVIEW_ITEMS, .dict = self.type == JV_DICT ? self.d : NULL};
		struct jv over = self.type == JV_DICT ? (struct jv){.type = JV_VIEW, .view = &view} : self;
		ok = jv_to_list(j, over, &list);
		for (size_t i = 0; ok && i < list.l->count; i++) {
			struct jv pair = list.l->items[i];
			if (!jv_is_sequence(pair) || pair.l->count != 2)
				ok = jinja_fail(j, "urlencode: the items must be pairs");
			if (i > 0)
				buf_append_char(&b, '&');
			ok = ok && quote(j, pair.l->items[0], true, &b);
			buf_append_char(&b, '=');
			ok = ok && quote(j, pair.l->items[1], true, &b);
		}
	}
	if (ok)
		return finish(j, &b, false, out);
	buf_fini(&b);
	return false;
}

FILTER(filter_format)
{
	(void)args;
	struct jv values;
	if (!jv_to_string(j, self, &self))
		return false;
	if (all->count > 0 && all->named_count > 0)
		return jinja_fail(j, "can't handle positional and keyword arguments at the same time");
	if (all->named_count > 0) {
		if (!jv_dict(j, JV_DICT, &values))
			return false;
		for (size_t i = 0; i < all->named_count; i++)
			if (!jdict_put(j, values.d, all->named[i].key, all->named[i].value))
				return false;
	} else {
		if (!jv_list(j, JV_TUPLE, all->count, &values))
			return false;
		for (size_t i = 0; i < all->count; i++)
			if (!jlist_push(j, values.l, all->positional[i]))
				return false;
	}
	return jv_percent(j, self, values, out);
}

const struct builtin jinja_string_filters[] = {
	{"capitalize", filter_capitalize, "", 0},
	{"center", filter_center, "width", 0},
	{"e", filter_escape, "", 0},
	{"escape", filter_escape, "", 0},
	{"forceescape", filter_forceescape, "", 0},
	{"format", filter_format, "*", 0},
	{"indent", filter_indent, "width,first,blank", 0},
	{"lower", filter_lower, "", 0},
	{"replace", filter_replace, "old,new,count", 2},
	{"safe", filter_safe, "", 0},
	{"string", filter_string, "", 0},
	{"title", filter_title, "", 0},
	{"trim", filter_trim, "chars", 0},
	{"truncate", filter_truncate, "length,killwords,end,leeway", 0},
	{"upper", filter_upper, "", 0},
	{"urlencode", filter_urlencode, "", 0},
	{"wordcount", filter_wordcount, "", 0},
	{NULL, NULL, NULL, 0},
};
