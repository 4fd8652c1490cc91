/* Owns the reading of GBNF, as llama.cpp writes it: rules of literals, classes, groups and repetitions. Runs wherever a grammar
 * is compiled. A rule goes on until the next `name ::=`, whatever lines it takes. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/utf8.h"
#include "text/grammar_priv.h"
#include "text/unicode_priv.h"

enum { NAME_BYTES_MAX = 128 };

struct named_rule {
	const char *name;
	u32 bytes;
	u32 rule;
	bool defined;
};
struct reader {
	struct gb *b;
	const char *text;
	size_t bytes, at;
	u32 level;
	struct named_rule *rules; /* open addressing */
	u32 rule_mask, rule_count;
};

static bool failed(const struct reader *r)
{
	return r->b->err != ERR_OK;
}

static u32 line_of(const struct reader *r, size_t at)
{
	u32 line = 1;
	for (size_t i = 0; i < at && i < r->bytes; i++)
		line += r->text[i] == '\n';
	return line;
}

static bool peek(const struct reader *r, char c)
{
	return grammar_peek(r->text, r->bytes, r->at, c);
}

static bool take(struct reader *r, const char *word)
{
	return grammar_take(r->text, r->bytes, &r->at, word);
}

/* White space, ends of lines and comments. */
static void skip_space(struct reader *r)
{
	for (; r->at < r->bytes; r->at++) {
		if (r->text[r->at] == '#') {
			while (r->at + 1 < r->bytes && r->text[r->at + 1] != '\n')
				r->at++;
		} else if (memchr(" \t\r\n", r->text[r->at], 4) == NULL) {
			return;
		}
	}
}

static struct gexpr *new_expr(struct reader *r, enum gexpr_kind kind)
{
	struct gexpr *e = arena_zalloc(&r->b->arena, sizeof(*e));
	if (e == NULL)
		gb_fail(r->b, ERR_TOO_LONG, "the grammar is too long");
	else
		e->kind = kind;
	return e;
}

static void add_codes(struct reader *r, struct gexpr *e, u32 first, u32 last)
{
	if (e != NULL && !code_set_add(&r->b->arena, &e->set, first, last))
		gb_fail(r->b, ERR_TOO_LONG, "the grammar is too long");
}

/* ---- names ---- */

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

static size_t name_bytes(const struct reader *r)
{
	size_t n = 0;
	if (peek(r, '.')) /* any character; names begin otherwise */
		return 0;
	while (r->at + n < r->bytes && is_name_char(r->text[r->at + n]))
		n++;
	return n;
}

/* The rule of that name, made where it is new. */
static struct named_rule *find_name(struct reader *r, const char *name, size_t bytes)
{
	struct gb *b = r->b;
	u32 i = (u32)XXH3_64bits(name, bytes) & r->rule_mask;
	for (; r->rules[i].name != NULL; i = (i + 1) & r->rule_mask) {
		if (r->rules[i].bytes == bytes && memcmp(r->rules[i].name, name, bytes) == 0)
			return &r->rules[i];
	}
	const char *copy = arena_strndup(&b->arena, name, bytes);
	u32 rule = copy != NULL && r->rule_count <= r->rule_mask / 2 ? gb_rule(b, copy) : GRAMMAR_NONE;
	if (rule == GRAMMAR_NONE)
		gb_fail(b, ERR_TOO_LONG, "the grammar is too large: it has more than %d rules", GRAMMAR_RULES_MAX);
	r->rules[i] = (struct named_rule){.name = copy != NULL ? copy : "", .bytes = (u32)bytes, .rule = rule};
	r->rule_count++;
	return &r->rules[i];
}

/* Whether a rule begins here: `name ::=`. Nothing is taken. */
static bool at_rule(struct reader *r)
{
	size_t from = r->at, n = name_bytes(r);
	r->at += n;
	skip_space(r);
	bool found = n > 0 && r->bytes - r->at >= 3 && memcmp(r->text + r->at, "::=", 3) == 0;
	r->at = from;
	return found;
}

/* ---- literals and classes ---- */

static bool read_hex(struct reader *r, u32 digits, u32 *out)
{
	return grammar_read_hex(r->text, r->bytes, &r->at, digits, out);
}

