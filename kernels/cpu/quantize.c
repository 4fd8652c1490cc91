/* Rounding weights to 8 and 4 bits, and storing them by panels. Runs in the worker while a model loads; one
 * object per instruction set and a portable one, all with the same results. Plain loops of constant length:
 * the compiler makes vectors of them. */
#include <math.h>

#include "kernels/cpu/quantize_priv.h"

#ifndef KERN_ISA
#define KERN_ISA generic
#endif

enum {
	LANES = 16, /* sums and extremes are taken in so many lanes, whatever the instruction set */
	GROUP_MAX = 128,
};

/* Adding it rounds to a whole number (ties to even), which is then in the lower bits; |x| < 2^22. */
static const float ROUND = 0x1.8p23f;

/* Ranges tried for 4 bits, as parts of what the values span: large values lose, all others win. */
static const float SHRINK[] = {1, 0.94f, 0.88f, 0.82f};

static inline u32 bits_of(float x)
{
	u32 bits;
	memcpy(&bits, &x, 4);
	return bits;
}

/* Values [k, k + count) of a row, filled up to `width` with the first. */
static void load_values(const struct quantize_job *j, u32 row, u32 k, u32 count, u32 width, float *out)
{
	size_t at = (size_t)(row - j->first) * j->src_stride + k;
	if (j->src_dtype == KERN_F32)
		memcpy(out, (const float *)j->src + at, count * sizeof(float));
	else if (j->src_dtype == KERN_BF16)
		for (u32 i = 0; i < count; i++)
			out[i] = kern_bf16_to_float(((const u16 *)j->src)[at + i]);
	else
		for (u32 i = 0; i < count; i++)
			out[i] = kern_f16_to_float(((const u16 *)j->src)[at + i]);
	for (u32 i = count; i < width; i++)
		out[i] = out[0];
}

/* Lanes that the compiler makes vectors of, whatever their width is. */
typedef float lanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef i32 masks __attribute__((vector_size(LANES * 4)));

/* Macros, for a function that returns a vector wider than the processor's has no calling convention. */
#define CHOOSE(mask, yes, no) ((lanes)(((mask) & (masks)(yes)) | (~(mask) & (masks)(no))))
#define AT(x)		      (*(const lanes *)(x))

/* Both are NaN where a value is no finite number. */
static void extremes(const float *x, u32 width, float *least, float *greatest)
{
	lanes low = AT(x), high = low, nothing = {0};
	for (u32 i = 0; i < width; i += LANES) {
		lanes v = AT(x + i);
		low = CHOOSE(v < low, v, low);
		high = CHOOSE(v > high, v, high);
		nothing += v * 0;
	}
	*least = low[0];
	*greatest = high[0];
	for (u32 l = 0; l < LANES; l++) {
		*least = low[l] < *least ? low[l] : *least;
		*greatest = high[l] > *greatest ? high[l] : *greatest;
	}
	for (u32 l = 0; l < LANES; l++) {
		*least += nothing[l];
		*greatest += nothing[l];
	}
}

/* The scale; q with 128 added. A NaN or an infinity among the values makes the scale one, so that it shows.
 */
static float round_i8(const float *x, u8 *q)
{
	float low, high;
	extremes(x, KERN_I8_GROUP, &low, &high);
	float most = high > -low ? high : -low, scale = most / 127, inverse = 1 / scale;
	if (!(inverse < INFINITY))
		inverse = 0; /* all zero, or so small that a float cannot hold the inverse */
	for (u32 i = 0; i < KERN_I8_GROUP; i++)
		q[i] = (u8)(bits_of(x[i] * inverse + ROUND) + 128);
	return inverse == 0 ? most - most : scale;
}

