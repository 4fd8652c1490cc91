/* Soft capping for AVX2 and AVX-512 (one object each). */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum { VALUES_A_TASK = 8192 };

/* cap * tanh(x / cap), to some 2e-7 of the cap: tanh(y) = 1 - 2 / (e^2y + 1). */
static inline vec capped(vec x, vec cap, vec twice)
{
	vec e = vec_exp(vec_min(vec_mul(x, twice), vec_set1(40)));
	return vec_mul(vec_sub(vec_set1(1), vec_div(vec_set1(2), vec_add(e, vec_set1(1)))), cap);
}

static void part(void *arg, u32 task, u32 thread)
{
	const struct kern_soft_cap_args *a = arg;
	size_t count = (size_t)a->rows * a->width, i = (size_t)task * VALUES_A_TASK;
	size_t end = count - i < VALUES_A_TASK ? count : i + VALUES_A_TASK;
	vec cap = vec_set1(a->cap), twice = vec_set1(2 / a->cap);
	(void)thread;
	for (; i + VEC_LANES <= end; i += VEC_LANES)
		vec_store(a->x + i, capped(vec_load(a->x + i), cap, twice));
	if (i < end) {
		u32 n = (u32)(end - i);
		vec_store_n(a->x + i, capped(vec_load_n(a->x + i, n), cap, twice), n);
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
