/* Owns the character classes of the tokenizers. Runs wherever text is encoded (gateway, tercet command).
 * Pure look-ups in utf8proc's tables; never allocates. */
#include "text/unicode_priv.h"

#include <utf8proc.h>

bool unicode_is_space(u32 c)
{
	if (c < 0x80)
		return c == ' ' || (c >= 9 && c <= 13);
	return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_numeric(u32 c)
{
	if (c < 0x80)
		return c >= '0' && c <= '9';
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool unicode_is_punct(u32 c)
{
	if (c < 0x80)
		return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool unicode_is_mark(u32 c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool unicode_is_nonspacing(u32 c)
{
	return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN;
}

bool unicode_is_control(u32 c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO ||
	       k == UTF8PROC_CATEGORY_CS || k == UTF8PROC_CATEGORY_CN;
}

bool unicode_is_cjk(u32 c)
{
	return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
	       (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
	       (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Other_Alphabetic outside marks and letters: the circled and squared Latin letters. */
static bool is_enclosed_letter(u32 c)
{
	return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
	       (c >= 0x1f170 && c <= 0x1f189);
}

bool unicode_is_word(u32 c)
{
	if (c < 0x80)
		return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME)
		return true;
	return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC || c == 0x200c ||
	       c == 0x200d || is_enclosed_letter(c);
}
