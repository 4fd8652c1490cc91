/* The part of a step's plan that is about beam searches: admission of a group, forks, new blocks. Runs inside the
 * scheduling core; the rules of sched.c hold. */
#include <string.h>

#include "common/assert.h"
#include "proc_scheduler/sched_plan_priv.h"

static struct seq *live_seq(const struct sched *s, const struct beam_group *g, u32 i)
{
	return group_seq(&s->seqs, g, g->live[i]);
}

/* ---------------------------------------------------------------- running */

/* A fork shares the full blocks of its source; what is in the last one, if that is not full, is copied. */
static bool needs_copy(const struct sched *s, const struct beam_group *g, u32 beam)
{
	return g->fork_of[beam] != BEAM_NONE &&
	       group_seq(&s->seqs, g, g->fork_of[beam])->computed % s->config.block_size != 0;
}

static bool needs_block(const struct sched *s, const struct beam_group *g, u32 beam)
{
	const struct seq *q = group_seq(&s->seqs, g, beam);
	const struct seq *p = g->fork_of[beam] == BEAM_NONE ? q : group_seq(&s->seqs, g, g->fork_of[beam]);

	return q->in_flight == 0 && p->computed == p->capacity;
}

static void fork_beam(struct sched *s, struct beam_group *g, u32 beam)
{
	struct seq *q = group_seq(&s->seqs, g, beam);
	const struct seq *p = group_seq(&s->seqs, g, g->fork_of[beam]);
	bool copies = needs_copy(s, g, beam);
	u32 shared = p->block_count - copies, fresh = KV_BLOCK_NONE;

	q->row = g->spare_rows[--g->spare_count];
	s->groups.spare_rows--;
	u32 *table = sched_blocks(s, q);
	memcpy(table, sched_blocks(s, p), p->block_count * sizeof(u32));
	enum err e = kv_blocks_grow(&s->kv, table, shared, &fresh, copies);
	ASSERT(e == ERR_OK);
	if (copies) {
		table[shared] = fresh;
		step_diff_copy(&s->diff, sched_blocks(s, p)[shared], fresh);
	}
	q->state = SEQ_RUNNING;
	q->computed = p->computed;
	q->capacity = p->capacity;
	q->block_count = p->block_count;
	q->filed = p->filed;
	step_diff_fork(&s->diff, q, p->row, table, copies ? fresh : KV_BLOCK_NONE);
	running_put_behind(&s->running, g->slots[beam], g->slots[g->fork_of[beam]]);
	g->fork_of[beam] = BEAM_NONE;
}

static void grow_beam(struct sched *s, struct seq *q)
{
	u32 *slot = sched_blocks(s, q) + q->block_count;
	enum err e = kv_blocks_grow(&s->kv, NULL, 0, slot, 1);

	ASSERT(e == ERR_OK);
	step_diff_grow(&s->diff, q->row, q->block_count, *slot);
	q->block_count++;
	q->capacity += s->config.block_size;
}

/* Nobody else is left to be preempted. */
static enum group_turn close_alone(struct sched *s, struct plan *p, struct beam_group *g, u32 needed)
{
	struct err_msg em;

	err_set(&em, ERR_NEVER_FITS, "%u beams need %u KV blocks more than the %u they have; the pool has %u", g->live_count,
		needed - s->kv.free_count, s->kv.count - s->kv.free_count, s->kv.count);
	groups_close(s, g, NULL, FINISH_ERROR, em.text, p->now_ns);
	return GROUP_GONE;
}

static u32 running_of(const struct sched *s, const struct beam_group *g)
{
	u32 count = 0;

	for (u32 beam = 0; beam < g->width; beam++)
		count += group_seq(&s->seqs, g, beam)->state == SEQ_RUNNING;
	return count;
}

/* `copies`: the next step has to make them. Where sequences were swapped out in this one, a block that was given back
 * may be read by a copy already, so that it cannot be written by one. */
static enum group_turn find_blocks(struct sched *s, struct plan *p, struct beam_group *g, u32 needed, u32 copies)
{
	while (s->kv.free_count < needed) {
		const struct beam_group *last = groups_of(s, sched_running(s, s->running.count - 1));
		if (last == g && s->running.count == running_of(s, g))
			return close_alone(s, p, g, needed);
		plan_preempt_last(s, p);
		if (last == g)
			return GROUP_GONE;
	}
	return copies && p->preempted ? GROUP_PAUSES : GROUP_RUNS;
}

