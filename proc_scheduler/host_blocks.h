/* The pool of blocks in the host's memory, which KV of preempted sequences waits in: chains of blocks, one a
 * sequence. Block ids here count from 0; STEP messages count them from behind the device's. */
#ifndef TERCET_PROC_SCHEDULER_HOST_BLOCKS_H
#define TERCET_PROC_SCHEDULER_HOST_BLOCKS_H

#include "common/err.h"
#include "common/types.h"

#define HOST_BLOCK_NONE UINT32_MAX

struct host_blocks {
	u32 *next; /* [capacity] in its chain or in that of free blocks; HOST_BLOCK_NONE: the last */
	u32 capacity;
	u32 count; /* blocks of the pool now; at most capacity */
	u32 first_free, free_count;
};

/* ERR_NO_MEMORY. All `count` blocks free; 0: a pool of none. */
MUST_CHECK enum err host_blocks_init(struct host_blocks *h, u32 count);
void host_blocks_fini(struct host_blocks *h); /* zeroed accepted */
/* Every block free, in a pool of `count` <= capacity blocks. */
void host_blocks_reset(struct host_blocks *h, u32 count);
/* The first of a chain of `count` > 0 blocks, of which no more may be taken than are free. */
u32 host_blocks_take(struct host_blocks *h, u32 count);
/* Gives a whole chain back. */
void host_blocks_release(struct host_blocks *h, u32 first, u32 count);

#endif
