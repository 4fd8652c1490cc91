/* Owns the memory of the KV cache, one mapping. Runs in the worker. Never decides which block is whose: the
 * scheduler does. */
#include "proc_worker/kv_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "common/region.h"

const char *kv_dtype_name(enum kern_dtype type)
{
	return type == KERN_F8E4M3 ? "fp8" : kern_dtype_name(type);
}

/* Of K or V, one block. */
static size_t layer_bytes(const struct kv_shape *s)
{
	const struct kern_kv kv = {.dtype = s->dtype,
				   .block_size = s->block_size,
				   .kv_heads = s->kv_heads,
				   .head_dim = s->head_dim};
	return kern_kv_block_bytes(&kv);
}

u64 kv_block_bytes(const struct kv_shape *shape)
{
	return 2ull * shape->layers * layer_bytes(shape);
}

static size_t round_up(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

enum err kv_memory_init(struct kv_memory *kv, const struct kv_shape *shape, u32 block_count,
			struct err_msg *em)
{
	size_t half = round_up(block_count * layer_bytes(shape));

	*kv = (struct kv_memory){.layer_count = shape->layers, .block_count = block_count};
	kv->memory_bytes = 2 * shape->layers * half;
	kv->layers = calloc(shape->layers, sizeof(*kv->layers));
	void *memory = kv->layers ? region_reserve(kv->memory_bytes) : NULL;
	if (!memory) {
		size_t bytes = kv->memory_bytes;
		free(kv->layers);
		*kv = (struct kv_memory){0};
		return region_refuse(em, "cannot reserve %zu bytes for the KV cache (and --swap-space); lower --kv-cache-memory", bytes);
	}
	kv->memory = memory;
	madvise(memory, kv->memory_bytes, MADV_HUGEPAGE);
	char *at = memory;
	for (u32 i = 0; i < shape->layers; i++, at += 2 * half)
		kv->layers[i] = (struct kern_kv){.k = at,
						 .v = at + half,
						 .dtype = shape->dtype,
						 .block_size = shape->block_size,
						 .kv_heads = shape->kv_heads,
						 .head_dim = shape->head_dim};
	return ERR_OK;
}

void kv_memory_fini(struct kv_memory *kv)
{
	if (kv->memory)
		region_release(kv->memory, kv->memory_bytes);
	free(kv->layers);
	*kv = (struct kv_memory){0};
}
