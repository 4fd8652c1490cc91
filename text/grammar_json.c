/* Owns JSON as a grammar: values, strings, numbers, literals, white space. Runs wherever a grammar is compiled. Never lets a
 * model loop in white space, digits or nesting: all three are bounded. */
#include <stdio.h>
#include <string.h>

#include "text/grammar_schema_priv.h"

/* One character of a string: as it is, or escaped; surrogates in pairs only. */
#define HEX  "[0-9a-fA-F]"
#define CHAR "(?:[ !#-\\[\\]-\\u{10ffff}]|\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9a-cA-CefEF]" HEX HEX HEX "|[dD][0-7]" HEX HEX \
	     "|[dD][89abAB]" HEX HEX "\\\\u[dD][c-fC-F]" HEX HEX ")))"
/* 19 digits are what 64 bits hold (nearly); what is larger has an exponent. */
#define WHOLE "(?:0|[1-9][0-9]{0,18})"
#define INTEGER "-?" WHOLE
/* Exponents that keep the number finite. */
#define NUMBER INTEGER "(?:\\.[0-9]{1,24})?(?:[eE](?:\\+?(?:[0-9]{1,2}|1[0-9]{2}|2[0-8][0-9])|-[0-9]{1,3}))?"
/* One space, or one line's end with its indent (of at most SPACES_MAX or TABS_MAX). */
enum { SPACES_MAX = 40, TABS_MAX = 20 };
#define SPACE "(?: |\\n(?: {0,40}|\\t{0,20}))?"

void json_rules_init(struct json_rules *j, struct gb *b, u32 flags)
{
	*j = (struct json_rules){.b = b, .compact = (flags & GRAMMAR_COMPACT) != 0};
	j->space = j->value = j->object = j->array = j->string = j->integer = j->number = j->character = GRAMMAR_NONE;
	j->tail_end = j->endless_tail = GRAMMAR_NONE;
	b->depth_max = GRAMMAR_JSON_LEVELS_MAX + 4;
}

u32 json_put_pattern(struct gb *b, u32 from, const char *pattern)
{
	return gb_regex(b, from, pattern, strlen(pattern), false);
}

static u32 call(struct gb *b, u32 from, u32 rule)
{
	u32 to = gb_node(b);
	gb_call(b, from, to, rule);
	return to;
}

static u32 pattern_rule(struct gb *b, const char *name, const char *pattern)
{
	u32 rule = gb_rule(b, name);
	if (b->err == ERR_OK) {
		struct grammar_rule r = b->rules[rule];
		gb_empty(b, json_put_pattern(b, r.start, pattern), r.accept);
	}
	return rule;
}

/* A rule that all grammars have alike, made on the first call. */
static u32 call_common(struct json_rules *j, u32 from, u32 *rule, enum common_rule which, const char *name, const char *pattern)
{
	struct gb *b = j->b;
	if (*rule == GRAMMAR_NONE) {
		u32 start = b->node_count;
		*rule = pattern_rule(b, name, pattern);
		b->common[which] = (struct node_range){start, b->node_count};
	}
	return call(b, from, *rule);
}

u32 json_put_line(struct json_rules *j, u32 from)
{
	return j->compact ? from : call_common(j, from, &j->space, COMMON_SPACE, "white space", SPACE);
}

u32 json_put_colon(struct json_rules *j, u32 from)
{
	return json_put_pattern(j->b, from, j->compact ? ":" : ": ?");
}

u32 json_put_string(struct json_rules *j, u32 from)
{
	return call_common(j, from, &j->string, COMMON_STRING, "a string", "\"" CHAR "*\"");
}

u32 json_put_integer(struct json_rules *j, u32 from)
{
	return call_common(j, from, &j->integer, COMMON_INTEGER, "an integer", INTEGER);
}

u32 json_put_number(struct json_rules *j, u32 from)
{
	return call_common(j, from, &j->number, COMMON_NUMBER, "a number", NUMBER);
}

/* ---- strings of some lengths, or of a pattern ---- */

/* The rule that was made for the same strings; GRAMMAR_NONE: there is none. */
static u32 find_strings(const struct json_rules *j, const struct string_rule *wanted)
{
	for (u32 i = 0; i < j->string_count; i++) {
		const struct string_rule *s = &j->strings[i];
		if (s->min == wanted->min && s->max == wanted->max && s->search == wanted->search && s->bytes == wanted->bytes &&
		    (s->pattern == NULL) == (wanted->pattern == NULL) &&
		    (s->bytes == 0 || memcmp(s->pattern, wanted->pattern, s->bytes) == 0))
			return s->rule;
	}
	return GRAMMAR_NONE;
}

