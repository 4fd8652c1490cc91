/* Owns the bodies of llama-server's /completion, /infill and /embedding: what they say becomes the body of a completion, or
 * of /v1/embeddings, so that everything behind reads one kind of request. Runs in the gateway, on any of its threads. Never
 * keeps anything for a next request: slots are not here. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "proc_gateway/chat_writer.h"
#include "proc_gateway/llama.h"

static bool no_memory(struct api_error *e)
{
	return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
}

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

static bool read_switch(json_val root, const char *name, bool *out, struct api_error *e)
{
	json_val v = json_get(root, name);
	*out = false;
	return !json_present(v) || json_bool(v, out) || api_error_field(e, name, v, "is not a switch", "true or false");
}

/* ---------------------------------------------------------------- prompts */

bool llama_mixed_read(struct u32_vec *ids, const struct openai_model *m, const char *name, json_val v, u32 first_flags,
		      u32 flags, struct api_error *e)
{
	char right[96];
	const char *text;
	size_t bytes, index = 0;
	if (json_string(v, &text, &bytes))
		return openai_encode_into(ids, m, text, bytes, first_flags | flags, e);
	snprintf(right, sizeof(right), "a string, or a list of strings and token ids from 0 to %u", m->vocab_size - 1);
	if (json_type(v) != JSON_ARRAY)
		return api_error_field(e, name, v, "is no prompt", right);
	for (struct json_iter it = json_iterate(v); json_next(&it); index++) {
		u64 id;
		if (json_string(it.value, &text, &bytes)) {
			if (!openai_encode_into(ids, m, text, bytes, (index ? 0 : first_flags) | flags, e))
				return false;
		} else if (json_uint(it.value, &id) && id < m->vocab_size) {
			u32_vec_push(ids, (u32)id);
		} else {
			return api_error_field(e, name, it.value, "is no token of this model", right);
		}
	}
	return !ids->failed || no_memory(e);
}

static void write_ids(struct json_writer *w, const struct u32_vec *ids)
{
	json_array_begin(w);
	for (size_t i = 0; i < ids->count; i++)
		json_write_uint(w, ids->data[i]);
	json_array_end(w);
}

/* A text or ids as they are; what is mixed as ids. */
static bool write_prompt(struct json_writer *w, json_val v, const struct openai_model *m, struct api_error *e)
{
	struct u32_vec ids = {0};
	bool mixed = false;
	if (json_type(v) == JSON_OBJECT) {
		if (json_count(json_get(v, "multimodal_data")) > 0)
			return refuse(e, "prompt", "this server takes no images and no sound; leave 'multimodal_data' out");
		v = json_get(v, "prompt_string");
		if (json_type(v) != JSON_STRING)
			return api_error_field(e, "prompt", v, "as 'prompt_string' is no text", "a string");
	}
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		mixed |= json_type(it.value) == JSON_STRING;
	if (!mixed) {
		json_write_value(w, v);
		return true;
	}
	bool ok = llama_mixed_read(&ids, m, "prompt", v, TEXT_ADD_SPECIAL, 0, e);
	write_ids(w, &ids);
	u32_vec_fini(&ids);
	return ok;
}

/* A list that has a number in it is one prompt, any other one of prompts. */
static bool write_prompts(struct json_writer *w, json_val v, const struct openai_model *m, struct api_error *e)
{
	static const char right[] = "a string, a list of strings and token ids, or a list of prompts";
	bool list = json_type(v) == JSON_ARRAY && json_count(v) > 0;
	if (!json_present(v))
		return api_error_set(e, 400, "prompt", NULL, "Field 'prompt' is missing; it must be %s.", right);
	if (json_type(v) != JSON_STRING && json_type(v) != JSON_ARRAY && json_type(v) != JSON_OBJECT)
		return api_error_field(e, "prompt", v, "is no prompt", right);
	for (struct json_iter it = json_iterate(v); list && json_next(&it);)
		list = json_type(it.value) != JSON_INT && json_type(it.value) != JSON_DOUBLE;
	json_key(w, "prompt");
	if (json_type(v) == JSON_STRING || (json_type(v) == JSON_ARRAY && json_count(v) == 0)) {
		json_write_value(w, v);
		return true;
	}
	json_array_begin(w);
	bool ok = true;
	if (!list) {
		ok = write_prompt(w, v, m, e);
	} else {
		for (struct json_iter it = json_iterate(v); ok && json_next(&it);)
			ok = write_prompt(w, it.value, m, e);
	}
	json_array_end(w);
	return ok;
}

