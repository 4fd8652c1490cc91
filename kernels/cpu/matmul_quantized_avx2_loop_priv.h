/* The loops in which products of 2 to 12 rows with weights in 8 and 4 bits spend nearly all their time with AVX2, written out:
 * the compiler's own keep sums in memory or let them change places. Two products come first and then two additions. In turns with products
 * more of the additions would be sent to the multipliers' ports, which are two of four.
 *
 * A unit of inputs is 4 bytes of every row: 2 values in 16 bits, or 4 in 8. Every turn of a loop takes two of them. Up to 6 rows
 * are multiplied by two vectors of columns, of which 16 registers hold the sums; up to 12 by one. */
#ifndef TERCET_KERNELS_CPU_MATMUL_QUANTIZED_AVX2_LOOP_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_QUANTIZED_AVX2_LOOP_PRIV_H

#include "kernels/cpu/matmul_quantized_avx2_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 8

enum { LOOP_ROWS = 6, LOOP_VECS = 2, LOOP_ROWS_MOST = 12 };

/* Where a tile is in a group. */
struct loop_place {
	const char *weights;  /* of its first column; a row of the panel is 4 * KERN_PANEL bytes */
	const char *x;	      /* [unit][rows][4] */
	const char *prefetch; /* asked for, `prefetch_step` bytes further with every turn */
	size_t prefetch_step;
};

/* each(first row, ...), each(second row, ...) and so on */
#define ROWS_1(each, ...) each(0, __VA_ARGS__)
#define ROWS_2(each, ...) ROWS_1(each, __VA_ARGS__) each(1, __VA_ARGS__)
#define ROWS_3(each, ...) ROWS_2(each, __VA_ARGS__) each(2, __VA_ARGS__)
#define ROWS_4(each, ...) ROWS_3(each, __VA_ARGS__) each(3, __VA_ARGS__)
#define ROWS_5(each, ...) ROWS_4(each, __VA_ARGS__) each(4, __VA_ARGS__)
#define ROWS_6(each, ...) ROWS_5(each, __VA_ARGS__) each(5, __VA_ARGS__)

#define INPUT(r, unit, to) "vpbroadcastd " #unit "*4*%c[rows]+4*" #r "(%[x]), " to "\n\t"

/* ---------------------------------------------------------------- up to 6 rows, two vectors */

#define PAIR_SUMS_OF(r) [left##r] "=&x"(sum[r][0]), [right##r] "=&x"(sum[r][1])
#define PAIR_SUMS_1 PAIR_SUMS_OF(0)
#define PAIR_SUMS_2 PAIR_SUMS_1, PAIR_SUMS_OF(1)
#define PAIR_SUMS_3 PAIR_SUMS_2, PAIR_SUMS_OF(2)
#define PAIR_SUMS_4 PAIR_SUMS_3, PAIR_SUMS_OF(3)
#define PAIR_SUMS_5 PAIR_SUMS_4, PAIR_SUMS_OF(4)
#define PAIR_SUMS_6 PAIR_SUMS_5, PAIR_SUMS_OF(5)

#define PAIR_AT(r, ...) "vpbroadcastd 4*" #r "(%[begin]), %[left" #r "]\n\tvmovdqa %[left" #r "], %[right" #r "]\n\t"
#define PAIR_ZERO(r, ...) \
	"vpxor %[left" #r "], %[left" #r "], %[left" #r "]\n\tvpxor %[right" #r "], %[right" #r "], %[right" #r "]\n\t"

#define PAIR_ROW(r, unit, multiply, add)                                                                                  \
	INPUT(r, unit, "%[first]")                                                                                      \
	multiply " %[first], %[left], %[second]\n\t" multiply " %[first], %[right], %[first]\n\t" add                   \
		" %[second], %[left" #r "], %[left" #r "]\n\t" add " %[first], %[right" #r "], %[right" #r "]\n\t"
#define PAIR_LOAD "vmovdqu (%[weights]), %[left]\n\tvmovdqu 32(%[weights]), %[right]\n\t"
#define PAIR_DO(instruction) instruction ", %[left], %[left]\n\t" instruction ", %[right], %[right]\n\t"

#define PAIR_BYTES(n)                                                                                                    \
	PAIR_LOAD PAIR_DO("vpand %[mask]") ROWS_##n(PAIR_ROW, 0, "vpmaddwd", "vpaddd") PAIR_LOAD PAIR_DO("vpsrlw $8") \
		ROWS_##n(PAIR_ROW, 1, "vpmaddwd", "vpaddd")