/* One more of `size` bytes in an array of the arena. False: b->err is set. */
static bool grow(struct gb *b, void *array, u32 count, u32 *capacity, size_t size)
{
	if (count < *capacity)
		return true;
	u32 wanted = *capacity > 0 ? 2 * *capacity : 16;
	void **at = array, *grown = arena_alloc(&b->arena, wanted * size);
	if (grown == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large");
		return false;
	}
	if (count > 0)
		memcpy(grown, *at, count * size);
	*at = grown;
	*capacity = wanted;
	return true;
}

static void keep_strings(struct json_rules *j, const struct string_rule *made)
{
	if (grow(j->b, &j->strings, j->string_count, &j->string_capacity, sizeof(*j->strings)))
		j->strings[j->string_count++] = *made;
}

static u32 character_rule(struct json_rules *j)
{
	if (j->character == GRAMMAR_NONE)
		j->character = pattern_rule(j->b, "a character", CHAR);
	return j->character;
}

/* Where at most `left` characters and the quote follow; GRAMMAR_NONE: any number. */
static u32 tail_at(struct json_rules *j, u32 left)
{
	struct gb *b = j->b;
	u32 character = character_rule(j), had = j->tail_count;
	if (j->tail_end == GRAMMAR_NONE)
		j->tail_end = gb_node(b);
	if (left == GRAMMAR_NONE && j->endless_tail == GRAMMAR_NONE) {
		u32 at = j->endless_tail = gb_node(b);
		gb_bytes(b, at, j->tail_end, '"', '"');
		gb_call(b, at, at, character);
	}
	if (left == GRAMMAR_NONE)
		return j->endless_tail;
	while (j->tail_count <= left && b->err == ERR_OK && grow(b, &j->tail, j->tail_count, &j->tail_capacity, sizeof(*j->tail))) {
		u32 at = gb_node(b);
		gb_bytes(b, at, j->tail_end, '"', '"');
		if (j->tail_count > 0)
			gb_call(b, at, j->tail[j->tail_count - 1], character);
		j->tail[j->tail_count++] = at;
	}
	if (j->tail_count > had && b->err == ERR_OK)
		gb_tell_repeat(b, (struct grammar_repeat){
					  .base = j->tail[had], .size = 1, .copies = j->tail_count - had, .behind = had, .backwards = true});
	return b->err == ERR_OK ? j->tail[left] : j->tail_end;
}

u32 json_put_string_of(struct json_rules *j, u32 from, u32 min, u32 max)
{
	struct gb *b = j->b;
	if (min == 0 && max == GRAMMAR_NONE)
		return json_put_string(j, from);
	struct string_rule wanted = {.min = min, .max = max};
	wanted.rule = find_strings(j, &wanted);
	if (wanted.rule == GRAMMAR_NONE) {
		u32 tail = tail_at(j, max == GRAMMAR_NONE ? max : max - min);
		wanted.rule = gb_rule_to(b, "a string", j->tail_end);
		if (b->err != ERR_OK)
			return from;
		struct gexpr one = {.kind = GEXPR_CALL, .rule = character_rule(j), .min = 1};
		struct gexpr needed = {.kind = GEXPR_REPEAT, .min = min, .max = min, .first = &one};
		gb_empty(b, gb_expr(b, gb_text(b, b->rules[wanted.rule].start, "\"", 1), &needed), tail);
		keep_strings(j, &wanted);
	}
	return call(b, from, wanted.rule);
}

u32 json_put_matching(struct json_rules *j, u32 from, const char *pattern, size_t bytes, bool search, u32 min, u32 max)
{
	struct gb *b = j->b;
	struct string_rule wanted = {.pattern = pattern, .bytes = bytes, .search = search, .min = min, .max = max};
	wanted.rule = find_strings(j, &wanted);
	if (wanted.rule == GRAMMAR_NONE) {
		wanted.rule = gb_rule(b, "a string");
		if (b->err != ERR_OK)
			return from;
		struct grammar_rule r = b->rules[wanted.rule];
		b->json = true;
		u32 end = gb_regex_of(b, gb_text(b, r.start, "\"", 1), pattern, bytes, search, min, max);
		b->json = false;
		gb_bytes(b, end, r.accept, '"', '"');
		wanted.pattern = arena_strndup(&b->arena, pattern, bytes);
		if (wanted.pattern != NULL)
			keep_strings(j, &wanted);
	}
	return call(b, from, wanted.rule);
}