/* A beam whose next token is in flight runs nothing yet, and would come back with the same tokens: while others are still
 * computed, it has not outgrown. */
static bool has_outgrown(const struct sched *s, const struct beam_group *g)
{
	bool has = false;

	for (u32 i = 0; i < g->live_count; i++) {
		const struct seq *q = live_seq(s, g, i);
		has |= q->in_flight == 0 && plan_has_outgrown(s, q);
	}
	return has;
}

enum group_turn groups_prepare(struct sched *s, struct plan *p, struct beam_group *g)
{
	u32 copies = 0, grows = 0;

	if (has_outgrown(s, g)) {
		groups_preempt(s, g);
		return GROUP_GONE;
	}
	for (u32 i = 0; i < g->live_count; i++) {
		copies += needs_copy(s, g, g->live[i]);
		grows += needs_block(s, g, g->live[i]);
	}
	enum group_turn turn = find_blocks(s, p, g, copies + grows, copies);
	if (turn != GROUP_RUNS)
		return turn;
	for (u32 i = 0; i < g->live_count; i++)
		if (g->fork_of[g->live[i]] != BEAM_NONE)
			fork_beam(s, g, g->live[i]);
	for (u32 i = 0; i < g->live_count; i++) {
		struct seq *q = live_seq(s, g, i);
		if (g->is_set[g->live[i]])
			step_diff_set(&s->diff, q->row, seqs_tokens(&s->seqs, q)[q->known - 1]);
		g->is_set[g->live[i]] = false;
		if (q->in_flight == 0 && q->computed == q->capacity)
			grow_beam(s, q);
	}
	return GROUP_RUNS;
}

bool groups_may_run(const struct sched *s, const struct seq *q)
{
	const struct beam_group *g = groups_of(s, q);
	u32 shared = g->shared_tokens[q->beam];

	if (q->in_flight)
		return false;
	return shared == 0 || group_seq(&s->seqs, g, g->shares_with[q->beam])->computed >= shared;
}

/* ---------------------------------------------------------------- admission */

static u32 common_tokens(const struct sched *s, const struct seq *a, const struct seq *b)
{
	const u32 *x = seqs_tokens(&s->seqs, a), *y = seqs_tokens(&s->seqs, b);
	u32 n = a->prompt_count; /* all beams have the same prompt */

	while (n < a->known && x[n] == y[n])
		n++;
	return n;
}

/* Beams that are computed again share what they did before: the full blocks of their common tokens, which the first one
 * that has them computes; nothing where each must compute all of its tokens. Returns the blocks that are their own. */
static u32 find_shares(const struct sched *s, struct beam_group *g, u32 total)
{
	u32 block_size = s->config.block_size, own = 0;

	for (u32 i = 1; i < g->live_count; i++) {
		u32 beam = g->live[i];
		g->shared_tokens[beam] = 0;
		for (u32 j = 0; j < i && !s->config.recurrent; j++) {
			u32 common = common_tokens(s, live_seq(s, g, i), live_seq(s, g, j)) / block_size * block_size;
			if (common <= g->shared_tokens[beam])
				continue;
			g->shared_tokens[beam] = common;
			g->shares_with[beam] = g->live[j];
		}
		own += total - g->shared_tokens[beam] / block_size;
	}
	return own;
}

static bool is_waiting_for_results(const struct sched *s, const struct beam_group *g)
{
	for (u32 i = 0; i < g->live_count; i++)
		if (live_seq(s, g, i)->in_flight && !g->reports[g->live[i]].there)
			return true;
	return false;
}

/* Beams that had reported when they were preempted do so again, since their KV is computed again. */
static void begin_anew(struct sched *s, struct beam_group *g)
{
	g->reported = 0;
	for (u32 i = 0; i < g->live_count; i++) {
		u32 beam = g->live[i];
		g->reports[beam].there = false;
		g->is_set[beam] = false;
		g->fork_of[beam] = BEAM_NONE;
		g->shared_tokens[beam] = 0;
		live_seq(s, g, i)->in_flight = 0;
		sched_place(s, live_seq(s, g, i));
	}
}

static void take_rows(struct sched *s, struct beam_group *g)
{
	for (u32 i = 0; i < g->width; i++) {
		u32 row = s->free_rows[--s->free_row_count];
		if (i < g->live_count) {
			live_seq(s, g, i)->row = row;
			continue;
		}
		g->spare_rows[g->spare_count++] = row;
		s->groups.spare_rows++;
	}
}

