/* Matrix product of many rows with weights in 8 and 4 bits, for AVX-512 with VNNI. The sums are those of
 * cpu/matmul_quantized.c, to the bit.
 *
 * Weights in 4 bits become bytes once for all rows of a block. Where zeros are whole eighths between -7/8 and 16 (as
 * all that rounding here makes, and all whole ones) the byte is 8 * (q - zero), which is exact, and its scale an
 * eighth; in steps it is m * (q - 8) + c with 128 added. Their inputs' scales are powers of two: a sum begins as the bits of a float in which a whole number is that scale,
 * so that a subtraction makes what conversion and product of it would be, without a slot of the multipliers, which groups of 64
 * would feel. Beside weights in 8 bits scales are powers of two times eighths, which tables of the weights' scales have in them. */
#include "kernels/cpu/matmul_round_avx512_priv.h"
#include "kernels/cpu/matmul_spread_avx512_priv.h"
#include "kernels/cpu/matmul_unpack_avx512_priv.h"
#include "kernels/cpu/rounding_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = 8, /* 8 x 2 sums of whole numbers, 2 weights, inputs; the sums of floats are in memory, but for `tiles` */
	LINE_BYTES = 64,
	INT8_HEAD = 16, /* bytes of a group of inputs before its values */
	INT4_HEAD = 12,
	AT_SHIFT = EIGHTHS_SHIFT - 7, /* from a scale's bits to where its eighths are in a table */
	AT_MOST = TABLE - TABLE_ROW,
};

/* ---------------------------------------------------------------- inputs */

/* Two units of 8 rows, of which the first `rows` are stored. */
static ALWAYS_INLINE void store_units(char *to, u32 rows, __m512i units)
{
	const __mmask8 mask = (__mmask8)((1u << rows) - 1);
	if (rows == TILE_ROWS) {
		_mm512_storeu_si512(to, units);
		return;
	}
	_mm256_mask_storeu_epi32(to, mask, _mm512_castsi512_si256(units));
	_mm256_mask_storeu_epi32(to + rows * 4, mask, _mm512_extracti64x4_epi64(units, 1));
}

/* ROUND_CHUNK values of each of 8 rows to [ROUND_CHUNK / 4][rows][4]. Returns their sums, half of each in one half of the vector. */
static ALWAYS_INLINE __m512i pack_chunk(const float *const x[TILE_ROWS], u32 k, const float inverse[TILE_ROWS], u32 rows,
					char *to)
{
	const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
	const __m512i ones = _mm512_set1_epi8(1);
	__m512i q[TILE_ROWS], pair[TILE_ROWS], four[TILE_ROWS], sums = _mm512_setzero_si512();
#pragma GCC unroll 8
	for (u32 r = 0; r < TILE_ROWS; r++)
		q[r] = round_chunk(x[r] + k, inverse[r]);
#pragma GCC unroll 4
	for (u32 r = 0; r < TILE_ROWS; r += 2) {
		pair[r] = _mm512_unpacklo_epi32(q[r], q[r + 1]);
		pair[r + 1] = _mm512_unpackhi_epi32(q[r], q[r + 1]);
	}
	/* Lane l of four[u] has rows 0 .. 3 of unit 4 * u + l, that of four[4 + u] the other rows. */
#pragma GCC unroll 2
	for (u32 h = 0; h < TILE_ROWS; h += 4) {
		four[h] = _mm512_unpacklo_epi64(pair[h], pair[h + 2]);
		four[h + 1] = _mm512_unpackhi_epi64(pair[h], pair[h + 2]);
		four[h + 2] = _mm512_unpacklo_epi64(pair[h + 1], pair[h + 3]);
		four[h + 3] = _mm512_unpackhi_epi64(pair[h + 1], pair[h + 3]);
	}
#pragma GCC unroll 4
	for (u32 u = 0; u < 4; u++, to += 16 * rows) {
		__m512i low = _mm512_permutex2var_epi64(four[u], first, four[4 + u]);
		__m512i high = _mm512_permutex2var_epi64(four[u], second, four[4 + u]);
		store_units(to, rows, low);
		store_units(to + 8 * rows, rows, high);
		sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, ones, low), ones, high);
	}
	return sums;
}

