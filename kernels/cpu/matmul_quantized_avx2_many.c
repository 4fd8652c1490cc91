/* Matrix product of many rows with weights in 8 and 4 bits, for AVX2. The sums are those of cpu/matmul_quantized_avx2.c, to the
 * bit. Weights become 16 bits wide (8-bit ones) or bytes (4-bit ones) once for all rows of a block. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 6, /* 6 x 2 sums, 2 weights, an input, a product: 16 registers */
	INT8_K_BLOCK = 512,
	INT4_K_BLOCK = BLOCKED_K_MAX,
	INPUTS_HEAD = 8,   /* bytes of a row's group of inputs before its values: scale and sum */
	INT4_HEAD = 256,   /* bytes of an unpacked group before its values: scales, and zeros times -1 */
	UNIT_BYTES = 4 * KERN_PANEL,
};

/* ---------------------------------------------------------------- inputs */

/* One group of some rows. `width` is a constant: everything about a row is one piece of straight code. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, bool int8, u32 width, char *to)
{
	const u32 units = width / (int8 ? 2 : 4);
	float held[KERN_GROUP_MAX], laced[TILE_ROWS][KERN_GROUP_MAX / 2];
	for (u32 r = 0; r < rows; r++) {
		const float *from = group_values(j->a->w, x + r * j->a->x_stride, k, width, held);
		struct rounding rounding = int8 ? rounding_by_largest(from, width) : rounding_by_power(from, width);
		i32 sum = round_group(from, rounding, width, int8, laced[r]);
		memcpy(to + r * 4, &rounding.scale, 4);
		store_sum(to + (rows + r) * 4, int8, sum);
	}
	lace_units(laced[0], KERN_GROUP_MAX / 2, rows, units, (float *)(void *)(to + rows * INPUTS_HEAD));
}

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const bool int8 = j->a->w->dtype == KERN_I8;
	const size_t bytes = (size_t)rows * (j->width * j->kernel->value_bytes + INPUTS_HEAD);
	for (u32 end = k + count; k < end; k += j->width, to += bytes)
		if (int8)
			pack_group(j, x, rows, k, true, 128, to);
		else if (j->width == 128)
			pack_group(j, x, rows, k, false, 128, to);
		else if (j->width == 64)
			pack_group(j, x, rows, k, false, 64, to);
		else
			pack_group(j, x, rows, k, false, 32, to);
	return true;
}

/* ---------------------------------------------------------------- weights */

/* Groups of scales [32] and values [k / 2][32][2] in 16 bits: of 4 neighbours the first and the third, then the others. */
static enum blocked_scales unpack_int8(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const __m256i low = _mm256_set1_epi16(255);
	(void)w;
	(void)any_scales;
	for (u32 k = 0; k < k_count; k += KERN_GROUP_MAX) {
		u32 units = kern_ceil(kern_min(KERN_GROUP_MAX, k_count - k), 4);
		memcpy(to, from, KERN_GROUP_HEAD);
		from += KERN_GROUP_HEAD;
		to += KERN_GROUP_HEAD;
		for (u32 u = 0; u < units; u++, from += KERN_GROUP_UNIT, to += 2 * (size_t)UNIT_BYTES)
#pragma GCC unroll 4
			for (u32 v = 0; v < UNIT_BYTES; v += 32) {
				__m256i bytes = load(from + v);
				store(to + v, _mm256_and_si256(bytes, low));
				store(to + UNIT_BYTES + v, _mm256_srli_epi16(bytes, 8));
			}
	}
	return BLOCKED_ANY;
}

