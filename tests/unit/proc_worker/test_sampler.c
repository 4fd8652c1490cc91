/* The sampler against plain arithmetic, on a batch state driven by the mirror. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/sampler.h"
#include "tests/unit/proc_worker/step_builder.h"

enum { VOCAB = 50, ROWS = 16 };

static const u32 EOS[] = {40, 41};

struct bench {
	struct batch_state *batch;
	struct sampler *sampler;
	struct mirror mirror;
	struct kern_ops ops;
	struct kern_ctx ctx;
	float logits[ROWS * VOCAB];
	u32 tokens[ROWS];
	const u32 *const *allowed; /* NULL: no row has a mask */
	struct sampler_logprobs lp;
	u32 lp_entry[ROWS], lp_count[ROWS], lp_rank[ROWS], lp_ids[ROWS * 21];
	f32 lp_values[ROWS * 21];
};

static struct bench *open_bench(void)
{
	struct bench *t = calloc(1, sizeof(*t));
	struct err_msg em;
	struct batch_limits limits = {.rows_max = ROWS,
				      .tokens_max = 200,
				      .max_model_len = 100,
				      .block_size = 16,
				      .block_count = 200,
				      .vocab_size = VOCAB};
	struct sampler_config config = {
		.rows_max = ROWS, .vocab = VOCAB, .max_model_len = 100, .eos_ids = EOS, .eos_count = 2};

	cr_assert_eq(batch_state_create(&t->batch, &limits, &em), ERR_OK);
	cr_assert_eq(sampler_create(&t->sampler, &config, &em), ERR_OK);
	mirror_init(&t->mirror, 16);
	kern_ops_init(&t->ops, 0);
	t->lp = (struct sampler_logprobs){.entry = t->lp_entry,
					  .count = t->lp_count,
					  .rank = t->lp_rank,
					  .ids = t->lp_ids,
					  .values = t->lp_values};
	return t;
}

static void close_bench(struct bench *t)
{
	sampler_destroy(&t->sampler);
	batch_state_destroy(&t->batch);
	free(t);
}

static void add(struct bench *t, u32 row, u64 seq, const u32 *tokens, u32 count,
		const struct sampling_params *p, const struct mirror_add *lists)
{
	struct mirror_add a = lists ? *lists : (struct mirror_add){0};
	static const u32 blocks[] = {1, 2, 3, 4, 5, 6, 7};

	a.row = row;
	a.seq = seq;
	a.tokens = tokens;
	a.token_count = count;
	a.prompt_count = a.prompt_count ? a.prompt_count : count;
	a.blocks = blocks;
	a.block_count = 7;
	a.params = p;
	mirror_add(&t->mirror, &a);
	mirror_run(&t->mirror, row, count);
}

/* Runs the step that is being built with the given logits for every row. */
static void sample(struct bench *t, const float *logits)
{
	struct err_msg em = {""};

	cr_assert_eq(batch_state_apply(t->batch, mirror_end(&t->mirror), &em), ERR_OK, "%s", em.text);
	for (u32 i = 0; i < t->batch->sample_count; i++)
		memcpy(t->logits + i * VOCAB, logits, VOCAB * sizeof(float));
	cr_assert_eq(sampler_run(t->sampler, &t->ops, &t->ctx, t->batch, t->allowed, t->logits, t->tokens, &t->lp, &em),
		     ERR_OK);
}

static void commit(struct bench *t)
{
	batch_state_commit(t->batch, t->tokens);
	mirror_commit(&t->mirror, t->tokens);
}

static struct sampling_params greedy(void)
{
	struct sampling_params p;

	sampling_params_default(&p);
	p.temperature = 0;
	return p;
}

/* Falling: 0 is the best, then 1, ... */
static const float *falling(void)
{
	static float logits[VOCAB];

	for (u32 i = 0; i < VOCAB; i++)
		logits[i] = 5 - 0.1f * (float)i;
	return logits;
}

