/* What a checkpoint of each architecture is made of: which of its tensors become which (fused) weight of the
 * decoder, of what shape they must be, how ranks divide them, and what else sets the family apart. A new
 * architecture of the decoder family is a new row; docs/ADDING_A_MODEL.md. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TABLE_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TABLE_H

#include <stddef.h>

#include "common/types.h"
#include "kernels/kernels.h"

/* Weights as the decoder reads them. */
enum weight_slot {
	SLOT_EMBED,
	SLOT_POSITIONS, /* an embedding of every position, added to the token's */
	SLOT_EMBED_NORM, /* over embeddings */
	SLOT_EMBED_NORM_BIAS,
	SLOT_FINAL_NORM,
	SLOT_FINAL_NORM_BIAS,
	SLOT_LM_HEAD,
	SLOT_LM_HEAD_BIAS,
	/* Of what layers add of a token by itself ("hidden_size_per_layer_input"): for all layers, one behind the other */
	SLOT_INPUTS_EMBED,
	SLOT_INPUTS_PROJECTION, /* of the token's embedding */
	SLOT_INPUTS_NORM,	/* over each layer's */
	/* Of families with `altup`: what every further stream begins as, and what becomes of it behind the last layer, one a stream */
	SLOT_ALTUP_IN,
	SLOT_ALTUP_OUT,
	SLOT_ALTUP_OUT_LAST = SLOT_ALTUP_OUT + KERN_STREAMS_MAX - 2,
	/* Of families with `hyper`: how streams are one again behind the last layer */
	SLOT_HYPER_HEAD,
	SLOT_HYPER_HEAD_BASE,
	SLOT_HYPER_HEAD_SCALE,
	SLOT_ATTN_NORM, /* from here on: one a layer */
	SLOT_ATTN_NORM_BIAS,
	/* Of families with `gated_norms`: the small MLP of what the norm before attention makes, and likewise before experts */
	SLOT_ATTN_NORM_DOWN,
	SLOT_ATTN_NORM_UP,
	SLOT_MLP_NORM_DOWN,
	SLOT_MLP_NORM_UP,
	SLOT_QKV,
	SLOT_QKV_BIAS,
	SLOT_Q_NORM,
	SLOT_K_NORM,
	SLOT_Q_NORM_BIAS, /* of families with `head_norm_biases` */
	SLOT_K_NORM_BIAS,
	/* Of families with `latent`: */
	SLOT_Q_B,    /* queries from what SLOT_QKV makes of them first */
	SLOT_HEAD_K, /* one a head: from a query to what is held against latents */
	SLOT_HEAD_V, /* one a head: from a latent to values */
	/* Of families with "index_topk", of layers that choose: the indexer's key with its norm, its queries, and what their heads count */
	SLOT_INDEX_K,
	SLOT_INDEX_K_NORM,
	SLOT_INDEX_K_NORM_BIAS,
	SLOT_INDEX_Q,
	SLOT_INDEX_WEIGHTS,
	/* Of layers that keep a state, between SLOT_QKV and SLOT_ATTN_OUT: kern_conv_args, kern_recurrent_args, kern_gate_args */
	SLOT_CONV,
	SLOT_CONV_BIAS,
	SLOT_RATE_LOG,
	SLOT_DECAY_BIAS,
	SLOT_SKIP,
	SLOT_GATE_NORM,
	/* Of RECURRENT_SELECTIVE: what makes of the convolved channels their step (dt), key (B) and query (C), with norms, and steps of the first; and
	 * kern_selective_scan_args */
	SLOT_X_PROJ,
	SLOT_DT_NORM,
	SLOT_B_NORM,
	SLOT_C_NORM,
	SLOT_DT_PROJ,
	SLOT_RATES,
	/* Of RECURRENT_LRU: what makes gates of each head's channels, of what comes in and of what fades, with biases; and kern_lru_args.rate */
	SLOT_LRU_INPUT,
	SLOT_LRU_INPUT_BIAS,
	SLOT_LRU_FADE,
	SLOT_LRU_FADE_BIAS,
	SLOT_LRU_RATE,
	SLOT_DECAY_B, /* of RECURRENT_KDA: decays and gates from what SLOT_QKV makes of them first */
	SLOT_GATE_B,
	/* Of families with `head_experts`, where SLOT_QKV makes keys and values alone: one an expert, from the stream to queries and from what these say */
	SLOT_HEADS_ROUTER,
	SLOT_HEADS_IN,
	SLOT_HEADS_OUT,
	/* Of families with `shared_blocks`, of layers with LAYER_SHARED_BLOCK: low-rank adapters, of attention's first product and of the MLP's, and what the block's answer goes through */
	SLOT_ADAPTER_IN, /* of q, k and v, one behind the other */
	SLOT_ADAPTER_Q,
	SLOT_ADAPTER_K,
	SLOT_ADAPTER_V,
	SLOT_MLP_ADAPTER_IN,
	SLOT_MLP_ADAPTER_OUT,
	SLOT_BLOCK_OUT,
	SLOT_STATE_OUT, /* where attention stands beside that: its last product, SLOT_ATTN_OUT being attention's */
	SLOT_LAMBDA, /* of families with `differential`: what is learned of how much the second heads take away, four vectors as wide as a head */
	SLOT_ATTN_SUB_NORM, /* of families with `sub_norms`: over what all heads say together, before SLOT_ATTN_OUT */
	SLOT_ATTN_OUT,
	SLOT_ATTN_OUT_BIAS,
	SLOT_SINKS, /* a score for every head that no key has: kern_attention_args */
	SLOT_ATTN_POST_NORM, /* over what attention adds to the residual stream */
	SLOT_MLP_NORM,
	SLOT_MLP_NORM_BIAS,
	SLOT_GATE_UP,
	SLOT_GATE_UP_BIAS,
	SLOT_MLP_SUB_NORM, /* of families with `sub_norms`: over all that the activation makes, before SLOT_DOWN */
	SLOT_DOWN,
	SLOT_DOWN_BIAS,
	SLOT_XIELU, /* what the activation of a family with `xielu` has learned: kern_act_mul_args */
	SLOT_MLP_POST_NORM,
	SLOT_ROUTER,
	SLOT_ROUTER_BIAS,
	SLOT_CHOICE_BIAS, /* by which experts are chosen, but not weighed: kern_moe_route_args.bias */
	SLOT_SHARED_GATE, /* how much the expert of all tokens counts, whose matrices are SLOT_GATE_UP and SLOT_DOWN */
	SLOT_EXPERT_GATE_UP, /* one an expert */
	SLOT_EXPERT_GATE_UP_BIAS, /* of all experts */
	SLOT_EXPERT_DOWN,
	SLOT_EXPERT_DOWN_BIAS,
	/* Of experts that work on another number of values than the stream has: what makes these of it, and it of what they say together */
	SLOT_EXPERTS_IN,
	SLOT_EXPERTS_IN_BIAS,
	SLOT_EXPERTS_OUT,
	SLOT_EXPERTS_OUT_BIAS,
	/* Of experts beside an MLP: norms of what they and their router read, of what they add, and of what the MLP does, before both are one */
	SLOT_ROUTER_NORM,
	SLOT_EXPERT_SCALES, /* what each one's weight is multiplied by */
	SLOT_EXPERTS_NORM,
	SLOT_EXPERTS_POST_NORM,
	SLOT_BESIDE_POST_NORM,
	/* Of a layer's own input of a token: what the stream weighs it by, and what becomes of it */
	SLOT_INPUT_GATE,
	SLOT_INPUT_OUT,
	SLOT_INPUT_POST_NORM,
	SLOT_LAYER_SCALE, /* what the stream is multiplied by behind the layer */
	/* Of families with `altup`: how a layer mixes streams before and behind it (altup.h), and a low-rank product beside attention */
	SLOT_ALTUP_NORM,
	SLOT_ALTUP_ROUTER,
	SLOT_ALTUP_PREDICT,
	SLOT_ALTUP_CORRECT,
	SLOT_ALTUP_SCALE, /* what the active stream is multiplied by for the layer's own input */
	SLOT_LAUREL_LEFT,
	SLOT_LAUREL_RIGHT,
	SLOT_LAUREL_NORM,
	/* Of families with `hyper`: what streams count for attention and for the MLP, and add of them */
	SLOT_HYPER_ATTN,
	SLOT_HYPER_ATTN_BASE,
	SLOT_HYPER_ATTN_SCALE,
	SLOT_HYPER_MLP,
	SLOT_HYPER_MLP_BASE,
	SLOT_HYPER_MLP_SCALE,
	SLOT_COUNT,
	SLOT_LAYER_FIRST = SLOT_ATTN_NORM,
};