/* Groups of scales [32], zeros [32] times -1 and bytes [k / 4][32][4]. */
static enum blocked_scales unpack_int4(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const u32 width = kern_dtype_group(w->dtype);
	const __m256i mask = _mm256_set1_epi8(15);
	(void)any_scales;
	for (u32 k = 0; k < k_count; k += width) {
		u32 units = kern_ceil(kern_min(width, k_count - k), 8);
		float *head = (float *)(void *)to;
		for (u32 n = 0; n < KERN_PANEL; n += VEC_LANES) {
			vec_store(head + n, load_f16(from + n * 2));
			vec_store(head + KERN_PANEL + n, vec_sub(vec_zero(), load_f16(from + (KERN_PANEL + n) * 2)));
		}
		from += KERN_GROUP_HEAD;
		to += INT4_HEAD;
		for (u32 u = 0; u < units; u++, from += KERN_GROUP_UNIT, to += 2 * (size_t)UNIT_BYTES)
#pragma GCC unroll 4
			for (u32 v = 0; v < UNIT_BYTES; v += 32) {
				__m256i both = load(from + v);
				store(to + v, _mm256_and_si256(both, mask));
				store(to + UNIT_BYTES + v, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
			}
	}
	return BLOCKED_ZEROS;
}

/* ---------------------------------------------------------------- tiles */

/* Where half a tile is in its block of k. `weights`: of its first column; `x`: values of the inputs' group. */
struct place {
	const char *weights, *x, *prefetch;
};

/* `count` units of all rows, of pairs in 16 bits or of 4 bytes. */
static ALWAYS_INLINE void add_units(struct place *p, u32 rows, u32 count, u32 prefetch_step, bool int8, __m256i sum[][HALF_VECS])
{
	/* Not unrolled: the compiler would move the sums around between the copies of the body. */
#pragma GCC unroll 1
	for (const char *end = p->x + (size_t)count * rows * 4; p->x != end;) {
		__m256i low = load(p->weights), high = load(p->weights + 32);
		_mm_prefetch(p->prefetch, _MM_HINT_T1);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++) {
			__m256i x = _mm256_set1_epi32(load_i32(p->x + r * 4));
			if (int8) {
				add_wide(&sum[r][0], low, x);
				add_wide(&sum[r][1], high, x);
			} else {
				add_narrow(&sum[r][0], low, x);
				add_narrow(&sum[r][1], high, x);
			}
		}
		p->weights += UNIT_BYTES;
		p->x += rows * 4;
		p->prefetch += prefetch_step;
	}
}

/* The whole sums of a group in 8 bits. `begin`: what takes back the 128 added to the weights. */
static ALWAYS_INLINE void group_int8(struct place *p, u32 rows, u32 k_count, u32 prefetch_step, const char *begin,
				     __m256i sum[][HALF_VECS])
{
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
		sum[r][0] = sum[r][1] = _mm256_set1_epi32(load_i32(begin + r * 4));
	add_units(p, rows, kern_ceil(k_count, 4) * 2, prefetch_step, true, sum);
}

static ALWAYS_INLINE void group_int4(struct place *p, u32 rows, u32 k_count, u32 prefetch_step, __m256i sum[][HALF_VECS])
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i narrow[TILE_ROWS][HALF_VECS];
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
		sum[r][0] = sum[r][1] = _mm256_setzero_si256();
	for (u32 units = kern_ceil(k_count, 4), done = 0; done < units; done += NARROW_UNITS) {
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++)
			narrow[r][0] = narrow[r][1] = _mm256_setzero_si256();
		add_units(p, rows, kern_min(NARROW_UNITS, units - done), prefetch_step, false, narrow);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
			for (u32 v = 0; v < HALF_VECS; v++)
				sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(narrow[r][v], ones));
	}
}

/* sums += scale * inputs' scale * (products of the group - zero * sum of the inputs). `head`: the group's scales and zeros of
 * these columns; `x`: the inputs' group. */
