/* Owns what fields mean together: model names, limits, sampling parameters, stops, biases. Runs in the
 * gateway, in tests and in the fuzzer of request bodies. Never talks to the engine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "common/assert.h"
#include "proc_gateway/llama.h"
#include "proc_gateway/messages.h"
#include "proc_gateway/openai_request.h"
#include "proc_gateway/openai_session.h"
#include "proc_gateway/responses.h"

/* Below this a temperature is meant to be greedy: logits divided by it would overflow. */
#define GREEDY_TEMPERATURE 1e-5

static bool check_model(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const char *name = r->fields.model;
	u32 lora = name && m->loras ? lora_modules_find(m->loras, name, strlen(name)) : 0;
	r->model = m->names[0];
	if (!name || !*name)
		return true;
	if (lora) {
		r->model = r->lora = m->loras->items[lora - 1].name;
		return true;
	}
	struct buf served = {0};
	for (u32 i = 0; i < m->name_count; i++) {
		if (strcmp(name, m->names[i]) == 0) {
			r->model = m->names[i];
			buf_fini(&served);
			return true;
		}
		buf_printf(&served, "%s'%.200s'", i ? ", " : "", m->names[i]);
	}
	for (u32 i = 0; m->loras && i < m->loras->count; i++)
		buf_printf(&served, ", '%.200s'", m->loras->items[i].name);
	api_error_set(e, 404, "model", "model_not_found",
		      "The model '%.200s' does not exist; this server has %s.", name, buf_cstr(&served));
	buf_fini(&served);
	return false;
}

/* Without the words that say again what the sentence around it says. */
static const char *json_error_reason(const char *text)
{
	static const char again[] = "invalid JSON: ";
	return strncmp(text, again, sizeof(again) - 1) == 0 ? text + sizeof(again) - 1 : text;
}

bool openai_body_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint endpoint, const char *body, size_t bytes,
		      struct api_error *e)
{
	struct err_msg em;
	memset(r, 0, sizeof(*r));
	r->endpoint = endpoint;
	r->chat_begun = "";
	if (bytes == 0)
		return api_error_set(e, 400, NULL, NULL,
				     "The request body is empty; it must be a JSON object.");
	enum err err = json_parse(&r->doc, body, bytes, &em);
	if (err == ERR_NO_MEMORY)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	if (err)
		return api_error_set(e, 400, NULL, "invalid_json", "The request body is not valid JSON: %s.",
				     json_error_reason(em.text));
	return openai_fields_read(&r->fields, endpoint, json_root(r->doc), m->logprobs_max, e) &&
	       check_model(r, m, e);
}

/* ---------------------------------------------------------------- what is not done here */

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

/* As OpenAI's, or as some templates take them: without the object around. */
static bool check_tools(const struct openai_fields *f, struct api_error *e)
{
	size_t index = 0;
	for (struct json_iter it = json_iterate(f->tools); json_next(&it); index++) {
		char field[64];
		json_val function = json_get(it.value, "function");
		function = json_present(function) ? function : it.value;
		json_val parameters = json_get(function, "parameters");
		snprintf(field, sizeof(field), "tools[%zu]", index);
		if (!*json_cstr(json_get(function, "name"), ""))
			return api_error_field(e, field, it.value, "is not a tool",
					       "{\"type\": \"function\", \"function\": {\"name\": \"...\", ...}}");
		if (json_present(parameters) && json_type(parameters) != JSON_OBJECT)
			return api_error_field(e, field, parameters, "are no parameters", "a JSON Schema, an object");
	}
	return true;
}

/* Templates read fields of them. */
static bool check_documents(const struct openai_fields *f, struct api_error *e)
{
	size_t index = 0;
	for (struct json_iter it = json_iterate(f->documents); json_next(&it); index++) {
		char name[64];
		snprintf(name, sizeof(name), "documents[%zu]", index);
		if (json_type(it.value) != JSON_OBJECT)
			return api_error_field(e, name, it.value, "is not a document", "{\"title\": \"...\", \"text\": \"...\"}");
	}
	return true;
}

static bool check_modalities(const struct openai_fields *f, struct api_error *e)
{
	for (struct json_iter it = json_iterate(f->modalities); json_next(&it);) {
		if (!json_string_equals(it.value, "text"))
			return refuse(e, "modalities",
				      "this server generates text only; it must be [\"text\"]");
	}
	return true;
}