/* Sizes that config.json gives. */
enum arch_dim {
	DIM_NONE, /* a vector's second one */
	DIM_VOCAB,
	DIM_EMBED_VOCAB, /* rows of the embedding: DIM_VOCAB, or more */
	DIM_CONTEXT,
	DIM_CONTEXT_PADDED, /* with DIM_TWO positions in front of the first */
	DIM_HIDDEN,
	DIM_HIDDEN_TWO, /* twice that */
	DIM_ADAPTER,	/* "adapter_rank" */
	DIM_HEAD,
	DIM_HEAD_COUNT,
	DIM_KV_HEAD_COUNT,
	DIM_HEAD_GATES, /* DIM_HEAD_COUNT where "gating" is per head, else DIM_HEADS */
	DIM_HEADS,    /* heads * head_dim */
	DIM_KV_HEADS, /* kv_heads * head_dim */
	DIM_HEADS_KV, /* both of them, one behind the other */
	/* Of families with `differential`, whose files have half the heads and KV heads that there are here, in two halves each: */
	DIM_HALF_HEADS,
	DIM_QUARTER_HEADS,
	DIM_HALF_KV_HEADS,
	DIM_QUARTER_KV_HEADS,
	DIM_KV_HEADS_TWO, /* twice DIM_KV_HEADS */
	DIM_HEADS_TWO, /* twice DIM_HEADS: a gate of every head behind its query */
	DIM_QKV,      /* q, k and v, one behind the other */
	/* Of families with `latent`, where DIM_HEAD is what the cache holds of a token: */
	DIM_LATENT,
	DIM_Q_RANK,
	DIM_HEAD_KEY,	     /* of a head the part of a query that does not rotate */
	DIM_HEAD_VALUE,	     /* of a head */
	DIM_HEADS_QUERY,     /* heads * what rotates and what does not */
	DIM_HEADS_VALUE,     /* heads * DIM_HEAD_VALUE */
	DIM_HEADS_KEY_VALUE, /* heads * both */
	/* Of families with `gated_norms`: */
	DIM_Q_RANK_TWO,
	DIM_HEADS_QUERY_GATE, /* heads * what rotates, what does not, and a gate of each value */
	DIM_NORM_GATE,	      /* "gated_norm_rank" */
	/* Of families with "index_topk": */
	DIM_INDEX, /* values of the indexer's key */
	DIM_INDEX_HEADS,
	DIM_INDEX_QUERIES, /* its heads * its values */
	/* Of families with `recurrent`, of layers that keep a state: */
	DIM_TAPS,
	DIM_CHANNELS, /* of RECURRENT_CONV: "hidden_size" */
	DIM_CHANNELS_TWO,
	DIM_CHANNELS_THREE,
	DIM_STATE_VALUE,  /* values of a head */
	DIM_STATE_KEYS,   /* key heads * values of a key */
	DIM_STATE_VALUES, /* heads * DIM_STATE_VALUE */
	DIM_STATE_HEADS,  /* how many heads */
	DIM_STATE_QK,	  /* q and k, one behind the other */
	DIM_STATE_QKV,	  /* these and v */
	DIM_STATE_QKVZ,	  /* these and their gate */
	DIM_STATE_HEADS_TWO,
	DIM_STATE_VZ,  /* of these parts and that of how fast each head forgets, as RECURRENT_SCAN has them */
	DIM_STATE_KV,
	DIM_STATE_KVZ,
	DIM_STATE_ALL,
	/* Of RECURRENT_SELECTIVE, where DIM_STATE_VALUES are channels and DIM_STATE_KEYS what each one's state has: */
	DIM_STEP_RANK,
	DIM_SELECTED, /* what x_proj makes: DIM_STEP_RANK and twice DIM_STATE_KEYS */
	/* Of families with `global_heads`, of the layers that have these: */
	DIM_GLOBAL_HEAD,
	DIM_GLOBAL_HEADS,    /* heads * DIM_GLOBAL_HEAD */
	DIM_GLOBAL_KV_HEADS, /* their KV heads * DIM_GLOBAL_HEAD */
	DIM_INPUT,  /* "hidden_size_per_layer_input" */
	DIM_INPUTS, /* of all layers */
	DIM_INPUTS_VOCAB,
	DIM_STREAMS, /* "altup_num_inputs" */
	DIM_STREAMS_SQUARED,
	DIM_HYPER, /* "hc_mult" */
	DIM_HYPER_TWO,
	DIM_HYPER_WIDTH, /* of all streams together */
	DIM_LAUREL, /* "laurel_rank" */
	DIM_WIDE_INTERMEDIATE, /* twice DIM_INTERMEDIATE, of layers with WHEN_WIDE */
	DIM_INTERMEDIATE,
	DIM_GATE_UP, /* twice the intermediate size */
	DIM_EXPERTS,
	DIM_ROUTED, /* these and "zero_expert_num" */
	DIM_EXPERT_INTERMEDIATE,
	DIM_EXPERT_WIDTH, /* what an expert reads and writes: DIM_HIDDEN, or "moe_latent_size" */
	DIM_EXPERT_GATE_UP, /* twice DIM_EXPERT_INTERMEDIATE: gate and up of one value are neighbours */
	DIM_SHARED_INTERMEDIATE, /* of the expert of all tokens */
	DIM_SHARED_GATE_UP,	 /* twice that */
	DIM_ONE,
	DIM_TWO,
};

