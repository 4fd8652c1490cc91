/* What the loops of products of many rows with weights in 8 and 4 bits share with AVX2: 4 or 5 rows times two vectors of
 * columns, whose sums are up to 10 of 16 registers, and the steps that bring a group that is complete to the others beside the products of the
 * next one. Two products come first and then two additions: in turns with products more of the additions would be sent to
 * the multipliers' ports.
 *
 * Who includes this defines ROW(row, turn) and LOAD(turn): a turn multiplies the next vectors of weights by what one place in
 * the inputs holds for every row. */
#ifndef TERCET_KERNELS_CPU_MATMUL_ROWS_AVX2_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_ROWS_AVX2_PRIV_H

#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_quantized_avx2_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 8

/* Rows in tiles of nearly equal size: ROWS_SHARED and more leave none of fewer than 4. */
enum { ROWS_MOST = 5, ROWS_SHARED = 12 };

/* Where a tile is. */
struct rows_place {
	const char *weights, *x;
	const char *prefetch; /* asked for, `prefetch_step` bytes further as often as there are two turns */
	size_t prefetch_step;
};

/* Left to itself the compiler computes two pointers at once in a vector register, where they wait for all products before them: the
 * next group would begin when the last one's have ended. */
static ALWAYS_INLINE const char *pointer_alone(const char *p)
{
	__asm__("" : "+r"(p));
	return p;
}

/* Where sums come from and where they go, and how far it is from a row's to the next one's, in bytes. */
struct rows_way {
	const char *from;
	char *to;
	size_t from_step, to_step;
};

/* Member by member, and none through a vector register. */
static ALWAYS_INLINE void way_keep(struct rows_way *to, const struct rows_way *way)
{
	to->from = pointer_alone(way->from);
	to->to = way->to;
	__asm__("" : "+m"(to->to));
	to->from_step = way->from_step;
	__asm__("" : "+m"(to->from_step));
	to->to_step = way->to_step;
}

/* Where a tile's sums come from at first and where they go in the end; false: to `edge` [row][KERN_PANEL], for not all columns are
 * there. */
static ALWAYS_INLINE bool tile_way(const struct blocked_tile *t, const u32 rows, float *edge, struct rows_way *way)
{
	static const _Alignas(32) float zeros[KERN_PANEL];
	const size_t step = KERN_PANEL * sizeof(float), out_step = t->out_stride * sizeof(float);
	const bool whole = t->columns == KERN_PANEL;
	if (!t->first) {
		*way = (struct rows_way){.from = (const char *)t->sums, .from_step = step};
	} else if (!t->bias && !t->accumulate) {
		*way = (struct rows_way){.from = (const char *)zeros, .from_step = 0};
	} else if (!t->bias && whole) {
		*way = (struct rows_way){.from = (const char *)t->out, .from_step = out_step};
	} else {
		for (u32 column = 0; column < KERN_PANEL; column += HALF_COLUMNS)
			half_begin_in(t, column, rows, edge + column, KERN_PANEL);
		*way = (struct rows_way){.from = (const char *)edge, .from_step = step};
	}
	way->to = (char *)(!t->last ? t->sums : whole ? t->out : edge);
	way->to_step = t->last && whole ? out_step : step;
	return whole || !t->last;
}

/* From `edge` to where they are wanted. */
static ALWAYS_INLINE void edge_end(const struct blocked_tile *t, u32 rows, const float *edge)
{
	for (u32 column = 0; column < KERN_PANEL; column += HALF_COLUMNS)
		half_end_of(t, column, rows, edge + column, KERN_PANEL);
}

/* Registers 0 to 9 are the sums of 5 rows. */
#define SUMS_0 "%%ymm0", "%%ymm1"
#define SUMS_1 "%%ymm2", "%%ymm3"
#define SUMS_2 "%%ymm4", "%%ymm5"
#define SUMS_3 "%%ymm6", "%%ymm7"
#define SUMS_4 "%%ymm8", "%%ymm9"
#define LEFT "%%ymm10"
#define RIGHT "%%ymm11"
#define FIRST "%%ymm12"
#define SECOND "%%ymm13"
#define VALUE "%%ymm14"
#define OTHER "%%ymm15"
#define ALL_REGISTERS                                                                                                       \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
		"xmm14", "xmm15"

#define WITH(each, ...) each(__VA_ARGS__)
/* each(row, ...), row by row */
#define ALL_1(each, ...) each(0, __VA_ARGS__)
#define ALL_2(each, ...) ALL_1(each, __VA_ARGS__) each(1, __VA_ARGS__)
#define ALL_3(each, ...) ALL_2(each, __VA_ARGS__) each(2, __VA_ARGS__)
#define ALL_4(each, ...) ALL_3(each, __VA_ARGS__) each(3, __VA_ARGS__)
#define ALL_5(each, ...) ALL_4(each, __VA_ARGS__) each(4, __VA_ARGS__)

#define ROW_WITH(at, multiply, add, low, high)                                                                      \
	"vpbroadcastd " at "(%[x]), " FIRST "\n\t" multiply " " FIRST ", " LEFT ", " SECOND "\n\t" multiply " " FIRST \
	", " RIGHT ", " FIRST "\n\t" add " " SECOND ", " low ", " low "\n\t" add " " FIRST ", " high ", " high "\n\t"
#define ASK "prefetcht1 (%[prefetch])\n\tadd %[step], %[prefetch]\n\t"
#define TURN(n, t) LOAD(t) ALL_##n(ROW, t)
/* Behind its rows something else is done. */
#define TURN_4(t, a, b, c, d) LOAD(t) ROW(0, t) a ROW(1, t) b ROW(2, t) c ROW(3, t) d
#define TURN_5(t, a, b, c, d, e) TURN_4(t, a, b, c, d) ROW(4, t) e

#define SAME_IN(low, high) "vmovdqa " FIRST ", " low "\n\tvmovdqa " FIRST ", " high "\n\t"
#define SAME(r, ...) WITH(SAME_IN, SUMS_##r)
#define STORE_IN(r, to, low, high) \
	"vmovdqu " low ", 64*" #r "+" to "(%[narrow])\n\tvmovdqu " high ", 64*" #r "+32+" to "(%[narrow])\n\t"
#define STORE(r, to) WITH(STORE_IN, r, to, SUMS_##r)

#endif
#endif
