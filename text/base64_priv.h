/* Base64 as files of tokenizers hold it: the standard alphabet, padded or not, no white space. */
#ifndef TERCET_TEXT_BASE64_PRIV_H
#define TERCET_TEXT_BASE64_PRIV_H

#include <stddef.h>

#include "common/types.h"

static inline int base64_digit(char c)
{
	return c >= 'A' && c <= 'Z'   ? c - 'A'
	       : c >= 'a' && c <= 'z' ? c - 'a' + 26
	       : c >= '0' && c <= '9' ? c - '0' + 52
	       : c == '+'             ? 62
	       : c == '/'             ? 63
				      : -1;
}

/* Writes at most bytes / 4 * 3 + 3 bytes to `out`; false when the text is no base64. */
static inline bool base64_decode(const char *text, size_t bytes, char *out, size_t *out_bytes)
{
	u32 bits = 0, digits = 0;
	*out_bytes = 0;
	while (bytes > 0 && text[bytes - 1] == '=')
		bytes--;
	for (size_t i = 0; i < bytes; i++) {
		int d = base64_digit(text[i]);
		if (d < 0)
			return false;
		bits = bits << 6 | (u32)d;
		digits += 6;
		if (digits < 8)
			continue;
		digits -= 8;
		out[(*out_bytes)++] = (char)(bits >> digits & 0xff);
	}
	return bytes % 4 != 1;
}

#endif