/* How ranks of a tensor-parallel group divide a tensor (Shoeybi et al. 2019). */
enum arch_split {
	SPLIT_NONE,
	SPLIT_ROWS,    /* each computes some outputs */
	SPLIT_COLUMNS, /* each sums over some inputs; the results are added */
};

/* In which models, and in which of their layers, a tensor is there. */
enum arch_when {
	WHEN_ALWAYS,
	WHEN_ATTENTION_BIAS, /* "attention_bias" is true */
	WHEN_MLP_BIAS,	     /* "mlp_bias" is true, in layers with one MLP */
	WHEN_DENSE,	     /* layers with one MLP */
	WHEN_EXPERTS,	     /* layers with a mixture of experts */
	WHEN_SHORTCUT,	     /* layers with LAYER_SHORTCUT */
	WHEN_SHARED,	     /* of these, where there is an expert of all tokens */
	WHEN_SHARED_BIAS,    /* of these, where "mlp_bias" is true */
	WHEN_EXPERTS_IN,     /* layers with a mixture of experts, where "moe_latent_size" is a number */
	WHEN_EXPERTS_IN_BIAS, /* of these, where "mlp_bias" is true */
	WHEN_CHOICE_BIAS,    /* of those with experts, where "use_expert_bias" is true, or in families without that field where the files have it */
	WHEN_HEAD_NORMS,     /* "use_qk_norm", or what the family calls it, is true */
	WHEN_SEQUENTIAL,     /* attention and MLP stand one behind the other */
	WHEN_NORM_SHARED,    /* model_config.norm_each is false: the first norm is that of both, or the MLP's is WHEN_SEQUENTIAL */
	WHEN_NORM_EACH,	     /* it is true */
	WHEN_LM_HEAD_BIAS,   /* "lm_head_bias" is true */
	WHEN_Q_RANK,	     /* "q_lora_rank" is a number */
	WHEN_NO_Q_RANK,	     /* it is null */
	WHEN_INDEX,	     /* layers that choose tokens, of models that do */
	/* Of families with `recurrent`: layers of attention, and layers that keep a state; of these where products and convolution have biases. */
	WHEN_ATTENTION,
	WHEN_RECURRENT,
	WHEN_STATE_BIAS,
	WHEN_CONV_BIAS,
	WHEN_POST_NORM,	 /* "use_post_norm" is true */
	WHEN_STATE_NORM, /* and where what they make has a norm ("mamba_rms_norm") */
	/* Of families with `single_blocks`: layers of one of both, and of none. */
	WHEN_MIXER,
	WHEN_NO_MIXER,
	/* Of families with `by_layer`: layers with a matrix in place of attention, or in place of an MLP. */
	WHEN_LINEAR_MIXER,
	WHEN_LINEAR_MLP,
	/* Of families with `shared_blocks`: the first of the layers that share a block, where it has biases, and all of them where attention has adapters. */
	WHEN_SHARED_BLOCK,
	WHEN_SHARED_BLOCK_BIAS,
	WHEN_ADAPTERS,
	/* Of families with `global_heads`: layers with a window, and those without; with keys and values of their own. */
	WHEN_LOCAL,
	WHEN_LOCAL_KV,
	WHEN_GLOBAL,
	WHEN_GLOBAL_KV,
	WHEN_GLOBAL_V, /* unless "attention_k_eq_v" is true */
	WHEN_NARROW,   /* layers with an MLP of "intermediate_size" */
	WHEN_WIDE,     /* and of twice that ("use_double_wide_mlp") */
	WHEN_INPUTS,   /* "hidden_size_per_layer_input" is not 0 */
	WHEN_OUTPUT_GATE, /* layers of attention, where "use_attention_gate" is true */
	WHEN_POSITIONS, /* model_config.learned_positions is true */
	WHEN_ALTUP_SCALE, /* of families with `altup`: "altup_correct_scale" is true */
};

