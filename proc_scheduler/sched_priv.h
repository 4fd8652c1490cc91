/* What the files of the scheduling core share. */
#ifndef TERCET_PROC_SCHEDULER_SCHED_PRIV_H
#define TERCET_PROC_SCHEDULER_SCHED_PRIV_H

#include "proc_scheduler/sched.h"

/* A request's place in its session, before it is admitted. Without one everything is 0. */
struct session_turn {
	bool named;		 /* it has one */
	bool runs;		 /* ERR_CONFLICT: its turn before is in work */
	bool redone;		 /* it is the last one in the history, and ended before */
	struct session *session; /* NULL: it begins */
	u32 base;		 /* so many tokens of the history stand in front, */
	u32 skip;		 /* and so many first tokens of the request are left out */
};

/* Tokens of the prompt: those of the history and its own. */
static inline u64 turn_prompt(const struct session_turn *t, const struct ipc_submit *m)
{
	return (u64)t->base + m->tokens_count - m->output_count - t->skip;
}

/* session_turns.c: everything a SUBMIT can have wrong about its session; changes nothing. ERR_EXISTS: this very request
 * runs. Others as of sched_submit. */
MUST_CHECK enum err sched_check_turn(const struct sched *s, const struct ipc_submit *m, u64 now_ns,
				     struct session_turn *t, struct err_msg *em);
/* The turn begins: `q` has its id. ERR_BUSY: there are as many sessions as may be, and all run. */
MUST_CHECK enum err sched_begin_turn(struct sched *s, const struct ipc_submit *m, const struct session_turn *t,
				     struct seq *q, u64 now_ns, struct err_msg *em);
/* Whatever ended it: history and outputs up to there are kept; a turn without outputs is not. `given_up`: before it ended by its
 * tokens, so that the detokenizer may have found a stop string in them. */
void sched_end_turn(struct sched *s, struct seq *q, bool given_up, u64 now_ns);
/* A client gives a turn up that ended here by its tokens, and has not heard of that: the same. Of others nothing happens. */
void sched_give_up_ended(struct sched *s, u64 client_id, u64 req_id, u64 now_ns);
/* A turn that is over had a stop string in it, behind that many outputs, of which nobody knew here: its history ends there.
 * Of others, and of a session whose next turn has begun, nothing happens. */
void sched_turn_stopped(struct sched *s, u64 seq, u32 output_count);
/* Before a sequence with a session gives up its row for good: files its last block, which is not full, too. */
void sched_keep_tail(struct sched *s, struct seq *q);
/* That block, if it goes on behind `shared` full ones: KV of the first *computed tokens is in it or in front. */
u32 sched_find_tail(const struct sched *s, const struct seq *q, u32 shared, u32 *computed);

/* validate.c: the whole of a SUBMIT. Errors as of sched_submit, without those of queues and sessions. */
MUST_CHECK enum err validate_submit(const struct sched *s, const struct ipc_submit *m, const struct session_turn *t,
				    struct err_msg *em);
/* min(max_tokens, what the context leaves behind a prompt of `prompt` tokens). */
u32 validate_output_max(const struct sched *s, const struct ipc_submit *m, u32 prompt);

/* sched.c, and of blocks and states sched_cache.c: the state changes that events, plan and recovery have in common. */

/* By which `q` ends. Borrows from its slot. */
struct finish_rule sched_rule(const struct sched *s, const struct seq *q);
/* Takes row and blocks away from a running sequence; the drop goes into the next diff. The state is the
 * caller's. */
void sched_give_up_row(struct sched *s, struct seq *q);
/* Back to the head of the waiting queue; what is in flight still arrives. */
void sched_preempt(struct sched *s, struct seq *q);
/* The end of `q`: everything it holds is given back and the slot is free. */
void sched_finish(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns);
/* The same, and the detokenizer is told. */
void sched_close(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns);
/* The number of the adapter that the request names; 0: none, or one that is not there. */
u32 sched_find_lora(const struct sched *s, const struct ipc_submit *m);
/* What the prefix cache is shared within: the request's salt, and another one for each adapter. */
u64 sched_cache_salt(const struct sched *s, const struct ipc_submit *m);
/* Tells the detokenizer of `q` unless it knows. */
void sched_open(struct sched *s, struct seq *q);
/* Before a sequence gets a row: decides whether its KV is that of long sequences (kv_switch_len); what was hashed
 * for another one is forgotten. */
void sched_place(struct sched *s, struct seq *q);
/* What the hashes of its blocks begin with. */
struct block_hash sched_hash_root(const struct sched *s, const struct seq *q);
/* Computes the hashes of full blocks of known tokens that came since. */
void sched_hash_blocks(struct sched *s, struct seq *q);
/* Files the blocks of a running sequence that are full of known tokens and computed once the planned steps
 * ran. */
void sched_file_blocks(struct sched *s, struct seq *q, u64 step);

/* Before `count` tokens of a running row run in step number `step`: has its state saved on the way, where that is worth it. */
void sched_save_state(struct sched *s, struct seq *q, u32 count, u64 step);
/* A row is given up: a state of it whose tokens are not all known is of no use. */
void sched_forget_saved(struct sched *s, struct seq *q);
/* Of its first *blocks full ones, all in the prefix cache, keeps those behind which a step before `step` has saved the state, and returns the slot;
 * STATE_SLOT_NONE, and *blocks is 0: there is none. */
u32 sched_find_state(struct sched *s, const struct seq *q, u32 *blocks, u64 step);

/* Whether it is worth waiting for a state that this sequence could begin with, having `computed` tokens otherwise: a running one is on its way to it,
 * or step number `step`, which is in the making, saves it. That comes to pass, or the other one ends. */
bool sched_state_is_coming(const struct sched *s, const struct seq *q, u32 computed, u64 step);

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

/* Its last allowed token is in flight. Of beams all wait for all. */
static inline bool sched_is_ending(const struct seq *q)
{
	return !q->group && sched_token_total(q) >= q->token_end;
}

/* Rows that a RESULT has tokens of; of a row no more than can be guessed. */
static inline u32 sched_count_rows(const struct sched *s, const struct ipc_result *m)
{
	u32 rows = 0, more = 0;

	if (s->config.draft_max == 0)
		return m->seq_count;
	for (u32 i = 0; i < m->seq_count; i++) {
		bool guessed = i && m->seq[i] == m->seq[i - 1] && more < s->config.draft_max;
		rows += !guessed;
		more = guessed ? more + 1 : 0;
	}
	return rows;
}

#endif
