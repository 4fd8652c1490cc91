/* The inside of a device's engine. gpu.c: its life; gpu_memory.c: arenas and sizes; gpu_kv.c: KV blocks; gpu_weights.c: the way of
 * weights; gpu_tune.c: products measured at start; gpu_diff.c: what changed, on its way up; gpu_decoder.c,
 * gpu_inputs.c, gpu_latent.c, gpu_moe.c, gpu_recurrent.c: the layers; gpu_states.c: what layers keep of sequences instead of keys and values;
 * gpu_step.c: a step and its graphs; gpu_swap.c: blocks to the host's memory and back; gpu_sample.c: from logits to
 * tokens; gpu_result.c: the way back. */
#ifndef TERCET_PROC_WORKER_GPU_GPU_PRIV_H
#define TERCET_PROC_WORKER_GPU_GPU_PRIV_H

#include <stdatomic.h>

#include "common/sampling_params.h"
#include "proc_worker/gpu/gpu.h"
#include "proc_worker/inputs.h"

enum {
	GPU_STAGES = 4 * GPU_RING, /* pieces of uploads on their way: a step takes two, seldom more */
	GPU_STAGE_BYTES = 1 << 20, /* of each, or what the longest sequence needs */
	GPU_ROOMS = 2,
	GPU_ROOM_BYTES = 16 << 20,
	GPU_WORKSPACE_BYTES = 32 << 20, /* cuBLASLt's */
	GPU_ATTENTIONS = 2,		/* of a model: with its window, and without */
	GPU_RAW_ROWS = 8, /* rows of a group whose unchanged logits are kept for their log-probabilities */
	GPU_COUNTED_ROWS = 32, /* rows of a group whose tokens are counted for their penalties */
	GPU_LARGE_HEADS = 256, /* values: of more there are no 8-bit caches, and not every device has room for so many */
	GPU_MASKED_MAX = EOS_IDS_MAX + STOP_IDS_MAX,
	GPU_SIZES_MAX = 64,    /* padded sizes of steps of decoding */
	GPU_MLP_TOKENS = 2048, /* worked on at a time: enough for full speed, little beside the weights */
	/* Of the residual stream, for products that have the norm fused: every block reads all of it, which takes longer than a
	 * norm by itself from there on. */
	GPU_NORM_BYTES = 32 << 10,
};

/* A step as its kernels are launched: padded numbers. */
struct gpu_shape {
	u32 tokens, samples;
	bool decode; /* no row has more than one query */
	bool whole;  /* every token samples: sample i is token i */
};

/* Pinned memory on its way up. */
struct gpu_stage {
	u8 *memory; /* [stage_bytes] */
	struct kern_event *copied;
	bool queued;
};

/* The results of one step. */
struct gpu_slot {
	u64 step; /* 0: none */
	struct kern_event *done;
	u32 count;
	u64 submitted_ns;
	_Atomic u64 done_ns; /* 0: not seen yet */
	/* Pinned. */
	u32 *tokens;
	u32 *lp_rank, *lp_ids;
	f32 *lp_values;
	u32 *plp_rank, *plp_ids;
	f32 *plp_values;
	u16 *embeddings; /* [embeddings_max][hidden] */
	/* Host. */
	u32 *lp_entry, *lp_count;
	u64 *plp_seq;
	u32 *plp_position, *plp_count;
	u32 *embedded; /* [R] samples that embeddings are of */
	u32 lp_entries, lp_id_count, plp_entries, plp_id_count, embedding_count;
};

