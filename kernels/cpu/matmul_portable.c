/* Matrix product in the compiler's own vectors, for processors that no other variant is for (NEON, SSE2). Inputs stay
 * as they are, sums are floats.
 *
 * Plain rows of W: an output is sixteen running sums over k (k % 16), added up in a fixed order. Quantized: one
 * group of a panel is expanded at a time, an output is one running sum over k. Neither depends on which rows are
 * computed together. */
#include "kernels/cpu/variants_priv.h"
#include "kernels/cpu/vec_portable_priv.h"

enum {
	VECS = 4,  /* of a step over k: as many sums hide the latency of an addition */
	STEP = VECS * LANES,
	TILE_ROWS = 4, /* tokens that share a load of weights */
	COLUMNS_A_TASK = KERN_COLUMNS,
	PANEL_VECS = KERN_PANEL / LANES,
	PLANES = 4, /* bytes of a unit of a quantized column */
};

/* ---------------------------------------------------------------- plain rows */

static ALWAYS_INLINE float sum_lanes(const vec *v)
{
	return sum_of_lanes((v[0] + v[2]) + (v[1] + v[3]));
}

/* sums += `rows` inputs times a row of W, STEP values of each. */
static ALWAYS_INLINE void add_step(const char *w, bool bf16, const float *x, size_t x_stride, u32 rows,
				   vec (*sums)[VECS])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < VECS; v++) {
		vec weights = bf16 ? load_bf16(w + v * LANES * 2) : load_floats(w + v * LANES * 4);
#pragma GCC unroll 4
		for (u32 r = 0; r < rows; r++)
			sums[r][v] = add_product(sums[r][v], weights, load_floats(x + r * x_stride + v * LANES));
	}
}

/* `rows` inputs, from token t on, times one row of W. */
static ALWAYS_INLINE void row_products(const struct kern_matmul_args *a, const char *w, bool bf16, u32 t, u32 rows,
				       float *products)
{
	vec sums[TILE_ROWS][VECS] = {{{0}}};
	const float *x = a->x + (size_t)t * a->x_stride;
	const size_t bytes = bf16 ? 2 : 4;
	u32 k = 0, count = a->w->k;

	for (; k + STEP <= count; k += STEP)
		add_step(w + k * bytes, bf16, x + k, a->x_stride, rows, sums);
	if (k < count) { /* the last ones, zeros behind */
		char last[STEP * sizeof(float)] = {0};
		float inputs[TILE_ROWS][STEP] = {{0}};
		memcpy(last, w + k * bytes, (count - k) * bytes);
		for (u32 r = 0; r < rows; r++)
			memcpy(inputs[r], x + r * a->x_stride + k, (count - k) * sizeof(float));
		add_step(last, bf16, inputs[0], STEP, rows, sums);
	}
	for (u32 r = 0; r < rows; r++)
		products[r] = sum_lanes(sums[r]);
}

static ALWAYS_INLINE void plain_tile(const struct kern_matmul_args *a, u32 n, u32 t, u32 rows)
{
	const bool bf16 = a->w->dtype == KERN_BF16;
	const char *w = (const char *)a->w->data + (size_t)n * a->w->k * (bf16 ? 2 : 4);
	float sums[TILE_ROWS];

	if (bf16)
		row_products(a, w, true, t, rows, sums);
	else
		row_products(a, w, false, t, rows, sums);
	for (u32 r = 0; r < rows; r++) {
		float *out = a->out + (size_t)(t + r) * a->out_stride + n;
		float first = (a->accumulate ? *out : 0) + (a->bias ? a->bias[n] : 0);
		*out = first + sums[r];
	}
}

/* Tokens outermost in fours: their inputs stay in the cache while the columns pass. */
static void plain_columns(const struct kern_matmul_args *a, u32 begin, u32 end)
{
	u32 t = 0;

	for (; t + TILE_ROWS <= a->tokens; t += TILE_ROWS)
		for (u32 n = begin; n < end; n++)
			plain_tile(a, n, t, TILE_ROWS);
	for (; t < a->tokens; t++)
		for (u32 n = begin; n < end; n++)
			plain_tile(a, n, t, 1);
}

/* ---------------------------------------------------------------- quantized panels */

/* What q of 32 columns stands for: scale * (q - zero). */
struct head {
	vec scale[PANEL_VECS], zero[PANEL_VECS];
};

