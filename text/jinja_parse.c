/* Owns the parsing of statements and the template as a whole. Runs where chat templates are loaded. A tag is a row in
 * a table; bodies are read until one of the tags that may end them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/jinja_parse_priv.h"

/* ---- tokens and nodes ---- */

void *parse_fail(struct parser *p, const struct tok *at, const char *fmt, ...)
{
	if (p->err != ERR_OK)
		return NULL;
	char what[512];
	va_list args;
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	p->err = err_set(p->em, ERR_FORMAT, "line %u, column %u: %s", at->pos.line, at->pos.column, what);
	return NULL;
}

void *parse_alloc(struct parser *p, size_t bytes)
{
	void *memory = arena_zalloc(&p->t->arena, bytes);
	return memory != NULL ? memory : parse_fail(p, p->tok, "out of memory");
}

bool parse_enter(struct parser *p)
{
	if (p->err != ERR_OK)
		return false;
	if (++p->depth <= JINJA_DEPTH_MAX)
		return true;
	return parse_fail(p, p->tok, "nested deeper than %d", JINJA_DEPTH_MAX) != NULL;
}

bool parse_is_name(const struct tok *t, const char *name)
{
	return t->type == TOK_NAME && strcmp(t->text, name) == 0;
}

bool parse_skip_name(struct parser *p, const char *name)
{
	if (!parse_is_name(p->tok, name))
		return false;
	p->tok++;
	return true;
}

bool parse_skip(struct parser *p, enum tok_type type)
{
	if (p->tok->type != type)
		return false;
	p->tok++;
	return true;
}

static const char *const token_names[] = {
	[TOK_EOF] = "end of template",
	[TOK_DATA] = "text",
	[TOK_VARIABLE_BEGIN] = "'{{'",
	[TOK_VARIABLE_END] = "'}}'",
	[TOK_BLOCK_BEGIN] = "'{%'",
	[TOK_BLOCK_END] = "'%}'",
	[TOK_NAME] = "a name",
	[TOK_STRING] = "a string",
	[TOK_INTEGER] = "an integer",
	[TOK_FLOAT] = "a number",
	[TOK_ADD] = "'+'",
	[TOK_SUB] = "'-'",
	[TOK_MUL] = "'*'",
	[TOK_DIV] = "'/'",
	[TOK_FLOORDIV] = "'//'",
	[TOK_MOD] = "'%'",
	[TOK_POW] = "'**'",
	[TOK_TILDE] = "'~'",
	[TOK_EQ] = "'=='",
	[TOK_NE] = "'!='",
	[TOK_LT] = "'<'",
	[TOK_LTEQ] = "'<='",
	[TOK_GT] = "'>'",
	[TOK_GTEQ] = "'>='",
	[TOK_IN] = "'in'",
	[TOK_NOTIN] = "'not in'",
	[TOK_LPAREN] = "'('",
	[TOK_RPAREN] = "')'",
	[TOK_LBRACKET] = "'['",
	[TOK_RBRACKET] = "']'",
	[TOK_LBRACE] = "'{'",
	[TOK_RBRACE] = "'}'",
	[TOK_DOT] = "'.'",
	[TOK_COMMA] = "','",
	[TOK_COLON] = "':'",
	[TOK_PIPE] = "'|'",
	[TOK_ASSIGN] = "'='",
	[TOK_SEMICOLON] = "';'",
};

const char *parse_describe(const struct tok *t)
{
	return t->type == TOK_NAME ? t->text : token_names[t->type];
}

bool parse_expect(struct parser *p, enum tok_type type)
{
	if (p->err != ERR_OK)
		return false;
	if (parse_skip(p, type))
		return true;
	return parse_fail(p, p->tok, "expected %s, got %s", token_names[type], parse_describe(p->tok)) != NULL;
}

struct node *parse_node(struct parser *p, enum node_kind kind, struct token_pos pos)
{
	struct node *n = p->err == ERR_OK ? parse_alloc(p, sizeof(*n)) : NULL;
	if (n != NULL) {
		n->kind = (u8)kind;
		n->pos = pos;
	}
	return n;
}

