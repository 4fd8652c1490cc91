/* Owns the parsing of calls, filters and tests. Runs where chat templates are loaded. */
#include <string.h>

#include "text/jinja_parse_priv.h"

static bool add_named(struct parser *p, struct call_args *args)
{
	const char *name = parse_intern(p, p->tok);
	const struct tok *at = p->tok;
	p->tok += 2;
	if (name == NULL)
		return false;
	for (u32 i = 0; i < args->named.count; i++)
		if (args->names[i] == name)
			return parse_fail(p, at, "keyword argument repeated: %s", name) != NULL;
	const char **names = parse_alloc(p, (args->named.count + 1) * sizeof(*names));
	if (names == NULL)
		return false;
	if (args->named.count > 0)
		memcpy(names, args->names, args->named.count * sizeof(*names));
	names[args->named.count] = name;
	args->names = names;
	return parse_list_add(p, &args->named, parse_expression(p));
}

static bool add_argument(struct parser *p, struct call_args *args)
{
	const struct tok *at = p->tok;
	if (parse_skip(p, TOK_MUL)) {
		if (args->star == NULL && args->star_star == NULL)
			return (args->star = parse_expression(p)) != NULL;
	} else if (parse_skip(p, TOK_POW)) {
		if (args->star_star == NULL)
			return (args->star_star = parse_expression(p)) != NULL;
	} else if (p->tok->type == TOK_NAME && p->tok[1].type == TOK_ASSIGN) {
		if (args->star_star == NULL)
			return add_named(p, args);
	} else if (args->star == NULL && args->star_star == NULL && args->named.count == 0) {
		return parse_list_add(p, &args->positional, parse_expression(p));
	}
	return parse_fail(p, at, "invalid syntax for function call expression") != NULL;
}

static struct call_args *parse_call_args(struct parser *p)
{
	struct call_args *args = parse_alloc(p, sizeof(*args));
	if (args == NULL || !parse_expect(p, TOK_LPAREN))
		return NULL;
	*args = (struct call_args){.star = NULL};
	for (bool more = false; p->tok->type != TOK_RPAREN; more = true) {
		if (more && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (more && p->tok->type == TOK_RPAREN)
			break;
		if (!add_argument(p, args))
			return NULL;
	}
	return parse_expect(p, TOK_RPAREN) ? args : NULL;
}

struct node *parse_call(struct parser *p, struct node *callee)
{
	struct node *n = parse_node(p, N_CALL, p->tok->pos);
	struct call_args *args = parse_call_args(p);
	if (n == NULL || args == NULL)
		return NULL;
	n->a = callee;
	n->args = args;
	return n;
}

/* A filter's or test's name may have dots; no builtin has. */
static bool parse_tool_name(struct parser *p, struct node *n)
{
	const struct tok *t = p->tok;
	if (!parse_expect(p, TOK_NAME))
		return false;
	n->name = parse_intern(p, t);
	while (parse_skip(p, TOK_DOT))
		if (!parse_expect(p, TOK_NAME))
			return false;
	bool filter = n->kind == N_FILTER;
	if (n->name == NULL)
		return false;
	n->builtin = filter ? jinja_filter_find(n->name) : jinja_test_find(n->name);
	if (n->builtin == NULL && p->soft == 0)
		return parse_fail(p, t, "no %s named '%s'", filter ? "filter" : "test", n->name) != NULL;
	return true;
}

struct node *parse_filter(struct parser *p, struct node *value, bool inline_name)
{
	while (inline_name || p->tok->type == TOK_PIPE) {
		if (!inline_name)
			p->tok++;
		struct node *n = parse_node(p, N_FILTER, p->tok->pos);
		if (n == NULL || !parse_tool_name(p, n))
			return NULL;
		n->a = value;
		if (p->tok->type == TOK_LPAREN && (n->args = parse_call_args(p)) == NULL)
			return NULL;
		value = n;
		inline_name = false;
	}
	return value;
}

static bool starts_test_argument(const struct tok *t)
{
	if (parse_is_name(t, "else") || parse_is_name(t, "or") || parse_is_name(t, "and"))
		return false;
	return t->type == TOK_NAME || t->type == TOK_STRING || t->type == TOK_INTEGER || t->type == TOK_FLOAT ||
	       t->type == TOK_LBRACKET || t->type == TOK_LBRACE;
}

struct node *parse_test(struct parser *p, struct node *value)
{
	struct node *n = parse_node(p, N_TEST, p->tok->pos);
	p->tok++;
	if (n == NULL)
		return NULL;
	n->a = value;
	n->negated = parse_skip_name(p, "not");
	if (!parse_tool_name(p, n))
		return NULL;
	if (p->tok->type == TOK_LPAREN)
		return (n->args = parse_call_args(p)) != NULL ? n : NULL;
	if (!starts_test_argument(p->tok))
		return n;
	if (parse_is_name(p->tok, "is"))
		return parse_fail(p, p->tok, "tests cannot be chained with is");
	n->args = parse_alloc(p, sizeof(*n->args));
	if (n->args == NULL)
		return NULL;
	*n->args = (struct call_args){.star = NULL};
	return parse_list_add(p, &n->args->positional, parse_postfix(p, parse_primary(p))) ? n : NULL;
}
