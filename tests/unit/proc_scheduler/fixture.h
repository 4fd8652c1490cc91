/* A scheduling core with the fake worker behind it, for unit tests: short calls, and records of what was told
 * to the detokenizer. */
#ifndef TERCET_TESTS_UNIT_PROC_SCHEDULER_FIXTURE_H
#define TERCET_TESTS_UNIT_PROC_SCHEDULER_FIXTURE_H

#include "proc_scheduler/sched.h"
#include "tests/sim/fake_worker.h"

enum { FIXTURE_RECORDS_MAX = 160, FIXTURE_TOKENS_MAX = 512, FIXTURE_VOCAB = 1000 };

struct fixture_end {
	u64 seq, req_id;
	enum finish_reason reason;
	u32 prompt_count, token_count; /* token_count: prompt and outputs */
	u32 tokens[FIXTURE_TOKENS_MAX];
	char text[256];
};

struct fixture {
	struct sched *s;
	struct stats_page *stats;
	struct fake_worker worker;
	struct fake_result results[SCHED_DEPTH_MAX + 2]; /* in flight, oldest first */
	u32 result_count;
	u32 forward_us; /* in the results */
	u64 now_ns;
	u64 next_req_id;
	u64 opened[FIXTURE_RECORDS_MAX];
	u32 opened_outputs[FIXTURE_RECORDS_MAX];
	u32 opened_count;
	u64 closed[FIXTURE_RECORDS_MAX];
	enum finish_reason closed_reason[FIXTURE_RECORDS_MAX];
	bool closed_kept[FIXTURE_RECORDS_MAX]; /* no turn of its session was in work when it was told */
	u32 closed_outputs[FIXTURE_RECORDS_MAX];
	u32 closed_count; /* with what was said of sequences that had ended: reason FINISH_NONE */
	struct fixture_end ends[FIXTURE_RECORDS_MAX];
	u32 end_count;
	u32 told_rows, told_lists; /* of results that the core made */
};

/* Block size 4, 64 blocks, 8 rows, budget 64, context 128, synchronous, cache on, no end-of-sequence token.
 */
struct sched_config fixture_config(void);
struct fixture *fixture_create(const struct sched_config *config);
void fixture_destroy(struct fixture **f);

/* A SUBMIT of `count` tokens: first, first + 1, ...; `max_tokens` outputs. Tokens live in static memory until
 * the next call. */
struct ipc_submit fixture_message(u64 req_id, u32 first, u32 count, u32 max_tokens);
/* Submits for client 1 under the next request id; asserts that it is accepted. Returns the sequence. */
u64 fixture_submit(struct fixture *f, u32 first, u32 count, u32 max_tokens);
struct seq *fixture_seq(struct fixture *f, u64 seq);
/* Plans a step, runs the worker; NULL when there is none. A divergence fails the test. */
const struct ipc_step *fixture_plan(struct fixture *f);
/* Delivers the oldest result. */
void fixture_deliver(struct fixture *f);
/* Plans and delivers until nothing is left to do. */
void fixture_run(struct fixture *f);
/* NULL: it did not end. */
const struct fixture_end *fixture_end_of(const struct fixture *f, u64 seq);
/* Whether its tokens are those of a run with nobody else. */
bool fixture_is_solo_run(const struct fixture_end *e);
u64 fixture_count(const struct fixture *f, enum stats_id id);

#endif
