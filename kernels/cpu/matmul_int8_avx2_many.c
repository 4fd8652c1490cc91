/* Matrix product of many rows with weights in 8 bits, for AVX2. The sums are those of cpu/matmul_quantized_avx2.c, to the bit.
 * Weights become 16 bits wide once for all rows of a block. */
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_int8_avx2_loop_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	INPUTS_HEAD = 8, /* bytes of a row's group of inputs before its values: scale and sum */
	VALUE_BYTES = 2,
};

/* One group of some rows: scales, sums, and values by rows. All rows take a step before the next one, for each is a chain, and those of
 * several rows fit side by side. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, char *to)
{
	float held[ROWS_MOST][KERN_GROUP_MAX];
	const float *from[ROWS_MOST];
	struct rounding roundings[ROWS_MOST];
	for (u32 r = 0; r < rows; r++) {
		from[r] = group_values(j->a->w, x + r * j->x_stride, k, KERN_GROUP_MAX, held[r]);
		roundings[r] = rounding_by_eighths(from[r], KERN_GROUP_MAX);
	}
	for (u32 r = 0; r < rows; r++) {
		float *values = (float *)(void *)(to + rows * INPUTS_HEAD + r * INT8_ROW);
		i32 sum = round_group(from[r], roundings[r], KERN_GROUP_MAX, true, values);
		memcpy(to + r * 4, &roundings[r].scale, 4);
		store_sum(to + (rows + r) * 4, true, sum);
	}
}

static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const size_t bytes = (size_t)rows * (KERN_GROUP_MAX * VALUE_BYTES + INPUTS_HEAD);
	for (u32 end = k + count; k < end; k += KERN_GROUP_MAX, to += bytes)
		pack_group(j, x, rows, k, to);
	return false;
}

/* Groups of scales [32] and values [k / 2][32][2] in 16 bits: of 4 neighbours the first and the third, then the others. */
static enum blocked_scales unpack(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	const __m256i low = _mm256_set1_epi16(255);
	(void)w;
	(void)any_scales;
	for (u32 k = 0; k < k_count; k += KERN_GROUP_MAX) {
		u32 units = kern_ceil(kern_min(KERN_GROUP_MAX, k_count - k), 4);
		memcpy(to, from, KERN_GROUP_HEAD);
		from += KERN_GROUP_HEAD;
		to += KERN_GROUP_HEAD;
		for (u32 u = 0; u < units; u++, from += KERN_GROUP_UNIT, to += 2 * (size_t)INT8_TURN)
#pragma GCC unroll 4
			for (u32 v = 0; v < INT8_TURN; v += 32) {
				__m256i bytes = load(from + v);
				store(to + v, _mm256_and_si256(bytes, low));
				store(to + INT8_TURN + v, _mm256_srli_epi16(bytes, 8));
			}
	}
	return BLOCKED_ANY;
}

/* What tiles work with. */
struct work {
	struct rows_place place;
	struct int8_pending pending;
	_Alignas(32) char narrow[ROWS_MOST * HALF_COLUMNS * 4];
	_Alignas(32) float sums[ROWS_MOST * HALF_COLUMNS];
	_Alignas(32) float edge[ROWS_MOST * KERN_PANEL];
};
_Static_assert(sizeof(struct work) <= BLOCKED_HELD, "blocked_tile.held");

/* The pending group's sums += scale * inputs' scale * its products, with nothing beside it. */
static __attribute__((noinline)) void join(struct work *w)
{
	const struct int8_pending *p = &w->pending;
	const float *scales = (const float *)(const void *)p->head;
	for (u32 r = 0; r < p->rows; r++) {
		const float *from = (const float *)(const void *)(p->way.from + r * p->way.from_step);
		float *to = (float *)(void *)(p->way.to + r * p->way.to_step);
		const vec own = vec_set1(load_float(p->inputs + r * 4));
		for (u32 i = 0; i < HALF_COLUMNS; i += VEC_LANES) {
			vec products = _mm256_cvtepi32_ps(load(w->narrow + (r * HALF_COLUMNS + i) * 4));
			vec_store(to + i, vec_fma(products, vec_mul(vec_load(scales + i), own), vec_load(from + i)));
		}
	}
	w->pending.rows = 0;
}

