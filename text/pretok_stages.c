/* Owns the work of each pre-tokenizer stage. Runs where text is encoded. A stage cuts or changes one piece and hands
 * the parts on at once; only merging behaviours need a list. Allocates only in the scratch. */
#include "text/pretokenize_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "text/unicode_priv.h"

/* ---- spans: what matched and what lies between, in order ---- */

static enum err add_span(struct text_scratch *s, u32 index, u32 *count, size_t from, size_t to, bool match)
{
	if (*count == s->stage_spans_max[index]) {
		u32 max = *count == 0 ? 64 : *count * 2;
		struct span *spans = realloc(s->stage_spans[index], max * sizeof(*spans));
		if (spans == NULL)
			return ERR_NO_MEMORY;
		s->stage_spans[index] = spans;
		s->stage_spans_max[index] = max;
	}
	s->stage_spans[index][(*count)++] = (struct span){.from = (u32)from, .to = (u32)to, .match = match};
	return ERR_OK;
}

static enum err emit_part(struct pretok_run *run, u32 index, struct piece p, size_t from, size_t to)
{
	if (from == to)
		return ERR_OK;
	struct piece part = {.text = p.text + from, .bytes = to - from, .origin = p.origin > from ? p.origin - from : 0};
	return pretok_next(run, index, part);
}

/* Joins spans as the behaviour says: the joined span takes the place of its first member. Returns the new count. */
static u32 join_spans(struct span *spans, u32 count, enum split_behavior behavior)
{
	u32 n = 0;
	bool previous = false;
	if (behavior == SPLIT_MERGED_WITH_NEXT) {
		/* From the right: a match takes in what follows it, unless that was a match as well. */
		u32 top = count;
		for (u32 i = count; i-- > 0;) {
			bool match = spans[i].match;
			if (match && !previous && top < count)
				spans[top].from = spans[i].from;
			else
				spans[--top] = spans[i];
			previous = match;
		}
		memmove(spans, spans + top, (count - top) * sizeof(*spans));
		return count - top;
	}
	for (u32 i = 0; i < count; i++) {
		bool match = spans[i].match;
		bool join = behavior == SPLIT_CONTIGUOUS ? match == previous : match && !previous;
		if (join && n > 0)
			spans[n - 1].to = spans[i].to;
		else
			spans[n++] = spans[i];
		previous = match;
	}
	return n;
}

static enum err emit_spans(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p, u32 count)
{
	struct span *spans = run->scratch->stage_spans[index];
	if (count > 0 && st->behavior != SPLIT_ISOLATED && st->behavior != SPLIT_REMOVED)
		count = join_spans(spans, count, st->behavior);
	for (u32 i = 0; i < count; i++) {
		struct span span = spans[i];
		if (st->behavior == SPLIT_REMOVED && span.match)
			continue;
		enum err e = emit_part(run, index, p, span.from, span.to);
		if (e != ERR_OK)
			return e;
	}
	return ERR_OK;
}

/* ---- splitting on a pattern ---- */

/* Isolated needs no list: each match and each gap goes on at once. */
static enum err split_isolated(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	struct pattern_iter it = {0};
	size_t at = 0, begin, end;
	enum err e;
	while ((e = pattern_next(&st->pattern, &run->scratch->regex, p.text, p.bytes, &it, &begin, &end)) == ERR_OK) {
		e = emit_part(run, index, p, at, begin);
		if (e == ERR_OK)
			e = emit_part(run, index, p, begin, end);
		if (e != ERR_OK)
			return e;
		at = end;
	}
	return e == ERR_NOT_FOUND ? emit_part(run, index, p, at, p.bytes) : e;
}

enum err pretok_split_pattern(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	if (st->behavior == SPLIT_ISOLATED)
		return split_isolated(st, run, index, p);
	struct pattern_iter it = {0};
	size_t at = 0, begin, end;
	u32 count = 0;
	enum err e, added = ERR_OK;
	while ((e = pattern_next(&st->pattern, &run->scratch->regex, p.text, p.bytes, &it, &begin, &end)) == ERR_OK) {
		if (at != begin)
			added = add_span(run->scratch, index, &count, at, begin, st->invert);
		if (added == ERR_OK)
			added = add_span(run->scratch, index, &count, begin, end, !st->invert);
		if (added != ERR_OK)
			return added;
		at = end;
	}
	if (e != ERR_NOT_FOUND)
		return e;
	if (at != p.bytes)
		added = add_span(run->scratch, index, &count, at, p.bytes, st->invert);
	return added != ERR_OK ? added : emit_spans(st, run, index, p, count);
}

