/* Log-probabilities kept for a detokenizer that begins anew. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_scheduler/kept_results.h"

static struct kept_results k;

static void setup(void)
{
	cr_assert_eq(kept_results_init(&k), ERR_OK);
}

static void teardown(void)
{
	kept_results_fini(&k);
}

TestSuite(kept_results, .init = setup, .fini = teardown);

/* Three rows at output `position`: sequence 10 lists two ids, 11 none, 12 one; 12 also a position of its prompt. */
static void add(u32 position, u64 now_ns)
{
	const u64 seq[] = {10, 11, 12}, plp_seq[] = {12};
	const u32 positions[] = {position, position, position}, tokens[] = {100 + position, 7, 200 + position};
	const u32 entries[] = {0, 2}, counts[] = {2, 1}, ranks[] = {1, 5};
	const u32 ids[] = {100 + position, 3, 200 + position}, one[] = {1}, plp_ids[] = {44};
	const f32 values[] = {-0.5f, -1.5f, -2.5f}, plp_values[] = {-3.0f};
	struct ipc_result m = {
		.step = position,
		.seq = seq, .seq_count = 3,
		.position = positions, .position_count = 3,
		.token = tokens, .token_count = 3,
		.lp_entry = entries, .lp_entry_count = 2,
		.lp_count = counts, .lp_count_count = 2,
		.lp_rank = ranks, .lp_rank_count = 2,
		.lp_ids = ids, .lp_ids_count = 3,
		.lp_values = values, .lp_values_count = 3,
		.plp_seq = plp_seq, .plp_seq_count = 1,
		.plp_position = &position, .plp_position_count = 1,
		.plp_count = one, .plp_count_count = 1,
		.plp_rank = one, .plp_rank_count = 1,
		.plp_ids = plp_ids, .plp_ids_count = 1,
		.plp_values = plp_values, .plp_values_count = 1,
	};
	kept_results_add(&k, &m, now_ns);
}

struct told {
	u32 results, rows, prompts, next;
};

static void check_12(void *ctx, const struct ipc_result *m)
{
	struct told *t = ctx;

	cr_assert_eq(m->seq_count, 1);
	cr_assert_eq(m->seq[0], 12);
	cr_assert_eq(m->position[0], t->next);
	cr_assert_eq(m->token[0], 200 + t->next);
	cr_assert_eq(m->lp_entry[0], 0);
	cr_assert_eq(m->lp_count[0], 1);
	cr_assert_eq(m->lp_rank[0], 5);
	cr_assert_eq(m->lp_ids_count, 1);
	cr_assert_eq(m->lp_ids[0], 200 + t->next);
	cr_assert_eq(m->lp_values[0], -2.5f);
	cr_assert_eq(m->plp_seq_count, 1);
	cr_assert_eq(m->plp_position[0], t->next);
	cr_assert_eq(m->plp_ids[0], 44);
	t->next++;
	t->results++;
}

static void count(void *ctx, const struct ipc_result *m)
{
	struct told *t = ctx;

	t->results++;
	t->rows += m->seq_count;
	t->prompts += m->plp_seq_count;
}

Test(kept_results, an_open_stops_in_front_of_what_is_kept_and_only_that_is_given_out)
{
	struct told t = {.next = 5};

	for (u32 i = 5; i < 9; i++)
		add(i, 1);
	cr_assert_eq(kept_results_open(&k, 12, 9), 9, "nobody begins anew");
	kept_results_begin(&k);
	cr_assert_eq(kept_results_open(&k, 11, 9), 9, "it lists nothing");
	cr_assert_eq(kept_results_open(&k, 99, 9), 9);
	cr_assert_eq(kept_results_open(&k, 12, 9), 5);
	kept_results_give(&k, check_12, &t);
	kept_results_end(&k);
	cr_assert_eq(t.results, 4);
	cr_assert_eq(kept_results_open(&k, 12, 9), 9);
	kept_results_begin(&k);
	t = (struct told){0};
	cr_assert_eq(kept_results_open(&k, 10, 3), 3, "an earlier state of it");
	cr_assert_eq(kept_results_open(&k, 12, 9), 5);
	kept_results_give(&k, count, &t);
	kept_results_end(&k);
	cr_assert_eq(t.rows, 8);
	cr_assert_eq(t.prompts, 4);
}

