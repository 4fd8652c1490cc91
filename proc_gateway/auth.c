/* Owns the check of API keys; runs in the gateway. Never logs a key and never stops comparing early. */
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "common/options.h"
#include "proc_gateway/auth.h"
#include "proc_gateway/http_parse.h"

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

struct auth_shown auth_shown(const struct http_head *head)
{
	return (struct auth_shown){http_head_get(head, "authorization"), http_head_get(head, "x-api-key")};
}

static bool is_key(const struct auth *a, const char *given)
{
	u32 found = 0;
	size_t bytes = strlen(given);
	for (u32 i = 0; i < a->count; i++)
		found |= key_equals(a->keys[i], given, bytes);
	return found != 0 && bytes > 0;
}

/* The right one of those that are shown; NULL: none is. */
static const char *find_key(const struct auth *a, struct auth_shown shown)
{
	if (shown.authorization && strncasecmp(shown.authorization, "Bearer ", 7) == 0) {
		const char *given = shown.authorization + 7;
		given += strspn(given, " ");
		if (is_key(a, given))
			return given;
	}
	return shown.api_key && is_key(a, shown.api_key) ? shown.api_key : NULL;
}

bool auth_check(const struct auth *a, struct auth_shown shown, u64 *tenant)
{
	*tenant = 0;
	if (a->count == 0)
		return true;
	const char *key = find_key(a, shown);
	if (key && a->count > 1)
		*tenant = XXH3_64bits(key, strlen(key));
	return key != NULL;
}

u64 auth_owner(const struct auth *a, struct auth_shown shown)
{
	const char *key = a->count > 0 ? find_key(a, shown) : NULL;
	return key ? XXH3_64bits(key, strlen(key)) : 0;
}
