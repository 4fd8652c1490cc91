/* Owns grammars made of parts: texts, schemas and expressions one behind the other, as tool calls need them. Runs wherever a
 * grammar is compiled. */
#include <stdio.h>
#include <string.h>

#include "text/grammar_schema_priv.h"

struct parts {
	struct gb *b;
	struct json_rules json;
	u32 level;
};

static u32 put_parts(struct parts *p, u32 from, json_val list, const char *path);

static u32 put_any(struct parts *p, u32 from, json_val lists, const char *path)
{
	u32 to = gb_node(p->b), i = 0;
	for (struct json_iter it = json_iterate(lists); p->b->err == ERR_OK && json_next(&it); i++) {
		char below[256];
		snprintf(below, sizeof(below), "%s/%u", path, i);
		u32 begin = gb_node(p->b);
		gb_empty(p->b, from, begin);
		gb_empty(p->b, put_parts(p, begin, it.value, below), to);
	}
	return to;
}

/* A text: spelt, or as the special token of exactly that text, which vocabularies have behind GRAMMAR_SPECIAL_BYTE. */
static u32 put_text(struct gb *b, u32 from, const char *text, size_t bytes)
{
	u32 to = gb_node(b), special = gb_node(b);
	gb_empty(b, gb_text(b, from, text, bytes), to);
	gb_bytes(b, from, special, GRAMMAR_SPECIAL_BYTE, GRAMMAR_SPECIAL_BYTE);
	gb_empty(b, gb_text(b, special, text, bytes), to);
	return to;
}

/* ---- tags in free text ---- */

/* {"triggers": [text, ...], "structures": [{"begin": text, "schema": S, "end": text}, ...]}: any text without triggers, and behind
 * each of them the rest of a structure that begins with it. */
struct tags {
	struct parts *p;
	json_val triggers, structures;
	const char *path;
	u32 free;	     /* text without a trigger so far: it may end here */
	u32 after[PRODUCT_PARTS_MAX]; /* behind trigger i */
	u32 count;
};

static u32 exit_tags(void *ctx, u64 matching)
{
	const struct tags *t = ctx;
	struct gb *b = t->p->b;
	u32 hits = 0, last = 0;
	for (u32 i = 0; i < t->count; i++) { /* part 0 is any text */
		if (matching >> (i + 1) & 1) {
			last = t->after[i];
			hits++;
		}
	}
	if (hits <= 1)
		return hits ? last : matching & 1 ? t->free : GRAMMAR_NONE;
	u32 several = gb_node(b);
	for (u32 i = 0; i < t->count; i++) {
		if (matching >> (i + 1) & 1)
			gb_empty(b, several, t->after[i]);
	}
	return several;
}

/* What structure `s` has behind the trigger with which it begins, and then free text again at `loop`. */
static void put_structure(struct tags *t, u32 from, json_val s, size_t trigger_bytes, const char *path, u32 loop)
{
	struct gb *b = t->p->b;
	const char *begin, *end = "";
	size_t begin_bytes, end_bytes = 0;
	char below[256];
	json_string(json_get(s, "begin"), &begin, &begin_bytes);
	if (!json_string(json_get(s, "end"), &end, &end_bytes))
		gb_fail(b, ERR_FORMAT, "%s/end is to be a text", path);
	snprintf(below, sizeof(below), "%.200s/schema", path);
	const char *kept = arena_strdup(&b->arena, below);
	u32 rule = gb_rule(b, "a schema"), to = gb_node(b);
	if (b->err != ERR_OK)
		return;
	json_val schema = json_get(s, "schema");
	if (json_type(schema) == JSON_MISSING)
		gb_fail(b, ERR_FORMAT, "%s/schema is missing: it is to be a JSON Schema", path);
	else
		grammar_put_schema(&t->p->json, rule, schema, kept != NULL ? kept : "#");
	gb_call(b, gb_text(b, from, begin + trigger_bytes, begin_bytes - trigger_bytes), to, rule);
	gb_empty(b, end_bytes > 0 ? put_text(b, to, end, end_bytes) : to, loop);
}

/* Ways behind trigger number i. False: no structure begins with it. */
static bool put_trigger(struct tags *t, u32 i, const char *trigger, size_t bytes, u32 loop)
{
	struct gb *b = t->p->b;
	u32 k = 0;
	bool any = false;
	for (struct json_iter it = json_iterate(t->structures); b->err == ERR_OK && json_next(&it); k++) {
		const char *begin;
		size_t begin_bytes;
		char path[256];
		snprintf(path, sizeof(path), "%.200s/structures/%u", t->path, k);
		if (!json_string(json_get(it.value, "begin"), &begin, &begin_bytes)) {
			gb_fail(b, ERR_FORMAT, "%s/begin is to be a text", path);
		} else if (begin_bytes >= bytes && memcmp(begin, trigger, bytes) == 0) {
			put_structure(t, t->after[i], it.value, bytes, path, loop);
			any = true;
		}
	}
	/* As a special token, which free text has none of. */
	u32 special = gb_node(b);
	gb_bytes(b, t->free, special, GRAMMAR_SPECIAL_BYTE, GRAMMAR_SPECIAL_BYTE);
	gb_empty(b, gb_text(b, special, trigger, bytes), t->after[i]);
	return any;
}

static void check_begins(const struct tags *t)
{
	u32 k = 0;
	for (struct json_iter it = json_iterate(t->structures); t->p->b->err == ERR_OK && json_next(&it); k++) {
		const char *begin = json_cstr(json_get(it.value, "begin"), "");
		bool found = false;
		for (struct json_iter at = json_iterate(t->triggers); !found && json_next(&at);)
			found = strncmp(begin, json_cstr(at.value, ""), strlen(json_cstr(at.value, ""))) == 0;
		if (!found)
			gb_fail(t->p->b, ERR_INVALID, "%s/structures/%u/begin begins with none of the triggers, so it could never come", t->path, k);
	}
}

