/* The rule of beam search, against a search that enumerates every continuation there is, and the tree of outputs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/step_digest.h"
#include "proc_scheduler/beam.h"
#include "proc_scheduler/beam_nodes.h"

enum { VOCAB = 24, OUTPUTS = 6, EOS = 3 };

static const u32 eos_ids[] = {EOS};

/* A beam as the test keeps it: all of its tokens. */
struct path {
	u32 tokens[OUTPUTS], count;
	f64 sum, score;
	bool stopped;
};

static f32 value_of(u64 seed, const u32 *tokens, u32 count, u32 token)
{
	u64 x = seed;

	for (u32 i = 0; i < count; i++)
		x = step_digest_mix(x * 31 + tokens[i] + 1);
	return -(f32)(1 + step_digest_mix(x ^ (token * 977u + 5)) % 30) / 4; /* equal ones abound */
}

/* The best tokens behind a path, equal ones in the order of their ids. */
static u32 best(u64 seed, const struct path *p, u32 n, u32 *ids, f32 *values)
{
	bool taken[VOCAB] = {false};

	for (u32 k = 0; k < n; k++) {
		u32 pick = VOCAB;
		for (u32 id = 0; id < VOCAB; id++)
			if (!taken[id] && (pick == VOCAB || value_of(seed, p->tokens, p->count, id) >
								   value_of(seed, p->tokens, p->count, pick)))
				pick = id;
		taken[pick] = true;
		ids[k] = pick;
		values[k] = value_of(seed, p->tokens, p->count, pick);
	}
	return n;
}

/* ---------------------------------------------------------------- the rule */

static struct beam_rule rule(u32 width, f64 penalty, bool early)
{
	return (struct beam_rule){.width = width,
				  .prompt_count = 7,
				  .length_penalty = penalty,
				  .early_stopping = early,
				  .finish = {.output_max = OUTPUTS, .eos_ids = eos_ids, .eos_count = 1}};
}

/* By beam_pick and beam_is_over, as the scheduler does it; paths take the part of its nodes. */
static u32 search(u64 seed, const struct beam_rule *r, struct path *answers, u32 *rounds)
{
	static struct path kept[4096];
	struct path live[BEAM_WIDTH_MAX] = {{.count = 0}}, next[BEAM_WIDTH_MAX];
	struct beam_answers found = {.count = 0};
	u32 live_count = 1, kept_count = 0, lost;

	for (*rounds = 0; live_count; ++*rounds) {
		u32 ids[BEAM_WIDTH_MAX][LOGPROBS_MAX];
		f32 values[BEAM_WIDTH_MAX][LOGPROBS_MAX];
		struct beam_offer offers[BEAM_WIDTH_MAX];
		struct beam_picks picks;
		for (u32 i = 0; i < live_count; i++)
			offers[i] = (struct beam_offer){live[i].sum, ids[i], values[i],
							best(seed, &live[i], 2 * r->width, ids[i], values[i])};
		beam_pick(r, offers, live_count, *rounds, &picks);
		bool last = *rounds + 1 == OUTPUTS;
		for (u32 i = 0; i < picks.ended_count + picks.next_count; i++) {
			bool ended = i < picks.ended_count;
			const struct beam_pick *p = ended ? &picks.ended[i] : &picks.next[i - picks.ended_count];
			struct path path = live[p->beam];
			path.tokens[path.count++] = p->token;
			path.sum = p->sum;
			path.stopped = ended;
			if (!ended && !last) {
				next[i - picks.ended_count] = path;
				continue;
			}
			kept[kept_count] = path;
			struct beam_answer a = {.node = kept_count++,
						.outputs = path.count,
						.sum = p->sum,
						.reason = ended ? FINISH_STOP : FINISH_LENGTH};
			(void)beam_answers_add(&found, r, a, &lost);
		}
		live_count = last ? 0 : picks.next_count;
		memcpy(live, next, sizeof(live));
		if (live_count && beam_is_over(r, &found, live[0].sum, *rounds + 1))
			live_count = 0;
	}
	for (u32 i = 0; i < found.count; i++) {
		answers[i] = kept[found.best[i].node];
		answers[i].score = found.best[i].score;
	}
	return found.count;
}

