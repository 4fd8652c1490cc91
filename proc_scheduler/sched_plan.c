/* Decides what the next step runs: the parent keeps the branches, its children the loops (docs/SCHEDULER.md).
 * Runs inside the scheduling core; the rules of sched.c hold.
 *
 *   sched_plan
 *     drop_ending     rows whose last allowed token is in flight
 *     plan_running    running first, in order of admission
 *       grow            one block more, or preempt from the end of the order
 *         swap_out        its KV to the host's memory, if there is room (swap.c)
 *     plan_waiting    then new ones, while rows, budget and blocks last
 *       find_hit        the cached beginning of its tokens
 *       take_blocks     all blocks of its known tokens, or none
 *       swap_in         what the cache has lost and the host has kept
 *     run_tokens      what all of them end in */
#include <string.h>

#include "common/assert.h"
#include "proc_scheduler/sched_plan_priv.h"

/* A hundredth of the pool stays free when a request joins others, so that they can grow for a while. */
enum { WATERMARK_PARTS = 100 };

static u32 min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

u32 plan_chunk(const struct sched *s, const struct plan *p, u32 remaining)
{
	u32 threshold = s->config.long_prefill_token_threshold;

	if (threshold)
		remaining = min_u32(remaining, threshold);
	return min_u32(remaining, p->budget > p->reserved ? p->budget - p->reserved : 0);
}

static inline void run_tokens(struct sched *s, struct plan *p, struct seq *q, u32 count, u32 remaining)
{
	step_diff_run(&s->diff, q->row, count, remaining == 1);
	if (s->states.count)
		sched_save_state(s, q, count, p->step);
	q->computed += count;
	p->budget -= count;
	if (count == remaining) {
		q->in_flight++;
		p->tokens_due++;
		if (sched_is_ending(q))
			s->ending_count++;
	}
	/* With guesses rows have blocks ahead of their tokens. */
	bool full = s->config.draft_max ? q->computed >= (q->filed + 1) * s->config.block_size : q->computed == q->capacity;
	if (count > 1 || full)
		sched_file_blocks(s, q, p->step);
}

void plan_run_tokens(struct sched *s, struct plan *p, struct seq *q, u32 count, u32 remaining)
{
	run_tokens(s, p, q, count, remaining);
}

/* Limits are known ahead: no step is spent on a sequence that can take no further token. */
static void drop_ending(struct sched *s)
{
	for (u32 i = s->running.count; s->ending_count && i-- > 0;) {
		struct seq *q = sched_running(s, i);
		if (!sched_is_ending(q))
			continue;
		sched_keep_tail(s, q);
		sched_give_up_row(s, q);
		q->state = SEQ_DRAINING;
	}
}

void plan_preempt_last(struct sched *s, struct plan *p)
{
	struct seq *victim = sched_running(s, s->running.count - 1);

	p->preempted = true;
	if (victim->group) {
		groups_preempt(s, groups_of(s, victim));
		return;
	}
	sched_swap_out(s, victim);
	sched_preempt(s, victim);
}

/* One block more for `q`. The last ones of the order are preempted until one is free. False: `q` itself had
 * to go. */
static bool grow(struct sched *s, struct plan *p, struct seq *q)
{
	u32 *slot = sched_blocks(s, q) + q->block_count;

	while (kv_blocks_grow(&s->kv, NULL, 0, slot, 1)) {
		struct seq *victim = sched_running(s, s->running.count - 1);
		if (victim == q && s->running.count == 1) {
			struct err_msg em;
			err_set(&em, ERR_NEVER_FITS, "%u tokens need %u KV blocks; the pool has %u",
				q->capacity + 1, q->block_count + 1, s->kv.count);
			sched_close(s, q, FINISH_ERROR, em.text, p->now_ns);
			return false;
		}
		plan_preempt_last(s, p);
		if (victim == q)
			return false;
	}
	step_diff_grow(&s->diff, q->row, q->block_count, *slot);
	q->block_count++;
	q->capacity += s->config.block_size;
	return true;
}

/* What is guessed ahead of a decoding row needs room, too: one block more, if it is to be had without taking it from
 * anybody, and never for what lies behind its last token. */
static void grow_ahead(struct sched *s, struct seq *q)
{
	u32 needed = min_u32(q->computed + 1 + s->config.draft_max, q->token_end - 1);
	u32 *slot = sched_blocks(s, q) + q->block_count;

	if (q->capacity >= needed || s->kv.free_count <= plan_watermark(s) || kv_blocks_grow(&s->kv, NULL, 0, slot, 1))
		return;
	step_diff_grow(&s->diff, q->row, q->block_count, *slot);
	q->block_count++;
	q->capacity += s->config.block_size;
}

