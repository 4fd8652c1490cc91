/* Owns clean_up_tokenization_spaces: the spaces that English typography does not have, as transformers removes them
 * from decoded text, one replacement behind the other; here as a chain of streams, each of which holds back what may
 * be the beginning of its pattern. Runs wherever text is decoded. */
#include "text/clean_up_priv.h"

#include <string.h>

/* Each pattern without its first space is what it becomes, but for the quotation mark. */
struct rule {
	const char *from;
	const char *to;
};
static const struct rule rules[TEXT_CLEAN_RULES] = {
	{" .", "."},	 {" ?", "?"},	{" !", "!"},   {" ,", ","},	{" ' ", "'"},
	{" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

/* Puts one byte through rule `i` and those behind it. What a rule holds is the beginning of its pattern. */
static void feed(u8 *held, u32 i, char c, struct buf *out)
{
	if (i == TEXT_CLEAN_RULES) {
		buf_append_char(out, c);
		return;
	}
	const struct rule *r = &rules[i];
	if (held[i] > 0 && r->from[held[i]] != c) {
		/* Only its first byte is a space, so nothing of what is held can begin the pattern anew. */
		u8 count = held[i];
		held[i] = 0;
		for (u8 k = 0; k < count; k++)
			feed(held, i + 1, r->from[k], out);
	}
	if (r->from[held[i]] != c) {
		feed(held, i + 1, c, out);
		return;
	}
	held[i]++;
	if (r->from[held[i]] != '\0')
		return;
	held[i] = 0;
	for (const char *p = r->to; *p != '\0'; p++)
		feed(held, i + 1, *p, out);
}

void clean_up_push(u8 held[static TEXT_CLEAN_RULES], const char *text, size_t bytes, struct buf *out)
{
	for (size_t i = 0; i < bytes; i++)
		feed(held, 0, text[i], out);
}

void clean_up_end(u8 held[static TEXT_CLEAN_RULES], struct buf *out)
{
	for (u32 i = 0; i < TEXT_CLEAN_RULES; i++) {
		u8 count = held[i];
		held[i] = 0;
		for (u8 k = 0; k < count; k++)
			feed(held, i + 1, rules[i].from[k], out);
	}
}

bool clean_up_holds(const u8 held[static TEXT_CLEAN_RULES])
{
	for (u32 i = 0; i < TEXT_CLEAN_RULES; i++)
		if (held[i] > 0)
			return true;
	return false;
}
