/* The weights of one rank: found in the checkpoint by the architecture's table, checked, sliced, fused and
 * packed into the layout that the kernels read. */
#ifndef TERCET_PROC_WORKER_MODEL_WEIGHTS_H
#define TERCET_PROC_WORKER_MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/safetensors.h"

/* Of what layers add of a token, the part that is made of its embedding, and that which is looked up: 1 / sqrt(2). */
#define WEIGHTS_INPUTS_SHARE 0.70710678f

/* What gates of streams are made of: hyper.h. */
struct hyper_weights {
	struct kern_weight fn; /* [2 streams][streams * hidden], of the model's [streams][...] */
	const float *base;     /* as many as it has rows */
	const float *scale;    /* [2], or [1] */
};

/* NULL, or zeroed, is what the family or the layer does not have. Norms have their offset in them. */
struct layer_weights {
	const float *attn_norm_bias;  /* [hidden] of a LayerNorm, or NULL */
	const float *attn_norm;	      /* [hidden]; NULL: the block reads the stream itself */
	struct kern_weight attn_norm_down, attn_norm_up; /* [norm_gate_rank][hidden], [hidden][norm_gate_rank], whole on every rank */
	struct kern_weight mlp_norm_down, mlp_norm_up;	 /* likewise */
	struct kern_weight qkv;	      /* [(heads + 2 kv_heads) * head_dim][hidden], with `output_gate` heads * head_dim rows more; where values are keys [(heads + kv_heads) * head_dim][hidden] */
	const float *qkv_bias;	      /* [(heads + 2 kv_heads) * head_dim] */
	const float *q_norm, *k_norm; /* [head_dim], or over all heads [heads * head_dim], [kv_heads * head_dim] */
	const float *q_norm_bias, *k_norm_bias; /* [head_dim], or NULL */
	struct kern_weight q_b;	      /* [heads * (key + rope)][q_rank], of latent attention, where qkv is [q_rank + head_dim][hidden] */
	struct kern_weight *head_k;   /* [heads] of [latent][key] */
	struct kern_weight *head_v;   /* [heads] of [value][latent] */
	/* Of layers that choose tokens; all whole on every rank: */
	struct kern_weight index_k, index_q, index_weights; /* [width][hidden], [index heads * width][q_rank], [index heads][hidden] */
	const float *index_k_norm, *index_k_norm_bias;	    /* [width] */
	/* Of layers with LAYER_RECURRENT, where qkv is the first product and attn_out the last one: */
	const float *conv, *conv_bias;	     /* [taps][channels], [channels] */
	const float *rate_log, *decay_bias;  /* [heads]; the latter of RECURRENT_KDA [heads * key_dim] */
	const float *skip;		     /* [heads], of RECURRENT_SCAN */
	const float *gate_norm;		     /* [value_dim] of RECURRENT_DELTA and RECURRENT_KDA, [heads * value_dim] of RECURRENT_SCAN, or NULL */
	/* Of RECURRENT_SELECTIVE: */
	struct kern_weight x_proj, dt_proj;  /* [step_rank + 2 key_dim][channels], [channels][step_rank] */
	const float *dt_norm, *b_norm, *c_norm; /* [step_rank], [key_dim], [key_dim], whole on every rank, or NULL */
	const float *rates;		     /* [key_dim][channels], kern_selective_scan_args.rate */
	struct kern_weight *lru_input, *lru_fade; /* [heads] of [value_dim][value_dim], of RECURRENT_LRU */
	const float *lru_input_bias, *lru_fade_bias, *lru_rate; /* [heads * value_dim] */
	struct kern_weight decay_b, gate_b;  /* [heads * key_dim][key_dim], [heads * value_dim][key_dim], of RECURRENT_KDA */
	struct kern_weight state_out;	     /* [hidden][heads * value_dim], with LAYER_BESIDE, where qkv has q, k and v behind its other rows */
	struct kern_weight heads_router; /* [experts][hidden], of arch.head_experts, where qkv is [2 kv_heads * head_dim][hidden] */
	struct kern_weight *heads_in, *heads_out; /* [experts] of [kv_heads * head_dim][hidden], and the other way round */
	/* Of layers with LAYER_SHARED_BLOCK, where qkv has [2 hidden] inputs; the first of those that share a block holds it, and the others point to it: */
	struct kern_weight adapter_in;				/* [3 rank][2 hidden], whole on every rank, or none */
	struct kern_weight adapter_q, adapter_k, adapter_v;	/* [heads * head_dim][rank], [kv_heads * head_dim][rank] twice */
	struct kern_weight mlp_adapter_in, mlp_adapter_out;	/* [rank][hidden], whole on every rank, and [2 intermediate][rank] */
	struct kern_weight block_out;				/* [hidden][hidden], whole on every rank */
	const float *lambda; /* [4][head_dim], of arch.differential, where attn_out has half as many inputs as heads have values */
	const float *attn_sub_norm;	     /* [heads * head_dim] of this rank, or NULL */
	struct kern_weight attn_out;
	const float *attn_out_bias;  /* [hidden], whole on every rank */
	const float *sinks;	     /* [heads] */
	const float *attn_post_norm; /* [hidden] */
	const float *mlp_norm, *mlp_norm_bias;
	struct kern_weight gate_up; /* [2 intermediate][hidden], of an MLP without gate [intermediate] */
	const float *gate_up_bias;  /* [2 intermediate] */
	const float *mlp_sub_norm; /* [intermediate] of this rank, or NULL */
	struct kern_weight down;
	const float *down_bias; /* [hidden], whole on every rank */
	const float *xielu;	/* [KERN_XIELU_COUNT] */
	const float *mlp_post_norm;
	struct kern_weight router;	    /* [experts][hidden], whole on every rank */
	const float *router_bias;	    /* [experts] */
	const float *choice_bias;	    /* [experts] */
	struct kern_weight shared_gate;	    /* [1][hidden], whole on every rank, of an expert of all tokens: gate_up and down are its */
	struct kern_weight *expert_gate_up; /* [experts] of [2 expert_intermediate][hidden], or of experts_narrow inputs */
	struct kern_weight *expert_down;    /* [experts] */
	const float *expert_gate_up_bias;   /* [experts][2 expert_intermediate] */
	const float *expert_down_bias;	    /* [experts][hidden], whole on every rank */
	struct kern_weight experts_in;	    /* [experts_narrow][hidden]; it and the three that follow are whole on every rank */
	struct kern_weight experts_out;	    /* [hidden][experts_narrow] */
	const float *experts_in_bias;	    /* [experts_narrow], or NULL */
	const float *experts_out_bias;	    /* [hidden], or NULL */
	/* Of experts beside an MLP; all [hidden] but the second. */
	const float *router_norm;   /* divided by sqrt(hidden) */
	const float *expert_scales; /* [experts] */
	const float *experts_norm, *experts_post_norm, *beside_post_norm;
	struct kern_weight input_gate;	    /* [input_width][hidden], whole on every rank, as all that is of such inputs */
	struct kern_weight input_out;	    /* [hidden][input_width] */
	const float *input_post_norm;
	const float *scale; /* [1] */
	/* Of families with `altup`; all whole on every rank: */
	const float *altup_norm;	 /* [hidden] */
	struct kern_weight altup_router; /* [streams][hidden] */
	const float *altup_predict;	 /* [streams * streams][streams] */
	const float *altup_correct;	 /* [streams][streams] */
	const float *altup_scale;	 /* [hidden], or NULL: ones */
	struct kern_weight laurel_left;	 /* [laurel_rank][hidden] */
	struct kern_weight laurel_right; /* [hidden][laurel_rank] */
	const float *laurel_norm;	 /* [hidden] */
	struct hyper_weights attn_hyper, mlp_hyper; /* of families with `hyper`, whole on every rank */
	float scale_value; /* on devices: the same on the host; else, and where there is none, 0 */
};

