/* Owns nothing; runs in the detokenizer. Never looks at a byte of text twice and never keeps any: the search
 * is Knuth, Morris and Pratt's (1977), one automaton a string, whose state is at the same time the length
 * that has to be held back. */
#include "proc_detok/stop_strings.h"

#include <string.h>

#include "common/assert.h"
#include "common/utf8.h"

static u16 string_bytes(const struct stop_strings *s, u32 i)
{
	return (u16)(s->begin[i + 1] - s->begin[i]);
}

/* border[k]: length of the longest proper prefix of the string's first k + 1 bytes that is also their suffix.
 */
static void borders_fill(const u8 *bytes, u32 count, u16 *border)
{
	border[0] = 0;
	for (u32 k = 1; k < count; k++) {
		u32 b = border[k - 1];
		while (b > 0 && bytes[b] != bytes[k])
			b = border[b - 1];
		border[k] = (u16)(bytes[b] == bytes[k] ? b + 1 : 0);
	}
}

enum err stop_strings_init(struct stop_strings *s, const u32 *lengths, u32 count, const u8 *text,
			   u32 text_bytes)
{
	s->count = 0;
	s->begin[0] = 0;
	if (count > STOP_STRINGS_MAX || text_bytes > STOP_STRING_BYTES_MAX)
		return ERR_INVALID;

	u32 at = 0;
	for (u32 i = 0; i < count; i++) {
		if (lengths[i] == 0 || lengths[i] > text_bytes - at)
			return ERR_INVALID;
		if (!utf8_valid((const char *)text + at, lengths[i]))
			return ERR_INVALID;
		borders_fill(text + at, lengths[i], s->border + at);
		at += lengths[i];
		s->begin[i + 1] = (u16)at;
		s->matched[i] = 0;
	}
	if (at != text_bytes)
		return ERR_INVALID;
	if (text_bytes > 0)
		memcpy(s->bytes, text, text_bytes);
	s->count = count;
	return ERR_OK;
}

/* The state of string `i` after byte `c`; its full length when `c` completes it. */
static u16 state_after(const struct stop_strings *s, u32 i, u8 c)
{
	const u8 *bytes = s->bytes + s->begin[i];
	const u16 *border = s->border + s->begin[i];
	u16 m = s->matched[i];

	while (m > 0 && bytes[m] != c)
		m = border[m - 1];
	return (u16)(bytes[m] == c ? m + 1 : 0);
}

bool stop_strings_push(struct stop_strings *s, const char *text, size_t bytes, bool may_match,
		       struct stop_match *out)
{
	if (s->count == 0)
		return false;
	for (size_t at = 0; at < bytes; at++) {
		u32 completed = s->count;
		for (u32 i = 0; i < s->count; i++) {
			u16 m = state_after(s, i, (u8)text[at]);
			if (m == string_bytes(s, i)) {
				if (completed == s->count)
					completed = i;
				m = s->border[s->begin[i] + m - 1];
			}
			s->matched[i] = m;
		}
		if (completed < s->count && may_match) {
			*out = (struct stop_match){completed, string_bytes(s, completed), at + 1};
			return true;
		}
	}
	return false;
}

u32 stop_strings_held(const struct stop_strings *s)
{
	u32 held = 0;
	for (u32 i = 0; i < s->count; i++) {
		DASSERT(s->matched[i] < string_bytes(s, i));
		if (s->matched[i] > held)
			held = s->matched[i];
	}
	return held;
}
