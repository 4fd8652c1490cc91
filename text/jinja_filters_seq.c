/* Owns the filters that work on sequences. Runs where chat templates are rendered. Filters that Python has as
 * generators give iterators: their work is done at once, but an error met on the way waits until the walk gets there. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_str_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* ---- iterators ---- */

static bool new_iterator(struct jinja *j, struct jv *out)
{
	struct jiterator *it = jinja_alloc(j, sizeof(*it));
	if (it == NULL)
		return false;
	*it = (struct jiterator){.at = 0};
	*out = (struct jv){.type = JV_ITERATOR, .it = it};
	return true;
}

/* What becomes of one item; *keep false drops it. */
struct work {
	const struct jv *args;
	const struct jargs *all;
	const struct builtin *tool; /* filter or test; NULL: none */
	struct jargs tool_args;
	struct jv attribute;        /* JV_MISSING: none */
	struct jv fallback;
	bool reject;
};
typedef bool (*item_fn)(struct jinja *j, struct work *w, struct jv item, struct jv *out, bool *keep);
typedef bool (*prepare_fn)(struct jinja *j, struct work *w);

static bool walk_over(struct jinja *j, struct jv self, struct work *w, prepare_fn prepare, item_fn each,
		      struct jlist *items)
{
	struct jiter walk;
	struct jv item, result;
	bool done = false, keep;
	if (!prepare(j, w) || !jiter_begin(j, self, &walk))
		return false;
	for (;;) {
		if (!jiter_next(j, &walk, &item, &done))
			return false;
		if (done)
			return true;
		keep = true;
		if (!each(j, w, item, &result, &keep) || (keep && !jlist_push(j, items, result)))
			return false;
	}
}

/* Nothing is even prepared for a value that is false. */
static bool run_over(struct jinja *j, struct jv self, struct work *w, prepare_fn prepare, item_fn each, struct jv *out)
{
	if (!new_iterator(j, out))
		return false;
	return !jv_truthy(self) || walk_over(j, self, w, prepare, each, &out->it->items) || jinja_put_off_error(j, &out->it->error);
}

/* ---- attributes: "a.b.0" ---- */

bool jinja_get_path(struct jinja *j, struct jv item, struct jv attribute, struct jv fallback, struct jv *out)
{
	*out = item;
	if (attribute.type == JV_MISSING || attribute.type == JV_NONE)
		return true;
	if (attribute.type != JV_STRING)
		return jv_getitem(j, item, attribute, out);
	const char *p = attribute.s->data, *end = p + attribute.s->bytes;
	for (;;) {
		size_t n = 0;
		while (p + n < end && p[n] != '.')
			n++;
		bool number = n > 0 && strspn(p, "0123456789") >= n;
		struct jv key = JV_INTEGER(strtoll(p, NULL, 10));
		if ((!number && !jv_string(j, p, n, &key)) || !jv_getitem(j, *out, key, out))
			return false;
		if (out->type == JV_UNDEFINED && fallback.type != JV_MISSING && fallback.type != JV_NONE)
			*out = fallback;
		p += n;
		if (p >= end)
			return true;
		p++;
	}
}

static bool fold_case(struct jinja *j, struct jv v, bool case_sensitive, struct jv *out)
{
	*out = v;
	if (case_sensitive || v.type != JV_STRING)
		return true;
	struct buf b = {0};
	jstr_lower(&b, v.s->data, v.s->bytes);
	bool ok = jv_string_buf(j, &b, out);
	buf_fini(&b);
	return ok;
}

/* ---- map, select, reject ---- */

static const struct jv missing = {.type = JV_MISSING};

static bool map_item(struct jinja *j, struct work *w, struct jv item, struct jv *out, bool *keep)
{
	(void)keep;
	if (w->tool == NULL)
		return jinja_get_path(j, item, w->attribute, w->fallback, out);
	struct jargs args = w->tool_args;
	return jinja_call_builtin(j, w->tool, item, &args, out);
}

/* The tool's name is the argument at `index`; the ones behind it are the tool's. */
static bool read_tool(struct jinja *j, struct work *w, size_t index, bool filter)
{
	struct jstr *name;
	if (w->all->count <= index)
		return true;
	if (!jinja_arg_string(j, w->all->positional[index], filter ? "the filter" : "the test", &name))
		return false;
	w->tool = filter ? jinja_filter_find(name->data) : jinja_test_find(name->data);
	if (w->tool == NULL)
		return jinja_fail(j, "no %s named '%.80s'", filter ? "filter" : "test", name->data);
	w->tool_args = *w->all;
	w->tool_args.positional += index + 1;
	w->tool_args.count -= index + 1;
	return true;
}

