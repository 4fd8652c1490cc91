/* Types of values, and the weights of matrix products: how they lie, and how they are made for the CPU and for a device. A part of the door
 * (kernels.h), whose rules hold here, too. */
#ifndef TERCET_KERNELS_WEIGHT_H
#define TERCET_KERNELS_WEIGHT_H

#include "common/err.h"
#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kern_threads;

/* KERN_I8 and KERN_I4_* as types of a weight are quantized in groups; see struct kern_weight. KERN_I16 is a type of the KV cache alone. */
enum kern_dtype { KERN_F32, KERN_BF16, KERN_F16, KERN_I8, KERN_F8E4M3, KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS, KERN_I16 };
/* Bytes of an element; 0 for KERN_I4_*, of which two share one. */
size_t kern_dtype_bytes(enum kern_dtype t);
const char *kern_dtype_name(enum kern_dtype t); /* "float32", "int4 (groups of 64)", ... */
/* Neighbouring values of a row of a quantized weight that share a scale; 0: the type is not quantized. */
u32 kern_dtype_group(enum kern_dtype t);
/* Of what is rounded to 4 bits here: KERN_I4_STEPS where there is AVX-512 with VNNI; else KERN_I4_64, for steps have no fast products there. */
enum kern_dtype kern_dtype_int4(u32 caps);
/* Of a KV cache of 16 bits on the CPU, with heads of `head_dim` values: KERN_I16 where products of whole numbers are faster than those of
 * bfloat16, else KERN_BF16. Tiles (AMX) multiply 32 values. */
enum kern_dtype kern_dtype_kv(u32 caps, u32 head_dim);

/* ---------------------------------------------------------------- weights of matrix products */

/* A matrix W[n][k] (torch's Linear: out x in) in the layout that the variant chosen by the same caps reads. Its memory is owned by whoever made it.
 *
 * Quantized types. Group g of row n is W[n][g * G .. (g + 1) * G), the last one of a row may be shorter. Its values are scale * (q - zero), with
 *   KERN_I8: G = 128, q in -128 .. 127, zero = 0, scale a float;
 *   KERN_I4_32, _64, _128: G = 32, 64, 128, q in 0 .. 15, scale and zero numbers of a half (so that a zero may be fractional or outside of
 * 0 .. 15). Every AWQ and GPTQ matrix of 4 bits is of this form;
 *   KERN_I4_STEPS, of what is rounded here alone: G = 128, four parts of 32; values are scale * (m * (q - 8) + c), q in 0 .. 15, scale a bfloat16 of
 * 2^-24 to 2^16 (of values as kern_all_finite has them), and of each part m in 0 .. 15 and c whole numbers with m * (q - 8) + c in -128 .. 127, so that a group's sum is one of whole numbers.
 * The product rounds its inputs to 8 bits, too, by token and group, for the processors' integer instructions: see docs/QUANTIZATION.md. */
struct kern_weight {
	u32 n, k;
	enum kern_dtype dtype;
	u32 packed; /* layout id; 0: plain row-major */
	u32 caps;   /* that it was made for */
	const void *data;
	/* NULL, or [k]: column i of this (quantized) matrix multiplies input order[i] (GPTQ's act-order, columns sorted by group). Borrowed; set after begin. */
	const u32 *order;
};

/* Bytes of memory that W[n][k] takes, stored as `dtype` (float32, bfloat16 or a quantized type) for `caps`: with instruction sets a little more
 * than n * k elements, for whole panels. */
size_t kern_weight_bytes(u32 n, u32 k, enum kern_dtype dtype, u32 caps);
/* Makes `w` from plain rows: row i of W is at src + i * src_stride elements. src_dtype (bf16, f16, f32) may differ from `dtype`. `memory`
 * (kern_weight_bytes, 64-byte aligned) must outlive `w`; `src` is free afterwards. Parallel over `threads` (NULL: in the caller).
 * ERR_UNSUPPORTED: another type, named in `em`. */
