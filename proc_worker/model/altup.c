/* Several residual streams on the CPU. Runs in the worker, in every step of models that have them; owns no memory, never allocates. */
#include "proc_worker/model/altup.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/layer_inputs.h"

static const float LEAST_SQUARE = 1e-5f; /* of what is scaled to another's size */

/* ---------------------------------------------------------------- memory */

static float *carve(char *base, size_t *offset, size_t count)
{
	return region_carve(base, offset, count * sizeof(float));
}

void altup_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens, size_t rows)
{
	const struct altup_config *c = &d->config.model->altup;
	const size_t hidden = d->config.model->hidden, n = c->streams;
	const size_t most = tokens > rows ? tokens : rows;

	if (!n)
		return;
	d->altup.streams = carve(base, offset, tokens * n * hidden);
	d->altup.routed = carve(base, offset, tokens * n);
	d->altup.mix = carve(base, offset, most * n * (n + 1));
	d->altup.moments = carve(base, offset, most * n * 2);
	d->altup.cutoffs = carve(base, offset, tokens);
	d->altup.picked = carve(base, offset, rows * n * hidden);
	d->altup.unembedded = carve(base, offset, rows * n * hidden);
	d->altup.low = carve(base, offset, tokens * c->laurel_rank);
}

void altup_narrow(struct decoder *d, u32 rows)
{
	const size_t width = (size_t)d->config.model->altup.streams * d->config.model->hidden;

	for (u32 r = 0; r < rows; r++)
		memmove(d->altup.streams + r * width, d->altup.streams + d->last[r] * width, width * sizeof(float));
}

/* ---------------------------------------------------------------- ops */

static enum err product(struct decoder *d, struct kern_matmul_args a, struct err_msg *em)
{
	a.x_stride = a.x_stride ? a.x_stride : a.w->k;
	a.out_stride = a.out_stride ? a.out_stride : a.w->n;
	return decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul of streams", em);
}

static enum err mix(struct decoder *d, struct kern_stream_mix_args a, struct err_msg *em)
{
	a.mix = d->altup.mix;
	a.count = d->config.model->altup.streams;
	a.hidden = d->config.model->hidden;
	return decoder_failed(d->config.ops->stream_mix(d->config.ctx, &a), "stream_mix", em);
}

/* The mean square of every stream of `tokens` tokens to the first of its two moments. */
static enum err mean_squares(struct decoder *d, const float *streams, u32 tokens, struct err_msg *em)
{
	const u32 hidden = d->config.model->hidden, count = tokens * d->config.model->altup.streams;
	float *m = d->altup.moments;
	const struct kern_moments_args a = {.out = m, .x = streams, .tokens = count, .width = hidden, .stride = hidden};

	enum err e = decoder_failed(d->config.ops->moments(d->config.ctx, &a), "moments", em);
	for (u32 i = 0; !e && i < count; i++)
		m[2 * i] = m[2 * i + 1] / (float)hidden + m[2 * i] * m[2 * i];
	return e;
}

/* What gives stream `i` of a token, whose streams' mean squares are at `squares`, the size of the first. */
static float to_size_of_first(const float *squares, u32 i)
{
	const float square = squares[2 * i];

	return i == 0 ? 1 : sqrtf(squares[0]) / sqrtf(square > LEAST_SQUARE ? square : LEAST_SQUARE);
}

/* ---------------------------------------------------------------- begin and end */

enum err altup_begin(struct decoder *d, u32 tokens, struct err_msg *em)
{
	const struct model_config *m = d->config.model;
	const u32 n = m->altup.streams, hidden = m->hidden;
	const size_t width = (size_t)n * hidden;
	const struct kern_matmul_args further = {.out = d->altup.streams + hidden, .x = d->x, .w = &d->config.weights->altup_in, .tokens = tokens,
						 .out_stride = (u32)width};

	for (u32 t = 0; t < tokens; t++)
		memcpy(d->altup.streams + t * width, d->x + (size_t)t * hidden, hidden * sizeof(float));
	enum err e = product(d, further, em);
	if (!e)
		e = mean_squares(d, d->altup.streams, tokens, em);
	if (e)
		return e;
	memset(d->altup.mix, 0, (size_t)tokens * n * n * sizeof(float));
	for (u32 t = 0; t < tokens; t++)
		for (u32 i = 0; i < n; i++)
			d->altup.mix[((size_t)t * n + i) * n + i] = to_size_of_first(d->altup.moments + 2 * (size_t)t * n, i);
	return mix(d, (struct kern_stream_mix_args){.streams = d->altup.streams, .out = d->x, .tokens = tokens, .mix_stride = n * n, .pick = m->altup.active}, em);
}

void altup_pick(struct decoder *d, u32 row, u32 at)
{
	const size_t hidden = d->config.model->hidden, width = d->config.model->altup.streams * hidden;

	ASSERT(row < d->config.logit_rows_max);
	memcpy(d->altup.picked + row * width, d->altup.streams + at * width, width * sizeof(float));
	memcpy(d->altup.unembedded + row * width, d->altup.picked + row * width, hidden * sizeof(float));
}

/* The mean of the streams, each but the first behind its product and as large as the first. */
enum err altup_collapse(struct decoder *d, u32 count, struct err_msg *em)
{
	const u32 n = d->config.model->altup.streams, hidden = d->config.model->hidden;
	const size_t width = (size_t)n * hidden;
	enum err e = ERR_OK;