static u32 put_tags(struct parts *p, u32 from, json_val v, const char *path)
{
	struct gb *b = p->b;
	struct tags t = {.p = p, .triggers = json_get(v, "triggers"), .structures = json_get(v, "structures"), .path = path};
	u32 loop = gb_node(b);
	struct product texts;
	t.free = gb_node(b);
	gb_empty(b, from, loop);
	if (json_count(t.triggers) == 0 || json_count(t.triggers) >= PRODUCT_PARTS_MAX || json_type(t.triggers) != JSON_ARRAY ||
	    json_type(t.structures) != JSON_ARRAY || json_count(t.structures) == 0)
		gb_fail(b, ERR_FORMAT, "%s: triggers (at most %d texts) and structures are to be arrays that are not empty", path, PRODUCT_PARTS_MAX - 1);
	check_begins(&t);
	product_init(&texts, b);
	product_length(&texts, 0, GRAMMAR_NONE);
	for (struct json_iter it = json_iterate(t.triggers); b->err == ERR_OK && json_next(&it); t.count++) {
		const char *trigger = json_cstr(it.value, ""); /* borrowed */
		t.after[t.count] = gb_node(b);
		if (trigger[0] == '\0')
			gb_fail(b, ERR_FORMAT, "%s/triggers/%u is to be a text of a character or more", path, t.count);
		else if (!put_trigger(&t, t.count, trigger, strlen(trigger), loop))
			gb_fail(b, ERR_INVALID, "%s/triggers/%u: no structure begins with \"%.80s\"", path, t.count, trigger);
		u32 part = product_length(&texts, 0, GRAMMAR_NONE); /* any text, and the trigger behind it */
		texts.parts[part].end = gb_text(&texts.scratch, texts.parts[part].end, trigger, strlen(trigger));
		texts.final |= 1ull << part;
	}
	texts.needed = 1;
	product_put(&texts, loop, exit_tags, &t);
	product_fini(&texts);
	return t.free;
}

static u32 put_part(struct parts *p, u32 from, json_val part, const char *path)
{
	struct gb *b = p->b;
	const char *text;
	size_t bytes;
	char below[256];
	if (json_string(part, &text, &bytes))
		return bytes > 0 ? put_text(b, from, text, bytes) : from;
	struct json_iter it = json_iterate(part);
	if (json_type(part) != JSON_OBJECT || json_count(part) != 1 || !json_next(&it)) {
		gb_fail(b, ERR_FORMAT, "%s is to be a string or an object with one of json_schema, regex, repeat, any, tags", path);
		return from;
	}
	snprintf(below, sizeof(below), "%s/%.40s", path, it.key);
	if (strcmp(it.key, "json_schema") == 0) {
		const char *kept = arena_strdup(&b->arena, below);
		u32 rule = gb_rule(b, "a schema"), to = gb_node(b);
		if (b->err == ERR_OK)
			grammar_put_schema(&p->json, rule, it.value, kept != NULL ? kept : "#");
		gb_call(b, from, to, rule);
		return to;
	}
	if (strcmp(it.key, "regex") == 0 && json_string(it.value, &text, &bytes))
		return gb_regex(b, from, text, bytes, false);
	if (strcmp(it.key, "repeat") == 0) {
		u32 begin = gb_node(b);
		gb_empty(b, from, begin);
		u32 end = put_parts(p, begin, it.value, below);
		gb_empty(b, end, begin);
		return end;
	}
	if (strcmp(it.key, "tags") == 0)
		return put_tags(p, from, it.value, below);
	if (strcmp(it.key, "any") == 0 && json_type(it.value) == JSON_ARRAY)
		return put_any(p, from, it.value, below);
	gb_fail(b, ERR_FORMAT, "%s: there are json_schema (a schema), regex (a string), repeat (an array of parts), any (an array of arrays of parts), tags (an object)", below);
	return from;
}

static u32 put_parts(struct parts *p, u32 from, json_val list, const char *path)
{
	u32 i = 0;
	if (json_type(list) != JSON_ARRAY)
		gb_fail(p->b, ERR_FORMAT, "%s is to be an array of parts, not %s", path, json_type_name(list));
	for (struct json_iter it = json_iterate(list); p->b->err == ERR_OK && json_next(&it); i++) {
		char below[256];
		snprintf(below, sizeof(below), "%.200s/%u", path, i);
		from = put_part(p, from, it.value, below);
	}
	/* A node of its own: what loops back to its end must not loop into what comes behind. */
	u32 to = gb_node(p->b);
	gb_empty(p->b, from, to);
	return to;
}

void grammar_read_parts(struct gb *b, u32 flags, const char *source, size_t bytes)
{
	struct json_doc *doc = NULL;
	struct err_msg em = {.text = ""};
	struct parts p = {.b = b};
	json_rules_init(&p.json, b, flags);
	b->depth_max++; /* a schema is a call here */
	u32 root = gb_rule(b, "the parts");
	if (json_parse(&doc, source, bytes, &em) != ERR_OK)
		gb_fail(b, ERR_FORMAT, "the parts are no JSON: %s", em.text);
	if (b->err == ERR_OK) {
		struct grammar_rule r = b->rules[root];
		gb_empty(b, put_parts(&p, r.start, json_root(doc), "#"), r.accept);
	}
	json_free(&doc);
}
