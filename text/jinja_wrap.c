/* Owns the filter wordwrap, which breaks lines as Python's textwrap does, and the patterns that filters match with. Runs where chat templates are rendered. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "text/jinja_pattern_priv.h"
#include "text/jinja_str_priv.h"
#include "text/unicode_priv.h"

#define FILTER(name)                                                                                         \
	static bool name(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,    \
			 struct jv *out)

/* ---- patterns ---- */

enum { MATCH_STEPS_MAX = 100000 };

bool jinja_pattern_init(struct jinja *j, struct jinja_pattern *p, const char *pattern, bool ignore_case)
{
	int error;
	PCRE2_SIZE offset;
	u32 options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_DOLLAR_ENDONLY | (ignore_case ? PCRE2_CASELESS : 0);
	p->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, NULL);
	p->match = pcre2_match_data_create(1, NULL);
	p->context = pcre2_match_context_create(NULL);
	if (p->code == NULL || p->match == NULL || p->context == NULL)
		return jinja_fail_memory(j);
	pcre2_set_match_limit(p->context, MATCH_STEPS_MAX);
	return true;
}

void jinja_pattern_fini(struct jinja_pattern *p)
{
	pcre2_code_free(p->code);
	pcre2_match_data_free(p->match);
	pcre2_match_context_free(p->context);
	*p = (struct jinja_pattern){0};
}

bool jinja_pattern_find(const struct jinja_pattern *p, const char *text, size_t bytes, size_t from, size_t *begin,
			size_t *end)
{
	if (pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, p->match, p->context) < 0)
		return false;
	const PCRE2_SIZE *at = pcre2_get_ovector_pointer(p->match);
	*begin = at[0];
	*end = at[1];
	return true;
}

/* ---- wordwrap ---- */

#define WS  "[\\t\\n\\x0b\\x0c\\r ]"
#define NWS "[^\\t\\n\\x0b\\x0c\\r ]"
#define WP  "[\\w!\"'&.,?]"
#define LT  "[^\\d\\W]"
/* textwrap's wordsep_re: white space, dashes between words, words that may be broken behind hyphens. */
static const char hyphen_pattern[] = WS "+|(?<=" WP ")-{2,}(?=\\w)|" NWS "+?(?:-(?:(?<=" LT LT "-)|(?<=" LT "-" WP "-))"
				     "(?=" LT "-?" LT ")|(?=" WS "|\\z)|(?<=" WP ")(?=-{2,}\\w))";
static const char space_pattern[] = WS "+";

/* A part of a line that is not broken. */
struct chunk {
	size_t from, to;
	size_t chars;
	bool space;
};
struct wrapper {
	struct jinja *j;
	struct jinja_pattern pattern;
	const char *text; /* the line in hand */
	int64_t width;
	bool break_long;
	bool hyphens;
	struct jstr *newline;
	struct chunk *chunks; /* in the arena */
	size_t count;
	size_t room;
	struct buf out;
};

static size_t chars_of(const char *text, size_t bytes)
{
	struct jstr s = {.data = text, .bytes = bytes, .chars = SIZE_MAX};
	return jstr_chars(&s);
}

static bool add_chunk(struct wrapper *w, size_t from, size_t to)
{
	if (from == to)
		return true;
	if (w->count == w->room) {
		size_t room = w->room == 0 ? 64 : w->room * 2;
		struct chunk *chunks = jinja_alloc(w->j, room * sizeof(*chunks));
		if (chunks == NULL)
			return false;
		if (w->count > 0)
			memcpy(chunks, w->chunks, w->count * sizeof(*chunks));
		w->chunks = chunks;
		w->room = room;
	}
	bool space = true;
	for (size_t at = from; at < to && space;)
		space = jstr_is_space(unicode_next(w->text, &at));
	w->chunks[w->count++] =
		(struct chunk){.from = from, .to = to, .chars = chars_of(w->text + from, to - from), .space = space};
	return jinja_charge(w->j, to - from);
}

static bool cut_chunks(struct wrapper *w, size_t bytes)
{
	size_t at = 0, begin, end;
	w->count = 0;
	while (at < bytes && jinja_pattern_find(&w->pattern, w->text, bytes, at, &begin, &end)) {
		if (!add_chunk(w, at, begin) || !add_chunk(w, begin, end))
			return false;
		at = end;
	}
	return add_chunk(w, at, bytes);
}

