/* Reference: gated activation. */
#include <math.h>

#include "kernels/kern_priv.h"
#include "kernels/ref/activation_priv.h"

static double clamped(double x, double least, double most)
{
	return x < least ? least : x > most ? most : x;
}

/* Of neighbours: gate, up. */
static double gate_clamped(const struct kern_act_mul_args *a, const float *pair)
{
	double gate = clamped(pair[0], -INFINITY, a->limit), up = clamped(pair[1], -(double)a->limit, a->limit);
	return gate / (1 + exp(-(double)a->alpha * gate)) * (up + 1);
}

static double xielu(const float *n, double x)
{
	const double beta = (double)n[KERN_XIELU_BETA], eps = (double)n[KERN_XIELU_EPS];
	if (x > 0)
		return (double)n[KERN_XIELU_POSITIVE] * x * x + beta * x;
	return (double)n[KERN_XIELU_NEGATIVE] * (expm1(x < eps ? x : eps) - x) + beta * x;
}

/* What of a gate's value is above the cutoff. */
static double above(double x, double cutoff)
{
	return x < cutoff ? 0 : x - cutoff;
}

enum err act_mul_ref(struct kern_ctx *ctx, const struct kern_act_mul_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		const float *gate = a->gate_up + (size_t)t * (a->ungated ? 1 : 2) * a->size, *up = gate + a->size;
		for (u32 i = 0; i < a->size && a->limit > 0; i++)
			a->out[(size_t)t * a->size + i] = (float)gate_clamped(a, gate + 2 * (size_t)i);
		for (u32 i = 0; i < a->size && a->xielu; i++)
			a->out[(size_t)t * a->size + i] = (float)xielu(a->xielu, (double)gate[i]);
		const double factor = a->factors ? (double)a->factors[t] : 1;
		for (u32 i = 0; i < a->size && a->cutoffs; i++)
			a->out[(size_t)t * a->size + i] = (float)(ref_activate(a->act, above((double)gate[i], (double)a->cutoffs[t])) * up[i]);
		for (u32 i = 0; i < a->size && !(a->limit > 0) && !a->xielu && !a->cutoffs; i++)
			a->out[(size_t)t * a->size + i] = (float)(ref_activate(a->act, factor * gate[i]) * (a->ungated ? 1 : factor * up[i]));
	}
	return ERR_OK;
}
