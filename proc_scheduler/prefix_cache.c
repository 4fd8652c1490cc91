/* Owns the hashes of KV blocks and the index over them; runs inside the scheduling core. Never touches
 * references or the free list (kv_blocks.c), never decides when a block may be shared (sched_plan.c): it
 * answers which block holds what. */
#include "proc_scheduler/prefix_cache.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/assert.h"

struct prefix_entry {
	struct block_hash hash;
	u64 step;
	u32 prev, next; /* in the bucket */
	bool present;
};


enum err prefix_cache_init(struct prefix_cache *pc, u32 block_capacity, u32 block_size,
			   const u8 secret[PREFIX_SECRET_BYTES])
{
	u32 buckets = 16;

	ASSERT(block_size > 0 && block_size <= PREFIX_BLOCK_TOKENS_MAX);
	memset(pc, 0, sizeof(*pc));
	while (buckets < block_capacity && buckets < 1u << 30)
		buckets *= 2;
	pc->entries = calloc(block_capacity, sizeof(*pc->entries));
	pc->heads = malloc(buckets * sizeof(*pc->heads));
	if (!pc->entries || !pc->heads) {
		prefix_cache_fini(pc);
		return ERR_NO_MEMORY;
	}
	pc->mask = buckets - 1;
	pc->capacity = block_capacity;
	pc->block_size = block_size;
	memcpy(pc->secret, secret, PREFIX_SECRET_BYTES);
	memset(pc->heads, 0xff, buckets * sizeof(*pc->heads));
	return ERR_OK;
}

void prefix_cache_fini(struct prefix_cache *pc)
{
	free(pc->entries);
	free(pc->heads);
	memset(pc, 0, sizeof(*pc));
}

void prefix_cache_clear(struct prefix_cache *pc)
{
	memset(pc->entries, 0, pc->capacity * sizeof(*pc->entries));
	memset(pc->heads, 0xff, ((size_t)pc->mask + 1) * sizeof(*pc->heads));
	pc->count = 0;
}

static struct block_hash hash_bytes(const struct prefix_cache *pc, const void *data, size_t bytes)
{
	XXH128_hash_t h = XXH3_128bits_withSecret(data, bytes, pc->secret, PREFIX_SECRET_BYTES);

	return (struct block_hash){h.low64, h.high64};
}

struct block_hash prefix_cache_root(const struct prefix_cache *pc, u64 salt)
{
	/* The text keeps a root apart from every chained hash, whose input is longer. */
	struct {
		char label[8];
		u64 salt;
	} root = {"prefix0", salt};

	return hash_bytes(pc, &root, sizeof(root));
}

static struct block_hash chain(const struct prefix_cache *pc, struct block_hash parent, const u32 *tokens, u32 count)
{
	struct {
		struct block_hash parent;
		u32 tokens[PREFIX_BLOCK_TOKENS_MAX];
	} input;

	input.parent = parent;
	memcpy(input.tokens, tokens, count * sizeof(u32));
	return hash_bytes(pc, &input, sizeof(parent) + count * sizeof(u32));
}

struct block_hash prefix_cache_chain(const struct prefix_cache *pc, struct block_hash parent, const u32 *tokens)
{
	return chain(pc, parent, tokens, pc->block_size);
}

/* Shorter input than that of any full block, longer than that of a root: never the hash of either. */
struct block_hash prefix_cache_chain_part(const struct prefix_cache *pc, struct block_hash parent, const u32 *tokens,
					  u32 count)
{
	ASSERT(count > 0 && count < pc->block_size);
	return chain(pc, parent, tokens, count);
}

void prefix_cache_put(struct prefix_cache *pc, u32 block, struct block_hash hash, u64 step)
{
	ASSERT(block < pc->capacity);
	struct prefix_entry *e = &pc->entries[block];
	u32 *head = &pc->heads[hash.low & pc->mask];
	u32 twin = prefix_cache_find(pc, hash);

	ASSERT(!e->present);
	*e = (struct prefix_entry){.hash = hash, .step = step, .prev = twin, .present = true};
	/* Behind its twin: the one that is there longer is found, so its content is there for copies, and
	 * stays in use. */
	u32 *link = twin == KV_BLOCK_NONE ? head : &pc->entries[twin].next;
	e->next = *link;
	if (e->next != KV_BLOCK_NONE)
		pc->entries[e->next].prev = block;
	*link = block;
	pc->count++;
}

u32 prefix_cache_find(const struct prefix_cache *pc, struct block_hash hash)
{
	u32 block = pc->heads[hash.low & pc->mask];

	while (block != KV_BLOCK_NONE) {
		const struct prefix_entry *e = &pc->entries[block];
		if (e->hash.low == hash.low && e->hash.high == hash.high)
			return block;
		block = e->next;
	}
	return KV_BLOCK_NONE;
}

void prefix_cache_forget(struct prefix_cache *pc, u32 block)
{
	ASSERT(block < pc->capacity);
	struct prefix_entry *e = &pc->entries[block];

	if (!e->present)
		return;
	if (e->next != KV_BLOCK_NONE)
		pc->entries[e->next].prev = e->prev;
	if (e->prev != KV_BLOCK_NONE)
		pc->entries[e->prev].next = e->next;
	else
		pc->heads[e->hash.low & pc->mask] = e->next;
	e->present = false;
	pc->count--;
}

bool prefix_cache_has(const struct prefix_cache *pc, u32 block)
{
	ASSERT(block < pc->capacity);
	return pc->entries[block].present;
}

u64 prefix_cache_step(const struct prefix_cache *pc, u32 block)
{
	ASSERT(block < pc->capacity);
	return pc->entries[block].step;
}
