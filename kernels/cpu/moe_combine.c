/* The weighted sum of what a token's experts say, for AVX2: bound by memory, wider vectors gain nothing. */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

static void combine_token(const struct kern_moe_combine_args *a, u32 t)
{
	const float *weights = a->weights + (size_t)t * a->top;
	const u32 *assignments = a->assignments + (size_t)t * a->top;
	float *out = a->out + (size_t)t * a->hidden;
	const float *shared = a->shared ? a->shared + (size_t)t * a->hidden : NULL;
	vec share = vec_set1(1);
	if (shared && a->shared_gate)
		share = vec_div(vec_set1(1), vec_add(vec_set1(1), vec_exp(vec_set1(-a->shared_gate[t]))));
	for (u32 i = 0; i < a->hidden; i += VEC_LANES) {
		u32 n = kern_min(a->hidden - i, VEC_LANES);
		vec sum = vec_zero();
		for (u32 j = 0; j < a->top; j++)
			sum = vec_fma(vec_set1(weights[j]),
				      vec_load_n(a->x + (size_t)assignments[j] * a->hidden + i, n), sum);
		if (shared)
			sum = vec_fma(share, vec_load_n(shared + i, n), sum);
		vec_store_n(out + i, sum, n);
	}
}

static void tokens(void *arg, u32 task, u32 thread)
{
	const struct kern_moe_combine_args *a = arg;
	u32 count = kern_rows_a_task(a->hidden * a->top), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++)
		combine_token(a, t);
}

enum err VARIANT(moe_combine)(struct kern_ctx *ctx, const struct kern_moe_combine_args *a)
{
	struct kern_moe_combine_args args = *a;
	kern_parallel(ctx, kern_ceil(a->tokens, kern_rows_a_task(a->hidden * a->top)), tokens, &args);
	return ERR_OK;
}
