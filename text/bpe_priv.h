/* Byte-pair encoding of one piece of text. */
#ifndef TERCET_TEXT_BPE_PRIV_H
#define TERCET_TEXT_BPE_PRIV_H

#include "common/json.h"
#include "text/scratch_priv.h"
#include "text/vocab_priv.h"

enum { BPE_AFFIX_BYTES_MAX = 32 };

struct bpe {
	const struct vocab *vocab; /* lent by the tokenizer */
	struct merges merges;
	/* Symbols are raw bytes: the last pre-tokenizer maps bytes to characters, and so does every token. Without it
	 * symbols are characters. */
	bool raw_bytes;
	bool ignore_merges; /* a piece that is a token is that token */
	bool byte_fallback;
	bool fuse_unk;
	u32 unk_id;         /* TOKEN_NONE: characters outside the vocabulary vanish */
	char *prefix;       /* continuing_subword_prefix, "" when none; owned */
	char *suffix;       /* end_of_word_suffix */
	u32 byte_ids[256];  /* raw_bytes: the token of the byte; byte_fallback: <0xXX> */
	u32 *char_ids;      /* [65536] tokens of one character in the basic plane; not with prefix or suffix */
	/* No merged token has U+2581 behind another character: a text may be cut in front of each run of U+2581. */
	bool cut_at_metaspace;
};

/* From the "model" object; the vocabulary is filled already. ERR_FORMAT names the merge or field. */
MUST_CHECK enum err bpe_load(struct bpe *b, const struct vocab *vocab, json_val model, bool raw_bytes,
			     struct err_msg *em);
void bpe_fini(struct bpe *b);
/* Appends the ids of a piece (raw_bytes: its bytes, else valid UTF-8). ERR_NO_MEMORY. */
MUST_CHECK enum err bpe_encode(const struct bpe *b, struct text_scratch *s, const char *piece, size_t bytes,
			       struct u32_vec *ids);

#endif