enum err kern_weight_pack(struct kern_weight *w, const void *src, enum kern_dtype src_dtype,
			  size_t src_stride, u32 n, u32 k, enum kern_dtype dtype, void *memory,
			  struct kern_threads *threads, u32 caps, struct err_msg *em);
/* The same in pieces, for a matrix made of several tensors (fused qkv, gate_up): begin once, then the rows in any order, each
 * range by one caller at a time; rows never given are undefined. Quantized types: the values are rounded here. KERN_I8: to
 * amax / 127 of their group; KERN_I4_*: between the least and the greatest of their group (in steps, of its part), or a range near by where
 * that lessens the sum of squared errors. rows: whether all values are finite in w's type; they are written in any case. */
enum err kern_weight_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory, u32 caps,
			   struct err_msg *em);
bool kern_weight_rows(struct kern_weight *w, u32 first, u32 rows, const void *src, enum kern_dtype src_dtype,
		      size_t src_stride, struct kern_threads *threads);
/* A weight whose `memory` holds it already, the same bytes as begin and rows made for the same arguments. */
void kern_weight_attach(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, const void *memory, u32 caps);
/* Rows that are quantized already (not in steps), stored as they are. All arrays belong to the caller, free afterwards; strides are in elements. */
struct kern_quantized_rows {
	const u8 *q; /* [rows][q_stride]: a value a byte, 0 .. 15 for KERN_I4_*, an i8 for KERN_I8 */
	const float *scale; /* [rows][group_stride]; KERN_I4_*: each exactly a half, or it is rounded to one */
	const float *zero;  /* as `scale`, in units of q; NULL: 8 for KERN_I4_*, none for KERN_I8 */
	size_t q_stride, group_stride;
};
/* Like kern_weight_rows, for a quantized `w`. Parallel over `threads`. */
void kern_weight_rows_quantized(struct kern_weight *w, u32 first, u32 rows,
				const struct kern_quantized_rows *src, struct kern_threads *threads);
void kern_weight_fini(struct kern_weight *w); /* `memory` stays the caller's */

/* A weight as device kernels read it, made in host memory of kern_weight_device_bytes (0: no such type on devices) and then uploaded; `data`
 * and `order` of the weight that an op is given point to the device's copies. bf16, int8, int4 and fp8 (e4m3, groups of 128 as int8), k a
 * multiple of 32, else ERR_UNSUPPORTED. */
size_t kern_weight_device_bytes(u32 n, u32 k, enum kern_dtype dtype);
/* From one that is packed for the CPU. Parallel over `threads` (NULL: in the caller). ERR_NO_MEMORY. */
enum err kern_weight_to_device(struct kern_weight *out, const struct kern_weight *w, void *memory,
			       struct kern_threads *threads, struct err_msg *em);
/* From quantized rows. begin, then the rows, each once. fp8: q has the bytes of e4m3, no zeros. */
enum err kern_weight_device_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory,
				  struct err_msg *em);
void kern_weight_device_rows(struct kern_weight *w, u32 first, u32 rows, const struct kern_quantized_rows *src);

/* ---------------------------------------------------------------- plain values */

/* float <-> bf16 (round to nearest even), f16 -> float; `src` may begin at any byte, `dst` at a multiple of its type's */
void kern_convert(void *dst, enum kern_dtype dst_dtype, const void *src, enum kern_dtype src_dtype, size_t count);
/* Whether `count` values of `type` (bf16, f16, f32; beginning at any byte) are finite and stay so in `as`: in bfloat16 floats
 * next to 2^128 do not, and KERN_I4_*, with scales in float16 or no larger, takes values below 65520. As quick as reading them. */
bool kern_all_finite(const void *src, enum kern_dtype type, enum kern_dtype as, size_t count);

#ifdef __cplusplus
}
#endif
#endif