/* In order of admission decoding sequences stand in front of prompts in work, since nobody is admitted while those
 * use up the budget. With priorities a long prompt can stand in front; those that decode get their token still. */
static u32 count_decoding(const struct sched *s)
{
	u32 count = 0;

	for (u32 i = 0; i < s->running.count; i++) {
		const struct seq *q = sched_running(s, i);
		count += sched_token_total(q) - q->computed == 1 && (!q->group || q->in_flight == 0);
	}
	return count;
}

static inline bool has_outgrown(const struct sched *s, const struct seq *q)
{
	return s->config.kv_switch_len && !s->config.kv_by_prompt && !q->beyond &&
	       q->computed >= s->config.kv_switch_len;
}

bool plan_has_outgrown(const struct sched *s, const struct seq *q)
{
	return has_outgrown(s, q);
}

/* One state of a row can be saved in a step. */
static inline u32 up_to_branch(const struct seq *q, u32 count)
{
	return q->branch > q->computed ? min_u32(count, q->branch - q->computed) : count;
}

/* Decoding sequences need one token; prompts in work get what is left. A row that the rule would run but the
 * budget does not reach pauses. Blocks of prompts were taken when they were admitted, so only decoding grows.
 * The beams of a group stand beside each other: before the first one all get their blocks, or all wait. */
static void plan_running(struct sched *s, struct plan *p)
{
	enum group_turn turn = GROUP_RUNS;
	u32 group = 0;

	for (u32 i = 0; i < s->running.count; i++) {
		struct seq *q = sched_running(s, i);
		u32 remaining = sched_token_total(q) - q->computed;
		if (!q->group && has_outgrown(s, q)) { /* it comes back, with its KV computed anew, when its tokens are known */
			sched_preempt(s, q);
			i--;
			continue;
		}
		if (q->group && q->group != group) {
			turn = groups_prepare(s, p, groups_of(s, q));
			if (turn == GROUP_GONE) {
				i--;
				continue;
			}
		}
		group = q->group;
		bool waits = group && (turn == GROUP_PAUSES || !groups_may_run(s, q));
		u32 count = waits ? 0 : remaining == 1 ? min_u32(1, p->budget) : up_to_branch(q, plan_chunk(s, p, remaining));
		p->reserved -= p->reserved && remaining == 1 && (!group || q->in_flight == 0);
		if (count == 0) {
			step_diff_run(&s->diff, q->row, 0, remaining == 1);
			continue;
		}
		bool full = q->computed == q->capacity;
		if (full && !grow(s, p, q))
			return; /* it was the last */
		if (s->config.draft_max && !full && !group && remaining == 1)
			grow_ahead(s, q);
		run_tokens(s, p, q, count, remaining);
	}
}

static bool may_read_cache(const struct sched *s, const struct seq *q)
{
	if (!s->config.prefix_caching || (q->params.flags & SAMPLING_NO_CACHE_READ))
		return false;
	/* Prompt log-probabilities need every position computed; once there are outputs they were delivered.
	 */
	return q->params.prompt_logprobs < 0 || seq_output_count(q) > 0;
}

/* Of the blocks that were found those that a state is behind; a token must be left to run. */
static void find_state(struct sched *s, const struct plan *p, const struct seq *q, struct hit *h)
{
	u32 found = min_u32(h->shared, (q->known - 1) / s->config.block_size);

	h->shared = found;
	h->state_slot = sched_find_state(s, q, &h->shared, p->step);
	h->computed = h->shared * s->config.block_size;
	h->branch = found > h->shared ? found * s->config.block_size : 0;
}

struct hit plan_find_hit(struct sched *s, const struct plan *p, struct seq *q, u32 *table)
{
	u32 block_size = s->config.block_size;
	struct hit h = {.state_slot = STATE_SLOT_NONE, .copy_src = KV_BLOCK_NONE};