static bool prepare_map(struct jinja *j, struct work *w)
{
	const struct jargs *all = w->all;
	for (size_t i = 0; all->count == 0 && i < all->named_count; i++) {
		const char *name = all->named[i].key.s->data;
		if (strcmp(name, "attribute") == 0)
			w->attribute = all->named[i].value;
		else if (strcmp(name, "default") == 0)
			w->fallback = all->named[i].value;
		else
			return jinja_fail(j, "map() got an unexpected keyword argument '%.80s'", name);
	}
	if (all->count == 0 && w->attribute.type == JV_MISSING)
		return jinja_fail(j, "map requires a filter argument");
	return read_tool(j, w, 0, true);
}

FILTER(filter_map)
{
	struct work w = {.args = args, .all = all, .attribute = missing, .fallback = missing};
	return run_over(j, self, &w, prepare_map, map_item, out);
}

static bool select_item(struct jinja *j, struct work *w, struct jv item, struct jv *out, bool *keep)
{
	struct jv value, verdict;
	if (!jinja_get_path(j, item, w->attribute, missing, &value))
		return false;
	verdict = value;
	struct jargs args = w->tool_args;
	if (w->tool != NULL && !jinja_call_builtin(j, w->tool, value, &args, &verdict))
		return false;
	*keep = jv_truthy(verdict) != w->reject;
	*out = item;
	return true;
}

static bool prepare_select(struct jinja *j, struct work *w)
{
	return read_tool(j, w, 0, false);
}

static bool prepare_select_attribute(struct jinja *j, struct work *w)
{
	if (w->all->count == 0)
		return jinja_fail(j, "missing parameter for attribute name");
	w->attribute = w->all->positional[0];
	return read_tool(j, w, 1, false);
}

static bool select_items(struct jinja *j, struct jv self, const struct jargs *all, bool attribute, bool reject,
			 struct jv *out)
{
	struct work w = {.all = all, .attribute = missing, .fallback = missing, .reject = reject};
	return run_over(j, self, &w, attribute ? prepare_select_attribute : prepare_select, select_item, out);
}

FILTER(filter_select)
{
	(void)args;
	return select_items(j, self, all, false, false, out);
}

FILTER(filter_reject)
{
	(void)args;
	return select_items(j, self, all, false, true, out);
}

FILTER(filter_selectattr)
{
	(void)args;
	return select_items(j, self, all, true, false, out);
}

FILTER(filter_rejectattr)
{
	(void)args;
	return select_items(j, self, all, true, true, out);
}

/* ---- unique, items, batch, slice ---- */

static bool unique_items(struct jinja *j, struct jv self, const struct jv *args, struct jlist *items)
{
	struct jv list, seen, key, value;
	bool sensitive = jinja_arg_bool(args[0], false), found;
	if (!jv_to_list(j, self, &list) || !jv_dict(j, JV_DICT, &seen))
		return false;
	for (size_t i = 0; i < list.l->count; i++) {
		struct jv item = list.l->items[i];
		if (!jinja_get_path(j, item, args[1], missing, &value) || !fold_case(j, value, sensitive, &key) ||
		    !jdict_get(j, seen.d, key, &value, &found))
			return false;
		if (found)
			continue;
		if (!jdict_put(j, seen.d, key, JV_NIL) || !jlist_push(j, items, item))
			return false;
	}
	return true;
}

static bool pair_items(struct jinja *j, struct jv self, const struct jv *args, struct jlist *items)
{
	(void)args;
	if (self.type == JV_UNDEFINED)
		return true;
	if (self.type != JV_DICT)
		return jinja_fail(j, "can only get item pairs from a mapping");
	for (size_t i = 0; i < self.d->count; i++) {
		struct jv pair;
		if (!jv_pair(j, self.d->entries[i].key, self.d->entries[i].value, &pair) || !jlist_push(j, items, pair))
			return false;
	}
	return true;
}

/* A list of items [from, to), filled up to `room` with `fill`. */
static bool push_row(struct jinja *j, struct jlist *rows, const struct jlist *l, size_t from, size_t to, size_t room,
		     struct jv fill)
{
	struct jv row;
	if (!jv_list(j, JV_LIST, to - from, &row))
		return false;
	for (size_t i = from; i < to; i++)
		row.l->items[row.l->count++] = l->items[i];
	bool fills = fill.type != JV_MISSING && fill.type != JV_NONE;
	while (fills && row.l->count < room)
		if (!jlist_push(j, row.l, fill))
			return false;
	return jlist_push(j, rows, row);
}

