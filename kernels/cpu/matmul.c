/* Matrix product with float32 and (widened) bfloat16 weights, for AVX-512; for AVX2 see cpu/matmul_float_few.c.
 *
 * Every output is one sum over k in rising order, in one lane, starting from what it is added to; tiling only
 * decides which outputs are computed side by side. So a row's result depends neither on the other rows nor on
 * the threads. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	PART_ROWS = 12, /* 12 x 2 sums, 2 weights, inputs: 27 of 32 registers */
	TILE_ROWS = 18, /* with one sum at a time of each row's two; with more rows blocks of cpu/matmul_float_avx512_many.c are as fast */
	PART_UNITS = 64, /* of a panel, which go through the L1 cache with their inputs twice, once for either sum */
	TILE_VECS = KERN_PANEL / VEC_LANES,
	ALONE_ROWS = 5, /* see matmul_kernel.alone_rows */
};

/* sums += the inputs of one k times a panel's weights. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_k(const float *x, u32 rows, const vec of[TILE_VECS], vec sum[][TILE_VECS])
{
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
		vec_add_products(x + r, of, TILE_VECS, sum[r]);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void run_tile(const struct matmul_tile *t, u32 rows, bool bf16, bool in_order)
{
	vec sum[PART_ROWS][TILE_VECS], of[TILE_VECS];
	const char *weights = t->weights;
	const float *x = (const float *)(const void *)t->units;
	struct tile_fetch fetch = tile_fetch_begin(t);
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < TILE_VECS; v++)
			sum[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += 1 + bf16, weights += KERN_GROUP_UNIT, x += rows * (1 + bf16)) {
		if (in_order)
			tile_prefetch_in_order(&fetch, rows > 1, rows > 1);
		else
			tile_prefetch_bytes(t, &fetch);
#pragma GCC unroll 2
		for (u32 v = 0; v < TILE_VECS; v++)
			of[v] = bf16 ? vec_pair_first(weights + v * sizeof(vec)) : vec_load((const float *)(const void *)weights + v * VEC_LANES);
		add_k(x, rows, of, sum);
		if (!bf16 || k + 1 == t->k_count)
			continue;
#pragma GCC unroll 2
		for (u32 v = 0; v < TILE_VECS; v++)
			of[v] = vec_pair_second(weights + v * sizeof(vec));
		add_k(x + rows, rows, of, sum);
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < TILE_VECS; v++)
			tile_store_sum(t, r, v, sum[r][v]);
}

/* Sums of one vector of columns, `v`, of `count` units. Its lines are every other one of those that the tile asks for. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_part(const struct matmul_tile *t, u32 rows, bool bf16, u32 v, u32 first, u32 count,
						     struct tile_fetch *fetch, vec total[][TILE_VECS])
{
	vec sum[TILE_ROWS];
	const char *weights = t->weights + (size_t)first * KERN_GROUP_UNIT + v * sizeof(vec);
	const float *x = (const float *)(const void *)t->units + (size_t)first * (1 + bf16) * rows;
	const u32 pairs = bf16 ? kern_min(t->k_count / 2 - first, count) : count;
#pragma GCC unroll 18
	for (u32 r = 0; r < rows; r++)
		sum[r] = total[r][v];
	for (u32 u = 0; u < pairs; u++, weights += KERN_GROUP_UNIT, x += rows * (1 + bf16)) {
		if (u % 2 == v && t->prefetch_base)
			tile_prefetch_in_order(fetch, true, true);
		else if (u % 2 == v)
			tile_prefetch_bytes(t, fetch);
		vec of = bf16 ? vec_pair_first(weights) : vec_load((const float *)(const void *)weights);
#pragma GCC unroll 18
		for (u32 r = 0; r < rows; r++)
			vec_add_product(&sum[r], vec_set1(x[r]), of);
		if (!bf16)
			continue;
		of = vec_pair_second(weights);
#pragma GCC unroll 18
		for (u32 r = 0; r < rows; r++)
			vec_add_product(&sum[r], vec_set1(x[rows + r]), of);
	}
	if (bf16 && pairs < count) {
		const vec of = vec_pair_first(weights);
#pragma GCC unroll 18
		for (u32 r = 0; r < rows; r++)
			vec_add_product(&sum[r], vec_set1(x[r]), of);
	}
#pragma GCC unroll 18
	for (u32 r = 0; r < rows; r++)
		total[r][v] = sum[r];
}

/* More rows than there are registers for: piece by piece of the weights one vector of columns after the other, so that memory is read once. */
static ALWAYS_INLINE void run_tall(const struct matmul_tile *t, u32 rows, bool bf16)
{
	vec total[TILE_ROWS][TILE_VECS];
	struct tile_fetch fetch = tile_fetch_begin(t);
	const u32 units = kern_ceil(t->k_count, 1 + bf16);
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 u = 0; u < units; u += PART_UNITS) {
		const u32 count = kern_min(PART_UNITS, units - u);
#pragma GCC unroll 2
		for (u32 v = 0; v < TILE_VECS; v++)
			add_part(t, rows, bf16, v, u, count, &fetch, total);
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			tile_store_sum(t, r, v, total[r][v]);
}

