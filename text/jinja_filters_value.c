/* Owns the filters for numbers, single members and JSON, and the look-up of all filters. Runs where chat templates are
 * rendered. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_str_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* ---- members ---- */

FILTER(filter_length)
{
	(void)args, (void)all;
	size_t n;
	if (!jv_length(j, self, &n))
		return false;
	*out = JV_INTEGER((int64_t)n);
	return true;
}

FILTER(filter_list)
{
	(void)args, (void)all;
	return jv_to_list(j, self, out);
}

FILTER(filter_first)
{
	(void)args, (void)all;
	struct jiter it;
	bool done;
	if (!jiter_begin(j, self, &it) || !jiter_next(j, &it, out, &done))
		return false;
	if (done)
		*out = JV_UNDEF("No first item, sequence was empty.");
	return true;
}

/* What reversed() takes as a list; iterators cannot be reversed. */
static bool reversible(struct jinja *j, struct jv v, struct jv *out)
{
	if (v.type == JV_ITERATOR)
		return jinja_fail(j, "'generator' object is not reversible");
	return jv_to_list(j, v, out);
}

FILTER(filter_last)
{
	(void)args, (void)all;
	struct jv list;
	if (!reversible(j, self, &list))
		return false;
	size_t n = list.l->count;
	*out = n > 0 ? list.l->items[n - 1] : JV_UNDEF("No last item, sequence was empty.");
	return true;
}

FILTER(filter_reverse)
{
	(void)args, (void)all;
	struct jv list;
	if (self.type == JV_STRING)
		return jv_slice(j, self, (struct jv[3]){JV_NIL, JV_NIL, JV_INTEGER(-1)}, out);
	if (!jv_to_list(j, self, &list))
		return false;
	struct jlist *l = list.l;
	for (size_t i = 0; i < l->count / 2; i++) {
		struct jv v = l->items[i];
		l->items[i] = l->items[l->count - 1 - i];
		l->items[l->count - 1 - i] = v;
	}
	*out = list;
	if (self.type == JV_ITERATOR) /* only this one becomes a list */
		return true;
	struct jiterator *it = jinja_alloc(j, sizeof(*it));
	if (it == NULL)
		return false;
	*it = (struct jiterator){.items = *l};
	*out = (struct jv){.type = JV_ITERATOR, .it = it};
	return true;
}

FILTER(filter_join)
{
	(void)all;
	struct jv list, item;
	struct buf b = {0}, between = {0};
	bool ok = jv_to_list(j, self, &list) && (args[0].type == JV_MISSING || jv_str(j, args[0], &between));
	for (size_t i = 0; ok && i < list.l->count; i++) {
		if (i > 0)
			buf_append(&b, between.data, between.bytes);
		ok = jinja_get_path(j, list.l->items[i], args[1], (struct jv){.type = JV_MISSING}, &item) &&
		     jv_str(j, item, &b) && (b.bytes <= j->limits.output || jinja_fail_memory(j));
	}
	ok = ok && jv_string_buf(j, &b, out);
	buf_fini(&b);
	buf_fini(&between);
	return ok;
}

FILTER(filter_attr)
{
	(void)all;
	struct jstr *name;
	if (!jinja_arg_string(j, args[0], "the attribute name", &name) ||
	    !jv_getattr(j, self, name->data, name->bytes, out))
		return false;
	/* attr() does not fall back to items: a dict has none of its keys as attributes. */
	struct jv value;
	if (self.type == JV_DICT && out->type != JV_METHOD && jdict_find(self.d, name->data, name->bytes, &value))
		*out = JV_UNDEF(jinja_printf(j, "'dict object' has no attribute '%.80s'", name->data));
	return !j->failed;
}

FILTER(filter_default)
{
	(void)all;
	bool use = self.type == JV_UNDEFINED || (jinja_arg_bool(args[1], false) && !jv_truthy(self));
	*out = use ? args[0] : self;
	return out->type != JV_MISSING || jv_string(j, "", 0, out);
}

/* ---- numbers ---- */

FILTER(filter_abs)
{
	(void)args, (void)all;
	*out = self;
	if (self.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, self);
	if (!jv_is_number(self))
		return jinja_fail(j, "bad operand type for abs(): '%s'", jv_type_name(self));
	if (self.type == JV_FLOAT)
		*out = JV_DOUBLE(fabs(self.f));
	else if (jv_int(self) < 0)
		return jv_negate(j, self, out);
	else
		*out = JV_INTEGER(jv_int(self));
	return true;
}

/* A number's text without white space around it and single underscores between digits; false when it is malformed. */
static bool plain_number(const struct jstr *s, char *out, size_t room)
{
	size_t from, to, n = 0;
	jstr_strip(s, NULL, true, true, &from, &to);
	for (size_t i = from; i < to; i++) {
		char c = s->data[i];
		bool digits_around = i > from && i + 1 < to && isalnum((u8)s->data[i - 1]) && isalnum((u8)s->data[i + 1]);
		if (c == '_' && digits_around)
			continue;
		if (c == '_' || n + 1 >= room)
			return false;
		out[n++] = c;
	}
	out[n] = '\0';
	return n > 0;
}

