/* The first pass over weights in 4 bits: 4 rows of the first tile, as cpu/matmul_rows_avx512_priv.h has them, times weights that become bytes
 * on the way and are stored for all passes behind it. Spreading them alone waits for stores, which products can stand beside, and for
 * weights to come from the next cache. */
#ifndef TERCET_KERNELS_CPU_MATMUL_SPREAD_AVX512_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_SPREAD_AVX512_PRIV_H

#include "kernels/cpu/matmul_rows_avx512_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum { SPREAD_PAIRS = 3 }; /* of turns of a group, at least: 8 values each */

struct rows_spread {
	const char *packed;  /* groups as stored, of which heads are passed over */
	char *spread;	     /* the same groups of bytes, with heads that are there already */
	const char *offsets; /* of a group [2][64] bytes: 128 - 8 * zero, the first vector's columns and the second's, 4 times each; in steps struct step_part of each
			      * part of 4 pairs */
	u64 pairs, last_pairs; /* of turns of a group, and of the last one */
};

#define OFFSET_0 "%%zmm30"
#define OFFSET_1 "%%zmm31"

/* One of two turns that lie in the halves of the same bytes: to LEFT and RIGHT, and `at` bytes behind `spread`. */
#define SPREAD(shift, at)                                                                                                     \
	"vp" shift ", (%[packed]), " LEFT "\n\tvp" shift ", 64(%[packed]), " RIGHT "\n\tvpandd %[mask]%{1to16%}, " LEFT ", " LEFT \
	"\n\tvpandd %[mask]%{1to16%}, " RIGHT ", " RIGHT "\n\tvpaddb " OFFSET_0 ", " LEFT ", " LEFT "\n\tvpaddb " OFFSET_1       \
	", " RIGHT ", " RIGHT "\n\tvmovdqu64 " LEFT ", " at "(%[spread])\n\tvmovdqu64 " RIGHT ", 64+" at "(%[spread])\n\t"
#define LOW(t, ...) SPREAD("sllw $3", "128*" #t) ROWS(t, __VA_ARGS__)
#define HIGH(t, ...) SPREAD("srlw $1", "128*" #t) ROWS(t, __VA_ARGS__)
#define PAIR_ENDS "sub $-128, %[packed]\n\tadd $2*128, %[spread]\n\tadd $2*32, %[x]\n\t"
#define JOINS(t) WITH(LESS, ROW_##t), WITH(ADD_POWERS, ROW_##t) ASK, NOTHING()
#define WITH_JOIN(half, t, row) half(t, JOINS(row))

#define SPREAD_BEGINS                                                                                                       \
	ALL(BEGIN) "mov %[spread], %[next_head]\n\tmov %[x], %[next_own]\n\tsub $-128, %[packed]\n\tsub $-128, %[spread]\n\t" \
		"add $8*12, %[x]\n\tvmovups (%[offsets]), " OFFSET_0 "\n\tvmovups 64(%[offsets]), " OFFSET_1            \
		"\n\tsub $-128, %[offsets]\n\tmov %[all_pairs], %[pairs]\n\tcmpq $1, %[groups]\n\tcmove %[last_pairs], %[pairs]\n\t"
#define SPREAD_ENDS(label)                                                                                                   \
	label ":\n\t" LOW(0, , , ) HIGH(1, , , ) PAIR_ENDS "dec %[pairs]\n\tjnz " label "b\n\t" ALL(HAND_OVER)                    \
	"mov %[next_head], %[head]\n\tlea 64(%[next_own]), %[own]\n\tmov %[next_own], %[x]\n\tadd %[x_step], %[x]\n\t"

/* 4 rows of one tile, whose fields of `p` are those of rows_pass; `p->weights` is not used. */
static inline void rows_spread(struct rows_pass *p, const struct rows_spread *s)
{
	static const u32 mask = 0x78787878;
	const char *packed = s->packed, *offsets = s->offsets, *x = p->x, *prefetch = p->prefetch, *from = p->from, *own, *head,
		   *next_own, *next_head;
	char *spread = s->spread, *to = p->to;
	u64 pairs, groups = p->groups;
	/* The count of groups is in memory, for builds with sanitizers need registers of their own. */
	_Static_assert(KERN_GROUP_HEAD == 128 && KERN_GROUP_UNIT == 128, "the steps below");
	__asm__ volatile(ALL(FETCH) SPREAD_BEGINS "jmp 2f\n"
			 "1:\n\t" SPREAD_BEGINS SCALES_POWERS WITH_JOIN(LOW, 0, 0) WITH_JOIN(HIGH, 1, 1) PAIR_ENDS
			 WITH_JOIN(LOW, 0, 2) WITH_JOIN(HIGH, 1, 3) PAIR_ENDS "sub $2, %[pairs]\n"
			 SPREAD_ENDS("2") "decq %[groups]\n\tjnz 1b\n\t" SCALES_POWERS
			 LAST(LESS, ADD_POWERS, ROW_0) LAST(LESS, ADD_POWERS, ROW_1) LAST(LESS, ADD_POWERS, ROW_2) LAST(LESS, ADD_POWERS, ROW_3)
			 : [packed] "+&r"(packed), [spread] "+&r"(spread), [offsets] "+&r"(offsets), [x] "+&r"(x),
			   [prefetch] "+&r"(prefetch), [from] "+&r"(from), [to] "+&r"(to), [groups] "+m"(groups),
			   [own] "=&r"(own), [head] "=&r"(head), [next_own] "=&r"(next_own), [next_head] "=&r"(next_head),
			   [pairs] "=&r"(pairs)
			 : [prefetch_step] "m"(p->prefetch_step), [all_pairs] "m"(s->pairs), [last_pairs] "m"(s->last_pairs),
			   [from_step] "m"(p->from_step), [to_step] "m"(p->to_step), [x_step] "m"(p->x_step), [mask] "m"(mask)
			 : PASS_REGISTERS, "xmm30", "xmm31", "memory", "cc");
	p->prefetch = prefetch;
}

