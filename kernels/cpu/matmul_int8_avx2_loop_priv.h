/* The loops of products of many rows with weights in 8 bits, made 16 wide, for AVX2: see cpu/matmul_rows_avx2_priv.h. A turn adds
 * the products of two values to every column of half a panel. */
#ifndef TERCET_KERNELS_CPU_MATMUL_INT8_AVX2_LOOP_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_INT8_AVX2_LOOP_PRIV_H

#include "kernels/cpu/matmul_rows_avx2_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 8

enum {
	INT8_TURN = 4 * KERN_PANEL, /* bytes of a panel's weights; a tile reads half of them */
	INT8_ROW = 2 * KERN_GROUP_MAX, /* and of a row's inputs in a group */
};

/* A group whose sums are complete but for scales. */
struct int8_pending {
	const char *head;   /* the weights' scales, [KERN_PANEL / 2] */
	const char *inputs; /* those of the rows */
	float *sums;	    /* [row][KERN_PANEL / 2], which it is joined to; NULL: there is no such group */
};

#define ROW(r, t) WITH(ROW_WITH, "4*" #t "+" #r "*%c[row]", "vpmaddwd", "vpaddd", SUMS_##r)
#define LOAD(t) "vmovdqu 128*" #t "(%[weights]), " LEFT "\n\tvmovdqu 128*" #t "+32(%[weights]), " RIGHT "\n\t"

#define ROWS_OWN_IN(r, low, high) "vpbroadcastd 4*" #r "(%[begin]), " low "\n\tvmovdqa " low ", " high "\n\t"
#define ROWS_OWN(r, ...) WITH(ROWS_OWN_IN, r, SUMS_##r)

#define PLAIN_OF(n)                                                                                                      \
	__asm__ volatile(ALL_##n(ROWS_OWN, 0) "1:\n\t" ASK TURN(n, 0) TURN(n, 1)                                         \
			 "add $2*128, %[weights]\n\tadd $2*4, %[x]\n\tdec %[twos]\n\tjnz 1b\n\t" ALL_##n(STORE, "0")     \
			 : [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [twos] "+&r"(twos) \
			 : [step] "r"(p->prefetch_step), [begin] "r"(begin), [narrow] "r"(narrow), [row] "i"(INT8_ROW)     \
			 : ALL_REGISTERS, "memory", "cc")

/* narrow[row] = begin[row] (4 bytes each) in every lane, and the products of 2 * `twos` turns, at least 2; [row][2] vectors. 4 or 5
 * rows. */
static ALWAYS_INLINE void int8_plain(struct rows_place *p, const u32 rows, u32 twos, const char *begin, char *narrow)
{
	if (rows == 4)
		PLAIN_OF(4);
	else
		PLAIN_OF(5);
}

/* Of a row of the pending group 8 columns. */
#define CONVERT(v) "vcvtdq2ps 32*" #v "(%[narrow]), " VALUE "\n\tvbroadcastss (%[inputs]), " OTHER "\n\t"
#define SCALE(v) "vmulps 32*" #v "(%[head]), " OTHER ", " OTHER "\n\t"
#define ADD(v)                                                                              \
	"vfmadd213ps 32*" #v "(%[sums]), " OTHER ", " VALUE "\n\tvmovups " VALUE ", 32*" #v \
	"(%[sums])\n\t"

#define TWO_4(t, next, what) ASK TURN_4(t, , what, , ) TURN(4, next)
#define TWO_5(t, next, what) ASK TURN_5(t, , what, , , ) TURN(5, next)
#define JOIN_4                                                                                            \
	TWO_4(0, 1, CONVERT(0)) TWO_4(2, 3, SCALE(0)) TWO_4(4, 5, ADD(0)) TWO_4(6, 7, )                     \
	TWO_4(8, 9, CONVERT(1)) TWO_4(10, 11, SCALE(1)) TWO_4(12, 13, ADD(1)) TWO_4(14, 15, )
#define JOIN_5                                                                      \
	TWO_5(0, 1, CONVERT(0)) TWO_5(2, 3, SCALE(0)) TWO_5(4, 5, ADD(0))           \
	TWO_5(6, 7, CONVERT(1)) TWO_5(8, 9, SCALE(1)) TWO_5(10, 11, ADD(1))
/* The turns that are left behind those of all rows. */
#define LEFT_4
#define LEFT_5 TWO_5(0, 1, ) TWO_5(2, 3, )

#define JOINED_OF(n, turns)                                                                                                \
	__asm__ volatile(ALL_##n(ROWS_OWN, 0) "1:\n\t" JOIN_##n                                                                       \
		"add $128*" #turns ", %[weights]\n\tadd $4*" #turns ", %[x]\n\tadd $64, %[narrow]\n\tadd $64, %[sums]\n\t" \
		"add $4, %[inputs]\n\tdec %[count]\n\tjnz 1b\n\t" LEFT_##n ALL_##n(STORE, "-64*" #n)                         \
		: [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [narrow] "+&r"(narrow),     \
		  [sums] "+&r"(sums), [inputs] "+&r"(inputs), [count] "+&r"(count)                                         \
		: [step] "r"(p->prefetch_step), [begin] "r"(begin), [head] "r"(pending->head), [row] "i"(INT8_ROW)         \
		: ALL_REGISTERS, "memory", "cc")

/* As int8_plain, of a whole group; before it writes there, it joins the `pending` group, whose sums `narrow` holds.
 * p->weights and p->x are at no particular place afterwards. */
static ALWAYS_INLINE void int8_joined(struct rows_place *p, const u32 rows, const char *begin,
				      const struct int8_pending *pending, char *narrow)
{
	const char *inputs = pending->inputs;
	float *sums = pending->sums;
	u32 count = rows;
	if (rows == 4)
		JOINED_OF(4, 16);
	else
		JOINED_OF(5, 12);
}

#endif
#endif
