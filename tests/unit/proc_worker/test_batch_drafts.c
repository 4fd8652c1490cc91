/* Drafts of a step: who has room for them, which samples stay, and what the batch is then. */
#include "proc_worker/inputs.h"
#include "tests/unit/proc_worker/batch_fixture.h"

static struct batch_state *create_with(u32 draft_max, u32 draft_rows, u32 draft_share, u32 draft_end)
{
	struct batch_limits limits = LIMITS;
	struct batch_state *b;
	struct err_msg em;

	limits.draft_max = draft_max;
	limits.draft_rows = draft_rows;
	limits.draft_share = draft_share;
	limits.draft_end = draft_end;
	cr_assert_eq(batch_state_create(&b, &limits, &em), ERR_OK);
	return b;
}

/* Rows 0, 1, ... of `count` tokens each, all but the last of them computed. */
static void add_rows(struct mirror *m, u32 rows, u32 tokens, u32 blocks, const struct sampling_params *p)
{
	for (u32 row = 0; row < rows; row++) {
		struct mirror_add a = prompt(row, row + 1, tokens, blocks);
		a.computed = tokens - 1;
		a.params = p;
		mirror_add(m, &a);
	}
}

static void apply(struct mirror *m, struct batch_state *b)
{
	struct err_msg em = {{0}};

	cr_assert_eq(batch_state_apply(b, mirror_end(m), &em), ERR_OK, "%s", em.text);
}

static struct sampling_params defaults(void)
{
	struct sampling_params p;

	sampling_params_default(&p);
	return p;
}

/* The room of row 0 of `rows` with six tokens. */
static u32 room(struct batch_state *b, u32 rows, u32 blocks, const struct sampling_params *p)
{
	struct mirror *m = mirror();

	mirror_begin(m);
	add_rows(m, rows, 6, blocks, p);
	apply(m, b);
	u32 n = batch_state_draft_room(b, 0);
	batch_state_destroy(&b);
	return n;
}

Test(batch_drafts, nobody_has_room_unless_the_limits_say_so)
{
	struct sampling_params p = defaults();

	cr_assert_eq(room(create(), 1, 5, &p), 0);
}

Test(batch_drafts, room_is_the_least_of_all_limits)
{
	struct sampling_params p = defaults(), few = p, beam = p;

	p.max_tokens = 50;
	cr_assert_eq(room(create_with(5, 16, 0, 0), 1, 10, &p), 5, "of a row");
	cr_assert_eq(room(create_with(5, 16, 0, 0), 1, 2, &p), 2, "blocks of 8 tokens, 6 of which run");
	few.max_tokens = 3;
	cr_assert_eq(room(create_with(5, 16, 0, 0), 1, 10, &few), 2, "three outputs: two behind the one that is due");
	few.max_tokens = 1;
	cr_assert_eq(room(create_with(5, 16, 0, 0), 1, 10, &few), 0);
	cr_assert_eq(room(create_with(5, 3, 0, 0), 3, 10, &p), 5);
	cr_assert_eq(room(create_with(5, 3, 0, 0), 4, 10, &p), 0, "more rows than get drafts");
	cr_assert_eq(room(create_with(5, 16, 16, 0), 2, 10, &p), 5);
	cr_assert_eq(room(create_with(5, 16, 16, 0), 4, 10, &p), 3, "four rows share sixteen tokens");
	cr_assert_eq(room(create_with(5, 16, 16, 0), 9, 10, &p), 0);
	cr_assert_eq(room(create_with(5, 16, 0, 9), 1, 10, &p), 3, "positions 6, 7 and 8");
	cr_assert_eq(room(create_with(5, 16, 0, 6), 1, 10, &p), 0);
	cr_assert_eq(room(create_with(5, 16, 0, 5), 1, 10, &p), 5, "it is behind that already");
	beam.beam_width = 2;
	beam.temperature = 0;
	cr_assert_eq(room(create_with(5, 16, 0, 0), 1, 10, &beam), 0);
}

