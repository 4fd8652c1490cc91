/* Owns the execution of statements. Runs where chat templates are rendered. Scopes follow Jinja: loops, macros, with,
 * set blocks, filter and call blocks have their own; if has not. */
#include <string.h>

#include "text/jinja_priv.h"

/* ---- output ---- */

static enum jflow check_output(struct jinja *j)
{
	if (!j->out->failed && j->out->bytes <= j->limits.output)
		return JFLOW_NEXT;
	(void)jinja_fail_memory(j);
	return JFLOW_FAIL;
}

static enum jflow exec_text(struct jinja *j, const struct node *n)
{
	buf_append(j->out, n->value.s->data, n->value.s->bytes);
	return check_output(j);
}

static enum jflow exec_print(struct jinja *j, const struct node *n)
{
	for (u32 i = 0; i < n->items.count; i++) {
		struct jv v;
		if (!jinja_eval(j, n->items.items[i], &v) || !jv_str(j, v, j->out))
			return JFLOW_FAIL;
	}
	return check_output(j);
}

enum jflow jinja_capture(struct jinja *j, const struct node_list *body, struct jv *out)
{
	struct buf text = {0}, *outer = j->out;
	j->out = &text;
	enum jflow flow = jinja_exec(j, body);
	j->out = outer;
	if (flow == JFLOW_NEXT && !jv_string_buf(j, &text, out))
		flow = JFLOW_FAIL;
	buf_fini(&text);
	return flow;
}

/* ---- assignment ---- */

static bool assign_tuple(struct jinja *j, const struct node *target, struct jv value)
{
	struct jv list;
	if (!jv_is_sequence(value)) {
		if (!jv_to_list(j, value, &list))
			return false;
		value = list;
	}
	if (value.l->count != target->items.count) {
		j->at = target;
		return jinja_fail(j, "cannot unpack %zu values into %u names", value.l->count, target->items.count);
	}
	for (u32 i = 0; i < target->items.count; i++)
		if (!jinja_assign(j, target->items.items[i], value.l->items[i]))
			return false;
	return true;
}

bool jinja_assign(struct jinja *j, const struct node *target, struct jv value)
{
	struct jv ns, key;
	if (target->kind == N_NAME)
		return jinja_scope_set(j, j->scope, target->name, value);
	if (target->kind == N_TUPLE)
		return assign_tuple(j, target, value);
	if (!jinja_eval(j, target->a, &ns))
		return false;
	j->at = target;
	if (ns.type != JV_NAMESPACE)
		return jinja_fail(j, "cannot assign attribute on non-namespace object");
	return jv_string(j, target->name, strlen(target->name), &key) && jdict_put(j, ns.d, key, value);
}

static enum jflow exec_set(struct jinja *j, const struct node *n)
{
	struct jv v;
	return jinja_eval(j, n->b, &v) && jinja_assign(j, n->a, v) ? JFLOW_NEXT : JFLOW_FAIL;
}

/* Runs a body in a new scope inside the current one, into a string. */
static enum jflow capture_scoped(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jscope *outer = j->scope, *inner = jinja_scope_push(j, outer, n->unset);
	if (inner == NULL)
		return JFLOW_FAIL;
	j->scope = inner;
	enum jflow flow = jinja_capture(j, &n->body, out);
	j->scope = outer;
	return flow;
}

/* A chain of filters whose innermost value is a block's text. */
static bool filter_text(struct jinja *j, const struct node *filter, struct jv text, struct jv *out)
{
	struct jargs args;
	if (filter == NULL) {
		*out = text;
		return true;
	}
	if (!filter_text(j, filter->a, text, out) || !jinja_eval_args(j, filter->args, &args))
		return false;
	j->at = filter;
	if (filter->builtin == NULL)
		return jinja_fail(j, "no filter named '%s'", filter->name);
	return jinja_call_builtin(j, filter->builtin, *out, &args, out);
}

static enum jflow exec_set_block(struct jinja *j, const struct node *n)
{
	struct jv text, v;
	enum jflow flow = capture_scoped(j, n, &text);
	if (flow != JFLOW_NEXT)
		return flow;
	return filter_text(j, n->b, text, &v) && jinja_assign(j, n->a, v) ? JFLOW_NEXT : JFLOW_FAIL;
}

/* What blocks leave has to be text already; only {{ }} makes text of other values. */
static enum jflow write_text(struct jinja *j, struct jv v)
{
	if (v.type != JV_STRING) {
		(void)jinja_fail(j, "the block gives %s, not a string", jv_type_name(v));
		return JFLOW_FAIL;
	}
	buf_append(j->out, v.s->data, v.s->bytes);
	return check_output(j);
}

