
#include "proc_worker/inputs.h"
#include "tests/unit/proc_worker/batch_fixture.h"

Test(batch_state, a_computed_prompt_runs_one_token_a_step)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(3, 77, 6, 3);

	mirror_begin(m);
	mirror_add(m, &add);
	mirror_run(m, 3, 4);
	step(m, b, NULL);
	cr_assert_eq(b->computed[3], 4);
	cr_assert_eq(b->known[3], 6);

	mirror_begin(m);
	mirror_run(m, 3, 2);
	cr_assert_eq(batch_state_apply(b, mirror_end(m), NULL), ERR_OK);
	cr_assert_eq(b->sample_count, 1);
	cr_assert_eq(b->sample_rows[0], 3);
	batch_state_commit(b, &(u32){42});
	mirror_commit(m, &(u32){42});
	cr_assert_eq(b->known[3], 7);

	mirror_begin(m);
	cr_assert_eq(batch_state_apply(b, mirror_end(m), NULL), ERR_OK);
	cr_assert_eq(b->run_row_count, 1);
	cr_assert_eq(b->tokens_run, 1);
	cr_assert_eq(b->last_token[3], 42);
	batch_state_commit(b, &(u32){43});
	mirror_commit(m, &(u32){43});
	const u32 expected[] = {5, 6, 7, 8, 9, 10, 42, 43};
	cr_assert_arr_eq(batch_state_tokens(b, 3), expected, sizeof(expected));
	batch_state_destroy(&b);
	cr_assert_null(b);
}

Test(batch_state, a_prefill_row_that_is_not_listed_rests)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(0, 1, 6, 3);

	mirror_begin(m);
	mirror_add(m, &add);
	step(m, b, NULL);
	cr_assert_eq(b->computed[0], 0);
	mirror_begin(m);
	mirror_run(m, 0, 6);
	step(m, b, &(u32){9});
	mirror_begin(m);
	mirror_run(m, 0, 0);
	step(m, b, NULL);
	cr_assert_eq(b->known[0], 7);
	cr_assert_eq(b->computed[0], 6);
	batch_state_destroy(&b);
}

Test(batch_state, drop_comes_before_add_so_a_row_changes_hands_in_one_step)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add first = prompt(5, 1, 6, 3), second = prompt(5, 2, 3, 1);

	mirror_begin(m);
	mirror_add(m, &first);
	mirror_run(m, 5, 6);
	step(m, b, &(u32){9});
	mirror_begin(m);
	mirror_drop(m, 5);
	mirror_add(m, &second);
	mirror_run(m, 5, 3);
	step(m, b, &(u32){10});
	cr_assert_eq(b->rows[5].seq, 2);
	cr_assert_eq(b->row_count, 1);
	cr_assert_eq(b->known[5], 4);
	batch_state_destroy(&b);
}

Test(batch_state, grow_extends_the_block_table_and_copies_are_handed_on)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(1, 1, 4, 1);

	mirror_begin(m);
	mirror_add(m, &add);
	mirror_run(m, 1, 4);
	step(m, b, &(u32){9});
	mirror_begin(m);
	mirror_grow(m, 1, 55);
	mirror_copy(m, 20, 30);
	mirror_copy(m, 20, 31);
	mirror_copy(m, 20, 219); /* out to the host's memory, */
	mirror_copy(m, 200, 32); /* and in */
	cr_assert_eq(batch_state_apply(b, mirror_end(m), NULL), ERR_OK);
	cr_assert_eq(b->copy_count, 4);
	cr_assert_eq(b->copy_dst[1], 31);
	cr_assert_eq(batch_state_blocks(b, 1)[1], 55);
	cr_assert_eq(b->capacity[1], 8);
	batch_state_destroy(&b);
}

