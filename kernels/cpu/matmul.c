/* Matrix product for AVX2, AVX-512 and AVX-512 with BF16 (one object each).
 *
 * Every output is one sum over k in rising order, in one lane, starting from what it is added to; tiling only
 * decides which outputs are computed side by side. So a row's result depends neither on the other rows nor on
 * the threads. With BF16 the inputs are rounded to bf16 and VDPBF16PS adds k in pairs; the others widen the
 * weights. */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_priv.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
	PANEL_VECS = KERN_PANEL / VEC_LANES,
	TILE_VECS = 4, /* columns of a tile, in vectors: two panels with AVX-512, one with AVX2 */
#if VEC_LANES == 16
	TILE_ROWS = 6, /* 6 x 4 sums, 4 weights, 1 input: 29 of 32 registers */
	VECS_OF_ONE = 4,
#else
	TILE_ROWS = 3,	 /* 3 x 4 sums, 1 weight, 3 inputs: 16 of 16 registers */
	VECS_OF_ONE = 8, /* one row takes both panels: eight sums hide the latency of the addition */
#endif
	K_BLOCK = 1024, /* a pair of panels' part of so many k (256 KiB at most) stays in L2 for all rows */
	TASKS_A_THREAD = 8,
	TASK_WORK =
		128 * 1024, /* multiply-adds of a task: some microseconds, more than waking a thread costs */
};

/* One product as the threads see it. */
struct job {
	const struct kern_matmul_args *a;
	const u16 *x_half; /* [tokens][x_half_stride], where the inputs are taken as bf16 */
	u32 x_half_stride;
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

static ALWAYS_INLINE void tile_begin(const struct tile *t, u32 rows, u32 vecs, vec sum[][VECS_OF_ONE])
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

static ALWAYS_INLINE void tile_end(const struct tile *t, u32 rows, u32 vecs, vec sum[][VECS_OF_ONE])
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

static ALWAYS_INLINE void tile_f32(const struct tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][VECS_OF_ONE];
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

#ifdef __AVX512BF16__
static ALWAYS_INLINE void tile_bf16(const struct tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][VECS_OF_ONE];
	const u16 *x = t->x;
	tile_begin(t, rows, vecs, sum);
	for (u32 k = 0; k < t->k_count; k += 2) {
		__m512bh columns[VECS_OF_ONE];
#pragma GCC unroll 8
		for (u32 v = 0; v < vecs; v++)
			columns[v] =
				(__m512bh)_mm512_loadu_si512(weights_of(t, v) + (size_t)k * KERN_PANEL * 2);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++) {
			int pair;
			memcpy(&pair, x + r * t->x_stride + k, 4);
			__m512bh input = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
			for (u32 v = 0; v < vecs; v++)
				sum[r][v] = _mm512_dpbf16_ps(sum[r][v], columns[v], input);
		}
	}
	tile_end(t, rows, vecs, sum);
}
#else
static ALWAYS_INLINE void tile_bf16(const struct tile *t, u32 rows, u32 vecs)
{
	vec sum[TILE_ROWS][VECS_OF_ONE];
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
#endif

/* The row count is a constant in each case, so that the sums live in registers. */
#if VEC_LANES == 16
#define TILE_CASES_MORE(tile_fn)          \
	case 3:                           \
		tile_fn(t, 3, TILE_VECS); \
		break;                    \
	case 4:                           \
		tile_fn(t, 4, TILE_VECS); \
		break;                    \
	case 5:                           \
		tile_fn(t, 5, TILE_VECS); \
		break;
#else
#define TILE_CASES_MORE(tile_fn)
#endif
#define TILE_CASES(tile_fn)                       \
	switch (rows) {                           \
	case 1:                                   \
		tile_fn(t, 1, VECS_OF_ONE);       \
		break;                            \
	case 2:                                   \
		tile_fn(t, 2, TILE_VECS);         \
		break;                            \
		TILE_CASES_MORE(tile_fn)          \
	default:                                  \
		tile_fn(t, TILE_ROWS, TILE_VECS); \
		break;                            \
	}

static void run_tile_f32(const struct tile *t, u32 rows)
{
	TILE_CASES(tile_f32)
}

static void run_tile_bf16(const struct tile *t, u32 rows)
{
	TILE_CASES(tile_bf16)
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
		u32 step = (rows == 1 ? VECS_OF_ONE : TILE_VECS) * VEC_LANES;
		for (u32 n = n0; n < n0 + KERN_COLUMNS && n < w->n; n += step) {
			struct tile t = {.k_count = k1 - k0, .out_stride = a->out_stride};
			t.weights = (const char *)w->data + kern_panel_index(w->k, w->dtype, n, k0) * bytes;
			t.panel_bytes = kern_panel_index(w->k, w->dtype, KERN_PANEL, 0) * bytes;
			t.out = a->out + (size_t)row * a->out_stride + n;
			t.columns = kern_min(w->n - n, step);
			t.bias = a->bias && k0 == 0 ? a->bias + n : NULL;
			t.resume = k0 > 0 || a->accumulate;
			t.x = a->x + (size_t)row * a->x_stride + k0;
			t.x_stride = a->x_stride;
			if (j->x_half) {
				t.x = j->x_half + (size_t)row * j->x_half_stride + k0;
				t.x_stride = j->x_half_stride;
			}
			if (w->dtype == KERN_F32)
				run_tile_f32(&t, rows);
			else
				run_tile_bf16(&t, rows);
		}
	}
}

