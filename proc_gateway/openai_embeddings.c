/* Owns /v1/embeddings: its bodies, and its replies, whose vectors are cut and scaled here. Runs in the gateway, and reading in tests
 * and in the fuzzer of request bodies. The engine makes an embedding of the prompt's last token (TERCET_EMBEDDING). */
#include <math.h>
#include <stdio.h>
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

static void put_number(struct buf *out, float x, bool base64, bool first)
{
	u32 bits;
	char text[32];

	if (base64) {
		memcpy(&bits, &x, sizeof(bits));
		const u8 little[] = {(u8)bits, (u8)(bits >> 8), (u8)(bits >> 16), (u8)(bits >> 24)};
		buf_append(out, little, sizeof(little));
		return;
	}
	if (!first)
		buf_append_char(out, ',');
	buf_append(out, text, (size_t)snprintf(text, sizeof(text), "%.9g", (double)x));
}

/* The first `count` numbers; of length 1 together where the request does not want them as they are. */
static void put_vector(const struct group *g, const float *x, size_t count, struct buf *numbers, struct buf *out)
{
	const bool base64 = is_base64(&g->request.fields);
	double squares = 0;

	for (size_t i = 0; i < count; i++)
		squares += (double)x[i] * (double)x[i];
	double scale = g->request.fields.normalize && squares > 0 ? 1 / sqrt(squares) : 1;
	buf_clear(numbers);
	for (size_t i = 0; i < count; i++)
		put_number(numbers, (float)((double)x[i] * scale), base64, i == 0);
	buf_append_char(out, base64 ? '"' : '[');
	if (base64)
		put_base64(out, (const u8 *)numbers->data, numbers->bytes);
	else
		buf_append(out, numbers->data, numbers->bytes);
	buf_append_char(out, base64 ? '"' : ']');
	out->failed |= numbers->failed;
}

void openai_embeddings_write(const struct group *g, struct buf *out)
{
	const struct openai_fields *f = &g->request.fields;
	struct buf numbers = {0};
	u64 tokens = 0;

	buf_append_str(out, "{\"id\":");
	json_escape(out, g->id, strlen(g->id));
	buf_printf(out, ",\"object\":\"list\",\"created\":%lld,\"model\":", (long long)g->created_s);
	json_escape(out, g->request.model, strlen(g->request.model));
	buf_append_str(out, ",\"data\":[");
	for (u32 i = 0; i < g->choice_count; i++) {
		const struct choice *c = &g->choices[i];
		const struct buf *values = &c->prompt_logprobs.values; /* which the engine gives with its position behind the prompt */
		size_t count = values->bytes / sizeof(float);
		count = f->has_dimensions && (size_t)f->dimensions < count ? (size_t)f->dimensions : count;
		buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
		put_vector(g, (const float *)(const void *)values->data, count, &numbers, out);
		buf_append_char(out, '}');
		tokens += c->prompt_count;
	}
	buf_printf(out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)tokens, (unsigned long long)tokens);
	buf_fini(&numbers);
}
