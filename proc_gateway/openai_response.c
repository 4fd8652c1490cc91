/* Owns the shape of replies and chunks; runs in the gateway. Never touches a socket or the engine. */
#include <string.h>

#include "common/json.h"
#include "proc_gateway/llama.h"
#include "proc_gateway/openai_response.h"

static bool is_chat(const struct group *g)
{
	return g->request.endpoint == OPENAI_CHAT;
}

static void put_head(const struct group *g, const char *object, struct buf *out)
{
	buf_append_str(out, "{\"id\":");
	json_escape(out, g->id, strlen(g->id));
	buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)g->created_s);
	json_escape(out, g->request.model, strlen(g->request.model));
}

static void put_ids(struct buf *out, const u32 *ids, size_t count)
{
	buf_append_char(out, '[');
	for (size_t i = 0; i < count; i++)
		buf_printf(out, i ? ",%u" : "%u", ids[i]);
	buf_append_char(out, ']');
}

static void put_usage(struct buf *out, u64 prompt, u64 completion, u64 cached)
{
	buf_printf(out,
		   "{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"completion_tokens\":%llu,"
		   "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
		   (unsigned long long)prompt, (unsigned long long)(prompt + completion),
		   (unsigned long long)completion, (unsigned long long)cached);
}

/* Each prompt counts once, however many answers it has; tokens of samples that were left out count, too. */
static void put_group_usage(const struct group *g, struct buf *out)
{
	u64 prompt = 0, completion = 0, cached = 0;
	for (u32 i = 0; i < g->choice_count; i++) {
		const struct choice *c = &g->choices[i];
		completion += c->token_count;
		if (i % g->request.samples == 0) {
			prompt += c->prompt_count;
			cached += c->cached_count;
		}
	}
	put_usage(out, prompt, completion, cached);
}

static void put_finish(const struct choice *c, struct buf *out)
{
	const struct openai_request *r = &c->group->request;
	if (!c->done) {
		buf_append_str(out, ",\"finish_reason\":null,\"stop_reason\":null");
		return;
	}
	if (r->beam_width || r->samples > r->n) {
		if (c->logprob_lost)
			buf_append_str(out, ",\"cumulative_logprob\":null");
		else
			buf_printf(out, ",\"cumulative_logprob\":%.17g", c->logprob_sum);
	}
	bool stopped = c->stop_kind != TERCET_STOP_NONE && c->tools.cut; /* which no client should run */
	bool calls = c->finish == TERCET_FINISH_STOP && c->tools.count > 0 && !stopped;
	buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
		   calls ? "tool_calls" : tercet_finish_name(c->finish));
	if (c->stop_kind == TERCET_STOP_ID)
		buf_printf(out, "%u", c->stop_value);
	else if (c->stop_kind == TERCET_STOP_STRING && c->stop_value < r->stop_count)
		json_escape(out, r->stops[c->stop_value], strlen(r->stops[c->stop_value]));
	else
		buf_append_str(out, "null");
}

static void put_text(const struct choice *c, struct buf *out)
{
	json_escape(out, c->text.data ? c->text.data : "", c->text.bytes);
}

static void put_thought(const struct choice *c, const char *separator, struct buf *out)
{
	buf_append_str(out, separator);
	buf_append_str(out, "\"reasoning_content\":");
	json_escape(out, c->thought.data, c->thought.bytes);
}

static const u32 *prompt_ids(const struct choice *c)
{
	return c->group->request.ids.data + c->prompt->first;
}

static void put_prompt_logprobs(const struct choice *c, struct buf *out)
{
	const struct openai_request *r = &c->group->request;
	buf_append_str(out, ",\"prompt_logprobs\":");
	if (!r->fields.has_prompt_logprobs) {
		buf_append_str(out, "null");
		return;
	}
	/* those of a search come with its first answer */
	const struct choice *from = r->beam_width ? c - c->index % r->n : c;
	prompt_logprobs_write(&from->prompt_logprobs, prompt_ids(c), c->prompt->count,
			      (u32)r->fields.prompt_logprobs, c->logprobs.tokenizer, out);
}

