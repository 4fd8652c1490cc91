/* Owns the forms of log-probabilities; runs in the gateway. Never decides how many are asked for
 * (openai_fields.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "proc_gateway/logprobs.h"

void logprobs_fini(struct logprobs_writer *w)
{
	buf_fini(&w->tokens);
	buf_fini(&w->values);
	buf_fini(&w->top_values);
	buf_fini(&w->offsets);
	buf_fini(&w->scratch);
}

/* JSON has no infinities; -9999 is what clients of this API expect for "impossible". Nine digits give back
 * the same float. */
static void put_value(struct buf *out, f32 value)
{
	if (!(value >= -9999.0f))
		value = -9999.0f;
	if (value >= 0)
		value = 0; /* not -0 */
	buf_printf(out, "%.9g", (double)value);
}

static bool is_whole(const struct buf *text)
{
	return utf8_valid(text->data ? text->data : "", text->bytes);
}

/* The token as a JSON string; its bytes stay in w->scratch. */
static void put_token(struct logprobs_writer *w, struct buf *out, u32 token)
{
	char name[32];
	buf_clear(&w->scratch);
	tokenizer_token_bytes(w->tokenizer, token, &w->scratch);
	if (w->as_ids) {
		snprintf(name, sizeof(name), "\"token_id:%u\"", token);
		buf_append_str(out, name);
	} else if (w->form == LOGPROBS_COMPLETIONS && !is_whole(&w->scratch)) {
		/* this form has no field for bytes, and several parts of characters would all look the same
		 */
		buf_append_str(out, "\"bytes:");
		for (size_t i = 0; i < w->scratch.bytes; i++)
			buf_printf(out, "\\\\x%02x", (unsigned char)w->scratch.data[i]);
		buf_append_char(out, '"');
	} else {
		json_escape(out, w->scratch.data ? w->scratch.data : "", w->scratch.bytes);
	}
}

static void put_comma(struct buf *out)
{
	if (out->bytes > 0)
		buf_append_char(out, ',');
}

/* Follows the text: how many characters have begun. */
static void count_characters(struct logprobs_writer *w, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		if ((c & 0xc0) == 0x80 && w->continuation > 0) {
			w->continuation--;
			continue;
		}
		w->characters++;
		w->continuation = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
	}
}

void logprobs_skip_text(struct logprobs_writer *w, const char *text, size_t bytes)
{
	count_characters(w, text, bytes);
}

/* The alternatives, without the token's own entry in front. */
static u32 top_count(const struct logprobs_writer *w, const struct token_logprobs *t)
{
	u32 known = t->count > 0 ? t->count - 1 : 0;
	return known < w->top ? known : w->top;
}

static void add_completion(struct logprobs_writer *w, const struct token_logprobs *t)
{
	put_comma(&w->tokens);
	put_token(w, &w->tokens, t->token);
	bool hidden = w->skip_special && tokenizer_is_special(w->tokenizer, t->token);
	put_comma(&w->offsets);
	/* a token that goes on with a begun character starts where that character does */
	buf_printf(&w->offsets, "%llu", (unsigned long long)(w->characters - (w->continuation > 0 ? 1 : 0)));
	if (!hidden)
		count_characters(w, w->scratch.data ? w->scratch.data : "", w->scratch.bytes);
	put_comma(&w->values);
	put_comma(&w->top_values);
	if (t->count == 0) {
		buf_append_str(&w->values, "null");
		buf_append_str(&w->top_values, "null");
		return;
	}
	put_value(&w->values, t->values[0]);
	if (w->top == 0) {
		buf_append_str(&w->top_values, "null");
		return;
	}
	/* n or n + 1 entries: the token is always among them */
	u32 top = top_count(w, t);
	bool listed = false;
	buf_append_char(&w->top_values, '{');
	for (u32 i = 1; i <= top; i++) {
		if (i > 1)
			buf_append_char(&w->top_values, ',');
		put_token(w, &w->top_values, t->ids[i]);
		buf_append_char(&w->top_values, ':');
		put_value(&w->top_values, t->values[i]);
		listed |= t->ids[i] == t->ids[0];
	}
	if (!listed) {
		if (top > 0)
			buf_append_char(&w->top_values, ',');
		put_token(w, &w->top_values, t->ids[0]);
		buf_append_char(&w->top_values, ':');
		put_value(&w->top_values, t->values[0]);
	}
	buf_append_char(&w->top_values, '}');
}

/* "token", "logprob" and "bytes" of one token, without the braces. */
static void put_chat_token(struct logprobs_writer *w, struct buf *out, u32 token, f32 value)
{
	if (w->form == LOGPROBS_LLAMA)
		buf_printf(out, "\"id\":%u,", token);
	buf_append_str(out, "\"token\":");
	put_token(w, out, token);
	buf_append_str(out, ",\"logprob\":");
	put_value(out, value);
	buf_append_str(out, ",\"bytes\":[");
	for (size_t i = 0; i < w->scratch.bytes; i++)
		buf_printf(out, i ? ",%u" : "%u", (unsigned)(unsigned char)w->scratch.data[i]);
	buf_append_char(out, ']');
}

static void add_chat(struct logprobs_writer *w, const struct token_logprobs *t)
{
	struct buf *out = &w->tokens;
	put_comma(out);
	buf_append_char(out, '{');
	put_chat_token(w, out, t->token, t->count > 0 ? t->values[0] : -9999.0f);
	buf_append_str(out, ",\"top_logprobs\":[");
	u32 top = top_count(w, t);
	for (u32 i = 1; i <= top; i++) {
		buf_append_str(out, i > 1 ? ",{" : "{");
		put_chat_token(w, out, t->ids[i], t->values[i]);
		buf_append_char(out, '}');
	}
	buf_append_str(out, "]}");
}

