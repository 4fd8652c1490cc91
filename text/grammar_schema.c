/* Owns schemas as conjunctions of layers: references, allOf, anyOf, and what is not supported. Runs wherever a grammar
 * is compiled. Never passes over a keyword that constrains: it is read, or refused with its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema_priv.h"

/* ---- places ---- */

static void too_large(struct schema *s)
{
	gb_fail(s->b, ERR_TOO_LONG, "the schema is too large");
}

const char *schema_path(struct schema *s, const char *path, const char *key, const char *member, size_t member_bytes)
{
	size_t bytes = strlen(path) + strlen(key) + 2 * member_bytes + 4, n;
	char *out = arena_alloc(&s->b->arena, bytes);
	if (out == NULL) {
		too_large(s);
		return "#";
	}
	n = (size_t)(stpcpy(stpcpy(stpcpy(out, path), "/"), key) - out);
	if (member != NULL)
		out[n++] = '/';
	for (size_t i = 0; member != NULL && i < member_bytes; i++) {
		if (member[i] == '~' || member[i] == '/') {
			out[n++] = '~';
			out[n++] = member[i] == '~' ? '0' : '1';
		} else {
			out[n++] = member[i];
		}
	}
	out[n] = '\0';
	return out;
}

void conj_add(struct schema *s, struct conj *c, json_val v, const char *path)
{
	bool truth;
	if (json_bool(v, &truth)) {
		c->never = c->never || !truth;
		return;
	}
	if (json_type(v) != JSON_OBJECT) {
		gb_fail(s->b, ERR_FORMAT, "%s is to be a schema (an object, or true or false), not %s", path, json_type_name(v));
		return;
	}
	for (u32 i = 0; i < c->count; i++) {
		if (c->layers[i].v.node == v.node)
			return;
	}
	if (c->count >= LAYERS_MAX)
		gb_fail(s->b, ERR_TOO_LONG, "%s: more than %d schemas apply to one value", path, LAYERS_MAX);
	else
		c->layers[c->count++] = (struct layer){.v = v, .path = path};
}

json_val layer_get(struct schema *s, const struct layer *l, const char *key, enum json_type type)
{
	json_val v = json_get(l->v, key);
	if (json_type(v) == JSON_MISSING || json_type(v) == type)
		return v;
	static const char *const names[] = {"", "null", "true or false", "an integer", "a number", "a string", "an array", "an object"};
	gb_fail(s->b, ERR_FORMAT, "%s/%s is to be %s, not %s", l->path, key, names[type], json_type_name(v));
	return (json_val){NULL};
}

bool conj_has(const struct conj *c, const char *key, const struct layer **where)
{
	for (u32 i = 0; i < c->count; i++) {
		if (json_type(json_get(c->layers[i].v, key)) == JSON_MISSING)
			continue;
		if (where != NULL)
			*where = &c->layers[i];
		return true;
	}
	return false;
}

static u32 read_count(struct schema *s, const struct layer *l, const char *key, u32 fallback)
{
	json_val v = json_get(l->v, key);
	double value;
	if (json_type(v) == JSON_MISSING)
		return fallback;
	if (json_double(v, &value) && value >= 0 && value < GRAMMAR_NONE && value == (double)(u64)value)
		return (u32)value;
	gb_fail(s->b, ERR_FORMAT, "%s/%s is to be a count, an integer of 0 or more", l->path, key);
	return fallback;
}

u32 conj_count_max(struct schema *s, const struct conj *c, const char *key, u32 from)
{
	for (u32 i = 0; i < c->count; i++) {
		u32 n = read_count(s, &c->layers[i], key, from);
		from = n > from ? n : from;
	}
	return from;
}

u32 conj_count_min(struct schema *s, const struct conj *c, const char *key, u32 from)
{
	for (u32 i = 0; i < c->count; i++) {
		u32 n = read_count(s, &c->layers[i], key, from);
		from = n < from ? n : from;
	}
	return from;
}

