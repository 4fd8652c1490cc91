/* Owns WordPiece and WordLevel models. Runs where text is encoded. Allocates in the output only. */
#include "text/wordpiece_priv.h"

#include <string.h>

#include "common/assert.h"
#include "text/piece_cache_priv.h"
#include "text/unicode_priv.h"

static enum err put_unknown(const struct wordpiece *w, struct u32_vec *ids)
{
	if (w->unk_id == TOKEN_NONE)
		return ERR_NOT_FOUND;
	u32_vec_push(ids, w->unk_id);
	return ERR_OK;
}

/* The longest token that begins at `at`; its end goes to *end. TOKEN_NONE: none. */
static u32 longest_token(const struct wordpiece *w, struct buf *spelled, const char *piece, size_t bytes, size_t at,
			 size_t *end)
{
	size_t prefix = at > 0 ? w->prefix_bytes : 0, longest = bytes - at;
	if (prefix > w->token_bytes_max)
		return TOKEN_NONE;
	if (longest > w->token_bytes_max - prefix)
		longest = w->token_bytes_max - prefix;
	buf_clear(spelled);
	buf_append(spelled, w->prefix, prefix);
	buf_append(spelled, piece + at, longest);
	if (spelled->failed)
		return TOKEN_NONE;
	for (size_t n = longest; n > 0; n--) {
		if (at + n < bytes && ((u8)piece[at + n] & 0xc0) == 0x80)
			continue; /* inside a character */
		u32 id = vocab_find_in_model(w->vocab, spelled->data, prefix + n);
		if (id == TOKEN_NONE)
			continue;
		*end = at + n;
		return id;
	}
	return TOKEN_NONE;
}

static size_t count_chars(const char *text, size_t bytes)
{
	size_t n = 0;
	for (size_t i = 0; i < bytes; i++)
		n += ((u8)text[i] & 0xc0) != 0x80;
	return n;
}

static enum err cut_piece(const struct wordpiece *w, struct buf *spelled, const char *piece, size_t bytes,
			  struct u32_vec *ids)
{
	size_t before = ids->count;
	if (w->whole) {
		u32 id = vocab_find_in_model(w->vocab, piece, bytes);
		if (id == TOKEN_NONE)
			return put_unknown(w, ids);
		u32_vec_push(ids, id);
		return ERR_OK;
	}
	if (bytes > w->piece_chars_max && count_chars(piece, bytes) > w->piece_chars_max)
		return put_unknown(w, ids);
	for (size_t at = 0; at < bytes;) {
		u32 id = longest_token(w, spelled, piece, bytes, at, &at);
		if (spelled->failed)
			return ERR_NO_MEMORY;
		if (id == TOKEN_NONE) { /* one part unknown: all of it is */
			ids->count = before;
			return put_unknown(w, ids);
		}
		u32_vec_push(ids, id);
	}
	return ERR_OK;
}

enum err wordpiece_encode(const struct wordpiece *w, struct text_scratch *s, const char *piece, size_t bytes,
			  struct u32_vec *ids)
{
	struct piece_place place;
	ASSERT(bytes > 0);
	if (piece_recall(s, piece, bytes, ids, &place))
		return ERR_OK;
	size_t before = ids->count;
	enum err e = cut_piece(w, &s->spelled, piece, bytes, ids);
	if (e == ERR_OK && ids->failed)
		e = ERR_NO_MEMORY;
	if (e == ERR_OK)
		piece_remember(&place, piece, bytes, ids->data + before, ids->count - before);
	return e;
}

enum err wordpiece_load(struct wordpiece *w, const struct vocab *vocab, json_val model, bool whole, struct err_msg *em)
{
	const char *unk = json_cstr(json_get(model, "unk_token"), whole ? "<unk>" : "[UNK]");
	const char *prefix = json_cstr(json_get(model, "continuing_subword_prefix"), "##");
	*w = (struct wordpiece){.vocab = vocab, .whole = whole, .piece_chars_max = 100};
	w->unk_id = vocab_find_in_model(vocab, unk, strlen(unk));
	if (strlen(prefix) > WORDPIECE_PREFIX_MAX)
		return err_set(em, ERR_FORMAT, "model.continuing_subword_prefix is longer than %d bytes",
			       WORDPIECE_PREFIX_MAX);
	w->prefix_bytes = (u32)strlen(prefix);
	memcpy(w->prefix, prefix, w->prefix_bytes);
	json_val most = json_get(model, "max_input_chars_per_word");
	if (json_present(most) && !json_uint(most, &w->piece_chars_max))
		return err_set(em, ERR_FORMAT, "model.max_input_chars_per_word must be a number of characters");
	for (u32 id = 0; id < vocab->count; id++)
		if ((vocab->tokens[id].flags & TOKEN_IN_MODEL) && vocab->tokens[id].bytes > w->token_bytes_max)
			w->token_bytes_max = vocab->tokens[id].bytes;
	return ERR_OK;
}
