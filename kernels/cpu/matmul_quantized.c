/* Matrix product with weights in 8 and 4 bits, for AVX-512 and AVX-512 with VNNI (one object each).
 *
 * Inputs are rounded to 8 bits, per token and group of at most 128; sums inside such a group are whole
 * numbers. They are put together in float, groups in rising order, so a row's result depends neither on the
 * other rows nor on the threads, and not on the instruction set either. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/rounding_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	REGISTER_ROWS = 6, /* 6 x 2 sums of whole numbers and as many of floats, up to 4 weights */
	TILE_ROWS = 8,	   /* the sums of floats stay in memory */
	TILE_VECS = 2,
	VECS_OF_ONE = KERN_PANEL / VEC_LANES, /* one row takes a panel: one stream of memory */
	K_BLOCK = 2048, /* 64 KiB of a panel */
#ifdef __AVX512VNNI__
	TALL_ROWS = 2 * TILE_ROWS, /* of a tile with weights in 8 bits; more gain by blocks that stay in the L2 cache */
#else
	TALL_ROWS = TILE_ROWS,
#endif
	INT8_ALONE_ROWS = 5, /* see matmul_kernel.alone_rows */
	INT4_ALONE_ROWS = 6,
};

typedef __m512i ivec;
#define ivec_load(p)	 _mm512_loadu_si512(p)
#define ivec_set1_8(x)	 _mm512_set1_epi8(x)
#define ivec_set1_32(x)	 _mm512_set1_epi32(x)
#define ivec_and(a, b)	 _mm512_and_si512(a, b)
#define ivec_high4(a)	 _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15))
#define ivec_to_float(a) _mm512_cvtepi32_ps(a)
#define vec_load_f16(p)	 _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))

/* ---------------------------------------------------------------- inputs */

/* What the tiles take of a group's sum: for int8 the whole number that takes back the 128 added to the
 * weights, for int4 the sum itself, which zeros are multiplied by. */
static void store_sum(char *to, bool int8, i32 sum)
{
	float value = (float)sum;
	sum *= -128;
	memcpy(to, int8 ? (void *)&sum : (void *)&value, 4);
}

/* One group of a row: its bytes as units `stride` apart, its scale, its sum. */
static ALWAYS_INLINE void pack_group(const float *from, u32 width, bool int8, char *units, size_t stride, char *scale_at,
				     char *sum_at)
{
	signed char q[KERN_GROUP_MAX];
	struct rounding rounding = int8 ? rounding_by_eighths(from, width) : rounding_by_power(from, width);
	i32 sum = round_values(from, rounding.inverse, width, q);
#pragma GCC unroll 32
	for (u32 i = 0; i < width; i += 4)
		memcpy(units + i / 4 * stride, q + i, 4);
	memcpy(scale_at, &rounding.scale, 4);
	store_sum(sum_at, int8, sum);
}

/* `width` is a constant: everything about a group is one piece of straight code, and the next one begins before it ends. */
static ALWAYS_INLINE void pack_groups(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first,
				      u32 end, u32 width)
{
	const struct matmul_inputs *in = &j->in;
	char *scales = to + ((size_t)in->scales_at * rows + r * 4),
	     *sums = to + ((size_t)in->sums_at * rows + r * 4);
	const bool int8 = j->a->w->dtype == KERN_I8;
	const size_t stride = (size_t)rows * 4;
	float held[KERN_GROUP_MAX];
	char *units = to + (size_t)first / 4 * stride + r * 4;
	for (u32 g = first / width; g < kern_ceil(end, width); g++, units += width / 4 * stride)
		pack_group(group_values(j->a->w, x, g * width, width, held), width, int8, units, stride,
			   scales + g * stride, sums + g * stride);
}

static void pack(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	if (j->in.width == 128)
		pack_groups(j, x, r, rows, to, first, end, 128);
	else if (j->in.width == 64)
		pack_groups(j, x, r, rows, to, first, end, 64);
	else
		pack_groups(j, x, r, rows, to, first, end, 32);
}

/* ---------------------------------------------------------------- tiles */

