/* Which tensors the families' checkpoints have: lists of parts that they share. Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_PRIV_H

#include "proc_worker/model/arch_table.h"

/* clang-format off */
#define LAYER          "model.layers.{}."
#define ATTENTION      LAYER "self_attn."
#define EXPERT         LAYER "mlp.experts.{}."
#define MIXTRAL_EXPERT LAYER "block_sparse_moe.experts.{}."

/* What most families have in common, by parts. */
#define EMBEDDINGS_BUT_NORM \
	{SLOT_EMBED, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}
#define FINAL_NORM(slot, file) {slot, "model." file, DIM_HIDDEN, DIM_NONE, SPLIT_NONE}
#define EMBEDDINGS EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "norm.weight")

#define NORM(slot, file) {slot, LAYER file, DIM_HIDDEN, DIM_NONE, SPLIT_NONE}
#define NORMS \
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), \
	NORM(SLOT_MLP_NORM, "post_attention_layernorm.weight")
#define HEAD_NORMS_WHEN(when) \
	{SLOT_Q_NORM, ATTENTION "q_norm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE, when}, \
	{SLOT_K_NORM, ATTENTION "k_norm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE, when}
#define HEAD_NORMS HEAD_NORMS_WHEN(WHEN_ALWAYS)

#define ATTENTION_OUT {SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS}
#define ATTENTION_QKV \
	{SLOT_QKV, ATTENTION "q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_QKV, ATTENTION "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_QKV, ATTENTION "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS}
#define ATTENTION_MATRICES ATTENTION_QKV, ATTENTION_OUT
#define QKV_BIASES(when) \
	{SLOT_QKV_BIAS, ATTENTION "q_proj.bias", DIM_HEADS, DIM_NONE, SPLIT_ROWS, when}, \
	{SLOT_QKV_BIAS, ATTENTION "k_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, when}, \
	{SLOT_QKV_BIAS, ATTENTION "v_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, when}
#define ATTENTION_BIASES \
	QKV_BIASES(WHEN_ATTENTION_BIAS), \
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}

