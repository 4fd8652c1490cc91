/* The index of reusable KV blocks: chained, keyed 128-bit hashes of full blocks of known tokens.
 *
 * hash(i) = XXH3-128(hash(i - 1), tokens of block i), keyed by a secret drawn at start; hash(-1) is made of
 * the salt of the request. So a hash names the whole prefix and the salt, and nobody outside can aim for a
 * collision. Two blocks may carry one hash (two requests computed the same prefix at once): both stay. */
#ifndef TERCET_PROC_SCHEDULER_PREFIX_CACHE_H
#define TERCET_PROC_SCHEDULER_PREFIX_CACHE_H

#include "common/err.h"
#include "common/types.h"

enum { PREFIX_SECRET_BYTES = 192, PREFIX_BLOCK_TOKENS_MAX = 256 };
#define KV_BLOCK_NONE UINT32_MAX

struct block_hash {
	u64 low, high;
};

struct prefix_entry; /* one per block */

struct prefix_cache {
	struct prefix_entry *entries; /* [capacity] */
	u32 *heads;		      /* [mask + 1]: first block of each bucket */
	u32 mask;
	u32 capacity; /* blocks */
	u32 count;    /* blocks with a hash */
	u32 block_size;
	u8 secret[PREFIX_SECRET_BYTES];
};

/* ERR_NO_MEMORY. `secret` (random bytes) is copied; the same secret gives the same hashes. */
MUST_CHECK enum err prefix_cache_init(struct prefix_cache *pc, u32 block_capacity, u32 block_size,
				      const u8 secret[PREFIX_SECRET_BYTES]);
void prefix_cache_fini(struct prefix_cache *pc); /* zeroed accepted */
void prefix_cache_clear(struct prefix_cache *pc);

/* The parent of a request's first block. */
struct block_hash prefix_cache_root(const struct prefix_cache *pc, u64 salt);
/* `tokens`: block_size of them. */
struct block_hash prefix_cache_chain(const struct prefix_cache *pc, struct block_hash parent,
				     const u32 *tokens);
/* The hash of a block of which only the first `count` tokens (less than a block, at least one) are there. */
struct block_hash prefix_cache_chain_part(const struct prefix_cache *pc, struct block_hash parent, const u32 *tokens,
					  u32 count);

/* Files `block`, which step number `step` computes. The block must not be filed yet. */
void prefix_cache_put(struct prefix_cache *pc, u32 block, struct block_hash hash, u64 step);
/* A block with that hash, or KV_BLOCK_NONE. The caller takes its reference (kv_blocks_take). */
u32 prefix_cache_find(const struct prefix_cache *pc, struct block_hash hash);
/* Revokes the block's hash; without one nothing happens. */
void prefix_cache_forget(struct prefix_cache *pc, u32 block);
bool prefix_cache_has(const struct prefix_cache *pc, u32 block);
/* The step that computes it: the content is there for copies in later steps only. */
u64 prefix_cache_step(const struct prefix_cache *pc, u32 block);

#endif