/* By which heads the parts of a fused tensor are grouped: it has a group for each, and of every part its share. */
enum arch_groups {
	GROUPS_NONE,
	GROUPS_KV_HEADS,  /* with q, k and v: those of the heads that read it, its k, its v */
	GROUPS_HEADS,	  /* with a query and its gate */
	GROUPS_KEY_HEADS, /* of layers that keep a state */
	GROUPS_FOUR,	  /* a quarter of all heads each */
};

/* Where two layers of the decoder are one of the file: its number is half of theirs. */
enum arch_pairs {
	PAIRS_NONE,
	PAIRS_EACH,  /* each has such a tensor, and a second "{}" is 0 or 1 */
	PAIRS_FIRST, /* the first has it, and a second "{}" is the expert */
};

/* Numbers of config.json that what a product makes is multiplied by, or what is made of that: model_config.scales. */
enum arch_scale {
	SCALE_NONE,
	/* Of layers that keep a state: gates, how fast each head forgets, what is convolved (as v, k and q), and what comes out. */
	SCALE_STATE_GATE,
	SCALE_STATE_DECAY,
	SCALE_STATE_V,
	SCALE_STATE_K,
	SCALE_STATE_Q,
	SCALE_STATE_OUT,
	SCALE_ATTN_OUT,
	SCALE_GATE, /* of the MLP */
	SCALE_DOWN,
	SCALE_SHARED, /* what the expert of all tokens says */
	SCALE_POST_NORM, /* what norms behind blocks make of them */
	SCALE_COUNT,
};

