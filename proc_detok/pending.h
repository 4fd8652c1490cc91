/* What a stream has decoded and not yet given out: tokens, their text and their log-probabilities, kept
 * together so that they can only leave together. Pure. */
#ifndef TERCET_PROC_DETOK_PENDING_H
#define TERCET_PROC_DETOK_PENDING_H

#include "common/buf.h"
#include "common/types.h"

/* The log-probabilities of one token: the sampled id first, then the best. Borrowed. count 0: none. */
struct token_logprobs {
	u32 rank;
	u32 count;
	const u32 *ids;
	const f32 *values;
};

struct pending_token {
	u32 token;
	u32 text_end; /* of this token in `text` */
	u32 lp_end;   /* of this token in `lp` */
	u32 whole;    /* the text up to text_end ends no character in its middle */
};

/* Zero-initialised is empty and valid. Memory is kept for the next use until pending_fini. */
struct pending {
	u32 first;	   /* output number of tokens[0] */
	struct buf tokens; /* struct pending_token */
	struct buf text;
	struct u32_vec lp;  /* per listed token: rank, count, ids, values' bits */
	struct u32_vec plp; /* per prompt position: position, rank, count, ids, values' bits */
};

void pending_fini(struct pending *p);
void pending_clear(struct pending *p, u32 first);
u32 pending_count(const struct pending *p);
const struct pending_token *pending_tokens(const struct pending *p);
/* Memory that counts against the client's limit. */
size_t pending_bytes(const struct pending *p);
/* False after memory ran out: something is missing. */
bool pending_ok(const struct pending *p);

/* Text appended to `p->text` before the call belongs to the new token. */
void pending_push(struct pending *p, u32 token, const struct token_logprobs *lp, bool whole);
/* Adds the bytes that are behind the last token's end to the last token. */
void pending_extend(struct pending *p, bool whole);
/* Cuts the text to its first `bytes` bytes; tokens behind give no text. */
void pending_cut(struct pending *p, size_t bytes);
void pending_push_prompt(struct pending *p, u32 position, const struct token_logprobs *lp);

/* The number of tokens that may leave when the last `held_bytes` bytes of text may not: the most whose text
 * ends on whole characters in front of them. `bytes_max` bounds what they weigh; at least one whole group
 * passes. */
u32 pending_ready(const struct pending *p, size_t held_bytes, size_t bytes_max);
/* The most of the first `count` tokens (as pending_ready counts them) that either all have log-probabilities
 * or all have none: those opened again after a restart come without. */
u32 pending_alike(const struct pending *p, u32 count);
/* Forgets the first `tokens` tokens with everything of theirs. */
void pending_consume(struct pending *p, u32 tokens);

#endif
