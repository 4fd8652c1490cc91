/* config.json and generation_config.json of a model directory, checked. */
#ifndef TERCET_PROC_WORKER_MODEL_CONFIG_H
#define TERCET_PROC_WORKER_MODEL_CONFIG_H

#include "common/err.h"
#include "common/sampling_params.h"
#include "common/types.h"
#include "kernels/kernels.h"
#include "proc_worker/model/arch_table.h"

enum rope_kind {
	ROPE_PLAIN,
	ROPE_LINEAR, /* positions divided by `factor` (Chen et al. 2023) */
	ROPE_LLAMA3, /* low frequencies divided, high ones kept, a ramp between (Llama 3.1) */
};

struct rope_config {
	enum rope_kind kind;
	u32 dim; /* of a head's dimensions, how many are rotated */
	double theta;
	double factor;
	double low_freq_factor, high_freq_factor;
	u32 original_context;
};

struct model_config {
	const struct arch *arch;
	u32 vocab_size, hidden, intermediate, layers, heads, kv_heads, head_dim;
	u32 context_max; /* tokens that the model was made for, with what rope scaling adds */
	f32 norm_eps;
	struct rope_config rope;
	enum kern_activation activation;
	bool tied_embeddings; /* lm_head is the embedding */
	bool has_dtype;	      /* config.json says what the checkpoint is stored in */
	enum kern_dtype dtype;
	u32 eos_ids[EOS_IDS_MAX]; /* of config.json and generation_config.json */
	u32 eos_count;
};

/* Reads and checks DIR/config.json, and DIR/generation_config.json where there is one.
 * ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_INVALID: `em` names file and field, what was found and what would
 * be right. */
MUST_CHECK enum err model_config_read(struct model_config *c, const char *dir, struct err_msg *em);

/* The same for the text of a config.json alone. */
MUST_CHECK enum err model_config_parse(struct model_config *c, const char *text, size_t bytes,
				       struct err_msg *em);

/* What one rank of a tensor-parallel group holds. */
struct model_shard {
	u32 rank, ranks;
	u32 heads;
	u32 kv_heads, kv_first; /* with fewer KV heads than ranks several ranks hold the same one */
	u32 intermediate;
	u32 vocab_first, vocab_rows; /* ranks differ by at most one row */
};

/* ERR_INVALID: the model cannot be divided like that; names the number and which counts would do. */
MUST_CHECK enum err model_shard_init(struct model_shard *s, const struct model_config *c, u32 rank, u32 ranks,
				     struct err_msg *em);

#endif
