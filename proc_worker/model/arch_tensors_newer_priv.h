/* Which tensors checkpoints of the families have that transformers came to know last. Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_NEWER_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_NEWER_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
/* Files have more embeddings than outputs. */
static const struct arch_tensor APERTUS1P5[] = {
	{SLOT_EMBED, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_EMBED_VOCAB},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, FINAL_NORM(SLOT_FINAL_NORM, "norm.weight"),
	NORM(SLOT_ATTN_NORM, "attention_layernorm.weight"), NORM(SLOT_MLP_NORM, "feedforward_layernorm.weight"),
	ATTENTION_MATRICES, ATTENTION_BIASES, HEAD_NORMS, UNGATED("up_proj", "down_proj"),
	XIELU("alpha_p"), XIELU("alpha_n"), XIELU("beta"), XIELU("eps"),
};

static const struct arch_tensor NANOCHAT[] = {
	EMBEDDINGS_BUT_NORM, ATTENTION_MATRICES, ATTENTION_BIASES, UNGATED("fc1", "fc2"),
};
static const struct arch_tensor KOLIBRI1[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, HEAD_NORMS, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
	NORM(SLOT_ATTN_POST_NORM, "post_self_attn_layernorm.weight"), NORM(SLOT_MLP_POST_NORM, "post_mlp_layernorm.weight"),
};