static bool write_infill(struct json_writer *w, json_val root, const struct openai_model *m, i64 wanted, struct api_error *e)
{
	struct u32_vec ids = {0};
	bool ok = llama_infill_prompt(&ids, root, m, wanted, e);
	json_key(w, "prompt");
	json_array_begin(w);
	write_ids(w, &ids);
	json_array_end(w);
	u32_vec_fini(&ids);
	return ok;
}

/* ---------------------------------------------------------------- fields */

/* Of the names of a field the first that is there. */
static const char *given(json_val root, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (json_present(json_get(root, names[i])))
			return names[i];
	return names[0];
}

/* Of the list of stops those that are any: others have them in fields that are left empty. */
static bool write_stops(struct json_writer *w, json_val v)
{
	if (!json_present(v))
		return true;
	json_key(w, "stop");
	json_array_begin(w);
	for (struct json_iter it = json_iterate(v); json_next(&it);)
		if (!json_string_equals(it.value, ""))
			json_write_value(w, it.value);
	if (json_type(v) != JSON_ARRAY && !json_string_equals(v, ""))
		json_write_value(w, v);
	json_array_end(w);
	return true;
}

/* -1, also as 32 bits without a sign, is a random one, of 32 bits as well: replies tell it. */
static void write_seed(struct json_writer *w, json_val v, const struct openai_model *m)
{
	i64 seed;
	u32 drawn;
	const bool any = !json_present(v) || (json_int(v, &seed) && (seed == -1 || seed == 0xffffffffll));
	if (any && (m->seed != 0 || getrandom(&drawn, sizeof(drawn), GRND_NONBLOCK) != (ssize_t)sizeof(drawn)))
		return;
	json_key(w, "seed");
	if (any)
		json_write_uint(w, drawn);
	else
		json_write_value(w, v);
}

static bool write_probs(struct json_writer *w, json_val root, bool none, struct api_error *e)
{
	static const char *const names[] = {"n_probs", "logprobs"};
	const char *name = given(root, names, COUNT_OF(names));
	bool post;
	i64 count;
	if (!llama_integer(root, name, 0, &count, e) || !read_switch(root, "post_sampling_probs", &post, e))
		return false;
	if (count <= 0)
		return true;
	if (post)
		return refuse(e, "post_sampling_probs", "log-probabilities are those in front of sampling; set it to false");
	if (!none) {
		json_key(w, "logprobs");
		json_write_int(w, count);
	}
	return true;
}

/* One adapter at most, as it is: [{"id": 0, "scale": 1}]. */
static bool write_model(struct json_writer *w, json_val root, const struct openai_model *m, struct api_error *e)
{
	static const char right[] = "a list of {\"id\": N, \"scale\": 1} for one adapter at most, the others with a scale of 0";
	const char *name = NULL;
	json_val lora = json_get(root, "lora"), model = json_get(root, "model");
	if (json_present(lora) && json_type(lora) != JSON_ARRAY)
		return api_error_field(e, "lora", lora, "is no list", right);
	for (struct json_iter it = json_iterate(lora); json_next(&it);) {
		u64 id;
		f64 scale = 0;
		json_val v = json_get(it.value, "scale");
		if (!json_uint(json_get(it.value, "id"), &id) || (json_present(v) && !json_double(v, &scale)))
			return api_error_field(e, "lora", it.value, "is no adapter", right);
		if (scale == 0)
			continue;
		if (!m->loras || id >= m->loras->count)
			return api_error_set(e, 400, "lora", NULL, "Field 'lora': there is no adapter %llu; this server has %u.", (unsigned long long)id,
					     m->loras ? m->loras->count : 0);
		if (scale != 1 || name)
			return api_error_field(e, "lora", lora, "is not supported", right);
		name = m->loras->items[id].name;
	}
	if (!name && !json_present(model))
		return true;
	json_key(w, "model");
	if (name)
		json_write_cstr(w, name);
	else
		json_write_value(w, model);
	return true;
}

