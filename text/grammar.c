/* Owns the life of a grammar, and the front end of choices. Runs in gateways, which compile to check, and in workers. */
#include "text/grammar_priv.h"

#include <stdlib.h>

#include "common/assert.h"
#include "common/json.h"
#include "common/utf8.h"

void grammar_read_choice(struct gb *b, const char *source, size_t bytes)
{
	struct json_doc *doc = NULL;
	struct err_msg em = {.text = ""};
	u32 root = gb_rule(b, "the choice");
	if (json_parse(&doc, source, bytes, &em) != ERR_OK) {
		gb_fail(b, ERR_FORMAT, "the choices are no JSON: %s", em.text);
		return;
	}
	json_val list = json_root(doc);
	size_t count = json_count(list);
	struct gb_string *strings = NULL;
	if (json_type(list) != JSON_ARRAY || count == 0)
		gb_fail(b, ERR_FORMAT, "the choices are to be an array of strings that is not empty, not %s",
			json_type(list) == JSON_ARRAY ? "an empty one" : json_type_name(list));
	else
		strings = arena_alloc(&b->arena, count * sizeof(*strings));
	size_t i = 0;
	for (struct json_iter it = json_iterate(list); b->err == ERR_OK && strings != NULL && json_next(&it); i++) {
		if (!json_string(it.value, &strings[i].text, &strings[i].bytes))
			gb_fail(b, ERR_FORMAT, "choice %zu is to be a string, not %s", i, json_type_name(it.value));
		else if (strings[i].bytes == 0)
			gb_fail(b, ERR_INVALID, "choice %zu is empty: an answer has to have a text", i);
	}
	if (b->err == ERR_OK && strings == NULL)
		gb_fail(b, ERR_TOO_LONG, "too many choices: %zu", count);
	if (b->err == ERR_OK) {
		struct grammar_rule r = b->rules[root];
		gb_empty(b, gb_strings(b, r.start, strings, count), r.accept);
	}
	json_free(&doc);
}

static void read_regex(struct gb *b, const char *source, size_t bytes)
{
	u32 root = gb_rule(b, "the expression");
	if (b->err != ERR_OK)
		return;
	struct grammar_rule r = b->rules[root];
	gb_empty(b, gb_regex(b, r.start, source, bytes, false), r.accept);
}

enum err grammar_compile(struct grammar **out, enum grammar_kind kind, u32 flags, const char *source, size_t bytes,
			 struct err_msg *em)
{
	*out = NULL;
	if (bytes > GRAMMAR_SOURCE_MAX)
		return err_set(em, ERR_TOO_LONG, "the source of the grammar has %zu bytes, at most %d are allowed", bytes,
			       GRAMMAR_SOURCE_MAX);
	if (kind != GRAMMAR_JSON_OBJECT && !utf8_valid(source, bytes))
		return err_set(em, ERR_FORMAT, "the source of the grammar is not valid UTF-8");
	struct gb b;
	gb_init(&b);
	switch (kind) {
	case GRAMMAR_CHOICE:
		grammar_read_choice(&b, source, bytes);
		break;
	case GRAMMAR_REGEX:
		read_regex(&b, source, bytes);
		break;
	case GRAMMAR_JSON_SCHEMA:
		grammar_read_schema(&b, flags, source, bytes);
		break;
	case GRAMMAR_JSON_OBJECT:
		grammar_read_object(&b, flags);
		break;
	case GRAMMAR_EBNF:
		grammar_read_ebnf(&b, source, bytes);
		break;
	case GRAMMAR_PARTS:
		grammar_read_parts(&b, flags, source, bytes);
		break;
	default:
		gb_fail(&b, ERR_INVALID, "grammar kind %d does not exist", (int)kind);
	}
	enum err e = gb_finish(&b, out, em);
	gb_fini(&b);
	return e;
}

struct grammar *grammar_ref(struct grammar *g)
{
	u32 before = atomic_fetch_add(&g->references, 1);
	ASSERT(before > 0);
	return g;
}

void grammar_unref(struct grammar **g)
{
	struct grammar *at = *g;
	*g = NULL;
	if (at == NULL || atomic_fetch_sub(&at->references, 1) != 1)
		return;
	ASSERT(at->caches == NULL);
	free(at->first_edge);
	free(at->edges);
	free(at->height);
	free(at->accepts);
	free(at->rules);
	free(at->repeats);
	free(at);
}

size_t grammar_bytes(const struct grammar *g)
{
	size_t bytes = sizeof(*g) + ((size_t)g->node_count + 2) * sizeof(u32) + 2 * (size_t)g->node_count;
	bytes += (size_t)g->first_edge[g->node_count] * sizeof(struct grammar_edge);
	return bytes + g->rule_count * sizeof(struct grammar_rule) + g->repeat_count * sizeof(struct grammar_repeat);
}