/* sum += 4 products of an unsigned and a signed byte in every lane. */
static ALWAYS_INLINE ivec dot_int4(ivec sum, ivec weights, ivec x)
{
#if defined(__AVX512VNNI__)
	return _mm512_dpbusd_epi32(sum, weights, x);
#else
	return _mm512_add_epi32(sum,
				_mm512_madd_epi16(_mm512_maddubs_epi16(weights, x), _mm512_set1_epi16(1)));
#endif
}

/* The same for weights above 127, whose products in pairs exceed 16 bits: they are taken as the even and the
 * odd bytes. */
static ALWAYS_INLINE ivec dot_int8(ivec sum, ivec weights, ivec x)
{
#if defined(__AVX512VNNI__)
	return _mm512_dpbusd_epi32(sum, weights, x);
#else
	ivec low = _mm512_set1_epi16(255);
	ivec even = _mm512_madd_epi16(_mm512_and_si512(weights, low),
				      _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
	ivec odd = _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(x, 8));
	return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}

static ALWAYS_INLINE ivec four_inputs(const char *x)
{
	i32 four;
	memcpy(&four, x, 4);
	return ivec_set1_32(four);
}

static ALWAYS_INLINE const char *unit_of(const struct matmul_tile *t, const char *units, u32 v)
{
	return units + t->column * 4 + v * sizeof(ivec);
}

/* Adds the products of `count` units. `x`: the inputs at the first, units `stride` rows apart. */
static ALWAYS_INLINE void add_int8(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, const char *units,
				   const char *x, u32 count, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
#pragma GCC unroll 4
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 4) {
		ivec w[VECS_OF_ONE];
		if (asks == TILE_ASKS)
			tile_prefetch_bytes(t, fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			w[v] = ivec_load(unit_of(t, units, v));
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			ivec four = four_inputs(x + r * 4);
#pragma GCC unroll 4
			for (u32 v = 0; v < vecs; v++)
				sum[r][v] = dot_int8(sum[r][v], w[v], four);
		}
	}
}

static ALWAYS_INLINE void add_int4(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, const char *units,
				   const char *x, u32 count, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 8) {
		ivec low[VECS_OF_ONE], high[VECS_OF_ONE];
		if (asks == TILE_ASKS)
			tile_prefetch(t, fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			high[v] = ivec_load(unit_of(t, units, v));
			low[v] = ivec_and(high[v], ivec_set1_8(15));
			high[v] = ivec_high4(high[v]);
		}
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			ivec first = four_inputs(x + r * 4);
#pragma GCC unroll 4
			for (u32 v = 0; v < vecs; v++)
				sum[r][v] = dot_int4(sum[r][v], low[v], first);
		}
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			ivec second = four_inputs(x + (stride + r) * 4);
#pragma GCC unroll 4
			for (u32 v = 0; v < vecs; v++)
				sum[r][v] = dot_int4(sum[r][v], high[v], second);
		}
	}
}

/* Where a tile is: its group of weights, the group's inputs with their scales and sums, what is fetched. */
struct place {
	const char *group, *x, *scales, *sums;
	struct tile_fetch fetch;
};