/* An empty grammar is none. */
static bool write_grammar(struct json_writer *w, json_val root, struct api_error *e)
{
	static const struct chat_field fields[] = {{"grammar", NULL}, {"json_schema", NULL}, {"structured_outputs", NULL}};
	bool lazy;
	if (!read_switch(root, "grammar_lazy", &lazy, e))
		return false;
	if (lazy)
		return refuse(e, "grammar_lazy", "a grammar holds from the first token on; set it to false");
	chat_writer_copy(w, root, fields, COUNT_OF(fields));
	return true;
}

/* What is written besides the prompt. `wanted`: tokens, less than 0 what fits. */
static bool write_fields(struct json_writer *w, json_val root, const struct openai_model *m, i64 wanted, struct api_error *e)
{
	static const struct chat_field same[] = {{"stream", NULL}, {"ignore_eos", NULL}, {"min_tokens", NULL}, {"skip_special_tokens", NULL},
						 {"cache_salt", NULL}, {"priority", NULL}, {"request_id", NULL}};
	static const char *const counts[] = {"n_cmpl", "n"};
	json_val count = json_get(root, given(root, counts, COUNT_OF(counts)));
	bool stream, tokens;
	if (!read_switch(root, "stream", &stream, e) || !read_switch(root, "return_tokens", &tokens, e))
		return false;
	chat_writer_copy(w, root, same, COUNT_OF(same));
	json_key(w, "max_tokens");
	json_write_int(w, wanted == 0 ? 1 : -1); /* what fits: fit */
	json_key(w, "return_token_ids");
	json_write_bool(w, stream || tokens);
	if (json_present(count)) {
		json_key(w, "n");
		json_write_value(w, count);
	}
	write_seed(w, json_get(root, "seed"), m);
	return llama_sampling_write(w, root, m, e) && write_model(w, root, m, e) && write_stops(w, json_get(root, "stop")) &&
	       write_probs(w, root, wanted == 0, e) && write_grammar(w, root, e) && llama_bias_write(w, json_get(root, "logit_bias"), m, e);
}

/* ---------------------------------------------------------------- the whole */

static bool fit(struct openai_request *r, i64 wanted, struct api_error *e)
{
	r->scoring |= wanted == 0;
	return openai_request_fit(r, wanted > 0 ? wanted : wanted < 0 ? INT64_MAX : (i64)r->params.max_tokens, e);
}

/* Whether and when the answer ends early, and what of it is told. */
static bool read_own(struct openai_request *r, json_val root, struct api_error *e)
{
	json_val wanted = json_get(root, "response_fields");
	i64 indent, ms;
	bool each;
	if (!llama_integer(root, "n_indent", 0, &indent, e) || !llama_integer(root, "t_max_predict_ms", 0, &ms, e) ||
	    !read_switch(root, "timings_per_token", &each, e))
		return false;
	r->indent_min = indent > 0 && indent <= 0x7fffffff ? (u32)indent : 0;
	r->predict_ms_max = ms > 0 && ms <= 0x7fffffff ? (u32)ms : 0;
	if (json_present(wanted) && json_type(wanted) != JSON_ARRAY)
		return api_error_field(e, "response_fields", wanted, "is no list", "a list of strings");
	for (struct json_iter it = json_iterate(wanted); json_next(&it);)
		if (json_type(it.value) != JSON_STRING)
			return api_error_field(e, "response_fields", it.value, "is no name of a field", "a list of strings");
	return true;
}

/* Those that end an answer beside the model's own: what begins another file, and filling. */
static bool add_infill_stops(struct openai_request *r, const struct openai_model *m)
{
	u32 ids[8], count = llama_infill_stops(m, ids);
	for (u32 i = 0; i < count && !r->fields.ignore_eos && r->stop_id_count < OPENAI_STOP_IDS_MAX; i++)
		r->stop_ids[r->stop_id_count++] = ids[i];
	return true;
}

