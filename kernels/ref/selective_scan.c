/* Reference: the recurrence of Mamba's first generation, one token and channel after the other. The state is rounded to float with every
 * token, so that it does not matter where a call ends. */
#include <math.h>

#include "kernels/kern_priv.h"

static double softplus(double x)
{
	return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static void channel(const struct kern_selective_scan_args *a, float *S, u32 t, u32 c)
{
	const size_t at = (size_t)t * a->stride + c, keys = (size_t)t * a->key_stride;
	const double d = softplus((double)a->step[(size_t)t * a->step_stride + c] + (double)a->step_bias[c]), x = (double)a->x[at];
	double out = (double)a->skip[c] * x;
	for (u32 i = 0; i < a->state_dim; i++) {
		const size_t state = (size_t)i * a->channels + c;
		S[state] = (float)(exp(-(double)a->rate[state] * d) * S[state] + a->k[keys + i] * d * x);
		out += (double)S[state] * a->q[keys + i];
	}
	a->out[at] = (float)out;
}

enum err selective_scan_ref(struct kern_ctx *ctx, const struct kern_selective_scan_args *a)
{
	const struct kern_state *s = &a->state;
	(void)ctx;
	for (u32 r = 0; r < s->rows; r++) {
		float *S = s->data + s->slots[r] * s->stride;
		const u32 first = s->query_start[r], end = s->query_start[r + 1];
		if (first < end && s->context[r] == end - first)
			memset(S, 0, (size_t)a->state_dim * a->channels * sizeof(float));
		for (u32 t = first; t < end; t++)
			for (u32 c = 0; c < a->channels; c++)
				channel(a, S, t, c);
	}
	return ERR_OK;
}