/* total += scale * inputs' scale * (products of the group - zero * sum of the inputs). */
static ALWAYS_INLINE void add_group(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, bool int4,
				    enum tile_asks asks, struct place *p, u32 k_count, vec total[][VECS_OF_ONE])
{
	ivec sum[TILE_ROWS][VECS_OF_ONE];
	u32 count = kern_ceil(k_count, int4 ? 8 : 4);
	if (asks == TILE_ASKS)
		tile_prefetch_turn(t, &p->fetch);
	else if (asks == TILE_ASKS_SELDOM)
		tile_prefetch_seldom(p->group, KERN_GROUP_HEAD + count * KERN_GROUP_UNIT);
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = int4 ? ivec_set1_32(0) : four_inputs(p->sums + r * 4);
	if (int4)
		add_int4(t, rows, stride, vecs, p->group + KERN_GROUP_HEAD, p->x, count, sum, asks, &p->fetch);
	else
		add_int8(t, rows, stride, vecs, p->group + KERN_GROUP_HEAD, p->x, count, sum, asks, &p->fetch);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		const char *head = p->group;
		u32 column = t->column + v * VEC_LANES;
		vec scale, zero = vec_zero();
		if (!int4)
			scale = vec_load((const float *)(const void *)head + column);
		else {
			scale = vec_load_f16(head + column * 2);
			zero = vec_sub(zero, vec_load_f16(head + KERN_PANEL * 2 + column * 2));
		}
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			vec value = ivec_to_float(sum[r][v]);
			if (int4)
				value = vec_fma(zero, vec_set1(load_float(p->sums + r * 4)), value);
			vec both = vec_mul(scale, vec_set1(load_float(p->scales + r * 4)));
			total[r][v] = vec_fma(value, both, total[r][v]);
		}
	}
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, u32 rows, u32 vecs, bool int4, enum tile_asks asks)
{
	vec total[TILE_ROWS][VECS_OF_ONE];
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_begin(t)};
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		if (rows > REGISTER_ROWS)
			__asm__("" : "+m"(total)); /* or the compiler spills the sums of whole numbers, in each unit */
		add_group(t, rows, rows, vecs, int4, asks, &p, kern_min(t->width, t->k_count - k), total);
		p.group += KERN_GROUP_HEAD + t->width / (int4 ? 8 : 4) * KERN_GROUP_UNIT;
		p.x += (size_t)t->width * rows;
		p.scales += rows * 4;
		p.sums += rows * 4;
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			tile_store_sum(t, r, v, total[r][v]);
}

#ifdef __AVX512VNNI__
/* Some of a tall tile's `stride` rows times one group, with nothing but the whole numbers in registers. */
static ALWAYS_INLINE void run_part(const struct matmul_tile *t, u32 rows, u32 stride, struct place *p, u32 k_count,
				   vec total[][VECS_OF_ONE])
{
	__asm__("" : "+m"(*(vec(*)[TILE_ROWS][VECS_OF_ONE])total));
	add_group(t, rows, stride, TILE_VECS, false, TILE_ASKS, p, k_count, total);
}

static void run_parts(const struct matmul_tile *t, u32 rows, u32 stride, struct place *p, u32 k_count,
		      vec total[][VECS_OF_ONE])
{
#define PART_CASE(n)                                          \
	case n:                                               \
		run_part(t, n, stride, p, k_count, total);    \
		break;
	switch (rows) {
		PART_CASE(4)
		PART_CASE(5)
		PART_CASE(6)
		PART_CASE(7)
	default:
		run_part(t, TILE_ROWS, stride, p, k_count, total);
		break;
	}
#undef PART_CASE
}

/* More rows than there are registers for: group by group in two parts, so that memory is read once and in order, as the
 * processor does it best, and the second part finds the group in the L1 cache. */
static void run_tall(const struct matmul_tile *t, u32 rows)
{
	vec total[TALL_ROWS][VECS_OF_ONE];
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_begin(t)};
	struct matmul_tile half = *t;
	const u32 first = rows / 2;
	half.prefetch_step = t->prefetch_step / 2;
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		u32 count = kern_min(t->width, t->k_count - k);
		struct place second = p;
		run_parts(&half, first, rows, &p, count, total);
		second.x += first * 4;
		second.scales += first * 4;
		second.sums += first * 4;
		second.fetch = p.fetch;
		run_parts(&half, rows - first, rows, &second, count, total + first);
		p.fetch = second.fetch;
		p.group += KERN_GROUP_HEAD + t->width / 4 * KERN_GROUP_UNIT;
		p.x += (size_t)t->width * rows;
		p.scales += rows * 4;
		p.sums += rows * 4;
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			tile_store_sum(t, r, v, total[r][v]);
}
#endif

/* Rows so few that they may be left alone, with weights of either type or of one: the other is spared the code. */
static ALWAYS_INLINE void run_few(const struct matmul_tile *t, u32 rows, u32 vecs, bool int4)
{
	if (t->prefetch_step > 0 || rows > (int4 ? INT4_ALONE_ROWS : INT8_ALONE_ROWS))
		run_tile(t, rows, vecs, int4, TILE_ASKS);
	else if (rows == 1 || rows > MATMUL_ALONE_ROWS)
		run_tile(t, rows, vecs, int4, TILE_ASKS_SELDOM);
	else
		run_tile(t, rows, vecs, int4, TILE_ASKS_NOTHING);
}

