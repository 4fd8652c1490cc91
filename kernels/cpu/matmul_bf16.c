/* Matrix product for AVX-512 with BF16: inputs are rounded to bf16, VDPBF16PS adds k in pairs.
 *
 * Every output is one sum over k in rising order, in one lane; tiling only decides which outputs are computed
 * side by side. So a row's result depends neither on the other rows nor on the threads. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 12, /* 12 x 2 sums, 2 weights, inputs: 28 of 32 registers */
	TILE_VECS = 2,
	VECS_OF_ONE = 2, /* one row takes a panel: one stream of memory */
	K_BLOCK = 1024, /* 64 KiB of a panel */
	ALONE_ROWS = 5, /* see matmul_kernel.alone_rows */
	FEW_ROWS = KERN_CPU_UNFUSED_TOKENS, /* up to so many, reading ahead beats blocks */
};

static void pack(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	u16 halves[VEC_LANES];
	(void)j;
	to += (size_t)first / 2 * rows * 4 + r * 4;
	for (u32 k = first; k < end; k += VEC_LANES) {
		u32 count = kern_min(VEC_LANES, end - k);
		_mm256_storeu_si256((__m256i *)(void *)halves,
				    (__m256i)_mm512_cvtneps_pbh(vec_load_n(x + k, count)));
		for (u32 i = 0; i < count; i += 2, to += (size_t)rows * 4)
			memcpy(to, halves + i, 4);
	}
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][VECS_OF_ONE];
	const char *units = t->weights, *x = t->units;
	struct tile_fetch fetch = tile_fetch_begin(t);
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = tile_first_sum(t, r, v);
	for (u32 u = 0; u < kern_ceil(t->k_count, 2); u++, units += KERN_GROUP_UNIT, x += rows * 4) {
		__m512bh w[VECS_OF_ONE];
		tile_prefetch_bytes(t, &fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			w[v] = (__m512bh)_mm512_loadu_si512(units + v * sizeof(vec));
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			int pair;
			memcpy(&pair, x + r * 4, 4);
			__m512bh input = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
			for (u32 v = 0; v < vecs; v++)
				sum[r][v] = _mm512_dpbf16_ps(sum[r][v], w[v], input);
		}
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			tile_store_sum(t, r, v, sum[r][v]);
}

#define TILE_CASE(n)                       \
	case n:                            \
		run_tile(t, n, TILE_VECS); \
		break;
/* The row count is a constant in each case, so that the sums live in registers. */
static void tile(const struct matmul_tile *t, u32 rows)
{
	switch (rows) {
	case 1:
		run_tile(t, 1, VECS_OF_ONE);
		break;
		TILE_CASE(2)
		TILE_CASE(3)
		TILE_CASE(4)
		TILE_CASE(5)
		TILE_CASE(6)
		TILE_CASE(7)
		TILE_CASE(8)
		TILE_CASE(9)
		TILE_CASE(10)
		TILE_CASE(11)
	default:
		run_tile(t, TILE_ROWS, TILE_VECS);
		break;
	}
}

static const struct matmul_kernel KERNEL = {.tile_rows = TILE_ROWS,
					    .tile_columns = TILE_VECS * VEC_LANES,
					    .few_rows = 1,
					    .few_columns = VECS_OF_ONE * VEC_LANES,
					    .k_block = K_BLOCK,
					    .alone_rows = ALONE_ROWS,
					    .pack = pack,
					    .tile = tile};

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct matmul_inputs in = {.unit_values = 2};
	if (a->w->dtype != KERN_BF16)
		return matmul_avx512(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->fusion && (a->tokens <= FEW_ROWS || !matmul_blocked_fuses(a)))
		return ERR_UNSUPPORTED;
	if (a->tokens > FEW_ROWS) {
		matmul_bf16_many_avx512_bf16(ctx, a);
		return ERR_OK;
	}
	matmul_run(ctx, a, &KERNEL, &in);
	return ERR_OK;
}
