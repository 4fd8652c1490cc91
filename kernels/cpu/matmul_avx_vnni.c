/* Matrix product of many rows with weights in 8 and 4 bits, for processors with AVX-VNNI (VPDPBUSD in vectors of 256 bits) that have no
 * AVX-512: products of bytes summed up by fours in 32 bits, where AVX2 alone widens them or takes 16 bits. The sums are those of
 * cpu/matmul_quantized_avx2.c, to the bit; what has few rows goes there. */
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 6, /* 6 x 2 sums, 2 weights, 1 input: 15 of 16 registers */
	FEW_INT8 = 6, /* rows, up to which reading ahead counts for more, */
	FEW_INT4 = 12, /* and unpacking of what memory has brought */
	INPUTS_HEAD = 8, /* bytes of a row's group of inputs before its values: scale and sum */
	INT4_HEAD = 2 * KERN_PANEL * 4, /* of an unpacked group of weights: scales, and zeros times -1 */
	UNIT_VALUES = 4, /* whose products are one sum of 32 bits */
};

/* ---------------------------------------------------------------- inputs */

/* One group of some rows: scales, sums, and values by rows. `width` is a constant. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, const u32 width, char *to)
{
	const bool int8 = j->a->w->dtype == KERN_I8;
	float held[TILE_ROWS][KERN_GROUP_MAX];
	const float *from[TILE_ROWS];
	struct rounding roundings[TILE_ROWS];
	for (u32 r = 0; r < rows; r++) {
		from[r] = group_values(j->a->w, x + r * j->x_stride, k, width, held[r]);
		roundings[r] = int8 ? rounding_by_eighths(from[r], width) : rounding_by_power(from[r], width);
	}
	for (u32 r = 0; r < rows; r++) {
		const i32 sum = round_values(from[r], roundings[r].inverse, width, (signed char *)to + rows * INPUTS_HEAD + r * width);
		memcpy(to + r * 4, &roundings[r].scale, 4);
		store_sum(to + (rows + r) * 4, int8, sum);
	}
}

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const size_t bytes = (size_t)rows * (j->width + INPUTS_HEAD);
	for (u32 end = k + count; k < end; k += j->width, to += bytes)
		if (j->width == 128)
			pack_group(j, x, rows, k, 128, to);
		else if (j->width == 64)
			pack_group(j, x, rows, k, 64, to);
		else
			pack_group(j, x, rows, k, 32, to);
	return false;
}

/* ---------------------------------------------------------------- weights */

/* Groups of scales [32], zeros [32] times -1 and values [k / 4][32][4] in 8 bits. */
static enum blocked_scales unpack_int4(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const __m256i low = _mm256_set1_epi8(15);
	const u32 width = kern_dtype_group(w->dtype);
	(void)any_scales;
	for (u32 k = 0; k < k_count; k += width) {
		const u32 units = kern_ceil(kern_min(width, k_count - k), 2 * UNIT_VALUES);
		float *head = (float *)(void *)to;
		for (u32 n = 0; n < KERN_PANEL; n += VEC_LANES) {
			vec_store(head + n, load_f16(from + n * 2));
			vec_store(head + KERN_PANEL + n, vec_sub(vec_zero(), load_f16(from + (KERN_PANEL + n) * 2)));
		}
		from += KERN_GROUP_HEAD;
		to += INT4_HEAD;
		for (u32 u = 0; u < units; u++, from += KERN_GROUP_UNIT, to += 2 * (size_t)KERN_GROUP_UNIT)
#pragma GCC unroll 4
			for (u32 v = 0; v < KERN_GROUP_UNIT; v += 32) {
				const __m256i bytes = load(from + v);
				store(to + v, _mm256_and_si256(bytes, low));
				store(to + KERN_GROUP_UNIT + v, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low));
			}
	}
	return BLOCKED_ANY;
}

/* ---------------------------------------------------------------- tiles */

/* sums += four values of a row, at `x`, times those of two vectors of columns. Written out, for the compiler moves sums from register to
 * register and keeps one in memory. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_fours(const char *x, __m256i first, __m256i second, __m256i sums[HALF_VECS])
{
	__m256i input;
	__asm__("vpbroadcastd %3, %2\n\t%{vex%} vpdpbusd %2, %4, %0\n\t%{vex%} vpdpbusd %2, %5, %1"
		: "+&x"(sums[0]), "+&x"(sums[1]), "=&x"(input)
		: "m"(*(const char(*)[UNIT_VALUES])x), "x"(first), "x"(second));
}

/* sums = the products of `units` units of one group of some rows with half a panel, whose weights begin at `weights`. In 8 bits they begin
 * with what takes back the 128 added to the weights. `x`: of the group's inputs. */
static ALWAYS_INLINE CHECKED_BY_CALLER void add_units(const char *weights, const char *x, u32 rows, u32 units, u32 width, bool int8,
						      __m256i sums[][HALF_VECS])
{
	const char *values = x + rows * INPUTS_HEAD;
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
		sums[r][0] = sums[r][1] = int8 ? _mm256_set1_epi32(load_i32(x + (rows + r) * 4)) : _mm256_setzero_si256();
#pragma GCC unroll 1
	for (u32 u = 0; u < units; u++, weights += KERN_GROUP_UNIT, values += UNIT_VALUES) {
		const __m256i first = load(weights), second = load(weights + 32);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++)
			add_fours(values + (size_t)r * width, first, second, sums[r]);
	}
}

/* total += scale * inputs' scale * (products - zero * sum of the inputs), [rows][HALF_COLUMNS]. `head`: of the weights' group, at the half's
 * first column. */
