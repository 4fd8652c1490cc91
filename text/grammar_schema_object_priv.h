/* What the files about objects share (grammar_schema_object.c, grammar_schema_further.c): properties, and what is said about the
 * names of others. */
#ifndef TERCET_TEXT_GRAMMAR_SCHEMA_OBJECT_PRIV_H
#define TERCET_TEXT_GRAMMAR_SCHEMA_OBJECT_PRIV_H

#include "text/grammar_schema_priv.h"

struct property {
	const char *name;
	size_t bytes;
	bool required;
};
struct object {
	struct schema *s;
	const struct conj *c;
	struct property *properties; /* in the order in which they are written */
	u32 count, capacity;
	u32 required;
	/* Where there are patternProperties or propertyNames: what they say about a name, as parts of one product. */
	bool has_names;
	struct product names;
	struct name_pattern {
		u32 layer; /* of the conjunction */
		json_val schema;
		const char *path;
	} patterns[PRODUCT_PARTS_MAX]; /* by part */
	u64 pattern_parts, needed_parts; /* patternProperties; propertyNames and what every name is */
	u64 named_part;
};

/* additionalProperties of the layer, or unevaluatedProperties, which says the same here. */
static inline json_val additional_of(const struct layer *l, const char **key)
{
	*key = json_type(json_get(l->v, "additionalProperties")) != JSON_MISSING ? "additionalProperties" : "unevaluatedProperties";
	return json_get(l->v, *key);
}

/* A rule of one further member; GRAMMAR_NONE where there may be none, and where it failed, which is kept in the builder of the
 * grammar (o->s->b). Properties and names have to be read; a name of a property is never that of a further member. */
u32 schema_further_rule(struct object *o);

#endif