/* Device memory by name. T: tokens_max, R: rows_max, S: samples_max. */
struct gpu_arena {
	struct kern_batch batch;
	u32 *ids, *positions; /* [T] */
	u32 *rope_rows;	      /* [T] of the rotary tables; `positions` where they are the same */
	i64 *slots;
	u32 *query_start, *context, *sample_index, *sample_rows, *counts;
	u32 *no_diff;			/* [KERN_DIFF_WORDS] zeros: a diff that changes nothing */
	u32 *saves; /* [2][R] of kern_state, save_at and save_slots: zero but in steps that save states; NULL: no layer has any */
	struct kern_sample_row *sample; /* [S] */
	float *cos, *sin;
	float *q_scales; /* NULL: kern_rope_kv_args */
	float *x;		  /* [T][hidden] the residual stream */
	u16 *delta, *normed;	  /* [T][hidden]; delta: what a block adds to it */
	u32 *rows_themselves;	  /* [T] 0, 1, .., of models that multiply the stream behind layers */
	/* Of models whose layers add something of a token by themselves: [T][layers * input_width], with one width in front; the part that is made of the
	 * embedding; [T][2 input_width] and [T][input_width] behind a layer's MLP. */
	float *inputs;
	u16 *inputs_projected, *input_gate, *input_activated;
	float *qkv;		  /* [T][gpu_qkv_stride] */
	float *squares;		  /* [T][2] of q and k, where their norms are over all heads, or of what latent attention makes them of */
	u16 *q, *attended;
	/* Of latent attention: what the first product makes of a token, where queries have a rank of their own the same rounded, and queries
	 * [T][heads][key + rope]; and what attn_out reads, [T][heads][value]. */
	float *low, *queries;
	u16 *low_rounded, *values;
	u16 *gate_up, *activated; /* share their memory with qkv and q */
	/* Mixtures of experts, in the same memory: [moe_tokens * top][...] */
	u16 *expert_gate_up, *expert_activated, *expert_down;
	u32 *tokens_of, *assignments, *expert_start;
	float *router_logits, *expert_weights;
	u16 *shared_gate_up, *shared_activated, *shared; /* of the expert of all tokens: [moe_tokens][...]; or NULL */
	float *shared_gate;
	float *picked;			 /* [S][hidden] */
	u16 *picked_normed;
	float *logits;			 /* [S][vocab] */
	float *logit_part, *logit_parts; /* [S][share_max], [ranks][S][share_max]; several ranks */
	float *raw;			 /* [GPU_RAW_ROWS][vocab] */
	u32 *token_counts;		 /* [GPU_COUNTED_ROWS][vocab] zero between steps */
	u32 *sampled, *sampled_ring;	 /* [S], [GPU_RING][S] */
	u32 *bias_ids, *masked;		 /* [R][BIAS_MAX], [R][GPU_MASKED_MAX] */
	u32 *allowed;			 /* [S][(vocab + 31) / 32] of the step */
	f32 *bias_values;
	u8 *upload; /* [stage_bytes] the piece that is being applied */
	struct kern_kv *kv_layers; /* of layers that have keys and values */
	void *plans[GPU_ATTENTIONS];
	void *scratch, *workspace;
	size_t scratch_bytes;
	u8 *memory, *summed; /* summed: of the communicator; NULL with one rank */
	size_t memory_bytes; /* of both */
};

struct gpu_graph {
	u32 tokens; /* padded */
	u32 uses;
	struct kern_graph *forward;	 /* inputs to logits */
	struct kern_graph *forward_tail; /* and on to the end of the step */
};

/* What layers whose attention is planned together have in common. */
struct gpu_attention {
	u32 window; /* 0: none */
	u32 kv_heads, head_dim;
};

/* The states of recurrent layers: a slot for each row of the batch, and behind these `saved` others. */
struct gpu_states {
	float *data; /* NULL: the model has none */
	u32 saved;
	u64 bytes; /* of all */
};

/* The pool in the host's memory. Swap-outs are numbered in twos, so that a stamp can be odd. */
struct gpu_swap {
	void *stream;
	struct kern_event *ready, *done; /* what the copies wait for; what waits for the copies */
	struct kern_kv *layers;		 /* pinned, as the pool is */
	void *memory;
	u32 block_count; /* 0: there is none */
	u64 *stamp;	 /* [blocks of the device] number of the last swap-out that reads it */
	u64 queued;	 /* number of the last swap-out */
	u64 fenced;	 /* of the last one that the kernels' stream has waited for */
};

struct gpu {
	struct gpu_config config;
	const struct kern_device_api *api;
	struct kern_ops ops;
	struct kern_device_ops device_ops;
	struct kern_ctx ctx; /* its stream: all kernels */
	void *side;	     /* stream of results on their way down */
	struct model_weights weights;
	void *weight_memory;
	u64 weight_bytes;
	struct gpu_arena arena;

	u32 samples_max, share_max, moe_tokens, decode_tokens_max;
	u32 embeddings_max; /* of a step; 0: the model or the engine gives none */
	struct gpu_attention attentions[GPU_ATTENTIONS];
	u32 attention_count;
	size_t stage_bytes;

	struct kern_kv *kv; /* [layers]; zeros: the layer has no keys and values; of those that share some, another's */
	void *kv_memory;
	u32 kv_count; /* layers that have some of their own */
	u32 block_count;
	u64 block_bytes;
	struct gpu_swap swap;
	struct gpu_states states;

	struct gpu_stage stages[GPU_STAGES];
	u32 next_stage;
	struct gpu_slot slots[GPU_RING];
	struct kern_event *computed; /* what the side stream waits for */
	u8 *pinned;		     /* of stages, slots and lists */
	u8 *host;		     /* of slots and lists */
	size_t pinned_bytes, host_bytes;

	u32 *grown;		      /* [R] zero between steps */
	u32 *anew, anew_count;	      /* [R] rows of the step that are forks or have another newest token */
	struct inputs rope_inputs;    /* for tables by length */

