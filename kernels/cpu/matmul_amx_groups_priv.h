/* Groups of weights in 8 and 4 bits that matrix tiles (AMX) sum, one beside the joining of the one before: a group's sums of whole numbers become
 * floats and are added to the others. Included by matmul_amx_quantized.c alone, which says how inputs lie. */
#ifndef TERCET_KERNELS_CPU_MATMUL_AMX_GROUPS_PRIV_H
#define TERCET_KERNELS_CPU_MATMUL_AMX_GROUPS_PRIV_H

#include "kernels/cpu/amx_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/rounding_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum {
	HEAD_BYTES = 8, /* of a group of a row's inputs before its values */
	PRODUCTS = 4, /* of tiles, for 64 values of k */
};

/* What weights' bytes are. */
enum form {
	OFFSET, /* 128 more than the weights */
	SIGNED, /* the weights in steps of their scale, zeros and all: what unpacking calls BLOCKED_POWERS, whatever the inputs' scales */
	ZEROS /* q, whose zeros the group's sums lose: BLOCKED_ZEROS */
};

/* A group that tiles have summed, and where its sums go to. */
struct group {
	const i32 *sums; /* [rows][KERN_PANEL] */
	const float *scales, *zeros; /* of the columns */
	const char *rows; /* the inputs' scales, and -128 times their sums, which lie `row_count` words behind */
	u32 row_count;
	const float *from;
	float *to;
	size_t from_stride, to_stride;
};

/* Rows [r, end) of it: to = from + scales * (sums - what is too much, times the sum of the inputs). `dense`: rows of both lie one behind the other. */
static ALWAYS_INLINE void join(const struct group *g, enum form form, bool dense, u32 r, u32 end)
{
	const vec scales[VECS] = {vec_load(g->scales), vec_load(g->scales + VEC_LANES)};
	const size_t from_stride = dense ? KERN_PANEL : g->from_stride, to_stride = dense ? KERN_PANEL : g->to_stride;
	const float *from = g->from + r * from_stride;
	float *to = g->to + r * to_stride;
#pragma GCC unroll 8
	for (; r < end; r++, from += from_stride, to += to_stride) {
		const vec own = vec_set1(load_float(g->rows + r * 4));
		const i32 begin = load_i32(g->rows + (g->row_count + r) * 4);
#pragma GCC unroll 2
		for (u32 v = 0; v < VECS; v++) {
			__m512i sum = _mm512_load_si512(g->sums + r * KERN_PANEL + v * VEC_LANES);
			vec value;
			if (form == ZEROS)
				value = vec_fma(vec_load(g->zeros + v * VEC_LANES), vec_set1((float)begin), _mm512_cvtepi32_ps(sum));
			else
				value = _mm512_cvtepi32_ps(form == SIGNED ? sum : _mm512_add_epi32(sum, _mm512_set1_epi32(begin)));
			vec_store(to + v * VEC_LANES, vec_fma(value, vec_mul(scales[v], own), vec_load(from + v * VEC_LANES)));
		}
	}
}

/* What goes on beside a group's products: the sums of the one before leave the registers, each when it is needed again, so that products do not wait
 * for stores that they could do without; then that group is joined, and outputs are asked for. */
struct beside {
	const struct group *last; /* or NULL */
	i32 *sums; /* the last one's, KERN_PANEL of a row */
	enum form form;
	bool dense;
	u32 rows, pieces; /* of the group: AMX_ROWS or AMX_TILE_ROWS, of those `laid` that lie side by side */
	u32 laid;
	u32 last_rows, joined; /* of `last`, as `rows`, and those that exist */
	const float *outs; /* or NULL */
	size_t out_step;   /* from product to product */
	struct amx_asking *ask; /* weights that come later, a part of which each product is followed by */
	bool few; /* rows, whose pieces ask for as many lines as they have themselves: each product for some of all quarters, */
	bool paired; /* or of both panels */
};

