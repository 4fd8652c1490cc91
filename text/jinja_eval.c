/* Owns the evaluation of expressions. Runs where chat templates are rendered. One function per kind of node, in a
 * table; every node costs a step and recursion is bounded. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_priv.h"

/* ---- errors and memory ---- */

bool jinja_fail(struct jinja *j, const char *fmt, ...)
{
	if (j->failed)
		return false;
	j->failed = true;
	char what[600];
	va_list args;
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	if (j->at != NULL)
		(void)err_set(&j->error, ERR_INVALID, "line %u, column %u: %s", j->at->pos.line, j->at->pos.column,
			      what);
	else
		(void)err_set(&j->error, ERR_INVALID, "%s", what);
	return false;
}

bool jinja_fail_memory(struct jinja *j)
{
	j->limited = true;
	return jinja_fail(j, "the rendering is larger than its limits allow");
}

bool jinja_charge(struct jinja *j, size_t bytes)
{
	j->steps += 1 + bytes / JINJA_STEP_BYTES;
	if (j->steps <= j->limits.steps)
		return true;
	j->limited = true;
	return jinja_fail(j, "the template takes more than %llu steps", (unsigned long long)j->limits.steps);
}

bool jinja_fail_undefined(struct jinja *j, struct jv v)
{
	return jinja_fail(j, "%s", v.hint);
}

bool jinja_put_off_error(struct jinja *j, const char **out)
{
	if (j->limited || j->raised)
		return false;
	j->failed = false;
	*out = jinja_printf(j, "%s", j->error.text);
	return *out != NULL;
}

bool jinja_raise_again(struct jinja *j, const char *error)
{
	j->failed = true; /* the message has its place already */
	return err_set(&j->error, ERR_INVALID, "%s", error) == ERR_OK;
}

bool jinja_enter(struct jinja *j)
{
	if (++j->depth <= JINJA_DEPTH_MAX)
		return true;
	j->depth--;
	return jinja_fail(j, "nested deeper than %d", JINJA_DEPTH_MAX);
}

void *jinja_alloc(struct jinja *j, size_t bytes)
{
	void *memory = arena_alloc(&j->arena, bytes);
	if (memory == NULL)
		(void)jinja_fail_memory(j);
	return memory;
}

