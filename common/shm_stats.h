/* Counters in shared memory: one page-aligned file per process in the run directory. The owner adds with relaxed
 * atomics (a few ns); gateways map all files read-only and sum. The page also carries the heartbeat by which the
 * supervisor judges progress. */
#ifndef TERCET_COMMON_SHM_STATS_H
#define TERCET_COMMON_SHM_STATS_H

#include <stdatomic.h>

#include "common/err.h"
#include "common/types.h"

/* C(id, prometheus name, help): monotonic counters. G: gauges. H(id, name, help, first bucket, factor): histograms
 * of 20 buckets first*factor^k, in the unit of the name. Names without prefix; the exporter prints `vllm:` and `tercet_`. */
#define STATS_TABLE(C, G, H)                                                                                 \
	G(NUM_REQUESTS_RUNNING, num_requests_running, "Requests in the running batch")                       \
	G(NUM_REQUESTS_WAITING, num_requests_waiting, "Requests waiting to be scheduled")                    \
	G(NUM_REQUESTS_SWAPPED, num_requests_swapped, "Waiting requests whose KV blocks are in host memory")  \
	G(KV_CACHE_USAGE, kv_cache_usage_perc, "Share of KV blocks in use, 0 to 1")                          \
	G(HOST_CACHE_USAGE, cpu_cache_usage_perc, "Share of the swap space in use, 0 to 1")                  \
	G(KV_BLOCKS, kv_blocks, "KV blocks of the pool")                                                     \
	C(PREFIX_CACHE_QUERIES, prefix_cache_queries, "Prompt tokens looked up in the prefix cache")         \
	C(PREFIX_CACHE_HITS, prefix_cache_hits, "Prompt tokens found in the prefix cache")                   \
	C(NUM_PREEMPTIONS, num_preemptions, "Preemptions")                                                   \
	C(SWAPPED_OUT_BLOCKS, swapped_out_blocks, "KV blocks of preempted requests copied to host memory")   \
	C(SWAPPED_IN_BLOCKS, swapped_in_blocks, "KV blocks copied back from host memory")                    \
	C(PROMPT_TOKENS, prompt_tokens, "Prompt tokens of admitted requests")                                \
	C(GENERATION_TOKENS, generation_tokens, "Generated tokens")                                          \
	C(REQUESTS_STOP, request_success_stop, "Requests ended by a stop")                                   \
	C(REQUESTS_LENGTH, request_success_length, "Requests ended by length")                               \
	C(REQUESTS_ABORT, request_success_abort, "Requests aborted")                                         \
	C(REQUESTS_ERROR, request_success_error, "Requests ended by an error")                               \
	C(REQUESTS_REFUSED, requests_refused, "Requests refused at admission")                               \
	C(STEPS, steps, "Steps planned")                                                                     \
	C(DIFF_BYTES, diff_bytes, "Bytes of step diffs")                                                     \
	C(FORWARD_NS, forward_ns, "Nanoseconds the device computed")                                         \
	C(BUSY_NS, busy_ns, "Nanoseconds during which requests were running or waiting (scheduler)")         \
	C(WAITED_NS, waited_ns, "Nanoseconds a worker waited for a step although requests were running")     \
	C(REQUESTS_CONSTRAINED, structured_requests, "Admitted requests whose output a grammar constrains")  \
	C(GRAMMARS_COMPILED, grammars_compiled, "Grammars compiled by workers")                              \
	C(GRAMMAR_MASKS, grammar_masks, "Masks of tokens made for rows with a grammar")                      \
	C(GRAMMAR_NS, grammar_ns, "Nanoseconds spent on grammars, beside the forward")                       \
	C(SPEC_DRAFTS, spec_decode_num_drafts, "Proposals of tokens ahead that steps have checked")          \
	C(SPEC_DRAFT_TOKENS, spec_decode_num_draft_tokens, "Tokens of these proposals")                      \
	C(SPEC_ACCEPTED, spec_decode_num_accepted_tokens, "Tokens of these proposals that became outputs")   \
	G(SESSIONS, sessions, "Sessions whose history is kept")                                              \
	G(SESSION_TOKENS, session_tokens, "Tokens of their histories")                                       \
	C(CHUNKS_SENT, chunks_sent, "Chunks sent on the output socket")                                      \
	C(CLIENTS_CLOSED_SLOW, clients_closed_slow, "Output clients closed for being too slow")              \
	C(HTTP_REQUESTS, http_requests, "HTTP requests")                                                     \
	C(HTTP_ERRORS, http_errors, "HTTP answers of 400 and above")                                         \
	G(HTTP_CONNECTIONS, http_connections, "Open HTTP connections")                                       \
	H(TTFT, time_to_first_token_seconds, "Time to first token", 0.001, 1.8)                              \
	H(ITL, inter_token_latency_seconds, "Time between tokens of a request", 0.0001, 2.0)                 \
	H(E2E, e2e_request_latency_seconds, "Whole request", 0.001, 2.0)                                     \
	H(QUEUE, request_queue_time_seconds, "Arrival to first scheduling", 0.0001, 2.0)                     \
	H(PREFILL, request_prefill_time_seconds, "First scheduling to first token", 0.0001, 2.0)             \
	H(DECODE, request_decode_time_seconds, "First token to last", 0.0001, 2.0)                           \
	H(INFERENCE, request_inference_time_seconds, "First scheduling to last token", 0.0001, 2.0)          \
	H(STEP_TOKENS, iteration_tokens_total, "Tokens run in a step", 1, 2.0)                               \
	H(PLAN, step_plan_seconds, "Planning and encoding one step", 0.000001, 2.0)                          \
	H(PROMPT_LEN, request_prompt_tokens, "Prompt tokens of a request", 1, 2.0)                           \
	H(OUTPUT_LEN, request_generation_tokens, "Generated tokens of a request", 1, 2.0)                    \
	H(TPOT, request_time_per_output_token_seconds, "Mean time between tokens of a request", 0.0001, 2.0) \
	H(PARAMS_MAX_TOKENS, request_params_max_tokens, "Most tokens that a request may generate", 1, 2.0)   \
	H(PARAMS_N, request_params_n, "Answers that HTTP requests ask for (n)", 1, 2.0)                      \
	H(MAX_OUTPUT_LEN, request_max_num_generation_tokens, "Longest answer of an HTTP request", 1, 2.0)

