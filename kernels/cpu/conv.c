/* Causal convolutions of channels. A task has some channels of a row: what they are convolved with lies in a buffer that the first-level cache
 * holds, tokens in order behind the last ones of the state, and is read `taps` times from there. */
#include "kernels/cpu/shares_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_any_priv.h"

enum {
	CHANNELS = 512, /* side by side */
	TOKENS = 8,	/* a turn */
	VALUES_A_TASK = 16384,
};

struct job {
	const struct kern_conv_args *a;
	u32 parts, channels; /* of a row, and of a part */
};

/* Channels [c, c + n) of a row: `inputs` as they lie one behind the other in time, filled up with zeros to whole vectors. */
struct tile {
	const struct kern_conv_args *a;
	_Alignas(64) float inputs[KERN_CONV_TAPS_MAX - 1 + TOKENS][CHANNELS];
	const float *weights; /* `apart` from each other */
	size_t apart;
	_Alignas(64) float few[KERN_CONV_TAPS_MAX][CHANNELS], bias[CHANNELS];
	u32 c, n;
};

static void copy_padded(float *to, const float *from, u32 n)
{
	for (u32 i = 0; i < n; i += VEC_LANES)
		vec_store(to + i, vec_load_n(from + i, kern_min(n - i, VEC_LANES)));
}

/* A token's inputs. */
static void take(struct tile *w, float *to, size_t at)
{
	const float *x = w->a->x + at, *before = w->a->before ? w->a->before + at : NULL;
	for (u32 i = 0; i < w->n; i += VEC_LANES) {
		const u32 n = kern_min(w->n - i, VEC_LANES);
		const vec v = vec_load_n(x + i, n);
		vec_store(to + i, before ? vec_mul(v, vec_load_n(before + i, n)) : v);
	}
}

/* A token's sums, from its oldest inputs on. */
static ALWAYS_INLINE void sum_taps(const struct tile *w, const float (*inputs)[CHANNELS], float *sums, const u32 taps)
{
	for (u32 i = 0; i < w->n; i += VEC_LANES) {
		vec sum = vec_load(w->bias + i);
#pragma GCC unroll 8
		for (u32 j = 0; j < taps; j++)
			sum = vec_fma(vec_load(w->weights + j * w->apart + i), vec_load(inputs[j] + i), sum);
		vec_store(sums + i, sum);
	}
}

/* What `count` vectors of sums become, of which the last has n lanes, and where they go. */
static ALWAYS_INLINE void give(const struct kern_conv_args *a, const vec *sums, size_t at, const u32 count, u32 n)
{
	vec v[VECS_BESIDE];
	EACH_BESIDE(i, count) v[i] = sums[i];
	if (a->silu)
		vec_silus(sums, count, v);
	EACH_BESIDE(i, count)
	{
		const u32 lanes = i + 1 < count ? VEC_LANES : n;
		if (a->behind)
			v[i] = vec_mul(v[i], vec_load_n(a->behind + at + i * VEC_LANES, lanes));
		vec_store_n(a->out + at + i * VEC_LANES, v[i], lanes);
	}
}

/* A row's only token: `count` vectors from channel c on, which are not worth a buffer. */
static ALWAYS_INLINE void only_vectors(const struct kern_conv_args *a, u32 t, float *state, bool begins, u32 c, const u32 count, u32 n)
{
	const size_t at = (size_t)t * a->stride + c;
	vec sums[VECS_BESIDE], input = vec_zero();
	EACH_BESIDE(i, count) sums[i] = a->bias ? vec_load_n(a->bias + c + i * VEC_LANES, i + 1 < count ? VEC_LANES : n) : vec_zero();
	for (u32 j = 0; j < a->taps; j++)
		EACH_BESIDE(i, count)
		{
			const u32 lanes = i + 1 < count ? VEC_LANES : n, lane = i * VEC_LANES;
			float *kept = state + (size_t)j * a->channels + c + lane;
			if (j + 1 < a->taps)
				input = begins ? vec_zero() : vec_load_n(kept, lanes);
			else {
				input = vec_load_n(a->x + at + lane, lanes);
				if (a->before)
					input = vec_mul(input, vec_load_n(a->before + at + lane, lanes));
			}
			if (j > 0)
				vec_store_n(kept - a->channels, input, lanes);
			sums[i] = vec_fma(vec_load_n(a->weight + (size_t)j * a->channels + c + lane, lanes), input, sums[i]);
		}
	give(a, sums, at, count, n);
}