#define MLP_DOWN \
	{SLOT_DOWN, LAYER "mlp.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_DENSE}
#define MLP \
	{SLOT_GATE_UP, LAYER "mlp.gate_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE}, \
	{SLOT_GATE_UP, LAYER "mlp.up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE}, \
	MLP_DOWN
#define MLP_BIASES \
	{SLOT_GATE_UP_BIAS, LAYER "mlp.gate_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS}, \
	{SLOT_GATE_UP_BIAS, LAYER "mlp.up_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS}, \
	{SLOT_DOWN_BIAS, LAYER "mlp.down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MLP_BIAS}

#define EXPERT_ROWS(name) \
	{SLOT_EXPERT_GATE_UP, name, DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS}
#define EXPERTS(router, gate, up, down) \
	{SLOT_ROUTER, LAYER router, DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS}, \
	EXPERT_ROWS(gate), \
	EXPERT_ROWS(up), \
	{SLOT_EXPERT_DOWN, down, DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS}

#define MLP_EXPERTS EXPERTS("mlp.gate.weight", EXPERT "gate_proj.weight", EXPERT "up_proj.weight", EXPERT "down_proj.weight")
#define MLP_CHOICE_BIAS \
	{SLOT_CHOICE_BIAS, LAYER "mlp.gate.e_score_correction_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS}

static const struct arch_tensor LLAMA[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP, MLP_BIASES,
};

static const struct arch_tensor BITNET[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
	{SLOT_ATTN_SUB_NORM, ATTENTION "attn_sub_norm.weight", DIM_HEADS, DIM_NONE, SPLIT_ROWS},
	{SLOT_MLP_SUB_NORM, LAYER "mlp.ffn_sub_norm.weight", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS},
};

static const struct arch_tensor HYPERCLOVAX[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP, MLP_BIASES,
	{SLOT_ATTN_POST_NORM, LAYER "post_norm1.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_POST_NORM},
	{SLOT_MLP_POST_NORM, LAYER "post_norm2.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_POST_NORM},
};

static const struct arch_tensor QWEN2[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ALWAYS), MLP,
};

#define SHARED_EXPERT LAYER "mlp.shared_expert."
#define SHARED_ROWS(name) {SLOT_GATE_UP, SHARED_EXPERT name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS}
#define EXPERTS_AND_GATED \
	MLP_EXPERTS, \
	SHARED_ROWS("gate_proj.weight"), \
	SHARED_ROWS("up_proj.weight"), \
	{SLOT_DOWN, SHARED_EXPERT "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS}, \
	{SLOT_SHARED_GATE, LAYER "mlp.shared_expert_gate.weight", DIM_ONE, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS}
static const struct arch_tensor QWEN2_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP, EXPERTS_AND_GATED,
};

/* One MLP as wide as several experts. */
#define SHARED_EXPERTS LAYER "mlp.shared_experts."
#define SHARED_EXPERTS_ROWS(name) \
	{SLOT_GATE_UP, SHARED_EXPERTS name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED}
#define EXPERTS_AND_SHARED MLP_EXPERTS, ALL_TOKENS_EXPERTS
#define ALL_TOKENS_EXPERTS \
	SHARED_EXPERTS_ROWS("gate_proj.weight"), \
	SHARED_EXPERTS_ROWS("up_proj.weight"), \
	{SLOT_DOWN, SHARED_EXPERTS "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED}

static const struct arch_tensor GLM4_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), HEAD_NORMS_WHEN(WHEN_HEAD_NORMS), MLP,
	EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

static const struct arch_tensor DOTS1[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, MLP,
	EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

static const struct arch_tensor EXAONE_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, HEAD_NORMS, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

/* The same under other names of what routes, and of the expert of all tokens. */
#define SHARED_MLP LAYER "mlp.shared_mlp."
#define SHARED_MLP_ROWS(name) {SLOT_GATE_UP, SHARED_MLP name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED}
static const struct arch_tensor HY_V3[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, MLP,
	EXPERTS("mlp.router.gate.weight", EXPERT "gate_proj.weight", EXPERT "up_proj.weight", EXPERT "down_proj.weight"),
	SHARED_MLP_ROWS("gate_proj.weight"), SHARED_MLP_ROWS("up_proj.weight"),
	{SLOT_DOWN, SHARED_MLP "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED},
	{SLOT_CHOICE_BIAS, LAYER "mlp.expert_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

/* Norms before and behind the blocks; gates of heads are behind v, as wide as q. */
static const struct arch_tensor AFMOE[] = {
	EMBEDDINGS, ATTENTION_MATRICES,
	{SLOT_QKV, ATTENTION "gate_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	HEAD_NORMS, MLP,
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"),
	NORM(SLOT_MLP_NORM, "pre_mlp_layernorm.weight"), NORM(SLOT_MLP_POST_NORM, "post_mlp_layernorm.weight"),
	EXPERTS("mlp.router.gate.weight", EXPERT "gate_proj.weight", EXPERT "up_proj.weight", EXPERT "down_proj.weight"),
	ALL_TOKENS_EXPERTS,
	{SLOT_CHOICE_BIAS, LAYER "mlp.expert_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

/* The same with q, k and v in one tensor, under other names. */
#define SARVAM_ATTENTION LAYER "attention."
#define SARVAM_QKV(slot, name, columns, when_) \
	{slot, SARVAM_ATTENTION name, DIM_HEADS, columns, SPLIT_ROWS, when_, .whole = DIM_QKV}, \
	{slot, SARVAM_ATTENTION name, DIM_KV_HEADS, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = DIM_HEADS}, \
	{slot, SARVAM_ATTENTION name, DIM_KV_HEADS, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = DIM_HEADS_KV}
static const struct arch_tensor SARVAM_MOE[] = {
	{SLOT_EMBED, "model.word_embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	FINAL_NORM(SLOT_FINAL_NORM, "norm.weight"), NORMS,
	SARVAM_QKV(SLOT_QKV, "query_key_value.weight", DIM_HIDDEN, WHEN_ALWAYS), SARVAM_QKV(SLOT_QKV_BIAS, "query_key_value.bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_Q_NORM, SARVAM_ATTENTION "query_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE},
	{SLOT_K_NORM, SARVAM_ATTENTION "key_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE},
	{SLOT_ATTN_OUT, SARVAM_ATTENTION "dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	MLP, EXPERTS_AND_SHARED,
	{SLOT_CHOICE_BIAS, LAYER "mlp.gate.expert_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

/* Likewise. */
#define PACKED_QKV(slot, name, columns) \
	{slot, name, DIM_HEADS, columns, SPLIT_ROWS, .whole = DIM_QKV}, \
	{slot, name, DIM_KV_HEADS, columns, SPLIT_ROWS, .whole = DIM_QKV, .before = DIM_HEADS}, \
	{slot, name, DIM_KV_HEADS, columns, SPLIT_ROWS, .whole = DIM_QKV, .before = DIM_HEADS_KV}
/* The two parts of kv_b_proj, which lie head by head, are on either side of attention (DeepSeek-AI 2024). */
#define LATENT_ATTENTION_OF(attention, ...) \
	{SLOT_QKV, attention "q_proj.weight", DIM_HEADS_QUERY, DIM_HIDDEN, SPLIT_ROWS, WHEN_NO_Q_RANK, __VA_ARGS__}, \
	{SLOT_QKV, attention "q_a_proj.weight", DIM_Q_RANK, DIM_HIDDEN, SPLIT_NONE, WHEN_Q_RANK, __VA_ARGS__}, \
	{SLOT_QKV, attention "kv_a_proj_with_mqa.weight", DIM_HEAD, DIM_HIDDEN, SPLIT_NONE, WHEN_ATTENTION, __VA_ARGS__}, \
	{SLOT_QKV_BIAS, attention "q_a_proj.bias", DIM_Q_RANK, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS, __VA_ARGS__}, \
	{SLOT_QKV_BIAS, attention "kv_a_proj_with_mqa.bias", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS, __VA_ARGS__}, \
	{SLOT_Q_NORM, attention "q_a_layernorm.weight", DIM_Q_RANK, DIM_NONE, SPLIT_NONE, WHEN_Q_RANK, __VA_ARGS__}, \
	{SLOT_K_NORM, attention "kv_a_layernorm.weight", DIM_LATENT, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION, __VA_ARGS__}, \
	{SLOT_Q_B, attention "q_b_proj.weight", DIM_HEADS_QUERY, DIM_Q_RANK, SPLIT_ROWS, WHEN_Q_RANK, __VA_ARGS__}, \
	{SLOT_HEAD_K, attention "kv_b_proj.weight", DIM_HEAD_KEY, DIM_LATENT, SPLIT_NONE, WHEN_ATTENTION, .whole = DIM_HEADS_KEY_VALUE, __VA_ARGS__}, \
	{SLOT_HEAD_V, attention "kv_b_proj.weight", DIM_HEAD_VALUE, DIM_LATENT, SPLIT_NONE, WHEN_ATTENTION, .whole = DIM_HEADS_KEY_VALUE, \
	 .before = DIM_HEAD_KEY, __VA_ARGS__}, \
	{SLOT_ATTN_OUT, attention "o_proj.weight", DIM_HIDDEN, DIM_HEADS_VALUE, SPLIT_COLUMNS, WHEN_ATTENTION, __VA_ARGS__}, \
	{SLOT_ATTN_OUT_BIAS, attention "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS, __VA_ARGS__}
#define LATENT_ATTENTION LATENT_ATTENTION_OF(ATTENTION, .pairs = PAIRS_NONE)

static const struct arch_tensor DEEPSEEK_V2[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP, EXPERTS_AND_SHARED,
};

static const struct arch_tensor DEEPSEEK_V3[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

/* With what chooses tokens, whole on every rank: all choose the same. */
#define INDEXER_TENSORS \
	{SLOT_INDEX_K, ATTENTION "indexer.wk.weight", DIM_INDEX, DIM_HIDDEN, SPLIT_NONE, WHEN_INDEX}, \
	{SLOT_INDEX_K_NORM, ATTENTION "indexer.k_norm.weight", DIM_INDEX, DIM_NONE, SPLIT_NONE, WHEN_INDEX}, \
	{SLOT_INDEX_K_NORM_BIAS, ATTENTION "indexer.k_norm.bias", DIM_INDEX, DIM_NONE, SPLIT_NONE, WHEN_INDEX}, \
	{SLOT_INDEX_Q, ATTENTION "indexer.wq_b.weight", DIM_INDEX_QUERIES, DIM_Q_RANK, SPLIT_NONE, WHEN_INDEX}, \
	{SLOT_INDEX_WEIGHTS, ATTENTION "indexer.weights_proj.weight", DIM_INDEX_HEADS, DIM_HIDDEN, SPLIT_NONE, WHEN_INDEX}
static const struct arch_tensor DEEPSEEK_V32[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, INDEXER_TENSORS, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

/* Its first product has the low rank of queries twice: once for its norm, which the indexer reads, too, and once as it is. */
#define NORM_GATE(down, up, name, when) \
	{down, LAYER name ".W_down.weight", DIM_NORM_GATE, DIM_HIDDEN, SPLIT_NONE, when}, \
	{up, LAYER name ".W_up.weight", DIM_HIDDEN, DIM_NORM_GATE, SPLIT_NONE, when}
#define LOW_QUERIES(slot, name, columns, when) {slot, ATTENTION name, DIM_Q_RANK, columns, SPLIT_NONE, when}
static const struct arch_tensor AXK2[] = {
	EMBEDDINGS, INDEXER_TENSORS, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
	NORM(SLOT_ATTN_NORM, "input_layernorm.norm.weight"),
	NORM_GATE(SLOT_ATTN_NORM_DOWN, SLOT_ATTN_NORM_UP, "input_layernorm", WHEN_ALWAYS),
	{SLOT_MLP_NORM, LAYER "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_DENSE},
	{SLOT_MLP_NORM, LAYER "post_attention_layernorm.norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	NORM_GATE(SLOT_MLP_NORM_DOWN, SLOT_MLP_NORM_UP, "post_attention_layernorm", WHEN_EXPERTS),
	LOW_QUERIES(SLOT_QKV, "q_a_proj.weight", DIM_HIDDEN, WHEN_ALWAYS), LOW_QUERIES(SLOT_QKV, "q_a_proj.weight", DIM_HIDDEN, WHEN_ALWAYS),
	{SLOT_QKV, ATTENTION "kv_a_proj_with_mqa.weight", DIM_HEAD, DIM_HIDDEN, SPLIT_NONE},
	LOW_QUERIES(SLOT_QKV_BIAS, "q_a_proj.bias", DIM_NONE, WHEN_ATTENTION_BIAS), LOW_QUERIES(SLOT_QKV_BIAS, "q_a_proj.bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_QKV_BIAS, ATTENTION "kv_a_proj_with_mqa.bias", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
	LOW_QUERIES(SLOT_Q_NORM, "q_a_layernorm.weight", DIM_NONE, WHEN_ALWAYS),
	{SLOT_K_NORM, ATTENTION "kv_a_layernorm.weight", DIM_LATENT, DIM_NONE, SPLIT_NONE},
	{SLOT_Q_B, ATTENTION "q_b_proj.weight", DIM_HEADS_QUERY_GATE, DIM_Q_RANK_TWO, SPLIT_ROWS},
	{SLOT_HEAD_K, ATTENTION "kv_b_proj.weight", DIM_HEAD_KEY, DIM_LATENT, SPLIT_NONE, .whole = DIM_HEADS_KEY_VALUE},
	{SLOT_HEAD_V, ATTENTION "kv_b_proj.weight", DIM_HEAD_VALUE, DIM_LATENT, SPLIT_NONE, .whole = DIM_HEADS_KEY_VALUE, .before = DIM_HEAD_KEY},
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS_VALUE, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
};

/* Norms behind the experts, but not behind the MLPs of layers without, though files have some; and experts chosen by their scores alone. */
static const struct arch_tensor AXK1[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP, EXPERTS_AND_SHARED,
	{SLOT_CHOICE_BIAS, LAYER "mlp.gate.e_score_correction_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_CHOICE_BIAS},
	{SLOT_MLP_POST_NORM, LAYER "post_mlp_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

/* Two layers in one of the file, whose mixture of experts the first has. */
#define LONGCAT_PAIR(slot, name, rows, columns, split) {slot, LAYER name ".weight", rows, columns, split, .pairs = PAIRS_EACH}
#define LONGCAT_EXPERTS(slot, name, rows, columns, split) {slot, LAYER "mlp." name, rows, columns, split, WHEN_SHORTCUT, .pairs = PAIRS_FIRST}
static const struct arch_tensor LONGCAT[] = {
	EMBEDDINGS, LATENT_ATTENTION_OF(LAYER "self_attn.{}.", .pairs = PAIRS_EACH),
	LONGCAT_PAIR(SLOT_ATTN_NORM, "input_layernorm.{}", DIM_HIDDEN, DIM_NONE, SPLIT_NONE),
	LONGCAT_PAIR(SLOT_MLP_NORM, "post_attention_layernorm.{}", DIM_HIDDEN, DIM_NONE, SPLIT_NONE),
	LONGCAT_PAIR(SLOT_GATE_UP, "mlps.{}.gate_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	LONGCAT_PAIR(SLOT_GATE_UP, "mlps.{}.up_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	LONGCAT_PAIR(SLOT_DOWN, "mlps.{}.down_proj", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS),
	LONGCAT_EXPERTS(SLOT_ROUTER, "router.classifier.weight", DIM_ROUTED, DIM_HIDDEN, SPLIT_NONE),
	LONGCAT_EXPERTS(SLOT_CHOICE_BIAS, "router.e_score_correction_bias", DIM_ROUTED, DIM_NONE, SPLIT_NONE),
	LONGCAT_EXPERTS(SLOT_EXPERT_GATE_UP, "experts.{}.gate_proj.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	LONGCAT_EXPERTS(SLOT_EXPERT_GATE_UP, "experts.{}.up_proj.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	LONGCAT_EXPERTS(SLOT_EXPERT_DOWN, "experts.{}.down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS),
};

static const struct arch_tensor MINICPM3[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP,
};

static const struct arch_tensor ERNIE4_5_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, MLP, EXPERTS_AND_SHARED,
	{SLOT_CHOICE_BIAS, LAYER "mlp.moe_statics.e_score_correction_bias", DIM_ONE, DIM_EXPERTS, SPLIT_NONE, WHEN_EXPERTS},
};

static const struct arch_tensor QWEN3[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, MLP, MLP_EXPERTS,
};

/* Of a layer's experts gate and up are one tensor, down is another, both as [experts][inputs][outputs]. */
#define WHOLE_EXPERT_ROWS(experts, ...) \
	{SLOT_EXPERT_GATE_UP, experts "gate_up_proj.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS, \
	 .whole = DIM_EXPERT_GATE_UP, .transposed = true, __VA_ARGS__}
#define WHOLE_EXPERTS(router, experts) \
	{SLOT_ROUTER, LAYER router, DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS}, \
	WHOLE_EXPERT_ROWS(experts, .before = DIM_NONE), WHOLE_EXPERT_ROWS(experts, .before = DIM_EXPERT_INTERMEDIATE), \
	{SLOT_EXPERT_DOWN, experts "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS, .transposed = true}
static const struct arch_tensor QWEN3_VL_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, MLP, WHOLE_EXPERTS("mlp.gate.weight", EXPERT),
};

/* Its norms have no weights. */
static const struct arch_tensor OLMO[] = {
	EMBEDDINGS_BUT_NORM, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
};

#define HUNYUAN_HEAD_NORMS \
	{SLOT_Q_NORM, ATTENTION "query_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE}, \
	{SLOT_K_NORM, ATTENTION "key_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor HUNYUAN[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP, HUNYUAN_HEAD_NORMS,
};

#define HUNYUAN_SHARED LAYER "mlp.shared_mlp."
#define HUNYUAN_SHARED_ROWS(name) \
	{SLOT_GATE_UP, HUNYUAN_SHARED name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS}
static const struct arch_tensor HUNYUAN_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HUNYUAN_HEAD_NORMS,
	EXPERTS("mlp.gate.wg.weight", EXPERT "gate_proj.weight", EXPERT "up_proj.weight", EXPERT "down_proj.weight"),
	HUNYUAN_SHARED_ROWS("gate_proj.weight"), HUNYUAN_SHARED_ROWS("up_proj.weight"),
	{SLOT_DOWN, HUNYUAN_SHARED "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS},
};

/* Norms of what blocks add, and none of what they read. */
#define NORMS_BEHIND \
	NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"), \
	NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight")
#define QK_NORMS \
	{SLOT_Q_NORM, ATTENTION "q_norm.weight", DIM_HEADS, DIM_NONE, SPLIT_ROWS}, \
	{SLOT_K_NORM, ATTENTION "k_norm.weight", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS}
static const struct arch_tensor OLMO2[] = {
	EMBEDDINGS, NORMS_BEHIND, ATTENTION_MATRICES, QK_NORMS, MLP,
};

static const struct arch_tensor OLMOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QK_NORMS, MLP_EXPERTS,
};

static const struct arch_tensor EXAONE4[] = {
	EMBEDDINGS, NORMS_BEHIND, ATTENTION_MATRICES, HEAD_NORMS, MLP,
};

static const struct arch_tensor FLEX_OLMO[] = {
	EMBEDDINGS, NORMS_BEHIND, ATTENTION_MATRICES, QK_NORMS, MLP_EXPERTS,
};

static const struct arch_tensor SEED_OSS[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP, MLP_BIASES,
};

/* Norms with a bias. */
#define LAYER_NORMS \
	NORMS, FINAL_NORM(SLOT_FINAL_NORM_BIAS, "norm.bias"), \
	NORM(SLOT_ATTN_NORM_BIAS, "input_layernorm.bias"), \
	NORM(SLOT_MLP_NORM_BIAS, "post_attention_layernorm.bias")

static const struct arch_tensor ORION[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
};

#define UNGATED(up, down) \
	{SLOT_GATE_UP, LAYER "mlp." up ".weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_DOWN, LAYER "mlp." down ".weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS}
#define UNGATED_BIASES(up, down, when) \
	{SLOT_GATE_UP_BIAS, LAYER "mlp." up ".bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, when}, \
	{SLOT_DOWN_BIAS, LAYER "mlp." down ".bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, when}

static const struct arch_tensor STARCODER2[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	UNGATED("c_fc", "c_proj"), UNGATED_BIASES("c_fc", "c_proj", WHEN_MLP_BIAS),
};

/* Where attention and MLP are side by side the MLP has no norm of its own. */
static const struct arch_tensor STABLELM[] = {
	EMBEDDINGS, FINAL_NORM(SLOT_FINAL_NORM_BIAS, "norm.bias"), ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP,
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_ATTN_NORM_BIAS, "input_layernorm.bias"),
	{SLOT_MLP_NORM, LAYER "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_SEQUENTIAL},
	{SLOT_MLP_NORM_BIAS, LAYER "post_attention_layernorm.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_SEQUENTIAL},
	{SLOT_Q_NORM, ATTENTION "q_layernorm.norms.{}.weight", DIM_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_HEAD_NORMS, .by_head = true},
	{SLOT_K_NORM, ATTENTION "k_layernorm.norms.{}.weight", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_HEAD_NORMS, .by_head = true},
};

static const struct arch_tensor NEMOTRON[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	UNGATED("up_proj", "down_proj"), UNGATED_BIASES("up_proj", "down_proj", WHEN_MLP_BIAS),
};

static const struct arch_tensor ARCEE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	UNGATED("up_proj", "down_proj"), UNGATED_BIASES("up_proj", "down_proj", WHEN_MLP_BIAS),
};

#define XIELU(name) {SLOT_XIELU, LAYER "mlp.act_fn." name, DIM_ONE, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor APERTUS[] = {
	EMBEDDINGS, NORM(SLOT_ATTN_NORM, "attention_layernorm.weight"), NORM(SLOT_MLP_NORM, "feedforward_layernorm.weight"),
	ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, UNGATED("up_proj", "down_proj"),
	XIELU("alpha_p"), XIELU("alpha_n"), XIELU("beta"), XIELU("eps"), /* in the order of enum kern_xielu */
};

static const struct arch_tensor PHI[] = {
	EMBEDDINGS_BUT_NORM,
	{SLOT_LM_HEAD_BIAS, "lm_head.bias", DIM_VOCAB, DIM_NONE, SPLIT_ROWS},
	FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"), FINAL_NORM(SLOT_FINAL_NORM_BIAS, "final_layernorm.bias"),
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_ATTN_NORM_BIAS, "input_layernorm.bias"),
	ATTENTION_QKV, QKV_BIASES(WHEN_ALWAYS),
	{SLOT_ATTN_OUT, ATTENTION "dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, ATTENTION "dense.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	UNGATED("fc1", "fc2"), UNGATED_BIASES("fc1", "fc2", WHEN_ALWAYS),
};

static const struct arch_tensor COHERE[] = {
	EMBEDDINGS, NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
	{SLOT_Q_NORM, ATTENTION "q_norm.weight", DIM_HEAD_COUNT, DIM_HEAD, SPLIT_ROWS, WHEN_HEAD_NORMS},
	{SLOT_K_NORM, ATTENTION "k_norm.weight", DIM_KV_HEAD_COUNT, DIM_HEAD, SPLIT_ROWS, WHEN_HEAD_NORMS},
};

static const struct arch_tensor COHERE2_MOE[] = {
	EMBEDDINGS, NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), ATTENTION_MATRICES, ATTENTION_BIASES, MLP, MLP_EXPERTS,
	SHARED_EXPERTS_ROWS("gate_proj.weight"), SHARED_EXPERTS_ROWS("up_proj.weight"),
	{SLOT_DOWN, SHARED_EXPERTS "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED, .scale = SCALE_SHARED},
};

#define MIXTRAL_EXPERTS \
	EXPERTS("block_sparse_moe.gate.weight", MIXTRAL_EXPERT "w1.weight", MIXTRAL_EXPERT "w3.weight", \
		MIXTRAL_EXPERT "w2.weight")
static const struct arch_tensor MIXTRAL[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, MIXTRAL_EXPERTS,
};

static const struct arch_tensor MINIMAX_M2[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QK_NORMS, MIXTRAL_EXPERTS,
	{SLOT_CHOICE_BIAS, LAYER "block_sparse_moe.e_score_correction_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

static const struct arch_tensor PHIMOE[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	{SLOT_LM_HEAD_BIAS, "lm_head.bias", DIM_VOCAB, DIM_NONE, SPLIT_ROWS, WHEN_LM_HEAD_BIAS},
	MIXTRAL_EXPERTS,
};

/* In the file all experts of a layer are one tensor, input_linear or output_linear. */
#define GRANITE_EXPERT LAYER "block_sparse_moe.experts.{}."
#define GRANITE_MOE_EXPERTS \
	EXPERTS("block_sparse_moe.router.layer.weight", GRANITE_EXPERT "gate_proj.weight", GRANITE_EXPERT "up_proj.weight", \
		GRANITE_EXPERT "down_proj.weight")
#define GRANITE_MOE_TENSORS \
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, GRANITE_MOE_EXPERTS
static const struct arch_tensor GRANITE_MOE[] = {
	GRANITE_MOE_TENSORS,
};

/* GGUF files have gate and up apart. */
#define GRANITE_APART LAYER "shared_mlp.gate_proj.weight"
#define GRANITE_SHARED_APART(rows, when) \
	{SLOT_GATE_UP, GRANITE_APART, rows, DIM_HIDDEN, SPLIT_ROWS, when, .apart_as = GRANITE_APART, .apart = true}, \
	{SLOT_GATE_UP, LAYER "shared_mlp.up_proj.weight", rows, DIM_HIDDEN, SPLIT_ROWS, when, .apart_as = GRANITE_APART, .apart = true}
#define GRANITE_SHARED_ROWS(...) \
	{SLOT_GATE_UP, LAYER "shared_mlp.input_linear.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED, \
	 .whole = DIM_SHARED_GATE_UP, .apart_as = GRANITE_APART, __VA_ARGS__}
#define GRANITE_SHARED \
	GRANITE_SHARED_ROWS(.before = DIM_NONE), GRANITE_SHARED_ROWS(.before = DIM_SHARED_INTERMEDIATE), \
	GRANITE_SHARED_APART(DIM_SHARED_INTERMEDIATE, WHEN_SHARED), \
	{SLOT_DOWN, LAYER "shared_mlp.output_linear.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED}
#define GRANITE_MOE_SHARED_TENSORS GRANITE_MOE_TENSORS, GRANITE_SHARED
static const struct arch_tensor GRANITE_MOE_SHARED[] = {
	GRANITE_MOE_SHARED_TENSORS,
};

#define SINKS {SLOT_SINKS, ATTENTION "sinks", DIM_HEAD_COUNT, DIM_NONE, SPLIT_ROWS}
static const struct arch_tensor GRANITE_SWA[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP, MLP_BIASES, SINKS,
};

static const struct arch_tensor GRANITE_MOE_SWA[] = {
	GRANITE_MOE_SHARED_TENSORS, SINKS,
};

/* Fused in the file; each part is divided among the ranks on its own. */
#define PHI3_QKV ATTENTION "qkv_proj.weight"
#define PHI3_MLP LAYER "mlp.gate_up_proj.weight"
#define PHI3_GATE_UP \
	{SLOT_GATE_UP, PHI3_MLP, DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_GATE_UP}, \
	{SLOT_GATE_UP, PHI3_MLP, DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_GATE_UP, .before = DIM_INTERMEDIATE}
static const struct arch_tensor PHI3[] = {
	EMBEDDINGS, NORMS,
	{SLOT_QKV, PHI3_QKV, DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV},
	{SLOT_QKV, PHI3_QKV, DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV, .before = DIM_HEADS},
	{SLOT_QKV, PHI3_QKV, DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV, .before = DIM_HEADS_KV},
	ATTENTION_OUT, PHI3_GATE_UP, MLP_DOWN,
};

/* q, k and v fused for each KV head. */
#define GROUPED(slot, name, rows, columns, before_, when_) \
	{slot, name, rows, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = before_, .grouped = GROUPS_KV_HEADS}
#define GROUPED_QKV(slot, name, columns, when) \
	GROUPED(slot, name, DIM_HEADS, columns, DIM_NONE, when), \
	GROUPED(slot, name, DIM_KV_HEADS, columns, DIM_HEADS, when), \
	GROUPED(slot, name, DIM_KV_HEADS, columns, DIM_HEADS_KV, when)

/* Or, under another name, one behind the other, as GGUF files of some families have them. */
#define GROUPED_OR_APART(slot, name, other, rows, columns, before_, when_) \
	{slot, name, rows, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = before_, .grouped = GROUPS_KV_HEADS, .apart_as = other}, \
	{slot, other, rows, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = before_, .apart_as = other, .apart = true}
#define GROUPED_OR_APART_QKV(slot, name, other, columns, when) \
	GROUPED_OR_APART(slot, name, other, DIM_HEADS, columns, DIM_NONE, when), \
	GROUPED_OR_APART(slot, name, other, DIM_KV_HEADS, columns, DIM_HEADS, when), \
	GROUPED_OR_APART(slot, name, other, DIM_KV_HEADS, columns, DIM_HEADS_KV, when)

#define WQKV LAYER "attention.wqkv"
#define INTERNLM2_MLP LAYER "feed_forward."
static const struct arch_tensor INTERNLM2[] = {
	{SLOT_EMBED, "model.tok_embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "output.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	FINAL_NORM(SLOT_FINAL_NORM, "norm.weight"),
	NORM(SLOT_ATTN_NORM, "attention_norm.weight"), NORM(SLOT_MLP_NORM, "ffn_norm.weight"),
	GROUPED_QKV(SLOT_QKV, WQKV ".weight", DIM_HIDDEN, WHEN_ALWAYS),
	GROUPED_QKV(SLOT_QKV_BIAS, WQKV ".bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_ATTN_OUT, LAYER "attention.wo.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, LAYER "attention.wo.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
	{SLOT_GATE_UP, INTERNLM2_MLP "w1.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP, INTERNLM2_MLP "w3.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_DOWN, INTERNLM2_MLP "w2.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
};

static const struct arch_tensor INTERNLM3[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP, MLP_BIASES,
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MLP_BIAS},
};

#define NEOX "gpt_neox."
#define NEOX_LAYER NEOX "layers.{}."
#define NEOX_VECTOR(slot, name) {slot, NEOX name, DIM_HIDDEN, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor GPT_NEOX[] = {
	{SLOT_EMBED, NEOX "embed_in.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "embed_out.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	NEOX_VECTOR(SLOT_FINAL_NORM, "final_layer_norm.weight"), NEOX_VECTOR(SLOT_FINAL_NORM_BIAS, "final_layer_norm.bias"),
	NEOX_VECTOR(SLOT_ATTN_NORM, "layers.{}.input_layernorm.weight"),
	NEOX_VECTOR(SLOT_ATTN_NORM_BIAS, "layers.{}.input_layernorm.bias"),
	NEOX_VECTOR(SLOT_MLP_NORM, "layers.{}.post_attention_layernorm.weight"),
	NEOX_VECTOR(SLOT_MLP_NORM_BIAS, "layers.{}.post_attention_layernorm.bias"),
	GROUPED_OR_APART_QKV(SLOT_QKV, NEOX_LAYER "attention.query_key_value.weight", NEOX_LAYER "attention.qkv.weight", DIM_HIDDEN, WHEN_ALWAYS),
	GROUPED_OR_APART_QKV(SLOT_QKV_BIAS, NEOX_LAYER "attention.query_key_value.bias", NEOX_LAYER "attention.qkv.bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_ATTN_OUT, NEOX_LAYER "attention.dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, NEOX_LAYER "attention.dense.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
	{SLOT_GATE_UP, NEOX_LAYER "mlp.dense_h_to_4h.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP_BIAS, NEOX_LAYER "mlp.dense_h_to_4h.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS},
	{SLOT_DOWN, NEOX_LAYER "mlp.dense_4h_to_h.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
	{SLOT_DOWN_BIAS, NEOX_LAYER "mlp.dense_4h_to_h.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};

#define GPT2 "transformer."
#define GPT2_LAYER GPT2 "h.{}."
/* In GGUF files matrices are as in other families, under another name here. */
#define GPT2_MATRIX(slot, name, rows, columns, split, whole_, before_) \
	{slot, GPT2_LAYER name ".weight", rows, columns, split, .whole = whole_, .before = before_, .transposed = true, \
	 .apart_as = GPT2_LAYER name "_rows.weight"}, \
	{slot, GPT2_LAYER name "_rows.weight", rows, columns, split, .whole = whole_, .before = before_, \
	 .apart_as = GPT2_LAYER name "_rows.weight", .apart = true}
#define GPT2_QKV(rows, before) GPT2_MATRIX(SLOT_QKV, "attn.c_attn", rows, DIM_HIDDEN, SPLIT_ROWS, DIM_QKV, before)
#define GPT2_QKV_BIAS(rows, before_) \
	{SLOT_QKV_BIAS, GPT2_LAYER "attn.c_attn.bias", rows, DIM_NONE, SPLIT_ROWS, .whole = DIM_QKV, .before = before_}
static const struct arch_tensor GPT2_TENSORS[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_POSITIONS, GPT2 "wpe.weight", DIM_CONTEXT, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_FINAL_NORM, GPT2 "ln_f.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_FINAL_NORM_BIAS, GPT2 "ln_f.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_ATTN_NORM, GPT2_LAYER "ln_1.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_ATTN_NORM_BIAS, GPT2_LAYER "ln_1.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_MLP_NORM, GPT2_LAYER "ln_2.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_MLP_NORM_BIAS, GPT2_LAYER "ln_2.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	GPT2_QKV(DIM_HEADS, DIM_NONE), GPT2_QKV(DIM_KV_HEADS, DIM_HEADS), GPT2_QKV(DIM_KV_HEADS, DIM_HEADS_KV),
	GPT2_QKV_BIAS(DIM_HEADS, DIM_NONE), GPT2_QKV_BIAS(DIM_KV_HEADS, DIM_HEADS), GPT2_QKV_BIAS(DIM_KV_HEADS, DIM_HEADS_KV),
	GPT2_MATRIX(SLOT_ATTN_OUT, "attn.c_proj", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, DIM_NONE, DIM_NONE),
	{SLOT_ATTN_OUT_BIAS, GPT2_LAYER "attn.c_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	GPT2_MATRIX(SLOT_GATE_UP, "mlp.c_fc", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, DIM_NONE, DIM_NONE),
	{SLOT_GATE_UP_BIAS, GPT2_LAYER "mlp.c_fc.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS},
	GPT2_MATRIX(SLOT_DOWN, "mlp.c_proj", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, DIM_NONE, DIM_NONE),
	{SLOT_DOWN_BIAS, GPT2_LAYER "mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};

/* Positions begin behind two rows that no token has. */
#define OPT "model.decoder."
#define OPT_LAYER OPT "layers.{}."
#define OPT_MATRIX(slot, name, rows, columns, split) {slot, OPT_LAYER name ".weight", rows, columns, split}
#define OPT_BIAS(slot, name, rows, split) {slot, OPT_LAYER name ".bias", rows, DIM_NONE, split, WHEN_ATTENTION_BIAS}
#define OPT_NORM(slot, name) {slot, name, DIM_HIDDEN, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor OPT_TENSORS[] = {
	{SLOT_EMBED, OPT "embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_POSITIONS, OPT "embed_positions.weight", DIM_CONTEXT, DIM_HIDDEN, .whole = DIM_CONTEXT_PADDED, .before = DIM_TWO},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	OPT_NORM(SLOT_FINAL_NORM, OPT "final_layer_norm.weight"), OPT_NORM(SLOT_FINAL_NORM_BIAS, OPT "final_layer_norm.bias"),
	OPT_NORM(SLOT_ATTN_NORM, OPT_LAYER "self_attn_layer_norm.weight"), OPT_NORM(SLOT_ATTN_NORM_BIAS, OPT_LAYER "self_attn_layer_norm.bias"),
	OPT_NORM(SLOT_MLP_NORM, OPT_LAYER "final_layer_norm.weight"), OPT_NORM(SLOT_MLP_NORM_BIAS, OPT_LAYER "final_layer_norm.bias"),
	OPT_MATRIX(SLOT_QKV, "self_attn.q_proj", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS), OPT_BIAS(SLOT_QKV_BIAS, "self_attn.q_proj", DIM_HEADS, SPLIT_ROWS),
	OPT_MATRIX(SLOT_QKV, "self_attn.k_proj", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS), OPT_BIAS(SLOT_QKV_BIAS, "self_attn.k_proj", DIM_KV_HEADS, SPLIT_ROWS),
	OPT_MATRIX(SLOT_QKV, "self_attn.v_proj", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS), OPT_BIAS(SLOT_QKV_BIAS, "self_attn.v_proj", DIM_KV_HEADS, SPLIT_ROWS),
	OPT_MATRIX(SLOT_ATTN_OUT, "self_attn.out_proj", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS), OPT_BIAS(SLOT_ATTN_OUT_BIAS, "self_attn.out_proj", DIM_HIDDEN, SPLIT_NONE),
	OPT_MATRIX(SLOT_GATE_UP, "fc1", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS), OPT_BIAS(SLOT_GATE_UP_BIAS, "fc1", DIM_INTERMEDIATE, SPLIT_ROWS),
	OPT_MATRIX(SLOT_DOWN, "fc2", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS), OPT_BIAS(SLOT_DOWN_BIAS, "fc2", DIM_HIDDEN, SPLIT_NONE),
};

static const struct arch_tensor GLM4[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), PHI3_GATE_UP, MLP_DOWN,
	NORM(SLOT_ATTN_POST_NORM, "post_self_attn_layernorm.weight"),
	NORM(SLOT_MLP_POST_NORM, "post_mlp_layernorm.weight"),
};
/* clang-format on */

#endif
