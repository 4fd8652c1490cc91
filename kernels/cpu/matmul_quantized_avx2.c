/* Matrix product with weights in 8 and 4 bits, for AVX2. Groups are put together in float as cpu/matmul_quantized.c does it, and
 * the sums are the same to the bit.
 *
 * 2 to 12 rows are one tile, more are several. A tile takes a panel group by group, so that memory is one stream; with more than
 * 3 rows there are registers for half of the columns, with more than 6 for a quarter, and the others find the group in the L1 cache. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_loop_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = LOOP_ROWS_MOST,
	/* With more, unpacking weights into memory takes less time than it saves. */
	INT8_FEW_ROWS = KERN_CPU_UNFUSED_TOKENS,
	INT4_FEW_ROWS = TILE_ROWS,
	K_BLOCK = 2048, /* 64 KiB of a panel, which the other tiles find in the L2 cache */
	PANEL_VECS = KERN_PANEL / VEC_LANES,
	WHOLE_ROWS = 3, /* 3 x 4 sums, beside weights, input and product 16 registers */
};

/* ---------------------------------------------------------------- inputs */

static ALWAYS_INLINE void pack_groups(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end,
				      bool int8, u32 width)
{
	const struct matmul_inputs *in = &j->in;
	const u32 count = width / (int8 ? 2 : 4);
	const size_t stride = (size_t)rows * 4;
	char *scales = to + ((size_t)in->scales_at * rows + r * 4), *sums = to + ((size_t)in->sums_at * rows + r * 4);
	char *units = to + (size_t)first / in->unit_values * stride + r * 4;
	float held[KERN_GROUP_MAX], rounded[KERN_GROUP_MAX / 2];
	for (u32 g = first / width; g < kern_ceil(end, width); g++, units += count * stride) {
		const float *from = group_values(j->a->w, x, g * width, width, held);
		struct rounding rounding = int8 ? rounding_by_eighths(from, width) : rounding_by_power(from, width);
		store_sum(sums + g * stride, int8, round_group(from, rounding, width, int8, rounded));
		memcpy(scales + g * stride, &rounding.scale, 4);
#pragma GCC unroll 64
		for (u32 u = 0; u < count; u++)
			memcpy(units + u * stride, &rounded[u], 4);
	}
}

/* `width` is a constant: everything about a group is one piece of straight code, and the next one begins before it ends. */
static void pack(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	if (j->a->w->dtype == KERN_I8)
		pack_groups(j, x, r, rows, to, first, end, true, 128);
	else if (j->in.width == 128)
		pack_groups(j, x, r, rows, to, first, end, false, 128);
	else if (j->in.width == 64)
		pack_groups(j, x, r, rows, to, first, end, false, 64);
	else
		pack_groups(j, x, r, rows, to, first, end, false, 32);
}

/* ---------------------------------------------------------------- up to three rows */

/* Where a tile is: its group of weights, the group's inputs with their scales and sums, what is fetched. */
struct place {
	const char *group, *x, *scales, *sums;
	struct tile_fetch fetch;
};

static ALWAYS_INLINE __m256i four_bytes(const char *x)
{
	return _mm256_set1_epi32(load_i32(x));
}

/* The whole sums of all columns. */
static ALWAYS_INLINE void add_int8(const struct matmul_tile *t, u32 rows, u32 count, struct place *p, __m256i sum[][PANEL_VECS])
{
	const __m256i even = _mm256_set1_epi16(255);
	const char *x = p->x, *units = p->group + KERN_GROUP_HEAD;
#pragma GCC unroll 3
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			sum[r][v] = four_bytes(p->sums + r * 4);
#pragma GCC unroll 1
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += rows * 8) {
		tile_prefetch_bytes(t, &p->fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++) {
			__m256i weights = _mm256_and_si256(load(units + v * 32), even);
#pragma GCC unroll 3
			for (u32 r = 0; r < rows; r++)
				add_wide(&sum[r][v], weights, four_bytes(x + r * 4));
		}
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++) {
			__m256i weights = _mm256_srli_epi16(load(units + v * 32), 8);
#pragma GCC unroll 3
			for (u32 r = 0; r < rows; r++)
				add_wide(&sum[r][v], weights, four_bytes(x + (rows + r) * 4));
		}
	}
}

