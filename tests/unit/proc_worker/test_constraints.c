/* Rows whose output a grammar constrains, on the demo's tokenizer: masks are followed from whatever the batch knows. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/constraints.h"
#include "tests/unit/proc_worker/step_builder.h"
#include "text/text.h"

enum { ROWS = 12 };

static const u32 EOS[] = {4092};

struct bench {
	struct constraints *constraints;
	struct batch_state *batch;
	struct mirror mirror;
	struct tokenizer *tokenizer;
	u32 words, vocab, random;
	const struct constraints_step *step; /* of the last one */
};

static struct bench *open_bench(const char *dir)
{
	struct bench *t = calloc(1, sizeof(*t));
	struct err_msg em;

	cr_assert_eq(tokenizer_load(&t->tokenizer, SOURCE_ROOT "/demo", &em), ERR_OK, "%s", em.text);
	t->vocab = 4096;
	t->words = (t->vocab + 31) / 32;
	struct batch_limits limits = {.rows_max = ROWS,
				      .tokens_max = 200,
				      .max_model_len = 200,
				      .block_size = 16,
				      .block_count = 200,
				      .vocab_size = t->vocab};
	struct constraints_config c = {
		.model_dir = dir, .rows_max = ROWS, .vocab = t->vocab, .eos_ids = EOS, .eos_count = 1};
	cr_assert_eq(batch_state_create(&t->batch, &limits, &em), ERR_OK);
	cr_assert_eq(constraints_create(&t->constraints, &c, &em), ERR_OK);
	mirror_init(&t->mirror, 16);
	t->random = 1;
	return t;
}

static void close_bench(struct bench *t)
{
	constraints_destroy(&t->constraints);
	batch_state_destroy(&t->batch);
	tokenizer_free(&t->tokenizer);
	free(t);
}

/* The prompt is token 5, and behind it `outputs`. */
static void add(struct bench *t, u32 row, u64 seq, u32 kind, const char *grammar, const u32 *outputs, u32 count,
		const struct sampling_params *params)
{
	static const u32 blocks[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
	u32 tokens[100] = {5};

	if (count)
		memcpy(tokens + 1, outputs, count * sizeof(u32));
	struct mirror_add a = {.row = row,
			       .seq = seq,
			       .tokens = tokens,
			       .token_count = 1 + count,
			       .prompt_count = 1,
			       .blocks = blocks,
			       .block_count = 12,
			       .params = params,
			       .grammar_kind = kind,
			       .grammar = grammar};
	mirror_add(&t->mirror, &a);
	mirror_run(&t->mirror, row, 1 + count);
}

static void apply(struct bench *t)
{
	struct err_msg em = {""};

	cr_assert_eq(batch_state_apply(t->batch, mirror_end(&t->mirror), &em), ERR_OK, "%s", em.text);
	constraints_begin(t->constraints, t->batch);
	t->step = constraints_finish(t->constraints);
}

static void commit(struct bench *t, const u32 *tokens)
{
	batch_state_commit(t->batch, tokens);
	mirror_commit(&t->mirror, tokens);
}

/* The mask of a row of the last step; NULL: it is free. */
static const u32 *mask(const struct bench *t, u32 row)
{
	for (u32 i = 0; i < t->batch->sample_count; i++)
		if (t->batch->sample_rows[i] == row)
			return t->step ? t->step->allowed[i] : NULL;
	return NULL;
}

static u32 allowed_count(const struct bench *t, const u32 *m)
{
	u32 n = 0;

	for (u32 i = 0; i < t->words; i++)
		n += (u32)__builtin_popcount(m[i]);
	return n;
}

static bool allows(const u32 *m, u32 id)
{
	return m[id / 32] >> id % 32 & 1;
}

/* Any of the allowed ones; of a free row token 7. */
static u32 pick(struct bench *t, const u32 *m)
{
	if (!m)
		return 7;
	u32 n = allowed_count(t, m);
	cr_assert(n > 0);
	t->random = t->random * 1103515245 + 12345;
	u32 at = (t->random >> 8) % n;
	for (u32 id = 0;; id++)
		if (allows(m, id) && at-- == 0)
			return id;
}

static void pick_all(struct bench *t, u32 *tokens)
{
	for (u32 i = 0; i < t->batch->sample_count; i++)
		tokens[i] = pick(t, mask(t, t->batch->sample_rows[i]));
}

static void expect_text(const struct bench *t, u32 row, const char *wanted)
{
	struct buf text = {0};
	u32 prompt = t->batch->rows[row].prompt_count;

	tokenizer_decode(t->tokenizer, batch_state_tokens(t->batch, row) + prompt, t->batch->known[row] - prompt, true, &text);
	cr_assert_str_eq(buf_cstr(&text), wanted);
	buf_fini(&text);
}

Test(constraints, a_row_says_what_its_grammar_does_and_then_ends)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	u32 tokens[ROWS];

	cr_assert_str_eq(constraints_problem(t->constraints), "");
	mirror_begin(&t->mirror);
	add(t, 0, 1, GRAMMAR_KIND_NONE, NULL, NULL, 0, NULL);
	add(t, 3, 2, GRAMMAR_REGEX, "ready, steady, go", NULL, 0, NULL);
	apply(t);
	for (u32 n = 0; n < 40 && !(allows(mask(t, 3), EOS[0])); n++) {
		cr_assert_null(mask(t, 0), "row 0 is free");
		pick_all(t, tokens);
		commit(t, tokens);
		mirror_begin(&t->mirror);
		apply(t);
	}
	expect_text(t, 3, "ready, steady, go");
	cr_assert_eq(allowed_count(t, mask(t, 3)), 1, "nothing but the end is left");
	close_bench(t);
}

