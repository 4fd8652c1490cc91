/* Matrix product of one row with weights in 8 and 4 bits, for AVX2: decoding of one sequence. The sums are those of
 * cpu/matmul_quantized_avx2.c, to the bit.
 *
 * What takes time is memory. A core waits for so many lines at once and no more, and one stream does not bring the cache behind
 * that to read ahead of them: with four, line by line, it does. So a tile is up to four panels whose units take turns, and goes on
 * in those behind them. The processor follows such streams by itself; where they break off, the tile asks for what comes next. */
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	PANEL_VECS = KERN_PANEL / VEC_LANES,
	PANELS = QUANTIZED_ONE_PANELS,
	ASK_TURNS = 32, /* before its end a tile asks for the next one's beginning, */
	ASK_BYTES = 64, /* so much of each of its panels a turn */
	VISIT_TURNS = NARROW_UNITS / 2,
};

/* Where a tile of 8 bits is: its group of weights in the first panel, the group's inputs with their scale and sum, and what is
 * asked for next. */
struct place {
	const char *group, *x, *scale, *sum;
	const char *ask;
};

static ALWAYS_INLINE void set_sums(__m256i with, __m256i sum[PANEL_VECS])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++)
		sum[v] = with;
}

/* sum += the products of two units of 4 bytes of inputs with a row of a panel. */
static ALWAYS_INLINE void add_units(bool int4, const char *units, const char *x, __m256i sum[PANEL_VECS])
{
	const __m256i low = int4 ? _mm256_set1_epi8(15) : _mm256_set1_epi16(255);
	const __m256i first = _mm256_set1_epi32(load_i32(x)), second = _mm256_set1_epi32(load_i32(x + 4));
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++) {
		__m256i bytes = load(units + v * 32), even = _mm256_and_si256(bytes, low);
		if (int4) {
			add_narrow(&sum[v], even, first);
			add_narrow(&sum[v], _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), second);
		} else {
			add_wide(&sum[v], even, first);
			add_wide(&sum[v], _mm256_srli_epi16(bytes, 8), second);
		}
	}
}

/* total += what a group's products, summed up, make. */
static ALWAYS_INLINE void add_sums(const char *group, const char *scale, const char *x_sum, bool int4,
				   const __m256i sum[PANEL_VECS], vec total[PANEL_VECS])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++) {
		struct group_scales scales = load_scales(group, v * VEC_LANES, int4);
		total[v] = add_scaled(total[v], sum[v], &scales, scale, x_sum, int4);
	}
}

/* ---------------------------------------------------------------- 8 bits: one turn of each panel after the other */

static ALWAYS_INLINE void add_int8(const struct matmul_tile *t, u32 count, bool asks, struct place *p, vec total[][PANEL_VECS])
{
	__m256i sum[PANELS][PANEL_VECS];
	const char *x = p->x;
	for (u32 s = 0; s < t->panels; s++)
		set_sums(_mm256_set1_epi32(load_i32(p->sum)), sum[s]);
	for (u32 u = 0; u < count; u++, x += 8) {
		const char *row = p->group + KERN_GROUP_HEAD + u * KERN_GROUP_UNIT;
		for (u32 s = 0; s < t->panels; s++, row += t->panel_bytes) {
			if (asks)
				_mm_prefetch(p->ask + s * t->next_panel_bytes, _MM_HINT_T0);
			tile_prefetch_near(t, row);
			add_units(false, row, x, sum[s]);
		}
		p->ask += asks ? ASK_BYTES : 0;
	}
	for (u32 s = 0; s < t->panels; s++)
		add_sums(p->group + s * t->panel_bytes, p->scale, p->sum, false, sum[s], total[s]);
}

static ALWAYS_INLINE void run_int8(const struct matmul_tile *t, vec total[][PANEL_VECS])
{
	struct place p = {.group = t->weights, .x = t->units, .scale = t->scales, .sum = t->sums, .ask = t->next};
	u32 left = kern_ceil(t->k_count, 4);
	while (left > 0) {
		const u32 count = kern_min(t->width / 4, left);
		if (left <= ASK_TURNS && t->next)
			add_int8(t, count, true, &p, total);
		else
			add_int8(t, count, false, &p, total);
		left -= count;
		p.group += KERN_GROUP_HEAD + t->width / 4 * (size_t)KERN_GROUP_UNIT;
		p.x += (size_t)t->width * 2;
		p.scale += 4;
		p.sum += 4;
	}
}

