/* Owns comparing, measuring and walking values. Runs where chat templates are rendered. Data may be nested by the
 * template, so everything recursive counts its depth. */
#include <math.h>
#include <string.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

/* ---- equality ---- */

static bool equal_items(struct jinja *j, const struct jlist *a, const struct jlist *b, bool *out)
{
	*out = a->count == b->count;
	for (size_t i = 0; *out && i < a->count; i++)
		if (!jv_equal(j, a->items[i], b->items[i], out))
			return false;
	return true;
}

static bool equal_dicts(struct jinja *j, const struct jdict *a, const struct jdict *b, bool *out)
{
	*out = a->count == b->count;
	for (size_t i = 0; *out && i < a->count; i++) {
		struct jv other;
		bool found;
		if (!jdict_get(j, b, a->entries[i].key, &other, &found))
			return false;
		*out = found;
		if (found && !jv_equal(j, a->entries[i].value, other, out))
			return false;
	}
	return true;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
	return a->count == b->count && (a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step)));
}

static bool equal_numbers(struct jv a, struct jv b)
{
	return jv_is_int(a) && jv_is_int(b) ? jv_int(a) == jv_int(b) : jv_float(a) == jv_float(b);
}

bool jv_equal(struct jinja *j, struct jv a, struct jv b, bool *out)
{
	bool ok = true;
	*out = false;
	if (jv_is_number(a) && jv_is_number(b)) {
		*out = equal_numbers(a, b);
		return true;
	}
	if (a.type != b.type)
		return true;
	if (j == NULL) { /* keys that are no strings cannot equal a plain name */
		*out = a.type == JV_NONE;
		return true;
	}
	bool text = a.type == JV_STRING && a.s->bytes == b.s->bytes;
	if (!jinja_charge(j, text ? a.s->bytes : 0) || !jinja_enter(j))
		return false;
	switch (a.type) {
	case JV_UNDEFINED:
	case JV_NONE:
		*out = true;
		break;
	case JV_STRING:
		*out = a.s->bytes == b.s->bytes && memcmp(a.s->data, b.s->data, a.s->bytes) == 0;
		break;
	case JV_LIST:
	case JV_TUPLE:
		ok = equal_items(j, a.l, b.l, out);
		break;
	case JV_DICT:
		ok = equal_dicts(j, a.d, b.d, out);
		break;
	case JV_RANGE:
		*out = equal_ranges(a.range, b.range);
		break;
	default:
		*out = a.d == b.d; /* the same object */
		break;
	}
	j->depth--;
	return ok;
}

/* ---- order ---- */

static bool compare_items(struct jinja *j, const struct jlist *a, const struct jlist *b, const char *op, int *out)
{
	for (size_t i = 0; i < a->count && i < b->count; i++) {
		bool same;
		if (!jv_equal(j, a->items[i], b->items[i], &same))
			return false;
		if (!same)
			return jv_compare(j, a->items[i], b->items[i], op, out);
	}
	*out = a->count < b->count ? -1 : a->count > b->count;
	return true;
}

/* NaN compares to nothing: 2 makes every comparison false. */
static int compare_numbers(struct jv a, struct jv b)
{
	if (jv_is_int(a) && jv_is_int(b))
		return jv_int(a) < jv_int(b) ? -1 : jv_int(a) > jv_int(b);
	double x = jv_float(a), y = jv_float(b);
	return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
}

bool jv_compare(struct jinja *j, struct jv a, struct jv b, const char *op, int *out)
{
	if (jv_is_number(a) && jv_is_number(b)) {
		*out = compare_numbers(a, b);
		return true;
	}
	if (a.type == JV_STRING && b.type == JV_STRING) {
		/* The order of UTF-8 bytes is the order of code points. */
		size_t n = a.s->bytes < b.s->bytes ? a.s->bytes : b.s->bytes;
		if (!jinja_charge(j, n))
			return false;
		int order = memcmp(a.s->data, b.s->data, n);
		*out = order != 0 ? (order < 0 ? -1 : 1) : a.s->bytes < b.s->bytes ? -1 : a.s->bytes > b.s->bytes;
		return true;
	}
	if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, a.type == JV_UNDEFINED ? a : b);
	if (jv_is_sequence(a) && a.type == b.type) {
		if (!jinja_charge(j, 0) || !jinja_enter(j))
			return false;
		bool ok = compare_items(j, a.l, b.l, op, out);
		j->depth--;
		return ok;
	}
	return jinja_fail(j, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
			  jv_type_name(b));
}

/* ---- length and membership ---- */