static enum jflow exec_filter_block(struct jinja *j, const struct node *n)
{
	struct jv text, v;
	enum jflow flow = capture_scoped(j, n, &text);
	if (flow != JFLOW_NEXT)
		return flow;
	return filter_text(j, n->a, text, &v) ? write_text(j, v) : JFLOW_FAIL;
}

/* ---- scopes ---- */

static enum jflow exec_scope(struct jinja *j, const struct node *n)
{
	struct jscope *outer = j->scope, *inner = jinja_scope_push(j, outer, n->unset);
	if (inner == NULL)
		return JFLOW_FAIL;
	j->scope = inner;
	enum jflow flow = jinja_exec(j, &n->body);
	j->scope = outer;
	return flow;
}

/* All values are evaluated outside. */
static enum jflow exec_with(struct jinja *j, const struct node *n)
{
	struct jscope *outer = j->scope, *inner = jinja_scope_push(j, outer, n->unset);
	bool ok = inner != NULL;
	for (u32 i = 0; ok && i + 1 < n->items.count; i += 2) {
		struct jv v;
		ok = jinja_eval(j, n->items.items[i + 1], &v);
		j->scope = inner;
		ok = ok && jinja_assign(j, n->items.items[i], v);
		j->scope = outer;
	}
	if (!ok)
		return JFLOW_FAIL;
	j->scope = inner;
	enum jflow flow = jinja_exec(j, &n->body);
	j->scope = outer;
	return flow;
}

/* ---- if ---- */

static enum jflow exec_if(struct jinja *j, const struct node *n)
{
	struct jv test;
	if (!jinja_eval(j, n->a, &test))
		return JFLOW_FAIL;
	return jinja_exec(j, jv_truthy(test) ? &n->body : &n->other);
}

/* ---- for ---- */

/* The items that pass the loop's own "if", in a scope that the test cannot leave anything in. */
static bool walk_items(struct jinja *j, const struct node *n, struct jv over, struct jscope *inner, struct jlist *items)
{
	struct jscope *outer = j->scope;
	struct jiter it;
	struct jv item, test = JV_BOOLEAN(true);
	bool done = false, ok = jiter_begin(j, over, &it);
	while (ok) {
		ok = jiter_next(j, &it, &item, &done);
		if (!ok || done)
			break;
		if (n->c != NULL) {
			inner->count = 0;
			j->scope = inner;
			ok = jinja_assign(j, n->a, item) && jinja_eval(j, n->c, &test);
			j->scope = outer;
		}
		if (ok && jv_truthy(test))
			ok = jlist_push(j, items, item);
	}
	return ok;
}

/* An error met on the way waits behind the items in front of it: a break may come first. */
static bool select_items(struct jinja *j, const struct node *n, struct jv over, struct jloop *loop)
{
	struct jscope *inner = jinja_scope_push(j, j->scope, NULL);
	if (inner == NULL || !jv_list(j, JV_LIST, 0, &loop->over))
		return false;
	bool ok = walk_items(j, n, over, inner, loop->over.l);
	loop->count = loop->over.l->count;
	return ok || (loop->count > 0 && jinja_put_off_error(j, &loop->error));
}

/* One pass of the body; the scope is new each time, and what was set in it is gone. */
static enum jflow run_pass(struct jinja *j, const struct node *n, struct jscope *scope, struct jv loop, struct jv item,
			   const char *loop_name)
{
	if (!jinja_scope_reset(j, scope, n->unset))
		return JFLOW_FAIL;
	j->scope = scope;
	if (!jinja_assign(j, n->a, item) || (loop_name != NULL && !jinja_scope_set(j, scope, loop_name, loop)))
		return JFLOW_FAIL;
	return jinja_exec(j, &n->body);
}

