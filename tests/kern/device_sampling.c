/* Checks of the device's logits, soft_cap, sample and logprobs: tokens and logits are the reference's to the
 * bit. */
#include <math.h>
#include <string.h>

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
	device_case_end(d, problem, "logits vocab=%u", vocab);
}

static void sample_case(struct device *d, u32 vocab, u32 shape, u32 count)
{
	enum { ROWS_MAX = 24 };
	struct kern_sample_row rows[ROWS_MAX], device_rows[ROWS_MAX];
	u32 want[ROWS_MAX];
	struct kern_sample_args a = {.row_count = count, .vocab = vocab}, r = a;
	for (u32 i = 0; i < count; i++) {
		float *logits = check_alloc(&d->check, vocab * sizeof(float));
		check_sample_logits(&d->check, logits, vocab, shape, INFINITY);
		rows[i].logits = logits;
		check_sample_params(&d->check, &rows[i], vocab, i + vocab);
		device_rows[i] = rows[i];
		device_rows[i].logits = device_upload(d, logits, vocab * sizeof(float));
	}
	a.rows = device_upload(d, device_rows, count * sizeof(rows[0]));
	a.tokens = device_alloc(d, count * sizeof(u32));
	r.rows = rows;
	r.tokens = want;
	const char *problem = device_problem(d, d->ops.sample(&d->ctx, &a));
	(void)d->ref.sample(&d->ref_ctx, &r);
	if (!problem &&
	    memcmp(device_download(d, a.tokens, count * sizeof(u32)), want, count * sizeof(u32)) != 0)
		problem = "other tokens than the reference's";
	device_case_end(d, problem, "sample vocab=%u shape=%u rows=%u", vocab, shape, count);
}

static void logprobs_case(struct device *d, u32 vocab, u32 top, bool ties)
{
	enum { ROWS = 2, TOP_MAX = 20 };
	struct kern_logprobs_row rows[ROWS], device_rows[ROWS];
	u32 ids[ROWS][TOP_MAX + 1], rank[ROWS];
	float values[ROWS][TOP_MAX + 1];
	const u32 count = 1 + (top < vocab ? top : vocab);
	struct kern_logprobs_args a = {.row_count = ROWS, .vocab = vocab}, ref = a;
	for (u32 r = 0; r < ROWS; r++) {
		float *logits = check_floats(&d->check, vocab, true);
		for (u32 i = 0; i < vocab && ties; i++)
			logits[i] = (float)(int)(logits[i] * 3);
		rows[r] = (struct kern_logprobs_row){.logits = logits,
						     .token = check_random(&d->check, vocab),
						     .top = top,
						     .ids = ids[r],
						     .values = values[r],
						     .rank = &rank[r]};
		device_rows[r] = rows[r];
		device_rows[r].logits = device_upload(d, logits, vocab * sizeof(float));
		device_rows[r].ids = device_alloc(d, count * sizeof(u32));
		device_rows[r].values = device_alloc(d, count * sizeof(float));
		device_rows[r].rank = device_alloc(d, sizeof(u32));
	}
	a.rows = device_upload(d, device_rows, sizeof(device_rows));
	ref.rows = rows;
	const char *problem = device_problem(d, d->ops.logprobs(&d->ctx, &a));
	(void)d->ref.logprobs(&d->ref_ctx, &ref);
	for (u32 r = 0; r < ROWS && !problem; r++) {
		if (memcmp(device_download(d, device_rows[r].ids, count * sizeof(u32)), ids[r],
			   count * sizeof(u32)))
			problem = "another order of the best";
		else if (*(u32 *)device_download(d, device_rows[r].rank, sizeof(u32)) != rank[r])
			problem = "another rank";
		else
			problem =
				device_close(device_download(d, device_rows[r].values, count * sizeof(float)),
					     values[r], count, 1e-6, 3e-5);
	}
	device_case_end(d, problem, "logprobs vocab=%u top=%u ties=%d", vocab, top, ties);
}

void device_sampling(struct device *d)
{
	static const u32 vocabs[] = {1, 2, 5, 33, 1000};
	for (u32 v = 0; v < COUNT_OF(vocabs); v++) {
		logits_case(d, vocabs[v]);
		for (u32 shape = 0; shape < 6; shape++)
			sample_case(d, vocabs[v], shape, 24);
		for (u32 top = 0; top <= 20; top += 10)
			logprobs_case(d, vocabs[v], top, v % 2);
	}
	/* More threads a row, and more ids than a thread takes at once. */
	sample_case(d, 5003, 0, 6);
	sample_case(d, 5003, 2, 6);
	sample_case(d, 4500, 3, 5);
	logprobs_case(d, 5003, 20, true);
}