bool parse_list_add(struct parser *p, struct node_list *l, struct node *n)
{
	if (n == NULL || p->err != ERR_OK)
		return false;
	if (l->count == l->room) {
		u32 room = l->room == 0 ? 4 : l->room * 2;
		struct node **items = parse_alloc(p, room * sizeof(*items));
		if (items == NULL)
			return false;
		if (l->count > 0)
			memcpy(items, l->items, l->count * sizeof(*items));
		l->items = items;
		l->room = room;
	}
	l->items[l->count++] = n;
	return true;
}

const char *jinja_name(const struct jinja_template *t, const char *name, size_t bytes)
{
	for (u32 i = 0; i < t->name_count; i++)
		if (strncmp(t->names[i], name, bytes) == 0 && t->names[i][bytes] == '\0')
			return t->names[i];
	return NULL;
}

const char *parse_intern(struct parser *p, const struct tok *name)
{
	struct jinja_template *t = p->t;
	const char *known = jinja_name(t, name->text, name->bytes);
	if (known != NULL || p->err != ERR_OK)
		return known;
	if (t->name_count == t->name_room) {
		u32 room = t->name_room == 0 ? 64 : t->name_room * 2;
		const char **names = parse_alloc(p, room * sizeof(*names));
		if (names == NULL)
			return NULL;
		if (t->name_count > 0)
			memcpy(names, t->names, t->name_count * sizeof(*names));
		t->names = names;
		t->name_room = room;
	}
	return t->names[t->name_count++] = name->text;
}

/* ---- bodies ---- */

static bool parse_body(struct parser *p, struct node_list *out, const char *const *ends, const char *tag,
		       const struct tok *opened);

/* Behind a tag's expression: its end, the body, up to one of `ends` (then the current token). */
static bool parse_block(struct parser *p, struct node_list *out, const char *const *ends, const char *tag,
			const struct tok *opened)
{
	(void)parse_skip(p, TOK_COLON);
	return parse_expect(p, TOK_BLOCK_END) && parse_body(p, out, ends, tag, opened);
}

static bool can_assign(const struct node *n)
{
	if (n->kind == N_NAME)
		return true;
	if (n->kind != N_TUPLE)
		return false;
	for (u32 i = 0; i < n->items.count; i++)
		if (!can_assign(n->items.items[i]))
			return false;
	return true;
}

static struct node *parse_target(struct parser *p, u32 rules)
{
	const struct tok *at = p->tok;
	struct node *n = parse_tuple(p, TUPLE_SIMPLIFIED | rules);
	if (n != NULL && !can_assign(n))
		return parse_fail(p, at, "cannot assign to this");
	return n;
}

static const char *parse_target_name(struct parser *p)
{
	const struct tok *t = p->tok;
	if (!parse_expect(p, TOK_NAME))
		return NULL;
	if (parse_is_name(t, "true") || parse_is_name(t, "false") || parse_is_name(t, "none") ||
	    parse_is_name(t, "True") || parse_is_name(t, "False") || parse_is_name(t, "None"))
		return parse_fail(p, t, "cannot assign to '%s'", t->text);
	return parse_intern(p, t);
}

/* ---- tags ---- */

static struct node *parse_for(struct parser *p, const struct tok *tag)
{
	static const char *const ends[] = {"endfor", "else", NULL}, *const else_ends[] = {"endfor", NULL};
	struct node *n = parse_node(p, N_FOR, tag->pos);
	struct node *target = parse_target(p, TUPLE_TO_IN);
	if (n == NULL || target == NULL)
		return NULL;
	if (!parse_skip_name(p, "in"))
		return parse_fail(p, p->tok, "expected 'in', got %s", parse_describe(p->tok));
	u32 soft = p->soft;
	p->soft = 0;
	n->a = target;
	n->b = parse_tuple(p, TUPLE_NO_COND | TUPLE_TO_RECURSIVE);
	if (parse_skip_name(p, "if"))
		n->c = parse_expression(p);
	n->recursive = parse_skip_name(p, "recursive");
	u32 loops = p->loops;
	p->loops = n->recursive ? 1 : loops + 1;
	bool ok = parse_block(p, &n->body, ends, "for", tag);
	p->loops = loops;
	if (ok && parse_is_name(p->tok++, "else"))
		ok = parse_block(p, &n->other, else_ends, "for", tag) && p->tok++ != NULL;
	p->soft = soft;
	return ok ? n : NULL;
}