/* A group of `rows` rows, whose pointers repeat the last row up to 8: its first `count` values. */
static ALWAYS_INLINE void pack_whole(const float *const row[TILE_ROWS], u32 k, u32 count, bool int8, u32 rows,
				     const struct group_scales *s, char *to)
{
	const __mmask8 mask = (__mmask8)((1u << rows) - 1);
	char *units = to + rows * (int8 ? INT8_HEAD : INT4_HEAD);
	__m512i sums = pack_chunk(row, k, s->inverse, rows, units);
	if (count > ROUND_CHUNK)
		sums = _mm512_add_epi32(sums, pack_chunk(row, k + ROUND_CHUNK, s->inverse, rows, units + ROUND_CHUNK * rows));
	__m256i sum = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
	const __m256i bits = _mm256_castps_si256(s->scale), of_power = _mm256_set1_epi32(0xff << POWER_SHIFT);
	__m256 whole = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, of_power)), _mm256_set1_ps(BLOCKED_WHOLE));
	_mm256_mask_storeu_ps(to, mask, s->scale);
	_mm256_mask_storeu_epi32(to + rows * 4, mask, _mm256_sub_epi32(_mm256_castps_si256(whole), _mm256_slli_epi32(sum, 7)));
	_mm256_mask_storeu_ps(to + rows * 8, mask, whole);
	if (int8)
		_mm256_mask_storeu_epi32(to + rows * 12, mask, _mm256_and_si256(_mm256_srli_epi32(bits, AT_SHIFT), _mm256_set1_epi32(AT_MOST)));
}

/* A group of any `width`, of rows that may be sorted otherwise or end inside it. */
static bool pack_any(const struct blocked_job *j, const float *const x[TILE_ROWS], u32 rows, u32 k, char *to)
{
	signed char q[TILE_ROWS][KERN_GROUP_MAX];
	float held[KERN_GROUP_MAX], most = ldexpf(1, POWER_MOST + 1 - 127);
	const bool int8 = j->a->w->dtype == KERN_I8;
	bool any = false;
	for (u32 r = 0; r < rows; r++) {
		const float *from = group_values(j->a->w, x[r], k, j->width, held);
		struct rounding rounding = int8 ? rounding_by_eighths(from, j->width) : rounding_by_power(from, j->width);
		any = any || !(rounding.scale < most);
		u32 scale, power, begin = (u32)round_values(from, rounding.inverse, j->width, q[r]) * 128;
		float whole;
		memcpy(&scale, &rounding.scale, 4);
		power = scale & 0xffu << POWER_SHIFT;
		memcpy(&whole, &power, 4);
		whole *= BLOCKED_WHOLE;
		memcpy(&power, &whole, 4);
		begin = power - begin;
		scale = scale >> AT_SHIFT & AT_MOST;
		memcpy(to + r * 4, &rounding.scale, 4);
		memcpy(to + (rows + r) * 4, &begin, 4);
		memcpy(to + (2 * rows + r) * 4, &whole, 4);
		if (int8)
			memcpy(to + (3 * rows + r) * 4, &scale, 4);
	}
	to += (size_t)rows * j->kernel->head_bytes;
	for (u32 i = 0; i < j->width; i += 4)
		for (u32 r = 0; r < rows; r++, to += 4)
			memcpy(to, q[r] + i, 4);
	return any;
}

