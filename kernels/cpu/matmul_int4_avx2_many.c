/* Matrix product of many rows with weights in 4 bits, for AVX2. The sums are those of cpu/matmul_quantized_avx2.c, to the bit:
 * inside a group they are whole numbers, or these times a power of two. How they are computed is said in
 * cpu/matmul_int4_avx2_loop_priv.h.
 *
 * 16 bits hold the sums of ANY_TURNS turns whatever the inputs are, and of a part of 64 values with nearly all there are: if its
 * positive inputs come to no more than LONG_MOST, and the negative ones, too. Where that does not hold for all rows of a tile, a part
 * is 32 values, and where that is not enough, or a scale is an extreme, a group is summed up in 32 bits. */
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_int4_avx2_loop_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	ANY_TURNS = 8,		/* 8 x 2 x 15 x 127 < 2^15 */
	LONG_MOST = 32767 / 15,
	LONG_BEGIN = 0x8000,	/* what sums begin with, so that none is negative */
	INPUTS_HEAD = 12,	/* bytes of a row's group of inputs before its values: int4_pending.inputs */
	WEIGHTS_HEAD = 256,	/* and of an unpacked group of weights: int4_pending.head */
	PARTS_MOST = 4,
	HALF_PART = INT4_PART / 2,
};

/* Values of a group whose sums 16 bits hold. */
enum span { SPAN_PART, SPAN_HALF, SPAN_TURNS };
enum { SPAN_AT = 2 }; /* its place, in the first row's INT4_TAIL */

static const float WHOLE = 0x1p23f; /* floats as large differ by 1 as their bits do */

/* ---------------------------------------------------------------- inputs */

/* Twice the sum of the positive values or, if that is more, of the negative ones. */
static ALWAYS_INLINE i32 largest_sum(const signed char *q, const u32 values)
{
	const __m256i ones = _mm256_set1_epi8(1);
	__m256i sizes = _mm256_setzero_si256(), sums = _mm256_setzero_si256();
#pragma GCC unroll 2
	for (u32 i = 0; i < values; i += 32) {
		__m256i x = load((const char *)q + i);
		sizes = _mm256_add_epi16(sizes, _mm256_maddubs_epi16(_mm256_abs_epi8(x), ones));
		sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(ones, x));
	}
	__m256i both = _mm256_add_epi16(_mm256_permute2x128_si256(sizes, sums, 0x20), _mm256_permute2x128_si256(sizes, sums, 0x31));
	both = _mm256_madd_epi16(both, _mm256_set1_epi16(1));
	both = _mm256_add_epi32(both, _mm256_shuffle_epi32(both, 0x4e));
	both = _mm256_add_epi32(both, _mm256_shuffle_epi32(both, 0xb1));
	i32 size = _mm256_extract_epi32(both, 0), sum = _mm256_extract_epi32(both, 4);
	return size + (sum < 0 ? -sum : sum);
}

/* The span of a row's part. Odd lanes are one pair ahead: their first half ends with the first pair of the second one. */
static ALWAYS_INLINE enum span span_of(const signed char *q, const u32 values)
{
	enum { PAIR_MOST = 2 * 128 };
	if (largest_sum(q, values) <= 2 * LONG_MOST)
		return SPAN_PART;
	if (values == INT4_PART && largest_sum(q, HALF_PART) <= 2 * (LONG_MOST - PAIR_MOST) &&
	    largest_sum(q + HALF_PART, HALF_PART) <= 2 * (LONG_MOST - PAIR_MOST))
		return SPAN_HALF;
	return SPAN_TURNS;
}

static ALWAYS_INLINE u32 part_values(u32 width)
{
	return width < INT4_PART ? width : INT4_PART;
}

