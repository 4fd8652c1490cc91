/* The architectures that the generic decoder can run. Constant data; runs in the worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <stdio.h>
#include <string.h>

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

static const struct arch_tensor QWEN2[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ALWAYS), MLP,
};

#define SHARED_EXPERT LAYER "mlp.shared_expert."
#define SHARED_ROWS(name) {SLOT_GATE_UP, SHARED_EXPERT name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS}
static const struct arch_tensor QWEN2_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP, MLP_EXPERTS,
	SHARED_ROWS("gate_proj.weight"),
	SHARED_ROWS("up_proj.weight"),
	{SLOT_DOWN, SHARED_EXPERT "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS},
	{SLOT_SHARED_GATE, LAYER "mlp.shared_expert_gate.weight", DIM_ONE, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
};

/* One MLP as wide as several experts. */
#define SHARED_EXPERTS LAYER "mlp.shared_experts."
#define SHARED_EXPERTS_ROWS(name) \
	{SLOT_GATE_UP, SHARED_EXPERTS name, DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED}
#define EXPERTS_AND_SHARED \
	MLP_EXPERTS, \
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

/* The two parts of kv_b_proj, which lie head by head, are on either side of attention (DeepSeek-AI 2024). */
#define LATENT_ATTENTION \
	{SLOT_QKV, ATTENTION "q_proj.weight", DIM_HEADS_QUERY, DIM_HIDDEN, SPLIT_ROWS, WHEN_NO_Q_RANK}, \
	{SLOT_QKV, ATTENTION "q_a_proj.weight", DIM_Q_RANK, DIM_HIDDEN, SPLIT_NONE, WHEN_Q_RANK}, \
	{SLOT_QKV, ATTENTION "kv_a_proj_with_mqa.weight", DIM_HEAD, DIM_HIDDEN, SPLIT_NONE}, \
	{SLOT_QKV_BIAS, ATTENTION "q_a_proj.bias", DIM_Q_RANK, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}, \
	{SLOT_QKV_BIAS, ATTENTION "kv_a_proj_with_mqa.bias", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}, \
	{SLOT_Q_NORM, ATTENTION "q_a_layernorm.weight", DIM_Q_RANK, DIM_NONE, SPLIT_NONE, WHEN_Q_RANK}, \
	{SLOT_K_NORM, ATTENTION "kv_a_layernorm.weight", DIM_LATENT, DIM_NONE, SPLIT_NONE}, \
	{SLOT_Q_B, ATTENTION "q_b_proj.weight", DIM_HEADS_QUERY, DIM_Q_RANK, SPLIT_ROWS, WHEN_Q_RANK}, \
	{SLOT_HEAD_K, ATTENTION "kv_b_proj.weight", DIM_HEAD_KEY, DIM_LATENT, .whole = DIM_HEADS_KEY_VALUE}, \
	{SLOT_HEAD_V, ATTENTION "kv_b_proj.weight", DIM_HEAD_VALUE, DIM_LATENT, .whole = DIM_HEADS_KEY_VALUE, .before = DIM_HEAD_KEY}, \
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS_VALUE, SPLIT_COLUMNS}, \
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}

static const struct arch_tensor DEEPSEEK_V2[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP, EXPERTS_AND_SHARED,
};

