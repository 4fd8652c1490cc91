/* Reference and only variant: whole KV blocks, at the speed of memcpy; and how large one is. */
#include "kernels/kv_priv.h"

size_t kern_kv_block_bytes(const struct kern_kv *kv)
{
	return kv->kv_heads * kern_kv_slab(kv);
}

enum err block_copy_ref(struct kern_ctx *ctx, const struct kern_block_copy_args *a)
{
	(void)ctx;
	for (u32 l = 0; l < a->layer_count; l++) {
		const struct kern_kv *kv = &a->layers[l];
		size_t bytes = kern_kv_block_bytes(kv);
		for (u32 i = 0; i < a->count; i++) {
			memcpy(kern_kv_head(kv, kv->k, a->dst[i], 0), kern_kv_head(kv, kv->k, a->src[i], 0), bytes);
			if (!kv->keys_alone)
				memcpy(kern_kv_head(kv, kv->v, a->dst[i], 0), kern_kv_head(kv, kv->v, a->src[i], 0), bytes);
		}
	}
	return ERR_OK;
}