/* One character, escaped or not. */
static u32 read_code(struct reader *r)
{
	static const char letters[] = "nrt\\\"'[]-^/", codes[] = "\n\r\t\\\"'[]-^/";
	size_t place = r->at;
	if (!take(r, "\\"))
		return unicode_next(r->text, &r->at);
	char c = r->at < r->bytes ? r->text[r->at++] : 0;
	const char *known = c != 0 ? strchr(letters, c) : NULL;
	u32 code = 0;
	bool ok = known != NULL;
	if (ok)
		code = (u8)codes[known - letters];
	else if (c == 'x' || c == 'u' || c == 'U')
		ok = read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &code) && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
	if (!ok)
		gb_fail(r->b, ERR_FORMAT, "line %u: an unknown escape; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH", line_of(r, place));
	return code;
}

/* r->at behind the quote. */
static struct gexpr *read_literal(struct reader *r)
{
	size_t place = r->at - 1;
	struct gexpr *cat = new_expr(r, GEXPR_CAT);
	struct gexpr **end = cat != NULL ? &cat->first : NULL;
	while (!failed(r) && r->at < r->bytes && !peek(r, '"')) {
		u32 code = read_code(r);
		struct gexpr *e = new_expr(r, GEXPR_SET);
		add_codes(r, e, code, code);
		if (failed(r))
			return NULL;
		*end = e;
		end = &e->next;
	}
	if (!failed(r) && !take(r, "\""))
		gb_fail(r->b, ERR_FORMAT, "line %u: the literal is not closed; it wants a \"", line_of(r, place));
	return cat;
}

/* r->at behind the bracket. */
static struct gexpr *read_class(struct reader *r)
{
	size_t place = r->at - 1;
	struct gexpr *e = new_expr(r, GEXPR_SET);
	bool negate = take(r, "^");
	while (!failed(r) && r->at < r->bytes && !peek(r, ']')) {
		if (peek(r, '\\') && r->at + 1 < r->bytes && code_set_class(&r->b->arena, &e->set, r->text[r->at + 1])) {
			r->at += 2;
			continue;
		}
		u32 first = read_code(r), last = first;
		if (peek(r, '-') && r->at + 1 < r->bytes && r->text[r->at + 1] != ']') {
			r->at++;
			last = read_code(r);
		}
		if (!failed(r) && last < first)
			gb_fail(r->b, ERR_FORMAT, "line %u: a range whose last character is before its first", line_of(r, place));
		add_codes(r, e, first, last);
	}
	if (!failed(r) && !take(r, "]"))
		gb_fail(r->b, ERR_FORMAT, "line %u: the class is not closed; it wants a ]", line_of(r, place));
	if (failed(r))
		return NULL;
	code_set_finish(&e->set);
	if (negate && !code_set_negate(&r->b->arena, &e->set))
		gb_fail(r->b, ERR_TOO_LONG, "the grammar is too long");
	return e;
}

/* ---- expressions ---- */

static struct gexpr *read_alternatives(struct reader *r);

/* r->at behind the parenthesis. */
static struct gexpr *read_group(struct reader *r)
{
	size_t place = r->at;
	if (peek(r, '=')) {
		gb_fail(r->b, ERR_UNSUPPORTED, "line %u: look-ahead (= ) is not supported", line_of(r, place));
		return NULL;
	}
	if (++r->level > GRAMMAR_EXPR_LEVELS) {
		gb_fail(r->b, ERR_TOO_LONG, "line %u: more than %d groups inside groups", line_of(r, place), GRAMMAR_EXPR_LEVELS);
		return NULL;
	}
	struct gexpr *e = read_alternatives(r);
	r->level--;
	if (!failed(r) && !take(r, ")"))
		gb_fail(r->b, ERR_FORMAT, "line %u: the group is not closed; it wants a )", line_of(r, place));
	return e;
}

/* NULL without failure: no element begins here. */
static struct gexpr *read_element(struct reader *r)
{
	struct gexpr *e;
	if (take(r, "\""))
		return read_literal(r);
	if (take(r, "["))
		return read_class(r);
	if (take(r, "("))
		return read_group(r);
	if (take(r, ".")) {
		e = new_expr(r, GEXPR_SET);
		add_codes(r, e, 0, 0x10ffff);
		return e;
	}
	size_t n = name_bytes(r);
	if (n == 0 || at_rule(r))
		return NULL;
	e = new_expr(r, GEXPR_CALL);
	if (e != NULL && n <= NAME_BYTES_MAX)
		e->rule = find_name(r, r->text + r->at, n)->rule;
	else
		gb_fail(r->b, ERR_TOO_LONG, "line %u: a name of more than %d bytes", line_of(r, r->at), NAME_BYTES_MAX);
	r->at += n;
	return e;
}

