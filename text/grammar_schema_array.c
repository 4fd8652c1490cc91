/* Owns what schemas say about arrays: items, prefixItems, counts, uniqueItems of listed values, contains. Runs wherever a
 * grammar is compiled. */
#include <stdio.h>
#include <string.h>

#include "text/grammar_schema_priv.h"

enum {
	UNIQUE_SETS_MAX = 4096, /* of more sets of values, values come in their order */
	GRID_MAX = 20000,       /* places for numbers of elements */
};

/* The schemas of the first elements: prefixItems, or an array of items as before 2020. */
static json_val prefix_of(struct schema *s, const struct layer *l, const char **key)
{
	json_val items = json_get(l->v, "items");
	*key = json_type(items) == JSON_ARRAY ? "items" : "prefixItems";
	return json_type(items) == JSON_ARRAY ? items : layer_get(s, l, "prefixItems", JSON_ARRAY);
}

struct array {
	struct schema *s;
	u32 close;
	u32 min, max;			     /* elements; GRAMMAR_NONE: no end */
	struct json_iter first[LAYERS_MAX]; /* the layers' schemas of the first elements that are not written yet */
};

/* What applies to element number `at`; these come one behind the other. */
static void element_conj(struct array *a, const struct conj *c, size_t at, struct conj *out)
{
	struct schema *s = a->s;
	*out = (struct conj){0};
	for (u32 i = 0; i < c->count; i++) {
		const struct layer *l = &c->layers[i];
		const char *key;
		(void)prefix_of(s, l, &key);
		if (json_next(&a->first[i])) {
			char number[24];
			int n = snprintf(number, sizeof(number), "%zu", at);
			conj_add(s, out, a->first[i].value, schema_path(s, l->path, key, number, (size_t)n));
			continue;
		}
		key = strcmp(key, "items") == 0 ? "additionalItems" : "items";
		json_val items = json_get(l->v, key);
		if (json_type(items) != JSON_MISSING)
			conj_add(s, out, items, schema_path(s, l->path, key, NULL, 0));
	}
}

/* A comma, where elements came before. */
static u32 put_comma(struct schema *s, u32 from, size_t before)
{
	return before > 0 ? json_put_line(s->json, gb_text(s->b, from, ",", 1)) : from;
}

/* Elements behind the first `done`, all of one rule. */
static u32 put_rest(struct array *a, u32 from, u32 done, const struct conj *each)
{
	struct gb *b = a->s->b;
	u32 item = schema_rule_of(a->s, each), more = gb_rule(b, "a further element");
	if (b->err != ERR_OK)
		return from;
	struct grammar_rule r = b->rules[more];
	u32 element = gb_node(b);
	gb_call(b, put_comma(a->s, r.start, 1), r.accept, item);
	if (done == 0) {
		gb_call(b, from, element, item);
		from = element;
		done = 1;
	}
	struct gexpr one = {.kind = GEXPR_CALL, .rule = more, .min = 1};
	struct gexpr rest = {.kind = GEXPR_REPEAT, .first = &one};
	rest.min = a->min > done ? a->min - done : 0;
	rest.max = a->max == GRAMMAR_NONE ? GRAMMAR_NONE : a->max - done;
	return gb_expr(b, from, &rest);
}

static void put_elements(struct array *a, u32 open, const struct conj *c, size_t prefix)
{
	struct schema *s = a->s;
	struct gb *b = s->b;
	struct conj each;
	u32 at = open, done = 0;
	if (a->min == 0)
		gb_empty(b, open, a->close);
	for (; done < prefix && done < a->max && b->err == ERR_OK; done++) {
		element_conj(a, c, done, &each);
		at = schema_put(s, put_comma(s, at, done), &each);
		if (done + 1 >= a->min)
			gb_empty(b, json_put_line(s->json, at), a->close);
	}
	element_conj(a, c, prefix, &each);
	if (b->err == ERR_OK && done < a->max && !each.never)
		gb_empty(b, json_put_line(s->json, put_rest(a, at, done, &each)), a->close);
}

/* ---- uniqueItems ---- */

/* Elements that are all different: each of `values` once at most. A place is a set of those that came. */
struct unique {
	struct array *a;
	u32 count;
	u32 rules[64];
	u32 *places; /* by set */
};