Test(batch_state, lists_and_parameters_arrive_at_their_row)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct sampling_params p;
	sampling_params_default(&p);
	p.temperature = 0.5f;
	p.seed = 1234567890123;
	struct mirror_add a0 = prompt(0, 1, 2, 1), a1 = prompt(1, 2, 3, 1);
	a0.stop_ids = (u32[]){7, 8};
	a0.stop_count = 2;
	a1.params = &p;
	a1.stop_ids = (u32[]){9};
	a1.stop_count = 1;
	a1.bias_ids = (u32[]){100, 101};
	a1.bias_values = (f32[]){1.5f, -2.5f};
	a1.bias_count = 2;

	mirror_begin(m);
	mirror_add(m, &a0);
	mirror_add(m, &a1);
	step(m, b, NULL);
	cr_assert_eq(b->stop_ids[1], 8);
	cr_assert_eq(b->stop_ids[STOP_IDS_MAX], 9);
	cr_assert_eq(b->bias_ids[BIAS_MAX + 1], 101);
	cr_assert_eq(b->bias_values[BIAS_MAX + 1], -2.5f);
	cr_assert_eq(b->rows[1].params.seed, 1234567890123);
	cr_assert_eq(b->rows[0].params.temperature, 0);
	batch_state_destroy(&b);
}

Test(batch_state, a_wrong_digest_is_found_in_its_step_and_only_a_reset_helps)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(1, 1, 4, 1);

	mirror_begin(m);
	mirror_add(m, &add);
	m->rows[1].seq = 2;
	cr_assert_eq(refused(m, b, "digest"), ERR_DIVERGED);
	mirror_begin(m);
	cr_assert_eq(refused(m, b, "INIT"), ERR_DIVERGED);
	cr_assert_eq(batch_state_reset(b, 100, 50, NULL), ERR_OK);
	m = mirror();
	mirror_begin(m);
	mirror_add(m, &add);
	step(m, b, NULL);
	cr_assert_eq(b->row_count, 1);
	batch_state_destroy(&b);
}

Test(batch_state, a_lost_or_doubled_step_is_out_of_sequence)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();

	mirror_begin(m);
	step(m, b, NULL);
	mirror_begin(m);
	mirror_begin(m);
	cr_assert_eq(refused(m, b, "STEP 3 came after step 1"), ERR_SEQUENCE);
	batch_state_destroy(&b);
}

Test(batch_state, a_reset_beyond_what_was_created_is_refused)
{
	struct batch_state *b = create();
	struct err_msg em;

	cr_assert_eq(batch_state_reset(b, 201, 50, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "block_count is 201"));
	cr_assert_eq(batch_state_reset(b, 200, 101, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "max_model_len is 101"));
	batch_state_destroy(&b);

	struct batch_limits bad = LIMITS;
	bad.rows_max = 0;
	cr_assert_eq(batch_state_create(&b, &bad, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "max_num_seqs is 0"));
	cr_assert_null(b);
	batch_state_destroy(&b);
}

/* What is spoiled in a STEP on top of a state with row 1 (4 tokens known, none computed, 1 block). */
enum spoilt {
	DROP_EMPTY,
	DROP_OUTSIDE,
	COPY_SRC,
	COPY_DST,
	COPY_TWICE,
	COPY_CHAIN,
	COPY_HOST,
	COPY_HOST_TWICE,
	GROW_EMPTY,
	GROW_BLOCK,
	GROW_COUNT,
	RUN_EMPTY,
	RUN_MORE,
	RUN_TWICE,
	FORK_TAKEN,
	FORK_OUTSIDE,
	FORK_EMPTY,
	FORK_SHARES,
	FORK_BLOCK,
	FORK_COUNT,
	SET_EMPTY,
	SET_TOKEN,
	SET_PROMPT,
	ADDS, /* from here on an add of 2 tokens to row 2 */
	ADD_TAKEN = ADDS,
	ADD_OUTSIDE,
	ADD_NOTHING,
	ADD_NO_PROMPT,
	ADD_MUCH_PROMPT,
	ADD_COMPUTED,
	ADD_TOKEN,
	ADD_TOKEN_COUNT,
	ADD_PARAM_COUNT,
	ADD_BLOCK,
	ADD_MANY_BLOCKS,
	ADD_MANY_STOPS,
	ADD_STOP,
	ADD_BIAS,
	ADD_PARAM,
	RUN_BEHIND_BLOCKS,
	RUN_OVER_BUDGET,
	SPOILT_COUNT,
};

