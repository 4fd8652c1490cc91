/* The way of a preempted sequence's KV to the host's memory and back. Runs inside the scheduling core; the rules of
 * sched.c hold.
 *
 * Blocks are copied out in the step that drops the row and copied in in the step that adds it again. Steps that
 * preempt admit nobody, so no step does both: no block is read and written in one step, whichever pool it is of.
 *
 * Blocks that the prefix cache still holds are copied, too. They are free from now on, at the end of the list that the
 * next preemption or admission takes from, and nobody could copy one when it is taken: that step writes to it, and no step
 * reads and writes a block. So only a copy of now is sure to be there; what has outlived the wait in the cache is not
 * copied back.
 *
 * There is no model of costs behind it: the bytes of a token's KV cross a bus in a small part of the time in which the
 * token is computed again, for long sequences and short ones alike, so whoever fits into the pool is swapped. */
#include "common/assert.h"
#include "proc_scheduler/sched_priv.h"

void sched_swap_out(struct sched *s, struct seq *q)
{
	u32 block_size = s->config.block_size;
	u32 count = (q->computed + block_size - 1) / block_size;
	const u32 *table = sched_blocks(s, q);
	struct seq_extra *x = seqs_extra(&s->seqs, q);

	ASSERT(q->state == SEQ_RUNNING && x->host_count == 0 && count <= q->block_count);
	if (count == 0 || count > s->host.free_count || !step_diff_has_copy_room(&s->diff, count))
		return;
	x->host_first = host_blocks_take(&s->host, count);
	x->host_count = count;
	x->host_computed = q->computed;
	for (u32 i = 0, block = x->host_first; i < count; i++, block = s->host.next[block])
		step_diff_copy(&s->diff, table[i], s->kv.count + block);
	s->swapped_count++;
	stats_add(s->stats, STATS_SWAPPED_OUT_BLOCKS, count);
}

void sched_swap_forget(struct sched *s, struct seq *q)
{
	struct seq_extra *x = seqs_extra(&s->seqs, q);

	if (x->host_count == 0)
		return;
	host_blocks_release(&s->host, x->host_first, x->host_count);
	x->host_count = x->host_computed = 0;
	s->swapped_count--;
}

void sched_swap_in(struct sched *s, struct seq *q, const u32 *table, u32 first)
{
	const struct seq_extra *x = seqs_extra(&s->seqs, q);

	for (u32 i = 0, block = x->host_first; i < x->host_count; i++, block = s->host.next[block])
		if (i >= first)
			step_diff_copy(&s->diff, s->kv.count + block, table[i]);
	if (x->host_count > first)
		stats_add(s->stats, STATS_SWAPPED_IN_BLOCKS, x->host_count - first);
	sched_swap_forget(s, q);
}
