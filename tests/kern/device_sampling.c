/* Checks of the device's logits, soft_cap, sample and logprobs: tokens and logits are the reference's to the
 * bit. */
#include <math.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/kern/device.h"

static void logits_case(struct device *d, u32 vocab)
{
	const u32 seen_ids[] = {vocab - 1, 0, vocab / 2}, seen_outputs[] = {3, 0, 1};
	const u32 bias_ids[] = {0, vocab - 1, vocab}, masked[] = {vocab / 3, vocab + 7, vocab - 1};
	const float bias[] = {2.5f, -100, 1};
	float *logits, *host = device_floats(d, vocab, true, &logits);
	struct kern_logits_row row = {.logits = host,
				      .repetition_penalty = 1.3f,
				      .presence_penalty = 0.7f,
				      .frequency_penalty = -0.2f,
				      .seen_ids = seen_ids,
				      .seen_outputs = seen_outputs,
				      .seen_count = vocab >= 3 ? 3 : 1,
				      .bias_ids = bias_ids,
				      .bias_values = bias,
				      .bias_count = vocab >= 2 ? 3 : 1,
				      .masked_ids = masked,
				      .masked_count = vocab >= 9 ? 3 : 0};
	struct kern_logits_row rows[2] = {row, row};
	rows[0].logits = logits;
	rows[0].seen_ids = device_upload(d, seen_ids, sizeof(seen_ids));
	rows[0].seen_outputs = device_upload(d, seen_outputs, sizeof(seen_outputs));
	rows[0].bias_ids = device_upload(d, bias_ids, sizeof(bias_ids));
	rows[0].bias_values = device_upload(d, bias, sizeof(bias));
	rows[0].masked_ids = device_upload(d, masked, sizeof(masked));
	rows[1] = (struct kern_logits_row){.repetition_penalty = 1}; /* a row that asks for nothing */
	struct kern_logits_args a = {device_upload(d, rows, sizeof(rows)), 2, vocab}, r = {&row, 1, vocab};
	const char *problem = device_problem(d, d->ops.logits(&d->ctx, &a));
	(void)d->ref.logits(&d->ref_ctx, &r);
	if (!problem &&
	    memcmp(device_download(d, logits, vocab * sizeof(float)), host, vocab * sizeof(float)) != 0)
		problem = "other bits than the reference's";
	struct kern_soft_cap_args cap = {logits, 30, 1, vocab}, ref_cap = {host, 30, 1, vocab};
	if (!problem)
		problem = device_problem(d, d->ops.soft_cap(&d->ctx, &cap));
	(void)d->ref.soft_cap(&d->ref_ctx, &ref_cap);
	if (!problem)
		problem = device_close(device_download(d, logits, vocab * sizeof(float)), host, vocab, 1e-6,
				       1e-6);
	device_case_end(d, problem, "logits+soft_cap vocab=%u", vocab);
}

/* A set of allowed ids beside a masked one, and a row without. */
static void allowed_case(struct device *d, u32 vocab)
{
	const u32 words = (vocab + 31) / 32, masked = vocab / 2;
	float *logits, *host = device_floats(d, 2 * vocab, true, &logits);
	u32 *allowed = check_alloc(&d->check, words * sizeof(u32));
	for (u32 i = 0; i < words; i++)
		allowed[i] = i % 3 == 0 ? check_random(&d->check, UINT32_MAX) : i % 3 == 1 ? UINT32_MAX : 0;
	struct kern_logits_row row = {.logits = host, .repetition_penalty = 1, .masked_ids = &masked, .masked_count = 1};
	struct kern_logits_row mine[2] = {row, row}, rows[2];
	mine[0].allowed = allowed;
	mine[1].logits = host + vocab;
	rows[0] = mine[0];
	rows[0].logits = logits;
	rows[0].allowed = device_upload(d, allowed, words * sizeof(u32));
	rows[0].masked_ids = device_upload(d, &masked, sizeof(masked));
	rows[1] = rows[0];
	rows[1].logits = logits + vocab;
	rows[1].allowed = NULL;
	struct kern_logits_args a = {device_upload(d, rows, sizeof(rows)), 2, vocab}, r = {mine, 2, vocab};
	const char *problem = device_problem(d, d->ops.logits(&d->ctx, &a));
	(void)d->ref.logits(&d->ref_ctx, &r);
	if (!problem && memcmp(device_download(d, logits, 2 * vocab * sizeof(float)), host, 2 * vocab * sizeof(float)) != 0)
		problem = "other bits than the reference's";
	device_case_end(d, problem, "logits allowed vocab=%u", vocab);
}

