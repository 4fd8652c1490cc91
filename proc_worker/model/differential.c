/* Differential attention on the CPU (DiffLlama). Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/differential.h"

#include <math.h>

#include "proc_worker/model/decoder_priv.h"

/* Of what a layer's second heads attend to, how much is taken away. `begun`: what it was before anything was learned. */
static float share_of(const float *lambda, u32 dim, double begun)
{
	double first = 0, second = 0;

	for (u32 i = 0; i < dim; i++) {
		first += (double)lambda[i] * (double)lambda[dim + i];
		second += (double)lambda[2 * dim + i] * (double)lambda[3 * dim + i];
	}
	return (float)(exp(first) - exp(second) + begun);
}

/* One head's values of both halves: out [2 dim]. `apart`: from a half of the heads to the next one, which has the other heads or the other values. */
static void combine(const float *from, size_t apart, float share, u32 dim, double eps, double scale, float *out)
{
	double squares = 0;

	for (u32 i = 0; i < 2 * dim; i++) {
		const float *at = from + (i / dim) * 2 * apart + i % dim;
		out[i] = at[0] - share * at[apart];
		squares += (double)out[i] * (double)out[i];
	}
	const double factor = scale / sqrt(squares / (2 * dim) + eps);
	for (u32 i = 0; i < 2 * dim; i++)
		out[i] = (float)((double)out[i] * factor);
}

void differential_combine(struct decoder *d, u32 index, u32 tokens)
{
	const struct decoder_config *c = &d->config;
	const u32 dim = c->model->head_dim, heads = c->shard->heads / 4;
	const double begun = 0.8 - 0.6 * exp(-0.3 * index);
	const float share = share_of(c->weights->layers[index].lambda, dim, begun);
	const size_t stride = decoder_qkv_stride(d, index);

	for (u32 t = 0; t < tokens; t++)
		for (u32 h = 0; h < heads; h++)
			combine(d->qkv + t * stride + (size_t)h * dim, (size_t)heads * dim, share, dim, (double)c->model->norm_eps, 1 - begun,
				d->values + ((size_t)t * heads + h) * 2 * dim);
}