void logprobs_add(struct logprobs_writer *w, const struct token_logprobs *t)
{
	if (w->form == LOGPROBS_NONE)
		return;
	w->count++;
	if (w->form == LOGPROBS_COMPLETIONS)
		add_completion(w, t);
	else
		add_chat(w, t);
}

static void put_array(struct buf *out, const char *key, const struct buf *items)
{
	buf_append_str(out, key);
	buf_append(out, items->data ? items->data : "", items->bytes);
	buf_append_char(out, ']');
}

void logprobs_take(struct logprobs_writer *w, struct buf *out)
{
	if (w->form == LOGPROBS_NONE || w->count == 0) {
		buf_append_str(out, "null");
		return;
	}
	if (w->form == LOGPROBS_LLAMA) {
		put_array(out, "[", &w->tokens);
	} else if (w->form == LOGPROBS_CHAT) {
		put_array(out, "{\"content\":[", &w->tokens);
		buf_append_str(out, ",\"refusal\":null}");
	} else {
		put_array(out, "{\"tokens\":[", &w->tokens);
		put_array(out, ",\"token_logprobs\":[", &w->values);
		if (w->top > 0)
			put_array(out, ",\"top_logprobs\":[", &w->top_values);
		else
			buf_append_str(out, ",\"top_logprobs\":null");
		put_array(out, ",\"text_offset\":[", &w->offsets);
		buf_append_char(out, '}');
	}
	buf_clear(&w->tokens);
	buf_clear(&w->values);
	buf_clear(&w->top_values);
	buf_clear(&w->offsets);
	w->count = 0;
}

/* ---------------------------------------------------------------- prompts */

void prompt_logprobs_fini(struct prompt_logprobs *p)
{
	u32_vec_fini(&p->positions);
	u32_vec_fini(&p->counts);
	u32_vec_fini(&p->ranks);
	u32_vec_fini(&p->ids);
	buf_fini(&p->values);
}

bool prompt_logprobs_add(struct prompt_logprobs *p, const struct tercet_logprobs *more)
{
	size_t listed = 0;
	for (u32 i = 0; i < more->count; i++)
		listed += more->counts[i];
	u32_vec_append(&p->positions, more->positions, more->count);
	u32_vec_append(&p->counts, more->counts, more->count);
	u32_vec_append(&p->ranks, more->ranks, more->count);
	u32_vec_append(&p->ids, more->ids, listed);
	buf_append(&p->values, more->values, listed * sizeof(f32));
	return !p->positions.failed && !p->counts.failed && !p->ranks.failed && !p->ids.failed &&
	       buf_ok(&p->values);
}

/* Walks the elements in the order of their positions. */
struct prompt_cursor {
	const struct prompt_logprobs *p;
	size_t element, listed;
};

static struct token_logprobs cursor_at(struct prompt_cursor *c, const u32 *prompt, u32 position)
{
	const struct prompt_logprobs *p = c->p;
	struct token_logprobs t = {.token = prompt[position]};
	if (c->element < p->positions.count && p->positions.data[c->element] == position) {
		t.rank = p->ranks.data[c->element];
		t.count = p->counts.data[c->element];
		t.ids = p->ids.data + c->listed;
		t.values = (const f32 *)(const void *)p->values.data + c->listed;
		c->listed += t.count;
		c->element++;
	}
	return t;
}

void prompt_logprobs_echo(const struct prompt_logprobs *p, const u32 *prompt, u32 count,
			  struct logprobs_writer *w)
{
	struct prompt_cursor cursor = {.p = p};
	for (u32 i = 0; i < count; i++) {
		struct token_logprobs t = cursor_at(&cursor, prompt, i);
		logprobs_add(w, &t);
	}
}

static void put_prompt_entry(struct buf *out, struct buf *scratch, const struct tokenizer *t, u32 id,
			     f32 value, u32 rank)
{
	buf_printf(out, "\"%u\":{\"logprob\":", id);
	put_value(out, value);
	buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
	buf_clear(scratch);
	tokenizer_token_bytes(t, id, scratch);
	json_escape(out, scratch->data ? scratch->data : "", scratch->bytes);
	buf_append_char(out, '}');
}

void prompt_logprobs_write(const struct prompt_logprobs *p, const u32 *prompt, u32 count, u32 top,
			   const struct tokenizer *t, struct buf *out)
{
	struct prompt_cursor cursor = {.p = p};
	struct buf scratch = {0};
	buf_append_char(out, '[');
	for (u32 i = 0; i < count; i++) {
		struct token_logprobs l = cursor_at(&cursor, prompt, i);
		if (i > 0)
			buf_append_char(out, ',');
		if (l.count == 0) {
			buf_append_str(out, "null");
			continue;
		}
		buf_append_char(out, '{');
		put_prompt_entry(out, &scratch, t, l.ids[0], l.values[0], l.rank);
		for (u32 k = 1; k < l.count && k <= top; k++) {
			if (l.ids[k] == l.ids[0])
				continue;
			buf_append_char(out, ',');
			put_prompt_entry(out, &scratch, t, l.ids[k], l.values[k], k);
		}
		buf_append_char(out, '}');
	}
	buf_append_char(out, ']');
	buf_fini(&scratch);
}
