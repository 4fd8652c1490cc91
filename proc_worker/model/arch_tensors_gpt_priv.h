/* Which tensors the checkpoints of families have whose names begin as GPT-2's do. Only arch_table.c includes it, behind arch_tensors_priv.h. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_GPT_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_GPT_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
#define GPT_VECTOR(slot, name) {slot, name, DIM_HIDDEN, DIM_NONE, SPLIT_NONE}
#define GPT_NORM(norm, bias, name) GPT_VECTOR(norm, name ".weight"), GPT_VECTOR(bias, name ".bias")
#define UNGATED_OF(up, down) \
	{SLOT_GATE_UP, up ".weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_GATE_UP_BIAS, up ".bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS}, \
	{SLOT_DOWN, down ".weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS}, \
	GPT_VECTOR(SLOT_DOWN_BIAS, down ".bias")

/* Qwen 1: Llama under GPT-2's names, with biases of q, k and v; what is activated is the second matrix. */
static const struct arch_tensor QWEN[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_VECTOR(SLOT_FINAL_NORM, GPT2 "ln_f.weight"),
	GPT_VECTOR(SLOT_ATTN_NORM, GPT2_LAYER "ln_1.weight"), GPT_VECTOR(SLOT_MLP_NORM, GPT2_LAYER "ln_2.weight"),
	PACKED_QKV(SLOT_QKV, GPT2_LAYER "attn.c_attn.weight", DIM_HIDDEN), PACKED_QKV(SLOT_QKV_BIAS, GPT2_LAYER "attn.c_attn.bias", DIM_NONE),
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.c_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.w2.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.w1.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_DOWN, GPT2_LAYER "mlp.c_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
};

/* q, k and v are fused for each KV head, of which there may be one for all; in GGUF files they lie one behind the other. */
#define FALCON_NORM(norm, bias, name, when) \
	{norm, GPT2_LAYER name ".weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, when}, {bias, GPT2_LAYER name ".bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, when}
#define FALCON_QKV(slot, end, columns, when) \
	GROUPED_OR_APART_QKV(slot, GPT2_LAYER "self_attention.query_key_value" end, GPT2_LAYER "self_attention.qkv" end, columns, when)
static const struct arch_tensor FALCON[] = {
	{SLOT_EMBED, GPT2 "word_embeddings.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "ln_f"),
	FALCON_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, "input_layernorm", WHEN_NORM_SHARED),
	FALCON_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, "post_attention_layernorm", WHEN_SEQUENTIAL),
	FALCON_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, "ln_attn", WHEN_NORM_EACH),
	FALCON_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, "ln_mlp", WHEN_NORM_EACH),
	FALCON_QKV(SLOT_QKV, ".weight", DIM_HIDDEN, WHEN_ALWAYS), FALCON_QKV(SLOT_QKV_BIAS, ".bias", DIM_NONE, WHEN_ATTENTION_BIAS),
	{SLOT_ATTN_OUT, GPT2_LAYER "self_attention.dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, GPT2_LAYER "self_attention.dense.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_ATTENTION_BIAS},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.dense_h_to_4h.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP_BIAS, GPT2_LAYER "mlp.dense_h_to_4h.bias", DIM_INTERMEDIATE, DIM_NONE, SPLIT_ROWS, WHEN_MLP_BIAS},
	{SLOT_DOWN, GPT2_LAYER "mlp.dense_4h_to_h.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
	{SLOT_DOWN_BIAS, GPT2_LAYER "mlp.dense_4h_to_h.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_MLP_BIAS},
};

/* The same groups, of GPT-2's names. */
static const struct arch_tensor GPT_BIGCODE[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_POSITIONS, GPT2 "wpe.weight", DIM_CONTEXT, DIM_HIDDEN, SPLIT_NONE},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "ln_f"),
	GPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, GPT2_LAYER "ln_1"), GPT_NORM(SLOT_MLP_NORM, SLOT_MLP_NORM_BIAS, GPT2_LAYER "ln_2"),
	GROUPED_QKV(SLOT_QKV, GPT2_LAYER "attn.c_attn.weight", DIM_HIDDEN, WHEN_ALWAYS),
	GROUPED_QKV(SLOT_QKV_BIAS, GPT2_LAYER "attn.c_attn.bias", DIM_NONE, WHEN_ALWAYS),
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.c_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	GPT_VECTOR(SLOT_ATTN_OUT_BIAS, GPT2_LAYER "attn.c_proj.bias"),
	UNGATED_OF(GPT2_LAYER "mlp.c_fc", GPT2_LAYER "mlp.c_proj"),
};

/* Llama under GPT-2's names and some of its own. */
static const struct arch_tensor EXAONE[] = {
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS},
	GPT_VECTOR(SLOT_FINAL_NORM, GPT2 "ln_f.weight"),
	GPT_VECTOR(SLOT_ATTN_NORM, GPT2_LAYER "ln_1.weight"), GPT_VECTOR(SLOT_MLP_NORM, GPT2_LAYER "ln_2.weight"),
	{SLOT_QKV, GPT2_LAYER "attn.attention.q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.attention.k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.attention.v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.attention.out_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.c_fc_0.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_GATE_UP, GPT2_LAYER "mlp.c_fc_1.weight", DIM_INTERMEDIATE, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_DOWN, GPT2_LAYER "mlp.c_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS},
};

/* One norm for both blocks; biases of the MLP and of logits, none of attention. */
#define GPTJ_BUT_QKV \
	{SLOT_EMBED, GPT2 "wte.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, \
	{SLOT_LM_HEAD, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, SPLIT_ROWS}, {SLOT_LM_HEAD_BIAS, "lm_head.bias", DIM_VOCAB, DIM_NONE, SPLIT_ROWS}, \
	GPT_NORM(SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS, GPT2 "ln_f"), GPT_NORM(SLOT_ATTN_NORM, SLOT_ATTN_NORM_BIAS, GPT2_LAYER "ln_1"), \
	{SLOT_ATTN_OUT, GPT2_LAYER "attn.out_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS}, \
	UNGATED_OF(GPT2_LAYER "mlp.fc_in", GPT2_LAYER "mlp.fc_out")
static const struct arch_tensor GPTJ[] = {
	GPTJ_BUT_QKV,
	{SLOT_QKV, GPT2_LAYER "attn.q_proj.weight", DIM_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.k_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
	{SLOT_QKV, GPT2_LAYER "attn.v_proj.weight", DIM_KV_HEADS, DIM_HIDDEN, SPLIT_ROWS},
};

/* The same with these in one tensor: of every quarter of the heads q, v and k. */
#define CODEGEN_PART(rows, before_) \
	{SLOT_QKV, GPT2_LAYER "attn.qkv_proj.weight", rows, DIM_HIDDEN, SPLIT_ROWS, .whole = DIM_QKV, .before = before_, .grouped = GROUPS_FOUR}
static const struct arch_tensor CODEGEN[] = {
	GPTJ_BUT_QKV, CODEGEN_PART(DIM_HEADS, DIM_NONE), CODEGEN_PART(DIM_KV_HEADS, DIM_HEADS_KV), CODEGEN_PART(DIM_KV_HEADS, DIM_HEADS),
};
/* clang-format on */

#endif
