/* Owns the memory of the KV cache, one mapping. Runs in the worker. Never decides which block is whose: the
 * scheduler does. */
#include "proc_worker/kv_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/region.h"

const char *kv_dtype_name(enum kern_dtype type)
{
	return type == KERN_F8E4M3 ? "fp8" : kern_dtype_name(type);
}

/* A layer's, without memory. */
static struct kern_kv layer_of(const struct kv_shape *s, u32 layer)
{
	return (struct kern_kv){.dtype = s->dtype,
				.block_size = s->block_size,
				.kv_heads = s->by_layer ? s->by_layer[layer].kv_heads : s->kv_heads,
				.head_dim = s->by_layer ? s->by_layer[layer].head_dim : s->head_dim};
}

static u32 own_count(const struct kv_shape *s)
{
	u32 count = s->layers;

	while (s->by_layer && s->by_layer[count - 1].of != count - 1)
		count--;
	return count;
}

u64 kv_block_bytes(const struct kv_shape *shape)
{
	const u32 count = own_count(shape);
	u64 bytes = 0;

	for (u32 i = 0; i < count; i++) {
		const struct kern_kv kv = layer_of(shape, i);
		bytes += 2ull * kern_kv_block_bytes(&kv);
	}
	return bytes;
}

static size_t round_up(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* Of K or V, all blocks of a layer. */
static size_t half_bytes(const struct kern_kv *layer, u32 block_count)
{
	return round_up(block_count * kern_kv_block_bytes(layer));
}

enum err kv_memory_init(struct kv_memory *kv, const struct kv_shape *shape, u32 block_count,
			struct err_msg *em)
{
	*kv = (struct kv_memory){.layer_count = shape->layers, .own_count = own_count(shape), .block_count = block_count};
	for (u32 i = 0; i < kv->own_count; i++) {
		const struct kern_kv layer = layer_of(shape, i);
		kv->memory_bytes += 2 * half_bytes(&layer, block_count);
	}
	kv->layers = calloc(shape->layers, sizeof(*kv->layers));
	void *memory = kv->layers && kv->memory_bytes > 0 ? region_reserve(kv->memory_bytes) : NULL;
	if (!kv->layers || (kv->memory_bytes > 0 && !memory)) {
		size_t bytes = kv->memory_bytes;
		free(kv->layers);
		*kv = (struct kv_memory){0};
		return region_refuse(em, "cannot reserve %zu bytes for the KV cache (and --swap-space); lower --kv-cache-memory", bytes);
	}
	kv->memory = memory;
	if (memory)
		madvise(memory, kv->memory_bytes, MADV_HUGEPAGE);
	char *at = memory;
	for (u32 i = 0; i < kv->own_count; i++) {
		struct kern_kv *layer = &kv->layers[i];
		*layer = layer_of(shape, i);
		const size_t half = half_bytes(layer, block_count);
		layer->k = at;
		layer->v = at + half;
		at += 2 * half;
	}
	for (u32 i = kv->own_count; i < shape->layers; i++) {
		ASSERT(shape->by_layer[i].of < kv->own_count);
		kv->layers[i] = kv->layers[shape->by_layer[i].of];
	}
	return ERR_OK;
}

void kv_memory_fini(struct kv_memory *kv)
{
	if (kv->memory)
		region_release(kv->memory, kv->memory_bytes);
	free(kv->layers);
	*kv = (struct kv_memory){0};
}
