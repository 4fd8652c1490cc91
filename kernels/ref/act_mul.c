/* Reference: gated activation. */
#include <math.h>

#include "kernels/kern_priv.h"

static double activate(enum kern_activation act, double x)
{
	if (act == KERN_SILU)
		return x / (1 + exp(-x));
	/* Hendrycks, Gimpel 2016; 0.79788... = sqrt(2 / pi) */
	return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

enum err act_mul_ref(struct kern_ctx *ctx, const struct kern_act_mul_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		const float *gate = a->gate_up + (size_t)t * 2 * a->size, *up = gate + a->size;
		for (u32 i = 0; i < a->size; i++)
			a->out[(size_t)t * a->size + i] = (float)(activate(a->act, gate[i]) * up[i]);
	}
	return ERR_OK;
}
