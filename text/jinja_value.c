/* Owns the making of values: strings, lists, dicts, JSON. Runs where chat templates are rendered, on the arena of one
 * rendering. Nothing here is freed before the rendering ends. */
#include <math.h>
#include <string.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

enum { DICT_INDEX_FROM = 8 };

/* ---- strings ---- */

static struct jstr *new_str(struct jinja *j, const char *data, size_t bytes, size_t chars)
{
	struct jstr *s = jinja_alloc(j, sizeof(*s));
	if (s != NULL)
		*s = (struct jstr){.data = data, .bytes = bytes, .chars = chars};
	return s;
}

static bool may_be_string(struct jinja *j, size_t bytes)
{
	if (bytes <= j->limits.output)
		return true;
	j->limited = true;
	return jinja_fail(j, "a string of more than %zu bytes", j->limits.output);
}

bool jv_string(struct jinja *j, const char *text, size_t bytes, struct jv *out)
{
	if (!may_be_string(j, bytes) || !jinja_charge(j, bytes))
		return false;
	char *copy = jinja_alloc(j, bytes + 1);
	if (copy == NULL)
		return false;
	if (bytes > 0)
		memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	struct jstr *s = new_str(j, copy, bytes, SIZE_MAX);
	*out = (struct jv){.type = JV_STRING, .s = s};
	return s != NULL;
}

bool jv_string_buf(struct jinja *j, const struct buf *b, struct jv *out)
{
	if (b->failed)
		return jinja_fail_memory(j);
	return jv_string(j, b->data != NULL ? b->data : "", b->bytes, out);
}

size_t jstr_chars(struct jstr *s)
{
	if (s->chars == SIZE_MAX) {
		size_t n = 0;
		for (size_t i = 0; i < s->bytes; i++)
			n += ((u8)s->data[i] & 0xc0) != 0x80;
		s->chars = n;
	}
	return s->chars;
}

size_t jstr_offset(struct jstr *s, size_t chars)
{
	if (jstr_chars(s) == s->bytes)
		return chars < s->bytes ? chars : s->bytes;
	size_t at = 0;
	while (chars-- > 0 && at < s->bytes)
		at += unicode_bytes((u8)s->data[at]);
	return at;
}

/* Appends in place where the left string is the end of its store. */
bool jv_concat(struct jinja *j, struct jv a, struct jv b, struct jv *out)
{
	size_t bytes = a.s->bytes + b.s->bytes;
	if (!may_be_string(j, bytes))
		return false;
	struct jstore *store = a.s->store;
	bool fits = store != NULL && a.s->data + a.s->bytes == store->data + store->used &&
		    store->room - store->used > b.s->bytes;
	if (!fits) {
		store = jinja_alloc(j, sizeof(*store));
		size_t room = bytes < 64 ? 128 : bytes * 2;
		char *data = store != NULL ? jinja_alloc(j, room) : NULL;
		if (data == NULL)
			return false;
		memcpy(data, a.s->data, a.s->bytes);
		*store = (struct jstore){.data = data, .used = a.s->bytes, .room = room};
	}
	if (!jinja_charge(j, fits ? b.s->bytes : bytes))
		return false;
	const char *data = fits ? a.s->data : store->data;
	memcpy(store->data + store->used, b.s->data, b.s->bytes);
	store->used += b.s->bytes;
	store->data[store->used] = '\0';
	bool counted = a.s->chars != SIZE_MAX && b.s->chars != SIZE_MAX;
	struct jstr *s = new_str(j, data, bytes, counted ? a.s->chars + b.s->chars : SIZE_MAX);
	if (s == NULL)
		return false;
	s->store = store;
	*out = (struct jv){.type = JV_STRING, .safe = a.safe, .s = s};
	return true;
}

/* ---- lists ---- */

bool jv_list(struct jinja *j, enum jv_type type, size_t room, struct jv *out)
{
	struct jlist *l = jinja_alloc(j, sizeof(*l));
	if (l == NULL)
		return false;
	*l = (struct jlist){.room = room};
	if (room > 0) {
		l->items = jinja_alloc(j, room * sizeof(*l->items));
		if (l->items == NULL)
			return false;
	}
	*out = (struct jv){.type = (u8)type, .l = l};
	return true;
}

bool jlist_push(struct jinja *j, struct jlist *l, struct jv v)
{
	if (l->count == l->room) {
		size_t room = l->room == 0 ? 4 : l->room * 2;
		struct jv *items = jinja_alloc(j, room * sizeof(*items));
		if (items == NULL)
			return false;
		if (l->count > 0)
			memcpy(items, l->items, l->count * sizeof(*items));
		l->items = items;
		l->room = room;
	}
	l->items[l->count++] = v;
	return true;
}

bool jv_pair(struct jinja *j, struct jv a, struct jv b, struct jv *out)
{
	if (!jv_list(j, JV_TUPLE, 2, out))
		return false;
	out->l->items[0] = a;
	out->l->items[1] = b;
	out->l->count = 2;
	return true;
}

