/* Owns what schemas say about single values: enum and const, strings, numbers. Runs wherever a grammar is compiled. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/utf8.h"
#include "text/grammar_schema_priv.h"

/* ---- enum and const ---- */

/* Counts what a schema could multiply without writing anything. False: that was too much. */
static bool spend(struct schema *s, size_t work)
{
	s->compared += work;
	if (s->compared > SCHEMA_COMPARED_MAX && s->b->err == ERR_OK)
		gb_fail(s->b, ERR_TOO_LONG, "the schema is too large: its enums have too many values to compare them with each other");
	return s->b->err == ERR_OK;
}

static bool same_value(struct schema *s, json_val x, json_val y)
{
	double a, b;
	if (!spend(s, 1))
		return false;
	if (json_double(x, &a) && json_double(y, &b))
		return a == b;
	if (json_type(x) != json_type(y) || json_count(x) != json_count(y))
		return false;
	const char *p, *q;
	size_t m, n;
	bool k, l;
	if (json_string(x, &p, &m) && json_string(y, &q, &n))
		return m == n && memcmp(p, q, m) == 0;
	if (json_bool(x, &k) && json_bool(y, &l))
		return k == l;
	bool object = json_type(x) == JSON_OBJECT;
	struct json_iter there = json_iterate(y);
	for (struct json_iter it = json_iterate(x); json_next(&it);) {
		json_next(&there);
		if (object && !spend(s, json_count(y))) /* they are looked for one by one */
			return false;
		json_val other = object ? json_getn(y, it.key, it.key_bytes) : there.value;
		if (!same_value(s, it.value, other))
			return false;
	}
	return true;
}

u32 schema_type_of(json_val v)
{
	double value = 0;
	switch (json_type(v)) {
	case JSON_NULL:
		return TYPE_NULL;
	case JSON_BOOL:
		return TYPE_BOOLEAN;
	case JSON_INT:
		return TYPE_INTEGER | TYPE_NUMBER;
	case JSON_DOUBLE:
		json_double(v, &value);
		return floor(value) == value ? TYPE_INTEGER | TYPE_NUMBER : TYPE_NUMBER;
	case JSON_STRING:
		return TYPE_STRING;
	case JSON_ARRAY:
		return TYPE_ARRAY;
	default:
		return TYPE_OBJECT;
	}
}

/* Whether the bounds of the layer hold for a number, or its lengths for a string. */
static bool in_bounds(const struct layer *l, json_val v)
{
	static const struct {
		const char *key;
		bool low, strict, of_string;
	} bounds[] = {
		{"minimum", true, false, false},	 {"maximum", false, false, false}, {"exclusiveMinimum", true, true, false},
		{"exclusiveMaximum", false, true, false}, {"minLength", true, false, true}, {"maxLength", false, false, true},
	};
	const char *text;
	size_t bytes;
	double value = 0, bound;
	bool is_string = json_string(v, &text, &bytes);
	if (!is_string && !json_double(v, &value))
		return true;
	for (size_t i = 0; is_string && i < bytes; i++)
		value += ((u8)text[i] & 0xc0) != 0x80;
	for (size_t i = 0; i < COUNT_OF(bounds); i++) {
		if (bounds[i].of_string != is_string || !json_double(json_get(l->v, bounds[i].key), &bound))
			continue;
		if ((bounds[i].low ? value < bound : value > bound) || (bounds[i].strict && value == bound))
			return false;
	}
	return true;
}

bool schema_text_matches(struct schema *s, const char *pattern, size_t pattern_bytes, const char *text, size_t bytes)
{
	struct product p;
	product_init(&p, s->b);
	product_regex(&p, pattern, pattern_bytes, true);
	spend(s, 50 + p.scratch.edge_count / 4);
	bool found = product_match(&p, text, bytes) != 0;
	product_fini(&p);
	return found;
}

static bool matches_pattern(struct schema *s, const struct layer *l, json_val v)
{
	const char *text, *pattern;
	size_t bytes, pattern_bytes;
	if (!json_string(v, &text, &bytes) || !json_string(layer_get(s, l, "pattern", JSON_STRING), &pattern, &pattern_bytes))
		return true;
	return schema_text_matches(s, pattern, pattern_bytes, text, bytes);
}

/* Whether the layer allows the literal, as far as it speaks of type, enum, const, bounds and pattern. `own`: the literal is from its
 * enum or const. */