Test(constraints, steps_without_grammars_cost_nothing)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");

	mirror_begin(&t->mirror);
	add(t, 0, 1, GRAMMAR_KIND_NONE, NULL, NULL, 0, NULL);
	apply(t);
	cr_assert_null(t->step);
	close_bench(t);
}

/* A row that comes again in another place with its outputs is where one is that was followed all along. */
Test(constraints, the_place_in_a_text_follows_from_the_outputs_alone)
{
	static const char schema[] = "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": "
				     "{\"type\": \"integer\"}}, \"required\": [\"name\", \"age\"]}";
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	u32 tokens[ROWS], outputs[60], count = 0;

	mirror_begin(&t->mirror);
	add(t, 2, 1, GRAMMAR_JSON_SCHEMA, schema, NULL, 0, NULL);
	apply(t);
	cr_assert_eq(t->step->compiled, 1);
	for (u32 n = 0; n < 24; n++) {
		u32 same = pick(t, mask(t, 2));
		if (same == EOS[0])
			break;
		for (u32 i = 0; i < ROWS; i++)
			tokens[i] = same;
		outputs[count++] = same;
		commit(t, tokens);
		mirror_begin(&t->mirror);
		if (n == 8)
			add(t, 4, 7, GRAMMAR_JSON_SCHEMA, schema, outputs, count, NULL);
		if (n == 16)
			mirror_drop(&t->mirror, 4);
		apply(t);
		cr_assert_eq(t->step->compiled, 0, "it is known by its source");
		for (u32 i = 0; i < t->batch->sample_count; i++)
			cr_assert_eq(memcmp(t->step->allowed[i], mask(t, 2), t->words * sizeof(u32)), 0,
				     "step %u, row %u", n, t->batch->sample_rows[i]);
	}
	cr_assert(count > 8);
	close_bench(t);
}

Test(constraints, what_cannot_be_compiled_or_followed_is_told_once_and_leaves_the_row_free)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	u32 tokens[ROWS] = {7, 7, 7}, wrong[] = {7, 7, 7};

	mirror_begin(&t->mirror);
	add(t, 0, 11, GRAMMAR_REGEX, "(a", NULL, 0, NULL);
	add(t, 1, 12, GRAMMAR_CHOICE, "[\"yes\", \"no\"]", wrong, 3, NULL);
	add(t, 2, 13, GRAMMAR_CHOICE, "[\"yes\", \"no\"]", NULL, 0, NULL);
	apply(t);
	cr_assert_eq(t->step->failure_count, 2);
	cr_assert_eq(t->step->failures[0].seq, 11);
	cr_assert(strstr(t->step->failures[0].text.text, "the grammar: "), "%s", t->step->failures[0].text.text);
	cr_assert_eq(t->step->failures[1].seq, 12);
	cr_assert(strstr(t->step->failures[1].text.text, "output 0, token 7: the grammar does not allow it"), "%s",
		  t->step->failures[1].text.text);
	cr_assert_null(mask(t, 0));
	cr_assert_null(mask(t, 1));
	cr_assert_not_null(mask(t, 2));
	tokens[2] = pick(t, mask(t, 2));
	commit(t, tokens);
	mirror_begin(&t->mirror);
	apply(t);
	cr_assert_eq(t->step->failure_count, 0);
	cr_assert_not_null(mask(t, 2));
	close_bench(t);
}

