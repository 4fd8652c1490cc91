/* Unigram models: of all ways to cut a piece into tokens, the one with the highest sum of scores. */
#ifndef TERCET_TEXT_UNIGRAM_PRIV_H
#define TERCET_TEXT_UNIGRAM_PRIV_H

#include "common/json.h"
#include "text/scratch_priv.h"
#include "text/vocab_priv.h"

struct unigram {
	const struct vocab *vocab; /* lent by the tokenizer */
	double *scores;            /* [vocabulary], log-probabilities */
	/* The tokens as a trie: (node, byte) -> the node behind it and, as rank, the token that ends there. */
	struct merges trie;
	double unk_score;          /* of a character that is no token */
	u32 unk_id;                /* TOKEN_NONE: such a character is an error */
	bool byte_fallback;
	u32 byte_ids[256];         /* <0xXX> */
};

/* From the "model" object; the vocabulary is filled already. ERR_FORMAT names the field. */
MUST_CHECK enum err unigram_load(struct unigram *u, const struct vocab *vocab, json_val model, struct err_msg *em);
void unigram_fini(struct unigram *u);
/* Appends the ids of a piece (valid UTF-8, not empty). ERR_NOT_FOUND: a character is outside the vocabulary and there
 * is no unknown token. ERR_NO_MEMORY. */
MUST_CHECK enum err unigram_encode(const struct unigram *u, struct text_scratch *s, const char *piece, size_t bytes,
				   struct u32_vec *ids);

#endif