struct model_weights {
	const void *embed; /* [vocab_rows][hidden]; may lie in the mapped checkpoint */
	enum kern_dtype embed_dtype;
	const void *positions; /* [context][hidden] in `positions_dtype`, whole on every rank */
	enum kern_dtype positions_dtype;
	const void *inputs_embed; /* [input_vocab][layers * input_width], mostly in the mapped checkpoint */
	enum kern_dtype inputs_embed_dtype;
	struct kern_weight inputs_projection; /* [layers * input_width][hidden] */
	const float *inputs_norm;	      /* [input_width] */
	struct kern_weight altup_in; /* [(streams - 1) * hidden][hidden], whole on every rank */
	struct kern_weight altup_out[KERN_STREAMS_MAX - 1]; /* [hidden][hidden], of each stream but the first, likewise */
	struct hyper_weights hyper; /* of what streams become behind the last layer, likewise */
	const float *embed_norm, *embed_norm_bias; /* [hidden], or NULL */
	const float *final_norm, *final_norm_bias;
	struct kern_weight lm_head; /* [vocab_rows][hidden] */
	const float *lm_head_bias;  /* [vocab_rows] */
	struct layer_weights *layers;
	u32 layer_count;
	u32 expert_count;
	struct kern_weight *experts; /* of all layers, and matrices of heads */
	u64 bytes;		     /* memory of all of them */
	void *memory;
	size_t memory_bytes;
	bool mapped; /* `memory` is a file of the weights cache, read-only */
};