static enum jflow run_loop(struct jinja *j, const struct node *n, struct jv over, u32 depth0)
{
	struct jscope *outer = j->scope, *scope = jinja_scope_push(j, outer, NULL);
	struct jloop *loop = jinja_alloc(j, sizeof(*loop));
	if (scope == NULL || loop == NULL)
		return JFLOW_FAIL;
	*loop = (struct jloop){.depth0 = depth0, .node = n, .scope = outer};
	if (!select_items(j, n, over, loop))
		return JFLOW_FAIL;
	struct jv value = {.type = JV_LOOP, .loop = loop};
	const char *loop_name = jinja_name(j->template, "loop", 4);
	bool completed = false; /* some pass reached its end: then there is no else */
	enum jflow flow = JFLOW_NEXT;
	for (; loop->index0 < loop->count; loop->index0++) {
		flow = run_pass(j, n, scope, value, loop->over.l->items[loop->index0], loop_name);
		completed = completed || flow == JFLOW_NEXT;
		if (flow == JFLOW_BREAK || flow == JFLOW_FAIL)
			break;
	}
	j->scope = outer;
	if (flow != JFLOW_FAIL && flow != JFLOW_BREAK && loop->error != NULL) {
		(void)jinja_raise_again(j, loop->error);
		flow = JFLOW_FAIL;
	}
	if (flow == JFLOW_FAIL)
		return flow;
	if (completed || n->other.count == 0)
		return JFLOW_NEXT;
	if (!jinja_scope_reset(j, scope, n->unset_other))
		return JFLOW_FAIL;
	j->scope = scope;
	flow = jinja_exec(j, &n->other);
	j->scope = outer;
	return flow;
}

static enum jflow exec_for(struct jinja *j, const struct node *n)
{
	struct jv over;
	return jinja_eval(j, n->b, &over) ? run_loop(j, n, over, 0) : JFLOW_FAIL;
}

bool jinja_recurse(struct jinja *j, struct jloop *loop, struct jv over, struct jv *out)
{
	struct buf text = {0}, *outer = j->out;
	struct jscope *scope = j->scope;
	j->out = &text;
	j->scope = loop->scope;
	enum jflow flow = run_loop(j, loop->node, over, loop->depth0 + 1);
	j->out = outer;
	j->scope = scope;
	bool ok = flow != JFLOW_FAIL && jv_string_buf(j, &text, out);
	buf_fini(&text);
	return ok;
}

static enum jflow exec_break(struct jinja *j, const struct node *n)
{
	(void)j;
	return n->kind == N_BREAK ? JFLOW_BREAK : JFLOW_CONTINUE;
}

/* ---- macros and call blocks ---- */

static bool make_macro(struct jinja *j, const struct node *n, struct jv *out)
{
	struct jmacro *m = jinja_alloc(j, sizeof(*m));
	if (m == NULL)
		return false;
	*m = (struct jmacro){.def = n->macro, .scope = j->scope, .pos = n->pos};
	*out = (struct jv){.type = JV_MACRO, .macro = m};
	return true;
}

static enum jflow exec_macro(struct jinja *j, const struct node *n)
{
	struct jv m;
	return make_macro(j, n, &m) && jinja_scope_set(j, j->scope, n->macro->name, m) ? JFLOW_NEXT : JFLOW_FAIL;
}

/* The call gets the body as its argument "caller". */
static enum jflow exec_call_block(struct jinja *j, const struct node *n)
{
	struct jv caller, callee, key, result;
	struct jargs args;
	if (!make_macro(j, n, &caller) || !jinja_eval(j, n->a->a, &callee) ||
	    !jinja_eval_args(j, n->a->args, &args) || !jv_string(j, "caller", 6, &key))
		return JFLOW_FAIL;
	struct jentry *named = jinja_alloc(j, (args.named_count + 1) * sizeof(*named));
	if (named == NULL)
		return JFLOW_FAIL;
	if (args.named_count > 0)
		memcpy(named, args.named, args.named_count * sizeof(*named));
	named[args.named_count++] = (struct jentry){.key = key, .value = caller};
	args.named = named;
	j->at = n;
	return jinja_call(j, callee, &args, &result) ? write_text(j, result) : JFLOW_FAIL;
}

typedef enum jflow (*exec_fn)(struct jinja *j, const struct node *n);
static const exec_fn execs[NODE_KIND_COUNT] = {
	[N_TEXT] = exec_text,
	[N_PRINT] = exec_print,
	[N_FOR] = exec_for,
	[N_IF] = exec_if,
	[N_SET] = exec_set,
	[N_SETBLOCK] = exec_set_block,
	[N_WITH] = exec_with,
	[N_MACRO] = exec_macro,
	[N_CALLBLOCK] = exec_call_block,
	[N_FILTERBLOCK] = exec_filter_block,
	[N_SCOPE] = exec_scope,
	[N_BREAK] = exec_break,
	[N_CONTINUE] = exec_break,
};

enum jflow jinja_exec(struct jinja *j, const struct node_list *body)
{
	if (!jinja_enter(j))
		return JFLOW_FAIL;
	enum jflow flow = JFLOW_NEXT;
	for (u32 i = 0; flow == JFLOW_NEXT && i < body->count; i++) {
		const struct node *n = body->items[i];
		j->at = n;
		flow = jinja_charge(j, 0) ? execs[n->kind](j, n) : JFLOW_FAIL;
	}
	j->depth--;
	return flow;
}