Test(sampler, penalties_count_outputs_and_prompt_as_they_come)
{
	struct bench *t = open_bench();
	struct sampling_params p = greedy();
	const u32 prompt[] = {0, 7, 7};
	p.repetition_penalty = 2;
	p.frequency_penalty = 0.5f;
	p.presence_penalty = 0.25f;

	mirror_begin(&t->mirror);
	add(t, 3, 1, prompt, 3, &p, NULL);
	sample(t, falling());
	cr_assert_eq(t->tokens[0], 1, "0 is in the prompt: halved");
	cr_assert_float_eq(t->logits[0], 2.5, 1e-6);
	cr_assert_float_eq(t->logits[7], 4.3 / 2, 1e-6);
	commit(t);
	for (u32 i = 0; i < 2; i++) {
		mirror_begin(&t->mirror);
		sample(t, falling());
		t->tokens[0] = 2; /* whatever was drawn: 2 becomes an output twice */
		commit(t);
	}
	mirror_begin(&t->mirror);
	sample(t, falling());
	cr_assert_float_eq(t->logits[1], 4.9 / 2 - 0.5 - 0.25, 1e-5);
	cr_assert_float_eq(t->logits[2], 4.8 / 2 - 2 * 0.5 - 0.25, 1e-5);
	cr_assert_float_eq(t->logits[0], 2.5, 1e-6, "no output: only the repetition penalty");
	cr_assert_float_eq(t->logits[3], 4.7, 1e-5);
	commit(t);
	close_bench(t);
}

Test(sampler, a_row_with_a_new_owner_forgets_the_old_one)
{
	struct bench *t = open_bench();
	struct sampling_params p = greedy();
	const u32 first[] = {0, 1, 2}, second[] = {9};
	p.repetition_penalty = 2;

	mirror_begin(&t->mirror);
	add(t, 0, 1, first, 3, &p, NULL);
	sample(t, falling());
	cr_assert_eq(t->tokens[0], 3);
	commit(t);
	mirror_begin(&t->mirror);
	mirror_drop(&t->mirror, 0);
	add(t, 0, 2, second, 1, &p, NULL);
	sample(t, falling());
	cr_assert_eq(t->tokens[0], 0);
	cr_assert_float_eq(t->logits[9], 4.1 / 2, 1e-6);
	cr_assert_float_eq(t->logits[2], 4.8, 1e-5);
	commit(t);
	close_bench(t);
}

Test(sampler, outputs_of_an_earlier_life_count_as_outputs)
{
	struct bench *t = open_bench();
	struct sampling_params p = greedy();
	const u32 tokens[] = {5, 0, 0, 1};
	p.frequency_penalty = 1;
	struct mirror_add lists = {.prompt_count = 2};

	mirror_begin(&t->mirror);
	add(t, 0, 1, tokens, 4, &p, &lists);
	sample(t, falling());
	cr_assert_float_eq(t->logits[0], 4, 1e-6, "once in the prompt, once an output");
	cr_assert_float_eq(t->logits[1], 3.9, 1e-5);
	cr_assert_float_eq(t->logits[5], 4.5, 1e-5);
	commit(t);
	close_bench(t);
}

Test(sampler, bias_moves_the_choice)
{
	struct bench *t = open_bench();
	struct sampling_params p = greedy();
	const u32 prompt[] = {30};
	struct mirror_add lists = {
		.bias_ids = (u32[]){0, 17}, .bias_values = (f32[]){-100, 3}, .bias_count = 2};

	mirror_begin(&t->mirror);
	add(t, 0, 1, prompt, 1, &p, &lists);
	add(t, 1, 2, prompt, 1, &p, NULL);
	sample(t, falling());
	cr_assert_eq(t->tokens[0], 17);
	cr_assert_eq(t->tokens[1], 0);
	commit(t);
	close_bench(t);
}

/* Logits in which the end-of-sequence ids win, then the stop id 12, then 13. */
static const float *ending(void)
{
	static float logits[VOCAB];

	memset(logits, 0, sizeof(logits));
	logits[40] = 9;
	logits[41] = 8;
	logits[12] = 7;
	logits[13] = 6;
	return logits;
}

Test(sampler, ends_are_masked_until_the_least_length)
{
	struct bench *t = open_bench();
	struct sampling_params p = greedy(), ignoring = greedy();
	const u32 prompt[] = {30};
	struct mirror_add lists = {.stop_ids = (u32[]){12}, .stop_count = 1};
	p.min_tokens = 2;
	ignoring.min_tokens = 2;
	ignoring.flags |= SAMPLING_IGNORE_EOS;

	mirror_begin(&t->mirror);
	add(t, 0, 1, prompt, 1, &p, &lists);
	add(t, 1, 2, prompt, 1, &ignoring, &lists);
	for (u32 i = 0; i < 3; i++) {
		if (i)
			mirror_begin(&t->mirror);
		sample(t, ending());
		cr_assert_eq(t->tokens[0], i < 2 ? 13 : 40, "output %u", i);
		cr_assert_eq(t->tokens[1], 40, "ids that do not end it are not masked");
		commit(t);
	}
	close_bench(t);
}

