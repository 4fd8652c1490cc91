/* Owns calls: spreading of arguments, binding them to the parameters of builtins and macros, and the globals. Runs
 * where chat templates are rendered. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "text/jinja_priv.h"

/* ---- arguments ---- */

static bool spread_star(struct jinja *j, const struct node *star, struct jlist *positional)
{
	struct jv v, list;
	if (star == NULL)
		return true;
	if (!jinja_eval(j, star, &v) || !jv_to_list(j, v, &list))
		return false;
	for (size_t i = 0; i < list.l->count; i++)
		if (!jlist_push(j, positional, list.l->items[i]))
			return false;
	return true;
}

static bool spread_star_star(struct jinja *j, const struct node *star, struct jdict *named)
{
	struct jv v, known;
	bool found;
	if (star == NULL)
		return true;
	if (!jinja_eval(j, star, &v))
		return false;
	if (v.type != JV_DICT)
		return jinja_fail(j, "argument after ** must be a mapping, not %s", jv_type_name(v));
	for (size_t i = 0; i < v.d->count; i++) {
		const struct jentry *e = &v.d->entries[i];
		if (e->key.type != JV_STRING)
			return jinja_fail(j, "keywords must be strings");
		if (!jdict_get(j, named, e->key, &known, &found))
			return false;
		if (found)
			return jinja_fail(j, "multiple values for keyword argument '%.80s'", e->key.s->data);
		if (!jdict_put(j, named, e->key, e->value))
			return false;
	}
	return true;
}

bool jinja_eval_args(struct jinja *j, const struct call_args *args, struct jargs *out)
{
	*out = (struct jargs){.count = 0};
	if (args == NULL)
		return true;
	struct jlist positional = {0};
	struct jdict named = {0};
	for (u32 i = 0; i < args->positional.count; i++) {
		struct jv v;
		if (!jinja_eval(j, args->positional.items[i], &v) || !jlist_push(j, &positional, v))
			return false;
	}
	for (u32 i = 0; i < args->named.count; i++) {
		struct jv key, v;
		if (!jv_string(j, args->names[i], strlen(args->names[i]), &key) ||
		    !jinja_eval(j, args->named.items[i], &v) || !jdict_put(j, &named, key, v))
			return false;
	}
	if (!spread_star(j, args->star, &positional) || !spread_star_star(j, args->star_star, &named))
		return false;
	*out = (struct jargs){.positional = positional.items,
			      .count = positional.count,
			      .named = named.entries,
			      .named_count = named.count};
	return true;
}

