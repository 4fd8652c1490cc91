/* Owns the further members of objects, those that are no properties: whether there may be any, their names, and what applies to
 * their values. Runs wherever a grammar is compiled. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/grammar_schema_object_priv.h"

enum { NAME_KINDS_MAX = 64 }; /* sets of patterns that names match */

/* Whether members may come that no pattern names. Where nothing is said, properties and patterns are all there is. */
static bool allows_others(const struct object *o)
{
	bool closed = false, open = false, listed = false;
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		const char *key;
		json_val further = additional_of(l, &key);
		bool truth = true;
		closed = closed || (json_bool(further, &truth) && !truth);
		open = open || json_type(further) != JSON_MISSING;
		listed = listed || json_type(json_get(l->v, "properties")) != JSON_MISSING ||
			 json_type(json_get(l->v, "patternProperties")) != JSON_MISSING;
	}
	return !closed && (open || (!listed && o->count == 0));
}

/* What applies to the value of a further member whose name matches these patterns. False: there may be none. */
static bool further_conj(struct object *o, u64 matching, struct conj *value)
{
	struct schema *s = o->s;
	*value = (struct conj){0};
	if (!(matching & o->pattern_parts) && !allows_others(o))
		return false;
	for (u32 i = 0; i < o->c->count; i++) {
		const struct layer *l = &o->c->layers[i];
		const char *key;
		json_val further = additional_of(l, &key);
		bool named = false;
		for (u32 k = 0; o->has_names && k < o->names.count; k++) {
			if (!(matching & o->pattern_parts & 1ull << k) || o->patterns[k].layer != i)
				continue;
			conj_add(s, value, o->patterns[k].schema, o->patterns[k].path);
			named = true;
		}
		if (!named && json_type(further) != JSON_MISSING)
			conj_add(s, value, further, schema_path(s, l->path, key, NULL, 0));
	}
	return !value->never;
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

/* The name of a further member, in quotes. */
static u32 put_name(struct object *o, u32 from)
{
	struct gb *b = o->s->b;
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

/* The rest of a further member behind the quote that closes its name. */
static void put_further_value(struct object *o, u32 from, const struct conj *value, u32 to)
{
	struct gb *b = o->s->b;
	u32 at = json_put_colon(o->s->json, from);
	if (value->count > 0)
		gb_call(b, at, to, schema_rule_of(o->s, value));
	else
		gb_empty(b, json_put_value(o->s->json, at), to);
}

/* Names by the patterns that they match. */
struct kinds {
	struct object *o;
	u32 count;
	struct {
		u64 matching;
		u32 node; /* behind the name; GRAMMAR_NONE: there may be none */
		struct conj *value;
	} kinds[NAME_KINDS_MAX];
};

static u32 exit_name(void *ctx, u64 matching)
{
	struct kinds *k = ctx;
	struct object *o = k->o;
	struct gb *b = o->s->b;
	if ((matching & o->named_part) || (matching & o->needed_parts) != o->needed_parts)
		return GRAMMAR_NONE;
	matching &= o->pattern_parts;
	for (u32 i = 0; i < k->count; i++) {
		if (k->kinds[i].matching == matching)
			return k->kinds[i].node;
	}
	struct conj *value = arena_alloc(&b->arena, sizeof(*value));
	if (k->count == NAME_KINDS_MAX || value == NULL) {
		gb_fail(b, ERR_TOO_LONG, "%s/patternProperties: names can match too many sets of patterns, more than %d", o->c->layers[0].path,
			NAME_KINDS_MAX);
		return GRAMMAR_NONE;
	}
	k->kinds[k->count].matching = matching;
	k->kinds[k->count].value = value;
	k->kinds[k->count].node = further_conj(o, matching, value) ? gb_node(b) : GRAMMAR_NONE;
	return k->kinds[k->count++].node;
}

u32 schema_further_rule(struct object *o)
{
	struct gb *b = o->s->b;
	struct conj value;
	if (!o->has_names && !further_conj(o, 0, &value))
		return GRAMMAR_NONE;
	u32 rule = b->err == ERR_OK ? gb_rule(b, "a further member") : GRAMMAR_NONE;
	if (b->err != ERR_OK)
		return GRAMMAR_NONE;
	struct grammar_rule r = b->rules[rule];
	if (!o->has_names) {
		put_further_value(o, put_name(o, r.start), &value, r.accept);
		return rule;
	}
	struct kinds *k = arena_zalloc(&b->arena, sizeof(*k));
	if (k == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return GRAMMAR_NONE;
	}
	k->o = o;
	product_put(&o->names, gb_text(b, r.start, "\"", 1), exit_name, k);
	bool any = false;
	for (u32 i = 0; i < k->count && b->err == ERR_OK; i++) {
		if (k->kinds[i].node == GRAMMAR_NONE)
			continue;
		put_further_value(o, gb_text(b, k->kinds[i].node, "\"", 1), k->kinds[i].value, r.accept);
		any = true;
	}
	return any ? rule : GRAMMAR_NONE;
}
