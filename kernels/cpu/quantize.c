/* Rounding weights to 8 and 4 bits, and storing them by panels. Runs in the worker while a model loads; one
 * object per instruction set and a portable one, all with the same results. A lane of a vector is a column, a row
 * of the matrix: what is found of a group (extremes, errors, scales) never goes across lanes. */
#include <math.h>

#include "kernels/cpu/quantize_priv.h"

#ifndef KERN_ISA
#define KERN_ISA generic
#endif

/* Columns that are rounded side by side: what one register holds. Of vectors twice as long gcc makes scalars, here and there. */
#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

enum {
	GROUP_MAX = 128,
	BLOCK = 4, /* rows and columns that are transposed at once */
	CACHE_LINE = 64,
};

/* Adding it rounds to a whole number (ties to even), which is then in the lower bits; |x| < 2^22. */
static const float ROUND = 0x1.8p23f;

/* Ranges tried for 4 bits, as parts of what the values span: large values lose, all others win. */
static const float SHRINK[] = {1, 0.94f, 0.88f, 0.82f};

/* One number for each column. */
typedef float lanes __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));
typedef i32 masks __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));
typedef u32 words __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));
typedef float block __attribute__((vector_size(BLOCK * 4), aligned(4), may_alias));

/* Macros, for a function that returns a vector wider than the processor's has no calling convention. */
#define CHOOSE(mask, yes, no) ((lanes)(((mask) & (masks)(yes)) | (~(mask) & (masks)(no))))
#define ALL(x)		      ((lanes){0} + (x))
#define SMALLER(x, y)	      CHOOSE((x) < (y), x, y)
#define LARGER(x, y)	      CHOOSE((x) > (y), x, y)

/* ---------------------------------------------------------------- values of a group */

/* Values [k, k + count) of a row, filled up to `width` with the last; the row's group after the next is fetched ahead, for the
 * processor does not follow as many rows by itself. */
static void load_row(const struct quantize_job *j, u32 row, u32 k, u32 count, u32 width, float *out)
{
	size_t bytes = kern_dtype_bytes(j->src_dtype);
	const char *from = (const char *)j->src + ((size_t)(row - j->first) * j->src_stride + k) * bytes;
	for (size_t i = 0; i < width * bytes && k + 3 * width <= j->w->k; i += CACHE_LINE)
		__builtin_prefetch(from + 2 * width * bytes + i);
	if (j->src_dtype == KERN_BF16) /* a few instructions, not worth a call */
		for (u32 i = 0; i < count; i++) {
			u16 half;
			memcpy(&half, from + i * sizeof(half), sizeof(half));
			out[i] = kern_bf16_to_float(half);
		}
	else
		kern_convert(out, KERN_F32, from, j->src_dtype, count);
	for (u32 i = count; i < width; i++)
		out[i] = out[count - 1]; /* in the range of the last part, too */
}

/* Four rows' values become four lanes of x[k]. */
static void transpose(const float *const rows[BLOCK], u32 width, u32 lane, lanes *x)
{
	for (u32 k = 0; k < width; k += BLOCK) {
		block r[BLOCK];
		for (u32 i = 0; i < BLOCK; i++)
			memcpy(&r[i], rows[i] + k, sizeof(r[i]));
		block ab = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), cd = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
		block ab2 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), cd2 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
		const block columns[BLOCK] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
					      __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5),
					      __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};
		for (u32 i = 0; i < BLOCK; i++)
			memcpy((float *)&x[k + i] + lane, &columns[i], sizeof(block));
	}
}

/* x[k] of LANES rows from `row` on; in place of those outside of [from, to) is the nearest one inside. */
static void load_lanes(const struct quantize_job *j, u32 row, u32 from, u32 to, u32 k, u32 count, u32 width, lanes *x)
{
	float values[BLOCK][GROUP_MAX];
	const float *const rows[BLOCK] = {values[0], values[1], values[2], values[3]};
	for (u32 lane = 0; lane < LANES; lane += BLOCK) {
		for (u32 i = 0; i < BLOCK; i++) {
			u32 own = row + lane + i < from ? from : kern_min(row + lane + i, to - 1);
			load_row(j, own, k, count, width, values[i]);
		}
		transpose(rows, width, lane, x);
	}
}