static bool check_supported(const struct openai_fields *f, const struct openai_model *m, struct api_error *e)
{
	if (f->has_suffix && f->suffix[0])
		return refuse(e, "suffix", "inserting text is not supported by this server; leave it out");
	if (f->has_chat_template && f->chat_template[0] && !m->trust_chat_template)
		return refuse(e, "chat_template",
			      "templates are not taken from clients unless the server is started with "
			      "--trust-request-chat-template");
	return check_tools(f, e) && check_documents(f, e) && check_modalities(f, e);
}

/* ---------------------------------------------------------------- lists */

static bool add_stop(struct openai_request *r, json_val v, size_t *total, struct api_error *e)
{
	const char *text;
	size_t bytes;
	if (!json_string(v, &text, &bytes))
		return api_error_field(e, "stop", v, "is not a string", "a string or an array of strings");
	if (bytes == 0)
		return api_error_field(e, "stop", v, "is empty", "a string of at least one character");
	if (memchr(text, '\0', bytes))
		return api_error_field(e, "stop", v, "holds a NUL character", "a string without one");
	*total += bytes;
	if (r->stop_count == OPENAI_STOPS_MAX || *total > OPENAI_STOP_BYTES_MAX)
		return api_error_set(
			e, 400, "stop", NULL,
			"Field 'stop': too much; at most %d strings of %d bytes together can be given.",
			OPENAI_STOPS_MAX, OPENAI_STOP_BYTES_MAX);
	r->stops[r->stop_count++] = text;
	return true;
}

static bool read_stops(struct openai_request *r, struct api_error *e)
{
	size_t total = 0;
	if (json_type(r->fields.stop) == JSON_STRING)
		return add_stop(r, r->fields.stop, &total, e);
	for (struct json_iter it = json_iterate(r->fields.stop); json_next(&it);) {
		if (!add_stop(r, it.value, &total, e))
			return false;
	}
	return true;
}

static bool read_stop_ids(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	struct u32_vec ids = {0};
	bool ok = openai_ids_read(&ids, r->fields.stop_token_ids, m->vocab_size, "stop_token_ids", e);
	if (ok && ids.count > OPENAI_STOP_IDS_MAX)
		ok = api_error_set(e, 400, "stop_token_ids", NULL,
				   "Field 'stop_token_ids': %zu ids; at most %d can be given.", ids.count,
				   OPENAI_STOP_IDS_MAX);
	if (ok && ids.count > 0)
		memcpy(r->stop_ids, ids.data, ids.count * sizeof(*ids.data));
	r->stop_id_count = ok ? (u32)ids.count : 0;
	u32_vec_fini(&ids);
	return ok;
}

static bool bias_id(const struct json_iter *it, u32 vocab_size, u32 *id)
{
	u64 value = 0;
	if (it->key_bytes == 0 || it->key_bytes > 9 || strspn(it->key, "0123456789") != it->key_bytes)
		return false;
	for (const char *p = it->key; *p; p++)
		value = value * 10 + (u64)(*p - '0');
	*id = (u32)value;
	return value < vocab_size;
}

static bool read_biases(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	size_t count = json_count(r->fields.logit_bias);
	if (count == 0)
		return true;
	if (json_type(r->fields.logit_bias) != JSON_OBJECT) /* llama-server's clients send empty ones */
		return api_error_field(e, "logit_bias", r->fields.logit_bias, "is an array", "an object of token ids and biases");
	if (count > OPENAI_BIASES_MAX)
		return api_error_set(e, 400, "logit_bias", NULL,
				     "Field 'logit_bias': %zu entries; at most %d can be given.", count,
				     OPENAI_BIASES_MAX);
	r->bias_values = malloc(count * sizeof(*r->bias_values));
	if (!r->bias_values)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	for (struct json_iter it = json_iterate(r->fields.logit_bias); json_next(&it);) {
		u32 id;
		double bias;
		if (!bias_id(&it, m->vocab_size, &id))
			return api_error_set(e, 400, "logit_bias", NULL,
					     "Field 'logit_bias': the key '%.40s' is not a token id; it must "
					     "be an integer from 0 "
					     "to %u.",
					     it.key, m->vocab_size - 1);
		if (!json_double(it.value, &bias) || !(bias >= -100 && bias <= 100))
			return api_error_field(e, "logit_bias", it.value, "is not a bias",
					       "a number from -100 to 100");
		r->bias_values[r->bias_ids.count] = (float)bias;
		u32_vec_push(&r->bias_ids, id);
		if (r->bias_ids.failed)
			return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	}
	return true;
}