static const char *const spoilt_texts[SPOILT_COUNT] = {
	[DROP_EMPTY] = "drop_row[0]: row 7 is empty",
	[DROP_OUTSIDE] = "drop_row[0] is 16",
	[COPY_SRC] = "copy_src: 220",
	[COPY_DST] = "copy_dst: 220",
	[COPY_TWICE] = "written twice",
	[COPY_CHAIN] = "read and written",
	[COPY_HOST] = "blocks 200 and 201 are both the host's",
	[COPY_HOST_TWICE] = "copy_dst[1]: block 219 is written twice",
	[GROW_EMPTY] = "grow_row[0]: row 7 is empty",
	[GROW_BLOCK] = "block 200 is not below",
	[GROW_COUNT] = "grow_block has 1 elements; 0 are needed",
	[RUN_EMPTY] = "run_row[0]: row 7 is empty",
	[RUN_MORE] = "run_count[0] is 5; row 1 has 4",
	[RUN_TWICE] = "listed twice",
	[FORK_TAKEN] = "fork_row[0]: row 1 still holds sequence 1",
	[FORK_OUTSIDE] = "fork_row[0] is 16",
	[FORK_EMPTY] = "fork_src[0]: row 7 is empty",
	[FORK_SHARES] = "fork_block[0] is none, but 0 of the 1 blocks of row 1 are full",
	[FORK_BLOCK] = "fork_block[0] is 200",
	[FORK_COUNT] = "fork_seq has 0 elements; 1 are needed",
	[SET_EMPTY] = "set_row[0]: row 7 is empty",
	[SET_TOKEN] = "set_token: 500 is not below 500",
	[SET_PROMPT] = "set_row[0]: the newest token of row 1 is computed or the prompt's",
	[ADD_TAKEN] = "still holds sequence 1",
	[ADD_OUTSIDE] = "add_row[0] is 16",
	[ADD_NOTHING] = "add_token_count[0] is 0",
	[ADD_NO_PROMPT] = "add_prompt_count[0] is 0",
	[ADD_MUCH_PROMPT] = "add_prompt_count[0] is 3",
	[ADD_COMPUTED] = "add_computed[0] is 2",
	[ADD_TOKEN] = "add_tokens: 500",
	[ADD_TOKEN_COUNT] = "add_tokens has 3 elements; 2 are needed",
	[ADD_PARAM_COUNT] = "add_top_p has 0 elements; 1 are needed",
	[ADD_BLOCK] = "block 200 is not below 200",
	[ADD_MANY_BLOCKS] = "more than the 25 blocks",
	[ADD_MANY_STOPS] = "add_stop_count[0] is 65",
	[ADD_STOP] = "add_stop_ids: 500",
	[ADD_BIAS] = "add_bias_ids: 500",
	[ADD_PARAM] = "logprobs",
	[RUN_BEHIND_BLOCKS] = "its 1 blocks hold 4 tokens, this step needs 5",
	[RUN_OVER_BUDGET] = "runs 65 tokens; at most 64",
};

static void spoil(struct mirror *m, enum spoilt what)
{
	static const struct {
		u32 src, dst;
	} copies[][2] = {[COPY_SRC] = {{220, 3}, {5, 6}},
			 [COPY_DST] = {{3, 220}, {5, 6}},
			 [COPY_TWICE] = {{3, 4}, {5, 4}},
			 [COPY_CHAIN] = {{3, 4}, {4, 5}},
			 [COPY_HOST] = {{200, 201}, {5, 6}},
			 [COPY_HOST_TWICE] = {{3, 219}, {4, 219}}};

	switch (what) {
	case DROP_EMPTY:
		mirror_drop(m, 7);
		break;
	case DROP_OUTSIDE:
		m->drop_row[m->msg.drop_row_count++] = 16;
		break;
	case GROW_EMPTY:
		mirror_grow(m, 7, 3);
		break;
	case GROW_BLOCK:
		mirror_grow(m, 1, 200);
		break;
	case GROW_COUNT:
		m->msg.grow_block_count++;
		break;
	case RUN_TWICE:
		mirror_run(m, 1, 1);
		mirror_run(m, 1, 1);
		break;
	case RUN_EMPTY:
	case RUN_MORE:
		mirror_run(m, what == RUN_MORE ? 1 : 7, what == RUN_MORE ? 5 : 1);
		break;
	case FORK_TAKEN ... FORK_COUNT:
		mirror_fork(m, what == FORK_TAKEN ? 1 : what == FORK_OUTSIDE ? 16 : 2, what == FORK_EMPTY ? 7 : 1, 9,
			    what == FORK_SHARES ? UINT32_MAX : what == FORK_BLOCK ? 200 : 3);
		m->msg.fork_seq_count -= what == FORK_COUNT;
		break;
	case SET_EMPTY ... SET_PROMPT:
		mirror_set(m, what == SET_EMPTY ? 7 : 1, what == SET_TOKEN ? 500 : 3);
		break;
	default:
		mirror_copy(m, copies[what][0].src, copies[what][0].dst);
		mirror_copy(m, copies[what][1].src, copies[what][1].dst);
	}
}

