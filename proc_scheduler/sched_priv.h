/* What the files of the scheduling core share. */
#ifndef TERCET_PROC_SCHEDULER_SCHED_PRIV_H
#define TERCET_PROC_SCHEDULER_SCHED_PRIV_H

#include "proc_scheduler/sched.h"

/* validate.c: the whole of a SUBMIT. Errors as of sched_submit, without those of queues. */
MUST_CHECK enum err validate_submit(const struct sched *s, const struct ipc_submit *m, struct err_msg *em);
/* min(max_tokens, what the context leaves behind the prompt). */
u32 validate_output_max(const struct sched *s, const struct ipc_submit *m);

/* sched.c: the state changes that events, plan and recovery have in common. */

/* Takes row and blocks away from a running sequence; the drop goes into the next diff. The state is the
 * caller's. */
void sched_give_up_row(struct sched *s, struct seq *q);
/* Back to the head of the waiting queue; what is in flight still arrives. */
void sched_preempt(struct sched *s, struct seq *q);
/* The end of `q`: everything it holds is given back and the slot is free. */
void sched_finish(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns);
/* The same, and the detokenizer is told. */
void sched_close(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns);
/* Tells the detokenizer of `q` unless it knows. */
void sched_open(struct sched *s, struct seq *q);
/* Before a sequence gets a row: decides whether its KV is that of long sequences (kv_switch_len); what was hashed
 * for another one is forgotten. */
void sched_place(struct sched *s, struct seq *q);
/* Computes the hashes of full blocks of known tokens that came since. */
void sched_hash_blocks(struct sched *s, struct seq *q);
/* Files the blocks of a running sequence that are full of known tokens and computed once the planned steps
 * ran. */
void sched_file_blocks(struct sched *s, struct seq *q, u64 step);

/* swap.c: KV of preempted sequences in the host's memory. */

/* Before a running sequence is preempted: copies what is computed of it to the host in the step in the making, if there
 * is room; if not, it will be recomputed. */
void sched_swap_out(struct sched *s, struct seq *q);
/* Copies blocks from number `first` on back into those of `table`, and gives the chain back. It may have none. */
void sched_swap_in(struct sched *s, struct seq *q, const u32 *table, u32 first);
/* Gives the chain back, if there is one. */
void sched_swap_forget(struct sched *s, struct seq *q);

static inline struct seq *sched_running(const struct sched *s, u32 i)
{
	return &s->seqs.slots[s->running.slots[i]];
}

/* Known and to come. */
static inline u32 sched_token_total(const struct seq *q)
{
	return q->known + q->in_flight;
}

#endif
