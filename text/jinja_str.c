/* Owns the methods of strings. Runs where chat templates are rendered. A Markup string gives Markup, and escapes the
 * strings that go into it. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define METHOD(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* ---- helpers ---- */

static bool part(struct jinja *j, struct jv self, size_t from, size_t to, struct jv *out)
{
	bool ok = jv_string(j, self.s->data + from, to - from, out);
	out->safe = self.safe;
	return ok;
}

/* Takes over the buffer's text. */
static bool finish(struct jinja *j, struct jv self, struct buf *b, struct jv *out)
{
	bool ok = jv_string_buf(j, b, out);
	out->safe = self.safe;
	buf_fini(b);
	return ok;
}

/* A string argument; NULL in *out when it is missing or None. */
static bool optional_string(struct jinja *j, struct jv v, struct jstr **out)
{
	*out = NULL;
	return v.type == JV_MISSING || v.type == JV_NONE || jinja_arg_string(j, v, "argument", out);
}

/* As the string methods of Markup do with their arguments. */
static bool escaped_string(struct jinja *j, struct jv self, struct jv v, struct jstr **out)
{
	if (self.safe && v.type == JV_STRING && !jv_escape(j, v, &v))
		return false;
	return jinja_arg_string(j, v, "argument", out);
}

/* Characters to strip, at most one of each; a long list repeats itself sooner or later. */
struct char_set {
	const struct jstr *chars; /* NULL: white space */
	u8 *bits;                 /* by code point; NULL: look through the characters */
};

static void char_set_init(struct char_set *set, const struct jstr *chars)
{
	enum { SHORT_BYTES = 64, CODE_POINTS = 0x110000 };
	*set = (struct char_set){.chars = chars};
	if (chars == NULL || chars->bytes <= SHORT_BYTES)
		return;
	set->bits = calloc(1, CODE_POINTS / 8);
	for (size_t at = 0; set->bits != NULL && at < chars->bytes;) {
		u32 c = unicode_next(chars->data, &at);
		set->bits[c / 8] |= (u8)(1u << c % 8);
	}
}

static bool char_set_has(const struct char_set *set, u32 c)
{
	if (set->chars == NULL)
		return jstr_is_space(c);
	if (set->bits != NULL)
		return set->bits[c / 8] >> c % 8 & 1;
	for (size_t at = 0; at < set->chars->bytes;)
		if (unicode_next(set->chars->data, &at) == c)
			return true;
	return false;
}

void jstr_strip(const struct jstr *s, const struct jstr *chars, bool left, bool right, size_t *from, size_t *to)
{
	struct char_set set;
	char_set_init(&set, chars);
	*from = 0;
	*to = s->bytes;
	while (left && *from < *to) {
		size_t next = *from;
		if (!char_set_has(&set, unicode_next(s->data, &next)))
			break;
		*from = next;
	}
	while (right && *to > *from) {
		size_t last = unicode_prev(s->data, *to), next = last;
		if (!char_set_has(&set, unicode_next(s->data, &next)))
			break;
		*to = last;
	}
	free(set.bits);
}

void jstr_replace(struct buf *out, const struct jstr *s, const struct jstr *old, const struct jstr *new, int64_t count,
		  size_t most)
{
	size_t at = 0;
	for (; count != 0 && old->bytes > 0 && out->bytes <= most; count -= count > 0) {
		const char *hit = memmem(s->data + at, s->bytes - at, old->data, old->bytes);
		if (hit == NULL)
			break;
		buf_append(out, s->data + at, (size_t)(hit - s->data) - at);
		buf_append(out, new->data, new->bytes);
		at = (size_t)(hit - s->data) + old->bytes;
	}
	while (old->bytes == 0 && count != 0 && out->bytes <= most) {
		buf_append(out, new->data, new->bytes);
		count -= count > 0;
		if (at >= s->bytes)
			return;
		size_t n = unicode_bytes((u8)s->data[at]);
		buf_append(out, s->data + at, n);
		at += n;
	}
	buf_append(out, s->data + at, s->bytes - at);
}

size_t jstr_line(const struct jstr *s, size_t from, size_t *next)
{
	for (size_t at = from; at < s->bytes;) {
		size_t here = at;
		u32 c = unicode_next(s->data, &at);
		bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
			    c == 0x2029;
		if (!ends)
			continue;
		*next = at + (c == '\r' && at < s->bytes && s->data[at] == '\n');
		return here;
	}
	*next = s->bytes;
	return s->bytes;
}

/* ---- case ---- */

typedef void (*case_fn)(struct buf *out, const char *text, size_t bytes);

