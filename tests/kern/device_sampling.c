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

void device_sampling(struct device *d)
{
	static const u32 vocabs[] = {1, 2, 5, 33, 1000};
	for (u32 v = 0; v < COUNT_OF(vocabs); v++) {
		logits_case(d, vocabs[v]);
		allowed_case(d, vocabs[v]);
		history_case(d, vocabs[v], 1 + 7 * v, 1);
		for (u32 shape = 0; shape < 6; shape++)
			sample_case(d, vocabs[v], shape, 24);
		for (u32 top = 0; top <= 20; top += 10)
			logprobs_case(d, vocabs[v], top, v % 2);
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
	/* More threads a row, and more ids than a thread takes at once. */
	sample_case(d, 5003, 0, 6);
	sample_case(d, 5003, 2, 6);
	sample_case(d, 4500, 3, 5);
	logprobs_case(d, 5003, 20, true);
}