	if (!may_read_cache(s, q) || (s->config.recurrent && q->group))
		return h;
	sched_hash_blocks(s, q);
	const struct block_hash *hashes = seqs_hashes(&s->seqs, q);
	while (h.shared < q->hashed) {
		u32 block = prefix_cache_find(&s->cache, hashes[h.shared]);
		if (block == KV_BLOCK_NONE)
			break;
		table[h.shared++] = block;
	}
	if (s->config.recurrent) {
		find_state(s, p, q, &h);
		return h;
	}
	h.computed = h.shared * block_size;
	if (h.shared && h.computed == q->known) {
		u32 last = table[--h.shared];
		h.computed = h.shared * block_size;
		if (block_size > 1 && prefix_cache_step(&s->cache, last) < p->step) {
			h.computed = q->known - 1;
			h.copy_src = last;
		}
	} else {
		h.copy_src = sched_find_tail(s, q, h.shared, &h.computed);
	}
	return h;
}

u32 plan_watermark(const struct sched *s)
{
	return s->running.count ? s->kv.count / WATERMARK_PARTS : 0;
}

static bool has_blocks(const struct sched *s, const u32 *table, const struct hit *h, u32 fresh)
{
	u32 needed = fresh + plan_watermark(s);

	for (u32 i = 0; i < h->shared; i++)
		needed += kv_blocks_refs(&s->kv, table[i]) == 0;
	if (h->copy_src != KV_BLOCK_NONE)
		needed += kv_blocks_refs(&s->kv, h->copy_src) == 0;
	return needed <= s->kv.free_count;
}

/* Fills `table` with `total` blocks, the first of them shared as `h` says. False: nothing changed. */
static bool take_blocks(struct sched *s, u32 *table, struct hit *h, u32 total)
{
	u32 fresh = total - h->shared;

	if (!has_blocks(s, table, h, fresh)) {
		/* The source of a copy needs a block for a moment; without the copy it may just suffice. */
		h->computed = h->copy_src == KV_BLOCK_NONE ? h->computed : h->shared * s->config.block_size;
		h->copy_src = KV_BLOCK_NONE;
		if (!has_blocks(s, table, h, fresh))
			return false;
	}
	/* Held until the step is built: a block that is read by a copy must not be given out in the same
	 * step. */
	if (h->copy_src != KV_BLOCK_NONE) {
		kv_blocks_take(&s->kv, h->copy_src);
		s->pinned_blocks[s->pinned_count++] = h->copy_src;
	}
	enum err e = kv_blocks_grow(&s->kv, table, h->shared, table + h->shared, fresh);
	ASSERT(e == ERR_OK);
	if (h->copy_src != KV_BLOCK_NONE)
		step_diff_copy(&s->diff, h->copy_src, table[h->shared]);
	return true;
}

/* Whether the host has kept more of a preempted sequence than the cache. */
static bool is_behind_host(const struct seq_extra *x, struct hit *h)
{
	if (x->host_computed <= h->computed)
		return false;
	h->computed = x->host_computed;
	h->copy_src = KV_BLOCK_NONE;
	return true;
}

void plan_count_first_schedule(struct sched *s, const struct plan *p, struct seq *q, const struct hit *h)
{
	if (q->scheduled_ns)
		return;
	q->scheduled_ns = p->now_ns;
	q->cached_count = min_u32(h->computed, q->prompt_count);
	stats_add(s->stats, STATS_PROMPT_TOKENS, q->prompt_count);
	stats_observe(s->stats, STATS_QUEUE, (double)(p->now_ns - q->arrived_ns) / 1e9);
	if (!may_read_cache(s, q))
		return;
	stats_add(s->stats, STATS_PREFIX_CACHE_QUERIES, q->prompt_count);
	stats_add(s->stats, STATS_PREFIX_CACHE_HITS, q->cached_count);
}