static bool change_case(struct jinja *j, struct jv self, case_fn change, struct jv *out)
{
	struct buf b = {0};
	change(&b, self.s->data, self.s->bytes);
	return finish(j, self, &b, out);
}

#define CASE_METHOD(name, change)                                                                            \
	METHOD(name)                                                                                         \
	{                                                                                                    \
		(void)args, (void)all;                                                                       \
		return change_case(j, self, change, out);                                                    \
	}
CASE_METHOD(str_upper, jstr_upper)
CASE_METHOD(str_lower, jstr_lower)
CASE_METHOD(str_capitalize, jstr_capitalize)
CASE_METHOD(str_title, jstr_title)
CASE_METHOD(str_swapcase, jstr_swapcase)

#define CLASS_METHOD(name, class)                                                                            \
	METHOD(name)                                                                                         \
	{                                                                                                    \
		(void)j, (void)args, (void)all;                                                              \
		*out = JV_BOOLEAN(jstr_is(self.s, class));                                                   \
		return true;                                                                                 \
	}
CLASS_METHOD(str_isalnum, JSTR_ALNUM)
CLASS_METHOD(str_isalpha, JSTR_ALPHA)
CLASS_METHOD(str_isascii, JSTR_ASCII)
CLASS_METHOD(str_isdecimal, JSTR_DECIMAL)
CLASS_METHOD(str_isdigit, JSTR_DIGIT)
CLASS_METHOD(str_isnumeric, JSTR_NUMERIC)
CLASS_METHOD(str_isspace, JSTR_SPACE)
CLASS_METHOD(str_islower, JSTR_LOWER)
CLASS_METHOD(str_isupper, JSTR_UPPER)
CLASS_METHOD(str_istitle, JSTR_TITLE)

/* ---- stripping and padding ---- */

static bool strip(struct jinja *j, struct jv self, struct jv chars, bool left, bool right, struct jv *out)
{
	struct jstr *set;
	size_t from, to;
	if (!optional_string(j, chars, &set))
		return false;
	jstr_strip(self.s, set, left, right, &from, &to);
	return part(j, self, from, to, out);
}

METHOD(str_strip)
{
	(void)all;
	return strip(j, self, args[0], true, true, out);
}

METHOD(str_lstrip)
{
	(void)all;
	return strip(j, self, args[0], true, false, out);
}

METHOD(str_rstrip)
{
	(void)all;
	return strip(j, self, args[0], false, true, out);
}

static bool pad(struct jinja *j, struct jv self, const struct jv *args, u32 left_share, struct jv *out)
{
	int64_t width;
	struct jstr *fill;
	struct jv space = args[1];
	if (!jinja_arg_int(j, args[0], 0, &width))
		return false;
	if (space.type == JV_MISSING && !jv_string(j, " ", 1, &space))
		return false;
	if (!jinja_arg_string(j, space, "the fill character", &fill))
		return false;
	if (jstr_chars(fill) != 1)
		return jinja_fail(j, "the fill character must be exactly one character long");
	int64_t chars = (int64_t)jstr_chars(self.s), total = width > chars ? width - chars : 0;
	if ((u64)total > j->limits.output)
		return jinja_fail_memory(j);
	/* Python's str.center puts the odd one to the left when the width is odd. */
	int64_t left = left_share == 0 ? 0 : left_share == 2 ? total : total / 2 + (total & width & 1);
	struct buf b = {0};
	for (int64_t i = 0; i < left; i++)
		buf_append(&b, fill->data, fill->bytes);
	buf_append(&b, self.s->data, self.s->bytes);
	for (int64_t i = left; i < total; i++)
		buf_append(&b, fill->data, fill->bytes);
	return finish(j, self, &b, out);
}

METHOD(str_ljust)
{
	(void)all;
	return pad(j, self, args, 0, out);
}

METHOD(str_center)
{
	(void)all;
	return pad(j, self, args, 1, out);
}

METHOD(str_rjust)
{
	(void)all;
	return pad(j, self, args, 2, out);
}

METHOD(str_zfill)
{
	(void)all;
	int64_t width;
	if (!jinja_arg_int(j, args[0], 0, &width))
		return false;
	struct buf b = {0};
	bool sign = self.s->bytes > 0 && (self.s->data[0] == '-' || self.s->data[0] == '+');
	if (width > (int64_t)j->limits.output)
		return jinja_fail_memory(j);
	if (sign)
		buf_append_char(&b, self.s->data[0]);
	for (int64_t i = (int64_t)jstr_chars(self.s); i < width; i++)
		buf_append_char(&b, '0');
	buf_append(&b, self.s->data + sign, self.s->bytes - sign);
	return finish(j, self, &b, out);
}