/* Both are NaN where a value is no finite number. */
static void extremes(const lanes *x, u32 width, lanes *least, lanes *greatest)
{
	lanes low = x[0], high = low, nothing = {0};
	for (u32 k = 0; k < width; k++) {
		low = SMALLER(x[k], low);
		high = LARGER(x[k], high);
		nothing += x[k] * 0;
	}
	*least = low + nothing;
	*greatest = high + nothing;
}

/* How values of a group become q: whole(x * inverse + zero) between `low` and `high`; `fixed` where the lane has `rounds` 0. */
struct rounding {
	lanes scale, zero, inverse;
	masks rounds, fixed;
};

/* ---------------------------------------------------------------- 8 bits */

/* A NaN or an infinity among the values makes the scale one, so that it shows. */
static void choose_i8(const lanes *x, struct rounding *r)
{
	const lanes one = ALL(1);
	lanes low, high;
	extremes(x, KERN_I8_GROUP, &low, &high);
	lanes most = CHOOSE(high > -low, high, -low), scale = most / 127, inverse = one / scale;
	r->rounds = inverse < ALL(INFINITY); /* not: all zero, or so small that a float cannot hold the inverse */
	r->inverse = CHOOSE(r->rounds, inverse, ALL(0));
	r->scale = CHOOSE(r->rounds, scale, most - most);
}

/* Four values of every column, with 128 added. */
static void unit_i8(const lanes *x, const struct rounding *r, words *unit)
{
	words all = {0};
#pragma GCC unroll 4
	for (u32 i = 0; i < 4; i++)
		all |= (((words)(x[i] * r->inverse + ROUND) + 128) & 255) << 8 * i;
	*unit = all;
}

/* ---------------------------------------------------------------- 4 bits */

/* To the nearest number that a half has (ties to even), or an infinity: kern_float_to_f16 and back. */
static void round_to_half(lanes *x)
{
	masks bits = (masks)*x, size = bits & 0x7fffffff;
	masks rounded = (masks)(((words)size + 0xfff + ((words)size >> 13 & 1)) & ~0x1fffu);
	/* Adding 1/2 leaves multiples of 2^-24, which are what halves below 2^-14 are. */
	masks small = (masks)(((lanes)size + 0.5f) - 0.5f), tiny = size < 0x38800000;
	masks large = (size >= 0x477ff000) & (size <= 0x7f800000);
	rounded = (small & tiny) | (rounded & ~tiny & ~large) | (large & 0x7f800000);
	*x = (lanes)(rounded | (bits ^ size));
}

/* The sum of squared errors, in units of the scale, of rounding with this scale and zero. */
static void error_i4(const lanes *x, u32 width, const lanes *inverse, const lanes *zero, lanes *error)
{
	const lanes none = {0}, most = none + 15, by = *inverse, plus = *zero;
	lanes sum = none;
	for (u32 k = 0; k < width; k++) {
		lanes exact = x[k] * by + plus, held = LARGER(exact, none);
		held = SMALLER(held, most);
		lanes off = exact - ((held + ROUND) - ROUND);
		sum += off * off;
	}
	*error = sum;
}

/* Zeros are whole eighths where a byte holds 8 * (q - zero): products of many rows then compute with bytes. They cost
 * nothing to speak of, for the middle of a range is no better known. */
static void zero_i4(lanes *zero)
{
	lanes near = (*zero * 8 + ROUND - ROUND) / 8;
	*zero = CHOOSE((near >= ALL(-0.875f)) & (near <= ALL(16)), near, *zero);
	round_to_half(zero);
}

