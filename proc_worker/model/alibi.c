/* Computes what positions are told by that no file has: slopes of ALiBi and sinusoids. Runs in the worker at start. Owns nothing. */
#include "proc_worker/model/alibi.h"

#include <math.h>

#include "common/assert.h"
#include "kernels/kernels.h"

/* Of `heads`, a power of two: a geometric series that ends at 2^-most. */
static float geometric(u32 heads, u32 head, double most)
{
	return (float)exp2(-most * (head + 1) / heads);
}

/* Where heads are no power of two: those of the power below, then every second of the power above. */
static float slope_below(const struct alibi_config *a, u32 heads, u32 power, u32 head)
{
	(void)heads;
	return head < power ? geometric(power, head, (double)a->bias_max) : geometric(2 * power, 2 * (head - power), (double)a->bias_max);
}

/* Those of the power above, every second first, then the others. */
static float slope_above(const struct alibi_config *a, u32 heads, u32 power, u32 head)
{
	const u32 all = power == heads ? power : 2 * power;

	if (all == heads)
		return geometric(all, head, (double)a->bias_max);
	return head < all / 2 ? geometric(all, 2 * head + 1, (double)a->bias_max) : geometric(all, 2 * (head - all / 2), (double)a->bias_max);
}

void alibi_slopes(const struct model_config *c, u32 first, u32 count, float *out)
{
	u32 power = 1;

	ASSERT(c->alibi.kind != ALIBI_NONE && first + count <= c->heads);
	while (2 * power <= c->heads)
		power *= 2;
	for (u32 i = 0; i < count; i++) {
		out[i] = (c->alibi.kind == ALIBI_ABOVE ? slope_above : slope_below)(&c->alibi, c->heads, power, first + i);
		u16 half;
		kern_convert(&half, KERN_BF16, &out[i], KERN_F32, 1);
		if (c->alibi.kind == ALIBI_ROUNDED)
			kern_convert(&out[i], KERN_F32, &half, KERN_BF16, 1);
	}
}

/* Sines in the first half, cosines in the second; the last value of an odd number is 0. Two rows stand before the first position. */
void sinusoids_fill(float *out, u32 count, u32 hidden, u32 padding)
{
	enum { BEFORE = 2 };
	const u32 half = hidden / 2;

	for (u32 p = 0; p < count; p++, out += hidden) {
		for (u32 i = 0; i < half; i++) {
			/* in floats, as models were trained with them */
			const float frequency = expf((float)i * -(float)(log(10000) / (half - 1)));
			const float angle = (float)(p + BEFORE) * frequency;
			out[i] = p + BEFORE == padding ? 0 : sinf(angle);
			out[half + i] = p + BEFORE == padding ? 0 : cosf(angle);
		}
		if (hidden % 2)
			out[hidden - 1] = 0;
	}
}
