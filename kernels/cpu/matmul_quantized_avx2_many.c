/* Matrix product of many rows with weights in 8 and 4 bits, for AVX2. The sums are those of cpu/matmul_quantized_avx2.c, to the
 * bit. Weights become 16 bits wide (8-bit ones) or bytes (4-bit ones) once for all rows of a block.
 *
 * 16 bits hold the sums of NARROW_UNITS whatever the inputs are, and of LONG_UNITS with nearly all there are: if in every lane
 * the positive inputs come to no more than LONG_MOST, and the negative ones, too. Where that holds for all inputs of a
 * product and their scales are no extremes (WAY_LONG), a group of 64 is one sum in 16 bits, and what conversion and product
 * with the inputs' scale would be is a subtraction, as in cpu/matmul_quantized_many.c. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_loop_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = LOOP_ROWS,
	LONG_UNITS = 16,
	LONG_MOST = 32767 / 15,
	INT8_K_BLOCK = 512,
	INT4_K_BLOCK = BLOCKED_K_MAX,
	INPUTS_HEAD = 8,   /* bytes of a row's group of inputs before its values: scale and sum */
	INT4_HEAD = 256,   /* bytes of an unpacked group before its values: scales, and zeros times -1 */
	UNIT_BYTES = 4 * KERN_PANEL,
};

/* ---------------------------------------------------------------- inputs */

/* most = the larger of `most` and, for both lanes of the units, twice the sum of the positive values or of the negative
 * ones, whichever is the larger. `q`: LONG_UNITS. */
static ALWAYS_INLINE __m128i largest_sums(const char *q, __m128i most)
{
	const __m256i ones = _mm256_set1_epi8(1);
	__m256i a = load(q), b = load(q + 32);
	__m256i sizes = _mm256_add_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(a), ones), _mm256_maddubs_epi16(_mm256_abs_epi8(b), ones));
	__m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(ones, a), _mm256_maddubs_epi16(ones, b));
	__m256i both = _mm256_add_epi16(_mm256_permute2x128_si256(sizes, sums, 0x20), _mm256_permute2x128_si256(sizes, sums, 0x31));
	both = _mm256_add_epi16(both, _mm256_shuffle_epi32(both, 0x4e));
	both = _mm256_add_epi16(both, _mm256_shuffle_epi32(both, 0xb1));
	return _mm_max_epi16(most, _mm_add_epi16(_mm256_castsi256_si128(both), _mm_abs_epi16(_mm256_extracti128_si256(both, 1))));
}

/* What decides whether inputs beside weights in 4 bits allow for WAY_LONG. */
struct extremes {
	bool scales; /* one of them is none by which BLOCKED_WHOLE can be multiplied */
	__m128i sums;
};

static ALWAYS_INLINE void add_extremes(struct extremes *e, float scale, const char *q, u32 width)
{
	e->scales |= !(scale <= 0x1p96f); /* of POWER_MOST */
	for (u32 i = 0; i + LONG_UNITS * 4 <= width; i += LONG_UNITS * 4)
		e->sums = largest_sums(q + i, e->sums);
}

static bool are_extreme(const struct extremes *e)
{
	const __m128i too_large = _mm_cmpgt_epi16(e->sums, _mm_set1_epi16(2 * LONG_MOST));
	return e->scales || _mm_movemask_epi8(too_large) != 0;
}