/* One tensor of the checkpoint, or a part of one that is fused in the file. Parts of a slot lie one behind
 * the other, in the order of the table. "{}" in a name is the layer, a second one the expert. Matrices are
 * [rows][columns] = [outputs][inputs]. */
struct arch_tensor {
	enum weight_slot slot;
	const char *name;
	enum arch_dim rows, columns;
	enum arch_split split;
	enum arch_when when;
	/* The tensor in the file has `whole` rows (DIM_NONE: just `rows`), of which this part comes behind
	 * `before`. */
	enum arch_dim whole, before;
	enum arch_groups grouped;
	/* Of parts that some files have fused and others have apart: the tensor that only the latter have, whose parts (`apart`) are then read
	 * instead of the fused one's. */
	const char *apart_as;
	bool apart;
	bool by_head; /* there is a tensor for each head (a second "{}"), which has as many of the rows as a head has values */
	bool a_head; /* the tensor in the file has a row for each head, which counts as many times as a head has values */
	bool transposed; /* the tensor in the file is [columns][rows]; in MXFP4 it is not, whatever others are */
	u32 stream; /* of families with `altup`: there only if the model has more streams than that; 0: always */
	enum arch_pairs pairs;
	enum arch_scale scale; /* what the weights are multiplied by, so that nothing else has to be */
};

/* A field of config.json that a family calls by a name of its own. */
struct arch_field {
	const char *file, *here;
};
enum { ARCH_FIELDS_MAX = 16, ARCH_OWN_MAX = 20 };

/* Layers that keep a state of each sequence instead of keys and values; what each kind reads of its first product (SLOT_QKV), in this order. */
enum recurrent_kind {
	RECURRENT_NONE,
	RECURRENT_CONV,	 /* a gated short convolution of `hidden` channels (LFM2): before, behind, x */
	RECURRENT_DELTA, /* the gated delta rule (Qwen 3.5): q, k, v, gate, beta, decay */
	RECURRENT_SCAN,	 /* Mamba 2: v, k, q, gate, decay */
	RECURRENT_SELECTIVE, /* Mamba: x, gate */
	RECURRENT_KDA,	 /* Kimi delta attention: q, k, v, beta, what SLOT_DECAY_B reads, what SLOT_GATE_B reads; with `state_wide` decay and gate instead */
	RECURRENT_LIGHTNING, /* lightning attention (MiniMax): q, k, v, gate */
	RECURRENT_LRU,	 /* a real-gated linear recurrent unit (RecurrentGemma): x, gate */
};

