/* Reads what --speculative-config says. Runs at the start of every process that wants to know; never reads a file. */
#include "common/speculative.h"

#include <string.h>

#include "common/json.h"

enum { LOOKUP_DEFAULT = 5, BATCH_MAX = 1024 };

#define WHERE "--speculative-config"

static enum err read_number(json_val v, const char *name, u32 max, u32 *out, struct err_msg *em)
{
	u64 n;

	if (!json_uint(v, &n) || n == 0 || n > max)
		return err_set(em, ERR_INVALID, WHERE ": \"%s\" must be an integer between 1 and %u", name, max);
	*out = (u32)n;
	return ERR_OK;
}

static enum err read_field(struct speculative *s, const struct json_iter *it, struct err_msg *em)
{
	const struct {
		const char *name;
		u32 *value, max;
	} numbers[] = {
		{"num_speculative_tokens", &s->tokens, SPECULATIVE_TOKENS_MAX},
		{"prompt_lookup_max", &s->lookup_max, SPECULATIVE_LOOKUP_MAX},
		{"prompt_lookup_min", &s->lookup_min, SPECULATIVE_LOOKUP_MAX},
		{"disable_by_batch_size", &s->batch_max, BATCH_MAX},
	};

	for (size_t i = 0; i < COUNT_OF(numbers); i++)
		if (!strcmp(it->key, numbers[i].name))
			return json_type(it->value) == JSON_NULL
				       ? ERR_OK
				       : read_number(it->value, it->key, numbers[i].max, numbers[i].value, em);
	if (strcmp(it->key, "method") != 0)
		return err_set(em, ERR_INVALID,
			       WHERE ": \"%.60s\" is none of method, num_speculative_tokens, prompt_lookup_max, "
				     "prompt_lookup_min and disable_by_batch_size",
			       it->key);
	if (json_string_equals(it->value, "ngram"))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, WHERE ": the method %s%.60s%s is not there; it must be \"ngram\"",
		       json_type(it->value) == JSON_STRING ? "\"" : "", json_cstr(it->value, "given"),
		       json_type(it->value) == JSON_STRING ? "\"" : "");
}

static enum err read_object(struct speculative *s, json_val v, struct err_msg *em)
{
	enum err e = ERR_OK;

	if (json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_INVALID,
			       WHERE " is a JSON %s; it must be an object like {\"method\":\"ngram\","
				     "\"num_speculative_tokens\":4}",
			       json_type_name(v));
	for (struct json_iter it = json_iterate(v); !e && json_next(&it);)
		e = read_field(s, &it, em);
	if (e)
		return e;
	if (!json_present(json_get(v, "method")))
		return err_set(em, ERR_INVALID, WHERE ": \"method\" is missing; it must be \"ngram\"");
	if (s->tokens == 0)
		return err_set(em, ERR_INVALID,
			       WHERE ": \"num_speculative_tokens\" is missing; it must be an integer between 1 and %u",
			       (u32)SPECULATIVE_TOKENS_MAX);
	if (s->lookup_max == 0)
		s->lookup_max = s->lookup_min ? s->lookup_min : LOOKUP_DEFAULT;
	if (s->lookup_min == 0)
		s->lookup_min = s->lookup_max;
	if (s->lookup_min > s->lookup_max)
		return err_set(em, ERR_INVALID,
			       WHERE ": \"prompt_lookup_min\" is %u; it must not be above \"prompt_lookup_max\", %u",
			       s->lookup_min, s->lookup_max);
	return ERR_OK;
}

enum err speculative_parse(struct speculative *out, const char *text, struct err_msg *em)
{
	struct speculative s = {0};
	struct json_doc *doc;

	*out = (struct speculative){0};
	if (!*text)
		return ERR_OK;
	enum err e = json_parse(&doc, text, strlen(text), em);
	if (e == ERR_FORMAT) {
		err_prefix(em, WHERE " is no JSON");
		return ERR_INVALID;
	}
	if (e)
		return e;
	e = read_object(&s, json_root(doc), em);
	json_free(&doc);
	if (!e)
		*out = s;
	return e;
}
