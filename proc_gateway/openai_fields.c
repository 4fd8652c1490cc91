/* Owns the reading of single fields: types, ranges, and fields that are refused. Runs in the gateway. Never
 * decides what fields mean together (openai_request.c). */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/openai_fields.h"

enum field_kind { KIND_BOOL, KIND_INT, KIND_REAL, KIND_STRING, KIND_VALUE };

struct field {
	const char *name;
	enum field_kind kind;
	u32 endpoints;
	u32 types;  /* KIND_VALUE */
	double def; /* of bool, integer and real fields */
	double min, max;
	size_t value_offset, has_offset;
};

#define OFFSETS(name)                                         \
	.value_offset = offsetof(struct openai_fields, name), \
	.has_offset = offsetof(struct openai_fields, has_##name)
#define ROW_B(name, where, def_) {#name, KIND_BOOL, where, .def = def_, OFFSETS(name)},
#define ROW_I(name, where, def_, min_, max_) \
	{#name, KIND_INT, where, .def = def_, .min = min_, .max = max_, OFFSETS(name)},
#define ROW_F(name, where, def_, min_, max_) \
	{#name, KIND_REAL, where, .def = def_, .min = min_, .max = max_, OFFSETS(name)},
#define ROW_S(name, where)	   {#name, KIND_STRING, where, OFFSETS(name)},
#define ROW_V(name, where, types_) {#name, KIND_VALUE, where, .types = types_, OFFSETS(name)},

static const struct field fields[] = {OPENAI_FIELDS(ROW_B, ROW_I, ROW_F, ROW_S, ROW_V)};

#define ROW_REFUSED(name) #name,
static const char *const refused_fields[] = {OPENAI_REFUSED(ROW_REFUSED)};

#define ROW_FOREIGN(name, neutral_, instead_) {#name, neutral_, instead_},
static const struct {
	const char *name;
	f64 neutral;
	const char *instead;
} foreign_fields[] = {OPENAI_FOREIGN(ROW_FOREIGN)};

static void *member(struct openai_fields *out, size_t offset)
{
	return (char *)out + offset;
}

static void set_default(const struct field *f, struct openai_fields *out)
{
	void *value = member(out, f->value_offset);
	if (f->kind == KIND_BOOL)
		*(bool *)value = f->def != 0;
	else if (f->kind == KIND_INT)
		*(i64 *)value = (i64)f->def;
	else if (f->kind == KIND_REAL)
		*(f64 *)value = f->def;
}

static void range_text(const struct field *f, char *out, size_t bytes)
{
	const char *type = f->kind == KIND_INT ? "an integer" : "a number";
	if (f->kind == KIND_INT && f->max >= 0x7fffffff)
		snprintf(out, bytes, "%s of at least %.0f", type, f->min);
	else
		snprintf(out, bytes, "%s from %g to %g", type, f->min, f->max);
}

static void types_text(u32 types, char *out, size_t bytes)
{
	static const struct {
		u32 bit;
		const char *text;
	} names[] = {{TYPE_BOOL, "true or false"},
		     {TYPE_STRING, "a string"},
		     {TYPE_ARRAY, "an array"},
		     {TYPE_OBJECT, "an object"}};
	out[0] = '\0';
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		if (!(types & names[i].bit))
			continue;
		size_t used = strlen(out);
		snprintf(out + used, bytes - used, "%s%s", used ? " or " : "", names[i].text);
	}
}

/* "is a string", "is an integer": what the value is instead. */
static bool wrong_type(const struct field *f, json_val v, const char *right, struct api_error *e)
{
	char wrong[64];
	const char *type = json_type_name(v);
	snprintf(wrong, sizeof(wrong), "is %s %s", strchr("aeio", type[0]) ? "an" : "a", type);
	return api_error_field(e, f->name, v, wrong, right);
}

static bool read_int(const struct field *f, json_val v, struct openai_fields *out, struct api_error *e)
{
	char right[128];
	i64 value;
	double real;
	range_text(f, right, sizeof(right));
	if (!json_int(v, &value)) {
		/* 16.0 is what some languages print for 16 */
		if (!json_double(v, &real))
			return wrong_type(f, v, right, e);
		if (!(real >= -9e15 && real <= 9e15) || real != (double)(i64)real)
			return api_error_field(e, f->name, v, "is not an integer in range", right);
		value = (i64)real;
	}
	if ((double)value < f->min || (double)value > f->max)
		return api_error_field(e, f->name, v, "is out of range", right);
	*(i64 *)member(out, f->value_offset) = value;
	return true;
}

static bool read_real(const struct field *f, json_val v, struct openai_fields *out, struct api_error *e)
{
	char right[128];
	double value;
	range_text(f, right, sizeof(right));
	if (!json_double(v, &value))
		return wrong_type(f, v, right, e);
	if (!(value >= f->min && value <= f->max))
		return api_error_field(e, f->name, v, "is out of range", right);
	*(f64 *)member(out, f->value_offset) = value;
	return true;
}

static bool read_string(const struct field *f, json_val v, struct openai_fields *out, struct api_error *e)
{
	const char *text;
	size_t bytes;
	if (!json_string(v, &text, &bytes))
		return wrong_type(f, v, "a string", e);
	if (memchr(text, '\0', bytes))
		return api_error_field(e, f->name, v, "holds a NUL character", "a string without one");
	*(const char **)member(out, f->value_offset) = text;
	return true;
}

static bool read_field(const struct field *f, json_val v, struct openai_fields *out, struct api_error *e)
{
	char right[128];
	*(bool *)member(out, f->has_offset) = true;
	switch (f->kind) {
	case KIND_BOOL:
		return json_bool(v, member(out, f->value_offset)) || wrong_type(f, v, "true or false", e);
	case KIND_INT:
		return read_int(f, v, out, e);
	case KIND_REAL:
		return read_real(f, v, out, e);
	case KIND_STRING:
		return read_string(f, v, out, e);
	case KIND_VALUE:
		types_text(f->types, right, sizeof(right));
		if (!(f->types & 1u << json_type(v)))
			return wrong_type(f, v, right, e);
		*(json_val *)member(out, f->value_offset) = v;
		return true;
	}
	return true;
}

static bool read_seed(struct openai_fields *out, json_val root, struct api_error *e)
{
	static const struct field row = {.name = "seed"};
	static const char right[] = "an integer from -2^63 to 2^64 - 1";
	json_val v = json_get(root, "seed");
	i64 negative;
	if (!json_present(v))
		return true;
	out->has_seed = true;
	if (json_uint(v, &out->seed))
		return true;
	if (json_int(v, &negative)) {
		out->seed = (u64)negative;
		return true;
	}
	if (json_type(v) == JSON_DOUBLE)
		return api_error_field(e, "seed", v, "is not an integer in range", right);
	return wrong_type(&row, v, right, e);
}

static bool read_logprobs(struct openai_fields *out, enum openai_endpoint endpoint, json_val root, u32 max,
			  struct api_error *e)
{
	static const struct field row = {.name = "logprobs"};
	json_val v = json_get(root, "logprobs");
	char right[64];
	out->logprobs = -1;
	if (endpoint == OPENAI_CHAT) {
		bool on = false;
		if (json_present(v) && !json_bool(v, &on))
			return wrong_type(&row, v, "true or false (their number goes into 'top_logprobs')",
					  e);
		if (out->has_top_logprobs && out->top_logprobs > 0 && !on)
			return api_error_field(e, "top_logprobs", json_get(root, "top_logprobs"),
					       "is given without 'logprobs'",
					       "used together with \"logprobs\": true");
		if (on)
			out->logprobs = out->top_logprobs;
	} else if (json_present(v)) {
		snprintf(right, sizeof(right), "an integer from 0 to %u", max);
		bool off;
		if (json_bool(v, &off) && !off)
			return true;
		if (!json_int(v, &out->logprobs))
			return wrong_type(&row, v, right, e);
	}
	snprintf(right, sizeof(right), "from 0 to %u (--max-logprobs)", max);
	if (out->logprobs < -1 || out->logprobs > (i64)max ||
	    (endpoint == OPENAI_COMPLETIONS && out->logprobs == -1 && json_present(v)))
		return api_error_field(e, endpoint == OPENAI_CHAT ? "top_logprobs" : "logprobs",
				       json_get(root, endpoint == OPENAI_CHAT ? "top_logprobs" : "logprobs"),
				       "is out of range", right);
	if (out->has_prompt_logprobs && out->prompt_logprobs > (i64)max)
		return api_error_field(e, "prompt_logprobs", json_get(root, "prompt_logprobs"),
				       "is out of range", right);
	return true;
}

/* Nothing that would change the output. */
static bool is_neutral(json_val v)
{
	bool on = false;
	size_t bytes = 0;
	const char *text;
	if (!json_present(v))
		return true;
	if (json_bool(v, &on))
		return !on;
	if (json_string(v, &text, &bytes))
		return bytes == 0;
	return (json_type(v) == JSON_ARRAY || json_type(v) == JSON_OBJECT) && json_count(v) == 0;
}

static bool refuse_unsupported(json_val root, struct api_error *e)
{
	for (size_t i = 0; i < COUNT_OF(refused_fields); i++)
		if (!is_neutral(json_get(root, refused_fields[i])))
			return api_error_set(e, 400, refused_fields[i], "unsupported_parameter",
					     "Field '%s' is not supported by this server; leave it out.",
					     refused_fields[i]);
	return true;
}

static bool has_instead(json_val root, const char *instead)
{
	return json_present(json_get(root, instead)) ||
	       (strcmp(instead, "max_tokens") == 0 && json_present(json_get(root, "max_completion_tokens")));
}

static bool refuse_foreign(json_val root, struct api_error *e)
{
	for (size_t i = 0; i < COUNT_OF(foreign_fields); i++) {
		const char *name = foreign_fields[i].name, *instead = foreign_fields[i].instead;
		json_val v = json_get(root, name);
		f64 number;
		if (is_neutral(v) || (json_double(v, &number) && (number == foreign_fields[i].neutral || number < 0)) ||
		    (instead && has_instead(root, instead)))
			continue;
		return instead ? api_error_set(e, 400, name, "unsupported_parameter",
					       "Field '%s' is called '%s' by this server; give that instead.", name, instead)
			       : api_error_set(e, 400, name, "unsupported_parameter",
					       "Field '%s' is not supported by this server; leave it out or set it to %g.",
					       name, foreign_fields[i].neutral);
	}
	return true;
}

bool openai_fields_read(struct openai_fields *out, enum openai_endpoint endpoint, json_val root,
			u32 logprobs_max, struct api_error *e)
{
	memset(out, 0, sizeof(*out));
	if (json_type(root) != JSON_OBJECT)
		return api_error_set(
			e, 400, NULL, NULL, "The request body must be a JSON object, but is %s %s.",
			strchr("aeio", json_type_name(root)[0]) ? "an" : "a", json_type_name(root));
	for (size_t i = 0; i < COUNT_OF(fields); i++) {
		const struct field *f = &fields[i];
		set_default(f, out);
		if (!(f->endpoints & endpoint))
			continue;
		json_val v = json_get(root, f->name);
		if (json_present(v) && !read_field(f, v, out, e))
			return false;
	}
	if (!(endpoint & OPENAI_GENERATE))
		return true;
	return refuse_unsupported(root, e) && refuse_foreign(root, e) && read_seed(out, root, e) &&
	       read_logprobs(out, endpoint, root, logprobs_max, e);
}
