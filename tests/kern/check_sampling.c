/* Checks of logits, sample and logprobs against plain implementations: a full sort, libm, and a Philox
 * written anew. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kern/check.h"

/* ---------------------------------------------------------------- logits */

/* Two rows with a set of allowed ids and one without; a set may hold ids behind the vocabulary, whose bits say nothing. */
static void allowed_case(struct check *c, u32 target, u32 vocab)
{
	enum { ROWS = 3 };
	u32 words = (vocab + 31) / 32, masked = vocab / 2;
	u32 *allowed = check_alloc(c, (size_t)ROWS * words * sizeof(u32));
	float *logits = check_floats(c, ROWS * vocab, true);
	double *want = check_alloc(c, (size_t)ROWS * vocab * sizeof(double));
	struct kern_logits_row rows[ROWS];
	struct kern_logits_args a = {.rows = rows, .row_count = ROWS, .vocab = vocab};
	struct kern_limits limits = {.vocab = vocab, .rows = ROWS};
	struct kern_ctx ctx;

	for (u32 i = 0; i < ROWS * words; i++)
		allowed[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? UINT32_MAX : check_random(c, UINT32_MAX);
	for (u32 r = 0; r < ROWS; r++) {
		rows[r] = (struct kern_logits_row){.logits = logits + (size_t)r * vocab,
						   .repetition_penalty = 1,
						   .masked_ids = &masked,
						   .masked_count = 1,
						   .allowed = r == 1 ? NULL : allowed + (size_t)r * words};
		for (u32 i = 0; i < vocab; i++) {
			bool stays = i != masked && (!rows[r].allowed || rows[r].allowed[i / 32] >> i % 32 & 1);
			want[r * vocab + i] = stays ? (double)rows[r].logits[i] : -INFINITY;
		}
	}
	check_ctx(c, &ctx, &limits, 1);
	const char *problem = c->targets[target].ops.logits(&ctx, &a) == ERR_OK ? NULL : "an error";
	if (!problem)
		problem = check_close(logits, want, NULL, ROWS * vocab, 0);
	check_case_end(c, problem, "logits=%s allowed vocab=%u", c->targets[target].ops.logits_variant, vocab);
}

static void logits_case(struct check *c, u32 target, u32 vocab)
{
	float *logits = check_floats(c, vocab, true), *before = check_alloc(c, vocab * 4);
	double *want = check_alloc(c, vocab * sizeof(double)), *size = check_alloc(c, vocab * sizeof(double));
	u32 seen_ids[] = {vocab - 1, 0, vocab / 2}, seen_outputs[] = {3, 0, 1};
	u32 bias_ids[] = {0, vocab - 1, vocab}, masked[] = {vocab / 3, vocab + 7};
	const float bias[] = {2.5f, -100, 1};
	struct kern_logits_row row = {.logits = logits,
				      .repetition_penalty = 1.3f,
				      .presence_penalty = 0.7f,
				      .frequency_penalty = -0.2f,
				      .seen_ids = seen_ids,
				      .seen_outputs = seen_outputs,
				      .bias_ids = bias_ids,
				      .bias_values = bias,
				      .bias_count = 3};
	struct kern_logits_args a = {.rows = &row, .row_count = 1, .vocab = vocab};
	struct kern_limits limits = {.vocab = vocab, .rows = 1};
	struct kern_ctx ctx;
	const char *problem = NULL;
	row.seen_count = vocab >= 3 ? 3 : 1;
	row.masked_ids = masked;
	row.masked_count = vocab >= 9 ? 2 : 0;
	memcpy(before, logits, vocab * 4);
	for (u32 i = 0; i < vocab; i++)
		want[i] = before[i];
	want[0] += 2.5;
	want[vocab - 1] += -100;
	/* what is added up, times the penalty: four roundings of floats of that size */
	for (u32 i = 0; i < vocab; i++)
		size[i] = 1.3 * (fabs((double)before[i]) + (i == 0 ? 2.5 : 0) + (i == vocab - 1 ? 100 : 0)) + 1.1;
	for (u32 i = 0; i < row.seen_count; i++) {
		double *x = &want[seen_ids[i]];
		*x = *x > 0 ? *x / 1.3f : *x * 1.3f;
		*x -= seen_outputs[i] > 0 ? -0.2f * seen_outputs[i] + 0.7f : 0;
	}
	if (row.masked_count)
		want[vocab / 3] = -INFINITY;
	check_ctx(c, &ctx, &limits, 1);
	if (c->targets[target].ops.logits(&ctx, &a) != ERR_OK)
		problem = "an error";
	if (!problem)
		problem = check_close(logits, want, size, vocab, 4 * 0x1p-24);
	check_case_end(c, problem, "logits=%s vocab=%u", c->targets[target].ops.logits_variant, vocab);
}

/* ---------------------------------------------------------------- sample */

struct candidate {
	float logit;
	u32 id;
	double p;
};

static int by_logit(const void *pa, const void *pb)
{
	const struct candidate *a = pa, *b = pb;
	if (a->logit != b->logit)
		return a->logit > b->logit ? -1 : 1;
	return a->id < b->id ? -1 : 1;
}

static u32 philox_word(u32 position, u32 id, u64 seed)
{
	u32 x[4] = {position, id / 4, 0, 0}, key[2] = {(u32)seed, (u32)(seed >> 32)};
	for (int round = 0; round < 10; round++) {
		u64 m0 = 0xD2511F53ull * x[0], m1 = 0xCD9E8D57ull * x[2];
		u32 y[4] = {(u32)(m1 >> 32) ^ x[1] ^ key[0], (u32)m1, (u32)(m0 >> 32) ^ x[3] ^ key[1],
			    (u32)m0};
		memcpy(x, y, sizeof(x));
		key[0] += 0x9E3779B9;
		key[1] += 0xBB67AE85;
	}
	return x[id % 4];
}

/* The token by sorting. `doubtful` is set where rounding could decide: a cut or a win by less than 1e-9. */
static u32 sample_want(const struct kern_sample_row *row, u32 vocab, bool *doubtful)
{
	struct candidate *all = malloc(vocab * sizeof(*all));
	u32 count = vocab, best;
	double total = 0, mass = 0, best_score = -INFINITY;
	for (u32 i = 0; i < vocab; i++)
		all[i] = (struct candidate){isnan(row->logits[i]) ? -INFINITY : row->logits[i], i, 0};
	qsort(all, vocab, sizeof(*all), by_logit);
	best = all[0].id;
	*doubtful = false;
	if (row->temperature > 0 && all[0].logit > -INFINITY) {
		if (row->top_k > 0 && row->top_k < count)
			count = row->top_k;
		for (u32 i = 0; i < count; i++)
			total += all[i].p = exp(((double)all[i].logit - all[0].logit) / row->temperature);
		for (u32 i = 0; i < count && row->top_p < 1; i++) {
			mass += all[i].p;
			*doubtful |= fabs(mass / total - row->top_p) < 1e-6;
			if (mass >= row->top_p * total)
				count = i + 1;
		}
		for (u32 i = 0; i < count; i++) {
			double u = (philox_word(row->position, all[i].id, row->seed) + 0.5) * 0x1p-32;
			double score =
				((double)all[i].logit - all[0].logit) / row->temperature - log(-log(u));
			*doubtful |= fabs(score - best_score) < 1e-9 ||
				     (row->min_p > 0 && fabs(all[i].p - row->min_p) < 1e-9);
			if (all[i].p < row->min_p || score <= best_score)
				continue;
			best_score = score;
			best = all[i].id;
		}
	}
	free(all);
	return best;
}

static void sample_case(struct check *c, u32 target, u32 vocab, u32 shape)
{
	enum { ROWS = 24 };
	struct kern_sample_row rows[ROWS];
	struct kern_sample_args a = {.rows = rows, .row_count = ROWS, .vocab = vocab};
	struct kern_limits limits = {.vocab = vocab, .rows = ROWS};
	struct kern_ctx ctx;
	u32 tokens[CHECK_RUNS][ROWS], alone;
	const char *problem = NULL;
	char text[200];
	for (u32 r = 0; r < ROWS; r++) {
		float *logits = check_alloc(c, vocab * 4);
		check_sample_logits(c, logits, vocab, shape, 3e38f);
		rows[r].logits = logits;
		check_sample_params(c, &rows[r], vocab, r);
	}
	for (u32 run = 0; run < CHECK_RUNS && !problem; run++) {
		check_ctx(c, &ctx, &limits, run % CHECK_POOLS);
		a.tokens = tokens[run];
		if (c->targets[target].ops.sample(&ctx, &a) != ERR_OK)
			problem = "an error";
		else if (memcmp(tokens[0], tokens[run], sizeof(tokens[0])) != 0)
			problem = "another run gives other tokens";
	}
	a.tokens = tokens[1];
	c->targets[0].ops.sample(&ctx, &a);
	if (!problem && memcmp(tokens[0], tokens[1], sizeof(tokens[0])) != 0)
		problem = "other tokens than the reference's";
	for (u32 r = 0; r < ROWS && !problem; r++) {
		struct kern_sample_args one = {
			.rows = &rows[r], .tokens = &alone, .row_count = 1, .vocab = vocab};
		bool doubtful;
		u32 want = sample_want(&rows[r], vocab, &doubtful);
		c->targets[target].ops.sample(&ctx, &one);
		if (alone != tokens[0][r])
			problem = "a row alone gives another token";
		else if (want != alone && !doubtful) {
			snprintf(text, sizeof(text),
				 "row %u (temperature %g top_k %u top_p %g min_p %g) gives %u, should be %u",
				 r, (double)rows[r].temperature, rows[r].top_k, (double)rows[r].top_p,
				 (double)rows[r].min_p, alone, want);
			problem = text;
		}
	}
	check_case_end(c, problem, "sample=%s vocab=%u shape=%u", c->targets[target].ops.sample_variant,
		       vocab, shape);
}

/* ---------------------------------------------------------------- logprobs */

static void logprobs_case(struct check *c, u32 target, u32 vocab, u32 top, bool ties)
{
	enum { ROWS = 3 };
	struct kern_logprobs_row rows[ROWS];
	struct kern_logprobs_args a = {.rows = rows, .row_count = ROWS, .vocab = vocab};
	struct kern_limits limits = {.vocab = vocab, .rows = ROWS};
	struct kern_ctx ctx;
	const double error = 3e-5;
	struct candidate *all = malloc(vocab * sizeof(*all));
	const char *problem = NULL;
	for (u32 r = 0; r < ROWS; r++) {
		float *logits = check_floats(c, vocab, true);
		for (u32 i = 0; i < vocab && ties; i++)
			logits[i] = (float)(int)(logits[i] * 3);
		rows[r] = (struct kern_logprobs_row){logits,
						     check_random(c, vocab),
						     top,
						     check_alloc(c, (1 + top) * 4),
						     check_alloc(c, (1 + top) * 4),
						     check_alloc(c, 4)};
	}
	check_ctx(c, &ctx, &limits, 1);
	if (c->targets[target].ops.logprobs(&ctx, &a) != ERR_OK)
		problem = "an error";
	for (u32 r = 0; r < ROWS && !problem; r++) {
		double total = 0, want[64], size[64];
		u32 rank = 0;
		for (u32 i = 0; i < vocab; i++)
			all[i] = (struct candidate){rows[r].logits[i], i, 0};
		qsort(all, vocab, sizeof(*all), by_logit);
		for (u32 i = 0; i < vocab; i++) {
			total += exp((double)all[i].logit - all[0].logit);
			rank = all[i].id == rows[r].token ? i + 1 : rank;
		}
		want[0] = rows[r].logits[rows[r].token] - all[0].logit - log(total);
		for (u32 i = 0; i < top && i < vocab; i++) {
			want[i + 1] = (double)all[i].logit - all[0].logit - log(total);
			if (rows[r].ids[i + 1] != all[i].id)
				problem = "another order of the best";
		}
		if (rows[r].ids[0] != rows[r].token || *rows[r].rank != rank)
			problem = "another token or rank";
		for (u32 i = 0; i <= top && i <= vocab; i++)
			size[i] = 1 + fabs(want[i]) * 0x1p-23 / error; /* a value of hundreds is a float, too */
		if (!problem)
			problem = check_close(rows[r].values, want, size, 1 + (top < vocab ? top : vocab), error);
	}
	free(all);
	check_case_end(c, problem, "logprobs=%s vocab=%u top=%u ties=%d",
		       c->targets[target].ops.logprobs_variant, vocab, top, ties);
}

void check_sampling(struct check *c)
{
	static const u32 vocabs[] = {1, 2, 5, 16, 33, 100, 1000, 4099};
	for (u32 i = 0; i < c->target_count; i++)
		for (u32 v = 0; v < COUNT_OF(vocabs); v++) {
			if (CHECK_DISTINCT(c, i, logits)) {
				logits_case(c, i, vocabs[v]);
				allowed_case(c, i, vocabs[v]);
			}
			for (u32 shape = 0; shape < 6 && CHECK_DISTINCT(c, i, sample); shape++)
				sample_case(c, i, vocabs[v], shape);
			for (u32 top = 0; top <= 20 && CHECK_DISTINCT(c, i, logprobs); top += 5)
				logprobs_case(c, i, vocabs[v], top, v % 2);
		}
}
