/* Owns the reading of regular expressions as grammars: ECMAScript's syntax without what is not regular (look-around,
 * references). Runs wherever a grammar is compiled. text/regex.c matches with PCRE2 and has no expression tree to share: here
 * the expression becomes a network. Its characters are read in grammar_regex_chars.c. */
#include <string.h>

#include "common/utf8.h"
#include "text/grammar_regex_priv.h"
#include "text/unicode_priv.h"

static struct gexpr *read_alternatives(struct reader *r);

/* ---- atoms ---- */

static struct gexpr *one_code(struct gb *b, u32 first, u32 last)
{
	struct gexpr *e = new_expr(b, GEXPR_SET);
	if (e != NULL && !code_set_add(&b->arena, &e->set, first, last))
		gb_fail(b, ERR_TOO_LONG, "the expression is too long");
	return e;
}

/* The parenthesis that closes the group at r->at, which is behind the opening one. False: there is none. */
static bool find_close(const struct reader *r, size_t *close)
{
	u32 level = 1;
	bool in_class = false;
	for (size_t i = r->at; i < r->bytes; i++) {
		char c = r->text[i];
		if (c == '\\')
			i++;
		else if (in_class || c == '[')
			in_class = c != ']';
		else if (c == '(')
			level++;
		else if (c == ')' && --level == 0) {
			*close = i;
			return true;
		}
	}
	return false;
}

/* (?= or (?! at the front of the whole expression. False: it is none, or at another place. */
static bool read_look(struct reader *r)
{
	size_t close;
	bool negative = r->at + 1 < r->bytes && r->text[r->at + 1] == '!';
	if (r->level != 0 || r->front != r->at - 1 || r->look_count >= LOOKS_MAX || r->b->look_level >= LOOK_LEVELS ||
	    !(negative || (r->at + 1 < r->bytes && r->text[r->at + 1] == '=')) || !peek(r, '?') || !find_close(r, &close))
		return false;
	r->looks[r->look_count++] = (struct look){.text = r->text + r->at + 2, .bytes = close - r->at - 2, .negative = negative};
	r->at = close + 1;
	r->front = r->at;
	return true;
}

/* r->at behind the parenthesis. */
static struct gexpr *read_group(struct reader *r)
{
	struct gb *b = r->b;
	size_t place = r->at - 1;
	if (read_look(r))
		return new_expr(b, GEXPR_EMPTY);
	if (peek(r, '?')) {
		bool named = !take(r, "?:");
		if (named && (take(r, "?P<") || take(r, "?<")) && !peek(r, '=') && !peek(r, '!')) {
			const char *end = memchr(r->text + r->at, '>', r->bytes - r->at);
			r->at = end != NULL ? (size_t)(end - r->text) + 1 : r->bytes;
		} else if (named) {
			gb_fail(b, ERR_UNSUPPORTED, "the group at byte %zu: look-around, flags, atomic groups and conditions are not supported; only ( ), (?: ), (?<name> ), and (?= ) and (?! ) at the very front",
				place);
			return NULL;
		}
	}
	if (++r->level > GRAMMAR_EXPR_LEVELS) {
		gb_fail(b, ERR_TOO_LONG, "groups inside groups: more than %d levels", GRAMMAR_EXPR_LEVELS);
		return NULL;
	}
	struct gexpr *e = read_alternatives(r);
	r->level--;
	if (!failed(r) && !take(r, ")"))
		gb_fail(b, ERR_FORMAT, "the ( at byte %zu is not closed; write \\( for a parenthesis", place);
	return e;
}

static struct gexpr *read_dot(struct reader *r)
{
	struct gexpr *e = new_expr(r->b, GEXPR_SET);
	static const struct code_range all[] = {{0, '\n' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, 0x2027}, {0x202a, 0x10ffff}};
	for (size_t i = 0; e != NULL && i < COUNT_OF(all); i++) {
		if (!code_set_add(&r->b->arena, &e->set, all[i].first, all[i].last))
			gb_fail(r->b, ERR_TOO_LONG, "the expression is too long");
	}
	return e;
}

