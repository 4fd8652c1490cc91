/* Times of the ops between the products, of sampling, and of what prepares and ends a step. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "tests/kern/gpu_bench.h"

#define QUEUE(op)                                                         \
	static enum err queue_##op(struct gpu_bench *b, void *arg, u32 i) \
	{                                                                 \
		(void)i;                                                  \
		return b->d.ops.op(&b->d.ctx, arg);                       \
	}
QUEUE(embedding)
QUEUE(rmsnorm)
QUEUE(layernorm)
QUEUE(qk_squares)
QUEUE(qk_norm)
QUEUE(act_mul)
QUEUE(logits)
QUEUE(sample)
QUEUE(logprobs)

/* A token's way between the products of a model of this size. */
static void elementwise_cases(struct gpu_bench *b, u32 tokens, u32 hidden, u32 inner)
{
	struct check *check = &b->d.check;
	const size_t wide = (size_t)tokens * hidden;
	const u32 kept = b->d.buffer_count, vocab = b->small ? 32 : 128256;
	u32 *ids = check_alloc(check, tokens * sizeof(u32));
	float *weight;
	struct kern_embedding_args e = {.table_dtype = KERN_BF16,
					.tokens = tokens,
					.hidden = hidden,
					.rows = vocab};
	struct kern_rmsnorm_args n = {.eps = 1e-5f, .tokens = tokens, .hidden = hidden, .dtype = KERN_BF16};
	struct kern_act_mul_args act = {.tokens = tokens, .size = inner, .dtype = KERN_BF16};
	struct gpu_case c = {.op = "embedding", .bound = GPU_READ, .repeats = 20};

	for (u32 t = 0; t < tokens; t++)
		ids[t] = check_random(check, vocab);
	e.ids = device_upload(&b->d, ids, tokens * sizeof(u32));
	e.table = gpu_bench_place(b, (size_t)vocab * hidden * sizeof(u16), 0);
	e.out = (float *)(void *)b->out;
	c.work = (double)wide * (sizeof(u16) + sizeof(float));
	snprintf(c.shape, sizeof(c.shape), "tokens=%u hidden=%u", tokens, hidden);
	gpu_bench_case(b, &c, queue_embedding, &e);
	(void)device_floats(&b->d, hidden, false, &weight);
	n.weight = weight;
	n.x = (float *)(void *)b->out;
	n.add_bf16 = gpu_bench_place(b, wide * sizeof(u16), 0);
	n.out_bf16 = (u16 *)(void *)(b->out + b->out_bytes / 2);
	c.op = "rmsnorm with residual";
	c.work = (double)wide * (2 * sizeof(u16) + 2 * sizeof(float));
	if (tokens >= 2048) {
		c.predicted_low = 0.80;
		c.predicted_high = 0.90;
	}
	gpu_bench_case(b, &c, queue_rmsnorm, &n);
	struct kern_layernorm_args l = {.out_bf16 = n.out_bf16,
					.x = n.x,
					.add_bf16 = n.add_bf16,
					.weight = weight,
					.bias = weight,
					.eps = n.eps,
					.tokens = tokens,
					.hidden = hidden,
					.dtype = KERN_BF16};
	c.op = "layernorm with residual";
	gpu_bench_case(b, &c, queue_layernorm, &l);
	act.gate_up_bf16 = gpu_bench_place(b, 2 * (size_t)tokens * inner * sizeof(u16), 0);
	act.out_bf16 = (u16 *)(void *)b->out;
	c.op = "act_mul";
	c.work = 3.0 * tokens * inner * sizeof(u16);
	if (tokens >= 2048)
		c.predicted_low = 0.85;
	snprintf(c.shape, sizeof(c.shape), "tokens=%u size=%u", tokens, inner);
	gpu_bench_case(b, &c, queue_act_mul, &act);
	(void)device_release(&b->d, kept);
	(void)check_release(check, 0);
}

