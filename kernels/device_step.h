/* What a device does besides the ops, between steps and layers: plans of attention, the batch as it lies there, diffs, swaps; and its library of
 * matrix products. A part of the door (kernels.h), whose rules for device variants hold here, too. */
#ifndef TERCET_KERNELS_DEVICE_STEP_H
#define TERCET_KERNELS_DEVICE_STEP_H

#include "common/err.h"
#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kern_ctx;
struct kern_kv;
struct kern_matmul_args;
struct kern_ops;
struct kern_sample_row;

/* The largest step that a plan serves: `queries` of one row at most (1: steps of decoding, which then need fewer
 * kernels), `blocks` of threads to fill the device (two a multiprocessor). */
struct kern_attention_limits {
	u32 tokens, rows, queries, heads, kv_heads, head_dim, blocks;
	/* 0: keys are shared out evenly over the blocks, so where a row's keys are cut, and with it the last bits of
	 * its result, depends on the rest of the step. Else a decoding row is cut every `split` keys (a multiple of
	 * 64), whatever else runs, and rows with many queries not at all; with contexts of at most `context` tokens.
	 * It costs the plan memory for rows * kv_heads * context / split pieces, and balance where a step has few
	 * long rows. */
	u32 split, context;
};
/* How a step's attention is cut into pieces of work, and room for their results. One serves all layers of the same window, one after the
 * other. The memory is the caller's, on the device, 128-byte aligned. */
struct kern_attention_plan {
	void *memory; /* kern_attention_plan_bytes */
	struct kern_attention_limits limits;
	u32 window;
};
size_t kern_attention_plan_bytes(const struct kern_attention_limits *limits);
/* Queued after what writes query_start and context and before the first layer. */
struct kern_attention_plan_args {
	const struct kern_attention_plan *plan; /* host */
	const u32 *query_start;			/* [R + 1] */
	const u32 *context;			/* [R] */
	u32 rows;
};

/* What products of many tokens need of a device, in each process that uses it once. `workspace` is device memory for cuBLASLt (32 MiB do). Which of its
 * algorithms is fastest for a shape is measured by kern_cuda_tune and remembered in the file `cache_path` (NULL: not). One thread at a time. */
struct kern_cuda;
struct kern_cuda_config {
	void *workspace;
	size_t workspace_bytes;
	const char *cache_path;
};
/* ERR_NO_MEMORY, ERR_DEVICE. The caller owns `*out`. */
enum err kern_cuda_create(struct kern_cuda **out, const struct kern_cuda_config *config, struct err_msg *em);
void kern_cuda_destroy(struct kern_cuda **k);
/* Times cuBLASLt's proposals for the product `a` of a bf16 weight (and for as many tokens, rounded up to a power of
 * two), unless that is known, and remembers the best. Overwrites `out`, waits for the device, must not be captured.
 * ERR_UNSUPPORTED: there is none. ERR_IO: measured, but not written to the file. */
enum err kern_cuda_tune(struct kern_ctx *ctx, const struct kern_matmul_args *a);

/* The rows of the batch as a device keeps them between steps: a mirror of the worker's batch_state, but that sampled
 * tokens enter it here first. Arrays are per row and on the device; an absent row has known 0. Rows keep their place,
 * so the attention reads `blocks` as its block tables and every row is a row of the step, most of them with queries. */
struct kern_batch {
	u32 rows, token_stride, block_stride, block_size;
	u32 *known, *computed, *run, *prompt; /* [rows]; run: tokens of the step that apply_diff prepared */
	u32 *tokens;			      /* [rows][token_stride] */
	u32 *blocks;			      /* [rows][block_stride] */
	struct kern_sample_row *params;	      /* [rows]; logits and position are those of no step */
};

/* A step's diff in device memory, as words: a header of counts, then
 *	drop	KERN_DIFF_DROPS rows
 *	grow	KERN_DIFF_GROWS times {row, index in its table, block}
 *	run	KERN_DIFF_RUNS times {row, tokens}: exceptions of the rule that a row with one token to compute runs it
 *	add	KERN_DIFF_ADDS offsets of records, in words from the beginning
 * and anywhere behind that the records: KERN_ADD_* words, then its tokens, then its blocks. Floats lie as their bits.
 * Applied in the order drop, add, grow, run; what is in it was checked by who made it. */
