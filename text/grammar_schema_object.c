/* Owns what schemas say about objects: properties in their order, required ones, and further members. Runs wherever a grammar is
 * compiled. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/grammar_schema_priv.h"
#include "text/regex_priv.h"

enum { PROPERTIES_MAX = 4096 };

struct property {
	const char *name;
	size_t bytes;
	bool required;
};
struct object {
	struct schema *s;
	const struct conj *c;
	struct property *properties; /* in the order in which they are written */
	u32 count, capacity;
	u32 required;
};

static struct property *find_property(struct object *o, const char *name, size_t bytes)
{
	for (u32 i = 0; i < o->count; i++) {
		if (o->properties[i].bytes == bytes && memcmp(o->properties[i].name, name, bytes) == 0)
			return &o->properties[i];
	}
	return NULL;
}

static struct property *add_property(struct object *o, const char *name, size_t bytes)
{
	struct property *found = find_property(o, name, bytes);
	if (found != NULL || o->s->b->err != ERR_OK)
		return found;
	if (o->count == o->capacity) {
		u32 capacity = o->capacity > 0 ? 2 * o->capacity : 16;
		struct property *grown = capacity <= PROPERTIES_MAX ? arena_alloc(&o->s->b->arena, capacity * sizeof(*grown)) : NULL;
		if (grown == NULL) {
			gb_fail(o->s->b, ERR_TOO_LONG, "%s: more than %d properties", o->c->layers[0].path, PROPERTIES_MAX);
			return NULL;
		}
		if (o->count > 0)
			memcpy(grown, o->properties, o->count * sizeof(*grown));
		o->properties = grown;
		o->capacity = capacity;
	}
	o->properties[o->count] = (struct property){name, bytes, false};
	return &o->properties[o->count++];
}

static void list_properties(struct object *o)
{
	for (u32 i = 0; i < o->c->count; i++) {
		json_val list = layer_get(o->s, &o->c->layers[i], "properties", JSON_OBJECT);
		for (struct json_iter it = json_iterate(list); json_next(&it);)
			add_property(o, it.key, it.key_bytes);
	}
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		json_val list = layer_get(o->s, l, "required", JSON_ARRAY);
		for (struct json_iter it = json_iterate(list); o->s->b->err == ERR_OK && json_next(&it);) {
			const char *name;
			size_t bytes;
			if (!json_string(it.value, &name, &bytes)) {
				gb_fail(o->s->b, ERR_FORMAT, "%s/required is to be an array of names", l->path);
				return;
			}
			struct property *p = add_property(o, name, bytes);
			o->required += p != NULL && !p->required;
			if (p != NULL)
				p->required = true;
		}
	}
}

/* Whether the pattern is found in the name; patterns that PCRE2 does not take count as found. */
static bool name_matches(const char *pattern, size_t pattern_bytes, const char *name, size_t bytes)
{
	struct regex r;
	struct regex_scratch scratch;
	size_t begin, end;
	if (regex_compile(&r, pattern, pattern_bytes, NULL) != ERR_OK)
		return true;
	bool found = true;
	if (regex_scratch_init(&scratch) == ERR_OK) {
		found = regex_match(&r, &scratch, name, bytes, 0, &begin, &end) != ERR_NOT_FOUND;
		regex_scratch_fini(&scratch);
	}
	regex_fini(&r);
	return found;
}

/* additionalProperties of the layer, or unevaluatedProperties, which says the same here. */
static json_val additional_of(const struct layer *l, const char **key)
{
	*key = json_type(json_get(l->v, "additionalProperties")) != JSON_MISSING ? "additionalProperties" : "unevaluatedProperties";
	return json_get(l->v, *key);
}

/* What applies to the value of a property that has a name. */
static void property_conj(struct object *o, const struct property *p, struct conj *out)
{
	struct schema *s = o->s;
	*out = (struct conj){0};
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		json_val v = json_getn(json_get(l->v, "properties"), p->name, p->bytes);
		bool named = json_type(v) != JSON_MISSING;
		if (named)
			conj_add(s, out, v, schema_path(s, l->path, "properties", p->name, p->bytes));
		for (struct json_iter it = json_iterate(json_get(l->v, "patternProperties")); json_next(&it);) {
			if (!name_matches(it.key, it.key_bytes, p->name, p->bytes))
				continue;
			conj_add(s, out, it.value, schema_path(s, l->path, "patternProperties", it.key, it.key_bytes));
			named = true;
		}
		const char *key;
		json_val further = additional_of(l, &key);
		if (!named && json_type(further) != JSON_MISSING && strcmp(key, "additionalProperties") == 0)
			conj_add(s, out, further, schema_path(s, l->path, key, NULL, 0));
	}
}

