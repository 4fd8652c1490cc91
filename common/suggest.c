/* Damerau-Levenshtein distance, restricted (each place is edited once). Pure; for error messages only. */
#include "common/suggest.h"

#include <stdint.h>
#include <string.h>

enum { WORD_BYTES_MAX = 63 };

static char folded(char c)
{
	return c == '-' ? '_' : c;
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t edit_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	size_t d[WORD_BYTES_MAX + 1][WORD_BYTES_MAX + 1];

	for (size_t i = 0; i <= a_bytes; i++)
		d[i][0] = i;
	for (size_t k = 0; k <= b_bytes; k++)
		d[0][k] = k;
	for (size_t i = 1; i <= a_bytes; i++)
		for (size_t k = 1; k <= b_bytes; k++) {
			char x = folded(a[i - 1]), y = folded(b[k - 1]);
			size_t best = d[i - 1][k - 1] + (x != y);
			best = least(best, least(d[i - 1][k], d[i][k - 1]) + 1);
			if (i > 1 && k > 1 && x == folded(b[k - 2]) && folded(a[i - 2]) == y)
				best = least(best, d[i - 2][k - 2] + 1);
			d[i][k] = best;
		}
	return d[a_bytes][b_bytes];
}

size_t suggest_distance(const char *word, size_t bytes, const char *known)
{
	size_t known_bytes = strlen(known), same = 0;

	if (bytes > WORD_BYTES_MAX || known_bytes > WORD_BYTES_MAX)
		return SIZE_MAX;
	while (same < bytes && same < known_bytes && folded(word[same]) == folded(known[same]))
		same++;
	if (same == bytes && same == known_bytes)
		return 0;
	if (same >= 4 && (same == bytes || same == known_bytes))
		return 1;
	return edit_distance(word, bytes, known, known_bytes);
}

bool suggest_is_near(size_t distance, size_t word_bytes)
{
	return word_bytes >= 2 && distance <= word_bytes / 3;
}
