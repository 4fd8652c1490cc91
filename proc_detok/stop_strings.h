/* The stop strings of one request, searched in a text that comes in pieces. Pure. */
#ifndef TERCET_PROC_DETOK_STOP_STRINGS_H
#define TERCET_PROC_DETOK_STOP_STRINGS_H

#include "common/err.h"
#include "common/sampling_params.h"
#include "common/types.h"

/* Caller's memory, no pointers inside: may be copied. Zero-initialised is a valid set of no strings. */
struct stop_strings {
	u32 count;
	u16 begin[STOP_STRINGS_MAX + 1];   /* string i is bytes[begin[i], begin[i + 1]) */
	u16 matched[STOP_STRINGS_MAX];	   /* longest prefix of string i that the text so far ends with */
	u16 border[STOP_STRING_BYTES_MAX]; /* longest proper border of string i's first k + 1 bytes */
	u8 bytes[STOP_STRING_BYTES_MAX];
};

struct stop_match {
	u32 index;	 /* in the request's list */
	u32 bytes;	 /* length of the string */
	size_t consumed; /* bytes of the pushed piece up to and including the match's last one */
};

/* `lengths`: the length of each string; `text`: the strings one behind the other. Forgets all earlier text.
 * ERR_INVALID: a length of 0, more strings or bytes than the limits, lengths that do not add up to
 * `text_bytes`, or a string that is not UTF-8; the set is then empty. */
MUST_CHECK enum err stop_strings_init(struct stop_strings *s, const u32 *lengths, u32 count, const u8 *text,
				      u32 text_bytes);

/* Reads `bytes` more bytes of text (whole characters). True at the first byte that completes a string; when
 * several end there, the first in the list. What lies behind the match is not read. With `may_match` false
 * completed strings are passed over, but a match may begin in this text and complete later. */
bool stop_strings_push(struct stop_strings *s, const char *text, size_t bytes, bool may_match,
		       struct stop_match *out);

/* Bytes at the end of the text that could still become a stop: the longest suffix that is a proper prefix of
 * one. */
u32 stop_strings_held(const struct stop_strings *s);

#endif