	struct gpu_graph graphs[GPU_SIZES_MAX];
	u32 graph_count;
	bool has_exceptions; /* the last step ran some row otherwise than by the rule */
	bool recorded;	     /* a graph, by the last step */
	bool picked;	     /* the last step's samples are not its tokens: their part of the stream lies in arena.picked */
	bool tail_queued;    /* by the forward: the sample half has only the way back to queue */
	char tune_path[1024];
};

/* ---------------------------------------------------------------- gpu_memory.c */

/* Sizes of everything but weights and pool; lays out, allocates, and zeroes on the device. */
MUST_CHECK enum err gpu_memory_init(struct gpu *g, struct err_msg *em);
void gpu_memory_fini(struct gpu *g);

/* ---------------------------------------------------------------- gpu_kv.c */

/* Whether the layer attends; and whether to keys and values of its own. */
bool gpu_attends(const struct gpu *g, u32 layer);
bool gpu_has_kv(const struct gpu *g, u32 layer);
/* The layer's keys and values, without memory. */
struct kern_kv gpu_kv_of(const struct gpu *g, u32 layer);
u64 gpu_kv_bytes(const struct gpu *g); /* of a block in all layers */
/* Finds gpu.attentions. */
void gpu_list_attentions(struct gpu *g);
/* The number of the layer's among gpu.attentions. Windows that no sequence can be longer than are none. */
u32 gpu_attention_of(const struct gpu *g, u32 layer);
/* Of steps of decoding, or of any. */
struct kern_attention_limits gpu_attention_limits(const struct gpu *g, const struct gpu_attention *a, bool decode);
/* Device memory that may be taken now: under the cap of --gpu-memory-utilization less a margin. `free_bytes`: there is, less the margin. */
MUST_CHECK enum err gpu_memory_left(const struct gpu *g, u64 *bytes, u64 *free_bytes, struct err_msg *em);
/* How many blocks fit now; says what would fit if one sequence does not. */
MUST_CHECK enum err gpu_count_blocks(struct gpu *g, u32 *blocks, struct err_msg *em);
MUST_CHECK enum err gpu_pool_init(struct gpu *g, u32 blocks, struct err_msg *em);
void gpu_pool_fini(struct gpu *g);

/* ---------------------------------------------------------------- gpu_weights.c */