/* What loading needs to know. */
struct weights_plan {
	const struct model_config *config;
	const struct model_shard *shard;
	const struct safetensors *checkpoint; /* must outlive the weights */
	enum kern_dtype dtype;		      /* KERN_F32 or KERN_BF16 */
	enum kern_dtype matrix_dtype;	      /* a quantized type; any other: as `dtype` */
	u32 caps;
	struct kern_threads *threads;
	u64 memory_available;			   /* bytes; more is not taken */
	const char *model_dir;			   /* of the checkpoint; needed with a cache only */
	const char *cache_dir;			   /* --weights-cache: see weights_cache.h; NULL: none */
	void (*progress)(void *ctx, double share); /* NULL: none */
	void *progress_ctx;
};

/* Checks that every tensor of the table is there with the right shape and a type that can be read; first of
 * all, so that a bad checkpoint is refused before anything is loaded. ERR_NOT_FOUND, ERR_FORMAT,
 * ERR_UNSUPPORTED: names the tensor, what is expected and what was found. */
MUST_CHECK enum err model_weights_check(const struct weights_plan *plan, struct err_msg *em);
/* The first tensor from `*from` of the table on that the checkpoint has and config.json says there is none of, as biases of a model
 * without biases: they are not read, and without them a model that was trained with them answers nonsense. `*from`, 0 at first, moves
 * behind it. NULL: no more. */
const struct st_tensor *model_weights_unread(const struct weights_plan *plan, u32 *from);
/* Bytes that model_weights_load will allocate. */
u64 model_weights_bytes(const struct weights_plan *plan);
/* Checks, then loads this rank's slices, from the cache if it has them. ERR_NO_SPACE: says how much is needed and how much there is. */
MUST_CHECK enum err model_weights_load(struct model_weights *w, const struct weights_plan *plan,
				       struct err_msg *em);
void model_weights_fini(struct model_weights *w);
/* The names of the types that the layers' matrices are held in, in the order in which they are met, separated by commas: a checkpoint may say its
 * matrices' types one by one. Cut where `bytes` end. */
void model_weights_types(const struct model_weights *w, char *text, size_t bytes);

/* How weights get onto a device: into rooms, pieces of host memory that a device copies from. */
struct weights_device {
	char *memory;	   /* model_weights_device_bytes of device memory, 256-byte aligned; the caller's */
	size_t room_bytes; /* a row of any matrix in bfloat16 fits */
	/* A room that may be written; waits until what it held before is on the device. */
	enum err (*room)(void *ctx, void **out, struct err_msg *em);
	/* Queues the copy of the first bytes of the room that was given last. */
	enum err (*send)(void *ctx, void *to, size_t bytes, struct err_msg *em);
	void *ctx;
};

/* Bytes of device memory that model_weights_upload fills. ERR_UNSUPPORTED: names a matrix that devices have no
 * layout for. */
MUST_CHECK enum err model_weights_device_bytes(const struct weights_plan *plan, u64 *bytes, struct err_msg *em);
/* Loads this rank's slices onto a device, a matrix (bfloat16: some rows) at a time; every pointer to values in `w`
 * is one of the device, in the layout of its kernels. An intermediate size that is no multiple of 32 is filled
 * up by zeros: gate_up.n / 2 and down.k say so. `memory_available` is not read. What `room` and `send` answer;
 * ERR_NO_MEMORY. */
MUST_CHECK enum err model_weights_upload(struct model_weights *w, const struct weights_plan *plan,
					 const struct weights_device *d, struct err_msg *em);

#endif
