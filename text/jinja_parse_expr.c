/* Owns the parsing of expressions, with the precedences of Jinja's parser. Runs where chat templates are loaded.
 * Recursive descent, bounded in depth. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_parse_priv.h"

static struct node *parse_unary(struct parser *p, bool with_filter);

/* Left-associative operators of one level. */
static struct node *binary(struct parser *p, u8 op, struct token_pos pos, struct node *a, struct node *b)
{
	struct node *n = a != NULL && b != NULL ? parse_node(p, N_BINARY, pos) : NULL;
	if (n != NULL) {
		n->op = op;
		n->a = a;
		n->b = b;
	}
	return n;
}

static struct node *parse_pow(struct parser *p)
{
	struct node *left = parse_unary(p, true);
	while (left != NULL && p->tok->type == TOK_POW) {
		struct token_pos pos = p->tok++->pos;
		left = binary(p, TOK_POW, pos, left, parse_unary(p, true));
	}
	return left;
}

static struct node *parse_math2(struct parser *p)
{
	struct node *left = parse_pow(p);
	while (left != NULL && p->tok->type >= TOK_MUL && p->tok->type <= TOK_MOD) {
		const struct tok *op = p->tok++;
		left = binary(p, (u8)op->type, op->pos, left, parse_pow(p));
	}
	return left;
}

static struct node *parse_concat(struct parser *p)
{
	struct node *first = parse_math2(p);
	if (first == NULL || p->tok->type != TOK_TILDE)
		return first;
	struct node *n = parse_node(p, N_CONCAT, p->tok->pos);
	if (n == NULL || !parse_list_add(p, &n->items, first))
		return NULL;
	while (parse_skip(p, TOK_TILDE))
		if (!parse_list_add(p, &n->items, parse_math2(p)))
			return NULL;
	return n;
}

static struct node *parse_math1(struct parser *p)
{
	struct node *left = parse_concat(p);
	while (left != NULL && (p->tok->type == TOK_ADD || p->tok->type == TOK_SUB)) {
		const struct tok *op = p->tok++;
		left = binary(p, (u8)op->type, op->pos, left, parse_concat(p));
	}
	return left;
}

/* The comparison at the current token, stepped over; 0 when there is none. */
static u8 compare_op(struct parser *p)
{
	if (p->tok->type >= TOK_EQ && p->tok->type <= TOK_GTEQ)
		return (u8)p->tok++->type;
	if (parse_skip_name(p, "in"))
		return TOK_IN;
	if (parse_is_name(p->tok, "not") && parse_is_name(p->tok + 1, "in")) {
		p->tok += 2;
		return TOK_NOTIN;
	}
	return 0;
}

static struct node *parse_compare(struct parser *p)
{
	struct node *first = parse_math1(p), *n = NULL;
	while (first != NULL) {
		struct token_pos pos = p->tok->pos;
		u8 op = compare_op(p);
		if (op == 0)
			return n != NULL ? n : first;
		if (n == NULL) {
			n = parse_node(p, N_COMPARE, pos);
			if (n == NULL)
				return NULL;
			n->a = first;
		}
		/* Each operand goes in a node that carries its operator. */
		struct node *operand = parse_node(p, N_COMPARE, pos), *value = parse_math1(p);
		if (operand == NULL || value == NULL || !parse_list_add(p, &n->items, operand))
			return NULL;
		operand->op = op;
		operand->a = value;
	}
	return NULL;
}

static struct node *parse_not(struct parser *p)
{
	if (!parse_is_name(p->tok, "not"))
		return parse_compare(p);
	if (!parse_enter(p))
		return NULL;
	struct node *n = parse_node(p, N_NOT, p->tok->pos);
	p->tok++;
	struct node *inner = parse_not(p);
	p->depth--;
	if (n != NULL)
		n->a = inner;
	return inner != NULL ? n : NULL;
}

static struct node *logic(struct parser *p, enum node_kind kind, struct token_pos pos, struct node *a, struct node *b)
{
	struct node *n = a != NULL && b != NULL ? parse_node(p, kind, pos) : NULL;
	if (n != NULL) {
		n->a = a;
		n->b = b;
	}
	return n;
}

