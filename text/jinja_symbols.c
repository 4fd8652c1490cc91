/* Owns one rule of Jinja's compiler that templates can tell: a name that a scope assigns without a condition, and does
 * not read itself before, is unset in that whole scope until then, even where a variable of the request has the same
 * name. The rule looks at the scope's own statements; what scopes inside it read does not count. Runs once, behind
 * parsing; leaves with each scope the list of names that start out unset. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_parse_priv.h"

enum name_flag {
	NAME_KNOWN = 1,  /* read, assigned or a parameter */
	NAME_STORED = 2,
	NAME_UNSET = 4,  /* assigned before it is read, and nothing outside has it */
};

struct frame {
	const struct frame *parent;
	struct parser *p;
	u8 *flags; /* [names of the template] */
};

static void visit_expression(struct frame *f, const struct node *n);
static void visit_body(struct frame *f, const struct node_list *body);

static u32 name_index(const struct frame *f, const char *name)
{
	u32 i = 0;
	while (f->p->t->names[i] != name)
		i++;
	return i;
}

static bool known_outside(const struct frame *f, u32 name)
{
	for (const struct frame *o = f->parent; o != NULL; o = o->parent)
		if (o->flags[name] & NAME_KNOWN)
			return true;
	return false;
}

static void load_name(struct frame *f, const char *name)
{
	u32 i = name_index(f, name);
	if (!known_outside(f, i))
		f->flags[i] |= NAME_KNOWN;
}

static void store_name(struct frame *f, const char *name)
{
	u32 i = name_index(f, name);
	if (!(f->flags[i] & NAME_KNOWN))
		f->flags[i] |= known_outside(f, i) ? NAME_KNOWN : NAME_KNOWN | NAME_UNSET;
	f->flags[i] |= NAME_STORED;
}

static void visit_list(struct frame *f, const struct node_list *l)
{
	for (u32 i = 0; i < l->count; i++)
		visit_expression(f, l->items[i]);
}

static void visit_args(struct frame *f, const struct call_args *args)
{
	if (args == NULL)
		return;
	visit_list(f, &args->positional);
	visit_list(f, &args->named);
	visit_expression(f, args->star);
	visit_expression(f, args->star_star);
}

static void visit_expression(struct frame *f, const struct node *n)
{
	if (n == NULL)
		return;
	if (n->kind == N_NAME)
		load_name(f, n->name);
	visit_expression(f, n->a);
	visit_expression(f, n->b);
	visit_expression(f, n->c);
	visit_list(f, &n->items);
	visit_args(f, n->args);
}

/* Targets are stored, or parameters of the scope. */
static void visit_target(struct frame *f, const struct node *n, bool param)
{
	if (n->kind == N_NSREF)
		visit_expression(f, n->a);
	else if (n->kind == N_NAME && param)
		f->flags[name_index(f, n->name)] |= NAME_KNOWN;
	else if (n->kind == N_NAME)
		store_name(f, n->name);
	for (u32 i = 0; n->kind == N_TUPLE && i < n->items.count; i++)
		visit_target(f, n->items.items[i], param);
}

/* ---- statements: what each does to the names of the scope that it is in ---- */

/* Runs a branch on a copy of the flags; the caller frees it. */
static u8 *run_branch(struct frame *f, const struct node_list *body)
{
	u8 *outer = f->flags, *branch = malloc(f->p->t->name_count + 1);
	if (branch == NULL)
		return parse_fail(f->p, f->p->tok, "out of memory");
	memcpy(branch, outer, f->p->t->name_count + 1);
	f->flags = branch;
	visit_body(f, body);
	f->flags = outer;
	return branch;
}

/* A name that not all three branches assign keeps its value from outside. */
static void join_branches(struct frame *f, u8 *const branches[3])
{
	for (u32 i = 0; i < f->p->t->name_count; i++) {
		u8 any = branches[0][i] | branches[1][i] | branches[2][i];
		u8 all = branches[0][i] & branches[1][i] & branches[2][i];
		bool first = !(f->flags[i] & NAME_STORED) && (any & NAME_STORED);
		f->flags[i] |= any;
		if (first && !(all & NAME_STORED))
			f->flags[i] &= (u8)~NAME_UNSET;
	}
}

/* Jinja counts three branches always: the if, its elifs together, the else. An elif is an if without others. */
static void visit_if(struct frame *f, const struct node *n, bool lone)
{
	static const struct node_list nothing = {.count = 0};
	const struct node *last = n;
	u8 *outer = f->flags, *branches[3];
	visit_expression(f, n->a);
	branches[0] = run_branch(f, &n->body);
	branches[1] = run_branch(f, &nothing);
	f->flags = branches[1] != NULL ? branches[1] : outer;
	while (!lone && last->other.count == 1 && last->other.items[0]->elif) {
		last = last->other.items[0];
		visit_if(f, last, true);
	}
	f->flags = outer;
	branches[2] = run_branch(f, lone ? &nothing : &last->other);
	if (f->p->err == ERR_OK)
		join_branches(f, branches);
	for (int i = 0; i < 3; i++)
		free(branches[i]);
}