static u32 bad_ids[] = {5, 500};

/* The lists of an add. */
static void spoil_lists(struct mirror_add *add, enum spoilt what)
{
	static u32 bad_blocks[] = {200}, stops[STOP_IDS_MAX + 1];
	static f32 values[2];

	if (what == ADD_BLOCK)
		add->blocks = bad_blocks;
	if (what == ADD_MANY_BLOCKS)
		add->block_count = 26;
	if (what == ADD_MANY_STOPS || what == ADD_STOP) {
		add->stop_ids = what == ADD_STOP ? bad_ids : stops;
		add->stop_count = what == ADD_STOP ? 2 : STOP_IDS_MAX + 1;
	}
	if (what == ADD_BIAS) {
		add->bias_ids = bad_ids;
		add->bias_values = values;
		add->bias_count = 2;
	}
}

static void spoil_add(struct mirror *m, enum spoilt what)
{
	struct mirror_add add = prompt(2, 2, 2, 1);
	struct sampling_params p;
	sampling_params_default(&p);

	add.params = &p;
	spoil_lists(&add, what);
	if (what == ADD_TAKEN)
		add.row = 1;
	if (what == ADD_NOTHING)
		add.token_count = 0;
	if (what == ADD_NO_PROMPT)
		add.prompt_count = 0;
	if (what == ADD_MUCH_PROMPT)
		add.prompt_count = 3;
	if (what == ADD_COMPUTED)
		add.computed = 2;
	if (what == ADD_TOKEN)
		add.tokens = bad_ids;
	if (what == ADD_PARAM)
		p.logprobs = 21;
	if (what == RUN_BEHIND_BLOCKS || what == RUN_OVER_BUDGET) {
		add.token_count = add.prompt_count = 66;
		add.block_count = what == RUN_OVER_BUDGET ? 17 : 1;
		mirror_run(m, 2, what == RUN_OVER_BUDGET ? 65 : 5);
	}
	mirror_add(m, &add);
	if (what == ADD_OUTSIDE)
		m->add_row[0] = 16;
	if (what == ADD_TOKEN_COUNT)
		m->msg.add_tokens_count++;
	if (what == ADD_PARAM_COUNT)
		m->msg.add_top_p_count = 0;
}

Test(batch_state, every_index_and_count_is_checked_before_use)
{
	for (enum spoilt i = 0; i < SPOILT_COUNT; i++) {
		struct batch_state *b = create();
		struct mirror *m = mirror();
		struct mirror_add add = prompt(1, 1, 4, 1);
		struct err_msg em = {{0}};
		mirror_begin(m);
		mirror_add(m, &add);
		step(m, b, NULL);
		mirror_begin(m);
		if (i < ADDS)
			spoil(m, i);
		else
			spoil_add(m, i);
		cr_assert_eq(batch_state_apply(b, &m->msg, &em), ERR_INVALID, "case %d: %s", i, em.text);
		cr_assert(strstr(em.text, spoilt_texts[i]), "case %d: '%s' is not in '%s'", i,
			  spoilt_texts[i], em.text);
		cr_assert(strstr(em.text, "STEP 2"));
		batch_state_destroy(&b);
	}
}

Test(batch_state, forks_share_full_blocks_and_a_set_changes_one_of_them)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(1, 7, 6, 2); /* one full block of 4, one with 2 tokens */
	static const u32 sampled[] = {40, 41, 42};

	mirror_begin(m);
	mirror_add(m, &add);
	mirror_run(m, 1, 6);
	step(m, b, sampled);
	mirror_begin(m);
	mirror_copy(m, batch_state_blocks(b, 1)[1], 100);
	mirror_fork(m, 5, 1, 8, 100);
	mirror_set(m, 5, 99);
	step(m, b, sampled);
	cr_assert(b->known[1] == 8 && b->known[5] == 8 && b->computed[5] == 7 && b->row_count == 2);
	cr_assert(batch_state_tokens(b, 1)[6] == 40 && batch_state_tokens(b, 5)[6] == 99);
	cr_assert(batch_state_tokens(b, 1)[7] == 40 && batch_state_tokens(b, 5)[7] == 41);
	cr_assert_arr_eq(batch_state_tokens(b, 1), batch_state_tokens(b, 5), 6 * sizeof(u32));
	cr_assert_eq(batch_state_blocks(b, 5)[0], batch_state_blocks(b, 1)[0]);
	cr_assert(batch_state_blocks(b, 5)[1] == 100 && b->rows[5].block_count == 2);
	cr_assert(b->rows[5].seq == 8 && b->rows[5].incarnation != b->rows[1].incarnation);
	mirror_begin(m);
	mirror_drop(m, 5);
	mirror_run(m, 1, 0);
	step(m, b, sampled);
	cr_assert_eq(b->row_count, 1);
	batch_state_destroy(&b);
}

