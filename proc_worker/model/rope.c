/* Computes the rotary tables once at start, in double: positions times frequencies lose too much in float. */
#include "proc_worker/model/rope.h"

#include <math.h>
#include <stdlib.h>

#include "common/assert.h"

/* Turns that the wave makes within the original context: below `low` it is stretched, above `high` it is
 * kept. */
static double llama3(const struct rope_config *r, double frequency)
{
	double turns = r->original_context * frequency / (2 * M_PI);

	if (turns < r->low_freq_factor)
		return frequency / r->factor;
	if (turns >= r->high_freq_factor)
		return frequency;
	double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
	return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

/* The dimension whose wave makes so many turns within the original context (Peng et al. 2023, 3.2). */
static double yarn_dimension(const struct rope_config *r, double turns)
{
	return r->dim * log(r->original_context / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn(const struct rope_config *r, u32 i, double frequency)
{
	double low = yarn_dimension(r, r->beta_fast), high = yarn_dimension(r, r->beta_slow);

	if (r->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = low > 0 ? low : 0;
	high = high < r->dim - 1.0 ? high : r->dim - 1.0;
	if (low == high)
		high += 0.001; /* a step instead of a ramp */
	double ramp = (i - low) / (high - low);
	ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
	return frequency / r->factor * ramp + frequency * (1 - ramp);
}

double rope_frequency(const struct rope_config *r, u32 i, u32 length)
{
	double theta = r->theta;
	bool beyond = length > r->original_context;

	if (r->kind == ROPE_DYNAMIC && beyond)
		theta *= pow(r->factor * length / r->original_context - (r->factor - 1),
			     (double)r->dim / (r->dim - 2.0));
	double frequency = pow(theta, -2.0 * i / (r->head > 0 ? r->head : r->dim));
	switch (r->kind) {
	case ROPE_PLAIN:
	case ROPE_DYNAMIC:
		break;
	case ROPE_LINEAR:
	case ROPE_PROPORTIONAL:
		return frequency / r->factor;
	case ROPE_LLAMA3:
		return llama3(r, frequency);
	case ROPE_YARN:
		return yarn(r, i, frequency);
	case ROPE_LONGROPE:
		return frequency / (beyond ? r->long_factor[i] : r->short_factor[i]);
	}
	return frequency;
}

/* Rows from `first` on for positions [position, position + count) of sequences of `length` tokens. Before it lie rows of `t->config`
 * alone. */
static void fill(struct rope_tables *t, const struct rope_config *r, u32 first, u32 position, u32 count, u32 length)
{
	u32 half = r->dim / 2;
	const size_t begins = (size_t)first * (t->config->dim / 2);
	bool far = r->kind == ROPE_LONGROPE && length > r->original_context;
	double frequency[ROPE_HALF_MAX], factor = far ? r->far_factor : r->attention_factor;

	for (u32 i = 0; i < half; i++)
		frequency[i] = rope_frequency(r, i, length);
	for (u32 p = 0; p < count; p++) {
		size_t row = begins + (size_t)p * half;
		for (u32 i = 0; i < half; i++) {
			double angle = (position + p) * frequency[i];
			t->cos[row + i] = (float)(cos(angle) * factor);
			t->sin[row + i] = (float)(sin(r->backwards ? -angle : angle) * factor);
		}
		if (t->q_scales)
			t->q_scales[first + p] = (float)(1 + r->query_beta * log1p((position + p + r->query_ahead) / r->query_floor));
	}
}

enum err rope_tables_init(struct rope_tables *t, const struct rope_config *r, const struct rope_config *local,
			  u32 positions, u32 tokens_max, struct err_msg *em)
{
	bool by_length = r->kind == ROPE_DYNAMIC || r->kind == ROPE_LONGROPE;

	ASSERT(r->dim / 2 <= ROPE_HALF_MAX && (!local || local->dim / 2 <= ROPE_HALF_MAX));
	*t = (struct rope_tables){.config = r, .near = positions};
	if (by_length && positions > r->original_context) {
		t->near = r->original_context;
		t->far = r->kind == ROPE_DYNAMIC ? tokens_max : positions;
	}
	t->local = local ? t->near + t->far : 0;
	t->rows = t->near + t->far + (local ? positions : 0);
	size_t count = (size_t)(t->near + t->far) * (r->dim / 2) + (local ? (size_t)positions * (local->dim / 2) : 0);
	size_t scales = r->query_beta > 0 ? t->rows : 0;
	size_t bytes = (2 * count + scales) * sizeof(float) + (t->far ? tokens_max * sizeof(u32) : 0);
	t->cos = malloc(bytes);
	if (!t->cos)
		return err_set(em, ERR_NO_MEMORY,
			       "not enough memory for the rotary tables: %zu bytes; lower --max-model-len",
			       bytes);
	t->sin = t->cos + count;
	t->q_scales = scales ? t->sin + count : NULL;
	if (t->far)
		t->token_rows = (u32 *)(void *)(t->sin + count + scales);
	fill(t, r, 0, 0, t->near, 1);
	if (t->far && r->kind == ROPE_LONGROPE)
		fill(t, r, t->near, 0, t->far, r->original_context + 1);
	if (local)
		fill(t, local, t->local, 0, positions, 1);
	return ERR_OK;
}

void rope_tables_fini(struct rope_tables *t)
{
	free(t->cos);
	*t = (struct rope_tables){0};
}

static void row_of_token(struct rope_tables *t, u32 token, u32 position, u32 length)
{
	if (length <= t->near) {
		t->token_rows[token] = position;
	} else if (t->config->kind == ROPE_LONGROPE) {
		t->token_rows[token] = t->near + position;
	} else {
		t->token_rows[token] = t->near + token;
		fill(t, t->config, t->near + token, position, 1, length);
	}
}

const u32 *rope_tables_rows(struct rope_tables *t, const struct inputs *in)
{
	if (!t->far)
		return in->positions;
	for (u32 r = 0; r < in->rows; r++) {
		u32 known = t->config->kind == ROPE_LONGROPE ? in->added_count[r] : in->prompt_count[r];
		for (u32 i = in->query_start[r]; i < in->query_start[r + 1]; i++) {
			u32 position = in->positions[i];
			row_of_token(t, i, position, known > position ? known : position + 1);
		}
	}
	return t->token_rows;
}
