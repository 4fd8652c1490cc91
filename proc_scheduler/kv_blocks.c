/* Owns reference counts and the free list of KV blocks; runs inside the scheduling core. Never allocates
 * after init, never knows which sequence holds a block. */
#include "proc_scheduler/kv_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum err kv_blocks_init(struct kv_blocks *kv, u32 count, struct prefix_cache *cache)
{
	ASSERT(count > 0 && count < KV_BLOCK_NONE);
	memset(kv, 0, sizeof(*kv));
	kv->blocks = calloc((size_t)count + 1, sizeof(*kv->blocks));
	if (!kv->blocks)
		return ERR_NO_MEMORY;
	kv->capacity = count;
	kv->cache = cache;
	kv_blocks_reset(kv, count);
	return ERR_OK;
}

void kv_blocks_fini(struct kv_blocks *kv)
{
	free(kv->blocks);
	memset(kv, 0, sizeof(*kv));
}

void kv_blocks_reset(struct kv_blocks *kv, u32 count)
{
	u32 end = kv->capacity;

	ASSERT(count > 0 && count <= kv->capacity);
	for (u32 b = 0; b < count; b++)
		kv->blocks[b] = (struct kv_block){0, b == 0 ? end : b - 1, b + 1 == count ? end : b + 1};
	kv->blocks[end] = (struct kv_block){0, count - 1, 0};
	kv->count = count;
	kv->free_count = count;
	if (kv->cache)
		prefix_cache_clear(kv->cache);
}

static void unlink_free(struct kv_blocks *kv, u32 block)
{
	struct kv_block *b = &kv->blocks[block];

	kv->blocks[b->prev].next = b->next;
	kv->blocks[b->next].prev = b->prev;
	kv->free_count--;
}

/* Between `prev` and what follows it. */
static void link_free(struct kv_blocks *kv, u32 block, u32 prev)
{
	struct kv_block *b = &kv->blocks[block];

	b->prev = prev;
	b->next = kv->blocks[prev].next;
	kv->blocks[b->next].prev = block;
	kv->blocks[prev].next = block;
	kv->free_count++;
}

void kv_blocks_take(struct kv_blocks *kv, u32 block)
{
	ASSERT(block < kv->count);
	if (kv->blocks[block].refs++ == 0)
		unlink_free(kv, block);
}

void kv_blocks_release(struct kv_blocks *kv, u32 block)
{
	u32 end = kv->capacity;

	ASSERT(block < kv->count);
	ASSERT(kv->blocks[block].refs > 0);
	if (--kv->blocks[block].refs)
		return;
	bool cached = kv->cache && prefix_cache_has(kv->cache, block);
	link_free(kv, block, cached ? kv->blocks[end].prev : end);
}

void kv_blocks_release_all(struct kv_blocks *kv, const u32 *table, u32 count)
{
	while (count--)
		kv_blocks_release(kv, table[count]);
}

static u32 pop_free(struct kv_blocks *kv)
{
	u32 block = kv->blocks[kv->capacity].next;

	ASSERT(block != kv->capacity);
	unlink_free(kv, block);
	kv->blocks[block].refs = 1;
	if (kv->cache)
		prefix_cache_forget(kv->cache, block);
	return block;
}

enum err kv_blocks_grow(struct kv_blocks *kv, const u32 *shared, u32 shared_count, u32 *fresh,
			u32 fresh_count)
{
	u32 needed = fresh_count;

	for (u32 i = 0; i < shared_count; i++)
		needed += kv->blocks[shared[i]].refs == 0;
	if (needed > kv->free_count)
		return ERR_KV_FULL;
	for (u32 i = 0; i < shared_count; i++)
		kv_blocks_take(kv, shared[i]);
	for (u32 i = 0; i < fresh_count; i++)
		fresh[i] = pop_free(kv);
	return ERR_OK;
}
