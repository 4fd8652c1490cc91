/* JSON Schema as a grammar. A place in an answer is described by a conjunction: all layers (schemas) apply to the value there.
 * $ref and allOf add layers; anyOf branches; then each keyword is read over all layers. */
#ifndef TERCET_TEXT_GRAMMAR_SCHEMA_PRIV_H
#define TERCET_TEXT_GRAMMAR_SCHEMA_PRIV_H

#include "common/json.h"
#include "text/grammar_priv.h"

/* ---------------------------------------------------------------- JSON itself (grammar_json.c) */

/* The rules of JSON that grammars share, each made when it is first needed. */
/* A rule of strings between two lengths, or of those that a pattern matches, too. */
struct string_rule {
	const char *pattern; /* in the arena; NULL: any string */
	size_t bytes;
	bool search;
	u32 min, max;
	u32 rule;
};
struct json_rules {
	struct gb *b;
	bool compact;
	u32 space, value, object, array, string, integer, number, character;
	struct string_rule *strings;
	u32 string_count, string_capacity;
	/* Strings of bounded length share how they go on: at tail[k] at most k characters and the quote follow. */
	u32 *tail;
	u32 tail_count, tail_capacity;
	u32 tail_end, endless_tail;
};

void json_rules_init(struct json_rules *j, struct gb *b, u32 flags);
/* Each continues at `from` and returns where it ends. White space: where a line may end, and behind a colon. */
u32 json_put_line(struct json_rules *j, u32 from);
u32 json_put_colon(struct json_rules *j, u32 from);
u32 json_put_value(struct json_rules *j, u32 from);
u32 json_put_object(struct json_rules *j, u32 from);
u32 json_put_array(struct json_rules *j, u32 from);
u32 json_put_string(struct json_rules *j, u32 from);
u32 json_put_integer(struct json_rules *j, u32 from);
u32 json_put_number(struct json_rules *j, u32 from);
/* Of min to max code points, max GRAMMAR_NONE: any number. */
u32 json_put_string_of(struct json_rules *j, u32 from, u32 min, u32 max);
/* In quotes, what the expression (as of gb_regex_of) matches; its characters are escaped where JSON demands it, else as they are. */
u32 json_put_matching(struct json_rules *j, u32 from, const char *pattern, size_t bytes, bool search, u32 min, u32 max);
/* "{" members "}", the members being `member` again and again, min to max times. */
u32 json_put_members(struct json_rules *j, u32 from, u32 member_rule, u32 min, u32 max);
/* The text of a string with its quotes, in the arena; empty and b->err set where memory ran out. */
struct gb_string json_quote(struct gb *b, const char *text, size_t bytes);
/* One of the values, letter by letter but for white space. */
u32 json_put_literals(struct json_rules *j, u32 from, const json_val *values, size_t count);
/* A regular expression of ours, which compiles. */
u32 json_put_pattern(struct gb *b, u32 from, const char *pattern);

/* ---------------------------------------------------------------- numbers (grammar_number.c) */

/* A decimal number: `text` has the digits before and behind the point, no leading or trailing zeros that mean nothing. */
struct decimal {
	bool negative;
	bool endless; /* no bound */
	bool strict;  /* the bound itself is not in the range */
	char whole[24];
	char part[24];
};
/* False: not a number, or one of more digits than that. */
bool decimal_read(struct decimal *d, json_val v);
/* d1 < d2: -1, equal: 0, else 1; endless ones may not be compared. */
int decimal_compare(const struct decimal *x, const struct decimal *y);
/* Numbers of at most part_max digits behind the point (0: integers), without exponent, from `low` to `high`. */
u32 gb_number(struct gb *b, u32 from, const struct decimal *low, const struct decimal *high, u32 part_max);

/* ---------------------------------------------------------------- schemas (grammar_schema*.c) */

enum {
	LAYERS_MAX = 24,
	SCHEMA_LEVELS_INLINE = 12, /* schemas inside schemas that are not rules of their own */
	SCHEMA_STEPS_MAX = 50000,
	SCHEMA_READ_MAX = 600 * 1000, /* keywords that are looked through, again in each step: some 60 ms */
	SCHEMA_COMPARED_MAX = 4 * 1000 * 1000, /* values of enums with each other: some 60 ms */
};
enum layer_flag {
	LAYER_ANY_READ = 1u << 0, /* its anyOf is branched over already */
	LAYER_ONE_READ = 1u << 1,
	LAYER_REF_READ = 1u << 2,
	LAYER_ALL_READ = 1u << 3,
};
struct layer {
	json_val v;
	const char *path; /* as "#/properties/a" */
	u32 flags;
	u32 parent; /* the layer whose $ref or allOf brought it, counted from 1; 0: none */
};
struct conj {
	u32 count;
	bool never; /* a layer is false */
	struct layer layers[LAYERS_MAX];
};
/* A conjunction that is a rule of its own. */
struct schema_rule {
	u32 rule;
	struct conj *conj;
};
/* What schema_cases made of a schema. */
struct schema_case {
	json_val of;
	struct json_doc *doc; /* owned */
	struct schema_case *next;
};
struct schema {
	struct gb *b;
	struct json_rules *json;
	json_val root;
	const char *root_path;
	struct schema_rule *rules;
	u32 rule_count, rule_capacity;
	struct schema_case *cases;
	u32 level, steps;
	u64 read; /* keywords of the layers of all steps */
	u64 compared;
};