static void choose_i4(const lanes *x, u32 width, struct rounding *r)
{
	const lanes infinite = ALL(INFINITY), one = ALL(1);
	lanes low, high, best = infinite, error;
	extremes(x, width, &low, &high);
	r->scale = r->zero = r->inverse = ALL(0);
	for (u32 i = 0; i < COUNT_OF(SHRINK); i++) {
		lanes scale = (high - low) * SHRINK[i] / 15, middle = (low + high) / 2;
		round_to_half(&scale);
		lanes inverse = one / scale, zero = 7.5f - middle * inverse;
		zero_i4(&zero);
		error_i4(x, width, &inverse, &zero, &error);
		error *= scale * scale;
		masks better = (error < best) & (inverse < infinite); /* not: all values the same, or nearly */
		best = CHOOSE(better, error, best);
		r->scale = CHOOSE(better, scale, r->scale);
		r->zero = CHOOSE(better, zero, r->zero);
		r->inverse = CHOOSE(better, inverse, r->inverse);
	}
	/* One value for all: scale * (1 - 0) with the value as scale. What is no number shows in the scale. */
	masks finite = (high - low) < infinite;
	r->rounds = best < infinite;
	r->fixed = finite & 1;
	r->scale = CHOOSE(r->rounds, r->scale, CHOOSE(finite, (low + high) / 2, high - low));
}

/* Eight values of every column: four in the lower halves of bytes, four in the upper ones. */
static void unit_i4(const lanes *x, const struct rounding *r, words *unit)
{
	const lanes none = {0}, most = none + 15;
	words all = {0};
#pragma GCC unroll 8
	for (u32 i = 0; i < 8; i++) {
		lanes exact = x[i] * r->inverse + r->zero, held = LARGER(exact, none);
		held = SMALLER(held, most);
		masks q = (masks)(held + ROUND) & 15;
		all |= (words)((q & r->rounds) | (r->fixed & ~r->rounds)) << (8 * (i % 4) + i / 4 * 4);
	}
	*unit = all;
}

/* ---------------------------------------------------------------- 4 bits in steps */

/* What a part of a group becomes: q is whole(x * inverse + zero), the value scale * (m * (q - 8) + c). */
struct step {
	lanes m, c, inverse, zero;
};

/* Of a group, by the widest of its parts, and so that all of it is within -128 .. 127 scales: rounded up to a bfloat16. One value alone is
 * exact if it is a bfloat16 itself, and no less than 2^-18. */
static void scale_steps(const lanes *low, const lanes *high, lanes *scale)
{
	lanes width = high[0] - low[0], least = low[0], most = high[0], none = {0};
	for (u32 p = 1; p < KERN_STEPS_PARTS; p++) {
		lanes own = high[p] - low[p];
		width = LARGER(own, width);
		least = SMALLER(low[p], least);
		most = LARGER(high[p], most);
	}
	lanes below = least / -128, above = most / 127, size = LARGER(most, -least) / 64, reach = LARGER(above, below);
	lanes found = width / (15 * 15);
	found = LARGER(reach, found);
	found = CHOOSE(least == most, size, found);
	found = LARGER(found, none + 0x1p-24f);
	*scale = (lanes)(((words)found + 0xffff) & 0xffff0000u);
}

/* The least errors are kept: of what is rounded by steps of m scales, c nearest to `middle` + m * `half`. */
static void try_step(const lanes *x, const lanes *inverse, const lanes *m, const lanes *middle, float half, lanes *best, struct step *s)
{
	const lanes least = 8 * *m - 128, most = 127 - 7 * *m;
	lanes c = (*middle + *m * half + ROUND) - ROUND, error;
	c = LARGER(c, least);
	c = SMALLER(c, most);
	const lanes by = *inverse / *m, zero = 8 - c / *m;
	error_i4(x, KERN_STEPS_PART, &by, &zero, &error);
	error *= *m * *m;
	masks better = error < *best; /* never where a value is no finite number */
	*best = CHOOSE(better, error, *best);
	s->m = CHOOSE(better, *m, s->m);
	s->c = CHOOSE(better, c, s->c);
	s->inverse = CHOOSE(better, by, s->inverse);
	s->zero = CHOOSE(better, zero, s->zero);
}