/* ---------------------------------------------------------------- the same without it */

static f64 score(const struct path *p, f64 penalty)
{
	return p->sum / pow(7 + p->count - p->stopped, penalty);
}

/* Every beam's best tokens of every round in one list, which is sorted whole. */
static u32 search_plainly(u64 seed, u32 width, f64 penalty, struct path *answers)
{
	static struct path all[65536];
	struct path live[BEAM_WIDTH_MAX] = {{.count = 0}}, candidates[BEAM_WIDTH_MAX * LOGPROBS_MAX];
	u32 live_count = 1, count = 0;

	for (u32 round = 0; round < OUTPUTS; round++) {
		u32 n = 0;
		for (u32 b = 0; b < live_count; b++) {
			u32 ids[LOGPROBS_MAX], got;
			f32 values[LOGPROBS_MAX];
			got = best(seed, &live[b], 2 * width, ids, values);
			for (u32 k = 0; k < got; k++) {
				struct path p = live[b];
				p.tokens[p.count++] = ids[k];
				p.sum += (f64)values[k];
				p.stopped = ids[k] == EOS;
				/* insertion; equal sums stay in the order of beams, then of ids, in which they come */
				u32 at = n++;
				for (; at > 0 && p.sum > candidates[at - 1].sum; at--)
					candidates[at] = candidates[at - 1];
				candidates[at] = p;
			}
		}
		live_count = 0;
		for (u32 i = 0; i < n; i++) {
			if (candidates[i].stopped)
				all[count++] = candidates[i];
			else if (live_count < width)
				live[live_count++] = candidates[i];
		}
	}
	for (u32 i = 0; i < live_count; i++)
		all[count++] = live[i];
	for (u32 k = 0; k < width; k++) {
		u32 pick = UINT32_MAX;
		for (u32 i = 0; i < count; i++)
			if (all[i].count && (pick == UINT32_MAX || score(&all[i], penalty) > score(&all[pick], penalty)))
				pick = i;
		answers[k] = all[pick];
		all[pick].count = 0; /* taken */
	}
	return width;
}

Test(beam, answers_are_those_of_a_search_that_sorts_everything)
{
	static const f64 penalties[] = {0, 1, 0.7, 3, -2};
	u32 stopped = 0, rounds, shorter = 0;

	for (u64 seed = 1; seed <= 300; seed++) {
		struct path got[BEAM_WIDTH_MAX], wanted[BEAM_WIDTH_MAX];
		u32 width = 1 + seed % BEAM_WIDTH_MAX;
		f64 penalty = penalties[seed % COUNT_OF(penalties)];
		struct beam_rule r = rule(width, penalty, false);
		u32 count = search(seed, &r, got, &rounds);
		cr_assert_eq(count, search_plainly(seed, width, penalty, wanted));
		for (u32 i = 0; i < count; i++) {
			cr_assert_eq(got[i].count, wanted[i].count, "seed %llu, answer %u", (unsigned long long)seed, i);
			cr_assert_arr_eq(got[i].tokens, wanted[i].tokens, got[i].count * sizeof(u32), "seed %llu, answer %u",
					 (unsigned long long)seed, i);
			cr_assert_eq(got[i].sum, wanted[i].sum);
			cr_assert_eq(got[i].score, score(&wanted[i], penalty));
			stopped += got[i].stopped;
		}
		shorter += rounds < OUTPUTS;
	}
	cr_assert_gt(stopped, 100);
	cr_assert_gt(shorter, 10, "searches that were over early: %u", shorter);
}

