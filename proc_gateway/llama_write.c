/* Owns the shape of the replies and events of llama-server's /completion and /infill. Runs in the gateway; never touches a
 * socket or the engine. */
#include <string.h>

#include "common/clock.h"
#include "common/utf8.h"
#include "proc_gateway/llama.h"

static void key_uint(struct json_writer *w, const char *key, u64 value)
{
	json_key(w, key);
	json_write_uint(w, value);
}

static void key_bool(struct json_writer *w, const char *key, bool value)
{
	json_key(w, key);
	json_write_bool(w, value);
}

static void key_double(struct json_writer *w, const char *key, f64 value)
{
	json_key(w, key);
	json_write_double(w, value);
}

static void key_float(struct json_writer *w, const char *key, f32 value)
{
	json_key(w, key);
	json_write_float(w, value);
}

static void key_cstr(struct json_writer *w, const char *key, const char *value)
{
	json_key(w, key);
	json_write_cstr(w, value);
}

static void key_raw(struct json_writer *w, const char *key, const char *json)
{
	json_key(w, key);
	json_write_raw(w, json, strlen(json));
}

static void write_buf(struct json_writer *w, const struct buf *text)
{
	json_write_string(w, text->data ? text->data : "", text->bytes);
}

/* ---------------------------------------------------------------- settings */

/* What is not here is off. */
static void write_absent(struct json_writer *w, u32 max_model_len)
{
	key_double(w, "dynatemp_range", 0);
	key_double(w, "dynatemp_exponent", 1);
	key_double(w, "top_n_sigma", -1);
	key_double(w, "xtc_probability", 0);
	key_double(w, "xtc_threshold", 0.1);
	key_double(w, "typical_p", 1);
	key_double(w, "dry_multiplier", 0);
	key_double(w, "dry_base", 1.75);
	key_uint(w, "dry_allowed_length", 2);
	key_uint(w, "dry_penalty_last_n", max_model_len);
	key_raw(w, "dry_sequence_breakers", "[\"\\n\",\":\",\"\\\"\",\"*\"]");
	key_uint(w, "mirostat", 0);
	key_double(w, "mirostat_tau", 5);
	key_double(w, "mirostat_eta", 0.1);
	key_uint(w, "n_keep", 0);
	key_uint(w, "n_discard", 0);
	key_uint(w, "min_keep", 0);
	key_bool(w, "grammar_lazy", false);
	key_raw(w, "grammar_triggers", "[]");
	key_raw(w, "preserved_tokens", "[]");
	key_cstr(w, "chat_format", "Content-only");
	key_cstr(w, "reasoning_format", "none");
	key_bool(w, "reasoning_in_content", false);
	key_bool(w, "post_sampling_probs", false);
}

static void write_lists(const struct llama_settings *s, struct json_writer *w)
{
	json_key(w, "stop");
	json_array_begin(w);
	for (u32 i = 0; i < s->stop_count; i++)
		json_write_cstr(w, s->stops[i]);
	json_array_end(w);
	json_key(w, "logit_bias");
	json_array_begin(w);
	for (u32 i = 0; i < s->bias_count; i++) {
		json_object_begin(w);
		key_float(w, "bias", s->bias_values[i]);
		key_uint(w, "token", s->bias_ids[i]);
		json_object_end(w);
	}
	json_array_end(w);
	json_key(w, "lora");
	json_array_begin(w);
	if (s->lora >= 0) {
		json_object_begin(w);
		key_uint(w, "id", (u64)s->lora);
		key_double(w, "scale", 1);
		json_object_end(w);
	}
	json_array_end(w);
}

void llama_settings_write(const struct llama_settings *s, struct json_writer *w)
{
	const struct tercet_params *p = &s->params;
	json_object_begin(w);
	key_uint(w, "seed", s->any_seed ? 0xffffffffu : p->seed);
	key_float(w, "temperature", p->temperature);
	key_uint(w, "top_k", p->top_k);
	key_float(w, "top_p", p->top_p);
	key_float(w, "min_p", p->min_p);
	key_uint(w, "repeat_last_n", s->max_model_len);
	key_float(w, "repeat_penalty", p->repetition_penalty);
	key_float(w, "presence_penalty", p->presence_penalty);
	key_float(w, "frequency_penalty", p->frequency_penalty);
	json_key(w, "max_tokens");
	json_write_int(w, s->n_predict);
	json_key(w, "n_predict");
	json_write_int(w, s->n_predict);
	key_uint(w, "n_ctx", s->max_model_len);
	key_bool(w, "ignore_eos", (p->flags & TERCET_IGNORE_EOS) != 0);
	key_bool(w, "stream", s->stream);
	key_uint(w, "n_probs", p->logprobs > 0 ? (u64)p->logprobs : 0);
	json_key(w, "grammar");
	json_write_string(w, s->grammar, s->grammar_bytes);
	key_raw(w, "samplers", "[\"penalties\",\"temperature\",\"top_k\",\"top_p\",\"min_p\"]");
	key_bool(w, "timings_per_token", s->timings_per_token);
	write_lists(s, w);
	write_absent(w, s->max_model_len);
	json_object_end(w);
}