static ALWAYS_INLINE void add_group(const char *head, const char *x, u32 rows, bool int8, __m256i sum[][HALF_VECS],
				    vec sums[][HALF_VECS])
{
#pragma GCC unroll 2
	for (u32 v = 0; v < HALF_VECS; v++) {
		const float *scales = (const float *)(const void *)head + v * VEC_LANES;
		vec scale = vec_load(scales), zero = int8 ? vec_zero() : vec_load(scales + KERN_PANEL);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++) {
			vec value = _mm256_cvtepi32_ps(sum[r][v]);
			if (!int8)
				value = vec_fma(zero, vec_set1(load_float(x + (rows + r) * 4)), value);
			vec both = vec_mul(scale, vec_set1(load_float(x + r * 4)));
			sums[r][v] = vec_fma(value, both, sums[r][v]);
		}
	}
}

static ALWAYS_INLINE void run_half(const struct blocked_tile *t, u32 column, u32 rows, bool int8)
{
	const u32 head = int8 ? KERN_GROUP_HEAD : INT4_HEAD, width = t->width;
	const char *group = t->weights, *x = t->x;
	/* The other half asks for what lies behind. */
	const u32 steps = kern_ceil(t->k_count, int8 ? 2 : 4), step = t->prefetch_step / 2;
	struct place p = {.prefetch = t->prefetch + (column > 0 ? (size_t)step * steps : 0)};
	__m256i sum[TILE_ROWS][HALF_VECS];
	vec sums[TILE_ROWS][HALF_VECS];
	half_begin(t, column, rows, sums);
	for (u32 k = 0; k < t->k_count; k += width) {
		const u32 count = kern_min(width, t->k_count - k);
		__asm__("" : "+m"(sums)); /* or some of them take registers of the whole sums */
		p.weights = group + head + column * 4;
		p.x = x + rows * INPUTS_HEAD;
		if (int8)
			group_int8(&p, rows, count, step, x + rows * 4, sum);
		else
			group_int4(&p, rows, count, step, sum);
		add_group(group + column * 4, x, rows, int8, sum, sums);
		group += head + (size_t)width * KERN_PANEL * (int8 ? 2 : 1);
		x += rows * (width * (int8 ? 2 : 1) + INPUTS_HEAD);
	}
	half_end(t, column, rows, sums);
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, u32 rows, bool int8)
{
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r);
	run_half(t, 0, rows, int8);
	run_half(t, HALF_COLUMNS, rows, int8);
}

/* The row count is a constant in each case, so that sums live in registers. */
#define TILE_CASE(n, int8)            \
	case n:                       \
		run_tile(t, n, int8); \
		break;
#define TILE_SWITCH(int8)                     \
	switch (rows) {                       \
		TILE_CASE(1, int8)            \
		TILE_CASE(2, int8)            \
		TILE_CASE(3, int8)            \
		TILE_CASE(4, int8)            \
		TILE_CASE(5, int8)            \
	default:                              \
		run_tile(t, TILE_ROWS, int8); \
		break;                        \
	}

static void tile_int8(const struct blocked_tile *t, u32 rows)
{
	TILE_SWITCH(true)
}

static void tile_int4(const struct blocked_tile *t, u32 rows)
{
	TILE_SWITCH(false)
}

static const struct blocked_kernel INT8 = {.tile_rows = TILE_ROWS,
					   .k_block = INT8_K_BLOCK,
					   .value_bytes = 2,
					   .head_bytes = INPUTS_HEAD,
					   .pack = pack,
					   .unpack = unpack_int8,
					   .tile = tile_int8,
					   .act_mul = sums_act_mul};
static const struct blocked_kernel INT4 = {.tile_rows = TILE_ROWS,
					   .k_block = INT4_K_BLOCK,
					   .value_bytes = 1,
					   .head_bytes = INPUTS_HEAD,
					   .pack = pack,
					   .unpack = unpack_int4,
					   .tile = tile_int4,
					   .act_mul = sums_act_mul};

void VARIANT(matmul_quantized_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	matmul_blocked(ctx, a, a->w->dtype == KERN_I8 ? &INT8 : &INT4);
}