/* The first `shared` blocks of its table are another's, or the cache's. */
static void add_beam(struct sched *s, struct plan *p, struct seq *q, u32 shared, u32 computed, u32 total)
{
	u32 *table = sched_blocks(s, q);
	enum err e = kv_blocks_grow(&s->kv, table, shared, table + shared, total - shared);

	ASSERT(e == ERR_OK);
	q->state = SEQ_RUNNING;
	q->computed = computed;
	q->filed = shared;
	q->block_count = total;
	q->capacity = total * s->config.block_size;
	running_push(&s->running, &s->seqs, seqs_slot(&s->seqs, q));
	step_diff_add(&s->diff, q, seqs_extra(&s->seqs, q), seqs_tokens(&s->seqs, q), table);
	u32 remaining = q->known - q->computed, count = groups_may_run(s, q) ? plan_chunk(s, p, remaining) : 0;
	if (count)
		plan_run_tokens(s, p, q, count, remaining);
	else
		step_diff_run(&s->diff, q->row, 0, remaining == 1);
}

static void add_beams(struct sched *s, struct plan *p, struct beam_group *g, const struct hit *h, u32 total)
{
	u32 block_size = s->config.block_size;

	for (u32 i = 0; i < g->live_count; i++) {
		struct seq *q = live_seq(s, g, i);
		u32 beam = g->live[i], shared = g->shared_tokens[beam];
		if (i == 0) {
			add_beam(s, p, q, h->shared, h->shared * block_size, total);
			continue;
		}
		if (shared)
			memcpy(sched_blocks(s, q), sched_blocks(s, group_seq(&s->seqs, g, g->shares_with[beam])),
			       shared / block_size * sizeof(u32));
		add_beam(s, p, q, shared / block_size, shared, total);
	}
}

/* Rows, a token of the budget for each, and room in the message. */
static bool has_room(const struct sched *s, const struct beam_group *g, u32 known, u32 total)
{
	return s->free_row_count >= g->width &&
	       plan_row_count(s) + g->width <= s->config.max_num_batched_tokens &&
	       s->diff.msg.add_row_count + g->live_count <= s->diff.row_max &&
	       step_diff_has_room(&s->diff, g->live_count * known, g->live_count * total, 0);
}

/* The pool has become smaller. True: the queue goes on. */
static bool close_too_large(struct sched *s, struct plan *p, struct beam_group *g, u32 needed)
{
	struct err_msg em;

	err_set(&em, ERR_NEVER_FITS, "%u beams of %u tokens need %u KV blocks; the pool has %u", g->live_count,
		live_seq(s, g, 0)->known, needed, s->kv.count);
	groups_close(s, g, NULL, FINISH_ERROR, em.text, p->now_ns);
	return true;
}

bool groups_admit(struct sched *s, struct plan *p, struct seq *leader)
{
	struct beam_group *g = groups_of(s, leader);
	struct seq *first = live_seq(s, g, 0);
	u32 total = (first->known + s->config.block_size - 1) / s->config.block_size;

	if (is_waiting_for_results(s, g) || !has_room(s, g, first->known, total))
		return false;
	if (leader->id == s->blocked_seq && s->running.count && s->kv.free_count <= s->blocked_free)
		return false;
	begin_anew(s, g);
	u32 *table = s->row_blocks + s->free_rows[s->free_row_count - 1] * s->block_stride;
	struct hit h = plan_find_hit(s, p, first, table);
	u32 needed = total - h.shared + find_shares(s, g, total);
	if (needed + h.shared > s->kv.count)
		return close_too_large(s, p, g, needed + h.shared);
	for (u32 i = 0; i < h.shared; i++)
		needed += kv_blocks_refs(&s->kv, table[i]) == 0;
	if (needed + plan_watermark(s) > s->kv.free_count) {
		s->blocked_seq = leader->id;
		s->blocked_free = s->kv.free_count;
		return false;
	}
	h.computed = h.shared * s->config.block_size; /* without the copy of a last block */
	plan_count_first_schedule(s, p, leader, &h);
	sched_open(s, leader);
	waiting_remove(&s->waiting, &s->seqs, leader);
	leader->state = SEQ_HELD;
	take_rows(s, g);
	add_beams(s, p, g, &h, total);
	return true;
}