static void visit_statement(struct frame *f, struct node *n)
{
	switch (n->kind) {
	case N_PRINT:
		visit_list(f, &n->items);
		break;
	case N_IF:
		visit_if(f, n, false);
		break;
	case N_FOR:
		visit_expression(f, n->b);
		break;
	case N_SET:
		visit_expression(f, n->b);
		visit_target(f, n->a, false);
		break;
	case N_SETBLOCK:
		visit_target(f, n->a, false);
		break;
	case N_MACRO:
		store_name(f, n->macro->name);
		break;
	case N_CALLBLOCK:
	case N_FILTERBLOCK:
		visit_expression(f, n->a);
		break;
	case N_WITH:
		for (u32 i = 1; i < n->items.count; i += 2)
			visit_expression(f, n->items.items[i]);
		break;
	default:
		break;
	}
}

static void visit_body(struct frame *f, const struct node_list *body)
{
	for (u32 i = 0; i < body->count && f->p->err == ERR_OK; i++)
		visit_statement(f, body->items[i]);
}

/* ---- scopes ---- */

static void scan_scopes(const struct frame *f, const struct node_list *body);

static bool frame_begin(struct frame *f, struct parser *p, const struct frame *parent)
{
	*f = (struct frame){.parent = parent, .p = p, .flags = calloc(p->t->name_count + 1, 1)};
	return f->flags != NULL || parse_fail(p, p->tok, "out of memory") != NULL;
}

/* Names that start out unset, NULL behind the last; NULL when there are none. */
static const char **unset_names(struct frame *f)
{
	u32 count = 0, at = 0;
	for (u32 i = 0; i < f->p->t->name_count; i++)
		count += (f->flags[i] & NAME_UNSET) != 0;
	const char **unset = count > 0 ? parse_alloc(f->p, (count + 1) * sizeof(*unset)) : NULL;
	for (u32 i = 0; unset != NULL && i < f->p->t->name_count; i++)
		if (f->flags[i] & NAME_UNSET)
			unset[at++] = f->p->t->names[i];
	return unset;
}

static void add_param(struct frame *f, const char *name)
{
	const char *known = jinja_name(f->p->t, name, strlen(name));
	if (known != NULL)
		f->flags[name_index(f, known)] |= NAME_KNOWN;
}

/* Reads the body of a scope whose parameters are in `f`, then the scopes inside it; frees the flags. */
static const char **scan_body(struct frame *f, const struct node_list *body)
{
	visit_body(f, body);
	const char **unset = unset_names(f);
	scan_scopes(f, body);
	free(f->flags);
	return unset;
}

static void scan_for(const struct frame *parent, struct node *n)
{
	struct frame f;
	if (!frame_begin(&f, parent->p, parent))
		return;
	add_param(&f, "loop");
	visit_target(&f, n->a, true);
	n->unset = scan_body(&f, &n->body);
	if (n->other.count > 0 && frame_begin(&f, parent->p, parent))
		n->unset_other = scan_body(&f, &n->other);
}

static void scan_macro(const struct frame *parent, struct node *n)
{
	struct frame f;
	struct macro_def *m = n->macro;
	if (!frame_begin(&f, parent->p, parent))
		return;
	for (u32 i = 0; i < m->param_count; i++)
		add_param(&f, m->params[i]);
	for (u32 i = 0; i < m->default_count; i++)
		visit_expression(&f, m->defaults[i]);
	if (m->uses_caller)
		add_param(&f, "caller");
	if (m->uses_kwargs)
		add_param(&f, "kwargs");
	if (m->uses_varargs)
		add_param(&f, "varargs");
	n->unset = scan_body(&f, &m->body);
	m->unset = n->unset;
}

/* Set blocks, filter blocks, with, block. */
static void scan_block(const struct frame *parent, struct node *n)
{
	struct frame f;
	if (!frame_begin(&f, parent->p, parent))
		return;
	for (u32 i = 0; n->kind == N_WITH && i < n->items.count; i += 2)
		visit_target(&f, n->items.items[i], true);
	n->unset = scan_body(&f, &n->body);
}

static void scan_scopes(const struct frame *f, const struct node_list *body)
{
	for (u32 i = 0; i < body->count && f->p->err == ERR_OK; i++) {
		struct node *n = body->items[i];
		if (n->kind == N_IF) {
			scan_scopes(f, &n->body);
			scan_scopes(f, &n->other);
		} else if (n->kind == N_FOR) {
			scan_for(f, n);
		} else if (n->macro != NULL) {
			scan_macro(f, n);
		} else if (n->kind == N_SETBLOCK || n->kind == N_FILTERBLOCK || n->kind == N_WITH || n->kind == N_SCOPE) {
			scan_block(f, n);
		}
	}
}

void parse_symbols(struct parser *p)
{
	struct frame f;
	if (frame_begin(&f, p, NULL))
		p->t->unset = scan_body(&f, &p->t->body);
}
