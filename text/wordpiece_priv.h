/* WordPiece (the longest token first, from left to right) and WordLevel (a piece is a token or unknown). */
#ifndef TERCET_TEXT_WORDPIECE_PRIV_H
#define TERCET_TEXT_WORDPIECE_PRIV_H

#include "common/json.h"
#include "text/scratch_priv.h"
#include "text/vocab_priv.h"

enum { WORDPIECE_PREFIX_MAX = 32 };

struct wordpiece {
	const struct vocab *vocab; /* lent by the tokenizer */
	bool whole;                /* WordLevel */
	u32 unk_id;                /* TOKEN_NONE: an unknown piece is an error */
	u32 token_bytes_max;       /* no longer text can be a token */
	uint64_t piece_chars_max;  /* longer pieces are unknown */
	char prefix[WORDPIECE_PREFIX_MAX + 1]; /* of tokens that go on */
	u32 prefix_bytes;
};

/* From the "model" object; the vocabulary is filled already. ERR_FORMAT names the field. */
MUST_CHECK enum err wordpiece_load(struct wordpiece *w, const struct vocab *vocab, json_val model, bool whole,
				   struct err_msg *em);
/* Appends the ids of a piece (valid UTF-8, not empty). ERR_NOT_FOUND: it is unknown and there is no unknown token.
 * ERR_NO_MEMORY. */
MUST_CHECK enum err wordpiece_encode(const struct wordpiece *w, struct text_scratch *s, const char *piece,
				     size_t bytes, struct u32_vec *ids);

#endif
