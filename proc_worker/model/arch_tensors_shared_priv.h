/* Which tensors checkpoints have of families whose layers share blocks (shared_block.h). Only arch_table.c includes it. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_SHARED_PRIV_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TENSORS_SHARED_PRIV_H

#include "proc_worker/model/arch_tensors_recurrent_priv.h"

/* clang-format off */
/* Of a layer of the file the first of ours is the shared block, which the first layer that has it has in the file, and the second one Mamba 2. */
#define SHARED_BLOCK LAYER "shared_transformer."
#define SHARED_BLOCK_AT(slot, name, rows, columns, split, when, ...) {slot, SHARED_BLOCK name, rows, columns, split, when, .pairs = PAIRS_FIRST, __VA_ARGS__}
#define SHARED_BLOCK_QKV(name, rows) SHARED_BLOCK_AT(SLOT_QKV, "self_attn." name ".weight", rows, DIM_HIDDEN_TWO, SPLIT_ROWS, WHEN_SHARED_BLOCK, .before = DIM_NONE)
#define SHARED_BLOCK_GATE_UP(slot, name, columns, when, before_) \
	SHARED_BLOCK_AT(slot, "feed_forward." name, DIM_INTERMEDIATE, columns, SPLIT_ROWS, when, .whole = DIM_GATE_UP, .before = before_)
/* Every layer with such a block has adapters of its own beside its matrices; tensor_names_shared.c gives them these names. */
#define SHARED_BLOCK_ADAPTER(slot, name, rows) \
	SHARED_BLOCK_AT(SLOT_ADAPTER_IN, "self_attn.linear_" name "_adapter.0.weight", DIM_ADAPTER, DIM_HIDDEN_TWO, SPLIT_NONE, WHEN_ADAPTERS, .before = DIM_NONE), \
	SHARED_BLOCK_AT(slot, "self_attn.linear_" name "_adapter.1.weight", rows, DIM_ADAPTER, SPLIT_ROWS, WHEN_ADAPTERS, .before = DIM_NONE)
#define ZAMBA2_PART(slot, name, rows, columns, when, before_) \
	{slot, LAYER "mamba." name, rows, columns, SPLIT_ROWS, when, .whole = DIM_STATE_ALL, .before = before_, .pairs = PAIRS_FIRST}
#define ZAMBA2_IN(slot, name, columns, when) \
	ZAMBA2_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_STATE_VALUES), ZAMBA2_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_VZ), \
	ZAMBA2_PART(slot, name, DIM_STATE_KEYS, columns, when, DIM_STATE_KVZ), ZAMBA2_PART(slot, name, DIM_STATE_VALUES, columns, when, DIM_NONE), \
	ZAMBA2_PART(slot, name, DIM_STATE_HEADS, columns, when, DIM_STATE_QKVZ)
#define ZAMBA2_CONV_PART(slot, name, rows, columns, before_) \
	{slot, LAYER "mamba." name, rows, columns, SPLIT_ROWS, WHEN_RECURRENT, .whole = DIM_STATE_QKV, .before = before_, .pairs = PAIRS_FIRST}
#define ZAMBA2_CONV(slot, name, columns) \
	ZAMBA2_CONV_PART(slot, name, DIM_STATE_VALUES, columns, DIM_NONE), ZAMBA2_CONV_PART(slot, name, DIM_STATE_KEYS, columns, DIM_STATE_VALUES), \
	ZAMBA2_CONV_PART(slot, name, DIM_STATE_KEYS, columns, DIM_STATE_KV)