/* A group's scales are found before the last one's values are stored, for each waits for a chain of steps. */
static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const struct kern_matmul_args *a = j->a;
	const float *row[TILE_ROWS];
	const bool int8 = a->w->dtype == KERN_I8;
	const u32 end = k + count;
	struct group_scales now, next;
	bool any = false;
	for (u32 r = 0; r < TILE_ROWS; r++)
		row[r] = x + kern_min(r, rows - 1) * j->x_stride;
	u32 own = whole_values(j, k, end);
	if (own > 0)
		find_scales(row, k, own, int8, &now);
	for (; k < end; k += j->width, to += (size_t)rows * (j->width + j->kernel->head_bytes)) {
		const u32 follows = whole_values(j, k + j->width, end);
		if (follows > 0)
			find_scales(row, k + j->width, follows, int8, &next);
		if (own == 0)
			any |= pack_any(j, row, rows, k, to);
		else if (own == ROUND_CHUNK)
			pack_whole(row, k, ROUND_CHUNK, int8, rows, &now, to);
		else if (rows == TILE_ROWS)
			pack_whole(row, k, 2 * ROUND_CHUNK, int8, TILE_ROWS, &now, to);
		else
			pack_whole(row, k, 2 * ROUND_CHUNK, int8, rows, &now, to);
		any |= own > 0 && now.any;
		own = follows;
		now = next;
	}
	return any;
}

/* ---------------------------------------------------------------- tiles */

/* sum += 4 products of an unsigned and a signed byte in every lane. The compiler's own form of it copies sums from
 * register to register, and into memory where it finds none free. */
static ALWAYS_INLINE void dot(__m512i *sum, __m512i weights, __m512i x)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(x));
}

/* Where a tile is in its block of k. */
struct place {
	const char *group, *x, *prefetch, *table;
	const float *zeros;
};

/* Of a row's group of inputs. */
static ALWAYS_INLINE u32 head_of(enum blocked_scales scales)
{
	return scales == BLOCKED_ANY || scales == BLOCKED_EIGHTHS ? INT8_HEAD : INT4_HEAD;
}

/* sums += scale * inputs' scale * (products of the group - zero * sum of the inputs). Powers of two times either factor make
 * no difference to the result; with scales multiplied first not even at the ends of a float's range, where 8 * (q - zero) times a
 * large scale would overflow as the few rows' q - zero does not. */
static ALWAYS_INLINE void add_group(struct place *p, u32 rows, u32 count, u32 prefetch_step, enum blocked_scales scales,
				    vec sums[][VECS])
{
	const bool with_zeros = scales == BLOCKED_ZEROS, whole_begins = scales == BLOCKED_EIGHTHS || scales == BLOCKED_POWERS;
	const u32 head = head_of(scales);
	__m512i sum[TILE_ROWS][VECS];
	const char *units = p->group + KERN_GROUP_HEAD, *x = p->x + rows * head, *end = x + (size_t)count * rows * 4;
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++) {
		i32 begin = with_zeros ? 0 : load_i32(p->x + (rows + r) * 4);
		if (scales == BLOCKED_ANY)
			begin = (i32)((u32)begin - (u32)load_i32(p->x + (2 * rows + r) * 4));
		sum[r][0] = sum[r][1] = _mm512_set1_epi32(begin);
	}
	/* Not unrolled: the compiler would move the sums around between the copies of the body. */
	do {
		__m512i low = _mm512_loadu_si512(units), high = _mm512_loadu_si512(units + 64);
		_mm_prefetch(p->prefetch, _MM_HINT_T1);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++) {
			__m512i four = _mm512_set1_epi32(load_i32(x + r * 4));
			dot(&sum[r][0], low, four);
			dot(&sum[r][1], high, four);
		}
		units += KERN_GROUP_UNIT;
		x += rows * 4;
		p->prefetch += prefetch_step;
	} while (x != end);
