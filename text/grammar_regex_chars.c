/* Owns the characters of regular expressions as grammars read them: escapes, general categories of Unicode, and classes. Runs
 * wherever a grammar is compiled. */
#include <string.h>

#include "text/grammar_regex_priv.h"
#include "text/unicode_priv.h"

#include <utf8proc.h>

static bool read_hex(struct reader *r, u32 digits, u32 *out)
{
	return grammar_read_hex(r->text, r->bytes, &r->at, digits, out);
}

/* Behind "\u": XXXX, a pair of surrogates, or {X...}. */
static bool read_u(struct reader *r, u32 *out)
{
	if (take(r, "{")) {
		const char *end = memchr(r->text + r->at, '}', r->bytes - r->at);
		size_t digits = end != NULL ? (size_t)(end - r->text) - r->at : 0;
		if (digits == 0 || digits > 6 || !read_hex(r, (u32)digits, out))
			return false;
		r->at++;
	} else if (!read_hex(r, 4, out)) {
		return false;
	}
	u32 low;
	if (*out >= 0xd800 && *out < 0xdc00 && take(r, "\\u") && read_hex(r, 4, &low) && low >= 0xdc00 && low < 0xe000)
		*out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
	return *out <= 0x10ffff && !(*out >= 0xd800 && *out < 0xe000);
}

/* The code point of an escape that stands for one; r->at is behind the backslash, at the letter. */
static bool read_escaped_code(struct reader *r, u32 *out)
{
	static const char letters[] = "nrtfv0", codes[] = "\n\r\t\f\v";
	char c = r->text[r->at];
	const char *known = c != 0 ? strchr(letters, c) : NULL;
	if (known != NULL) {
		r->at++;
		*out = (u8)codes[known - letters];
		return true;
	}
	if (c == 'x' || c == 'u') {
		r->at++;
		return c == 'x' ? read_hex(r, 2, out) : read_u(r, out);
	}
	if (c == 'c' && r->at + 1 < r->bytes && (r->text[r->at + 1] | 0x20) >= 'a' && (r->text[r->at + 1] | 0x20) <= 'z') {
		*out = (u32)r->text[r->at + 1] % 32;
		r->at += 2;
		return true;
	}
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_')
		return false;
	*out = unicode_next(r->text, &r->at);
	return true;
}

/* All of Unicode is looked through once for each combination. NULL: out of memory. */
static const struct category *find_category(struct gb *b, u32 wanted)
{
	for (const struct category *c = b->categories; c != NULL; c = c->next) {
		if (c->wanted == wanted)
			return c;
	}
	struct category *found = arena_zalloc(&b->arena, sizeof(*found));
	u32 first = GRAMMAR_NONE;
	bool ok = found != NULL;
	for (u32 c = 0; ok && c <= 0x110000; c++) {
		bool in = c < 0x110000 && !(c >= 0xd800 && c < 0xe000) &&
			  (wanted >> (u32)utf8proc_category((utf8proc_int32_t)c) & 1) != 0;
		if (in && first == GRAMMAR_NONE)
			first = c;
		if (!in && first != GRAMMAR_NONE) {
			ok = code_set_add(&b->arena, &found->set, first, c - 1);
			first = GRAMMAR_NONE;
		}
	}
	if (!ok)
		return NULL;
	found->wanted = wanted;
	found->next = b->categories;
	b->categories = found;
	return found;
}