static double log_softmax(const float *logits, u32 id)
{
	double sum = 0;

	for (u32 i = 0; i < VOCAB; i++)
		sum += exp((double)logits[i]);
	return (double)logits[id] - log(sum);
}

/* More rows with a penalty than there are places for unchanged logits. */
Test(sampler, logprobs_are_those_of_the_unchanged_logits)
{
	struct bench *t = open_bench();
	const u32 prompt[] = {0, 1};
	struct sampling_params p[ROWS];

	mirror_begin(&t->mirror);
	for (u32 i = 0; i < ROWS; i++) {
		p[i] = greedy();
		p[i].logprobs = i % 8 == 6 ? -1 : (i32)(i % 4);
		if (i != 4)
			p[i].repetition_penalty = 3;
		add(t, i, i + 1, prompt, 2, &p[i], NULL);
	}
	sample(t, falling());
	u32 entry = 0, at = 0;
	for (u32 i = 0; i < ROWS; i++) {
		u32 token = i != 4 ? 2 : 0;
		cr_assert_eq(t->tokens[i], token);
		if (p[i].logprobs < 0)
			continue;
		cr_assert_eq(t->lp_entry[entry], i);
		cr_assert_eq(t->lp_count[entry], p[i].logprobs + 1);
		cr_assert_eq(t->lp_rank[entry], token + 1);
		cr_assert_eq(t->lp_ids[at], token);
		cr_assert_float_eq(t->lp_values[at], log_softmax(falling(), token), 1e-5);
		for (u32 j = 0; j < (u32)p[i].logprobs; j++) {
			cr_assert_eq(t->lp_ids[at + 1 + j], j);
			cr_assert_float_eq(t->lp_values[at + 1 + j], log_softmax(falling(), j), 1e-5);
		}
		at += t->lp_count[entry++];
	}
	cr_assert_eq(t->lp.entries, entry);
	cr_assert_eq(t->lp.id_count, at);
	commit(t);
	close_bench(t);
}

Test(sampler, a_seed_gives_the_same_tokens_whatever_shares_the_batch)
{
	struct sampling_params p, other;
	const u32 prompt[] = {3, 4};
	u32 alone[20], together[20];
	sampling_params_default(&p);
	p.seed = 99;
	other = p;
	other.seed = 7;

	for (u32 round = 0; round < 2; round++) {
		struct bench *t = open_bench();
		u32 at = round ? 2 : 0;
		mirror_begin(&t->mirror);
		if (round) {
			add(t, 1, 50, prompt, 1, &other, NULL);
			add(t, 2, 51, prompt, 2, &other, NULL);
		}
		add(t, 9, 1, prompt, 2, &p, NULL);
		for (u32 i = 0; i < 20; i++) {
			if (i)
				mirror_begin(&t->mirror);
			sample(t, falling());
			(round ? together : alone)[i] = t->tokens[at];
			commit(t);
		}
		close_bench(t);
	}
	cr_assert_arr_eq(alone, together, sizeof(alone));
	u32 different = 0;
	for (u32 i = 1; i < 20; i++)
		different += alone[i] != alone[0];
	cr_assert_gt(different, 10, "the position is part of the key");
}

/* A row with one token to run. */
static void add_decoding(struct bench *t, u32 row, u64 seq, const u32 *tokens, u32 count, const struct sampling_params *p)
{
	static const u32 blocks[] = {1, 2, 3, 4, 5, 6, 7};
	struct mirror_add a = {.row = row,
			       .seq = seq,
			       .tokens = tokens,
			       .token_count = count,
			       .prompt_count = count,
			       .computed = count - 1,
			       .blocks = blocks,
			       .block_count = 7,
			       .params = p};
	mirror_add(&t->mirror, &a);
}

static struct bench *open_drafting(void)
{
	struct bench *t = open_bench();
	struct batch_limits limits = t->batch->limits;
	struct err_msg em;