/* Fields of config.json that a family has, and what it computes differently from Llama. */
enum arch_trait {
	ARCH_ATTENTION_BIAS = 1 << 0, /* "attention_bias" */
	ARCH_MLP_BIAS = 1 << 1,	      /* "mlp_bias" */
	ARCH_PARTIAL_ROTARY = 1 << 2, /* "partial_rotary_factor" */
	/* Which layers attend only to a window ("sliding_window"), unless "layer_types" lists them: */
	ARCH_WINDOW_ALL = 1 << 3,
	ARCH_WINDOW_UPPER = 1 << 4, /* those from "max_window_layers" on, if "use_sliding_window" is true */
	ARCH_WINDOW_EVEN = 1 << 5,  /* every other one, beginning with the first */
	ARCH_SOFT_CAPS = 1 << 6, /* "final_logit_softcapping", "query_pre_attn_scalar" */
	ARCH_TIED = 1 << 7, /* lm_head is the embedding unless "tie_word_embeddings" is false */
	ARCH_EMBED_SCALE = 1 << 8, /* embeddings are multiplied by sqrt(hidden_size) */
	ARCH_NORM_OFFSET = 1 << 9, /* norms multiply by 1 + weight */
	ARCH_GELU =
		1 << 10, /* "hidden_activation" before "hidden_act"; where neither is given, GELU (tanh) */
	ARCH_EXPERTS_ALL = 1 << 11,   /* every layer: "num_local_experts", their weights always sum to 1 */
	ARCH_EXPERTS_SOME = 1 << 12,  /* "num_experts", "decoder_sparse_step", "mlp_only_layers" */
	ARCH_LONGROPE_YARN = 1 << 13, /* older files say "yarn" (or "su") and mean longrope */
	ARCH_WINDOW_PATTERN = 1 << 15, /* all but every "sliding_window_pattern"-th */
	ARCH_LOCAL_ROPE = 1 << 22, /* layers with windows have a rope of their own ("rope_local_base_freq") */
	ARCH_WINDOW_ROPE = 1 << 23, /* where there is a window, layers without do not rotate */
	/* "no_rope_layers", or every "no_rope_layer_interval"-th; with "use_sliding_window" these have windows */
	ARCH_NO_ROPE = 1 << 16,
	/* "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling" */
	ARCH_MULTIPLIERS = 1 << 17,
	ARCH_SHARED_EXPERT = 1 << 19, /* "shared_expert_intermediate_size": one expert of all tokens beside the others */
	ARCH_QKV_BIAS = 1 << 20,      /* "qkv_bias", true where it is missing */
	ARCH_WINDOW_LISTED = 1 << 21, /* only those that "layer_types" lists: releases of the family disagree */
	ARCH_ATTENTION_CAP = 1 << 18, /* "attn_logit_softcapping" */
	ARCH_EXPERTS_NORM = 1 << 25, /* of ARCH_EXPERTS_ALL: "norm_topk_prob" instead */
	ARCH_LOGIT_SCALE = 1 << 26,  /* "logit_scale" */
	ARCH_USE_BIAS = 1 << 27,     /* "use_bias": of attention and MLP */
	/* "num_experts", "moe_intermediate_size", "n_shared_experts"; which layers, and how routed: fields of its own */
	ARCH_EXPERTS_OWN = 1 << 28,
	ARCH_PARALLEL_CHOICE = 1 << 29, /* "use_parallel_residual"; where it is missing `parallel` */
	ARCH_QK_NORMS = 1 << 24, /* norms over all heads of q, and of k, together */
	ARCH_HEAD_NORMS = 1 << 14, /* norms over the heads of q and k; "use_qk_norm", if it is there, is true */
};

