/* Owns upper, lower and title case as Python's str has them: full mappings, where one character may become several.
 * Runs where chat templates are rendered. */
#include <string.h>
#include <utf8proc.h>

#include "common/utf8.h"
#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

/* Characters whose upper or title case is more than one character (Unicode's SpecialCasing.txt). */
struct special_case {
	u16 from;
	u16 upper[3];
	u16 title[3];
};
static const struct special_case specials[] = {
	{0x00df, {0x53, 0x53}, {0x53, 0x73}}, {0x0149, {0x2bc, 0x4e}, {0x2bc, 0x4e}},
	{0x01f0, {0x4a, 0x30c}, {0x4a, 0x30c}}, {0x0390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
	{0x03b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}}, {0x0587, {0x535, 0x552}, {0x535, 0x582}},
	{0x1e96, {0x48, 0x331}, {0x48, 0x331}}, {0x1e97, {0x54, 0x308}, {0x54, 0x308}},
	{0x1e98, {0x57, 0x30a}, {0x57, 0x30a}}, {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}},
	{0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}}, {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}},
	{0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
	{0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}},
	{0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}}, {0x1f80, {0x1f08, 0x399}, {0x1f88}},
	{0x1f81, {0x1f09, 0x399}, {0x1f89}}, {0x1f82, {0x1f0a, 0x399}, {0x1f8a}},
	{0x1f83, {0x1f0b, 0x399}, {0x1f8b}}, {0x1f84, {0x1f0c, 0x399}, {0x1f8c}},
	{0x1f85, {0x1f0d, 0x399}, {0x1f8d}}, {0x1f86, {0x1f0e, 0x399}, {0x1f8e}},
	{0x1f87, {0x1f0f, 0x399}, {0x1f8f}}, {0x1f88, {0x1f08, 0x399}, {0x1f88}},
	{0x1f89, {0x1f09, 0x399}, {0x1f89}}, {0x1f8a, {0x1f0a, 0x399}, {0x1f8a}},
	{0x1f8b, {0x1f0b, 0x399}, {0x1f8b}}, {0x1f8c, {0x1f0c, 0x399}, {0x1f8c}},
	{0x1f8d, {0x1f0d, 0x399}, {0x1f8d}}, {0x1f8e, {0x1f0e, 0x399}, {0x1f8e}},
	{0x1f8f, {0x1f0f, 0x399}, {0x1f8f}}, {0x1f90, {0x1f28, 0x399}, {0x1f98}},
	{0x1f91, {0x1f29, 0x399}, {0x1f99}}, {0x1f92, {0x1f2a, 0x399}, {0x1f9a}},
	{0x1f93, {0x1f2b, 0x399}, {0x1f9b}}, {0x1f94, {0x1f2c, 0x399}, {0x1f9c}},
	{0x1f95, {0x1f2d, 0x399}, {0x1f9d}}, {0x1f96, {0x1f2e, 0x399}, {0x1f9e}},
	{0x1f97, {0x1f2f, 0x399}, {0x1f9f}}, {0x1f98, {0x1f28, 0x399}, {0x1f98}},
	{0x1f99, {0x1f29, 0x399}, {0x1f99}}, {0x1f9a, {0x1f2a, 0x399}, {0x1f9a}},
	{0x1f9b, {0x1f2b, 0x399}, {0x1f9b}}, {0x1f9c, {0x1f2c, 0x399}, {0x1f9c}},
	{0x1f9d, {0x1f2d, 0x399}, {0x1f9d}}, {0x1f9e, {0x1f2e, 0x399}, {0x1f9e}},
	{0x1f9f, {0x1f2f, 0x399}, {0x1f9f}}, {0x1fa0, {0x1f68, 0x399}, {0x1fa8}},
	{0x1fa1, {0x1f69, 0x399}, {0x1fa9}}, {0x1fa2, {0x1f6a, 0x399}, {0x1faa}},
	{0x1fa3, {0x1f6b, 0x399}, {0x1fab}}, {0x1fa4, {0x1f6c, 0x399}, {0x1fac}},
	{0x1fa5, {0x1f6d, 0x399}, {0x1fad}}, {0x1fa6, {0x1f6e, 0x399}, {0x1fae}},
	{0x1fa7, {0x1f6f, 0x399}, {0x1faf}}, {0x1fa8, {0x1f68, 0x399}, {0x1fa8}},
	{0x1fa9, {0x1f69, 0x399}, {0x1fa9}}, {0x1faa, {0x1f6a, 0x399}, {0x1faa}},
	{0x1fab, {0x1f6b, 0x399}, {0x1fab}}, {0x1fac, {0x1f6c, 0x399}, {0x1fac}},
	{0x1fad, {0x1f6d, 0x399}, {0x1fad}}, {0x1fae, {0x1f6e, 0x399}, {0x1fae}},
	{0x1faf, {0x1f6f, 0x399}, {0x1faf}}, {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
	{0x1fb3, {0x391, 0x399}, {0x1fbc}}, {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
	{0x1fb6, {0x391, 0x342}, {0x391, 0x342}}, {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
	{0x1fbc, {0x391, 0x399}, {0x1fbc}}, {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
	{0x1fc3, {0x397, 0x399}, {0x1fcc}}, {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
	{0x1fc6, {0x397, 0x342}, {0x397, 0x342}}, {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
	{0x1fcc, {0x397, 0x399}, {0x1fcc}}, {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
	{0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}}, {0x1fd6, {0x399, 0x342}, {0x399, 0x342}},
	{0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
	{0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}},
	{0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}}, {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}},
	{0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}}, {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}},
	{0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}}, {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
	{0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}}, {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}},
	{0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}}, {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
	{0xfb00, {0x46, 0x46}, {0x46, 0x66}}, {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
	{0xfb02, {0x46, 0x4c}, {0x46, 0x6c}}, {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
	{0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}}, {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
	{0xfb06, {0x53, 0x54}, {0x53, 0x74}}, {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
	{0xfb14, {0x544, 0x535}, {0x544, 0x565}}, {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
	{0xfb16, {0x54e, 0x546}, {0x54e, 0x576}}, {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
};

static const struct special_case *find_special(u32 c)
{
	size_t low = 0, high = COUNT_OF(specials);
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (specials[middle].from < c)
			low = middle + 1;
		else
			high = middle;
	}
	return low < COUNT_OF(specials) && specials[low].from == c ? &specials[low] : NULL;
}

void jstr_put_char(struct buf *out, u32 c)
{
	char utf8[4];
	buf_append(out, utf8, utf8_put(utf8, c));
}

static void put_all(struct buf *out, const u16 *codes)
{
	for (int i = 0; i < 3 && codes[i] != 0; i++)
		jstr_put_char(out, codes[i]);
}

void jstr_put_upper(struct buf *out, u32 c)
{
	const struct special_case *s = c >= 0xdf ? find_special(c) : NULL;
	if (c < 0x80)
		buf_append_char(out, (char)(c >= 'a' && c <= 'z' ? c - 32 : c));
	else if (s != NULL)
		put_all(out, s->upper);
	else
		jstr_put_char(out, (u32)utf8proc_toupper((utf8proc_int32_t)c));
}

void jstr_put_title(struct buf *out, u32 c)
{
	const struct special_case *s = c >= 0xdf ? find_special(c) : NULL;
	if (s != NULL)
		put_all(out, s->title);
	else
		jstr_put_char(out, (u32)utf8proc_totitle((utf8proc_int32_t)c));
}

bool jstr_is_cased(u32 c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || c == 0xaa ||
	       c == 0xba || (c >= 0x2b0 && c <= 0x2b8) || (c >= 0x2160 && c <= 0x217f) || (c >= 0x24b6 && c <= 0x24e9);
}

/* Characters that the rule of the final sigma looks through. */
static bool is_case_ignorable(u32 c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
	       k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7 ||
	       c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
}

static bool is_final_sigma(const char *text, size_t bytes, size_t at, size_t next)
{
	bool cased = false;
	while (at > 0) {
		size_t from = at = unicode_prev(text, at);
		u32 c = unicode_next(text, &from);
		if (is_case_ignorable(c))
			continue;
		cased = jstr_is_cased(c);
		break;
	}
	while (cased && next < bytes) {
		u32 c = unicode_next(text, &next);
		if (!is_case_ignorable(c))
			return !jstr_is_cased(c);
	}
	return cased;
}

void jstr_put_lower(struct buf *out, const char *text, size_t bytes, size_t at, u32 c)
{
	if (c < 0x80)
		buf_append_char(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
	else if (c == 0x130)
		buf_append_str(out, "i\xcc\x87");
	else if (c == 0x3a3)
		jstr_put_char(out, is_final_sigma(text, bytes, at, at + 2) ? 0x3c2 : 0x3c3);
	else
		jstr_put_char(out, (u32)utf8proc_tolower((utf8proc_int32_t)c));
}

void jstr_lower(struct buf *out, const char *text, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		jstr_put_lower(out, text, bytes, from, c);
	}
}

void jstr_upper(struct buf *out, const char *text, size_t bytes)
{
	for (size_t at = 0; at < bytes;)
		jstr_put_upper(out, unicode_next(text, &at));
}

/* First character in title case, the rest lower. */
void jstr_capitalize(struct buf *out, const char *text, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		if (from == 0)
			jstr_put_title(out, c);
		else
			jstr_put_lower(out, text, bytes, from, c);
	}
}

/* str.title(): a cased character behind an uncased one starts a word. */
void jstr_title(struct buf *out, const char *text, size_t bytes)
{
	bool inside = false;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		if (inside)
			jstr_put_lower(out, text, bytes, from, c);
		else
			jstr_put_title(out, c);
		inside = jstr_is_cased(c);
	}
}

void jstr_swapcase(struct buf *out, const char *text, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		u32 c = unicode_next(text, &at);
		utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
		if (k == UTF8PROC_CATEGORY_LU)
			jstr_put_lower(out, text, bytes, from, c);
		else if (k == UTF8PROC_CATEGORY_LL)
			jstr_put_upper(out, c);
		else
			jstr_put_char(out, c);
	}
}

/* ---- predicates over all characters ---- */

bool jstr_is_space(u32 c)
{
	return unicode_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static bool is_superscript_digit(u32 c)
{
	return c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
	       (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
	       (c >= 0x2488 && c <= 0x2490);
}

static bool is_decimal(u32 c)
{
	return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool is_digit(u32 c)
{
	return is_decimal(c) || is_superscript_digit(c);
}

static bool is_alpha(u32 c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_alnum(u32 c)
{
	return is_alpha(c) || unicode_is_numeric(c);
}

static bool is_ascii(u32 c)
{
	return c < 0x80;
}

static bool all(const struct jstr *s, bool (*is)(u32 c))
{
	for (size_t at = 0; at < s->bytes;)
		if (!is(unicode_next(s->data, &at)))
			return false;
	return s->bytes > 0;
}

/* Some cased character, and all of them of the kind. */
bool jstr_all_case(const struct jstr *s, bool upper)
{
	bool cased = false;
	for (size_t at = 0; at < s->bytes;) {
		u32 c = unicode_next(s->data, &at);
		utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
		if (k == UTF8PROC_CATEGORY_LT || k == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
			return false;
		cased = cased || jstr_is_cased(c);
	}
	return cased;
}

static bool is_title(const struct jstr *s)
{
	bool inside = false, any = false;
	for (size_t at = 0; at < s->bytes;) {
		u32 c = unicode_next(s->data, &at);
		utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
		bool capital = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT;
		if ((capital && inside) || (k == UTF8PROC_CATEGORY_LL && !inside))
			return false;
		inside = jstr_is_cased(c);
		any = any || inside;
	}
	return any;
}

bool jstr_is(const struct jstr *s, enum jstr_class class)
{
	switch (class) {
	case JSTR_ALNUM:
		return all(s, is_alnum);
	case JSTR_ALPHA:
		return all(s, is_alpha);
	case JSTR_ASCII:
		return s->bytes == 0 || all(s, is_ascii);
	case JSTR_DECIMAL:
		return all(s, is_decimal);
	case JSTR_DIGIT:
		return all(s, is_digit);
	case JSTR_NUMERIC:
		return all(s, unicode_is_numeric);
	case JSTR_SPACE:
		return all(s, jstr_is_space);
	case JSTR_LOWER:
		return jstr_all_case(s, false);
	case JSTR_UPPER:
		return jstr_all_case(s, true);
	case JSTR_TITLE:
		return is_title(s);
	}
	return false;
}
