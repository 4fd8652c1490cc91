/* Owns the forms of llama-server's logit_bias: pairs of ids or texts and numbers or false, or an object of them. Runs in the
 * gateway. Never decides which biases are too large (openai_request.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_gateway/llama.h"

#define NEVER (-100.0) /* the least that there is */

struct biases {
	const struct openai_model *m;
	struct api_error *e;
	struct u32_vec tokens; /* scratch */
	struct u32_vec ids;
	f64 values[OPENAI_BIASES_MAX];
	bool banned[OPENAI_BIASES_MAX];
};

/* Biases of one token add up; false is the end of it. */
static bool add(struct biases *b, u32 id, f64 value, bool never)
{
	size_t i = 0;
	while (i < b->ids.count && b->ids.data[i] != id)
		i++;
	if (i == OPENAI_BIASES_MAX)
		return api_error_set(b->e, 400, "logit_bias", NULL, "Field 'logit_bias': too many entries; at most %d tokens can have one.",
				     OPENAI_BIASES_MAX);
	if (i == b->ids.count) {
		u32_vec_push(&b->ids, id);
		b->values[i] = 0;
		b->banned[i] = false;
	}
	b->banned[i] |= never;
	b->values[i] = b->banned[i] ? NEVER : b->values[i] + value;
	return !b->ids.failed || api_error_set(b->e, 503, NULL, NULL, "There is no memory for the request.");
}

static bool add_id(struct biases *b, json_val entry, u64 id, f64 value, bool never)
{
	char right[64];
	snprintf(right, sizeof(right), "a token id from 0 to %u", b->m->vocab_size - 1);
	return id < b->m->vocab_size ? add(b, (u32)id, value, never)
				     : api_error_field(b->e, "logit_bias", entry, "is not of a token of this model", right);
}

/* All tokens of a text have the bias. */
static bool add_text(struct biases *b, const char *text, size_t bytes, f64 value, bool never)
{
	u32_vec_clear(&b->tokens);
	if (!openai_encode_into(&b->tokens, b->m, text, bytes, TEXT_PLAIN, b->e))
		return false;
	for (size_t i = 0; i < b->tokens.count; i++)
		if (!add(b, b->tokens.data[i], value, never))
			return false;
	return true;
}

static bool read_value(struct biases *b, json_val entry, json_val v, f64 *value, bool *never)
{
	bool on = true;
	*value = 0;
	*never = json_bool(v, &on) && !on;
	return *never || json_double(v, value) ||
	       api_error_field(b->e, "logit_bias", entry, "has no bias", "a token with a number from -100 to 100, or with false");
}

static bool add_pair(struct biases *b, json_val pair)
{
	json_val token = json_at(pair, 0);
	const char *text;
	size_t bytes;
	bool never;
	f64 value;
	u64 id;
	if (json_type(pair) != JSON_ARRAY || json_count(pair) != 2)
		return api_error_field(b->e, "logit_bias", pair, "is no pair", "[token id or text, bias or false]");
	if (!read_value(b, pair, json_at(pair, 1), &value, &never))
		return false;
	if (json_string(token, &text, &bytes))
		return add_text(b, text, bytes, value, never);
	return json_uint(token, &id) ? add_id(b, pair, id, value, never)
				     : api_error_field(b->e, "logit_bias", pair, "names no token", "[token id or text, bias or false]");
}

static bool add_member(struct biases *b, const struct json_iter *it)
{
	bool never, number = it->key_bytes > 0 && it->key_bytes < 10 && strspn(it->key, "0123456789") == it->key_bytes;
	f64 value;
	if (!read_value(b, it->value, it->value, &value, &never))
		return false;
	return number ? add_id(b, it->value, strtoull(it->key, NULL, 10), value, never)
		      : add_text(b, it->key, it->key_bytes, value, never);
}

static bool read_all(struct biases *b, json_val v)
{
	if (json_type(v) != JSON_ARRAY && json_type(v) != JSON_OBJECT)
		return api_error_field(b->e, "logit_bias", v, "are no biases", "a list of pairs, or an object");
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if (!(it.key ? add_member(b, &it) : add_pair(b, it.value)))
			return false;
	return true;
}

bool llama_bias_write(struct json_writer *w, json_val v, const struct openai_model *m, struct api_error *e)
{
	char key[16];
	if (!json_present(v))
		return true;
	struct biases *b = calloc(1, sizeof(*b));
	if (!b)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	b->m = m;
	b->e = e;
	bool ok = read_all(b, v);
	if (ok) {
		json_key(w, "logit_bias");
		json_object_begin(w);
	}
	for (size_t i = 0; ok && i < b->ids.count; i++) {
		snprintf(key, sizeof(key), "%u", b->ids.data[i]);
		json_key(w, key);
		json_write_double(w, b->values[i]);
	}
	if (ok)
		json_object_end(w);
	u32_vec_fini(&b->tokens);
	u32_vec_fini(&b->ids);
	free(b);
	return ok;
}
