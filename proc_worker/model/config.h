/* config.json and generation_config.json of a model directory, checked. */
#ifndef TERCET_PROC_WORKER_MODEL_CONFIG_H
#define TERCET_PROC_WORKER_MODEL_CONFIG_H

#include "common/err.h"
#include "common/sampling_params.h"
#include "common/types.h"
#include "kernels/kernels.h"
#include "proc_worker/model/arch_table.h"
#include "proc_worker/model/quant_config.h"

enum rope_kind {
	ROPE_PLAIN,
	ROPE_LINEAR,   /* positions divided by `factor` (Chen et al. 2023) */
	ROPE_DYNAMIC,  /* beyond the original context theta grows with the length (emozilla 2023) */
	ROPE_LLAMA3,   /* low frequencies divided, high ones kept, a ramp between (Llama 3.1) */
	ROPE_YARN,     /* the same with a ramp over dimensions (Peng et al. 2023) */
	ROPE_PROPORTIONAL, /* the first of a head's pairs rotate, as they would if all did (Gemma 4) */
	ROPE_LONGROPE, /* a factor for each dimension; others beyond the original context (Ding et al. 2024)
			*/
};

enum { ROPE_HALF_MAX = 512 };

struct rope_config {
	enum rope_kind kind;
	bool backwards; /* pairs turn the other way */
	u32 dim; /* of a head's dimensions, how many are rotated: the first */
	u32 head; /* of ROPE_PROPORTIONAL all of them, whose halves make the pairs; else 0 */
	double theta;
	double factor;
	double low_freq_factor, high_freq_factor;
	double beta_fast, beta_slow; /* turns within the original context: above it is kept, below divided */
	bool truncate;		     /* the ramp begins and ends at whole dimensions */
	double attention_factor;     /* cosines and sines are multiplied by it */
	double far_factor;	     /* of longrope: the same beyond the original context */
	u32 original_context;
	/* Of a query at position p scores are multiplied by 1 + query_beta ln(1 + floor((p + query_ahead) / query_floor)) (Llama 4); 0: not */
	double query_beta;
	u32 query_floor, query_ahead;
	bool query_unrotated; /* of layers that do not rotate alone */
	double short_factor[ROPE_HALF_MAX], long_factor[ROPE_HALF_MAX]; /* [dim / 2] */
};

enum { MODEL_LAYERS_MAX = 4096 };

/* What sets a layer apart. */
enum model_layer_flag {
	LAYER_WINDOW = 1 << 0,	/* attends to `window` tokens */
	LAYER_EXPERTS = 1 << 1, /* has a mixture of experts instead of one MLP */
	LAYER_NO_ROPE = 1 << 2, /* does not rotate: positions are told by the causal mask alone */
	LAYER_LOCAL_ROPE = 1 << 3, /* rotates by `local_rope` */
	LAYER_GLOBAL = 1 << 4, /* its heads have `global_head_dim` values, and as many KV heads as `global_kv_heads` says */
	LAYER_SHARED_KV = 1 << 5, /* has no keys and values: attends to those of model_kv_layer */
	LAYER_WIDE = 1 << 6, /* its MLP is as wide as `wide_intermediate` */
	LAYER_RECURRENT = 1 << 7, /* keeps a state of every sequence (`recurrent`) instead of keys and values */
	/* Of families with arch.single_blocks, whose layers are one block each, or with arch.by_layer: */
	LAYER_NO_MIXER = 1 << 8, /* neither attends nor keeps a state */
	LAYER_NO_MLP = 1 << 9,	 /* has neither MLP nor experts */
	LAYER_SHORTCUT = 1 << 12, /* of arch.shortcut: has a mixture of experts beside its MLP, which adds to the stream behind the next layer */
	/* Of arch.by_layer, with LAYER_NO_MIXER or LAYER_NO_MLP: has a matrix in place of that block, which reads its norm (SLOT_ATTN_OUT, SLOT_DOWN) */
	LAYER_LINEAR_MIXER = 1 << 13,
	LAYER_LINEAR_MLP = 1 << 14,
	LAYER_SHARED_BLOCK = 1 << 15, /* of arch.shared_blocks: is a block that other layers have, too, and says something to the next layer alone */
	LAYER_SPARSE = 1 << 11, /* of its MLP's gate what is less than `gate_deviations` above the mean counts as nothing */
	LAYER_BESIDE = 1 << 10, /* of those with LAYER_RECURRENT: attends as well, side by side with that */
};