static bool tells_timings(const struct openai_request *r)
{
	bool each = false;
	(void)json_bool(json_get(json_root(r->response), "timings_per_token"), &each);
	return each;
}

static void write_settings(const struct choice *c, struct json_writer *w)
{
	const struct openai_request *r = &c->group->request;
	const struct openai_model *m = c->group->requests->model;
	const bool gbnf = r->grammar_kind == TERCET_GRAMMAR_EBNF;
	struct llama_settings s = {.params = r->params,
				   .n_predict = r->scoring ? 0 : r->cut_to_fit ? -1 : (i64)r->params.max_tokens,
				   .stream = r->fields.stream,
				   .timings_per_token = tells_timings(r),
				   .lora = r->lora ? (i64)lora_modules_find(m->loras, r->lora, strlen(r->lora)) - 1 : -1,
				   .max_model_len = m->max_model_len,
				   .stop_count = r->stop_count,
				   .stops = r->stops,
				   .bias_count = (u32)r->bias_ids.count,
				   .bias_ids = r->bias_ids.data,
				   .bias_values = r->bias_values,
				   .grammar = gbnf ? r->grammar.data : "",
				   .grammar_bytes = gbnf ? r->grammar.bytes : 0};
	s.params.seed += c->index;
	json_key(w, "generation_settings");
	llama_settings_write(&s, w);
}

/* ---------------------------------------------------------------- parts */

static u32 cached_of(const struct choice *c)
{
	return c->cached_count < c->prompt_count ? c->cached_count : c->prompt_count;
}

/* So many tokens in so much time. */
static void write_speed(struct json_writer *w, const char *const names[4], u32 tokens, u64 ns)
{
	const f64 ms = (f64)ns / 1e6;
	key_uint(w, names[0], tokens);
	key_double(w, names[1], ms);
	key_double(w, names[2], tokens ? ms / tokens : 0);
	key_double(w, names[3], ns ? tokens * 1e3 / ms : 0);
}

/* The prompt's time is that from the request to its first token, waiting for others included. */
static void write_timings(const struct choice *c, struct json_writer *w)
{
	static const char *const prompt[] = {"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"};
	static const char *const predicted[] = {"predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"};
	const u64 begin = http_request_begin_ns(c->group->http), first = c->llama.first_ns ? c->llama.first_ns : clock_now_ns();
	json_key(w, "timings");
	json_object_begin(w);
	key_uint(w, "cache_n", cached_of(c));
	write_speed(w, prompt, c->prompt_count - cached_of(c), first > begin ? first - begin : 0);
	write_speed(w, predicted, c->token_count, c->llama.first_ns ? c->llama.last_ns - first : 0);
	json_object_end(w);
}

/* The text, ids and probabilities that were not told yet. */
static void write_news(struct choice *c, struct json_writer *w)
{
	key_uint(w, "index", c->index);
	json_key(w, "content");
	write_buf(w, &c->text);
	json_key(w, "tokens");
	json_array_begin(w);
	for (size_t i = 0; i < c->tokens.count; i++)
		json_write_uint(w, c->tokens.data[i]);
	json_array_end(w);
	json_key(w, "id_slot");
	json_write_int(w, -1);
	key_bool(w, "stop", c->done);
	key_uint(w, "tokens_predicted", c->token_count);
	key_uint(w, "tokens_evaluated", c->prompt_count);
	if (c->logprobs.count > 0) {
		struct buf probs = {0};
		logprobs_take(&c->logprobs, &probs);
		json_key(w, "completion_probabilities");
		json_write_raw(w, probs.data ? probs.data : "[]", probs.data ? probs.bytes : 2);
		w->out->failed |= probs.failed;
		buf_fini(&probs);
	}
}

