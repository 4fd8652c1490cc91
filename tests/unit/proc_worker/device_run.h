/* Drives a device's engine through requests, as worker and scheduler would: prefill in chunks, rows in any order,
 * preemption, several steps in flight. And compares what came out with the CPU's answer to the same tokens. For tests. */
#ifndef TERCET_TESTS_DEVICE_RUN_H
#define TERCET_TESTS_DEVICE_RUN_H

#include "proc_worker/gpu/gpu.h"
#include "proc_worker/model/recurrent.h"
#include "tests/unit/proc_worker/driver.h"

struct device_run_config {
	const char *model_dir;
	enum kern_dtype kv_dtype, matrix_dtype; /* 0: bfloat16 */
	u32 rows_max, tokens_max, block_size, max_model_len;
	u32 blocks;	   /* of the pool */
	u32 chunk;	   /* prompt tokens of one row in a step */
	u32 depth;	   /* steps in flight; 0: each is collected before the next */
	u32 preempt_every; /* 0: never; else a row is preempted about every that many steps */
	u32 host_blocks;   /* that preempted rows' KV goes to; who finds none is computed again */
	u32 save_every;	   /* 0: never; else a row's state is saved in about every that many steps, and who is preempted goes on from there */
	bool graphs;
	u64 seed;
};

/* A step in flight: whose tokens it brings, and what batch_state_tokens_known has to be told. */
struct device_flight {
	u64 step;
	u32 count;
	u32 request[MIRROR_ROWS], output[MIRROR_ROWS], row[MIRROR_ROWS], index[MIRROR_ROWS];
	u64 incarnation[MIRROR_ROWS];
	u64 seq[MIRROR_ROWS]; /* of every row, and the request that it is of */
	int of_row[MIRROR_ROWS];
};

struct device_run {
	struct device_run_config config;
	struct device device;
	struct model_config model;
	struct model_shard shard;
	struct safetensors *checkpoint;
	struct weights_plan plan;
	struct rope_tables rope;
	struct gpu *gpu;
	struct batch_state *batch;
	struct mirror mirror;
	struct request_rows rows;
	u32 request_count;
	u32 planned[64];	      /* outputs that steps were queued for */
	bool started[64], done[64];
	struct device_flight flights[GPU_RING];
	u64 first_flight, next_flight;
	u32 free_host[256], free_host_count;
	u32 host_of[64][MIRROR_BLOCKS], host_count[64], host_computed[64]; /* of requests that wait */
	u32 swapped_out, swapped_in; /* blocks */
	bool swaps_out;		     /* the step that is being planned */
	struct state_memory states;  /* where they lie: each request has a slot for a saved one */
	u32 saved_tokens[64];	     /* behind which the request's was saved; 0: none was */
	u32 held[64][MIRROR_BLOCKS], held_count[64]; /* blocks that these tokens are in, of requests that wait */
	u32 saves, loads;
	u64 steps;
};

/* Assert that everything works. `read` opens device and model, `open` makes the engine, too. */
void device_run_read(struct device_run *d, const struct device_run_config *config);
void device_run_open(struct device_run *d, const struct device_run_config *config);
void device_run_requests(struct device_run *d, struct driver_request *requests, u32 count);
void device_run_close(struct device_run *d);
/* Fills what a gpu_config needs but for kv_cache_memory. */
struct gpu_config device_run_config(struct device_run *d);

/* How far the device's answers are from the CPU's for the same tokens, in log-probabilities. */
struct device_difference {
	double worst_logprob, mean_logprob; /* of tokens, sampled or of a prompt */
	double worst_choice;  /* how much likelier another token was by the CPU's logits, where sampling was greedy */
	u32 outputs, same; /* tokens; those that the CPU's sampler takes from its own logits */
	u32 compared, far;	/* far: by more than 0.2 */
};
struct device_difference device_compare(const struct device_run_config *c, const struct driver_request *requests,
					u32 count);

#endif
