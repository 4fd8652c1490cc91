/* What errors say of the architectures that there are. Runs in the worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* `name` without `suffix`, which all names of a table have, behind a comma where it is not the first. */
static size_t append_name(char *out, size_t bytes, size_t used, const char *name, const char *suffix, bool first)
{
	if (used >= bytes)
		return used;
	return used + (size_t)snprintf(out + used, bytes - used, "%s%.*s", first ? "" : ", ",
				       (int)(strlen(name) - strlen(suffix)), name);
}

static bool ends_in(const char *name, const char *suffix)
{
	size_t bytes = strlen(name), end = strlen(suffix);

	return bytes >= end && !strcmp(name + bytes - end, suffix);
}

enum { ALIKE_MAX = 32 /* names that begin alike */, NAMES_MAX = 256 };

/* Whether a name is that of an earlier one, or another spelling of it. */
static bool said_before(const char *const names[], size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (!strcasecmp(names[j], names[i]))
			return true;
	return false;
}

/* How long a name is without the suffix and the digits before it, unless hardly anything is left. */
static size_t stem_of(const char *name, const char *suffix)
{
	static const char *const makers[] = {"Bailing", "GPT", "HYV", "HunYuan", "Sarvam"}; /* of several names, none of which is this one */
	enum { SHORT = 3 };
	const size_t whole = strlen(name) - strlen(suffix);
	size_t stem = whole;

	for (size_t i = 0; i < COUNT_OF(makers); i++)
		if (!strncmp(name, makers[i], strlen(makers[i])))
			return strlen(makers[i]);
	while (stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9')
		stem--;
	return stem > SHORT ? stem : whole;
}

/* Of the names whose stems name `i` begins with the one of the shortest, the first of several: itself, if there is no other. */
static size_t root_of(const char *const names[], size_t count, size_t i, const char *suffix)
{
	size_t root = i, shortest = stem_of(names[i], suffix);

	for (size_t j = 0; j < count; j++) {
		const size_t stem = stem_of(names[j], suffix);
		if (strncmp(names[j], names[i], stem) == 0 && (stem < shortest || (stem == shortest && j < root))) {
			root = j;
			shortest = stem;
		}
	}
	return root;
}

/* What begins like name `root`: "Mamba[2]" are Mamba and Mamba2, "InternLM{2,3}" InternLM2 and InternLM3. */
static size_t append_alike(char *out, size_t bytes, size_t used, const char *const names[], size_t count, size_t root, const char *suffix)
{
	const size_t stem = stem_of(names[root], suffix);
	size_t ends[ALIKE_MAX], alike = 0;
	bool alone = false; /* the stem is a name */

	for (size_t i = 0; i < count; i++) {
		if (root_of(names, count, i, suffix) != root || said_before(names, i))
			continue;
		alone |= strlen(names[i]) - strlen(suffix) == stem;
		if (strlen(names[i]) - strlen(suffix) != stem && alike < ALIKE_MAX)
			ends[alike++] = i;
	}
	used = append_name(out, bytes, used, names[root], names[root] + stem, true);
	for (size_t k = 0; k < alike; k++) {
		if (alone || alike > 1)
			used = append_name(out, bytes, used, k ? "," : alone ? "[" : "{", "", true);
		used = append_name(out, bytes, used, names[ends[k]] + stem, suffix, true);
	}
	return alike == 0 || (!alone && alike == 1) ? used : append_name(out, bytes, used, alone ? "]" : "}", "", true);
}

/* All of them, for they have to fit into an error: those that begin alike together, and without spaces between. */
static size_t append_names(char *out, size_t bytes, size_t used, const char *const names[], size_t count, const char *suffix)
{
	bool first = true;

	for (size_t i = 0; i < count; i++) {
		if (root_of(names, count, i, suffix) != i || said_before(names, i))
			continue;
		used = append_name(out, bytes, used, first ? "" : ",", "", true);
		used = append_alike(out, bytes, used, names, count, i, suffix);
		first = false;
	}
	return used;
}

void arch_names(char *out, size_t bytes, const char *like)
{
	static const char causal[] = "ForCausalLM", parts[] = "ForConditionalGeneration";
	const bool whole = ends_in(like, parts);
	const char *names[NAMES_MAX], *name, *suffix = whole ? parts : causal;
	size_t count = 0, used = append_name(out, bytes, 0, "{", "", true);

	for (size_t i = 0; (name = whole ? arch_part_name_at(i) : arch_name_at(i)) && count < NAMES_MAX; i++)
		if (ends_in(name, suffix))
			names[count++] = name;
	used = append_names(out, bytes, used, names, count, suffix);
	used = append_name(out, bytes, used, "}", "", true);
	used = append_name(out, bytes, used, suffix, "", true);
	for (size_t i = 0; !whole && (name = arch_name_at(i)); i++)
		if (!ends_in(name, causal) && !arch_find(name)->part)
			used = append_name(out, bytes, used, name, "", false);
	for (size_t i = 0; !whole && (name = arch_part_name_at(i)); i++)
		if (ends_in(name, causal))
			used = append_name(out, bytes, used, name, "", false);
	if (used < bytes)
		snprintf(out + used, bytes - used, "; every %s as well that docs/ADDING_A_MODEL.md names", whole ? causal : parts);
}