struct arch {
	const char *name; /* in "architectures" of config.json */
	const struct arch_tensor *tensors;
	u32 tensor_count;
	u32 traits;
	struct arch_field fields[ARCH_FIELDS_MAX];
	/* Further fields of config.json that few families have; "layer_types": layers need not be alike. */
	const char *own[ARCH_OWN_MAX];
	/* What it computes differently and no field says. */
	const char *layer_norm; /* norms are LayerNorm with this field's epsilon; NULL: RMSNorm with "rms_norm_eps" */
	bool plain_norms;	/* without weights, and with `norm_eps` */
	bool norm_behind;	/* norms over heads are behind the rotation */
	bool plain_head_norms;	/* have no weights, and are there unless "use_qk_norm" is false; of `chunked` in layers that rotate alone */
	bool embed_norm;	/* rows of the embedding are normed, without weights, when they are read */
	bool plain_final_norm;	/* of ARCH_NORM_OFFSET: the last norm multiplies by its weights */
	bool sub_norms;		/* what the last products of attention and MLP read has norms, over what all ranks have of it: sub_norm.h */
	bool parallel;		/* attention and MLP read the same stream, and are added to it together */
	bool differential;	/* one half of the heads takes away from what the other attends to: differential.h. There are twice as many here as in the file, KV heads, too */
	bool head_experts;	/* attention is a mixture of experts, each of which has a query for every KV head, chosen as those of MLPs: head_experts.h */
	bool normed_residual;	/* what blocks say is added to what they read, not to the stream before its norm: model_config.residuals */
	bool positions;		/* SLOT_POSITIONS instead of rotary embeddings */
	bool gated_norms; /* norms before attention and experts have gates (norm_gate.h), and so have values of heads (latent_config.gated) */
	bool latent; /* heads share one latent and one rotated key ("kv_lora_rank", "qk_rope_head_dim"): latent.h */
	bool interleaved;	/* rotary embeddings turn neighbours, not halves */
	bool index_interleaved; /* of families with "index_topk": those of the indexer do, where "indexer_rope_interleave" says nothing */
	bool index_bounded; /* likewise: served up to so long a context, within which all tokens are chosen */
	bool index_shared; /* likewise: layers may take over what others have chosen ("indexer_types") */
	u32 index_heads;   /* "index_n_heads" */
	bool backwards;		/* they turn the other way */
	bool quarters;		/* its tensors have GROUPS_FOUR */
	const char *rope_stated; /* "rope_scaling" must be there, as here: without one others take numbers that no file has; NULL: it need not */
	bool ungated;		/* the MLP has one matrix before its activation */
	bool mixer;	  /* of ARCH_EXPERTS_ALL, two a token: SparseMixer ("router_jitter_noise": kern_moe_route_args.mixer) */
	bool head_layer_norms; /* norms over heads are LayerNorm without biases, and every head has weights of its own; only if "use_qk_norm" or "qk_layernorm" is true */
	bool head_norm_biases; /* norms over heads are LayerNorm with biases, the same for all heads, unless "qk_layernorm" is false: head_norm.h */
	bool chunked; /* layers that rotate see chunks of "attention_chunk_size" tokens, and queries of the others count by their positions ("attn_scale") */
	bool router_reads; /* an expert's weight multiplies what it reads, not what it says */
	bool global_heads; /* layers without a window have heads of their own sizes ("global_head_dim"); scores are not scaled: config_global.c */
	bool altup; /* the residual stream is several ("altup_num_inputs"), scores are not scaled and values are normed: config_altup.c, altup.h */
	bool hyper; /* the residual stream is several, gated ("hc_mult"), and experts' gates have a bound ("swiglu_limit"): config_hyper.c, hyper.h */
	enum recurrent_kind recurrent; /* of its layers that are not of attention: config_recurrent.c */
	const char *recurrent_layer;   /* what "layer_types" calls these */
	bool state_beside; /* every layer keeps a state and attends, side by side, and both are added: config_beside.c */
	bool single_blocks; /* a layer is one block, of attention, of a state, an MLP or experts ("hybrid_override_pattern"), and nothing rotates: config_blocks.c */
	bool shortcut; /* layers come in pairs ("num_layers"), the first of which has LAYER_SHORTCUT; latents are multiplied by sqrt(hidden / rank): config_shortcut.c */
	bool shared_blocks; /* a layer of the file is two here, the first of which is a block of attention and an MLP that layers share, or nothing: shared_block.h */
	bool halved; /* the MLP is half as wide as "intermediate_size" says */
	bool alibi; /* scores may fall with the distance of keys, in place of rotary embeddings: config_alibi.c */
	bool sinusoids; /* of `positions`: no file has them, sinusoids_fill makes them */
	bool unscaled; /* so are scores */
	bool unit_head; /* rows of lm_head are divided by their lengths */
	bool by_layer; /* layers have KV heads and MLPs of their own sizes, or lack one of both ("block_configs"): config_by_layer.c */
	u32 state_head_dim; /* of RECURRENT_SCAN: values of a head, where "mamba_d_head" says nothing else; 0: "mamba_expand" says it */
	u32 state_groups, state_key_dim; /* "mamba_n_groups", "mamba_d_state"; 0: 1 and 256 */
	bool attention_free; /* all layers keep a state and have no MLP, and nothing rotates: config_selective.c */
	bool select_norms, plain_select_norms; /* of RECURRENT_SELECTIVE: step, key and query have norms; without weights */
	bool state_tiled; /* of RECURRENT_DELTA: files in GGUF have heads of values in another order (tiles.h) */
	bool state_wide; /* of RECURRENT_KDA: its first product makes decays and gates at once, and every so many layers are of attention ("layer_group_size") */
	bool state_as_attention; /* sizes of RECURRENT_DELTA follow from those of attention where nothing says them */
	u32 taps;		 /* of RECURRENT_CONV, where "conv_L_cache" says nothing */
	bool proportional;	 /* "rope_type" may be proportional: of a head's pairs the first rotate, as they would if all did */
	f32 gate_eps;		 /* of the norm of what such layers make; 0: that of the other norms */
	bool unrotated;		 /* nothing rotates, whatever "rope_theta" says where `rope_theta` is not 0: the causal mask and the states tell positions */
	bool rope_nullable;	 /* "rope_theta" must be there, and may be null: nothing rotates */
	bool output_gate; /* every head has a gate, behind its query in q_proj or in a tensor of its own, which its output is weighed by: model_config.output_gate */
	bool gate_each_head; /* it is one number a head, and no field says so */
	bool gate_softplus; /* by softplus, not by a sigmoid */
	bool names_alone; /* transformers knows its fields by their names in files alone (arch.fields) */
	bool pattern_fixed; /* of ARCH_WINDOW_PATTERN: without "layer_types" it is always `window_pattern` */
	bool experts_sum_one; /* "norm_topk_prob" may say nothing else */
	bool window_needed; /* of ARCH_WINDOW_ROPE: "sliding_window" is a number, for layers without a window never rotate */
	const char *with_rms_norm; /* the same family where "rms_norm_eps" is a number: its norms are not LayerNorm; NULL: there is none */
	bool part; /* never a model's own architecture, but that of its language part */
	bool experts_optional; /* of ARCH_EXPERTS_ALL: "num_local_experts" may be 0, and the MLP then as wide as "shared_intermediate_size" */
	bool experts_only; /* of ARCH_EXPERTS_SOME: in all layers, whose weights always sum to 1, so that nothing has "intermediate_size" */
	bool whole_experts; /* a layer's experts are always in one tensor, in the file as in `tensors` */
	/* Of ARCH_EXPERTS_ALL: the numbers of experts may be arrays, one for each layer, and one expert as wide as the others, whose
	 * width is "intermediate_size", is of all tokens ("num_shared_expert") */
	bool experts_alike;
	bool clamped; /* experts clamp gate and up, which are neighbours ("swiglu_limit", "swiglu_alpha": kern_act_mul_args) */
	bool xielu; /* the activation is xIELU, by SLOT_XIELU: "hidden_act" must say so */
	enum kern_activation activation;
	/* What the family takes where config.json says nothing. */
	u32 vocab_size, heads, context; /* 0: config.json must say it; of `attention_free` a context that bounds what a request may ask for */
	f32 norm_eps;
	u32 inner;    /* intermediate_size / hidden_size; 0: config.json must say it */
	u32 head_dim; /* 0: hidden_size / num_attention_heads */
	u32 kv_heads; /* 0: num_attention_heads */
	u32 window;   /* of `chunked` of how many tokens a chunk is; 0: none */
	u32 windows_from; /* of ARCH_WINDOW_UPPER: "max_window_layers", and nothing switches them on; 0: "use_sliding_window" does */
	u32 window_pattern; /* of ARCH_WINDOW_ALL: without "layer_types" every so many layers have none, the first of them, or with `from_last` the last */
	bool from_last;	    /* and these do not rotate, unless "layer_rope_theta" says which do, all by "rope_theta" */
	u32 rope_theta;
	u32 local_theta; /* of ARCH_LOCAL_ROPE; 0: "rope_theta" is theirs, too */
	u32 attention_soft_cap, logits_soft_cap; /* 0: none */
	bool attention_bias, mlp_bias;
	f32 rotary_share; /* "partial_rotary_factor"; 0: 1 */
	u32 rotary_dim;	  /* "rotary_dim", which may not be null; 0: where it says nothing that share counts */
	f32 logit_scale;
	bool experts_norm; /* of ARCH_EXPERTS_SOME: "norm_topk_prob" */
	bool router_sigmoid;
	bool scores_alone;     /* "norm_topk_prob" is false where it is missing */
	bool router_by_logits; /* experts are chosen by logits with their biases, not by scores */
	/* Of ARCH_EXPERTS_OWN: */
	bool image_experts; /* there are others for images: "moe_intermediate_size" is an array, the width of those for text before that of the others */
	bool router_greedy; /* weights are never normalized, and groups chosen by their best expert ("topk_method") */
	u32 dense_layers;   /* "first_k_dense_replace" */
	u32 groups, groups_top; /* "n_group", "topk_group"; 0: 1 */
	f32 routed_scale;	/* "routed_scaling_factor"; 0: 1 */
	f32 router_sum_plus; /* kern_moe_route_args.sum_plus */
	u32 shared_experts;  /* "n_shared_experts" */
};

