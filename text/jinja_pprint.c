/* Owns the filter pprint, which lays values out in lines as Python's pprint does. Runs where chat templates are
 * rendered. */
#include <string.h>

#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

static size_t chars_of(const char *text, size_t bytes)
{
	struct jstr s = {.data = text, .bytes = bytes, .chars = SIZE_MAX};
	return jstr_chars(&s);
}

/* ---- pprint: repr with sorted keys, one item a line where a line would be longer than 80 ---- */

enum { PPRINT_WIDTH = 80 };

/* repr() of a value whose dicts are in the order of their keys. */
static bool sorted(struct jinja *j, struct jv v, struct jv *out)
{
	bool ok = jinja_charge(j, 0) && jinja_enter(j);
	if (!ok)
		return false;
	*out = v;
	if (v.type == JV_DICT) {
		struct jsort_item *items = jinja_alloc(j, (v.d->count + 1) * sizeof(*items));
		ok = items != NULL && jv_dict(j, JV_DICT, out);
		for (size_t i = 0; ok && i < v.d->count; i++)
			items[i] = (struct jsort_item){.key = v.d->entries[i].key, .value = v.d->entries[i].value};
		ok = ok && jv_sort(j, items, v.d->count, false);
		for (size_t i = 0; ok && i < v.d->count; i++) {
			struct jv value;
			ok = sorted(j, items[i].value, &value) && jdict_put(j, out->d, items[i].key, value);
		}
	} else if (jv_is_sequence(v)) {
		ok = jv_list(j, v.type, v.l->count, out);
		for (size_t i = 0; ok && i < v.l->count; i++) {
			struct jv item;
			ok = sorted(j, v.l->items[i], &item) && jlist_push(j, out->l, item);
		}
	}
	j->depth--;
	return ok;
}

/* Where a value is written: from column `indent` on, with `allowance` characters behind it on its last line. `level`:
 * how deep it lies in others, 1 at the top. */
struct place {
	size_t indent;
	size_t allowance;
	u32 level;
};
static bool pformat(struct jinja *j, struct jv v, struct place p, struct buf *out);

static void put_line(struct buf *out, size_t indent)
{
	buf_append_str(out, ",\n");
	for (size_t i = 0; i < indent; i++)
		buf_append_char(out, ' ');
}

static bool pformat_dict(struct jinja *j, const struct jdict *d, struct place p, struct buf *out)
{
	buf_append_char(out, '{');
	for (size_t i = 0; i < d->count; i++) {
		bool last = i + 1 == d->count;
		size_t from = out->bytes;
		if (!jv_repr(j, d->entries[i].key, out))
			return false;
		size_t width = chars_of(out->data + from, out->bytes - from);
		buf_append_str(out, ": ");
		struct place at = {p.indent + 1 + width + 2, last ? p.allowance + 1 : 1, p.level + 1};
		if (!pformat(j, d->entries[i].value, at, out))
			return false;
		if (!last)
			put_line(out, p.indent + 1);
	}
	buf_append_char(out, '}');
	return true;
}

static bool pformat_list(struct jinja *j, struct jv v, struct place p, struct buf *out)
{
	bool tuple = v.type == JV_TUPLE;
	size_t closing = tuple && v.l->count == 1 ? 2 : 1;
	buf_append_char(out, tuple ? '(' : '[');
	for (size_t i = 0; i < v.l->count; i++) {
		bool last = i + 1 == v.l->count;
		struct place at = {p.indent + 1, last ? p.allowance + closing : 1, p.level + 1};
		if (!pformat(j, v.l->items[i], at, out))
			return false;
		if (!last)
			put_line(out, p.indent + 1);
	}
	buf_append_str(out, tuple ? (closing == 2 ? ",)" : ")") : "]");
	return true;
}

/* ---- strings that are longer than a line: several literals, cut behind lines and words ---- */

struct literals {
	struct jinja *j;
	struct place place;
	const char *text;
	struct buf out;   /* the literals, one a line */
	struct buf last;  /* repr of what was looked at last */
	size_t count;
};

static bool literal(struct literals *l, size_t from, size_t to, size_t *chars)
{
	struct jstr s = {.data = l->text + from, .bytes = to - from, .chars = SIZE_MAX};
	buf_clear(&l->last);
	if (!jv_repr(l->j, (struct jv){.type = JV_STRING, .s = &s}, &l->last) || !jinja_charge(l->j, l->last.bytes))
		return false;
	*chars = chars_of(l->last.data, l->last.bytes);
	return true;
}

