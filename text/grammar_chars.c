/* Owns sets of code points and their way into bytes: UTF-8 as it is, or as a string in JSON writes it. Runs wherever a
 * grammar is compiled. Never lets a surrogate or an overlong form through. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/utf8.h"
#include "text/grammar_priv.h"

enum { CODE_LAST = 0x10ffff, SURROGATE_FIRST = 0xd800, SURROGATE_LAST = 0xdfff };

bool code_set_add(struct arena *a, struct code_set *s, u32 first, u32 last)
{
	if (s->count == s->capacity) {
		u32 capacity = s->capacity > 0 ? 2 * s->capacity : 8;
		struct code_range *grown = arena_alloc(a, capacity * sizeof(*grown));
		if (grown == NULL)
			return false;
		if (s->count > 0)
			memcpy(grown, s->ranges, s->count * sizeof(*grown));
		s->ranges = grown;
		s->capacity = capacity;
	}
	s->ranges[s->count++] = (struct code_range){first, last};
	return true;
}

bool code_set_add_set(struct arena *a, struct code_set *s, const struct code_set *other)
{
	for (u32 i = 0; i < other->count; i++) {
		if (!code_set_add(a, s, other->ranges[i].first, other->ranges[i].last))
			return false;
	}
	return true;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct code_range *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

void code_set_finish(struct code_set *s)
{
	if (s->count == 0)
		return;
	qsort(s->ranges, s->count, sizeof(*s->ranges), compare_ranges);
	u32 n = 0;
	for (u32 i = 1; i < s->count; i++) {
		struct code_range *last = &s->ranges[n];
		if (s->ranges[i].first > last->last + 1)
			s->ranges[++n] = s->ranges[i];
		else if (s->ranges[i].last > last->last)
			last->last = s->ranges[i].last;
	}
	s->count = n + 1;
}

bool code_set_negate(struct arena *a, struct code_set *s)
{
	struct code_set other = {0};
	u32 next = 0;
	bool ok = true;
	for (u32 i = 0; i < s->count; i++) {
		if (s->ranges[i].first > next)
			ok = ok && code_set_add(a, &other, next, s->ranges[i].first - 1);
		next = s->ranges[i].last + 1;
	}
	if (next <= CODE_LAST)
		ok = ok && code_set_add(a, &other, next, CODE_LAST);
	*s = other;
	return ok;
}

/* ECMAScript's \d, \w and \s. */
static bool class_ranges(struct arena *a, struct code_set *s, char letter)
{
	static const struct code_range digits[] = {{'0', '9'}};
	static const struct code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
	static const struct code_range spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
						   {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
						   {0x3000, 0x3000}, {0xfeff, 0xfeff}};
	const struct code_range *from = letter == 'd' ? digits : letter == 'w' ? words : spaces;
	size_t count = letter == 'd' ? COUNT_OF(digits) : letter == 'w' ? COUNT_OF(words) : COUNT_OF(spaces);
	bool ok = true;
	for (size_t i = 0; i < count; i++)
		ok = ok && code_set_add(a, s, from[i].first, from[i].last);
	return ok;
}

bool code_set_class(struct arena *a, struct code_set *s, char letter)
{
	char lower = (char)(letter | 0x20);
	if (lower != 'd' && lower != 'w' && lower != 's')
		return false;
	struct code_set own = {0};
	if (!class_ranges(a, &own, lower))
		return false;
	if (letter != lower && !code_set_negate(a, &own))
		return false;
	return code_set_add_set(a, s, &own);
}

/* ---- UTF-8 ---- */

/* While one set is written: nodes from which 1, 2, 3 more continuation bytes lead to `to`. */
struct utf8_out {
	struct gb *b;
	u32 from, to;
	u32 rest[3];
};

/* The node from which `left` arbitrary continuation bytes lead to the end. */
static u32 any_rest(struct utf8_out *o, u32 left)
{
	if (left == 0)
		return o->to;
	if (o->rest[left - 1] == GRAMMAR_NONE) {
		o->rest[left - 1] = gb_node(o->b);
		gb_bytes(o->b, o->rest[left - 1], any_rest(o, left - 1), 0x80, 0xbf);
	}
	return o->rest[left - 1];
}