/* Norms over all heads: q as wide as the model, k a quarter of it. */
static void qk_cases(struct gpu_bench *b, u32 tokens, u32 hidden)
{
	const u32 kept = b->d.buffer_count, width = hidden / 4, stride = hidden + 2 * width;
	float *weight, *squares, *qkv = (float *)(void *)b->out;
	struct gpu_case c = {.op = "qk_squares", .bound = GPU_READ, .repeats = 20};
	struct kern_qk_squares_args s = {.qkv = qkv,
					 .tokens = tokens,
					 .stride = stride,
					 .q_width = hidden,
					 .k_width = width,
					 .counts_k = true};
	struct kern_qk_norm_args n = {.qkv = qkv,
				      .eps = 1e-5f,
				      .tokens = tokens,
				      .stride = stride,
				      .q_width = hidden,
				      .k_width = width,
				      .q_total = hidden,
				      .k_total = width};

	(void)device_floats(&b->d, hidden, false, &weight);
	(void)device_floats(&b->d, 2 * (size_t)tokens, false, &squares);
	s.squares = squares;
	n.squares = squares;
	n.q_weight = weight;
	n.k_weight = weight;
	c.work = (double)tokens * (hidden + width) * sizeof(float);
	snprintf(c.shape, sizeof(c.shape), "tokens=%u q=%u k=%u", tokens, hidden, width);
	gpu_bench_case(b, &c, queue_qk_squares, &s);
	c.op = "qk_norm";
	c.work *= 2;
	gpu_bench_case(b, &c, queue_qk_norm, &n);
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

/* ---------------------------------------------------------------- sampling */

/* Rows of a model's kind or, where `flat`, evenly spread ones, of which thousands are likely: a few ids far above a bell
 * of the rest. Each row has memory of its own, but all have the same logits. */
static float *make_logits(struct gpu_bench *b, u32 rows, u32 vocab, bool flat)
{
	struct check *check = &b->d.check;
	float *host = check_alloc(check, (size_t)rows * vocab * sizeof(float));

	check_sample_logits(check, host, vocab, 0, 0);
	for (u32 i = 0; i < vocab && !flat; i++) {
		host[i] = 2 * (check_uniform(check) + check_uniform(check) + check_uniform(check));
		if (i % (vocab / 30 + 1) == 5)
			host[i] += 8 + 4 * check_uniform(check);
	}
	for (u32 r = 1; r < rows; r++)
		memcpy(host + (size_t)r * vocab, host, vocab * sizeof(float));
	return device_upload(&b->d, host, (size_t)rows * vocab * sizeof(float));
}

static void sample_cases(struct gpu_bench *b, u32 rows, u32 vocab, bool flat)
{
	static const struct kern_sample_row kinds[] = {
		{.temperature = 0, .top_p = 1},
		{.temperature = 1, .top_p = 1},
		{.temperature = 1, .top_p = 0.9f},
		{.temperature = 1, .top_p = 0.95f, .top_k = 50, .min_p = 0.05f},
	};
	const u32 kept = b->d.buffer_count;
	const float *logits = make_logits(b, rows, vocab, flat);
	struct kern_sample_row *host = check_alloc(&b->d.check, rows * sizeof(*host));
	u32 *tokens = device_alloc(&b->d, rows * sizeof(u32));

	for (u32 i = 0; i < COUNT_OF(kinds); i++) {
		struct gpu_case c = {.op = "sample",
				     .bound = GPU_READ,
				     .work = (double)rows * vocab * sizeof(float),
				     .repeats = 20};
		for (u32 r = 0; r < rows; r++) {
			host[r] = kinds[i];
			host[r].logits = logits + (size_t)r * vocab;
			host[r].seed = r;
		}
		struct kern_sample_args a = {.tokens = tokens, .row_count = rows, .vocab = vocab};
		a.rows = device_upload(&b->d, host, rows * sizeof(*host));
		snprintf(c.shape, sizeof(c.shape), "rows=%u vocab=%u %s temperature=%g top_k=%u top_p=%g min_p=%g", rows,
			 vocab, flat ? "flat" : "peaked", (double)host->temperature, host->top_k, (double)host->top_p,
			 (double)host->min_p);
		gpu_bench_case(b, &c, queue_sample, &a);
	}
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

static void logprobs_cases(struct gpu_bench *b, u32 rows, u32 vocab)
{
	enum { TOP = 20 };
	struct device *d = &b->d;
	const u32 kept = d->buffer_count;
	struct kern_logprobs_row *host = check_alloc(&d->check, rows * sizeof(*host));
	const float *logits = make_logits(b, rows, vocab, false);
	u32 *ids = device_alloc(d, (size_t)rows * (1 + TOP) * sizeof(u32)), *ranks = device_alloc(d, rows * sizeof(u32));
	float *values = device_alloc(d, (size_t)rows * (1 + TOP) * sizeof(float));
	struct gpu_case c = {.op = "logprobs",
			     .bound = GPU_READ,
			     .work = (double)rows * vocab * sizeof(float),
			     .repeats = 20};

	for (u32 r = 0; r < rows; r++)
		host[r] = (struct kern_logprobs_row){.logits = logits + (size_t)r * vocab,
						     .token = 1,
						     .top = TOP,
						     .ids = ids + (size_t)r * (1 + TOP),
						     .values = values + (size_t)r * (1 + TOP),
						     .rank = ranks + r};
	struct kern_logprobs_args a = {device_upload(d, host, rows * sizeof(*host)), rows, vocab};
	snprintf(c.shape, sizeof(c.shape), "rows=%u vocab=%u top=%d", rows, vocab, TOP);
	gpu_bench_case(b, &c, queue_logprobs, &a);
	(void)device_release(d, kept);
	(void)check_release(&d->check, 0);
}

static void logits_cases(struct gpu_bench *b, u32 vocab)
{
	enum { SEEN = 1000 };
	struct device *d = &b->d;
	const u32 kept = d->buffer_count, seen = vocab < SEEN ? vocab : SEEN, words = (vocab + 31) / 32;
	u32 *ids = check_alloc(&d->check, seen * sizeof(u32)), *counts = check_alloc(&d->check, vocab * sizeof(u32));
	struct kern_logits_row row = {
		.repetition_penalty = 1.0001f, .presence_penalty = 0.0001f, .prompt_count = seen / 2};
	struct gpu_case c = {.op = "logits with penalties", .bound = GPU_READ, .repeats = 20};

	for (u32 i = 0; i < seen; i++)
		ids[i] = i * (vocab / seen);
	memset(counts, 0, vocab * sizeof(u32));
	row.logits = make_logits(b, 1, vocab, false);
	row.tokens = device_upload(d, ids, seen * sizeof(u32));
	row.known = device_upload(d, &seen, sizeof(seen));
	row.counts = device_upload(d, counts, vocab * sizeof(u32));
	struct kern_logits_args l = {device_upload(d, &row, sizeof(row)), 1, vocab};
	c.work = 2.0 * seen * sizeof(float);
	snprintf(c.shape, sizeof(c.shape), "rows=1 vocab=%u seen=%u", vocab, seen);
	gpu_bench_case(b, &c, queue_logits, &l);
	/* Only one id in a hundred is allowed. */
	for (u32 i = 0; i < words; i++)
		counts[i] = i % 3 == 0;
	row.counts = NULL;
	row.allowed = device_upload(d, counts, words * sizeof(u32));
	l.rows = device_upload(d, &row, sizeof(row));
	c.op = "logits with a set";
	c.work = (double)vocab * sizeof(float);
	snprintf(c.shape, sizeof(c.shape), "rows=1 vocab=%u", vocab);
	gpu_bench_case(b, &c, queue_logits, &l);
	(void)device_release(d, kept);
	(void)check_release(&d->check, 0);
}

/* ---------------------------------------------------------------- the batch */

struct turn {
	struct kern_batch batch;
	struct kern_apply_diff_args apply;
	struct kern_build_inputs_args build;
	struct kern_commit_args commit;
};

static enum err queue_apply(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.device_ops.apply_diff(&b->d.ctx, &((struct turn *)arg)->apply);
}

static enum err queue_build(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.device_ops.build_inputs(&b->d.ctx, &((struct turn *)arg)->build);
}

static enum err queue_commit(struct gpu_bench *b, void *arg, u32 i)
{
	(void)i;
	return b->d.device_ops.commit(&b->d.ctx, &((struct turn *)arg)->commit);
}

static void *zeros(struct device *d, size_t bytes)
{
	void *host = check_alloc(&d->check, bytes);

	memset(host, 0, bytes);
	return device_upload(d, host, bytes);
}

static void make_turn(struct gpu_bench *b, struct turn *t, u32 rows)
{
	enum { LENGTH = 64 };
	struct device *d = &b->d;
	struct kern_batch *k = &t->batch;

	*k = (struct kern_batch){
		.rows = rows, .token_stride = LENGTH, .block_stride = LENGTH / 16, .block_size = 16};
	k->known = zeros(d, rows * sizeof(u32));
	k->computed = zeros(d, rows * sizeof(u32));
	k->run = zeros(d, rows * sizeof(u32));
	k->prompt = zeros(d, rows * sizeof(u32));
	k->tokens = zeros(d, (size_t)rows * LENGTH * sizeof(u32));
	k->blocks = zeros(d, (size_t)rows * k->block_stride * sizeof(u32));
	k->params = zeros(d, rows * sizeof(struct kern_sample_row));
	t->apply = (struct kern_apply_diff_args){k, zeros(d, KERN_DIFF_WORDS * sizeof(u32))};
	t->build = (struct kern_build_inputs_args){.batch = k, .tokens = rows, .samples = rows, .vocab = 32};
	t->build.ids = zeros(d, rows * sizeof(u32));
	t->build.positions = zeros(d, rows * sizeof(u32));
	t->build.slots = zeros(d, rows * sizeof(i64));
	t->build.query_start = zeros(d, (rows + 1) * sizeof(u32));
	t->build.context = zeros(d, rows * sizeof(u32));
	t->build.sample_index = zeros(d, rows * sizeof(u32));
	t->build.sample_rows = zeros(d, rows * sizeof(u32));
	t->build.sample = zeros(d, rows * sizeof(struct kern_sample_row));
	t->build.logits = zeros(d, 32 * sizeof(float));
	t->build.counts = zeros(d, 2 * sizeof(u32));
	t->commit = (struct kern_commit_args){k, zeros(d, rows * sizeof(u32)), t->build.sample_rows,
					      t->build.counts};
}

/* The three kernels of a step that changes nothing. */
static void turn_cases(struct gpu_bench *b, u32 rows)
{
	static const struct {
		const char *op;
		gpu_queue_fn queue;
	} parts[] = {{"apply_diff", queue_apply}, {"build_inputs", queue_build}, {"commit", queue_commit}};
	const u32 kept = b->d.buffer_count;
	struct turn t;

	make_turn(b, &t, rows);
	for (u32 i = 0; i < COUNT_OF(parts); i++) {
		const double us = gpu_bench_us(b, parts[i].op, parts[i].queue, &t, b->small ? 2 : 20);
		if (us >= 0)
			printf("{\"bench\":\"gpu_kernels\",\"op\":\"%s\",\"shape\":\"rows=%u\",\"us\":%.2f}"
			       "\n",
			       parts[i].op, rows, us);
	}
	(void)device_release(&b->d, kept);
	(void)check_release(&b->d.check, 0);
}

void gpu_bench_small(struct gpu_bench *b)
{
	static const u32 tokens[] = {1, 64, 2048}, rows[] = {1, 64, 256};

	if (b->small) {
		elementwise_cases(b, 3, 64, 96);
		qk_cases(b, 3, 64);
		sample_cases(b, 2, 300, false);
		sample_cases(b, 2, 300, true);
		logprobs_cases(b, 2, 300);
		logits_cases(b, 300);
		turn_cases(b, 3);
		return;
	}
	for (u32 i = 0; i < COUNT_OF(tokens); i++) {
		elementwise_cases(b, tokens[i], 4096, 14336);
		qk_cases(b, tokens[i], 4096);
	}
	for (u32 i = 0; i < COUNT_OF(rows); i++) {
		sample_cases(b, rows[i], 128256, false);
		sample_cases(b, rows[i], 128256, true);
		logprobs_cases(b, rows[i], 128256);
		turn_cases(b, rows[i]);
	}
	logits_cases(b, 128256);
}
