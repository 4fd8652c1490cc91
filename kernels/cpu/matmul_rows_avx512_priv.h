/* The loop of products of many rows with weights in 8 and 4 bits for AVX-512 with VNNI: tiles of 8 rows, of which a pass takes one half
 * of all and the next the other: 4 rows times the 2 vectors of a panel.
 *
 * What a group's sums of whole numbers become in float takes 1 of the multipliers' slots a vector, which nothing saves. What can be saved is
 * the rest of it: in one piece these are so many instructions without a product among them that a
 * core does not look far enough ahead to find the products that follow. So a group that is complete is joined to the
 * others beside the products of the next one, be that the next tile's, a row a turn. And a vector that is stored takes a slot of whatever
 * has three operands, as these products have: sums stay in registers, 8 of whole numbers that are at work, 8 that are joined, and 8 of
 * floats, and each leaves them once. */
#ifndef TERCET_KERNELS_CPU_MATMUL_ROWS_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_ROWS_AVX512_PRIV_H

#include "kernels/cpu/matmul_blocked_tile_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum {
	PASS_ROWS = 4,
};

/* Of a pass; pointers are those of its first row, steps are bytes. */
struct rows_pass {
	const char *weights, *x;
	const char *tables; /* of 8 bits */
	const char *prefetch; /* two lines are asked for a row that is joined, `prefetch_step` further each time */
	size_t prefetch_step;
	const char *from; /* where sums begin and where they go, rows `from_step` and `to_step` apart */
	char *to;
	size_t from_step, to_step;
	size_t from_ahead, to_ahead; /* from the row behind one that was fetched or stored to what the next tile will, in its place */
	size_t x_step; /* of a group */
	u64 groups, tiles;
	u64 turns, last_turns; /* of a group, and of a tile's last one */
};

/* %zmm0 to 7 are the sums at work, a pair a row, 8 to 15 those that are joined, 16 to 23 those of floats. */
#define LEFT "%%zmm24"
#define RIGHT "%%zmm25"
#define FOUR "%%zmm26"
#define SCALE_0 "%%zmm27"
#define SCALE_1 "%%zmm28"
#define OWN "%%zmm29"
#define PASS_REGISTERS                                                                                                      \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
		"xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", \
		"xmm26", "xmm27", "xmm28", "xmm29"

/* Rows as arguments of the others: row, its sums at work, joined, of floats. */
#define ROW_0 0, "%%zmm0", "%%zmm1", "%%zmm8", "%%zmm9", "%%zmm16", "%%zmm17"
#define ROW_1 1, "%%zmm2", "%%zmm3", "%%zmm10", "%%zmm11", "%%zmm18", "%%zmm19"
#define ROW_2 2, "%%zmm4", "%%zmm5", "%%zmm12", "%%zmm13", "%%zmm20", "%%zmm21"
#define ROW_3 3, "%%zmm6", "%%zmm7", "%%zmm14", "%%zmm15", "%%zmm22", "%%zmm23"
#define WITH(each, ...) each(__VA_ARGS__)
#define ALL(each) WITH(each, ROW_0) WITH(each, ROW_1) WITH(each, ROW_2) WITH(each, ROW_3)

/* Sums of whole numbers begin with the row's own number in every lane. */
#define BEGIN(r, low, high, ...) "vpbroadcastd 32+4*" #r "(%[x]), " low "\n\tvmovdqa64 " low ", " high "\n\t"
#define HAND_OVER(r, low, high, low_joined, high_joined, ...) \
	"vmovdqa64 " low ", " low_joined "\n\tvmovdqa64 " high ", " high_joined "\n\t"
#define FETCH(r, low, high, low_joined, high_joined, low_sums, high_sums) \
	"vmovups (%[from]), " low_sums "\n\tvmovups 64(%[from]), " high_sums "\n\tadd %[from_step], %[from]\n\t"
#define FETCH_ASKING(r, ...) \
	FETCH(r, __VA_ARGS__) "mov %[from_ahead], %[at]\n\tprefetcht1 (%[from],%[at])\n\tprefetcht1 64(%[from],%[at])\n\t"
#define KEEP(r, low, high, low_joined, high_joined, low_sums, high_sums)                                       \
	"vmovups " low_sums ", (%[to])\n\tvmovups " high_sums ", 64(%[to])\n\tadd %[to_step], %[to]\n\t"
