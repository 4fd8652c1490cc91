/* Which tensors checkpoints of Gemma have from its second generation on. Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_GEMMA_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_GEMMA_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
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

/* Of layers with heads of one kind, which are listed for both. */
#define GEMMA4_ATTENTION(head, heads, kv_heads, when, when_kv, when_v) \
	{SLOT_QKV, ATTENTION "q_proj.weight", heads, DIM_HIDDEN, SPLIT_ROWS, when}, \
	{SLOT_QKV, ATTENTION "k_proj.weight", kv_heads, DIM_HIDDEN, SPLIT_ROWS, when_kv}, \
	{SLOT_QKV, ATTENTION "v_proj.weight", kv_heads, DIM_HIDDEN, SPLIT_ROWS, when_v}, \
	{SLOT_Q_NORM, ATTENTION "q_norm.weight", head, DIM_NONE, SPLIT_NONE, when}, \
	{SLOT_K_NORM, ATTENTION "k_norm.weight", head, DIM_NONE, SPLIT_NONE, when_kv}, \
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, heads, SPLIT_COLUMNS, when}
#define GEMMA4_EXPERT LAYER "experts.{}."
#define GEMMA4_MLP(intermediate, when) \
	{SLOT_GATE_UP, LAYER "mlp.gate_proj.weight", intermediate, DIM_HIDDEN, SPLIT_ROWS, when}, \
	{SLOT_GATE_UP, LAYER "mlp.up_proj.weight", intermediate, DIM_HIDDEN, SPLIT_ROWS, when}, \
	{SLOT_DOWN, LAYER "mlp.down_proj.weight", DIM_HIDDEN, intermediate, SPLIT_COLUMNS, when}
static const struct arch_tensor GEMMA4[] = {
	EMBEDDINGS,
	{SLOT_INPUTS_EMBED, "model.embed_tokens_per_layer.weight", DIM_INPUTS_VOCAB, DIM_INPUTS, SPLIT_NONE, WHEN_INPUTS},
	{SLOT_INPUTS_PROJECTION, "model.per_layer_model_projection.weight", DIM_INPUTS, DIM_HIDDEN, SPLIT_NONE, WHEN_INPUTS},
	{SLOT_INPUTS_NORM, "model.per_layer_projection_norm.weight", DIM_INPUT, DIM_NONE, SPLIT_NONE, WHEN_INPUTS},
	GEMMA4_ATTENTION(DIM_HEAD, DIM_HEADS, DIM_KV_HEADS, WHEN_LOCAL, WHEN_LOCAL_KV, WHEN_LOCAL_KV),
	GEMMA4_ATTENTION(DIM_GLOBAL_HEAD, DIM_GLOBAL_HEADS, DIM_GLOBAL_KV_HEADS, WHEN_GLOBAL, WHEN_GLOBAL_KV, WHEN_GLOBAL_V),
	GEMMA4_MLP(DIM_INTERMEDIATE, WHEN_NARROW), GEMMA4_MLP(DIM_WIDE_INTERMEDIATE, WHEN_WIDE),
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"),
	NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"),
	NORM(SLOT_MLP_NORM, "pre_feedforward_layernorm.weight"),
	NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight"),
	EXPERTS("router.proj.weight", GEMMA4_EXPERT "gate_proj.weight", GEMMA4_EXPERT "up_proj.weight", GEMMA4_EXPERT "down_proj.weight"),
	{SLOT_ROUTER_NORM, LAYER "router.scale", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERT_SCALES, LAYER "router.per_expert_scale", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERTS_NORM, LAYER "pre_feedforward_layernorm_2.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERTS_POST_NORM, LAYER "post_feedforward_layernorm_2.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_BESIDE_POST_NORM, LAYER "post_feedforward_layernorm_1.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_INPUT_GATE, LAYER "per_layer_input_gate.weight", DIM_INPUT, DIM_HIDDEN, SPLIT_NONE, WHEN_INPUTS},
	{SLOT_INPUT_OUT, LAYER "per_layer_projection.weight", DIM_HIDDEN, DIM_INPUT, SPLIT_NONE, WHEN_INPUTS},
	{SLOT_INPUT_POST_NORM, LAYER "post_per_layer_input_norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_INPUTS},
	{SLOT_LAYER_SCALE, LAYER "layer_scalar", DIM_ONE, DIM_NONE, SPLIT_NONE},
};

/* Heads of one size; layers without keys and values of their own are as Gemma 4's. */
#define ALTUP LAYER "altup."
#define LAUREL LAYER "laurel."
#define ALTUP_STREAM(i, file) \
	{SLOT_ALTUP_IN, "model.altup_projections." file ".weight", DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, .stream = i}, \
	{SLOT_ALTUP_OUT + (i) - 1, "model.altup_unembed_projections." file ".weight", DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, .stream = i}
static const struct arch_tensor GEMMA3N[] = {
	EMBEDDINGS,
	{SLOT_INPUTS_EMBED, "model.embed_tokens_per_layer.weight", DIM_INPUTS_VOCAB, DIM_INPUTS, SPLIT_NONE},
	{SLOT_INPUTS_PROJECTION, "model.per_layer_model_projection.weight", DIM_INPUTS, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_INPUTS_NORM, "model.per_layer_projection_norm.weight", DIM_INPUT, DIM_NONE, SPLIT_NONE},
	ALTUP_STREAM(1, "0"), ALTUP_STREAM(2, "1"), ALTUP_STREAM(3, "2"), ALTUP_STREAM(4, "3"), ALTUP_STREAM(5, "4"), ALTUP_STREAM(6, "5"), ALTUP_STREAM(7, "6"),
	GEMMA4_ATTENTION(DIM_HEAD, DIM_HEADS, DIM_KV_HEADS, WHEN_ALWAYS, WHEN_LOCAL_KV, WHEN_LOCAL_KV), MLP,
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"),
	NORM(SLOT_MLP_NORM, "pre_feedforward_layernorm.weight"), NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight"),
	{SLOT_INPUT_GATE, LAYER "per_layer_input_gate.weight", DIM_INPUT, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_INPUT_OUT, LAYER "per_layer_projection.weight", DIM_HIDDEN, DIM_INPUT, SPLIT_NONE},
	NORM(SLOT_INPUT_POST_NORM, "post_per_layer_input_norm.weight"),
	NORM(SLOT_ALTUP_NORM, "altup.router_norm.weight"),
	{SLOT_ALTUP_ROUTER, ALTUP "modality_router.weight", DIM_STREAMS, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_ALTUP_PREDICT, ALTUP "prediction_coefs.weight", DIM_STREAMS_SQUARED, DIM_STREAMS, SPLIT_NONE},
	{SLOT_ALTUP_CORRECT, ALTUP "correction_coefs.weight", DIM_STREAMS, DIM_STREAMS, SPLIT_NONE},
	{SLOT_ALTUP_SCALE, ALTUP "correct_output_scale", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ALTUP_SCALE},
	{SLOT_LAUREL_LEFT, LAUREL "linear_left.weight", DIM_LAUREL, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_LAUREL_RIGHT, LAUREL "linear_right.weight", DIM_HIDDEN, DIM_LAUREL, SPLIT_NONE},
	NORM(SLOT_LAUREL_NORM, "laurel.post_laurel_norm.weight"),
};
/* clang-format on */

#endif