/* ---- what is not supported ---- */

static void check_keywords(struct schema *s, const struct layer *l)
{
	static const struct {
		const char *key, *advice;
	} refused[] = {
		{"unevaluatedItems", "use items: false"},
		{"$dynamicRef", "use $ref"},
		{"$recursiveRef", "use $ref"},
	};
	for (size_t i = 0; i < COUNT_OF(refused); i++) {
		if (json_type(json_get(l->v, refused[i].key)) != JSON_MISSING)
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/%s is not supported: %s", l->path, refused[i].key, refused[i].advice);
	}
}

/* ---- references ---- */

/* One step of a JSON pointer: text up to the next '/', unescaped ("~1", "~0", "%25"). */
static json_val step_into(json_val at, const char *text, size_t bytes)
{
	char key[512];
	size_t n = 0;
	for (size_t i = 0; i < bytes; i++) {
		if (n >= sizeof(key))
			return (json_val){NULL};
		unsigned code;
		char two[3] = {0};
		if (text[i] == '~' && i + 1 < bytes) {
			key[n++] = text[++i] == '1' ? '/' : '~';
		} else if (text[i] == '%' && i + 2 < bytes) {
			memcpy(two, text + i + 1, 2);
			code = (unsigned)strtoul(two, NULL, 16);
			key[n++] = (char)code;
			i += 2;
		} else {
			key[n++] = text[i];
		}
	}
	if (json_type(at) != JSON_ARRAY)
		return json_getn(at, key, n);
	u64 index = 0;
	for (size_t i = 0; i < n; i++) {
		if (key[i] < '0' || key[i] > '9' || index > 1000000)
			return (json_val){NULL};
		index = index * 10 + (u64)(key[i] - '0');
	}
	return json_at(at, index);
}

/* The schema that layer's $ref names. */
static json_val resolve(struct schema *s, const struct layer *l, const char **path)
{
	json_val v = layer_get(s, l, "$ref", JSON_STRING);
	const char *ref = json_cstr(v, NULL);
	if (ref == NULL)
		return (json_val){NULL};
	if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) {
		gb_fail(s->b, ERR_UNSUPPORTED, "%s/$ref: \"%.80s\" is not supported: only references into the schema itself, as \"#/$defs/name\"",
			l->path, ref);
		return (json_val){NULL};
	}
	json_val at = s->root;
	for (const char *p = ref + 1; *p == '/' && json_type(at) != JSON_MISSING;) {
		size_t n = strcspn(p + 1, "/");
		at = step_into(at, p + 1, n);
		p += n + 1;
	}
	if (json_type(at) == JSON_MISSING)
		gb_fail(s->b, ERR_INVALID, "%s/$ref: \"%.80s\" does not exist in the schema", l->path, ref);
	/* Below the root's own place. */
	char *full = arena_alloc(&s->b->arena, strlen(s->root_path) + strlen(ref));
	if (full != NULL)
		strcpy(stpcpy(full, s->root_path), ref + 1);
	*path = full != NULL ? full : "#";
	return at;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, *(const char *const *)b);
}

bool schema_constrains(const char *key)
{
	static const char *const keys[] = { /* sorted */
		SCHEMA_NONE_OF, "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains",
		"dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if",
		"items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
		"not", "nullable", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then",
		"type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
	};
	return bsearch(key, keys, COUNT_OF(keys), sizeof(keys[0]), compare_names) != NULL;
}

/* Whether the schema says nothing besides its $ref. */
static bool is_plain_ref(const struct layer *l)
{
	if (json_type(json_get(l->v, "$ref")) == JSON_MISSING || (l->flags & LAYER_REF_READ))
		return false;
	for (struct json_iter it = json_iterate(l->v); json_next(&it);) {
		if (schema_constrains(it.key) && strcmp(it.key, "$ref") != 0)
			return false;
	}
	return true;
}