/* ---- further members ---- */

enum further { FURTHER_NONE, FURTHER_ANY_NAME, FURTHER_PATTERN };

/* Which members may come behind those with names, and what applies to their values. */
static enum further find_further(struct object *o, struct conj *value, const struct layer **where, struct json_iter *pattern)
{
	struct schema *s = o->s;
	bool closed = false, open = false;
	u32 patterns = 0;
	*value = (struct conj){0};
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		const char *key;
		json_val further = additional_of(l, &key);
		bool truth = true;
		closed = closed || (json_bool(further, &truth) && !truth);
		open = open || json_type(further) != JSON_MISSING;
		for (struct json_iter it = json_iterate(layer_get(s, l, "patternProperties", JSON_OBJECT)); json_next(&it);) {
			patterns++;
			*pattern = it;
			*where = l;
		}
	}
	if (patterns > 1 || (patterns == 1 && open && !closed))
		gb_fail(s->b, ERR_UNSUPPORTED, "%s/patternProperties: %s is not supported: only one pattern, with additionalProperties false or absent",
			(*where)->path, patterns > 1 ? "more than one pattern" : "additionalProperties beside a pattern");
	if (patterns == 1) {
		conj_add(s, value, pattern->value, schema_path(s, (*where)->path, "patternProperties", pattern->key, pattern->key_bytes));
		return FURTHER_PATTERN;
	}
	if (closed || (!open && o->count > 0))
		return FURTHER_NONE;
	for (u32 i = 0; i < o->c->count; i++) {
		const char *key;
		json_val further = additional_of(&o->c->layers[i], &key);
		if (json_type(further) != JSON_MISSING)
			conj_add(s, value, further, schema_path(s, o->c->layers[i].path, key, NULL, 0));
	}
	return value->never ? FURTHER_NONE : FURTHER_ANY_NAME;
}

struct names {
	struct object *o;
	u32 rest;  /* here the name is another one already */
	u32 close; /* behind the closing quote */
};