static u32 read_number(struct reader *r, u32 fallback)
{
	u64 value = 0;
	size_t from = r->at;
	while (r->at < r->bytes && r->text[r->at] >= '0' && r->text[r->at] <= '9' && value <= GRAMMAR_REPEAT_MAX)
		value = value * 10 + (u64)(r->text[r->at++] - '0');
	if (value > GRAMMAR_REPEAT_MAX)
		gb_fail(r->b, ERR_TOO_LONG, "line %u: at most %d repetitions", line_of(r, from), GRAMMAR_REPEAT_MAX);
	return r->at > from ? (u32)value : fallback;
}

static bool read_quantifier(struct reader *r, u32 *min, u32 *max)
{
	*min = peek(r, '+') ? 1 : 0;
	*max = peek(r, '?') ? 1 : GRAMMAR_NONE;
	if (take(r, "*") || take(r, "+") || take(r, "?"))
		return true;
	size_t place = r->at;
	if (!take(r, "{"))
		return false;
	skip_space(r);
	*min = read_number(r, 0);
	skip_space(r);
	*max = *min;
	if (take(r, ",")) {
		skip_space(r);
		*max = read_number(r, GRAMMAR_NONE);
		skip_space(r);
	}
	if (!failed(r) && (!take(r, "}") || *max < *min))
		gb_fail(r->b, ERR_FORMAT, "line %u: a repetition is {n}, {n,} or {least,most}", line_of(r, place));
	return true;
}

static struct gexpr *read_sequence(struct reader *r)
{
	struct gexpr *cat = new_expr(r, GEXPR_CAT);
	struct gexpr **end = cat != NULL ? &cat->first : NULL;
	for (skip_space(r); !failed(r); skip_space(r)) {
		struct gexpr *e = read_element(r);
		if (e == NULL || failed(r))
			break;
		u32 min, max;
		for (skip_space(r); !failed(r) && read_quantifier(r, &min, &max); skip_space(r)) {
			struct gexpr *repeat = new_expr(r, GEXPR_REPEAT);
			if (repeat == NULL)
				return NULL;
			repeat->min = min;
			repeat->max = max;
			repeat->first = e;
			e = repeat;
		}
		*end = e;
		end = &e->next;
	}
	return cat;
}

static struct gexpr *read_alternatives(struct reader *r)
{
	struct gexpr *alt = new_expr(r, GEXPR_ALT);
	struct gexpr **end = alt != NULL ? &alt->first : NULL;
	do {
		struct gexpr *e = failed(r) ? NULL : read_sequence(r);
		if (e == NULL)
			return alt;
		*end = e;
		end = &e->next;
	} while (take(r, "|"));
	return alt;
}

static void read_rule(struct reader *r)
{
	struct gb *b = r->b;
	size_t n = name_bytes(r);
	size_t place = r->at;
	if (!at_rule(r) || n > NAME_BYTES_MAX) {
		gb_fail(b, ERR_FORMAT, "line %u: a rule was expected here, as: name ::= \"text\" | [a-z]+", line_of(r, place));
		return;
	}
	struct named_rule *rule = find_name(r, r->text + r->at, n);
	if (rule->defined)
		gb_fail(b, ERR_FORMAT, "line %u: the rule %s is there already", line_of(r, place), rule->name);
	rule->defined = true;
	u32 index = rule->rule;
	r->at += n;
	skip_space(r);
	take(r, "::=");
	const struct gexpr *e = failed(r) ? NULL : read_alternatives(r);
	if (failed(r))
		return;
	gb_empty(b, gb_expr(b, b->rules[index].start, e), b->rules[index].accept);
	skip_space(r);
}

void grammar_read_ebnf(struct gb *b, const char *source, size_t bytes)
{
	struct reader r = {.b = b, .text = source, .bytes = bytes, .rule_mask = 4 * GRAMMAR_RULES_MAX - 1};
	r.rules = arena_zalloc(&b->arena, ((size_t)r.rule_mask + 1) * sizeof(*r.rules));
	if (r.rules == NULL) {
		gb_fail(b, ERR_NO_MEMORY, "no memory for a grammar");
		return;
	}
	find_name(&r, "root", 4);
	for (skip_space(&r); !failed(&r) && r.at < r.bytes;)
		read_rule(&r);
	for (u32 i = 0; i <= r.rule_mask && !failed(&r); i++) {
		const struct named_rule *rule = &r.rules[i];
		if (rule->name != NULL && !rule->defined)
			gb_fail(b, ERR_INVALID, "the rule %s is missing%s", rule->name,
				rule->rule == 0 ? ": the answer is what it derives" : ", which another rule names");
	}
}
