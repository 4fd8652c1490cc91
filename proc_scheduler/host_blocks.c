/* Owns the chains of blocks in the host's memory; runs inside the scheduling core. Never allocates after init,
 * never knows whose a chain is. */
#include "proc_scheduler/host_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum err host_blocks_init(struct host_blocks *h, u32 count)
{
	memset(h, 0, sizeof(*h));
	if (count) {
		h->next = calloc(count, sizeof(*h->next));
		if (!h->next)
			return ERR_NO_MEMORY;
	}
	h->capacity = count;
	host_blocks_reset(h, count);
	return ERR_OK;
}

void host_blocks_fini(struct host_blocks *h)
{
	free(h->next);
	memset(h, 0, sizeof(*h));
}

void host_blocks_reset(struct host_blocks *h, u32 count)
{
	ASSERT(count <= h->capacity);
	for (u32 b = 0; b < count; b++)
		h->next[b] = b + 1 == count ? HOST_BLOCK_NONE : b + 1;
	h->count = h->free_count = count;
	h->first_free = count ? 0 : HOST_BLOCK_NONE;
}

static u32 last_of(const struct host_blocks *h, u32 first, u32 count)
{
	while (--count)
		first = h->next[first];
	return first;
}

u32 host_blocks_take(struct host_blocks *h, u32 count)
{
	ASSERT(count > 0 && count <= h->free_count);
	u32 first = h->first_free, last = last_of(h, first, count);
	h->first_free = h->next[last];
	h->next[last] = HOST_BLOCK_NONE;
	h->free_count -= count;
	return first;
}

void host_blocks_release(struct host_blocks *h, u32 first, u32 count)
{
	ASSERT(count > 0 && first < h->count && count <= h->count - h->free_count);
	u32 last = last_of(h, first, count);
	ASSERT(h->next[last] == HOST_BLOCK_NONE);
	h->next[last] = h->first_free;
	h->first_free = first;
	h->free_count += count;
}
