/* A matrix of a quantized checkpoint: its parts in the files, and its values. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_TENSOR_H
#define TERCET_PROC_WORKER_MODEL_QUANT_TENSOR_H

#include "kernels/kernels.h"
#include "proc_worker/model/quant_config.h"
#include "proc_worker/model/safetensors.h"
#include "proc_worker/model/tiles.h"

/* How scales are stored. */
enum quant_scale_kind {
	SCALE_FLOAT,
	SCALE_E8M0, /* powers of two */
	SCALE_E4M3,
	SCALE_DIVIDES, /* a float that values are divided by */
};

/* Scales that are quantized themselves: places in a table, by blocks of so many times a scale, plus an offset. */
struct quant_nested {
	const struct st_tensor *table, *scales; /* scales NULL: they are not */
	u32 block;
	float offset;
};

/* value = (code - zero) * scale. All parts lie in the mapped checkpoint. */
struct quant_tensor {
	enum quant_format format; /* QUANT_NONE: a plain tensor; `values` alone is set */
	const struct st_tensor *values, *scales;
	const struct st_tensor *zeros; /* NULL: none */
	const struct st_tensor
		*groups;   /* the group of every input, where these are out of order; else NULL */
	u32 rows, columns; /* outputs, inputs */
	u32 bits;
	u32 zero_offset;
	u32 flipped; /* QUANT_AWQ: bits of codes and zero points that are the other way round: the highest, of such in two's complement */
	u32 group_rows, group_columns; /* values that share a scale: the latter is `columns` for whole rows */
	enum quant_scale_kind scale_kind;
	float scale_times, scale_over; /* a scale is what is stored times the one, divided by the other */
	struct quant_nested nested;
	float table[16]; /* QUANT_BNB4: what codes mean */
	bool at_load; /* QUANT_TERNARY: `values` are floats, which are rounded as they are read, and there are no scales */
	float ternary_by; /* of such: what values are multiplied by and then rounded to -1, 0 and 1; scale_times is what these count */
	u32 block_type;	 /* QUANT_GGUF: enum gguf_type; scales and zeros are in the blocks */
	struct tiles tiles; /* QUANT_GGUF: where the file has inputs */
};

/* Finds the matrix [rows][columns] whose plain name is `name` ("... .weight") and checks the shape and type
 * of all its parts. A tensor that the quantization left out is found as a plain one of any type.
 * ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED: `em` names the tensor, what was found and what is expected. */
MUST_CHECK enum err quant_tensor_find(struct quant_tensor *t, const struct safetensors *st,
				      const struct quant_config *c, const char *name, u32 rows, u32 columns,
				      struct err_msg *em);

/* The type of weights that holds inputs [first, first + count) without another rounding, but for one to halves of a GGUF file's scales and zeros and
 * of what SCALE_DIVIDES makes; KERN_F32: none does. */
enum kern_dtype quant_tensor_type(const struct quant_tensor *t, u32 first, u32 count);
/* The same, or what a GGUF file's tensor is rounded anew to, so that it stays about as small: KERN_I8. */
enum kern_dtype quant_tensor_kept(const struct quant_tensor *t, u32 first, u32 count);
/* Whether a weight of `type` holds a tensor closer than values rounded anew would: MXFP4 in KERN_I8, whose group of 128
 * inputs then counts by a power of two, and three values that are rounded at load in KERN_I4_128, whose scales are halves. */
bool quant_tensor_holds(const struct quant_tensor *t, enum kern_dtype type);
/* Whether inputs must be read in another order for that. */
bool quant_tensor_is_ordered(const struct quant_tensor *t);
/* [columns]: inputs sorted by group. Only if it is ordered. */
void quant_tensor_order(const struct quant_tensor *t, u32 *order);

/* Whether inputs [first, first + count) are FP8 with a scale for every 128 of them or more: what devices read as it is. */
bool quant_tensor_is_f8(const struct quant_tensor *t, u32 first, u32 count);
/* The codes of one output from input `first` on, in the checkpoint, and the scales of its groups of 128 inputs. Only if
 * it is that. */
const u8 *quant_tensor_f8_row(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *scales);

/* The scale of a value. */
float quant_tensor_scale(const struct quant_tensor *t, u32 row, u32 column);
/* Values of one output, inputs [first, first + count). */
void quant_tensor_values(const struct quant_tensor *t, u32 row, u32 first, u32 count, float *out);
/* The same for kern_weight_rows_quantized of `type`, as quant_tensor_type or quant_tensor_holds says it: codes [count], and scales
 * and zeros for each of its groups. `order`: of quant_tensor_order, or NULL. `codes` NULL: only scales and
 * zeros. */
void quant_tensor_codes(const struct quant_tensor *t, enum kern_dtype type, u32 row, u32 first, u32 count,
			const u32 *order, u8 *codes, float *scales, float *zeros);
/* Codes [8][count] of eight outputs from `row` on, where a word has one input of eight of them; false: it has
 * not, or `row` is not the first of them. */
bool quant_tensor_eight_codes(const struct quant_tensor *t, u32 row, u32 first, u32 count, u8 *codes);

/* Rows [first_row, first_row + rows), inputs [first_column, first_column + w->k) become rows of `w` from `to`
 * on: as they are stored where `w` is of their type (with its order of inputs set, if they have one), else
 * rounded to w's type. Parallel over `threads` (NULL: in the caller). ERR_FORMAT: a scale or a value that is no finite number, or
 * would be none in w's type; names tensor and place. ERR_NO_MEMORY. */
MUST_CHECK enum err quant_tensor_load(struct kern_weight *w, u32 to, const struct quant_tensor *t,
				      u32 first_row, u32 rows, u32 first_column, struct kern_threads *threads,
				      struct err_msg *em);
/* Rows [first_row, first_row + rows) as plain ones of `type` (KERN_F32 or KERN_BF16) into `out`. Parallel over `threads`. ERR_FORMAT: a
 * value is no finite number, or would be none in `type`; names tensor and place. ERR_NO_MEMORY. */
MUST_CHECK enum err quant_tensor_expand(void *out, enum kern_dtype type, const struct quant_tensor *t, u32 first_row, u32 rows,
					struct kern_threads *threads, struct err_msg *em);

#endif