/* How a token's experts are chosen and weighed, beside their number: as kern_moe_route_args. Zeroed: the best of softmax. */
struct router_config {
	bool sigmoid;
	bool groups_best;
	u32 groups, groups_top;
	f32 sum_plus, sum_least, scale, mixer;
};

/* Of families with arch.latent: heads share what `head_dim` then counts, one latent and what of a key rotates. */
struct latent_config {
	u32 rank;   /* values of the latent */
	u32 q_rank; /* of what queries are made from; 0: from the stream */
	u32 key;    /* of a head, what does not rotate */
	u32 rope;   /* what does */
	u32 value;
	bool gated; /* SLOT_Q_B makes a gate of each head's values behind its query, of the low rank both behind its norm and before it */
};

/* Of families whose layers attend to chosen tokens (indexer.h): some score what a query may attend to, and it and those behind them attend to what scores
 * best. Of a context that has no more tokens than that all are chosen. */
struct index_config {
	u32 top;   /* how many are chosen; 0: no layer chooses, all attend to all */
	u32 heads; /* of the indexer, whose keys have `width` values and are the same for all of them */
	u32 width;
	bool interleaved; /* the first of these turn neighbours, not halves, as many as turn of attention's */
	bool full[MODEL_LAYERS_MAX]; /* layers that choose; the others take over what the last one before them has chosen */
};

/* Layers with LAYER_RECURRENT. */
struct recurrent_config {
	enum recurrent_kind kind;
	u32 taps; /* of the convolution, which is over `before * x`, over q, k and v, or over v, k and q */
	/* Of all but RECURRENT_CONV; kern_recurrent_args. Of RECURRENT_SELECTIVE channels are heads of one value, and key_dim is what each one's state has; of
	 * RECURRENT_LRU heads are blocks of `value_dim` channels, and key_dim is 1. */
	u32 key_heads, heads, key_dim, value_dim;
	f32 beta_scale, step_min, step_max;
	f32 decay_bound; /* of RECURRENT_KDA: decays are exp(-decay_bound sigmoid(..)), decay_bound.h; 0: they have no bound */
	u32 step_rank; /* of RECURRENT_SELECTIVE: values that steps are made of */
	f32 gate_eps; /* of SLOT_GATE_NORM, and of SLOT_DT_NORM and those beside it; `norm_eps` may be that of a divided stream */
	bool bias; /* of the first product and the last one */
	bool conv_bias;
	bool normed;	 /* what the state makes has a norm (SLOT_GATE_NORM); of RECURRENT_SELECTIVE what steps, keys and queries are made of */
	bool norm_first; /* of RECURRENT_SCAN: before its gate, not behind it */
	bool tiled; /* the file has `heads` in another order (tiles.h) */
};

/* Of families with arch.shared_blocks. */
struct shared_blocks {
	u32 count; /* different ones, which layers have in turn */
	u32 rank;  /* of adapters */
	bool adapts_attention;
	u32 uses;			/* layers that have one */
	u32 layers[MODEL_LAYERS_MAX / 2]; /* [uses] these */
	u32 first[MODEL_LAYERS_MAX];	/* of such a layer the first that has the same one */
};

/* Of families with arch.altup: several residual streams, one of which layers read and add to; the others are predicted from all, and corrected by it. */
struct altup_config {
	u32 streams, active;
	u32 laurel_rank; /* of the product beside attention */
	bool scaled;	 /* the active stream is multiplied by weights before it gates a layer's own input */
};

/* How slopes of scores follow from the number of heads where that is no power of two, and what they are added to. */
enum alibi_kind {
	ALIBI_NONE,
	ALIBI_BELOW,   /* those of the power below, then every second of the power above */
	ALIBI_ABOVE,   /* those of the power above, every second first */
	ALIBI_ROUNDED, /* as ALIBI_BELOW, to scores before their scale, in bfloat16 (kern_attention_args.slopes_rounded) */
};
struct alibi_config {
	enum alibi_kind kind;
	f32 bias_max; /* the last of a power of two is 2^-bias_max */
};

/* Of families with arch.normed_residual: what the stream becomes behind a block that reads n and says b is said * (kept * n + b). */
enum residual_kind { RESIDUAL_ATTENTION, RESIDUAL_STATE, RESIDUAL_MLP, RESIDUAL_KINDS };
struct residual_share {
	f32 kept, said;
};

/* Bounds of an MLP: gates are at most `gate`, what they multiply is from -up to up. Zeros: none. */
struct gate_limit {
	f32 gate, up;
};

