/* What one run of the scheduler's simulator consists of. Every check that fails prints the seed and exits. */
#ifndef TERCET_TESTS_SIM_SIM_WORLD_H
#define TERCET_TESTS_SIM_SIM_WORLD_H

#include "proc_scheduler/sched.h"
#include "tests/sim/fake_worker.h"

enum { SIM_REQUESTS_MAX = 4096, SIM_PROMPT_LEAST = 3, SIM_PROMPT_MAX = 128, SIM_CLIENTS = 4, SIM_TALKS = 4 };

/* A conversation as its client remembers it. */
struct sim_talk {
	u64 owner;
	const char *name;
	bool busy;
	u32 count;
	u32 tokens[SIM_PROMPT_MAX];
};

/* A request as the client that sent it sees it. */
struct sim_request {
	u64 client_id, req_id, seq;
	u32 prompt_count, output_max;
	u32 start_count; /* outputs it was submitted with */
	u32 tokens[SIM_PROMPT_MAX];
	u32 stop_id; /* UINT32_MAX: none */
	u32 min_tokens;
	bool ignore_eos;
	/* Of a beam search: answer number `answer` of the request `answer` places before. */
	u32 width, answer; /* width 0: none */
	f64 length_penalty;
	bool early_stopping;
	u32 told_count; /* outputs that came as results, */
	u32 told[SIM_PROMPT_MAX];
	u32 end_count; /* must be 1 at last */
	bool live;
	struct sim_talk *talk; /* NULL: it has no session */
	bool end_told;	       /* the detokenizer has heard that its turn is kept */
};

/* The source of the grammar that this request brings, if it is one of those that do; 0: it is not. */
enum { SIM_GRAMMAR_BYTES_MAX = 48 };
u32 sim_grammar(u64 client_id, u64 req_id, const struct sampling_params *p, bool session, char *source);

/* A beam of the simulator's own search. */
struct sim_beam {
	u32 tokens[2 * SIM_PROMPT_MAX], count;
	u32 parent;
	f64 sum, score;
	bool stopped;
};

struct sim_totals {
	u64 steps, accepted, preemptions, hits, copies, swaps_out, swaps_in, restarts, turns_taken, forks, answers, guessed, loads, saves;
	u64 ends[FINISH_REASON_COUNT];
};

struct sim_world {
	bool alike; /* prompts begin with the same tokens and go on as answers do, and little is disturbed: states are found */
	u64 seed, rng, now_ns;
	struct sched_config config;
	struct sched *sched;
	struct stats_page *stats;
	struct fake_worker worker;
	struct fake_result *results; /* [4]: of steps in flight, oldest first */
	u32 result_count;
	struct fake_result *stale; /* the last one delivered */
	u32 plans_in_flight;
	struct sim_talk talks[SIM_TALKS];
	struct sim_request *requests; /* [SIM_REQUESTS_MAX] */
	u32 request_count;
	u32 *refs, *host_refs; /* scratch of the checks: [blocks] of either pool */
	u64 epoch;
	u64 steps, turns, accepted, copies, swaps_out, swaps_in, restarts, turns_taken, forks, answers, guessed, loads, saves;
	u64 ends[FINISH_REASON_COUNT];
};

u32 sim_random(u64 *rng, u32 below);
/* Prints seed and text, ends the process. */
_Noreturn void sim_fail(const struct sim_world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

struct sim_world *sim_world_create(u64 seed, u64 rng, const struct sched_config *config);
void sim_world_destroy(struct sim_world **w);
void sim_submit(struct sim_world *w);
/* Random parameters, without tokens. */
struct ipc_submit sim_submit_message(struct sim_world *w, const struct sim_request *r);
/* What follows from them for a request whose prompt is known. */
void sim_set_limits(const struct sim_world *w, struct sim_request *r, const struct ipc_submit *m);
void sim_abort_any(struct sim_world *w);
void sim_abort_client(struct sim_world *w);
void sim_stop_any(struct sim_world *w);
void sim_restart_workers(struct sim_world *w);
/* Plans a step, runs it on the worker and checks everything; false: none was due. */
bool sim_plan(struct sim_world *w);
/* How many tokens of `r` were guessed right, for one sequence, or with 0 for all. */
u32 sim_guessed(const struct fake_result *r, u64 seq);
/* Delivers the oldest result; false: there is none. */
bool sim_deliver(struct sim_world *w);
/* Delivers a result that came before once more. */
void sim_deliver_stale(struct sim_world *w);

/* sim_sessions.c */
void sim_sessions_init(struct sim_world *w);
/* A turn with a prompt of at most `room` tokens, history included. */
void sim_submit_turn(struct sim_world *w, u32 room);
void sim_session_ended(struct sim_world *w, struct sim_request *r, const struct seq *q, const u32 *tokens);
/* The detokenizer is told of an end: that of a turn must be kept by then, and of others FINISH_NONE says nothing. */
void sim_session_told(struct sim_world *w, struct sim_request *r, enum finish_reason reason);
void sim_check_sessions(struct sim_world *w);

/* sim_beams.c: the answers, best first, of which there are at most `r->width`. */
u32 sim_beam_search(const struct sim_world *w, const struct sim_request *r, struct sim_beam *answers);

/* sim_check.c */
void sim_check_result(struct sim_world *w, const struct ipc_result *m);
void sim_check_step(struct sim_world *w, const struct ipc_step *step);
void sim_check_told(struct sim_world *w, const struct seq *q, enum finish_reason reason);
void sim_check_request_end(struct sim_world *w, const struct seq *q, const u32 *tokens,
			   enum finish_reason reason);
void sim_check_end(struct sim_world *w);

#endif