/* One group of some rows: its heads, and its parts, [part][row][values and the first pair again]. `width` is a constant. All rows
 * take a step before the next one, for each is a chain, and those of several rows fit side by side. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, const u32 width, char *to)
{
	const u32 part = part_values(width), row = part + INT4_TAIL;
	float held[ROWS_MOST][KERN_GROUP_MAX], scales[ROWS_MOST], inverses[ROWS_MOST], sums[ROWS_MOST];
	const float *from[ROWS_MOST];
	char *first = to + rows * INPUTS_HEAD;
	enum span span = SPAN_PART;
	for (u32 r = 0; r < rows; r++) {
		from[r] = group_values(j->a->w, x + r * j->x_stride, k, width, held[r]);
		struct rounding rounding = rounding_by_power(from[r], width);
		scales[r] = rounding.scale;
		inverses[r] = rounding.inverse;
		if (!(rounding.scale <= 0x1p96f)) /* of POWER_MOST */
			span = SPAN_TURNS;
	}
	for (u32 r = 0; r < rows; r++) {
		i32 sum = 0;
#pragma GCC unroll 2
		for (u32 i = 0; i < width; i += part) {
			signed char *values = (signed char *)first + i / part * rows * row + r * row;
			sum += round_values(from[r] + i, inverses[r], part, values);
			memcpy(values + part, values, INT4_TAIL);
		}
		sums[r] = (float)sum;
	}
	for (u32 r = 0; r < rows * (width / part) && span != SPAN_TURNS; r++) {
		enum span own = span_of((const signed char *)first + r * row, part);
		span = own > span ? own : span;
	}
	first[part + SPAN_AT] = (char)span;
	float *heads = (float *)(void *)to;
	const bool small = span != SPAN_TURNS;
	for (u32 r = 0; r < rows; r++) {
		heads[r] = small ? scales[r] * WHOLE : scales[r];
		heads[rows + r] = scales[r] * (WHOLE + LONG_BEGIN);
		heads[2 * rows + r] = small ? scales[r] * sums[r] : sums[r];
	}
}

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const size_t bytes = (size_t)rows * (j->width + j->kernel->head_bytes);
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

/* Even lanes of one, odd lanes of the other. */
static ALWAYS_INLINE __m256i even_odd(__m256i even, __m256i odd)
{
	return _mm256_blend_epi16(even, odd, 0xaa);
}