METHOD(str_expandtabs)
{
	(void)all;
	int64_t size;
	if (!jinja_arg_int(j, args[0], 8, &size))
		return false;
	struct buf b = {0};
	int64_t column = 0;
	for (size_t at = 0; at < self.s->bytes && b.bytes <= j->limits.output;) {
		size_t from = at;
		u32 c = unicode_next(self.s->data, &at);
		int64_t spaces = c == '\t' && size > 0 ? size - column % size : 0;
		for (int64_t i = 0; i < spaces && b.bytes <= j->limits.output; i++)
			buf_append_char(&b, ' ');
		if (c != '\t')
			buf_append(&b, self.s->data + from, at - from);
		column = c == '\n' || c == '\r' ? 0 : column + (c == '\t' ? spaces : 1);
	}
	return finish(j, self, &b, out);
}

/* ---- replacing and affixes ---- */

METHOD(str_replace)
{
	(void)all;
	struct jstr *old, *new;
	int64_t count;
	if (!escaped_string(j, self, args[0], &old) || !escaped_string(j, self, args[1], &new) ||
	    !jinja_arg_int(j, args[2], -1, &count))
		return false;
	struct buf b = {0};
	jstr_replace(&b, self.s, old, new, count, j->limits.output);
	return finish(j, self, &b, out);
}

METHOD(str_removeprefix)
{
	(void)all;
	struct jstr *p;
	if (!jinja_arg_string(j, args[0], "argument", &p))
		return false;
	bool has = self.s->bytes >= p->bytes && memcmp(self.s->data, p->data, p->bytes) == 0;
	return part(j, (struct jv){.type = JV_STRING, .s = self.s}, has ? p->bytes : 0, self.s->bytes, out);
}

METHOD(str_removesuffix)
{
	(void)all;
	struct jstr *p;
	if (!jinja_arg_string(j, args[0], "argument", &p))
		return false;
	size_t n = self.s->bytes;
	bool has = n >= p->bytes && memcmp(self.s->data + n - p->bytes, p->data, p->bytes) == 0;
	return part(j, (struct jv){.type = JV_STRING, .s = self.s}, 0, has ? n - p->bytes : n, out);
}

/* The part of the string that optional start and end arguments select; false in *inside when start is behind it. */
static bool bounds(struct jinja *j, struct jv self, const struct jv *args, size_t *from, size_t *to, bool *inside)
{
	int64_t chars = (int64_t)jstr_chars(self.s), at[2] = {0, chars};
	for (int i = 0; i < 2; i++) {
		if (args[i].type == JV_MISSING || args[i].type == JV_NONE)
			continue;
		if (!jinja_arg_int(j, args[i], 0, &at[i]))
			return false;
		at[i] = at[i] < 0 ? at[i] + chars : at[i];
		at[i] = at[i] < 0 ? 0 : at[i];
	}
	*inside = at[0] <= chars && at[0] <= at[1];
	*from = jstr_offset(self.s, (size_t)at[0]);
	*to = jstr_offset(self.s, (size_t)(at[1] < chars ? at[1] : chars));
	return true;
}

static bool has_affix(struct jinja *j, struct jv self, const struct jv *args, bool suffix, struct jv *out)
{
	size_t from, to;
	bool inside;
	struct jv one = args[0];
	struct jlist single = {.items = &one, .count = 1}, *list = one.type == JV_TUPLE ? one.l : &single;
	if (!bounds(j, self, args + 1, &from, &to, &inside))
		return false;
	*out = JV_BOOLEAN(false);
	for (size_t i = 0; i < list->count; i++) {
		struct jstr *p;
		if (!jinja_arg_string(j, list->items[i], "the first argument", &p))
			return false;
		size_t at = suffix ? to - p->bytes : from;
		if (inside && to - from >= p->bytes && memcmp(self.s->data + at, p->data, p->bytes) == 0)
			*out = JV_BOOLEAN(true);
	}
	return true;
}

METHOD(str_startswith)
{
	(void)all;
	return has_affix(j, self, args, false, out);
}

METHOD(str_endswith)
{
	(void)all;
	return has_affix(j, self, args, true, out);
}

/* ---- searching ---- */

enum search { SEARCH_FIRST, SEARCH_LAST, SEARCH_COUNT };