static bool parse_float(const struct jstr *s, double *out)
{
	char text[400], *end;
	if (!plain_number(s, text, sizeof(text)) || strpbrk(text, "xXpP") != NULL || strchr(text, '(') != NULL)
		return false;
	*out = strtod(text, &end);
	return *end == '\0';
}

/* int(text, base); *big when it has no place in 64 bits. */
static bool parse_int(const struct jstr *s, int base, int64_t *out, bool *big)
{
	char text[400], *end;
	if (!plain_number(s, text, sizeof(text)))
		return false;
	const char *p = text + (text[0] == '-' || text[0] == '+');
	char kind = p[0] == '0' ? (char)(p[1] | 32) : 0;
	bool prefixed = (kind == 'x' && base == 16) || (kind == 'o' && base == 8) || (kind == 'b' && base == 2);
	if (prefixed)
		p += 2;
	if (!isalnum((u8)*p))
		return false;
	errno = 0;
	int64_t value = strtoll(p, &end, base);
	*big = errno != 0;
	*out = text[0] == '-' ? -value : value;
	return *end == '\0';
}

static bool float_to_int(struct jinja *j, double f, struct jv *out)
{
	if (isnan(f) || isinf(f))
		return jinja_fail(j, "cannot convert float %s to integer", isnan(f) ? "NaN" : "infinity");
	if (fabs(f) >= 9.2e18)
		return jinja_fail(j, "an integer does not fit 64 bits");
	*out = JV_INTEGER((int64_t)f);
	return true;
}

FILTER(filter_int)
{
	(void)all;
	int64_t base, value;
	double f;
	bool big = false;
	if (!jinja_arg_int(j, args[1], 10, &base))
		return false;
	if (self.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, self);
	if (jv_is_int(self)) {
		*out = JV_INTEGER(jv_int(self));
		return true;
	}
	if (self.type == JV_FLOAT && !isnan(self.f))
		return float_to_int(j, self.f, out);
	if (self.type == JV_STRING && base >= 2 && base <= 36) {
		if (parse_int(self.s, (int)base, &value, &big)) {
			*out = JV_INTEGER(value);
			return !big || jinja_fail(j, "an integer does not fit 64 bits");
		}
		if (parse_float(self.s, &f) && !isnan(f))
			return float_to_int(j, f, out);
	}
	*out = args[0].type != JV_MISSING ? args[0] : JV_INTEGER(0);
	return true;
}

FILTER(filter_float)
{
	(void)all;
	double f;
	if (self.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, self);
	if (jv_is_number(self))
		*out = JV_DOUBLE(jv_float(self));
	else if (self.type == JV_STRING && parse_float(self.s, &f))
		*out = JV_DOUBLE(f);
	else
		*out = args[0].type != JV_MISSING ? args[0] : JV_DOUBLE(0);
	return true;
}

/* round(): correctly rounded decimal digits, which printf gives. */
static double round_decimal(double f, int64_t precision)
{
	char text[800];
	if (isnan(f) || isinf(f) || precision > 330)
		return f;
	if (precision >= 0) {
		snprintf(text, sizeof(text), "%.*f", (int)precision, f);
		return strtod(text, NULL);
	}
	double unit = pow(10, (double)-precision);
	return nearbyint(f / unit) * unit;
}

FILTER(filter_round)
{
	(void)all;
	int64_t precision;
	const char *method = args[1].type == JV_STRING ? args[1].s->data : "common";
	if (!jinja_arg_int(j, args[0], 0, &precision))
		return false;
	bool common = strcmp(method, "common") == 0, ceiling = strcmp(method, "ceil") == 0;
	if (!common && !ceiling && strcmp(method, "floor") != 0)
		return jinja_fail(j, "method must be common, ceil or floor");
	if (self.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, self);
	if (!jv_is_number(self))
		return jinja_fail(j, "type %s doesn't define __round__ method", jv_type_name(self));
	if (common && jv_is_int(self) && precision >= 0) {
		*out = JV_INTEGER(jv_int(self));
		return true;
	}
	double unit = pow(10, (double)precision);
	double f = jv_float(self);
	if (common)
		f = round_decimal(f, precision);
	else
		f = (ceiling ? ceil(f * unit) : floor(f * unit)) / unit;
	*out = common && jv_is_int(self) ? JV_INTEGER((int64_t)f) : JV_DOUBLE(f);
	return true;
}

