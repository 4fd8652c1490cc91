/* Matrix product of many rows with bf16 weights for AVX-512 with BF16. The sums are those of cpu/matmul_bf16.c, to the
 * bit. */
#include "kernels/cpu/lace_bf16_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum {
	TILE_ROWS = 12, /* 12 x 2 sums, 2 weights, inputs: 28 of 32 registers */
	K_BLOCK = BLOCKED_K_MAX, /* 64 KiB of a panel; shorter blocks begin and end sums more often than caches gain */
};

/* ---------------------------------------------------------------- inputs */

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const size_t stride = j->x_stride;
	const vec one = vec_set1(1);
	x += k;
	for (u32 done = 0; done < count; done += 2 * LACE_UNITS, to += (size_t)LACE_UNITS * rows * 4) {
		u32 values = kern_min(count - done, 2 * LACE_UNITS), units = kern_ceil(values, 2);
		for (u32 r = 0; r < rows; r += LACE_ROWS) {
			/* The last four rows: some of them may be here a second time. */
			u32 first = kern_min(r, rows - LACE_ROWS);
			__m512i row[LACE_ROWS];
#pragma GCC unroll 4
			for (u32 i = 0; i < LACE_ROWS; i++)
				row[i] = lace_round(x + (first + i) * stride + done, values, one);
			if (units == LACE_UNITS)
				lace_store(row, to + first * 4, rows, LACE_UNITS);
			else
				lace_store(row, to + first * 4, rows, units);
		}
	}
	return false;
}

/* ---------------------------------------------------------------- tiles */

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, u32 rows)
{
	vec sums[TILE_ROWS][VECS];
	const char *units = t->weights, *x = t->x, *prefetch = t->prefetch;
	const u32 step = t->prefetch_step, count = kern_ceil(t->k_count, 2);
	sums_begin(t, rows, sums);
	for (u32 row = 0, u = 0; row < rows; row++) {
		sums_ahead(t, row, rows);
		for (const u32 end = count * (row + 1) / rows; u < end; u++) {
			__m512bh low = (__m512bh)_mm512_loadu_si512(units), high = (__m512bh)_mm512_loadu_si512(units + 64);
			_mm_prefetch(prefetch, _MM_HINT_T1);
#pragma GCC unroll 12
			for (u32 r = 0; r < rows; r++) {
				int pair;
				memcpy(&pair, x + r * 4, 4);
				__m512bh input = (__m512bh)_mm512_set1_epi32(pair);
				sums[r][0] = _mm512_dpbf16_ps(sums[r][0], low, input);
				sums[r][1] = _mm512_dpbf16_ps(sums[r][1], high, input);
			}
			units += KERN_GROUP_UNIT;
			x += rows * 4;
			prefetch += step;
		}
	}
	sums_end(t, rows, sums);
}

/* The row count is a constant in each case, so that sums live in registers. More than two tiles of rows are cut evenly,
 * hence no tile has fewer than 8. */
static void tile(const struct blocked_tile *t, u32 rows)
{
#define TILE_CASE(n)            \
	case n:                 \
		run_tile(t, n); \
		break;
	switch (rows) {
		TILE_CASE(8)
		TILE_CASE(9)
		TILE_CASE(10)
		TILE_CASE(11)
	default:
		run_tile(t, TILE_ROWS);
		break;
	}
#undef TILE_CASE
}

static const struct blocked_kernel KERNEL = {
	.tile_rows = TILE_ROWS, .k_block = K_BLOCK, .value_bytes = 2, .pack = pack, .tile = tile, .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};

void VARIANT(matmul_bf16_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	ASSERT(a->tokens > 2 * TILE_ROWS);
	matmul_blocked(ctx, a, &KERNEL);
}
