/* The loops of products of many rows with weights in 4 bits, for AVX2.
 *
 * A lane of 16 bits is a column: a turn adds to it the products of one pair of inputs and one pair of weights. Two vectors of
 * sums are the 32 columns of a panel, so 5 rows fit into the registers beside what a turn needs. The even lanes of a vector
 * are 8 columns and the odd lanes the next 8, and these are one pair of inputs further: so the 4 bytes from a pair on,
 * in all lanes, are the inputs of a turn. Behind the last pair of a part comes the first one again.
 *
 * Half of a float is enough for such a sum: put beneath the upper half of a power of two (times the inputs' scale), it
 * is a float that takes one subtraction to be the sum times that scale. That, and what follows, is done for one group while the
 * products of the next one are computed: products of bytes have one of a core's ports (Zen 2) or two, and a piece without
 * any leaves these idle. Its steps are spread out, for where several float products come together they take that port, too. */
#ifndef TERCET_KERNELS_CPU_MATMUL_INT4_AVX2_LOOP_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_INT4_AVX2_LOOP_PRIV_H

#include "kernels/cpu/matmul_rows_avx2_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 8

enum {
	INT4_PART = 64,			    /* values of a row, at most, whose sums 16 bits hold */
	INT4_TURN = 2 * KERN_PANEL,	    /* bytes of weights */
	INT4_TAIL = 4,			    /* bytes behind a row's part: its first pair again, and two that are not used */
	INT4_ROW_SUMS = 2 * KERN_PANEL,	    /* bytes */
	INT4_SUMS = ROWS_MOST * INT4_ROW_SUMS, /* of a part */
};

/* rows_place.weights are [turn][KERN_PANEL] pairs: of 16 columns the even lanes, the odd lanes, then those of the others. rows_place.x
 * is [row][values of the part + INT4_TAIL]. */

/* A group whose sums are complete but for scales. */
struct int4_pending {
	const char *head;   /* the weights' scales [KERN_PANEL], then zeros times -1 */
	const char *inputs; /* of the rows: [begin], [begin and what sums began with], [sum of inputs], each times the scale */
	struct rows_way way; /* of the sums that it is joined to */
	u32 parts;	    /* in which its sums are: 1, 2 or 4; 0: there is no such group */
	u32 rows;
};

/* ---------------------------------------------------------------- turns */

#define ROW(r, t) WITH(ROW_WITH, "2*" #t "+" #r "*%c[row]", "vpmaddubsw", "vpaddw", SUMS_##r)
#define LOAD(t) "vmovdqu 64*" #t "(%[weights]), " LEFT "\n\tvmovdqu 64*" #t "+32(%[weights]), " RIGHT "\n\t"

