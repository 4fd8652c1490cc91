/* How far a mistyped word is from a known one. */
#ifndef TERCET_COMMON_SUGGEST_H
#define TERCET_COMMON_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

/* Edits (insert, delete, replace, swap of neighbours) that turn `word` into `known`, '-' and '_' being the
 * same; a missing or surplus ending of a word of four letters and more counts as one. SIZE_MAX when either is
 * longer than 63 bytes. */
size_t suggest_distance(const char *word, size_t bytes, const char *known);
/* Whether something at that distance may be what was meant. */
bool suggest_is_near(size_t distance, size_t word_bytes);

#endif