static ALWAYS_INLINE __m256i low_bits(__m256i bytes)
{
	return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

static ALWAYS_INLINE __m256i high_bits(__m256i bytes)
{
	return low_bits(_mm256_srli_epi16(bytes, 4));
}

/* 16 columns of a part, of which `units` of 8 values are there and zeros follow: see struct rows_place. A unit is 4 turns; the odd
 * lanes of its last one are the next unit's. */
static ALWAYS_INLINE void unpack_columns(const char *from, u32 units, const u32 part, char *to)
{
	const __m128i swap = _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
	__m256i first = _mm256_setzero_si256(), before = first;
	for (u32 u = 0; u < part / 8; u++, from += KERN_GROUP_UNIT, to += 4 * INT4_TURN) {
		__m256i even = _mm256_setzero_si256(), odd = even;
		if (u < units) {
			even = load(from);
			odd = load(from + 32);
		}
		const __m256i straight = even_odd(even, odd);
		const __m256i crossed = _mm256_shuffle_epi8(even_odd(odd, even), _mm256_broadcastsi128_si256(swap));
		const __m256i low = low_bits(crossed), high = high_bits(crossed);
		if (u == 0)
			first = low;
		else
			store(to - INT4_TURN, even_odd(before, low));
		store(to, low_bits(straight));
		store(to + INT4_TURN, even_odd(low, high));
		store(to + 2 * INT4_TURN, high_bits(straight));
		before = high;
	}
	store(to - INT4_TURN, even_odd(before, first));
}

/* Groups of scales [32], zeros [32] times -1 and parts of whole turns. */
static ALWAYS_INLINE void unpack_groups(const char *from, u32 k_count, const u32 width, char *to)
{
	const u32 part = part_values(width);
	for (u32 k = 0; k < k_count; k += width) {
		float *head = (float *)(void *)to;
		for (u32 n = 0; n < KERN_PANEL; n += VEC_LANES) {
			vec_store(head + n, load_f16(from + n * 2));
			vec_store(head + KERN_PANEL + n, vec_sub(vec_zero(), load_f16(from + (KERN_PANEL + n) * 2)));
		}
		from += KERN_GROUP_HEAD;
		to += WEIGHTS_HEAD;
		u32 units = kern_ceil(kern_min(width, k_count - k), 8);
		for (u32 i = 0; i < width / part; i++, to += (size_t)part * KERN_PANEL) {
			const u32 there = kern_min(units, part / 8);
			if (there == 0) {
				memset(to, 0, (size_t)part * KERN_PANEL);
				continue;
			}
			unpack_columns(from, there, part, to);
			unpack_columns(from + 2 * 32, there, part, to + 32);
			from += there * (size_t)KERN_GROUP_UNIT;
			units -= there;
		}
	}
}

static enum blocked_scales unpack(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const u32 width = kern_dtype_group(w->dtype);
	(void)any_scales;
	if (width == 128)
		unpack_groups(from, k_count, 128, to);
	else if (width == 64)
		unpack_groups(from, k_count, 64, to);
	else
		unpack_groups(from, k_count, 32, to);
	return BLOCKED_ANY;
}

/* ---------------------------------------------------------------- tiles */

/* What tiles work with. */
struct work {
	struct rows_place place;
	struct int4_pending pending;
	_Alignas(32) char narrow[PARTS_MOST * INT4_SUMS + 32]; /* the loop reads odd lanes from 2 bytes further on */
	_Alignas(32) float sums[ROWS_MOST * KERN_PANEL];
	_Alignas(32) float edge[ROWS_MOST * KERN_PANEL];
};
_Static_assert(sizeof(struct work) <= BLOCKED_HELD, "blocked_tile.held");

/* 8 of a row's sums in 16 bits, as `v` of cpu/matmul_int4_avx2_loop_priv.h, in the lower halves of lanes whose upper ones are 0. */
static ALWAYS_INLINE __m256i lower_halves(const char *narrow, u32 v)
{
	__m256i both = load(narrow + v / 2 * 32);
	return v % 2 ? _mm256_srli_epi32(both, 16) : _mm256_blend_epi16(both, _mm256_setzero_si256(), 0xaa);
}

static ALWAYS_INLINE vec beneath(vec begin, __m256i lower)
{
	return _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(begin), lower));
}

/* Joins the pending group to the sums, with nothing beside it. */
static ALWAYS_INLINE void join_rows(struct work *w, const u32 rows)
{
	const struct int4_pending *p = &w->pending;
	const float *inputs = (const float *)(const void *)p->inputs, *head = (const float *)(const void *)p->head;
	const char *from = p->way.from;
	char *to = p->way.to;
	for (u32 r = 0; r < rows; r++, from += p->way.from_step, to += p->way.to_step) {
		const vec begin = vec_set1(inputs[r]), less = vec_set1(inputs[rows + r]), sum = vec_set1(inputs[2 * rows + r]);
#pragma GCC unroll 4
		for (u32 v = 0; v < VECS; v++) {
			const char *narrow = w->narrow + r * INT4_ROW_SUMS;
			vec value = vec_sub(beneath(begin, lower_halves(narrow, v)), less);
			for (u32 i = 1; i < p->parts; i++)
				value = vec_add(vec_sub(value, less), beneath(begin, lower_halves(narrow + i * INT4_SUMS, v)));
			value = vec_fma(vec_load(head + KERN_PANEL + v * VEC_LANES), sum, value);
			vec_store((float *)(void *)to + v * VEC_LANES,
				  vec_fma(value, vec_load(head + v * VEC_LANES), vec_load((const float *)(const void *)from + v * VEC_LANES)));
		}
	}
}