static bool put_literal(struct literals *l, size_t from, size_t to)
{
	size_t chars;
	if (!literal(l, from, to, &chars))
		return false;
	if (l->count++ > 0) {
		buf_append_char(&l->out, '\n');
		for (size_t i = 0; i < l->place.indent; i++)
			buf_append_char(&l->out, ' ');
	}
	buf_append(&l->out, l->last.data, l->last.bytes);
	return true;
}

/* End of the word at `from` with the white space behind it. */
static size_t word_end(const char *text, size_t from, size_t to)
{
	bool space = false;
	for (size_t at = from; at < to;) {
		size_t next = at;
		bool is_space = jstr_is_space(unicode_next(text, &next));
		if (space && !is_space)
			return at;
		space = is_space;
		at = next;
	}
	return to;
}

/* One line of the string that is too long for one literal. */
static bool put_words(struct literals *l, size_t from, size_t to, bool last_line)
{
	size_t width = PPRINT_WIDTH - (l->place.indent < PPRINT_WIDTH ? l->place.indent : PPRINT_WIDTH), chars = 0;
	size_t begin = from;
	for (size_t at = from; at < to;) {
		size_t end = word_end(l->text, at, to);
		size_t allowance = end == to && last_line ? l->place.allowance : 0;
		if (!literal(l, begin, end, &chars))
			return false;
		if (chars + allowance > width) {
			if (at > begin && !put_literal(l, begin, at))
				return false;
			begin = at;
		}
		at = end;
	}
	return begin == to || put_literal(l, begin, to);
}

static bool pformat_string(struct jinja *j, struct jv v, struct place p, struct buf *out)
{
	struct literals l = {.j = j, .place = p, .text = v.s->data};
	if (p.level == 1) {
		l.place.indent++;
		l.place.allowance++;
	}
	bool ok = true;
	for (size_t from = 0, next; ok && from < v.s->bytes; from = next) {
		size_t chars, end;
		(void)jstr_line(v.s, from, &next);
		end = next;
		bool last = end == v.s->bytes;
		ok = literal(&l, from, end, &chars);
		if (ok)
			ok = chars + l.place.indent + (last ? l.place.allowance : 0) <= PPRINT_WIDTH
				     ? put_literal(&l, from, end)
				     : put_words(&l, from, end, last);
	}
	if (ok && l.count == 1)
		buf_append(out, l.last.data, l.last.bytes);
	else if (ok)
		buf_printf(out, p.level == 1 ? "(%s)" : "%s", buf_cstr(&l.out));
	out->failed = out->failed || l.out.failed || l.last.failed;
	buf_fini(&l.out);
	buf_fini(&l.last);
	return ok;
}

static bool pformat(struct jinja *j, struct jv v, struct place p, struct buf *out)
{
	size_t from = out->bytes;
	if (!jinja_enter(j))
		return false;
	bool ok = jv_repr(j, v, out);
	size_t chars = ok ? chars_of(out->data + from, out->bytes - from) : 0;
	bool fits = chars + p.indent + p.allowance <= PPRINT_WIDTH;
	bool text = v.type == JV_STRING && !v.safe && v.s->bytes > 0;
	bool many = (v.type == JV_DICT && v.d->count > 0) || (jv_is_sequence(v) && v.l->count > 0);
	if (ok && !fits && (text || many)) {
		out->bytes = from;
		ok = text                    ? pformat_string(j, v, p, out)
		     : v.type == JV_DICT ? pformat_dict(j, v.d, p, out)
					 : pformat_list(j, v, p, out);
	}
	j->depth--;
	if (ok && out->bytes > j->limits.output)
		return jinja_fail_memory(j);
	return ok && jinja_charge(j, chars);
}

FILTER(filter_pprint)
{
	(void)args, (void)all;
	struct buf b = {0};
	bool ok = sorted(j, self, &self) && pformat(j, self, (struct place){.level = 1}, &b) && jv_string_buf(j, &b, out);
	buf_fini(&b);
	return ok;
}

const struct builtin jinja_pprint_filters[] = {
	{"pprint", filter_pprint, "", 0},
	{NULL, NULL, NULL, 0},
};