static void write_prompt(const struct choice *c, struct json_writer *w)
{
	struct buf text = {0};
	tokenizer_decode(c->logprobs.tokenizer, c->group->request.ids.data + c->prompt->first, c->prompt->count, false, &text);
	json_key(w, "prompt");
	write_buf(w, &text);
	w->out->failed |= text.failed;
	buf_fini(&text);
}

/* What stands behind the end. */
static void write_end(const struct choice *c, struct json_writer *w)
{
	const struct openai_request *r = &c->group->request;
	const bool word = c->stop_kind == TERCET_STOP_STRING && c->stop_value < r->stop_count;
	key_cstr(w, "model", r->model);
	write_settings(c, w);
	write_prompt(c, w);
	key_bool(w, "has_new_line", c->llama.new_line);
	key_bool(w, "truncated", r->cut_to_fit && c->finish == TERCET_FINISH_LENGTH && !c->llama.cut);
	key_cstr(w, "stop_type", c->finish == TERCET_FINISH_LENGTH ? "limit" : c->finish != TERCET_FINISH_STOP ? "none" : word ? "word" : "eos");
	key_cstr(w, "stopping_word", word ? r->stops[c->stop_value] : "");
	key_uint(w, "tokens_cached", cached_of(c));
	write_timings(c, w);
}

/* The value at a path a/b/c; JSON_MISSING where there is none. */
static json_val at_path(json_val v, const char *path, size_t bytes)
{
	while (json_present(v) && bytes > 0) {
		const char *slash = memchr(path, '/', bytes);
		const size_t length = slash ? (size_t)(slash - path) : bytes, skipped = slash ? length + 1 : length;
		v = json_getn(v, path, length);
		path += skipped;
		bytes -= skipped;
	}
	return v;
}

/* Of the whole object those of its parts that 'response_fields' names, each under its path. */
static void write_selected(json_val wanted, const struct buf *whole, struct json_writer *w)
{
	struct json_doc *doc = NULL;
	if (!buf_ok(whole) || json_parse(&doc, whole->data, whole->bytes, NULL) != ERR_OK) {
		w->out->failed = true;
		return;
	}
	json_object_begin(w);
	for (struct json_iter it = json_iterate(wanted); json_next(&it);) {
		const char *path;
		size_t bytes;
		if (!json_string(it.value, &path, &bytes) || bytes == 0)
			continue;
		json_val v = at_path(json_root(doc), path, bytes);
		if (json_type(v) == JSON_MISSING)
			continue;
		json_key(w, path);
		json_write_value(w, v);
	}
	json_object_end(w);
	json_free(&doc);
}

static void write_whole(struct choice *c, struct json_writer *w)
{
	json_object_begin(w);
	write_news(c, w);
	write_end(c, w);
	json_object_end(w);
}

/* The object of an answer that is done. */
static void write_done(struct choice *c, struct json_writer *w)
{
	json_val wanted = json_get(json_root(c->group->request.response), "response_fields");
	struct json_writer all;
	struct buf whole = {0};
	if (json_count(wanted) == 0) {
		write_whole(c, w);
		return;
	}
	json_begin(&all, &whole);
	write_whole(c, &all);
	write_selected(wanted, &whole, w);
	buf_fini(&whole);
}

/* ---------------------------------------------------------------- the whole */

void llama_reply_write(struct group *g, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	if (g->choice_count > 1)
		json_array_begin(&w);
	for (u32 i = 0; i < g->choice_count; i++)
		write_done(&g->choices[i], &w);
	if (g->choice_count > 1)
		json_array_end(&w);
}

void llama_chunk_write(struct choice *c, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	if (c->done) {
		write_done(c, &w);
	} else {
		json_object_begin(&w);
		write_news(c, &w);
		if (tells_timings(&c->group->request))
			write_timings(c, &w);
		json_object_end(&w);
	}
	buf_clear(&c->text);
	u32_vec_clear(&c->tokens);
}

void llama_piece_write(const struct openai_model *m, u32 id, struct json_writer *w)
{
	struct buf piece = {0};
	tokenizer_token_bytes(m->tokenizer, id, &piece);
	json_object_begin(w);
	key_uint(w, "id", id);
	json_key(w, "piece");
	if (utf8_valid(piece.data ? piece.data : "", piece.bytes)) {
		write_buf(w, &piece);
	} else {
		json_array_begin(w);
		for (size_t i = 0; i < piece.bytes; i++)
			json_write_uint(w, (u8)piece.data[i]);
		json_array_end(w);
	}
	json_object_end(w);
	w->out->failed |= piece.failed;
	buf_fini(&piece);
}
