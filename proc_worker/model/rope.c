/* Computes the rotary tables once at start, in double: positions times frequencies lose too much in float. */
#include "proc_worker/model/rope.h"

#include <math.h>
#include <stdlib.h>

#include "common/assert.h"

enum { ROPE_HALF_MAX = 512 };

double rope_frequency(const struct rope_config *r, u32 i)
{
	double frequency = pow(r->theta, -2.0 * i / r->dim);

	if (r->kind == ROPE_LINEAR)
		return frequency / r->factor;
	if (r->kind != ROPE_LLAMA3)
		return frequency;
	/* Turns that the wave makes within the original context: below `low` it is stretched, above `high` it
	 * is kept. */
	double turns = r->original_context * frequency / (2 * M_PI);
	if (turns < r->low_freq_factor)
		return frequency / r->factor;
	if (turns > r->high_freq_factor)
		return frequency;
	double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
	return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

enum err rope_tables_init(struct rope_tables *t, const struct rope_config *r, u32 positions,
			  struct err_msg *em)
{
	u32 half = r->dim / 2;
	size_t count = (size_t)positions * half;
	double frequency[ROPE_HALF_MAX];

	ASSERT(half <= ROPE_HALF_MAX);
	*t = (struct rope_tables){.positions = positions};
	t->cos = malloc(2 * count * sizeof(float));
	if (!t->cos)
		return err_set(em, ERR_NO_MEMORY,
			       "not enough memory for the rotary tables: %zu bytes; lower --max-model-len",
			       2 * count * sizeof(float));
	t->sin = t->cos + count;
	for (u32 i = 0; i < half; i++)
		frequency[i] = rope_frequency(r, i);
	for (u32 p = 0; p < positions; p++)
		for (u32 i = 0; i < half; i++) {
			t->cos[(size_t)p * half + i] = (float)cos(p * frequency[i]);
			t->sin[(size_t)p * half + i] = (float)sin(p * frequency[i]);
		}
	return ERR_OK;
}

void rope_tables_fini(struct rope_tables *t)
{
	free(t->cos);
	*t = (struct rope_tables){0};
}