Test(beam, early_stopping_ends_with_as_many_answers_as_beams)
{
	for (u64 seed = 1; seed <= 100; seed++) {
		struct path got[BEAM_WIDTH_MAX];
		u32 early_rounds, rounds;
		struct beam_rule r = rule(2, 1, true);
		cr_assert_eq(search(seed, &r, got, &early_rounds), 2);
		bool both = got[0].stopped && got[1].stopped;
		cr_assert(both || early_rounds == OUTPUTS);
		r.early_stopping = false;
		search(seed, &r, got, &rounds);
		cr_assert_leq(early_rounds, rounds);
	}
}

Test(beam, what_is_not_finite_is_no_offer)
{
	static const u32 ids[] = {1, 2, 4, 5};
	static const f32 values[] = {NAN, -0.5f, -INFINITY, INFINITY};
	struct beam_offer offer = {-1, ids, values, 4};
	struct beam_rule r = rule(2, 1, false);
	struct beam_picks picks;

	beam_pick(&r, &offer, 1, 0, &picks);
	cr_assert(picks.next_count == 1 && picks.ended_count == 0);
	cr_assert(picks.next[0].token == 2 && picks.next[0].place == 1 && picks.next[0].sum == -1.5);
}

Test(beam, equal_sums_go_by_beam_then_by_id)
{
	static const u32 a_ids[] = {9, 5, 8, 7}, b_ids[] = {4, 1, 2, 6};
	static const f32 a[] = {-1, -1, -1, -1}, b[] = {-0.5f, -0.5f, -3, -3};
	struct beam_offer offers[] = {{0, a_ids, a, 4}, {-0.5, b_ids, b, 4}};
	struct beam_rule r = rule(4, 1, false);
	struct beam_picks p;

	beam_pick(&r, offers, 2, 0, &p);
	cr_assert_eq(p.next_count, 4);
	cr_assert(p.next[0].token == 5 && p.next[1].token == 7 && p.next[2].token == 8 && p.next[3].token == 9);
	r.width = 10;
	beam_pick(&r, offers, 2, 0, &p);
	cr_assert(p.next_count == 8 && p.next[4].token == 1 && p.next[5].token == 4 && p.next[4].beam == 1);
}

/* ---------------------------------------------------------------- the tree */

Test(beam, a_node_lives_as_long_as_anybody_needs_it)
{
	static const u32 ids[] = {4, 5};
	static const f32 values[] = {-1, -2};
	enum { CAPACITY = 8 };
	void *memory = malloc(beam_nodes_bytes(CAPACITY));
	struct beam_nodes t;

	beam_nodes_init(&t, memory, CAPACITY);
	u32 root = beam_nodes_add(&t, (struct beam_node){.parent = BEAM_NODE_NONE, .token = 1, .count = 2}, ids, values);
	u32 left = beam_nodes_add(&t, (struct beam_node){.parent = root, .token = 2}, NULL, NULL);
	u32 right = beam_nodes_add(&t, (struct beam_node){.parent = root, .token = 3}, NULL, NULL);
	cr_assert(t.ids[root * LOGPROBS_MAX + 1] == 5 && t.values[root * LOGPROBS_MAX + 1] == -2);
	beam_nodes_unref(&t, root); /* its beam has gone on */
	beam_nodes_ref(&t, left);   /* an answer, too */
	beam_nodes_unref(&t, right);
	cr_assert_eq(t.nodes[root].refs, 1);
	beam_nodes_unref(&t, left);
	cr_assert_eq(t.nodes[root].token, 1);
	beam_nodes_unref(&t, left);
	beam_nodes_unref(&t, BEAM_NODE_NONE);
	/* All three are free and are given out before any new one. */
	for (u32 i = 0; i < 3; i++)
		cr_assert_lt(beam_nodes_add(&t, (struct beam_node){.parent = BEAM_NODE_NONE}, NULL, NULL), 3);
	cr_assert_eq(beam_nodes_add(&t, (struct beam_node){.parent = BEAM_NODE_NONE}, NULL, NULL), 3);
	free(memory);
}