/* Tries all of the range, and one and two steps less (large values lose, all others win), and with the best of them a quarter of its distances lower and higher. */
static void choose_step(const lanes *x, const lanes *low, const lanes *high, const lanes *scale, struct step *s)
{
	const lanes none = {0}, one = none + 1, inverse = one / *scale;
	const lanes middle = (*low + *high) / 2 * inverse, exact = (*high - *low) * inverse / 15;
	lanes full = (exact + ROUND) - ROUND, best = none + INFINITY;
	full += CHOOSE(full < exact, one, none);
	full = SMALLER(full, none + 15);
	*s = (struct step){none, none, none, none};
	for (u32 less = 0; less < 3; less++) {
		lanes fewer = full - (float)less, m = LARGER(fewer, one);
		try_step(x, &inverse, &m, &middle, 0.5f, &best, s);
	}
	const lanes found = LARGER(s->m, one);
	try_step(x, &inverse, &found, &middle, 0.25f, &best, s);
	try_step(x, &inverse, &found, &middle, 0.75f, &best, s);
}

/* The two words of a group's head, and what rounds the values of its parts. */
static void choose_steps(const lanes *x, struct rounding *parts, words head[2])
{
	lanes low[KERN_STEPS_PARTS], high[KERN_STEPS_PARTS], scale, nothing = {0};
	for (u32 p = 0; p < KERN_STEPS_PARTS; p++) {
		extremes(x + p * KERN_STEPS_PART, KERN_STEPS_PART, &low[p], &high[p]);
		nothing += (high[p] - low[p]) * 0;
	}
	scale_steps(low, high, &scale);
	scale += nothing; /* what is no number shows */
	head[0] = (words)scale & 0xffff0000u;
	head[1] = (words){0};
	for (u32 p = 0; p < KERN_STEPS_PARTS; p++) {
		struct step s;
		choose_step(x + p * KERN_STEPS_PART, &low[p], &high[p], &scale, &s);
		parts[p] = (struct rounding){.zero = s.zero, .inverse = s.inverse, .rounds = s.m > 0};
		head[0] |= ((words)(s.m + ROUND) & 15) << 4 * p;
		head[1] |= ((words)(s.c + ROUND) & 255) << 8 * p;
	}
}

/* ---------------------------------------------------------------- storing */

/* Lanes [from, to) of a vector to their places, `bytes` of each. */
static void store_lanes(char *to_first, const void *vector, u32 from, u32 to)
{
	memcpy(to_first + from * 4, (const char *)vector + from * 4, (to - from) * 4);
}

/* The scales and zeros of lanes [from, to), which are columns from `n` on. */
static void store_halves(char *group, u32 n, const struct rounding *r, u32 from, u32 to)
{
	for (u32 l = from; l < to; l++) {
		u16 scale = kern_float_to_f16(r->scale[l]), zero = kern_float_to_f16(r->zero[l]);
		memcpy(group + (n + l) * 2, &scale, 2);
		memcpy(group + KERN_PANEL * 2 + (n + l) * 2, &zero, 2);
	}
}

/* The group's columns [n, n + LANES) of its panel, of which those in [from, to) are written. */
static void round_lanes(const struct quantize_job *j, u32 panel_row, u32 n, u32 from, u32 to, u32 k, u32 count)
{
	enum kern_dtype type = j->w->dtype;
	u32 width = kern_dtype_group(type), values = kern_unit_values(type), row = panel_row + n;
	u32 first = from > row ? from - row : 0, end = kern_min(to - row, LANES);
	char *group = (char *)j->w->data + kern_group_offset(j->w, panel_row, k), *units = group + kern_group_head(type) + n * 4;
	lanes x[GROUP_MAX];
	struct rounding r[KERN_STEPS_PARTS];
	words unit, head[2];
	load_lanes(j, row, from, to, k, count, width, x);
	if (type == KERN_I8) {
		choose_i8(x, r);
		store_lanes(group + n * 4, &r->scale, first, end);
	} else if (type == KERN_I4_STEPS) {
		choose_steps(x, r, head);
		store_lanes(group + n * 4, &head[0], first, end);
		store_lanes(group + (KERN_PANEL + n) * 4, &head[1], first, end);
	} else {
		choose_i4(x, width, r);
		store_halves(group, n, r, first, end);
	}
	for (u32 u = 0; u < kern_ceil(count, values); u++, units += KERN_GROUP_UNIT) {
		if (type == KERN_I8)
			unit_i8(x + u * values, r, &unit);
		else
			unit_i4(x + u * values, type == KERN_I4_STEPS ? r + u * values / KERN_STEPS_PART : r, &unit);
		store_lanes(units, &unit, first, end);
	}
}