enum stats_id {
#define STATS_ENUM(id, name, help, ...) STATS_##id,
	STATS_TABLE(STATS_ENUM, STATS_ENUM, STATS_ENUM)
#undef STATS_ENUM
	STATS_COUNT
};

enum { STATS_BUCKETS = 20 };

struct stats_histogram {
	_Atomic u64 buckets[STATS_BUCKETS + 1]; /* the last: above all bounds */
	_Atomic u64 sum_millionths;
};

/* The mapped page. `turns` counts turns of the event loop, `work_done` completed units of work (steps, requests),
 * `work_pending` is non-zero while there is work: pending work without completions for long means stuck. */
struct stats_page {
	u32 magic;
	u32 version;
	char process[32];
	i32 pid;
	_Atomic u64 turns;
	_Atomic u64 work_done;
	_Atomic u64 work_pending;
	_Atomic u64 progress_ns; /* clock_now_ns of the last completion or of becoming busy */
	_Atomic u64 values[STATS_COUNT];
	struct stats_histogram histograms[STATS_COUNT]; /* only those of H rows are used */
};

/* Creates (or takes over) RUN_DIR/stats/PROCESS and maps it. With a NULL `run_dir` the page is private memory.
 * ERR_IO names the path. */
MUST_CHECK enum err stats_create(struct stats_page **out, const char *run_dir, const char *process,
				 struct err_msg *em);
void stats_destroy(struct stats_page **page);
/* Maps the page of one process read-only; release with stats_unmap. ERR_NOT_FOUND: there is none (yet). */
MUST_CHECK enum err stats_map_one(const struct stats_page **page, const char *run_dir, const char *process,
				  struct err_msg *em);
/* Maps the pages of all processes read-only (writable for none). At most `max`; returns how many in *count.
 * Call again to see processes that came later; release with stats_unmap. */
MUST_CHECK enum err stats_map_all(const struct stats_page **pages, u32 max, u32 *count, const char *run_dir,
				  struct err_msg *em);
void stats_unmap(const struct stats_page **pages, u32 count);

static inline void stats_add(struct stats_page *p, enum stats_id id, u64 n)
{
	atomic_fetch_add_explicit(&p->values[id], n, memory_order_relaxed);
}

static inline void stats_set(struct stats_page *p, enum stats_id id, u64 n)
{
	atomic_store_explicit(&p->values[id], n, memory_order_relaxed);
}

void stats_observe(struct stats_page *p, enum stats_id id, double value);
/* The same value `count` times, at the cost of one. */
void stats_observe_many(struct stats_page *p, enum stats_id id, double value, u64 count);
/* Work was completed at `now_ns`; `pending` says whether more is there. */
void stats_progress(struct stats_page *p, u64 now_ns, bool pending);
/* Work is there from `now_ns` on; changes nothing when there was some already. */
void stats_busy(struct stats_page *p, u64 now_ns);
/* Nothing is left to do (the last request was aborted). */
void stats_idle(struct stats_page *p);
/* Prometheus text of the sum of `pages`, every metric under its vLLM name and ours. */
struct buf;
void stats_export(struct buf *out, const struct stats_page *const *pages, u32 count, const char *model_name);

#endif
