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
		from[r] = group_values(j->a->w, x + r * j->a->x_stride, k, KERN_GROUP_MAX, held[r]);
		roundings[r] = rounding_by_largest(from[r], KERN_GROUP_MAX);
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

/* What a tile works with. */
struct work {
	struct rows_place place;
	struct int8_pending pending;
	_Alignas(32) char narrow[ROWS_MOST * HALF_COLUMNS * 4];
	_Alignas(32) float sums[KERN_PANEL / HALF_COLUMNS][ROWS_MOST * HALF_COLUMNS];
};

/* The pending group's sums += scale * inputs' scale * its products, with nothing beside it. */
static __attribute__((noinline)) void join(struct work *w, u32 rows)
{
	const float *scales = (const float *)(const void *)w->pending.head;
	float *sums = w->pending.sums;
	w->pending.sums = NULL;
	for (u32 r = 0; sums && r < rows; r++) {
		const vec own = vec_set1(load_float(w->pending.inputs + r * 4));
		for (u32 i = r * HALF_COLUMNS; i < (r + 1) * HALF_COLUMNS; i += VEC_LANES) {
			vec both = vec_mul(vec_load(scales + i - r * HALF_COLUMNS), own);
			vec_store(sums + i, vec_fma(_mm256_cvtepi32_ps(load(w->narrow + i * 4)), both, vec_load(sums + i)));
		}
	}
}

/* Half a panel, whose weights begin at `group`. The last group is pending afterwards, or as before where there is none. */
static ALWAYS_INLINE void run_half(struct work *w, const struct blocked_tile *t, const char *group, const u32 rows, float *sums)
{
	const char *x = t->x;
	for (u32 k = 0; k < t->k_count; k += KERN_GROUP_MAX) {
		w->place.weights = pointer_alone(group + KERN_GROUP_HEAD);
		w->place.x = pointer_alone(x + rows * INPUTS_HEAD);
		/* They begin with what takes back the 128 added to the weights. */
		if (w->pending.sums && t->k_count - k >= KERN_GROUP_MAX) {
			int8_joined(&w->place, rows, x + rows * 4, &w->pending, w->narrow);
		} else {
			join(w, rows);
			int8_plain(&w->place, rows, kern_ceil(kern_min(KERN_GROUP_MAX, t->k_count - k), 4), x + rows * 4, w->narrow);
		}
		w->pending = (struct int8_pending){pointer_alone(group), pointer_alone(x), sums};
		group = pointer_alone(group + KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL * VALUE_BYTES);
		x = pointer_alone(x + rows * (INT8_ROW + INPUTS_HEAD));
	}
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, const u32 rows)
{
	struct work w; /* not cleared: that would take as long as a turn */
	const u32 groups = kern_ceil(t->k_count, KERN_GROUP_MAX);
	check_bytes(t->weights, groups * (size_t)KERN_GROUP_HEAD + kern_ceil(t->k_count, 4) * 2 * (size_t)INT8_TURN);
	check_bytes(t->x, (size_t)groups * rows * (INT8_ROW + INPUTS_HEAD));
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r);
	w.place.prefetch = t->prefetch;
	w.place.prefetch_step = t->prefetch_step;
	w.pending.sums = NULL;
	for (u32 half = 0, column = 0; column < KERN_PANEL; half++, column += HALF_COLUMNS) {
		half_begin_in(t, column, rows, w.sums[half], HALF_COLUMNS);
		run_half(&w, t, t->weights + column * 4, rows, w.sums[half]);
	}
	join(&w, rows);
	for (u32 half = 0, column = 0; column < KERN_PANEL; half++, column += HALF_COLUMNS)
		half_end_of(t, column, rows, w.sums[half], HALF_COLUMNS);
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
						     .act_mul = sums_act_mul};
	ASSERT(a->tokens >= ROWS_SHARED);
	matmul_blocked(ctx, a, &kernel);
}