/* The same if there is such a group. */
static __attribute__((noinline)) void join(struct work *w)
{
	if (w->pending.parts > 0)
		join_rows(w, w->pending.rows);
	w->pending.parts = 0;
}

/* wide += the sums in 16 bits, which are signed here. */
static ALWAYS_INLINE void widen_sums(const char *narrow, u32 rows, __m256i wide[][VECS])
{
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < VECS; v++) {
			__m256i low = _mm256_slli_epi32(lower_halves(narrow + r * INT4_ROW_SUMS, v), 16);
			wide[r][v] = _mm256_add_epi32(wide[r][v], _mm256_srai_epi32(low, 16));
		}
}

/* A group of any inputs; `x` are its heads. */
static void add_any(struct work *w, const char *head, const char *x, u32 rows, u32 width, const struct rows_way *way)
{
	const char *from = way->from;
	char *to = way->to;
	const u32 part = part_values(width);
	const float *scales = (const float *)(const void *)head, *inputs = (const float *)(const void *)x;
	__m256i wide[ROWS_MOST][VECS];
	memset(wide, 0, sizeof wide);
	join(w);
	w->place.weights = head + WEIGHTS_HEAD;
	for (u32 k = 0; k < width; k += 2 * ANY_TURNS) {
		w->place.x = x + rows * INPUTS_HEAD + k / part * rows * (part + INT4_TAIL) + k % part;
		if (part == INT4_PART)
			int4_plain(&w->place, rows, INT4_PART + INT4_TAIL, ANY_TURNS / 2, 0, w->narrow);
		else
			int4_plain(&w->place, rows, 32 + INT4_TAIL, ANY_TURNS / 2, 0, w->narrow);
		widen_sums(w->narrow, rows, wide);
	}
	for (u32 r = 0; r < rows; r++, from += way->from_step, to += way->to_step)
		for (u32 v = 0; v < VECS; v++) {
			vec sum = vec_load((const float *)(const void *)from + v * VEC_LANES);
			vec scale = vec_load(scales + v * VEC_LANES), zero = vec_load(scales + KERN_PANEL + v * VEC_LANES);
			vec value = vec_fma(zero, vec_set1(inputs[2 * rows + r]), _mm256_cvtepi32_ps(wide[r][v]));
			vec_store((float *)(void *)to + v * VEC_LANES, vec_fma(value, vec_mul(scale, vec_set1(inputs[r])), sum));
		}
}

/* One of inputs that 16 bits are enough for in parts of `values`. It is pending afterwards. */
static ALWAYS_INLINE void add_parts(struct work *w, const char *head, const char *x, const u32 rows, const u32 width,
				    const u32 values, const struct rows_way *way)
{
	const u32 part = part_values(width), row = part + INT4_TAIL;
	const i32 begin = (i32)(LONG_BEGIN * 0x10001u); /* in both lanes */
	u32 done = 0;
	if (w->pending.parts > 0) {
		w->place.weights = pointer_alone(head + WEIGHTS_HEAD);
		w->place.x = pointer_alone(x + rows * INPUTS_HEAD);
		int4_joined(&w->place, rows, row, values, begin, &w->pending, width / 32, w->narrow);
		done = values;
	}
#pragma GCC unroll 4
	for (; done < width; done += values) {
		w->place.weights = pointer_alone(head + WEIGHTS_HEAD + (size_t)done * KERN_PANEL);
		w->place.x = pointer_alone(x + rows * (INPUTS_HEAD + done / part * row) + done % part);
		int4_plain(&w->place, rows, row, values / 4, begin, w->narrow + done / values * INT4_SUMS);
	}
	w->pending.head = pointer_alone(head);
	w->pending.inputs = pointer_alone(x);
	way_keep(&w->pending.way, way);
	w->pending.parts = width / values;
	w->pending.rows = rows;
}