static void read_head(struct head *h, enum kern_dtype dtype, const char *group)
{
	const u16 *half = (const u16 *)(const void *)group;
	float scale[KERN_PANEL], zero[KERN_PANEL];

	for (u32 n = 0; n < KERN_PANEL; n++) {
		scale[n] = dtype == KERN_I8 ? ((const float *)(const void *)group)[n] : kern_f16_to_float(half[n]);
		zero[n] = dtype == KERN_I8 ? 128 : kern_f16_to_float(half[KERN_PANEL + n]);
	}
	for (u32 v = 0; v < PANEL_VECS; v++) {
		h->scale[v] = load_floats(scale + v * LANES);
		h->zero[v] = load_floats(zero + v * LANES);
	}
}

/* One of the eight or four values of each column of a unit: bits of every column's 32. */
static ALWAYS_INLINE void expand_value(const struct head *h, const char *unit, u32 shift, u32 mask, vec *to)
{
#pragma GCC unroll 8
	for (u32 v = 0; v < PANEL_VECS; v++) {
		const uvec w = load_words(unit + v * sizeof(uvec));
		to[v] = h->scale[v] * (__builtin_convertvector(w >> shift & mask, vec) - h->zero[v]);
	}
}

/* The group's weights, [value][32 columns]. */
static void expand_group(const struct kern_weight *w, const char *group, u32 count, vec (*to)[PANEL_VECS])
{
	const u32 values = kern_unit_values(w->dtype);
	const char *unit = group + KERN_GROUP_HEAD;
	struct head h;

	read_head(&h, w->dtype, group);
	for (u32 k = 0; k < count; k += values, unit += KERN_GROUP_UNIT)
		for (u32 i = 0; i < values; i++)
			if (w->dtype == KERN_I8)
				expand_value(&h, unit, 8 * i, 255, to[k + i]);
			else
				expand_value(&h, unit, 8 * (i % PLANES) + i / PLANES * 4, 15, to[k + i]);
}

/* sums[32] += the token's inputs [k, k + count) times the expanded group. */
static void add_group(const struct kern_matmul_args *a, u32 t, u32 k, u32 count, vec (*weights)[PANEL_VECS], float *sums)
{
	const float *x = a->x + (size_t)t * a->x_stride;
	const u32 *order = a->w->order;
	vec sum[PANEL_VECS];

	memcpy(sum, sums, sizeof(sum));
	for (u32 i = 0; i < count; i++) {
		const vec input = vec_set1(x[order ? order[k + i] : k + i]);
#pragma GCC unroll 8
		for (u32 v = 0; v < PANEL_VECS; v++)
			sum[v] = add_product(sum[v], weights[i][v], input);
	}
	memcpy(sums, sum, sizeof(sum));
}

static void panel_groups(const struct kern_matmul_args *a, u32 n)
{
	const struct kern_weight *w = a->w;
	const u32 width = kern_dtype_group(w->dtype), columns = kern_min(w->n - n, KERN_PANEL);
	vec weights[KERN_GROUP_MAX][PANEL_VECS];
	float sums[KERN_PANEL];

	for (u32 k = 0; k < w->k; k += width) {
		u32 count = kern_min(width, w->k - k);
		expand_group(w, (const char *)w->data + kern_group_offset(w, n, k), count, weights);
		for (u32 t = 0; t < a->tokens; t++) {
			float *out = a->out + (size_t)t * a->out_stride + n;
			for (u32 c = 0; c < KERN_PANEL; c++)
				sums[c] = c < columns ? (k > 0 || a->accumulate ? out[c] : 0) +
								(k == 0 && a->bias ? a->bias[n + c] : 0)
						      : 0;
			add_group(a, t, k, count, weights, sums);
			memcpy(out, sums, columns * sizeof(float));
		}
	}
}

/* ---------------------------------------------------------------- the op */

static void run_task(void *arg, u32 task, u32 thread)
{
	const struct kern_matmul_args *a = arg;
	u32 begin = task * COLUMNS_A_TASK, end = kern_min(begin + COLUMNS_A_TASK, a->w->n);

	(void)thread;
	if (a->w->packed != KERN_LAYOUT_GROUPS)
		plain_columns(a, begin, end);
	for (u32 n = begin; n < end && a->w->packed == KERN_LAYOUT_GROUPS; n += KERN_PANEL)
		panel_groups(a, n);
}

enum err matmul_portable(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_matmul_args args = *a;

	if (a->fusion)
		return ERR_UNSUPPORTED;
	if (a->w->dtype == KERN_I4_STEPS)
		return matmul_ref(ctx, a);
	ASSERT(a->w->packed != KERN_LAYOUT_PANEL); /* made for instruction sets that this variant is not for */
	if (a->tokens > 0)
		kern_parallel(ctx, kern_ceil(a->w->n, COLUMNS_A_TASK), run_task, &args);
	return ERR_OK;
}
