/* Owns the global functions and the methods of everything but strings. Runs where chat templates are rendered. The
 * clock is the request's: nothing here reads time. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "text/jinja_priv.h"

#define FUNCTION(name)                                                                                       \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* ---- globals ---- */

FUNCTION(global_range)
{
	(void)self, (void)all;
	int64_t a, b, step;
	if (!jinja_arg_int(j, args[0], 0, &a) || !jinja_arg_int(j, args[1], 0, &b) ||
	    !jinja_arg_int(j, args[2], 1, &step))
		return false;
	int64_t start = args[1].type == JV_MISSING ? 0 : a, stop = args[1].type == JV_MISSING ? a : b;
	if (step == 0)
		return jinja_fail(j, "range() arg 3 must not be zero");
	__int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop;
	__int128 stride = step > 0 ? step : -(__int128)step;
	__int128 count = span <= 0 ? 0 : (span - 1) / stride + 1;
	if (count > JINJA_RANGE_MAX)
		return jinja_fail(j, "Range too big. The sandbox blocks ranges larger than %d", JINJA_RANGE_MAX);
	struct jrange *r = jinja_alloc(j, sizeof(*r));
	if (r == NULL)
		return false;
	*r = (struct jrange){.start = start, .stop = stop, .step = step, .count = (size_t)count};
	*out = (struct jv){.type = JV_RANGE, .range = r};
	return true;
}

/* dict(mapping or pairs, **names) */
static bool fill_dict(struct jinja *j, const struct jargs *all, struct jdict *d)
{
	struct jv list, pair;
	if (all->count > 1)
		return jinja_fail(j, "dict expected at most 1 argument, got %zu", all->count);
	struct jv from = all->count == 1 ? all->positional[0] : JV_UNDEF("");
	if (all->count == 1 && from.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, from);
	if (from.type == JV_DICT) {
		for (size_t i = 0; i < from.d->count; i++)
			if (!jdict_put(j, d, from.d->entries[i].key, from.d->entries[i].value))
				return false;
	} else {
		if (!jv_to_list(j, from, &list))
			return false;
		for (size_t i = 0; i < list.l->count; i++) {
			if (!jv_to_list(j, list.l->items[i], &pair))
				return false;
			if (pair.l->count != 2)
				return jinja_fail(j, "dictionary update sequence element has length %zu; 2 is required",
						  pair.l->count);
			if (!jdict_put(j, d, pair.l->items[0], pair.l->items[1]))
				return false;
		}
	}
	for (size_t i = 0; i < all->named_count; i++)
		if (!jdict_put(j, d, all->named[i].key, all->named[i].value))
			return false;
	return true;
}

FUNCTION(global_dict)
{
	(void)self, (void)args;
	return jv_dict(j, JV_DICT, out) && fill_dict(j, all, out->d);
}

FUNCTION(global_namespace)
{
	(void)self, (void)args;
	return jv_dict(j, JV_NAMESPACE, out) && fill_dict(j, all, out->d);
}

static bool make_cycler(struct jinja *j, enum jv_type type, const struct jv *items, size_t count, struct jv *out)
{
	struct jcycler *c = jinja_alloc(j, sizeof(*c));
	if (c == NULL)
		return false;
	*c = (struct jcycler){.at = 0};
	*out = (struct jv){.type = (u8)type, .cycler = c};
	for (size_t i = 0; i < count; i++)
		if (!jlist_push(j, &c->items, items[i]))
			return false;
	return true;
}

FUNCTION(global_cycler)
{
	(void)self, (void)args;
	if (all->count == 0)
		return jinja_fail(j, "at least one item has to be provided");
	return make_cycler(j, JV_CYCLER, all->positional, all->count, out);
}

FUNCTION(global_joiner)
{
	(void)self, (void)all;
	struct jv items[2];
	items[1] = args[0];
	if (!jv_string(j, "", 0, &items[0]) || (args[0].type == JV_MISSING && !jv_string(j, ", ", 2, &items[1])))
		return false;
	return make_cycler(j, JV_JOINER, items, 2, out);
}

