/* Matrix product for AVX-512 with BF16: inputs are rounded to bf16, VDPBF16PS adds k in pairs.
 *
 * Every output is one sum over k in rising order, in one lane; tiling only decides which outputs are computed
 * side by side. So a row's result depends neither on the other rows nor on the threads. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	PART_ROWS = 12, /* 12 x 2 sums, 2 weights, inputs: 28 of 32 registers */
	TILE_ROWS = 2 * PART_ROWS, /* in two parts; of more, blocks gain more than reading ahead */
	PART_UNITS = 128, /* of weights, 16 KiB that the second part finds in the L1 cache */
	TILE_VECS = 2,
	VECS_OF_ONE = 2, /* one row takes a panel: one stream of memory */
	ALONE_ROWS = 5, /* see matmul_kernel.alone_rows */
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

/* Adds the products of `count` units of weights with inputs at `x`, units `stride` rows apart. */
static ALWAYS_INLINE void add_units(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, const char *units, const char *x,
				    u32 count, bool in_order, struct tile_fetch *fetch, vec sum[][VECS_OF_ONE])
{
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 4) {
		__m512bh w[VECS_OF_ONE];
		if (in_order)
			tile_prefetch_in_order(fetch, rows > 1, rows > 1);
		else
			tile_prefetch_bytes(t, fetch);
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
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, u32 rows, u32 vecs, bool in_order)
{
	vec sum[PART_ROWS][VECS_OF_ONE];
	struct tile_fetch fetch = tile_fetch_begin(t);
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = tile_first_sum(t, r, v);
	add_units(t, rows, rows, vecs, t->weights, t->units, kern_ceil(t->k_count, 2), in_order, &fetch, sum);
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			tile_store_sum(t, r, v, sum[r][v]);
}

/* Some of a tall tile's `stride` rows, whose sums are in registers only here. */
static ALWAYS_INLINE void run_part(const struct matmul_tile *t, u32 rows, u32 stride, const char *units, const char *x, u32 count,
				   struct tile_fetch *fetch, vec total[][VECS_OF_ONE])
{
	vec sum[PART_ROWS][VECS_OF_ONE];
#pragma GCC unroll 24
	for (u32 i = 0; i < rows * TILE_VECS; i++)
		sum[i / TILE_VECS][i % TILE_VECS] = total[i / TILE_VECS][i % TILE_VECS];
	add_units(t, rows, stride, TILE_VECS, units, x, count, false, fetch, sum);
#pragma GCC unroll 24
	for (u32 i = 0; i < rows * TILE_VECS; i++)
		total[i / TILE_VECS][i % TILE_VECS] = sum[i / TILE_VECS][i % TILE_VECS];
}

static void run_parts(const struct matmul_tile *t, u32 rows, u32 stride, const char *units, const char *x, u32 count,
		      struct tile_fetch *fetch, vec total[][VECS_OF_ONE])
{
#define PART_CASE(n)                                                   \
	case n:                                                        \
		run_part(t, n, stride, units, x, count, fetch, total); \
		break;
	switch (rows) {
		PART_CASE(6)
		PART_CASE(7)
		PART_CASE(8)
		PART_CASE(9)
		PART_CASE(10)
		PART_CASE(11)
	default:
		run_part(t, PART_ROWS, stride, units, x, count, fetch, total);
		break;
	}
#undef PART_CASE
}

/* More rows than there are registers for: piece by piece of the weights in two parts, so that memory is read once and in order, as the
 * processor does it best. */
static void run_tall(const struct matmul_tile *t, u32 rows)
{
	vec total[TILE_ROWS][VECS_OF_ONE];
	struct matmul_tile half = *t;
	struct tile_fetch fetch = tile_fetch_begin(t);
	const u32 units = kern_ceil(t->k_count, 2), first = rows / 2;
	half.prefetch_step = t->prefetch_step / 2;
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 u = 0; u < units; u += PART_UNITS) {
		const char *weights = t->weights + (size_t)u * KERN_GROUP_UNIT, *x = t->units + (size_t)u * rows * 4;
		const u32 count = kern_min(PART_UNITS, units - u);
		fetch.near = weights + MATMUL_TWICE_BYTES;
		run_parts(&half, first, rows, weights, x, count, &fetch, total);
		fetch.near = weights + MATMUL_TWICE_BYTES;
		run_parts(&half, rows - first, rows, weights, x + first * 4, count, &fetch, total + first);
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			tile_store_sum(t, r, v, total[r][v]);
}

#define RUN_TILE(n, vecs)                       \
	if (t->prefetch_base)                   \
		run_tile(t, n, vecs, true);     \
	else                                    \
		run_tile(t, n, vecs, false);    \
	break;
#define TILE_CASE(n) \
	case n:      \
		RUN_TILE(n, TILE_VECS)
/* The row count is a constant in each case, so that the sums live in registers. */
static void tile(const struct matmul_tile *t, u32 rows)
{
	if (rows > PART_ROWS) {
		run_tall(t, rows);
		return;
	}
	switch (rows) {
	case 1:
		RUN_TILE(1, VECS_OF_ONE)
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
		RUN_TILE(PART_ROWS, TILE_VECS)
	}
}
#undef TILE_CASE
#undef RUN_TILE

static const struct matmul_kernel KERNEL = {.tile_rows = TILE_ROWS,
					    .tile_columns = TILE_VECS * VEC_LANES,
					    .few_rows = 1,
					    .few_columns = VECS_OF_ONE * VEC_LANES,
					    .alone_rows = ALONE_ROWS,
					    .asks_in_order = true,
					    .pack = pack,
					    .tile = tile};

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct matmul_inputs in = {.unit_values = 2};
	if (a->w->dtype != KERN_BF16)
		return matmul_avx512(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->fusion && (a->tokens <= KERN_CPU_UNFUSED_TOKENS || !matmul_blocked_fuses(a)))
		return ERR_UNSUPPORTED;
	if (a->tokens > TILE_ROWS) {
		matmul_bf16_many_avx512_bf16(ctx, a);
		return ERR_OK;
	}
	matmul_run(ctx, a, &KERNEL, &in);
	return ERR_OK;
}