/* Distinct ids of `tokens`, and how often each is behind the prompt. */
static u32 list_seen(const u32 *tokens, u32 known, u32 prompt, u32 *ids, u32 *outputs)
{
	u32 n = 0;
	for (u32 i = 0; i < known; i++) {
		u32 at = 0;
		while (at < n && ids[at] != tokens[i])
			at++;
		if (at == n) {
			ids[n] = tokens[i];
			outputs[n++] = 0;
		}
		outputs[at] += i >= prompt;
	}
	return n;
}

/* A row's tokens themselves, against lists that are made from them here. */
static void history_case(struct device *d, u32 vocab, u32 known, u32 prompt)
{
	const size_t bytes = vocab * sizeof(u32);
	float *logits, *listed = device_floats(d, vocab, true, &logits), *counted = check_alloc(&d->check, bytes);
	u32 *tokens = check_alloc(&d->check, (known + 1) * sizeof(u32)), *ids = check_alloc(&d->check, bytes),
	    *outputs = check_alloc(&d->check, bytes), *counts = check_alloc(&d->check, bytes);
	memcpy(counted, listed, bytes);
	memset(counts, 0, bytes);
	for (u32 i = 0; i < known; i++)
		tokens[i] = (i % 3 ? check_random(&d->check, vocab) : i % 5) % vocab; /* a few come again and again */
	tokens[known] = 0; /* what lies behind does not count */
	struct kern_logits_row row = {.repetition_penalty = 1.3f,
				      .presence_penalty = 0.7f,
				      .frequency_penalty = -0.2f,
				      .prompt_count = prompt};
	struct kern_logits_row rows[3] = {row, row, row}; /* of lists, and counted here and on the device */
	rows[0].logits = listed;
	rows[0].seen_ids = ids;
	rows[0].seen_outputs = outputs;
	rows[0].seen_count = list_seen(tokens, known, prompt, ids, outputs);
	rows[1].logits = counted;
	rows[1].tokens = tokens;
	rows[1].known = &known;
	rows[1].counts = counts;
	rows[2].logits = logits;
	rows[2].tokens = device_upload(d, tokens, (known + 1) * sizeof(u32));
	rows[2].known = device_upload(d, &known, sizeof(known));
	rows[2].counts = device_upload(d, counts, bytes);
	struct kern_logits_args a = {device_upload(d, &rows[2], sizeof(row)), 1, vocab}, r = {rows, 2, vocab};
	const char *problem = device_problem(d, d->ops.logits(&d->ctx, &a));
	(void)d->ref.logits(&d->ref_ctx, &r);
	const u32 *left = device_download(d, rows[2].counts, bytes);
	if (!problem && memcmp(counted, listed, bytes) != 0)
		problem = "the reference finds other bits than with lists";
	if (!problem && memcmp(device_download(d, logits, bytes), listed, bytes) != 0)
		problem = "other bits than the reference's";
	for (u32 i = 0; !problem && i < vocab; i++)
		if (left[i] != 0 || counts[i] != 0)
			problem = "a count is left";
	device_case_end(d, problem, "logits vocab=%u known=%u prompt=%u", vocab, known, prompt);
}

