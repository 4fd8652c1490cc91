/* API keys, as bearer tokens or in a header of their own; compared in constant time. */
#ifndef TERCET_PROC_GATEWAY_AUTH_H
#define TERCET_PROC_GATEWAY_AUTH_H

#include "common/types.h"

struct http_head;
struct option_list;

/* The keys are borrowed from the options. */
struct auth {
	char *const *keys;
	u32 count; /* 0: open to everybody */
};

void auth_init(struct auth *a, const struct option_list *keys);
/* Where a request may show a key: the values of these headers, NULL when absent. Borrowed from its head. */
struct auth_shown {
	const char *authorization; /* "Bearer KEY" */
	const char *api_key;	   /* x-api-key: KEY */
};
struct auth_shown auth_shown(const struct http_head *head);
/* Whether one of the keys is right. On success `*tenant` tells keys apart: their
 * requests do not share prefix caches. 0 when there is one key or none. The time taken depends on the
 * headers' lengths and on how many keys there are, not on how much of a key is right. */
bool auth_check(const struct auth *a, struct auth_shown shown, u64 *tenant);

/* Whose sessions a request may use whose key is right: told apart by key wherever there is one, so that a key added later
 * changes nothing. 0: no keys. */
u64 auth_owner(const struct auth *a, struct auth_shown shown);

#endif
