/* Times of the ops of layers that keep a state of each sequence, in the shapes of a layer of Qwen3-Next and Qwen 3.5 (delta), Kimi Linear (kda), Granite 4 (scan), Falcon Mamba (selective) and
 * LFM2. */
#include <stdio.h>
#include <string.h>

#include "tests/kern/bench.h"

enum { ROWS = 32, SLOTS = 64 };

/* Steps in turns over all slots: what one leaves in the caches is not what the next one wants. */
struct turns {
	u32 query_start[ROWS + 1], context[ROWS], slots[ROWS], rows;
};

static struct kern_state turns_init(struct check *c, struct turns *t, u32 rows, u32 tokens, size_t size)
{
	*t = (struct turns){.rows = rows};
	float *data = check_alloc(c, SLOTS * size * sizeof(float));
	for (size_t i = 0; i < SLOTS * size; i++)
		data[i] = (float)(i % 64) * 0x1p-7f;
	for (u32 r = 0; r < rows; r++) {
		t->query_start[r + 1] = t->query_start[r] + tokens;
		t->context[r] = tokens + 1;
		t->slots[r] = r * (SLOTS / ROWS);
	}
	return (struct kern_state){
		.data = data, .stride = size, .query_start = t->query_start, .context = t->context, .slots = t->slots, .rows = rows};
}

static void turns_next(const struct kern_state *s)
{
	u32 *slots = (u32 *)(uintptr_t)s->slots;
	for (u32 r = 0; r < s->rows; r++)
		slots[r] = (slots[r] + s->rows) % SLOTS;
}

static void run_conv(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	const struct kern_conv_args *a = arg;
	turns_next(&a->state);
	ops->conv(ctx, a);
}

static void run_recurrent(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	const struct kern_recurrent_args *a = arg;
	turns_next(&a->state);
	ops->recurrent(ctx, a);
}

static void run_selective_scan(void *arg, struct kern_ctx *ctx, const struct kern_ops *ops)
{
	const struct kern_selective_scan_args *a = arg;
	turns_next(&a->state);
	ops->selective_scan(ctx, a);
}

BENCH_RUNNER(gate)

static const struct kern_limits limits = {.tokens = 1, .rows = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .hidden = 2};

static void bench_conv(struct check *c, u32 target, u32 pool, u32 rows, u32 tokens, bool gated)
{
	struct turns turns;
	char shape[100];
	const u32 channels = gated ? 2048 : 8192, taps = gated ? 3 : 4, all = rows * tokens, stride = 3 * channels;
	struct kern_conv_args a = {.channels = channels, .stride = stride, .taps = taps, .silu = !gated};
	a.state = turns_init(c, &turns, rows, tokens, (size_t)(taps - 1) * channels);
	const float *in = check_floats(c, (size_t)all * stride, false);
	a.x = in;
	a.out = check_alloc(c, (size_t)all * stride * sizeof(float));
	a.before = gated ? in + channels : NULL;
	a.behind = gated ? in + 2 * (size_t)channels : NULL;
	a.weight = check_floats(c, (size_t)taps * channels, false);
	snprintf(shape, sizeof(shape), "%s channels=%u taps=%u rows=%u tokens=%u", gated ? "gated" : "silu", channels, taps, rows, tokens);
	const double moved = gated ? 4 : 2, kept = 2.0 * (taps - 1);
	BENCH(conv, c, target, pool, &a, &limits, shape, (2.0 * taps + moved) * all * channels,
	      4.0 * channels * (moved * all + kept * rows + taps));
	check_case_end(c, NULL, "conv");
}

static void bench_recurrence(struct check *c, u32 target, u32 pool, u32 rows, u32 tokens, enum kern_recurrence kind)
{
	struct turns turns;
	char shape[100];
	static const char *const kinds[] = {[KERN_DELTA] = "delta", [KERN_SCAN] = "scan", [KERN_KDA] = "kda"};
	const bool delta = kind != KERN_SCAN;
	struct kern_recurrent_args a = {.kind = kind, .heads = delta ? 32 : 64, .key_dim = 128, .value_dim = delta ? 128 : 64};
	a.key_heads = kind == KERN_KDA ? 32 : delta ? 16 : 1;
	const u32 keys = a.key_heads * a.key_dim, values = a.heads * a.value_dim, all = rows * tokens, decays = kind == KERN_KDA ? keys : a.heads;
	const size_t size = (size_t)a.heads * a.key_dim * a.value_dim;
	a.stride = 2 * keys + values + decays + a.heads;
	a.state = turns_init(c, &turns, rows, tokens, size);
	float *in = check_floats(c, (size_t)all * a.stride, false);
	a.q = in;
	a.k = in + keys;
	a.v = in + 2 * (size_t)keys;
	a.decay = a.v + values;
	a.beta = a.decay + decays;
	a.out = check_alloc(c, (size_t)all * a.stride * sizeof(float));
	a.decay_bias = check_floats(c, decays, false);
	a.rate_log = check_floats(c, a.heads, false);
	a.skip = check_floats(c, a.heads, false);
	snprintf(shape, sizeof(shape), "%s heads=%u/%u keys=%u values=%u rows=%u tokens=%u", kinds[kind], a.heads, a.key_heads, a.key_dim,
		 a.value_dim, rows, tokens);
	BENCH(recurrent, c, target, pool, &a, &limits, shape, (delta ? 7.0 : 5.0) * (double)size * all,
	      4.0 * (2.0 * rows * (double)size + (double)all * (2 * keys + 2 * values + (kind == KERN_KDA ? decays : 0))));
	check_case_end(c, NULL, "recurrent");
}

