/* Reference: residual addition and LayerNorm. */
#include <math.h>

#include "kernels/kern_priv.h"

static void norm_row(float *out, const float *x, const struct kern_layernorm_args *a)
{
	double mean = 0, square = 0;
	for (u32 i = 0; i < a->hidden; i++)
		mean += (double)x[i];
	mean /= a->hidden;
	for (u32 i = 0; i < a->hidden; i++)
		square += (x[i] - mean) * (x[i] - mean);
	double scale = 1 / sqrt(square / a->hidden + (double)a->eps);
	for (u32 i = 0; i < a->hidden; i++)
		out[i] = (float)((x[i] - mean) * scale * a->weight[i] + (double)(a->bias ? a->bias[i] : 0));
}

enum err layernorm_ref(struct kern_ctx *ctx, const struct kern_layernorm_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		float *x = a->x + (size_t)t * a->hidden;
		for (u32 i = 0; a->add && i < a->hidden; i++)
			x[i] += a->add[(size_t)t * a->hidden + i];
		if (a->out)
			norm_row(a->out + (size_t)t * a->hidden, x, a);
	}
	return ERR_OK;
}
