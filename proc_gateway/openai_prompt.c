/* Owns prompts of completions: strings, ids and lists of either, encoding, truncation. Runs in the gateway.
 * Never encodes what is certain not to fit. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "proc_gateway/openai_request.h"
#include "proc_gateway/openai_session.h"

u32 openai_token_bytes_max(const struct tokenizer *t)
{
	u32 longest = 1, count = tokenizer_vocab_size(t);
	struct buf bytes = {0};
	for (u32 id = 0; id < count; id++) {
		const char *text = tokenizer_token_text(t, id);
		size_t written = text ? strlen(text) : 0; /* added tokens are matched as they are written */
		buf_clear(&bytes);
		tokenizer_token_bytes(t, id, &bytes);
		if (bytes.bytes > longest)
			longest = (u32)bytes.bytes;
		if (written > longest)
			longest = (u32)written;
	}
	buf_fini(&bytes);
	return longest;
}

bool openai_prompt_too_long(struct api_error *e, const struct openai_model *m, size_t tokens, bool at_least)
{
	return api_error_set(e, 400, NULL, "context_length_exceeded",
			     "This model's maximum context length is %u tokens, but the prompt has %s%zu; it "
			     "must leave room "
			     "for at least one more.",
			     m->max_model_len, at_least ? "at least " : "", tokens);
}

bool openai_encode(struct openai_request *r, const struct openai_model *m, const char *text, size_t bytes,
		   bool add_special, bool unlimited, struct api_error *e)
{
	size_t least = bytes / m->token_bytes_max;
	if (!unlimited && least > m->max_model_len)
		return openai_prompt_too_long(e, m, least, true);
	return openai_encode_into(&r->ids, m, text, bytes, add_special ? TEXT_ADD_SPECIAL : 0, e);
}

bool openai_encode_into(struct u32_vec *ids, const struct openai_model *m, const char *text, size_t bytes, u32 flags, struct api_error *e)
{
	struct err_msg em;
	enum err err = tokenizer_encode(m->tokenizer, m->scratch, text, bytes, flags, ids, &em);
	if (err == ERR_NO_MEMORY || ids->failed)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	if (err)
		return api_error_set(e, 400, NULL, NULL, "The prompt cannot be encoded: %s.", em.text);
	return true;
}

bool openai_ids_read(struct u32_vec *out, json_val v, u32 vocab_size, const char *name, struct api_error *e)
{
	char right[64];
	snprintf(right, sizeof(right), "a token id from 0 to %u", vocab_size - 1);
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		u64 id;
		if (!json_uint(it.value, &id) || id >= vocab_size)
			return api_error_field(e, name, it.value, "is not a token of this model", right);
		u32_vec_push(out, (u32)id);
	}
	if (out->failed)
		return api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	return true;
}

/* The field that has the prompts. */
static const char *prompt_field(const struct openai_request *r)
{
	return r->endpoint == OPENAI_CHAT ? "messages" : r->endpoint == OPENAI_EMBEDDINGS ? "input" : "prompt";
}

/* Keeps `keep` of the ids from `first` on. */
static void truncate_ids(struct openai_request *r, size_t first, size_t keep)
{
	size_t count = r->ids.count - first;
	bool usual = r->endpoint == OPENAI_EMBEDDINGS; /* the beginning of a text says most of what it is about */
	bool right = r->fields.has_truncation_side ? strcmp(r->fields.truncation_side, "right") == 0 : usual;
	if (count <= keep)
		return;
	if (!right)
		memmove(r->ids.data + first, r->ids.data + first + count - keep, keep * sizeof(*r->ids.data));
	r->ids.count = first + keep;
}