/* One group of some rows. `width` is a constant: everything about a row is one piece of straight code. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, bool int8, u32 width,
				     struct extremes *extremes, char *to)
{
	const u32 units = width / (int8 ? 2 : 4);
	float held[KERN_GROUP_MAX], laced[TILE_ROWS][KERN_GROUP_MAX / 2];
	for (u32 r = 0; r < rows; r++) {
		const float *from = group_values(j->a->w, x + r * j->a->x_stride, k, width, held);
		struct rounding rounding = int8 ? rounding_by_largest(from, width) : rounding_by_power(from, width);
		i32 sum = round_group(from, rounding, width, int8, laced[r]);
		if (!int8)
			add_extremes(extremes, rounding.scale, (const char *)laced[r], width);
		memcpy(to + r * 4, &rounding.scale, 4);
		store_sum(to + (rows + r) * 4, int8, sum);
	}
	lace_units(laced[0], KERN_GROUP_MAX / 2, rows, units, (float *)(void *)(to + rows * INPUTS_HEAD));
}

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const bool int8 = j->a->w->dtype == KERN_I8;
	const size_t bytes = (size_t)rows * (j->width * j->kernel->value_bytes + INPUTS_HEAD);
	struct extremes extremes = {false, _mm_setzero_si128()};
	for (u32 end = k + count; k < end; k += j->width, to += bytes)
		if (int8)
			pack_group(j, x, rows, k, true, 128, &extremes, to);
		else if (j->width == 128)
			pack_group(j, x, rows, k, false, 128, &extremes, to);
		else if (j->width == 64)
			pack_group(j, x, rows, k, false, 64, &extremes, to);
		else
			pack_group(j, x, rows, k, false, 32, &extremes, to);
	return are_extreme(&extremes);
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
	return any_scales ? BLOCKED_ZEROS : BLOCKED_POWERS;
}

/* ---------------------------------------------------------------- tiles */

