/* Reference: the weighted sum of what a token's experts say. */
#include <math.h>

#include "kernels/kern_priv.h"

enum err moe_combine_ref(struct kern_ctx *ctx, const struct kern_moe_combine_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++)
		for (u32 i = 0; i < a->hidden; i++) {
			double sum = 0;
			for (u32 j = 0; j < a->top; j++) {
				size_t at = (size_t)t * a->top + j;
				sum += (double)a->weights[at] *
				       a->x[(size_t)a->assignments[at] * a->hidden + i];
			}
			if (a->shared)
				sum += a->shared[(size_t)t * a->hidden + i] / (a->shared_gate ? 1 + exp(-(double)a->shared_gate[t]) : 1);
			a->out[(size_t)t * a->hidden + i] = (float)sum;
		}
	return ERR_OK;
}