static bool read_stream_options(struct openai_request *r, struct api_error *e)
{
	json_val options = r->fields.stream_options;
	json_val usage = json_get(options, "include_usage");
	json_val each = json_get(options, "continuous_usage_stats");
	if (!r->fields.has_stream_options)
		return true;
	if (!r->fields.stream)
		return api_error_set(
			e, 400, "stream_options", NULL,
			"Field 'stream_options' is given without 'stream'; it must be used together with "
			"\"stream\": true.");
	if (json_present(usage) && !json_bool(usage, &r->include_usage))
		return api_error_field(e, "stream_options.include_usage", usage, "is not a switch",
				       "true or false");
	if (json_present(each) && !json_bool(each, &r->usage_each))
		return api_error_field(e, "stream_options.continuous_usage_stats", each, "is not a switch",
				       "true or false");
	return true;
}

/* ---------------------------------------------------------------- parameters */

static u64 draw_seed(const struct openai_request *r, const struct openai_model *m)
{
	u64 seed = 0;
	if (r->fields.has_seed)
		return r->fields.seed;
	if (m->seed != 0)
		return m->seed;
	if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed))
		seed = XXH3_64bits(&r, sizeof(r));
	return seed;
}

static u32 flags_of(const struct openai_fields *f)
{
	u32 flags = 0;
	if (f->ignore_eos)
		flags |= TERCET_IGNORE_EOS;
	if (f->skip_special_tokens)
		flags |= TERCET_SKIP_SPECIAL;
	if (f->include_stop_str_in_output)
		flags |= TERCET_INCLUDE_STOP;
	if (f->spaces_between_special_tokens)
		flags |= TERCET_SPACES_BETWEEN_SPECIAL;
	return flags;
}

static void read_params(struct openai_request *r, const struct openai_model *m)
{
	const struct openai_fields *f = &r->fields;
	const struct generation_config *d = &m->defaults;
	struct tercet_params *p = &r->params;
	tercet_params_init(p);
	double temperature = f->has_temperature ? f->temperature : d->temperature;
	i64 top_k = f->has_top_k ? f->top_k : d->top_k;
	p->temperature = temperature < GREEDY_TEMPERATURE ? 0 : (float)temperature;
	p->top_p = (float)(f->has_top_p ? f->top_p : d->top_p);
	p->min_p = (float)(f->has_min_p ? f->min_p : d->min_p);
	p->top_k = top_k < 0 ? 0 : (u32)top_k;
	p->repetition_penalty =
		(float)(f->has_repetition_penalty ? f->repetition_penalty : d->repetition_penalty);
	p->presence_penalty = (float)f->presence_penalty;
	p->frequency_penalty = (float)f->frequency_penalty;
	p->seed = draw_seed(r, m);
	p->min_tokens = (u32)f->min_tokens;
	p->flags = flags_of(f);
	if (tool_format_needs_special(r->tool_format) || thought_format_needs_special(r->thought_format, m->tokenizer))
		p->flags &= ~(u32)TERCET_SKIP_SPECIAL;
	p->logprobs = (int32_t)f->logprobs;
	p->prompt_logprobs = f->has_prompt_logprobs ? (int32_t)f->prompt_logprobs : -1;
	if (r->endpoint == OPENAI_COMPLETIONS && f->echo && p->logprobs > p->prompt_logprobs)
		p->prompt_logprobs = p->logprobs;
	openai_beams_apply(r);
}

static size_t longest_prompt(const struct openai_request *r)
{
	size_t longest = 0;
	for (u32 i = 0; i < r->prompt_count; i++)
		longest = r->prompts[i].count > longest ? r->prompts[i].count : longest;
	return longest;
}

