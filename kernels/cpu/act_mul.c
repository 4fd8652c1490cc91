/* Gated activation for AVX2 and AVX-512 (one object each). */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

/* x / (1 + e^-y): SiLU with y = x; GELU's tanh form with y = 2 sqrt(2 / pi) (x + 0.044715 x^3), for
 * (1 + tanh z) / 2 = 1 / (1 + e^-2z). */
static inline vec activate(enum kern_activation act, vec x)
{
	vec y = x;
	if (act == KERN_GELU_TANH)
		y = vec_mul(vec_mul(x, vec_fma(vec_mul(x, x), vec_set1(0.044715f), vec_set1(1))),
			    vec_set1(1.5957691216f));
	vec e = vec_exp(vec_sub(vec_zero(), y));
	return vec_div(x, vec_add(vec_set1(1), e));
}

static void rows(void *arg, u32 task, u32 thread)
{
	const struct kern_act_mul_args *a = arg;
	u32 count = kern_rows_a_task(a->size), end = kern_min((task + 1) * count, a->tokens);
	(void)thread;
	for (u32 t = task * count; t < end; t++) {
		const float *gate = a->gate_up + (size_t)t * 2 * a->size, *up = gate + a->size;
		float *out = a->out + (size_t)t * a->size;
		u32 i = 0;
		for (; i + VEC_LANES <= a->size; i += VEC_LANES)
			vec_store(out + i, vec_mul(activate(a->act, vec_load(gate + i)), vec_load(up + i)));
		if (i < a->size) {
			u32 n = a->size - i;
			vec_store_n(out + i,
				    vec_mul(activate(a->act, vec_load_n(gate + i, n)), vec_load_n(up + i, n)),
				    n);
		}
	}
}

enum err VARIANT(act_mul)(struct kern_ctx *ctx, const struct kern_act_mul_args *a)
{
	struct kern_act_mul_args args = *a;
	kern_parallel(ctx, kern_ceil(a->tokens, kern_rows_a_task(a->size)), rows, &args);
	return ERR_OK;
}
