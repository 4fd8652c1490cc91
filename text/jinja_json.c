/* Owns the writing of values as JSON, as Python's json.dumps does, and the sorting of values. Runs where chat templates
 * are rendered. */
#include <math.h>
#include <string.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

/* ---- sorting ---- */

/* Merges two sorted halves; an element of the right half goes first only when it has to. */
static bool merge(struct jinja *j, struct jsort_item *items, struct jsort_item *work, size_t middle, size_t count,
		  bool reverse)
{
	size_t a = 0, b = middle, n = 0;
	while (a < middle && b < count) {
		int order;
		if (!jv_compare(j, items[b].key, items[a].key, "<", &order))
			return false;
		bool right = reverse ? order == 1 : order == -1;
		work[n++] = right ? items[b++] : items[a++];
	}
	while (a < middle)
		work[n++] = items[a++];
	while (b < count)
		work[n++] = items[b++];
	memcpy(items, work, count * sizeof(*items));
	return true;
}

static bool sort_range(struct jinja *j, struct jsort_item *items, struct jsort_item *work, size_t count, bool reverse)
{
	if (count < 2)
		return true;
	if (!jinja_charge(j, 0))
		return false;
	size_t middle = count / 2;
	return sort_range(j, items, work, middle, reverse) &&
	       sort_range(j, items + middle, work, count - middle, reverse) &&
	       merge(j, items, work, middle, count, reverse);
}

bool jv_sort(struct jinja *j, struct jsort_item *items, size_t count, bool reverse)
{
	struct jsort_item *work = jinja_alloc(j, (count + 1) * sizeof(*work));
	return work != NULL && sort_range(j, items, work, count, reverse);
}

/* ---- json.dumps ---- */

struct dumper {
	struct jinja *j;
	const struct json_style *style;
	struct buf *out;
	u32 level;
};

static bool dump(struct dumper *d, struct jv v);

/* The letter behind the backslash; 0 when the character has no short form. */
static char short_escape(u32 c)
{
	static const char forms[][2] = {{'"', '"'}, {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'},
					{'\t', 't'}, {'\b', 'b'}, {'\f', 'f'}};
	for (size_t i = 0; i < COUNT_OF(forms); i++)
		if (c == (u8)forms[i][0])
			return forms[i][1];
	return 0;
}

static void dump_string(struct dumper *d, const struct jstr *s)
{
	buf_append_char(d->out, '"');
	size_t plain = 0; /* start of the stretch that goes out as it is */
	for (size_t at = 0; at < s->bytes;) {
		size_t from = at;
		u32 c = unicode_next(s->data, &at);
		char letter = c < 128 ? short_escape(c) : 0;
		if (letter == 0 && c >= 32 && !(d->style->ensure_ascii && c >= 127))
			continue;
		buf_append(d->out, s->data + plain, from - plain);
		plain = at;
		if (letter != 0)
			buf_printf(d->out, "\\%c", letter);
		else if (c < 0x10000)
			buf_printf(d->out, "\\u%04x", c);
		else
			buf_printf(d->out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
	}
	buf_append(d->out, s->data + plain, s->bytes - plain);
	buf_append_char(d->out, '"');
}

static void dump_newline(struct dumper *d)
{
	if (d->style->indent == NULL)
		return;
	buf_append_char(d->out, '\n');
	for (u32 i = 0; i < d->level; i++)
		buf_append_str(d->out, d->style->indent);
}

static void dump_separator(struct dumper *d, bool first)
{
	if (!first)
		buf_append_str(d->out, d->style->item_separator);
	dump_newline(d);
}

static bool dump_list(struct dumper *d, const struct jlist *l)
{
	if (l->count == 0) {
		buf_append_str(d->out, "[]");
		return true;
	}
	buf_append_char(d->out, '[');
	d->level++;
	for (size_t i = 0; i < l->count; i++) {
		dump_separator(d, i == 0);
		if (!dump(d, l->items[i]))
			return false;
	}
	d->level--;
	dump_newline(d);
	buf_append_char(d->out, ']');
	return true;
}

static bool dump_key(struct dumper *d, struct jv key)
{
	if (key.type == JV_STRING) {
		dump_string(d, key.s);
		return true;
	}
	if (!jv_is_number(key) && key.type != JV_NONE)
		return jinja_fail(d->j, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
	buf_append_char(d->out, '"');
	bool ok = dump(d, key);
	buf_append_char(d->out, '"');
	return ok;
}

/* Entry numbers in the order in which they are written. */
static bool dump_order(struct dumper *d, const struct jdict *dict, struct jsort_item **out)
{
	struct jsort_item *order = jinja_alloc(d->j, dict->count * sizeof(*order));
	if (order == NULL)
		return false;
	for (size_t i = 0; i < dict->count; i++)
		order[i] = (struct jsort_item){.key = dict->entries[i].key, .value = JV_INTEGER((int64_t)i)};
	*out = order;
	return !d->style->sort_keys || jv_sort(d->j, order, dict->count, false);
}

static bool dump_dict(struct dumper *d, const struct jdict *dict)
{
	struct jsort_item *order;
	if (dict->count == 0) {
		buf_append_str(d->out, "{}");
		return true;
	}
	if (!dump_order(d, dict, &order))
		return false;
	buf_append_char(d->out, '{');
	d->level++;
	for (size_t i = 0; i < dict->count; i++) {
		dump_separator(d, i == 0);
		if (!dump_key(d, order[i].key))
			return false;
		buf_append_str(d->out, d->style->key_separator);
		if (!dump(d, dict->entries[order[i].value.i].value))
			return false;
	}
	d->level--;
	dump_newline(d);
	buf_append_char(d->out, '}');
	return true;
}

static bool dump_scalar(struct dumper *d, struct jv v)
{
	switch (v.type) {
	case JV_NONE:
		buf_append_str(d->out, "null");
		return true;
	case JV_BOOL:
		buf_append_str(d->out, v.b ? "true" : "false");
		return true;
	case JV_FLOAT:
		if (isnan(v.f) || isinf(v.f))
			buf_append_str(d->out, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
		else
			jv_float_repr(v.f, d->out);
		return true;
	case JV_INT:
		return jv_str(d->j, v, d->out);
	case JV_STRING:
		dump_string(d, v.s);
		return true;
	default:
		return jinja_fail(d->j, "Object of type %s is not JSON serializable", jv_type_name(v));
	}
}

static bool dump(struct dumper *d, struct jv v)
{
	if (!jinja_charge(d->j, 0) || !jinja_enter(d->j))
		return false;
	bool ok = v.type == JV_DICT ? dump_dict(d, v.d) : jv_is_sequence(v) ? dump_list(d, v.l) : dump_scalar(d, v);
	d->j->depth--;
	if (ok && (d->out->failed || d->out->bytes > d->j->limits.output))
		return jinja_fail_memory(d->j);
	return ok;
}

bool jv_to_json(struct jinja *j, struct jv v, const struct json_style *style, struct buf *out)
{
	struct dumper d = {.j = j, .style = style, .out = out};
	return dump(&d, v);
}