static struct gexpr *read_anchor(struct reader *r, char c)
{
	bool first = c == '^' && r->level == 0 && r->at - 1 == r->front;
	bool last = c == '$' && r->level == 0 && (r->at == r->bytes || r->text[r->at] == '|');
	if (!first && !last) {
		gb_fail(r->b, ERR_UNSUPPORTED, "%c at byte %zu: anchors are supported at the two ends of the expression and of its alternatives only; write \\%c for the character",
			c, r->at - 1, c);
		return NULL;
	}
	r->open_start = r->open_start && !first;
	r->open_end = r->open_end && !last;
	if (first)
		r->front = r->at;
	return new_expr(r->b, GEXPR_EMPTY);
}

static struct gexpr *read_atom(struct reader *r)
{
	struct gb *b = r->b;
	char c = r->text[r->at];
	u32 code;
	struct gexpr *e;
	switch (c) {
	case '(':
		r->at++;
		return read_group(r);
	case '[':
		r->at++;
		return grammar_regex_read_class(r);
	case '.':
		r->at++;
		return read_dot(r);
	case '^':
	case '$':
		r->at++;
		return read_anchor(r, c);
	case '*':
	case '+':
	case '?':
		gb_fail(b, ERR_FORMAT, "%c at byte %zu repeats nothing; write \\%c for the character", c, r->at, c);
		return NULL;
	case '\\':
		r->at++;
		e = new_expr(b, GEXPR_SET);
		if (e == NULL || !grammar_regex_read_escape(r, &e->set, false, &code))
			return NULL;
		if (code != GRAMMAR_NONE && !code_set_add(&b->arena, &e->set, code, code))
			gb_fail(b, ERR_TOO_LONG, "the expression is too long");
		code_set_finish(&e->set);
		return e;
	}
	code = unicode_next(r->text, &r->at);
	return one_code(b, code, code);
}

/* ---- repetitions ---- */

static bool read_number(struct reader *r, u32 *out)
{
	size_t from = r->at;
	u64 value = 0;
	for (; r->at < r->bytes && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
		if (value < GRAMMAR_NONE)
			value = value * 10 + (u64)(r->text[r->at] - '0');
	}
	*out = (u32)(value < GRAMMAR_NONE ? value : GRAMMAR_NONE - 1);
	return r->at > from;
}

/* {m}, {m,}, {m,n}, {,n}; false, and nothing taken, where the brace is none of them. */
static bool read_braces(struct reader *r, u32 *min, u32 *max)
{
	size_t from = r->at;
	*min = 0;
	if (take(r, "{,")) { /* as Python has it; ECMAScript with flag u does not know it */
		if (read_number(r, max) && take(r, "}"))
			return true;
	} else if (take(r, "{") && read_number(r, min)) {
		*max = *min;
		if (take(r, ",") && !read_number(r, max))
			*max = GRAMMAR_NONE;
		if (take(r, "}"))
			return true;
	}
	r->at = from;
	return false;
}

static bool read_quantifier(struct reader *r, u32 *min, u32 *max)
{
	*min = peek(r, '+') ? 1 : 0;
	*max = peek(r, '?') ? 1 : GRAMMAR_NONE;
	size_t place = r->at;
	if (take(r, "*") || take(r, "+") || take(r, "?")) {
	} else if (!peek(r, '{') || !read_braces(r, min, max)) {
		return false;
	}
	if (*min > GRAMMAR_REPEAT_MAX || (*max != GRAMMAR_NONE && *max > GRAMMAR_REPEAT_MAX))
		gb_fail(r->b, ERR_TOO_LONG, "the repetition at byte %zu is too long: at most %d times", place, GRAMMAR_REPEAT_MAX);
	else if (*max < *min)
		gb_fail(r->b, ERR_FORMAT, "the repetition at byte %zu: its maximum is below its minimum", place);
	if (peek(r, '+'))
		gb_fail(r->b, ERR_UNSUPPORTED, "the possessive repetition at byte %zu is not supported; leave the + out", place);
	take(r, "?"); /* lazy: the same texts */
	return true;
}

/* Of a sequence that is an alternative of the whole, `min` and `max` say whether it is open at its start and end. */
static struct gexpr *read_sequence(struct reader *r)
{
	struct gexpr *cat = new_expr(r->b, GEXPR_CAT);
	struct gexpr **end = cat != NULL ? &cat->first : NULL;
	if (r->level == 0) {
		r->front = r->at;
		r->open_start = r->search_start;
		r->open_end = r->search_end;
	}
	while (!failed(r) && r->at < r->bytes && !peek(r, '|') && !peek(r, ')')) {
		struct gexpr *e = read_atom(r);
		u32 min, max;
		if (!failed(r) && read_quantifier(r, &min, &max)) {
			struct gexpr *repeat = new_expr(r->b, GEXPR_REPEAT);
			if (repeat == NULL)
				return NULL;
			repeat->min = min;
			repeat->max = max;
			repeat->first = e;
			e = repeat;
		}
		if (failed(r))
			return NULL;
		*end = e;
		end = &e->next;
	}
	if (r->level == 0 && cat != NULL) {
		cat->min = r->open_start;
		cat->max = r->open_end;
	}
	return cat;
}