MUST_CHECK enum err gpu_load_weights(struct gpu *g, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_tune.c */

/* Of the file that remembers measured products, in the folder of --weights-cache; NULL: there is none. */
const char *gpu_tune_path(struct gpu *g);
/* Measures what is not remembered. A file that cannot be written is a warning. */
MUST_CHECK enum err gpu_tune(struct gpu *g, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_diff.c */

/* A stage that may be written: blocks while its last copy is not done. */
MUST_CHECK enum err gpu_stage_take(struct gpu *g, struct gpu_stage **out, struct err_msg *em);
/* Queues the copy of some of the stage's bytes; gpu_stage_sent ends the stage. */
MUST_CHECK enum err gpu_stage_copy(struct gpu *g, struct gpu_stage *s, void *to, size_t at, size_t bytes,
				   struct err_msg *em);
MUST_CHECK enum err gpu_stage_sent(struct gpu *g, struct gpu_stage *s, struct err_msg *em);
/* The diff of a step, applied; nothing where nothing changed. */
MUST_CHECK enum err gpu_apply(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			      struct err_msg *em);
/* Lists of biases and of masked ids of the rows that were added. */
MUST_CHECK enum err gpu_apply_lists(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
				    struct err_msg *em);
/* The masks of rows that sample, [count] by sample, NULL: none; to arena.allowed. */
MUST_CHECK enum err gpu_send_allowed(struct gpu *g, const u32 *const *allowed, u32 count, struct err_msg *em);
/* Within the device's pool. */
MUST_CHECK enum err gpu_copy_blocks(struct gpu *g, const struct batch_state *b, struct err_msg *em);
/* Rows of the rotary tables, where they depend on lengths. */
MUST_CHECK enum err gpu_upload_rope(struct gpu *g, const struct batch_state *b, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_swap.c */

/* Copies of a step between the pools, in their order with its kernels. */
MUST_CHECK enum err gpu_swap_blocks(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
				    struct err_msg *em);
/* Waits for what is queued. */
MUST_CHECK enum err gpu_swap_begin(struct gpu *g, struct err_msg *em);
void gpu_swap_fini(struct gpu *g);

/* ---------------------------------------------------------------- gpu_decoder.c, gpu_moe.c */

/* "OP: what went wrong". */
enum err gpu_op(enum err e, const char *op, struct err_msg *em);
/* Whether the products that end a block add to the residual stream in floats, or go through delta in bf16: where a
 * norm of their own comes first, and, of several ranks, in steps of more than `few` tokens, where the sum over ranks
 * counts its bytes. */
bool gpu_ends_in_stream(const struct gpu *g, bool few, const float *post_norm);
/* All layers; the residual stream is then `x`. */
MUST_CHECK enum err gpu_decode(struct gpu *g, const struct gpu_shape *shape, struct err_msg *em);
/* Logits of `count` of the step's `tokens` into arena.logits: of those of `index` (device), or of the first.
 */
MUST_CHECK enum err gpu_logits(struct gpu *g, const u32 *index, u32 count, u32 tokens, struct err_msg *em);
/* The final norm of what the logits of the last step's `count` samples are made of, to arena.picked_normed. */
MUST_CHECK enum err gpu_norm_samples(struct gpu *g, bool picked, u32 count, struct err_msg *em);
/* The experts' say about `normed`, this rank's part of it, added to the stream or written to `delta`. */
struct gpu_moe_out {
	bool stream, accumulate; /* x = or, with accumulate, x += */
};
MUST_CHECK enum err gpu_experts(struct gpu *g, const struct layer_weights *w, const struct gpu_moe_out *out,
				u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_recurrent.c */

/* Floats from what a layer's first product makes of a token to the next one's. */
u32 gpu_qkv_stride(const struct gpu *g, u32 layer);
/* Of the layer that has most, and of what a layer's last product reads. */
u32 gpu_qkv_widest(const struct gpu *g);
u32 gpu_attended_widest(const struct gpu *g);
bool gpu_is_recurrent(const struct gpu *g, u32 layer);
/* What recurrent layers have instead of attention: from arena.qkv to arena.attended; the rows' states move on, and are saved as arena.saves says. */
MUST_CHECK enum err gpu_recurrent_mix(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em);
/* Weighs what attention gives, arena.attended, by the gates behind the layer's q, k and v, where there are some. */
MUST_CHECK enum err gpu_gate_heads(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_inputs.c */

/* What all layers add of the tokens, arena.inputs, from these and their embeddings, which are the stream; overwrites arena.normed. */
MUST_CHECK enum err gpu_inputs_begin(struct gpu *g, u32 tokens, struct err_msg *em);
/* What the layer adds, to arena.delta, by the stream, which is rounded in arena.normed. */
MUST_CHECK enum err gpu_inputs_add(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em);
/* Multiplies the stream. */
MUST_CHECK enum err gpu_scale_stream(struct gpu *g, float factor, u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_latent.c */

bool gpu_is_latent(const struct gpu *g);
/* From arena.low to arena.qkv as rope_kv reads it. */
MUST_CHECK enum err gpu_latent_project(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em);
/* From arena.attended to arena.values. */
MUST_CHECK enum err gpu_latent_values(struct gpu *g, u32 layer, u32 tokens, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_states.c */

/* Memory for the states of all rows, and for as many saved ones as are a small share of the device's. Nothing where no layer has any.
 * ERR_NO_SPACE: says how many rows have room. */
MUST_CHECK enum err gpu_states_init(struct gpu *g, struct err_msg *em);
void gpu_states_fini(struct gpu *g);
/* Before the layers of a step: states that rows begin with, saved ones or those of the rows that they are copies of; and which states the layers
 * shall save. */
MUST_CHECK enum err gpu_states_before(struct gpu *g, const struct batch_state *b, struct err_msg *em);
/* At INIT: whatever became of a step, the next one saves none unless somebody says so. */
MUST_CHECK enum err gpu_states_begin(struct gpu *g, struct err_msg *em);
/* Behind a step's layers: the same. */
MUST_CHECK enum err gpu_states_behind(struct gpu *g, const struct batch_state *b, struct err_msg *em);

/* ---------------------------------------------------------------- gpu_step.c */

/* Inputs, attention plans, layers, logits; with `tail` sampling and commit. Queued or recorded. */
MUST_CHECK enum err gpu_queue(struct gpu *g, const struct gpu_shape *shape, bool tail, struct err_msg *em);
/* The padded sizes; graphs are recorded while serving. */
void gpu_graphs_init(struct gpu *g);
void gpu_graphs_fini(struct gpu *g);

/* ---------------------------------------------------------------- gpu_sample.c */

/* No row's logits change and nobody asks for log-probabilities. */
bool gpu_samples_plainly(const struct batch_state *b);
MUST_CHECK enum err gpu_queue_sampling(struct gpu *g, u32 first, u32 count, struct err_msg *em);
MUST_CHECK enum err gpu_queue_commit(struct gpu *g, struct err_msg *em);
/* Bias, penalties, masks, sampling and log-probabilities into the slot. */
MUST_CHECK enum err gpu_sample_rows(struct gpu *g, const struct batch_state *b, const u32 *const *allowed,
				    struct gpu_slot *slot, struct err_msg *em);
MUST_CHECK enum err gpu_prompt_logprobs(struct gpu *g, const struct batch_state *b, struct gpu_slot *slot,
					struct err_msg *em);

#endif
