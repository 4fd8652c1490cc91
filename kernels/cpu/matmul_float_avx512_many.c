/* Matrix product of many rows with float32 and (widened) bfloat16 weights, for AVX-512. The sums are those of cpu/matmul.c,
 * to the bit.
 *
 * Widening takes the ports that multiply. So a block's first tile of rows, which widens the weights for itself, leaves them in
 * the thread's memory for the others. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 12, /* 12 x 2 sums, 2 weights, inputs: 27 of 32 registers */
	K_BLOCK = 640, /* 80 KiB of a panel in float32, in the L2 cache: streams of it that go on for longer gain more than the L1 cache would */
};

/* ---------------------------------------------------------------- inputs */

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	lace_floats(x + k, j->x_stride, rows, count, to);
	return false;
}

/* ---------------------------------------------------------------- tiles */

/* sums += the inputs of one k times a panel's weights. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_k(const float *x, u32 rows, const vec of[VECS], vec sums[][VECS])
{
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
		vec_add_products(x + r, of, VECS, sums[r]);
}

/* One k of weights in float32. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_floats(const float *weights, const float *x, u32 rows, vec sums[][VECS])
{
	const vec of[VECS] = {vec_load(weights), vec_load(weights + VEC_LANES)};
	add_k(x, rows, of, sums);
}

/* One k of pairs, which go to `to` as well. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_halves(const char *pairs, bool second, float *to, const float *x, u32 rows, vec sums[][VECS])
{
	vec of[VECS];
#pragma GCC unroll 2
	for (u32 v = 0; v < VECS; v++) {
		of[v] = second ? vec_pair_second(pairs + v * sizeof(vec)) : vec_pair_first(pairs + v * sizeof(vec));
		vec_store(to + v * VEC_LANES, of[v]);
	}
	add_k(x, rows, of, sums);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void tile_floats(const struct blocked_tile *t, u32 rows)
{
	vec sums[TILE_ROWS][VECS];
	const float *weights = (const float *)(const void *)t->weights, *x = (const float *)(const void *)t->x;
	const char *prefetch = t->prefetch;
	sums_begin(t, rows, sums);
	for (u32 row = 0, k = 0; row < rows; row++) {
		sums_ahead(t, row, rows);
		for (const u32 end = t->k_count * (row + 1) / rows; k < end; k++) {
			_mm_prefetch(prefetch, _MM_HINT_T1);
			add_floats(weights, x, rows, sums);
			weights += KERN_PANEL;
			x += rows;
			prefetch += t->prefetch_step;
		}
	}
	sums_end(t, rows, sums);
}

static ALWAYS_INLINE CHECKED_BY_CALLER void tile_pairs(const struct blocked_tile *t, u32 rows)
{
	vec sums[TILE_ROWS][VECS];
	const char *pairs = t->packed, *prefetch = t->prefetch;
	const float *x = (const float *)(const void *)t->x;
	float *to = (float *)(void *)t->unpacked;
	sums_begin(t, rows, sums);
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r, rows);
	for (u32 k = 0; k < t->k_count; k += 2) {
		_mm_prefetch(prefetch, _MM_HINT_T1);
		_mm_prefetch(prefetch + t->prefetch_step, _MM_HINT_T1);
		add_halves(pairs, false, to, x, rows, sums);
		if (k + 1 < t->k_count)
			add_halves(pairs, true, to + KERN_PANEL, x + rows, rows, sums);
		pairs += KERN_GROUP_UNIT;
		to += 2 * KERN_PANEL;
		x += 2 * rows;
		prefetch += 2 * (size_t)t->prefetch_step;
	}
	sums_end(t, rows, sums);
}

/* The row count is a constant in each case, so that sums live in registers. */
#define TILE_CASE(tile_fn, n)  \
	case n:                \
		tile_fn(t, n); \
		break;
#define TILE_OF(name, tile_fn)                                                          \
	static CHECKED_BY_CALLER void name(const struct blocked_tile *t, u32 rows)      \
	{                                                                               \
		switch (rows) {                                                         \
			TILE_CASE(tile_fn, 6)                                           \
			TILE_CASE(tile_fn, 7)                                           \
			TILE_CASE(tile_fn, 8)                                           \
			TILE_CASE(tile_fn, 9)                                           \
			TILE_CASE(tile_fn, 10)                                          \
			TILE_CASE(tile_fn, 11)                                          \
		default:                                                                \
			tile_fn(t, TILE_ROWS);                                          \
			break;                                                          \
		}                                                                       \
	}
TILE_OF(tile_f32, tile_floats)
TILE_OF(tile_opening, tile_pairs)
#undef TILE_OF
#undef TILE_CASE

static void tile_bf16(const struct blocked_tile *t, u32 rows)
{
	if (CHECKS_BYTES) {
		check_bytes(t->packed, (size_t)kern_ceil(t->k_count, 2) * KERN_GROUP_UNIT);
		check_bytes(t->unpacked, (size_t)t->k_count * KERN_PANEL * sizeof(float));
	}
	if (t->opens)
		tile_opening(t, rows);
	else
		tile_f32(t, rows);
}

/* blocked_kernel.unpack: the first tile does it. */
static enum blocked_scales leave_packed(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	(void)w, (void)from, (void)k_count, (void)any_scales, (void)to;
	return BLOCKED_ANY;
}

static const struct blocked_kernel F32 = {
	.tile_rows = TILE_ROWS, .k_block = K_BLOCK, .value_bytes = 4, .pack = pack, .tile = tile_f32, .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};
static const struct blocked_kernel BF16 = {.tile_rows = TILE_ROWS,
					   .k_block = K_BLOCK,
					   .value_bytes = 4,
					   .pack = pack,
					   .unpack = leave_packed,
					   .tile = tile_bf16,
					   .act_mul = sums_act_mul,
					   .norm = &blocked_norm_avx2};

void VARIANT(matmul_float_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	_Static_assert(K_BLOCK * KERN_PANEL * sizeof(float) <= BLOCKED_UNPACKED, "a panel's block has room");
	ASSERT(a->tokens > TILE_ROWS); /* hence tiles of 6 rows or more */
	matmul_blocked(ctx, a, a->w->dtype == KERN_F32 ? &F32 : &BF16);
}
