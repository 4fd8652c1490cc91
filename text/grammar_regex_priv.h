/* What the two halves of the reader of regular expressions share (grammar_regex.c, grammar_regex_chars.c): where it stands in the
 * expression, and what it does with every part of it. */
#ifndef TERCET_TEXT_GRAMMAR_REGEX_PRIV_H
#define TERCET_TEXT_GRAMMAR_REGEX_PRIV_H

#include "text/grammar_priv.h"

enum { LOOKS_MAX = 8, LOOK_LEVELS = 4 };

/* (?=...) or (?!...) in front of all that eats something. */
struct look {
	const char *text;
	size_t bytes;
	bool negative;
};
struct reader {
	struct gb *b;
	const char *text;
	size_t bytes;
	size_t at;
	u32 level;
	size_t front; /* of an alternative of the whole: nothing before it eats anything */
	bool search_start, search_end;
	bool open_start; /* of a search: the alternative is not anchored by ^ */
	bool open_end;
	struct look looks[LOOKS_MAX];
	u32 look_count;
};

/* In the arena, without children. NULL: out of memory, which is kept in `b`. */
static inline struct gexpr *new_expr(struct gb *b, enum gexpr_kind kind)
{
	struct gexpr *e = arena_zalloc(&b->arena, sizeof(*e));
	if (e == NULL) {
		gb_fail(b, ERR_TOO_LONG, "the expression is too long");
		return NULL;
	}
	e->kind = kind;
	return e;
}

/* Something was wrong: its message is in r->b, and what is read from then on means nothing. */
static inline bool failed(const struct reader *r)
{
	return r->b->err != ERR_OK;
}

/* Whether `c` is what comes next. */
static inline bool peek(const struct reader *r, char c)
{
	return grammar_peek(r->text, r->bytes, r->at, c);
}

/* The same of a word, behind which the reader goes on; false: nothing is taken. */
static inline bool take(struct reader *r, const char *word)
{
	return grammar_take(r->text, r->bytes, &r->at, word);
}

/* An escape, r->at behind the backslash. `in_class`: \b is a backspace. *code is its code point, or GRAMMAR_NONE where
 * the set got several. False: it is none that is known or supported, or memory ran out; r->b has the message. */
bool grammar_regex_read_escape(struct reader *r, struct code_set *s, bool in_class, u32 *code);
/* A class of characters, r->at behind the bracket. NULL: r->b has the message. In the arena. */
struct gexpr *grammar_regex_read_class(struct reader *r);

#endif
