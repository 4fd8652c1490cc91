/* Owns the way of a text to ids: added tokens, normalizer, pre-tokenizers, model, post-processor. Runs in the gateway
 * and the tercet command, on any thread that has a scratch. Allocates only until the scratch has reached its size. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/tokenizer_priv.h"
#include "text/unicode_priv.h"

enum {
	/* What a scratch may keep after an unusually long piece. */
	SYMBOLS_KEPT_MAX = 1 << 18,
	TEXT_KEPT_MAX = 4 << 20,
};

struct encoding {
	const struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct u32_vec *ids;
	bool plain;
};

/* A special token that is not to be seen stays in the gap around it. */
static bool is_text(const struct encoding *enc, const struct added_match *m)
{
	return enc->plain && tokenizer_is_special(enc->tokenizer, m->id);
}

static enum err encode_piece(void *ctx, const char *piece, size_t bytes)
{
	struct encoding *enc = ctx;
	const struct tokenizer *t = enc->tokenizer;
	switch (t->model) {
	case MODEL_BPE:
		return bpe_encode(&t->bpe, enc->scratch, piece, bytes, enc->ids);
	case MODEL_UNIGRAM:
		return unigram_encode(&t->unigram, enc->scratch, piece, bytes, enc->ids);
	case MODEL_WORDPIECE:
	case MODEL_WORDLEVEL:
		break;
	}
	return wordpiece_encode(&t->wordpiece, enc->scratch, piece, bytes, enc->ids);
}

/* Bytes of the first character, which is where the original text begins. */
static size_t first_char(const char *text, size_t bytes)
{
	size_t n = bytes > 0 ? unicode_bytes((u8)text[0]) : 0;
	return n < bytes ? n : bytes;
}

/* The part [from, to) of normalised text without added tokens. */
static enum err encode_stretch(struct encoding *enc, const struct norm_text *t, size_t from, size_t to)
{
	struct pretok_run run = {.pretokenizer = &enc->tokenizer->pretokenizer,
				 .scratch = enc->scratch,
				 .emit = encode_piece,
				 .ctx = enc};
	struct piece p = {.text = t->text + from, .bytes = to - from, .origin = t->origin > from ? t->origin - from : 0};
	return pretokenizer_run(&run, p);
}

/* A stretch between added tokens of the original text. */
static enum err encode_gap(struct encoding *enc, const char *text, size_t bytes, bool first)
{
	const struct tokenizer *t = enc->tokenizer;
	struct norm_text normal = {.text = text, .bytes = bytes, .origin = first ? first_char(text, bytes) : 0};
	if (bytes == 0)
		return ERR_OK;
	enum err e = normalizer_run(&t->normalizer, &enc->scratch->regex, enc->scratch->normal, &normal);
	struct added_cursor cursor = {0};
	struct added_match m;
	while (e == ERR_OK && added_set_next(&t->added_normalized, normal.text, normal.bytes, &cursor, &m)) {
		if (is_text(enc, &m))
			continue;
		if (cursor.gap < m.begin)
			e = encode_stretch(enc, &normal, cursor.gap, m.begin);
		u32_vec_push(enc->ids, m.id);
		cursor.gap = m.end;
	}
	if (e == ERR_OK && cursor.gap < normal.bytes)
		e = encode_stretch(enc, &normal, cursor.gap, normal.bytes);
	return e;
}

static enum err encode_text(struct encoding *enc, const char *text, size_t bytes)
{
	const struct tokenizer *t = enc->tokenizer;
	struct added_cursor cursor = {0};
	struct added_match m;
	enum err e = ERR_OK;
	while (e == ERR_OK && added_set_next(&t->added, text, bytes, &cursor, &m)) {
		if (is_text(enc, &m))
			continue;
		if (cursor.gap < m.begin)
			e = encode_gap(enc, text + cursor.gap, m.begin - cursor.gap, cursor.gap == 0);
		u32_vec_push(enc->ids, m.id);
		cursor.gap = m.end;
	}
	if (e == ERR_OK && cursor.gap < bytes)
		e = encode_gap(enc, text + cursor.gap, bytes - cursor.gap, cursor.gap == 0);
	return e;
}

/* Remembered pieces belong to one tokenizer. */
static void adopt_scratch(const struct tokenizer *t, struct text_scratch *s)
{
	if (s->owner == t->id)
		return;
	memset(s->pieces, 0, (size_t)PIECE_SETS * PIECE_WAYS * sizeof(*s->pieces));
	s->owner = t->id;
}

static void trim_buf(struct buf *b)
{
	if (b->capacity > TEXT_KEPT_MAX)
		buf_fini(b);
}

static void trim_scratch(struct text_scratch *s)
{
	if (s->symbols_max > SYMBOLS_KEPT_MAX) {
		free(s->symbols);
		free(s->heap);
		s->symbols = NULL;
		s->heap = NULL;
		s->symbols_max = s->heap_max = 0;
	}
	if (s->paths_max > SYMBOLS_KEPT_MAX) {
		free(s->paths);
		s->paths = NULL;
		s->paths_max = 0;
	}
	trim_buf(&s->spelled);
	for (u32 i = 0; i < PRETOK_STAGES_MAX; i++) {
		trim_buf(&s->stage_text[i]);
		if (s->stage_spans_max[i] > SYMBOLS_KEPT_MAX) {
			free(s->stage_spans[i]);
			s->stage_spans[i] = NULL;
			s->stage_spans_max[i] = 0;
		}
	}
	trim_buf(&s->normal[0]);
	trim_buf(&s->normal[1]);
}

enum err tokenizer_encode(const struct tokenizer *t, struct text_scratch *s, const char *text, size_t bytes, u32 flags,
			  struct u32_vec *ids, struct err_msg *em)
{
	if (bytes > TEXT_BYTES_MAX)
		return err_set(em, ERR_TOO_LONG, "the text has %zu bytes; at most %u can be encoded at once", bytes,
			       TEXT_BYTES_MAX);
	if (!utf8_valid(text, bytes))
		return err_set(em, ERR_FORMAT, "the text is not valid UTF-8");
	adopt_scratch(t, s);
	struct encoding enc = {.tokenizer = t, .scratch = s, .ids = ids, .plain = (flags & TEXT_PLAIN) != 0};
	if (flags & TEXT_ADD_SPECIAL)
		u32_vec_append(ids, t->before.data, t->before.count);
	enum err e = encode_text(&enc, text, bytes);
	if (e == ERR_OK && (flags & TEXT_ADD_SPECIAL))
		u32_vec_append(ids, t->after.data, t->after.count);
	if (bytes > SYMBOLS_KEPT_MAX)
		trim_scratch(s);
	if (e == ERR_OK && ids->failed)
		e = ERR_NO_MEMORY;
	if (e == ERR_TOO_LONG)
		return err_set(em, e, "the pre-tokenizer's pattern needs too many steps for this text");
	if (e == ERR_NOT_FOUND)
		return err_set(em, ERR_UNSUPPORTED,
			       "the text has a part that the vocabulary lacks, and the tokenizer has no unknown token");
	return e == ERR_OK ? ERR_OK : err_set(em, e, "encoding: %s", err_text(e));
}
