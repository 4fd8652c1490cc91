/* Reference: soft capping. */
#include <math.h>

#include "kernels/kern_priv.h"

enum err soft_cap_ref(struct kern_ctx *ctx, const struct kern_soft_cap_args *a)
{
	(void)ctx;
	ASSERT(a->cap > 0);
	for (size_t i = 0; i < (size_t)a->rows * a->width; i++)
		a->x[i] = (float)(a->cap * tanh((double)a->x[i] / a->cap));
	return ERR_OK;
}