static void bench_selective(struct check *c, u32 target, u32 pool, u32 rows, u32 tokens)
{
	struct turns turns;
	char shape[100];
	const u32 channels = 8192, dim = 16, all = rows * tokens;
	const size_t size = (size_t)channels * dim;
	struct kern_selective_scan_args a = {.channels = channels, .state_dim = dim, .stride = 2 * channels, .step_stride = channels, .key_stride = 2 * dim};
	a.state = turns_init(c, &turns, rows, tokens, size);
	float *keys = check_floats(c, (size_t)all * a.key_stride, false), *rates = check_floats(c, size, false);
	for (size_t i = 0; i < size; i++)
		rates[i] = rates[i] < 0 ? -rates[i] : rates[i];
	a.x = check_floats(c, (size_t)all * a.stride, false);
	a.step = check_floats(c, (size_t)all * channels, false);
	a.k = keys;
	a.q = keys + dim;
	a.rate = rates;
	a.step_bias = check_floats(c, channels, false);
	a.skip = check_floats(c, channels, false);
	a.out = check_alloc(c, (size_t)all * a.stride * sizeof(float));
	snprintf(shape, sizeof(shape), "channels=%u state=%u rows=%u tokens=%u", channels, dim, rows, tokens);
	BENCH(selective_scan, c, target, pool, &a, &limits, shape, 6.0 * (double)size * all, 4.0 * ((2.0 * rows + 1) * (double)size + 3.0 * all * channels));
	check_case_end(c, NULL, "selective_scan");
}

static void bench_gate(struct check *c, u32 target, u32 pool, u32 tokens, bool first)
{
	char shape[100];
	const u32 groups = first ? 1 : 32, width = first ? 8192 : 128, wide = groups * width;
	struct kern_gate_args a = {.eps = 1e-6f, .tokens = tokens, .groups = groups, .width = width, .stride = 2 * wide, .gate_first = first};
	float *x = check_floats(c, (size_t)tokens * a.stride, false), *weight = check_floats(c, width, false);
	for (size_t i = 0; i < (size_t)tokens * a.stride; i++) /* in place, many times: x stays what it is once it is normed */
		x[i] = i % a.stride < wide ? x[i] : 1.2784645f;
	for (u32 i = 0; i < width; i++)
		weight[i] = 1;
	a.x = x;
	a.gate = x + wide;
	a.weight = weight;
	snprintf(shape, sizeof(shape), "%s groups=%u width=%u tokens=%u", first ? "first" : "behind", groups, width, tokens);
	BENCH(gate, c, target, pool, &a, &limits, shape, 0, 12.0 * tokens * wide);
	check_case_end(c, NULL, "gate");
}

void bench_recurrent(struct check *c, u32 target, u32 pool, const char *only)
{
	static const u32 steps[][2] = {{1, 1}, {32, 1}, {1, 512}};
#define WANTED(op) (CHECK_DISTINCT(c, target, op) && (!only || strcmp(only, #op) == 0))
	for (u32 s = 0; s < COUNT_OF(steps); s++)
		for (u32 kind = 0; kind < 2; kind++) {
			if (kind == 0 && WANTED(selective_scan))
				bench_selective(c, target, pool, steps[s][0], steps[s][1]);
			if (WANTED(conv))
				bench_conv(c, target, pool, steps[s][0], steps[s][1], kind == 0);
			if (WANTED(recurrent))
				bench_recurrence(c, target, pool, steps[s][0], steps[s][1], kind == 0 ? KERN_DELTA : KERN_SCAN);
			if (WANTED(recurrent) && kind == 0)
				bench_recurrence(c, target, pool, steps[s][0], steps[s][1], KERN_KDA);
			if (WANTED(gate))
				bench_gate(c, target, pool, steps[s][0] * steps[s][1], kind == 1);
		}
#undef WANTED
}
