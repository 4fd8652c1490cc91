/* The pool of KV blocks: reference counts and the list of free blocks in order of last use. A free block
 * keeps its content (and its hash) until it is handed out again. */
#ifndef TERCET_PROC_SCHEDULER_KV_BLOCKS_H
#define TERCET_PROC_SCHEDULER_KV_BLOCKS_H

#include "common/err.h"
#include "common/types.h"
#include "proc_scheduler/prefix_cache.h"

struct kv_block {
	u32 refs;
	u32 prev, next; /* in the free list; its ends meet in the element behind the last block */
};

struct kv_blocks {
	struct kv_block *blocks;    /* [capacity + 1] */
	struct prefix_cache *cache; /* borrowed; NULL: blocks are never found again */
	u32 capacity;
	u32 count; /* blocks of the pool now; at most capacity */
	u32 free_count;
};

/* ERR_NO_MEMORY. All `count` blocks free. */
MUST_CHECK enum err kv_blocks_init(struct kv_blocks *kv, u32 count, struct prefix_cache *cache);
void kv_blocks_fini(struct kv_blocks *kv); /* zeroed accepted */
/* Every block free and forgotten, in a pool of `count` <= capacity blocks. */
void kv_blocks_reset(struct kv_blocks *kv, u32 count);

/* Takes one more reference of each of `shared` (found in the cache) and writes `fresh_count` new blocks to
 * `fresh`: the least recently used ones, whose hashes are revoked. All or nothing. ERR_KV_FULL: nothing
 * changed. A shared block that is free counts as needed, since it leaves the free list. */
MUST_CHECK enum err kv_blocks_grow(struct kv_blocks *kv, const u32 *shared, u32 shared_count, u32 *fresh,
				   u32 fresh_count);
/* One more reference of a block that is in use or free. */
void kv_blocks_take(struct kv_blocks *kv, u32 block);
/* Gives a reference back. The last one frees the block: behind all others when the cache knows it, in front
 * of all others when it does not (nobody can want its content). */
void kv_blocks_release(struct kv_blocks *kv, u32 block);
/* The same for a sequence's table, last block first, so that the ends of prefixes are evicted before their
 * beginnings. */
void kv_blocks_release_all(struct kv_blocks *kv, const u32 *table, u32 count);

static inline u32 kv_blocks_refs(const struct kv_blocks *kv, u32 block)
{
	return kv->blocks[block].refs;
}

#endif