/* How many of the ids from `first` on the tokenizer has put in front of those of `text`, and behind them. */
static bool special_ids(const struct openai_request *r, const struct openai_model *m, const char *text, size_t bytes, size_t first, size_t *before,
			size_t *behind)
{
	const u32 *ids = r->ids.data + first;
	size_t count = r->ids.count - first;
	struct u32_vec plain = {0};
	struct err_msg em;
	bool found = tokenizer_encode(m->tokenizer, m->scratch, text, bytes, 0, &plain, &em) == ERR_OK && plain.count <= count;

	*before = *behind = 0;
	for (size_t at = 0; found && at + plain.count <= count; at++) {
		if (plain.count && memcmp(ids + at, plain.data, plain.count * sizeof(*ids)) != 0)
			continue;
		*before = at;
		*behind = count - at - plain.count;
		break;
	}
	u32_vec_fini(&plain);
	return found && *before + *behind + 1 < count;
}

/* Cuts a text within those tokens that the tokenizer has put around it: the last of them is what an embedding is made of. */
static void truncate_text(struct openai_request *r, const struct openai_model *m, const char *text, size_t bytes, size_t first, size_t keep)
{
	bool left = r->fields.has_truncation_side && strcmp(r->fields.truncation_side, "left") == 0;
	size_t count = r->ids.count - first, before, behind;

	if (count <= keep || !special_ids(r, m, text, bytes, first, &before, &behind) || before + behind >= keep)
		return;
	size_t cut = count - keep;
	u32 *ids = r->ids.data + first;
	u32 *from = left ? ids + before : ids + count - behind - cut;
	memmove(from, from + cut, (size_t)(ids + count - (from + cut)) * sizeof(*ids));
	r->ids.count -= cut;
}

static bool truncation(const struct openai_request *r, const struct openai_model *m, size_t *keep,
		       struct api_error *e)
{
	const struct openai_fields *f = &r->fields;
	*keep = SIZE_MAX;
	if (f->has_truncation_side && strcmp(f->truncation_side, "left") != 0 &&
	    strcmp(f->truncation_side, "right") != 0)
		return api_error_field(e, "truncation_side", json_get(json_root(r->doc), "truncation_side"),
				       "is not known", "\"left\" or \"right\"");
	if (!f->has_truncate_prompt_tokens)
		return true;
	i64 max = (i64)m->max_model_len - 1;
	if (f->truncate_prompt_tokens == -1) { /* as much as fits beside the answer */
		i64 answer = f->has_max_completion_tokens ? f->max_completion_tokens
			     : f->has_max_tokens	  ? f->max_tokens
							  : 1;
		*keep = (size_t)(answer >= 1 && answer <= max ? max + 1 - answer : max);
		return true;
	}
	if (f->truncate_prompt_tokens == 0 || f->truncate_prompt_tokens > max)
		return api_error_set(e, 400, "truncate_prompt_tokens", NULL,
				     "Field 'truncate_prompt_tokens': %lld is out of range; it must be -1 or "
				     "from 1 to %lld.",
				     (long long)f->truncate_prompt_tokens, (long long)max);
	*keep = (size_t)f->truncate_prompt_tokens;
	return true;
}

/* Closes the prompt whose ids begin at `first`. */
static bool add_prompt(struct openai_request *r, const struct openai_model *m, size_t first, const char *text,
		       size_t bytes, struct api_error *e)
{
	size_t keep;
	if (!truncation(r, m, &keep, e))
		return false;
	truncate_ids(r, first, keep);
	size_t count = r->ids.count - first;
	if (count == 0 && !openai_session_goes_on(r))
		return api_error_set(e, 400, prompt_field(r), NULL,
				     "The prompt is empty; it must have at least one token.");
	if (count >= m->max_model_len)
		return openai_prompt_too_long(e, m, count, false);
	r->prompts[r->prompt_count++] = (struct openai_prompt){
		.first = (u32)first,
		.count = (u32)count,
		.text = keep == SIZE_MAX ? text : NULL, /* what was cut off is not echoed */
		.text_bytes = bytes,
	};
	return true;
}

