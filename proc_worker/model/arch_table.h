/* What a checkpoint of each architecture is made of: which of its tensors become which (fused) weight of the
 * decoder, of what shape they must be, and how ranks divide them. A new architecture of the decoder family is
 * a new table. */
#ifndef TERCET_PROC_WORKER_MODEL_ARCH_TABLE_H
#define TERCET_PROC_WORKER_MODEL_ARCH_TABLE_H

#include "common/types.h"

/* Weights as the decoder reads them. */
enum weight_slot {
	SLOT_EMBED,
	SLOT_FINAL_NORM,
	SLOT_LM_HEAD,
	SLOT_ATTN_NORM, /* from here on: one a layer */
	SLOT_QKV,
	SLOT_ATTN_OUT,
	SLOT_MLP_NORM,
	SLOT_GATE_UP,
	SLOT_DOWN,
	SLOT_COUNT,
	SLOT_LAYER_FIRST = SLOT_ATTN_NORM,
};

/* Sizes that config.json gives. */
enum arch_dim {
	DIM_NONE, /* a vector's second one */
	DIM_VOCAB,
	DIM_HIDDEN,
	DIM_HEADS,    /* heads * head_dim */
	DIM_KV_HEADS, /* kv_heads * head_dim */
	DIM_INTERMEDIATE,
};

/* How ranks of a tensor-parallel group divide a tensor (Shoeybi et al. 2019). */
enum arch_split {
	SPLIT_NONE,
	SPLIT_ROWS,    /* each computes some outputs */
	SPLIT_COLUMNS, /* each sums over some inputs; the results are added */
};

/* One tensor of the checkpoint. Parts of a slot lie one behind the other, in the order of the table. "{}" in
 * a name is the layer. Matrices are [rows][columns] = [outputs][inputs]. */
struct arch_tensor {
	enum weight_slot slot;
	const char *name;
	enum arch_dim rows, columns;
	enum arch_split split;
};

struct arch {
	const char *name; /* in "architectures" of config.json */
	const struct arch_tensor *tensors;
	u32 tensor_count;
};

/* NULL: unknown. */
const struct arch *arch_find(const char *name);
/* The names of all, separated by commas, into `out`. */
void arch_names(char *out, size_t bytes);
/* The tensor's name in `layer`, into `out`. */
void arch_tensor_name(char *out, size_t bytes, const struct arch_tensor *t, u32 layer);

#endif
