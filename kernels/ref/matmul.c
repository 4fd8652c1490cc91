/* Reference: matrix product with the weight in any layout. */
#include "kernels/kern_priv.h"

enum { COLUMNS_A_TASK = 16 };

static void columns(void *arg, u32 task, u32 thread)
{
	const struct kern_matmul_args *a = arg;
	const struct kern_weight *w = a->w;
	u32 end = kern_min((task + 1) * COLUMNS_A_TASK, w->n);
	(void)thread;
	for (u32 n = task * COLUMNS_A_TASK; n < end; n++)
		for (u32 t = 0; t < a->tokens; t++) {
			const float *x = a->x + (size_t)t * a->x_stride;
			float *out = a->out + (size_t)t * a->out_stride + n;
			double sum = a->bias ? a->bias[n] : 0;
			for (u32 k = 0; k < w->k; k++)
				sum += (double)x[w->order ? w->order[k] : k] * kern_weight_at(w, n, k);
			*out = (float)(a->accumulate ? *out + sum : sum);
		}
}

enum err matmul_ref(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_matmul_args args = *a;
	if (a->fusion)
		return ERR_UNSUPPORTED;
	kern_parallel(ctx, kern_ceil(a->w->n, COLUMNS_A_TASK), columns, &args);
	return ERR_OK;
}