/* A reference that comes back to a schema which is being read for the same value says nothing: what it would have to be is not
 * known. */
static void check_circle(struct schema *s, const struct conj *c, u32 layer, json_val target)
{
	bool circle = false;
	for (u32 i = layer + 1; i != 0 && !circle; i = c->layers[i - 1].parent)
		circle = c->layers[i - 1].v.node == target.node;
	for (u32 i = 0; i < c->count && !circle; i++)
		circle = c->layers[i].v.node == target.node && (c->layers[i].flags & (LAYER_ANY_READ | LAYER_ONE_READ));
	if (circle)
		gb_fail(s->b, ERR_INVALID, "%s/$ref refers to itself before it says anything", c->layers[layer].path);
}

/* Adds a schema that layer `parent` brought. */
static void add_child(struct schema *s, struct conj *c, u32 parent, json_val v, const char *path)
{
	u32 before = c->count;
	conj_add(s, c, v, path);
	if (c->count > before)
		c->layers[before].parent = parent + 1;
}

void schema_flatten(struct schema *s, struct conj *c)
{
	for (u32 i = 0; i < c->count && s->b->err == ERR_OK; i++) {
		struct layer *l = &c->layers[i];
		if (!(l->flags & LAYER_REF_READ) && json_type(json_get(l->v, "$ref")) != JSON_MISSING) {
			const char *path = "#";
			json_val target = resolve(s, l, &path);
			l->flags |= LAYER_REF_READ;
			if (s->b->err == ERR_OK)
				check_circle(s, c, i, target);
			if (s->b->err == ERR_OK)
				add_child(s, c, i, target, path);
		}
		if (l->flags & LAYER_ALL_READ)
			continue;
		l->flags |= LAYER_ALL_READ;
		u32 k = 0;
		char number[12];
		for (struct json_iter it = json_iterate(layer_get(s, l, "allOf", JSON_ARRAY)); json_next(&it); k++) {
			int n = snprintf(number, sizeof(number), "%u", k);
			add_child(s, c, i, it.value, schema_path(s, l->path, "allOf", number, (size_t)n));
		}
		check_keywords(s, l);
		json_val cases = schema_cases(s, l);
		if (json_type(cases) != JSON_MISSING)
			add_child(s, c, i, cases, l->path);
	}
}

/* ---- rules ---- */

static bool same_layers(const struct conj *x, const struct conj *y)
{
	if (x->count != y->count || x->never != y->never)
		return false;
	for (u32 i = 0; i < x->count; i++) {
		if (x->layers[i].v.node != y->layers[i].v.node || x->layers[i].flags != y->layers[i].flags)
			return false;
	}
	return true;
}

/* The rule of these layers; new ones wait in s->rules until grammar_put_schema comes to them. */
static u32 find_rule(struct schema *s, const struct conj *c, u32 rule)
{
	struct gb *b = s->b;
	for (u32 i = 0; i < s->rule_count; i++) {
		if (same_layers(s->rules[i].conj, c))
			return s->rules[i].rule;
	}
	if (s->rule_count == s->rule_capacity) {
		u32 capacity = s->rule_capacity > 0 ? 2 * s->rule_capacity : 16;
		struct schema_rule *grown = arena_alloc(&b->arena, capacity * sizeof(*grown));
		if (grown == NULL) {
			too_large(s);
			return 0;
		}
		if (s->rule_count > 0)
			memcpy(grown, s->rules, s->rule_count * sizeof(*grown));
		s->rules = grown;
		s->rule_capacity = capacity;
	}
	struct conj *copy = arena_alloc(&b->arena, sizeof(*copy));
	if (copy == NULL) {
		too_large(s);
		return 0;
	}
	*copy = *c;
	if (rule == GRAMMAR_NONE)
		rule = gb_rule(b, c->count > 0 ? c->layers[0].path : "a value");
	s->rules[s->rule_count++] = (struct schema_rule){rule, copy};
	return rule;
}

