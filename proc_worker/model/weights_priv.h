/* What loading weights on the CPU and onto a device share: the architecture's table in numbers, and readers
 * of its tensors. */
#ifndef TERCET_PROC_WORKER_MODEL_WEIGHTS_PRIV_H
#define TERCET_PROC_WORKER_MODEL_WEIGHTS_PRIV_H

#include "proc_worker/model/quant_tensor.h"
#include "proc_worker/model/weights.h"

enum { WEIGHTS_ALIGN = 64 };

static inline size_t weights_round_up(size_t n)
{
	return (n + WEIGHTS_ALIGN - 1) & ~(size_t)(WEIGHTS_ALIGN - 1);
}

/* ---------------------------------------------------------------- the table in numbers (weights_table.c) */

struct weights_range {
	u32 first, count;
};

/* What a slot is, and where its weight goes. */
enum slot_kind { SLOT_IS_EMBED, SLOT_IS_TABLE, SLOT_IS_NORM, SLOT_IS_BIAS, SLOT_IS_MATRIX, SLOT_IS_EXPERTS, SLOT_IS_HEADS };

struct weights_slot {
	enum slot_kind kind;
	size_t offset; /* in struct model_weights, or, of the slots of layers, in struct layer_weights */
};
extern const struct weights_slot WEIGHTS_SLOTS[SLOT_COUNT];

bool weights_is_vector(enum weight_slot slot);
bool weights_is_matrix(enum weight_slot slot);
/* Whether checkpoints may have it quantized: matrices, and in GGUF files the embedding. */
bool weights_may_be_quantized(const struct weights_plan *p, enum weight_slot slot);
/* Decides about experts, streams or tokens: is never quantized. */
bool weights_is_router(enum weight_slot slot);

/* Of `layer`, whose sizes others need not have; of a tensor that is in no layer, of any. weights_dims.c. */
u32 weights_dim(const struct model_config *c, enum arch_dim d, u32 layer);
/* This rank's part of a dimension that is divided. */
struct weights_range weights_dim_share(const struct weights_plan *p, enum arch_dim d, u32 layer);
/* This rank's rows of the part, and its columns. */
struct weights_range weights_rows(const struct weights_plan *p, const struct arch_tensor *t, u32 layer);
/* Of `rows` of the part (at least one) those from the first on that lie side by side in the file's tensor: where. */
struct weights_range weights_file_rows(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, struct weights_range rows);
struct weights_range weights_columns(const struct weights_plan *p, const struct arch_tensor *t, u32 layer);
/* Where the file has them; width 0: in their order. */
struct tiles weights_column_tiles(const struct weights_plan *p, const struct arch_tensor *t);
u32 weights_rows_of_file(const struct weights_plan *p, const struct arch_tensor *t, u32 layer);

/* How many weights of a slot a layer (or the model) has; how many layers have the slot. */
u32 weights_copies(const struct weights_plan *p, enum weight_slot slot);
/* How many tensors of a layer (or of the model) `t` stands for in the file: one, or one an expert or a head. */
u32 weights_tensors(const struct weights_plan *p, const struct arch_tensor *t, u32 layer);
u32 weights_layers(const struct weights_plan *p, enum weight_slot slot);
/* Whether a tensor of the table is there in `layer`. */
bool weights_tensor_applies(const struct weights_plan *p, const struct arch_tensor *t, u32 layer);
/* Of a norm that no tensor has weights for, which are 1, how many there are; 0: it is none. */
u32 weights_plain_width(const struct weights_plan *p, enum weight_slot slot, u32 layer);
/* With tied embeddings lm_head is made from the embedding's tensor. */
enum weight_slot weights_source_slot(const struct weights_plan *p, enum weight_slot slot);
/* Rows and columns that this rank holds of a fused weight of `layer`; none: 0. */
void weights_slot_shape(const struct weights_plan *p, enum weight_slot slot, u32 layer, u32 *rows,
			u32 *columns);
/* The type that a matrix is held in. `*ordered`: it has an order of inputs of its own. */
enum kern_dtype weights_matrix_dtype(const struct weights_plan *p, enum weight_slot slot, u32 layer,
				     bool *ordered);
const struct st_tensor *weights_embed_tensor(const struct weights_plan *p);
/* The part `t` of a weight, as the checkpoint has it; model_weights_check has found it right. */
struct quant_tensor weights_quant_part(const struct weights_plan *p, const struct arch_tensor *t, u32 layer,
				       u32 expert);

/* ---------------------------------------------------------------- readers (weights_read.c) */

struct weights_reader {
	const struct weights_plan *plan;
	void *staging; /* an aligned copy of rows whose place in the file is not aligned; owned */
	size_t staging_bytes;
	void *untiled; /* rows in the order of their heads; owned */
	size_t untiled_bytes;
};
void weights_reader_fini(struct weights_reader *r);

/* The tensor's rows from `first` on, aligned to its element size: in the file, or copied, until the next
 * call. NULL: out of memory. */
const void *weights_aligned_rows(struct weights_reader *r, const struct st_tensor *t, u32 first, u32 rows);
/* `rows` of the part `t`, whose tensor in a file is `st`, one behind the other: like weights_aligned_rows. */
const void *weights_part_rows(struct weights_reader *r, const struct arch_tensor *t, const struct st_tensor *st, u32 layer,
			      struct weights_range rows);
/* Rows [first, first + count) of this rank's part of `t` become rows of `w` from `to` on. ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_rows(struct weights_reader *r, const struct arch_tensor *t, u32 layer,
				      u32 expert, u32 first, u32 count, struct kern_weight *w, u32 to,
				      struct err_msg *em);
/* All parts of a weight that was begun. `order` [columns]: memory for its order of inputs, if it has one.
 * ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_matrix(struct weights_reader *r, enum weight_slot slot, u32 layer,
					u32 expert, struct kern_weight *w, u32 *order, struct err_msg *em);
/* That of `head` of this rank, of a slot with one a head (weights_heads.c). ERR_FORMAT: a value is no finite number. ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_head(struct weights_reader *r, enum weight_slot slot, u32 layer, u32 head, struct kern_weight *w,
				      struct err_msg *em);
/* Of such a slot where a file has keys and values apart, as GGUF files may: the name and shape of the tensor that has them, of all heads one
 * behind the other, each of the shape that its weight has. False: they are in one tensor, that of the table; nothing is changed. */
bool weights_split_heads(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, char *name, size_t bytes, u64 shape[2]);
/* Room for so many bytes in `staging`; false: out of memory. */
bool weights_stage(struct weights_reader *r, size_t bytes);
/* This rank's rows of a quantized embedding, in the plan's type. ERR_FORMAT: a value is no finite number. ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_embed(struct weights_reader *r, void *out, struct err_msg *em);
/* A table of the model, in the plan's type. ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_table(struct weights_reader *r, enum weight_slot slot, void *out, struct err_msg *em);
/* A norm, with its offset, or a bias, of all its parts. ERR_NO_MEMORY. */
MUST_CHECK enum err weights_read_vector(struct weights_reader *r, enum weight_slot slot, u32 layer,
					float *out, struct err_msg *em);

#endif