/* Experts of text come before those of images, and so does what routes to them, turned. */
static const struct arch_tensor ERNIE4_5_VL_MOE[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES, MLP,
	{SLOT_ROUTER, LAYER "mlp.gate.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS, .transposed = true},
	EXPERT_ROWS(EXPERT "gate_proj.weight"), EXPERT_ROWS(EXPERT "up_proj.weight"),
	{SLOT_EXPERT_DOWN, EXPERT "down_proj.weight", DIM_HIDDEN, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS}, ALL_TOKENS_EXPERTS,
	{SLOT_CHOICE_BIAS, LAYER "mlp.moe_statics.e_score_correction_bias", DIM_ONE, DIM_EXPERTS, SPLIT_NONE, WHEN_EXPERTS, .whole = DIM_TWO},
};

/* Gates of heads are behind v, one a head, or as wide as q. */
static const struct arch_tensor LAGUNA[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES,
	{SLOT_QKV, ATTENTION "g_proj.weight", DIM_HEAD_GATES, DIM_HIDDEN, SPLIT_ROWS}, HEAD_NORMS, MLP,
	EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

/* Likewise, one a head. */
static const struct arch_tensor STEP3P5[] = {
	EMBEDDINGS, NORMS, ATTENTION_MATRICES,
	{SLOT_QKV, ATTENTION "g_proj.weight", DIM_HEAD_COUNT, DIM_HIDDEN, SPLIT_ROWS}, HEAD_NORMS, MLP, EXPERTS_AND_SHARED, MLP_CHOICE_BIAS,
};

/* Gates in front of the other rows of what heads over latents begin with, and gated streams. */
#define HYPER(slot, at, rows) \
	{slot, at "fn", rows, DIM_HYPER_WIDTH, SPLIT_NONE}, {slot##_BASE, at "base", rows, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor HY_V4[] = {
	EMBEDDINGS, NORMS, {SLOT_QKV, ATTENTION "gate_proj.weight", DIM_HEADS_VALUE, DIM_HIDDEN, SPLIT_ROWS}, LATENT_ATTENTION, SINKS, MLP, EXPERTS_AND_SHARED,
	MLP_CHOICE_BIAS,
	HYPER(SLOT_HYPER_HEAD, "model.hc_head.hc_", DIM_HYPER), {SLOT_HYPER_HEAD_SCALE, "model.hc_head.hc_scale", DIM_ONE, DIM_NONE, SPLIT_NONE},
	HYPER(SLOT_HYPER_ATTN, LAYER "attn_hc.", DIM_HYPER_TWO), {SLOT_HYPER_ATTN_SCALE, LAYER "attn_hc.scale", DIM_TWO, DIM_NONE, SPLIT_NONE},
	HYPER(SLOT_HYPER_MLP, LAYER "ffn_hc.", DIM_HYPER_TWO), {SLOT_HYPER_MLP_SCALE, LAYER "ffn_hc.scale", DIM_TWO, DIM_NONE, SPLIT_NONE},
};

/* The same, as wide as q. */
static const struct arch_tensor MUSE_GLIMMER[] = {
	EMBEDDINGS, ATTENTION_MATRICES,
	{SLOT_QKV, ATTENTION "gate_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS}, MLP,
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight"),
	NORM(SLOT_MLP_NORM, "pre_feedforward_layernorm.weight"), NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight"),
};
/* Differential attention: queries and keys twice, with the values of either half. */
#define DIFF(slot, name, part, columns, when_, whole_, before_) \
	{slot, ATTENTION name, part, columns, SPLIT_ROWS, when_, .whole = whole_, .before = before_}
#define DIFF_TWICE(slot, name, columns, when, whole, part) \
	DIFF(slot, name, part, columns, when, whole, DIM_NONE), DIFF(slot, name, part, columns, when, whole, part), \
	DIFF(slot, name, part, columns, when, whole, DIM_NONE), DIFF(slot, name, part, columns, when, whole, part)
#define DIFF_QKV(slot, suffix, columns, when) \
	DIFF_TWICE(slot, "q_proj" suffix, columns, when, DIM_HALF_HEADS, DIM_QUARTER_HEADS), \
	DIFF_TWICE(slot, "k_proj" suffix, columns, when, DIM_HALF_KV_HEADS, DIM_QUARTER_KV_HEADS), \
	DIFF(slot, "v_proj" suffix, DIM_QUARTER_KV_HEADS, columns, when, DIM_HALF_KV_HEADS, DIM_NONE), \
	DIFF(slot, "v_proj" suffix, DIM_QUARTER_KV_HEADS, columns, when, DIM_HALF_KV_HEADS, DIM_NONE), \
	DIFF(slot, "v_proj" suffix, DIM_QUARTER_KV_HEADS, columns, when, DIM_HALF_KV_HEADS, DIM_QUARTER_KV_HEADS), \
	DIFF(slot, "v_proj" suffix, DIM_QUARTER_KV_HEADS, columns, when, DIM_HALF_KV_HEADS, DIM_QUARTER_KV_HEADS)
#define DIFF_LAMBDA(name) {SLOT_LAMBDA, ATTENTION "lambda_" name, DIM_HEAD, DIM_NONE, SPLIT_NONE}
static const struct arch_tensor DIFFLLAMA[] = {
	EMBEDDINGS, NORMS, DIFF_QKV(SLOT_QKV, ".weight", DIM_HIDDEN, WHEN_ALWAYS), DIFF_QKV(SLOT_QKV_BIAS, ".bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	DIFF_LAMBDA("q1"), DIFF_LAMBDA("k1"), DIFF_LAMBDA("q2"), DIFF_LAMBDA("k2"),
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HALF_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}, MLP,
};

/* A mixture of attention heads, and of MLPs, each with a bias of all. */
#define JETMOE_HEADS LAYER "self_attention.experts."
static const struct arch_tensor JETMOE[] = {
	EMBEDDINGS, NORMS,
	{SLOT_QKV, LAYER "self_attention.kv_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_KV_HEADS_TWO},
	{SLOT_QKV, LAYER "self_attention.kv_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_KV_HEADS_TWO, .before = DIM_KV_HEADS},
	{SLOT_HEADS_ROUTER, JETMOE_HEADS "router.layer.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_HEADS_IN, JETMOE_HEADS "{}.input.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_HEADS_OUT, JETMOE_HEADS "{}.output.weight", DIM_HIDDEN, DIM_KV_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, JETMOE_HEADS "bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	EXPERTS("mlp.router.layer.weight", EXPERT "gate_proj.weight", EXPERT "up_proj.weight", EXPERT "down_proj.weight"),
	{SLOT_DOWN_BIAS, LAYER "mlp.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};
/* clang-format on */

#endif
