/* Owns which slot has the state of which beginning, and the order in which slots are taken; runs inside the scheduling core. Never allocates after
 * init, never decides what is worth keeping (sched_states.c). */
#include "proc_scheduler/state_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

struct state_entry {
	struct block_hash hash;
	u64 step;
	u32 prev, next; /* in the list of those that may be taken, the first one next */
	u32 chained;	/* the next of its bucket */
	bool filed, taken;
};

enum { BUCKETS_MIN = 16 };

static u32 *bucket(const struct state_cache *c, struct block_hash hash)
{
	return &c->heads[hash.low & c->mask];
}

static bool same(struct block_hash a, struct block_hash b)
{
	return a.low == b.low && a.high == b.high;
}

static void unlink_slot(struct state_cache *c, u32 slot)
{
	struct state_entry *e = &c->entries[slot];

	c->entries[e->prev].next = e->next;
	c->entries[e->next].prev = e->prev;
}

/* Between `prev` and what follows it. */
static void link_slot(struct state_cache *c, u32 slot, u32 prev)
{
	struct state_entry *e = &c->entries[slot];

	e->prev = prev;
	e->next = c->entries[prev].next;
	c->entries[e->next].prev = slot;
	c->entries[prev].next = slot;
}

/* Takes the hash from it. */
static void revoke(struct state_cache *c, u32 slot)
{
	u32 *at = bucket(c, c->entries[slot].hash);

	while (*at != slot)
		at = &c->entries[*at].chained;
	*at = c->entries[slot].chained;
	c->entries[slot].filed = false;
	c->filed--;
}

enum err state_cache_init(struct state_cache *c, u32 count)
{
	u32 buckets = BUCKETS_MIN;

	ASSERT(count < STATE_SLOT_NONE);
	memset(c, 0, sizeof(*c));
	while (buckets < count && buckets < 1u << 30)
		buckets *= 2;
	c->entries = calloc((size_t)count + 1, sizeof(*c->entries));
	c->heads = malloc(buckets * sizeof(*c->heads));
	if (!c->entries || !c->heads) {
		state_cache_fini(c);
		return ERR_NO_MEMORY;
	}
	c->mask = buckets - 1;
	c->capacity = count;
	state_cache_reset(c, count);
	return ERR_OK;
}

void state_cache_fini(struct state_cache *c)
{
	free(c->entries);
	free(c->heads);
	memset(c, 0, sizeof(*c));
}

void state_cache_reset(struct state_cache *c, u32 count)
{
	ASSERT(count <= c->capacity);
	memset(c->entries, 0, ((size_t)c->capacity + 1) * sizeof(*c->entries));
	memset(c->heads, 0xff, ((size_t)c->mask + 1) * sizeof(*c->heads));
	c->entries[c->capacity].prev = c->entries[c->capacity].next = c->capacity;
	for (u32 slot = 0; slot < count; slot++)
		link_slot(c, slot, c->entries[c->capacity].prev);
	c->count = count;
	c->filed = 0;
}

static u32 find(const struct state_cache *c, struct block_hash hash)
{
	u32 slot = *bucket(c, hash);

	while (slot != STATE_SLOT_NONE && !same(c->entries[slot].hash, hash))
		slot = c->entries[slot].chained;
	return slot;
}

u32 state_cache_find(struct state_cache *c, struct block_hash hash, u64 step)
{
	u32 slot = find(c, hash);

	if (slot == STATE_SLOT_NONE || c->entries[slot].step >= step)
		return STATE_SLOT_NONE;
	unlink_slot(c, slot);
	link_slot(c, slot, c->entries[c->capacity].prev);
	return slot;
}

bool state_cache_has(const struct state_cache *c, struct block_hash hash)
{
	return find(c, hash) != STATE_SLOT_NONE;
}

bool state_cache_is_saved_by(const struct state_cache *c, struct block_hash hash, u64 step)
{
	u32 slot = find(c, hash);

	return slot != STATE_SLOT_NONE && c->entries[slot].step == step;
}

u32 state_cache_take(struct state_cache *c, u64 step)
{
	u32 slot = c->entries[c->capacity].next;

	if (slot == c->capacity || (c->entries[slot].filed && c->entries[slot].step >= step))
		return STATE_SLOT_NONE;
	unlink_slot(c, slot);
	if (c->entries[slot].filed)
		revoke(c, slot);
	c->entries[slot].taken = true;
	return slot;
}

void state_cache_file(struct state_cache *c, u32 slot, struct block_hash hash, u64 step)
{
	struct state_entry *e = &c->entries[slot];
	u32 *head = bucket(c, hash);

	ASSERT(slot < c->count && e->taken && !state_cache_has(c, hash));
	e->hash = hash;
	e->step = step;
	e->taken = false;
	e->filed = true;
	e->chained = *head;
	*head = slot;
	link_slot(c, slot, c->entries[c->capacity].prev);
	c->filed++;
}

void state_cache_give_back(struct state_cache *c, u32 slot)
{
	ASSERT(slot < c->count && c->entries[slot].taken);
	c->entries[slot].taken = false;
	link_slot(c, slot, c->capacity);
}

void state_cache_forget(struct state_cache *c, u32 slot, struct block_hash hash, u64 step)
{
	const struct state_entry *e = &c->entries[slot];

	ASSERT(slot < c->capacity);
	if (!e->filed || !same(e->hash, hash) || e->step >= step)
		return;
	revoke(c, slot);
	unlink_slot(c, slot);
	link_slot(c, slot, c->capacity);
}