static struct node *parse_and(struct parser *p)
{
	struct node *left = parse_not(p);
	while (left != NULL && parse_is_name(p->tok, "and")) {
		struct token_pos pos = p->tok++->pos;
		left = logic(p, N_AND, pos, left, parse_not(p));
	}
	return left;
}

struct node *parse_or(struct parser *p)
{
	struct node *left = parse_and(p);
	while (left != NULL && parse_is_name(p->tok, "or")) {
		struct token_pos pos = p->tok++->pos;
		left = logic(p, N_OR, pos, left, parse_and(p));
	}
	return left;
}

/* Is there an "if" at this bracket level before the expression ends? Then filters inside it are soft. */
static bool conditional_ahead(const struct parser *p)
{
	u32 nested = 0;
	for (const struct tok *t = p->tok; t->type != TOK_EOF; t++) {
		if (t->type == TOK_VARIABLE_END || t->type == TOK_BLOCK_END)
			return false;
		if (t->type == TOK_LPAREN || t->type == TOK_LBRACKET || t->type == TOK_LBRACE)
			nested++;
		bool closes = t->type == TOK_RPAREN || t->type == TOK_RBRACKET || t->type == TOK_RBRACE;
		if (nested == 0 && (closes || t->type == TOK_COMMA))
			return false;
		nested -= closes;
		if (nested == 0 && parse_is_name(t, "if"))
			return true;
	}
	return false;
}

struct node *parse_expression(struct parser *p)
{
	if (!parse_enter(p))
		return NULL;
	bool soft = p->soft == 0 && conditional_ahead(p);
	p->soft += soft;
	struct node *value = parse_or(p);
	while (value != NULL && parse_is_name(p->tok, "if")) {
		struct node *n = parse_node(p, N_COND, p->tok->pos);
		p->tok++;
		struct node *test = parse_or(p), *other = NULL;
		if (test != NULL && parse_skip_name(p, "else"))
			other = parse_expression(p);
		if (n != NULL) {
			n->a = value;
			n->b = test;
			n->c = other;
		}
		value = p->err == ERR_OK ? n : NULL;
	}
	p->soft -= soft;
	p->depth--;
	return value;
}

/* ---- primaries ---- */

static struct node *parse_const(struct parser *p, struct jv v)
{
	struct node *n = parse_node(p, N_CONST, p->tok->pos);
	if (n != NULL)
		n->value = v;
	return n;
}

static void *string_const(struct parser *p, const char *text, size_t bytes, struct jv *out)
{
	struct jstr *s = parse_alloc(p, sizeof(*s));
	if (s == NULL)
		return NULL;
	*s = (struct jstr){.data = text, .bytes = bytes, .chars = SIZE_MAX};
	(void)jstr_chars(s); /* counted now: constants are shared by threads */
	*out = (struct jv){.type = JV_STRING, .s = s};
	return s;
}

/* Adjacent literals are one. */
static struct node *parse_strings(struct parser *p)
{
	const struct tok *first = p->tok;
	struct buf text = {0};
	struct jv v = JV_NIL;
	for (; p->tok->type == TOK_STRING; p->tok++)
		buf_append(&text, p->tok->text, p->tok->bytes);
	const char *copy = first + 1 == p->tok ? first->text
					       : arena_strndup(&p->t->arena, buf_cstr(&text), text.bytes);
	size_t bytes = text.bytes;
	buf_fini(&text);
	struct node *n = parse_node(p, N_CONST, first->pos);
	if (copy == NULL || n == NULL || string_const(p, copy, bytes, &v) == NULL)
		return parse_fail(p, first, "out of memory");
	n->value = v;
	return n;
}

/* Special names of a macro that its body mentions decide what the macro accepts. */
static void note_name(struct parser *p, const char *name)
{
	for (struct parser_macros *m = p->macros; m != NULL; m = m->outer) {
		m->def->uses_caller = m->def->uses_caller || strcmp(name, "caller") == 0;
		m->def->uses_varargs = m->def->uses_varargs || strcmp(name, "varargs") == 0;
		m->def->uses_kwargs = m->def->uses_kwargs || strcmp(name, "kwargs") == 0;
	}
}

