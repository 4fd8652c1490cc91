/* Strict UTF-8 after the Unicode Standard, table 3-7 (well-formed byte sequences). Pure. */
#include "common/utf8.h"

#include <string.h>

/* What a lead byte promises: length, and the range of the second byte, which is where overlong forms,
 * surrogates and code points above U+10FFFF are excluded. Length 0: no lead byte. */
struct lead {
	unsigned char length, low, high;
};

static struct lead lead_of(unsigned char c)
{
	if (c < 0x80)
		return (struct lead){1, 0, 0};
	if (c < 0xc2)
		return (struct lead){0, 0, 0};
	if (c < 0xe0)
		return (struct lead){2, 0x80, 0xbf};
	if (c < 0xf0)
		return (struct lead){3, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf};
	if (c < 0xf5)
		return (struct lead){4, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf};
	return (struct lead){0, 0, 0};
}

int utf8_next(const char *text, size_t bytes, uint32_t *code)
{
	const unsigned char *p = (const unsigned char *)text;

	if (bytes == 0)
		return 0;
	struct lead lead = lead_of(p[0]);
	if (lead.length == 0)
		return -1;
	if (lead.length == 1) {
		*code = p[0];
		return 1;
	}
	uint32_t value = p[0] & (0x7fu >> lead.length);
	for (int i = 1; i < lead.length; i++) {
		if ((size_t)i == bytes)
			return 0;
		unsigned char low = i == 1 ? lead.low : 0x80;
		unsigned char high = i == 1 ? lead.high : 0xbf;
		if (p[i] < low || p[i] > high)
			return -i;
		value = value << 6 | (p[i] & 0x3fu);
	}
	*code = value;
	return lead.length;
}

bool utf8_valid(const char *text, size_t bytes)
{
	size_t i = 0;
	uint32_t code;

	while (i < bytes) {
		uint64_t eight;
		/* Runs of ASCII, eight at a time. */
		while (bytes - i >= sizeof(eight)) {
			memcpy(&eight, text + i, sizeof(eight));
			if (eight & 0x8080808080808080u)
				break;
			i += sizeof(eight);
		}
		if (i == bytes)
			break;
		int n = utf8_next(text + i, bytes - i, &code);
		if (n <= 0)
			return false;
		i += (size_t)n;
	}
	return true;
}

size_t utf8_complete_prefix(const char *text, size_t bytes)
{
	/* Only a lead byte among the last three can have begun a character that is not whole yet. */
	for (size_t back = 1; back <= 3 && back <= bytes; back++) {
		unsigned char c = (unsigned char)text[bytes - back];
		uint32_t code;
		if ((c & 0xc0) == 0x80)
			continue;
		if (c >= 0x80 && utf8_next(text + bytes - back, back, &code) == 0)
			return bytes - back;
		break;
	}
	return bytes;
}

size_t utf8_put(char *out, uint32_t code)
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		out[0] = (char)(0xc0 | code >> 6);
		out[1] = (char)(0x80 | (code & 0x3f));
		return 2;
	}
	if (code < 0x10000) {
		out[0] = (char)(0xe0 | code >> 12);
		out[1] = (char)(0x80 | (code >> 6 & 0x3f));
		out[2] = (char)(0x80 | (code & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | code >> 18);
	out[1] = (char)(0x80 | (code >> 12 & 0x3f));
	out[2] = (char)(0x80 | (code >> 6 & 0x3f));
	out[3] = (char)(0x80 | (code & 0x3f));
	return 4;
}
