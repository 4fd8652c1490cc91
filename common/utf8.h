/* UTF-8, strictly (no surrogates, no overlong forms, at most U+10FFFF). */
#ifndef TERCET_COMMON_UTF8_H
#define TERCET_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool utf8_valid(const char *text, size_t bytes);
/* Decodes one code point. Returns its length 1..4, 0 when the bytes end inside a so far valid character, or
 * -n when the first n (1..3) bytes are a maximal ill-formed part, which counts as one U+FFFD. */
int utf8_next(const char *text, size_t bytes, uint32_t *code);
/* Length of the longest prefix that does not end inside a so far valid character. */
size_t utf8_complete_prefix(const char *text, size_t bytes);
/* Writes 1..4 bytes, returns how many. */
size_t utf8_put(char *out, uint32_t code);

#endif