static void run_task(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	u32 p0 = task % j->column_tasks * j->pairs_a_task, r0 = task / j->column_tasks * j->rows_a_task;
	u32 p1 = kern_min(p0 + j->pairs_a_task, j->pairs), r1 = kern_min(r0 + j->rows_a_task, j->a->tokens);
	(void)thread;
	for (u32 p = p0; p < p1; p++) {
		if (r1 - r0 <= TILE_ROWS) {
			pair_rows(j, p, r0, r1, 0, j->a->w->k);
			continue;
		}
		for (u32 k = 0; k < j->a->w->k; k += K_BLOCK)
			pair_rows(j, p, r0, r1, k, kern_min(k + K_BLOCK, j->a->w->k));
	}
}

/* Splits by columns, and by rows where there are few columns. Tasks come in whole turns of all threads and
 * are few enough that taking them costs nothing, many enough that a late thread is made up for. */
static u32 plan_tasks(struct job *j, u32 threads)
{
	const struct kern_matmul_args *a = j->a;
	u64 tasks = (u64)a->tokens * a->w->k * a->w->n / TASK_WORK;
	u32 row_tasks = 1;
	j->pairs = kern_ceil(a->w->n, KERN_COLUMNS);
	if (threads == 1 || tasks < 2)
		tasks = 1;
	else if (tasks < (u64)TASKS_A_THREAD * threads)
		tasks = (tasks + threads - 1) / threads * threads;
	else
		tasks = (u64)TASKS_A_THREAD * threads;
	j->pairs_a_task = tasks < j->pairs ? kern_ceil(j->pairs, (u32)tasks) : 1;
	j->column_tasks = kern_ceil(j->pairs, j->pairs_a_task);
	if (tasks > j->column_tasks)
		row_tasks =
			kern_min(kern_ceil((u32)tasks, j->column_tasks), kern_ceil(a->tokens, 2 * TILE_ROWS));
	j->rows_a_task = kern_ceil(a->tokens, row_tasks);
	return j->column_tasks * kern_ceil(a->tokens, j->rows_a_task);
}

#ifdef __AVX512BF16__
static void round_row(const struct job *j, u32 row, u16 *out)
{
	const float *x = j->a->x + (size_t)row * j->a->x_stride;
	u32 k = 0, total = j->a->w->k;
	for (; k + 16 <= total; k += 16)
		_mm256_storeu_si256((__m256i *)(void *)(out + k),
				    (__m256i)_mm512_cvtneps_pbh(vec_load(x + k)));
	if (k < total)
		_mm256_mask_storeu_epi16(out + k, vec_mask(total - k),
					 (__m256i)_mm512_cvtneps_pbh(vec_load_n(x + k, total - k)));
	if (total % 2)
		out[total] = 0;
}

enum { ROUND_ROWS = 8 };

static void round_rows(void *arg, u32 task, u32 thread)
{
	const struct job *j = arg;
	u32 end = kern_min((task + 1) * ROUND_ROWS, j->a->tokens);
	(void)thread;
	for (u32 row = task * ROUND_ROWS; row < end; row++)
		round_row(j, row, (u16 *)j->x_half + (size_t)row * j->x_half_stride);
}
#endif

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct job j = {.a = a};
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return matmul_ref(ctx, a);
	ASSERT(a->w->packed == KERN_LAYOUT_PANEL);
	if (a->tokens == 0)
		return ERR_OK;
#ifdef __AVX512BF16__
	if (a->w->dtype == KERN_BF16) {
		j.x_half_stride = (a->w->k + 31) & ~31u;
		j.x_half = ctx->scratch;
		ASSERT((size_t)a->tokens * j.x_half_stride * 2 <= ctx->scratch_bytes);
		u32 tasks = kern_ceil(a->tokens, ROUND_ROWS);
		if ((u64)a->tokens * a->w->k < TASK_WORK)
			for (u32 i = 0; i < tasks; i++)
				round_rows(&j, i, 0);
		else
			kern_parallel(ctx, tasks, round_rows, &j);
	}
#endif
	kern_parallel(ctx, plan_tasks(&j, kern_thread_count(ctx)), run_task, &j);
	return ERR_OK;
}
