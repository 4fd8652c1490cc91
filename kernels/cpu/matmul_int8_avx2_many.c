/* Matrix product of many rows with weights in 8 bits, for AVX2. The sums are those of cpu/matmul_quantized_avx2.c, to the bit.
 * Weights become 16 bits wide once for all rows of a block. */
#include "kernels/cpu/lace_units_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_loop_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	TILE_ROWS = LOOP_ROWS,
	INPUTS_HEAD = 8, /* bytes of a row's group of inputs before its values: scale and sum */
	VALUE_BYTES = 2,
	UNIT_BYTES = 4 * KERN_PANEL,
};

/* One group of some rows: everything about a row is one piece of straight code. */
static ALWAYS_INLINE void pack_group(const struct blocked_job *j, const float *x, u32 rows, u32 k, char *to)
{
	const u32 units = KERN_GROUP_MAX * VALUE_BYTES / 4;
	float held[KERN_GROUP_MAX], laced[TILE_ROWS][KERN_GROUP_MAX / 2];
	for (u32 r = 0; r < rows; r++) {
		const float *from = group_values(j->a->w, x + r * j->a->x_stride, k, KERN_GROUP_MAX, held);
		struct rounding rounding = rounding_by_largest(from, KERN_GROUP_MAX);
		i32 sum = round_group(from, rounding, KERN_GROUP_MAX, true, laced[r]);
		memcpy(to + r * 4, &rounding.scale, 4);
		store_sum(to + (rows + r) * 4, true, sum);
	}
	lace_units(laced[0], KERN_GROUP_MAX / 2, rows, units, (float *)(void *)(to + rows * INPUTS_HEAD));
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

/* sums += scale * inputs' scale * products of the group. `head`: the group's scales of these columns; `x`: the inputs' group. */
static ALWAYS_INLINE void add_group(const char *head, const char *x, u32 rows, __m256i sum[][HALF_VECS], vec sums[][HALF_VECS])
{
#pragma GCC unroll 2
	for (u32 v = 0; v < HALF_VECS; v++) {
		vec scale = vec_load((const float *)(const void *)head + v * VEC_LANES);
#pragma GCC unroll 6
		for (u32 r = 0; r < rows; r++) {
			vec both = vec_mul(scale, vec_set1(load_float(x + r * 4)));
			sums[r][v] = vec_fma(_mm256_cvtepi32_ps(sum[r][v]), both, sums[r][v]);
		}
	}
}

static ALWAYS_INLINE void run_half(const struct blocked_tile *t, u32 column, u32 rows)
{
	const char *group = t->weights + column * 4, *x = t->x;
	vec sums[TILE_ROWS][HALF_VECS];
	/* The other half asks for what lies behind. */
	const size_t asked = column > 0 ? (size_t)t->prefetch_step * kern_ceil(t->k_count * VALUE_BYTES, 8) : 0;
	struct loop_place p = {.prefetch = t->prefetch + asked, .prefetch_step = t->prefetch_step};
	half_begin(t, column, rows, sums);
	for (u32 k = 0; k < t->k_count; k += KERN_GROUP_MAX) {
		const u32 turns = kern_ceil(kern_min(KERN_GROUP_MAX, t->k_count - k) * VALUE_BYTES, 8);
		__m256i sum[TILE_ROWS][HALF_VECS];
		__asm__("" : "+m"(sums)); /* or some of them take registers of the whole sums */
		p.weights = group + KERN_GROUP_HEAD;
		p.x = x + rows * INPUTS_HEAD;
		loop_wide(&p, rows, turns, x + rows * 4, sum); /* which begin with what takes back the 128 added to the weights */
		add_group(group, x, rows, sum, sums);
		group += KERN_GROUP_HEAD + (size_t)KERN_GROUP_MAX * KERN_PANEL * VALUE_BYTES;
		x += rows * (KERN_GROUP_MAX * VALUE_BYTES + INPUTS_HEAD);
	}
	half_end(t, column, rows, sums);
}

static ALWAYS_INLINE void run_tile(const struct blocked_tile *t, u32 rows)
{
	for (u32 r = 0; r < rows; r++)
		sums_ahead(t, r);
	run_half(t, 0, rows);
	run_half(t, HALF_COLUMNS, rows);
}

/* The row count is a constant in each case, so that sums live in registers. */
static void tile(const struct blocked_tile *t, u32 rows)
{
	switch (rows) {
	case 1:
		run_tile(t, 1);
		break;
	case 2:
		run_tile(t, 2);
		break;
	case 3:
		run_tile(t, 3);
		break;
	case 4:
		run_tile(t, 4);
		break;
	case 5:
		run_tile(t, 5);
		break;
	default:
		run_tile(t, TILE_ROWS);
		break;
	}
}

void VARIANT(matmul_int8_many)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	static const struct blocked_kernel kernel = {.tile_rows = TILE_ROWS,
						     .k_block = 512,
						     .value_bytes = VALUE_BYTES,
						     .head_bytes = INPUTS_HEAD,
						     .pack = pack,
						     .unpack = unpack,
						     .tile = tile,
						     .act_mul = sums_act_mul};
	matmul_blocked(ctx, a, &kernel);
}
