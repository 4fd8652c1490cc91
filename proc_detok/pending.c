/* Owns the buffers of one stream between decoding and the next chunk; runs in the detokenizer. Never splits a
 * token from its text or from its log-probabilities. */
#include "proc_detok/pending.h"

#include <string.h>

#include "common/assert.h"

void pending_fini(struct pending *p)
{
	buf_fini(&p->tokens);
	buf_fini(&p->text);
	u32_vec_fini(&p->lp);
	u32_vec_fini(&p->plp);
	p->first = 0;
}

void pending_clear(struct pending *p, u32 first)
{
	buf_clear(&p->tokens);
	buf_clear(&p->text);
	u32_vec_clear(&p->lp);
	u32_vec_clear(&p->plp);
	p->first = first;
}

u32 pending_count(const struct pending *p)
{
	return (u32)(p->tokens.bytes / sizeof(struct pending_token));
}

const struct pending_token *pending_tokens(const struct pending *p)
{
	return (const struct pending_token *)(const void *)p->tokens.data;
}

static struct pending_token *tokens_of(struct pending *p)
{
	return (struct pending_token *)(void *)p->tokens.data;
}

size_t pending_bytes(const struct pending *p)
{
	return pending_count(p) * sizeof(u32) + p->text.bytes + (p->lp.count + p->plp.count) * sizeof(u32);
}

bool pending_ok(const struct pending *p)
{
	return !p->tokens.failed && !p->text.failed && !p->lp.failed && !p->plp.failed;
}

static void logprobs_append(struct u32_vec *v, const struct token_logprobs *lp)
{
	u32_vec_push(v, lp->rank);
	u32_vec_push(v, lp->count);
	u32_vec_append(v, lp->ids, lp->count);
	if (!u32_vec_reserve(v, lp->count))
		return;
	memcpy(v->data + v->count, lp->values, lp->count * sizeof(u32));
	v->count += lp->count;
}

void pending_push(struct pending *p, u32 token, const struct token_logprobs *lp, bool whole)
{
	if (lp->count > 0)
		logprobs_append(&p->lp, lp);
	struct pending_token t = {
		.token = token,
		.text_end = (u32)p->text.bytes,
		.lp_end = (u32)p->lp.count,
		.whole = whole,
	};
	buf_append(&p->tokens, &t, sizeof(t));
}

void pending_extend(struct pending *p, bool whole)
{
	u32 count = pending_count(p);
	if (count == 0)
		return;
	tokens_of(p)[count - 1].text_end = (u32)p->text.bytes;
	tokens_of(p)[count - 1].whole = whole;
}

void pending_cut(struct pending *p, size_t bytes)
{
	ASSERT(bytes <= p->text.bytes);
	p->text.bytes = bytes;
	struct pending_token *t = tokens_of(p);
	for (u32 i = pending_count(p); i > 0 && t[i - 1].text_end > bytes; i--)
		t[i - 1].text_end = (u32)bytes;
}

void pending_push_prompt(struct pending *p, u32 position, const struct token_logprobs *lp)
{
	u32_vec_push(&p->plp, position);
	logprobs_append(&p->plp, lp);
}

u32 pending_ready(const struct pending *p, size_t held_bytes, size_t bytes_max)
{
	ASSERT(held_bytes <= p->text.bytes);
	const struct pending_token *t = pending_tokens(p);
	size_t text_free = p->text.bytes - held_bytes;
	u32 count = pending_count(p);
	u32 ready = 0;

	for (u32 i = 0; i < count && t[i].text_end <= text_free; i++) {
		size_t weight = (i + 1 + (size_t)t[i].lp_end) * sizeof(u32) + t[i].text_end;
		if (weight > bytes_max && ready > 0)
			break;
		if (t[i].whole)
			ready = i + 1;
	}
	return ready;
}

u32 pending_alike(const struct pending *p, u32 count)
{
	const struct pending_token *t = pending_tokens(p);
	u32 alike = 0;

	for (u32 i = 0; i < count; i++) {
		bool listed = t[i].lp_end > (i > 0 ? t[i - 1].lp_end : 0);
		if (listed != (t[0].lp_end > 0) && alike > 0)
			return alike;
		if (t[i].whole)
			alike = i + 1;
	}
	return alike;
}

static void u32_vec_shift(struct u32_vec *v, size_t count)
{
	ASSERT(count <= v->count);
	if (count > 0)
		memmove(v->data, v->data + count, (v->count - count) * sizeof(u32));
	v->count -= count;
}

void pending_consume(struct pending *p, u32 tokens)
{
	u32 count = pending_count(p);
	ASSERT(tokens <= count);
	if (tokens == 0)
		return;
	struct pending_token *t = tokens_of(p);
	u32 text_end = t[tokens - 1].text_end;
	u32 lp_end = t[tokens - 1].lp_end;

	for (u32 i = tokens; i < count; i++) {
		t[i].text_end -= text_end;
		t[i].lp_end -= lp_end;
	}
	buf_consume(&p->tokens, tokens * sizeof(*t));
	buf_consume(&p->text, text_end);
	u32_vec_shift(&p->lp, lp_end);
	p->first += tokens;
}