#define PAIR_HALVES(n)                                                                                                      \
	PAIR_LOAD PAIR_DO("vpand %[mask]") ROWS_##n(PAIR_ROW, 0, "vpmaddubsw", "vpaddw") PAIR_LOAD                     \
		PAIR_DO("vpsrlw $4") PAIR_DO("vpand %[mask]") ROWS_##n(PAIR_ROW, 1, "vpmaddubsw", "vpaddw")

#define PAIR_OF(n, BEGIN, TURN)                                                             \
	case n:                                                                                                 \
		__asm__(ROWS_##n(BEGIN, 0) "1:\n\tprefetcht0 (%[prefetch])\n\t" TURN(n)                  \
			"add $128, %[weights]\n\tadd $2*4*%c[rows], %[x]\n\tadd %[step], %[prefetch]\n\t" \
			"dec %[turns]\n\tjnz 1b"                                                                \
			: PAIR_SUMS_##n, [left] "=&x"(left), [right] "=&x"(right), [first] "=&x"(first),        \
			  [second] "=&x"(second), [weights] "+&r"(p->weights), [x] "+&r"(p->x),                   \
			  [prefetch] "+&r"(p->prefetch), [turns] "+&r"(turns)                                     \
			: [step] "r"(p->prefetch_step), [begin] "r"(begin), [mask] "m"(mask), [rows] "i"(n)     \
			: "memory", "cc");                                                                      \
		break;
#define PAIR_LOOP(name, BEGIN, TURN, mask_value)                                       \
	static ALWAYS_INLINE void name(struct loop_place *p, const u32 rows, u32 turns, const char *begin, \
				       __m256i sum[][LOOP_VECS])                                           \
	{                                                                                                  \
		const __m256i mask = _mm256_set1_epi32(mask_value);                                        \
		__m256i left, right, first, second;                                                        \
		switch (rows) {                                                                            \
			PAIR_OF(1, BEGIN, TURN)                                        \
			PAIR_OF(2, BEGIN, TURN)                                        \
			PAIR_OF(3, BEGIN, TURN)                                        \
			PAIR_OF(4, BEGIN, TURN)                                        \
			PAIR_OF(5, BEGIN, TURN)                                        \
		default:                                                                                   \
			PAIR_OF(6, BEGIN, TURN)                                        \
		}                                                                                          \
	}

/* sum[r][v] = begin[r] (4 bytes each) and in every lane of 32 bits 2 products of every unit of weights in 8 bits, whose even and
 * odd bytes are one each. At least one turn. */
PAIR_LOOP(loop_bytes, PAIR_AT, PAIR_BYTES, 0x00ff00ff)
/* sum[r][v] = in every lane of 16 bits 2 products of every unit of weights in 4 bits, whose lower and upper halves of bytes are
 * one each; `begin` is not read. At least one turn. */
PAIR_LOOP(loop_halves, PAIR_ZERO, PAIR_HALVES, 0x0f0f0f0f)

/* ---------------------------------------------------------------- 7 to 12 rows, one vector */

#define ONE_SUM(r) [sum##r] "=&x"(sum[r])
#define ONE_SUMS_7 ONE_SUM(0), ONE_SUM(1), ONE_SUM(2), ONE_SUM(3), ONE_SUM(4), ONE_SUM(5), ONE_SUM(6)
#define ONE_SUMS_8 ONE_SUMS_7, ONE_SUM(7)
#define ONE_SUMS_9 ONE_SUMS_8, ONE_SUM(8)
#define ONE_SUMS_10 ONE_SUMS_9, ONE_SUM(9)
#define ONE_SUMS_11 ONE_SUMS_10, ONE_SUM(10)
#define ONE_SUMS_12 ONE_SUMS_11, ONE_SUM(11)

#define ONE_AT(r, ...) "vpbroadcastd 4*" #r "(%[begin]), %[sum" #r "]\n\t"
#define ONE_ZERO(r, ...) "vpxor %[sum" #r "], %[sum" #r "], %[sum" #r "]\n\t"
#define ONE_ALL_7(each) ROWS_6(each, 0) each(6, 0)
#define ONE_ALL_8(each) ONE_ALL_7(each) each(7, 0)
#define ONE_ALL_9(each) ONE_ALL_8(each) each(8, 0)
#define ONE_ALL_10(each) ONE_ALL_9(each) each(9, 0)
#define ONE_ALL_11(each) ONE_ALL_10(each) each(10, 0)
#define ONE_ALL_12(each) ONE_ALL_11(each) each(11, 0)

#define ONE_ROW(r, unit, multiply, add) \
	INPUT(r, unit, "%[first]") multiply " %[first], %[left], %[first]\n\t" add " %[first], %[sum" #r "], %[sum" #r "]\n\t"