bool jinja_arg_int(struct jinja *j, struct jv v, int64_t fallback, int64_t *out)
{
	*out = fallback;
	if (v.type == JV_MISSING)
		return true;
	if (!jv_is_int(v))
		return v.type == JV_UNDEFINED
			       ? jinja_fail_undefined(j, v)
			       : jinja_fail(j, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
	*out = jv_int(v);
	return true;
}

bool jinja_arg_bool(struct jv v, bool fallback)
{
	return v.type == JV_MISSING ? fallback : jv_truthy(v);
}

bool jinja_arg_string(struct jinja *j, struct jv v, const char *what, struct jstr **out)
{
	if (v.type != JV_STRING)
		return jinja_fail(j, "%s must be str, not %s", what, jv_type_name(v));
	*out = v.s;
	return true;
}

/* ---- builtins ---- */

/* The place of a parameter in "a,b,c"; -1 when it is none. */
static int param_index(const char *params, const char *name, size_t bytes)
{
	int index = 0;
	for (const char *p = params; *p != '\0'; index++) {
		size_t n = strcspn(p, ",");
		if (n == bytes && memcmp(p, name, n) == 0)
			return index;
		p += n + (p[n] == ',');
	}
	return -1;
}

static size_t param_count(const char *params)
{
	size_t count = params[0] != '\0';
	for (const char *p = params; *p != '\0'; p++)
		count += *p == ',';
	return count;
}

/* What a builtin reads: its texts. What it writes is charged where strings are made. */
static bool charge_texts(struct jinja *j, struct jv self, const struct jargs *args)
{
	size_t bytes = self.type == JV_STRING ? self.s->bytes : 0;
	for (size_t i = 0; i < args->count; i++)
		bytes += args->positional[i].type == JV_STRING ? args->positional[i].s->bytes : 0;
	for (size_t i = 0; i < args->named_count; i++)
		bytes += args->named[i].value.type == JV_STRING ? args->named[i].value.s->bytes : 0;
	return jinja_charge(j, bytes);
}

bool jinja_call_builtin(struct jinja *j, const struct builtin *b, struct jv self, struct jargs *args, struct jv *out)
{
	struct jv bound[JINJA_ARGS_MAX];
	size_t count = param_count(b->params);
	bool open = count > 0 && b->params[strlen(b->params) - 1] == '*';
	count -= open;
	for (size_t i = 0; i < JINJA_ARGS_MAX; i++)
		bound[i] = (struct jv){.type = JV_MISSING};
	if (args->count > count && !open)
		return jinja_fail(j, "%s() takes at most %zu arguments (%zu given)", b->name, count, args->count);
	for (size_t i = 0; i < args->count && i < count; i++)
		bound[i] = args->positional[i];
	for (size_t i = 0; i < args->named_count; i++) {
		const struct jstr *name = args->named[i].key.s;
		int at = param_index(b->params, name->data, name->bytes);
		if (at < 0 || (size_t)at >= count) {
			if (open)
				continue;
			return jinja_fail(j, "%s() got an unexpected keyword argument '%.80s'", b->name, name->data);
		}
		if (bound[at].type != JV_MISSING)
			return jinja_fail(j, "%s() got multiple values for argument '%.80s'", b->name, name->data);
		bound[at] = args->named[i].value;
	}
	for (size_t i = 0; i < b->required; i++)
		if (bound[i].type == JV_MISSING)
			return jinja_fail(j, "%s() is missing a required argument", b->name);
	if (!charge_texts(j, self, args))
		return false;
	return b->run(j, self, bound, args, out);
}

/* ---- macros ---- */

static const struct jentry *take_named(const struct jargs *args, const char *name)
{
	for (size_t i = 0; i < args->named_count; i++)
		if (strcmp(args->named[i].key.s->data, name) == 0)
			return &args->named[i];
	return NULL;
}

/* Parameters in order; a default may use the ones before it. */
static bool bind_params(struct jinja *j, const struct macro_def *def, const struct jargs *args)
{
	for (u32 i = 0; i < def->param_count; i++) {
		struct jv v;
		const struct jentry *named = i >= args->count ? take_named(args, def->params[i]) : NULL;
		u32 first_default = def->param_count - def->default_count;
		if (i < args->count)
			v = args->positional[i];
		else if (named != NULL)
			v = named->value;
		else if (i < first_default)
			v = JV_UNDEF(jinja_printf(j, "parameter '%s' was not provided", def->params[i]));
		else if (!jinja_eval(j, def->defaults[i - first_default], &v))
			return false;
		if (!jinja_scope_set(j, j->scope, def->params[i], v))
			return false;
	}
	return true;
}

static bool is_param(const struct macro_def *def, const struct jargs *args, const char *name)
{
	for (u32 i = (u32)(args->count < def->param_count ? args->count : def->param_count); i < def->param_count; i++)
		if (strcmp(def->params[i], name) == 0)
			return true;
	return false;
}

/* caller, kwargs, varargs: only where the body mentions them. */
static bool bind_special(struct jinja *j, const struct macro_def *def, const struct jargs *args)
{
	struct jv kwargs, varargs;
	bool special_caller = def->uses_caller && !def->has_caller_param;
	if (!jv_dict(j, JV_DICT, &kwargs) || !jv_list(j, JV_TUPLE, 0, &varargs))
		return false;
	for (size_t i = 0; i < args->named_count; i++) {
		const char *name = args->named[i].key.s->data;
		if (is_param(def, args, name) || (special_caller && strcmp(name, "caller") == 0))
			continue;
		if (!def->uses_kwargs)
			return jinja_fail(j, "macro '%s' takes no keyword argument '%.80s'",
					  def->name != NULL ? def->name : "caller", name);
		if (!jdict_put(j, kwargs.d, args->named[i].key, args->named[i].value))
			return false;
	}
	if (args->count > def->param_count && !def->uses_varargs)
		return jinja_fail(j, "macro '%s' takes not more than %u argument(s)",
				  def->name != NULL ? def->name : "caller", def->param_count);
	for (size_t i = def->param_count; i < args->count; i++)
		if (!jlist_push(j, varargs.l, args->positional[i]))
			return false;
	const struct jentry *caller = special_caller ? take_named(args, "caller") : NULL;
	struct jv caller_value = caller != NULL ? caller->value : JV_UNDEF("No caller defined");
	return (!special_caller ||
		jinja_scope_set(j, j->scope, jinja_name(j->template, "caller", 6), caller_value)) &&
	       (!def->uses_kwargs || jinja_scope_set(j, j->scope, jinja_name(j->template, "kwargs", 6), kwargs)) &&
	       (!def->uses_varargs || jinja_scope_set(j, j->scope, jinja_name(j->template, "varargs", 7), varargs));
}

bool jinja_call_macro(struct jinja *j, const struct jmacro *m, struct jargs *args, struct jv *out)
{
	struct jscope *outer = j->scope;
	if (!jinja_enter(j))
		return false;
	j->scope = jinja_scope_push(j, m->scope, m->def->unset);
	bool ok = j->scope != NULL && bind_special(j, m->def, args) && bind_params(j, m->def, args) &&
		  jinja_capture(j, &m->def->body, out) == JFLOW_NEXT;
	j->scope = outer;
	j->depth--;
	return ok;
}

bool jinja_call(struct jinja *j, struct jv callee, struct jargs *args, struct jv *out)
{
	switch (callee.type) {
	case JV_MACRO:
		return jinja_call_macro(j, callee.macro, args, out);
	case JV_METHOD:
		return jinja_call_builtin(j, callee.method->builtin, callee.method->self, args, out);
	case JV_FUNCTION:
		return jinja_call_builtin(j, callee.function, JV_NIL, args, out);
	case JV_JOINER: /* a cycler of "" and the separator that stays at its end */
		*out = callee.cycler->items.items[callee.cycler->at];
		callee.cycler->at = 1;
		return true;
	case JV_LOOP:
		if (!callee.loop->node->recursive)
			return jinja_fail(j, "the loop must have the 'recursive' marker to be called recursively");
		if (args->count != 1)
			return jinja_fail(j, "loop() takes one argument");
		return jinja_recurse(j, callee.loop, args->positional[0], out);
	case JV_UNDEFINED:
		return jinja_fail_undefined(j, callee);
	default:
		return jinja_fail(j, "'%s' object is not callable", jv_type_name(callee));
	}
}