u32 json_put_members(struct json_rules *j, u32 from, u32 member_rule, u32 min, u32 max)
{
	struct gb *b = j->b;
	from = json_put_line(j, gb_text(b, from, "{", 1));
	u32 to = gb_node(b);
	if (min == 0)
		gb_empty(b, from, to);
	if (max > 0) {
		u32 more = gb_rule(b, "a further member");
		if (b->err != ERR_OK)
			return to;
		struct grammar_rule r = b->rules[more];
		gb_empty(b, call(b, json_put_line(j, gb_text(b, r.start, ",", 1)), member_rule), r.accept);
		struct gexpr one = {.kind = GEXPR_CALL, .rule = more, .min = 1};
		struct gexpr rest = {.kind = GEXPR_REPEAT, .min = min > 0 ? min - 1 : 0, .max = max == GRAMMAR_NONE ? max : max - 1, .first = &one};
		gb_empty(b, json_put_line(j, gb_expr(b, call(b, from, member_rule), &rest)), to);
	}
	return gb_text(b, to, "}", 1);
}

/* ---- any value ---- */

static u32 any_object(struct json_rules *j)
{
	struct gb *b = j->b;
	if (j->object == GRAMMAR_NONE) {
		u32 member = gb_rule(b, "a member");
		j->object = gb_rule(b, "an object");
		if (b->err != ERR_OK)
			return 0;
		struct grammar_rule m = b->rules[member], o = b->rules[j->object];
		gb_empty(b, json_put_value(j, json_put_colon(j, json_put_string(j, m.start))), m.accept);
		gb_empty(b, json_put_members(j, o.start, member, 0, GRAMMAR_NONE), o.accept);
	}
	return j->object;
}

static u32 any_array(struct json_rules *j)
{
	struct gb *b = j->b;
	if (j->array == GRAMMAR_NONE) {
		j->array = gb_rule(b, "an array");
		if (b->err != ERR_OK)
			return 0;
		struct grammar_rule a = b->rules[j->array];
		u32 open = json_put_line(j, gb_text(b, a.start, "[", 1));
		u32 close = gb_node(b), more = gb_node(b);
		gb_empty(b, open, close);
		gb_empty(b, json_put_value(j, open), more);
		gb_empty(b, json_put_value(j, json_put_line(j, gb_text(b, more, ",", 1))), more);
		gb_empty(b, json_put_line(j, more), close);
		gb_empty(b, gb_text(b, close, "]", 1), a.accept);
	}
	return j->array;
}

u32 json_put_object(struct json_rules *j, u32 from)
{
	return call(j->b, from, any_object(j));
}

u32 json_put_array(struct json_rules *j, u32 from)
{
	return call(j->b, from, any_array(j));
}

u32 json_put_value(struct json_rules *j, u32 from)
{
	struct gb *b = j->b;
	if (j->value == GRAMMAR_NONE) {
		j->value = gb_rule(b, "a value");
		if (b->err != ERR_OK)
			return from;
		struct grammar_rule v = b->rules[j->value];
		gb_empty(b, json_put_string(j, v.start), v.accept);
		gb_empty(b, json_put_number(j, v.start), v.accept);
		gb_empty(b, json_put_pattern(b, v.start, "true|false|null"), v.accept);
		gb_empty(b, json_put_object(j, v.start), v.accept);
		gb_empty(b, json_put_array(j, v.start), v.accept);
	}
	return call(b, from, j->value);
}

void grammar_read_object(struct gb *b, u32 flags)
{
	struct json_rules j;
	json_rules_init(&j, b, flags);
	u32 root = gb_rule(b, "the object");
	if (b->err != ERR_OK)
		return;
	struct grammar_rule r = b->rules[root];
	gb_empty(b, json_put_object(&j, r.start), r.accept);
}

/* ---- white space that a request asks for ---- */

/* Whether the expression matches all that SPACE does. */
static bool matches_spaces(struct product *p)
{
	char text[1 + SPACES_MAX];
	bool all = product_match(p, " ", 1) != 0;
	text[0] = '\n';
	memset(text + 1, ' ', SPACES_MAX);
	for (size_t n = 0; n <= SPACES_MAX && all; n++)
		all = product_match(p, text, 1 + n) != 0;
	memset(text + 1, '\t', TABS_MAX);
	for (size_t n = 1; n <= TABS_MAX && all; n++)
		all = product_match(p, text, 1 + n) != 0;
	return all;
}

