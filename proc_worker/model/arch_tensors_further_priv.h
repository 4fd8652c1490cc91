/* Which tensors checkpoints have of further families. Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_FURTHER_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_FURTHER_PRIV_H

#include "proc_worker/model/arch_tensors_priv.h"

/* clang-format off */
/* q, k and v fused for each head; norms over heads with biases. */
#define HEAD_NORM_PAIR(norm, bias, name) \
	{norm, ATTENTION name ".weight", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_HEAD_NORMS}, \
	{bias, ATTENTION name ".bias", DIM_HEAD, DIM_NONE, SPLIT_NONE, WHEN_HEAD_NORMS}
static const struct arch_tensor PERSIMMON[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"), FINAL_NORM(SLOT_FINAL_NORM_BIAS, "final_layernorm.bias"),
	NORMS, NORM(SLOT_ATTN_NORM_BIAS, "input_layernorm.bias"), NORM(SLOT_MLP_NORM_BIAS, "post_attention_layernorm.bias"),
	GROUPED_QKV(SLOT_QKV, ATTENTION "query_key_value.weight", DIM_HIDDEN, WHEN_ALWAYS),
	GROUPED_QKV(SLOT_QKV_BIAS, ATTENTION "query_key_value.bias", DIM_NONE, WHEN_ALWAYS),
	HEAD_NORM_PAIR(SLOT_Q_NORM, SLOT_Q_NORM_BIAS, "q_layernorm"), HEAD_NORM_PAIR(SLOT_K_NORM, SLOT_K_NORM_BIAS, "k_layernorm"),
	{SLOT_ATTN_OUT, ATTENTION "dense.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS},
	{SLOT_ATTN_OUT_BIAS, ATTENTION "dense.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE},
	UNGATED("dense_h_to_4h", "dense_4h_to_h"), UNGATED_BIASES("dense_h_to_4h", "dense_4h_to_h", WHEN_ALWAYS),
};
/* clang-format on */

#endif
