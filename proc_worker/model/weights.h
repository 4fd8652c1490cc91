/* The weights of one rank: found in the checkpoint by the architecture's table, checked, sliced, fused and
 * packed into the layout that the kernels read. */
#ifndef TERCET_PROC_WORKER_MODEL_WEIGHTS_H
#define TERCET_PROC_WORKER_MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "proc_worker/model/config.h"
#include "proc_worker/model/safetensors.h"

/* NULL, or zeroed, is what the family or the layer does not have. Norms have their offset in them. */
struct layer_weights {
	const float *attn_norm;	      /* [hidden] */
	struct kern_weight qkv;	      /* [(heads + 2 kv_heads) * head_dim][hidden] */
	const float *qkv_bias;	      /* [(heads + 2 kv_heads) * head_dim] */
	const float *q_norm, *k_norm; /* [head_dim] */
	struct kern_weight attn_out;
	const float *attn_out_bias;  /* [hidden], whole on every rank */
	const float *attn_post_norm; /* [hidden] */
	const float *mlp_norm;
	struct kern_weight gate_up; /* [2 intermediate][hidden] */
	const float *gate_up_bias;  /* [2 intermediate] */
	struct kern_weight down;
	const float *down_bias; /* [hidden], whole on every rank */
	const float *mlp_post_norm;
	struct kern_weight router;	    /* [experts][hidden], whole on every rank */
	struct kern_weight *expert_gate_up; /* [experts] of [2 expert_intermediate][hidden] */
	struct kern_weight *expert_down;    /* [experts] */
};

struct model_weights {
	const void *embed; /* [vocab_rows][hidden]; may lie in the mapped checkpoint */
	enum kern_dtype embed_dtype;
	const float *final_norm;
	struct kern_weight lm_head; /* [vocab_rows][hidden] */
	struct layer_weights *layers;
	u32 layer_count;
	u32 expert_count;
	struct kern_weight *experts; /* of all layers */
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
/* Bytes that model_weights_load will allocate. */
u64 model_weights_bytes(const struct weights_plan *plan);
/* Checks, then loads this rank's slices, from the cache if it has them. ERR_NO_SPACE: says how much is needed and how much there is. */
MUST_CHECK enum err model_weights_load(struct model_weights *w, const struct weights_plan *plan,
				       struct err_msg *em);
void model_weights_fini(struct model_weights *w);

#endif