/* How many tokens may be generated; -1 asks for all that there is room for, as llama-server's clients do. Needs the prompts. */
static bool read_max_tokens(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const struct openai_fields *f = &r->fields;
	const char *name = f->has_max_completion_tokens ? "max_completion_tokens" : "max_tokens";
	bool given = f->has_max_completion_tokens || f->has_max_tokens;
	i64 wanted = f->has_max_completion_tokens ? f->max_completion_tokens : f->max_tokens;
	size_t prompt = longest_prompt(r);
	i64 room = (i64)m->max_model_len - (i64)prompt;
	if (room < 1)
		return openai_prompt_too_long(e, m, prompt, false);
	r->scoring = given && wanted == 0 && r->endpoint == OPENAI_COMPLETIONS && f->echo;
	if (given && wanted == 0 && !r->scoring)
		return api_error_field(
			e, name, json_get(json_root(r->doc), name), "is out of range",
			"an integer of at least 1 (0 only in completions with \"echo\": true)");
	if (r->scoring)
		wanted = 1;
	if (given && wanted < 0)
		wanted = room;
	if (given && wanted > room)
		return api_error_set(e, 400, name, "context_length_exceeded",
				     "This model's maximum context length is %u tokens, but the prompt has "
				     "%zu and '%s' asks for "
				     "%lld more; it must be at most %lld.",
				     m->max_model_len, prompt, name, (long long)wanted, (long long)room);
	if (!given) {
		wanted = r->endpoint == OPENAI_CHAT ? room : 16;
		if (m->defaults.max_new_tokens > 0 &&
		    (r->endpoint == OPENAI_CHAT || m->defaults.max_new_tokens < wanted))
			wanted = m->defaults.max_new_tokens;
		wanted = wanted < room ? wanted : room;
	}
	if (f->min_tokens > wanted)
		return api_error_set(
			e, 400, "min_tokens", NULL,
			"Field 'min_tokens': %lld is more than the %lld tokens that may be generated.",
			(long long)f->min_tokens, (long long)wanted);
	r->params.max_tokens = (u32)wanted;
	return true;
}

/* ---------------------------------------------------------------- the whole */

bool openai_salt_read(struct openai_request *r, u64 tenant, struct api_error *e)
{
	r->cache_salt = tenant;
	if (!r->fields.has_cache_salt)
		return true;
	if (!r->fields.cache_salt[0])
		return api_error_field(e, "cache_salt", json_get(json_root(r->doc), "cache_salt"), "is empty",
				       "a string of at least one character");
	r->cache_salt = XXH3_64bits_withSeed(r->fields.cache_salt, strlen(r->fields.cache_salt), tenant);
	return true;
}

bool openai_request_read(struct openai_request *r, const struct openai_model *m,
			 enum openai_endpoint endpoint, const char *body, size_t bytes, u64 tenant,
			 struct api_error *e)
{
	ASSERT(endpoint == OPENAI_COMPLETIONS || endpoint == OPENAI_CHAT);
	if (!openai_body_read(r, m, endpoint, body, bytes, e) || !check_supported(&r->fields, m, e) ||
	    !openai_session_check(r, e) || !openai_beams_read(r, e) || !read_stops(r, e) || !read_stop_ids(r, m, e) ||
	    !read_biases(r, m, e) || !read_stream_options(r, e) || !openai_salt_read(r, tenant, e))
		return false;
	if (endpoint == OPENAI_CHAT && openai_tools_shown(&r->fields))
		r->tool_format = m->tool_format;
	if (endpoint == OPENAI_CHAT && !openai_thoughts_read(r, m, e))
		return false;
	if (!openai_grammar_read(r, e))
		return false;
	read_params(r, m);
	if (endpoint == OPENAI_CHAT ? !openai_messages_read(r, m, e) : !openai_prompts_read(r, m, e))
		return false;
	if (r->thought_format != THOUGHT_FORMAT_NONE && r->grammar_kind && !openai_thoughts_grammar(r, e))
		return false;
	if ((u64)r->samples * r->prompt_count > OPENAI_CHOICES_MAX) {
		const char *name = r->samples > r->n ? "best_of" : "n";
		return api_error_set(
			e, 400, name, NULL,
			"Field '%s': %u answers to each of %u prompts are too many; at most %d together.", name,
			r->samples, r->prompt_count, OPENAI_CHOICES_MAX);
	}
	if (r->fields.session_id && r->prompt_count != 1)
		return api_error_set(e, 400, "prompt", NULL,
				     "Field 'prompt': %u prompts; with 'session_id' it must be one.", r->prompt_count);
	return read_max_tokens(r, m, e);
}