/* A step tells of CONSTRAINT_FAILURES_MAX rows: the others wait for the next one, and rows that are well are not among them. */
Test(constraints, many_failures_at_once_leave_the_rows_behind_them_alone)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	u32 tokens[ROWS];

	mirror_begin(&t->mirror);
	for (u32 row = 0; row < 10; row++)
		add(t, row, 11 + row, GRAMMAR_REGEX, "(a", NULL, 0, NULL);
	add(t, 10, 30, GRAMMAR_CHOICE, "[\"yes\", \"no\"]", NULL, 0, NULL);
	apply(t);
	cr_assert_eq(t->step->failure_count, CONSTRAINT_FAILURES_MAX);
	cr_assert_not_null(mask(t, 10));
	pick_all(t, tokens);
	commit(t, tokens);
	mirror_begin(&t->mirror);
	apply(t);
	cr_assert_eq(t->step->failure_count, 10 - CONSTRAINT_FAILURES_MAX);
	cr_assert_eq(t->step->failures[0].seq, 11 + CONSTRAINT_FAILURES_MAX);
	cr_assert_not_null(mask(t, 10));
	close_bench(t);
}

Test(constraints, below_its_least_length_a_row_ends_only_when_its_text_is_whole)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	struct sampling_params p;
	u32 tokens[ROWS];
	bool ended = false;

	sampling_params_default(&p);
	p.min_tokens = 12;
	p.max_tokens = 50;
	mirror_begin(&t->mirror);
	add(t, 0, 1, GRAMMAR_REGEX, "[a-z]*", NULL, 0, &p);
	add(t, 1, 2, GRAMMAR_REGEX, "(go)?", NULL, 0, &p);
	apply(t);
	for (u32 n = 0; n < 12; n++) {
		cr_assert(!allows(mask(t, 0), EOS[0]), "output %u", n);
		cr_assert(!allows(mask(t, 1), EOS[0]) || allowed_count(t, mask(t, 1)) == 1, "nothing else is left");
		ended = ended || allows(mask(t, 1), EOS[0]);
		pick_all(t, tokens);
		commit(t, tokens);
		mirror_begin(&t->mirror);
		apply(t);
	}
	cr_assert(allows(mask(t, 0), EOS[0]));
	cr_assert(ended, "what is whole ends, however short it is");
	close_bench(t);
}

Test(constraints, without_a_tokenizer_it_says_why)
{
	struct bench *t = open_bench("/nonexistent");

	cr_assert_str_eq(constraints_problem(t->constraints), "the folder of the model has no tokenizer");
	mirror_begin(&t->mirror);
	add(t, 0, 1, GRAMMAR_JSON_OBJECT, NULL, NULL, 0, NULL);
	apply(t);
	cr_assert_eq(t->step->failure_count, 1);
	cr_assert_null(mask(t, 0));
	close_bench(t);
}

Test(constraints, more_grammars_than_are_kept_take_turns)
{
	struct bench *t = open_bench(SOURCE_ROOT "/demo");
	char source[32];
	u32 tokens[1];

	for (u32 n = 0; n < 150; n++) {
		snprintf(source, sizeof(source), "[\"%u\"]", 1000 + n % 75);
		mirror_begin(&t->mirror);
		if (n)
			mirror_drop(&t->mirror, 0);
		add(t, 0, n + 1, GRAMMAR_CHOICE, source, NULL, 0, NULL);
		apply(t);
		cr_assert_eq(t->step->compiled, 1);
		tokens[0] = pick(t, mask(t, 0));
		commit(t, tokens);
	}
	close_bench(t);
}
