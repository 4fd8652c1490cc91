/* Which tensors checkpoints have of families some of whose layers keep a state (config_recurrent.c). Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_RECURRENT_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_RECURRENT_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
/* Of layers of attention. */
#define SOME_ATTENTION(out) \
	{SLOT_QKV, ATTENTION "q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION}, \
	{SLOT_QKV, ATTENTION "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION}, \
	{SLOT_QKV, ATTENTION "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION}, \
	{SLOT_ATTN_OUT, ATTENTION out, DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_ATTENTION}

/* A gated short convolution, or attention, in every layer; names of its own. */
#define LFM2_CONV LAYER "conv."
#define LFM2_ROWS(slot, name, columns, before_, when_) \
	{slot, LFM2_CONV name, DIM_CHANNELS, columns, SPLIT_ROWS, when_, .whole = DIM_CHANNELS_THREE, .before = before_}
#define LFM2_IN(slot, name, columns, when) \
	LFM2_ROWS(slot, name, columns, DIM_NONE, when), \
	LFM2_ROWS(slot, name, columns, DIM_CHANNELS, when), \
	LFM2_ROWS(slot, name, columns, DIM_CHANNELS_TWO, when)
#define LFM2_BUT_ATTENTION \
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "embedding_norm.weight"), \
	NORM(SLOT_ATTN_NORM, "operator_norm.weight"), NORM(SLOT_MLP_NORM, "ffn_norm.weight"), \
	LFM2_IN(SLOT_QKV, "in_proj.weight", DIM_HIDDEN, WHEN_RECURRENT), \
	LFM2_IN(SLOT_QKV_BIAS, "in_proj.bias", DIM_NONE, WHEN_STATE_BIAS), \
	{SLOT_CONV, LFM2_CONV "conv.weight", DIM_CHANNELS, DIM_TAPS, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_CONV_BIAS, LFM2_CONV "conv.bias", DIM_CHANNELS, DIM_NONE, SPLIT_ROWS, WHEN_CONV_BIAS}, \
	{SLOT_ATTN_OUT, LFM2_CONV "out_proj.weight", DIM_HIDDEN, DIM_CHANNELS, SPLIT_COLUMNS, WHEN_RECURRENT}, \
	{SLOT_ATTN_OUT_BIAS, LFM2_CONV "out_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_STATE_BIAS}
#define LFM2_BUT_MLP \
	LFM2_BUT_ATTENTION, SOME_ATTENTION("out_proj.weight"), \
	{SLOT_Q_NORM, ATTENTION "q_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION}, \
	{SLOT_K_NORM, ATTENTION "k_layernorm.weight", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION}
#define LFM2_MLP \
	{SLOT_GATE_UP, LAYER "feed_forward.w1.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE}, \
	{SLOT_GATE_UP, LAYER "feed_forward.w3.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE}, \
	{SLOT_DOWN, LAYER "feed_forward.w2.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_DENSE}
static const struct arch_tensor LFM2[] = {
	LFM2_BUT_MLP, LFM2_MLP,
};

/* Every head has one gate, which all its values are weighed by. */
static const struct arch_tensor LFM3[] = {
	LFM2_BUT_ATTENTION, SOME_ATTENTION("o_proj.weight"),
	{SLOT_QKV, ATTENTION "gate_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_OUTPUT_GATE, .a_head = true},
	HEAD_NORMS_WHEN(WHEN_ATTENTION), LFM2_MLP,
	{SLOT_ATTN_POST_NORM, LAYER "post_operator_norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_POST_NORM},
	{SLOT_MLP_POST_NORM, LAYER "post_ffn_norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_POST_NORM},
};

#define LFM2_EXPERT LAYER "feed_forward.experts.{}."
static const struct arch_tensor LFM2_MOE[] = {
	LFM2_BUT_MLP, LFM2_MLP,
	EXPERTS("feed_forward.gate.weight", LFM2_EXPERT "w1.weight", LFM2_EXPERT "w3.weight", LFM2_EXPERT "w2.weight"),
	{SLOT_CHOICE_BIAS, LAYER "feed_forward.expert_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_CHOICE_BIAS},
};

/* Of layers of attention whose queries have a gate behind them each, which ours have behind v. */
#define GATED_QUERIES(slot, name, columns, before_, when_) \
	{slot, ATTENTION name, DIM_HEADS, columns, SPLIT_ROWS, when_, .whole = DIM_HEADS_TWO, .before = before_, .grouped = GROUPS_HEADS}
#define GATED_ATTENTION \
	GATED_QUERIES(SLOT_QKV, "q_proj.weight", DIM_HIDDEN, DIM_NONE, WHEN_ATTENTION), \
	{SLOT_QKV, ATTENTION "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION}, \
	{SLOT_QKV, ATTENTION "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION}, \
	GATED_QUERIES(SLOT_QKV, "q_proj.weight", DIM_HIDDEN, DIM_HEADS, WHEN_ATTENTION), \
	GATED_QUERIES(SLOT_QKV_BIAS, "q_proj.bias", DIM_NONE, DIM_NONE, WHEN_ATTENTION_BIAS), \
	{SLOT_QKV_BIAS, ATTENTION "k_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS}, \
	{SLOT_QKV_BIAS, ATTENTION "v_proj.bias", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION_BIAS}, \
	GATED_QUERIES(SLOT_QKV_BIAS, "q_proj.bias", DIM_NONE, DIM_HEADS, WHEN_ATTENTION_BIAS), \
	HEAD_NORMS_WHEN(WHEN_ATTENTION), \
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_ATTENTION}, \
	{SLOT_ATTN_OUT_BIAS, ATTENTION "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS}

/* The gated delta rule, or attention with gates. */
#define LINEAR LAYER "linear_attn."
#define LINEAR_ROWS(slot, name, rows, columns, whole_, before_, groups) \
	{slot, LINEAR name, rows, columns, SPLIT_ROWS, WHEN_RECURRENT, .whole = whole_, .before = before_, .grouped = groups}
#define LINEAR_QKV(slot, name, columns) \
	LINEAR_ROWS(slot, name, DIM_STATE_KEYS, columns, DIM_STATE_QKV, DIM_NONE, GROUPS_NONE), \
	LINEAR_ROWS(slot, name, DIM_STATE_KEYS, columns, DIM_STATE_QKV, DIM_STATE_KEYS, GROUPS_NONE), \
	LINEAR_ROWS(slot, name, DIM_STATE_VALUES, columns, DIM_STATE_QKV, DIM_STATE_QK, GROUPS_NONE)
#define LINEAR_BUT_IN \
	LINEAR_QKV(SLOT_CONV, "conv1d.weight", DIM_TAPS), \
	{SLOT_RATE_LOG, LINEAR "A_log", DIM_STATE_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_DECAY_BIAS, LINEAR "dt_bias", DIM_STATE_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_GATE_NORM, LINEAR "norm.weight", DIM_STATE_VALUE, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT}, \
	{SLOT_ATTN_OUT, LINEAR "out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT}
#define QWEN3_5_BUT_MLP \
	EMBEDDINGS, NORMS, GATED_ATTENTION, \
	LINEAR_QKV(SLOT_QKV, "in_proj_qkv.weight", DIM_HIDDEN), \
	{SLOT_QKV, LINEAR "in_proj_z.weight", DIM_STATE_VALUES, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_QKV, LINEAR "in_proj_b.weight", DIM_STATE_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_QKV, LINEAR "in_proj_a.weight", DIM_STATE_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT}, \
	LINEAR_BUT_IN
static const struct arch_tensor QWEN3_5[] = {
	QWEN3_5_BUT_MLP, MLP,
};

static const struct arch_tensor QWEN3_5_MOE[] = {
	QWEN3_5_BUT_MLP, EXPERTS_AND_GATED,
};

/* The same, fused for each key head. */
#define QWEN3_NEXT_APART LINEAR "in_proj_qkv.weight"
#define QKVZ(rows_, before_) \
	{SLOT_QKV, LINEAR "in_proj_qkvz.weight", rows_, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT, .whole = DIM_STATE_QKVZ, .before = before_, \
	 .grouped = GROUPS_KEY_HEADS, .apart_as = QWEN3_NEXT_APART}
/* GGUF files have the first product in two, by its parts. */
#define QKV_APART(rows_, before_) \
	{SLOT_QKV, QWEN3_NEXT_APART, rows_, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT, .whole = DIM_STATE_QKV, .before = before_, \
	 .apart_as = QWEN3_NEXT_APART, .apart = true}
#define Z_APART \
	{SLOT_QKV, LINEAR "in_proj_z.weight", DIM_STATE_VALUES, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT, .apart_as = QWEN3_NEXT_APART, .apart = true}
#define BETA_DECAY(before) LINEAR_ROWS(SLOT_QKV, "in_proj_ba.weight", DIM_STATE_HEADS, DIM_HIDDEN, DIM_STATE_HEADS_TWO, before, GROUPS_KEY_HEADS)
static const struct arch_tensor QWEN3_NEXT[] = {
	EMBEDDINGS, NORMS, GATED_ATTENTION,
	QKVZ(DIM_STATE_KEYS, DIM_NONE), QKVZ(DIM_STATE_KEYS, DIM_STATE_KEYS),
	QKVZ(DIM_STATE_VALUES, DIM_STATE_QK), QKVZ(DIM_STATE_VALUES, DIM_STATE_QKV),
	QKV_APART(DIM_STATE_KEYS, DIM_NONE), QKV_APART(DIM_STATE_KEYS, DIM_STATE_KEYS), QKV_APART(DIM_STATE_VALUES, DIM_STATE_QK), Z_APART,
	BETA_DECAY(DIM_NONE), BETA_DECAY(DIM_STATE_HEADS),
	LINEAR_BUT_IN, MLP, EXPERTS_AND_GATED,
};

/* The delta rule with a norm before each block, or attention with norms behind the blocks. */
#define OLMO_NORM(slot, file, when) {slot, LAYER file, DIM_HIDDEN, DIM_NONE, SPLIT_NONE, when}
#define OLMO_ROWS(slot, name, rows, columns) {slot, LINEAR name, rows, columns, SPLIT_ROWS, WHEN_RECURRENT}
static const struct arch_tensor OLMO_HYBRID[] = {
	EMBEDDINGS,
	OLMO_NORM(SLOT_ATTN_NORM, "attention_layer_norm.weight", WHEN_RECURRENT), OLMO_NORM(SLOT_MLP_NORM, "feedforward_layer_norm.weight", WHEN_RECURRENT),
	OLMO_NORM(SLOT_ATTN_POST_NORM, "post_attention_layernorm.weight", WHEN_ATTENTION),
	OLMO_NORM(SLOT_MLP_POST_NORM, "post_feedforward_layernorm.weight", WHEN_ATTENTION),
	SOME_ATTENTION("o_proj.weight"),
	{SLOT_Q_NORM, ATTENTION "q_norm.weight", DIM_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_K_NORM, ATTENTION "k_norm.weight", DIM_KV_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_ATTENTION},
	OLMO_ROWS(SLOT_QKV, "q_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN), OLMO_ROWS(SLOT_QKV, "k_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN),
	OLMO_ROWS(SLOT_QKV, "v_proj.weight", DIM_STATE_VALUES, DIM_HIDDEN), OLMO_ROWS(SLOT_QKV, "g_proj.weight", DIM_STATE_VALUES, DIM_HIDDEN),
	OLMO_ROWS(SLOT_QKV, "b_proj.weight", DIM_STATE_HEADS, DIM_HIDDEN), OLMO_ROWS(SLOT_QKV, "a_proj.weight", DIM_STATE_HEADS, DIM_HIDDEN),
	OLMO_ROWS(SLOT_CONV, "q_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS), OLMO_ROWS(SLOT_CONV, "k_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS),
	OLMO_ROWS(SLOT_CONV, "v_conv1d.weight", DIM_STATE_VALUES, DIM_TAPS),
	OLMO_ROWS(SLOT_RATE_LOG, "A_log", DIM_STATE_HEADS, DIM_NONE), OLMO_ROWS(SLOT_DECAY_BIAS, "dt_bias", DIM_STATE_HEADS, DIM_NONE),
	{SLOT_GATE_NORM, LINEAR "o_norm.weight", DIM_STATE_VALUE, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT},
	{SLOT_ATTN_OUT, LINEAR "o_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT},
	MLP,
};

/* Lightning attention, whose heads have q, k and v one behind the other each, or attention. */
#define LIGHTNING_QKV(before_) \
	{SLOT_QKV, ATTENTION "qkv_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT, .whole = DIM_STATE_QKV, .before = before_, \
	 .grouped = GROUPS_KEY_HEADS}
static const struct arch_tensor MINIMAX[] = {
	EMBEDDINGS, NORMS, SOME_ATTENTION("o_proj.weight"), MIXTRAL_EXPERTS,
	LIGHTNING_QKV(DIM_NONE), LIGHTNING_QKV(DIM_STATE_KEYS), LIGHTNING_QKV(DIM_STATE_QK),
	{SLOT_QKV, ATTENTION "output_gate.weight", DIM_STATE_VALUES, DIM_HIDDEN, SPLIT_ROWS, WHEN_RECURRENT},
	{SLOT_GATE_NORM, ATTENTION "norm.weight", DIM_STATE_VALUES, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT},
	{SLOT_ATTN_OUT, ATTENTION "out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT},
};

/* A real-gated linear recurrent unit, or attention, in every layer; all but q, k and v has biases. */
#define GRIFFIN LAYER "temporal_block."
#define GRIFFIN_LRU GRIFFIN "rg_lru."
#define GRIFFIN_ROWS(slot, name, columns) {slot, GRIFFIN name, DIM_STATE_VALUES, columns, SPLIT_ROWS, WHEN_RECURRENT}
#define GRIFFIN_BLOCKS(slot, name) {slot, GRIFFIN_LRU name, DIM_STATE_VALUE, DIM_STATE_VALUE, SPLIT_ROWS, WHEN_RECURRENT, .whole = DIM_STATE_VALUES}
#define GRIFFIN_ATTENTION(slot, name, rows, columns, when) {slot, GRIFFIN name, rows, columns, SPLIT_ROWS, when}
#define GRIFFIN_MLP(slot, name, columns, split) {slot, LAYER "mlp_block." name, DIM_INTERMEDIATE, columns, split}
static const struct arch_tensor RECURRENT_GEMMA[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_norm.weight"),
	NORM(SLOT_ATTN_NORM, "temporal_pre_norm.weight"), NORM(SLOT_MLP_NORM, "channel_pre_norm.weight"),
	GRIFFIN_ATTENTION(SLOT_QKV, "q_proj.weight", DIM_HEADS, DIM_HIDDEN, WHEN_ATTENTION),
	GRIFFIN_ATTENTION(SLOT_QKV, "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, WHEN_ATTENTION),
	GRIFFIN_ATTENTION(SLOT_QKV, "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, WHEN_ATTENTION),
	GRIFFIN_ATTENTION(SLOT_QKV_BIAS, "q_proj.bias", DIM_HEADS, DIM_NONE, WHEN_ATTENTION_BIAS),
	GRIFFIN_ATTENTION(SLOT_QKV_BIAS, "k_proj.bias", DIM_KV_HEADS, DIM_NONE, WHEN_ATTENTION_BIAS),
	GRIFFIN_ATTENTION(SLOT_QKV_BIAS, "v_proj.bias", DIM_KV_HEADS, DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_ATTN_OUT, GRIFFIN "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_ATTENTION},
	{SLOT_ATTN_OUT_BIAS, GRIFFIN "o_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION},
	GRIFFIN_ROWS(SLOT_QKV, "linear_x.weight", DIM_HIDDEN), GRIFFIN_ROWS(SLOT_QKV, "linear_y.weight", DIM_HIDDEN),
	GRIFFIN_ROWS(SLOT_QKV_BIAS, "linear_x.bias", DIM_NONE), GRIFFIN_ROWS(SLOT_QKV_BIAS, "linear_y.bias", DIM_NONE),
	GRIFFIN_ROWS(SLOT_CONV, "conv_1d.weight", DIM_TAPS), GRIFFIN_ROWS(SLOT_CONV_BIAS, "conv_1d.bias", DIM_NONE),
	GRIFFIN_BLOCKS(SLOT_LRU_INPUT, "input_gate_weight"), GRIFFIN_ROWS(SLOT_LRU_INPUT_BIAS, "rg_lru.input_gate_bias", DIM_NONE),
	GRIFFIN_BLOCKS(SLOT_LRU_FADE, "recurrent_gate_weight"), GRIFFIN_ROWS(SLOT_LRU_FADE_BIAS, "rg_lru.recurrent_gate_bias", DIM_NONE),
	GRIFFIN_ROWS(SLOT_LRU_RATE, "rg_lru.recurrent_param", DIM_NONE),
	{SLOT_ATTN_OUT, GRIFFIN "linear_out.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT},
	{SLOT_ATTN_OUT_BIAS, GRIFFIN "linear_out.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT},
	GRIFFIN_MLP(SLOT_GATE_UP, "gate_proj.weight", DIM_HIDDEN, SPLIT_ROWS), GRIFFIN_MLP(SLOT_GATE_UP, "up_proj.weight", DIM_HIDDEN, SPLIT_ROWS),
	GRIFFIN_MLP(SLOT_GATE_UP_BIAS, "gate_proj.bias", DIM_NONE, SPLIT_ROWS), GRIFFIN_MLP(SLOT_GATE_UP_BIAS, "up_proj.bias", DIM_NONE, SPLIT_ROWS),
	{SLOT_DOWN, LAYER "mlp_block.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
	{SLOT_DOWN_BIAS, LAYER "mlp_block.down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
};

/* Kimi delta attention, or attention over latents; experts under the names of Mixtral's. */
#define KDA_ROWS(slot, name, rows, columns) {slot, ATTENTION name, rows, columns, SPLIT_ROWS, WHEN_RECURRENT}
#define KDA_LOW(name) {SLOT_QKV, ATTENTION name, DIM_STATE_VALUE, DIM_HIDDEN, SPLIT_NONE, WHEN_RECURRENT}
#define KIMI_MOE LAYER "block_sparse_moe."
#define KIMI_SHARED KIMI_MOE "shared_experts."
/* What transformers saves has the MLPs of layers without experts under their name, too. */
#define KIMI_MLP(at, slot, name, rows, columns, split, ...) \
	{slot, LAYER at name, rows, columns, split, WHEN_DENSE, .apart_as = KIMI_MOE "down_proj.weight", __VA_ARGS__}
#define KIMI_DENSE(at, ...) \
	KIMI_MLP(at, SLOT_GATE_UP, "gate_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, __VA_ARGS__), \
	KIMI_MLP(at, SLOT_GATE_UP, "up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, __VA_ARGS__), \
	KIMI_MLP(at, SLOT_DOWN, "down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, __VA_ARGS__)
static const struct arch_tensor KIMI_LINEAR[] = {
	EMBEDDINGS, NORMS, LATENT_ATTENTION,
	KDA_ROWS(SLOT_QKV, "q_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN), KDA_ROWS(SLOT_QKV, "k_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN),
	KDA_ROWS(SLOT_QKV, "v_proj.weight", DIM_STATE_VALUES, DIM_HIDDEN), KDA_ROWS(SLOT_QKV, "b_proj.weight", DIM_STATE_HEADS, DIM_HIDDEN),
	KDA_LOW("f_a_proj.weight"), KDA_LOW("g_a_proj.weight"),
	KDA_ROWS(SLOT_CONV, "q_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS), KDA_ROWS(SLOT_CONV, "k_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS),
	KDA_ROWS(SLOT_CONV, "v_conv1d.weight", DIM_STATE_VALUES, DIM_TAPS),
	KDA_ROWS(SLOT_RATE_LOG, "A_log", DIM_STATE_HEADS, DIM_NONE), KDA_ROWS(SLOT_DECAY_BIAS, "dt_bias", DIM_STATE_KEYS, DIM_NONE),
	KDA_ROWS(SLOT_DECAY_B, "f_b_proj.weight", DIM_STATE_KEYS, DIM_STATE_VALUE), KDA_ROWS(SLOT_GATE_B, "g_b_proj.weight", DIM_STATE_VALUES, DIM_STATE_VALUE),
	{SLOT_GATE_NORM, ATTENTION "o_norm.weight", DIM_STATE_VALUE, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT},
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT},
	KIMI_DENSE("mlp.", .apart = false), KIMI_DENSE("block_sparse_moe.", .apart = true),
	EXPERTS("block_sparse_moe.gate.weight", MIXTRAL_EXPERT "w1.weight", MIXTRAL_EXPERT "w3.weight", MIXTRAL_EXPERT "w2.weight"),
	{SLOT_CHOICE_BIAS, KIMI_MOE "gate.e_score_correction_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_GATE_UP, KIMI_SHARED "gate_proj.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED},
	{SLOT_GATE_UP, KIMI_SHARED "up_proj.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED},
	{SLOT_DOWN, KIMI_SHARED "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED},
};

/* The same without low ranks, under Ling's names, and attention over latents with a gate a head, in front of its other rows. */
#define LING3 LAYER "attention."
#define LING3_KDA(slot, name, rows, columns) {slot, LING3 name, rows, columns, SPLIT_ROWS, WHEN_RECURRENT}
static const struct arch_tensor BAILING_HYBRID[] = {
	{SLOT_EMBED, "model.word_embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, FINAL_NORM(SLOT_FINAL_NORM, "norm.weight"), NORMS,
	{SLOT_QKV, LING3 "g_proj.weight", DIM_HEAD_COUNT, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_QKV, LING3 "q_proj.weight", DIM_HEADS_QUERY, DIM_HIDDEN, SPLIT_ROWS, WHEN_NO_Q_RANK},
	{SLOT_QKV, LING3 "q_a_proj.weight", DIM_Q_RANK, DIM_HIDDEN, SPLIT_NONE, WHEN_Q_RANK},
	{SLOT_QKV, LING3 "kv_a_proj_with_mqa.weight", DIM_HEAD, DIM_HIDDEN, SPLIT_NONE, WHEN_ATTENTION},
	{SLOT_Q_NORM, LING3 "q_a_layernorm.weight", DIM_Q_RANK, DIM_NONE, SPLIT_NONE, WHEN_Q_RANK},
	{SLOT_K_NORM, LING3 "kv_a_layernorm.weight", DIM_LATENT, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION},
	{SLOT_Q_B, LING3 "q_b_proj.weight", DIM_HEADS_QUERY, DIM_Q_RANK, SPLIT_ROWS, WHEN_Q_RANK},
	{SLOT_HEAD_K, LING3 "kv_b_proj.weight", DIM_HEAD_KEY, DIM_LATENT, SPLIT_NONE, WHEN_ATTENTION, .whole = DIM_HEADS_KEY_VALUE},
	{SLOT_HEAD_V, LING3 "kv_b_proj.weight", DIM_HEAD_VALUE, DIM_LATENT, SPLIT_NONE, WHEN_ATTENTION, .whole = DIM_HEADS_KEY_VALUE, .before = DIM_HEAD_KEY},
	{SLOT_ATTN_OUT, LING3 "dense.weight", DIM_HIDDEN, DIM_HEADS_VALUE, SPLIT_COLUMNS, WHEN_ATTENTION},
	LING3_KDA(SLOT_QKV, "q_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN), LING3_KDA(SLOT_QKV, "k_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN),
	LING3_KDA(SLOT_QKV, "v_proj.weight", DIM_STATE_VALUES, DIM_HIDDEN), LING3_KDA(SLOT_QKV, "b_proj.weight", DIM_STATE_HEADS, DIM_HIDDEN),
	LING3_KDA(SLOT_QKV, "f_proj.weight", DIM_STATE_KEYS, DIM_HIDDEN), LING3_KDA(SLOT_QKV, "g_proj.weight", DIM_STATE_VALUES, DIM_HIDDEN),
	LING3_KDA(SLOT_CONV, "q_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS), LING3_KDA(SLOT_CONV, "k_conv1d.weight", DIM_STATE_KEYS, DIM_TAPS),
	LING3_KDA(SLOT_CONV, "v_conv1d.weight", DIM_STATE_VALUES, DIM_TAPS),
	LING3_KDA(SLOT_RATE_LOG, "A_log", DIM_STATE_HEADS, DIM_NONE), LING3_KDA(SLOT_DECAY_BIAS, "dt_bias", DIM_STATE_KEYS, DIM_NONE),
	{SLOT_GATE_NORM, LING3 "o_norm.weight", DIM_STATE_VALUE, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT},
	{SLOT_ATTN_OUT, LING3 "dense.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT},
	MLP, EXPERTS_AND_SHARED,
	{SLOT_CHOICE_BIAS, LAYER "mlp.gate.expert_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
};

/* Mamba 2, or attention; `at`: in front of the names of the former. */
#define MAMBA_PART(slot, name, rows, columns, when_, whole_, before_, scale_) \
	{slot, name, rows, columns, SPLIT_ROWS, when_, .whole = whole_, .before = before_, .scale = scale_}
#define MAMBA_IN(slot, name, columns, when) \
	MAMBA_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_ALL, DIM_STATE_VALUES, SCALE_NONE), \
	MAMBA_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_ALL, DIM_STATE_VZ, SCALE_NONE), \
	MAMBA_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_ALL, DIM_STATE_KVZ, SCALE_NONE), \
	MAMBA_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_ALL, DIM_NONE, SCALE_STATE_GATE), \
	MAMBA_PART(slot, name, DIM_STATE_HEADS, columns, when, DIM_STATE_ALL, DIM_STATE_QKVZ, SCALE_STATE_DECAY)
/* What convolutions read is multiplied by what their weights are, which are floats. */
#define MAMBA_CONV(slot, name, columns, when, scale_v, scale_k, scale_q) \
	MAMBA_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_QKV, DIM_NONE, scale_v), \
	MAMBA_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_QKV, DIM_STATE_VALUES, scale_k), \
	MAMBA_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_QKV, DIM_STATE_KV, scale_q)
#define MAMBA_VECTOR(slot, name, rows) {slot, name, rows, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT}
#define MAMBA_BUT_OUT(at) \
	MAMBA_IN(SLOT_QKV, at "in_proj.weight", DIM_HIDDEN, WHEN_RECURRENT), \
	MAMBA_CONV(SLOT_CONV, at "conv1d.weight", DIM_TAPS, WHEN_RECURRENT, SCALE_STATE_V, SCALE_STATE_K, SCALE_STATE_Q), \
	MAMBA_CONV(SLOT_CONV_BIAS, at "conv1d.bias", DIM_NONE, WHEN_CONV_BIAS, SCALE_NONE, SCALE_NONE, SCALE_NONE), \
	MAMBA_VECTOR(SLOT_RATE_LOG, at "A_log", DIM_STATE_HEADS), MAMBA_VECTOR(SLOT_DECAY_BIAS, at "dt_bias", DIM_STATE_HEADS), \
	MAMBA_VECTOR(SLOT_SKIP, at "D", DIM_STATE_HEADS), \
	{SLOT_GATE_NORM, at "norm.weight", DIM_STATE_VALUES, DIM_NONE, SPLIT_ROWS, WHEN_STATE_NORM}
#define MAMBA_TENSORS_AT(at) \
	MAMBA_BUT_OUT(at), MAMBA_IN(SLOT_QKV_BIAS, at "in_proj.bias", DIM_NONE, WHEN_STATE_BIAS), \
	{SLOT_ATTN_OUT, at "out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT}, \
	{SLOT_ATTN_OUT_BIAS, at "out_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_STATE_BIAS}
#define MAMBA_TENSORS MAMBA_TENSORS_AT(LAYER "mamba.")
/* Without experts what models with some have for all tokens beside these is the MLP. */
#define GRANITE_HYBRID_ROWS(...) \
	{SLOT_GATE_UP, LAYER "shared_mlp.input_linear.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE, .whole = DIM_GATE_UP, \
	 .apart_as = GRANITE_APART, __VA_ARGS__}
static const struct arch_tensor GRANITE_HYBRID[] = {
	EMBEDDINGS, NORMS, SOME_ATTENTION("o_proj.weight"), ATTENTION_BIASES, MAMBA_TENSORS, GRANITE_MOE_EXPERTS, GRANITE_SHARED,
	GRANITE_HYBRID_ROWS(.before = DIM_NONE), GRANITE_HYBRID_ROWS(.before = DIM_INTERMEDIATE), GRANITE_SHARED_APART(DIM_INTERMEDIATE, WHEN_DENSE),
	{SLOT_DOWN, LAYER "shared_mlp.output_linear.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_DENSE},
};

#define BAMBA_MLP(slot, name, rows, columns, split) {slot, LAYER "feed_forward." name ".weight", rows, columns, split}
static const struct arch_tensor BAMBA[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"),
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_MLP_NORM, "pre_ff_layernorm.weight"),
	SOME_ATTENTION("o_proj.weight"), ATTENTION_BIASES, MAMBA_TENSORS,
	BAMBA_MLP(SLOT_GATE_UP, "gate_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	BAMBA_MLP(SLOT_GATE_UP, "up_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	BAMBA_MLP(SLOT_DOWN, "down_proj", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS),
	{SLOT_GATE_UP_BIAS, LAYER "feed_forward.gate_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS},
	{SLOT_GATE_UP_BIAS, LAYER "feed_forward.up_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS},
	{SLOT_DOWN_BIAS, LAYER "feed_forward.down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MLP_BIAS},
};

/* Mamba 2 and attention side by side in every layer. Rows of attention come behind the others. */
static const struct arch_tensor FALCON_H1[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"),
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_MLP_NORM, "pre_ff_layernorm.weight"),
	MAMBA_BUT_OUT(LAYER "mamba."),
	{SLOT_STATE_OUT, LAYER "mamba.out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, .scale = SCALE_STATE_OUT},
	{SLOT_QKV, ATTENTION "q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, ATTENTION "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, ATTENTION "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_ATTN_OUT, ATTENTION "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, .scale = SCALE_ATTN_OUT},
	{SLOT_GATE_UP, LAYER "feed_forward.gate_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, .scale = SCALE_GATE},
	{SLOT_GATE_UP, LAYER "feed_forward.up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_DOWN, LAYER "feed_forward.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, .scale = SCALE_DOWN},
};

/* Mamba; `at`: in front of the names. */
#define SELECTIVE_IN(slot, name, columns, when) \
	MAMBA_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_VZ, DIM_NONE, SCALE_NONE), \
	MAMBA_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_VZ, DIM_STATE_VALUES, SCALE_NONE)
#define SELECTIVE_TENSORS_AT(at) \
	SELECTIVE_IN(SLOT_QKV, at "in_proj.weight", DIM_HIDDEN, WHEN_RECURRENT), SELECTIVE_IN(SLOT_QKV_BIAS, at "in_proj.bias", DIM_NONE, WHEN_STATE_BIAS), \
	{SLOT_CONV, at "conv1d.weight", DIM_STATE_VALUES, DIM_TAPS, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_CONV_BIAS, at "conv1d.bias", DIM_STATE_VALUES, DIM_NONE, SPLIT_ROWS, WHEN_CONV_BIAS}, \
	{SLOT_X_PROJ, at "x_proj.weight", DIM_SELECTED, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT}, \
	{SLOT_DT_PROJ, at "dt_proj.weight", DIM_STATE_VALUES, DIM_STEP_RANK, SPLIT_ROWS, WHEN_RECURRENT}, \
	MAMBA_VECTOR(SLOT_DECAY_BIAS, at "dt_proj.bias", DIM_STATE_VALUES), MAMBA_VECTOR(SLOT_SKIP, at "D", DIM_STATE_VALUES), \
	{SLOT_RATES, at "A_log", DIM_STATE_VALUES, DIM_STATE_KEYS, SPLIT_ROWS, WHEN_RECURRENT}, \
	{SLOT_ATTN_OUT, at "out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT}, \
	{SLOT_ATTN_OUT_BIAS, at "out_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_STATE_BIAS}

#define JAMBA_NORM(slot, name, rows) {slot, LAYER "mamba." name, rows, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT}
#define JAMBA_MLP(slot, name, rows, columns, split) {slot, LAYER "feed_forward." name ".weight", rows, columns, split, WHEN_DENSE}
#define JAMBA_EXPERT LAYER "feed_forward.experts.{}."
static const struct arch_tensor JAMBA[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"),
	NORM(SLOT_ATTN_NORM, "input_layernorm.weight"), NORM(SLOT_MLP_NORM, "pre_ff_layernorm.weight"),
	SOME_ATTENTION("o_proj.weight"), SELECTIVE_TENSORS_AT(LAYER "mamba."),
	JAMBA_NORM(SLOT_DT_NORM, "dt_layernorm.weight", DIM_STEP_RANK), JAMBA_NORM(SLOT_B_NORM, "b_layernorm.weight", DIM_STATE_KEYS),
	JAMBA_NORM(SLOT_C_NORM, "c_layernorm.weight", DIM_STATE_KEYS),
	JAMBA_MLP(SLOT_GATE_UP, "gate_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	JAMBA_MLP(SLOT_GATE_UP, "up_proj", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS),
	JAMBA_MLP(SLOT_DOWN, "down_proj", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS),
	EXPERTS("feed_forward.router.weight", JAMBA_EXPERT "gate_proj.weight", JAMBA_EXPERT "up_proj.weight", JAMBA_EXPERT "down_proj.weight"),
};

/* Mamba alone, in every layer; and Mamba 2. */
#define MAMBA_BUT_MIXERS \
	{SLOT_EMBED, "model.embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, \
	FINAL_NORM(SLOT_FINAL_NORM, "norm_f.weight"), NORM(SLOT_ATTN_NORM, "norm.weight")
static const struct arch_tensor MAMBA[] = {
	MAMBA_BUT_MIXERS, SELECTIVE_TENSORS_AT(LAYER "mixer."),
};

static const struct arch_tensor MAMBA2[] = {
	MAMBA_BUT_MIXERS, MAMBA_TENSORS_AT(LAYER "mixer."),
};

/* One block in each layer, with one norm before it. */
#define MIXER LAYER "mixer."
#define MIXER_SHARED MIXER "shared_experts."
static const struct arch_tensor NEMOTRON_H[] = {
	{SLOT_EMBED, "model.embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	FINAL_NORM(SLOT_FINAL_NORM, "norm_f.weight"),
	{SLOT_ATTN_NORM, LAYER "norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MIXER},
	{SLOT_MLP_NORM, LAYER "norm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_NO_MIXER},
	{SLOT_QKV, MIXER "q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_QKV, MIXER "k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_QKV, MIXER "v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS, WHEN_ATTENTION},
	{SLOT_ATTN_OUT, MIXER "o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_ATTENTION},
	MAMBA_TENSORS_AT(MIXER),
	{SLOT_GATE_UP, MIXER "up_proj.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_DENSE},
	{SLOT_DOWN, MIXER "down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_DENSE},
	{SLOT_GATE_UP_BIAS, MIXER "up_proj.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS},
	{SLOT_DOWN_BIAS, MIXER "down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MLP_BIAS},
	{SLOT_ROUTER, MIXER "gate.weight", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_CHOICE_BIAS, MIXER "gate.e_score_correction_bias", DIM_EXPERTS, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS},
	{SLOT_EXPERT_GATE_UP, MIXER "experts.{}.up_proj.weight", DIM_EXPERT_INTERMEDIATE, DIM_EXPERT_WIDTH, SPLIT_ROWS, WHEN_EXPERTS},
	{SLOT_EXPERT_DOWN, MIXER "experts.{}.down_proj.weight", DIM_EXPERT_WIDTH, DIM_EXPERT_INTERMEDIATE, SPLIT_COLUMNS, WHEN_EXPERTS},
	{SLOT_EXPERTS_IN, MIXER "fc1_latent_proj.weight", DIM_EXPERT_WIDTH, DIM_HIDDEN, SPLIT_NONE, WHEN_EXPERTS_IN},
	{SLOT_EXPERTS_OUT, MIXER "fc2_latent_proj.weight", DIM_HIDDEN, DIM_EXPERT_WIDTH, SPLIT_NONE, WHEN_EXPERTS_IN},
	{SLOT_EXPERTS_IN_BIAS, MIXER "fc1_latent_proj.bias", DIM_EXPERT_WIDTH, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS_IN_BIAS},
	{SLOT_EXPERTS_OUT_BIAS, MIXER "fc2_latent_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_EXPERTS_IN_BIAS},
	{SLOT_GATE_UP, MIXER_SHARED "up_proj.weight", DIM_SHARED_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS, WHEN_SHARED},
	{SLOT_DOWN, MIXER_SHARED "down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED},
	{SLOT_GATE_UP_BIAS, MIXER_SHARED "up_proj.bias", DIM_SHARED_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_SHARED_BIAS},
	{SLOT_DOWN_BIAS, MIXER_SHARED "down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_SHARED_BIAS},
};
/* clang-format on */

#endif