static const struct arch_tensor DEEPSEEK_V3[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
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
#define WHOLE_EXPERT_ROWS(...) \
	{SLOT_EXPERT_GATE_UP, EXPERT "gate_up_proj.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS, \
	 .whole = DIM_EXPERT_GATE_UP, .transposed = true, __VA_ARGS__}
static const struct arch_tensor QWEN3_VL_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, MLP,
	{SLOT_ROUTER, LAYER "mlp.gate.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
	WHOLE_EXPERT_ROWS(.before = DIM_NONE), WHOLE_EXPERT_ROWS(.before = DIM_EXPERT_INTERMEDIATE),
	{SLOT_EXPERT_DOWN, EXPERT "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS, .transposed = true},
};

/* Its norms have no weights. */
static const struct arch_tensor OLMO[] = {
	EMBEDDINGS_BUT_NORM, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
};

static const struct arch_tensor HUNYUAN[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
	{SLOT_Q_NORM, ATTENTION "query_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE},
	{SLOT_K_NORM, ATTENTION "key_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE},
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

static const struct arch_tensor STABLELM[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), MLP,
};

static const struct arch_tensor NEMOTRON[] = {
	EMBEDDINGS, LAYER_NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	UNGATED("up_proj", "down_proj"), UNGATED_BIASES("up_proj", "down_proj", WHEN_MLP_BIAS),
};

static const struct arch_tensor ARCEE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	UNGATED("up_proj", "down_proj"), UNGATED_BIASES("up_proj", "down_proj", WHEN_MLP_BIAS),
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
#define GRANITE_MOE_TENSORS \
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES, \
	EXPERTS("block_sparse_moe.router.layer.weight", GRANITE_EXPERT "gate_proj.weight", GRANITE_EXPERT "up_proj.weight", \
		GRANITE_EXPERT "down_proj.weight")
static const struct arch_tensor GRANITE_MOE[] = {
	GRANITE_MOE_TENSORS,
};

#define GRANITE_SHARED_ROWS(...) \
	{SLOT_GATE_UP, LAYER "shared_mlp.input_linear.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED, \
	 .whole = DIM_SHARED_GATE_UP, __VA_ARGS__}
static const struct arch_tensor GRANITE_MOE_SHARED[] = {
	GRANITE_MOE_TENSORS,
	GRANITE_SHARED_ROWS(.before = DIM_NONE), GRANITE_SHARED_ROWS(.before = DIM_SHARED_INTERMEDIATE),
	{SLOT_DOWN, LAYER "shared_mlp.output_linear.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED},
};

/* Without experts: what others have for all tokens beside these is the MLP. */
#define GRANITE_HYBRID_ROWS(...) \
	{SLOT_GATE_UP, LAYER "shared_mlp.input_linear.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_GATE_UP, __VA_ARGS__}
static const struct arch_tensor GRANITE_HYBRID[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	GRANITE_HYBRID_ROWS(.before = DIM_NONE), GRANITE_HYBRID_ROWS(.before = DIM_INTERMEDIATE),
	{SLOT_DOWN, LAYER "shared_mlp.output_linear.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
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
	{slot, name, rows, columns, SPLIT_ROWS, when_, .whole = DIM_QKV, .before = before_, .grouped = true}
#define GROUPED_QKV(slot, name, columns, when) \
	GROUPED(slot, name, DIM_HEADS, columns, DIM_NONE, when), \
	GROUPED(slot, name, DIM_KV_HEADS, columns, DIM_HEADS, when), \
	GROUPED(slot, name, DIM_KV_HEADS, columns, DIM_HEADS_KV, when)

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
	GROUPED_QKV(SLOT_QKV, NEOX_LAYER "attention.query_key_value.weight", DIM_HIDDEN, WHEN_ALWAYS),
	GROUPED_QKV(SLOT_QKV_BIAS, NEOX_LAYER "attention.query_key_value.bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_ATTN_OUT, NEOX_LAYER "attention.dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, NEOX_LAYER "attention.dense.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
	{SLOT_GATE_UP, NEOX_LAYER "mlp.dense_h_to_4h.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP_BIAS, NEOX_LAYER "mlp.dense_h_to_4h.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS},
	{SLOT_DOWN, NEOX_LAYER "mlp.dense_4h_to_h.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
	{SLOT_DOWN_BIAS, NEOX_LAYER "mlp.dense_4h_to_h.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};

#define GPT2 "transformer."
#define GPT2_LAYER GPT2 "h.{}."
#define GPT2_QKV(slot, name, rows, columns, before_, transposed_) \
	{slot, GPT2_LAYER "attn.c_attn." name, rows, columns, SPLIT_ROWS, .whole = DIM_QKV, .before = before_, .transposed = transposed_}
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
	GPT2_QKV(SLOT_QKV, "weight", DIM_HEADS, DIM_HIDDEN, DIM_NONE, true),
	GPT2_QKV(SLOT_QKV, "weight", DIM_KV_HEADS, DIM_HIDDEN, DIM_HEADS, true),
	GPT2_QKV(SLOT_QKV, "weight", DIM_KV_HEADS, DIM_HIDDEN, DIM_HEADS_KV, true),
	GPT2_QKV(SLOT_QKV_BIAS, "bias", DIM_HEADS, DIM_NONE, DIM_NONE, false),
	GPT2_QKV(SLOT_QKV_BIAS, "bias", DIM_KV_HEADS, DIM_NONE, DIM_HEADS, false),
	GPT2_QKV(SLOT_QKV_BIAS, "bias", DIM_KV_HEADS, DIM_NONE, DIM_HEADS_KV, false),
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.c_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, .transposed = true},
	{SLOT_ATTN_OUT_BIAS, GPT2_LAYER "attn.c_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.c_fc.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, .transposed = true},
	{SLOT_GATE_UP_BIAS, GPT2_LAYER "mlp.c_fc.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS},
	{SLOT_DOWN, GPT2_LAYER "mlp.c_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, .transposed = true},
	{SLOT_DOWN_BIAS, GPT2_LAYER "mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};

/* A score that no key has for every head; experts with biases, whose gate and up are neighbours. */
#define GPT_OSS_EXPERTS LAYER "mlp.experts."
static const struct arch_tensor GPT_OSS[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	{SLOT_SINKS, ATTENTION "sinks", DIM_HEAD_COUNT, DIM_NONE, SPLIT_ROWS},
	{SLOT_ROUTER, LAYER "mlp.router.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_ROUTER_BIAS, LAYER "mlp.router.bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERT_GATE_UP, EXPERT "gate_up_proj.weight", DIM_EXPERT_GATE_UP, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS,
	 .transposed = true},
	{SLOT_EXPERT_GATE_UP_BIAS, GPT_OSS_EXPERTS "gate_up_proj_bias", DIM_EXPERTS, DIM_EXPERT_GATE_UP, SPLIT_COLUMNS,
	 WHEN_EXPERTS},
	{SLOT_EXPERT_DOWN, EXPERT "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS,
	 .transposed = true},
	{SLOT_EXPERT_DOWN_BIAS, GPT_OSS_EXPERTS "down_proj_bias", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
};

static const struct arch_tensor GLM[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), PHI3_GATE_UP, MLP_DOWN,
};

static const struct arch_tensor GLM4[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, QKV_BIASES(WHEN_ATTENTION_BIAS), PHI3_GATE_UP, MLP_DOWN,
	NORM(SLOT_ATTN_POST_NORM, "post_self_attn_layernorm.weight"),
	NORM(SLOT_MLP_POST_NORM, "post_mlp_layernorm.weight"),
};

#define GEMMA2_TENSORS \
	EMBEDDINGS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP, \
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), \
	NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"), \
	NORM(SLOT_MLP_NORM, "pre_feedforward_layernorm.weight"), \
	NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight")
static const struct arch_tensor GEMMA2[] = {
	GEMMA2_TENSORS,
};

static const struct arch_tensor VAULT_GEMMA[] = {
	EMBEDDINGS, ATTENTION_MATRICES, ATTENTION_BIASES, MLP,
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_MLP_NORM, "pre_feedforward_layernorm.weight"),
};

static const struct arch_tensor GEMMA3[] = {
	GEMMA2_TENSORS, HEAD_NORMS,
};

enum {
	QWEN3_TRAITS = ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	GEMMA_TRAITS = ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_EMBED_SCALE | ARCH_NORM_OFFSET | ARCH_GELU,
};

/* Its files and transformers write the name differently. */
#define PHIMOE_ARCH(name) \
	{name, PHIMOE, COUNT_OF(PHIMOE), ARCH_ATTENTION_BIAS | ARCH_WINDOW_ALL | ARCH_EXPERTS_ALL, \
	 .own = {"lm_head_bias", "short_mscale"}, .layer_norm = "rms_norm_eps", .mixer = true, \
	 .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f}

static const struct arch ARCHS[] = {
	{"LlamaForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"MistralForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave"}, .kv_heads = 8, .window = 4096, .rope_theta = 10000},
	{"MinistralForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave", "layer_types"}, .kv_heads = 8, .window = 4096, .rope_theta = 10000},
	{"Ministral3ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_WINDOW_ALL,
	 .own = {"rope_interleave", "llama_4_scaling_beta"}, .head_dim = 128, .kv_heads = 8, .rope_theta = 1000000},
	{"Qwen2ForCausalLM", QWEN2, COUNT_OF(QWEN2), ARCH_WINDOW_UPPER,
	 .kv_heads = 32, .window = 4096, .rope_theta = 10000},
	{"MiMoForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_WINDOW_UPPER,
	 .own = {"num_nextn_predict_layers"}, .kv_heads = 32, .window = 4096, .rope_theta = 10000, .attention_bias = true},
	{"Qwen3ForCausalLM", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_WINDOW_UPPER,
	 .head_dim = 128, .kv_heads = 32, .window = 4096, .rope_theta = 10000},
	{"Phi3ForCausalLM", PHI3, COUNT_OF(PHI3), ARCH_PARTIAL_ROTARY | ARCH_WINDOW_ALL | ARCH_LONGROPE_YARN,
	 .rope_theta = 10000},
	{"GemmaForCausalLM", LLAMA, COUNT_OF(LLAMA), GEMMA_TRAITS,
	 .head_dim = 256, .kv_heads = 16, .rope_theta = 10000},
	{"Gemma2ForCausalLM", GEMMA2, COUNT_OF(GEMMA2),
	 GEMMA_TRAITS | ARCH_WINDOW_EVEN | ARCH_SOFT_CAPS | ARCH_ATTENTION_CAP,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .rope_theta = 10000,
	 .attention_soft_cap = 50, .logits_soft_cap = 30},
	{"VaultGemmaForCausalLM", VAULT_GEMMA, COUNT_OF(VAULT_GEMMA), GEMMA_TRAITS | ARCH_WINDOW_EVEN | ARCH_SOFT_CAPS | ARCH_ATTENTION_CAP,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .rope_theta = 10000, .attention_soft_cap = 50, .logits_soft_cap = 30},
	{"Gemma3ForCausalLM", GEMMA3, COUNT_OF(GEMMA3),
	 GEMMA_TRAITS | ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE | ARCH_SOFT_CAPS,
	 .head_dim = 256, .kv_heads = 4, .window = 4096, .window_pattern = 6, .rope_theta = 1000000, .local_theta = 10000,
	 .vocab_size = 262208, .heads = 8, .context = 131072, .norm_eps = 1e-6f},
	{"GraniteForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_MULTIPLIERS,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"GraniteMoeForCausalLM", GRANITE_MOE, COUNT_OF(GRANITE_MOE), ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave"}, .rope_theta = 10000},
	{"GraniteMoeSharedForCausalLM", GRANITE_MOE_SHARED, COUNT_OF(GRANITE_MOE_SHARED),
	 ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave", "shared_intermediate_size"}, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"GraniteMoeHybridForCausalLM", GRANITE_HYBRID, COUNT_OF(GRANITE_HYBRID), ARCH_ATTENTION_BIAS | ARCH_MULTIPLIERS,
	 .fields = {{"shared_intermediate_size", "intermediate_size"}},
	 .own = {"layer_types", "position_embedding_type", "normalization_function"}, .attention_only = true,
	 .rope_theta = 10000, .norm_eps = 1e-6f},
	{"SmolLM3ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_TIED | ARCH_NO_ROPE,
	 .own = {"rope_interleave"}, .kv_heads = 4, .rope_theta = 2000000},
	{"OlmoForCausalLM", OLMO, COUNT_OF(OLMO), ARCH_ATTENTION_BIAS,
	 .own = {"rope_interleave", "clip_qkv"}, .layer_norm = "layer_norm_eps", .plain_norms = true, .norm_eps = 1e-5f, .rope_theta = 10000},
	{"Olmo2ForCausalLM", OLMO2, COUNT_OF(OLMO2), ARCH_QK_NORMS, .rope_theta = 10000},
	{"Olmo3ForCausalLM", OLMO2, COUNT_OF(OLMO2), ARCH_QK_NORMS | ARCH_WINDOW_PATTERN | ARCH_LOCAL_ROPE,
	 .window = 4096, .window_pattern = 4, .rope_theta = 500000},
	{"OlmoeForCausalLM", OLMOE, COUNT_OF(OLMOE), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_EXPERTS_NORM,
	 .own = {"clip_qkv"}, .rope_theta = 10000},
	{"FlexOlmoForCausalLM", FLEX_OLMO, COUNT_OF(FLEX_OLMO), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_EXPERTS_NORM, .rope_theta = 500000},
	{"Exaone4ForCausalLM", EXAONE4, COUNT_OF(EXAONE4), ARCH_HEAD_NORMS | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE,
	 .kv_heads = 32, .window = 4096, .window_pattern = 4, .rope_theta = 10000},
	{"SeedOssForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .head_dim = 128, .kv_heads = 8, .rope_theta = 10000, .attention_bias = true},
	{"HeliumForCausalLM", SEED_OSS, COUNT_OF(SEED_OSS), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .interleaved = true, .kv_heads = 20, .rope_theta = 10000, .norm_eps = 1e-8f},
	{"Starcoder2ForCausalLM", STARCODER2, COUNT_OF(STARCODER2), ARCH_USE_BIAS | ARCH_WINDOW_ALL | ARCH_TIED,
	 .layer_norm = "norm_epsilon", .ungated = true, .activation = KERN_GELU_TANH,
	 .kv_heads = 2, .rope_theta = 10000, .attention_bias = true},
	{"StableLmForCausalLM", STABLELM, COUNT_OF(STABLELM), ARCH_PARTIAL_ROTARY,
	 .own = {"use_qkv_bias"}, .layer_norm = "layer_norm_eps", .kv_heads = 32, .rope_theta = 10000, .rotary_share = 0.25f},
	{"NemotronForCausalLM", NEMOTRON, COUNT_OF(NEMOTRON),
	 ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS | ARCH_PARTIAL_ROTARY | ARCH_NORM_OFFSET,
	 .layer_norm = "norm_eps", .ungated = true, .activation = KERN_RELU_SQUARED,
	 .rope_theta = 10000, .rotary_share = 0.5f},
	{"Jais2ForCausalLM", NEMOTRON, COUNT_OF(NEMOTRON), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .layer_norm = "layer_norm_eps", .ungated = true, .activation = KERN_RELU_SQUARED, .norm_eps = 1e-5f,
	 .rope_theta = 10000, .attention_bias = true, .mlp_bias = true},
	{"ArceeForCausalLM", ARCEE, COUNT_OF(ARCEE), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .own = {"rope_interleave"}, .ungated = true, .activation = KERN_RELU_SQUARED, .rope_theta = 10000},
	{"PhiForCausalLM", PHI, COUNT_OF(PHI), ARCH_PARTIAL_ROTARY,
	 .layer_norm = "layer_norm_eps", .parallel = true, .ungated = true, .activation = KERN_GELU_TANH,
	 .rope_theta = 10000, .rotary_share = 0.5f},
	{"CohereForCausalLM", COHERE, COUNT_OF(COHERE), ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_LOGIT_SCALE,
	 .layer_norm = "layer_norm_eps", .parallel = true, .interleaved = true,
	 .rope_theta = 10000, .logit_scale = 0.0625f},
	{"Cohere2ForCausalLM", COHERE, COUNT_OF(COHERE),
	 ARCH_ATTENTION_BIAS | ARCH_TIED | ARCH_LOGIT_SCALE | ARCH_WINDOW_PATTERN | ARCH_WINDOW_ROPE,
	 .layer_norm = "layer_norm_eps", .parallel = true, .interleaved = true,
	 .window = 4096, .window_pattern = 4, .rope_theta = 10000, .logit_scale = 0.0625f},
	{"GlmForCausalLM", GLM, COUNT_OF(GLM), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY,
	 .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.5f},
	{"Glm4ForCausalLM", GLM4, COUNT_OF(GLM4), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY,
	 .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.5f},
	{"HunYuanDenseV1ForCausalLM", HUNYUAN, COUNT_OF(HUNYUAN), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS,
	 .fields = {{"attention_head_dim", "head_dim"}},
	 .own = {"alpha", "norm_type"}, .norm_behind = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"Glm4MoeForCausalLM", GLM4_MOE, COUNT_OF(GLM4_MOE), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "use_qk_norm", "num_nextn_predict_layers"},
	 .kv_heads = 8, .rope_theta = 10000, .norm_eps = 1e-5f, .rotary_share = 0.5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .shared_experts = 1},
	{"SolarOpenForCausalLM", GLM4_MOE, COUNT_OF(GLM4_MOE), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers"},
	 .kv_heads = 8, .rope_theta = 1000000, .norm_eps = 1e-5f, .head_dim = 128,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .shared_experts = 1},
	{"Dots1ForCausalLM", DOTS1, COUNT_OF(DOTS1), ARCH_ATTENTION_BIAS | ARCH_HEAD_NORMS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func"},
	 .rope_theta = 10000, .norm_eps = 1e-6f, .router_sigmoid = true, .router_sum_plus = 1e-20f},
	{"Glm4MoeLiteForCausalLM", DEEPSEEK_V3, COUNT_OF(DEEPSEEK_V3), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "topk_method", "rope_interleave", "mlp_layer_types"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-5f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 1, .routed_scale = 1.8f, .shared_experts = 1},
	{"DeepseekV2ForCausalLM", DEEPSEEK_V2, COUNT_OF(DEEPSEEK_V2), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_greedy = true, .shared_experts = 2},
	{"DeepseekV3ForCausalLM", DEEPSEEK_V3, COUNT_OF(DEEPSEEK_V3), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}, {"num_mtp_layers", "num_nextn_predict_layers"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "num_nextn_predict_layers", "moe_layer_freq", "topk_method", "scoring_func", "rope_interleave"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sigmoid = true, .router_sum_plus = 1e-20f, .dense_layers = 3, .groups = 8, .groups_top = 4, .routed_scale = 2.5f,
	 .shared_experts = 1},
	{"Mistral4ForCausalLM", DEEPSEEK_V2, COUNT_OF(DEEPSEEK_V2), ARCH_ATTENTION_BIAS | ARCH_EXPERTS_OWN,
	 .fields = {{"n_routed_experts", "num_experts"}},
	 .own = {"first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor",
		 "rope_interleave", "llama_4_scaling_beta", "head_dim"},
	 .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f,
	 .router_sum_plus = 1e-20f, .shared_experts = 1},
	{"YoutuForCausalLM", MINICPM3, COUNT_OF(MINICPM3), ARCH_ATTENTION_BIAS | ARCH_TIED,
	 .own = {"rope_interleave"}, .latent = true, .interleaved = true, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"MiniCPMForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_ATTENTION_BIAS,
	 .own = {"scale_emb", "scale_depth", "dim_model_base"}, .rope_theta = 10000, .norm_eps = 1e-6f},
	{"MiniCPM3ForCausalLM", MINICPM3, COUNT_OF(MINICPM3), ARCH_ATTENTION_BIAS | ARCH_TIED,
	 .own = {"v_head_dim", "scale_emb", "scale_depth", "dim_model_base", "rope_interleave"},
	 .latent = true, .rope_theta = 10000, .norm_eps = 1e-5f},
	{"InternLM2ForCausalLM", INTERNLM2, COUNT_OF(INTERNLM2), ARCH_ATTENTION_BIAS,
	 .fields = {{"bias", "attention_bias"}}, .rope_theta = 10000, .attention_bias = true},
	{"InternLM3ForCausalLM", INTERNLM3, COUNT_OF(INTERNLM3), ARCH_ATTENTION_BIAS | ARCH_MLP_BIAS,
	 .fields = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}}, .rope_theta = 10000},
	{"GPTNeoXForCausalLM", GPT_NEOX, COUNT_OF(GPT_NEOX), ARCH_ATTENTION_BIAS | ARCH_PARTIAL_ROTARY | ARCH_PARALLEL_CHOICE,
	 .fields = {{"rotary_pct", "partial_rotary_factor"}, {"rotary_emb_base", "rope_theta"}},
	 .layer_norm = "layer_norm_eps", .ungated = true, .activation = KERN_GELU, .norm_eps = 1e-5f,
	 .rope_theta = 10000, .attention_bias = true, .rotary_share = 0.25f},
	{"GPT2LMHeadModel", GPT2_TENSORS, COUNT_OF(GPT2_TENSORS), ARCH_TIED,
	 .fields = {{"n_embd", "hidden_size"}, {"n_layer", "num_hidden_layers"}, {"n_head", "num_attention_heads"},
		    {"n_positions", "max_position_embeddings"}, {"n_inner", "intermediate_size"},
		    {"activation_function", "hidden_act"}},
	 .layer_norm = "layer_norm_epsilon", .ungated = true, .positions = true, .activation = KERN_GELU_TANH,
	 .inner = 4, .norm_eps = 1e-5f},
	{"Ernie4_5ForCausalLM", LLAMA, COUNT_OF(LLAMA), ARCH_USE_BIAS | ARCH_TIED,
	 .interleaved = true, .head_dim = 128, .kv_heads = 2, .rope_theta = 500000},
	{"Ernie4_5_MoeForCausalLM", ERNIE4_5_MOE, COUNT_OF(ERNIE4_5_MOE), ARCH_TIED | ARCH_EXPERTS_OWN,
	 .fields = {{"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"}, {"moe_num_shared_experts", "n_shared_experts"}},
	 .own = {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "n_shared_experts", "moe_norm_min",
		 "num_nextn_predict_layers"},
	 .interleaved = true, .kv_heads = 4, .rope_theta = 500000, .norm_eps = 1e-5f, .shared_experts = 2},
	{"GptOssForCausalLM", GPT_OSS, COUNT_OF(GPT_OSS), ARCH_ATTENTION_BIAS | ARCH_WINDOW_EVEN | ARCH_EXPERTS_ALL,
	 .fields = {{"experts_per_token", "num_experts_per_tok"}},
	 .rope_stated = true, .clamped = true, .whole_experts = true, .head_dim = 64, .kv_heads = 8, .window = 128, .rope_theta = 150000, .norm_eps = 1e-5f,
	 .attention_bias = true},
	PHIMOE_ARCH("PhimoeForCausalLM"),
	PHIMOE_ARCH("PhiMoEForCausalLM"),
	{"MixtralForCausalLM", MIXTRAL, COUNT_OF(MIXTRAL), ARCH_WINDOW_ALL | ARCH_EXPERTS_ALL,
	 .own = {"rope_interleave"}, .kv_heads = 8, .rope_theta = 1000000},
	{"MiniMaxM2ForCausalLM", MINIMAX_M2, COUNT_OF(MINIMAX_M2), ARCH_QK_NORMS | ARCH_EXPERTS_ALL | ARCH_PARTIAL_ROTARY,
	 .own = {"rotary_dim", "attn_type_list", "scoring_func", "use_routing_bias", "qk_norm_type"},
	 .router_sigmoid = true, .head_dim = 128, .kv_heads = 8, .rope_theta = 5000000, .norm_eps = 1e-6f},
	{"Qwen2MoeForCausalLM", QWEN2_MOE, COUNT_OF(QWEN2_MOE),
	 ARCH_QKV_BIAS | ARCH_WINDOW_LISTED | ARCH_EXPERTS_SOME | ARCH_SHARED_EXPERT,
	 .kv_heads = 16, .window = 4096, .rope_theta = 10000},
	{"Qwen3MoeForCausalLM", QWEN3, COUNT_OF(QWEN3), QWEN3_TRAITS | ARCH_WINDOW_UPPER | ARCH_EXPERTS_SOME,
	 .kv_heads = 4, .window = 4096, .rope_theta = 10000},
	{"Qwen3VLMoeTextModel", QWEN3_VL_MOE, COUNT_OF(QWEN3_VL_MOE), QWEN3_TRAITS | ARCH_EXPERTS_SOME,
	 .part = true, .whole_experts = true, .experts_norm = true, .kv_heads = 16, .rope_theta = 500000},
};

static const struct {
	const char *name, *model_type, *text;
} TEXT_PARTS[] = {
	{"Gemma3ForConditionalGeneration", "gemma3_text", "Gemma3ForCausalLM"},
	{"Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"},
	{"Mistral3ForConditionalGeneration", "ministral3", "Ministral3ForCausalLM"},
	{"Mistral3ForConditionalGeneration", "mistral4", "Mistral4ForCausalLM"},
	{"Qwen2VLForConditionalGeneration", "qwen2_vl_text", "Qwen2ForCausalLM"},
	{"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", "Qwen2ForCausalLM"},
	{"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "Qwen3ForCausalLM"},
	{"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "Qwen3VLMoeTextModel"},
};
/* clang-format on */

bool arch_has_own(const struct arch *a, const char *field)
{
	for (size_t i = 0; i < ARCH_OWN_MAX && a->own[i]; i++)
		if (!strcmp(a->own[i], field))
			return true;
	return false;
}

const struct arch *arch_find_text_part(const char *name, const char *model_type, char *known, size_t bytes)
{
	size_t used = 0;

	known[0] = 0;
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++) {
		if (strcmp(TEXT_PARTS[i].name, name) != 0)
			continue;
		if (!model_type || !strcmp(TEXT_PARTS[i].model_type, model_type))
			return arch_find(TEXT_PARTS[i].text);
		if (used < bytes)
			used += (size_t)snprintf(known + used, bytes - used, "%s'%s'", used ? " or " : "", TEXT_PARTS[i].model_type);
	}
	return NULL;
}

const struct arch *arch_find(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(ARCHS); i++)
		if (!strcmp(ARCHS[i].name, name))
			return &ARCHS[i];
	return NULL;
}

/* `name` without `suffix`, which all names of a table have, behind a comma where it is not the first. */
static size_t append_name(char *out, size_t bytes, size_t used, const char *name, const char *suffix, bool first)
{
	if (used >= bytes)
		return used;
	return used + (size_t)snprintf(out + used, bytes - used, "%s%.*s", first ? "" : ", ",
				       (int)(strlen(name) - strlen(suffix)), name);
}

static bool ends_in(const char *name, const char *suffix)
{
	size_t bytes = strlen(name), end = strlen(suffix);

	return bytes >= end && !strcmp(name + bytes - end, suffix);
}

void arch_names(char *out, size_t bytes)
{
	static const char causal[] = "ForCausalLM", parts[] = "ForConditionalGeneration";
	size_t used = append_name(out, bytes, 0, "{", "", true);

	for (size_t i = 0; i < COUNT_OF(ARCHS); i++)
		if (ends_in(ARCHS[i].name, causal))
			used = append_name(out, bytes, used, ARCHS[i].name, causal, i == 0);
	used = append_name(out, bytes, used, "}ForCausalLM", "", true);
	for (size_t i = 0; i < COUNT_OF(ARCHS); i++)
		if (!ends_in(ARCHS[i].name, causal) && !ARCHS[i].part)
			used = append_name(out, bytes, used, ARCHS[i].name, "", false);
	used = append_name(out, bytes, used, "{", "", false);
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++)
		if (i == 0 || strcmp(TEXT_PARTS[i].name, TEXT_PARTS[i - 1].name) != 0)
			used = append_name(out, bytes, used, TEXT_PARTS[i].name, parts, i == 0);
	append_name(out, bytes, used, "}ForConditionalGeneration", "", true);
}

void arch_tensor_name(char *out, size_t bytes, const struct arch_tensor *t, u32 layer, u32 expert)
{
	const char *hole = strstr(t->name, "{}");
	const char *second = hole ? strstr(hole + 2, "{}") : NULL;

	if (second)
		snprintf(out, bytes, "%.*s%u%.*s%u%s", (int)(hole - t->name), t->name, layer,
			 (int)(second - hole - 2), hole + 2, expert, second + 2);
	else if (hole)
		snprintf(out, bytes, "%.*s%u%s", (int)(hole - t->name), t->name, layer, hole + 2);
	else
		snprintf(out, bytes, "%s", t->name);
}
