/* Reference: linear recurrences, one token and head after the other. The state is rounded to float with every token, so that it does not
 * matter where a call ends. */
#include <math.h>

#include "kernels/kern_priv.h"

/* Of one token and head. */
struct step {
	double w[KERN_RECURRENT_DIM_MAX], d, b; /* see kern_recurrent_args */
	double k_scale, q_scale; /* what k and q are multiplied by */
};

static double softplus(double x)
{
	return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double length(const float *x, u32 count)
{
	double sum = 1e-6;
	for (u32 i = 0; i < count; i++)
		sum += (double)x[i] * x[i];
	return sqrt(sum);
}

static struct step step_of(const struct kern_recurrent_args *a, u32 t, u32 h, const float *q, const float *k)
{
	const size_t row = (size_t)t * a->stride, at = row + h;
	struct step s = {.k_scale = 1, .q_scale = 1};
	for (u32 i = 0; i < a->key_dim; i++) {
		const u32 of = a->kind == KERN_KDA ? h * a->key_dim + i : h;
		s.d = softplus((double)a->decay[row + of] + (double)a->decay_bias[of]);
		if (a->kind == KERN_SCAN && a->step_max > 0)
			s.d = fmin(fmax(s.d, (double)a->step_min), (double)a->step_max);
		s.w[i] = exp(-exp((double)a->rate_log[h]) * s.d);
	}
	if (a->kind != KERN_SCAN) {
		s.b = (a->beta_scale > 0 ? (double)a->beta_scale : 1) / (1 + exp(-(double)a->beta[at]));
		s.k_scale = 1 / length(k, a->key_dim);
		s.q_scale = 1 / (length(q, a->key_dim) * sqrt(a->key_dim));
	}
	return s;
}

/* Column j of S: what is added to it is k times `add`. */
static float column(const struct kern_recurrent_args *a, const struct step *s, float *S, const float *q, const float *k, double v)
{
	double sum = 0, add = s->d * v, out = 0;
	for (u32 i = 0; i < a->key_dim && a->kind != KERN_SCAN; i++)
		sum += s->w[i] * S[(size_t)i * a->value_dim] * k[i] * s->k_scale;
	if (a->kind != KERN_SCAN)
		add = s->b * (v - sum);
	for (u32 i = 0; i < a->key_dim; i++) {
		float *at = S + (size_t)i * a->value_dim;
		*at = (float)(s->w[i] * *at + k[i] * s->k_scale * add);
		out += (double)*at * q[i];
	}
	return (float)(out * s->q_scale);
}

static void head(const struct kern_recurrent_args *a, float *S, u32 t, u32 h)
{
	const size_t row = (size_t)t * a->stride, key = row + (size_t)h * a->key_heads / a->heads * a->key_dim,
		     value = row + (size_t)h * a->value_dim;
	const float *q = a->q + key, *k = a->k + key;
	const struct step s = step_of(a, t, h, q, k);
	for (u32 j = 0; j < a->value_dim; j++) {
		const float v = a->v[value + j], out = column(a, &s, S + j, q, k, (double)v);
		a->out[value + j] = a->kind == KERN_SCAN ? out + a->skip[h] * v : out;
	}
}

enum err recurrent_ref(struct kern_ctx *ctx, const struct kern_recurrent_args *a)
{
	const struct kern_state *s = &a->state;
	const size_t values = (size_t)a->key_dim * a->value_dim;
	(void)ctx;
	for (u32 r = 0; r < s->rows; r++) {
		float *S = s->data + s->slots[r] * s->stride;
		const u32 first = s->query_start[r], end = s->query_start[r + 1];
		if (first < end && s->context[r] == end - first)
			memset(S, 0, a->heads * values * sizeof(float));
		for (u32 t = first; t < end; t++)
			for (u32 h = 0; h < a->heads; h++)
				head(a, S + h * values, t, h);
	}
	return ERR_OK;
}