/* sum = or, with `more`, += the sums in 16 bits. */
static ALWAYS_INLINE void add_narrow_sums(u32 rows, __m256i narrow[][HALF_VECS], bool more, __m256i sum[][HALF_VECS])
{
	const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (u32 v = 0; v < HALF_VECS; v++) {
			__m256i wide = _mm256_madd_epi16(narrow[r][v], ones);
			sum[r][v] = more ? _mm256_add_epi32(sum[r][v], wide) : wide;
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

/* A group in 8 bits, of `turns` of the loop. Its sums begin with what takes back the 128 added to the weights. */
static ALWAYS_INLINE void group_int8(struct loop_place *p, u32 rows, u32 turns, const char *head, const char *x,
				     vec sums[][HALF_VECS])
{
	__m256i sum[TILE_ROWS][HALF_VECS];
	loop_wide(p, rows, turns, x + rows * 4, sum);
	add_group(head, x, rows, true, sum, sums);
}

/* One in 4 bits, of any inputs. */
static ALWAYS_INLINE void group_int4(struct loop_place *p, u32 rows, u32 turns, const char *head, const char *x,
				     vec sums[][HALF_VECS])
{
	__m256i narrow[TILE_ROWS][HALF_VECS], sum[TILE_ROWS][HALF_VECS];
	loop_narrow(p, rows, kern_min(NARROW_UNITS / 2, turns), NULL, narrow);
	add_narrow_sums(rows, narrow, false, sum);
	for (u32 done = NARROW_UNITS / 2; done < turns; done += NARROW_UNITS / 2) {
		loop_narrow(p, rows, kern_min(NARROW_UNITS / 2, turns - done), NULL, narrow);
		add_narrow_sums(rows, narrow, true, sum);
	}
	add_group(head, x, rows, false, sum, sums);
}

/* A whole one in 4 bits, of inputs that are not extreme: add_group's value times the inputs' scale, then times the weights', which
 * is the same to the bit. */
static ALWAYS_INLINE void group_long(struct loop_place *p, u32 rows, const u32 width, const char *head, const char *x,
				     vec sums[][HALF_VECS])
{
	const float *scales = (const float *)(const void *)head, *inputs = (const float *)(const void *)x;
	const __m256i ones = _mm256_set1_epi16(1);
	const u32 turns = kern_min(width / 4, LONG_UNITS) / 2;
	__m256i narrow[TILE_ROWS][HALF_VECS], before[TILE_ROWS][HALF_VECS];
	float whole[VEC_LANES], input_sums[VEC_LANES]; /* of rows */
	vec_store(whole, vec_mul(vec_load(inputs), vec_set1(BLOCKED_WHOLE)));
	vec_store(input_sums, vec_mul(vec_load(inputs), vec_load(inputs + rows)));
	if (width > LONG_UNITS * 4) {
		loop_narrow(p, rows, turns, NULL, narrow);
		add_narrow_sums(rows, narrow, false, before);
		__asm__("" : "+m"(before)); /* all registers are taken */
	}
	loop_narrow(p, rows, turns, NULL, narrow);
#pragma GCC unroll 6
	for (u32 r = 0; r < rows; r++) {
		const vec begin = vec_set1(whole[r]), input_sum = vec_set1(input_sums[r]);
#pragma GCC unroll 2
		for (u32 v = 0; v < HALF_VECS; v++) {
			__m256i sum = _mm256_madd_epi16(narrow[r][v], ones);
			if (width > LONG_UNITS * 4)
				sum = _mm256_add_epi32(sum, before[r][v]);
			sum = _mm256_add_epi32(sum, _mm256_castps_si256(begin));
			vec value = vec_sub(_mm256_castsi256_ps(sum), begin);
			value = vec_fma(vec_load(scales + KERN_PANEL + v * VEC_LANES), input_sum, value);
			sums[r][v] = vec_fma(value, vec_load(scales + v * VEC_LANES), sums[r][v]);
		}
	}
}

/* How groups are computed. */
enum way { WAY_INT8, WAY_INT4, WAY_LONG };

/* `width`: a constant with WAY_LONG. */
static ALWAYS_INLINE void run_half(const struct blocked_tile *t, u32 column, u32 rows, enum way way, u32 width)
{
	const u32 head = way == WAY_INT8 ? KERN_GROUP_HEAD : INT4_HEAD, value_bytes = way == WAY_INT8 ? 2 : 1;
	const char *group = t->weights, *x = t->x;
	vec sums[TILE_ROWS][HALF_VECS];
	/* The other half asks for what lies behind. */
	const size_t asked = column > 0 ? (size_t)t->prefetch_step * kern_ceil(t->k_count * value_bytes, 8) : 0;
	struct loop_place p = {.prefetch = t->prefetch + asked, .prefetch_step = t->prefetch_step};
	half_begin(t, column, rows, sums);
	for (u32 k = 0; k < t->k_count; k += width) {
		const u32 turns = kern_ceil(kern_min(width, t->k_count - k) * value_bytes, 8);
		const char *own = group + column * 4;
		__asm__("" : "+m"(sums)); /* or some of them take registers of the whole sums */
		p.weights = own + head;
		p.x = x + rows * INPUTS_HEAD;
		if (way == WAY_INT8)
			group_int8(&p, rows, turns, own, x, sums);
		else if (way == WAY_LONG && turns == width / 8)
			group_long(&p, rows, width, own, x, sums);
		else
			group_int4(&p, rows, turns, own, x, sums);
		group += head + (size_t)width * KERN_PANEL * value_bytes;
		x += rows * (width * value_bytes + INPUTS_HEAD);
	}
	half_end(t, column, rows, sums);
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, u32 rows, enum way way, u32 width)
{
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r);
	run_half(t, 0, rows, way, width);
	run_half(t, HALF_COLUMNS, rows, way, width);
}

/* The row count is a constant in each case, so that sums live in registers. */
#define TILE_CASE(n, way, width)            \
	case n:                             \
		run_tile(t, n, way, width); \
		break;
#define TILE_OF(name, way, width)                            \
	static void name(const struct blocked_tile *t, u32 rows) \
	{                                                    \
		switch (rows) {                              \
			TILE_CASE(1, way, width)             \
			TILE_CASE(2, way, width)             \
			TILE_CASE(3, way, width)             \
			TILE_CASE(4, way, width)             \
			TILE_CASE(5, way, width)             \
		default:                                     \
			run_tile(t, TILE_ROWS, way, width);  \
			break;                               \
		}                                            \
	}
TILE_OF(tile_int8, WAY_INT8, KERN_GROUP_MAX)
TILE_OF(tile_int4_any, WAY_INT4, t->width)
TILE_OF(tile_int4_32, WAY_LONG, 32)
TILE_OF(tile_int4_64, WAY_LONG, 64)
TILE_OF(tile_int4_128, WAY_LONG, 128)
#undef TILE_OF
#undef TILE_CASE

static void tile_int4(const struct blocked_tile *t, u32 rows)
{
	if (t->scales != BLOCKED_POWERS)
		tile_int4_any(t, rows);
	else if (t->width == 128)
		tile_int4_128(t, rows);
	else if (t->width == 64)
		tile_int4_64(t, rows);
	else
		tile_int4_32(t, rows);
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