u32 schema_rule_of(struct schema *s, const struct conj *c)
{
	struct conj only = {0};
	if (c->count == 1 && !c->never && is_plain_ref(&c->layers[0])) {
		const char *path = "#";
		json_val target = resolve(s, &c->layers[0], &path);
		if (s->b->err == ERR_OK)
			conj_add(s, &only, target, path);
		c = &only;
	}
	return s->b->err == ERR_OK ? find_rule(s, c, GRAMMAR_NONE) : 0;
}

void grammar_put_schema(struct json_rules *j, u32 rule, json_val root, const char *path)
{
	struct schema s = {.b = j->b, .json = j, .root = root, .root_path = path};
	struct conj c = {0};
	conj_add(&s, &c, root, path);
	if (j->b->err == ERR_OK)
		find_rule(&s, &c, rule);
	for (u32 i = 0; i < s.rule_count && j->b->err == ERR_OK; i++) {
		struct grammar_rule r = j->b->rules[s.rules[i].rule];
		gb_empty(j->b, schema_put(&s, r.start, s.rules[i].conj), r.accept);
	}
	schema_cases_fini(&s);
}

void grammar_read_schema(struct gb *b, u32 flags, const char *source, size_t bytes)
{
	struct json_doc *doc = NULL;
	struct err_msg em = {.text = ""};
	struct json_rules j;
	json_rules_init(&j, b, flags);
	u32 root = gb_rule(b, "#");
	if (json_parse(&doc, source, bytes, &em) != ERR_OK)
		gb_fail(b, ERR_FORMAT, "the schema is no JSON: %s", em.text);
	if (b->err == ERR_OK)
		grammar_put_schema(&j, root, json_root(doc), "#");
	json_free(&doc);
}

/* ---- branches ---- */

/* One alternative for each member of the layer's anyOf (or oneOf), the other layers applying to all of them. */
static u32 put_branches(struct schema *s, u32 from, const struct conj *c, u32 layer, const char *key, u32 flag)
{
	const struct layer *l = &c->layers[layer];
	json_val branches = layer_get(s, l, key, JSON_ARRAY);
	u32 to = gb_node(s->b), k = 0;
	if (s->b->err == ERR_OK && json_count(branches) == 0)
		gb_fail(s->b, ERR_FORMAT, "%s/%s is to have a member", l->path, key);
	for (struct json_iter it = json_iterate(branches); s->b->err == ERR_OK && json_next(&it); k++) {
		char number[12];
		int n = snprintf(number, sizeof(number), "%u", k);
		struct conj *branch = arena_alloc(&s->b->arena, sizeof(*branch));
		if (branch == NULL) {
			too_large(s);
			return to;
		}
		*branch = *c;
		branch->layers[layer].flags |= flag;
		u32 before = branch->count;
		conj_add(s, branch, it.value, schema_path(s, l->path, key, number, (size_t)n));
		if (s->b->err == ERR_OK && branch->count == before && json_type(it.value) == JSON_OBJECT)
			gb_fail(s->b, ERR_INVALID, "%s/%s/%u refers to itself before it says anything", l->path, key, k);
		u32 begin = gb_node(s->b);
		gb_empty(s->b, from, begin);
		gb_empty(s->b, schema_put(s, begin, branch), to);
	}
	return to;
}

/* ---- one value ---- */

static u32 put_flat(struct schema *s, u32 from, const struct conj *c)
{
	for (u32 i = 0; i < c->count; i++) {
		const struct layer *l = &c->layers[i];
		if (!(l->flags & LAYER_ANY_READ) && json_type(json_get(l->v, "anyOf")) != JSON_MISSING)
			return put_branches(s, from, c, i, "anyOf", LAYER_ANY_READ);
		if (!(l->flags & LAYER_ONE_READ) && json_type(json_get(l->v, "oneOf")) != JSON_MISSING)
			return put_branches(s, from, c, i, "oneOf", LAYER_ONE_READ);
	}
	if (conj_has(c, "enum", NULL) || conj_has(c, "const", NULL))
		return schema_put_enum(s, from, c);
	return schema_put_types(s, from, c);
}