static bool allows(struct schema *s, const struct layer *l, json_val v, const char *own)
{
	if (!spend(s, json_count(l->v)) || !(layer_types(s, l) & schema_type_of(v)) || !in_bounds(l, v) || !matches_pattern(s, l, v))
		return false;
	json_val none = json_get(l->v, SCHEMA_NONE_OF), not_one = json_get(none, "const");
	if (json_type(not_one) != JSON_MISSING && same_value(s, not_one, v))
		return false;
	for (struct json_iter it = json_iterate(json_get(none, "enum")); s->b->err == ERR_OK && json_next(&it);) {
		if (same_value(s, it.value, v))
			return false;
	}
	json_val one = json_get(l->v, "const"), list = json_get(l->v, "enum");
	if (json_type(one) != JSON_MISSING && strcmp(own, "const") != 0 && !same_value(s, one, v))
		return false;
	bool found = json_type(list) == JSON_MISSING || strcmp(own, "enum") == 0;
	for (struct json_iter it = json_iterate(list); !found && s->b->err == ERR_OK && json_next(&it);)
		found = same_value(s, it.value, v);
	return found;
}

/* What else would have to be checked for each literal. */
static void refuse_beside_enum(struct schema *s, const struct conj *c)
{
	static const char *const keys[] = {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
					   "maxProperties", "items", "prefixItems", "minItems", "maxItems", "contains", "multipleOf"};
	for (size_t i = 0; i < COUNT_OF(keys); i++) {
		const struct layer *l;
		if (conj_has(c, keys[i], &l))
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/%s beside enum or const is not supported: list the values that are allowed", l->path,
				keys[i]);
	}
}

/* The values of enum or const that all layers allow, in the arena; NULL and b->err set where there is none or something is wrong. */
static json_val *allowed_values(struct schema *s, const struct conj *c, size_t *kept)
{
	struct gb *b = s->b;
	const struct layer *l = NULL;
	json_val list = {NULL}, one = {NULL};
	refuse_beside_enum(s, c);
	if (conj_has(c, "const", &l))
		one = json_get(l->v, "const");
	else if (conj_has(c, "enum", &l))
		list = layer_get(s, l, "enum", JSON_ARRAY);
	size_t count = one.node != NULL ? 1 : json_count(list);
	if (b->err == ERR_OK && count == 0)
		gb_fail(b, ERR_FORMAT, "%s/enum is to have a value", l->path);
	json_val *values = arena_alloc(&b->arena, (count + 1) * sizeof(*values));
	if (values == NULL)
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
	*kept = 0;
	if (b->err != ERR_OK)
		return NULL;
	struct json_iter it = json_iterate(list);
	const char *own = one.node != NULL ? "const" : "enum";
	for (size_t i = 0; i < count && b->err == ERR_OK; i++) {
		json_val v = one.node != NULL || !json_next(&it) ? one : it.value;
		bool allowed = true;
		for (u32 k = 0; k < c->count && allowed; k++)
			allowed = allows(s, &c->layers[k], v, &c->layers[k] == l ? own : "");
		if (allowed)
			values[(*kept)++] = v;
	}
	return values;
}

u32 schema_put_enum(struct schema *s, u32 from, const struct conj *c)
{
	size_t kept;
	json_val *values = allowed_values(s, c, &kept);
	return s->b->err == ERR_OK ? json_put_literals(s->json, from, values, kept) : from;
}

json_val *schema_distinct_values(struct schema *s, const struct conj *c, size_t *count)
{
	*count = 0;
	if (!conj_has(c, "enum", NULL) && !conj_has(c, "const", NULL))
		return NULL;
	size_t kept;
	json_val *values = allowed_values(s, c, &kept);
	for (size_t i = 0; i < kept && s->b->err == ERR_OK; i++) {
		bool known = false;
		for (size_t k = 0; k < *count && !known; k++)
			known = same_value(s, values[k], values[i]);
		if (!known)
			values[(*count)++] = values[i];
	}
	return values;
}

/* ---- strings ---- */

#define DIGIT "[0-9]"
#define YEAR  "(?:[1-9]" DIGIT DIGIT DIGIT "|0[1-9]" DIGIT DIGIT "|00[1-9]" DIGIT "|000[1-9])"
#define LEAP  "(?:" DIGIT DIGIT "(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE  "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]" DIGIT "|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]" DIGIT \
	      "|30)|02-(?:0[1-9]|1" DIGIT "|2[0-8]))|" LEAP "-02-29)"