bool jv_length(struct jinja *j, struct jv v, size_t *out)
{
	switch (v.type) {
	case JV_UNDEFINED:
		*out = 0;
		return true;
	case JV_STRING:
		*out = jstr_chars(v.s);
		return true;
	case JV_LIST:
	case JV_TUPLE:
		*out = v.l->count;
		return true;
	case JV_DICT:
		*out = v.d->count;
		return true;
	case JV_RANGE:
		*out = v.range->count;
		return true;
	case JV_VIEW:
		*out = v.view->dict->count;
		return true;
	case JV_LOOP:
		*out = v.loop->count;
		return true;
	default:
		return jinja_fail(j, "object of type '%s' has no len()", jv_type_name(v));
	}
}

static bool string_contains(struct jinja *j, struct jv text, struct jv item, bool *out)
{
	if (item.type != JV_STRING)
		return jinja_fail(j, "'in <string>' requires string as left operand, not %s", jv_type_name(item));
	if (!jinja_charge(j, text.s->bytes + item.s->bytes))
		return false;
	*out = item.s->bytes == 0 || memmem(text.s->data, text.s->bytes, item.s->data, item.s->bytes) != NULL;
	return true;
}

bool jv_contains(struct jinja *j, struct jv container, struct jv item, bool *out)
{
	struct jv value;
	*out = false;
	if (container.type == JV_STRING)
		return string_contains(j, container, item, out);
	if (container.type == JV_DICT)
		return jdict_get(j, container.d, item, &value, out);
	struct jiter it;
	bool done;
	if (container.type == JV_NAMESPACE || !jiter_begin(j, container, &it))
		return j->failed ? false
				 : jinja_fail(j, "argument of type '%s' is not iterable", jv_type_name(container));
	for (;;) {
		if (!jiter_next(j, &it, &value, &done))
			return false;
		if (done)
			return true;
		if (!jv_equal(j, value, item, out))
			return false;
		if (*out)
			return true;
	}
}

/* ---- walking ---- */

bool jiter_begin(struct jinja *j, struct jv v, struct jiter *it)
{
	*it = (struct jiter){.over = v};
	switch (v.type) {
	case JV_UNDEFINED:
	case JV_STRING:
	case JV_LIST:
	case JV_TUPLE:
	case JV_DICT:
	case JV_RANGE:
	case JV_VIEW:
	case JV_ITERATOR:
		return true;
	default:
		return jinja_fail(j, "'%s' object is not iterable", jv_type_name(v));
	}
}

static bool next_view(struct jinja *j, const struct jview *view, size_t at, struct jv *out)
{
	const struct jentry *e = &view->dict->entries[at];
	if (view->kind == JVIEW_ITEMS)
		return jv_pair(j, e->key, e->value, out);
	*out = view->kind == JVIEW_KEYS ? e->key : e->value;
	return true;
}

static bool next_char(struct jinja *j, struct jiter *it, struct jv *out, bool *done)
{
	struct jv text = it->over;
	*done = it->at >= text.s->bytes;
	if (*done)
		return true;
	size_t from = it->at;
	it->at += unicode_bytes((u8)text.s->data[from]);
	return jv_string(j, text.s->data + from, it->at - from, out);
}

static bool next_generated(struct jinja *j, struct jiterator *g, struct jv *out, bool *done)
{
	*done = g->at >= g->items.count;
	if (!*done) {
		*out = g->items.items[g->at++];
		return true;
	}
	return g->error == NULL || jinja_raise_again(j, g->error);
}

bool jiter_next(struct jinja *j, struct jiter *it, struct jv *out, bool *done)
{
	struct jv v = it->over;
	size_t count = 0;
	if (!jinja_charge(j, 0))
		return false;
	switch (v.type) {
	case JV_STRING:
		return next_char(j, it, out, done);
	case JV_ITERATOR:
		return next_generated(j, v.it, out, done);
	case JV_LIST:
	case JV_TUPLE:
		count = v.l->count;
		break;
	case JV_DICT:
		count = v.d->count;
		break;
	case JV_RANGE:
		count = v.range->count;
		break;
	case JV_VIEW:
		count = v.view->dict->count;
		break;
	default:
		break;
	}
	*done = it->at >= count;
	if (*done)
		return true;
	size_t at = it->at++;
	if (v.type == JV_VIEW)
		return next_view(j, v.view, at, out);
	*out = v.type == JV_DICT    ? v.d->entries[at].key
	       : v.type == JV_RANGE ? JV_INTEGER(v.range->start + (int64_t)at * v.range->step)
				    : v.l->items[at];
	return true;
}

bool jv_to_list(struct jinja *j, struct jv v, struct jv *out)
{
	struct jiter it;
	bool done;
	struct jv item;
	if (!jiter_begin(j, v, &it) || !jv_list(j, JV_LIST, jv_is_sequence(v) ? v.l->count : 0, out))
		return false;
	for (;;) {
		if (!jiter_next(j, &it, &item, &done))
			return false;
		if (done)
			return true;
		if (!jlist_push(j, out->l, item))
			return false;
	}
}