static void put_message(const struct choice *c, struct buf *out)
{
	buf_append_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
	if ((c->tools.count > 0 || c->thought_any) && c->text.bytes == 0)
		buf_append_str(out, "null");
	else
		put_text(c, out);
	if (c->thought.bytes > 0)
		put_thought(c, ",", out);
	buf_append_str(out, ",\"refusal\":null");
	if (c->tools.count > 0) {
		buf_append_str(out, ",\"tool_calls\":");
		tool_calls_write(&c->tools, out);
	}
	buf_append_char(out, '}');
}

static void put_choice(struct choice *c, struct buf *out)
{
	const struct group *g = c->group;
	bool ids = g->request.fields.return_token_ids;
	buf_printf(out, "{\"index\":%u,", c->index);
	if (is_chat(g)) {
		put_message(c, out);
	} else {
		buf_append_str(out, "\"text\":");
		put_text(c, out);
	}
	buf_append_str(out, ",\"logprobs\":");
	logprobs_take(&c->logprobs, out);
	put_finish(c, out);
	if (ids) {
		buf_append_str(out, ",\"token_ids\":");
		put_ids(out, c->tokens.data, c->tokens.count);
	}
	if (!is_chat(g)) {
		if (ids) {
			buf_append_str(out, ",\"prompt_token_ids\":");
			put_ids(out, prompt_ids(c), c->prompt->count);
		}
		put_prompt_logprobs(c, out);
	}
	buf_append_char(out, '}');
}

/* What the session has now, for a step back later. */
static void put_session(const struct choice *c, struct buf *out)
{
	const struct openai_fields *f = &c->group->request.fields;
	if (!f->session_id)
		return;
	buf_append_str(out, ",\"session\":{\"id\":");
	json_escape(out, f->session_id, strlen(f->session_id));
	buf_printf(out, ",\"tokens\":%u}", f->session_end ? 0 : c->prompt_count + c->token_count);
}

void openai_response_write(struct group *g, struct buf *out)
{
	if (llama_is_form_of(&g->request)) {
		llama_reply_write(g, out);
		return;
	}
	put_head(g, is_chat(g) ? "chat.completion" : "text_completion", out);
	buf_append_str(out, ",\"choices\":[");
	bool any = false;
	for (u32 i = 0; i < g->choice_count; i++) {
		if (g->choices[i].left_out)
			continue;
		if (any)
			buf_append_char(out, ',');
		any = true;
		put_choice(&g->choices[i], out);
	}
	buf_append_str(out, "],\"usage\":");
	put_group_usage(g, out);
	if (is_chat(g)) {
		put_prompt_logprobs(&g->choices[0], out);
		if (g->request.fields.return_token_ids) {
			buf_append_str(out, ",\"prompt_token_ids\":");
			put_ids(out, prompt_ids(&g->choices[0]), g->choices[0].prompt->count);
		}
	}
	put_session(&g->choices[0], out);
	buf_append_str(out, ",\"system_fingerprint\":null}");
}

/* ---------------------------------------------------------------- streams */

bool openai_chunk_due(const struct choice *c)
{
	return c->text.bytes > 0 || c->thought.bytes > 0 || c->done || tool_calls_due(&c->tools) || c->logprobs.count > 0 ||
	       (c->group->request.fields.return_token_ids && c->tokens.count > 0);
}

static void put_delta(struct choice *c, bool first, struct buf *out)
{
	if (!is_chat(c->group)) {
		buf_append_str(out, "\"text\":");
		put_text(c, out);
		return;
	}
	bool calls = tool_calls_due(&c->tools), text = c->text.bytes > 0, thought = c->thought.bytes > 0;
	buf_append_str(out, first ? "\"delta\":{\"role\":\"assistant\",\"content\":" : "\"delta\":{");
	if (text && !first)
		buf_append_str(out, "\"content\":");
	if (first && (calls || thought) && !text)
		buf_append_str(out, "null");
	else if (first || text)
		put_text(c, out);
	if (thought)
		put_thought(c, first || text ? "," : "", out);
	if (calls) {
		buf_append_str(out, first || text || thought ? ",\"tool_calls\":" : "\"tool_calls\":");
		tool_calls_write_delta(&c->tools, out);
	}
	buf_append_char(out, '}');
}

