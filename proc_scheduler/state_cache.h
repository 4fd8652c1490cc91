/* The index of kept states: of a model whose layers keep a state of each sequence, what these were behind the first full blocks of some sequence. Each
 * takes a slot of the workers' memory, and is named by the hash of the last of those blocks, which names all tokens in front (prefix_cache.h). The
 * blocks themselves are the prefix cache's; a beginning of a sequence can be gone on with where both are there. */
#ifndef TERCET_PROC_SCHEDULER_STATE_CACHE_H
#define TERCET_PROC_SCHEDULER_STATE_CACHE_H

#include "common/err.h"
#include "common/types.h"
#include "proc_scheduler/prefix_cache.h"

#define STATE_SLOT_NONE UINT32_MAX

struct state_entry; /* one per slot */

struct state_cache {
	struct state_entry *entries; /* [capacity + 1]: the last one closes the list of slots that may be taken */
	u32 *heads;		     /* [mask + 1]: first slot of each bucket */
	u32 mask;
	u32 capacity, count; /* slots at init; of this epoch */
	u32 filed;	     /* slots that have a state */
};

/* `count` may be 0: nothing is ever found or taken. ERR_NO_MEMORY. */
MUST_CHECK enum err state_cache_init(struct state_cache *c, u32 count);
void state_cache_fini(struct state_cache *c); /* zeroed accepted */
/* A new epoch: all slots are empty, and `count` of them are there, at most those of init. */
void state_cache_reset(struct state_cache *c, u32 count);

/* The slot that is filed under `hash`, by a step before `step`; it becomes the last one to be taken again. STATE_SLOT_NONE. */
u32 state_cache_find(struct state_cache *c, struct block_hash hash, u64 step);
bool state_cache_has(const struct state_cache *c, struct block_hash hash);
/* Whether step number `step` saves it: it is found from the next one on. */
bool state_cache_is_saved_by(const struct state_cache *c, struct block_hash hash, u64 step);
/* For step number `step`: an empty slot, or the one that was not found for longest, which loses its state; it is the caller's until it is filed or
 * given back. STATE_SLOT_NONE: all are somebody's, or saved by this very step. */
u32 state_cache_take(struct state_cache *c, u64 step);
/* A slot that was taken, into which step number `step` saves a state. The hash must not be there (state_cache_has). */
void state_cache_file(struct state_cache *c, u32 slot, struct block_hash hash, u64 step);
/* A slot that was taken, and has no state that anybody will ask for: the next to be taken. */
void state_cache_give_back(struct state_cache *c, u32 slot);
/* The state is of no further use: if the slot still has it, it is the next to be taken, unless step number `step` itself saves it there, anew: of
 * another sequence. */
void state_cache_forget(struct state_cache *c, u32 slot, struct block_hash hash, u64 step);

#endif