/* Of families with arch.hyper: several residual streams, each of which counts for a block and adds what it says, by gates. */
struct hyper_config {
	u32 streams;
	f32 magnitude, eps; /* a stream adds magnitude * sigmoid(..) + eps times what a block says */
};

struct model_config {
	const struct arch *arch;
	struct quant_config quant;
	u32 embed_vocab; /* rows of the embedding in the files, of which the first `vocab_size` are read */
	u32 vocab_size, hidden, intermediate, layers, heads, kv_heads, head_dim;
	/* Of families with arch.global_heads, of layers with LAYER_GLOBAL: */
	u32 global_head_dim, global_kv_heads;
	/* Of families with arch.by_layer, where `kv_heads` and `intermediate` are the most that a layer has; 0: the layer has no such block */
	u32 kv_heads_by_layer[MODEL_LAYERS_MAX], intermediate_by_layer[MODEL_LAYERS_MAX];
	/* Where heads_differ, how many heads each layer has; `heads` is the most */
	u32 heads_by_layer[MODEL_LAYERS_MAX];
	bool heads_differ;
	bool value_is_key; /* values are what keys are before their norm */
	u32 own_kv_layers; /* the first ones, behind which no layer writes keys and values or a state: all but those with LAYER_SHARED_KV, and the last ones with
			    * LAYER_NO_MIXER */
	u32 wide_intermediate; /* of layers with LAYER_WIDE */
	u32 input_width, input_vocab; /* of what layers add of a token by itself; 0: nothing */
	struct latent_config latent; /* zeros: heads have keys and values of their own */
	struct index_config index; /* model_drop_index ends it */
	struct recurrent_config recurrent; /* zeros: no layer is */
	struct shared_blocks blocks; /* zeros: layers share nothing */
	struct altup_config altup; /* zeros: there is one stream */
	struct residual_share residuals[RESIDUAL_KINDS]; /* of attention, of what a layer that keeps a state has instead, and of MLPs */
	struct hyper_config hyper; /* likewise */
	f32 gate_deviations[MODEL_LAYERS_MAX]; /* of layers with LAYER_SPARSE, in standard deviations of a token's gate */
	bool output_gate; /* layers of attention: behind v SLOT_QKV has, as wide as q, what the heads' outputs are weighed by, after a sigmoid (head_gate.h) */
	bool gate_by_head; /* it has one number a head */
	u32 context_max; /* tokens that the model was made for, with what rope scaling adds */
	const char *context_bound; /* the field that ends `context_max` before positions do: what is computed behind so many tokens is not supported; NULL: none */
	f32 norm_eps;
	f32 post_norm_eps; /* of norms behind blocks: the same, unless "post_norm_eps" says another one */
	f32 final_norm_eps; /* of the last norm; 0: the same */
	f32 norm_offset; /* added to the weights of all norms, but the last one's of arch.plain_final_norm */
	f32 embed_scale;
	struct rope_config rope, local_rope;
	f32 attention_scale;	/* of scores */
	f32 attention_soft_cap; /* 0: none; else scores become cap * tanh(score / cap) */
	f32 logits_soft_cap;
	f32 logits_scale; /* logits are multiplied by it */
	f32 scales[SCALE_COUNT]; /* 1 but where the family has such numbers */
	u32 window; /* tokens that a layer with LAYER_WINDOW attends to, the query's own among them; of arch.chunked a chunk of them */
	enum kern_activation activation;
	f32 swiglu_alpha, swiglu_limit; /* of arch.clamped; else 0 */
	struct gate_limit mlp_limits[MODEL_LAYERS_MAX], expert_limits[MODEL_LAYERS_MAX]; /* of layers' MLPs, or the expert of all tokens, and of the other experts */
	bool limited; /* there are some */
	bool attention_bias, mlp_bias;
	bool head_norms;   /* of WHEN_HEAD_NORMS */
	bool lm_head_bias; /* of WHEN_LM_HEAD_BIAS */
	bool post_norms;   /* of WHEN_POST_NORM */
	bool choice_bias;  /* of WHEN_CHOICE_BIAS */
	struct alibi_config alibi;
	bool learned_positions; /* of WHEN_POSITIONS */
	u32 sinusoid_padding;	/* arch.sinusoids: the row of pad_token_id, which is zeros; the first position has row 2 */
	bool unit_head; /* rows of lm_head are divided by their lengths */
	bool interleaved;  /* rotary embeddings turn neighbours, not halves */
	f32 clip;	 /* of q, k and v: kern_rope_kv_args; 0: none */
	bool parallel; /* attention and MLP read the same stream: the norm that attention reads, or one of its own each */
	bool norm_each; /* of WHEN_NORM_EACH */
	u32 experts, experts_per_token, expert_intermediate; /* 0 without experts */
	u32 zero_experts; /* experts behind the others that answer with what they read */
	u32 norm_gate_rank; /* of arch.gated_norms */
	u32 experts_narrow; /* values that experts read and write, behind and before products of WHEN_EXPERTS_IN; 0: those of the stream */
	u32 shared_intermediate; /* of the expert of all tokens in layers with experts; 0: there is none */
	bool normalize_experts;				     /* the weights of a token's experts sum to 1 */
	struct router_config router;
	u16 layer_flags[MODEL_LAYERS_MAX];
	/* Layers of the file that are none of `layers`, which the others are in turn: they attend to an image, and do nothing without one. */
	bool left_out[MODEL_LAYERS_MAX];
	u32 left_out_count;
	bool tied_embeddings; /* lm_head is the embedding */
	bool tied_headless;   /* it is so unless the files have one: tensor_names_find_unsaid */
	bool headless;	      /* a backbone whose files have none, either: its logits mean nothing */
	char no_embeddings[160]; /* why it gives no embeddings of the last token; "": it does */
	bool from_params;     /* it was read from params.json, and the checkpoint is in Mistral AI's own format */
	bool has_dtype;	      /* config.json says what the checkpoint is stored in */
	enum kern_dtype dtype;
	u32 eos_ids[EOS_IDS_MAX]; /* of config.json and generation_config.json */
	u32 eos_count;
};

