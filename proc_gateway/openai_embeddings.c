/* Owns /v1/embeddings: its bodies, and its replies, whose vectors are cut and scaled here. Runs in the gateway, and reading in tests
 * and in the fuzzer of request bodies. The engine makes an embedding of the prompt's last token (TERCET_EMBEDDING). */
#include <math.h>
#include <string.h>

#include "proc_gateway/openai_request.h"
#include "proc_gateway/openai_response.h"

static bool is_base64(const struct openai_fields *f)
{
	return f->has_encoding_format && strcmp(f->encoding_format, "base64") == 0;
}

static bool check_form(const struct openai_request *r, const struct openai_model *m, struct api_error *e)
{
	const struct openai_fields *f = &r->fields;

	if (f->has_encoding_format && !is_base64(f) && strcmp(f->encoding_format, "float") != 0)
		return api_error_field(e, "encoding_format", json_get(json_root(r->doc), "encoding_format"), "is not known",
				       "\"float\" or \"base64\"");
	if (f->has_dimensions && m->embedding_width && f->dimensions > (i64)m->embedding_width)
		return api_error_set(e, 400, "dimensions", NULL,
				     "Field 'dimensions': %lld is out of range; an embedding of this model has %u, so it must be from 1 to %u.",
				     (long long)f->dimensions, m->embedding_width, m->embedding_width);
	return true;
}

bool openai_embeddings_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
			    struct api_error *e)
{
	if (!openai_body_read(r, m, OPENAI_EMBEDDINGS, body, bytes, e) || !check_form(r, m, e) || !openai_salt_read(r, tenant, e) ||
	    !openai_prompts_read(r, m, e))
		return false;
	tercet_params_init(&r->params);
	r->n = r->samples = 1;
	r->scoring = true;
	r->fields.logprobs = -1;
	r->params.temperature = 0;
	r->params.max_tokens = 1;
	r->params.flags = TERCET_NO_TEXT | TERCET_EMBEDDING;
	return true;
}

/* ---------------------------------------------------------------- replies */

bool openai_embedding_is_whole(const struct choice *c)
{
	u32 width = c->group->requests->model->embedding_width;

	return width > 0 && c->prompt_logprobs.values.bytes == width * sizeof(float);
}

bool openai_embedding_check(const struct choice *c, struct api_error *e)
{
	const float *x = (const float *)(const void *)c->prompt_logprobs.values.data;

	if (!openai_embedding_is_whole(c))
		return api_error_set(e, 500, NULL, NULL, "The engine has lost the embedding of text %u.", c->index);
	for (size_t i = 0; i < c->prompt_logprobs.values.bytes / sizeof(float); i++)
		if (!isfinite(x[i]))
			return api_error_set(e, 500, NULL, NULL,
					     "The embedding of text %u is not a number: what the model computes is too large for it. Its weights may be "
					     "damaged, or need another --dtype.",
					     c->index);
	return true;
}

/* Base 64 of RFC 4648, padded. */
static void put_base64(struct buf *out, const u8 *data, size_t bytes)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t at = 0; at < bytes; at += 3) {
		size_t n = bytes - at < 3 ? bytes - at : 3;
		u32 three = (u32)data[at] << 16 | (n > 1 ? (u32)data[at + 1] << 8 : 0) | (n > 2 ? data[at + 2] : 0);
		char text[4];
		for (u32 i = 0; i < 4; i++)
			text[i] = i <= n ? digits[three >> (18 - 6 * i) & 63] : '=';
		buf_append(out, text, sizeof(text));
	}
}

static void put_little(struct buf *out, float x)
{
	u32 bits;

	memcpy(&bits, &x, sizeof(bits));
	const u8 little[] = {(u8)bits, (u8)(bits >> 8), (u8)(bits >> 16), (u8)(bits >> 24)};
	buf_append(out, little, sizeof(little));
}

/* Of length 1 where the request does not want it as it is. */
static void put_vector(const struct openai_fields *f, const float *x, size_t count, struct json_writer *w)
{
	const bool base64 = is_base64(f);
	struct buf bytes = {0}, text = {0};
	double squares = 0;

	for (size_t i = 0; i < count; i++)
		squares += (double)x[i] * (double)x[i];
	double scale = f->normalize && squares > 0 ? 1 / sqrt(squares) : 1;
	if (!base64)
		json_array_begin(w);
	for (size_t i = 0; i < count; i++) {
		float value = (float)((double)x[i] * scale);
		if (base64)
			put_little(&bytes, value);
		else
			json_write_float(w, value);
	}
	if (base64) {
		put_base64(&text, (const u8 *)bytes.data, bytes.bytes);
		json_write_string(w, text.data ? text.data : "", text.bytes);
	} else {
		json_array_end(w);
	}
	w->out->failed |= bytes.failed | text.failed;
	buf_fini(&bytes);
	buf_fini(&text);
}

/* The engine gives the vector with its position behind the prompt. */
static void put_choice(const struct choice *c, struct json_writer *w)
{
	const struct openai_fields *f = &c->group->request.fields;
	const struct buf *values = &c->prompt_logprobs.values;
	size_t count = values->bytes / sizeof(float);

	const bool llama = c->group->request.asked == OPENAI_LLAMA_EMBEDDING; /* whose embeddings are lists of vectors */
	json_object_begin(w);
	if (!llama) {
		json_key(w, "object");
		json_write_cstr(w, "embedding");
	}
	json_key(w, "index");
	json_write_uint(w, c->index);
	json_key(w, "embedding");
	if (llama)
		json_array_begin(w);
	put_vector(f, (const float *)(const void *)values->data, f->has_dimensions && (size_t)f->dimensions < count ? (size_t)f->dimensions : count, w);
	if (llama)
		json_array_end(w);
	json_object_end(w);
}

void openai_embeddings_write(const struct group *g, struct buf *out)
{
	struct json_writer w;
	u64 tokens = 0;

	json_begin(&w, out);
	if (g->request.asked == OPENAI_LLAMA_EMBEDDING) {
		json_array_begin(&w);
		for (u32 i = 0; i < g->choice_count; i++)
			put_choice(&g->choices[i], &w);
		json_array_end(&w);
		return;
	}
	json_object_begin(&w);
	json_key(&w, "id");
	json_write_cstr(&w, g->id);
	json_key(&w, "object");
	json_write_cstr(&w, "list");
	json_key(&w, "created");
	json_write_int(&w, g->created_s);
	json_key(&w, "model");
	json_write_cstr(&w, g->request.model);
	json_key(&w, "data");
	json_array_begin(&w);
	for (u32 i = 0; i < g->choice_count; i++) {
		put_choice(&g->choices[i], &w);
		tokens += g->choices[i].prompt_count;
	}
	json_array_end(&w);
	json_key(&w, "usage");
	json_object_begin(&w);
	json_key(&w, "prompt_tokens");
	json_write_uint(&w, tokens);
	json_key(&w, "total_tokens");
	json_write_uint(&w, tokens);
	json_object_end(&w);
	json_object_end(&w);
}
