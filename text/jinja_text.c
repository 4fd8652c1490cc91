/* Owns the texts of values: str(), repr() and HTML escaping, as Python writes them. Runs where chat
 * templates are rendered. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

/* ---- numbers ---- */

/* repr of a float: the shortest digits that read back, in Python's layout (exponent below 1e-4 and from 1e16 on). */
void jv_float_repr(double f, struct buf *out)
{
	char digits[40];
	if (isnan(f) || isinf(f)) {
		buf_append_str(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	int precision = 0;
	do {
		snprintf(digits, sizeof(digits), "%.*e", precision, f);
	} while (strtod(digits, NULL) != f && ++precision < 17);
	int exponent = atoi(strchr(digits, 'e') + 1);
	if (exponent >= -4 && exponent < 16) {
		int decimals = precision - exponent;
		buf_printf(out, "%.*f", decimals > 1 ? decimals : 1, f);
		return;
	}
	char *e = strchr(digits, 'e');
	*e = '\0';
	buf_printf(out, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
}

/* ---- repr ---- */

/* Python's str.isprintable for one character. */
static bool printable(u32 c)
{
	if (c < 0x80)
		return c >= 32 && c != 127;
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

static void string_repr(const struct jstr *s, struct buf *out)
{
	bool single = memchr(s->data, '\'', s->bytes) != NULL, both = memchr(s->data, '"', s->bytes) != NULL;
	char quote = single && !both ? '"' : '\'';
	buf_append_char(out, quote);
	for (size_t at = 0; at < s->bytes;) {
		size_t from = at;
		u32 c = unicode_next(s->data, &at);
		if (c == (u32)quote || c == '\\')
			buf_printf(out, "\\%c", (int)c);
		else if (c == '\n' || c == '\r' || c == '\t')
			buf_append_str(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
		else if (printable(c))
			buf_append(out, s->data + from, at - from);
		else
			buf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
	}
	buf_append_char(out, quote);
}

static bool list_repr(struct jinja *j, struct jv v, struct buf *out)
{
	bool tuple = v.type == JV_TUPLE;
	buf_append_char(out, tuple ? '(' : '[');
	for (size_t i = 0; i < v.l->count; i++) {
		if (i > 0)
			buf_append_str(out, ", ");
		if (!jv_repr(j, v.l->items[i], out))
			return false;
	}
	if (tuple && v.l->count == 1)
		buf_append_char(out, ',');
	buf_append_char(out, tuple ? ')' : ']');
	return true;
}

static bool dict_repr(struct jinja *j, const struct jdict *d, struct buf *out)
{
	buf_append_char(out, '{');
	for (size_t i = 0; i < d->count; i++) {
		if (i > 0)
			buf_append_str(out, ", ");
		if (!jv_repr(j, d->entries[i].key, out))
			return false;
		buf_append_str(out, ": ");
		if (!jv_repr(j, d->entries[i].value, out))
			return false;
	}
	buf_append_char(out, '}');
	return true;
}

static bool view_repr(struct jinja *j, struct jv v, struct buf *out)
{
	static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
	struct jv list;
	if (!jv_to_list(j, v, &list))
		return false;
	buf_printf(out, "%s(", names[v.view->kind]);
	if (!list_repr(j, list, out))
		return false;
	buf_append_char(out, ')');
	return true;
}

static void range_repr(const struct jrange *r, struct buf *out)
{
	buf_printf(out, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
	if (r->step != 1)
		buf_printf(out, ", %lld", (long long)r->step);
	buf_append_char(out, ')');
}

static bool repr_inner(struct jinja *j, struct jv v, struct buf *out)
{
	switch (v.type) {
	case JV_STRING:
		if (v.safe)
			buf_append_str(out, "Markup(");
		string_repr(v.s, out);
		if (v.safe)
			buf_append_char(out, ')');
		return true;
	case JV_UNDEFINED:
		buf_append_str(out, "Undefined");
		return true;
	case JV_LIST:
	case JV_TUPLE:
		return list_repr(j, v, out);
	case JV_DICT:
		return dict_repr(j, v.d, out);
	case JV_NAMESPACE:
		buf_append_str(out, "<Namespace ");
		if (!dict_repr(j, v.d, out))
			return false;
		buf_append_char(out, '>');
		return true;
	case JV_VIEW:
		return view_repr(j, v, out);
	case JV_RANGE:
		range_repr(v.range, out);
		return true;
	case JV_LOOP:
		buf_printf(out, "<LoopContext %zu/%zu>", v.loop->index0 + 1, v.loop->count);
		return true;
	case JV_MACRO:
		if (v.macro->def->name == NULL)
			buf_append_str(out, "<Macro anonymous>");
		else
			buf_printf(out, "<Macro '%s'>", v.macro->def->name);
		return true;
	default:
		return jv_str(j, v, out);
	}
}

bool jv_repr(struct jinja *j, struct jv v, struct buf *out)
{
	if (!jinja_enter(j))
		return false;
	bool ok = repr_inner(j, v, out);
	j->depth--;
	if (ok && (out->failed || out->bytes > j->limits.output))
		return jinja_fail_memory(j);
	return ok;
}

bool jv_str(struct jinja *j, struct jv v, struct buf *out)
{
	switch (v.type) {
	case JV_MISSING:
	case JV_UNDEFINED:
		return true;
	case JV_NONE:
		buf_append_str(out, "None");
		return true;
	case JV_BOOL:
		buf_append_str(out, v.b ? "True" : "False");
		return true;
	case JV_INT:
		buf_printf(out, "%lld", (long long)v.i);
		return true;
	case JV_FLOAT:
		jv_float_repr(v.f, out);
		return true;
	case JV_STRING:
		buf_append(out, v.s->data, v.s->bytes);
		return true;
	case JV_ITERATOR:
	case JV_METHOD:
	case JV_FUNCTION:
	case JV_CYCLER:
	case JV_JOINER:
		buf_printf(out, "<%s object>", jv_type_name(v));
		return true;
	default:
		return jv_repr(j, v, out);
	}
}

bool jv_to_string(struct jinja *j, struct jv v, struct jv *out)
{
	if (v.type == JV_STRING) {
		*out = v;
		return true;
	}
	struct buf text = {0};
	bool ok = jv_str(j, v, &text) && jv_string_buf(j, &text, out);
	buf_fini(&text);
	return ok;
}

/* ---- HTML ---- */

bool jv_escape(struct jinja *j, struct jv v, struct jv *out)
{
	if (v.type == JV_STRING && v.safe) {
		*out = v;
		return true;
	}
	struct jv text;
	if (!jv_to_string(j, v, &text))
		return false;
	struct buf b = {0};
	for (size_t i = 0; i < text.s->bytes; i++) {
		char c = text.s->data[i];
		const char *entity = c == '&'    ? "&amp;"
				     : c == '<'  ? "&lt;"
				     : c == '>'  ? "&gt;"
				     : c == '"'  ? "&#34;"
				     : c == '\'' ? "&#39;"
						 : NULL;
		if (entity != NULL)
			buf_append_str(&b, entity);
		else
			buf_append_char(&b, c);
	}
	bool ok = jv_string_buf(j, &b, out);
	out->safe = true;
	buf_fini(&b);
	return ok;
}
