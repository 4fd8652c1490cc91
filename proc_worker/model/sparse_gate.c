/* Cutoffs of sparse gates on the CPU. Runs in the worker, in every step of models that have them; owns no memory, never allocates. */
#include "proc_worker/model/sparse_gate.h"

#include <math.h>

#include "proc_worker/model/decoder_priv.h"

/* The mean of all ranks' values, of which each has `width`, and the sum of their squared distances from it, from those of each (Chan, Golub,
 * LeVeque 1979): no difference of large numbers. */
static void join_moments(const void *const *parts, u32 ranks, u32 width, u32 token, float joined[2])
{
	double mean = 0, sum = 0;

	for (u32 r = 0; r < ranks; r++)
		mean += (double)((const float *)parts[r])[2 * token] / ranks;
	for (u32 r = 0; r < ranks; r++) {
		const float *part = (const float *)parts[r] + 2 * (size_t)token;
		sum += (double)part[1] + width * ((double)part[0] - mean) * ((double)part[0] - mean);
	}
	joined[0] = (float)mean;
	joined[1] = (float)sum;
}

enum err sparse_gate_cutoffs(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	const u32 ranks = c->collectives ? c->shard->ranks : 1, width = w->down.k;
	const void *parts[COLLECTIVES_RANKS_MAX] = {d->altup.moments};
	float *own = c->collectives ? collectives_buffer(c->collectives) : d->altup.moments;
	const struct kern_moments_args a = {.out = own, .x = d->gate_up, .tokens = tokens, .width = width, .stride = w->gate_up.n};

	enum err e = decoder_failed(c->ops->moments(c->ctx, &a), "moments", em);
	if (!e && c->collectives)
		e = collectives_all_gather(c->collectives, 2 * (size_t)tokens * sizeof(float), parts, em);
	for (u32 t = 0; !e && t < tokens; t++) {
		float joined[2];
		join_moments(parts, ranks, width, t, joined);
		d->altup.cutoffs[t] = joined[0] + c->model->gate_deviations[index] * sqrtf(joined[1] / (float)((u64)width * ranks));
	}
	return e;
}