enum type_bit {
	TYPE_NULL = 1u << 0,
	TYPE_BOOLEAN = 1u << 1,
	TYPE_INTEGER = 1u << 2,
	TYPE_NUMBER = 1u << 3,
	TYPE_STRING = 1u << 4,
	TYPE_ARRAY = 1u << 5,
	TYPE_OBJECT = 1u << 6,
	TYPE_ALL = (1u << 7) - 1,
};

/* Writes rule `rule` (and those that it needs) from a schema; `path` is put before the places in messages. */
void grammar_put_schema(struct json_rules *j, u32 rule, json_val root, const char *path);

/* Continues at `from` with a value that all layers allow. A place that cannot be reached where there is none. */
u32 schema_put(struct schema *s, u32 from, const struct conj *c);
/* The same as a call of a rule, shared by all places with the same layers. */
u32 schema_rule_of(struct schema *s, const struct conj *c);
void conj_add(struct schema *s, struct conj *c, json_val v, const char *path);
/* "path/key", "path/key/member" in the arena, escaped as JSON pointers are. */
const char *schema_path(struct schema *s, const char *path, const char *key, const char *member, size_t member_bytes);
/* The keyword of the layer where it has the type, JSON_MISSING where it is absent; fails with the place otherwise. */
json_val layer_get(struct schema *s, const struct layer *l, const char *key, enum json_type type);
/* The strictest of a bound over all layers that is a count: `from` is what holds without. */
u32 conj_count_max(struct schema *s, const struct conj *c, const char *key, u32 from);
u32 conj_count_min(struct schema *s, const struct conj *c, const char *key, u32 from);
/* Whether any layer has the keyword; *where: the first one (may be NULL). */
bool conj_has(const struct conj *c, const char *key, const struct layer **where);
u32 layer_types(struct schema *s, const struct layer *l);
u32 schema_type_of(json_val v); /* the types (enum type_bit) that the value has */
/* Whether the pattern is found in the text. Compiles it each time. */
bool schema_text_matches(struct schema *s, const char *pattern, size_t pattern_bytes, const char *text, size_t bytes);

/* A keyword of schema_cases: the value is none of the const or enum inside. No schema from outside has it. */
#define SCHEMA_NONE_OF "\x01none"
/* dependentRequired, dependentSchemas, dependencies, if and not of the layer as a schema, the same one each time; missing: there is
 * none of them. */
json_val schema_cases(struct schema *s, const struct layer *l);
void schema_cases_fini(struct schema *s);

/* Adds what $ref and allOf of the layers stand for, until there is nothing to add: the conjunction is flat then. */
void schema_flatten(struct schema *s, struct conj *c);
/* Whether a keyword says anything about values; others are annotations. */
bool schema_constrains(const char *key);
/* The expression of a known format; NULL: it is not known. */
const char *schema_format(const char *name);

/* Values of all types that the layers allow, where there are no enum and const. The conjunction is flat. */
u32 schema_put_types(struct schema *s, u32 from, const struct conj *c);
/* By type. The conjunction is flat. */
u32 schema_put_object(struct schema *s, u32 from, const struct conj *c);
u32 schema_put_array(struct schema *s, u32 from, const struct conj *c);
u32 schema_put_string(struct schema *s, u32 from, const struct conj *c);
u32 schema_put_number(struct schema *s, u32 from, const struct conj *c, bool integer);
/* Literals of enum and const that all layers allow. */
u32 schema_put_enum(struct schema *s, u32 from, const struct conj *c);
/* The same as a list without equals, in the arena; NULL where there is neither. The conjunction is flat. */
json_val *schema_distinct_values(struct schema *s, const struct conj *c, size_t *count);
/* The same of a conjunction as it is; NULL, too, where it has anyOf or oneOf. */
json_val *schema_values(struct schema *s, const struct conj *c, size_t *count);

#endif
