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
	struct rows_way way; /* of the sums that it is joined to */
	u32 rows;	    /* 0: there is no such group */
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
#define ADD(v) "vfmadd213ps 32*" #v "(%[from]), " OTHER ", " VALUE "\n\tvmovups " VALUE ", 32*" #v "(%[to])\n\t"

/* The turns beside which one row is joined. */
#define BESIDE_4(t, what) TURN_4(t, , what, , )
#define BESIDE_5(t, what) TURN_5(t, , what, , , )
#define JOIN(n)                                                                                                           \
	ASK BESIDE_##n(0, CONVERT(0)) BESIDE_##n(1, SCALE(0)) ASK BESIDE_##n(2, ADD(0)) BESIDE_##n(3, CONVERT(1))         \
	ASK BESIDE_##n(4, SCALE(1)) BESIDE_##n(5, ADD(1))

#define JOINED_OF(n)                                                                                                          \
	__asm__ volatile(ALL_##n(ROWS_OWN, 0) "1:\n\t" JOIN(n)                                                                \
		"add $6*128, %[weights]\n\tadd $6*4, %[x]\n\tadd $64, %[narrow]\n\tadd %[from_step], %[from]\n\t"             \
		"add %[to_step], %[to]\n\tadd $4, %[inputs]\n\tdec %[count]\n\tjnz 1b\n\ttest %[twos], %[twos]\n\tjz 3f\n" \
		"2:\n\t" ASK TURN(n, 0) TURN(n, 1) "add $2*128, %[weights]\n\tadd $2*4, %[x]\n\tdec %[twos]\n\tjnz 2b\n"    \
		"3:\n\t" ALL_##n(STORE, "-64*" #n)                                                                             \
		: [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [narrow] "+&r"(narrow),         \
		  [from] "+&r"(from), [to] "+&r"(to), [inputs] "+&r"(inputs), [count] "+&r"(count), [twos] "+&r"(twos)         \
		: [step] "r"(p->prefetch_step), [begin] "r"(begin), [head] "r"(pending->head), [row] "i"(INT8_ROW),            \
		  [from_step] "m"(pending->way.from_step), [to_step] "m"(pending->way.to_step)                                 \
		: ALL_REGISTERS, "memory", "cc")

/* As int8_plain, of at least 3 twos a row; before it writes there, it joins the `pending` group, of as many rows, whose sums `narrow`
 * holds. p->weights and p->x are at no particular place afterwards. */
static ALWAYS_INLINE void int8_joined(struct rows_place *p, const u32 rows, u32 twos, const char *begin,
				      const struct int8_pending *pending, char *narrow)
{
	const char *inputs = pending->inputs, *from = pending->way.from;
	char *to = pending->way.to;
	u32 count = rows;
	twos -= 3 * rows;
	if (rows == 4)
		JOINED_OF(4);
	else
		JOINED_OF(5);
}

#endif
#endif
