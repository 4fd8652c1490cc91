/* Reference: causal convolutions of channels, one channel after the other. */
#include <math.h>

#include "kernels/kern_priv.h"

/* Tokens [first, end) of channel c. `kept`: its values of the state, a.channels apart; u: the last taps values, the newest last. */
static void convolve(const struct kern_conv_args *a, float *kept, u32 first, u32 end, bool begins, u32 c)
{
	float u[KERN_CONV_TAPS_MAX] = {0};
	const u32 newest = a->taps - 1;
	for (u32 j = 0; j < newest && !begins; j++)
		u[j + 1] = kept[(size_t)j * a->channels + c];
	for (u32 t = first; t < end; t++) {
		const size_t at = (size_t)t * a->stride + c;
		double sum = 0;
		memmove(u, u + 1, newest * sizeof(*u));
		u[newest] = a->before ? a->x[at] * a->before[at] : a->x[at];
		for (u32 j = 0; j < a->taps; j++)
			sum += (double)a->weight[(size_t)j * a->channels + c] * u[j];
		sum += (double)(a->bias ? a->bias[c] : 0);
		if (a->silu)
			sum /= 1 + exp(-sum);
		a->out[at] = (float)(a->behind ? sum * a->behind[at] : sum);
	}
	for (u32 j = 0; j < newest; j++)
		kept[(size_t)j * a->channels + c] = u[j + 1];
}

enum err conv_ref(struct kern_ctx *ctx, const struct kern_conv_args *a)
{
	const struct kern_state *s = &a->state;
	(void)ctx;
	ASSERT(a->taps >= 2 && a->taps <= KERN_CONV_TAPS_MAX);
	for (u32 r = 0; r < s->rows; r++) {
		const u32 first = s->query_start[r], end = s->query_start[r + 1];
		for (u32 c = 0; c < a->channels && first < end; c++)
			convolve(a, s->data + s->slots[r] * s->stride, first, end, s->context[r] == end - first, c);
	}
	return ERR_OK;
}