	limits.draft_max = 4;
	limits.draft_rows = 2;
	batch_state_destroy(&t->batch);
	cr_assert_eq(batch_state_create(&t->batch, &limits, &em), ERR_OK);
	return t;
}

/* The step's only row says `count` tokens, the drafts and one more, or each in a step of its own; then one step more. */
static void say(struct bench *t, const u32 *said, u32 count, bool at_once, float logits[][VOCAB])
{
	static const u32 prompt[] = {0, 7, 7, 3};
	struct sampling_params p = greedy();
	struct err_msg em = {""};

	p.repetition_penalty = 2;
	p.frequency_penalty = 0.5f;
	p.presence_penalty = 0.25f;
	p.min_tokens = 3;
	p.logprobs = 1;
	for (u32 at = 0; at <= count; at += at_once && at == 0 ? count : 1) {
		mirror_begin(&t->mirror);
		if (at == 0)
			add_decoding(t, 3, 1, prompt, 4, &p);
		cr_assert_eq(batch_state_apply(t->batch, mirror_end(&t->mirror), &em), ERR_OK, "%s", em.text);
		if (at_once && at == 0) {
			batch_state_draft(t->batch, 3, said, count - 1);
			batch_state_drafts_end(t->batch);
		}
		u32 samples = t->batch->sample_count;
		for (u32 i = 0; i < samples; i++)
			memcpy(t->logits + i * VOCAB, falling(), VOCAB * sizeof(float));
		cr_assert_eq(sampler_run(t->sampler, &t->ops, &t->ctx, t->batch, NULL, t->logits, t->tokens, &t->lp, &em), ERR_OK);
		memcpy(logits[at], t->logits, samples * VOCAB * sizeof(float));
		memcpy(t->tokens, said + at, (at == count ? 0 : samples) * sizeof(u32));
		commit(t);
		for (u32 i = 1; i < samples; i++) {
			struct mirror_row *r = &t->mirror.rows[3];
			r->tokens[r->known++] = said[i];
			r->computed++;
		}
	}
}

Test(sampler, behind_drafts_penalties_and_least_lengths_are_those_of_single_steps)
{
	static const u32 said[] = {2, 9, 2, 7, 5};
	float single[6][VOCAB], drafted[6][VOCAB];
	struct bench *t = open_drafting(), *other = open_drafting();

	say(t, said, 5, false, single);
	say(other, said, 5, true, drafted);
	for (u32 i = 0; i < 6; i++)
		cr_assert_eq(memcmp(single[i], drafted[i], sizeof(single[i])), 0, "output %u", i);
	cr_assert_eq(single[2][EOS[0]], -INFINITY);
	cr_assert_neq(single[3][EOS[0]], -INFINITY);
	close_bench(t);
	close_bench(other);
}

Test(sampler, penalties_forget_drafts_that_did_not_come_true)
{
	struct bench *t = open_drafting();
	struct sampling_params p = greedy();
	const u32 prompt[] = {0, 7};
	struct err_msg em = {""};
	p.frequency_penalty = 0.5f;
	p.presence_penalty = 0.25f;

	mirror_begin(&t->mirror);
	add_decoding(t, 3, 1, prompt, 2, &p);
	cr_assert_eq(batch_state_apply(t->batch, mirror_end(&t->mirror), &em), ERR_OK, "%s", em.text);
	batch_state_draft(t->batch, 3, (const u32[]){7, 9, 9}, 3);
	batch_state_drafts_end(t->batch);
	for (u32 i = 0; i < 4; i++)
		memcpy(t->logits + i * VOCAB, falling(), VOCAB * sizeof(float));
	cr_assert_eq(sampler_run(t->sampler, &t->ops, &t->ctx, t->batch, NULL, t->logits, t->tokens, &t->lp, &em), ERR_OK);
	cr_assert_float_eq(t->logits[3 * VOCAB + 9], 4.1 - 2 * 0.5 - 0.25, 1e-5);
	t->batch->sample_count = 1; /* as batch_state_accept leaves it */
	t->tokens[0] = 1;
	commit(t);
	mirror_begin(&t->mirror);
	sample(t, falling());
	cr_assert_float_eq(t->logits[1], 4.9 - 0.5 - 0.25, 1e-5);
	cr_assert_float_eq(t->logits[7], 4.3, 1e-5, "the prompt's");
	cr_assert_float_eq(t->logits[9], 4.1, 1e-5);
	commit(t);
	close_bench(t);
}