/* The same in parts of 32 of 64, which few inputs need. */
static __attribute__((noinline)) void add_halves(struct work *w, const char *head, const char *x, u32 rows, u32 width,
						 const struct rows_way *way)
{
	if (width == 128 && rows == 4)
		add_parts(w, head, x, 4, 128, HALF_PART, way);
	else if (width == 128)
		add_parts(w, head, x, ROWS_MOST, 128, HALF_PART, way);
	else if (rows == 4)
		add_parts(w, head, x, 4, INT4_PART, HALF_PART, way);
	else
		add_parts(w, head, x, ROWS_MOST, INT4_PART, HALF_PART, way);
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, const u32 rows, const u32 width, const u32 inputs_head)
{
	const size_t row_bytes = width + inputs_head, group_bytes = WEIGHTS_HEAD + (size_t)width * KERN_PANEL;
	struct work *w = (struct work *)(void *)t->held;
	const char *group = t->weights, *x = t->x;
	struct rows_way all, way;
	check_bytes(group, kern_ceil(t->k_count, width) * group_bytes);
	check_bytes(x, kern_ceil(t->k_count, width) * rows * row_bytes);
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r, rows);
	w->place.prefetch = t->prefetch;
	w->place.prefetch_step = t->prefetch_step;
	if (t->opens)
		w->pending.parts = 0;
	else if (w->pending.rows != rows)
		join(w);
	const bool whole = tile_way(t, rows, w->edge, &all);
	way = (struct rows_way){all.from, (char *)w->sums, all.from_step, KERN_PANEL * sizeof(float)};
	for (u32 k = 0; k < t->k_count; k += width, group = pointer_alone(group + group_bytes), x = pointer_alone(x + rows * row_bytes)) {
		const char span = x[rows * INPUTS_HEAD + part_values(width) + SPAN_AT];
		if (t->k_count - k <= width) {
			way.to = all.to;
			way.to_step = all.to_step;
		}
		if (span == SPAN_PART)
			add_parts(w, group, x, rows, width, part_values(width), &way);
		else if (span == SPAN_HALF)
			add_halves(w, group, x, rows, width, &way);
		else
			add_any(w, group, x, rows, width, &way);
		way.from = way.to;
		way.from_step = way.to_step;
	}
	/* Of a single group sums are still where they begin, and the next tile's would come there. */
	if (!whole || t->closes || (t->k_count <= width && all.from == (const char *)w->edge))
		join(w);
	if (!whole)
		edge_end(t, rows, w->edge);
}

enum {
	HEAD_ONE = INPUTS_HEAD + INT4_TAIL, /* blocked_kernel.head_bytes */
	HEAD_TWO = INPUTS_HEAD + 2 * INT4_TAIL,
};

/* The row count is a constant in each case: code without loops over rows. */
#define KERNEL(name, tile_fn, width, head)                          \
	static void tile_fn(const struct blocked_tile *t, u32 rows) \
	{                                                           \
		if (rows == 4)                                      \
			run_tile(t, 4, width, head);                \
		else                                                \
			run_tile(t, ROWS_MOST, width, head);        \
	}                                                           \
	static const struct blocked_kernel name = {.tile_rows = ROWS_MOST,       \
						   .k_block = BLOCKED_K_MAX,     \
						   .value_bytes = 1,             \
						   .head_bytes = head,           \
						   .pack = pack,                 \
						   .unpack = unpack,             \
						   .tile = tile_fn,              \
						   .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};
KERNEL(INT4_32, tile_32, 32, HEAD_ONE)
KERNEL(INT4_64, tile_64, 64, HEAD_ONE)
KERNEL(INT4_128, tile_128, 128, HEAD_TWO)
#undef KERNEL

void VARIANT(matmul_int4_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const u32 width = kern_dtype_group(a->w->dtype);
	ASSERT(a->tokens >= ROWS_SHARED);
	matmul_blocked(ctx, a, width == 128 ? &INT4_128 : width == 64 ? &INT4_64 : &INT4_32);
}