FILTER(filter_filesizeformat)
{
	(void)all;
	static const char *const units[][2] = {{"kB", "KiB"}, {"MB", "MiB"}, {"GB", "GiB"}, {"TB", "TiB"},
					       {"PB", "PiB"}, {"EB", "EiB"}, {"ZB", "ZiB"}, {"YB", "YiB"}};
	bool binary = jinja_arg_bool(args[0], false);
	double bytes = jv_is_number(self) ? jv_float(self) : 0, base = binary ? 1024 : 1000, unit = base;
	char text[64];
	if (!jv_is_number(self) && (self.type != JV_STRING || !parse_float(self.s, &bytes)))
		return jinja_fail(j, "could not convert to a number");
	if (bytes < base) {
		snprintf(text, sizeof(text), bytes == 1 ? "1 Byte" : "%.0f Bytes", trunc(bytes));
		return jv_string(j, text, strlen(text), out);
	}
	size_t i = 0;
	for (unit = base * base; bytes >= unit && i + 1 < COUNT_OF(units); i++)
		unit *= base;
	snprintf(text, sizeof(text), "%.1f %s", base * bytes / unit, units[i][binary]);
	return jv_string(j, text, strlen(text), out);
}

FILTER(filter_sum)
{
	(void)all;
	struct jv list, item;
	*out = args[1].type != JV_MISSING ? args[1] : JV_INTEGER(0);
	if (!jv_to_list(j, self, &list))
		return false;
	if (out->type == JV_STRING)
		return jinja_fail(j, "sum() can't sum strings [use ''.join(seq) instead]");
	for (size_t i = 0; i < list.l->count; i++)
		if (!jinja_get_path(j, list.l->items[i], args[0], (struct jv){.type = JV_MISSING}, &item) ||
		    !jv_binary(j, TOK_ADD, *out, item, out))
			return false;
	return true;
}

/* ---- tojson, as transformers defines it: json.dumps without HTML escapes ---- */

static bool read_separators(struct jinja *j, struct jv v, struct json_style *style)
{
	if (v.type == JV_MISSING || v.type == JV_NONE)
		return true;
	if (!jv_is_sequence(v) || v.l->count != 2 || v.l->items[0].type != JV_STRING || v.l->items[1].type != JV_STRING)
		return jinja_fail(j, "tojson: separators must be a pair of strings");
	style->item_separator = v.l->items[0].s->data;
	style->key_separator = v.l->items[1].s->data;
	return true;
}

FILTER(filter_tojson)
{
	(void)all;
	struct json_style style = {.item_separator = ", ", .key_separator = ": "};
	struct jv space, indent;
	style.ensure_ascii = jinja_arg_bool(args[0], false);
	style.sort_keys = jinja_arg_bool(args[3], false);
	if (args[1].type == JV_STRING) {
		style.indent = args[1].s->data;
	} else if (args[1].type != JV_MISSING && args[1].type != JV_NONE) {
		int64_t width;
		if (!jinja_arg_int(j, args[1], 0, &width) || !jv_string(j, " ", 1, &space) ||
		    !jv_binary(j, TOK_MUL, space, JV_INTEGER(width), &indent))
			return false;
		style.indent = indent.s->data;
	}
	if (style.indent != NULL)
		style.item_separator = ",";
	struct buf b = {0};
	bool ok = read_separators(j, args[2], &style) && jv_to_json(j, self, &style, &b) && jv_string_buf(j, &b, out);
	buf_fini(&b);
	return ok;
}

FILTER(filter_random)
{
	(void)self, (void)args, (void)all, (void)out;
	return jinja_fail(j, "random is not supported: the same request has to give the same prompt");
}

const struct builtin jinja_value_filters[] = {
	{"abs", filter_abs, "", 0},
	{"attr", filter_attr, "name", 1},
	{"count", filter_length, "", 0},
	{"d", filter_default, "default_value,boolean", 0},
	{"default", filter_default, "default_value,boolean", 0},
	{"filesizeformat", filter_filesizeformat, "binary", 0},
	{"first", filter_first, "", 0},
	{"float", filter_float, "default", 0},
	{"int", filter_int, "default,base", 0},
	{"join", filter_join, "d,attribute", 0},
	{"last", filter_last, "", 0},
	{"length", filter_length, "", 0},
	{"list", filter_list, "", 0},
	{"random", filter_random, "", 0},
	{"reverse", filter_reverse, "", 0},
	{"round", filter_round, "precision,method", 0},
	{"sum", filter_sum, "attribute,start", 0},
	{"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
	{NULL, NULL, NULL, 0},
};

static const struct builtin *find(const struct builtin *table, const char *name)
{
	for (; table->name != NULL; table++)
		if (strcmp(table->name, name) == 0)
			return table;
	return NULL;
}

const struct builtin *jinja_filter_find(const char *name)
{
	static const struct builtin *const tables[] = {jinja_value_filters, jinja_string_filters, jinja_sequence_filters,
						       jinja_markup_filters, jinja_wrap_filters, jinja_pprint_filters};
	const struct builtin *b = NULL;
	for (size_t i = 0; i < COUNT_OF(tables) && b == NULL; i++)
		b = find(tables[i], name);
	return b;
}
