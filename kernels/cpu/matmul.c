/* Matrix product with float32 and (widened) bfloat16 weights, for AVX-512; for AVX2 see cpu/matmul_float_few.c.
 *
 * Every output is one sum over k in rising order, in one lane, starting from what it is added to; tiling only
 * decides which outputs are computed side by side. So a row's result depends neither on the other rows nor on
 * the threads. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

enum {
	PANEL_VECS = KERN_PANEL / VEC_LANES,
	TILE_VECS = KERN_COLUMNS / VEC_LANES, /* of a tile: two panels */
	TILE_ROWS = 6, /* 6 x 4 sums, 4 weights, 1 input: 29 of 32 registers */
	K_BLOCK = 1024, /* a pair of panels' part of so many k (256 KiB at most) stays in L2 for all rows */
};

/* One product as the threads see it. */
struct job {
	const struct kern_matmul_args *a;
	u32 pairs, pairs_a_task, rows_a_task, column_tasks; /* pairs of panels */
};

/* Up to TILE_ROWS rows times TILE_VECS vectors of columns. */
struct tile {
	const char *weights; /* at the first k and column */
	size_t panel_bytes;
	const void *x;	 /* at the first row and k */
	size_t x_stride; /* elements */
	float *out;
	size_t out_stride;
	u32 k_count, columns; /* columns: those that exist */
	const float *bias;
	bool resume; /* sums so far are in `out` */
};

static ALWAYS_INLINE u32 columns_of(const struct tile *t, u32 v)
{
	u32 from = v * VEC_LANES;
	return t->columns <= from ? 0 : kern_min(t->columns - from, VEC_LANES);
}

/* The weights of vector `v` at the tile's first k. */
static ALWAYS_INLINE const char *weights_of(const struct tile *t, u32 v)
{
	return t->weights + v / PANEL_VECS * t->panel_bytes + v % PANEL_VECS * sizeof(vec);
}

static ALWAYS_INLINE void tile_begin(const struct tile *t, u32 rows, u32 vecs, vec sum[][TILE_VECS])
{
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < vecs; v++) {
			u32 n = columns_of(t, v);
			sum[r][v] = t->resume ? vec_load_n(t->out + r * t->out_stride + v * VEC_LANES, n)
					      : vec_zero();
			if (t->bias)
				sum[r][v] = vec_add(sum[r][v], vec_load_n(t->bias + v * VEC_LANES, n));
		}
}

static ALWAYS_INLINE void tile_end(const struct tile *t, u32 rows, u32 vecs, vec sum[][TILE_VECS])
{
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < vecs; v++) {
			float *out = t->out + r * t->out_stride + v * VEC_LANES;
			u32 n = columns_of(t, v);
			if (n == VEC_LANES)
				vec_store(out, sum[r][v]);
			else
				vec_store_n(out, sum[r][v], n);
		}
}

static ALWAYS_INLINE CHECKED_BY_CALLER void tile_f32(const struct tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][TILE_VECS];
	const float *x = t->x;
	tile_begin(t, rows, vecs, sum);
	for (u32 k = 0; k < t->k_count; k++)
#pragma GCC unroll 8
		for (u32 v = 0; v < vecs; v++) {
			vec column = vec_load((const float *)(const void *)weights_of(t, v) +
					      (size_t)k * KERN_PANEL);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(x[r * t->x_stride + k]), column, sum[r][v]);
		}
	tile_end(t, rows, vecs, sum);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void tile_bf16(const struct tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][TILE_VECS];
	const float *x = t->x;
	u32 k = 0;
	tile_begin(t, rows, vecs, sum);
	for (; k + 1 < t->k_count; k += 2) {
		/* First all that is first in a pair, then all that is second: the inputs of one k fit beside
		 * the sums. */
#pragma GCC unroll 8
		for (u32 v = 0; v < vecs; v++) {
			vec column = vec_pair_first(weights_of(t, v) + (size_t)k * KERN_PANEL * 2);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(x[r * t->x_stride + k]), column, sum[r][v]);
		}
#pragma GCC unroll 8
		for (u32 v = 0; v < vecs; v++) {
			vec column = vec_pair_second(weights_of(t, v) + (size_t)k * KERN_PANEL * 2);
#pragma GCC unroll 8
			for (u32 r = 0; r < rows; r++)
				sum[r][v] = vec_fma(vec_set1(x[r * t->x_stride + k + 1]), column, sum[r][v]);
		}
	}
	if (k < t->k_count)
		for (u32 v = 0; v < vecs; v++)
			for (u32 r = 0; r < rows; r++)
				sum[r][v] =
					vec_fma(vec_set1(x[r * t->x_stride + k]),
						vec_pair_first(weights_of(t, v) + (size_t)k * KERN_PANEL * 2),
						sum[r][v]);
	tile_end(t, rows, vecs, sum);
}

/* The row count is a constant in each case, so that the sums live in registers. */
#define TILE_CASE(n, tile_fn)             \
	case n:                           \
		tile_fn(t, n, TILE_VECS); \
		break;