void openai_chunk_write(struct choice *c, struct buf *out)
{
	const struct group *g = c->group;
	const struct openai_request *r = &g->request;
	if (llama_is_form_of(r)) {
		llama_chunk_write(c, out);
		return;
	}
	bool first = !c->begun;
	c->begun = true;
	put_head(g, is_chat(g) ? "chat.completion.chunk" : "text_completion", out);
	buf_printf(out, ",\"choices\":[{\"index\":%u,", c->index);
	put_delta(c, first, out);
	buf_append_str(out, ",\"logprobs\":");
	logprobs_take(&c->logprobs, out);
	put_finish(c, out);
	if (r->fields.return_token_ids) {
		buf_append_str(out, ",\"token_ids\":");
		put_ids(out, c->tokens.data, c->tokens.count);
		if (first && !is_chat(g)) {
			buf_append_str(out, ",\"prompt_token_ids\":");
			put_ids(out, prompt_ids(c), c->prompt->count);
		}
	}
	if (first && r->fields.has_prompt_logprobs)
		put_prompt_logprobs(c, out);
	buf_append_str(out, "}]");
	if (first && is_chat(g) && r->fields.return_token_ids) {
		buf_append_str(out, ",\"prompt_token_ids\":");
		put_ids(out, prompt_ids(c), c->prompt->count);
	}
	if (r->usage_each) {
		buf_append_str(out, ",\"usage\":");
		put_usage(out, c->prompt_count, c->token_count, c->cached_count);
	} else if (r->include_usage) {
		buf_append_str(out, ",\"usage\":null");
	}
	if (c->done)
		put_session(c, out);
	buf_append_char(out, '}');
	buf_clear(&c->text);
	buf_clear(&c->thought);
	u32_vec_clear(&c->tokens);
}

void openai_usage_chunk_write(const struct group *g, struct buf *out)
{
	put_head(g, is_chat(g) ? "chat.completion.chunk" : "text_completion", out);
	buf_append_str(out, ",\"choices\":[],\"usage\":");
	put_group_usage(g, out);
	buf_append_char(out, '}');
}

/* ---------------------------------------------------------------- tokens and text */

static void write_tokens(const struct openai_model *m, const struct openai_request *request, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	json_key(&w, "count");
	json_write_uint(&w, request->ids.count);
	json_key(&w, "max_model_len");
	json_write_uint(&w, m->max_model_len);
	json_key(&w, "tokens");
	json_array_begin(&w);
	for (size_t i = 0; i < request->ids.count; i++) {
		if (request->fields.with_pieces)
			llama_piece_write(m, request->ids.data[i], &w);
		else
			json_write_uint(&w, request->ids.data[i]);
	}
	json_array_end(&w);
	json_key(&w, "token_strs");
	if (!request->fields.return_token_strs) {
		json_write_null(&w);
	} else {
		json_array_begin(&w);
		for (size_t i = 0; i < request->ids.count; i++) {
			const char *text = tokenizer_token_text(m->tokenizer, request->ids.data[i]);
			json_write_cstr(&w, text ? text : "");
		}
		json_array_end(&w);
	}
	json_object_end(&w);
}

static void write_text(const struct openai_model *m, const struct openai_request *request, struct buf *out)
{
	struct buf text = {0};
	bool skip = request->fields.has_skip_special_tokens && request->fields.skip_special_tokens;
	tokenizer_decode(m->tokenizer, request->ids.data, request->ids.count, skip, &text);
	buf_append_str(out, "{\"prompt\":");
	json_escape(out, text.data ? text.data : "", text.bytes);
	buf_append_str(out, ",\"content\":"); /* llama-server's name of it */
	json_escape(out, text.data ? text.data : "", text.bytes);
	buf_append_char(out, '}');
	out->failed |= text.failed;
	buf_fini(&text);
}

static void write_template(const struct openai_request *request, struct buf *out)
{
	buf_append_str(out, "{\"prompt\":");
	json_escape(out, request->rendered.data ? request->rendered.data : "", request->rendered.bytes);
	buf_append_char(out, '}');
}

void openai_tokens_write(const struct openai_model *m, const struct openai_request *request, struct buf *out)
{
	if (request->asked == OPENAI_COUNT_TOKENS)
		buf_printf(out, "{\"input_tokens\":%zu}", request->ids.count);
	else if (request->asked == OPENAI_LLAMA_TEMPLATE)
		write_template(request, out);
	else if (request->endpoint == OPENAI_TOKENIZE)
		write_tokens(m, request, out);
	else
		write_text(m, request, out);
}