static struct gexpr *read_alternatives(struct reader *r)
{
	struct gexpr *first = read_sequence(r);
	if (failed(r) || !peek(r, '|'))
		return first;
	struct gexpr *alt = new_expr(r->b, GEXPR_ALT);
	if (alt == NULL)
		return NULL;
	alt->first = first;
	struct gexpr **end = &first->next;
	while (!failed(r) && take(r, "|")) {
		*end = read_sequence(r);
		if (!failed(r))
			end = &(*end)->next;
	}
	return alt;
}

static u32 put_anything(struct gb *b, u32 from)
{
	struct gexpr *any = one_code(b, 0, 0x10ffff);
	struct gexpr repeat = {.kind = GEXPR_REPEAT, .min = 0, .max = GRAMMAR_NONE, .first = any};
	return any != NULL ? gb_expr(b, from, &repeat) : from;
}

/* The expression with its open ends; alternatives that are open alike share them. */
static u32 put_opened(struct gb *b, u32 from, const struct gexpr *e)
{
	const struct gexpr *first = e->kind == GEXPR_ALT ? e->first : e;
	bool alike = true;
	for (const struct gexpr *c = first->next; e->kind == GEXPR_ALT && c != NULL; c = c->next)
		alike = alike && c->min == first->min && c->max == first->max;
	if (alike) {
		from = gb_expr(b, first->min ? put_anything(b, from) : from, e);
		return first->max ? put_anything(b, from) : from;
	}
	u32 to = gb_node(b);
	for (const struct gexpr *c = first; c != NULL && b->err == ERR_OK; c = c->next) {
		u32 at = gb_node(b);
		gb_empty(b, from, at);
		at = gb_expr(b, c->min ? put_anything(b, at) : at, c);
		gb_empty(b, c->max ? put_anything(b, at) : at, to);
	}
	return to;
}

static u32 put_regex(struct gb *b, u32 from, const char *pattern, size_t bytes, bool open_start, bool open_end);

struct looked {
	u32 to;
	u64 wanted, matched; /* parts that count, and how each has to be */
};

static u32 exit_looked(void *ctx, u64 matching)
{
	const struct looked *l = ctx;
	return (matching & l->wanted) == l->matched ? l->to : GRAMMAR_NONE;
}

/* The expression, held against what it looks at ahead. */
static u32 put_looked(struct reader *r, u32 from, const struct gexpr *e)
{
	struct gb *b = r->b;
	struct product p;
	product_init(&p, b);
	struct looked l = {.to = gb_node(b), .wanted = 1, .matched = 1};
	u32 start = product_begin(&p);
	product_end(&p, put_opened(&p.scratch, start, e));
	for (u32 i = 0; i < r->look_count; i++) {
		start = product_begin(&p);
		u32 part = product_end(&p, put_regex(&p.scratch, start, r->looks[i].text, r->looks[i].bytes, false, true));
		l.wanted |= 1ull << part;
		l.matched |= r->looks[i].negative ? 0 : 1ull << part;
	}
	p.needed = l.matched;
	product_put(&p, from, exit_looked, &l);
	product_fini(&p);
	return l.to;
}

static u32 put_regex(struct gb *b, u32 from, const char *pattern, size_t bytes, bool open_start, bool open_end)
{
	if (!utf8_valid(pattern, bytes)) {
		gb_fail(b, ERR_FORMAT, "the expression is not valid UTF-8");
		return from;
	}
	struct reader r = {.b = b, .text = pattern, .bytes = bytes, .search_start = open_start, .search_end = open_end};
	const struct gexpr *e = read_alternatives(&r);
	if (!failed(&r) && r.at < bytes)
		gb_fail(b, ERR_FORMAT, "the ) at byte %zu closes nothing; write \\) for a parenthesis", r.at);
	if (!failed(&r) && r.look_count > 0 && (e->kind == GEXPR_ALT || e->min))
		gb_fail(b, ERR_UNSUPPORTED, "looking ahead is supported at the front of an expression that begins with ^ and is no list of alternatives; write ^(?!a)(?:b|c)");
	if (failed(&r))
		return from;
	return r.look_count > 0 ? put_looked(&r, from, e) : put_opened(b, from, e);
}