#define TIME  "(?:[01]" DIGIT "|2[0-3]):[0-5]" DIGIT ":[0-5]" DIGIT "(?:\\." DIGIT "{1,9})?(?:Z|[+-](?:[01]" DIGIT "|2[0-3]):[0-5]" DIGIT ")"
#define HEX4  "[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]"
#define BYTE  "(?:25[0-5]|2[0-4]" DIGIT "|1" DIGIT DIGIT "|[1-9]?" DIGIT ")"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

const char *schema_format(const char *name)
{
	static const struct {
		const char *name, *pattern;
	} formats[] = {
		{"date-time", DATE "T" TIME},
		{"date", DATE},
		{"time", TIME},
		{"uuid", HEX4 HEX4 "-" HEX4 "-" HEX4 "-" HEX4 "-" HEX4 HEX4 HEX4},
		{"email", ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL ")+"},
		{"ipv4", BYTE "\\." BYTE "\\." BYTE "\\." BYTE},
		{"hostname", LABEL "(?:\\." LABEL ")*"},
	};
	for (size_t i = 0; i < COUNT_OF(formats); i++) {
		if (strcmp(formats[i].name, name) == 0)
			return formats[i].pattern;
	}
	return NULL;
}

/* One pattern, or known format, of a string. */
struct pattern {
	const char *text;
	size_t bytes;
	bool search;
	const char *path;
};

/* The patterns and known formats of all layers; how many there are. */
static u32 list_patterns(struct schema *s, const struct conj *c, struct pattern *out)
{
	u32 count = 0;
	for (u32 i = 0; i < c->count; i++) {
		const struct layer *l = &c->layers[i];
		for (int kind = 0; kind < 2; kind++) {
			const char *key = kind == 0 ? "pattern" : "format", *text;
			size_t n;
			if (!json_string(layer_get(s, l, key, JSON_STRING), &text, &n))
				continue;
			if (kind == 1 && (text = schema_format(text)) == NULL)
				continue;
			bool known = false;
			n = kind == 1 ? strlen(text) : n;
			for (u32 k = 0; k < count && !known; k++)
				known = out[k].search == (kind == 0) && out[k].bytes == n && memcmp(out[k].text, text, n) == 0;
			if (!known)
				out[count++] = (struct pattern){text, n, kind == 0, schema_path(s, l->path, key, NULL, 0)};
		}
	}
	return count;
}

struct all_match {
	u64 parts;
	u32 to;
};

static u32 exit_all(void *ctx, u64 matching)
{
	const struct all_match *all = ctx;
	return matching == all->parts ? all->to : GRAMMAR_NONE;
}

/* Puts the place of what failed in front of its reason. */
static void name_place(struct gb *b, const char *path)
{
	struct err_msg reason = b->em;
	snprintf(b->em.text, sizeof(b->em.text), "%s: %.600s", path, reason.text);
}

/* What all patterns match, in quotes. */
static u32 put_patterns(struct schema *s, u32 from, const struct pattern *patterns, u32 count, u32 min, u32 max)
{
	struct gb *b = s->b;
	struct product p;
	b->json = true;
	product_init(&p, b);
	b->json = false;
	for (u32 i = 0; i < count && p.scratch.err == ERR_OK; i++) {
		product_regex(&p, patterns[i].text, patterns[i].bytes, patterns[i].search);
		if (p.scratch.err != ERR_OK)
			name_place(&p.scratch, patterns[i].path);
	}
	if (min > 0 || max != GRAMMAR_NONE)
		product_length(&p, min, max);
	struct all_match all = {.parts = p.needed = (1ull << p.count) - 1, .to = gb_node(b)};
	product_put(&p, gb_text(b, from, "\"", 1), exit_all, &all);
	product_fini(&p);
	return gb_text(b, all.to, "\"", 1);
}