/* elif is an if in the else. */
static struct node *parse_if(struct parser *p, const struct tok *tag)
{
	static const char *const ends[] = {"elif", "else", "endif", NULL}, *const else_ends[] = {"endif", NULL};
	struct node *first = NULL, *n = NULL;
	p->soft++;
	bool more = true;
	while (more) {
		struct node *next = parse_node(p, N_IF, tag->pos);
		if (next == NULL)
			break;
		if (n == NULL)
			first = next;
		else if (!parse_list_add(p, &n->other, next))
			break;
		next->elif = n != NULL;
		n = next;
		n->a = parse_tuple(p, TUPLE_NO_COND);
		if (n->a == NULL || !parse_block(p, &n->body, ends, "if", tag))
			break;
		more = parse_is_name(p->tok, "elif");
		if (parse_is_name(p->tok++, "else") && parse_block(p, &n->other, else_ends, "if", tag))
			p->tok++;
	}
	p->soft--;
	return p->err == ERR_OK ? first : NULL;
}

/* A body with a scope of its own, up to `end`. Filters in it are not soft. */
static bool parse_scope(struct parser *p, struct node *n, const char *end, const char *name, const struct tok *tag)
{
	const char *const ends[] = {end, NULL};
	u32 soft = p->soft;
	p->soft = 0;
	bool ok = parse_block(p, &n->body, ends, name, tag);
	p->soft = soft;
	if (ok)
		p->tok++;
	return ok;
}

static struct node *parse_set(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_SET, tag->pos);
	if (n == NULL)
		return NULL;
	if (p->tok->type == TOK_NAME && p->tok[1].type == TOK_DOT) {
		n->a = parse_node(p, N_NSREF, p->tok->pos);
		if (n->a == NULL)
			return NULL;
		n->a->a = parse_primary(p);
		p->tok++;
		const struct tok *attr = p->tok;
		if (!parse_expect(p, TOK_NAME))
			return NULL;
		n->a->name = parse_intern(p, attr);
	} else {
		n->a = parse_target(p, TUPLE_FULL);
	}
	if (n->a == NULL || p->err != ERR_OK)
		return NULL;
	if (parse_skip(p, TOK_ASSIGN)) {
		n->b = parse_tuple(p, TUPLE_FULL);
		return n->b != NULL ? n : NULL;
	}
	n->kind = N_SETBLOCK;
	n->b = parse_filter(p, NULL, false);
	return p->err == ERR_OK && parse_scope(p, n, "endset", "set", tag) ? n : NULL;
}

static struct node *parse_with(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_WITH, tag->pos);
	while (n != NULL && p->tok->type != TOK_BLOCK_END) {
		if (n->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (!parse_list_add(p, &n->items, parse_target(p, TUPLE_FULL)) || !parse_expect(p, TOK_ASSIGN) ||
		    !parse_list_add(p, &n->items, parse_expression(p)))
			return NULL;
	}
	return n != NULL && parse_scope(p, n, "endwith", "with", tag) ? n : NULL;
}

static bool add_param(struct parser *p, struct macro_def *m)
{
	const char *name = parse_target_name(p);
	if (name == NULL)
		return false;
	const char **params = parse_alloc(p, (m->param_count + 1) * sizeof(*params));
	struct node **defaults = parse_alloc(p, (m->default_count + 1) * sizeof(*defaults));
	if (params == NULL || defaults == NULL)
		return false;
	if (m->param_count > 0)
		memcpy(params, m->params, m->param_count * sizeof(*params));
	if (m->default_count > 0)
		memcpy(defaults, m->defaults, m->default_count * sizeof(*defaults));
	m->params = params;
	m->defaults = defaults;
	m->params[m->param_count++] = name;
	m->has_caller_param = m->has_caller_param || strcmp(name, "caller") == 0;
	if (parse_skip(p, TOK_ASSIGN))
		return (m->defaults[m->default_count++] = parse_expression(p)) != NULL;
	if (m->default_count > 0)
		return parse_fail(p, p->tok, "non-default argument follows default argument") != NULL;
	return true;
}

static bool parse_signature(struct parser *p, struct macro_def *m)
{
	if (!parse_expect(p, TOK_LPAREN))
		return false;
	while (p->tok->type != TOK_RPAREN)
		if ((m->param_count > 0 && !parse_expect(p, TOK_COMMA)) || !add_param(p, m))
			return false;
	return parse_expect(p, TOK_RPAREN);
}