/* Units of 8 values, of which 16 bits hold the sums of NARROW_UNITS / 2. */
static ALWAYS_INLINE void add_narrow_int4(const struct matmul_tile *t, u32 rows, const char *units, u32 count, struct place *p,
					  const char *x, __m256i narrow[][PANEL_VECS])
{
	const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 1
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += rows * 8) {
		tile_prefetch(t, &p->fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++) {
			__m256i weights = _mm256_and_si256(load(units + v * 32), mask);
#pragma GCC unroll 3
			for (u32 r = 0; r < rows; r++)
				add_narrow(&narrow[r][v], weights, four_bytes(x + r * 4));
		}
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++) {
			__m256i weights = _mm256_and_si256(_mm256_srli_epi16(load(units + v * 32), 4), mask);
#pragma GCC unroll 3
			for (u32 r = 0; r < rows; r++)
				add_narrow(&narrow[r][v], weights, four_bytes(x + (rows + r) * 4));
		}
	}
}

static ALWAYS_INLINE void add_int4(const struct matmul_tile *t, u32 rows, u32 count, struct place *p, __m256i sum[][PANEL_VECS])
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i narrow[WHOLE_ROWS][PANEL_VECS];
	const char *x = p->x, *units = p->group + KERN_GROUP_HEAD;
#pragma GCC unroll 3
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			sum[r][v] = _mm256_setzero_si256();
	for (u32 done = 0; done < count; done += NARROW_UNITS / 2) {
#pragma GCC unroll 3
		for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
			for (u32 v = 0; v < PANEL_VECS; v++)
				narrow[r][v] = _mm256_setzero_si256();
		add_narrow_int4(t, rows, units, kern_min(NARROW_UNITS / 2, count - done), p, x, narrow);
		units += NARROW_UNITS / 2 * KERN_GROUP_UNIT;
		x += NARROW_UNITS * rows * 4;
#pragma GCC unroll 3
		for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
			for (u32 v = 0; v < PANEL_VECS; v++)
				sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(narrow[r][v], ones));
	}
}

/* ---------------------------------------------------------------- more rows */

/* A loop's turns over the group, of `vecs` vectors of columns. Its sums are [rows][vecs]. */
static ALWAYS_INLINE void run_loop(struct loop_place *at, u32 rows, u32 vecs, bool int4, u32 turns, const char *begin,
				   __m256i loop[TILE_ROWS])
{
	__m256i(*pairs)[LOOP_VECS] = (__m256i(*)[LOOP_VECS])(void *)loop;
	if (vecs == LOOP_VECS && int4)
		loop_halves(at, rows, turns, NULL, pairs);
	else if (vecs == LOOP_VECS)
		loop_bytes(at, rows, turns, begin, pairs);
	else if (int4)
		loop_one_halves(at, rows, turns, NULL, loop);
	else
		loop_one_bytes(at, rows, turns, begin, loop);
}

/* The whole sums of `vecs` vectors of columns from the `first` on. Each such part of the columns asks for its share of what
 * comes next. */
static ALWAYS_INLINE void add_part(const struct matmul_tile *t, u32 rows, u32 vecs, u32 first, bool int4, u32 count,
				   struct place *p, __m256i sum[][PANEL_VECS])
{
	const u32 most = int4 ? NARROW_UNITS / 2 : count, step = t->prefetch_step * vecs / PANEL_VECS;
	const __m256i ones = _mm256_set1_epi16(1);
	struct loop_place at = {p->group + KERN_GROUP_HEAD + first * 32, p->x, p->fetch.at, step};
	__m256i loop[TILE_ROWS];
	u32 done = 0;
	do {
		run_loop(&at, rows, vecs, int4, kern_min(most, count - done), p->sums, loop);
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 2
			for (u32 v = 0; v < vecs; v++) {
				__m256i wide = int4 ? _mm256_madd_epi16(loop[r * vecs + v], ones) : loop[r * vecs + v];
				sum[r][v] = done > 0 ? _mm256_add_epi32(sum[r][v], wide) : wide;
			}
		done += most;
	} while (int4 && done < count);
	p->fetch.at = at.prefetch;
}

/* ---------------------------------------------------------------- tiles */

