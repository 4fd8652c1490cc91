/* What the two halves of the parser share. */
#ifndef TERCET_TEXT_JINJA_PARSE_PRIV_H
#define TERCET_TEXT_JINJA_PARSE_PRIV_H

#include "text/jinja_priv.h"

struct parser {
	struct jinja_template *t;
	const struct tok *tok; /* the current token */
	struct err_msg *em;
	enum err err;          /* the first error; everything after it is idle */
	u32 depth;
	u32 soft;              /* inside if or a conditional expression: unknown filters fail when reached */
	u32 loops;             /* loops that break and continue can reach */
	struct macro_def *macro; /* the innermost macro or call block */
	struct parser_macros {
		struct macro_def *def;
		struct parser_macros *outer;
	} *macros;
};

/* Fills in, for every scope of the parsed template, the names that start out unset (jinja_symbols.c). */
void parse_symbols(struct parser *p);

/* Each answers NULL after recording an error. */
struct node *parse_expression(struct parser *p);
struct node *parse_or(struct parser *p); /* without a conditional */
struct node *parse_primary(struct parser *p);
struct node *parse_postfix(struct parser *p, struct node *n);
struct node *parse_call(struct parser *p, struct node *callee);
struct node *parse_test(struct parser *p, struct node *value);
struct node *parse_filter(struct parser *p, struct node *value, bool inline_name);
enum tuple_rule {
	TUPLE_FULL = 0,
	TUPLE_SIMPLIFIED = 1, /* names and literals */
	TUPLE_NO_COND = 2,
	TUPLE_PARENS = 4, /* may be empty */
	TUPLE_TO_IN = 8,  /* ends at "in" */
	TUPLE_TO_RECURSIVE = 16,
};
struct node *parse_tuple(struct parser *p, u32 rules);

/* Tokens. */
void *parse_fail(struct parser *p, const struct tok *at, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool parse_is_name(const struct tok *t, const char *name);
bool parse_skip_name(struct parser *p, const char *name);
bool parse_skip(struct parser *p, enum tok_type type);
bool parse_expect(struct parser *p, enum tok_type type);
const char *parse_describe(const struct tok *t);
/* Nodes. */
struct node *parse_node(struct parser *p, enum node_kind kind, struct token_pos pos);
bool parse_list_add(struct parser *p, struct node_list *l, struct node *n);
const char *parse_intern(struct parser *p, const struct tok *name);
bool parse_enter(struct parser *p);
void *parse_alloc(struct parser *p, size_t bytes);

#endif