u32 gb_regex(struct gb *b, u32 from, const char *pattern, size_t bytes, bool search)
{
	return put_regex(b, from, pattern, bytes, search, search);
}

/* A network from nodes [first, end) and edges [first_edge, end_edge), once for each number of code points so far. */
struct layers {
	struct gb *b;
	u32 first, end;
	u32 first_edge, end_edge;
	u32 base; /* of the copies */
	u32 last; /* the number of the last layer */
};

static u32 in_layer(const struct layers *l, u32 layer, u32 node)
{
	return l->base + layer * (l->end - l->first) + (node - l->first);
}

/* `endless`: the last layer counts no further. */
static void put_layer(const struct layers *l, u32 layer, bool endless)
{
	for (u32 i = l->first_edge; i < l->end_edge && l->b->err == ERR_OK; i++) {
		struct gb_edge e = l->b->edges[i];
		u32 to = layer + e.begins;
		if (to > l->last && !endless)
			continue;
		to = to > l->last ? l->last : to;
		if (e.kind == GEDGE_EMPTY)
			gb_empty(l->b, in_layer(l, layer, e.from), in_layer(l, to, e.to));
		else
			gb_bytes(l->b, in_layer(l, layer, e.from), in_layer(l, to, e.to), e.lo, e.hi);
	}
}

/* The expression and the length as two parts, where the expression is no network whose code points can be counted. */
static u32 put_beside_length(struct gb *b, u32 from, const char *pattern, size_t bytes, bool search, u32 min, u32 max)
{
	struct product p;
	product_init(&p, b);
	struct looked l = {.to = gb_node(b), .wanted = 3, .matched = 3};
	product_regex(&p, pattern, bytes, search);
	product_length(&p, min, max);
	p.needed = 3;
	product_put(&p, from, exit_looked, &l);
	product_fini(&p);
	return l.to;
}

u32 product_length(struct product *p, u32 min, u32 max)
{
	u32 start = product_begin(p);
	struct gexpr *any = one_code(&p->scratch, 0, 0x10ffff);
	struct gexpr repeat = {.kind = GEXPR_REPEAT, .min = min, .max = max, .first = any};
	return product_end(p, any != NULL ? gb_expr(&p->scratch, start, &repeat) : start);
}

u32 gb_regex_of(struct gb *b, u32 from, const char *pattern, size_t bytes, bool search, u32 min, u32 max)
{
	if (min == 0 && max == GRAMMAR_NONE)
		return gb_regex(b, from, pattern, bytes, search);
	u32 products = b->products;
	struct layers l = {.b = b, .first = gb_node(b), .first_edge = b->edge_count, .last = max == GRAMMAR_NONE ? min : max};
	u32 end = gb_regex(b, l.first, pattern, bytes, search), to = gb_node(b);
	if (b->products > products && b->err == ERR_OK) /* what was written leads nowhere */
		return put_beside_length(b, from, pattern, bytes, search, min, max);
	l.end = b->node_count;
	l.end_edge = b->edge_count;
	l.base = b->node_count;
	bool calls = false;
	for (u32 i = l.first_edge; i < l.end_edge; i++)
		calls = calls || b->edges[i].kind == GEDGE_CALL;
	u64 nodes = (u64)(l.end - l.first) * ((u64)l.last + 1);
	if (b->err == ERR_OK && (calls || nodes > GRAMMAR_NODES_MAX))
		gb_fail(b, ERR_TOO_LONG, "with this expression, lengths up to %u are too large; write the length into the expression, as [a-z]{2,8}", l.last);
	for (u64 i = 0; i < nodes && b->err == ERR_OK; i++)
		gb_node(b);
	for (u32 layer = 0; layer <= l.last && b->err == ERR_OK; layer++) {
		put_layer(&l, layer, max == GRAMMAR_NONE);
		if (layer >= min)
			gb_empty(b, in_layer(&l, layer, end), to);
	}
	gb_empty(b, from, in_layer(&l, 0, l.first));
	return to;
}