#define KEEP_ASKING(r, ...) \
	KEEP(r, __VA_ARGS__) "mov %[to_ahead], %[at]\n\tprefetcht1 (%[to],%[at])\n\tprefetcht1 64(%[to],%[at])\n\t"

/* The other half's. */
#define OVER_ROW(of) "add %[" of "_step], %[" of "]\n\t"
#define OVER_ROWS(of) OVER_ROW(of) OVER_ROW(of) OVER_ROW(of) OVER_ROW(of)

/* What joins a row, in two steps: less `own`, and times scales, which in 8 bits are those of its eighths. */
#define LESS(r, low, high, low_joined, high_joined, ...)                                                         \
	"vbroadcastss 4*" #r "(%[own]), " OWN "\n\tvsubps " OWN ", " low_joined ", " low_joined "\n\tvsubps " OWN \
	", " high_joined ", " high_joined "\n\t"
#define LESS_EIGHTHS(r, ...) "mov 32+4*" #r "(%[own]), %k[at]\n\t" LESS(r, __VA_ARGS__)
#define ADD_POWERS(r, low, high, low_joined, high_joined, low_sums, high_sums)                  \
	"vfmadd231ps " SCALE_0 ", " low_joined ", " low_sums "\n\tvfmadd231ps " SCALE_1 ", " high_joined ", " high_sums "\n\t"
#define ADD_EIGHTHS(r, low, high, low_joined, high_joined, low_sums, high_sums) \
	"vfmadd231ps (%[head],%[at]), " low_joined ", " low_sums "\n\tvfmadd231ps 64(%[head],%[at]), " high_joined ", " high_sums "\n\t"
#define SCALES_POWERS "vmovups (%[head]), " SCALE_0 "\n\tvmovups 64(%[head]), " SCALE_1 "\n\t"
#define SCALES_EIGHTHS

/* A turn: 4 values of every row times those of every column, and other steps between the rows. `t` turns behind the pointers. */
#define ROW_AT(t, r, low, high, ...)                                                                                            \
	"vpbroadcastd 32*" #t "+4*" #r "(%[x]), " FOUR "\n\tvpdpbusd " FOUR ", " LEFT ", " low "\n\tvpdpbusd " FOUR ", " RIGHT \
	", " high "\n\t"
#define ROWS(t, a, b, c) WITH(ROW_AT, t, ROW_0) a WITH(ROW_AT, t, ROW_1) b WITH(ROW_AT, t, ROW_2) c WITH(ROW_AT, t, ROW_3)
#define TURN(t, a, b, c)                                                                                   \
	"vmovdqu64 128*" #t "(%[weights]), " LEFT "\n\tvmovdqu64 128*" #t "+64(%[weights]), " RIGHT "\n\t" \
	ROWS(t, a, b, c)
