/* The engine of one device: its weights, its copy of the batch, its KV blocks, and the step that never waits.
 * The host says what changed and queues kernels; sampled tokens stay on the device, where the next step reads
 * them, and arrive on the host some time later.
 *
 * A step is gpu_forward, then gpu_sample, both between batch_state_apply and batch_state_advance; then, from
 * any thread, gpu_wait and gpu_result. Up to GPU_RING - 2 steps may be queued and not yet collected. All
 * functions belong to the thread that opened the device, but where said otherwise.
 *
 * Errors of a queued step come out of gpu_wait as ERR_DEVICE in the device's words; after that only a new
 * process helps. */
#ifndef TERCET_PROC_WORKER_GPU_GPU_H
#define TERCET_PROC_WORKER_GPU_GPU_H

#include "proc_worker/batch_state.h"
#include "proc_worker/device.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/rope.h"
#include "proc_worker/model/weights.h"
#include "proc_worker/sampler.h"
#include "proc_worker/state_memory.h"

struct ipc_step;
struct kern_comm;

enum { GPU_RING = 8 }; /* steps whose results are kept */

/* Everything is borrowed and must outlive the engine. */
struct gpu_config {
	const struct device *device; /* open */
	const struct model_config *model;
	const struct model_shard *shard;
	/* Found right by model_weights_check; `dtype` is KERN_BF16. Weights are read through it one matrix
	 * at a time, so the host never holds them all. */
	const struct weights_plan *weights;
	struct rope_tables *rope; /* for limits.max_model_len and limits.tokens_max */
	/* Where a sequence's states lie in a slot; `slots`: limits.rows_max, and as many as are worth saving. Without memory. */
	const struct state_memory *states;
	struct {
		u32 rows_max, tokens_max, max_model_len, block_size;
	} limits;
	enum kern_dtype kv_dtype;  /* KERN_BF16, KERN_I8, KERN_F8E4M3 */
	bool graphs;		   /* steps of decoding as CUDA graphs, recorded as their sizes first recur */
	double memory_utilization; /* of the device's memory, how much this process may use in all */
	u64 kv_cache_memory;	   /* bytes; 0: what is left under that cap */
	struct kern_comm *comm;	   /* NULL with one rank */
	void (*progress)(void *ctx, double share, const char *what); /* NULL: none */
	void *progress_ctx;
};

struct gpu;

/* Whether the device has kernels for a model, before anything is loaded. ERR_UNSUPPORTED: names what it has
 * none for, and what would do. */
MUST_CHECK enum err gpu_check(const struct gpu_config *c, struct err_msg *em);

/* Weights, arenas, libraries and a dummy step; then counts how many KV blocks fit, and takes none of them.
 * With several ranks all call it together. ERR_UNSUPPORTED as gpu_check. ERR_NO_MEMORY, ERR_NO_SPACE: say how
 * much is missing and which setting would fit. ERR_DEVICE. The caller owns `*out`. Blocks. */
MUST_CHECK enum err gpu_create(struct gpu **out, const struct gpu_config *c, struct err_msg *em);
/* Waits for what is queued. */
void gpu_destroy(struct gpu **g);
/* Makes the pool of that many blocks, at most those that fit; the least of what all ranks have. Once. */
MUST_CHECK enum err gpu_take_blocks(struct gpu *g, u32 blocks, struct err_msg *em);
/* Makes the pool of the host's pinned memory that copies of a STEP bring blocks to and from, of that many
 * blocks > 0. After gpu_take_blocks, at most once. ERR_NO_MEMORY, ERR_DEVICE: there is none, and the engine
 * works without. */
MUST_CHECK enum err gpu_take_host_blocks(struct gpu *g, u32 blocks, struct err_msg *em);

/* Blocks that fit, and after gpu_take_blocks those that were taken. */
u32 gpu_block_count(const struct gpu *g);
u32 gpu_state_slots(const struct gpu *g); /* for states that are saved, behind those of the rows */
u64 gpu_state_bytes(const struct gpu *g); /* of all states, the rows' and saved ones */
u64 gpu_weight_bytes(const struct gpu *g);   /* on this device */
void gpu_weight_types(const struct gpu *g, char *text, size_t bytes); /* model_weights_types */
u64 gpu_kv_block_bytes(const struct gpu *g); /* of one block in all layers, K and V */

/* INIT: waits for what is queued and empties the batch. */
MUST_CHECK enum err gpu_begin(struct gpu *g, struct err_msg *em);

/* First half of a step: upload of what changed (nothing when nothing did), block copies, inputs, layers,
 * logits of the rows that sample. Neither half waits for the device but when one step brings more than its
 * staging memory holds, and neither allocates. ERR_DEVICE and the errors of the ops. */
MUST_CHECK enum err gpu_forward(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
				struct err_msg *em);
/* Whether the step queued last has recorded a graph, which takes longer than what the graph then does. */
bool gpu_recorded(const struct gpu *g);
/* Second half: bias, penalties and masks, sampling, the sampled tokens behind their rows, log-probabilities and embeddings,
 * and on a side stream the way of all that to the host. `allowed`: of struct constraints_step, copied; or NULL. */
MUST_CHECK enum err gpu_sample(struct gpu *g, const struct batch_state *b, const u32 *const *allowed,
			       struct err_msg *em);

/* Of one step. Arrays lie in pinned memory and stay until GPU_RING - 1 later steps are queued. */
struct gpu_result {
	u64 step;
	u32 count;		    /* rows that sampled, in the order of sample_rows */
	const u32 *tokens;	    /* [count] */
	struct sampler_logprobs lp; /* as the CPU's sampler fills it */
	/* Prompt log-probabilities, the columns plp_* of a RESULT. */
	const u64 *plp_seq;
	const u32 *plp_position, *plp_count, *plp_rank, *plp_ids;
	const f32 *plp_values;
	u32 plp_entries, plp_id_count;
	/* Embeddings in bf16 [embedding_count][hidden], and which of the rows that sampled they are of; of rank 0. */
	const u16 *embeddings;
	const u32 *embedded;
	u32 embedding_count;
	u64 started_ns, done_ns; /* clock_now_ns; as well as the host can tell when the device worked on it */
};
/* Blocks until the device has done the step. Any thread. ERR_DEVICE. */
MUST_CHECK enum err gpu_wait(struct gpu *g, u64 step, struct err_msg *em);
/* After gpu_wait of that step; the thread that waited, or one that it handed the step to. ERR_NOT_FOUND: it
 * is no longer, or not yet, in the ring. */
MUST_CHECK enum err gpu_result(struct gpu *g, u64 step, struct gpu_result *out, struct err_msg *em);
/* For a look into a step, not for serving: `out[count][vocab]`, ordinary memory, are the logits after the tokens at the
 * places `tokens[count]` of the step that was queued last. Waits for all that is queued. ERR_DEVICE and the errors of
 * the ops. */
MUST_CHECK enum err gpu_read_logits(struct gpu *g, const u32 *tokens, u32 count, float *out, struct err_msg *em);
/* Ends a collective that hangs, so that gpu_wait returns. Any thread. */
void gpu_abort(struct gpu *g);

#endif