/* The group's part of the sums of `vecs` vectors of columns. */
static ALWAYS_INLINE void add_group(const struct matmul_tile *t, u32 rows, u32 vecs, u32 first, bool int4, struct place *p,
				    u32 k_count, vec total[][PANEL_VECS])
{
	const u32 count = kern_ceil(k_count, int4 ? 8 : 4);
	__m256i sum[TILE_ROWS][PANEL_VECS];
	if (vecs < PANEL_VECS)
		add_part(t, rows, vecs, first, int4, count, p, sum);
	else if (int4)
		add_int4(t, rows, count, p, sum);
	else
		add_int8(t, rows, count, p, sum);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		struct group_scales scales = load_scales(p->group, (first + v) * VEC_LANES, int4);
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++)
			total[r][first + v] =
				add_scaled(total[r][first + v], sum[r][v], &scales, p->scales + r * 4, p->sums + r * 4, int4);
	}
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, u32 rows, bool int4)
{
	const size_t bytes = KERN_GROUP_HEAD + t->width / (int4 ? 8 : 4) * (size_t)KERN_GROUP_UNIT;
	const u32 vecs = rows <= WHOLE_ROWS ? PANEL_VECS : rows <= LOOP_ROWS ? LOOP_VECS : 1;
	vec total[TILE_ROWS][PANEL_VECS];
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_begin(t)};
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		const u32 count = kern_min(t->width, t->k_count - k);
		tile_prefetch_turn(t, &p.fetch, p.group);
		tile_prefetch_head(t, &p.fetch, KERN_GROUP_HEAD, int4 ? t->prefetch_far == MATMUL_FAR : t->prefetch_far != MATMUL_NEAR);
		__asm__("" : "+m"(total)); /* or some of them take registers of the whole sums */
#pragma GCC unroll 4
		for (u32 first = 0; first < PANEL_VECS; first += vecs)
			add_group(t, rows, vecs, first, int4, &p, count, total);
		p.group += bytes;
		p.x += (size_t)t->width * rows * (int4 ? 1 : 2);
		p.scales += rows * 4;
		p.sums += rows * 4;
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			tile_store_sum(t, r, v, total[r][v]);
}

/* The row count is a constant in each case, so that the sums live in registers. */
#define TILE_CASE(n, int4)            \
	case n:                       \
		run_tile(t, n, int4); \
		break;
#define TILE_SWITCH(int4)                               \
	switch (rows) {                                 \
	case 1:                                         \
		VARIANT(matmul_quantized_one)(t, int4); \
		break;                                  \
		TILE_CASE(2, int4)                      \
		TILE_CASE(3, int4)                      \
		TILE_CASE(4, int4)                      \
		TILE_CASE(5, int4)                      \
		TILE_CASE(6, int4)                      \
		TILE_CASE(7, int4)                      \
		TILE_CASE(8, int4)                      \
		TILE_CASE(9, int4)                      \
		TILE_CASE(10, int4)                     \
		TILE_CASE(11, int4)                     \
	default:                                        \
		run_tile(t, TILE_ROWS, int4);           \
		break;                                  \
	}

/* What assembly reads, of which AddressSanitizer knows nothing. */
static void check_tile(const struct matmul_tile *t, u32 rows, bool int4)
{
	const size_t groups = kern_ceil(t->k_count, t->width), units = kern_ceil(t->k_count, int4 ? 8 : 4);
	check_bytes(t->weights, groups * KERN_GROUP_HEAD + units * KERN_GROUP_UNIT);
	check_bytes(t->units, groups * t->width * rows * (int4 ? 1 : 2));
}

static void tile_int8(const struct matmul_tile *t, u32 rows)
{
	check_tile(t, rows, false);
	TILE_SWITCH(false)
}

static void tile_int4(const struct matmul_tile *t, u32 rows)
{
	check_tile(t, rows, true);
	TILE_SWITCH(true)
}

#define KERNEL(name, tile_fn)                                   \
	static const struct matmul_kernel name = {              \
		.tile_rows = TILE_ROWS,                         \
		.tile_columns = KERN_PANEL,                     \
		.few_rows = 1,                                  \
		.few_columns = QUANTIZED_ONE_PANELS * KERN_PANEL, \
		.k_block = K_BLOCK,                             \
		.asks_always = true,                            \
		.pack = pack,                                   \
		.tile = tile_fn,                                \
	}
KERNEL(INT8, tile_int8);
KERNEL(INT4, tile_int4);
#undef KERNEL

enum err VARIANT(matmul_quantized)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const bool int8 = a->w->dtype == KERN_I8;
	struct matmul_inputs in = {.unit_values = int8 ? 2 : 4, .width = kern_dtype_group(a->w->dtype), .sum_words = 1};
	if (a->w->dtype == KERN_I4_STEPS)
		return matmul_ref(ctx, a);
	const u32 few = a->fusion ? KERN_CPU_UNFUSED_TOKENS : int8 ? INT8_FEW_ROWS : INT4_FEW_ROWS;
	if (a->tokens > few && (!a->fusion || matmul_blocked_fuses(a))) {
		(int8 ? VARIANT(matmul_int8_many) : VARIANT(matmul_int4_many))(ctx, a);
		return ERR_OK;
	}
	if (a->fusion)
		return ERR_UNSUPPORTED;
	matmul_run(ctx, a, int8 ? &INT8 : &INT4, &in);
	return ERR_OK;
}