#define LOWER OFFSET_0
#define UPPER OFFSET_1

/* As SPREAD, the `half` of bytes times the multipliers `by` bytes behind `parts`. */
#define STEP(half, times, by, at)                                                                                            \
	"vpandd (%[packed]), " half ", " LEFT "\n\tvpandd 64(%[packed]), " half ", " RIGHT "\n\t" times " " by                \
	"(%[parts]), " LEFT ", " LEFT "\n\t" times " 64+" by "(%[parts]), " RIGHT ", " RIGHT "\n\tvpaddb 256(%[parts]), " LEFT \
	", " LEFT "\n\tvpaddb 320(%[parts]), " RIGHT ", " RIGHT "\n\tvmovdqu64 " LEFT ", " at "(%[spread])\n\tvmovdqu64 " RIGHT \
	", 64+" at "(%[spread])\n\t"
#define STEP_LOW(t, ...) STEP(LOWER, "vpmullw", "0", "128*" #t) ROWS(t, __VA_ARGS__)
#define STEP_HIGH(t, ...) STEP(UPPER, "vpmulhuw", "128", "128*" #t) ROWS(t, __VA_ARGS__)
#define STEP_PAIR STEP_LOW(0, , , ) STEP_HIGH(1, , , ) PAIR_ENDS
#define STEPS_BEGIN                                                                                                        \
	ALL(BEGIN) "mov %[spread], %[next_head]\n\tmov %[x], %[next_own]\n\tadd $256, %[packed]\n\tsub $-128, %[spread]\n\t" \
		"add $8*12, %[x]\n\tmov %[all_pairs], %[pairs]\n\tcmpq $1, %[groups]\n\tcmove %[last_pairs], %[pairs]\n\t"
#define STEPS_PART_ENDS "add $384, %[parts]\n\tsub $4, %[pairs]\n\t"

/* As rows_spread, of weights in steps, all pairs in multiples of 4. A part is written out, so that its multipliers are found at one place. */
static inline void rows_spread_steps(struct rows_pass *p, const struct rows_spread *s)
{
	static const u32 lower = 0x0f0f0f0f, upper = 0xf0f0f0f0;
	const char *packed = s->packed, *parts = s->offsets, *x = p->x, *prefetch = p->prefetch, *from = p->from, *own, *head,
		   *next_own, *next_head;
	char *spread = s->spread, *to = p->to;
	u64 pairs, groups = p->groups;
	_Static_assert(KERN_STEPS_HEAD == 256 && KERN_STEPS_PART == 32 && KERN_GROUP_UNIT == 128, "the steps below");
	__asm__ volatile("vpbroadcastd %[lower], " LOWER "\n\tvpbroadcastd %[upper], " UPPER "\n\t" ALL(FETCH) STEPS_BEGIN "jmp 2f\n"
			 "1:\n\t" STEPS_BEGIN SCALES_POWERS WITH_JOIN(STEP_LOW, 0, 0) WITH_JOIN(STEP_HIGH, 1, 1) PAIR_ENDS
			 WITH_JOIN(STEP_LOW, 0, 2) WITH_JOIN(STEP_HIGH, 1, 3) PAIR_ENDS STEP_PAIR STEP_PAIR STEPS_PART_ENDS "jz 3f\n"
			 "2:\n\t" STEP_PAIR STEP_PAIR STEP_PAIR STEP_PAIR STEPS_PART_ENDS "jnz 2b\n"
			 "3:\n\t" ALL(HAND_OVER)
			 "mov %[next_head], %[head]\n\tlea 64(%[next_own]), %[own]\n\tmov %[next_own], %[x]\n\tadd %[x_step], %[x]\n\t"
			 "decq %[groups]\n\tjnz 1b\n\t" SCALES_POWERS
			 LAST(LESS, ADD_POWERS, ROW_0) LAST(LESS, ADD_POWERS, ROW_1) LAST(LESS, ADD_POWERS, ROW_2) LAST(LESS, ADD_POWERS, ROW_3)
			 : [packed] "+&r"(packed), [spread] "+&r"(spread), [parts] "+&r"(parts), [x] "+&r"(x),
			   [prefetch] "+&r"(prefetch), [from] "+&r"(from), [to] "+&r"(to), [groups] "+m"(groups),
			   [own] "=&r"(own), [head] "=&r"(head), [next_own] "=&r"(next_own), [next_head] "=&r"(next_head),
			   [pairs] "=&r"(pairs)
			 : [prefetch_step] "m"(p->prefetch_step), [all_pairs] "m"(s->pairs), [last_pairs] "m"(s->last_pairs),
			   [from_step] "m"(p->from_step), [to_step] "m"(p->to_step), [x_step] "m"(p->x_step), [lower] "m"(lower),
			   [upper] "m"(upper)
			 : PASS_REGISTERS, "xmm30", "xmm31", "memory", "cc");
	p->prefetch = prefetch;
}

#endif
#endif
