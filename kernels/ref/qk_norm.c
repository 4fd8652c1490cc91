/* Reference: norms over all heads of q and of k together, in two steps, for ranks hold some of the heads
 * each. */
#include <math.h>

#include "kernels/kern_priv.h"

static double squares_of(const float *x, u32 width)
{
	double sum = 0;
	for (u32 i = 0; i < width; i++)
		sum += (double)x[i] * x[i];
	return sum;
}

enum err qk_squares_ref(struct kern_ctx *ctx, const struct kern_qk_squares_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		const float *q = a->qkv + (size_t)t * a->stride, *k = q + a->q_width;
		a->squares[2 * (size_t)t] = (float)squares_of(q, a->q_width);
		a->squares[2 * (size_t)t + 1] = a->counts_k ? (float)squares_of(k, a->k_width) : 0;
	}
	return ERR_OK;
}

static void scale(float *x, const float *weight, u32 width, double square, u32 total, double eps)
{
	double factor = 1 / sqrt(square / total + eps);
	for (u32 i = 0; i < width; i++)
		x[i] = (float)(x[i] * factor * weight[i]);
}

enum err qk_norm_ref(struct kern_ctx *ctx, const struct kern_qk_norm_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		float *q = a->qkv + (size_t)t * a->stride, *k = q + a->q_width;
		scale(q, a->q_weight, a->q_width, (double)a->squares[2 * (size_t)t], a->q_total,
		      (double)a->eps);
		scale(k, a->k_weight, a->k_width, (double)a->squares[2 * (size_t)t + 1], a->k_total,
		      (double)a->eps);
	}
	return ERR_OK;
}