/* Gives the head of the waiting queue a row and all blocks of its known tokens. False: it has to wait. */
static bool admit(struct sched *s, struct plan *p, struct seq *q)
{
	u32 block_size = s->config.block_size;
	u32 total = (q->known + block_size - 1) / block_size;
	u32 row = s->free_rows[s->free_row_count - 1];
	u32 *table = s->row_blocks + row * s->block_stride;
	const struct seq_extra *x = seqs_extra(&s->seqs, q);

	if (!step_diff_has_room(&s->diff, q->known, total, x->grammar_bytes) || !step_diff_has_copy_room(&s->diff, x->host_count))
		return false;
	/* Nothing came free since it was refused: the walk over its hashes would only cost time. */
	if (q->id == s->blocked_seq && s->running.count && s->kv.free_count <= s->blocked_free)
		return false;
	sched_place(s, q);
	struct hit h = plan_find_hit(s, p, q, table);
	if (s->states.count && may_read_cache(s, q) && sched_state_is_coming(s, q, h.computed, p->step))
		return false;
	bool from_host = is_behind_host(x, &h);
	if (!take_blocks(s, table, &h, total)) {
		s->blocked_seq = q->id;
		s->blocked_free = s->kv.free_count;
		return false;
	}
	plan_count_first_schedule(s, p, q, &h);
	sched_swap_in(s, q, table, from_host ? h.shared : x->host_count);
	sched_open(s, q);
	waiting_remove(&s->waiting, &s->seqs, q);
	running_push(&s->running, &s->seqs, seqs_slot(&s->seqs, q));
	s->free_row_count--;
	q->state = SEQ_RUNNING;
	q->row = row;
	q->computed = h.computed;
	q->filed = h.shared;
	q->block_count = total;
	q->capacity = total * block_size;
	step_diff_add(&s->diff, q, x, seqs_tokens(&s->seqs, q), table);
	if (h.state_slot != STATE_SLOT_NONE)
		step_diff_load(&s->diff, h.state_slot);
	if (x->grammar_kind)
		step_diff_constrain(&s->diff, x, seqs_grammar(&s->seqs, q));
	q->branch = h.branch;
	u32 remaining = q->known - q->computed;
	run_tokens(s, p, q, up_to_branch(q, plan_chunk(s, p, remaining)), remaining);
	return true;
}

/* In order: who cannot be served holds up those behind. A preempted one waits for its tokens
 * in flight. */
static void plan_waiting(struct sched *s, struct plan *p)
{
	struct seq *q;

	while (p->budget && s->free_row_count && plan_row_count(s) < s->config.max_num_batched_tokens &&
	       (q = waiting_head(&s->waiting, &s->seqs))) {
		if (q->group) {
			if (!groups_admit(s, p, q))
				return;
			continue;
		}
		if (q->in_flight)
			return;
		u32 needed = (q->known + s->config.block_size - 1) / s->config.block_size;
		if (needed > s->kv.count) {
			struct err_msg em;
			err_set(&em, ERR_NEVER_FITS, "%u tokens need %u KV blocks; the pool has %u", q->known,
				needed, s->kv.count);
			sched_close(s, q, FINISH_ERROR, em.text, p->now_ns);
			continue;
		}
		if (!admit(s, p, q))
			return;
	}
}

static void count_step(struct sched *s)
{
	u64 used = s->kv.count - s->kv.free_count;

	stats_set(s->stats, STATS_NUM_REQUESTS_RUNNING, s->running.count);
	stats_set(s->stats, STATS_NUM_REQUESTS_WAITING, s->waiting.count);
	stats_set(s->stats, STATS_KV_CACHE_USAGE, used * 1000000 / s->kv.count);
	stats_set(s->stats, STATS_NUM_REQUESTS_SWAPPED, s->swapped_count);
	if (s->host.count)
		stats_set(s->stats, STATS_HOST_CACHE_USAGE,
			  (u64)(s->host.count - s->host.free_count) * 1000000 / s->host.count);
}

/* Two short steps may pass before a result was handled and a plan sent, above all where all processes share
 * few cores: a third one in stock costs nobody anything. */
static u32 flights_max(const struct sched *s)
{
	bool short_steps = s->step_us && s->step_us < SCHED_SHORT_STEP_US;

	return s->config.async_depth + (short_steps && s->config.async_depth == SCHED_DEPTH_MAX ? 2 : 1);
}

const struct ipc_step *sched_plan(struct sched *s, u64 now_ns)
{
	if (s->flight_count >= flights_max(s))
		return NULL;
	step_diff_begin(&s->diff);
	struct plan p = {
		.now_ns = now_ns, .step = s->diff.step + 1, .budget = s->config.max_num_batched_tokens};
	drop_ending(s);
	p.reserved = s->config.by_priority ? count_decoding(s) : 0;
	plan_running(s, &p);
	if (!p.preempted)
		plan_waiting(s, &p);
	while (s->pinned_count)
		kv_blocks_release(&s->kv, s->pinned_blocks[--s->pinned_count]);
	count_step(s);
	if (step_diff_is_empty(&s->diff))
		return NULL;
	if (s->diff.tokens_run) {
		s->flights[s->flight_count++] = (struct sched_flight){p.step, p.tokens_due};
		stats_observe(s->stats, STATS_STEP_TOKENS, s->diff.tokens_run);
	}
	stats_add(s->stats, STATS_STEPS, 1);
	return step_diff_finish(&s->diff);
}
