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
};

/* Where a tile is: its group of weights in the first panel, the group's inputs with their scale and sum, and what is asked for
 * next. */
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

/* Asks for what comes of the s-th panel at turn `u` of those that p is at. */
static ALWAYS_INLINE void ask(const struct matmul_tile *t, bool asks, const struct place *p, u32 s, u32 u, const char *row)
{
	if (asks)
		_mm_prefetch(p->ask + s * t->next_panel_bytes + u * ASK_BYTES, _MM_HINT_T0);
	tile_prefetch_near(t, row);
}

/* What a group's products, summed up, add to a panel's sums. */
static ALWAYS_INLINE void add_sums(const struct place *p, const char *group, bool int4, const __m256i sum[PANEL_VECS],
				   vec total[PANEL_VECS])
{
#pragma GCC unroll 4
	for (u32 v = 0; v < PANEL_VECS; v++) {
		struct group_scales scales = load_scales(group, v * VEC_LANES, int4);
		total[v] = add_scaled(total[v], sum[v], &scales, p->scale, p->sum, int4);
	}
}

/* A group of `count` turns, one of each panel after the other. */
static ALWAYS_INLINE void add_int8(const struct matmul_tile *t, u32 count, bool asks, struct place *p, vec total[][PANEL_VECS])
{
	__m256i sum[PANELS][PANEL_VECS];
	const char *x = p->x;
	for (u32 s = 0; s < t->panels; s++)
		set_sums(_mm256_set1_epi32(load_i32(p->sum)), sum[s]);
	for (u32 u = 0; u < count; u++, x += 8) {
		const char *row = p->group + KERN_GROUP_HEAD + u * KERN_GROUP_UNIT;
		for (u32 s = 0; s < t->panels; s++, row += t->panel_bytes) {
			ask(t, asks, p, s, 0, row);
			add_units(false, row, x, sum[s]);
		}
		p->ask += asks ? ASK_BYTES : 0;
	}
	for (u32 s = 0; s < t->panels; s++)
		add_sums(p, p->group + s * t->panel_bytes, false, sum[s], total[s]);
}

/* Of each panel after the other as many turns as 16 bits hold the sums of; what puts groups together lies between them, too, for
 * in one piece it would be as long as a core looks ahead. */
static ALWAYS_INLINE void add_int4(const struct matmul_tile *t, u32 count, bool asks, struct place *p, vec total[][PANEL_VECS])
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i sum[PANELS][PANEL_VECS];
	for (u32 done = 0; done < count; done += NARROW_UNITS / 2) {
		const u32 turns = kern_min(NARROW_UNITS / 2, count - done);
		const char *group = p->group, *x = p->x + done * 8;
		for (u32 s = 0; s < t->panels; s++, group += t->panel_bytes) {
			const char *rows = group + KERN_GROUP_HEAD + done * KERN_GROUP_UNIT;
			__m256i narrow[PANEL_VECS], wide[PANEL_VECS];
			set_sums(_mm256_setzero_si256(), narrow);
#pragma GCC unroll 1
			for (u32 u = 0; u < turns; u++) {
				ask(t, asks, p, s, u, rows + u * KERN_GROUP_UNIT);
				add_units(true, rows + u * KERN_GROUP_UNIT, x + u * 8, narrow);
			}
#pragma GCC unroll 4
			for (u32 v = 0; v < PANEL_VECS; v++)
				wide[v] = _mm256_madd_epi16(narrow[v], ones);
			if (done > 0)
#pragma GCC unroll 4
				for (u32 v = 0; v < PANEL_VECS; v++)
					wide[v] = _mm256_add_epi32(wide[v], sum[s][v]);
			if (done + turns == count)
				add_sums(p, group, true, wide, total[s]);
			else
				memcpy(sum[s], wide, sizeof(wide));
		}
		p->ask += asks ? turns * ASK_BYTES : 0;
	}
}

static ALWAYS_INLINE void add_group(const struct matmul_tile *t, bool int4, u32 count, bool asks, struct place *p,
				    vec total[][PANEL_VECS])
{
	if (int4)
		add_int4(t, count, asks, p, total);
	else
		add_int8(t, count, asks, p, total);
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, bool int4)
{
	const u32 values = int4 ? 8 : 4, apart = t->panel_columns / VEC_LANES;
	const size_t bytes = KERN_GROUP_HEAD + t->width / values * (size_t)KERN_GROUP_UNIT;
	u32 left = kern_ceil(t->k_count, values);
	struct place p = {.group = t->weights, .x = t->units, .scale = t->scales, .sum = t->sums, .ask = t->next};
	vec total[PANELS][PANEL_VECS];
	for (u32 s = 0; s < t->panels; s++)
#pragma GCC unroll 4
		for (u32 v = 0; v < PANEL_VECS; v++)
			total[s][v] = tile_first_sum(t, 0, s * apart + v);
	while (left > 0) {
		const u32 count = kern_min(t->width / values, left);
		if (left <= ASK_TURNS && t->next)
			add_group(t, int4, count, true, &p, total);
		else
			add_group(t, int4, count, false, &p, total);
		left -= count;
		p.group += bytes;
		p.x += (size_t)t->width * (int4 ? 1 : 2);
		p.scale += 4;
		p.sum += 4;
	}
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
