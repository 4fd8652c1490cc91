/* What the parts of the reading of models in GGUF share: each turns named values of the file into one of the files that a
 * model's folder has. */
#ifndef TERCET_TEXT_GGUF_PRIV_H
#define TERCET_TEXT_GGUF_PRIV_H

#include "common/buf.h"
#include "common/err.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/types.h"

/* A string value, for "%.*s" and the like; empty where there is none. */
struct gguf_text {
	const char *text;
	size_t bytes;
};

static inline struct gguf_text gguf_text_of(const struct gguf *g, const char *key)
{
	struct gguf_text t = {"", 0};
	(void)gguf_string(g, key, &t.text, &t.bytes);
	return t;
}

bool gguf_text_is(struct gguf_text t, const char *word);

/* Each appends one file to `out`. ERR_FORMAT: a value is missing or makes no sense; ERR_UNSUPPORTED: it is understood that the
 * model has something that is not served, or not understood what it has; both name the value, what it is and what
 * it may be. ERR_NO_MEMORY. */
MUST_CHECK enum err gguf_write_config(struct buf *out, const struct gguf *g, struct err_msg *em);
MUST_CHECK enum err gguf_write_generation(struct buf *out, const struct gguf *g, struct err_msg *em);
MUST_CHECK enum err gguf_write_tokenizer_config(struct buf *out, const struct gguf *g, struct err_msg *em);
/* `config`: the root of what gguf_write_tokenizer_config wrote. */
MUST_CHECK enum err gguf_write_tokenizer(struct buf *out, const struct gguf *g, json_val config, struct err_msg *em);

/* ---- tokens ---- */

/* The token of an id that `key` holds. False: there is no such value, or no such token. */
bool gguf_token_of(const struct gguf *g, const char *key, i64 *id, struct gguf_text *text);
/* Ids that end an answer, those that the file names first; at most `room`. */
u32 gguf_end_ids(const struct gguf *g, u32 *ids, u32 room);

/* ---- how text is cut before byte-level merges ---- */

enum { GGUF_SPLITS_MAX = 5 };
struct gguf_pretok {
	const char *name;		     /* tokenizer.ggml.pre */
	const char *splits[GGUF_SPLITS_MAX]; /* regular expressions whose matches become pieces, one behind the other; NULL behind them */
	bool digits;			     /* then digits one by one */
	bool gpt2;			     /* then by GPT-2's pattern */
	bool falcon;			     /* that pattern stands before `splits`, and between them numbers as a whole; runs of signs are cut first */
	bool whole_words;		     /* what is a token as a whole is not merged ("ignore_merges") */
	bool bos;			     /* one goes in front where the file does not say */
	bool nfc;			     /* characters are composed first */
};
/* NULL: there is none of that name. */
const struct gguf_pretok *gguf_pretok_find(struct gguf_text name);
/* All names, for messages. */
void gguf_pretok_names(char *out, size_t bytes);
/* "normalizer" and "pre_tokenizer". */
void gguf_pretok_write(struct json_writer *w, const struct gguf_pretok *p);

#endif
