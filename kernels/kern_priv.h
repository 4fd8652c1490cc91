/* What the files of kernels/ share: element access, the layout of the KV cache and of packed weights, tasks,
 * scratch. */
#ifndef TERCET_KERNELS_KERN_PRIV_H
#define TERCET_KERNELS_KERN_PRIV_H

#include <string.h>

#include "common/assert.h"
#include "kernels/kernels.h"

#define KERN_PASTE_(a, b) a##_##b
#define KERN_PASTE(a, b)  KERN_PASTE_(a, b)

enum {
	KERN_HEAD_DIM_MAX = 1024,
	KERN_ALIGN = 64,
	KERN_PANEL = 32, /* columns of a packed panel: two AVX-512 or four AVX2 vectors of float */
	KERN_COLUMNS = 2 * KERN_PANEL, /* packed matrices have whole pairs of panels */
};

/* Layout ids of struct kern_weight. */
enum kern_layout {
	KERN_LAYOUT_PLAIN, /* [n][k] */
	/* [2 ceil(n / 64)][ceil(k / c)][32][c] with c = 4 / bytes of the type, filled up with zeros: one
	 * vector holds the same k (or pair of k) of neighbouring columns, and a panel is one stream of
	 * memory. */
	KERN_LAYOUT_PANEL,
};

static inline float kern_bf16_to_float(u16 h)
{
	u32 bits = (u32)h << 16;
	float f;
	memcpy(&f, &bits, 4);
	return f;
}

static inline u16 kern_float_to_bf16(float f)
{
	u32 bits;
	memcpy(&bits, &f, 4);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (u16)(bits >> 16 | 0x40); /* stays a NaN */
	return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* IEEE half: also the subnormal ones. */
static inline float kern_f16_to_float(u16 h)
{
	u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
	u32 bits;
	float f;
	if (exponent == 0) {
		f = (float)mantissa * 0x1p-24f;
		return sign ? -f : f;
	}
	bits = exponent == 31 ? sign | 0x7f800000u | mantissa << 13
			      : sign | (exponent + 112) << 23 | mantissa << 13;
	memcpy(&f, &bits, 4);
	return f;
}

/* Element i of an array of `type`. */
static inline float kern_load(const void *array, enum kern_dtype type, size_t i)
{
	if (type == KERN_F32)
		return ((const float *)array)[i];
	if (type == KERN_BF16)
		return kern_bf16_to_float(((const u16 *)array)[i]);
	return kern_f16_to_float(((const u16 *)array)[i]);
}

/* Only f32 and bf16 are ever written. */
static inline void kern_store(void *array, enum kern_dtype type, size_t i, float value)
{
	if (type == KERN_F32)
		((float *)array)[i] = value;
	else
		((u16 *)array)[i] = kern_float_to_bf16(value);
}

/* Values of K (or columns of a weight) that share 32 bits. */
static inline u32 kern_group(enum kern_dtype type)
{
	return type == KERN_F32 ? 1 : 2;
}

/* Where dimension `dim` of the key at (block, head, offset) lies, in elements. */
static inline size_t kern_k_index(const struct kern_kv *kv, size_t block, u32 head, u32 offset, u32 dim)
{
	u32 c = kern_group(kv->dtype);
	size_t base = (block * kv->kv_heads + head) * kv->block_size * kv->head_dim;
	return base + ((size_t)(dim / c) * kv->block_size + offset) * c + dim % c;
}

static inline size_t kern_v_index(const struct kern_kv *kv, size_t block, u32 head, u32 offset, u32 dim)
{
	return ((block * kv->kv_heads + head) * kv->block_size + offset) * kv->head_dim + dim;
}

static inline size_t kern_panel_index(u32 k_total, enum kern_dtype type, u32 n, u32 k)
{
	u32 c = kern_group(type);
	size_t panel = (size_t)((k_total + c - 1) / c) * KERN_PANEL * c;
	return n / KERN_PANEL * panel + ((size_t)(k / c) * KERN_PANEL + n % KERN_PANEL) * c + k % c;
}

/* W[n][k] whatever the layout. */
static inline float kern_weight_at(const struct kern_weight *w, u32 n, u32 k)
{
	size_t i = w->packed == KERN_LAYOUT_PANEL ? kern_panel_index(w->k, w->dtype, n, k)
						  : (size_t)n * w->k + k;
	return kern_load(w->data, w->dtype, i);
}

/* Runs on the context's pool, or in the caller where there is none. */
static inline void kern_parallel(struct kern_ctx *ctx, u32 tasks, kern_task_fn fn, void *arg)
{
	if (tasks > 1 && ctx->threads) {
		kern_threads_run(ctx->threads, tasks, fn, arg);
		return;
	}
	for (u32 i = 0; i < tasks; i++)
		fn(arg, i, 0);
}

static inline u32 kern_thread_count(const struct kern_ctx *ctx)
{
	return ctx->threads ? kern_threads_count(ctx->threads) : 1;
}

static inline size_t kern_align(size_t bytes)
{
	return (bytes + KERN_ALIGN - 1) & ~(size_t)(KERN_ALIGN - 1);
}

static inline u32 kern_min(u32 a, u32 b)
{
	return a < b ? a : b;
}

static inline u32 kern_ceil(u32 a, u32 b)
{
	return (a + b - 1) / b;
}

/* Rows of so many elements that make a task of some microseconds. */
static inline u32 kern_rows_a_task(u32 width)
{
	return width < 8192 ? 16384 / (width > 0 ? width : 1) : 1;
}

#define KERN_DECLARE(op, isa) enum err op##_##isa(struct kern_ctx *ctx, const struct kern_##op##_args *args)

#define KERN_DECLARE_REF(op) KERN_DECLARE(op, ref);
KERN_OPS(KERN_DECLARE_REF)
#undef KERN_DECLARE_REF

#endif
