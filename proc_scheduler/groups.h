/* Beam searches in the scheduling core. A group is one search: `width` sequences of the table of sequences, each a
 * beam with a row of its own while the group runs, or held. The first sequence stands for all in the waiting queue;
 * the first `answer_count` ones carry the answers at the end.
 *
 *   submit ─► waiting ─► running: every beam runs its newest token; when all have reported, the rule (beam.h) picks
 *                ▲         │      those that go on: a beam's first successor keeps its row, others are forks that
 *                └─────────┘      share its blocks (copy-on-write), beams without one give row and blocks back
 *               preempted: all of them, and computed again from their tokens
 *
 * Beams never run ahead: what they run next is known only when all have reported. The others of the batch do. */
#ifndef TERCET_PROC_SCHEDULER_GROUPS_H
#define TERCET_PROC_SCHEDULER_GROUPS_H

#include "ipc/ipc.h"
#include "proc_scheduler/beam.h"
#include "proc_scheduler/beam_nodes.h"
#include "proc_scheduler/seqs.h"

enum { GROUPS_MAX = 64 };

/* What the workers list of a beam's next token. */
struct beam_report {
	bool there;
	u32 sampled; /* the token that the workers have appended */
	u32 count;
	u32 ids[LOGPROBS_MAX];
	f32 values[LOGPROBS_MAX];
};

struct beam_group {
	u32 width; /* 0: the group is free */
	u32 answer_count;
	u32 slots[BEAM_WIDTH_MAX]; /* of its sequences */
	u32 live_count;
	u32 live[BEAM_WIDTH_MAX]; /* beams (indices into slots), best first */
	u32 reported;		  /* of them */
	f64 length_penalty;
	/* By beam. */
	f64 sums[BEAM_WIDTH_MAX];
	u32 nodes[BEAM_WIDTH_MAX]; /* its last output */
	struct beam_report reports[BEAM_WIDTH_MAX];
	u32 fork_of[BEAM_WIDTH_MAX];   /* it is to begin as a copy of that one, which has a row; BEAM_NONE: no */
	bool is_set[BEAM_WIDTH_MAX];   /* the workers are to be told its newest token */
	u32 shares_with[BEAM_WIDTH_MAX]; /* its first blocks are computed by that beam, */
	u32 shared_tokens[BEAM_WIDTH_MAX]; /* so many tokens; 0: they are its own */
	u32 spare_rows[BEAM_WIDTH_MAX]; /* rows of the group without a beam */
	u32 spare_count;
	struct beam_answers answers;
	struct beam_nodes tree;
};

#define BEAM_NONE UINT32_MAX

struct groups {
	struct beam_group *all; /* [GROUPS_MAX] */
	u32 used;
	u32 spare_rows; /* of all groups */
	void *memory;	/* of the trees: address space that becomes memory as it is written */
	size_t memory_bytes;
	/* A RESULT in the making. */
	u64 *row_seq;
	u32 *row_position, *row_token, *lp_entry, *lp_count, *lp_rank, *lp_ids;
	f32 *lp_values;
	u32 *path; /* [context] */
};

struct sched;
struct sched_admission;
struct plan;

/* `token_max`: of one sequence. ERR_NO_MEMORY. */
MUST_CHECK enum err groups_init(struct groups *t, u32 token_max);
void groups_fini(struct groups *t); /* zeroed accepted */

/* The group of a beam; NULL: it is none. */
struct beam_group *groups_of(const struct sched *s, const struct seq *q);
static inline struct seq *group_seq(const struct seqs *t, const struct beam_group *g, u32 beam)
{
	return &t->slots[g->slots[beam]];
}

/* What a SUBMIT with beam_width must be beside what validate.c checks of every one. ERR_INVALID, ERR_UNSUPPORTED,
 * ERR_NEVER_FITS name the field or both numbers. */
MUST_CHECK enum err groups_validate(const struct sched *s, const struct ipc_submit *m, u32 output_max,
				    struct err_msg *em);
/* Whether there is room for one more. ERR_BUSY; ERR_EXISTS: an answer's request id is in use. */
MUST_CHECK enum err groups_check_room(const struct sched *s, const struct ipc_submit *m, struct err_msg *em);
/* Makes the group of `leader`, which is filled and not queued yet. There is room. */
void groups_add(struct sched *s, struct seq *leader, const struct ipc_submit *m);

/* Element `i` of a RESULT belongs to beam `q`, and is due; `lp`: its element of the lists, `ids` where that begins. */
void groups_report(struct sched *s, struct seq *q, const struct ipc_result *m, u32 i, u32 lp, u32 ids, u64 now_ns);
/* Ends the search and all of its answers; `spared`, or NULL, is told by its caller. */
void groups_close(struct sched *s, struct beam_group *g, const struct seq *spared, enum finish_reason reason,
		  const char *text, u64 now_ns);
/* Takes all rows and blocks of a running group away. */
void groups_give_up_rows(struct sched *s, struct beam_group *g);
/* Back to the head of the queue. */
void groups_preempt(struct sched *s, struct beam_group *g);
/* The workers have forgotten all; rows and blocks are reset by the caller. */
void groups_requeue(struct sched *s, struct beam_group *g);

/* ---- groups_plan.c ---- */

enum group_turn {
	GROUP_RUNS,   /* its beams may run */
	GROUP_PAUSES, /* not in this step */
	GROUP_GONE,   /* it was preempted or ended: its beams are no longer among those that run */
};

/* Before the first beam of a running group is planned: forks and new blocks of all beams, or of none. */
enum group_turn groups_prepare(struct sched *s, struct plan *p, struct beam_group *g);
/* Whether a beam may run now: its token is known, and so is the KV it shares with others. */
bool groups_may_run(const struct sched *s, const struct seq *q);
/* Gives a waiting group its rows and all blocks of its known tokens. False: it has to wait. */
bool groups_admit(struct sched *s, struct plan *p, struct seq *leader);

#endif