/* Half a panel, whose weights begin at `group`. The last group is pending afterwards. */
static ALWAYS_INLINE void run_half(struct work *w, const struct blocked_tile *t, const char *group, const u32 rows,
				   const struct rows_way *whole)
{
	struct rows_way way = {whole->from, (char *)w->sums, whole->from_step, HALF_COLUMNS * sizeof(float)};
	const char *x = t->x;
	for (u32 k = 0; k < t->k_count; k += KERN_GROUP_MAX) {
		const u32 twos = kern_ceil(kern_min(KERN_GROUP_MAX, t->k_count - k), 4);
		w->place.weights = pointer_alone(group + KERN_GROUP_HEAD);
		w->place.x = pointer_alone(x + rows * INPUTS_HEAD);
		/* They begin with what takes back the 128 added to the weights. */
		if (w->pending.rows > 0 && twos >= 3 * rows) {
			int8_joined(&w->place, rows, twos, x + rows * 4, &w->pending, w->narrow);
		} else {
			join(w);
			int8_plain(&w->place, rows, twos, x + rows * 4, w->narrow);
		}
		if (t->k_count - k <= KERN_GROUP_MAX) {
			way.to = whole->to;
			way.to_step = whole->to_step;
		}
		w->pending.head = pointer_alone(group);
		w->pending.inputs = pointer_alone(x);
		way_keep(&w->pending.way, &way);
		w->pending.rows = rows;
		way.from = way.to;
		way.from_step = way.to_step;
		group = pointer_alone(group + KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL * VALUE_BYTES);
		x = pointer_alone(x + rows * (INT8_ROW + INPUTS_HEAD));
	}
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, const u32 rows)
{
	struct work *w = (struct work *)(void *)t->held;
	const u32 groups = kern_ceil(t->k_count, KERN_GROUP_MAX);
	struct rows_way all, way;
	check_bytes(t->weights, groups * (size_t)KERN_GROUP_HEAD + kern_ceil(t->k_count, 4) * 2 * (size_t)INT8_TURN);
	check_bytes(t->x, (size_t)groups * rows * (INT8_ROW + INPUTS_HEAD));
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r, rows);
	w->place.prefetch = t->prefetch;
	w->place.prefetch_step = t->prefetch_step;
	if (t->opens)
		w->pending.rows = 0;
	else if (w->pending.rows != rows)
		join(w);
	const bool whole = tile_way(t, rows, w->edge, &all);
	way = all;
	for (u32 column = 0; column < KERN_PANEL; column += HALF_COLUMNS) {
		run_half(w, t, t->weights + column * 4, rows, &way);
		way.from += HALF_COLUMNS * sizeof(float);
		way.to += HALF_COLUMNS * sizeof(float);
	}
	/* Of a single group sums are still where they begin, and the next tile's would come there. */
	if (!whole || t->closes || (groups == 1 && all.from == (const char *)w->edge))
		join(w);
	if (!whole)
		edge_end(t, rows, w->edge);
}

/* The row count is a constant in each case: code without loops over rows. */
static void tile(const struct blocked_tile *t, u32 rows)
{
	if (rows == 4)
		run_tile(t, 4);
	else
		run_tile(t, ROWS_MOST);
}

void VARIANT(matmul_int8_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	static const struct blocked_kernel kernel = {.tile_rows = ROWS_MOST,
						     .k_block = 640,
						     .value_bytes = VALUE_BYTES,
						     .head_bytes = INPUTS_HEAD,
						     .pack = pack,
						     .unpack = unpack,
						     .tile = tile,
						     .act_mul = sums_act_mul, .norm = &blocked_norm_avx2};
	ASSERT(a->tokens >= ROWS_SHARED);
	matmul_blocked(ctx, a, &kernel);
}