/* ---- dicts ---- */

static u64 hash_bytes(const char *text, size_t bytes)
{
	u64 h = 0xcbf29ce484222325u; /* FNV-1a */
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ (u8)text[i]) * 0x100000001b3u;
	return h;
}

/* Equal values have equal hashes: 1, 1.0 and True are one key. False where a key cannot be hashed; `*limit` when
 * that is for the limit of steps, which is recorded. */
static bool hash_value(struct jinja *j, struct jv v, u64 *h, bool *limit)
{
	*h = v.type;
	*limit = !jinja_charge(j, v.type == JV_STRING ? v.s->bytes : 0) || !jinja_enter(j);
	if (*limit)
		return false;
	bool ok = v.type != JV_LIST && v.type != JV_DICT;
	switch (v.type) {
	case JV_STRING:
		*h = hash_bytes(v.s->data, v.s->bytes);
		break;
	case JV_BOOL:
	case JV_INT:
		*h = (u64)jv_int(v) * 0x9e3779b97f4a7c15u;
		break;
	case JV_FLOAT:
		memcpy(h, &v.f, sizeof(*h));
		if (v.f == floor(v.f) && fabs(v.f) < 9e18)
			*h = (u64)(int64_t)v.f;
		*h *= 0x9e3779b97f4a7c15u;
		break;
	case JV_TUPLE:
		for (size_t i = 0; ok && i < v.l->count; i++) {
			u64 item = 0;
			ok = hash_value(j, v.l->items[i], &item, limit);
			*h = (*h ^ item) * 0x100000001b3u;
		}
		break;
	default:
		break;
	}
	j->depth--;
	return ok;
}

static bool hash_key(struct jinja *j, struct jv key, u64 *hash)
{
	bool limit = false;
	return hash_value(j, key, hash, &limit) || (!limit && jinja_fail(j, "unhashable type: '%s'", jv_type_name(key)));
}

bool jv_is_hashable(struct jinja *j, struct jv v)
{
	u64 hash;
	bool limit;
	return hash_value(j, v, &hash, &limit);
}

bool jv_dict(struct jinja *j, enum jv_type type, struct jv *out)
{
	struct jdict *d = jinja_alloc(j, sizeof(*d));
	if (d == NULL)
		return false;
	*d = (struct jdict){.count = 0};
	*out = (struct jv){.type = (u8)type, .d = d};
	return true;
}

static bool same_key(struct jinja *j, const struct jentry *e, struct jv key, u64 hash, bool *same)
{
	*same = false;
	if (j != NULL && !jinja_charge(j, 0)) /* keys may have been chosen to meet */
		return false;
	if (e->hash != hash)
		return true;
	if (key.type == JV_STRING && e->key.type == JV_STRING) {
		*same = key.s->bytes == e->key.s->bytes && memcmp(key.s->data, e->key.s->data, key.s->bytes) == 0;
		return true;
	}
	return jv_equal(j, e->key, key, same);
}

/* The entry of a key; NULL when absent. */
static bool find_entry(struct jinja *j, const struct jdict *d, struct jv key, u64 hash, struct jentry **out)
{
	bool same;
	*out = NULL;
	for (size_t i = 0; d->index == NULL && i < d->count; i++) {
		if (!same_key(j, &d->entries[i], key, hash, &same))
			return false;
		if (same) {
			*out = &d->entries[i];
			return true;
		}
	}
	for (size_t i = hash; d->index != NULL && d->index[i & d->index_mask] != 0; i++) {
		struct jentry *e = &d->entries[d->index[i & d->index_mask] - 1];
		if (!same_key(j, e, key, hash, &same))
			return false;
		if (same) {
			*out = e;
			return true;
		}
	}
	return true;
}

static bool grow_dict(struct jinja *j, struct jdict *d)
{
	size_t room = d->room == 0 ? 4 : d->room * 2;
	struct jentry *entries = jinja_alloc(j, room * sizeof(*entries));
	if (entries == NULL)
		return false;
	if (d->count > 0)
		memcpy(entries, d->entries, d->count * sizeof(*entries));
	d->entries = entries;
	d->room = room;
	if (room <= DICT_INDEX_FROM)
		return true;
	d->index_mask = room * 2 - 1;
	d->index = jinja_alloc(j, room * 2 * sizeof(*d->index));
	if (d->index == NULL)
		return false;
	memset(d->index, 0, room * 2 * sizeof(*d->index));
	for (size_t e = 0; e < d->count; e++) {
		size_t i = entries[e].hash;
		while (d->index[i & d->index_mask] != 0)
			i++;
		d->index[i & d->index_mask] = (u32)e + 1;
	}
	return true;
}

