/* Owns the search for added tokens in a text. Runs where text is encoded. Sets are constant after loading and the
 * search never allocates. */
#include "text/added_priv.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_priv.h"

enum err added_set_add(struct added_set *s, const char *text, size_t bytes, u32 id, u32 flags)
{
	/* Grows by doubling at powers of two. */
	if ((s->count & (s->count - 1)) == 0) {
		u32 max = s->count == 0 ? 1 : s->count * 2;
		struct added_token *tokens = realloc(s->tokens, max * sizeof(*tokens));
		if (tokens == NULL)
			return ERR_NO_MEMORY;
		s->tokens = tokens;
	}
	char *copy = malloc(bytes + 1);
	if (copy == NULL)
		return ERR_NO_MEMORY;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	s->tokens[s->count] = (struct added_token){
		.text = copy, .bytes = (u32)bytes, .id = id, .flags = flags, .order = s->count};
	s->count++;
	return ERR_OK;
}

static int compare_tokens(const void *a, const void *b)
{
	const struct added_token *x = a, *y = b;
	int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
	if (order != 0)
		return order;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return x->order < y->order ? -1 : 1;
}

void added_set_finish(struct added_set *s)
{
	if (s->count > 0)
		qsort(s->tokens, s->count, sizeof(*s->tokens), compare_tokens);
	u32 at = 0;
	for (u32 byte = 0; byte < 257; byte++) {
		while (at < s->count && (u8)s->tokens[at].text[0] < byte)
			at++;
		s->first[byte] = at;
	}
}

void added_set_fini(struct added_set *s)
{
	for (u32 i = 0; i < s->count; i++)
		free(s->tokens[i].text);
	free(s->tokens);
	*s = (struct added_set){0};
}

/* First index in [low, high) whose byte number `depth` is at least `byte`; all of them are longer than `depth`. */
static u32 lower_bound(const struct added_set *s, u32 low, u32 high, size_t depth, u32 byte)
{
	while (low < high) {
		u32 middle = low + (high - low) / 2;
		if ((u8)s->tokens[middle].text[depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Longest token at the start of the text; NULL when there is none. The range of tokens that share the bytes read so
 * far narrows byte by byte. */
static const struct added_token *longest_at(const struct added_set *s, const char *text, size_t bytes)
{
	u32 low = s->first[(u8)text[0]], high = s->first[(u8)text[0] + 1];
	const struct added_token *best = NULL;
	for (size_t depth = 1; low < high; depth++) {
		if (s->tokens[low].bytes == depth) {
			best = &s->tokens[low];
			while (low < high && s->tokens[low].bytes == depth)
				low++;
		}
		if (depth == bytes)
			break;
		u32 byte = (u8)text[depth];
		low = lower_bound(s, low, high, depth, byte);
		high = lower_bound(s, low, high, depth, byte + 1);
	}
	return best;
}

static bool inside_word(const char *text, size_t bytes, size_t begin, size_t end)
{
	size_t at = begin;
	if (begin > 0) {
		at = unicode_prev(text, begin);
		if (unicode_is_word(unicode_next(text, &at)))
			return true;
	}
	at = end;
	return end < bytes && unicode_is_word(unicode_next(text, &at));
}

static size_t space_begin(const char *text, size_t from, size_t at)
{
	while (at > from) {
		size_t before = unicode_prev(text, at), next = before;
		if (!unicode_is_space(unicode_next(text, &next)))
			break;
		at = before;
	}
	return at;
}

static size_t space_end(const char *text, size_t bytes, size_t at)
{
	while (at < bytes) {
		size_t next = at;
		if (!unicode_is_space(unicode_next(text, &next)))
			break;
		at = next;
	}
	return at;
}

bool added_set_next(const struct added_set *s, const char *text, size_t bytes, struct added_cursor *cursor,
		    struct added_match *match)
{
	if (s->count == 0)
		return false;
	for (size_t at = cursor->at; at < bytes; at++) {
		if (s->first[(u8)text[at]] == s->first[(u8)text[at] + 1])
			continue;
		const struct added_token *t = longest_at(s, text + at, bytes - at);
		if (t == NULL)
			continue;
		size_t begin = at, end = at + t->bytes;
		if ((t->flags & ADDED_SINGLE_WORD) && inside_word(text, bytes, begin, end)) {
			at = end - 1;
			continue;
		}
		/* White space up to `gap` was walked over already; walking it again would be quadratic. */
		if (t->flags & ADDED_RSTRIP)
			end = end < cursor->gap ? cursor->gap : space_end(text, bytes, end);
		if (t->flags & ADDED_LSTRIP)
			begin = begin < cursor->gap ? cursor->gap : space_begin(text, cursor->gap, begin);
		if (begin >= end) { /* the match before took all of it */
			at += t->bytes - 1;
			continue;
		}
		cursor->at = at + t->bytes;
		*match = (struct added_match){.begin = begin, .end = end, .id = t->id};
		return true;
	}
	return false;
}
