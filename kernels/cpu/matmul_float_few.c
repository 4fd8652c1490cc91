/* Matrix product of few rows with float32 and (widened) bfloat16 weights, for AVX2: decoding of few sequences. Every output is
 * one sum over k in rising order, in one lane, starting from what it is added to, as in cpu/matmul_float_many.c.
 *
 * What takes time is memory. A core waits for so many lines at once and no more, and one stream does not bring the cache behind
 * that to read ahead of them: with some, a line or a few at a time, it does. So a tile is up to four panels that take turns, and
 * goes on in those behind them. The processor follows such streams by itself; where they break off, the tile asks for what comes
 * next. */
#include "kernels/cpu/checked_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	PANEL_VECS = KERN_PANEL / VEC_LANES,
	HALF_VECS = PANEL_VECS / 2,
	PANELS = 4,
	TILE_ROWS = 5,	/* more compute for so long that blocks of cpu/matmul_float_many.c are faster */
	WHOLE_ROWS = 3, /* 3 x 4 sums, 1 weight, 3 inputs: 16 of 16 registers */
	TURNS = 4,	/* of one panel before the next one's; one row takes one */
	/* With more rows there are registers for half of a panel after the other, and so much to compute between two lines that
	 * those are better asked for: */
	MORE_PANELS = 2,
	MORE_TURNS = 8,
	AHEAD_BYTES = 4096,
	ASK_TURNS = 32, /* before its end a tile asks for the next one's beginning, */
	ASK_BYTES = 64, /* so much of each of its panels a turn */
};

/* One k of the v-th vector of weights: float32, or the first or second of pairs. */
static ALWAYS_INLINE CHECKED_BY_CALLER vec column_of(const char *weights, u32 v, bool bf16, bool second)
{
	const char *from = weights + v * sizeof(vec);
	if (!bf16)
		return vec_load((const float *)(const void *)from);
	return second ? vec_pair_second(from) : vec_pair_first(from);
}

/* sums += the inputs of one k times `vecs` vectors of weights. What there are fewer of, rows or vectors, stays in registers. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_k(const char *weights, const float *x, u32 rows, u32 vecs, bool bf16, bool second,
						  vec sum[][PANEL_VECS])
{
	vec few[PANEL_VECS];
	if (rows < vecs) {
#pragma GCC unroll 3
		for (u32 r = 0; r < rows; r++)
			few[r] = vec_set1(x[r]);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			const vec column = column_of(weights, v, bf16, second);
#pragma GCC unroll 3
			for (u32 r = 0; r < rows; r++)
				vec_add_product(&sum[r][v], few[r], column);
		}
		return;
	}
#pragma GCC unroll 2
	for (u32 v = 0; v < vecs; v++)
		few[v] = column_of(weights, v, bf16, second);
#pragma GCC unroll 5
	for (u32 r = 0; r < rows; r++)
		vec_add_products(x + r, few, vecs, sum[r]);
}

/* `sums`, [rows][PANEL_VECS], += `k_count` inputs times `vecs` vectors of columns. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_values(const struct matmul_tile *t, const char *weights, const float *x, u32 rows, u32 vecs,
							bool bf16, u32 k_count, vec *sums)
{
	vec sum[TILE_ROWS][PANEL_VECS];
	u32 k = 0;
#pragma GCC unroll 5
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = sums[r * PANEL_VECS + v];
#pragma GCC unroll 1
	for (; k + bf16 < k_count; k += 1 + bf16, weights += KERN_GROUP_UNIT, x += rows * (1 + bf16)) {
		if (rows > WHOLE_ROWS)
			_mm_prefetch(weights + AHEAD_BYTES, _MM_HINT_T1);
		else
			tile_prefetch_near(t, weights);
		add_k(weights, x, rows, vecs, bf16, false, sum);
		if (rows >= WHOLE_ROWS)
			__asm__("" : : : "memory"); /* or pairs, read once, take registers of sums */
		if (bf16)
			add_k(weights, x + rows, rows, vecs, bf16, true, sum);
	}
	if (k < k_count)
		add_k(weights, x, rows, vecs, bf16, false, sum);
#pragma GCC unroll 5
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sums[r * PANEL_VECS + v] = sum[r][v];
}