bool jdict_put(struct jinja *j, struct jdict *d, struct jv key, struct jv value)
{
	u64 hash = 0;
	struct jentry *e;
	if (!hash_key(j, key, &hash) || !find_entry(j, d, key, hash, &e))
		return false;
	if (e != NULL) {
		e->value = value;
		return true;
	}
	if (d->count == d->room && !grow_dict(j, d))
		return false;
	d->entries[d->count++] = (struct jentry){.key = key, .value = value, .hash = hash};
	if (d->index != NULL) {
		size_t i = hash;
		while (d->index[i & d->index_mask] != 0)
			i++;
		d->index[i & d->index_mask] = (u32)d->count;
	}
	return true;
}

bool jdict_get(struct jinja *j, const struct jdict *d, struct jv key, struct jv *out, bool *found)
{
	u64 hash = 0;
	struct jentry *e;
	if (!hash_key(j, key, &hash) || !find_entry(j, d, key, hash, &e))
		return false;
	*found = e != NULL;
	if (e != NULL)
		*out = e->value;
	return true;
}

bool jdict_find(const struct jdict *d, const char *name, size_t bytes, struct jv *out)
{
	struct jstr s = {.data = name, .bytes = bytes};
	struct jv key = {.type = JV_STRING, .s = &s};
	struct jentry *e;
	/* String keys are compared without a rendering to report to. */
	if (!find_entry(NULL, d, key, hash_bytes(name, bytes), &e) || e == NULL)
		return false;
	*out = e->value;
	return true;
}

/* ---- JSON ---- */

static bool from_array(struct jinja *j, json_val v, struct jv *out)
{
	if (!jv_list(j, JV_LIST, json_count(v), out))
		return false;
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		struct jv item;
		if (!jv_from_json(j, it.value, &item) || !jlist_push(j, out->l, item))
			return false;
	}
	return true;
}

static bool from_object(struct jinja *j, json_val v, struct jv *out)
{
	if (!jv_dict(j, JV_DICT, out))
		return false;
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		struct jv key, value;
		if (!jv_string(j, it.key, it.key_bytes, &key) || !jv_from_json(j, it.value, &value) ||
		    !jdict_put(j, out->d, key, value))
			return false;
	}
	return true;
}

bool jv_from_json(struct jinja *j, json_val v, struct jv *out)
{
	const char *text;
	size_t bytes;
	bool ok = true;
	*out = JV_NIL;
	switch (json_type(v)) {
	case JSON_BOOL:
		out->type = JV_BOOL;
		(void)json_bool(v, &out->b);
		break;
	case JSON_INT:
		out->type = JV_INT;
		if (!json_int(v, &out->i)) {
			out->type = JV_FLOAT; /* above 2^63 */
			(void)json_double(v, &out->f);
		}
		break;
	case JSON_DOUBLE:
		out->type = JV_FLOAT;
		(void)json_double(v, &out->f);
		break;
	case JSON_STRING:
		(void)json_string(v, &text, &bytes);
		return jv_string(j, text, bytes, out);
	case JSON_ARRAY:
	case JSON_OBJECT:
		if (!jinja_enter(j))
			return false;
		ok = json_type(v) == JSON_ARRAY ? from_array(j, v, out) : from_object(j, v, out);
		j->depth--;
		break;
	default:
		break;
	}
	return ok;
}

/* ---- small questions ---- */

bool jv_truthy(struct jv v)
{
	switch (v.type) {
	case JV_MISSING:
	case JV_UNDEFINED:
	case JV_NONE:
		return false;
	case JV_BOOL:
		return v.b;
	case JV_INT:
		return v.i != 0;
	case JV_FLOAT:
		return v.f != 0;
	case JV_STRING:
		return v.s->bytes > 0;
	case JV_LIST:
	case JV_TUPLE:
		return v.l->count > 0;
	case JV_DICT:
		return v.d->count > 0;
	case JV_RANGE:
		return v.range->count > 0;
	case JV_VIEW:
		return v.view->dict->count > 0;
	default:
		return true; /* namespaces, iterators, callables */
	}
}

const char *jv_type_name(struct jv v)
{
	static const char *const names[JV_TYPE_COUNT] = {
		[JV_MISSING] = "missing",     [JV_UNDEFINED] = "Undefined", [JV_NONE] = "NoneType",
		[JV_BOOL] = "bool",           [JV_INT] = "int",             [JV_FLOAT] = "float",
		[JV_STRING] = "str",          [JV_LIST] = "list",           [JV_TUPLE] = "tuple",
		[JV_DICT] = "dict",           [JV_RANGE] = "range",         [JV_VIEW] = "dict_items",
		[JV_ITERATOR] = "generator",  [JV_NAMESPACE] = "Namespace", [JV_LOOP] = "LoopContext",
		[JV_MACRO] = "Macro",         [JV_METHOD] = "method",       [JV_FUNCTION] = "function",
		[JV_CYCLER] = "Cycler",       [JV_JOINER] = "Joiner",
	};
	return v.type == JV_STRING && v.safe ? "Markup" : names[v.type];
}
