/* Times of the ops of layers with a state of each sequence, in the shapes of a layer of Qwen 3.5 (delta), Granite 4 (scan) and LFM2 (gated
 * convolutions): steps of a batch of many rows, of which some decode or one has a prompt. */
#include <stdio.h>
#include <string.h>

#include "tests/kern/gpu_bench.h"

#define QUEUE(op)                                                         \
	static enum err queue_##op(struct gpu_bench *b, void *arg, u32 i) \
	{                                                                 \
		(void)i;                                                  \
		return b->d.ops.op(&b->d.ctx, arg);                       \
	}
QUEUE(conv)
QUEUE(recurrent)
QUEUE(gate)

/* A step: the first `busy` of the batch's rows have `tokens` each and go on from a state. */
struct step {
	u32 rows, busy, tokens;
};

/* States at b->out; *behind: what is free there behind them. */
static struct kern_state make_state(struct gpu_bench *b, const struct step *s, size_t size, float **behind)
{
	u32 *query_start = check_alloc(&b->d.check, (s->rows + 1) * sizeof(u32)), *context = check_alloc(&b->d.check, s->rows * sizeof(u32));

	query_start[0] = 0;
	for (u32 r = 0; r < s->rows; r++) {
		const u32 n = r < s->busy ? s->tokens : 0;
		query_start[r + 1] = query_start[r] + n;
		context[r] = n + 1;
	}
	*behind = (float *)(void *)b->out + s->busy * size;
	return (struct kern_state){.data = (float *)(void *)b->out,
				   .stride = size,
				   .query_start = device_upload(&b->d, query_start, (s->rows + 1) * sizeof(u32)),
				   .context = device_upload(&b->d, context, s->rows * sizeof(u32)),
				   .rows = s->rows};
}

static void conv_case(struct gpu_bench *b, const struct step *s, u32 channels, u32 taps, bool gated)
{
	const u32 kept = b->d.buffer_count, all = s->busy * s->tokens;
	const double read = gated ? 3 : 1, written = gated ? 0.5 : 1;
	struct kern_conv_args a = {.channels = channels, .stride = 3 * channels, .out_stride = channels, .taps = taps, .silu = !gated};
	struct gpu_case c = {.op = gated ? "conv, gated" : "conv", .bound = GPU_READ, .repeats = 20};
	float *weight;

	a.state = make_state(b, s, (size_t)(taps - 1) * channels, &a.out);
	(void)device_floats(&b->d, (size_t)taps * channels, false, &weight);
	a.weight = weight;
	a.x = gpu_bench_place(b, (size_t)all * a.stride * sizeof(float), 0);
	if (gated) {
		a.before = a.x + channels;
		a.behind = a.x + 2 * (size_t)channels;
		a.out_bf16 = (u16 *)(void *)a.out;
	}
	c.work = 4.0 * channels * ((read + written) * all + 2.0 * (taps - 1) * s->busy);
	snprintf(c.shape, sizeof(c.shape), "channels=%u taps=%u rows=%u/%u tokens=%u", channels, taps, s->busy, s->rows, s->tokens);
	gpu_bench_case(b, &c, queue_conv, &a);
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

static void recurrence_case(struct gpu_bench *b, const struct step *s, const struct kern_recurrent_args *shape)
{
	const u32 kept = b->d.buffer_count, all = s->busy * s->tokens;
	struct kern_recurrent_args a = *shape;
	const u32 keys = a.key_heads * a.key_dim, values = a.heads * a.value_dim;
	const size_t size = (size_t)values * a.key_dim;
	struct gpu_case c = {.op = a.kind == KERN_DELTA ? "recurrent, delta" : "recurrent, scan", .bound = GPU_READ, .repeats = 20};
	float *numbers;

	a.stride = 2 * keys + values + 2 * a.heads;
	a.state = make_state(b, s, size, &a.out);
	(void)device_floats(&b->d, a.heads, false, &numbers);
	a.decay_bias = a.rate_log = a.skip = numbers;
	a.q = gpu_bench_place(b, (size_t)all * a.stride * sizeof(float), 0);
	a.k = a.q + keys;
	a.v = a.k + keys;
	a.decay = a.v + values;
	a.beta = a.decay + a.heads;
	c.work = 4.0 * (2.0 * (double)size * s->busy + (double)all * (2 * keys + 2 * values));
	if (s->tokens == 1 && !b->small) {
		c.predicted_low = 0.60;
		c.predicted_high = 0.85;
	}
	snprintf(c.shape, sizeof(c.shape), "heads=%u/%u keys=%u values=%u rows=%u/%u tokens=%u", a.heads, a.key_heads, a.key_dim, a.value_dim, s->busy,
		 s->rows, s->tokens);
	gpu_bench_case(b, &c, queue_recurrent, &a);
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

/* From floats into bf16; of 0 groups the gate of an attention, in place. */
static void gate_case(struct gpu_bench *b, u32 tokens, u32 groups, u32 width)
{
	const u32 kept = b->d.buffer_count;
	const bool norm = groups > 0;
	struct kern_gate_args a = {.eps = 1e-6f, .tokens = tokens, .groups = norm ? groups : 1, .width = width, .sigmoid = !norm};
	const u32 wide = a.groups * width;
	struct gpu_case c = {.op = norm ? "gate with norm" : "gate", .bound = GPU_READ, .repeats = 20};
	float *weight = NULL, *in = gpu_bench_place(b, 2 * (size_t)tokens * wide * sizeof(float), 0);

	if (norm) {
		(void)device_floats(&b->d, width, false, &weight);
		a.x = in;
	}
	a.weight = weight;
	a.gate = in + wide;
	a.stride = 2 * wide;
	a.out_stride = wide;
	a.out_bf16 = (u16 *)(void *)b->out;
	c.work = (double)tokens * wide * (norm ? 10 : 8);
	snprintf(c.shape, sizeof(c.shape), "tokens=%u groups=%u width=%u", tokens, a.groups, width);
	gpu_bench_case(b, &c, queue_gate, &a);
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

void gpu_bench_recurrent(struct gpu_bench *b)
{
	static const struct step steps[] = {{256, 1, 1}, {256, 64, 1}, {256, 1, 512}}, small = {4, 2, 3};
	static const struct kern_recurrent_args delta = {.kind = KERN_DELTA, .heads = 32, .key_heads = 16, .key_dim = 128, .value_dim = 128},
						scan = {.kind = KERN_SCAN, .heads = 64, .key_heads = 1, .key_dim = 128, .value_dim = 64},
						little = {.kind = KERN_DELTA, .heads = 2, .key_heads = 1, .key_dim = 16, .value_dim = 16};

	if (b->small) {
		conv_case(b, &small, 64, 4, false);
		conv_case(b, &small, 64, 3, true);
		recurrence_case(b, &small, &little);
		gate_case(b, 3, 2, 16);
		gate_case(b, 3, 0, 64);
		return;
	}
	for (u32 i = 0; i < COUNT_OF(steps); i++) {
		const u32 tokens = steps[i].busy * steps[i].tokens;
		conv_case(b, &steps[i], 8192, 4, false);
		conv_case(b, &steps[i], 2048, 3, true);
		recurrence_case(b, &steps[i], &delta);
		recurrence_case(b, &steps[i], &scan);
		gate_case(b, tokens, 32, 128);
		gate_case(b, tokens, 1, 8192);
		gate_case(b, tokens, 0, 4096);
	}
}
