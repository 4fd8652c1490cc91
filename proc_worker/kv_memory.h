/* The KV cache of one worker: its blocks in every layer. */
#ifndef TERCET_PROC_WORKER_KV_MEMORY_H
#define TERCET_PROC_WORKER_KV_MEMORY_H

#include "common/err.h"
#include "common/types.h"
#include "kernels/kernels.h"

/* Of a layer's keys and values. */
struct kv_layer {
	u32 kv_heads, head_dim;
	u32 of; /* the layer whose they are: its own number, or that of an earlier one, and then it has no memory */
	bool keys_alone; /* they are keys without values */
};
struct kv_shape {
	u32 layers, kv_heads, head_dim, block_size;
	enum kern_dtype dtype;
	const struct kv_layer *by_layer; /* [layers] instead of `kv_heads` and `head_dim`, where layers differ; borrowed. NULL: they do not */
};

struct kv_memory {
	struct kern_kv *layers; /* [layer_count] */
	u32 layer_count;
	u32 own_count; /* the first ones, which have memory; the others have that of one of these */
	u32 block_count;
	void *memory;
	size_t memory_bytes;
};

/* As --kv-cache-dtype calls it: "float32", "bfloat16", "int8", "fp8", "int16". */
const char *kv_dtype_name(enum kern_dtype type);
/* Of one block in all layers that have some, K and V. */
u64 kv_block_bytes(const struct kv_shape *shape);
/* Layers without memory are the last ones. Reserves `block_count` zeroed blocks; pages are taken as they are written. Where no layer has keys and values there is no
 * memory, and blocks are numbers. ERR_NO_MEMORY. */
MUST_CHECK enum err kv_memory_init(struct kv_memory *kv, const struct kv_shape *shape, u32 block_count,
				   struct err_msg *em);
void kv_memory_fini(struct kv_memory *kv);

#endif
