/* Owns what a tokenizer puts around an encoded text (BOS and the like). Read once while loading. */
#include <string.h>

#include "text/tokenizer_priv.h"

enum { SEQUENCE_DEPTH_MAX = 4 };

/* The pieces of one template are collected here, then wrapped around what earlier processors gave. */
struct around {
	struct u32_vec before;
	struct u32_vec after;
	bool seen_text;
};

static enum err add_special(struct around *a, json_val template, json_val piece, struct err_msg *em)
{
	const char *name = json_cstr(json_get(piece, "id"), "");
	json_val ids = json_get(json_get(json_get(template, "special_tokens"), name), "ids");
	if (json_type(ids) != JSON_ARRAY)
		return err_set(em, ERR_FORMAT, "post_processor: special_tokens has no ids for \"%.64s\"", name);
	for (struct json_iter it = json_iterate(ids); json_next(&it);) {
		uint64_t id;
		if (!json_uint(it.value, &id) || id >= TOKEN_NONE)
			return err_set(em, ERR_FORMAT, "post_processor: an id of \"%.64s\" is no token id", name);
		u32_vec_push(a->seen_text ? &a->after : &a->before, (u32)id);
	}
	return ERR_OK;
}

static enum err load_template(struct around *a, json_val v, struct err_msg *em)
{
	for (struct json_iter it = json_iterate(json_get(v, "single")); json_next(&it);) {
		json_val special = json_get(it.value, "SpecialToken"), text = json_get(it.value, "Sequence");
		if (json_present(text)) {
			if (a->seen_text)
				return err_set(em, ERR_UNSUPPORTED, "post_processor: the template repeats the text");
			a->seen_text = true;
			continue;
		}
		enum err e = add_special(a, v, special, em);
		if (e != ERR_OK)
			return e;
	}
	return a->seen_text ? ERR_OK
			    : err_set(em, ERR_UNSUPPORTED, "post_processor: the template \"single\" has no Sequence A");
}

static enum err load_pair(struct u32_vec *to, json_val v, const char *key, struct err_msg *em)
{
	uint64_t id;
	if (!json_uint(json_at(json_get(v, key), 1), &id) || id >= TOKEN_NONE)
		return err_set(em, ERR_FORMAT, "post_processor: \"%s\" must be [token, id]", key);
	u32_vec_push(to, (u32)id);
	return ERR_OK;
}

/* Earlier processors are inside. */
static enum err wrap(struct tokenizer *t, struct around *a)
{
	u32_vec_append(&a->before, t->before.data, t->before.count);
	u32_vec_append(&t->after, a->after.data, a->after.count);
	struct u32_vec inner = t->before;
	t->before = a->before;
	a->before = inner;
	return t->before.failed || t->after.failed ? ERR_NO_MEMORY : ERR_OK;
}

static enum err load_processor(struct tokenizer *t, json_val v, u32 depth, struct err_msg *em)
{
	const char *type = json_cstr(json_get(v, "type"), "");
	enum err e = ERR_OK;
	if (strcmp(type, "ByteLevel") == 0)
		return ERR_OK; /* moves offsets only */
	if (strcmp(type, "Sequence") == 0) {
		if (depth == SEQUENCE_DEPTH_MAX)
			return err_set(em, ERR_UNSUPPORTED, "post_processor: sequences nested deeper than %d", depth);
		for (struct json_iter it = json_iterate(json_get(v, "processors")); e == ERR_OK && json_next(&it);)
			e = load_processor(t, it.value, depth + 1, em);
		return e;
	}
	struct around a = {0};
	if (strcmp(type, "TemplateProcessing") == 0) {
		e = load_template(&a, v, em);
	} else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
		e = load_pair(&a.before, v, "cls", em);
		if (e == ERR_OK)
			e = load_pair(&a.after, v, "sep", em);
	} else {
		e = err_set(em, ERR_UNSUPPORTED, "post_processor type \"%.64s\" is not supported", type);
	}
	if (e == ERR_OK)
		e = wrap(t, &a);
	u32_vec_fini(&a.before);
	u32_vec_fini(&a.after);
	return e;
}

enum err post_processor_load(struct tokenizer *t, json_val v, struct err_msg *em)
{
	return json_present(v) ? load_processor(t, v, 0, em) : ERR_OK;
}