/* Body of a macro or call block: no loop outside can be left from it. */
static bool parse_macro_body(struct parser *p, struct macro_def *m, const char *end, const char *name,
			     const struct tok *tag)
{
	const char *const ends[] = {end, NULL};
	struct parser_macros entry = {.def = m, .outer = p->macros};
	u32 loops = p->loops, soft = p->soft;
	p->macros = &entry;
	p->loops = p->soft = 0;
	bool ok = parse_block(p, &m->body, ends, name, tag);
	p->macros = entry.outer;
	p->loops = loops;
	p->soft = soft;
	if (ok)
		p->tok++;
	return ok;
}

static struct node *macro_node(struct parser *p, enum node_kind kind, const struct tok *tag)
{
	struct node *n = parse_node(p, kind, tag->pos);
	if (n != NULL)
		n->macro = parse_alloc(p, sizeof(*n->macro));
	return n != NULL && n->macro != NULL ? n : NULL;
}

static struct node *parse_macro(struct parser *p, const struct tok *tag)
{
	struct node *n = macro_node(p, N_MACRO, tag);
	if (n == NULL || (n->macro->name = parse_target_name(p)) == NULL || !parse_signature(p, n->macro))
		return NULL;
	return parse_macro_body(p, n->macro, "endmacro", "macro", tag) ? n : NULL;
}

static struct node *parse_call_block(struct parser *p, const struct tok *tag)
{
	struct node *n = macro_node(p, N_CALLBLOCK, tag);
	if (n == NULL || (p->tok->type == TOK_LPAREN && !parse_signature(p, n->macro)))
		return NULL;
	n->a = parse_expression(p);
	if (n->a == NULL || n->a->kind != N_CALL)
		return parse_fail(p, tag, "expected a call");
	return parse_macro_body(p, n->macro, "endcall", "call", tag) ? n : NULL;
}

/* {% generation %} marks what a model wrote, for training; its body is a macro's. */
static struct node *parse_generation(struct parser *p, const struct tok *tag)
{
	struct node *n = macro_node(p, N_SCOPE, tag);
	if (n == NULL || !parse_macro_body(p, n->macro, "endgeneration", "generation", tag))
		return NULL;
	n->body = n->macro->body;
	return n;
}

static struct node *parse_filter_block(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_FILTERBLOCK, tag->pos);
	if (n == NULL || (n->a = parse_filter(p, NULL, true)) == NULL)
		return NULL;
	return parse_scope(p, n, "endfilter", "filter", tag) ? n : NULL;
}

static struct node *parse_named_block(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_SCOPE, tag->pos);
	const struct tok *name = p->tok;
	if (n == NULL || !parse_expect(p, TOK_NAME))
		return NULL;
	(void)parse_skip_name(p, "scoped");
	(void)parse_skip_name(p, "required");
	if (!parse_scope(p, n, "endblock", "block", tag))
		return NULL;
	(void)parse_skip_name(p, name->text);
	return n;
}

/* Prompts are never escaped: what switches it off does nothing. */
static struct node *parse_autoescape(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_SCOPE, tag->pos), *on = n != NULL ? parse_expression(p) : NULL;
	if (on == NULL)
		return NULL;
	if (on->kind != N_CONST || jv_truthy(on->value))
		return parse_fail(p, tag, "autoescape can only be false: prompts are no HTML");
	return parse_scope(p, n, "endautoescape", "autoescape", tag) ? n : NULL;
}

static struct node *parse_print(struct parser *p, const struct tok *tag)
{
	struct node *n = parse_node(p, N_PRINT, tag->pos);
	while (n != NULL && p->tok->type != TOK_BLOCK_END) {
		if (n->items.count > 0 && !parse_expect(p, TOK_COMMA))
			return NULL;
		if (!parse_list_add(p, &n->items, parse_expression(p)))
			return NULL;
	}
	return n;
}

static struct node *parse_loop_control(struct parser *p, const struct tok *tag)
{
	if (p->loops == 0)
		return parse_fail(p, tag, "'%s' outside loop", tag->text);
	return parse_node(p, parse_is_name(tag, "break") ? N_BREAK : N_CONTINUE, tag->pos);
}

