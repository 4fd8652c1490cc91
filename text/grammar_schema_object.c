/* Owns what schemas say about objects: properties in their order, required ones, what names are, and how many members there
 * may be. Runs wherever a grammar is compiled. */
#include <string.h>

#include "text/grammar_schema_object_priv.h"

enum {
	PROPERTIES_MAX = 4096,
	COUNTED_MAX = 20 * 1000, /* properties times counts of them */
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

/* ---- what names are ---- */

/* A name as it stands between its quotes. */
static struct gb_string written_name(struct object *o, const char *name, size_t bytes)
{
	struct gb_string text = json_quote(o->s->b, name, bytes);
	return text.bytes >= 2 ? (struct gb_string){text.text + 1, text.bytes - 2} : (struct gb_string){"", 0};
}

static u64 match_name(struct object *o, const char *name, size_t bytes)
{
	struct gb_string text = written_name(o, name, bytes);
	return product_match(&o->names, text.text, text.bytes);
}

/* propertyNames may say what a string says, or list names. */
static void check_name_schema(struct object *o, const struct layer *l)
{
	static const char *const known[] = {"pattern", "minLength", "maxLength", "format", "enum", "const", "type", "$ref", "allOf"};
	for (struct json_iter it = json_iterate(l->v); json_next(&it);) {
		bool fits = !schema_constrains(it.key);
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

/* A part of some names. */
static u32 put_listed(struct object *o, const struct gb_string *names, size_t count)
{
	struct gb *b = o->s->b;
	struct gb_string *written = arena_alloc(&b->arena, (count + 1) * sizeof(*written));
	u32 start = product_begin(&o->names);
	if (written == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return 0;
	}
	for (size_t i = 0; i < count; i++)
		written[i] = written_name(o, names[i].text, names[i].bytes);
	return product_end(&o->names, gb_strings(&o->names.scratch, start, written, count));
}

/* What one layer of propertyNames says. */
static void put_name_layer(struct object *o, const struct layer *l)
{
	struct schema *s = o->s;
	struct conj one = {.count = 1, .layers = {*l}};
	struct gb_string names[1];
	const char *text;
	size_t bytes, count;
	check_name_schema(o, l);
	if (json_string(json_get(l->v, "pattern"), &text, &bytes))
		o->needed_parts |= 1ull << product_regex(&o->names, text, bytes, true);
	if (json_string(json_get(l->v, "format"), &text, &bytes) && (text = schema_format(text)) != NULL)
		o->needed_parts |= 1ull << product_regex(&o->names, text, strlen(text), false);
	u32 min = conj_count_max(s, &one, "minLength", 0), max = conj_count_min(s, &one, "maxLength", GRAMMAR_NONE);
	if (s->b->err == ERR_OK && (min > GRAMMAR_REPEAT_MAX || (max != GRAMMAR_NONE && max > GRAMMAR_REPEAT_MAX)))
		gb_fail(s->b, ERR_TOO_LONG, "%s: lengths of names are at most %d", l->path, GRAMMAR_REPEAT_MAX);
	if (s->b->err == ERR_OK && (min > 0 || max != GRAMMAR_NONE))
		o->needed_parts |= 1ull << product_length(&o->names, min, max < min ? min : max);
	if (max < min)
		o->needed_parts |= 1ull << put_listed(o, names, 0); /* none */
	json_val *values = s->b->err == ERR_OK ? schema_distinct_values(s, &one, &count) : NULL;
	if (values == NULL)
		return;
	struct gb_string *listed = arena_alloc(&s->b->arena, (count + 1) * sizeof(*listed));
	for (size_t i = 0; i < count && listed != NULL; i++)
		json_string(values[i], &listed[i].text, &listed[i].bytes);
	if (listed == NULL)
		gb_fail(s->b, ERR_TOO_LONG, "the schema is too large");
	else
		o->needed_parts |= 1ull << put_listed(o, listed, count);
}

static void put_property_names(struct object *o)
{
	struct schema *s = o->s;
	struct conj c = {0};
	for (u32 i = 0; i < o->c->count; i++) {
		json_val v = json_get(o->c->layers[i].v, "propertyNames");
		if (json_type(v) != JSON_MISSING)
			conj_add(s, &c, v, schema_path(s, o->c->layers[i].path, "propertyNames", NULL, 0));
	}
	schema_flatten(s, &c);
	for (u32 i = 0; i < c.count && s->b->err == ERR_OK; i++)
		put_name_layer(o, &c.layers[i]);
	if (c.never)
		o->needed_parts |= 1ull << put_listed(o, NULL, 0);
}

/* Fills o->names, which the caller ends. */
static void read_names(struct object *o)
{
	struct schema *s = o->s;
	struct gb *b = s->b;
	o->has_names = conj_has(o->c, "patternProperties", NULL) || conj_has(o->c, "propertyNames", NULL);
	if (!o->has_names)
		return;
	b->json = true;
	product_init(&o->names, b);
	b->json = false;
	o->needed_parts = 1ull << product_length(&o->names, 0, GRAMMAR_NONE); /* any name */
	struct gb_string *named = arena_alloc(&b->arena, (o->count + 1) * sizeof(*named));
	for (u32 i = 0; i < o->count && named != NULL; i++)
		named[i] = (struct gb_string){o->properties[i].name, o->properties[i].bytes};
	if (named == NULL)
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
	else
		o->named_part = 1ull << put_listed(o, named, o->count);
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		for (struct json_iter it = json_iterate(layer_get(s, l, "patternProperties", JSON_OBJECT)); b->err == ERR_OK && json_next(&it);) {
			const char *path = schema_path(s, l->path, "patternProperties", it.key, it.key_bytes);
			u32 part = product_regex(&o->names, it.key, it.key_bytes, true);
			if (o->names.scratch.err != ERR_OK)
				gb_fail(b, o->names.scratch.err, "%s: %.600s", path, o->names.scratch.em.text);
			o->patterns[part] = (struct name_pattern){.layer = i, .schema = it.value, .path = path};
			o->pattern_parts |= 1ull << part;
		}
	}
	if (b->err == ERR_OK)
		put_property_names(o);
	o->names.needed = o->needed_parts;
}

/* What applies to the value of a property that has a name. */
static void property_conj(struct object *o, const struct property *p, struct conj *out)
{
	struct schema *s = o->s;
	u64 matching = o->has_names ? match_name(o, p->name, p->bytes) : 0;
	*out = (struct conj){.never = o->has_names && (matching & o->needed_parts) != o->needed_parts};
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		json_val v = json_getn(json_get(l->v, "properties"), p->name, p->bytes);
		bool named = json_type(v) != JSON_MISSING;
		if (named)
			conj_add(s, out, v, schema_path(s, l->path, "properties", p->name, p->bytes));
		for (u32 k = 0; o->has_names && k < o->names.count; k++) {
			if (!(matching & o->pattern_parts & 1ull << k) || o->patterns[k].layer != i)
				continue;
			conj_add(s, out, o->patterns[k].schema, o->patterns[k].path);
			named = true;
		}
		const char *key;
		json_val further = additional_of(l, &key);
		if (!named && json_type(further) != JSON_MISSING && strcmp(key, "additionalProperties") == 0)
			conj_add(s, out, further, schema_path(s, l->path, key, NULL, 0));
	}
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

/* ---- numbers of members ---- */

/* Members so far: at[n] behind n of them, or behind n and more where there is no most. */
struct counted {
	struct object *o;
	u32 min, max, cap;
	u32 *at, *next; /* [cap + 1] */
};

static u32 *counted_node(struct counted *n, u32 *list, u32 count)
{
	if (list[count] == GRAMMAR_NONE)
		list[count] = gb_node(n->o->s->b);
	return &list[count];
}

static u32 begin_counted(struct counted *n, u32 count)
{
	return begin_member(n->o, count == 0 ? (struct track){n->at[0], GRAMMAR_NONE} : (struct track){GRAMMAR_NONE, n->at[count]});
}

static void count_property(struct counted *n, const struct property *p)
{
	struct object *o = n->o;
	struct gb *b = o->s->b;
	struct conj c;
	property_conj(o, p, &c);
	if (c.never && !p->required)
		return;
	struct gb_string key = json_quote(b, p->name, p->bytes);
	u32 value = c.never ? GRAMMAR_NONE : schema_rule_of(o->s, &c);
	memset(n->next, 0xff, (n->cap + 1) * sizeof(*n->next));
	for (u32 k = 0; k <= n->cap && b->err == ERR_OK; k++) {
		if (n->at[k] == GRAMMAR_NONE)
			continue;
		u32 to = k < n->cap ? k + 1 : k;
		if (value != GRAMMAR_NONE && (to > k || n->max == GRAMMAR_NONE))
			gb_call(b, json_put_colon(o->s->json, gb_text(b, begin_counted(n, k), key.text, key.bytes)), *counted_node(n, n->next, to),
				value);
		if (!p->required)
			gb_empty(b, n->at[k], *counted_node(n, n->next, k));
	}
	u32 *swap = n->at;
	n->at = n->next;
	n->next = swap;
}

/* Behind all properties: further members, of which one counts for the least number, since names may repeat. */
static void end_counted(struct counted *n, u32 further, u32 close)
{
	struct object *o = n->o;
	struct gb *b = o->s->b;
	u32 more = further != GRAMMAR_NONE ? gb_rule(b, "a further member") : 0;
	if (further != GRAMMAR_NONE && b->err == ERR_OK)
		gb_call(b, json_put_line(o->s->json, gb_text(b, b->rules[more].start, ",", 1)), b->rules[more].accept, further);
	for (u32 k = 0; k <= n->cap && b->err == ERR_OK; k++) {
		u32 room = n->max == GRAMMAR_NONE ? GRAMMAR_NONE : n->max - k;
		if (n->at[k] == GRAMMAR_NONE)
			continue;
		if (k >= n->min)
			gb_empty(b, k > 0 ? json_put_line(o->s->json, n->at[k]) : n->at[k], close);
		if (further == GRAMMAR_NONE || room == 0 || k + 1 < n->min)
			continue;
		struct gexpr one = {.kind = GEXPR_CALL, .rule = more, .min = 1};
		struct gexpr rest = {.kind = GEXPR_REPEAT, .max = room == GRAMMAR_NONE ? room : room - 1, .first = &one};
		u32 first = gb_node(b);
		gb_call(b, begin_counted(n, k), first, further);
		gb_empty(b, json_put_line(o->s->json, gb_expr(b, first, &rest)), close);
	}
}

static u32 put_counted(struct object *o, u32 from, u32 further, u32 min, u32 max)
{
	struct gb *b = o->s->b;
	const struct layer *l = &o->c->layers[0];
	if (further == GRAMMAR_NONE && max != GRAMMAR_NONE && max >= o->count)
		max = GRAMMAR_NONE;
	struct counted n = {.o = o, .min = min, .max = max, .cap = max != GRAMMAR_NONE ? max : min};
	if (further != GRAMMAR_NONE && min > o->count + 1) {
		conj_has(o->c, "minProperties", &l);
		gb_fail(b, ERR_UNSUPPORTED, "%s/minProperties: at most one more than there are properties is supported, since a grammar cannot tell that further names differ; make the needed ones properties",
			l->path);
	}
	if ((u64)(n.cap + 1u) * o->count > COUNTED_MAX)
		gb_fail(b, ERR_TOO_LONG, "%s: minProperties and maxProperties are too large beside %u properties", l->path, o->count);
	n.at = b->err == ERR_OK ? arena_alloc(&b->arena, 2 * ((size_t)n.cap + 1) * sizeof(*n.at)) : NULL;
	if (n.at == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return from;
	}
	n.next = n.at + n.cap + 1;
	memset(n.at, 0xff, ((size_t)n.cap + 1) * sizeof(*n.at));
	n.at[0] = json_put_line(o->s->json, gb_text(b, from, "{", 1));
	for (u32 i = 0; i < o->count && b->err == ERR_OK; i++)
		count_property(&n, &o->properties[i]);
	u32 close = gb_node(b);
	end_counted(&n, further, close);
	return gb_text(b, close, "}", 1);
}

/* In their order, any number of them. */
static u32 put_all(struct object *o, u32 from, u32 further)
{
	struct gb *b = o->s->b;
	struct track t = {.none = json_put_line(o->s->json, gb_text(b, from, "{", 1)), .some = GRAMMAR_NONE};
	for (u32 i = 0; i < o->count && b->err == ERR_OK; i++)
		t = put_property(o, &o->properties[i], t);
	u32 close = gb_node(b);
	if (further != GRAMMAR_NONE) {
		u32 some = gb_node(b);
		if (t.some != GRAMMAR_NONE)
			gb_empty(b, t.some, some);
		gb_call(b, begin_member(o, (struct track){t.none, some}), some, further);
		t.some = some;
	}
	if (t.none != GRAMMAR_NONE)
		gb_empty(b, t.none, close);
	if (t.some != GRAMMAR_NONE)
		gb_empty(b, json_put_line(o->s->json, t.some), close);
	return gb_text(b, close, "}", 1);
}

static u32 put_members(struct object *o, u32 from)
{
	struct schema *s = o->s;
	struct gb *b = s->b;
	const struct layer *l;
	u32 min = conj_count_max(s, o->c, "minProperties", 0), max = conj_count_min(s, o->c, "maxProperties", GRAMMAR_NONE);
	u32 further = b->err == ERR_OK ? schema_further_rule(o) : GRAMMAR_NONE;
	if (min > 1 && o->count == 0 && conj_has(o->c, "minProperties", &l))
		gb_fail(b, ERR_UNSUPPORTED, "%s/minProperties: only 1 is supported, since a grammar cannot tell that names differ; make the needed ones properties", l->path);
	if (b->err != ERR_OK)
		return from;
	if (max < min || (o->count == 0 && further == GRAMMAR_NONE && min > 0))
		return gb_node(b);
	if (min > GRAMMAR_REPEAT_MAX || (max != GRAMMAR_NONE && max > GRAMMAR_REPEAT_MAX)) {
		gb_fail(b, ERR_TOO_LONG, "%s: minProperties and maxProperties are at most %d", o->c->layers[0].path, GRAMMAR_REPEAT_MAX);
		return from;
	}
	if (o->count == 0)
		return json_put_members(s->json, from, further, min, further == GRAMMAR_NONE ? 0 : max);
	bool counted = min > o->required || (max != GRAMMAR_NONE && (max < o->count || further != GRAMMAR_NONE));
	return counted ? put_counted(o, from, further, min, max) : put_all(o, from, further);
}

u32 schema_put_object(struct schema *s, u32 from, const struct conj *c)
{
	struct object o = {.s = s, .c = c};
	list_properties(&o);
	read_names(&o);
	u32 to = put_members(&o, from);
	if (o.has_names)
		product_fini(&o.names);
	return to;
}