static void put_unique_sets(struct unique *u, u32 open)
{
	struct gb *b = u->a->s->b;
	u32 sets = 1u << u->count;
	u->places = arena_alloc(&b->arena, sets * sizeof(*u->places));
	if (u->places == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return;
	}
	for (u32 set = 0; set < sets && b->err == ERR_OK; set++)
		u->places[set] = set == 0 ? open : gb_node(b);
	for (u32 set = 0; set < sets && b->err == ERR_OK; set++) {
		u32 taken = (u32)__builtin_popcount(set), at = u->places[set];
		if (taken >= u->a->min)
			gb_empty(b, taken > 0 ? json_put_line(u->a->s->json, at) : at, u->a->close);
		u32 next = taken < u->a->max ? put_comma(u->a->s, at, taken) : at;
		for (u32 i = 0; i < u->count && taken < u->a->max; i++) {
			if (!(set >> i & 1))
				gb_call(b, next, u->places[set | 1u << i], u->rules[i]);
		}
	}
}

/* Of many values: in the order of the schema, which tells them apart, too. A place is how many came and which was the last. */
static void put_unique_in_order(struct array *a, u32 open, const u32 *rules, u32 count)
{
	struct gb *b = a->s->b;
	u32 most = a->max < count ? a->max : count;
	u32 *before = arena_alloc(&b->arena, 2 * ((size_t)count + 1) * sizeof(*before)), *now = before + count + 1;
	if (before == NULL || (u64)count * most > GRID_MAX) {
		gb_fail(b, ERR_TOO_LONG, "uniqueItems of %u values, at most %u of them, is too large", count, most);
		return;
	}
	if (a->min == 0)
		gb_empty(b, open, a->close);
	/* before[i]: from here value i or one behind it may come */
	for (u32 i = 0; i <= count; i++)
		before[i] = i == 0 ? open : GRAMMAR_NONE;
	for (u32 taken = 0; taken < most && b->err == ERR_OK; taken++) {
		u32 skip = GRAMMAR_NONE;
		now[0] = GRAMMAR_NONE;
		for (u32 i = 0; i < count && b->err == ERR_OK; i++) {
			u32 at = gb_node(b), end = gb_node(b);
			if (before[i] != GRAMMAR_NONE)
				gb_empty(b, put_comma(a->s, before[i], taken), at);
			if (skip != GRAMMAR_NONE)
				gb_empty(b, skip, at);
			gb_call(b, at, end, rules[i]);
			if (taken + 1 >= a->min)
				gb_empty(b, json_put_line(a->s->json, end), a->close);
			skip = at;
			now[i + 1] = end;
		}
		memcpy(before, now, (count + 1) * sizeof(*before));
	}
}

/* False: it is written otherwise. */
static bool put_unique(struct array *a, u32 open, const struct conj *c, size_t prefix)
{
	struct schema *s = a->s;
	struct gb *b = s->b;
	const struct layer *l = NULL;
	bool on = false;
	for (u32 i = 0; i < c->count && !on; i++) {
		l = &c->layers[i];
		json_bool(layer_get(s, l, "uniqueItems", JSON_BOOL), &on);
	}
	if (!on || a->max <= 1)
		return false;
	struct conj each;
	size_t count = 0;
	json_val *values = NULL;
	if (prefix == 0) {
		element_conj(a, c, 0, &each);
		values = schema_values(s, &each, &count);
	}
	if (values == NULL || conj_has(c, "contains", NULL)) {
		gb_fail(b, ERR_UNSUPPORTED, "%s/uniqueItems is supported where items is an enum, and not beside prefixItems or contains: a grammar cannot remember other values; leave it out and check the answer",
			l->path);
		return true;
	}
	u32 *rules = arena_alloc(&b->arena, (count + 1) * sizeof(*rules));
	for (size_t i = 0; i < count && rules != NULL && b->err == ERR_OK; i++) {
		rules[i] = gb_rule(b, "a value");
		if (b->err == ERR_OK)
			gb_empty(b, json_put_literals(s->json, b->rules[rules[i]].start, &values[i], 1), b->rules[rules[i]].accept);
	}
	struct unique u = {.a = a, .count = (u32)count};
	if (rules == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
	} else if (count < 32 && 1u << count <= UNIQUE_SETS_MAX) {
		memcpy(u.rules, rules, count * sizeof(*rules));
		put_unique_sets(&u, open);
	} else {
		put_unique_in_order(a, open, rules, (u32)count);
	}
	return true;
}

/* ---- contains ---- */

