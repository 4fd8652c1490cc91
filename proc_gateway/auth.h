/* API keys: bearer tokens, compared in constant time. */
#ifndef TERCET_PROC_GATEWAY_AUTH_H
#define TERCET_PROC_GATEWAY_AUTH_H

#include "common/types.h"

struct option_list;

/* The keys are borrowed from the options. */
struct auth {
	char *const *keys;
	u32 count; /* 0: open to everybody */
};

void auth_init(struct auth *a, const struct option_list *keys);
/* `authorization` is the value of that header, NULL when absent. On success `*tenant` tells keys apart: their
 * requests do not share prefix caches. 0 when there is one key or none. The time taken depends on the
 * header's length and on how many keys there are, not on how much of a key is right. */
bool auth_check(const struct auth *a, const char *authorization, u64 *tenant);

/* Whose sessions a request may use whose key is right: told apart by key wherever there is one, so that a key added later
 * changes nothing. 0: no keys. */
u64 auth_owner(const struct auth *a, const char *authorization);

#endif