	for (u32 i = 1; !e && i < n; i++)
		e = product(d, (struct kern_matmul_args){.out = d->altup.unembedded + (size_t)i * hidden, .x = d->altup.picked + (size_t)i * hidden,
							 .w = &d->config.weights->altup_out[i - 1], .tokens = count, .x_stride = (u32)width,
							 .out_stride = (u32)width},
			    em);
	if (!e)
		e = mean_squares(d, d->altup.unembedded, count, em);
	if (e)
		return e;
	memset(d->altup.mix, 0, (size_t)count * n * n * sizeof(float));
	for (u32 r = 0; r < count; r++)
		for (u32 i = 0; i < n; i++)
			d->altup.mix[(size_t)r * n * n + i] = to_size_of_first(d->altup.moments + 2 * (size_t)r * n, i) / (float)n;
	return mix(d, (struct kern_stream_mix_args){.streams = d->altup.unembedded, .out = d->picked, .tokens = count, .mix_stride = n * n}, em);
}

/* ---------------------------------------------------------------- layers */

/* What the router says of the norm of d->x, with `add` in it first unless that is NULL: numbers from -1 to 1, one a stream. */
static enum err route(struct decoder *d, const struct layer_weights *w, const float *add, const struct kern_weight *next, u32 tokens, struct err_msg *em)
{
	const size_t count = (size_t)tokens * d->config.model->altup.streams;

	enum err e = decoder_norm(d, d->normed, d->x, add, w->altup_norm, NULL, tokens, em);
	if (!e)
		e = product(d, (struct kern_matmul_args){.out = d->altup.routed, .x = d->normed, .w = &w->altup_router, .tokens = tokens, .next = next}, em);
	for (size_t i = 0; !e && i < count; i++)
		d->altup.routed[i] = tanhf(d->altup.routed[i] / (float)d->config.model->hidden);
	return e;
}

/* Row `row` of `weights` [][n] times what the router said of a token. */
static float coefficient(const float *weights, const float *routed, u32 row, u32 n)
{
	float sum = 0;

	for (u32 k = 0; k < n; k++)
		sum += weights[(size_t)row * n + k] * routed[k];
	return sum;
}

enum err altup_predict(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const struct altup_config *c = &d->config.model->altup;
	const u32 n = c->streams;

	enum err e = route(d, w, NULL, &w->laurel_left, tokens, em);
	if (e)
		return e;
	for (u32 t = 0; t < tokens; t++)
		for (u32 i = 0; i < n * n; i++)
			d->altup.mix[(size_t)t * n * n + i] = coefficient(w->altup_predict, d->altup.routed + (size_t)t * n, i, n) + (i % (n + 1) == 0 ? 1 : 0);
	return mix(d, (struct kern_stream_mix_args){.streams = d->altup.streams, .out = d->x, .tokens = tokens, .mix_stride = n * n, .pick = c->active}, em);
}

enum err altup_laurel(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];

	enum err e = product(d, (struct kern_matmul_args){.out = d->altup.low, .x = d->normed, .w = &w->laurel_left, .tokens = tokens, .next = &w->laurel_right}, em);
	if (!e)
		e = product(d, (struct kern_matmul_args){.out = d->delta, .x = d->altup.low, .w = &w->laurel_right, .tokens = tokens, .next = &w->qkv}, em);
	if (!e)
		e = decoder_norm(d, d->delta, d->delta, NULL, w->laurel_norm, NULL, tokens, em);
	if (!e)
		e = decoder_norm(d, NULL, d->delta, d->normed, NULL, NULL, tokens, em);
	return e ? e : decoder_norm(d, NULL, d->x, d->delta, NULL, NULL, tokens, em);
}

/* A stream q becomes q + k_q (d->x - active), of which k_q is there for every token: as weights of all streams and of d->x. */
static void weigh_correction(struct decoder *d, const struct layer_weights *w, u32 tokens)
{
	const struct altup_config *c = &d->config.model->altup;
	const u32 n = c->streams;
	float *row = d->altup.mix;

	for (u32 t = 0; t < tokens; t++)
		for (u32 q = 0; q < n; q++, row += n + 1) {
			const float k = coefficient(w->altup_correct, d->altup.routed + (size_t)t * n, q, n) + 1;
			for (u32 p = 0; p < n; p++)
				row[p] = (p == q ? 1 : 0) - (p == c->active ? k : 0);
			row[n] = k;
		}
}

/* d->delta to all streams but the first. */
static enum err add_input(struct decoder *d, u32 tokens, struct err_msg *em)
{
	const struct altup_config *c = &d->config.model->altup;
	const u32 n = c->streams;

	memset(d->altup.mix, 0, (size_t)n * (n + 1) * sizeof(float));
	for (u32 q = 0; q < n; q++) {
		d->altup.mix[(size_t)q * (n + 1) + q] = 1;
		d->altup.mix[(size_t)q * (n + 1) + n] = q > 0 ? 1 : 0;
	}
	return mix(d, (struct kern_stream_mix_args){.streams = d->altup.streams, .extra = d->delta, .out = d->x, .tokens = tokens, .pick = c->active}, em);
}

enum err altup_correct(struct decoder *d, u32 index, u32 tokens, struct err_msg *em)
{
	const struct layer_weights *w = &d->config.weights->layers[index];
	const u32 n = d->config.model->altup.streams;

	enum err e = route(d, w, d->delta, &w->input_gate, tokens, em);
	if (e)
		return e;
	weigh_correction(d, w, tokens);
	e = mix(d, (struct kern_stream_mix_args){.streams = d->altup.streams, .extra = d->x, .out = d->x, .out_weight = w->altup_scale, .tokens = tokens,
						 .mix_stride = n * (n + 1), .pick = d->config.model->altup.active},
		em);
	if (!e)
		e = layer_inputs_add(d, index, tokens, em);
	return e ? e : add_input(d, tokens, em);
}