static struct node *parse_name(struct parser *p)
{
	const struct tok *t = p->tok++;
	if (parse_is_name(t, "true") || parse_is_name(t, "True") || parse_is_name(t, "false") ||
	    parse_is_name(t, "False") || parse_is_name(t, "none") || parse_is_name(t, "None")) {
		struct node *n = parse_node(p, N_CONST, t->pos);
		bool none = (t->text[0] | 32) == 'n';
		if (n != NULL)
			n->value = none ? JV_NIL : JV_BOOLEAN((t->text[0] | 32) == 't');
		return n;
	}
	struct node *n = parse_node(p, N_NAME, t->pos);
	if (n == NULL)
		return NULL;
	n->name = parse_intern(p, t);
	if (n->name == NULL)
		return NULL;
	note_name(p, n->name);
	return n;
}

static struct node *parse_list_literal(struct parser *p)
{
	struct node *n = parse_node(p, N_LIST, p->tok->pos);
	p->tok++;
	while (n != NULL && p->tok->type != TOK_RBRACKET) {
		if (n->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (p->tok->type == TOK_RBRACKET)
			break;
		if (!parse_list_add(p, &n->items, parse_expression(p)))
			return NULL;
	}
	return parse_expect(p, TOK_RBRACKET) ? n : NULL;
}

static struct node *parse_dict_literal(struct parser *p)
{
	struct node *n = parse_node(p, N_DICT, p->tok->pos);
	p->tok++;
	while (n != NULL && p->tok->type != TOK_RBRACE) {
		if (n->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (p->tok->type == TOK_RBRACE)
			break;
		if (!parse_list_add(p, &n->items, parse_expression(p)) || !parse_expect(p, TOK_COLON) ||
		    !parse_list_add(p, &n->items, parse_expression(p)))
			return NULL;
	}
	return parse_expect(p, TOK_RBRACE) ? n : NULL;
}

struct node *parse_primary(struct parser *p)
{
	struct node *n = NULL;
	switch (p->tok->type) {
	case TOK_NAME:
		return parse_name(p);
	case TOK_STRING:
		return parse_strings(p);
	case TOK_INTEGER:
		n = parse_const(p, JV_INTEGER(p->tok->integer));
		p->tok++;
		return n;
	case TOK_FLOAT:
		n = parse_const(p, JV_DOUBLE(p->tok->number));
		p->tok++;
		return n;
	case TOK_LPAREN:
		p->tok++;
		if (!parse_enter(p))
			return NULL;
		n = parse_tuple(p, TUPLE_PARENS);
		p->depth--;
		return n != NULL && parse_expect(p, TOK_RPAREN) ? n : NULL;
	case TOK_LBRACKET:
		return parse_list_literal(p);
	case TOK_LBRACE:
		return parse_dict_literal(p);
	default:
		return parse_fail(p, p->tok, "unexpected %s", parse_describe(p->tok));
	}
}

static bool tuple_ends(const struct parser *p, u32 rules)
{
	enum tok_type t = p->tok->type;
	return t == TOK_VARIABLE_END || t == TOK_BLOCK_END || t == TOK_RPAREN || t == TOK_EOF ||
	       ((rules & TUPLE_TO_IN) && parse_is_name(p->tok, "in")) ||
	       ((rules & TUPLE_TO_RECURSIVE) && parse_is_name(p->tok, "recursive"));
}

struct node *parse_tuple(struct parser *p, u32 rules)
{
	struct node *tuple = parse_node(p, N_TUPLE, p->tok->pos);
	bool comma = false;
	while (tuple != NULL) {
		if (tuple->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (tuple_ends(p, rules))
			break;
		struct node *item = rules & TUPLE_SIMPLIFIED ? parse_primary(p)
				    : rules & TUPLE_NO_COND  ? parse_or(p)
							     : parse_expression(p);
		if (!parse_list_add(p, &tuple->items, item))
			return NULL;
		if (p->tok->type != TOK_COMMA)
			break;
		comma = true;
	}
	if (tuple == NULL || comma)
		return tuple;
	if (tuple->items.count > 0)
		return tuple->items.items[0];
	return rules & TUPLE_PARENS
		       ? tuple
		       : parse_fail(p, p->tok, "expected an expression, got %s", parse_describe(p->tok));
}

/* ---- postfix: attributes, items, calls, filters, tests ---- */

/* x[a], x[a:b:c]: one part of the brackets. */
static struct node *parse_subscribed(struct parser *p)
{
	struct token_pos pos = p->tok->pos;
	struct node *bounds[3] = {NULL, NULL, NULL};
	if (p->tok->type != TOK_COLON) {
		bounds[0] = parse_expression(p);
		if (bounds[0] == NULL || p->tok->type != TOK_COLON)
			return bounds[0];
	}
	p->tok++;
	for (int i = 1; i < 3; i++) {
		enum tok_type t = p->tok->type;
		if (t != TOK_COLON && t != TOK_RBRACKET && t != TOK_COMMA) {
			bounds[i] = parse_expression(p);
			if (bounds[i] == NULL)
				return NULL;
		}
		if (i == 2 || !parse_skip(p, TOK_COLON))
			break;
	}
	struct node *n = parse_node(p, N_SLICE, pos);
	if (n != NULL) {
		n->a = bounds[0];
		n->b = bounds[1];
		n->c = bounds[2];
	}
	return n;
}

static struct node *parse_subscript(struct parser *p, struct node *of)
{
	struct token_pos pos = p->tok->pos;
	if (parse_skip(p, TOK_DOT)) {
		const struct tok *attr = p->tok++;
		struct node *n = parse_node(p, attr->type == TOK_NAME ? N_GETATTR : N_GETITEM, pos);
		if (n == NULL)
			return NULL;
		n->a = of;
		if (attr->type == TOK_NAME) {
			n->name = parse_intern(p, attr);
			return n->name != NULL ? n : NULL;
		}
		if (attr->type != TOK_INTEGER)
			return parse_fail(p, attr, "expected a name or number behind \".\"");
		n->b = parse_node(p, N_CONST, attr->pos);
		if (n->b != NULL)
			n->b->value = JV_INTEGER(attr->integer);
		return n;
	}
	p->tok++;
	struct node *n = parse_node(p, N_GETITEM, pos), *tuple = parse_node(p, N_TUPLE, pos);
	while (n != NULL && tuple != NULL && p->tok->type != TOK_RBRACKET) {
		if (tuple->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (!parse_list_add(p, &tuple->items, parse_subscribed(p)))
			return NULL;
	}
	if (n == NULL || tuple == NULL || !parse_expect(p, TOK_RBRACKET))
		return NULL;
	n->a = of;
	n->b = tuple->items.count == 1 ? tuple->items.items[0] : tuple;
	return n;
}

struct node *parse_postfix(struct parser *p, struct node *n)
{
	while (n != NULL) {
		if (p->tok->type == TOK_DOT || p->tok->type == TOK_LBRACKET)
			n = parse_subscript(p, n);
		else if (p->tok->type == TOK_LPAREN)
			n = parse_call(p, n);
		else
			break;
	}
	return n;
}

static struct node *parse_filter_expr(struct parser *p, struct node *n)
{
	while (n != NULL) {
		if (p->tok->type == TOK_PIPE)
			n = parse_filter(p, n, false);
		else if (parse_is_name(p->tok, "is"))
			n = parse_test(p, n);
		else if (p->tok->type == TOK_LPAREN)
			n = parse_call(p, n);
		else
			break;
	}
	return n;
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
	struct node *n;
	if (p->tok->type == TOK_SUB || p->tok->type == TOK_ADD) {
		if (!parse_enter(p))
			return NULL;
		n = parse_node(p, p->tok->type == TOK_SUB ? N_NEG : N_POS, p->tok->pos);
		p->tok++;
		struct node *inner = parse_unary(p, false);
		p->depth--;
		if (n != NULL)
			n->a = inner;
		n = inner != NULL ? n : NULL;
	} else {
		n = parse_primary(p);
	}
	n = parse_postfix(p, n);
	return with_filter ? parse_filter_expr(p, n) : n;
}