/* Takes what fits of a chunk that is longer than a line; returns its bytes. */
static size_t break_chunk(const struct wrapper *w, const struct chunk *c, size_t room)
{
	struct jstr s = {.data = w->text + c->from, .bytes = c->to - c->from, .chars = c->chars};
	size_t end = jstr_offset(&s, room);
	const char *hyphen = w->hyphens && c->chars > room ? memrchr(s.data, '-', end) : NULL;
	for (const char *p = s.data; hyphen != NULL && p < hyphen; p++)
		if (*p != '-')
			return (size_t)(hyphen - s.data) + 1;
	return end;
}

/* The chunks of one line from `*next` on: their text is [*from, *to). */
static void fill_line(struct wrapper *w, size_t *next, bool first, size_t *from, size_t *to)
{
	size_t width = (size_t)w->width, used = 0, last = SIZE_MAX;
	if (w->chunks[*next].space && !first)
		(*next)++;
	*from = *to = *next < w->count ? w->chunks[*next].from : 0;
	size_t i = *next, before = *from;
	for (; i < w->count && used + w->chunks[i].chars <= width; i++) {
		used += w->chunks[i].chars;
		before = *to;
		*to = w->chunks[i].to;
		last = i;
	}
	if (i < w->count && w->chunks[i].chars > width && (w->break_long || last == SIZE_MAX)) {
		struct chunk *c = &w->chunks[i];
		size_t taken = w->break_long ? break_chunk(w, c, width - used) : c->to - c->from;
		c->from += taken;
		c->chars = chars_of(w->text + c->from, c->to - c->from);
		*next = i + (c->chars == 0);
		if (taken > 0 && !c->space)
			*to = c->from;
		return; /* of a full line, textwrap drops the empty part that it took, not the space before it */
	}
	*next = i;
	if (last != SIZE_MAX && w->chunks[last].space)
		*to = before;
}

static bool wrap_line(struct wrapper *w, size_t bytes)
{
	bool first = true;
	if (!cut_chunks(w, bytes))
		return false;
	for (size_t next = 0; next < w->count;) {
		size_t from, to;
		fill_line(w, &next, first, &from, &to);
		if (to == from)
			continue;
		if (!first)
			buf_append(&w->out, w->newline->data, w->newline->bytes);
		buf_append(&w->out, w->text + from, to - from);
		first = false;
		if (w->out.bytes > w->j->limits.output)
			return jinja_fail_memory(w->j);
	}
	return true;
}

static bool wrap_all(struct wrapper *w, const struct jstr *s)
{
	for (size_t from = 0, next; from < s->bytes; from = next) {
		size_t end = jstr_line(s, from, &next);
		if (from > 0)
			buf_append(&w->out, w->newline->data, w->newline->bytes);
		w->text = s->data + from;
		if (!wrap_line(w, end - from))
			return false;
	}
	return true;
}

FILTER(filter_wordwrap)
{
	(void)all;
	struct wrapper w = {.j = j, .break_long = jinja_arg_bool(args[1], true), .hyphens = jinja_arg_bool(args[3], true)};
	struct jv newline = args[2];
	if (self.type != JV_STRING)
		return jinja_fail(j, "wordwrap works on strings, not on %s", jv_type_name(self));
	if (!jinja_arg_int(j, args[0], 79, &w.width))
		return false;
	if (newline.type == JV_MISSING || newline.type == JV_NONE)
		if (!jv_string(j, "\n", 1, &newline))
			return false;
	if (!jinja_arg_string(j, newline, "the wrapstring", &w.newline))
		return false;
	if (w.width <= 0 && self.s->bytes > 0)
		return jinja_fail(j, "invalid width %lld (must be > 0)", (long long)w.width);
	bool ok = jinja_pattern_init(j, &w.pattern, w.hyphens ? hyphen_pattern : space_pattern, false) && wrap_all(&w, self.s);
	jinja_pattern_fini(&w.pattern);
	ok = ok && jv_string_buf(j, &w.out, out);
	buf_fini(&w.out);
	return ok;
}

const struct builtin jinja_wrap_filters[] = {
	{"wordwrap", filter_wordwrap, "width,break_long_words,wrapstring,break_on_hyphens", 0},
	{NULL, NULL, NULL, 0},
};
