/* What the core does when a neighbour starts anew: workers (nothing of the KV cache is left) or the
 * detokenizer (it knows no stream). Runs inside the scheduling core; the rules of sched.c hold. */
#include "common/assert.h"
#include "proc_scheduler/sched_priv.h"

/* Whatever it held on the workers is gone; what it knows is not. */
static void requeue(struct sched *s, struct seq *q)
{
	q->state = SEQ_WAITING;
	q->preempted = true;
	q->computed = q->capacity = q->block_count = q->filed = 0;
	q->branch = q->pending_tokens = q->saved_tokens = 0;
	waiting_push_head(&s->waiting, &s->seqs, q);
}

void sched_restart_workers(struct sched *s, u32 block_count, u32 host_block_count, u32 state_slots, u64 now_ns)
{
	(void)now_ns;
	/* In the order in which they ran at the head of the queue (of their priority), in front of them those
	 * that only waited for their last token. */
	while (s->running.count) {
		struct seq *q = sched_running(s, s->running.count - 1);
		if (q->group) {
			groups_requeue(s, groups_of(s, q));
			continue;
		}
		s->running.count--;
		requeue(s, q);
	}
	for (u32 i = 0; i < s->seqs.slot_count; i++) {
		struct seq *q = &s->seqs.slots[i];
		if (q->id && q->state == SEQ_DRAINING)
			requeue(s, q);
		q->in_flight = 0;
		if (q->id)
			seqs_extra(&s->seqs, q)->host_count = seqs_extra(&s->seqs, q)->host_computed = 0;
	}
	u32 rows = s->config.max_num_seqs;
	for (u32 i = 0; i < rows; i++)
		s->free_rows[i] = rows - 1 - i;
	s->free_row_count = rows;
	s->flight_count = s->ending_count = s->pinned_count = 0;
	s->blocked_seq = 0;
	kv_blocks_reset(&s->kv, block_count < s->kv.capacity ? block_count : s->kv.capacity);
	host_blocks_reset(&s->host, host_block_count < s->host.capacity ? host_block_count : s->host.capacity);
	state_cache_reset(&s->states, state_slots < s->states.capacity ? state_slots : s->states.capacity);
	s->swapped_count = 0;
	step_diff_reset(&s->diff);
	stats_set(s->stats, STATS_KV_BLOCKS, s->kv.count);
	/* A result may have reached only one of the two processes it was sent to: the longer list of tokens
	 * wins. */
	sched_reopen_streams(s);
}

void sched_reopen_streams(struct sched *s)
{
	for (u32 i = 0; i < s->seqs.slot_count; i++) {
		struct seq *q = &s->seqs.slots[i];
		if (q->id && q->opened)
			s->sink.open(s->sink.ctx, q, seqs_extra(&s->seqs, q), seqs_tokens(&s->seqs, q));
	}
}