enum { STORING = 2 }; /* products until sums of upper rows are where they are joined from; those of lower ones are before they have their turn */

/* Behind the `turn`-th product, of a piece that asks for `asks` lines of each quarter. */
static ALWAYS_INLINE void go_on(const struct beside *b, u32 turn, u32 asks)
{
	const u32 each = kern_ceil(b->last_rows, b->pieces * PRODUCTS - STORING), product = turn % PRODUCTS;
	if (b->paired)
		amx_ask_pair(b->ask, asks * product / PRODUCTS, asks * (product + 1) / PRODUCTS);
	else if (b->few)
		amx_ask_all(b->ask, asks * product / PRODUCTS, asks * (product + 1) / PRODUCTS);
	else
		amx_ask(b->ask, product, asks);
	if (b->outs)
		amx_ask_row(b->outs + turn * b->out_step);
	if (b->last && turn >= STORING)
		join(b->last, b->form, b->dense, kern_min((turn - STORING) * each, b->joined), kern_min((turn - STORING + 1) * each, b->joined));
}

/* Sums begin with zeros, what they were is stored. The arguments are constants. */
#define BEGIN(sums_of, row, column) \
	do { \
		if (b->last) \
			amx_store(sums_of, b->sums + (row) * KERN_PANEL + (column) * VEC_LANES, KERN_PANEL * sizeof(i32)); \
		amx_zero(sums_of); \
	} while (0)

/* The arguments are numbers of registers. */
#define ADD(sums, inputs, weights_of) \
	do { \
		if (b->form == SIGNED) \
			amx_add_signed(sums, inputs, weights_of); \
		else \
			amx_add_bytes(sums, inputs, weights_of); \
	} while (0)

/* The `piece`-th of the 64 values of k of a group, times weights: added to the sums. */
static ALWAYS_INLINE void add_piece(const char *x, u32 lower, const char *weights, const struct beside *b, u32 piece)
{
	const u32 turn = piece * PRODUCTS, asks = amx_asks(b->ask);
	const bool begins = piece == 0, ends_lower = begins && (lower > 0 || b->last_rows > AMX_ROWS);
	if (begins)
		BEGIN(0, 0, 0);
	amx_load_once(4, x, AMX_ROW_BYTES);
	amx_load(6, weights, KERN_GROUP_UNIT);
	ADD(0, 4, 6);
	go_on(b, turn, asks);
	if (begins)
		BEGIN(1, 0, 1);
	amx_load(7, weights + AMX_ROW_BYTES, KERN_GROUP_UNIT);
	ADD(1, 4, 7);
	go_on(b, turn + 1, asks);
	if (ends_lower)
		BEGIN(2, AMX_ROWS, 0);
	if (lower > 0) {
		amx_load_once(5, x + lower * AMX_ROW_BYTES, AMX_ROW_BYTES);
		ADD(2, 5, 6);
	}
	go_on(b, turn + 2, asks);
	if (ends_lower)
		BEGIN(3, AMX_ROWS, 1);
	if (lower > 0)
		ADD(3, 5, 7);
	go_on(b, turn + 3, asks);
	amx_asked(b->ask, b->paired ? asks * AMX_STREAMS / 2 : asks);
}

#undef BEGIN
#undef ADD

/* Where tiles are, and what they ask for. */
struct place {
	const char *x, *weights; /* of a group: the inputs of all rows */
	u32 first;		 /* the tile's first row */
	struct amx_asking ask;
};

/* A group's sums, of whose `b->pieces` times 64 values of k the last may have fewer, in the registers. */
static ALWAYS_INLINE void add_group(const struct place *p, u32 last_units, const struct beside *b)
{
	_Alignas(64) char filled[AMX_PIECE_BYTES];
	const u32 lower = b->rows > AMX_ROWS ? AMX_ROWS : 0;
	const char *x = p->x + (size_t)b->laid * HEAD_BYTES + (size_t)p->first * AMX_ROW_BYTES, *weights = p->weights + KERN_GROUP_HEAD;
#pragma GCC unroll 2
	for (u32 i = 0; i < b->pieces; i++, weights += AMX_PIECE_BYTES, x += (size_t)b->laid * AMX_ROW_BYTES) {
		const char *from = i + 1 == b->pieces ? amx_whole_piece(weights, last_units, filled) : weights;
		add_piece(x, lower, from, b, i);
	}
}