/* Edges from `at` for all byte strings between `first` and `last`, both `count` bytes long and equal in nothing known. */
static void put_range(struct utf8_out *o, u32 at, const u8 *first, const u8 *last, u32 count)
{
	if (count == 1) {
		gb_bytes(o->b, at, o->to, first[0], last[0]);
		return;
	}
	static const u8 low[3] = {0x80, 0x80, 0x80}, high[3] = {0xbf, 0xbf, 0xbf};
	if (first[0] == last[0]) {
		u32 next = gb_node(o->b);
		gb_bytes(o->b, at, next, first[0], first[0]);
		put_range(o, next, first + 1, last + 1, count - 1);
		return;
	}
	u32 lo = first[0], hi = last[0];
	if (memcmp(first + 1, low, count - 1) != 0) {
		u32 next = gb_node(o->b);
		gb_bytes(o->b, at, next, first[0], first[0]);
		put_range(o, next, first + 1, high, count - 1);
		lo++;
	}
	bool part = memcmp(last + 1, high, count - 1) != 0;
	if (part) {
		u32 next = gb_node(o->b);
		gb_bytes(o->b, at, next, last[0], last[0]);
		put_range(o, next, low, last + 1, count - 1);
		hi--;
	}
	if (lo <= hi)
		gb_bytes(o->b, at, any_rest(o, count - 1), (u8)lo, (u8)hi);
}

static void put_codes(struct utf8_out *o, u32 first, u32 last)
{
	static const u32 ends[] = {0x7f, 0x7ff, SURROGATE_FIRST - 1, SURROGATE_LAST, 0xffff, CODE_LAST};
	for (size_t i = 0; i < COUNT_OF(ends); i++) {
		if (first > ends[i])
			continue;
		u32 end = last < ends[i] ? last : ends[i];
		if (ends[i] != SURROGATE_LAST) {
			char a[4], z[4];
			size_t bytes = utf8_put(a, first);
			ASSERT(utf8_put(z, end) == bytes);
			put_range(o, o->from, (const u8 *)a, (const u8 *)z, (u32)bytes);
		}
		if (end == last)
			return;
		first = end + 1;
	}
}

/* ---- strings in JSON ---- */

/* The letter behind the backslash for a code point that has one; 0 for those that have none. */
static char short_escape(u32 code)
{
	switch (code) {
	case '"':
	case '\\':
		return (char)code;
	case '\b':
		return 'b';
	case '\f':
		return 'f';
	case '\n':
		return 'n';
	case '\r':
		return 'r';
	case '\t':
		return 't';
	}
	return 0;
}

static void put_escaped(struct utf8_out *o, u32 code)
{
	char text[8] = {'\\', short_escape(code), 0};
	size_t bytes = 2;
	if (text[1] == 0) {
		static const char hex[] = "0123456789abcdef";
		memcpy(text, "\\u00", 4);
		text[4] = hex[code >> 4];
		text[5] = hex[code & 15];
		bytes = 6;
	}
	u32 before_last = gb_text(o->b, o->from, text, bytes - 1);
	gb_bytes(o->b, before_last, o->to, (u8)text[bytes - 1], (u8)text[bytes - 1]);
}

static bool is_escaped(u32 code)
{
	return code < 0x20 || code == '"' || code == '\\';
}

static void put_range_in_json(struct utf8_out *o, u32 first, u32 last)
{
	while (first <= last && first <= '\\') {
		if (is_escaped(first)) {
			put_escaped(o, first++);
			continue;
		}
		u32 end = first < '"' ? '"' - 1 : '\\' - 1;
		end = end < last ? end : last;
		put_codes(o, first, end);
		first = end + 1;
	}
	if (first <= last)
		put_codes(o, first, last);
}

u32 gb_set(struct gb *b, u32 from, const struct code_set *s)
{
	struct utf8_out o = {.b = b, .from = from, .rest = {GRAMMAR_NONE, GRAMMAR_NONE, GRAMMAR_NONE}};
	o.to = gb_node(b);
	u32 edges = b->edge_count;
	for (u32 i = 0; i < s->count; i++) {
		if (b->json)
			put_range_in_json(&o, s->ranges[i].first, s->ranges[i].last);
		else
			put_codes(&o, s->ranges[i].first, s->ranges[i].last);
	}
	for (; edges < b->edge_count; edges++)
		b->edges[edges].begins = b->edges[edges].from == from;
	return o.to;
}

bool grammar_peek(const char *text, size_t bytes, size_t at, char c)
{
	return at < bytes && text[at] == c;
}

bool grammar_take(const char *text, size_t bytes, size_t *at, const char *word)
{
	size_t n = strlen(word);
	if (bytes - *at < n || memcmp(text + *at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

bool grammar_read_hex(const char *text, size_t bytes, size_t *at, u32 digits, u32 *out)
{
	u32 value = 0;
	for (u32 i = 0; i < digits; i++) {
		char c = *at + i < bytes ? text[*at + i] : 0, low = (char)(c | 0x20);
		if (c >= '0' && c <= '9')
			value = value * 16 + (u32)(c - '0');
		else if (low >= 'a' && low <= 'f')
			value = value * 16 + (u32)(low - 'a') + 10;
		else
			return false;
	}
	*at += digits;
	*out = value;
	return true;
}