FUNCTION(global_lipsum)
{
	(void)self, (void)args, (void)all, (void)out;
	return jinja_fail(j, "lipsum is not supported: the same request has to give the same prompt");
}

FUNCTION(global_raise_exception)
{
	(void)self, (void)all, (void)out;
	struct jv text;
	if (!jv_to_string(j, args[0], &text))
		return false;
	j->at = NULL; /* the message is the template's own */
	j->raised = true;
	return jinja_fail(j, "%s", text.s->data);
}

FUNCTION(global_strftime_now)
{
	(void)self, (void)all;
	struct jstr *format;
	if (!jinja_arg_string(j, args[0], "the format", &format))
		return false;
	time_t now = (time_t)j->now_s;
	struct tm tm;
	char text[1024];
	if (localtime_r(&now, &tm) == NULL)
		return jinja_fail(j, "the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	size_t n = strftime(text, sizeof(text), format->data, &tm);
#pragma GCC diagnostic pop
	if (n == 0 && format->bytes > sizeof(text) / 16)
		return jinja_fail(j, "strftime_now: the format is too long");
	return jv_string(j, text, n, out);
}

static const struct builtin globals[] = {
	{"range", global_range, "start,stop,step", 1},
	{"dict", global_dict, "*", 0},
	{"namespace", global_namespace, "*", 0},
	{"cycler", global_cycler, "*", 0},
	{"joiner", global_joiner, "sep", 0},
	{"lipsum", global_lipsum, "*", 0},
	{"raise_exception", global_raise_exception, "message", 1},
	{"strftime_now", global_strftime_now, "format", 1},
};

const struct builtin *jinja_global_find(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(globals); i++)
		if (strcmp(globals[i].name, name) == 0)
			return &globals[i];
	return NULL;
}

/* ---- methods ---- */

FUNCTION(dict_get)
{
	(void)all;
	bool found;
	if (!jdict_get(j, self.d, args[0], out, &found))
		return false;
	if (!found)
		*out = args[1].type != JV_MISSING ? args[1] : JV_NIL;
	return true;
}

static bool make_view(struct jinja *j, struct jv self, enum jview_kind kind, struct jv *out)
{
	struct jview *v = jinja_alloc(j, sizeof(*v));
	if (v == NULL)
		return false;
	*v = (struct jview){.kind = kind, .dict = self.d};
	*out = (struct jv){.type = JV_VIEW, .view = v};
	return true;
}

FUNCTION(dict_keys)
{
	(void)args, (void)all;
	return make_view(j, self, JVIEW_KEYS, out);
}

FUNCTION(dict_values)
{
	(void)args, (void)all;
	return make_view(j, self, JVIEW_VALUES, out);
}

FUNCTION(dict_items)
{
	(void)args, (void)all;
	return make_view(j, self, JVIEW_ITEMS, out);
}

/* Dicts and lists do not change, so a copy is the thing itself. */
FUNCTION(any_copy)
{
	(void)j, (void)args, (void)all;
	*out = self;
	return true;
}

static bool list_search(struct jinja *j, struct jv self, struct jv what, int64_t *count, int64_t *first)
{
	*count = 0;
	*first = -1;
	for (size_t i = 0; i < self.l->count; i++) {
		bool same;
		if (!jv_equal(j, self.l->items[i], what, &same))
			return false;
		*count += same;
		*first = same && *first < 0 ? (int64_t)i : *first;
	}
	return true;
}

/* Of lists, tuples and ranges. */
FUNCTION(list_count)
{
	(void)all;
	int64_t first;
	out->type = JV_INT;
	if (self.type == JV_RANGE && !jv_to_list(j, self, &self))
		return false;
	return list_search(j, self, args[0], &out->i, &first);
}

FUNCTION(list_index)
{
	(void)all;
	int64_t count;
	out->type = JV_INT;
	if (self.type == JV_RANGE && !jv_to_list(j, self, &self))
		return false;
	if (!list_search(j, self, args[0], &count, &out->i))
		return false;
	return out->i >= 0 || jinja_fail(j, "the value is not in the list");
}

