/* Reference: residual addition and RMSNorm. */
#include <math.h>

#include "kernels/kern_priv.h"

enum err rmsnorm_ref(struct kern_ctx *ctx, const struct kern_rmsnorm_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		float *x = a->x + (size_t)t * a->hidden;
		double sum = 0;
		if (a->add)
			for (u32 i = 0; i < a->hidden; i++)
				x[i] = (x[i] + a->add[(size_t)t * a->hidden + i]) * (a->scale ? a->scale[0] : 1);
		if (!a->out)
			continue;
		for (u32 i = 0; i < a->hidden; i++)
			sum += (double)x[i] * x[i];
		double scale = 1 / sqrt(sum / a->hidden + (double)a->eps);
		for (u32 i = 0; i < a->hidden; i++)
			a->out[(size_t)t * a->hidden + i] = (float)(x[i] * scale * a->weight[i]);
	}
	return ERR_OK;
}
