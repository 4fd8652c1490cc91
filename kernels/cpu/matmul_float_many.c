/* Matrix product of many rows with float32 and (widened) bfloat16 weights, for AVX2. The sums are those of
 * cpu/matmul_float_few.c, to the bit. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 6, /* 6 x 2 sums, 2 weights, 1 input: 15 of 16 registers */
	K_BLOCK = BLOCKED_K_MAX, /* a panel's weights and the inputs of a tile stay in the L2 cache */
};

/* ---------------------------------------------------------------- inputs */

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	lace_units(x + k, j->x_stride, rows, count, (float *)(void *)to);
	return false;
}

/* ---------------------------------------------------------------- tiles */

/* sums += inputs of one k times 16 columns. */
static ALWAYS_INLINE void add_k(const float *x, u32 rows, vec low, vec high, vec sums[][HALF_VECS])
{
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++) {
		vec input = vec_set1(x[r]);
		vec_add_product(&sums[r][0], input, low);
		vec_add_product(&sums[r][1], input, high);
	}
}

static ALWAYS_INLINE CHECKED_BY_CALLER void half_f32(const struct blocked_tile *t, u32 column, u32 rows, const char *prefetch)
{
	const float *weights = (const float *)(const void *)t->weights + column, *x = (const float *)(const void *)t->x;
	vec sums[TILE_ROWS][HALF_VECS];
	half_begin(t, column, rows, sums);
	for (u32 k = 0; k < t->k_count; k++) {
		_mm_prefetch(prefetch, _MM_HINT_T1);
		add_k(x, rows, vec_load(weights), vec_load(weights + VEC_LANES), sums);
		weights += KERN_PANEL;
		x += rows;
		prefetch += t->prefetch_step;
	}
	half_end(t, column, rows, sums);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void half_bf16(const struct blocked_tile *t, u32 column, u32 rows, const char *prefetch)
{
	const char *pairs = t->weights + column * 4;
	const float *x = (const float *)(const void *)t->x;
	vec sums[TILE_ROWS][HALF_VECS];
	half_begin(t, column, rows, sums);
	for (u32 k = 0; k + 1 < t->k_count; k += 2) {
		_mm_prefetch(prefetch, _MM_HINT_T1);
		add_k(x, rows, vec_pair_first(pairs), vec_pair_first(pairs + sizeof(vec)), sums);
		add_k(x + rows, rows, vec_pair_second(pairs), vec_pair_second(pairs + sizeof(vec)), sums);
		pairs += KERN_GROUP_UNIT;
		x += 2 * rows;
		prefetch += t->prefetch_step;
	}
	if (t->k_count % 2 == 1)
		add_k(x, rows, vec_pair_first(pairs), vec_pair_first(pairs + sizeof(vec)), sums);
	half_end(t, column, rows, sums);
}

/* The row count is a constant in each case, so that sums live in registers. What comes next is asked for in both halves,
 * by every unit of theirs. */
#define TILE_OF(name, half_fn, units)                                                                           \
	static ALWAYS_INLINE CHECKED_BY_CALLER void name##_rows(const struct blocked_tile *t, u32 rows)         \
	{                                                                                                       \
		for (u32 r = 0; r < rows; r++)                                                                  \
			sums_ahead(t, r, rows);                                                                 \
		half_fn(t, 0, rows, t->prefetch);                                                               \
		half_fn(t, HALF_COLUMNS, rows, t->prefetch + (size_t)t->prefetch_step * (units));               \
	}                                                                                                       \
	static CHECKED_BY_CALLER void name(const struct blocked_tile *t, u32 rows)                              \
	{                                                                                                       \
		switch (rows) {                                                                                 \
		case 1:                                                                                         \
			name##_rows(t, 1);                                                                      \
			break;                                                                                  \
		case 2:                                                                                         \
			name##_rows(t, 2);                                                                      \
			break;                                                                                  \
		case 3:                                                                                         \
			name##_rows(t, 3);                                                                      \
			break;                                                                                  \
		case 4:                                                                                         \
			name##_rows(t, 4);                                                                      \
			break;                                                                                  \
		case 5:                                                                                         \
			name##_rows(t, 5);                                                                      \
			break;                                                                                  \
		default:                                                                                        \
			name##_rows(t, TILE_ROWS);                                                              \
			break;                                                                                  \
		}                                                                                               \
	}
TILE_OF(tile_f32, half_f32, t->k_count)
TILE_OF(tile_bf16, half_bf16, t->k_count / 2)
#undef TILE_OF

static const struct blocked_kernel F32 = {
	.tile_rows = TILE_ROWS, .k_block = K_BLOCK, .value_bytes = 4, .pack = pack, .tile = tile_f32, .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};
static const struct blocked_kernel BF16 = {
	.tile_rows = TILE_ROWS, .k_block = K_BLOCK, .value_bytes = 4, .pack = pack, .tile = tile_bf16, .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};

void VARIANT(matmul_float_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	matmul_blocked(ctx, a, a->w->dtype == KERN_F32 ? &F32 : &BF16);
}