enum err grammar_space_flags(u32 *flags, const char *pattern, size_t bytes, struct err_msg *em)
{
	struct gb b;
	struct product p;
	gb_init(&b);
	product_init(&p, &b);
	product_regex(&p, pattern, bytes, false);
	*flags = matches_spaces(&p) ? 0 : GRAMMAR_COMPACT;
	if (product_match(&p, "", 0) == 0)
		gb_fail(&b, ERR_UNSUPPORTED, "the white space has to match the empty text, too, as [ \\n\\t]* does; an answer may leave it out");
	product_fini(&p);
	enum err e = b.err;
	if (e != ERR_OK)
		err_set(em, e, "%s", b.em.text);
	gb_fini(&b);
	return e;
}

/* ---- literals ---- */

struct gb_string json_quote(struct gb *b, const char *text, size_t bytes)
{
	static const char hex[] = "0123456789abcdef", escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
	char *out = arena_alloc(&b->arena, 6 * bytes + 2);
	if (out == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large: its texts do not fit");
		return (struct gb_string){"", 0};
	}
	size_t n = 0;
	out[n++] = '"';
	for (size_t i = 0; i < bytes; i++) {
		const char *at = text[i] != 0 ? strchr(escaped, text[i]) : NULL;
		if (at != NULL) {
			out[n++] = '\\';
			out[n++] = letters[at - escaped];
		} else if ((u8)text[i] < 0x20) {
			memcpy(out + n, "\\u00", 4);
			out[n + 4] = hex[(u8)text[i] >> 4];
			out[n + 5] = hex[(u8)text[i] & 15];
			n += 6;
		} else {
			out[n++] = text[i];
		}
	}
	out[n++] = '"';
	return (struct gb_string){out, n};
}

static struct gb_string scalar_text(struct gb *b, json_val v)
{
	const char *text;
	size_t bytes;
	if (json_string(v, &text, &bytes))
		return json_quote(b, text, bytes);
	struct buf out = {0};
	struct json_writer w;
	json_begin(&w, &out);
	json_write_value(&w, v);
	const char *copy = buf_ok(&out) ? arena_strndup(&b->arena, out.data, out.bytes) : NULL;
	struct gb_string s = {copy != NULL ? copy : "", copy != NULL ? out.bytes : 0};
	if (copy == NULL)
		gb_fail(b, ERR_TOO_LONG, "the schema is too large: its texts do not fit");
	buf_fini(&out);
	return s;
}

/* An array or object, with white space as everywhere. Nests as deep as JSON is read. */
static u32 put_compound(struct json_rules *j, u32 from, json_val v)
{
	struct gb *b = j->b;
	bool object = json_type(v) == JSON_OBJECT, first = true;
	if (json_type(v) != JSON_ARRAY && !object) {
		struct gb_string s = scalar_text(b, v);
		return gb_text(b, from, s.text, s.bytes);
	}
	from = json_put_line(j, gb_text(b, from, object ? "{" : "[", 1));
	for (struct json_iter it = json_iterate(v); b->err == ERR_OK && json_next(&it); first = false) {
		if (!first)
			from = json_put_line(j, gb_text(b, from, ",", 1));
		if (object) {
			struct gb_string key = json_quote(b, it.key, it.key_bytes);
			from = json_put_colon(j, gb_text(b, from, key.text, key.bytes));
		}
		from = put_compound(j, from, it.value);
	}
	return gb_text(b, first ? from : json_put_line(j, from), object ? "}" : "]", 1);
}

u32 json_put_literals(struct json_rules *j, u32 from, const json_val *values, size_t count)
{
	struct gb *b = j->b;
	u32 to = gb_node(b);
	struct gb_string *scalars = arena_alloc(&b->arena, (count + 1) * sizeof(*scalars));
	if (scalars == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the schema is too large: its literals do not fit");
		return to;
	}
	size_t n = 0;
	for (size_t i = 0; i < count && b->err == ERR_OK; i++) {
		if (json_type(values[i]) == JSON_ARRAY || json_type(values[i]) == JSON_OBJECT)
			gb_empty(b, put_compound(j, from, values[i]), to);
		else
			scalars[n++] = scalar_text(b, values[i]);
	}
	if (n > 0)
		gb_empty(b, gb_strings(b, from, scalars, n), to);
	return to;
}
