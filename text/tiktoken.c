/* Owns the reading of tiktoken's vocabulary files and their writing as tokenizer.json. Runs once while a model without
 * tokenizer.json loads. The files hold neither pattern nor special tokens: the pattern is Llama 3's or Qwen's, special
 * tokens come from tokenizer_config.json. */
#include <string.h>

#include "text/base64_priv.h"
#include "text/convert_priv.h"

enum { TOKEN_BYTES_MAX = 4096, RANK_MAX = 1 << 24 };

/* One line. */
struct entry {
	const char *base64;
	size_t base64_bytes;
	u32 rank;
};
struct lines {
	const char *at;
	const char *end;
	u32 number;
};

/* The next line that is not empty; false at the end and, with `*damaged`, where it is no entry. */
static bool next_entry(struct lines *l, struct entry *e, bool *damaged)
{
	while (l->at < l->end && (*l->at == '\n' || *l->at == '\r')) {
		l->number += *l->at == '\n';
		l->at++;
	}
	if (l->at == l->end)
		return false;
	const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
	stop = stop != NULL ? stop : l->end;
	const char *space = memchr(l->at, ' ', (size_t)(stop - l->at));
	*damaged = true;
	if (space == NULL || space == l->at || space - l->at > TOKEN_BYTES_MAX)
		return false;
	u32 rank = 0, digits = 0;
	for (const char *p = space + 1; p < stop && *p >= '0' && *p <= '9' && rank < RANK_MAX; p++, digits++)
		rank = rank * 10 + (u32)(*p - '0');
	if (digits == 0 || rank >= RANK_MAX)
		return false;
	*e = (struct entry){.base64 = l->at, .base64_bytes = (size_t)(space - l->at), .rank = rank};
	l->at = stop;
	*damaged = false;
	return true;
}

bool convert_is_tiktoken(const char *data, size_t bytes)
{
	struct lines l = {.at = data, .end = data + bytes};
	struct entry e;
	bool damaged = false;
	return next_entry(&l, &e, &damaged) && base64_digit(e.base64[0]) >= 0;
}

/* ---- the vocabulary, in raw bytes ---- */

static enum err damaged_line(const struct lines *l, struct err_msg *em)
{
	return err_set(em, ERR_FORMAT, "line %u must be \"BASE64 RANK\"", l->number + 1);
}

static enum err read_vocab(struct vocab *v, const char *data, size_t bytes, struct err_msg *em)
{
	struct lines l = {.at = data, .end = data + bytes};
	struct entry entry;
	bool damaged = false;
	u32 highest = 0, count = 0;
	size_t text_bytes = 0;
	for (; next_entry(&l, &entry, &damaged); count++) {
		highest = entry.rank > highest ? entry.rank : highest;
		text_bytes += entry.base64_bytes;
	}
	if (damaged)
		return damaged_line(&l, em);
	if (count == 0 || highest >= count * 2 + 65536)
		return err_set(em, ERR_FORMAT, "%u tokens with ranks up to %u", count, highest);
	if (vocab_init(v, highest + 1, text_bytes + count) != ERR_OK)
		return ERR_NO_MEMORY;
	l = (struct lines){.at = data, .end = data + bytes};
	while (next_entry(&l, &entry, &damaged)) {
		char token[TOKEN_BYTES_MAX];
		size_t token_bytes;
		if (!base64_decode(entry.base64, entry.base64_bytes, token, &token_bytes) || token_bytes == 0)
			return damaged_line(&l, em);
		vocab_put(v, entry.rank, token, token_bytes, TOKEN_IN_MODEL);
	}
	return ERR_OK;
}

/* ---- tokenizer.json ---- */

enum err convert_tiktoken(struct buf *out, const char *data, size_t bytes, bool qwen, json_val config,
			  struct err_msg *em)
{
	static const char byte_level[] = "{\"type\":\"ByteLevel\"}", nfc[] = "{\"type\":\"NFC\"}";
	const char *pattern = qwen ? CONVERT_WORDS_PATTERN("\\p{N}") : CONVERT_WORDS_PATTERN("\\p{N}{1,3}");
	struct vocab v = {0};
	struct json_writer w;
	struct convert_around around = {.vocab = &v, .bos = "<|begin_of_text|>", .eos = "<|end_of_text|>"};
	enum err e = read_vocab(&v, data, bytes, em);
	json_begin(&w, out);
	json_object_begin(&w);
	if (e == ERR_OK) {
		convert_write_added(&w, NULL, 0, config);
		json_key(&w, "normalizer");
		json_write_raw(&w, qwen ? nfc : "null", qwen ? sizeof(nfc) - 1 : 4);
		convert_write_split(&w, pattern, strlen(pattern), false);
		json_key(&w, "decoder");
		json_write_raw(&w, byte_level, sizeof(byte_level) - 1);
		e = convert_write_around(&w, &around, config, em);
	}
	if (e == ERR_OK)
		e = convert_write_byte_model(&w, &v);
	json_object_end(&w);
	if (e == ERR_OK && !buf_ok(out))
		e = ERR_NO_MEMORY;
	vocab_fini(&v);
	return e == ERR_NO_MEMORY ? err_set(em, e, "out of memory for the vocabulary") : e;
}