/* Values [k, k + k_count) of all panels; `sums` is [panel][rows][PANEL_VECS]. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_panels(const struct matmul_tile *t, u32 rows, bool bf16, u32 k, u32 k_count,
							vec *sums)
{
	const u32 values = bf16 ? 2 : 1, vecs = rows > WHOLE_ROWS ? HALF_VECS : PANEL_VECS;
	const u32 left = (t->k_count - k) / values, turns = k_count / values;
	const float *x = (const float *)(const void *)t->units + (size_t)k * rows;
	const char *weights = t->weights + (size_t)(k / values) * KERN_GROUP_UNIT;
	const char *ask = t->next && left <= ASK_TURNS ? t->next + (ASK_TURNS - left) * ASK_BYTES : NULL;
	for (u32 s = 0; s < t->panels; s++, weights += t->panel_bytes, sums += rows * PANEL_VECS) {
		for (u32 i = 0; ask && i < turns; i++)
			_mm_prefetch(ask + s * t->next_panel_bytes + i * ASK_BYTES, _MM_HINT_T0);
#pragma GCC unroll 2
		for (u32 v = 0; v < PANEL_VECS; v += vecs)
			add_values(t, weights + v * sizeof(vec), x, rows, vecs, bf16, k_count, sums + v);
	}
}

static ALWAYS_INLINE CHECKED_BY_CALLER void run_tile(const struct matmul_tile *t, u32 rows, bool bf16)
{
	const u32 panels = t->panels, apart = t->panel_columns / VEC_LANES;
	const u32 turns = rows == 1 ? 1 : rows > WHOLE_ROWS ? MORE_TURNS : TURNS, step = turns * (bf16 ? 2 : 1);
	vec sums[PANELS * TILE_ROWS * PANEL_VECS];
	u32 k = 0;
	for (u32 s = 0; s < panels; s++)
		for (u32 r = 0; r < rows; r++)
			for (u32 v = 0; v < PANEL_VECS; v++)
				sums[(s * rows + r) * PANEL_VECS + v] = tile_first_sum(t, r, s * apart + v);
	for (; k + step <= t->k_count; k += step)
		add_panels(t, rows, bf16, k, step, sums);
	if (k < t->k_count)
		add_panels(t, rows, bf16, k, t->k_count - k, sums);
	for (u32 s = 0; s < panels; s++)
		for (u32 r = 0; r < rows; r++)
			for (u32 v = 0; v < PANEL_VECS; v++)
				tile_store_sum(t, r, s * apart + v, sums[(s * rows + r) * PANEL_VECS + v]);
}

/* All that a tile touches. */
static void check_tile(const struct matmul_tile *t, u32 rows, u32 values)
{
	const size_t weights = kern_ceil(t->k_count, values) * (size_t)KERN_GROUP_UNIT;
	check_bytes(t->units, (size_t)t->k_count * rows * sizeof(float));
	for (u32 s = 0; s < t->panels; s++) {
		const size_t first = s * (size_t)t->panel_columns, columns = kern_min(t->columns - (u32)first, KERN_PANEL);
		check_bytes(t->weights + s * t->panel_bytes, weights);
		for (u32 r = 0; r < rows; r++)
			check_bytes(t->out + r * t->out_stride + first, columns * sizeof(float));
		if (t->bias)
			check_bytes(t->bias + first, columns * sizeof(float));
	}
}

/* The row count is a constant in each case, so that the sums live in registers. */
#define TILE_CASE(n, bf16)            \
	case n:                       \
		run_tile(t, n, bf16); \
		break;
#define TILE_OF(name, bf16)                                                           \
	static CHECKED_BY_CALLER void name##_rows(const struct matmul_tile *t, u32 rows) \
	{                                                                             \
		switch (rows) {                                                       \
			TILE_CASE(1, bf16)                                            \
			TILE_CASE(2, bf16)                                            \
			TILE_CASE(3, bf16)                                            \
			TILE_CASE(4, bf16)                                            \
		default:                                                              \
			run_tile(t, TILE_ROWS, bf16);                                 \
			break;                                                        \
		}                                                                     \
	}                                                                             \
	static void name(const struct matmul_tile *t, u32 rows)                       \
	{                                                                             \
		check_tile(t, rows, bf16 ? 2 : 1);                                    \
		name##_rows(t, rows);                                                 \
	}
TILE_OF(tile_f32, false)
TILE_OF(tile_bf16, true)
#undef TILE_OF

#define KERNEL(name, tile_fn, most_rows, panels)          \
	static const struct matmul_kernel name = {         \
		.tile_rows = most_rows,                    \
		.few_rows = most_rows,                     \
		.few_columns = panels * KERN_PANEL,        \
		.asks_always = true,                       \
		.pack = tile_pack_floats,                              \
		.tile = tile_fn,                           \
	}
KERNEL(F32, tile_f32, WHOLE_ROWS, PANELS);
KERNEL(BF16, tile_bf16, WHOLE_ROWS, PANELS);
KERNEL(F32_MORE, tile_f32, TILE_ROWS, MORE_PANELS);
KERNEL(BF16_MORE, tile_bf16, TILE_ROWS, MORE_PANELS);
#undef KERNEL

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct matmul_inputs in = {.unit_values = 1};
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return matmul_quantized_avx2(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->tokens > (a->fusion ? KERN_CPU_UNFUSED_TOKENS : TILE_ROWS) && (!a->fusion || matmul_blocked_fuses(a))) {
		matmul_float_many_avx2(ctx, a);
		return ERR_OK;
	}
	if (a->fusion)
		return ERR_UNSUPPORTED;
	if (a->tokens <= WHOLE_ROWS)
		matmul_run(ctx, a, a->w->dtype == KERN_F32 ? &F32 : &BF16, &in);
	else
		matmul_run(ctx, a, a->w->dtype == KERN_F32 ? &F32_MORE : &BF16_MORE, &in);
	return ERR_OK;
}
