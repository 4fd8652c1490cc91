/* The scheduling core: events and a clock value in, steps and stream events out. No socket, no clock read, no
 * allocation after create. docs/SCHEDULER.md draws its parts.
 *
 * Every request that sched_submit accepts ends exactly once: by its tokens (common/finish.h; the detokenizer
 * finds the same end by itself), by STOPPED from the detokenizer, or by a `close` of the sink. */
#ifndef TERCET_PROC_SCHEDULER_SCHED_H
#define TERCET_PROC_SCHEDULER_SCHED_H

#include "common/finish.h"
#include "common/lora_modules.h"
#include "common/shm_stats.h"
#include "proc_scheduler/groups.h"
#include "proc_scheduler/host_blocks.h"
#include "proc_scheduler/kv_blocks.h"
#include "proc_scheduler/queues.h"
#include "proc_scheduler/seqs.h"
#include "proc_scheduler/sessions.h"
#include "proc_scheduler/state_cache.h"
#include "proc_scheduler/step_diff.h"

enum { SCHED_DEPTH_MAX = 2, SCHED_FLIGHTS_MAX = SCHED_DEPTH_MAX + 2, SCHED_SHORT_STEP_US = 1000 };

struct sched_config {
	u32 max_num_seqs;
	u32 max_num_batched_tokens;
	u32 long_prefill_token_threshold; /* 0: the budget */
	u32 max_queued_requests;
	bool by_priority; /* else a priority other than 0 is refused */
	u32 async_depth; /* at most depth + 1 steps are in flight; at depth 2 one more while steps are short */
	u32 draft_max;	 /* tokens a worker may guess ahead for a row in one step; above 0 async_depth must be 0 */
	u32 block_size, block_count;
	u32 host_block_count; /* in the host's memory, for preempted sequences; 0: they are recomputed */
	u32 max_model_len;
	u32 vocab_size;
	u32 embedding_width; /* numbers of an embedding */
	bool headless;	     /* nothing but embeddings is given */
	bool prefix_caching;
	u32 kv_switch_len; /* 0: none; longer sequences have another KV than shorter ones (WORKER_READY) */
	bool recurrent; /* what is computed of a sequence is in its row, too: who begins with its blocks needs a state that was saved (WORKER_READY) */
	u32 state_slots; /* for these; 0: none is */
	bool kv_by_prompt; /* it depends on the prompt's length; else on the length when the row is added */
	u64 seed; /* of requests that bring none; 0: one is drawn for each */
	u32 eos_count;
	u32 eos_ids[EOS_IDS_MAX];
	u8 secret[PREFIX_SECRET_BYTES]; /* random; decides hashes and drawn seeds */
	u64 first_number;		/* sequence ids begin above it */
	struct sessions *sessions;	/* borrowed; NULL: none are kept */
	const struct lora_modules *loras; /* borrowed; NULL: there are no adapters */
	char no_grammars[256];		/* why no grammar can constrain an output; "": they can */
	char no_embeddings[256];	/* why there are none; "": there are */
};

/* What goes to the detokenizer. Called synchronously from any event or plan; `q` is borrowed for the call. */
struct sched_sink {
	void *ctx;
	/* Before the first step of `q`, and again when streams are re-opened. */
	void (*open)(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens);
	/* `q` ended for another reason than its tokens; or, with FINISH_NONE, the turn of a session that `q` was ended by
	 * them and is kept. */
	void (*close)(void *ctx, const struct seq *q, enum finish_reason reason, const char *text);
	/* `q` ended, for whatever reason, after what was called above; with all its tokens, for who has to
	 * know later. */
	void (*end)(void *ctx, const struct seq *q, const struct seq_extra *x, const u32 *tokens,
		    enum finish_reason reason, const char *text);
	/* Outputs of open sequences that no worker tells the detokenizer of, in order: answers of a beam search.
	 * They come with their log-probabilities where those were asked for. */
	void (*result)(void *ctx, const struct ipc_result *m);
	/* A sequence that had ended, and whose stop string became known only then: of its turn no more than `output_count` outputs
	 * are kept now. */
	void (*kept)(void *ctx, u64 seq, u32 output_count);
};

/* A step that is sent and whose result is not back; only those that run tokens. */
struct sched_flight {
	u64 step;
	u32 tokens_due; /* sampled tokens its result must bring */
};

struct sched {
	struct sched_config config;
	u32 context_max; /* tokens of one sequence: max_model_len, but no more than the pool held at create */
	struct sched_sink sink;
	struct stats_page *stats; /* borrowed */
	struct seqs seqs;
	struct waiting waiting;
	struct running running;
	struct groups groups;
	struct kv_blocks kv;
	struct prefix_cache cache;
	struct state_cache states;
	struct host_blocks host;
	u32 swapped_count; /* waiting sequences that have blocks there */
	struct step_diff diff;
	u32 *row_blocks; /* [max_num_seqs][block_stride]: the block tables */
	size_t block_stride;
	u32 *free_rows; /* a stack */
	u32 free_row_count;
	struct sched_flight flights[SCHED_FLIGHTS_MAX]; /* oldest first */
	u32 flight_count;
	u32 step_us; /* smoothed time that a step computes; 0: not known */
	u32 ending_count;   /* running sequences whose last allowed token is in flight */
	u32 *pinned_blocks; /* sources of this step's copies, kept until it is built */
	u32 pinned_count;
	u64 blocked_seq;		     /* the head of waiting for which blocks lacked, */
	u32 blocked_free;		     /* and how many were free then */
	u64 finished_ns, finish_interval_ns; /* last end; smoothed time between ends */
	bool draining;
};

