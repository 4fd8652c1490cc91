/* Working on Python's strings: case, classes, searching, stripping, padding. */
#ifndef TERCET_TEXT_JINJA_STR_PRIV_H
#define TERCET_TEXT_JINJA_STR_PRIV_H

#include "text/jinja_priv.h"

void jstr_put_char(struct buf *out, u32 c);
void jstr_put_upper(struct buf *out, u32 c);
void jstr_put_title(struct buf *out, u32 c);
/* `at`: where `c` is in the text, which decides how a sigma ends a word. */
void jstr_put_lower(struct buf *out, const char *text, size_t bytes, size_t at, u32 c);
void jstr_lower(struct buf *out, const char *text, size_t bytes);
void jstr_upper(struct buf *out, const char *text, size_t bytes);
void jstr_capitalize(struct buf *out, const char *text, size_t bytes);
void jstr_title(struct buf *out, const char *text, size_t bytes);
void jstr_swapcase(struct buf *out, const char *text, size_t bytes);

bool jstr_is_cased(u32 c);
bool jstr_is_space(u32 c); /* str.isspace of one character */
bool jstr_all_case(const struct jstr *s, bool upper);
enum jstr_class {
	JSTR_ALNUM,
	JSTR_ALPHA,
	JSTR_ASCII,
	JSTR_DECIMAL,
	JSTR_DIGIT,
	JSTR_NUMERIC,
	JSTR_SPACE,
	JSTR_LOWER,
	JSTR_UPPER,
	JSTR_TITLE,
};
bool jstr_is(const struct jstr *s, enum jstr_class class);

/* Narrows [*from, *to) by white space (`chars` NULL) or by any of the characters. */
void jstr_strip(const struct jstr *s, const struct jstr *chars, bool left, bool right, size_t *from, size_t *to);
/* Appends with up to `count` replacements (negative: all). An empty `old` matches between characters. Stops when `out` has
 * more than `most` bytes, which the caller has to refuse. */
void jstr_replace(struct buf *out, const struct jstr *s, const struct jstr *old, const struct jstr *new, int64_t count,
		  size_t most);
/* End of the line at `from` without its break; *next is behind the break. */
size_t jstr_line(const struct jstr *s, size_t from, size_t *next);

/* str.format and its format language (jinja_format.c). */
bool jstr_format(struct jinja *j, struct jv format, const struct jargs *args, struct jv *out);

/* What an attribute path ("a.b.0", or any key) leads to; an undefined member gives `fallback` where there is one. */
bool jinja_get_path(struct jinja *j, struct jv item, struct jv attribute, struct jv fallback, struct jv *out);

#endif