bool openai_tokenize_read(struct openai_request *r, const struct openai_model *m, const char *body,
			  size_t bytes, struct api_error *e)
{
	const char *text;
	size_t text_bytes;
	if (!openai_body_read(r, m, OPENAI_TOKENIZE, body, bytes, e))
		return false;
	const struct openai_fields *f = &r->fields;
	if (f->has_content + f->has_prompt + f->has_messages > 1)
		return api_error_set(e, 400, f->has_content ? "content" : "prompt", NULL,
				     "Fields 'prompt', 'content' and 'messages' are three ways to say what the text is; one of them must be "
				     "given.");
	if (f->with_pieces && !f->has_content)
		return refuse(e, "with_pieces", "it goes with 'content'; with 'prompt', \"return_token_strs\": true gives the texts of tokens");
	if (f->has_messages)
		return check_supported(f, m, e) && openai_messages_read(r, m, e);
	if (!f->has_prompt && !f->has_content)
		return api_error_set(
			e, 400, "prompt", NULL,
			"Field 'prompt' is missing; it must be a string, or 'messages' of a chat be given.");
	if (f->has_content) /* each name with what its server puts around a text when it is not said */
		return llama_mixed_read(&r->ids, m, "content", f->content,
					(f->has_add_special_tokens ? f->add_special_tokens : f->add_special) ? TEXT_ADD_SPECIAL : 0,
					f->parse_special ? 0 : TEXT_PLAIN, e);
	if (!json_string(f->prompt, &text, &text_bytes))
		return api_error_field(e, "prompt", f->prompt, "is not a string", "a string");
	return openai_encode(r, m, text, text_bytes, f->add_special_tokens, true, e);
}

bool openai_template_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			  struct api_error *e)
{
	if (!openai_body_read(r, m, OPENAI_TOKENIZE, body, bytes, e))
		return false;
	r->asked = OPENAI_LLAMA_TEMPLATE;
	return check_supported(&r->fields, m, e) && openai_messages_read(r, m, e);
}

bool openai_detokenize_read(struct openai_request *r, const struct openai_model *m, const char *body,
			    size_t bytes, struct api_error *e)
{
	if (!openai_body_read(r, m, OPENAI_DETOKENIZE, body, bytes, e))
		return false;
	if (!r->fields.has_tokens)
		return api_error_set(e, 400, "tokens", NULL,
				     "Field 'tokens' is missing; it must be an array of token ids.");
	return openai_ids_read(&r->ids, r->fields.tokens, m->vocab_size, "tokens", e);
}

bool openai_any_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint endpoint,
		     const char *body, size_t bytes, u64 tenant, struct api_error *e)
{
	if (endpoint == OPENAI_TOKENIZE)
		return openai_tokenize_read(r, m, body, bytes, e);
	if (endpoint == OPENAI_DETOKENIZE)
		return openai_detokenize_read(r, m, body, bytes, e);
	if (endpoint == OPENAI_LLAMA_TEMPLATE)
		return openai_template_read(r, m, body, bytes, e);
	if (endpoint == OPENAI_LLAMA_COMPLETION || endpoint == OPENAI_LLAMA_INFILL)
		return llama_read(r, m, endpoint, body, bytes, tenant, e);
	if (endpoint == OPENAI_LLAMA_EMBEDDING)
		return llama_embedding_read(r, m, body, bytes, tenant, e);
	if (endpoint == OPENAI_MESSAGES)
		return messages_read(r, m, body, bytes, tenant, e);
	if (endpoint == OPENAI_COUNT_TOKENS)
		return messages_count_read(r, m, body, bytes, e);
	if (endpoint == OPENAI_EMBEDDINGS)
		return openai_embeddings_read(r, m, body, bytes, tenant, e);
	if (endpoint == OPENAI_RESPONSES)
		return responses_read(r, m, body, bytes, tenant, e);
	return openai_request_read(r, m, endpoint, body, bytes, tenant, e);
}

bool openai_request_fit(struct openai_request *r, i64 wanted, struct api_error *e)
{
	if (wanted <= (i64)r->params.max_tokens)
		r->params.max_tokens = (u32)wanted;
	else
		r->cut_to_fit = true;
	if (r->params.min_tokens <= r->params.max_tokens)
		return true;
	return api_error_set(e, 400, "min_tokens", NULL, "Field 'min_tokens': %u is more than the %u tokens that may be generated.",
			     r->params.min_tokens, r->params.max_tokens);
}

void openai_request_fini(struct openai_request *r)
{
	json_free(&r->doc);
	json_free(&r->response);
	json_free(&r->messages);
	json_free(&r->kwargs);
	u32_vec_fini(&r->ids);
	free(r->prompts);
	u32_vec_fini(&r->bias_ids);
	free(r->bias_values);
	buf_fini(&r->grammar);
	buf_fini(&r->rendered);
	memset(r, 0, sizeof(*r));
}
