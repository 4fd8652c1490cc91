/* Character classes as the reference tokenizers see them, and UTF-8 that is already known to be valid. */
#ifndef TERCET_TEXT_UNICODE_PRIV_H
#define TERCET_TEXT_UNICODE_PRIV_H

#include "common/types.h"

bool unicode_is_space(u32 c);   /* White_Space */
bool unicode_is_numeric(u32 c); /* Nd, Nl, No */
bool unicode_is_punct(u32 c);   /* ASCII punctuation (symbols too) or category P */
bool unicode_is_word(u32 c);    /* \w: letters, marks, numbers of Nd and Nl, connectors, joiners */
bool unicode_is_mark(u32 c);    /* Mn, Mc, Me */
bool unicode_is_nonspacing(u32 c); /* Mn */
bool unicode_is_control(u32 c); /* Cc, Cf, Co, Cs, Cn */
bool unicode_is_cjk(u32 c);     /* the ideograph blocks that BERT separates */

/* Bytes of the character that begins with `lead`. */
static inline u32 unicode_bytes(u8 lead)
{
	return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Decodes the character at *at of valid UTF-8 and steps over it. */
static inline u32 unicode_next(const char *text, size_t *at)
{
	const u8 *p = (const u8 *)text + *at;
	if (p[0] < 0x80) {
		*at += 1;
		return p[0];
	}
	if (p[0] < 0xe0) {
		*at += 2;
		return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
	}
	if (p[0] < 0xf0) {
		*at += 3;
		return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
	}
	*at += 4;
	return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* The start of the character that ends before `at` (> 0). */
static inline size_t unicode_prev(const char *text, size_t at)
{
	do {
		at--;
	} while (at > 0 && ((u8)text[at] & 0xc0) == 0x80);
	return at;
}

/* GPT-2's printable stand-ins for bytes: what is printable in Latin-1 stands for itself, the other 68 bytes follow
 * from U+0100 on. */
static inline u32 byte_level_char(u8 b)
{
	if (b <= 32)
		return 256u + b;
	if (b >= 127 && b <= 160)
		return 289u + (b - 127u);
	return b == 173 ? 323u : b;
}

/* The byte that `c` stands for; -1 when it stands for none. */
static inline int byte_level_byte(u32 c)
{
	if (c >= 256 && c <= 288)
		return (int)c - 256;
	if (c >= 289 && c <= 322)
		return (int)c - 289 + 127;
	if (c == 323)
		return 173;
	return (c >= 33 && c <= 126) || (c >= 161 && c <= 255 && c != 173) ? (int)c : -1;
}

#endif
