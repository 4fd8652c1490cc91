/* Gated residual streams on the CPU. Runs in the worker, in every step of models that have them; owns no memory, never allocates. */
#include "proc_worker/model/hyper.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "proc_worker/model/decoder_priv.h"

enum { TOKENS_A_TASK = 4 };

/* What tasks work on: sums of streams, or what streams add. */
struct job {
	float *streams;	    /* [tokens][count][hidden] */
	const float *gates; /* [tokens][gate_stride] weights of the streams */
	float *x;	    /* [tokens][hidden] */
	u32 tokens, count, hidden, gate_stride;
};

static float *carve(char *base, size_t *offset, size_t count)
{
	return region_carve(base, offset, count * sizeof(float));
}

static size_t width_of(const struct decoder *d)
{
	return (size_t)d->config.model->hyper.streams * d->config.model->hidden;
}

void hyper_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens, size_t rows)
{
	const size_t n = d->config.model->hyper.streams, most = tokens > rows ? tokens : rows;

	if (!n)
		return;
	d->hyper.streams = carve(base, offset, tokens * width_of(d));
	d->hyper.gates = carve(base, offset, most * 2 * n);
	d->hyper.moments = carve(base, offset, most * 2);
	d->hyper.picked = carve(base, offset, rows * width_of(d));
}

static void run(struct decoder *d, kern_task_fn fn, struct job *j)
{
	const u32 tasks = (j->tokens + TOKENS_A_TASK - 1) / TOKENS_A_TASK;

	if (d->config.ctx->threads)
		kern_threads_run(d->config.ctx->threads, tasks, fn, j);
	for (u32 i = 0; i < tasks && !d->config.ctx->threads; i++)
		fn(j, i, 0);
}

static void sum_task(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;

	(void)thread;
	for (u32 t = task * TOKENS_A_TASK; t < j->tokens && t < (task + 1) * TOKENS_A_TASK; t++) {
		const float *from = j->streams + (size_t)t * j->count * j->hidden, *gates = j->gates + (size_t)t * j->gate_stride;
		float *x = j->x + (size_t)t * j->hidden;
		for (u32 i = 0; i < j->hidden; i++)
			x[i] = gates[0] * from[i];
		for (u32 s = 1; s < j->count; s++)
			for (u32 i = 0; i < j->hidden; i++)
				x[i] += gates[s] * from[(size_t)s * j->hidden + i];
	}
}

static void add_task(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;

	(void)thread;
	for (u32 t = task * TOKENS_A_TASK; t < j->tokens && t < (task + 1) * TOKENS_A_TASK; t++) {
		float *to = j->streams + (size_t)t * j->count * j->hidden;
		const float *gates = j->gates + (size_t)t * j->gate_stride, *x = j->x + (size_t)t * j->hidden;
		for (u32 s = 0; s < j->count; s++)
			for (u32 i = 0; i < j->hidden; i++)
				to[(size_t)s * j->hidden + i] += gates[s] * x[i];
	}
}

static float sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

/* Of each token's streams all products with the rows of w->fn, `sets` for each stream, as of streams whose mean square is 1; and gates of these: the first
 * set is what the streams count, the second how much of a block's answer they add. */
static enum err weigh(struct decoder *d, const struct hyper_weights *w, const float *streams, u32 sets, u32 tokens, struct err_msg *em)
{
	const struct hyper_config *h = &d->config.model->hyper;
	const u32 width = (u32)width_of(d), n = h->streams;
	const struct kern_moments_args moments = {.out = d->hyper.moments, .x = streams, .tokens = tokens, .width = width, .stride = width};
	const struct kern_matmul_args product = {.out = d->hyper.gates, .x = streams, .w = &w->fn, .tokens = tokens, .x_stride = width, .out_stride = sets * n};

	ASSERT(w->fn.n == sets * n && w->fn.k == width);
	enum err e = decoder_failed(d->config.ops->moments(d->config.ctx, &moments), "moments", em);
	if (!e)
		e = decoder_failed(d->config.ops->matmul(d->config.ctx, &product), "matmul of streams", em);
	for (u32 t = 0; !e && t < tokens; t++) {
		const float *m = d->hyper.moments + 2 * (size_t)t;
		const float length = 1 / sqrtf(m[1] / (float)width + m[0] * m[0] + d->config.model->norm_eps);
		float *gates = d->hyper.gates + (size_t)t * sets * n;
		for (u32 i = 0; i < sets * n; i++)
			gates[i] = (i < n ? 1 : h->magnitude) * sigmoid(gates[i] * length * w->scale[i / n] + w->base[i]) + h->eps;
	}
	return e;
}

void hyper_begin(struct decoder *d, u32 tokens)
{
	const size_t hidden = d->config.model->hidden;
	const u32 n = d->config.model->hyper.streams;

	for (size_t i = 0; i < (size_t)tokens * n; i++)
		memcpy(d->hyper.streams + i * hidden, d->x + i / n * hidden, hidden * sizeof(float));
}

enum err hyper_gather(struct decoder *d, const struct hyper_weights *w, u32 tokens, struct err_msg *em)
{
	const u32 n = d->config.model->hyper.streams;
	struct job j = {.streams = d->hyper.streams, .gates = d->hyper.gates, .x = d->x, .tokens = tokens, .count = n, .hidden = d->config.model->hidden, .gate_stride = 2 * n};

	if (n == 0)
		return ERR_OK;
	enum err e = weigh(d, w, d->hyper.streams, 2, tokens, em);
	if (!e)
		run(d, sum_task, &j);
	d->pending = false;
	return e;
}

void hyper_add(struct decoder *d, u32 tokens)
{
	const u32 n = d->config.model->hyper.streams;
	struct job j = {.streams = d->hyper.streams, .gates = d->hyper.gates + n, .x = d->delta, .tokens = tokens, .count = n, .hidden = d->config.model->hidden, .gate_stride = 2 * n};

	if (n == 0)
		return;
	ASSERT(d->pending);
	run(d, add_task, &j);
	d->pending = false;
}

void hyper_narrow(struct decoder *d, u32 rows)
{
	const size_t width = width_of(d), gates = 2 * (size_t)d->config.model->hyper.streams;

	for (u32 r = 0; r < rows && width > 0; r++) {
		memmove(d->hyper.streams + r * width, d->hyper.streams + d->last[r] * width, width * sizeof(float));
		memmove(d->hyper.gates + r * gates, d->hyper.gates + d->last[r] * gates, gates * sizeof(float));
	}
}

void hyper_pick(struct decoder *d, u32 row, u32 at)
{
	const size_t width = width_of(d);

	ASSERT(row < d->config.logit_rows_max);
	if (width > 0)
		memcpy(d->hyper.picked + row * width, d->hyper.streams + at * width, width * sizeof(float));
}

enum err hyper_collapse(struct decoder *d, u32 count, struct err_msg *em)
{
	const u32 n = d->config.model->hyper.streams;
	struct job j = {.streams = d->hyper.picked, .gates = d->hyper.gates, .x = d->picked, .tokens = count, .count = n, .hidden = d->config.model->hidden, .gate_stride = n};

	if (n == 0)
		return ERR_OK;
	enum err e = weigh(d, &d->config.weights->hyper, d->hyper.picked, 1, count, em);
	if (!e)
		run(d, sum_task, &j);
	return e;
}
