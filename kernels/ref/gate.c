/* Reference: norms and gates in front of a block's last product. */
#include <math.h>

#include "kernels/kern_priv.h"

static void gate_group(const struct kern_gate_args *a, float *x, const float *gate, const float *weight)
{
	double square = 0;
	for (u32 pass = 0; pass < 2; pass++)
		for (u32 i = 0; i < a->width; i++) {
			const double g = (double)gate[i], f = (a->sigmoid ? 1 : g) / (1 + exp(-g)), in = x[i] * (a->gate_first ? f : 1);
			const double scale = weight ? weight[i] / sqrt(square / a->width + (double)a->eps) : 1;
			if (pass == 0)
				square += in * in;
			else
				x[i] = (float)(in * scale * (a->gate_first ? 1 : f));
		}
}

enum err gate_ref(struct kern_ctx *ctx, const struct kern_gate_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 g = 0; g < a->groups; g++) {
			const size_t in_token = (size_t)g * a->width, at = (size_t)t * a->stride + in_token;
			gate_group(a, a->x + at, a->gate + at, a->weight && a->weights_apart ? a->weight + in_token : a->weight);
		}
	return ERR_OK;
}