static bool batch_items(struct jinja *j, struct jv self, const struct jv *args, struct jlist *items)
{
	struct jv list;
	int64_t width;
	if (!jv_to_list(j, self, &list) || !jinja_arg_int(j, args[0], 0, &width))
		return false;
	if (width > JINJA_RANGE_MAX)
		return jinja_fail(j, "batch: rows longer than %d", JINJA_RANGE_MAX);
	size_t step = width > 0 ? (size_t)width : list.l->count + 1;
	for (size_t from = 0; from < list.l->count; from += step) {
		size_t to = from + step < list.l->count ? from + step : list.l->count;
		if (!push_row(j, items, list.l, from, to, (size_t)(width > 0 ? width : 0), args[1]))
			return false;
	}
	return true;
}

static bool slice_items(struct jinja *j, struct jv self, const struct jv *args, struct jlist *items)
{
	struct jv list;
	int64_t slices;
	if (!jv_to_list(j, self, &list) || !jinja_arg_int(j, args[0], 0, &slices))
		return false;
	if (slices <= 0 || slices > JINJA_RANGE_MAX)
		return jinja_fail(j, "slice: the number of slices must be between 1 and %d", JINJA_RANGE_MAX);
	size_t per = list.l->count / (size_t)slices, extra = list.l->count % (size_t)slices, from = 0;
	for (size_t i = 0; i < (size_t)slices; i++) {
		size_t to = from + per + (i < extra);
		if (!push_row(j, items, list.l, from, to, i < extra ? 0 : per + 1, args[1]))
			return false;
		from = to;
	}
	return true;
}

#define GENERATOR(name, fill)                                                                                \
	FILTER(name)                                                                                         \
	{                                                                                                    \
		(void)all;                                                                                   \
		if (!new_iterator(j, out))                                                                   \
			return false;                                                                        \
		return fill(j, self, args, &out->it->items) || jinja_put_off_error(j, &out->it->error);                    \
	}
GENERATOR(filter_unique, unique_items)
GENERATOR(filter_items, pair_items)
GENERATOR(filter_batch, batch_items)
GENERATOR(filter_slice, slice_items)

/* ---- sorting ---- */

/* The sort keys of all items: a list of what each comma-separated attribute gives, in lower case. */
static bool sort_keys(struct jinja *j, const struct jlist *list, struct jv attribute, bool sensitive,
		      struct jsort_item **out)
{
	struct jsort_item *items = jinja_alloc(j, (list->count + 1) * sizeof(*items));
	*out = items;
	for (size_t i = 0; items != NULL && i < list->count; i++) {
		items[i].value = list->items[i];
		if (!jv_list(j, JV_LIST, 1, &items[i].key))
			return false;
		const char *p = attribute.type == JV_STRING ? attribute.s->data : NULL;
		do {
			size_t n = p != NULL ? strcspn(p, ",") : 0;
			struct jv path = attribute, value;
			if (p != NULL && !jv_string(j, p, n, &path))
				return false;
			if (!jinja_get_path(j, list->items[i], path, missing, &value) ||
			    !fold_case(j, value, sensitive, &value) || !jlist_push(j, items[i].key.l, value))
				return false;
			p = p != NULL && p[n] == ',' ? p + n + 1 : NULL;
		} while (p != NULL);
	}
	return items != NULL;
}

static bool sorted_list(struct jinja *j, struct jsort_item *items, size_t count, bool reverse, struct jv *out)
{
	if (!jv_sort(j, items, count, reverse) || !jv_list(j, JV_LIST, count, out))
		return false;
	for (size_t i = 0; i < count; i++)
		out->l->items[i] = items[i].value;
	out->l->count = count;
	return true;
}

FILTER(filter_sort)
{
	(void)all;
	struct jv list;
	struct jsort_item *items;
	return jv_to_list(j, self, &list) &&
	       sort_keys(j, list.l, args[2], jinja_arg_bool(args[1], false), &items) &&
	       sorted_list(j, items, list.l->count, jinja_arg_bool(args[0], false), out);
}