#define NOTHING(...)
#define ASK "prefetcht1 (%[prefetch])\n\tprefetcht1 64(%[prefetch])\n\tadd %[prefetch_step], %[prefetch]\n\t"
#define JOIN(t, less, add, keep, fetch) \
	TURN(t, WITH(less, ROW_##t), WITH(add, ROW_##t) ASK, WITH(keep, ROW_##t) WITH(fetch, ROW_##t))

/* From a group's first turn on, whose scales and sums are found by `next_head` and `next_own` once it is complete. */
#define GROUP_BEGINS(head_bytes, next_head)                                                                                   \
	ALL(BEGIN) next_head "mov %[x], %[next_own]\n\tadd %[group_head], %[weights]\n\tadd $8*" head_bytes                  \
		", %[x]\n\tmov %[all_turns], %[turns]\n\tcmp $1, %[groups]\n\tcmove %[last_turns], %[turns]\n\t"
#define HEAD_POWERS "mov %[weights], %[next_head]\n\t"
#define HEAD_EIGHTHS "add $8*128, %[next_head]\n\t"
#define FIRST_POWERS HEAD_POWERS
#define FIRST_EIGHTHS "mov %[tables], %[next_head]\n\t"
#define GROUP_JOINS(less, add, keep, fetch)                                                                                \
	JOIN(0, less, add, keep, fetch) JOIN(1, less, add, keep, fetch) JOIN(2, less, add, keep, fetch)                  \
		JOIN(3, less, add, keep, fetch) "add $4*128, %[weights]\n\tadd $4*32, %[x]\n\tsub $4, %[turns]\n\t"
#define GROUP_ENDS(label)                                                                                                   \
	label ":\n\t" TURN(0, , , ) "sub $-128, %[weights]\n\tadd $32, %[x]\n\tdec %[turns]\n\tjnz " label "b\n\t" ALL(HAND_OVER) \
	"mov %[next_head], %[head]\n\tlea 64(%[next_own]), %[own]\n\tmov %[next_own], %[x]\n\tadd %[x_step], %[x]\n\t"

/* 1: a tile, whose first group joins the last one's last; 2: the turns of that; 3: its other groups; 4: their turns; 5: the next tile. The
 * first tile has nothing to join, and what the last one leaves is joined with nothing beside it. */
#define PASS(head_bytes, first_head, other_head, scales, less, add)                                                       \
	__asm__ volatile(ALL(FETCH) OVER_ROWS("from") "mov %[first], %[weights]\n\tmov %[all_groups], %[groups]\n\t" \
		GROUP_BEGINS(head_bytes, first_head) "jmp 2f\n"                                                         \
		"1:\n\tmov %[first], %[weights]\n\tmov %[all_groups], %[groups]\n\t"                                      \
		GROUP_BEGINS(head_bytes, first_head) scales GROUP_JOINS(less, add, KEEP_ASKING, FETCH_ASKING)                         \
		OVER_ROWS("from") OVER_ROWS("to")                                                                       \
		GROUP_ENDS("2") "dec %[groups]\n\tjz 5f\n"                                                              \
		"3:\n\t" GROUP_BEGINS(head_bytes, other_head) scales GROUP_JOINS(less, add, NOTHING, NOTHING)           \
		GROUP_ENDS("4") "dec %[groups]\n\tjnz 3b\n"                                                             \
		"5:\n\tdecq %[tiles]\n\tjnz 1b\n\t" scales                                                              \
		LAST(less, add, ROW_0) LAST(less, add, ROW_1) LAST(less, add, ROW_2) LAST(less, add, ROW_3)             \
		: [weights] "=&r"(weights), [x] "+&r"(x), [prefetch] "+&r"(prefetch), [from] "+&r"(from), [to] "+&r"(to), \
		  [own] "=&r"(own), [head] "=&r"(head), [next_own] "=&r"(next_own), [next_head] "=&r"(next_head),         \
		  [turns] "=&r"(turns), [groups] "=&r"(groups), [at] "=&r"(at), [tiles] "+m"(p->tiles)                   \
		: [from_ahead] "m"(p->from_ahead), [to_ahead] "m"(p->to_ahead), [prefetch_step] "m"(p->prefetch_step), [first] "m"(p->weights),                \
		  [tables] "m"(p->tables), [group_head] "i"(KERN_GROUP_HEAD), [all_groups] "m"(p->groups),              \
		  [all_turns] "m"(p->turns), [last_turns] "m"(p->last_turns), [from_step] "m"(p->from_step),            \
		  [to_step] "m"(p->to_step), [x_step] "m"(p->x_step)                                                                               \
		: PASS_REGISTERS, "memory", "cc")
#define LAST(less, add, ...) WITH(less, __VA_ARGS__) WITH(add, __VA_ARGS__) WITH(KEEP, __VA_ARGS__)

/* Tiles of one panel, at least one. Groups have 8 rows' scales, 8 numbers that sums begin with, 8 that are subtracted and, but for `powers`, 8
 * places in a table, and units [8][4]. `p->tiles` is 0 afterwards. */
static inline void rows_pass(struct rows_pass *p, const bool powers)
{
	const char *weights, *x = p->x, *prefetch = p->prefetch, *from = p->from, *own, *head, *next_own, *next_head;
	char *to = p->to;
	u64 turns, groups, at;
	if (powers)
		PASS("12", FIRST_POWERS, HEAD_POWERS, SCALES_POWERS, LESS, ADD_POWERS);
	else
		PASS("16", FIRST_EIGHTHS, HEAD_EIGHTHS, SCALES_EIGHTHS, LESS_EIGHTHS, ADD_EIGHTHS);
}

#endif
#endif