/* Leaves out layers of which nothing is left but branches that were taken: so a $ref in a branch can be a rule. */
static void drop_empty_layers(struct conj *c)
{
	u32 kept = 0;
	for (u32 i = 0; i < c->count; i++) {
		struct layer *l = &c->layers[i];
		bool empty = l->flags != 0;
		for (struct json_iter it = json_iterate(l->v); empty && json_next(&it);) {
			empty = (strcmp(it.key, "anyOf") == 0 && (l->flags & LAYER_ANY_READ)) ||
				(strcmp(it.key, "oneOf") == 0 && (l->flags & LAYER_ONE_READ)) ||
				(strcmp(it.key, "$ref") == 0 && (l->flags & LAYER_REF_READ)) ||
				(strcmp(it.key, "allOf") == 0 && (l->flags & LAYER_ALL_READ)) || !schema_constrains(it.key);
		}
		if (!empty)
			c->layers[kept++] = *l;
	}
	c->count = kept;
	for (u32 i = 0; i < kept; i++)
		c->layers[i].parent = 0; /* all that these bring is there already */
}

/* Counts what reading the layers takes, which anyOf and $ref multiply. False: that was too much. */
static bool count_step(struct schema *s, const struct conj *c)
{
	const char *path = c->count > 0 ? c->layers[0].path : "#";
	for (u32 i = 0; i < c->count; i++)
		s->read += 4 + json_count(c->layers[i].v);
	if (++s->steps > SCHEMA_STEPS_MAX)
		gb_fail(s->b, ERR_TOO_LONG, "%s: the schema is too large: its anyOf, allOf and $ref multiply to more than %d parts", path,
			SCHEMA_STEPS_MAX);
	else if (s->read > SCHEMA_READ_MAX)
		gb_fail(s->b, ERR_TOO_LONG, "%s: the schema is too large: its anyOf, allOf and $ref multiply to more than %d keywords", path,
			SCHEMA_READ_MAX);
	return s->b->err == ERR_OK;
}

json_val *schema_values(struct schema *s, const struct conj *c, size_t *count)
{
	struct conj *flat = arena_alloc(&s->b->arena, sizeof(*flat));
	*count = 0;
	if (flat == NULL) {
		too_large(s);
		return NULL;
	}
	*flat = *c;
	schema_flatten(s, flat);
	bool branches = conj_has(flat, "anyOf", NULL) || conj_has(flat, "oneOf", NULL);
	return s->b->err == ERR_OK && !flat->never && !branches ? schema_distinct_values(s, flat, count) : NULL;
}

u32 schema_put(struct schema *s, u32 from, const struct conj *c)
{
	if (s->b->err != ERR_OK || !count_step(s, c))
		return from;
	if (c->never)
		return gb_node(s->b);
	struct conj *flat = arena_alloc(&s->b->arena, sizeof(*flat));
	if (flat == NULL) {
		too_large(s);
		return from;
	}
	*flat = *c;
	drop_empty_layers(flat);
	s->level++;
	u32 to;
	if (flat->count == 1 && is_plain_ref(&flat->layers[0])) {
		to = gb_node(s->b);
		gb_call(s->b, from, to, schema_rule_of(s, flat));
	} else if (s->level > SCHEMA_LEVELS_INLINE) { /* it may come back to itself, which a rule can */
		to = gb_node(s->b);
		gb_call(s->b, from, to, find_rule(s, flat, GRAMMAR_NONE));
	} else {
		schema_flatten(s, flat);
		to = flat->never ? gb_node(s->b) : s->b->err == ERR_OK ? put_flat(s, from, flat) : from;
	}
	s->level--;
	return to;
}