FILTER(filter_dictsort)
{
	(void)all;
	bool sensitive = jinja_arg_bool(args[0], false), by_value = false;
	if (args[1].type != JV_MISSING) {
		by_value = args[1].type == JV_STRING && strcmp(args[1].s->data, "value") == 0;
		if (!by_value && (args[1].type != JV_STRING || strcmp(args[1].s->data, "key") != 0))
			return jinja_fail(j, "you can only sort by either \"key\" or \"value\"");
	}
	if (self.type != JV_DICT)
		return self.type == JV_UNDEFINED
			       ? jinja_fail_undefined(j, self)
			       : jinja_fail(j, "'%s' object has no attribute 'items'", jv_type_name(self));
	struct jsort_item *items = jinja_alloc(j, (self.d->count + 1) * sizeof(*items));
	for (size_t i = 0; items != NULL && i < self.d->count; i++) {
		const struct jentry *e = &self.d->entries[i];
		if (!jv_pair(j, e->key, e->value, &items[i].value) ||
		    !fold_case(j, by_value ? e->value : e->key, sensitive, &items[i].key))
			return false;
	}
	return items != NULL && sorted_list(j, items, self.d->count, jinja_arg_bool(args[2], false), out);
}

static bool push_group(struct jinja *j, struct jlist *groups, struct jv key, struct jv *members)
{
	struct jv group;
	if (!jv_list(j, JV_LIST, 0, members) || !jv_pair(j, key, *members, &group))
		return false;
	group.safe = true; /* a pair with names */
	return jlist_push(j, groups, group);
}

FILTER(filter_groupby)
{
	(void)all;
	struct jv list, members = JV_NIL, before = missing, real;
	bool sensitive = jinja_arg_bool(args[2], false);
	if (!jv_to_list(j, self, &list) || !jv_list(j, JV_LIST, 0, out))
		return false;
	struct jsort_item *items = jinja_alloc(j, (list.l->count + 1) * sizeof(*items));
	for (size_t i = 0; items != NULL && i < list.l->count; i++) {
		items[i].value = list.l->items[i];
		if (!jinja_get_path(j, items[i].value, args[0], args[1], &real) ||
		    !fold_case(j, real, sensitive, &items[i].key))
			return false;
	}
	if (items == NULL || !jv_sort(j, items, list.l->count, false))
		return false;
	for (size_t i = 0; i < list.l->count; i++) {
		bool same = false;
		if (before.type != JV_MISSING && !jv_equal(j, before, items[i].key, &same))
			return false;
		before = items[i].key;
		if (!same && (!jinja_get_path(j, items[i].value, args[0], args[1], &real) ||
			      !push_group(j, out->l, real, &members)))
			return false;
		if (!jlist_push(j, members.l, items[i].value))
			return false;
	}
	return true;
}

static bool extreme(struct jinja *j, struct jv self, const struct jv *args, int wanted, struct jv *out)
{
	struct jv list, value, key, best = JV_NIL;
	bool sensitive = jinja_arg_bool(args[0], false);
	if (!jv_to_list(j, self, &list))
		return false;
	*out = JV_UNDEF("No aggregated item, sequence was empty.");
	for (size_t i = 0; i < list.l->count; i++) {
		int order = wanted;
		if (!jinja_get_path(j, list.l->items[i], args[1], missing, &value) || !fold_case(j, value, sensitive, &key))
			return false;
		if (i > 0 && !jv_compare(j, key, best, wanted < 0 ? "<" : ">", &order))
			return false;
		if (order == wanted) {
			best = key;
			*out = list.l->items[i];
		}
	}
	return true;
}

FILTER(filter_min)
{
	(void)all;
	return extreme(j, self, args, -1, out);
}

FILTER(filter_max)
{
	(void)all;
	return extreme(j, self, args, 1, out);
}

const struct builtin jinja_sequence_filters[] = {
	{"batch", filter_batch, "linecount,fill_with", 1},
	{"dictsort", filter_dictsort, "case_sensitive,by,reverse", 0},
	{"groupby", filter_groupby, "attribute,default,case_sensitive", 1},
	{"items", filter_items, "", 0},
	{"map", filter_map, "*", 0},
	{"max", filter_max, "case_sensitive,attribute", 0},
	{"min", filter_min, "case_sensitive,attribute", 0},
	{"reject", filter_reject, "*", 0},
	{"rejectattr", filter_rejectattr, "*", 0},
	{"select", filter_select, "*", 0},
	{"selectattr", filter_selectattr, "*", 0},
	{"slice", filter_slice, "slices,fill_with", 1},
	{"sort", filter_sort, "reverse,case_sensitive,attribute", 0},
	{"unique", filter_unique, "case_sensitive,attribute", 0},
	{NULL, NULL, NULL, 0},
};