/* NULL: unknown. */
const struct arch *arch_find(const char *name);
/* The family of the backbone of that name: MistralModel is one of MistralForCausalLM, without its lm_head, GPT2Model of GPT2LMHeadModel, Gemma3TextModel of
 * Gemma3ForCausalLM. NULL: there is none. */
const struct arch *arch_find_backbone(const char *name);
/* Whether `field` is among its own. */
bool arch_has_own(const struct arch *a, const char *field);
/* What files of the family call the field `here`, for errors about what has been read. */
const char *arch_field_in_file(const struct arch *a, const char *here);
/* Whether a model of that name ties its embeddings where either its whole or its part says so. */
bool arch_ties_either(const char *name);
/* Whether embeddings of a model of that name are tied where its whole does not say it, if the files have no lm_head. */
bool arch_ties_headless(const char *name);
/* Whether a model of that name has in "thinker_config" what others say of their parts themselves. */
bool arch_thinks(const char *name);
/* Of a model that also has parts for images the language part, which alone is computed: "text_config" describes it, with
 * `model_type`; Qwen's older files have its fields beside "vision_config" instead (NULL: the first kind that there is).
 * NULL: `name` is no such model, or has no such part; which it may have is in `known`, "" if it is no such model. */
const struct arch *arch_find_text_part(const char *name, const char *model_type, char *known, size_t bytes);
/* What an error says of the architectures that there are, into `out`: "docs/ADDING_A_MODEL.md lists the 170 that are supported; of names like it: ...", where
 * there are names like `like`. */
void arch_names(char *out, size_t bytes, const char *like);
/* The name of row `i` of the table, and of that of models of several parts; NULL behind the last one. */
const char *arch_name_at(size_t i);
const char *arch_part_name_at(size_t i);
/* The tensor's name in `layer` and for `expert`, into `out`. */
void arch_tensor_name(char *out, size_t bytes, const struct arch_tensor *t, u32 layer, u32 expert);

#endif