/* ---------------------------------------------------------------- values that are quantized already */

/* What a column has in one group. */
struct column {
	u8 q[GROUP_MAX];
	float scale_i8;
	u16 scale_i4, zero_i4;
};

static void ready_column(const struct quantize_job *j, u32 row, u32 g, u32 k, u32 count, struct column *c)
{
	const struct kern_quantized_rows *r = j->ready;
	size_t at = (size_t)(row - j->first) * r->group_stride + g;
	memset(c->q, 0, sizeof(c->q));
	memcpy(c->q, r->q + (size_t)(row - j->first) * r->q_stride + k, count);
	if (j->w->dtype == KERN_I8) {
		c->scale_i8 = r->scale[at];
		for (u32 i = 0; i < GROUP_MAX; i++)
			c->q[i] ^= 128;
		return;
	}
	c->scale_i4 = kern_float_to_f16(r->scale[at]);
	c->zero_i4 = kern_float_to_f16(r->zero ? r->zero[at] : 8);
}

/* Puts columns [from, to) of a panel into their group. */
static void store_columns(enum kern_dtype type, const struct column *c, u32 from, u32 to, u32 units,
			  char *group)
{
	for (u32 n = from; n < to; n++)
		if (type == KERN_I8)
			memcpy(group + n * 4, &c[n].scale_i8, 4);
		else {
			memcpy(group + n * 2, &c[n].scale_i4, 2);
			memcpy(group + KERN_PANEL * 2 + n * 2, &c[n].zero_i4, 2);
		}
	for (u32 u = 0; u < units; u++) {
		char *unit = group + KERN_GROUP_HEAD + u * (size_t)KERN_GROUP_UNIT;
		for (u32 n = from; n < to; n++) {
			u32 low, high;
			memcpy(&low, c[n].q + u * (type == KERN_I8 ? 4 : 8), 4);
			if (type != KERN_I8) {
				memcpy(&high, c[n].q + u * 8 + 4, 4);
				low |= high << 4;
			}
			memcpy(unit + n * 4, &low, 4);
		}
	}
}

static void ready_panel(const struct quantize_job *j, u32 n0, u32 from, u32 to, u32 k, u32 count)
{
	enum kern_dtype type = j->w->dtype;
	struct column columns[KERN_PANEL];
	for (u32 row = from; row < to; row++)
		ready_column(j, row, k / kern_dtype_group(type), k, count, &columns[row - n0]);
	store_columns(type, columns, from - n0, to - n0, kern_ceil(count, kern_unit_values(type)),
		      (char *)j->w->data + kern_group_offset(j->w, n0, k));
}

void VARIANT(quantize_panel)(const struct quantize_job *j, u32 panel)
{
	u32 width = kern_dtype_group(j->w->dtype), n0 = panel * KERN_PANEL;
	u32 from = n0 > j->first ? n0 : j->first, to = kern_min(n0 + KERN_PANEL, j->first + j->rows);
	for (u32 k = 0; k < j->w->k; k += width) {
		u32 count = kern_min(width, j->w->k - k);
		if (j->ready)
			ready_panel(j, n0, from, to, k, count);
		for (u32 n = 0; n < KERN_PANEL && !j->ready; n += LANES)
			if (from < n0 + n + LANES && to > n0 + n)
				round_lanes(j, n0, n, from, to, k, count);
	}
}