Test(batch_drafts, the_context_and_the_budget_end_the_room)
{
	struct batch_state *b = create_with(5, 16, 0, 0);
	struct mirror *m = mirror();
	u32 tokens[100], blocks[25];
	struct sampling_params p = defaults();

	p.max_tokens = 1000;
	for (u32 i = 0; i < 100; i++)
		tokens[i] = i;
	for (u32 i = 0; i < 25; i++)
		blocks[i] = i;
	mirror_begin(m);
	struct mirror_add a = {.row = 0, .seq = 1, .tokens = tokens, .token_count = 97, .prompt_count = 50, .computed = 96,
			       .blocks = blocks, .block_count = 25, .params = &p};
	mirror_add(m, &a);
	/* 59 tokens of a prompt, of 64 in all */
	struct mirror_add long_prompt = {.row = 1, .seq = 2, .tokens = tokens, .token_count = 80, .prompt_count = 80,
					 .blocks = blocks, .block_count = 25, .params = &p};
	for (u32 i = 0; i < 25; i++)
		blocks[i] = 30 + i;
	mirror_add(m, &long_prompt);
	mirror_run(m, 1, 59);
	struct mirror_add third = prompt(2, 3, 6, 6);
	third.computed = 5;
	third.params = &p;
	mirror_add(m, &third);
	apply(m, b);
	cr_assert_eq(batch_state_draft_room(b, 0), 2, "98 and 99 are the last positions of a context of 100");
	cr_assert_eq(batch_state_draft_room(b, 2), 3);
	batch_state_draft(b, 0, TOKENS, 2);
	cr_assert_eq(batch_state_draft_room(b, 0), 0, "it has some");
	cr_assert_eq(batch_state_draft_room(b, 2), 1, "of the budget");
	cr_assert_eq(batch_state_draft_room(b, 1), 0, "a prompt in work");
	batch_state_destroy(&b);
}

static bool ends_at_77(void *ctx, u32 row, u32 output, u32 token)
{
	u32 *outputs = ctx;

	outputs[row] = output;
	return token == 77;
}

static void expect_list(const u32 *got, const u32 *wanted, u32 count, const char *what)
{
	for (u32 i = 0; i < count; i++)
		cr_assert_eq(got[i], wanted[i], "%s[%u] is %u, not %u", what, i, got[i], wanted[i]);
}

/* Row 0 two drafts, row 1 none, row 2 three, row 3 two, row 4 two. */
static void give_drafts(struct batch_state *b)
{
	batch_state_draft(b, 0, (const u32[]){70, 71}, 2);
	batch_state_draft(b, 2, (const u32[]){76, 77, 78}, 3);
	batch_state_draft(b, 3, (const u32[]){90, 91}, 2);
	batch_state_draft(b, 4, (const u32[]){80, 81}, 2);
	batch_state_drafts_end(b);
}

Test(batch_drafts, samples_stay_up_to_the_first_that_is_no_draft_or_an_end)
{
	static const u32 rows[] = {0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4}, ahead[] = {0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2};
	u32 sampled[] = {70, 71, 72, 5, 76, 77, 78, 79, 99, 91, 92, 80, 81, BATCH_NO_TOKEN}, kept[14], outputs[16] = {0};
	struct batch_state *b = create_with(3, 16, 0, 0);
	struct mirror *m = mirror();
	struct sampling_params p = defaults();

	p.max_tokens = 50;
	mirror_begin(m);
	add_rows(m, 5, 6, 3, &p);
	apply(m, b);
	u64 digest = batch_state_digest(b);
	give_drafts(b);
	cr_assert_eq(batch_state_digest(b), digest, "no digest counts drafts");
	cr_assert_eq(b->sample_count, 14);
	expect_list(b->sample_rows, rows, 14, "rows");
	expect_list(b->sample_ahead, ahead, 14, "ahead");
	cr_assert_eq(batch_state_accept(b, sampled, kept, ends_at_77, outputs), 4);
	cr_assert_eq(b->sample_count, 9);
	expect_list(sampled, (const u32[]){70, 71, 72, 5, 76, 77, 99, 80, 81}, 9, "sampled");
	expect_list(kept, (const u32[]){0, 1, 2, 3, 4, 5, 8, 11, 12}, 9, "kept");
	expect_list(outputs, (const u32[]){2, 0, 2, 0, 2}, 5, "outputs asked of");
	batch_state_commit(b, sampled);
	expect_list(b->known, (const u32[]){9, 7, 8, 7, 8}, 5, "known");
	expect_list(b->computed, (const u32[]){8, 6, 7, 6, 7}, 5, "computed");
	expect_list(b->last_token, (const u32[]){72, 5, 77, 99, 81}, 5, "last");
	cr_assert_eq(b->computed_sum, 34);
	expect_list(batch_state_tokens(b, 0) + 6, (const u32[]){70, 71, 72}, 3, "tokens");
	batch_state_destroy(&b);
}

