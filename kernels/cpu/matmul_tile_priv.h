/* The edges of a tile of a matrix product: where its sums begin and where they go. For the files that compute
 * tiles, one object per instruction set. */
#ifndef TERCET_KERNELS_CPU_MATMUL_TILE_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_TILE_PRIV_H

#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/vec_priv.h"

#ifdef VEC_LANES

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Columns of the tile's v-th vector that exist. */
static ALWAYS_INLINE u32 tile_columns_of(const struct matmul_tile *t, u32 v)
{
	u32 from = v * VEC_LANES;
	return t->columns <= from ? 0 : kern_min(t->columns - from, VEC_LANES);
}

static ALWAYS_INLINE vec tile_first_sum(const struct matmul_tile *t, u32 r, u32 v)
{
	u32 n = tile_columns_of(t, v);
	vec sum = t->resume ? vec_load_n(t->out + r * t->out_stride + v * VEC_LANES, n) : vec_zero();
	return t->bias ? vec_add(sum, vec_load_n(t->bias + v * VEC_LANES, n)) : sum;
}

static ALWAYS_INLINE void tile_store_sum(const struct matmul_tile *t, u32 r, u32 v, vec sum)
{
	u32 n = tile_columns_of(t, v);
	float *out = t->out + r * t->out_stride + v * VEC_LANES;
	if (n == VEC_LANES)
		vec_store(out, sum);
	else
		vec_store_n(out, sum, n);
}

/* Called for every unit: asks for a piece of the weights that come next. */
static ALWAYS_INLINE void tile_prefetch(const struct matmul_tile *t, const char **at)
{
	_mm_prefetch(*at, _MM_HINT_T0);
	if (t->prefetch_step > 64)
		_mm_prefetch(*at + 64, _MM_HINT_T0);
	*at += t->prefetch_step;
}

#endif
#endif