/* ---- splitting on a class of characters; each character of the class is a match of its own ---- */

enum err pretok_split_class(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	size_t gap = 0;
	u32 count = 0;
	enum err e = ERR_OK;
	for (size_t at = 0; at < p.bytes && e == ERR_OK;) {
		size_t from = at;
		u32 c = unicode_next(p.text, &at);
		if (st->is_match != NULL ? !st->is_match(c) : c != st->delimiter)
			continue;
		if (gap != from)
			e = add_span(run->scratch, index, &count, gap, from, false);
		if (e == ERR_OK)
			e = add_span(run->scratch, index, &count, from, at, true);
		gap = at;
	}
	if (e == ERR_OK && gap != p.bytes)
		e = add_span(run->scratch, index, &count, gap, p.bytes, false);
	return e != ERR_OK ? e : emit_spans(st, run, index, p, count);
}

/* \w+|[^\w\s]+, everything else dropped. */
enum err pretok_words(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	(void)st;
	enum { SPACE, WORD, OTHER } now, kind = SPACE;
	size_t from = 0;
	for (size_t at = 0; at < p.bytes;) {
		size_t start = at;
		u32 c = unicode_next(p.text, &at);
		now = unicode_is_word(c) ? WORD : unicode_is_space(c) ? SPACE : OTHER;
		if (now == kind)
			continue;
		enum err e = kind != SPACE ? emit_part(run, index, p, from, start) : ERR_OK;
		if (e != ERR_OK)
			return e;
		from = start;
		kind = now;
	}
	return kind != SPACE ? emit_part(run, index, p, from, p.bytes) : ERR_OK;
}

/* ---- stages that change the text ---- */

static enum err split_or_pass(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	return st->pattern.regex.code != NULL || st->pattern.string != NULL
		       ? pretok_split_pattern(st, run, index, p)
		       : pretok_next(run, index, p);
}

/* A ByteLevel in the middle is two stages: cutting, then (the stage behind it) writing the stand-ins. */
enum err pretok_byte_level(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	struct buf *b = &run->scratch->stage_text[index];
	if (st->map_bytes) {
		buf_clear(b);
		if (!buf_reserve(b, p.bytes * 2))
			return ERR_NO_MEMORY;
		size_t origin = p.origin;
		for (size_t i = 0; i < p.bytes; i++) {
			b->bytes += utf8_put(b->data + b->bytes, byte_level_char((u8)p.text[i]));
			if (i + 1 == origin)
				p.origin = b->bytes;
		}
		p.text = b->data;
		p.bytes = b->bytes;
		return pretok_next(run, index, p);
	}
	if (st->add_prefix_space && p.text[0] != ' ') {
		buf_clear(b);
		buf_append_char(b, ' ');
		buf_append(b, p.text, p.bytes);
		if (!buf_ok(b))
			return ERR_NO_MEMORY;
		p.text = b->data;
		p.bytes = b->bytes;
		p.origin += p.origin > 0;
	}
	return split_or_pass(st, run, index, p);
}

enum err pretok_metaspace(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	struct buf *b = &run->scratch->stage_text[index];
	size_t width = strlen(st->replacement);
	buf_clear(b);
	if (!buf_reserve(b, (p.bytes + 1) * width))
		return ERR_NO_MEMORY;
	bool starts = p.text[0] == ' ' || (p.bytes >= width && memcmp(p.text, st->replacement, width) == 0);
	char *w = b->data;
	size_t origin = p.origin;
	if (!starts && (st->prepend == PREPEND_ALWAYS || (st->prepend == PREPEND_FIRST && origin > 0)))
		w = mempcpy(w, st->replacement, width);
	for (size_t i = 0; i < p.bytes; i++) {
		if (p.text[i] == ' ')
			w = mempcpy(w, st->replacement, width);
		else
			*w++ = p.text[i];
		if (i + 1 == origin)
			p.origin = (size_t)(w - b->data);
	}
	b->bytes = (size_t)(w - b->data);
	p.text = b->data;
	p.bytes = b->bytes;
	return split_or_pass(st, run, index, p);
}

enum err pretok_fixed_length(const struct pretok_stage *st, struct pretok_run *run, u32 index, struct piece p)
{
	size_t from = 0;
	u32 chars = 0;
	for (size_t at = 0; at < p.bytes;) {
		(void)unicode_next(p.text, &at);
		if (++chars < st->delimiter && at < p.bytes)
			continue;
		enum err e = emit_part(run, index, p, from, at);
		if (e != ERR_OK)
			return e;
		from = at;
		chars = 0;
	}
	return ERR_OK;
}