FUNCTION(loop_cycle)
{
	(void)args;
	if (all->count == 0)
		return jinja_fail(j, "no items for cycling given");
	*out = all->positional[self.loop->index0 % all->count];
	return true;
}

FUNCTION(loop_changed)
{
	(void)args;
	struct jv now;
	bool same = false;
	if (!jv_list(j, JV_TUPLE, all->count, &now))
		return false;
	for (size_t i = 0; i < all->count; i++)
		if (!jlist_push(j, now.l, all->positional[i]))
			return false;
	if (self.loop->changed.type == JV_TUPLE && !jv_equal(j, self.loop->changed, now, &same))
		return false;
	self.loop->changed = now;
	*out = JV_BOOLEAN(!same);
	return true;
}

FUNCTION(cycler_next)
{
	(void)j, (void)args, (void)all;
	struct jcycler *c = self.cycler;
	*out = c->items.items[c->at];
	c->at = (c->at + 1) % c->items.count;
	return true;
}

FUNCTION(cycler_reset)
{
	(void)j, (void)args, (void)all;
	self.cycler->at = 0;
	*out = JV_NIL;
	return true;
}

FUNCTION(float_is_integer)
{
	(void)j, (void)args, (void)all;
	*out = JV_BOOLEAN(self.f == floor(self.f) && !isinf(self.f));
	return true;
}

FUNCTION(int_bit_length)
{
	(void)j, (void)args, (void)all;
	u64 magnitude = jv_int(self) < 0 ? 0 - (u64)jv_int(self) : (u64)jv_int(self);
	*out = JV_INTEGER(magnitude == 0 ? 0 : 64 - __builtin_clzll(magnitude));
	return true;
}

static const struct builtin dict_methods[] = {
	{"get", dict_get, "key,default", 1}, {"keys", dict_keys, "", 0}, {"values", dict_values, "", 0},
	{"items", dict_items, "", 0},        {"copy", any_copy, "", 0},  {NULL, NULL, NULL, 0},
};
static const struct builtin list_methods[] = {
	{"count", list_count, "value", 1},
	{"index", list_index, "value", 1},
	{"copy", any_copy, "", 0},
	{NULL, NULL, NULL, 0},
};
static const struct builtin tuple_methods[] = {
	{"count", list_count, "value", 1},
	{"index", list_index, "value", 1},
	{NULL, NULL, NULL, 0},
};
static const struct builtin loop_methods[] = {
	{"cycle", loop_cycle, "*", 0},
	{"changed", loop_changed, "*", 0},
	{NULL, NULL, NULL, 0},
};
static const struct builtin cycler_methods[] = {
	{"next", cycler_next, "", 0},
	{"reset", cycler_reset, "", 0},
	{NULL, NULL, NULL, 0},
};
static const struct builtin float_methods[] = {{"is_integer", float_is_integer, "", 0}, {NULL, NULL, NULL, 0}};
static const struct builtin int_methods[] = {{"bit_length", int_bit_length, "", 0}, {NULL, NULL, NULL, 0}};

static const struct builtin *find(const struct builtin *table, const char *name)
{
	for (; table != NULL && table->name != NULL; table++)
		if (strcmp(table->name, name) == 0)
			return table;
	return NULL;
}

const struct builtin *jinja_method_find(enum jv_type type, const char *name)
{
	static const struct builtin *const tables[JV_TYPE_COUNT] = {
		[JV_BOOL] = int_methods,     [JV_INT] = int_methods,     [JV_FLOAT] = float_methods,
		[JV_LIST] = list_methods,    [JV_TUPLE] = tuple_methods, [JV_DICT] = dict_methods,
		[JV_RANGE] = tuple_methods,  [JV_LOOP] = loop_methods,    [JV_CYCLER] = cycler_methods, [JV_STRING] = jinja_string_methods,
	};
	const struct builtin *b = find(tables[type], name);
	return b == NULL && type == JV_STRING ? find(jinja_split_methods, name) : b;
}
