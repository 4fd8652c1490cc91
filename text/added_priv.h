/* Added tokens: found in the text before anything else happens to it. */
#ifndef TERCET_TEXT_ADDED_PRIV_H
#define TERCET_TEXT_ADDED_PRIV_H

#include "common/err.h"
#include "common/types.h"

enum added_flag {
	ADDED_LSTRIP = 1u << 0, /* takes in the white space on its left */
	ADDED_RSTRIP = 1u << 1,
	ADDED_SINGLE_WORD = 1u << 2, /* not inside a word */
};

struct added_token {
	char *text; /* owned */
	u32 bytes;
	u32 id;
	u32 flags;
	u32 order; /* in the file: of two equal texts the first wins */
};

/* Tokens sorted by bytes, with the range of each first byte: a position without a first byte costs one look-up. */
struct added_set {
	struct added_token *tokens;
	u32 count;
	u32 first[257];
};

/* Copies the text (not empty). ERR_NO_MEMORY. */
MUST_CHECK enum err added_set_add(struct added_set *s, const char *text, size_t bytes, u32 id, u32 flags);
/* Sorts; call it once, after the last add. */
void added_set_finish(struct added_set *s);
void added_set_fini(struct added_set *s);

/* Goes through a text from left to right, longest match first. Start with a zeroed cursor; the gap before a match is
 * [gap, begin), and behind the last one [gap, bytes). */
struct added_cursor {
	size_t at;
	size_t gap;
};
struct added_match {
	size_t begin;
	size_t end;
	u32 id;
};
bool added_set_next(const struct added_set *s, const char *text, size_t bytes, struct added_cursor *cursor,
		    struct added_match *match);

#endif