#pragma GCC unroll 2
	for (u32 v = 0; v < VECS; v++) {
		vec scale = vec_load((const float *)(const void *)p->group + v * VEC_LANES);
#pragma GCC unroll 8
		for (u32 r = 0; r < rows; r++) {
			const char *own = p->x + r * 4, *begin = own + rows * 4, *whole = begin + rows * 4;
			if (whole_begins) {
				vec value = vec_sub(_mm512_castsi512_ps(sum[r][v]), vec_set1(load_float(whole)));
				vec of_eighths = scales == BLOCKED_POWERS ? scale :
					vec_load((const float *)(const void *)(p->table + load_i32(whole + rows * 4)) + v * VEC_LANES);
				sums[r][v] = vec_fma(value, of_eighths, sums[r][v]);
				continue;
			}
			vec value = _mm512_cvtepi32_ps(sum[r][v]), both = vec_mul(scale, vec_set1(load_float(own)));
			if (with_zeros)
				value = vec_fma(vec_load(p->zeros + v * VEC_LANES),
						vec_set1((float)(i32)((u32)load_i32(begin) - (u32)load_i32(whole))), value);
			sums[r][v] = vec_fma(value, both, sums[r][v]);
		}
	}
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, u32 rows, enum blocked_scales scales)
{
	const u32 width = t->width, k_count = t->k_count, step = t->prefetch_step;
	const size_t bytes = KERN_GROUP_HEAD + (size_t)width * KERN_PANEL;
	struct place p = {.group = t->weights, .x = t->x, .prefetch = t->prefetch, .table = t->tables};
	vec sums[TILE_ROWS][VECS];
	p.zeros = (const float *)(const void *)(p.group + kern_ceil(k_count, width) * bytes);
#pragma GCC unroll 8
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r, rows);
	sums_begin(t, rows, sums);
	for (u32 k = 0; k < k_count; k += width) {
		add_group(&p, rows, kern_ceil(kern_min(width, k_count - k), 4), step, scales, sums);
		p.group += bytes;
		p.x += (size_t)(width + head_of(scales)) * rows;
		p.table += scales == BLOCKED_EIGHTHS ? TABLE : 0;
		p.zeros += KERN_PANEL;
	}
	sums_end(t, rows, sums);
}

/* The row count is a constant in each case, so that sums live in registers. */
static void tile(const struct blocked_tile *t, u32 rows)
{
#define TILE_OF(n)                                \
	if (t->scales == BLOCKED_POWERS)          \
		run_tile(t, n, BLOCKED_POWERS);   \
	else if (t->scales == BLOCKED_EIGHTHS)    \
		run_tile(t, n, BLOCKED_EIGHTHS);  \
	else if (t->scales == BLOCKED_ANY)        \
		run_tile(t, n, BLOCKED_ANY);      \
	else                                      \
		run_tile(t, n, BLOCKED_ZEROS);    \
	break;
#define TILE_CASE(n) \
	case n:      \
		TILE_OF(n)
	switch (rows) {
		TILE_CASE(1)
		TILE_CASE(2)
		TILE_CASE(3)
		TILE_CASE(4)
		TILE_CASE(5)
		TILE_CASE(6)
		TILE_CASE(7)
	default:
		TILE_OF(TILE_ROWS)
	}
#undef TILE_CASE
#undef TILE_OF
}

/* 4 rows of `count` tiles, from the p->x and p->from of the first on. */
static void run_rows(struct rows_pass p, u32 count, bool powers, const struct rows_spread *spread, bool in_steps)
{
	if (spread) {
		if (in_steps)
			rows_spread_steps(&p, spread);
		else
			rows_spread(&p, spread);
		p.x += p.groups * p.x_step;
		p.from += TILE_ROWS * p.from_step;
		p.to += TILE_ROWS * p.to_step;
		count--;
	}
	p.tiles = count;
	if (count > 0)
		rows_pass(&p, powers);
}

/* Each half asks for half of the lines of the block that comes next, two for each row that it joins to others, some of them more than once.
 * None is left out, for those between that are not asked for would cost about what all do: what `joined` groups have no place for is asked
 * for at once, in front. */
