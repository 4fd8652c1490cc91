/* What sched_plan.c shares with the plan of beam searches. */
#ifndef TERCET_PROC_SCHEDULER_SCHED_PLAN_PRIV_H
#define TERCET_PROC_SCHEDULER_SCHED_PLAN_PRIV_H

#include "proc_scheduler/sched_priv.h"

struct plan {
	u64 now_ns;
	u64 step;	/* number of the step in the making */
	u32 budget;	/* tokens left */
	u32 reserved;	/* of these, for running sequences further behind that decode */
	u32 tokens_due; /* rows that will sample */
	bool preempted;
};

/* What the prefix cache has of a sequence's tokens. */
struct hit {
	u32 shared;   /* blocks to take over as they are; they stand at the beginning of its table */
	u32 computed; /* tokens that need not be run */
	u32 state_slot; /* with `recurrent`: where the state behind these is, or STATE_SLOT_NONE */
	u32 branch;	/* tokens that the cache has in full blocks, behind which there is no state: more than `computed`; or 0 */
	u32 copy_src; /* not KV_BLOCK_NONE: this block holds the last of them, and is copied, since it is written on */
};

/* Up to `remaining` tokens of a prompt: what chunking and the budget leave of them. */
u32 plan_chunk(const struct sched *s, const struct plan *p, u32 remaining);
/* `count` of its `remaining` tokens run in this step. When they are all, it will sample: a placeholder stands
 * for that output. */
void plan_run_tokens(struct sched *s, struct plan *p, struct seq *q, u32 count, u32 remaining);
/* Walks the hashes up to the first miss and writes the blocks into `table`. At least one token must be run,
 * since sampling needs its logits: when all are cached, the last block is copied and one token recomputed in
 * the copy, if its content is there before this step; else that block is recomputed. With `recurrent` only blocks that a saved state
 * is behind count, and no search finds anything. */
struct hit plan_find_hit(struct sched *s, const struct plan *p, struct seq *q, u32 *table);
void plan_count_first_schedule(struct sched *s, const struct plan *p, struct seq *q, const struct hit *h);
/* Blocks that stay free when a request joins others, so that they can grow for a while. */
u32 plan_watermark(const struct sched *s);
/* The next token of `q` is the first beyond kv_switch_len, and its KV is that of a shorter sequence. */
bool plan_has_outgrown(const struct sched *s, const struct seq *q);
/* Takes the row and blocks of the last one of the order, or of its group. Nothing of it may run in this step. */
void plan_preempt_last(struct sched *s, struct plan *p);

/* Rows that run or that belong to a group whose beams will. Each may need a token of the budget. */
static inline u32 plan_row_count(const struct sched *s)
{
	return s->running.count + s->groups.spare_rows;
}

#endif