enum kern_diff_word { KERN_DIFF_DROPS, KERN_DIFF_GROWS, KERN_DIFF_RUNS, KERN_DIFF_ADDS, KERN_DIFF_WORDS };
enum kern_add_word {
	KERN_ADD_ROW,
	KERN_ADD_TOKENS,
	KERN_ADD_COMPUTED,
	KERN_ADD_PROMPT,
	KERN_ADD_BLOCKS,
	KERN_ADD_TEMPERATURE,
	KERN_ADD_TOP_P,
	KERN_ADD_MIN_P,
	KERN_ADD_TOP_K,
	KERN_ADD_SEED_LOW,
	KERN_ADD_SEED_HIGH,
	KERN_ADD_WORDS,
};
struct kern_apply_diff_args {
	const struct kern_batch *batch; /* host */
	const u32 *diff;
};

/* The arrays that the ops of the step read. Tokens of a row are neighbours, rows ascend. Behind the step's tokens, up to `tokens`, stand
 * padding tokens with id 0, position 0 and slot -1; behind the rows that sample, up to `samples`, greedy ones of token 0. The numbers of both
 * are written to `counts` {tokens, samples}. */
struct kern_build_inputs_args {
	const struct kern_batch *batch; /* host */
	u32 *ids, *positions;		/* [tokens] */
	i64 *slots;			/* [tokens] */
	u32 *query_start;		/* [batch rows + 1] */
	u32 *context;			/* [batch rows] */
	u32 *sample_index;		/* [samples] the token whose logits it are */
	u32 *sample_rows;		/* [samples] its row of the batch */
	struct kern_sample_row *sample; /* [samples] for the op, with the logits at logits[sample][vocab] */
	float *logits;
	u32 *counts; /* [2] */
	u32 tokens, samples, vocab;
};

/* Ends the step: computed += run, and sampled[i] becomes known in sample_rows[i], for i < counts[1]. */
struct kern_commit_args {
	const struct kern_batch *batch; /* host */
	const u32 *sampled, *sample_rows, *counts;
};

/* Copies KV blocks src[i] of one pool to dst[i] of another in every layer: out to pinned host memory, or back in. Both pools have the same
 * blocks; the lists and `from`, `to` are device or pinned host memory. Queue it in a stream of its own beside the forward. */
struct kern_swap_args {
	const struct kern_kv *from, *to; /* [layer_count] */
	u32 layer_count;
	const u32 *src, *dst;
	u32 count;
};

/* Logits whose columns are divided among ranks: rank r computes [r * vocab / ranks, (r + 1) * vocab / ranks), each division rounded down.
 * logits[row][that column] = parts[r][row][column - r * vocab / ranks]. */
struct kern_join_logits_args {
	const float *parts; /* [ranks][rows][share_max]; share_max at least vocab / ranks rounded up */
	float *logits;	    /* [rows][vocab] */
	u32 ranks, rows, vocab, share_max;
};

/* What a device does besides the ops: X(slot), struct kern_<slot>_args. */
#define KERN_DEVICE_OPS(X) \
	X(attention_plan) X(apply_diff) X(build_inputs) X(commit) X(swap) X(join_logits)
struct kern_device_ops {
#define KERN_SLOT(op) enum err (*op)(struct kern_ctx *, const struct kern_##op##_args *);
	KERN_DEVICE_OPS(KERN_SLOT)
#undef KERN_SLOT
	/* The functions above, for those who open the shared object at run time. */
	size_t (*attention_plan_bytes)(const struct kern_attention_limits *limits);
	enum err (*create)(struct kern_cuda **out, const struct kern_cuda_config *config, struct err_msg *em);
	void (*destroy)(struct kern_cuda **k);
	enum err (*tune)(struct kern_ctx *ctx, const struct kern_matmul_args *a);
};
/* Fills every slot with its CUDA variant. In the shared object of the CUDA kernels, and only there. */
void kern_ops_init_cuda(struct kern_ops *ops, struct kern_device_ops *device);

#ifdef __cplusplus
}
#endif
#endif