static void plan_asks(struct rows_pass *half, const struct blocked_tile *t, bool second, u32 joined)
{
	const u32 all = t->prefetch_bytes / LINE_BYTES, first = all / 2, asks = joined * PASS_ROWS;
	u32 lines = second ? all - first : first;
	half->prefetch = t->prefetch + (second ? (size_t)first * LINE_BYTES : 0);
	for (; lines > 2 * asks; lines--, half->prefetch += LINE_BYTES)
		_mm_prefetch(half->prefetch, _MM_HINT_T1);
	half->prefetch_step = asks > 0 ? kern_ceil(lines * LINE_BYTES, asks) : 0;
}

/* Where sums of tiles begin and go. */
static struct rows_pass tiles_pass(const struct blocked_tile *t)
{
	static const _Alignas(64) float zeros[KERN_PANEL];
	const size_t step = KERN_PANEL * sizeof(float), out_step = t->out_stride * sizeof(float);
	struct rows_pass p = {.weights = t->weights, .tables = t->tables};
	p.from = (const char *)(!t->first ? t->sums : t->bias ? t->bias : t->accumulate ? t->out : zeros);
	p.from_step = !t->first ? step : !t->bias && t->accumulate ? out_step : 0;
	p.to = (char *)(t->last ? t->out : t->sums);
	p.to_step = t->last ? out_step : step;
	p.from_ahead = (TILE_ROWS - 1) * p.from_step;
	p.to_ahead = (TILE_ROWS - 1) * p.to_step;
	return p;
}

/* blocked_kernel.tiles; `in_steps`: of weights in steps. */
static ALWAYS_INLINE bool run_tiles(const struct blocked_tile *t, u32 count, bool in_steps)
{
	const bool powers = t->scales == BLOCKED_POWERS;
	const u32 groups = kern_ceil(t->k_count, t->width), last = t->k_count - (groups - 1) * t->width;
	const bool fits = count > 0 && (powers || t->scales == BLOCKED_EIGHTHS) && t->columns == KERN_PANEL &&
			  (in_steps ? last % KERN_STEPS_PART == 0 : kern_ceil(last, 8) >= SPREAD_PAIRS) && !(t->first && t->bias && t->accumulate);
	struct rows_pass p = tiles_pass(t);
	struct rows_spread spread = {.packed = t->packed, .spread = t->unpacked, .pairs = t->width / 8, .last_pairs = kern_ceil(last, 8)};
	if (powers && !fits && in_steps)
		steps_bytes(t->packed, t->k_count, t->unpacked);
	else if (powers && !fits)
		eighths_bytes(t->packed, t->width, t->k_count, t->unpacked);
	if (!fits)
		return false;
	p.groups = groups;
	p.x_step = TILE_ROWS * ((size_t)t->width + (powers ? INT4_HEAD : INT8_HEAD));
	p.turns = t->width / 4;
	p.last_turns = kern_ceil(last, 4);
	if (powers)
		spread.offsets = t->unpacked + groups * (KERN_GROUP_HEAD + (size_t)t->width * KERN_PANEL);
	check_bytes(t->weights, (groups - 1) * (KERN_GROUP_HEAD + (size_t)t->width * KERN_PANEL) + KERN_GROUP_HEAD + p.last_turns * KERN_GROUP_UNIT);
	check_bytes(t->x, count * groups * p.x_step);
	for (u32 row = 0; CHECKS_BYTES && row < count * TILE_ROWS; row++) {
		check_bytes(p.from + row * p.from_step, KERN_PANEL * sizeof(float));
		check_bytes(p.to + row * p.to_step, KERN_PANEL * sizeof(float));
	}
	for (u32 row = 0; row < TILE_ROWS; row += PASS_ROWS) {
		const bool spreads = powers && row == 0;
		struct rows_pass half = p;
		plan_asks(&half, t, row > 0, count * groups - (spreads && count > 1 ? 2 : 1)); /* a pass begins with nothing to join */
		half.x = t->x + row * 4;
		half.from += row * p.from_step;
		half.to += row * p.to_step;
		run_rows(half, count, powers, spreads ? &spread : NULL, in_steps);
	}
	return true;
}

