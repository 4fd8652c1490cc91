/* The edges of a tile of a product in blocks: where its sums begin and where they go. For the files that compute such
 * tiles. With 16 registers of 8 lanes a tile takes one half of the panel's columns after the other. */
#ifndef TERCET_KERNELS_CPU_MATMUL_BLOCKED_TILE_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_BLOCKED_TILE_PRIV_H

#include "kernels/cpu/activation_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

enum { VECS = KERN_PANEL / VEC_LANES, LINE_FLOATS = 16 };

#if VEC_LANES == 16

/* The n-th vector's columns that exist. */
static ALWAYS_INLINE __mmask16 columns_of(const struct blocked_tile *t, u32 v)
{
	u32 from = v * VEC_LANES;
	return t->columns <= from ? 0 : vec_mask(kern_min(t->columns - from, VEC_LANES));
}

static ALWAYS_INLINE void sums_begin(const struct blocked_tile *t, u32 rows, vec sums[][VECS])
{
	const float *from = t->sums;
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < VECS; v++)
			sums[r][v] = t->first ? vec_zero() : vec_load(from + r * KERN_PANEL + v * VEC_LANES);
	if (!t->first || (!t->accumulate && !t->bias))
		return;
#pragma GCC unroll 2
	for (u32 v = 0; v < VECS; v++) {
		const __mmask16 mask = columns_of(t, v), old = t->accumulate ? mask : 0;
		const vec bias = t->bias ? _mm512_maskz_loadu_ps(mask, t->bias + v * VEC_LANES) : vec_zero();
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++)
			sums[r][v] = _mm512_maskz_loadu_ps(old, t->out + r * t->out_stride + v * VEC_LANES);
		if (!t->bias)
			continue; /* adding zero would make a negative one positive */
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++)
			sums[r][v] = vec_add(sums[r][v], bias);
	}
}

static ALWAYS_INLINE void sums_end(const struct blocked_tile *t, u32 rows, vec sums[][VECS])
{
	const size_t stride = t->last ? t->out_stride : KERN_PANEL;
	const __mmask16 low = t->last ? columns_of(t, 0) : 0xffff, high = t->last ? columns_of(t, 1) : 0xffff;
	float *out = t->last ? t->out : t->sums;
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++, out += stride) {
		_mm512_mask_storeu_ps(out, low, sums[r][0]);
		_mm512_mask_storeu_ps(out + VEC_LANES, high, sums[r][1]);
	}
}

#else
enum { HALF_VECS = VECS / 2, HALF_COLUMNS = KERN_PANEL / 2 };

/* The n-th vector's columns that exist, of those from `from` on. */
static ALWAYS_INLINE u32 columns_of(const struct blocked_tile *t, u32 from)
{
	return t->columns <= from ? 0 : kern_min(t->columns - from, VEC_LANES);
}

/* Sums of half a panel, whose columns begin at `column`. */
static ALWAYS_INLINE void half_begin(const struct blocked_tile *t, u32 column, u32 rows, vec sums[][HALF_VECS])
{
	const float *from = t->sums + column;
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < HALF_VECS; v++)
			sums[r][v] = t->first ? vec_zero() : vec_load(from + r * KERN_PANEL + v * VEC_LANES);
	if (!t->first || (!t->accumulate && !t->bias))
		return;
#pragma GCC unroll 2
	for (u32 v = 0; v < HALF_VECS; v++) {
		const u32 at = column + v * VEC_LANES, n = columns_of(t, at);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++) {
			if (t->accumulate)
				sums[r][v] = vec_load_n(t->out + r * t->out_stride + at, n);
			if (t->bias)
				sums[r][v] = vec_add(sums[r][v], vec_load_n(t->bias + at, n));
		}
	}
}

static ALWAYS_INLINE void half_end(const struct blocked_tile *t, u32 column, u32 rows, vec sums[][HALF_VECS])
{
	const size_t stride = t->last ? t->out_stride : KERN_PANEL;
	float *out = (t->last ? t->out : t->sums) + column;
#pragma GCC unroll 2
	for (u32 v = 0; v < HALF_VECS; v++) {
		const u32 n = t->last ? columns_of(t, column + v * VEC_LANES) : VEC_LANES;
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++)
			vec_store_n(out + r * stride + v * VEC_LANES, sums[r][v], n);
	}
}

/* Sums of half a panel in memory, `stride` floats a row. */
static ALWAYS_INLINE CHECKED_BY_CALLER void half_begin_in(const struct blocked_tile *t, u32 column, u32 rows, float *sums, size_t stride)
{
	vec half[BLOCKED_TILE_MAX][HALF_VECS];
	half_begin(t, column, rows, half);
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < HALF_VECS; v++)
			vec_store(sums + r * stride + v * VEC_LANES, half[r][v]);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void half_end_of(const struct blocked_tile *t, u32 column, u32 rows, const float *sums, size_t stride)
{
	vec half[BLOCKED_TILE_MAX][HALF_VECS];
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < HALF_VECS; v++)
			half[r][v] = vec_load(sums + r * stride + v * VEC_LANES);
	half_end(t, column, rows, half);
}
#endif

static ALWAYS_INLINE void ask_for_columns(const float *row)
{
	__builtin_prefetch(row, 1, 2);
	__builtin_prefetch(row + LINE_FLOATS, 1, 2);
}

/* Of row r of a tile of `rows`, asks for the lines that sums_end writes, for memory takes longer to answer than all stores of a tile may
 * wait; and, where sums begin with what is there, for the next tile's. */
static ALWAYS_INLINE void sums_ahead(const struct blocked_tile *t, u32 r, u32 rows)
{
	const bool added = t->first && t->accumulate;
	if (added)
		ask_for_columns(t->out + (size_t)(rows + r) * t->out_stride);
	if (!added || !t->last)
		ask_for_columns(t->last ? t->out + r * t->out_stride : t->sums + (size_t)r * KERN_PANEL);
}

/* Asks for the outputs of a row some rows further on: these are pages apart. */
static ALWAYS_INLINE void act_mul_ahead(const float *out, size_t out_stride, u32 rows)
{
	enum { AHEAD_ROWS = 16 };
	ask_for_columns(out + (AHEAD_ROWS < rows ? AHEAD_ROWS * out_stride : 0));
}

/* blocked_kernel.act_mul */
static inline void sums_act_mul(const float *gate, const float *up, u32 rows, enum kern_activation act, float *out,
				size_t out_stride)
{
	enum { BESIDE = VECS_BESIDE / VECS };
	for (; rows >= BESIDE; rows -= BESIDE, gate += BESIDE * KERN_PANEL, up += BESIDE * KERN_PANEL) {
		vec to[VECS_BESIDE];
		activate_beside(act, gate, to);
		EACH_BESIDE(i, VECS_BESIDE) to[i] = vec_mul(to[i], vec_load(up + i * VEC_LANES));
#pragma GCC unroll 4
		for (u32 r = 0; r < BESIDE; r++, out += out_stride) {
			act_mul_ahead(out, out_stride, rows - r);
#pragma GCC unroll 4
			for (u32 v = 0; v < VECS; v++)
				vec_store(out + v * VEC_LANES, to[r * VECS + v]);
		}
	}
	for (; rows > 0; rows--, gate += KERN_PANEL, up += KERN_PANEL, out += out_stride) {
		act_mul_ahead(out, out_stride, rows);
#pragma GCC unroll 4
		for (u32 v = 0; v < VECS * VEC_LANES; v += VEC_LANES)
			vec_store(out + v, vec_mul(activate(act, vec_load(gate + v)), vec_load(up + v)));
	}
}

#endif
#endif
