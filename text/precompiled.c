/* Owns SentencePiece's character maps: a double-array trie from texts to their replacements. Runs where text is
 * encoded; the map is constant after loading. Never trusts an offset of the map. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/utf8.h"
#include "text/base64_priv.h"
#include "text/normalize_priv.h"
#include "text/unicode_priv.h"

/* A grapheme of fewer bytes is looked up as a whole. */
enum { GRAPHEME_BYTES_MAX = 6 };

/* ---- the trie: Darts' units of 32 bits ---- */

static u32 unit_at(const struct norm_step *n, size_t index)
{
	u32 unit;
	memcpy(&unit, n->text + 4 + index * 4, 4);
	return unit;
}

static u32 unit_offset(u32 unit)
{
	return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

struct replacement {
	const char *text;
	size_t bytes;
	size_t replaced; /* bytes of the prefix that it stands for */
};

/* The replacement that begins at `index` behind the trie; false where the map is damaged. */
static bool read_replacement(const struct norm_step *n, size_t index, struct replacement *r)
{
	size_t first = 4 + (size_t)n->form, room = n->text_bytes - first;
	if (index >= room || ((u8)n->text[first + index] & 0xc0) == 0x80)
		return false;
	r->text = n->text + first + index;
	r->bytes = strnlen(r->text, room - index);
	return true;
}

/* What the shortest mapped prefix of the text becomes, or the longest; false when no prefix is mapped. */
static bool look_up(const struct norm_step *n, const char *text, size_t bytes, bool longest, struct replacement *r)
{
	size_t units = n->form / 4, node = 0;
	bool found = false;
	if (units == 0)
		return false;
	node ^= unit_offset(unit_at(n, 0));
	for (size_t i = 0; i < bytes && text[i] != '\0'; i++) {
		node ^= (u8)text[i];
		if (node >= units)
			break;
		u32 unit = unit_at(n, node);
		if ((unit & (1u << 31 | 0xff)) != (u8)text[i])
			break;
		node ^= unit_offset(unit);
		if (!(unit >> 8 & 1))
			continue;
		if (node >= units || !read_replacement(n, unit_at(n, node) & ~(1u << 31), r))
			break;
		r->replaced = i + 1;
		found = true;
		if (!longest)
			break;
	}
	return found;
}

/* ---- normalizing ---- */

static size_t grapheme_bytes(const char *text, size_t bytes)
{
	size_t at = 0;
	utf8proc_int32_t state = 0;
	u32 before = unicode_next(text, &at);
	while (at < bytes) {
		size_t next = at;
		u32 c = unicode_next(text, &next);
		if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state))
			break;
		before = c;
		at = next;
	}
	return at;
}

static void put_grapheme(const struct norm_step *n, const char *text, size_t bytes, struct buf *out)
{
	struct replacement r;
	if (bytes < GRAPHEME_BYTES_MAX && look_up(n, text, bytes, false, &r)) {
		buf_append(out, r.text, r.bytes);
		return;
	}
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		(void)unicode_next(text, &at);
		if (look_up(n, text + from, at - from, false, &r))
			buf_append(out, r.text, r.bytes);
		else
			buf_append(out, text + from, at - from);
	}
}

/* As SentencePiece itself does it: the longest mapped text at each place. Returns its end. */
static size_t put_longest(const struct norm_step *n, const char *text, size_t bytes, size_t at, struct buf *out)
{
	struct replacement r;
	if (look_up(n, text + at, bytes - at, true, &r) && (at + r.replaced == bytes || ((u8)text[at + r.replaced] & 0xc0) != 0x80)) {
		buf_append(out, r.text, r.bytes);
		return at + r.replaced;
	}
	size_t from = at;
	(void)unicode_next(text, &at);
	buf_append(out, text + from, at - from);
	return at;
}

enum err norm_precompiled(const struct norm_step *n, struct regex_scratch *s, const char *text, size_t bytes,
			  size_t *origin, struct buf *out)
{
	(void)s;
	size_t before = *origin;
	for (size_t at = 0; at < bytes;) {
		size_t from = at;
		if (n->longest) {
			at = put_longest(n, text, bytes, at, out);
		} else {
			at += grapheme_bytes(text + at, bytes - at);
			put_grapheme(n, text + from, at - from, out);
		}
		if (from < before && before <= at)
			*origin = out->bytes;
	}
	return buf_ok(out) ? ERR_OK : ERR_NO_MEMORY;
}

/* ---- loading ---- */

enum err precompiled_load(struct norm_step *step, json_val v, struct err_msg *em)
{
	const char *text = "";
	size_t bytes = 0;
	json_val map = json_get(v, "precompiled_charsmap");
	if (json_present(map) && !json_string(map, &text, &bytes))
		return err_set(em, ERR_FORMAT, "normalizer Precompiled: \"precompiled_charsmap\" must be a string");
	(void)json_bool(json_get(v, "longest"), &step->longest); /* written by sentencepiece.c */
	step->text = malloc(bytes / 4 * 3 + 8);
	if (step->text == NULL)
		return ERR_NO_MEMORY;
	if (!base64_decode(text, bytes, step->text, &step->text_bytes))
		return err_set(em, ERR_FORMAT, "normalizer Precompiled: \"precompiled_charsmap\" is not base64");
	u32 trie_bytes = 0;
	if (step->text_bytes == 0) { /* no map: nothing is replaced */
		memset(step->text, 0, 4);
		step->text_bytes = 4;
	}
	if (step->text_bytes >= 4)
		memcpy(&trie_bytes, step->text, 4);
	if (step->text_bytes < 4 || trie_bytes > step->text_bytes - 4 || trie_bytes % 4 != 0 ||
	    !utf8_valid(step->text + 4 + trie_bytes, step->text_bytes - 4 - trie_bytes))
		return err_set(em, ERR_FORMAT, "normalizer Precompiled: \"precompiled_charsmap\" is damaged");
	step->form = trie_bytes;
	return ERR_OK;
}