u32 schema_put_string(struct schema *s, u32 from, const struct conj *c)
{
	struct gb *b = s->b;
	struct pattern patterns[2 * LAYERS_MAX];
	u32 count = list_patterns(s, c, patterns);
	const struct layer *l = NULL;
	u32 min = conj_count_max(s, c, "minLength", 0), max = conj_count_min(s, c, "maxLength", GRAMMAR_NONE);
	if (min > GRAMMAR_REPEAT_MAX || (max != GRAMMAR_NONE && max > GRAMMAR_REPEAT_MAX)) {
		bool is_min = min > GRAMMAR_REPEAT_MAX;
		conj_has(c, is_min ? "minLength" : "maxLength", &l);
		gb_fail(b, ERR_TOO_LONG, "%s/%s: at most %d is supported", l->path, is_min ? "minLength" : "maxLength", GRAMMAR_REPEAT_MAX);
	}
	if (b->err != ERR_OK)
		return from;
	if (max != GRAMMAR_NONE && min > max)
		return gb_node(b);
	if (count == 0)
		return json_put_string_of(s->json, from, min, max);
	if (count > 1)
		return put_patterns(s, from, patterns, count, min, max);
	u32 to = json_put_matching(s->json, from, patterns[0].text, patterns[0].bytes, patterns[0].search, min, max);
	if (b->err != ERR_OK)
		name_place(b, patterns[0].path);
	return to;
}

/* ---- numbers ---- */

/* Takes the bound that the keyword of the layer sets, if it is stricter. */
static void take_bound(struct schema *s, const struct layer *l, const char *key, bool low, bool strict, struct decimal *bound)
{
	json_val v = json_get(l->v, key);
	struct decimal d;
	if (json_type(v) == JSON_MISSING)
		return;
	if (!decimal_read(&d, v)) {
		double value;
		if (json_double(v, &value))
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/%s: at most 19 digits before and 20 behind the point are supported", l->path, key);
		else
			gb_fail(s->b, ERR_FORMAT, "%s/%s is to be a number, not %s", l->path, key, json_type_name(v));
		return;
	}
	d.strict = strict;
	int order = bound->endless ? 0 : decimal_compare(&d, bound);
	if (bound->endless || (low ? order > 0 : order < 0) || (order == 0 && strict))
		*bound = d;
}

/* An exclusive bound: a number, or (draft 4) true beside minimum or maximum. */
static bool is_draft4_strict(const struct layer *l, const char *key)
{
	bool on = false;
	return json_bool(json_get(l->v, key), &on) && on;
}

/* Digits behind the point that multipleOf leaves: 1, 0.1, 0.01 and so on. */
static u32 part_digits(struct schema *s, const struct layer *l, u32 part_max)
{
	json_val v = json_get(l->v, "multipleOf");
	struct decimal d;
	if (json_type(v) == JSON_MISSING)
		return part_max;
	u32 digits = 0;
	bool known = decimal_read(&d, v);
	if (known && strcmp(d.whole, "0") == 0) {
		digits = (u32)strlen(d.part);
		known = digits > 0 && strspn(d.part, "0") == digits - 1 && d.part[digits - 1] == '1';
	} else {
		known = known && strcmp(d.whole, "1") == 0 && d.part[0] == '\0' && !d.negative;
	}
	if (!known)
		gb_fail(s->b, ERR_UNSUPPORTED, "%s/multipleOf: only 1, 0.1, 0.01 and so on are supported", l->path);
	return digits < part_max ? digits : part_max;
}

u32 schema_put_number(struct schema *s, u32 from, const struct conj *c, bool integer)
{
	struct decimal low = {.endless = true}, high = {.endless = true};
	u32 part_max = integer ? 0 : GRAMMAR_NONE;
	for (u32 i = 0; i < c->count; i++) {
		const struct layer *l = &c->layers[i];
		bool strict_low = is_draft4_strict(l, "exclusiveMinimum"), strict_high = is_draft4_strict(l, "exclusiveMaximum");
		take_bound(s, l, "minimum", true, strict_low, &low);
		take_bound(s, l, "maximum", false, strict_high, &high);
		if (json_type(json_get(l->v, "exclusiveMinimum")) != JSON_BOOL)
			take_bound(s, l, "exclusiveMinimum", true, true, &low);
		if (json_type(json_get(l->v, "exclusiveMaximum")) != JSON_BOOL)
			take_bound(s, l, "exclusiveMaximum", false, true, &high);
		part_max = part_digits(s, l, part_max);
	}
	if (s->b->err != ERR_OK)
		return from;
	if (low.endless && high.endless && part_max == 0)
		return json_put_integer(s->json, from);
	if (low.endless && high.endless && part_max == GRAMMAR_NONE)
		return json_put_number(s->json, from);
	return gb_number(s->b, from, &low, &high, part_max);
}