#define TILE_CASES(tile_fn)                       \
	switch (rows) {                           \
		TILE_CASE(1, tile_fn)             \
		TILE_CASE(2, tile_fn)             \
		TILE_CASE(3, tile_fn)             \
		TILE_CASE(4, tile_fn)             \
		TILE_CASE(5, tile_fn)             \
	default:                                  \
		tile_fn(t, TILE_ROWS, TILE_VECS); \
		break;                            \
	}

static CHECKED_BY_CALLER void run_tile_f32(const struct tile *t, u32 rows)
{
	TILE_CASES(tile_f32)
}

static CHECKED_BY_CALLER void run_tile_bf16(const struct tile *t, u32 rows)
{
	TILE_CASES(tile_bf16)
}

/* All that a tile touches. */
static void check_tile(const struct tile *t, u32 rows, u32 pair_values, u32 value_bytes)
{
	const size_t weights = (size_t)kern_ceil(t->k_count, pair_values) * pair_values * KERN_PANEL * value_bytes;
	if (!CHECKS_BYTES)
		return;
	for (u32 v = 0; v < TILE_VECS; v += PANEL_VECS)
		check_bytes(weights_of(t, v), weights);
	for (u32 r = 0; r < rows; r++) {
		check_bytes((const float *)t->x + r * t->x_stride, t->k_count * sizeof(float));
		check_bytes(t->out + r * t->out_stride, t->columns * sizeof(float));
	}
	if (t->bias)
		check_bytes(t->bias, t->columns * sizeof(float));
}

/* Rows [r0, r1) times one pair of panels, k in [k0, k1). */
static void pair_rows(const struct job *j, u32 pair, u32 r0, u32 r1, u32 k0, u32 k1)
{
	const struct kern_matmul_args *a = j->a;
	const struct kern_weight *w = a->w;
	u32 n0 = pair * KERN_COLUMNS, tiles = kern_ceil(r1 - r0, TILE_ROWS);
	const size_t bytes = kern_dtype_bytes(w->dtype);
	for (u32 i = 0; i < tiles; i++) {
		/* Even tiles: 7 rows as 4 + 3 keep the additions busier than 6 + 1. */
		u32 row = r0 + (u32)((u64)(r1 - r0) * i / tiles),
		    rows = r0 + (u32)((u64)(r1 - r0) * (i + 1) / tiles) - row;
		struct tile t = {.k_count = k1 - k0, .out_stride = a->out_stride};
		t.weights = (const char *)w->data + kern_panel_index(w->k, w->dtype, n0, k0) * bytes;
		t.panel_bytes = kern_panel_index(w->k, w->dtype, KERN_PANEL, 0) * bytes;
		t.out = a->out + (size_t)row * a->out_stride + n0;
		t.columns = kern_min(w->n - n0, KERN_COLUMNS);
		t.bias = a->bias && k0 == 0 ? a->bias + n0 : NULL;
		t.resume = k0 > 0 || a->accumulate;
		t.x = a->x + (size_t)row * a->x_stride + k0;
		t.x_stride = a->x_stride;
		check_tile(&t, rows, w->dtype == KERN_F32 ? 1 : 2, (u32)bytes);
		if (w->dtype == KERN_F32)
			run_tile_f32(&t, rows);
		else
			run_tile_bf16(&t, rows);
	}
}

static void run_task(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	u32 p0 = task % j->column_tasks * j->pairs_a_task, r0 = task / j->column_tasks * j->rows_a_task;
	u32 p1 = kern_min(p0 + j->pairs_a_task, j->pairs), r1 = kern_min(r0 + j->rows_a_task, j->a->tokens);
	u32 k_total = j->a->w->k, block = r1 - r0 <= TILE_ROWS ? k_total : K_BLOCK;
	(void)thread;
	for (u32 p = p0; p < p1; p++)
		for (u32 k = 0; k < k_total; k += block)
			pair_rows(j, p, r0, r1, k, kern_min(k + block, k_total));
}

/* Splits by columns, and by rows where there are few columns. */
static u32 plan_tasks(struct job *j, u32 threads)
{
	const struct kern_matmul_args *a = j->a;
	u64 tasks = matmul_tasks(a, threads);
	u32 row_tasks = 1;
	j->pairs = kern_ceil(a->w->n, KERN_COLUMNS);
	j->pairs_a_task = tasks < j->pairs ? kern_ceil(j->pairs, (u32)tasks) : 1;
	j->column_tasks = kern_ceil(j->pairs, j->pairs_a_task);
	if (tasks > j->column_tasks)
		row_tasks =
			kern_min(kern_ceil((u32)tasks, j->column_tasks), kern_ceil(a->tokens, 2 * TILE_ROWS));
	j->rows_a_task = kern_ceil(a->tokens, row_tasks);
	return j->column_tasks * kern_ceil(a->tokens, j->rows_a_task);
}

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct job j = {.a = a};
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return matmul_quantized_avx512(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->fusion)
		return ERR_UNSUPPORTED;
	if (a->tokens == 0)
		return ERR_OK;
	kern_parallel(ctx, plan_tasks(&j, kern_thread_count(ctx)), run_task, &j);
	return ERR_OK;
}
