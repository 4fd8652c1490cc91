/* Owns the types that schemas allow: those they name, those their keywords speak of, and values of a type that `not` takes away.
 * Runs wherever a grammar is compiled. */
#include "text/grammar_schema_priv.h"

static u32 type_named(struct schema *s, const struct layer *l, json_val name)
{
	static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
	for (u32 i = 0; i < COUNT_OF(names); i++) {
		if (json_string_equals(name, names[i]))
			return 1u << i == TYPE_NUMBER ? TYPE_NUMBER | TYPE_INTEGER : 1u << i;
	}
	gb_fail(s->b, ERR_FORMAT, "%s/type: %.40s is no type: null, boolean, integer, number, string, array, object (or an array of these)",
		l->path, json_cstr(name, json_type_name(name)));
	return 0;
}

u32 layer_types(struct schema *s, const struct layer *l)
{
	json_val v = json_get(l->v, "type");
	u32 types = 0;
	bool nullable = false;
	if (json_type(v) == JSON_MISSING)
		return TYPE_ALL;
	if (json_type(v) == JSON_ARRAY) {
		for (struct json_iter it = json_iterate(v); json_next(&it);)
			types |= type_named(s, l, it.value);
	} else {
		types = type_named(s, l, v);
	}
	if (json_bool(json_get(l->v, "nullable"), &nullable) && nullable)
		types |= TYPE_NULL;
	return types;
}

/* The types that the keywords speak of, where no type is given. 0: none. */
static u32 types_spoken_of(const struct conj *c)
{
	static const struct {
		const char *key;
		u32 types;
	} about[] = {
		{"properties", TYPE_OBJECT},	   {"required", TYPE_OBJECT},	      {"additionalProperties", TYPE_OBJECT},
		{"patternProperties", TYPE_OBJECT}, {"propertyNames", TYPE_OBJECT},    {"minProperties", TYPE_OBJECT},
		{"maxProperties", TYPE_OBJECT},	   {"unevaluatedProperties", TYPE_OBJECT}, {"items", TYPE_ARRAY},
		{"prefixItems", TYPE_ARRAY},	   {"minItems", TYPE_ARRAY},	      {"maxItems", TYPE_ARRAY},
		{"contains", TYPE_ARRAY},	   {"uniqueItems", TYPE_ARRAY},
		{"pattern", TYPE_STRING},	   {"minLength", TYPE_STRING},	      {"maxLength", TYPE_STRING},
		{"format", TYPE_STRING},	   {"minimum", TYPE_NUMBER},	      {"maximum", TYPE_NUMBER},
		{"exclusiveMinimum", TYPE_NUMBER}, {"exclusiveMaximum", TYPE_NUMBER}, {"multipleOf", TYPE_NUMBER},
	};
	u32 types = 0;
	for (size_t i = 0; i < COUNT_OF(about); i++)
		types |= conj_has(c, about[i].key, NULL) ? about[i].types : 0;
	return types;
}

static u32 conj_types(struct schema *s, const struct conj *c)
{
	u32 types = TYPE_ALL;
	for (u32 i = 0; i < c->count; i++)
		types &= layer_types(s, &c->layers[i]);
	return types;
}

/* Values that `not` takes away from types that are few values. */
struct excluded {
	bool null, truth, untruth;
};

static void exclude(struct schema *s, const struct layer *l, json_val v, u32 types, struct excluded *out)
{
	bool truth = false;
	if (json_type(v) == JSON_NULL)
		out->null = true;
	else if (json_bool(v, &truth))
		*(truth ? &out->truth : &out->untruth) = true;
	else if (types & schema_type_of(v))
		gb_fail(s->b, ERR_UNSUPPORTED, "%s: not, if or else of a const or enum is supported where an enum says what else there is, and for null, true and false",
			l->path);
}

static struct excluded find_excluded(struct schema *s, const struct conj *c, u32 types)
{
	struct excluded out = {0};
	for (u32 i = 0; i < c->count; i++) {
		json_val none = json_get(c->layers[i].v, SCHEMA_NONE_OF), one = json_get(none, "const");
		if (json_type(one) != JSON_MISSING)
			exclude(s, &c->layers[i], one, types, &out);
		for (struct json_iter it = json_iterate(json_get(none, "enum")); json_next(&it);)
			exclude(s, &c->layers[i], it.value, types, &out);
	}
	return out;
}

u32 schema_put_types(struct schema *s, u32 from, const struct conj *c)
{
	struct gb *b = s->b;
	u32 types = conj_types(s, c), to = gb_node(b);
	if (types == TYPE_ALL && types_spoken_of(c) != 0)
		types = types_spoken_of(c);
	if (types == TYPE_ALL && !conj_has(c, SCHEMA_NONE_OF, NULL)) {
		gb_empty(b, json_put_value(s->json, from), to);
		return to;
	}
	struct excluded not = find_excluded(s, c, types);
	if ((types & TYPE_NULL) && !not.null)
		gb_empty(b, gb_text(b, from, "null", 4), to);
	if ((types & TYPE_BOOLEAN) && !not.truth)
		gb_empty(b, gb_text(b, from, "true", 4), to);
	if ((types & TYPE_BOOLEAN) && !not.untruth)
		gb_empty(b, gb_text(b, from, "false", 5), to);
	if (types & (TYPE_NUMBER | TYPE_INTEGER))
		gb_empty(b, schema_put_number(s, from, c, !(types & TYPE_NUMBER)), to);
	if (types & TYPE_STRING)
		gb_empty(b, schema_put_string(s, from, c), to);
	if (types & TYPE_ARRAY)
		gb_empty(b, schema_put_array(s, from, c), to);
	if (types & TYPE_OBJECT)
		gb_empty(b, schema_put_object(s, from, c), to);
	return to;
}