/* \p{L}, \p{Lu} and the like: general categories by their short names. */
static bool add_category(struct reader *r, struct code_set *s, bool negate)
{
	static const char names[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
	if (!take(r, "{"))
		return false;
	const char *end = memchr(r->text + r->at, '}', r->bytes - r->at);
	size_t n = end != NULL ? (size_t)(end - r->text) - r->at : 0;
	const char *name = r->text + r->at;
	if (n < 1 || n > 2)
		return false;
	u32 wanted = 0;
	for (u32 i = 0; i < sizeof(names) / 2; i++) {
		if (names[2 * i] == name[0] && (n == 1 || names[2 * i + 1] == name[1]))
			wanted |= 1u << i;
	}
	if (wanted == 0)
		return false;
	r->at += n + 1;
	const struct category *known = find_category(r->b, wanted);
	struct code_set own = {0};
	bool ok = known != NULL && code_set_add_set(&r->b->arena, &own, &known->set);
	if (negate)
		ok = ok && code_set_negate(&r->b->arena, &own);
	if (!ok || !code_set_add_set(&r->b->arena, s, &own))
		gb_fail(r->b, ERR_TOO_LONG, "the expression is too long: it has too many classes of characters");
	return true;
}

bool grammar_regex_read_escape(struct reader *r, struct code_set *s, bool in_class, u32 *code)
{
	struct gb *b = r->b;
	*code = GRAMMAR_NONE;
	if (r->at >= r->bytes) {
		gb_fail(b, ERR_FORMAT, "a backslash at the end of the expression escapes nothing; write \\\\ for a backslash");
		return false;
	}
	char c = r->text[r->at];
	size_t place = r->at - 1;
	if (code_set_class(&b->arena, s, c)) {
		r->at++;
		return true;
	}
	if (c == 'p' || c == 'P') {
		r->at++;
		if (add_category(r, s, c == 'P'))
			return !failed(r);
		gb_fail(b, ERR_UNSUPPORTED, "\\%c at byte %zu: only general categories by their short names are supported, as \\p{L} or \\p{Lu}",
			c, place);
		return false;
	}
	if (in_class && c == 'b') {
		r->at++;
		*code = '\b';
		return true;
	}
	if (read_escaped_code(r, code))
		return true;
	if ((c >= '1' && c <= '9') || c == 'k')
		gb_fail(b, ERR_UNSUPPORTED, "the back reference \\%c at byte %zu is not supported: such texts are not regular; repeat the part itself",
			c, place);
	else if (c == 'b' || c == 'B' || c == 'A' || c == 'z' || c == 'Z' || c == 'G')
		gb_fail(b, ERR_UNSUPPORTED, "the assertion \\%c at byte %zu is not supported; write the characters that are wanted", c, place);
	else
		gb_fail(b, ERR_FORMAT, "the escape \\%c at byte %zu is unknown", c, place);
	return false;
}

/* One member of a class: a code point, or GRAMMAR_NONE where the set got several. */
static bool read_class_atom(struct reader *r, struct code_set *s, u32 *code)
{
	if (take(r, "\\"))
		return grammar_regex_read_escape(r, s, true, code);
	*code = unicode_next(r->text, &r->at);
	return true;
}

struct gexpr *grammar_regex_read_class(struct reader *r)
{
	struct gb *b = r->b;
	size_t place = r->at - 1;
	struct gexpr *e = new_expr(b, GEXPR_SET);
	bool negate = take(r, "^");
	while (!failed(r) && r->at < r->bytes && !peek(r, ']')) {
		if (peek(r, '[') && r->at + 1 < r->bytes && r->text[r->at + 1] == ':') {
			gb_fail(b, ERR_UNSUPPORTED, "[: at byte %zu: POSIX classes are not supported; write \\d, \\w, \\s or the characters", r->at);
			return NULL;
		}
		u32 first, last;
		if (!read_class_atom(r, &e->set, &first))
			return NULL;
		if (first == GRAMMAR_NONE)
			continue;
		last = first;
		if (peek(r, '-') && r->at + 1 < r->bytes && r->text[r->at + 1] != ']') {
			size_t dash = r->at++;
			if (!read_class_atom(r, &e->set, &last))
				return NULL;
			if (last == GRAMMAR_NONE || last < first) {
				gb_fail(b, ERR_FORMAT, "the range at byte %zu has no characters in order on both sides; write \\- for a dash", dash);
				return NULL;
			}
		}
		if (!code_set_add(&b->arena, &e->set, first, last))
			gb_fail(b, ERR_TOO_LONG, "the expression is too long");
	}
	if (!failed(r) && !take(r, "]"))
		gb_fail(b, ERR_FORMAT, "the [ at byte %zu is not closed; write \\[ for a bracket", place);
	if (failed(r))
		return NULL;
	code_set_finish(&e->set);
	if (negate && !code_set_negate(&b->arena, &e->set))
		gb_fail(b, ERR_TOO_LONG, "the expression is too long");
	return e;
}