/* The same, in code for the group's form; `b` has all but that. */
static ALWAYS_INLINE void add_any_group(const struct place *p, u32 units, struct beside b)
{
	const u32 rest = (units - 1) % AMX_UNITS + 1;
	const bool whole = units > AMX_UNITS, dense = b.last && b.last->from_stride == KERN_PANEL && b.last->to_stride == KERN_PANEL;
#define AS(last, sums, dense, pieces) \
	&(struct beside){last, sums, b.form, dense, b.rows, pieces, b.laid, b.last_rows, b.joined, b.outs, b.out_step, b.ask, b.few, b.paired}
	if (!b.last && !whole)
		add_group(p, rest, AS(NULL, NULL, false, 1));
	else if (!b.last)
		add_group(p, rest, AS(NULL, NULL, false, 2));
	else if (!whole)
		add_group(p, rest, AS(b.last, b.sums, false, 1));
	else if (dense)
		add_group(p, rest, AS(b.last, b.sums, true, 2));
	else
		add_group(p, rest, AS(b.last, b.sums, false, 2));
#undef AS
}

static bool goes_to_out(const struct blocked_tile *t)
{
	return t->last && t->columns == KERN_PANEL;
}

/* Where a tile's sums begin, rows `*stride` apart: t->sums with what they begin with, where that lies nowhere. */
static const float *sums_from(const struct blocked_tile *t, u32 rows, size_t *stride)
{
	static const _Alignas(64) float zeros[AMX_TILE_ROWS * KERN_PANEL];
	struct blocked_tile one = *t;
	*stride = KERN_PANEL;
	if (!t->first)
		return t->sums;
	if (t->columns == KERN_PANEL && !t->bias) { /* a bias is added to a zero, which a negative one is not any more */
		*stride = t->accumulate ? t->out_stride : KERN_PANEL;
		return t->accumulate ? t->out : zeros;
	}
	for (u32 r = 0; r < rows; r++, one.out += t->out_stride) {
		vec row[1][VECS];
		sums_begin(&one, 1, row);
		vec_store(t->sums + r * KERN_PANEL, row[0][0]);
		vec_store(t->sums + r * KERN_PANEL + VEC_LANES, row[0][1]);
	}
	return t->sums;
}

/* Rows of sums that could not go to `out` at once. */
static void end_sums(struct blocked_tile one, u32 rows)
{
	for (u32 r = 0; r < rows; r++, one.sums += KERN_PANEL, one.out += one.out_stride) {
		vec row[1][VECS] = {{vec_load(one.sums), vec_load(one.sums + VEC_LANES)}};
		sums_end(&one, 1, row);
	}
}

/* Group `g` of a tile, that has been summed: where it begins, where it goes to. `between`: sums between groups, which stay in the first cache. */
static ALWAYS_INLINE void group_of(struct group *of, const struct blocked_tile *t, u32 g, const struct place *p, const i32 *sums, const float *from,
				   size_t from_stride, float *between)
{
	const bool ends = g + 1 == kern_ceil(t->k_count, t->width), direct = ends && goes_to_out(t);
	of->sums = sums;
	of->scales = (const float *)(const void *)p->weights;
	of->rows = p->x + p->first * 4;
	of->from = g == 0 ? from : between;
	of->from_stride = g == 0 ? from_stride : KERN_PANEL;
	of->to = direct ? t->out : ends ? t->sums : between;
	of->to_stride = direct ? t->out_stride : KERN_PANEL;
}

#endif

#endif
