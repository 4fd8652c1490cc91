
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
