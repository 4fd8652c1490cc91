/* uint64 -> uint32 hash map of fixed capacity (open addressing, no allocation after init). */
#ifndef TERCET_COMMON_MAP_H
#define TERCET_COMMON_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct map_slot;

struct map {
	struct map_slot *slots;
	uint32_t mask;
	uint32_t count;
	uint32_t capacity;
	uint64_t secret; /* mixed into the hash, so that keys chosen by clients cannot pile up */
};

/* Room for `capacity` keys. ERR_NO_MEMORY. */
MUST_CHECK enum err map_init(struct map *m, uint32_t capacity, uint64_t secret);
void map_fini(struct map *m);
/* Inserts or replaces. ERR_BUSY when `capacity` other keys are in it. */
MUST_CHECK enum err map_put(struct map *m, uint64_t key, uint32_t value);
/* False when absent; `value` may be NULL. */
bool map_get(const struct map *m, uint64_t key, uint32_t *value);
bool map_remove(struct map *m, uint64_t key);
void map_clear(struct map *m);

#endif