static bool add_text(struct openai_request *r, const struct openai_model *m, json_val v, struct api_error *e)
{
	const char *text;
	size_t bytes, first = r->ids.count;
	if (!json_string(v, &text, &bytes))
		return api_error_field(e, prompt_field(r), v, "does not fit here",
				       "a string, an array of token ids, or an array of either");
	/* In the middle of a conversation the tokenizer's own tokens are put only where they are asked for. */
	bool add_special = r->fields.add_special_tokens &&
			   (!openai_session_goes_on(r) || r->fields.has_add_special_tokens);
	size_t keep = SIZE_MAX;
	if (!openai_encode(r, m, text, bytes, add_special, r->fields.has_truncate_prompt_tokens, e) || !truncation(r, m, &keep, e))
		return false;
	if (r->endpoint == OPENAI_EMBEDDINGS && add_special)
		truncate_text(r, m, text, bytes, first, keep);
	return add_prompt(r, m, first, text, bytes, e);
}

static bool add_ids(struct openai_request *r, const struct openai_model *m, json_val v, struct api_error *e)
{
	size_t first = r->ids.count, count = json_count(v);
	if (!r->fields.has_truncate_prompt_tokens && count >= m->max_model_len)
		return openai_prompt_too_long(e, m, count, false);
	return openai_ids_read(&r->ids, v, m->vocab_size, prompt_field(r), e) && add_prompt(r, m, first, NULL, 0, e);
}

static bool alloc_prompts(struct openai_request *r, size_t count, struct api_error *e)
{
	ASSERT(!r->prompts);
	if (count > OPENAI_CHOICES_MAX)
		return api_error_set(e, 400, prompt_field(r), NULL,
				     "Field '%s': %zu prompts; at most %d can be given.", prompt_field(r), count,
				     OPENAI_CHOICES_MAX);
	r->prompts = calloc(count, sizeof(*r->prompts));
	return r->prompts || api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
}

bool openai_prompts_read(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const bool embeds = r->endpoint == OPENAI_EMBEDDINGS;
	json_val v = embeds ? r->fields.input : r->fields.prompt;
	if (!(embeds ? r->fields.has_input : r->fields.has_prompt))
		return api_error_set(e, 400, prompt_field(r), NULL,
				     "Field '%s' is missing; it must be a string, an array of token ids, "
				     "or an array of "
				     "either.", prompt_field(r));
	if (json_type(v) == JSON_STRING)
		return alloc_prompts(r, 1, e) && add_text(r, m, v, e);
	if (json_count(v) == 0 && openai_session_goes_on(r))
		return openai_prompt_from_ids(r, m, e);
	if (json_count(v) == 0)
		return api_error_field(e, prompt_field(r), v, "is empty", "a prompt or an array of prompts");
	enum json_type first = json_type(json_at(v, 0));
	if (first != JSON_STRING && first != JSON_ARRAY)
		return alloc_prompts(r, 1, e) && add_ids(r, m, v, e);
	if (!alloc_prompts(r, json_count(v), e))
		return false;
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		bool ids = json_type(it.value) == JSON_ARRAY;
		if (ids ? !add_ids(r, m, it.value, e) : !add_text(r, m, it.value, e))
			return false;
	}
	return true;
}

bool openai_prompt_from_ids(struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	return alloc_prompts(r, 1, e) && add_prompt(r, m, 0, NULL, 0, e);
}

bool openai_prompt_from_text(struct openai_request *r, const struct openai_model *m, const struct buf *text,
			     bool add_special, struct api_error *e)
{
	return alloc_prompts(r, 1, e) &&
	       openai_encode(r, m, text->data ? text->data : "", text->bytes, add_special,
			     r->fields.has_truncate_prompt_tokens || r->endpoint == OPENAI_TOKENIZE, e) &&
	       (r->endpoint == OPENAI_TOKENIZE || add_prompt(r, m, 0, NULL, 0, e));
}
