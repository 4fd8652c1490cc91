/* The KV cache of one worker: its blocks in every layer. */
#ifndef TERCET_PROC_WORKER_KV_MEMORY_H
#define TERCET_PROC_WORKER_KV_MEMORY_H

#include "common/err.h"
#include "common/types.h"
#include "kernels/kernels.h"

struct kv_shape {
	u32 layers, kv_heads, head_dim, block_size;
	enum kern_dtype dtype;
};

struct kv_memory {
	struct kern_kv *layers; /* [layer_count] */
	u32 layer_count;
	u32 block_count;
	void *memory;
	size_t memory_bytes;
};

/* As --kv-cache-dtype calls it: "float32", "bfloat16", "int8", "fp8", "int16". */
const char *kv_dtype_name(enum kern_dtype type);
/* Of one block in all layers, K and V. */
u64 kv_block_bytes(const struct kv_shape *shape);
/* Reserves `block_count` zeroed blocks; pages are taken as they are written. ERR_NO_MEMORY. */
MUST_CHECK enum err kv_memory_init(struct kv_memory *kv, const struct kv_shape *shape, u32 block_count,
				   struct err_msg *em);
void kv_memory_fini(struct kv_memory *kv);

#endif
