/* Soft capping for AVX2 and AVX-512 (one object each). */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { VALUES_A_TASK = 8192 };

static void part(void *arg, u32 task, u32 thread)
{
	const struct kern_soft_cap_args *a = arg;
	size_t count = (size_t)a->rows * a->width, i = (size_t)task * VALUES_A_TASK;
	size_t end = count - i < VALUES_A_TASK ? count : i + VALUES_A_TASK;
	(void)thread;
	for (; i + VEC_LANES <= end; i += VEC_LANES)
		vec_store(a->x + i, vec_soft_cap(vec_load(a->x + i), a->cap));
	if (i < end) {
		u32 n = (u32)(end - i);
		vec_store_n(a->x + i, vec_soft_cap(vec_load_n(a->x + i, n), a->cap), n);
	}
}

enum err VARIANT(soft_cap)(struct kern_ctx *ctx, const struct kern_soft_cap_args *a)
{
	struct kern_soft_cap_args args = *a;
	size_t count = (size_t)a->rows * a->width;
	ASSERT(a->cap > 0);
	kern_parallel(ctx, (u32)((count + VALUES_A_TASK - 1) / VALUES_A_TASK), part, &args);
	return ERR_OK;
}