static bool tiles(const struct blocked_tile *t, u32 count)
{
	return run_tiles(t, count, false);
}

static bool tiles_steps(const struct blocked_tile *t, u32 count)
{
	return run_tiles(t, count, true);
}

#define KERNEL(name, k_most, k_few, head, unpack_fn, tabulate_fn, tiles_fn)     \
	static const struct blocked_kernel name = {                      \
		.tile_rows = TILE_ROWS,                                  \
		.k_block = k_most,                                       \
		.few_k_block = k_few,                                    \
		.value_bytes = 1,                                        \
		.head_bytes = head,                                      \
		.pack = pack,                                            \
		.unpack = unpack_fn,                                     \
		.tabulate = tabulate_fn,                                 \
		.tiles = tiles_fn,                                       \
		.tile = tile,                                            \
		.act_mul = sums_act_mul, .norm = &blocked_norm_avx2}
/* Of a small L1 cache (Zen 4) for weights in 4 bits, unpacked, in steps with what unpacks them a little more; of a larger one (Emerald Rapids) for
 * weights in 8 bits with their tables and a tile's inputs. Of few rows K_OF_FEW: with all of their inputs and sums. */
enum { K_IN_L1 = 768, K_OF_FEW = 256 };
KERNEL(INT8, K_IN_L1, K_OF_FEW, INT8_HEAD, NULL, tabulate, NULL);
KERNEL(INT4, BLOCKED_K_MAX, K_OF_FEW, INT4_HEAD, unpack_int4, NULL, NULL);
KERNEL(STEPS, BLOCKED_K_MAX, K_OF_FEW, INT4_HEAD, unpack_steps, NULL, NULL);
KERNEL(INT8_PASSES, BLOCKED_K_MAX, 0, INT8_HEAD, NULL, tabulate, tiles);
KERNEL(INT4_PASSES, K_IN_L1, 0, INT4_HEAD, unpack_heads, NULL, tiles);
KERNEL(STEPS_PASSES, K_IN_L1, 0, INT4_HEAD, unpack_steps_heads, NULL, tiles_steps);
#undef KERNEL

/* Passes have 8 sums at work. That is enough for Zen 4, which multiplies a vector a cycle and adds to the same sum 4 cycles later. Others do
 * so twice a cycle, or 5 cycles later, and have what was measured on Zen 5: tiles of 16 sums. */
static bool passes_pay(void)
{
	return __builtin_cpu_is("amdfam19h");
}

/* Of fewer rows memory has hardly brought the weights by the time they are used up: reading ahead is all that counts. What was measured on Emerald
 * Rapids, Zen 5 and Zen 4. */
u32 VARIANT(matmul_quantized_few_rows)(enum kern_dtype dtype)
{
	enum { INTEL_INT8 = 16, INTEL_INT4 = 10, PASSES_INT8 = 24, PASSES_INT4 = 15, PASSES_STEPS = 8 };
	if (__builtin_cpu_is("intel"))
		return dtype == KERN_I8 ? INTEL_INT8 : INTEL_INT4;
	if (!passes_pay())
		return KERN_CPU_UNFUSED_TOKENS;
	return dtype == KERN_I8 ? PASSES_INT8 : dtype == KERN_I4_STEPS ? PASSES_STEPS : PASSES_INT4;
}

void VARIANT(matmul_quantized_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const enum kern_dtype dtype = a->w->dtype;
	if (passes_pay())
		matmul_blocked(ctx, a, dtype == KERN_I8 ? &INT8_PASSES : dtype == KERN_I4_STEPS ? &STEPS_PASSES : &INT4_PASSES);
	else
		matmul_blocked(ctx, a, dtype == KERN_I8 ? &INT8 : dtype == KERN_I4_STEPS ? &STEPS : &INT4);
}
