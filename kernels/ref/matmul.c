/* Reference: matrix product with the weight in any layout. */
#include "kernels/kern_priv.h"

enum { COLUMNS_A_TASK = 16, TOKENS_AT_ONCE = 64 };

/* Column n of `count` tokens, for which a weight is looked up once. */
static void tokens(const struct kern_matmul_args *a, u32 n, u32 first, u32 count)
{
	const struct kern_weight *w = a->w;
	const float *x = a->x + (size_t)first * a->x_stride;
	float *out = a->out + (size_t)first * a->out_stride + n;
	double sums[TOKENS_AT_ONCE];
	for (u32 t = 0; t < count; t++)
		sums[t] = a->bias ? a->bias[n] : 0;
	for (u32 k = 0; k < w->k; k++) {
		const u32 at = w->order ? w->order[k] : k;
		const double weight = kern_weight_at(w, n, k);
		for (u32 t = 0; t < count; t++)
			sums[t] += (double)x[t * a->x_stride + at] * weight;
	}
	for (u32 t = 0; t < count; t++)
		out[t * a->out_stride] = (float)(a->accumulate ? out[t * a->out_stride] + sums[t] : sums[t]);
}

static void columns(void *arg, u32 task, u32 thread)
{
	const struct kern_matmul_args *a = arg;
	const struct kern_weight *w = a->w;
	u32 end = kern_min((task + 1) * COLUMNS_A_TASK, w->n);
	(void)thread;
	for (u32 n = task * COLUMNS_A_TASK; n < end; n++)
		for (u32 t = 0; t < a->tokens; t += TOKENS_AT_ONCE)
			tokens(a, n, t, kern_min(a->tokens - t, TOKENS_AT_ONCE));
}

enum err matmul_ref(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_matmul_args args = *a;
	if (a->fusion)
		return ERR_UNSUPPORTED;
	kern_parallel(ctx, kern_ceil(a->w->n, COLUMNS_A_TASK), columns, &args);
	return ERR_OK;
}
