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
		gb_fail(b, ERR_FORMAT, "%s is to be a string or an object with one of json_schema, regex, repeat, any", path);
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
	if (strcmp(it.key, "any") == 0 && json_type(it.value) == JSON_ARRAY)
		return put_any(p, from, it.value, below);
	gb_fail(b, ERR_FORMAT, "%s: there are json_schema (a schema), regex (a string), repeat (an array of parts), any (an array of arrays of parts)", below);
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
