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
				.head_dim = s->by_layer ? s->by_layer[layer].head_dim : s->head_dim,
				.keys_alone = s->by_layer && s->by_layer[layer].keys_alone};
}

static u32 own_count(const struct kv_shape *s)
{
	u32 count = s->layers;

	while (s->by_layer && s->by_layer[count - 1].of != count - 1)
		count--;
	return count;
}

/* K and V, or K alone. */
static u32 arrays_of(const struct kern_kv *layer)
{
	return layer->keys_alone ? 1 : 2;
}

u64 kv_block_bytes(const struct kv_shape *shape)
{
	const u32 count = own_count(shape);
	u64 bytes = 0;

	for (u32 i = 0; i < count; i++) {
		const struct kern_kv kv = layer_of(shape, i);
		bytes += (u64)arrays_of(&kv) * kern_kv_block_bytes(&kv);
	}
	return bytes;
}

static size_t round_up(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* Of K or V, a run's blocks of a layer. */
static size_t half_bytes(const struct kern_kv *layer, u32 run_blocks)
{
	return round_up(run_blocks * kern_kv_block_bytes(layer));
}

/* A run's blocks of a layer lie in a line, then come those of the next layer, and behind the last layer's the next run: so that a sequence's blocks
 * are on few pages, however many layers there are, of which each costs the time to clear it when it is first written, and its memory. The
 * run is no shorter than RUN_BYTES of K: shorter ones, a power of two apart, would fight for the same lines of a cache. As a power of two;
 * 31: all blocks are one. */
enum { RUN_BYTES = 64 << 10, RUN_ALL = 31 };
static u32 run_of(const struct kern_kv *layers, u32 count, u32 block_count)
{
	size_t largest = 0;
	u32 run = 0;

	for (u32 i = 0; i < count; i++) {
		const size_t bytes = kern_kv_block_bytes(&layers[i]);
		largest = bytes > largest ? bytes : largest;
	}
	while (largest > 0 && largest << run < RUN_BYTES)
		run++;
	return largest == 0 || run > 16 || block_count <= 1u << run ? RUN_ALL : run;
}

/* Lays out layers that have memory, which begins at `base` (0: only their shape and what is between runs). The bytes of a run in all of them. */
static size_t lay_out(struct kv_memory *kv, char *base)
{
	const u32 run = run_of(kv->layers, kv->own_count, kv->block_count);
	const u32 blocks = run == RUN_ALL ? kv->block_count : 1u << run;
	size_t bytes = 0;

	for (u32 i = 0; i < kv->own_count; i++)
		bytes += arrays_of(&kv->layers[i]) * half_bytes(&kv->layers[i], blocks);
	for (u32 i = 0; i < kv->own_count && base; i++) {
		struct kern_kv *layer = &kv->layers[i];
		const size_t half = half_bytes(layer, blocks);
		layer->run = run;
		layer->gap = run == RUN_ALL ? 0 : bytes - blocks * kern_kv_block_bytes(layer);
		layer->k = base;
		layer->v = layer->keys_alone ? NULL : base + half;
		base += arrays_of(layer) * half;
	}
	return run == RUN_ALL ? bytes : bytes * (kv->block_count / blocks + (kv->block_count % blocks > 0));
}

enum err kv_memory_init(struct kv_memory *kv, const struct kv_shape *shape, u32 block_count,
			struct err_msg *em)
{
	*kv = (struct kv_memory){.layer_count = shape->layers, .own_count = own_count(shape), .block_count = block_count};
	kv->layers = calloc(shape->layers, sizeof(*kv->layers));
	for (u32 i = 0; kv->layers && i < kv->own_count; i++)
		kv->layers[i] = layer_of(shape, i);
	kv->memory_bytes = kv->layers ? lay_out(kv, NULL) : 0;
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
	lay_out(kv, memory);
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