/* The sum of squared errors, in units of the scale, of rounding with this scale and zero. */
static float error_i4(const float *x, u32 width, float inverse, float zero)
{
	const lanes none = {0}, most = none + 15;
	lanes sums = none;
	float sum = 0;
	for (u32 i = 0; i < width; i += LANES) {
		lanes exact = AT(x + i) * inverse + zero, held = CHOOSE(exact > none, exact, none);
		held = CHOOSE(held > most, most, held);
		lanes off = exact - ((held + ROUND) - ROUND);
		sums += off * off;
	}
	for (u32 l = 0; l < LANES; l++)
		sum += sums[l];
	return sum;
}

static void round_i4(const float *x, u32 width, float inverse, float zero, u8 *q)
{
	for (u32 i = 0; i < width; i++) {
		float exact = x[i] * inverse + zero, held = exact > 0 ? exact : 0;
		q[i] = (u8)bits_of((held > 15 ? 15 : held) + ROUND);
	}
}

/* Zeros are whole eighths where a byte holds 8 * (q - zero): products of many rows then compute with bytes. They cost
 * nothing to speak of, for the middle of a range is no better known. */
static u16 zero_i4(float exact)
{
	float near = (exact * 8 + ROUND - ROUND) / 8;
	return kern_float_to_f16(near >= -0.875f && near <= 16 ? near : exact);
}

static void choose_i4(const float *x, u32 width, u8 *q, u16 *scale, u16 *zero)
{
	float low, high, best = INFINITY;
	extremes(x, width, &low, &high);
	*scale = kern_float_to_f16(high - low); /* what shows where the values are not numbers */
	*zero = 0;
	memset(q, 0, width);
	for (u32 i = 0; i < COUNT_OF(SHRINK); i++) {
		u16 half = kern_float_to_f16((high - low) * SHRINK[i] / 15);
		float s = kern_f16_to_float(half), inverse = 1 / s;
		if (!(inverse < INFINITY)) /* all the same, or nearly: below */
			break;
		float middle = (low + high) / 2;
		u16 z = zero_i4(7.5f - middle * inverse);
		float error = error_i4(x, width, inverse, kern_f16_to_float(z)) * s * s;
		if (error < best) {
			best = error;
			*scale = half;
			*zero = z;
		}
	}
	if (best < INFINITY)
		round_i4(x, width, 1 / kern_f16_to_float(*scale), kern_f16_to_float(*zero), q);
	if (best < INFINITY || !(high - low < INFINITY))
		return;
	/* One value for all: scale * (1 - 0) with the value as scale. */
	*scale = kern_float_to_f16((low + high) / 2);
	memset(q, 1, width);
}

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

static void round_column(const struct quantize_job *j, u32 row, u32 k, u32 count, struct column *c)
{
	float x[GROUP_MAX];
	u32 width = kern_dtype_group(j->w->dtype);
	load_values(j, row, k, count, width, x);
	if (j->w->dtype == KERN_I8)
		c->scale_i8 = round_i8(x, c->q);
	else
		choose_i4(x, width, c->q, &c->scale_i4, &c->zero_i4);
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

void VARIANT(quantize_panel)(const struct quantize_job *j, u32 panel)
{
	struct kern_weight *w = j->w;
	struct column columns[KERN_PANEL];
	u32 width = kern_dtype_group(w->dtype), groups = kern_ceil(w->k, width), n0 = panel * KERN_PANEL;
	u32 from = n0 > j->first ? n0 : j->first, to = kern_min(n0 + KERN_PANEL, j->first + j->rows);
	for (u32 g = 0; g < groups; g++) {
		u32 k = g * width, count = kern_min(width, w->k - k);
		for (u32 row = from; row < to; row++)
			if (j->ready)
				ready_column(j, row, g, k, count, &columns[row - n0]);
			else
				round_column(j, row, k, count, &columns[row - n0]);
		store_columns(w->dtype, columns, from - n0, to - n0,
			      kern_ceil(count, kern_unit_values(w->dtype)),
			      (char *)w->data + kern_group_offset(w, n0, k));
	}
}
