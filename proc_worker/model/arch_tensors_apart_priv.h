/* Tensors of families that some files have fused and others apart, most of all those of files in GGUF. Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_APART_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_APART_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
/* Layers may lack one of both blocks, and its norm, or have a matrix in place of it. */
#define DECILM_APART ATTENTION "o_proj.weight" /* as files in GGUF call the matrix of such a layer */
static const struct arch_tensor DECILM[] = {
	EMBEDDINGS,
	{SLOT_ATTN_NORM, LAYER "input_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION},
	{SLOT_ATTN_NORM, LAYER "input_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_LINEAR_MIXER},
	{SLOT_MLP_NORM, LAYER "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_DENSE},
	{SLOT_MLP_NORM, LAYER "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_LINEAR_MLP},
	{SLOT_ATTN_OUT, ATTENTION "linear_attn.weight", DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, WHEN_LINEAR_MIXER, .apart_as = DECILM_APART},
	{SLOT_ATTN_OUT, DECILM_APART, DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, WHEN_LINEAR_MIXER, .apart_as = DECILM_APART, .apart = true},
	{SLOT_DOWN, LAYER "mlp.linear_mlp.weight", DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, WHEN_LINEAR_MLP},
	{SLOT_QKV, ATTENTION "q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_QKV, ATTENTION "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_QKV, ATTENTION "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_ATTENTION},
	ATTENTION_BIASES, MLP, MLP_BIASES,
};

/* Files in GGUF have q, k and v apart. */
#define BAICHUAN_APART ATTENTION "q_proj.weight"
#define BAICHUAN_QKV(rows_, before_, name) \
	{SLOT_QKV, ATTENTION "W_pack.weight", rows_, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV, .before = before_, .apart_as = BAICHUAN_APART}, \
	{SLOT_QKV, ATTENTION name "_proj.weight", rows_, DIM_HIDDEN, SPLIT_ROWS, .apart_as = BAICHUAN_APART, .apart = true}
static const struct arch_tensor BAICHUAN[] = {
	EMBEDDINGS, NORMS, BAICHUAN_QKV(DIM_HEADS, DIM_NONE, "q"), BAICHUAN_QKV(DIM_KV_HEADS, DIM_HEADS, "k"), BAICHUAN_QKV(DIM_KV_HEADS, DIM_HEADS_KV, "v"),
	ATTENTION_OUT, MLP,
};

/* Files in GGUF of the older checkpoints have q, k and v in one tensor. */
#define GLM_FUSED ATTENTION "qkv_proj.weight"
#define GLM_QKV(rows_, before_, name) \
	{SLOT_QKV, ATTENTION name "_proj.weight", rows_, DIM_HIDDEN, SPLIT_ROWS, .apart_as = GLM_FUSED}, \
	{SLOT_QKV, GLM_FUSED, rows_, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV, .before = before_, .apart_as = GLM_FUSED, .apart = true}, \
	{SLOT_QKV_BIAS, ATTENTION name "_proj.bias", rows_, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS, .apart_as = GLM_FUSED}, \
	{SLOT_QKV_BIAS, ATTENTION "qkv_proj.bias", rows_, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS, .whole = DIM_QKV, .before = before_, \
	 .apart_as = GLM_FUSED, .apart = true}
static const struct arch_tensor GLM[] = {
	EMBEDDINGS, NORMS, GLM_QKV(DIM_HEADS, DIM_NONE, "q"), GLM_QKV(DIM_KV_HEADS, DIM_HEADS, "k"), GLM_QKV(DIM_KV_HEADS, DIM_HEADS_KV, "v"), ATTENTION_OUT,
	PHI3_GATE_UP, MLP_DOWN,
};

/* A score that no key has for every head; experts with biases, whose gate and up are neighbours. */
#define GPT_OSS_EXPERTS LAYER "mlp.experts."
/* GGUF files have the matrices as others have them, and gate and up in two, whose rows take turns here. */
#define GPT_OSS_APART EXPERT "gate_up.weight"
static const struct arch_tensor GPT_OSS[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	SINKS,
	{SLOT_ROUTER, LAYER "mlp.router.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_ROUTER_BIAS, LAYER "mlp.router.bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERT_GATE_UP, EXPERT "gate_up_proj.weight", DIM_EXPERT_GATE_UP, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS,
	 .apart_as = GPT_OSS_APART, .transposed = true},
	{SLOT_EXPERT_GATE_UP, GPT_OSS_APART, DIM_EXPERT_GATE_UP, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS, .apart_as = GPT_OSS_APART, .apart = true},
	{SLOT_EXPERT_GATE_UP_BIAS, GPT_OSS_EXPERTS "gate_up_proj_bias", DIM_EXPERTS, DIM_EXPERT_GATE_UP, SPLIT_COLUMNS,
	 WHEN_EXPERTS},
	{SLOT_EXPERT_DOWN, EXPERT "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS,
	 .apart_as = GPT_OSS_APART, .transposed = true},
	{SLOT_EXPERT_DOWN, EXPERT "down.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS, .apart_as = GPT_OSS_APART,
	 .apart = true},
	{SLOT_EXPERT_DOWN_BIAS, GPT_OSS_EXPERTS "down_proj_bias", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
};

#define LLAMA4_MLP LAYER "feed_forward."
#define LLAMA4_SHARED LLAMA4_MLP "shared_expert."
#define LLAMA4_EXPERT LLAMA4_MLP "experts.{}."
/* Likewise; gate and up stay as they are. */
#define LLAMA4_APART LLAMA4_EXPERT "down.weight"
static const struct arch_tensor LLAMA4[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, ATTENTION_BIASES,
	{SLOT_GATE_UP, LLAMA4_MLP "gate_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE},
	{SLOT_GATE_UP, LLAMA4_MLP "up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE},
	{SLOT_DOWN, LLAMA4_MLP "down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_DENSE},
	{SLOT_ROUTER, LAYER "feed_forward.router.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
	WHOLE_EXPERT_ROWS(LLAMA4_EXPERT, .before = DIM_NONE, .apart_as = LLAMA4_APART),
	WHOLE_EXPERT_ROWS(LLAMA4_EXPERT, .before = DIM_EXPERT_INTERMEDIATE, .apart_as = LLAMA4_APART),
	{SLOT_EXPERT_DOWN, LLAMA4_EXPERT "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS, .transposed = true,
	 .apart_as = LLAMA4_APART},
	{SLOT_EXPERT_GATE_UP, LLAMA4_EXPERT "gate.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS, .apart_as = LLAMA4_APART, .apart = true},
	{SLOT_EXPERT_GATE_UP, LLAMA4_EXPERT "up.weight", DIM_EXPERT_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_EXPERTS, .apart_as = LLAMA4_APART, .apart = true},
	{SLOT_EXPERT_DOWN, LLAMA4_APART, DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS, .apart_as = LLAMA4_APART, .apart = true},
	{SLOT_GATE_UP, LLAMA4_SHARED "gate_proj.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED},
	{SLOT_GATE_UP, LLAMA4_SHARED "up_proj.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED},
	{SLOT_DOWN, LLAMA4_SHARED "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED},
};
/* clang-format on */

#endif
