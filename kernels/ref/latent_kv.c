/* Reference: a token's latent as the K and the V of the one head of latent attention. */
#include "kernels/kern_priv.h"

enum err latent_kv_ref(struct kern_ctx *ctx, const struct kern_latent_kv_args *a)
{
	const size_t latent = a->rank * sizeof(float), rope = a->rope * sizeof(float), width = a->rank + a->rope;
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		const float *from = a->latents + (size_t)t * a->latent_stride;
		float *k = a->qkv + (size_t)t * a->qkv_stride + a->heads * width, *v = k + width;
		memcpy(k, from + a->rank, rope);
		memcpy(k + a->rope, from, latent);
		memset(v, 0, rope);
		memcpy(v + a->rope, from, latent);
	}
	return ERR_OK;
}