struct sched_admission {
	u64 seq;
	u32 waiting;	    /* requests in front of it */
	u32 retry_after_ms; /* with ERR_BUSY */
	bool turn_runs;	    /* with ERR_CONFLICT: the turn before is in work. It may wait, and is not counted as refused yet */
};

/* ERR_NO_MEMORY. ERR_TOO_LONG: one sequence would not fit into a STEP. `stats` and the sink's ctx must outlive
 * it. */
MUST_CHECK enum err sched_create(struct sched **out, const struct sched_config *config,
				 const struct sched_sink *sink, struct stats_page *stats, struct err_msg *em);
void sched_destroy(struct sched **s);

/* Checks everything and queues the request. ERR_INVALID, ERR_TOO_LONG, ERR_UNSUPPORTED: what is wrong and
 * what would be right. ERR_NEVER_FITS with both numbers. ERR_EXISTS: the client has that request running.
 * ERR_SHUTDOWN. ERR_BUSY: the queue is full; retry_after_ms. A request that earlier outputs have ended
 * already is opened and closed. Of a session: ERR_NOT_FOUND, ERR_DROPPED (there is none (any more)), ERR_CONFLICT (it runs,
 * is to begin and is there, or was cut off). A refused request leaves its session as it was. */
MUST_CHECK enum err sched_submit(struct sched *s, const struct ipc_submit *m, u64 now_ns,
				 struct sched_admission *out, struct err_msg *em);
/* Ends a request of a client; false when it is unknown or has ended. */
bool sched_abort(struct sched *s, u64 client_id, u64 req_id, u64 now_ns);
/* Ends all requests of a client; how many. */
u32 sched_abort_client(struct sched *s, u64 client_id, u64 now_ns);
/* A worker cannot go on with that sequence: it ends with FINISH_ERROR and `text`. Unknown and ended ones are ignored. */
void sched_fail(struct sched *s, u64 seq, const char *text, u64 now_ns);
/* Ends everything with FINISH_ERROR and `text`. */
void sched_fail_all(struct sched *s, const char *text, u64 now_ns);
/* The detokenizer found a stop string that ends at `output_count` outputs, of which some may not have come here yet: they
 * are waited for. Of an ended turn of a session the history is cut there, and where sessions are kept the sink is told so, also of
 * unknown sequences: a turn may have been followed by another, or its session have left. */
void sched_stopped(struct sched *s, u64 seq, u32 output_count, u64 now_ns);
/* Refuses what comes from now on; what is there runs to its end. */
void sched_drain(struct sched *s);

/* What a client may know of a session; session_state.token_count and the like are set when ERR_OK. ERR_NOT_FOUND,
 * ERR_DROPPED, ERR_INVALID (its name), ERR_UNSUPPORTED (none are kept). */
MUST_CHECK enum err sched_session_get(struct sched *s, const struct ipc_session *m, u64 now_ns,
				      struct ipc_session_state *out, struct err_msg *em);
/* Whether a turn of that session is in work, or where its last one ended is not known yet. */
bool sched_session_runs(const struct sched *s, const struct ipc_session *m, u64 now_ns);
/* Ends it; a turn that runs is aborted. `out` is what it was. Errors as above. */
MUST_CHECK enum err sched_session_end(struct sched *s, const struct ipc_session *m, u64 now_ns,
				      struct ipc_session_state *out, struct err_msg *em);

/* Applies the result of the oldest step in flight. Results of older or unknown steps, and tokens for
 * sequences that ended or at positions not due, are ignored. ERR_SEQUENCE: a result was lost; ERR_DIVERGED:
 * it does not hold what its step must give. After either only sched_restart_workers helps. */
MUST_CHECK enum err sched_result(struct sched *s, const struct ipc_result *m, u64 now_ns, struct err_msg *em);
/* The next step, or NULL when depth + 1 are in flight or there is nothing to say. It counts as sent. The
 * message lives until the next call of any function here. */
const struct ipc_step *sched_plan(struct sched *s, u64 now_ns);

/* The workers begin an epoch with empty state, `block_count` blocks, `host_block_count` of the host's memory and `state_slots` (of
 * each no more than at create are used): whatever ran goes back to the head of the waiting queue with its known
 * tokens, what was swapped is computed again, and the detokenizer is told of all. */
void sched_restart_workers(struct sched *s, u32 block_count, u32 host_block_count, u32 state_slots, u64 now_ns);
/* A new detokenizer: opens every stream again that was open, with its outputs. */
void sched_reopen_streams(struct sched *s);

static inline bool sched_is_idle(const struct sched *s)
{
	return s->running.count == 0 && s->waiting.count == 0 && s->flight_count == 0;
}

static inline u32 sched_live_count(const struct sched *s)
{
	return s->seqs.slot_count - s->seqs.free_count;
}

static inline u32 *sched_blocks(const struct sched *s, const struct seq *q)
{
	return s->row_blocks + q->row * s->block_stride;
}

#endif