#define FEW_CASE(n, vecs, int4)            \
	case n:                            \
		run_few(t, n, vecs, int4); \
		break;
#define TILE_CASE(n, int4)                                  \
	case n:                                             \
		run_tile(t, n, TILE_VECS, int4, TILE_ASKS); \
		break;
/* The row count is a constant in each case, so that the sums live in registers. */
#define TILE_SWITCH(int4)                                           \
	switch (rows) {                                             \
		FEW_CASE(1, VECS_OF_ONE, int4)                      \
		FEW_CASE(2, TILE_VECS, int4)                        \
		FEW_CASE(3, TILE_VECS, int4)                        \
		FEW_CASE(4, TILE_VECS, int4)                        \
		FEW_CASE(5, TILE_VECS, int4)                        \
		FEW_CASE(6, TILE_VECS, int4)                        \
		TILE_CASE(7, int4)                                  \
	default:                                                    \
		run_tile(t, TILE_ROWS, TILE_VECS, int4, TILE_ASKS); \
		break;                                              \
	}

static void tile_int8(const struct matmul_tile *t, u32 rows)
{
#ifdef __AVX512VNNI__
	if (rows > TILE_ROWS) {
		run_tall(t, rows);
		return;
	}
#endif
	TILE_SWITCH(false)
}

static void tile_int4(const struct matmul_tile *t, u32 rows)
{
	TILE_SWITCH(true)
}

static const struct matmul_kernel INT8 = {.tile_rows = TALL_ROWS,
					  .tile_columns = TILE_VECS * VEC_LANES,
					  .few_rows = 1,
					  .few_columns = VECS_OF_ONE * VEC_LANES,
					  .k_block = K_BLOCK,
					  .alone_rows = INT8_ALONE_ROWS,
					  .pack = pack,
					  .tile = tile_int8};
/* What has to be done for a group of 64 weighs more: up to 8 rows gain by reading the weights once, more do not. */
static const struct matmul_kernel INT4_FEW = {.tile_rows = TILE_ROWS,
					      .tile_columns = TILE_VECS * VEC_LANES,
					      .few_rows = 1,
					      .few_columns = VECS_OF_ONE * VEC_LANES,
					      .k_block = K_BLOCK,
					      .alone_rows = INT4_ALONE_ROWS,
					      .pack = pack,
					      .tile = tile_int4};
static const struct matmul_kernel INT4 = {.tile_rows = REGISTER_ROWS,
					  .tile_columns = TILE_VECS * VEC_LANES,
					  .few_rows = 1,
					  .few_columns = VECS_OF_ONE * VEC_LANES,
					  .k_block = K_BLOCK,
					  .pack = pack,
					  .tile = tile_int4};

enum err VARIANT(matmul_quantized)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct matmul_inputs in = {.unit_values = 4, .width = kern_dtype_group(a->w->dtype)};
#ifdef __AVX512VNNI__
	const u32 few = a->fusion ? KERN_CPU_UNFUSED_TOKENS : VARIANT(matmul_quantized_few_rows)(a->w->dtype);
	if (a->tokens > few && (!a->fusion || matmul_blocked_fuses(a))) {
		VARIANT(matmul_quantized_many)(ctx, a);
		return ERR_OK;
	}
#endif
	if (a->fusion)
		return ERR_UNSUPPORTED;
	const struct matmul_kernel *int4 = a->tokens <= TILE_ROWS ? &INT4_FEW : &INT4;
	matmul_run(ctx, a, a->w->dtype == KERN_I8 ? &INT8 : int4, &in);
	return ERR_OK;
}

#ifdef __AVX512VNNI__
/* The slot of the table: weights of other types go where they would go without VNNI. */
enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return VARIANT(matmul_quantized)(ctx, a);
	return a->w->caps & KERN_CAP_AVX512_BF16 ? matmul_avx512_bf16(ctx, a) : matmul_avx512(ctx, a);
}
#endif