Test(batch_drafts, the_step_behind_one_with_drafts_has_none_left)
{
	struct batch_state *b = create_with(3, 16, 0, 0);
	struct mirror *m = mirror();
	struct sampling_params p = defaults();
	u32 sampled[] = {70, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, kept[14], outputs[16];

	p.max_tokens = 50;
	mirror_begin(m);
	add_rows(m, 5, 6, 3, &p);
	apply(m, b);
	give_drafts(b);
	cr_assert_eq(batch_state_accept(b, sampled, kept, ends_at_77, outputs), 1);
	batch_state_commit(b, sampled);
	mirror_commit(m, (const u32[]){70, 3, 4, 8, 11});
	/* What the scheduler learns from the RESULT. */
	m->rows[0].tokens[m->rows[0].known++] = 1;
	m->rows[0].computed++;
	mirror_begin(m);
	apply(m, b);
	cr_assert_eq(b->sample_count, 5);
	cr_assert_eq(b->draft_count, 0);
	for (u32 i = 0; i < 5; i++) {
		cr_assert_eq(b->drafts[i], 0);
		cr_assert_eq(b->sample_ahead[i], 0);
		cr_assert_eq(b->sample_rows[i], i);
	}
	batch_state_destroy(&b);
}

Test(batch_drafts, inputs_run_drafts_and_take_logits_behind_each)
{
	struct batch_state *b = create_with(3, 16, 0, 0);
	struct mirror *m = mirror();
	struct sampling_params p = defaults();
	struct batch_limits limits = b->limits;
	struct inputs in;
	struct err_msg em;

	p.max_tokens = 50;
	cr_assert_eq(inputs_init(&in, &limits, &em), ERR_OK);
	mirror_begin(m);
	add_rows(m, 5, 6, 3, &p);
	apply(m, b);
	give_drafts(b);
	inputs_build(&in, b);
	cr_assert_eq(in.tokens, 14);
	cr_assert_eq(in.rows, 5);
	expect_list(in.query_start, (const u32[]){0, 3, 4, 8, 11, 14}, 6, "query_start");
	expect_list(in.context, (const u32[]){8, 6, 9, 8, 8}, 5, "context");
	expect_list(in.ids, (const u32[]){10, 70, 71, 10, 10, 76, 77, 78, 10, 90, 91, 10, 80, 81}, 14, "ids");
	expect_list(in.positions, (const u32[]){5, 6, 7, 5, 5, 6, 7, 8}, 8, "positions");
	for (u32 i = 0; i < 14; i++)
		cr_assert_eq(in.sample_index[i], i);
	inputs_fini(&in);
	batch_state_destroy(&b);
}

Test(batch_drafts, a_step_never_samples_more_than_its_room)
{
	struct batch_limits l = {.rows_max = 16};

	cr_assert_eq(batch_samples_max(&l), 16);
	l.draft_max = 4;
	l.draft_rows = 8;
	cr_assert_eq(batch_samples_max(&l), 40);
	l.draft_share = 20;
	cr_assert_eq(batch_samples_max(&l), 20);
	l.draft_share = 0;
	l.rows_max = 1000;
	l.draft_rows = 1000;
	cr_assert_eq(batch_samples_max(&l), BATCH_SAMPLES_MAX);
	l.draft_rows = 0;
	cr_assert_eq(batch_samples_max(&l), 1000);
}