/* What contains asks for, and how often. False: nothing. */
static bool read_contains(struct array *a, const struct conj *c, struct conj *wanted, u32 *least)
{
	struct schema *s = a->s;
	u32 found = 0;
	for (u32 i = 0; i < c->count; i++) {
		const struct layer *l = &c->layers[i];
		struct conj one = {.count = 1, .layers = {*l}};
		json_val v = json_get(l->v, "contains");
		if (json_type(v) == JSON_MISSING || conj_count_max(s, &one, "minContains", 1) == 0 || s->b->err != ERR_OK)
			continue;
		if (json_type(json_get(l->v, "minContains")) == JSON_MISSING)
			*least = 1;
		else
			*least = conj_count_max(s, &one, "minContains", 0);
		if (json_type(json_get(l->v, "maxContains")) != JSON_MISSING)
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/maxContains is not supported: use minContains alone", l->path);
		if (++found > 1)
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/contains beside another one is not supported", l->path);
		conj_add(s, wanted, v, schema_path(s, l->path, "contains", NULL, 0));
	}
	return found > 0;
}

/* A place is how many elements came, and how many of them of those that are wanted. Elements may be read in both ways. */
static bool put_contains(struct array *a, u32 open, const struct conj *c, size_t prefix)
{
	struct schema *s = a->s;
	struct gb *b = s->b;
	struct conj each, wanted = {0};
	u32 least = 0;
	if (!read_contains(a, c, &wanted, &least) || b->err != ERR_OK)
		return b->err != ERR_OK;
	u32 last = a->max != GRAMMAR_NONE ? a->max : a->min > least ? a->min : least;
	if (prefix > 0 || ((u64)last + 1) * (least + 1) > GRID_MAX) {
		gb_fail(b, ERR_UNSUPPORTED, "%s/contains is supported without prefixItems, and for small counts", c->layers[0].path);
		return true;
	}
	element_conj(a, c, 0, &each);
	for (u32 i = 0; i < each.count; i++)
		conj_add(s, &wanted, each.layers[i].v, each.layers[i].path);
	wanted.never = wanted.never || each.never;
	u32 any = schema_rule_of(s, &each), good = schema_rule_of(s, &wanted), width = least + 1;
	u32 *grid = arena_alloc(&b->arena, ((size_t)last + 1) * width * sizeof(*grid));
	for (u32 i = 0; grid != NULL && i < (last + 1) * width; i++)
		grid[i] = i == 0 ? open : gb_node(b);
	if (grid == NULL)
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
	for (u32 i = 0; i <= last && b->err == ERR_OK; i++) {
		for (u32 m = 0; m <= least && m <= i; m++) {
			u32 at = grid[i * width + m], to = i < last ? i + 1 : i;
			if (i >= a->min && m == least)
				gb_empty(b, i > 0 ? json_put_line(s->json, at) : at, a->close);
			if (i == last && a->max != GRAMMAR_NONE)
				continue;
			u32 next = put_comma(s, at, i);
			gb_call(b, next, grid[to * width + m], any);
			if (m < least)
				gb_call(b, next, grid[to * width + m + 1], good);
		}
	}
	return true;
}

u32 schema_put_array(struct schema *s, u32 from, const struct conj *c)
{
	struct gb *b = s->b;
	const struct layer *l;
	struct array a = {.s = s};
	size_t prefix = 0;
	for (u32 i = 0; i < c->count; i++) {
		const char *key;
		json_val first = prefix_of(s, &c->layers[i], &key);
		size_t n = json_count(first);
		a.first[i] = json_iterate(first);
		prefix = n > prefix ? n : prefix;
	}
	a.min = conj_count_max(s, c, "minItems", 0);
	a.max = conj_count_min(s, c, "maxItems", GRAMMAR_NONE);
	if (a.min > GRAMMAR_REPEAT_MAX || (a.max != GRAMMAR_NONE && a.max > GRAMMAR_REPEAT_MAX)) {
		bool is_min = a.min > GRAMMAR_REPEAT_MAX;
		if (conj_has(c, is_min ? "minItems" : "maxItems", &l))
			gb_fail(b, ERR_TOO_LONG, "%s/%s: at most %d is supported", l->path, is_min ? "minItems" : "maxItems", GRAMMAR_REPEAT_MAX);
	}
	if (b->err != ERR_OK)
		return from;
	if (a.max < a.min)
		return gb_node(b);
	u32 open = json_put_line(s->json, gb_text(b, from, "[", 1));
	a.close = gb_node(b);
	if (!put_unique(&a, open, c, prefix) && !put_contains(&a, open, c, prefix))
		put_elements(&a, open, c, prefix);
	return gb_text(b, a.close, "]", 1);
}