static void reword(struct api_error *e, json_val root)
{
	const struct chat_field renamed[] = {{"repeat_penalty", "repetition_penalty"},
					     {json_present(json_get(root, "n_probs")) ? "n_probs" : "logprobs", "logprobs"},
					     {json_present(json_get(root, "n_cmpl")) ? "n_cmpl" : "n", "n"},
					     {"n_predict", "max_tokens"}};
	chat_writer_rename(e, renamed, COUNT_OF(renamed));
}

/* Reads `made`, what `root` has become. */
static bool read_made(struct openai_request *r, const struct openai_model *m, enum openai_endpoint asked, json_val root,
		      i64 wanted, const struct buf *made, u64 tenant, struct api_error *e)
{
	bool ok = openai_request_read(r, m, OPENAI_COMPLETIONS, made->data, made->bytes, tenant, e) && fit(r, wanted, e) && read_own(r, root, e);
	if (!ok)
		reword(e, root);
	return ok && (asked != OPENAI_LLAMA_INFILL || add_infill_stops(r, m));
}

static bool parse(struct json_doc **doc, const char *body, size_t bytes)
{
	struct err_msg em;
	if (bytes > 0 && json_parse(doc, body, bytes, &em) == ERR_OK && json_type(json_root(*doc)) == JSON_OBJECT)
		return true;
	json_free(doc);
	return false;
}

bool llama_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint asked, const char *body,
		size_t bytes, u64 tenant, struct api_error *e)
{
	static const char *const names[] = {"n_predict", "max_completion_tokens", "max_tokens"};
	struct json_doc *doc = NULL;
	struct json_writer w;
	struct buf made = {0};
	i64 wanted;
	memset(r, 0, sizeof(*r));
	if (!parse(&doc, body, bytes)) /* the reader of completions says what is wrong */
		return openai_request_read(r, m, OPENAI_COMPLETIONS, body, bytes, tenant, e);
	json_val root = json_root(doc);
	json_begin(&w, &made);
	json_object_begin(&w);
	bool ok = llama_integer(root, given(root, names, COUNT_OF(names)), -1, &wanted, e) && write_fields(&w, root, m, wanted, e) &&
		  (asked == OPENAI_LLAMA_INFILL ? write_infill(&w, root, m, wanted, e) : write_prompts(&w, json_get(root, "prompt"), m, e));
	if (ok)
		json_object_end(&w);
	if (ok && !buf_ok(&made))
		ok = no_memory(e);
	ok = ok && read_made(r, m, asked, root, wanted, &made, tenant, e);
	buf_fini(&made);
	r->asked = asked;
	r->response = doc;
	return ok;
}

bool llama_embedding_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			  u64 tenant, struct api_error *e)
{
	static const struct chat_field fields[] = {{"model", NULL}, {"input", NULL}, {"content", "input"}, {"cache_salt", NULL}, {"priority", NULL}};
	static const struct chat_field renamed[] = {{"content", "input"}};
	struct json_doc *doc = NULL;
	struct json_writer w;
	struct buf made = {0};
	i64 norm;
	memset(r, 0, sizeof(*r));
	if (!parse(&doc, body, bytes))
		return openai_embeddings_read(r, m, body, bytes, tenant, e);
	json_val root = json_root(doc);
	bool ok = llama_integer(root, "embd_normalize", 2, &norm, e);
	if (ok && norm != 2 && norm != -1)
		ok = api_error_field(e, "embd_normalize", json_get(root, "embd_normalize"), "is not supported", "2 (Euclidean) or -1 (none)");
	json_begin(&w, &made);
	json_object_begin(&w);
	chat_writer_copy(&w, root, fields, COUNT_OF(fields));
	json_key(&w, "normalize");
	json_write_bool(&w, norm == 2);
	json_object_end(&w);
	if (ok && !buf_ok(&made))
		ok = no_memory(e);
	if (ok && !openai_embeddings_read(r, m, made.data, made.bytes, tenant, e)) {
		ok = false;
		if (json_present(json_get(root, "content")))
			chat_writer_rename(e, renamed, COUNT_OF(renamed));
	}
	buf_fini(&made);
	json_free(&doc);
	r->asked = OPENAI_LLAMA_EMBEDDING;
	return ok;
}
