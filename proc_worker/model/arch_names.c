/* What errors say of the architectures that there are: how many, where they are listed, and which have names like the one that was asked for. Runs in the
 * worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { STEM_MAX = 64, ALIKE_MAX = 4 };

/* What a name is without the words that say of which kind the model is. */
static size_t stem_of(const char *name)
{
	static const char *const ends[] = {"LMHeadModel", "TextModel", "Model"};
	const size_t bytes = strlen(name);
	const char *rest = bytes ? strstr(name + 1, "For") : NULL; /* ForCausalLM, ForConditionalGeneration, however they are spelled */
	size_t stem = rest ? (size_t)(rest - name) : bytes;

	for (size_t i = 0; i < COUNT_OF(ends) && stem == bytes; i++) {
		const size_t end = strlen(ends[i]);
		if (bytes > end && strcmp(name + bytes - end, ends[i]) == 0)
			stem = bytes - end;
	}
	return stem < STEM_MAX ? stem : STEM_MAX;
}

static u32 least(u32 a, u32 b)
{
	return a < b ? a : b;
}

/* How many letters have to be put in, taken out or exchanged, whatever their case, to make one stem of the other (Levenshtein 1966). */
static u32 distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	u32 row[STEM_MAX + 1];

	for (u32 j = 0; j <= b_bytes; j++)
		row[j] = j;
	for (u32 i = 1; i <= a_bytes; i++) {
		u32 corner = row[0];
		row[0] = i;
		for (u32 j = 1; j <= b_bytes; j++) {
			const bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
			const u32 exchanged = corner + !same;
			corner = row[j];
			row[j] = least(exchanged, least(row[j], row[j - 1]) + 1);
		}
	}
	return row[b_bytes];
}

struct alike {
	const char *names[ALIKE_MAX]; /* the nearest first; of equals the first of the tables */
	u32 distances[ALIKE_MAX], count;
};

/* Keeps the name if it is near enough: half of the letters may differ. */
static void weigh(struct alike *a, const char *like, const char *name)
{
	const size_t stem = stem_of(like), other = stem_of(name);
	const u32 d = distance(like, stem, name, other);
	u32 at = a->count;

	if (d * 2 > (stem > other ? stem : other))
		return;
	while (at > 0 && a->distances[at - 1] > d)
		at--;
	if (at == ALIKE_MAX)
		return;
	a->count += a->count < ALIKE_MAX;
	for (u32 i = a->count - 1; i > at; i--) {
		a->names[i] = a->names[i - 1];
		a->distances[i] = a->distances[i - 1];
	}
	a->names[at] = name;
	a->distances[at] = d;
}

void arch_names(char *out, size_t bytes, const char *like)
{
	struct alike alike = {.count = 0};
	const char *name, *last = "";
	size_t count = 0;

	for (size_t i = 0; (name = arch_name_at(i)); i++) {
		if (arch_find(name)->part)
			continue;
		count++;
		weigh(&alike, like, name);
	}
	for (size_t i = 0; (name = arch_part_name_at(i)); i++) {
		if (strcmp(name, last) == 0) /* a whole has a row for each kind of text part */
			continue;
		last = name;
		count++;
		weigh(&alike, like, name);
	}
	size_t used = (size_t)snprintf(out, bytes, "docs/ADDING_A_MODEL.md lists the %zu that are supported", count);
	for (u32 i = 0; i < alike.count && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%s", i == 0 ? "; of names like it: " : ", ", alike.names[i]);
}
