/* Drives a whole runner (or a tensor-parallel group of them, one thread each) through requests, as a
 * scheduler would: chunked prefill, rows in any order, preemption. For tests. */
#ifndef TERCET_TESTS_DRIVER_H
#define TERCET_TESTS_DRIVER_H

#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/request_rows.h"

enum { DRIVER_RANKS_MAX = 4 };

struct driver_config {
	const char *model_dir;
	enum option_dtype dtype;
	enum option_kv_dtype kv_dtype;
	const struct lora_modules *loras; /* NULL: none */
	u32 ranks;
	u32 threads;
	u32 caps;
	u32 rows_max, tokens_max, block_size;
	u32 chunk;	   /* prompt tokens of one row in a step */
	u32 preempt_every; /* 0: never; else a random row is preempted about every that many steps */
	u64 seed;
};

struct driver {
	struct driver_config config;
	u32 rank_count;
	struct runner *runners[DRIVER_RANKS_MAX];
	char run_dir[64];
	struct mirror mirror;
	struct request_rows rows;
	u32 request_count;
	bool *started, *done;
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