static void convolve_only(const struct kern_conv_args *a, u32 r, u32 c, u32 n)
{
	const u32 t = a->state.query_start[r], end = c + n;
	const bool begins = a->state.context[r] == 1;
	float *state = a->state.data + a->state.slots[r] * a->state.stride;
	for (; c + VECS_BESIDE * VEC_LANES <= end; c += VECS_BESIDE * VEC_LANES)
		only_vectors(a, t, state, begins, c, VECS_BESIDE, VEC_LANES);
	for (; c < end; c += VEC_LANES)
		only_vectors(a, t, state, begins, c, 1, kern_min(end - c, VEC_LANES));
}

static ALWAYS_INLINE void give_sums(const struct kern_conv_args *a, const float *sums, size_t at, const u32 count, u32 n)
{
	vec v[VECS_BESIDE];
	EACH_BESIDE(i, count) v[i] = vec_load(sums + i * VEC_LANES);
	give(a, v, at, count, n);
}

static void token(const struct tile *w, const float (*inputs)[CHANNELS], size_t at)
{
	_Alignas(64) float sums[CHANNELS];
	u32 i = 0;
	if (w->a->taps == 3)
		sum_taps(w, inputs, sums, 3);
	else if (w->a->taps == 4)
		sum_taps(w, inputs, sums, 4);
	else
		sum_taps(w, inputs, sums, w->a->taps);
	for (; i + VECS_BESIDE * VEC_LANES <= w->n; i += VECS_BESIDE * VEC_LANES)
		give_sums(w->a, sums + i, at + i, VECS_BESIDE, VEC_LANES);
	for (; i < w->n; i += VEC_LANES)
		give_sums(w->a, sums + i, at + i, 1, kern_min(w->n - i, VEC_LANES));
}

/* Channels [c, c + n) of row r. */
static void convolve(struct tile *w, u32 r, u32 c, u32 n)
{
	const struct kern_conv_args *a = w->a;
	const u32 first = a->state.query_start[r], end = a->state.query_start[r + 1], kept = a->taps - 1;
	const bool begins = a->state.context[r] == end - first;
	float *state = a->state.data + a->state.slots[r] * a->state.stride + c;
	w->c = c;
	w->n = n;
	w->weights = a->weight + c;
	w->apart = a->channels;
	if (n % VEC_LANES != 0) {
		for (u32 j = 0; j < a->taps; j++)
			copy_padded(w->few[j], a->weight + (size_t)j * a->channels + c, n);
		w->weights = w->few[0];
		w->apart = CHANNELS;
	}
	if (a->bias)
		copy_padded(w->bias, a->bias + c, n);
	else
		memset(w->bias, 0, sizeof(w->bias));
	for (u32 j = 0; j < kept; j++)
		if (begins)
			memset(w->inputs[j], 0, sizeof(w->inputs[j]));
		else
			copy_padded(w->inputs[j], state + (size_t)j * a->channels, n);
	for (u32 t = first, count; t < end; t += count) {
		count = kern_min(end - t, TOKENS);
		for (u32 i = 0; i < count; i++)
			take(w, w->inputs[kept + i], (size_t)(t + i) * a->stride + c);
		for (u32 i = 0; i < count; i++)
			token(w, w->inputs + i, (size_t)(t + i) * a->stride + c);
		for (u32 j = 0; j < kept; j++)
			memcpy(w->inputs[j], w->inputs[count + j], sizeof(w->inputs[j]));
	}
	for (u32 j = 0; j < kept; j++)
		memcpy(state + (size_t)j * a->channels, w->inputs[j], n * sizeof(float));
}

static void part(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	const u32 r = task / j->parts, first = task % j->parts * j->channels, end = kern_min(first + j->channels, j->a->channels);
	const u32 tokens = j->a->state.query_start[r + 1] - j->a->state.query_start[r];
	struct tile w;
	(void)thread;
	w.a = j->a;
	if (tokens == 1)
		convolve_only(j->a, r, first, end - first);
	for (u32 c = first; c < end && tokens > 1; c += CHANNELS)
		convolve(&w, r, c, kern_min(end - c, CHANNELS));
}

enum err VARIANT(conv)(struct kern_ctx *ctx, const struct kern_conv_args *a)
{
	const u32 rows = a->state.rows, tokens = rows > 0 ? a->state.query_start[rows] - a->state.query_start[0] : 0;
	struct job j = {.a = a};
	ASSERT(a->taps >= 2 && a->taps <= KERN_CONV_TAPS_MAX);
	if (tokens == 0)
		return ERR_OK;
	/* Rows of as many tokens as they have in the mean. */
	j.channels = kern_ceil(VALUES_A_TASK / kern_ceil(tokens, rows), CHANNELS) * CHANNELS;
	j.channels = j.channels > 0 ? j.channels : CHANNELS;
	j.parts = kern_ceil(a->channels, j.channels);
	parallel_near(ctx, rows, rows * j.parts, part, &j);
	return ERR_OK;
}