static struct node *parse_other_template(struct parser *p, const struct tok *tag)
{
	return parse_fail(p, tag, "'%s' needs another template; a chat template stands alone", tag->text);
}

struct tag {
	const char *name;
	struct node *(*parse)(struct parser *p, const struct tok *tag);
};
static const struct tag tags[] = {
	{"if", parse_if},
	{"for", parse_for},
	{"set", parse_set},
	{"macro", parse_macro},
	{"with", parse_with},
	{"call", parse_call_block},
	{"filter", parse_filter_block},
	{"generation", parse_generation},
	{"break", parse_loop_control},
	{"continue", parse_loop_control},
	{"print", parse_print},
	{"block", parse_named_block},
	{"autoescape", parse_autoescape},
	{"include", parse_other_template},
	{"import", parse_other_template},
	{"from", parse_other_template},
	{"extends", parse_other_template},
};

static struct node *parse_statement(struct parser *p)
{
	const struct tok *tag = p->tok;
	if (!parse_expect(p, TOK_NAME))
		return NULL;
	for (size_t i = 0; i < COUNT_OF(tags); i++)
		if (parse_is_name(tag, tags[i].name))
			return tags[i].parse(p, tag);
	return parse_fail(p, tag, "unknown tag '%s'", tag->text);
}

static bool is_end(const struct tok *t, const char *const *ends)
{
	for (; ends != NULL && *ends != NULL; ends++)
		if (parse_is_name(t, *ends))
			return true;
	return false;
}

static bool add_text(struct parser *p, struct node_list *out)
{
	struct node *n = parse_node(p, N_TEXT, p->tok->pos);
	struct jstr *s = parse_alloc(p, sizeof(*s));
	if (n == NULL || s == NULL)
		return false;
	*s = (struct jstr){.data = p->tok->text, .bytes = p->tok->bytes, .chars = SIZE_MAX};
	n->value = (struct jv){.type = JV_STRING, .s = s};
	p->tok++;
	return parse_list_add(p, out, n);
}

static bool add_print(struct parser *p, struct node_list *out)
{
	struct node *n = parse_node(p, N_PRINT, p->tok->pos);
	p->tok++;
	return n != NULL && parse_list_add(p, &n->items, parse_tuple(p, TUPLE_FULL)) &&
	       parse_expect(p, TOK_VARIABLE_END) && parse_list_add(p, out, n);
}

static bool parse_body(struct parser *p, struct node_list *out, const char *const *ends, const char *tag,
		       const struct tok *opened)
{
	if (!parse_enter(p))
		return false;
	bool ok = true, ended = false;
	while (ok && !ended && p->tok->type != TOK_EOF) {
		if (p->tok->type == TOK_DATA) {
			ok = add_text(p, out);
		} else if (p->tok->type == TOK_VARIABLE_BEGIN) {
			ok = add_print(p, out);
		} else {
			ok = parse_expect(p, TOK_BLOCK_BEGIN);
			ended = ok && is_end(p->tok, ends);
			if (ok && !ended)
				ok = parse_list_add(p, out, parse_statement(p)) && parse_expect(p, TOK_BLOCK_END);
		}
	}
	p->depth--;
	if (ok && !ended && ends != NULL)
		return parse_fail(p, p->tok, "unexpected end of template: '%s' of line %u is not closed by '%s'", tag,
				  opened->pos.line, ends[0]) != NULL;
	return ok;
}

enum err jinja_parse(struct jinja_template *t, const char *source, size_t bytes, struct err_msg *em)
{
	*t = (struct jinja_template){0};
	if (bytes > JINJA_SOURCE_MAX)
		return err_set(em, ERR_TOO_LONG, "the template has %zu bytes; at most %d are allowed", bytes,
			       JINJA_SOURCE_MAX);
	struct tok_list tokens = {0};
	enum err e = jinja_lex(&tokens, &t->arena, source, bytes, em);
	if (e == ERR_OK) {
		struct parser p = {.t = t, .tok = tokens.items, .em = em};
		if (parse_body(&p, &t->body, NULL, "", tokens.items))
			parse_symbols(&p);
		e = p.err;
	}
	free(tokens.items);
	if (e != ERR_OK)
		jinja_template_fini(t);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the template") : e;
}

void jinja_template_fini(struct jinja_template *t)
{
	arena_fini(&t->arena);
	*t = (struct jinja_template){0};
}