/* Reads and checks DIR/config.json, or DIR/params.json of a folder in Mistral AI's own format (common/mistral_folder.h), and DIR/generation_config.json
 * where there is one.
 * ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_INVALID: `em` names file and field, what was found and what would
 * be right. */
MUST_CHECK enum err model_config_read(struct model_config *c, const char *dir, struct err_msg *em);

/* The same for the text of a config.json alone. */
MUST_CHECK enum err model_config_parse(struct model_config *c, const char *text, size_t bytes,
				       struct err_msg *em);
/* And of a params.json. */
MUST_CHECK enum err model_config_parse_params(struct model_config *c, const char *text, size_t bytes, struct err_msg *em);

/* Has all layers attend to all tokens, of sequences that are no longer than what would be chosen. */
void model_drop_index(struct model_config *c);
/* Whether a layer has keys by which it chooses tokens. */
bool model_chooses(const struct model_config *c, u32 layer);
u32 model_head_dim(const struct model_config *c, u32 layer);
u32 model_heads(const struct model_config *c, u32 layer);
/* KV heads of a layer without LAYER_GLOBAL, and the width of its MLP unless that is LAYER_WIDE. */
u32 model_kv_heads(const struct model_config *c, u32 layer);
u32 model_intermediate(const struct model_config *c, u32 layer);
bool model_attends(const struct model_config *c, u32 layer); /* whether a layer has heads of attention */
/* The layer whose keys and values it attends to: its own, or the last before it of its kind that has some. */
u32 model_kv_layer(const struct model_config *c, u32 layer);
/* Of layers with LAYER_LOCAL_ROPE; NULL: there are none. */
const struct rope_config *model_local_rope(const struct model_config *c);

/* What one rank of a tensor-parallel group holds. */
struct model_shard {
	u32 rank, ranks;
	u32 heads; /* of the layer that has most */
	u32 kv_heads; /* with fewer KV heads than ranks several ranks hold the same one */
	u32 global_kv_heads, global_kv_first; /* the same of layers with LAYER_GLOBAL */
	u32 recurrent_heads, recurrent_key_heads, recurrent_channels; /* of layers with LAYER_RECURRENT; the last of RECURRENT_CONV */
	u32 intermediate, wide_intermediate, expert_intermediate, shared_intermediate;
	u32 vocab_first, vocab_rows; /* ranks differ by at most one row */
};

/* ERR_INVALID: the model cannot be divided like that; names the number and which counts would do. */
MUST_CHECK enum err model_shard_init(struct model_shard *s, const struct model_config *c, u32 rank, u32 ranks,
				     struct err_msg *em);
u32 model_shard_heads(const struct model_shard *s, const struct model_config *c, u32 layer);
u32 model_shard_kv_heads(const struct model_shard *s, const struct model_config *c, u32 layer);
/* The first of them, of a layer without LAYER_GLOBAL. */
u32 model_shard_kv_first(const struct model_shard *s, const struct model_config *c, u32 layer);

#endif
