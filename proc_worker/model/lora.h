/* The adapters of one rank: loaded from PEFT folders, sliced as the weights are, and added to a step's products for the
 * tokens that ask for them. */
#ifndef TERCET_PROC_WORKER_MODEL_LORA_H
#define TERCET_PROC_WORKER_MODEL_LORA_H

#include "common/lora_modules.h"
#include "kernels/kernels.h"
#include "proc_worker/inputs.h"
#include "proc_worker/model/weights.h"

/* The products of a layer that adapters can change. */
enum lora_product { LORA_QKV, LORA_ATTN_OUT, LORA_GATE_UP, LORA_DOWN, LORA_PRODUCTS };

struct lora_adapter {
	struct kern_lora *products; /* [layers][LORA_PRODUCTS]; part_count 0: as the model has it */
	void *memory;		    /* of their matrices */
	size_t memory_bytes;
};

struct lora_set {
	struct lora_adapter *adapters; /* owned; number i + 1 is adapters[i] */
	u32 count;
	u32 rank_sum_max; /* the largest kern_lora.rank: for the scratch */
	u64 bytes;	  /* memory of all */
};

/* Loads every adapter of `modules` for the rank, the types and the checkpoint's shapes of `plan`. The error names the adapter
 * and what is wrong: the errors of lora_config_read and safetensors_open_file; ERR_UNSUPPORTED: a tensor changes what adapters
 * cannot change here; ERR_FORMAT: a shape that does not fit the model, half of a pair is missing, or tensors contradict the
 * configuration; ERR_INVALID: a rank above modules->rank_max, targets or layers that the model has not, values that are not
 * finite; ERR_NO_MEMORY. With layers of `plan` as its config says. Blocks. */
MUST_CHECK enum err lora_set_load(struct lora_set *s, const struct lora_modules *modules, const struct weights_plan *plan,
				  struct err_msg *em);
void lora_set_fini(struct lora_set *s); /* zeroed accepted */

/* Which tokens of the current step go through which adapter. */
struct lora_step {
	const struct lora_set *set; /* NULL: no adapters */
	const struct kern_ops *ops;
	struct kern_ctx *ctx;
	u32 active_count; /* adapters that the step has tokens of; 0: nothing is to be added anywhere */
	u32 *active;	  /* [set->count] their indices, ascending */
	u32 *start;	  /* [set->count + 1] where an active one's tokens begin, of the step and of a narrowed one */
	u32 *row_start;
	u32 *tokens; /* [tokens_max] token numbers by adapter */
	u32 *rows;   /* [tokens_max] numbers of the step's rows, by adapter */
	struct kern_lora_group *groups; /* [set->count] of a call */
	void *memory;
};

/* ERR_NO_MEMORY. What is pointed to must outlive `l`. With an empty set nothing is allocated, and no step has tokens. */
MUST_CHECK enum err lora_step_init(struct lora_step *l, const struct lora_set *set, const struct kern_ops *ops,
				   struct kern_ctx *ctx, u32 tokens_max, struct err_msg *em);
void lora_step_fini(struct lora_step *l);
/* Before the layers of a step. Never fails, never allocates; a step without adapters costs a comparison. */
void lora_step_begin(struct lora_step *l, const struct inputs *in);

/* A product that was computed for `count` tokens from `first` on: row 0 of `out` and `x` is token `first`. */
struct lora_call {
	u32 layer;
	enum lora_product product;
	float *out;
	const float *x;
	u32 first, count;
	bool narrowed; /* "token" i is the last one of row i */
};
/* Adds what the adapters make of `x`. Only with active_count > 0. The errors of the op. */
MUST_CHECK enum err lora_step_add(struct lora_step *l, const struct lora_call *call, u32 x_stride, u32 out_stride,
				  struct err_msg *em);

#endif
