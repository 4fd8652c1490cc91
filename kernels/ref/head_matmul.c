/* Reference: the product of each head by the table's matmul, one head after the other, all threads on each. */
#include "kernels/kern_priv.h"

enum err head_matmul_ref(struct kern_ctx *ctx, const struct kern_head_matmul_args *a)
{
	for (u32 h = 0; h < a->heads; h++) {
		const float *x = a->x + (size_t)h * a->x_apart;
		float *out = a->out + (size_t)h * a->out_apart;
		struct kern_matmul_args m = {.out = out + a->beside,
					     .x = x,
					     .w = &a->w[h],
					     .tokens = a->tokens,
					     .x_stride = a->x_stride,
					     .out_stride = a->out_stride};
		enum err e = a->ops->matmul(ctx, &m);
		if (e)
			return e;
		for (u32 t = 0; t < a->tokens && a->beside > 0; t++)
			memcpy(out + (size_t)t * a->out_stride, x + (size_t)t * a->x_stride + a->w[h].k, a->beside * sizeof(float));
	}
	return ERR_OK;
}