Test(batch_state, no_token_is_sampled_behind_the_context_length)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add add = prompt(1, 1, 99, 25);
	add.computed = 98;

	mirror_begin(m);
	mirror_add(m, &add);
	step(m, b, &(u32){1});
	cr_assert_eq(b->known[1], 100);
	mirror_begin(m);
	cr_assert_eq(refused(m, b, "behind the context length of 100"), ERR_INVALID);
	batch_state_destroy(&b);
}

static u32 next(u64 *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (u32)(*seed >> 33);
}

static void random_step(struct mirror *m, u64 *seed, u64 *seq)
{
	u32 budget = LIMITS.tokens_max - MIRROR_ROWS;

	mirror_begin(m);
	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		struct mirror_row *r = &m->rows[row];
		if (r->present && (r->known >= 99 || next(seed) % 20 == 0))
			mirror_drop(m, row);
		if (!r->present && next(seed) % 3 == 0) {
			u32 tokens[60], blocks[30], n = 1 + next(seed) % 60;
			for (u32 i = 0; i < n; i++)
				tokens[i] = next(seed) % LIMITS.vocab_size;
			for (u32 i = 0; i < 30; i++)
				blocks[i] = next(seed) % LIMITS.block_count;
			mirror_add(m, &(struct mirror_add){.row = row,
							   .seq = ++*seq,
							   .tokens = tokens,
							   .token_count = n,
							   .prompt_count = 1 + next(seed) % n,
							   .computed = next(seed) % n,
							   .blocks = blocks,
							   .block_count = (n + 3) / 4});
		}
		if (!r->present)
			continue;
		u32 left = r->known - r->computed;
		if (left > 1 && next(seed) % 4) {
			u32 run = 1 + next(seed) % left;
			run = run < budget ? run : budget;
			mirror_run(m, row, run);
			budget -= run;
		} else if (left == 1 && next(seed) % 10 == 0) {
			mirror_run(m, row, 0);
		}
		if (r->known >= r->block_count * 4)
			mirror_grow(m, row, next(seed) % LIMITS.block_count);
	}
	mirror_end(m);
}

/* What the ops would read, against the mirror. */
static void check_inputs(const struct inputs *in, const struct mirror *m)
{
	u32 i = 0, token = 0, samples = 0;

	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		const struct mirror_row *r = &m->rows[row];
		if (!r->present || !r->run)
			continue;
		cr_assert_eq(in->query_start[i], token);
		cr_assert_eq(in->context[i], r->computed + r->run);
		cr_assert_arr_eq(in->block_tables + i * in->block_stride, r->blocks,
				 r->block_count * sizeof(u32));
		for (u32 j = 0; j < r->run; j++, token++) {
			u32 position = r->computed + j;
			cr_assert_eq(in->ids[token], r->tokens[position]);
			cr_assert_eq(in->positions[token], position);
			cr_assert_eq(in->slots[token], r->blocks[position / 4] * 4 + position % 4);
		}
		if (mirror_samples(m, row))
			cr_assert_eq(in->sample_index[samples++], token - 1);
		i++;
	}
	cr_assert_eq(in->rows, i);
	cr_assert_eq(in->tokens, token);
	cr_assert_eq(in->query_start[i], token);
}