#define PLAIN_OF(n)                                                                                                      \
	__asm__ volatile("vpbroadcastd %[begin], " FIRST "\n\t" ALL_##n(SAME, 0) "1:\n\t" ASK TURN(n, 0) TURN(n, 1)      \
			 "add $2*64, %[weights]\n\tadd $2*2, %[x]\n\tdec %[twos]\n\tjnz 1b\n\t" ALL_##n(STORE, "0")      \
			 : [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [twos] "+&r"(twos) \
			 : [step] "r"(p->prefetch_step), [begin] "m"(begin), [narrow] "r"(narrow), [row] "i"(row)          \
			 : ALL_REGISTERS, "memory", "cc")

/* narrow[row] = in every lane `begin` and the products of 2 * `twos` turns, at least 2, of rows of `row` bytes; [row][2] vectors.
 * 4 or 5 rows. */
static ALWAYS_INLINE void int4_plain(struct rows_place *p, const u32 rows, const u32 row, u32 twos, i32 begin, char *narrow)
{
	if (rows == 4)
		PLAIN_OF(4);
	else
		PLAIN_OF(5);
}

/* ---------------------------------------------------------------- turns that join a pending group to the others */

/* Where 8 columns of a row are among its narrow sums: the odd lanes are even ones, counted from 2 bytes further on. */
#define PLACE_0 "0"
#define PLACE_1 "2"
#define PLACE_2 "32"
#define PLACE_3 "34"
#define BENEATH(from, v, to)                                  \
	"vbroadcastss (%[inputs]), " to "\n\tvpblendw $0x55, " \
	from PLACE_##v "(%[narrow]), " to ", " to "\n\t"
#define FLOAT(v) BENEATH("", v, VALUE)
#define BEGIN "vbroadcastss 4*%c[rows](%[inputs]), " OTHER "\n\t"
#define LESS_BEGIN BEGIN "vsubps " OTHER ", " VALUE ", " VALUE "\n\t"
#define LESS_1(v) LESS_BEGIN
/* The sums of 2 or 4 parts, less what they began with. Every step is exact. */
#define LESS_MORE(v, n) LESS_BEGIN BENEATH(n "*%c[part]+", v, OTHER) "vaddps " OTHER ", " VALUE ", " VALUE "\n\t"
#define LESS_2(v) LESS_BEGIN LESS_MORE(v, "1")
#define LESS_4(v) LESS_2(v) LESS_MORE(v, "2") LESS_MORE(v, "3")
#define ZERO(v)                                                                                                  \
	"vbroadcastss 8*%c[rows](%[inputs]), " OTHER "\n\tvfmadd231ps 128+32*" #v "(%[head]), " OTHER ", " VALUE \
	"\n\t"
#define ADD(v)                                                                                                 \
	"vmovups 32*" #v "(%[from]), " OTHER "\n\tvfmadd231ps 32*" #v "(%[head]), " VALUE ", " OTHER           \
	"\n\tvmovups " OTHER ", 32*" #v "(%[to])\n\t"

#define TWO_4(t, next, v, less) ASK TURN_4(t, , FLOAT(v), , less(v)) TURN_4(next, , ZERO(v), , ADD(v))
#define ONE_4(t, v, less) TURN_4(t, FLOAT(v), less(v), ZERO(v), ADD(v))
#define THREE_5(t, second, third, v, next, less)                                            \
	TURN_5(t, , FLOAT(v), , less(v), ) TURN_5(second, ZERO(v), , ADD(v), FLOAT(next), ) \
	TURN_5(third, less(next), , ZERO(next), , ADD(next))

/* The turns beside which one row is joined, and those that are left behind all rows. */
#define JOIN_64_4(less) TWO_4(0, 1, 0, less) TWO_4(2, 3, 1, less) TWO_4(4, 5, 2, less) TWO_4(6, 7, 3, less)
#define JOIN_32_4(less) ASK ONE_4(0, 0, less) ONE_4(1, 1, less) ASK ONE_4(2, 2, less) ONE_4(3, 3, less)
#define JOIN_64_5(less) ASK THREE_5(0, 1, 2, 0, 1, less) ASK THREE_5(3, 4, 5, 2, 3, less) ASK
#define JOIN_32_5(less)                                                                               \
	ASK TURN_5(0, FLOAT(0) less(0), ZERO(0), ADD(0), FLOAT(1) less(1), ZERO(1))                   \
	TURN_5(1, ADD(1), FLOAT(2) less(2), ZERO(2), ADD(2), FLOAT(3) less(3)) TURN_5(2, , ZERO(3), , ADD(3), )
#define LEFT_64_4
#define LEFT_32_4
#define LEFT_64_5 ASK TURN(5, 0) TURN(5, 1)
#define LEFT_32_5 ASK ASK ASK TURN(5, 0)

#define JOINED_OF(n, values, turns, less)                                                                                  \
	__asm__ volatile("vpbroadcastd %[begin], " FIRST "\n\t" ALL_##n(SAME, 0) "1:\n\t" JOIN_##values##_##n(less)                   \
		"add $64*" #turns ", %[weights]\n\tadd $2*" #turns ", %[x]\n\tadd $64, %[narrow]\n\tadd %[from_step], %[from]\n\t" \
		"add %[to_step], %[to]\n\tadd $4, %[inputs]\n\tdec %[count]\n\tjnz 1b\n\t" LEFT_##values##_##n ALL_##n(STORE, "-64*%c[rows]")         \
		: [weights] "+&r"(p->weights), [x] "+&r"(p->x), [prefetch] "+&r"(p->prefetch), [narrow] "+&r"(narrow),     \
		  [from] "+&r"(from), [to] "+&r"(to), [inputs] "+&r"(inputs), [count] "+&r"(count)                 \
		: [step] "r"(p->prefetch_step), [begin] "m"(begin), [head] "r"(pending->head), [rows] "i"(n),              \
		  [from_step] "m"(pending->way.from_step), [to_step] "m"(pending->way.to_step), [row] "i"(row), [part] "i"(INT4_SUMS)        \
		: ALL_REGISTERS, "memory", "cc")
#define JOINED(n)                                                \
	do {                                                     \
		if (pending->parts != n)                         \
			break;                                   \
		if (rows == 4 && values == 64)                   \
			JOINED_OF(4, 64, 8, LESS_##n);           \
		else if (rows == 4)                              \
			JOINED_OF(4, 32, 4, LESS_##n);           \
		else if (values == 64)                           \
			JOINED_OF(5, 64, 6, LESS_##n);           \
		else                                             \
			JOINED_OF(5, 32, 3, LESS_##n);           \
		return;                                          \
	} while (0)

/* As int4_plain, of 32 or 64 `values`; before it writes there, it joins the `pending` group, of as many rows, whose sums are in
 * `narrow`, INT4_SUMS bytes a part. 4 or 5 rows; `most` parts. p->weights and p->x are at no particular place afterwards. */
static ALWAYS_INLINE void int4_joined(struct rows_place *p, const u32 rows, const u32 row, const u32 values, i32 begin,
				      const struct int4_pending *pending, const u32 most, char *narrow)
{
	const char *inputs = pending->inputs, *from = pending->way.from;
	char *to = pending->way.to;
	u32 count = rows;
	if (most < 4)
		JOINED(1);
	if (most > 1)
		JOINED(2);
	if (most > 2)
		JOINED(4);
}

#endif
#endif