static int compare_properties(const void *a, const void *b)
{
	const struct property *x = a, *y = b;
	size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
	int order = n > 0 ? memcmp(x->name, y->name, n) : 0;
	return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void add_codes(struct names *n, struct code_set *set, u32 first, u32 last)
{
	if (!code_set_add(&n->o->s->b->arena, set, first, last))
		gb_fail(n->o->s->b, ERR_TOO_LONG, "the schema is too large");
}

/* Characters that names of further members have: those that need no backslash, but for the code points of `without`. */
static void put_other_code(struct names *n, u32 from, const struct code_set *without)
{
	struct code_set set = {0};
	add_codes(n, &set, 0, 0x1f);
	add_codes(n, &set, '"', '"');
	add_codes(n, &set, '\\', '\\');
	if (!code_set_add_set(&n->o->s->b->arena, &set, without))
		gb_fail(n->o->s->b, ERR_TOO_LONG, "the schema is too large");
	code_set_finish(&set);
	if (!code_set_negate(&n->o->s->b->arena, &set))
		gb_fail(n->o->s->b, ERR_TOO_LONG, "the schema is too large");
	if (n->o->s->b->err == ERR_OK)
		gb_empty(n->o->s->b, gb_set(n->o->s->b, from, &set), n->rest);
}

/* Names that are none of sorted[first .. last), which are equal in their first `done` bytes. As deep as names are long. */
static void put_other_names(struct names *n, u32 from, const struct property *sorted, u32 first, u32 last, size_t done)
{
	struct gb *b = n->o->s->b;
	struct code_set taken = {0};
	bool ends = first < last && sorted[first].bytes == done;
	if (!ends)
		gb_bytes(b, from, n->close, '"', '"');
	for (u32 i = first + ends; i < last && b->err == ERR_OK;) {
		uint32_t code = 0, other = 0;
		int bytes = utf8_next(sorted[i].name + done, sorted[i].bytes - done, &code);
		u32 end = i + 1;
		while (end < last && utf8_next(sorted[end].name + done, sorted[end].bytes - done, &other) > 0 && other == code)
			end++;
		if (bytes <= 0 || done > 200) { /* a long common name: no further member begins with it */
			add_codes(n, &taken, code, code);
		} else if (code >= 0x20 && code != '"' && code != '\\') {
			struct code_set one = {0};
			add_codes(n, &one, code, code);
			add_codes(n, &taken, code, code);
			if (b->err == ERR_OK)
				put_other_names(n, gb_set(b, from, &one), sorted, i, end, done + (size_t)bytes);
		}
		i = end;
	}
	code_set_finish(&taken);
	put_other_code(n, from, &taken);
}

/* propertyNames may say what a string says, or list names. */
static void check_name_schema(struct object *o, const struct layer *l)
{
	static const char *const known[] = {"pattern", "minLength", "maxLength", "format", "enum", "const", "type", "title", "description", "$comment"};
	for (struct json_iter it = json_iterate(l->v); json_next(&it);) {
		bool fits = false;
		for (size_t i = 0; i < COUNT_OF(known) && !fits; i++)
			fits = strcmp(it.key, known[i]) == 0;
		if (!fits)
			gb_fail(o->s->b, ERR_UNSUPPORTED, "%s/%.80s is not supported for names: use pattern, minLength, maxLength, format or an enum of strings",
				l->path, it.key);
	}
	bool strings = json_type(json_get(l->v, "const")) == JSON_MISSING || json_type(json_get(l->v, "const")) == JSON_STRING;
	for (struct json_iter it = json_iterate(json_get(l->v, "enum")); strings && json_next(&it);)
		strings = json_type(it.value) == JSON_STRING;
	if (!strings || !(layer_types(o->s, l) & TYPE_STRING))
		gb_fail(o->s->b, ERR_INVALID, "%s: names are strings", l->path);
}

/* What propertyNames says. */
static u32 put_restricted_name(struct object *o, u32 from)
{
	struct conj c = {0};
	for (u32 i = 0; i < o->c->count; i++) {
		json_val v = json_get(o->c->layers[i].v, "propertyNames");
		if (json_type(v) != JSON_MISSING)
			conj_add(o->s, &c, v, schema_path(o->s, o->c->layers[i].path, "propertyNames", NULL, 0));
	}
	for (u32 i = 0; i < c.count; i++)
		check_name_schema(o, &c.layers[i]);
	if (c.never)
		return gb_node(o->s->b);
	bool listed = conj_has(&c, "enum", NULL) || conj_has(&c, "const", NULL);
	return listed ? schema_put_enum(o->s, from, &c) : schema_put_string(o->s, from, &c);
}

/* The name of a further member, in quotes. */
static u32 put_name(struct object *o, u32 from)
{
	struct gb *b = o->s->b;
	if (conj_has(o->c, "propertyNames", NULL))
		return put_restricted_name(o, from);
	if (o->count == 0)
		return json_put_string(o->s->json, from);
	struct property *sorted = arena_alloc(&b->arena, o->count * sizeof(*sorted));
	if (sorted == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return from;
	}
	memcpy(sorted, o->properties, o->count * sizeof(*sorted));
	qsort(sorted, o->count, sizeof(*sorted), compare_properties);
	struct names n = {.o = o, .rest = gb_node(b), .close = gb_node(b)};
	struct code_set nothing = {0};
	gb_bytes(b, n.rest, n.close, '"', '"');
	put_other_code(&n, n.rest, &nothing);
	put_other_names(&n, gb_text(b, from, "\"", 1), sorted, 0, o->count, 0);
	return n.close;
}

/* A rule of one further member; GRAMMAR_NONE where there may be none. */
static u32 further_rule(struct object *o)
{
	struct gb *b = o->s->b;
	struct conj value;
	const struct layer *where = NULL;
	struct json_iter pattern = {0};
	enum further further = find_further(o, &value, &where, &pattern);
	if (further == FURTHER_NONE || b->err != ERR_OK)
		return GRAMMAR_NONE;
	for (u32 i = 0; further == FURTHER_PATTERN && i < o->count; i++) {
		if (name_matches(pattern.key, pattern.key_bytes, o->properties[i].name, o->properties[i].bytes))
			gb_fail(b, ERR_UNSUPPORTED, "%s/patternProperties: the pattern matches the property \"%.80s\", which is not supported; write a pattern without it",
				where->path, o->properties[i].name);
	}
	u32 rule = gb_rule(b, "a further member");
	if (b->err != ERR_OK)
		return GRAMMAR_NONE;
	struct grammar_rule r = b->rules[rule];
	u32 name = further == FURTHER_PATTERN ? json_put_matching(o->s->json, r.start, pattern.key, pattern.key_bytes, true, 0, GRAMMAR_NONE)
					      : put_name(o, r.start);
	u32 item = value.count > 0 ? schema_rule_of(o->s, &value) : GRAMMAR_NONE;
	name = json_put_colon(o->s->json, name);
	if (item != GRAMMAR_NONE)
		gb_call(b, name, r.accept, item);
	else
		gb_empty(b, json_put_value(o->s->json, name), r.accept);
	return rule;
}

/* ---- the object ---- */

/* Behind the members so far: `none` while there is none, `some` behind one or more. */
struct track {
	u32 none, some;
};

/* A member comes without a comma where it is the first. */
static u32 begin_member(struct object *o, struct track t)
{
	struct gb *b = o->s->b;
	u32 begin = gb_node(b);
	if (t.none != GRAMMAR_NONE)
		gb_empty(b, t.none, begin);
	if (t.some != GRAMMAR_NONE)
		gb_empty(b, json_put_line(o->s->json, gb_text(b, t.some, ",", 1)), begin);
	return begin;
}

static struct track put_property(struct object *o, const struct property *p, struct track t)
{
	struct gb *b = o->s->b;
	struct conj c;
	property_conj(o, p, &c);
	if (c.never && !p->required)
		return t;
	struct gb_string key = json_quote(b, p->name, p->bytes);
	u32 value = json_put_colon(o->s->json, gb_text(b, begin_member(o, t), key.text, key.bytes));
	u32 end = schema_put(o->s, value, &c);
	struct track next = {.none = p->required ? GRAMMAR_NONE : t.none, .some = gb_node(b)};
	gb_empty(b, end, next.some);
	if (!p->required && t.some != GRAMMAR_NONE)
		gb_empty(b, t.some, next.some);
	return next;
}

/* Counts of members that cannot be told from the schema alone are refused. */
static void check_counts(struct object *o, u32 min, u32 max, bool further)
{
	const struct layer *l;
	if (min > o->required && conj_has(o->c, "minProperties", &l))
		gb_fail(o->s->b, ERR_UNSUPPORTED, "%s/minProperties beside properties is not supported: make the needed ones required", l->path);
	if ((further || max < o->count) && max != GRAMMAR_NONE && conj_has(o->c, "maxProperties", &l))
		gb_fail(o->s->b, ERR_UNSUPPORTED, "%s/maxProperties beside properties is not supported: use additionalProperties: false", l->path);
}

u32 schema_put_object(struct schema *s, u32 from, const struct conj *c)
{
	struct gb *b = s->b;
	struct object o = {.s = s, .c = c};
	const struct layer *l;
	list_properties(&o);
	if (conj_has(c, "propertyNames", &l) && (o.count > 0 || conj_has(c, "patternProperties", NULL)))
		gb_fail(b, ERR_UNSUPPORTED, "%s/propertyNames beside properties or patternProperties is not supported: name what is allowed there", l->path);
	u32 min = conj_count_max(s, c, "minProperties", 0), max = conj_count_min(s, c, "maxProperties", GRAMMAR_NONE);
	u32 further = further_rule(&o);
	if (min > 1 && o.count == 0 && conj_has(c, "minProperties", &l))
		gb_fail(b, ERR_UNSUPPORTED, "%s/minProperties: only 1 is supported, since a grammar cannot tell that names differ; make the needed ones properties", l->path);
	if (b->err != ERR_OK)
		return from;
	if (o.count == 0 && (max < min || (further == GRAMMAR_NONE && min > 0)))
		return gb_node(b);
	if (o.count == 0 && (min > GRAMMAR_REPEAT_MAX || (max != GRAMMAR_NONE && max > GRAMMAR_REPEAT_MAX))) {
		gb_fail(b, ERR_TOO_LONG, "%s: minProperties and maxProperties are at most %d", c->layers[0].path, GRAMMAR_REPEAT_MAX);
		return from;
	}
	if (o.count == 0)
		return json_put_members(s->json, from, further, min, further == GRAMMAR_NONE ? 0 : max);
	check_counts(&o, min, max, further != GRAMMAR_NONE);
	struct track t = {.none = json_put_line(s->json, gb_text(b, from, "{", 1)), .some = GRAMMAR_NONE};
	for (u32 i = 0; i < o.count && b->err == ERR_OK; i++)
		t = put_property(&o, &o.properties[i], t);
	u32 close = gb_node(b);
	if (further != GRAMMAR_NONE) {
		u32 some = gb_node(b);
		if (t.some != GRAMMAR_NONE)
			gb_empty(b, t.some, some);
		gb_call(b, begin_member(&o, (struct track){t.none, some}), some, further);
		t.some = some;
	}
	if (t.none != GRAMMAR_NONE)
		gb_empty(b, t.none, close);
	if (t.some != GRAMMAR_NONE)
		gb_empty(b, json_put_line(s->json, t.some), close);
	return gb_text(b, close, "}", 1);
}
