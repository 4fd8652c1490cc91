/* Linear probing with at most half of the slots taken and backward-shift removal: no tombstones, so look-ups
 * stay short for the life of a process. All memory is taken at init. */
#include "common/map.h"

#include <stdlib.h>
#include <string.h>

struct map_slot {
	uint64_t key;
	uint32_t value;
	uint32_t used;
};

/* splitmix64's finaliser over the key and the secret. */
static uint32_t home_slot(const struct map *m, uint64_t key)
{
	uint64_t x = key ^ m->secret;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (uint32_t)x & m->mask;
}

enum err map_init(struct map *m, uint32_t capacity, uint64_t secret)
{
	uint64_t slots = 8;

	*m = (struct map){0};
	while (slots < 2ull * capacity)
		slots *= 2;
	if (slots > 1ull << 31)
		return ERR_NO_MEMORY;
	m->slots = calloc(slots, sizeof(*m->slots));
	if (m->slots == NULL)
		return ERR_NO_MEMORY;
	m->mask = (uint32_t)(slots - 1);
	m->capacity = capacity;
	m->secret = secret;
	return ERR_OK;
}

void map_fini(struct map *m)
{
	free(m->slots);
	*m = (struct map){0};
}

/* The slot that holds `key`, or the free one where it would go. */
static struct map_slot *find_slot(const struct map *m, uint64_t key)
{
	uint32_t i = home_slot(m, key);

	while (m->slots[i].used && m->slots[i].key != key)
		i = (i + 1) & m->mask;
	return &m->slots[i];
}

enum err map_put(struct map *m, uint64_t key, uint32_t value)
{
	struct map_slot *s = find_slot(m, key);

	if (!s->used) {
		if (m->count == m->capacity)
			return ERR_BUSY;
		s->used = 1;
		s->key = key;
		m->count++;
	}
	s->value = value;
	return ERR_OK;
}

bool map_get(const struct map *m, uint64_t key, uint32_t *value)
{
	const struct map_slot *s = find_slot(m, key);

	if (!s->used)
		return false;
	if (value != NULL)
		*value = s->value;
	return true;
}

bool map_remove(struct map *m, uint64_t key)
{
	struct map_slot *s = find_slot(m, key);

	if (!s->used)
		return false;
	uint32_t hole = (uint32_t)(s - m->slots);
	/* Moves back whatever would no longer be found behind the hole. */
	for (uint32_t i = (hole + 1) & m->mask; m->slots[i].used; i = (i + 1) & m->mask) {
		uint32_t home = home_slot(m, m->slots[i].key);
		if (((i - home) & m->mask) >= ((i - hole) & m->mask)) {
			m->slots[hole] = m->slots[i];
			hole = i;
		}
	}
	m->slots[hole].used = 0;
	m->count--;
	return true;
}

void map_clear(struct map *m)
{
	if (m->count != 0)
		memset(m->slots, 0, ((size_t)m->mask + 1) * sizeof(*m->slots));
	m->count = 0;
}