static bool search(struct jinja *j, struct jv self, const struct jv *args, enum search what, int64_t *out)
{
	struct jstr *p;
	size_t from, to;
	bool inside;
	if (!jinja_arg_string(j, args[0], "argument", &p) || !bounds(j, self, args + 1, &from, &to, &inside))
		return false;
	int64_t count = 0;
	const char *data = self.s->data, *found = NULL;
	for (size_t at = from; inside && at + p->bytes <= to;) {
		const char *hit = memmem(data + at, to - at, p->data, p->bytes);
		if (hit == NULL)
			break;
		found = hit;
		count++;
		if (!jinja_charge(j, p->bytes)) /* each search prepares the pattern anew */
			return false;
		if (what == SEARCH_FIRST)
			break;
		at = (size_t)(hit - data);
		at += what == SEARCH_COUNT && p->bytes > 0 ? p->bytes : at < to ? unicode_bytes((u8)data[at]) : 1;
	}
	struct jstr before = {.data = data, .bytes = found != NULL ? (size_t)(found - data) : 0, .chars = SIZE_MAX};
	*out = what == SEARCH_COUNT ? count : found == NULL ? -1 : (int64_t)jstr_chars(&before);
	return true;
}

METHOD(str_find)
{
	(void)all;
	out->type = JV_INT;
	return search(j, self, args, SEARCH_FIRST, &out->i);
}

METHOD(str_rfind)
{
	(void)all;
	out->type = JV_INT;
	return search(j, self, args, SEARCH_LAST, &out->i);
}

METHOD(str_count)
{
	(void)all;
	out->type = JV_INT;
	return search(j, self, args, SEARCH_COUNT, &out->i);
}

METHOD(str_index)
{
	return str_find(j, self, args, all, out) && (out->i >= 0 || jinja_fail(j, "substring not found"));
}

METHOD(str_rindex)
{
	return str_rfind(j, self, args, all, out) && (out->i >= 0 || jinja_fail(j, "substring not found"));
}

METHOD(str_join)
{
	(void)all;
	struct jiter it;
	struct jv item;
	struct buf b = {0};
	bool done = false, ok = jiter_begin(j, args[0], &it);
	for (bool first = true; ok; first = false) {
		ok = jiter_next(j, &it, &item, &done);
		if (!ok || done)
			break;
		if (!first)
			buf_append(&b, self.s->data, self.s->bytes);
		if (self.safe)
			ok = jv_escape(j, item, &item);
		else if (item.type != JV_STRING)
			ok = jinja_fail(j, "sequence item: expected str instance, %s found", jv_type_name(item));
		if (ok)
			buf_append(&b, item.s->data, item.s->bytes);
		ok = ok && (b.bytes <= j->limits.output || jinja_fail_memory(j));
	}
	if (ok)
		return finish(j, self, &b, out);
	buf_fini(&b);
	return false;
}

METHOD(str_format)
{
	(void)args;
	return jstr_format(j, self, all, out);
}

const struct builtin jinja_string_methods[] = {
	{"capitalize", str_capitalize, "", 0},
	{"center", str_center, "width,fillchar", 1},
	{"count", str_count, "sub,start,end", 1},
	{"endswith", str_endswith, "suffix,start,end", 1},
	{"expandtabs", str_expandtabs, "tabsize", 0},
	{"find", str_find, "sub,start,end", 1},
	{"format", str_format, "*", 0},
	{"index", str_index, "sub,start,end", 1},
	{"isalnum", str_isalnum, "", 0},
	{"isalpha", str_isalpha, "", 0},
	{"isascii", str_isascii, "", 0},
	{"isdecimal", str_isdecimal, "", 0},
	{"isdigit", str_isdigit, "", 0},
	{"islower", str_islower, "", 0},
	{"isnumeric", str_isnumeric, "", 0},
	{"isspace", str_isspace, "", 0},
	{"istitle", str_istitle, "", 0},
	{"isupper", str_isupper, "", 0},
	{"join", str_join, "iterable", 1},
	{"ljust", str_ljust, "width,fillchar", 1},
	{"lower", str_lower, "", 0},
	{"casefold", str_lower, "", 0},
	{"lstrip", str_lstrip, "chars", 0},
	{"removeprefix", str_removeprefix, "prefix", 1},
	{"removesuffix", str_removesuffix, "suffix", 1},
	{"replace", str_replace, "old,new,count", 2},
	{"rfind", str_rfind, "sub,start,end", 1},
	{"rindex", str_rindex, "sub,start,end", 1},
	{"rjust", str_rjust, "width,fillchar", 1},
	{"rstrip", str_rstrip, "chars", 0},
	{"startswith", str_startswith, "prefix,start,end", 1},
	{"strip", str_strip, "chars", 0},
	{"swapcase", str_swapcase, "", 0},
	{"title", str_title, "", 0},
	{"upper", str_upper, "", 0},
	{"zfill", str_zfill, "width", 1},
	{NULL, NULL, NULL, 0},
};
