/* Reference and only variant: whole KV blocks, at the speed of memcpy. */
#include "kernels/kern_priv.h"

enum err block_copy_ref(struct kern_ctx *ctx, const struct kern_block_copy_args *a)
{
	(void)ctx;
	for (u32 l = 0; l < a->layer_count; l++) {
		const struct kern_kv *kv = &a->layers[l];
		size_t bytes =
			(size_t)kv->kv_heads * kv->block_size * kv->head_dim * kern_dtype_bytes(kv->dtype);
		for (u32 i = 0; i < a->count; i++) {
			memcpy((char *)kv->k + a->dst[i] * bytes, (const char *)kv->k + a->src[i] * bytes,
			       bytes);
			memcpy((char *)kv->v + a->dst[i] * bytes, (const char *)kv->v + a->src[i] * bytes,
			       bytes);
		}
	}
	return ERR_OK;
}
