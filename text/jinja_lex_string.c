/* Owns the escapes in string literals of templates: Python's "unicode-escape", by way of ASCII with backslashes, as
 * Jinja does it. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

static enum err fail(struct token_pos pos, struct err_msg *em, const char *what)
{
	return err_set(em, ERR_FORMAT, "line %u, column %u: %s in a string", pos.line, pos.column, what);
}

static void put_code(struct buf *out, u32 c)
{
	char utf8[4];
	bool surrogate = c >= 0xd800 && c <= 0xdfff;
	buf_append(out, utf8, utf8_put(utf8, surrogate ? 0xfffd : c));
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH: exactly `digits` digits. */
static enum err unescape_hex(struct buf *out, const char *text, size_t bytes, size_t *at, u32 digits,
			     struct token_pos pos, struct err_msg *em)
{
	u32 c = 0;
	for (u32 i = 0; i < digits; i++) {
		int d = *at < bytes ? hex_digit(text[*at]) : -1;
		if (d < 0)
			return fail(pos, em, "truncated \\xXX, \\uXXXX or \\UXXXXXXXX escape");
		c = c << 4 | (u32)d;
		(*at)++;
	}
	if (c > 0x10ffff)
		return fail(pos, em, "illegal Unicode character");
	put_code(out, c);
	return ERR_OK;
}

static void unescape_octal(struct buf *out, const char *text, size_t bytes, size_t *at)
{
	u32 c = 0;
	for (int i = 0; i < 3 && *at < bytes && text[*at] >= '0' && text[*at] <= '7'; i++)
		c = c * 8 + (u32)(text[(*at)++] - '0');
	put_code(out, c);
}

/* A backslash in front of a character outside ASCII: that character was written as an escape by then, and its
 * backslash is the one that gets escaped. */
static void unescape_foreign(struct buf *out, const char *text, size_t *at)
{
	u32 c = unicode_next(text, at);
	buf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static enum err unescape_one(struct buf *out, const char *text, size_t bytes, size_t *at, struct token_pos pos,
			     struct err_msg *em)
{
	static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
	char c = text[*at];
	for (size_t i = 0; i + 1 < sizeof(plain) - 1; i += 2)
		if (plain[i] == c) {
			buf_append_char(out, plain[i + 1]);
			(*at)++;
			return ERR_OK;
		}
	if (c == '\n') {
		(*at)++;
		return ERR_OK;
	}
	if (c == 'x' || c == 'u' || c == 'U') {
		(*at)++;
		return unescape_hex(out, text, bytes, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, pos, em);
	}
	if (c >= '0' && c <= '7') {
		unescape_octal(out, text, bytes, at);
		return ERR_OK;
	}
	if (c == 'N')
		return fail(pos, em, "\\N{...} is not supported");
	if ((u8)c >= 0x80) {
		unescape_foreign(out, text, at);
		return ERR_OK;
	}
	buf_append_char(out, '\\');
	buf_append_char(out, c);
	(*at)++;
	return ERR_OK;
}

enum err jinja_unescape(struct buf *out, const char *text, size_t bytes, struct token_pos pos, struct err_msg *em)
{
	for (size_t at = 0; at < bytes;) {
		if (text[at] != '\\') {
			buf_append_char(out, text[at++]);
			continue;
		}
		at++;
		enum err e = at < bytes ? unescape_one(out, text, bytes, &at, pos, em) : fail(pos, em, "a lone backslash");
		if (e != ERR_OK)
			return e;
	}
	return buf_ok(out) ? ERR_OK : ERR_NO_MEMORY;
}