Test(batch_state, random_diffs_rebuild_the_mirror_at_every_step)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	u64 seed = 20240611, seq = 0;
	u32 sampled[MIRROR_ROWS];
	u64 samples = 0;
	struct inputs in;

	cr_assert_eq(inputs_init(&in, &LIMITS, NULL), ERR_OK);
	for (int i = 0; i < 20000; i++) {
		struct err_msg em = {{0}};
		random_step(m, &seed, &seq);
		cr_assert_eq(batch_state_apply(b, &m->msg, &em), ERR_OK, "step %d: %s", i, em.text);
		for (u32 j = 0; j < MIRROR_ROWS; j++)
			sampled[j] = next(&seed) % LIMITS.vocab_size;
		samples += b->sample_count;
		for (u32 j = 0; j < b->sample_count; j++)
			cr_assert(mirror_samples(m, b->sample_rows[j]));
		inputs_build(&in, b);
		check_inputs(&in, m);
		u32 n = b->sample_count;
		batch_state_commit(b, sampled);
		cr_assert_eq(mirror_commit(m, sampled), n);
		for (u32 row = 0; row < MIRROR_ROWS; row++) {
			const struct mirror_row *r = &m->rows[row];
			cr_assert_eq(batch_state_present(b, row), r->present);
			if (!r->present)
				continue;
			cr_assert_eq(b->known[row], r->known);
			cr_assert_eq(b->computed[row], r->computed);
			cr_assert_arr_eq(batch_state_tokens(b, row), r->tokens, r->known * sizeof(u32));
			cr_assert_arr_eq(batch_state_blocks(b, row), r->blocks, r->block_count * sizeof(u32));
		}
	}
	cr_assert_gt(samples, 10000);
	inputs_fini(&in);
	batch_state_destroy(&b);
}

/* The tokens of a step that have not come back. */
struct late {
	u32 rows[MIRROR_ROWS], index[MIRROR_ROWS], tokens[MIRROR_ROWS];
	u64 incarnation[MIRROR_ROWS];
	struct batch_tokens list;
};

static void remember(struct late *l, const struct batch_state *b, const u32 *sampled)
{
	for (u32 i = 0; i < b->sample_count; i++) {
		l->rows[i] = b->sample_rows[i];
		l->incarnation[i] = b->rows[l->rows[i]].incarnation;
		l->index[i] = b->known[l->rows[i]];
		l->tokens[i] = sampled[i];
	}
	l->list = (struct batch_tokens){b->sample_count, l->rows, l->incarnation, l->index, l->tokens};
}

static void check_rows(const struct batch_state *b, const struct mirror *m, bool tokens_too)
{
	for (u32 row = 0; row < MIRROR_ROWS; row++) {
		const struct mirror_row *r = &m->rows[row];
		cr_assert_eq(batch_state_present(b, row), r->present);
		if (!r->present)
			continue;
		cr_assert_eq(b->known[row], r->known);
		cr_assert_eq(b->computed[row], r->computed);
		if (!tokens_too)
			continue;
		cr_assert_eq(b->last_token[row], r->tokens[r->known - 1]);
		cr_assert_arr_eq(batch_state_tokens(b, row), r->tokens, r->known * sizeof(u32));
	}
}

Test(batch_state, tokens_may_come_steps_later_and_rows_that_changed_hands_ignore_them)
{
	enum { STEPS = 4000, LATE_MAX = 4 };
	static struct late late[STEPS];
	struct batch_state *b = create();
	struct mirror *m = mirror();
	u64 seed = 7, seq = 0;
	u32 sampled[MIRROR_ROWS];
	u32 back = 0, stale = 0;

	for (u32 i = 0; i < STEPS; i++) {
		struct err_msg em = {{0}};
		random_step(m, &seed, &seq);
		cr_assert_eq(batch_state_apply(b, &m->msg, &em), ERR_OK, "step %u: %s", i, em.text);
		for (u32 j = 0; j < MIRROR_ROWS; j++)
			sampled[j] = next(&seed) % LIMITS.vocab_size;
		remember(&late[i], b, sampled);
		batch_state_advance(b);
		mirror_commit(m, sampled);
		check_rows(b, m, false);
		u32 waiting = next(&seed) % LATE_MAX;
		for (; back + waiting <= i; back++) {
			const struct late *l = &late[back];
			for (u32 j = 0; j < l->list.count; j++)
				stale += b->rows[l->rows[j]].incarnation != l->incarnation[j];
			batch_state_tokens_known(b, &l->list);
		}
		check_rows(b, m, back == i + 1);
	}
	cr_assert_gt(stale, 100);
	batch_state_destroy(&b);
}