/* Scratch for so many rows; 0: none, and a block a row. */
static void take_scratch(struct device *d, u32 rows, u32 vocab)
{
	d->ctx.scratch_bytes = kern_sample_scratch_bytes(rows, vocab);
	d->ctx.scratch = rows > 0 ? device_alloc(d, d->ctx.scratch_bytes) : NULL;
}

static void end_scratch(struct device *d)
{
	d->ctx.scratch_bytes = 0;
	d->ctx.scratch = NULL;
}

enum shape {
	/* 0 .. 5 are those of check_sample_logits. */
	NEAR = 6, /* all within a bucket, and no two the same */
	PEAKED,	  /* a few far above the rest, and ties among those */
	MASKED,	  /* as a grammar leaves it: all but a few are -inf */
};

static void make_logits(struct device *d, float *logits, u32 vocab, u32 shape)
{
	check_sample_logits(&d->check, logits, vocab, shape < NEAR ? shape : 0, INFINITY);
	for (u32 i = 0; i < vocab; i++) {
		const bool chosen = i % 101 == 7;
		if (shape == NEAR)
			logits[i] = logits[i] * 1e-5f - 3;
		if (shape == PEAKED)
			logits[i] = chosen ? 20 - (float)(i / 101 % 8) : logits[i] / 3;
		if (shape == MASKED && !chosen)
			logits[i] = -INFINITY;
	}
}

/* What the shared parameters have not: what floats cannot be trusted with, and more than there is. */
static void change_params(struct kern_sample_row *row, u32 vocab, u32 kind)
{
	if (kind % 11 == 5)
		row->temperature = kind % 2 ? 1e-30f : 1e30f;
	if (kind % 7 == 4)
		row->top_k = vocab + kind % 2;
	if (kind % 13 == 6)
		row->min_p = 1.5f;
}

/* Rows lie one behind the other, as a step's do, so with some vocabularies they are not aligned. Their parameters begin
 * with the kind `first`. */
static void sample_rows(struct device *d, u32 vocab, u32 shape, u32 count, u32 scratch_rows, u32 first)
{
	enum { ROWS_MAX = 24 };
	struct kern_sample_row rows[ROWS_MAX], device_rows[ROWS_MAX];
	u32 want[ROWS_MAX];
	struct kern_sample_args a = {.row_count = count, .vocab = vocab}, r = a;
	const size_t bytes = (size_t)count * vocab * sizeof(float);
	float *logits = check_alloc(&d->check, bytes);
	for (u32 i = 0; i < count; i++)
		make_logits(d, logits + (size_t)i * vocab, vocab, shape);
	float *there = device_upload(d, logits, bytes);
	for (u32 i = 0; i < count; i++) {
		check_sample_params(&d->check, &rows[i], vocab, first + i);
		change_params(&rows[i], vocab, first + i + shape);
		device_rows[i] = rows[i];
		rows[i].logits = logits + (size_t)i * vocab;
		device_rows[i].logits = there + (size_t)i * vocab;
	}
	a.rows = device_upload(d, device_rows, count * sizeof(rows[0]));
	a.tokens = device_alloc(d, count * sizeof(u32));
	r.rows = rows;
	r.tokens = want;
	take_scratch(d, scratch_rows, vocab);
	device_arrives_late(d, there, bytes);
	const char *problem = device_problem(d, d->ops.sample(&d->ctx, &a));
	(void)d->ref.sample(&d->ref_ctx, &r);
	if (!problem &&
	    memcmp(device_download(d, a.tokens, count * sizeof(u32)), want, count * sizeof(u32)) != 0)
		problem = "other tokens than the reference's";
	end_scratch(d);
	device_case_end(d, problem, "sample vocab=%u shape=%u rows=%u scratch for %u", vocab, shape, count, scratch_rows);
}

static void sample_case(struct device *d, u32 vocab, u32 shape, u32 count, u32 scratch_rows)
{
	sample_rows(d, vocab, shape, count, scratch_rows, vocab);
}

struct logprobs_rows {
	struct kern_logprobs_row host[8], device[8];
};