char *jinja_printf(struct jinja *j, const char *fmt, ...)
{
	char text[sizeof(struct err_msg)];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	size_t bytes = strlen(text) + 1;
	char *copy = jinja_alloc(j, bytes);
	return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

/* ---- names ---- */

struct jscope *jinja_scope_push(struct jinja *j, struct jscope *parent, const char *const *unset)
{
	struct jscope *s = jinja_alloc(j, sizeof(*s));
	if (s == NULL)
		return NULL;
	*s = (struct jscope){.parent = parent};
	return jinja_scope_reset(j, s, unset) ? s : NULL;
}

bool jinja_scope_reset(struct jinja *j, struct jscope *s, const char *const *unset)
{
	s->count = 0;
	for (; unset != NULL && *unset != NULL; unset++)
		if (!jinja_scope_set(j, s, *unset, (struct jv){.type = JV_MISSING}))
			return false;
	return true;
}

bool jinja_scope_set(struct jinja *j, struct jscope *s, const char *name, struct jv value)
{
	for (u32 i = 0; i < s->count; i++)
		if (s->vars[i].name == name) {
			s->vars[i].value = value;
			return true;
		}
	if (s->count == s->room) {
		u32 room = s->room == 0 ? 4 : s->room * 2;
		struct jvar *vars = jinja_alloc(j, room * sizeof(*vars));
		if (vars == NULL)
			return false;
		if (s->count > 0)
			memcpy(vars, s->vars, s->count * sizeof(*vars));
		s->vars = vars;
		s->room = room;
	}
	s->vars[s->count++] = (struct jvar){.name = name, .value = value};
	return true;
}

/* The innermost variable of the name; NULL when there is none. */
static const struct jvar *find_var(const struct jinja *j, const char *name)
{
	for (const struct jscope *s = j->scope; s != NULL; s = s->parent)
		for (u32 i = 0; i < s->count; i++)
			if (s->vars[i].name == name)
				return &s->vars[i];
	return NULL;
}

bool jinja_lookup(struct jinja *j, const char *name, struct jv *out)
{
	const struct jvar *var = find_var(j, name);
	const struct builtin *b = var == NULL ? jinja_global_find(name) : NULL;
	if (b != NULL)
		*out = (struct jv){.type = JV_FUNCTION, .function = b};
	else if (var != NULL && var->value.type != JV_MISSING)
		*out = var->value;
	else
		*out = JV_UNDEF(jinja_printf(j, "'%s' is undefined", name));
	return out->type != JV_UNDEFINED || out->hint != NULL;
}

/* ---- literals and names ---- */

static bool eval_const(struct jinja *j, const struct node *n, struct jv *out)
{
	(void)j;
	*out = n->value;
	return true;
}

static bool eval_name(struct jinja *j, const struct node *n, struct jv *out)
{
	return jinja_lookup(j, n->name, out);
}

static bool eval_items(struct jinja *j, const struct node *n, struct jv *out)
{
	if (!jv_list(j, n->kind == N_LIST ? JV_LIST : JV_TUPLE, n->items.count, out))
		return false;
	struct jlist *l = out->l;
	for (u32 i = 0; i < n->items.count; i++) {
		if (!jinja_eval(j, n->items.items[i], &l->items[i]))
			return false;
		l->count++;
	}
	return true;
}

static bool eval_dict(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv dict, key, value;
	if (!jv_dict(j, JV_DICT, &dict))
		return false;
	for (u32 i = 0; i + 1 < n->items.count; i += 2)
		if (!jinja_eval(j, n->items.items[i], &key) || !jinja_eval(j, n->items.items[i + 1], &value) ||
		    !jdict_put(j, dict.d, key, value))
			return false;
	*out = dict;
	return true;
}

/* ---- logic ---- */

static bool eval_cond(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv test;
	if (!jinja_eval(j, n->b, &test))
		return false;
	if (jv_truthy(test))
		return jinja_eval(j, n->a, out);
	if (n->c != NULL)
		return jinja_eval(j, n->c, out);
	*out = JV_UNDEF("the inline if-expression evaluated to false and no else section was defined");
	return true;
}

static bool eval_logic(struct jinja *j, const struct node *n, struct jv *out)
{
	if (!jinja_eval(j, n->a, out))
		return false;
	return jv_truthy(*out) == (n->kind == N_OR) || jinja_eval(j, n->b, out);
}

static bool eval_not(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv v;
	if (!jinja_eval(j, n->a, &v))
		return false;
	*out = JV_BOOLEAN(!jv_truthy(v));
	return true;
}

static bool compare(struct jinja *j, u8 op, struct jv a, struct jv b, bool *out)
{
	static const char *const names[] = {
		[TOK_LT] = "<", [TOK_LTEQ] = "<=", [TOK_GT] = ">", [TOK_GTEQ] = ">="};
	int order;
	if (op == TOK_EQ || op == TOK_NE) {
		if (!jv_equal(j, a, b, out))
			return false;
		*out = *out == (op == TOK_EQ);
		return true;
	}
	if (op == TOK_IN || op == TOK_NOTIN) {
		if (!jv_contains(j, b, a, out))
			return false;
		*out = *out == (op == TOK_IN);
		return true;
	}
	if (!jv_compare(j, a, b, names[op], &order))
		return false;
	*out = op == TOK_LT ? order == -1 : op == TOK_LTEQ ? order <= 0 : op == TOK_GT ? order == 1 : order == 0 || order == 1;
	return true;
}

/* a < b < c holds when both do; b is evaluated once. */
static bool eval_compare(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv left, right;
	bool holds = true;
	if (!jinja_eval(j, n->a, &left))
		return false;
	for (u32 i = 0; holds && i < n->items.count; i++) {
		if (!jinja_eval(j, n->items.items[i]->a, &right))
			return false;
		j->at = n->items.items[i];
		if (!compare(j, n->items.items[i]->op, left, right, &holds))
			return false;
		left = right;
	}
	*out = JV_BOOLEAN(holds);
	return true;
}

/* ---- operators ---- */

static bool eval_binary(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv a, b;
	if (!jinja_eval(j, n->a, &a) || !jinja_eval(j, n->b, &b))
		return false;
	j->at = n;
	return jv_binary(j, n->op, a, b, out);
}

static bool eval_sign(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv v;
	if (!jinja_eval(j, n->a, &v))
		return false;
	j->at = n;
	if (n->kind == N_NEG)
		return jv_negate(j, v, out);
	if (!jv_is_number(v))
		return v.type == JV_UNDEFINED
			       ? jinja_fail_undefined(j, v)
			       : jinja_fail(j, "bad operand type for unary +: '%s'", jv_type_name(v));
	*out = v.type == JV_BOOL ? JV_INTEGER(v.b) : v;
	return true;
}

static bool eval_concat(struct jinja *j, const struct node *n, struct jv *out)
{
	struct buf text = {0};
	bool ok = true;
	for (u32 i = 0; ok && i < n->items.count; i++) {
		struct jv v;
		ok = jinja_eval(j, n->items.items[i], &v) && jv_str(j, v, &text);
	}
	ok = ok && jv_string_buf(j, &text, out);
	buf_fini(&text);
	return ok;
}

/* ---- members ---- */

static bool eval_getattr(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv v;
	if (!jinja_eval(j, n->a, &v))
		return false;
	j->at = n;
	return jv_getattr(j, v, n->name, strlen(n->name), out);
}

static bool eval_slice(struct jinja *j, const struct node *n, struct jv of, struct jv *out)
{
	const struct node *const parts[] = {n->a, n->b, n->c};
	struct jv bounds[3];
	for (int i = 0; i < 3; i++) {
		bounds[i] = JV_NIL;
		if (parts[i] != NULL && !jinja_eval(j, parts[i], &bounds[i]))
			return false;
	}
	j->at = n;
	return jv_slice(j, of, bounds, out);
}

static bool eval_getitem(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv v, key;
	if (!jinja_eval(j, n->a, &v))
		return false;
	if (n->b->kind == N_SLICE)
		return eval_slice(j, n->b, v, out);
	if (!jinja_eval(j, n->b, &key))
		return false;
	j->at = n;
	return jv_getitem(j, v, key, out);
}

static bool eval_lone_slice(struct jinja *j, const struct node *n, struct jv *out)
{
	(void)n, (void)out;
	return jinja_fail(j, "a slice cannot be part of a tuple");
}

/* ---- calls, filters, tests ---- */

static bool eval_call(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv callee;
	struct jargs args;
	if (!jinja_eval(j, n->a, &callee) || !jinja_eval_args(j, n->args, &args))
		return false;
	j->at = n;
	return jinja_call(j, callee, &args, out);
}

static bool eval_tool(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jv v;
	struct jargs args;
	if (!jinja_eval(j, n->a, &v) || !jinja_eval_args(j, n->args, &args))
		return false;
	j->at = n;
	if (n->builtin == NULL)
		return jinja_fail(j, "no %s named '%s'", n->kind == N_FILTER ? "filter" : "test", n->name);
	return jinja_call_builtin(j, n->builtin, v, &args, out);
}

static bool eval_test(struct jinja *j, const struct node *n, struct jv *out)
{
	if (!eval_tool(j, n, out))
		return false;
	if (n->negated)
		*out = JV_BOOLEAN(!jv_truthy(*out));
	return true;
}

typedef bool (*eval_fn)(struct jinja *j, const struct node *n, struct jv *out);
static const eval_fn evals[NODE_KIND_COUNT] = {
	[N_CONST] = eval_const,
	[N_NAME] = eval_name,
	[N_LIST] = eval_items,
	[N_TUPLE] = eval_items,
	[N_DICT] = eval_dict,
	[N_COND] = eval_cond,
	[N_OR] = eval_logic,
	[N_AND] = eval_logic,
	[N_NOT] = eval_not,
	[N_COMPARE] = eval_compare,
	[N_BINARY] = eval_binary,
	[N_NEG] = eval_sign,
	[N_POS] = eval_sign,
	[N_CONCAT] = eval_concat,
	[N_GETATTR] = eval_getattr,
	[N_GETITEM] = eval_getitem,
	[N_SLICE] = eval_lone_slice,
	[N_CALL] = eval_call,
	[N_FILTER] = eval_tool,
	[N_TEST] = eval_test,
};

bool jinja_eval(struct jinja *j, const struct node *n, struct jv *out)
{
	j->at = n;
	if (!jinja_charge(j, 0) || !jinja_enter(j))
		return false;
	bool ok = evals[n->kind](j, n, out);
	j->depth--;
	return ok;
}
