/* Drives a whole runner (or a tensor-parallel group of them, one thread each) through requests, as a
 * scheduler would: chunked prefill, rows in any order, preemption. For tests. */
#ifndef TERCET_TESTS_DRIVER_H
#define TERCET_TESTS_DRIVER_H

#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/step_builder.h"

enum { DRIVER_RANKS_MAX = 4 };

struct driver_config {
	const char *model_dir;
	enum option_dtype dtype;
	enum option_kv_dtype kv_dtype;
	u32 ranks;
	u32 threads;
	u32 caps;
	u32 rows_max, tokens_max, block_size;
	u32 chunk;	   /* prompt tokens of one row in a step */
	u32 preempt_every; /* 0: never; else a random row is preempted about every that many steps */
	u64 seed;
};

struct driver_request {
	const u32 *prompt;
	u32 prompt_count;
	u32 output_count;		      /* wanted */
	const struct sampling_params *params; /* NULL: greedy */
	const u32 *stop_ids;
	u32 stop_count;
	const u32 *bias_ids;
	const f32 *bias_values;
	u32 bias_count;
	float *prompt_logits; /* [prompt_count][vocab] of the caller, or NULL */
	/* What came out. */
	u32 output[MIRROR_TOKENS];
	u32 outputs;
	u32 lp_ids[64][LOGPROBS_MAX + 1]; /* of the first outputs */
	f32 lp_values[64][LOGPROBS_MAX + 1];
	u32 lp_count[64], lp_rank[64];
	u32 plp_ids[MIRROR_TOKENS][LOGPROBS_MAX + 1];
	f32 plp_values[MIRROR_TOKENS][LOGPROBS_MAX + 1];
	u32 plp_count[MIRROR_TOKENS], plp_rank[MIRROR_TOKENS];
};

struct driver {
	struct driver_config config;
	u32 rank_count;
	struct runner *runners[DRIVER_RANKS_MAX];
	char run_dir[64];
	struct mirror mirror;
	struct driver_request *requests;
	u32 request_count;
	int row_request[MIRROR_ROWS]; /* -1: free */
	bool *started, *done;
	u32 *blocks; /* a stack of free ones */
	u32 block_count;
	u64 random, next_seq;
	u64 steps;
};

/* Asserts that everything works. */
void driver_open(struct driver *d, const struct driver_config *config);
void driver_run(struct driver *d, struct driver_request *requests, u32 count);
void driver_close(struct driver *d);

/* Runs fn(ctx, rank) for all ranks at once. */
void driver_parallel(u32 ranks, void (*fn)(void *ctx, u32 rank), void *ctx);

/* A folder of the reference data, or NULL when this checkout has none. */
const char *reference_dir(const char *name);

#endif