/* All that a tile touches. */
static void check_tile(const struct matmul_tile *t, u32 rows, u32 values)
{
	check_bytes(t->units, (size_t)t->k_count * rows * sizeof(float));
	check_bytes(t->weights, kern_ceil(t->k_count, values) * (size_t)KERN_GROUP_UNIT);
	for (u32 r = 0; r < rows; r++)
		check_bytes(t->out + r * t->out_stride, t->columns * sizeof(float));
	if (t->bias)
		check_bytes(t->bias, t->columns * sizeof(float));
}

/* The row count is a constant in each case, so that the sums live in registers. */
#define RUN_TILE(n, bf16)                    \
	if (t->prefetch_base)                \
		run_tile(t, n, bf16, true);  \
	else                                 \
		run_tile(t, n, bf16, false); \
	break;
#define TALL_CASE(n, bf16)            \
	case n:                       \
		run_tall(t, n, bf16); \
		break;
#define TILE_CASE(n, bf16) \
	case n:            \
		RUN_TILE(n, bf16)
#define TILE_OF(name, bf16)                                                              \
	static CHECKED_BY_CALLER void name##_rows(const struct matmul_tile *t, u32 rows) \
	{                                                                                \
		switch (rows) {                                                          \
			TILE_CASE(1, bf16)                                               \
			TILE_CASE(2, bf16)                                               \
			TILE_CASE(3, bf16)                                               \
			TILE_CASE(4, bf16)                                               \
			TILE_CASE(5, bf16)                                               \
			TILE_CASE(6, bf16)                                               \
			TILE_CASE(7, bf16)                                               \
			TILE_CASE(8, bf16)                                               \
			TILE_CASE(9, bf16)                                               \
			TILE_CASE(10, bf16)                                              \
			TILE_CASE(11, bf16)                                              \
			TILE_CASE(12, bf16)                                              \
			TALL_CASE(13, bf16)                                              \
			TALL_CASE(14, bf16)                                              \
			TALL_CASE(15, bf16)                                              \
			TALL_CASE(16, bf16)                                              \
			TALL_CASE(17, bf16)                                              \
		default:                                                                 \
			run_tall(t, TILE_ROWS, bf16);                                    \
			break;                                                           \
		}                                                                        \
	}                                                                                \
	static void name(const struct matmul_tile *t, u32 rows)                          \
	{                                                                                \
		if (CHECKS_BYTES)                                                        \
			check_tile(t, rows, bf16 ? 2 : 1);                               \
		name##_rows(t, rows);                                                    \
	}
TILE_OF(tile_f32, false)
TILE_OF(tile_bf16, true)
#undef TILE_OF
#undef TILE_CASE
#undef RUN_TILE
#undef TALL_CASE

/* matmul_kernel.pack_rows */
static void pack_rows(const struct matmul_job *j, const float *x, u32 rows, char *to, u32 first, u32 end)
{
	const size_t stride = j->a->x_stride;
	if (rows >= LACE_ROWS)
		lace_floats(x + first, stride, rows, end - first, to + (size_t)first * rows * sizeof(float));
	for (u32 r = 0; r < rows && rows < LACE_ROWS; r++)
		tile_pack_floats(j, x + r * stride, r, rows, to, first, end);
}

#define KERNEL(name, tile_fn)                          \
	static const struct matmul_kernel name = {     \
		.tile_rows = TILE_ROWS,                \
		.tile_columns = KERN_PANEL,            \
		.few_rows = 1,                         \
		.few_columns = KERN_PANEL,             \
		.alone_rows = ALONE_ROWS,              \
		.asks_in_order = true,                 \
		.pack_rows = pack_rows,                \
		.tile = tile_fn,                       \
	}
KERNEL(F32, tile_f32);
KERNEL(BF16, tile_bf16);
#undef KERNEL

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct matmul_inputs in = {.unit_values = 1};
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return matmul_quantized_avx512(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->fusion && (a->tokens <= KERN_CPU_UNFUSED_TOKENS || !matmul_blocked_fuses(a)))
		return ERR_UNSUPPORTED;
	if (a->tokens > TILE_ROWS)
		matmul_float_many_avx512(ctx, a);
	else
		matmul_run(ctx, a, a->w->dtype == KERN_F32 ? &F32 : &BF16, &in);
	return ERR_OK;
}