/* ---------------------------------------------------------------- 4 bits: some turns of each panel after the other */

/* A panel is visited for as many turns as 16 bits hold the sums of. */
struct visits {
	u32 turns, count;
	u32 group_shift; /* a group's are 1 << group_shift */
	u32 ask_from;	 /* the first at which what comes next is asked for */
};

static ALWAYS_INLINE struct visits visits_of(const struct matmul_tile *t)
{
	const u32 turns = kern_ceil(t->k_count, 8), ask_from = turns > ASK_TURNS ? (turns - ASK_TURNS) / VISIT_TURNS : 0;
	return (struct visits){.turns = turns,
			       .count = kern_ceil(turns, VISIT_TURNS),
			       .group_shift = (u32)__builtin_ctz(t->width / (8 * VISIT_TURNS)),
			       .ask_from = t->next ? ask_from : UINT32_MAX};
}

static ALWAYS_INLINE void ask_next(const struct matmul_tile *t, u32 s, u32 visit)
{
	const char *at = t->next + s * t->next_panel_bytes + visit * VISIT_TURNS * ASK_BYTES;
	for (u32 u = 0; u < VISIT_TURNS; u++)
		_mm_prefetch(at + u * ASK_BYTES, _MM_HINT_T0);
}

/* The products of `turns` rows of a panel, summed up. */
static ALWAYS_INLINE void sum_int4(const struct matmul_tile *t, u32 turns, const char *row, const char *x, __m256i sum[PANEL_VECS])
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i narrow[PANEL_VECS];
	set_sums(_mm256_setzero_si256(), narrow);
#pragma GCC unroll 1
	for (u32 u = 0; u < turns; u++, row += KERN_GROUP_UNIT, x += 8) {
		tile_prefetch_near(t, row);
		add_units(true, row, x, narrow);
	}
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++)
		sum[v] = _mm256_madd_epi16(narrow[v], ones);
}

static ALWAYS_INLINE void add_before(const __m256i before[PANEL_VECS], __m256i sum[PANEL_VECS])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++)
		sum[v] = _mm256_add_epi32(sum[v], before[v]);
}

/* What puts groups together lies between the visits, for in one piece it would be as long as a core looks ahead. */
static ALWAYS_INLINE void run_int4(const struct matmul_tile *t, u32 late, vec total[][PANEL_VECS])
{
	const struct visits of = visits_of(t);
	const size_t group_bytes = KERN_GROUP_HEAD + t->width / 8 * (size_t)KERN_GROUP_UNIT;
	const u32 a_group = 1 << of.group_shift;
	__m256i before[PANELS][PANEL_VECS], sum[PANEL_VECS];
	for (u32 step = 0; step < of.count + (t->panels - 1) * late; step++)
		for (u32 s = 0; s < t->panels; s++) {
			const u32 visit = step - s * late, group = visit >> of.group_shift, part = visit & (a_group - 1);
			if (late && visit >= of.count) /* not yet begun, or at its end */
				continue;
			const char *head = t->weights + s * t->panel_bytes + group * group_bytes;
			if (visit >= of.ask_from)
				ask_next(t, s, visit - of.ask_from);
			sum_int4(t, kern_min(VISIT_TURNS, of.turns - visit * VISIT_TURNS),
				 head + KERN_GROUP_HEAD + part * VISIT_TURNS * KERN_GROUP_UNIT, t->units + visit * VISIT_TURNS * 8, sum);
			if (part > 0)
				add_before(before[s], sum);
			if (part + 1 == a_group || visit + 1 == of.count)
				add_sums(head, t->scales + group * 4, t->sums + group * 4, true, sum, total[s]);
			else
				memcpy(before[s], sum, sizeof(sum));
		}
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, bool int4)
{
	const u32 apart = t->panel_columns / VEC_LANES;
	vec total[PANELS][PANEL_VECS];
	for (u32 s = 0; s < t->panels; s++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			total[s][v] = tile_first_sum(t, 0, s * apart + v);
	if (int4 && t->late)
		run_int4(t, 1, total);
	else if (int4)
		run_int4(t, 0, total);
	else
		run_int8(t, total);
	for (u32 s = 0; s < t->panels; s++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			tile_store_sum(t, 0, s * apart + v, total[s][v]);
}

void VARIANT(matmul_quantized_one)(const struct matmul_tile *t, bool int4)
{
	if (int4)
		run_tile(t, true);
	else
		run_tile(t, false);
}
