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
	KERN_I8_GROUP = 128,
	KERN_GROUP_MAX = 128,
	KERN_GROUP_HEAD = 128, /* bytes in front of a group of a panel: 32 floats, or 32 + 32 halves; of KERN_I4_STEPS: */
	KERN_STEPS_HEAD = 256, /* 32 + 32 words */
	KERN_STEPS_PART = 32,  /* values with a step of their own */
	KERN_STEPS_PARTS = KERN_GROUP_MAX / KERN_STEPS_PART,
	KERN_GROUP_UNIT = 128, /* bytes of 4 (int8) or 8 (int4) values of each column of a panel */
};

/* Layout ids of struct kern_weight. */
enum kern_layout {
	KERN_LAYOUT_PLAIN, /* [n][k] */
	/* [2 ceil(n / 64)][ceil(k / c)][32][c] with c = 4 / bytes of the type, filled up with zeros: one
	 * vector holds the same k (or pair of k) of neighbouring columns, and a panel is one stream of
	 * memory. */
	KERN_LAYOUT_PANEL,
	/* Quantized, whatever the instruction set: panels of 32 columns, an even number of them, each a
	 * sequence of groups. A group begins with the scales of its columns (KERN_I8: float [32]; KERN_I4_*:
	 * half [32], then zeros, half [32]; KERN_I4_STEPS: words [32] with the scale in the upper half and m of
	 * part p in bits 4p, then words [32] of which byte p is c); units follow. A unit of KERN_I8 is [32][4] bytes: 4 neighbouring
	 * values of each column, 128 added. One of KERN_I4_* is [32][4] bytes, too, but for 8 values: byte i
	 * has the i-th in its lower half and the (4 + i)-th in its upper one. Only the last group is shorter;
	 * its last unit is filled up. */
	KERN_LAYOUT_GROUPS,
	/* On devices: [n][units][64 bytes], a unit being what the four lanes of a row of their matrix unit load at
	 * once, 16 bytes each; then scales [k / group][n, up to a multiple of 8] (float; half for int4), then zeros as
	 * many (half; int4 only): those of neighbouring rows, which are asked for together, side by side. A slab is 32 neighbouring columns, of which lane t has 8t .. 8t + 7. A unit holds one slab of
	 * bf16, two of 8 bits (a lane: 8 bytes of the first, then of the second), or four of 4 bits (a lane: a word
	 * each; column 2i of its eight in bits 4i, column 2i + 1 in bits 16 + 4i). KERN_I8 is signed. bf16 thus lies
	 * row by row. KERN_F8E4M3 has groups of 128 as KERN_I8. */
	KERN_LAYOUT_DEVICE,
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

/* IEEE half: also the subnormal ones. Without branches, so that loops become vectors: its bits are those of a float too small by
 * 2^112, and where all bits of the exponent are set they become so again. */
static inline float kern_f16_to_float(u16 h)
{
	u32 bits = (u32)(h & 0x7fff) << 13, special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
	float f;
	memcpy(&f, &bits, 4);
	f *= 0x1p112f;
	memcpy(&bits, &f, 4);
	bits |= special | (u32)(h & 0x8000) << 16;
	memcpy(&f, &bits, 4);
	return f;
}

/* IEEE half, rounded to nearest even; beyond its range infinities. */
static inline u16 kern_float_to_f16(float f)
{
	u32 bits, sign, rounded;
	memcpy(&bits, &f, 4);
	sign = bits >> 16 & 0x8000;
	bits &= 0x7fffffffu;
	if (bits > 0x7f800000u)
		return (u16)(sign | 0x7e00);
	if (bits >= 0x477ff000u) /* rounds to 65536 or more */
		return (u16)(sign | 0x7c00);
	if (bits < 0x38800000u) { /* subnormal: adding 1/2 leaves multiples of 2^-24 in the lowest bits */
		float shifted;
		memcpy(&shifted, &bits, 4);
		shifted += 0.5f;
		memcpy(&rounded, &shifted, 4);
		return (u16)(sign | (rounded - 0x3f000000u));
	}
	rounded = bits + 0xfff + (bits >> 13 & 1);
	return (u16)(sign | (rounded - 0x38000000u) >> 13);
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

static inline size_t kern_panel_index(u32 k_total, enum kern_dtype type, u32 n, u32 k)
{
	u32 c = kern_group(type);
	size_t panel = (size_t)((k_total + c - 1) / c) * KERN_PANEL * c;
	return n / KERN_PANEL * panel + ((size_t)(k / c) * KERN_PANEL + n % KERN_PANEL) * c + k % c;
}

/* Values of a column in a unit. */
static inline u32 kern_unit_values(enum kern_dtype type)
{
	return type == KERN_I8 ? 4 : 8;
}

static inline u32 kern_ceil(u32 a, u32 b)
{
	return (a + b - 1) / b;
}

/* Bytes in front of the units of a group of a panel. */
static inline u32 kern_group_head(enum kern_dtype type)
{
	return type == KERN_I4_STEPS ? KERN_STEPS_HEAD : KERN_GROUP_HEAD;
}

/* Bytes of a whole group of a panel. */
static inline size_t kern_group_bytes(enum kern_dtype type)
{
	return kern_group_head(type) + kern_dtype_group(type) / kern_unit_values(type) * (size_t)KERN_GROUP_UNIT;
}

/* Bytes of a panel of a quantized matrix. */
static inline size_t kern_groups_panel_bytes(enum kern_dtype type, u32 k)
{
	return kern_ceil(k, kern_dtype_group(type)) * (size_t)kern_group_head(type) +
	       kern_ceil(k, kern_unit_values(type)) * (size_t)KERN_GROUP_UNIT;
}

/* Of `count` values of a panel, in groups or not, from the beginning of a group on. */
static inline size_t kern_panel_bytes(const struct kern_weight *w, u32 count)
{
	if (w->packed == KERN_LAYOUT_GROUPS)
		return kern_groups_panel_bytes(w->dtype, count);
	return kern_panel_index(count, w->dtype, KERN_PANEL, 0) * kern_dtype_bytes(w->dtype);
}

/* The group of a panel that holds (n, k). */
static inline size_t kern_group_offset(const struct kern_weight *w, u32 n, u32 k)
{
	return n / KERN_PANEL * kern_groups_panel_bytes(w->dtype, w->k) +
	       k / kern_dtype_group(w->dtype) * kern_group_bytes(w->dtype);
}

/* The byte of a group that holds value `within` of column n. */
static inline u32 kern_unit_offset(enum kern_dtype type, u32 n, u32 within)
{
	u32 values = kern_unit_values(type);
	return kern_group_head(type) + within / values * KERN_GROUP_UNIT + n % KERN_PANEL * 4 + within % 4;
}

/* Of a group in 4 bits of steps, value `within` of column n, whose q is given. */
static inline float kern_stepped_at(const char *group, u32 n, u32 within, u32 q)
{
	const u32 *words = (const u32 *)(const void *)group, part = within / KERN_STEPS_PART;
	const u32 head = words[n % KERN_PANEL];
	const i32 m = head >> 4 * part & 15, c = (signed char)(words[KERN_PANEL + n % KERN_PANEL] >> 8 * part);
	return kern_bf16_to_float((u16)(head >> 16)) * (float)(m * ((i32)q - 8) + c);
}

/* Of a group, value `within` of column n. */
static inline float kern_group_value(enum kern_dtype type, const char *group, u32 n, u32 within)
{
	const u16 *halves = (const u16 *)(const void *)group;
	u8 byte = ((const u8 *)group)[kern_unit_offset(type, n, within)];
	if (type == KERN_I8)
		return ((const float *)(const void *)group)[n % KERN_PANEL] * (float)(byte - 128);
	byte = within % 8 < 4 ? byte & 15 : byte >> 4;
	if (type == KERN_I4_STEPS)
		return kern_stepped_at(group, n, within, byte);
	float q = byte;
	return kern_f16_to_float(halves[n % KERN_PANEL]) *
	       (q - kern_f16_to_float(halves[KERN_PANEL + n % KERN_PANEL]));
}

/* W[n][k] whatever the layout. */
static inline float kern_weight_at(const struct kern_weight *w, u32 n, u32 k)
{
	if (w->packed == KERN_LAYOUT_GROUPS)
		return kern_group_value(w->dtype, (const char *)w->data + kern_group_offset(w, n, k), n, k % kern_dtype_group(w->dtype));
	size_t i = w->packed == KERN_LAYOUT_PANEL ? kern_panel_index(w->k, w->dtype, n, k)
						  : (size_t)n * w->k + k;
	return kern_load(w->data, w->dtype, i);
}

/* Where B[j][r] lies in the panels of struct kern_lora_part. */
static inline size_t kern_lora_b_index(u32 rank, u32 j, u32 r)
{
	return ((size_t)(j / KERN_LORA_COLUMNS) * rank + r) * KERN_LORA_COLUMNS + j % KERN_LORA_COLUMNS;
}

/* A moment of waiting. */
static inline void kern_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
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

/* Of the scratch, what is one thread's: the same part in every op, for lines that another has written come slowly to a core with
 * a cache of its own. */
static inline size_t kern_scratch_part(const struct kern_ctx *ctx, u32 threads)
{
	return ctx->scratch_bytes / threads & ~(size_t)(KERN_ALIGN - 1);
}

static inline u32 kern_min(u32 a, u32 b)
{
	return a < b ? a : b;
}

/* Rows of so many elements that make a task of a microsecond or two: handing one over costs half of one. */
static inline u32 kern_rows_a_task(u32 width)
{
	return width < 4096 ? 8192 / (width > 0 ? width : 1) : 1;
}

#define KERN_DECLARE(op, isa) enum err op##_##isa(struct kern_ctx *ctx, const struct kern_##op##_args *args)

#define KERN_DECLARE_REF(op) KERN_DECLARE(op, ref);
KERN_OPS(KERN_DECLARE_REF)
KERN_CPU_OPS(KERN_DECLARE_REF)
#undef KERN_DECLARE_REF

#endif
