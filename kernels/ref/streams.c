/* Reference: several residual streams mixed, and the moments of rows. */
#include "common/assert.h"
#include "kernels/kern_priv.h"

/* One value of each stream. */
static void mix_column(const struct kern_stream_mix_args *a, const float *mix, float *column, double extra)
{
	const u32 inputs = a->count + (a->extra ? 1 : 0);
	double sums[KERN_STREAMS_MAX];

	for (u32 q = 0; q < a->count; q++) {
		sums[q] = 0;
		for (u32 p = 0; p < inputs; p++)
			sums[q] += (double)mix[q * inputs + p] * (p < a->count ? (double)column[(size_t)p * a->hidden] : extra);
	}
	for (u32 q = 0; q < a->count; q++)
		column[(size_t)q * a->hidden] = (float)sums[q];
}

enum err stream_mix_ref(struct kern_ctx *ctx, const struct kern_stream_mix_args *a)
{
	(void)ctx;
	ASSERT(a->count > 0 && a->count <= KERN_STREAMS_MAX && a->pick < a->count);
	for (u32 t = 0; t < a->tokens; t++) {
		const float *mix = a->mix + (size_t)t * a->mix_stride;
		float *streams = a->streams + (size_t)t * a->count * a->hidden, *picked = streams + (size_t)a->pick * a->hidden;
		for (u32 i = 0; i < a->hidden; i++) {
			mix_column(a, mix, streams + i, a->extra ? (double)a->extra[(size_t)t * a->hidden + i] : 0);
			if (a->out)
				a->out[(size_t)t * a->hidden + i] = a->out_weight ? picked[i] * a->out_weight[i] : picked[i];
		}
	}
	return ERR_OK;
}

enum err moments_ref(struct kern_ctx *ctx, const struct kern_moments_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		const float *x = a->x + (size_t)t * a->stride;
		double mean = 0, sum = 0;
		for (u32 i = 0; i < a->width; i++)
			mean += (double)x[i];
		mean = a->width ? mean / a->width : 0;
		for (u32 i = 0; i < a->width; i++)
			sum += ((double)x[i] - mean) * ((double)x[i] - mean);
		a->out[2 * (size_t)t] = (float)mean;
		a->out[2 * (size_t)t + 1] = (float)sum;
	}
	return ERR_OK;
}