Test(kept_results, results_without_lists_cost_nothing)
{
	const u64 seq[] = {1};
	const u32 zero[] = {0};
	struct ipc_result m = {.seq = seq, .seq_count = 1, .position = zero, .position_count = 1,
			       .token = zero, .token_count = 1};

	kept_results_add(&k, &m, 1);
	cr_assert_eq(k.count, 0);
	m.lp_entry = zero;
	m.lp_entry_count = 1;
	kept_results_add(&k, &m, 1);
	cr_assert_eq(k.count, 0, "its columns do not fit together");
}

Test(kept_results, number_bytes_and_age_are_bounded)
{
	const u64 second = 1000000000;
	struct told t = {0};

	for (u32 i = 0; i < KEPT_RESULTS_MAX + 10; i++)
		add(i, second);
	cr_assert_eq(k.count, (u32)KEPT_RESULTS_MAX);
	cr_assert_leq(k.bytes, (u64)KEPT_RESULTS_BYTES_MAX);
	kept_results_begin(&k);
	cr_assert_eq(kept_results_open(&k, 12, KEPT_RESULTS_MAX + 10), 10);
	kept_results_give(&k, count, &t);
	kept_results_end(&k);
	cr_assert_eq(t.results, (u32)KEPT_RESULTS_MAX);
	kept_results_expire(&k, (KEPT_RESULTS_AGE_S + 1) * second);
	cr_assert_eq(k.count, (u32)KEPT_RESULTS_MAX);
	kept_results_expire(&k, (KEPT_RESULTS_AGE_S + 2) * second);
	cr_assert_eq(k.count, 0);
	cr_assert_eq(k.bytes, 0);
}

Test(kept_results, it_is_known_whose_rows_are_of_the_prompt_only)
{
	const u64 seq = 20;
	const u32 position = 1, ids[] = {7, 8}, lists = 2, rank = 1;
	const f32 values[] = {-1, -2};
	const struct ipc_result m = {.plp_seq = &seq,
				     .plp_seq_count = 1,
				     .plp_position = &position,
				     .plp_position_count = 1,
				     .plp_count = &lists,
				     .plp_count_count = 1,
				     .plp_rank = &rank,
				     .plp_rank_count = 1,
				     .plp_ids = ids,
				     .plp_ids_count = 2,
				     .plp_values = values,
				     .plp_values_count = 2};
	struct told t = {0};

	kept_results_add(&k, &m, 1);
	add(0, 1);
	kept_results_begin(&k);
	cr_assert_not(kept_results_only_prompt(&k, 20), "nobody asked for it");
	cr_assert_eq(kept_results_open(&k, 20, 9), 9);
	cr_assert(kept_results_only_prompt(&k, 20));
	cr_assert_eq(kept_results_open(&k, 12, 1), 0);
	cr_assert_not(kept_results_only_prompt(&k, 12), "an output, too");
	kept_results_give(&k, count, &t);
	cr_assert_eq(t.prompts, 2);
	kept_results_end(&k);
	cr_assert_not(kept_results_only_prompt(&k, 20));
}

Test(kept_results, rows_of_one_prompt_are_given_out_in_order)
{
	struct told t = {0};

	for (u32 i = 1; i < 4; i++)
		add(i, 1);
	kept_results_give_prompt(&k, 12, count, &t);
	cr_assert_eq(t.results, 3);
	cr_assert_eq(t.prompts, 3);
	cr_assert_eq(t.rows, 0, "no outputs of it");
	kept_results_give_prompt(&k, 12 + 64, count, &t);
	kept_results_give_prompt(&k, 10, count, &t);
	cr_assert_eq(t.results, 3, "they have none");
	kept_results_expire(&k, (KEPT_RESULTS_AGE_S + 2) * (u64)1000000000);
	kept_results_give_prompt(&k, 12, count, &t);
	cr_assert_eq(t.results, 3);
}