#define ONE_ROWS(r, s, unit, multiply, add)                                                                  \
	INPUT(r, unit, "%[first]") INPUT(s, unit, "%[second]")                                               \
	multiply " %[first], %[left], %[first]\n\t" multiply " %[second], %[left], %[second]\n\t" add        \
		" %[first], %[sum" #r "], %[sum" #r "]\n\t" add " %[second], %[sum" #s "], %[sum" #s "]\n\t"
#define ONE_UNIT_6(...) ONE_ROWS(0, 1, __VA_ARGS__) ONE_ROWS(2, 3, __VA_ARGS__) ONE_ROWS(4, 5, __VA_ARGS__)
#define ONE_UNIT_7(...) ONE_UNIT_6(__VA_ARGS__) ONE_ROW(6, __VA_ARGS__)
#define ONE_UNIT_8(...) ONE_UNIT_6(__VA_ARGS__) ONE_ROWS(6, 7, __VA_ARGS__)
#define ONE_UNIT_9(...) ONE_UNIT_8(__VA_ARGS__) ONE_ROW(8, __VA_ARGS__)
#define ONE_UNIT_10(...) ONE_UNIT_8(__VA_ARGS__) ONE_ROWS(8, 9, __VA_ARGS__)
#define ONE_UNIT_11(...) ONE_UNIT_10(__VA_ARGS__) ONE_ROW(10, __VA_ARGS__)
#define ONE_UNIT_12(...) ONE_UNIT_10(__VA_ARGS__) ONE_ROWS(10, 11, __VA_ARGS__)

#define ONE_FIRST "vmovdqu (%[weights]), %[left]\n\tvpand %[mask], %[left], %[left]\n\t"
#define ONE_BYTES(n)                                  \
	ONE_FIRST ONE_UNIT_##n(0, "vpmaddwd", "vpaddd") \
	"vmovdqu (%[weights]), %[left]\n\tvpsrlw $8, %[left], %[left]\n\t" ONE_UNIT_##n(1, "vpmaddwd", "vpaddd")
#define ONE_HALVES(n)                                                                                     \
	ONE_FIRST ONE_UNIT_##n(0, "vpmaddubsw", "vpaddw")                                                 \
	"vmovdqu (%[weights]), %[left]\n\tvpsrlw $4, %[left], %[left]\n\tvpand %[mask], %[left], %[left]\n\t" \
		ONE_UNIT_##n(1, "vpmaddubsw", "vpaddw")

#define ONE_OF(n, BEGIN, TURN)                                                                                              \
	case n:                                                                                                             \
		__asm__(ONE_ALL_##n(BEGIN) "1:\n\tprefetcht0 (%[prefetch])\n\t" TURN(n)                                   \
			"add $128, %[weights]\n\tadd $2*4*%c[rows], %[x]\n\tadd %[step], %[prefetch]\n\t"                  \
			"dec %[turns]\n\tjnz 1b"                                                                            \
			: ONE_SUMS_##n, [left] "=&x"(left), [first] "=&x"(first), [second] "=&x"(second),                   \
			  [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [turns] "+&r"(turns) \
			: [step] "r"(p->prefetch_step), [begin] "r"(begin), [mask] "m"(mask), [rows] "i"(n)                 \
			: "memory", "cc");                                                                                  \
		break;
#define ONE_LOOP(name, BEGIN, TURN, mask_value)                                                                           \
	static ALWAYS_INLINE void name(struct loop_place *p, const u32 rows, u32 turns, const char *begin, __m256i sum[]) \
	{                                                                                                                 \
		const __m256i mask = _mm256_set1_epi32(mask_value);                                                       \
		__m256i left, first, second;                                                                              \
		switch (rows) {                                                                                           \
			ONE_OF(7, BEGIN, TURN)                                                                            \
			ONE_OF(8, BEGIN, TURN)                                                                            \
			ONE_OF(9, BEGIN, TURN)                                                                            \
			ONE_OF(10, BEGIN, TURN)                                                                           \
			ONE_OF(11, BEGIN, TURN)                                                                           \
		default:                                                                                                  \
			ONE_OF(12, BEGIN, TURN)                                                                           \
		}                                                                                                         \
	}

/* As loop_bytes and loop_halves, of one vector of columns. */
ONE_LOOP(loop_one_bytes, ONE_AT, ONE_BYTES, 0x00ff00ff)
ONE_LOOP(loop_one_halves, ONE_ZERO, ONE_HALVES, 0x0f0f0f0f)

#endif
#endif