static ALWAYS_INLINE CHECKED_BY_CALLER void join(const char *head, const char *x, u32 rows, bool int8, __m256i sums[][HALF_VECS], float *total)
{
#pragma GCC unroll 2
	for (u32 v = 0; v < HALF_VECS; v++) {
		const float *at = (const float *)(const void *)head + v * VEC_LANES;
		const struct group_scales scales = {vec_load(at), int8 ? vec_zero() : vec_load(at + KERN_PANEL)};
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++) {
			float *to = total + r * HALF_COLUMNS + v * VEC_LANES;
			vec_store(to, add_scaled(vec_load(to), sums[r][v], &scales, x + r * 4, x + (rows + r) * 4, !int8));
		}
	}
}

/* Asks for what comes next, a line a group and tile at least. */
static ALWAYS_INLINE const char *group_ahead(const struct blocked_tile *t, const char *prefetch, u32 units)
{
	const char *end = prefetch + (size_t)t->prefetch_step * units;
	for (; prefetch < end; prefetch += 64)
		_mm_prefetch(prefetch, _MM_HINT_T1);
	return end;
}

static ALWAYS_INLINE CHECKED_BY_CALLER void run_tile(const struct blocked_tile *t, u32 rows, u32 width, bool int8)
{
	const size_t head = int8 ? KERN_GROUP_HEAD : INT4_HEAD, bytes = head + width / UNIT_VALUES * (size_t)KERN_GROUP_UNIT;
	const char *prefetch = t->prefetch;
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r, rows);
	for (u32 column = 0; column < KERN_PANEL; column += HALF_COLUMNS) {
		const char *group = t->weights + column * 4, *x = t->x;
		float total[TILE_ROWS * HALF_COLUMNS];
		__m256i sums[TILE_ROWS][HALF_VECS];
		half_begin_in(t, column, rows, total, HALF_COLUMNS);
		for (u32 k = 0; k < t->k_count; k += width, group += bytes, x += (size_t)rows * (width + INPUTS_HEAD)) {
			const u32 units = kern_ceil(kern_min(width, t->k_count - k), UNIT_VALUES);
			if (column == 0)
				prefetch = group_ahead(t, prefetch, units);
			add_units(group + head, x, rows, units, width, int8, sums);
			join(group, x, rows, int8, sums, total);
		}
		half_end_of(t, column, rows, total, HALF_COLUMNS);
	}
}

/* All that a tile reads. */
static void check_tile(const struct blocked_tile *t, u32 rows, u32 width, bool int8)
{
	const size_t groups = kern_ceil(t->k_count, width), head = int8 ? KERN_GROUP_HEAD : INT4_HEAD;
	check_bytes(t->weights, groups * head + kern_ceil(t->k_count, UNIT_VALUES) * (size_t)KERN_GROUP_UNIT);
	check_bytes(t->x, groups * rows * (width + INPUTS_HEAD));
}

/* The row count is a constant in each case, so that sums live in registers. More rows than a tile's are cut evenly: none has fewer than 3. */
#define TILE_CASE(n, width, int8)            \
	case n:                              \
		run_tile(t, n, width, int8); \
		break;
#define KERNEL(name, width, int8, unpack_fn)                                                \
	static CHECKED_BY_CALLER void name##_rows(const struct blocked_tile *t, u32 rows) \
	{                                                                                   \
		switch (rows) {                                                             \
			TILE_CASE(3, width, int8)                                           \
			TILE_CASE(4, width, int8)                                           \
			TILE_CASE(5, width, int8)                                           \
		default:                                                                    \
			run_tile(t, TILE_ROWS, width, int8);                                \
			break;                                                              \
		}                                                                           \
	}                                                                                   \
	static void name##_tile(const struct blocked_tile *t, u32 rows)                     \
	{                                                                                   \
		if (CHECKS_BYTES)                                                           \
			check_tile(t, rows, width, int8);                                   \
		name##_rows(t, rows);                                                       \
	}                                                                                   \
	static const struct blocked_kernel name = {.tile_rows = TILE_ROWS,                  \
						   .k_block = BLOCKED_K_MAX,                \
						   .value_bytes = 1,                        \
						   .head_bytes = INPUTS_HEAD,               \
						   .pack = pack,                            \
						   .unpack = unpack_fn,                     \
						   .tile = name##_tile,                     \
						   .act_mul = sums_act_mul,                 \
						   .norm = &blocked_norm_avx2};
KERNEL(int8, 128, true, NULL)
KERNEL(int4_32, 32, false, unpack_int4)
KERNEL(int4_64, 64, false, unpack_int4)
KERNEL(int4_128, 128, false, unpack_int4)
#undef KERNEL
#undef TILE_CASE

static const struct blocked_kernel *kernel_for(const struct kern_weight *w)
{
	if (w->dtype == KERN_I8)
		return &int8;
	return kern_dtype_group(w->dtype) == 128 ? &int4_128 : kern_dtype_group(w->dtype) == 64 ? &int4_64 : &int4_32;
}

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const u32 few = a->fusion ? KERN_CPU_UNFUSED_TOKENS : a->w->dtype == KERN_I8 ? FEW_INT8 : FEW_INT4;
	if (a->w->packed != KERN_LAYOUT_GROUPS || a->w->dtype == KERN_I4_STEPS || a->tokens <= few ||
	    (a->fusion && !matmul_blocked_fuses(a)))
		return matmul_avx2(ctx, a);
	matmul_blocked(ctx, a, kernel_for(a->w));
	return ERR_OK;
}