static void make_logprobs_rows(struct device *d, struct logprobs_rows *rows, u32 count, u32 vocab, u32 top, u32 shape)
{
	const u32 outs = 1 + (top < vocab ? top : vocab);
	const size_t bytes = (size_t)count * vocab * sizeof(float);
	float *logits = check_alloc(&d->check, bytes);
	for (u32 r = 0; r < count; r++)
		make_logits(d, logits + (size_t)r * vocab, vocab, shape);
	const float *there = device_upload(d, logits, bytes);
	for (u32 r = 0; r < count; r++) {
		struct kern_logprobs_row *row = &rows->host[r];
		*row = (struct kern_logprobs_row){.logits = logits + (size_t)r * vocab,
						  .token = check_random(&d->check, vocab),
						  .top = top,
						  .ids = check_alloc(&d->check, outs * sizeof(u32)),
						  .values = check_alloc(&d->check, outs * sizeof(float)),
						  .rank = check_alloc(&d->check, sizeof(u32))};
		rows->device[r] = *row;
		rows->device[r].logits = there + (size_t)r * vocab;
		rows->device[r].ids = device_alloc(d, outs * sizeof(u32));
		rows->device[r].values = device_alloc(d, outs * sizeof(float));
		rows->device[r].rank = device_alloc(d, sizeof(u32));
		if (r % 2 == 0) { /* where sampling has put it */
			rows->device[r].token = ~0u;
			rows->device[r].sampled = device_upload(d, &row->token, sizeof(u32));
		}
	}
}

static void logprobs_case(struct device *d, u32 vocab, u32 top, u32 shape, u32 count, u32 scratch_rows)
{
	struct logprobs_rows rows;
	const u32 outs = 1 + (top < vocab ? top : vocab);
	make_logprobs_rows(d, &rows, count, vocab, top, shape);
	struct kern_logprobs_args a = {.row_count = count, .vocab = vocab}, ref = a;
	a.rows = device_upload(d, rows.device, count * sizeof(rows.device[0]));
	ref.rows = rows.host;
	take_scratch(d, scratch_rows, vocab);
	const char *problem = device_problem(d, d->ops.logprobs(&d->ctx, &a));
	(void)d->ref.logprobs(&d->ref_ctx, &ref);
	for (u32 r = 0; r < count && !problem; r++) {
		const struct kern_logprobs_row *got = &rows.device[r], *want = &rows.host[r];
		if (memcmp(device_download(d, got->ids, outs * sizeof(u32)), want->ids, outs * sizeof(u32)))
			problem = "another order of the best";
		else if (*(u32 *)device_download(d, got->rank, sizeof(u32)) != *want->rank)
			problem = "another rank";
		else
			problem = device_close(device_download(d, got->values, outs * sizeof(float)), want->values, outs,
					       1e-6, 3e-5);
	}
	end_scratch(d);
	device_case_end(d, problem, "logprobs vocab=%u top=%u shape=%u rows=%u scratch for %u", vocab, top, shape, count,
			scratch_rows);
}

/* Every rank's share holds numbers that say whose they are, and NaN behind them. */
static void join_logits_case(struct device *d, u32 ranks, u32 rows, u32 vocab)
{
	struct check *c = &d->check;
	const u32 share_max = (vocab + ranks - 1) / ranks + check_random(c, 3);
	float *parts = check_alloc(c, (size_t)ranks * rows * share_max * sizeof(float));
	float *want = check_alloc(c, (size_t)rows * vocab * sizeof(float));
	struct kern_join_logits_args a = {
		.ranks = ranks, .rows = rows, .vocab = vocab, .share_max = share_max};
	memset(parts, 0xff, (size_t)ranks * rows * share_max * sizeof(float));
	for (u32 r = 0; r < ranks; r++) {
		const u32 begin = (u32)((u64)r * vocab / ranks), end = (u32)(((u64)r + 1) * vocab / ranks);
		for (u32 row = 0; row < rows; row++)
			for (u32 i = begin; i < end; i++)
				parts[((size_t)r * rows + row) * share_max + i - begin] =
					want[(size_t)row * vocab + i] = check_uniform(c);
	}
	a.parts = device_upload(d, parts, (size_t)ranks * rows * share_max * sizeof(float));
	a.logits = device_alloc(d, (size_t)rows * vocab * sizeof(float));
	const char *problem = device_problem(d, d->device_ops.join_logits(&d->ctx, &a));
	if (!problem && memcmp(device_download(d, a.logits, (size_t)rows * vocab * sizeof(float)), want,
			       (size_t)rows * vocab * sizeof(float)) != 0)
		problem = "a logit of another place";
	a.share_max = (vocab + ranks - 1) / ranks - 1;
	if (!problem && d->device_ops.join_logits(&d->ctx, &a) != ERR_INVALID)
		problem = "a share that is too small was taken";
	device_case_end(d, problem, "join_logits ranks=%u rows=%u vocab=%u", ranks, rows, vocab);
}

