/* Owns the check of API keys; runs in the gateway. Never logs a key and never stops comparing early. */
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "common/options.h"
#include "proc_gateway/auth.h"

void auth_init(struct auth *a, const struct option_list *keys)
{
	*a = (struct auth){.keys = keys->items, .count = keys->count};
}

/* 1 when equal, 0 when not; reads all of `given` whatever it finds. */
static u32 key_equals(const char *key, const char *given, size_t given_bytes)
{
	size_t key_bytes = strlen(key);
	volatile u32 difference = key_bytes != given_bytes;
	for (size_t i = 0; i < given_bytes; i++)
		difference |= (u32)(unsigned char)(given[i] ^ key[i < key_bytes ? i : key_bytes]);
	return difference == 0;
}

bool auth_check(const struct auth *a, const char *authorization, u64 *tenant)
{
	u32 found = 0;
	*tenant = 0;
	if (a->count == 0)
		return true;
	if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
		return false;
	const char *given = authorization + 7;
	given += strspn(given, " ");
	size_t bytes = strlen(given);
	for (u32 i = 0; i < a->count; i++)
		found |= key_equals(a->keys[i], given, bytes);
	if (found && a->count > 1)
		*tenant = XXH3_64bits(given, bytes);
	return found != 0 && bytes > 0;
}

u64 auth_owner(const struct auth *a, const char *authorization)
{
	if (a->count == 0 || !authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
		return 0;
	const char *given = authorization + 7;
	given += strspn(given, " ");
	return XXH3_64bits(given, strlen(given));
}
