/* Owns keywords that are cases of others: dependentRequired, dependentSchemas, dependencies, if and not become anyOf, written as
 * schemas that are kept with the one they come from. Runs wherever a grammar is compiled. */
#include <string.h>

#include "text/grammar_schema_priv.h"

static void begin_cases(struct json_writer *w)
{
	json_object_begin(w);
	json_key(w, "anyOf");
	json_array_begin(w);
}

static void end_cases(struct json_writer *w)
{
	json_array_end(w);
	json_object_end(w);
}

/* {"properties": {name: false}} */
static void write_without(struct json_writer *w, const char *name)
{
	json_object_begin(w);
	json_key(w, "properties");
	json_object_begin(w);
	json_key(w, name);
	json_write_bool(w, false);
	json_object_end(w);
	json_object_end(w);
}

/* Without `name`, or with it and what it asks for: names or a schema. */
static void write_dependency(struct json_writer *w, const char *name, json_val asked)
{
	begin_cases(w);
	write_without(w, name);
	json_object_begin(w);
	json_key(w, "required");
	json_array_begin(w);
	json_write_cstr(w, name);
	for (struct json_iter it = json_iterate(asked); json_type(asked) == JSON_ARRAY && json_next(&it);)
		json_write_value(w, it.value);
	json_array_end(w);
	if (json_type(asked) != JSON_ARRAY) {
		json_key(w, "allOf");
		json_array_begin(w);
		json_write_value(w, asked);
		json_array_end(w);
	}
	json_object_end(w);
	end_cases(w);
}

/* The cases in which `v` does not hold, into a list of anyOf: for objects whose properties are told by const or enum, and for const and
 * enum themselves. */
static void write_negations(struct schema *s, struct json_writer *w, json_val v, const char *path)
{
	for (struct json_iter it = json_iterate(v); s->b->err == ERR_OK && json_next(&it);) {
		if (!schema_constrains(it.key) || (strcmp(it.key, "type") == 0 && json_string_equals(it.value, "object")))
			continue;
		if (strcmp(it.key, "const") == 0 || strcmp(it.key, "enum") == 0) {
			json_object_begin(w);
			json_key(w, SCHEMA_NONE_OF);
			json_object_begin(w);
			json_key(w, it.key);
			json_write_value(w, it.value);
			json_object_end(w);
			json_object_end(w);
		} else if (strcmp(it.key, "required") == 0) {
			for (struct json_iter name = json_iterate(it.value); json_next(&name);)
				write_without(w, json_cstr(name.value, ""));
		} else if (strcmp(it.key, "properties") == 0) {
			for (struct json_iter p = json_iterate(it.value); s->b->err == ERR_OK && json_next(&p);) {
				json_object_begin(w);
				json_key(w, "required");
				json_array_begin(w);
				json_write_cstr(w, p.key);
				json_array_end(w);
				json_key(w, "properties");
				json_object_begin(w);
				json_key(w, p.key);
				begin_cases(w);
				write_negations(s, w, p.value, path);
				end_cases(w);
				json_object_end(w);
				json_object_end(w);
			}
		} else {
			gb_fail(s->b, ERR_UNSUPPORTED, "%s/%.80s is not supported: only const, enum, required, and properties of these can be negated; use anyOf with the cases",
				path, it.key);
		}
	}
}

static void write_if(struct schema *s, struct json_writer *w, const struct layer *l)
{
	json_val then = json_get(l->v, "then"), other = json_get(l->v, "else"), condition = json_get(l->v, "if");
	begin_cases(w);
	json_object_begin(w);
	json_key(w, "allOf");
	json_array_begin(w);
	json_write_value(w, condition);
	if (json_type(then) != JSON_MISSING)
		json_write_value(w, then);
	json_array_end(w);
	json_object_end(w);
	json_object_begin(w);
	json_key(w, "allOf");
	json_array_begin(w);
	begin_cases(w);
	json_write_bool(w, false); /* where nothing is negated */
	write_negations(s, w, condition, schema_path(s, l->path, "if", NULL, 0));
	end_cases(w);
	if (json_type(other) != JSON_MISSING)
		json_write_value(w, other);
	json_array_end(w);
	json_object_end(w);
	end_cases(w);
}

static void write_all(struct schema *s, struct json_writer *w, const struct layer *l)
{
	static const char *const keys[] = {"dependentRequired", "dependentSchemas", "dependencies"};
	json_val condition = json_get(l->v, "if"), none = json_get(l->v, "not");
	json_object_begin(w);
	json_key(w, "allOf");
	json_array_begin(w);
	for (size_t i = 0; i < COUNT_OF(keys); i++) {
		for (struct json_iter it = json_iterate(layer_get(s, l, keys[i], JSON_OBJECT)); json_next(&it);)
			write_dependency(w, it.key, it.value);
	}
	if (json_type(condition) != JSON_MISSING &&
	    (json_type(json_get(l->v, "then")) != JSON_MISSING || json_type(json_get(l->v, "else")) != JSON_MISSING))
		write_if(s, w, l);
	if (json_type(none) != JSON_MISSING) {
		begin_cases(w);
		json_write_bool(w, false);
		write_negations(s, w, layer_get(s, l, "not", JSON_OBJECT), schema_path(s, l->path, "not", NULL, 0));
		end_cases(w);
	}
	json_array_end(w);
	json_object_end(w);
}

json_val schema_cases(struct schema *s, const struct layer *l)
{
	static const char *const keys[] = {"dependentRequired", "dependentSchemas", "dependencies", "if", "not"};
	struct buf text = {0};
	struct json_writer w;
	struct err_msg em;
	bool any = false;
	for (size_t i = 0; i < COUNT_OF(keys) && !any; i++)
		any = json_type(json_get(l->v, keys[i])) != JSON_MISSING;
	if (!any)
		return (json_val){NULL};
	for (const struct schema_case *c = s->cases; c != NULL; c = c->next) {
		s->read++; /* the next step sees that it was too much */
		if (c->of.node == l->v.node)
			return json_root(c->doc);
	}
	struct schema_case *made = arena_zalloc(&s->b->arena, sizeof(*made));
	json_begin(&w, &text);
	write_all(s, &w, l);
	if (s->b->err == ERR_OK && (made == NULL || !buf_ok(&text) || json_parse(&made->doc, text.data, text.bytes, &em) != ERR_OK))
		gb_fail(s->b, ERR_TOO_LONG, "%s: the cases of if, not or dependencies are too large", l->path);
	buf_fini(&text);
	if (s->b->err != ERR_OK)
		return (json_val){NULL};
	made->of = l->v;
	made->next = s->cases;
	s->cases = made;
	return json_root(made->doc);
}

void schema_cases_fini(struct schema *s)
{
	for (struct schema_case *c = s->cases; c != NULL; c = c->next)
		json_free(&c->doc);
	s->cases = NULL;
}