#define ZAMBA2_STATE(slot, name, rows, columns, split, when) {slot, LAYER name, rows, columns, split, when, .pairs = PAIRS_FIRST}
static const struct arch_tensor ZAMBA2[] = {
	EMBEDDINGS_BUT_NORM, FINAL_NORM(SLOT_FINAL_NORM, "final_layernorm.weight"),
	ZAMBA2_STATE(SLOT_ATTN_NORM, "input_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_RECURRENT),
	ZAMBA2_IN(SLOT_QKV, "in_proj.weight", DIM_HIDDEN, WHEN_RECURRENT), ZAMBA2_IN(SLOT_QKV_BIAS, "in_proj.bias", DIM_NONE, WHEN_STATE_BIAS),
	ZAMBA2_CONV(SLOT_CONV, "conv1d.weight", DIM_TAPS), ZAMBA2_CONV(SLOT_CONV_BIAS, "conv1d.bias", DIM_NONE),
	ZAMBA2_STATE(SLOT_RATE_LOG, "mamba.A_log", DIM_STATE_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT),
	ZAMBA2_STATE(SLOT_DECAY_BIAS, "mamba.dt_bias", DIM_STATE_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT),
	ZAMBA2_STATE(SLOT_SKIP, "mamba.D", DIM_STATE_HEADS, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT),
	ZAMBA2_STATE(SLOT_GATE_NORM, "mamba.norm.weight", DIM_STATE_VALUES, DIM_NONE, SPLIT_ROWS, WHEN_RECURRENT),
	ZAMBA2_STATE(SLOT_ATTN_OUT, "mamba.out_proj.weight", DIM_HIDDEN, DIM_STATE_VALUES, SPLIT_COLUMNS, WHEN_RECURRENT),
	ZAMBA2_STATE(SLOT_ATTN_OUT_BIAS, "mamba.out_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_STATE_BIAS),
	SHARED_BLOCK_AT(SLOT_ATTN_NORM, "input_layernorm.weight", DIM_HIDDEN_TWO, DIM_NONE, SPLIT_NONE, WHEN_SHARED_BLOCK, .before = DIM_NONE),
	SHARED_BLOCK_QKV("q_proj", DIM_HEADS), SHARED_BLOCK_QKV("k_proj", DIM_KV_HEADS), SHARED_BLOCK_QKV("v_proj", DIM_KV_HEADS),
	SHARED_BLOCK_AT(SLOT_ATTN_OUT, "self_attn.o_proj.weight", DIM_HIDDEN, DIM_HEADS, SPLIT_COLUMNS, WHEN_SHARED_BLOCK, .before = DIM_NONE),
	SHARED_BLOCK_AT(SLOT_MLP_NORM, "pre_ff_layernorm.weight", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_SHARED_BLOCK, .before = DIM_NONE),
	SHARED_BLOCK_GATE_UP(SLOT_GATE_UP, "gate_up_proj.weight", DIM_HIDDEN, WHEN_SHARED_BLOCK, DIM_NONE),
	SHARED_BLOCK_GATE_UP(SLOT_GATE_UP, "gate_up_proj.weight", DIM_HIDDEN, WHEN_SHARED_BLOCK, DIM_INTERMEDIATE),
	SHARED_BLOCK_GATE_UP(SLOT_GATE_UP_BIAS, "gate_up_proj.bias", DIM_NONE, WHEN_SHARED_BLOCK_BIAS, DIM_NONE),
	SHARED_BLOCK_GATE_UP(SLOT_GATE_UP_BIAS, "gate_up_proj.bias", DIM_NONE, WHEN_SHARED_BLOCK_BIAS, DIM_INTERMEDIATE),
	SHARED_BLOCK_AT(SLOT_DOWN, "feed_forward.down_proj.weight", DIM_HIDDEN, DIM_INTERMEDIATE, SPLIT_COLUMNS, WHEN_SHARED_BLOCK, .before = DIM_NONE),
	SHARED_BLOCK_AT(SLOT_DOWN_BIAS, "feed_forward.down_proj.bias", DIM_HIDDEN, DIM_NONE, SPLIT_NONE, WHEN_SHARED_BLOCK_BIAS, .before = DIM_NONE),
	SHARED_BLOCK_ADAPTER(SLOT_ADAPTER_Q, "q", DIM_HEADS), SHARED_BLOCK_ADAPTER(SLOT_ADAPTER_K, "k", DIM_KV_HEADS),
	SHARED_BLOCK_ADAPTER(SLOT_ADAPTER_V, "v", DIM_KV_HEADS),
	SHARED_BLOCK_AT(SLOT_MLP_ADAPTER_IN, "feed_forward.gate_up_proj_adapter.0.weight", DIM_ADAPTER, DIM_HIDDEN, SPLIT_NONE, WHEN_ATTENTION, .before = DIM_NONE),
	SHARED_BLOCK_GATE_UP(SLOT_MLP_ADAPTER_OUT, "gate_up_proj_adapter.1.weight", DIM_ADAPTER, WHEN_ATTENTION, DIM_NONE),
	SHARED_BLOCK_GATE_UP(SLOT_MLP_ADAPTER_OUT, "gate_up_proj_adapter.1.weight", DIM_ADAPTER, WHEN_ATTENTION, DIM_INTERMEDIATE),
	ZAMBA2_STATE(SLOT_BLOCK_OUT, "linear.weight", DIM_HIDDEN, DIM_HIDDEN, SPLIT_NONE, WHEN_ATTENTION),
};
/* clang-format on */

#endif