/* Rows of several blocks, and of a block whose threads have several values. */
static void shared_rows(struct device *d)
{
	static const u32 tops[] = {0, 1, 20, 256};

	for (u32 shape = 0; shape <= MASKED; shape++) {
		sample_case(d, 5003, shape, 24, 24); /* a block a row */
		sample_case(d, 5003, shape, 6, 0);
		sample_case(d, 5003, shape, 6, 6);
		for (u32 kind = 0; kind < 12; kind++) /* alone, so that it has several blocks wherever this runs */
			sample_rows(d, kind % 2 ? 8192 : 11003, shape, 1, 1, kind);
		for (u32 i = 0; i < COUNT_OF(tops) && shape != 3 && shape != 4; i++) { /* without NaN */
			logprobs_case(d, 5003, tops[i], shape, 8, 8);
			logprobs_case(d, 11003, tops[i], shape, 1, 1);
		}
	}
	sample_case(d, 2000, NEAR, 24, 24); /* a list of several rounds */
	sample_case(d, 2000, NEAR, 23, 23);
	logprobs_case(d, 5003, 20, 2, 3, 0);
	logprobs_case(d, 50257, 20, 0, 3, 2); /* one more than there is room for */
	sample_case(d, 50257, 0, 6, 6);
	sample_case(d, 50257, PEAKED, 6, 5);
	for (u32 kind = 1; kind <= 4; kind++) {
		sample_rows(d, 128256, 0, 1, 1, kind);
		sample_rows(d, 128256, PEAKED, 2, 2, kind);
	}
	allowed_case(d, 5003);
	allowed_case(d, 8192);
}

void device_sampling(struct device *d)
{
	static const u32 vocabs[] = {1, 2, 5, 33, 1000};
	for (u32 v = 0; v < COUNT_OF(vocabs); v++) {
		logits_case(d, vocabs[v]);
		allowed_case(d, vocabs[v]);
		history_case(d, vocabs[v], 1 + 7 * v, 1);
		for (u32 shape = 0; shape <= MASKED; shape++)
			for (u32 rows = 0; rows <= 24; rows += 8) /* 8: in three groups */
				if (rows != 16)
					sample_case(d, vocabs[v], shape, 24, rows);
		for (u32 top = 0; top <= 20; top += 10)
			for (u32 rows = 0; rows <= 2; rows += 2)
				logprobs_case(d, vocabs[v], top, v % 2 ? 2 : 0, 2, rows);
	}
	history_case(d, 33, 0, 0);
	history_case(d, 700, 1200, 900); /* several a thread */
	history_case(d, 5, 40, 40);	 /* no outputs */
	join_logits_case(d, 1, 3, 5);
	join_logits_case(d, 2, 4, 1025);
	join_logits_case(d, 3, 1, 1000);
	join_logits_case(d, 8, 5, 2051); /* blocks that begin within a share */
	join_logits_case(d, 7, 2, 7);
	join_logits_case(d, 16, 2, 11); /* ranks that have no column */
	shared_rows(d);
}
