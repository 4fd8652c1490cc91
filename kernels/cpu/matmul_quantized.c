/* Matrix product with weights in 8 and 4 bits, for AVX-512 and AVX-512 with VNNI (one object each).
 *
 * Inputs are rounded to 8 bits, per token and group of at most 128; sums inside such a group are whole
 * numbers. They are put together in float, groups in rising order, so a row's result depends neither on the
 * other rows nor on the threads, and not on the instruction set either. */
#include "kernels/cpu/matmul_blocked_priv.h"
#include "kernels/cpu/matmul_driver_priv.h"
#include "kernels/cpu/matmul_steps_avx512_priv.h"
#include "kernels/cpu/rounding_priv.h"
#include "kernels/cpu/variants_priv.h"

enum {
	REGISTER_ROWS = 6, /* 6 x 2 sums of whole numbers and as many of floats, up to 4 weights */
	TILE_ROWS = 8,	   /* the sums of floats stay in memory */
	TILE_VECS = 2,
	K_BLOCK = 2048, /* 64 KiB of a panel */
#ifdef __AVX512VNNI__
	TALL_ROWS = 3 * TILE_ROWS, /* of a tile with weights in 8 bits; more gain by blocks that stay in the L2 cache */
#else
	TALL_ROWS = TILE_ROWS,
#endif
	INT8_ALONE_ROWS = 5, /* see matmul_kernel.alone_rows */
	INT4_ALONE_ROWS = 6,
	INT8_PAIRED_ROWS = TILE_ROWS, /* see matmul_kernel.paired_rows */
	INT4_PAIRED_ROWS = 4, /* more wait for products, not for memory, and gain nothing */
};

/* ---------------------------------------------------------------- inputs */

/* Weights of KERN_I8, of KERN_I4_32 to _128, of KERN_I4_STEPS. */
enum form { BYTES, NIBBLES, STEPS };

static enum form form_of(enum kern_dtype dtype)
{
	return dtype == KERN_I8 ? BYTES : dtype == KERN_I4_STEPS ? STEPS : NIBBLES;
}

/* Words of a group's sums. */
static u32 sum_words(enum form form)
{
	return form == STEPS ? 2 + KERN_STEPS_PARTS : 1;
}

/* What the tiles take of a group's sum, words `stride` apart: for int8 the whole number that takes back the 128 added to the
 * weights, for int4 the sum itself, which zeros are multiplied by, in steps sums of parts. */
static ALWAYS_INLINE void store_sums(char *to, size_t stride, enum form form, i32 sum, const signed char *q)
{
	float value = (float)sum;
	sum *= -128;
#ifdef __AVX512VNNI__
	if (form == STEPS) {
		store_part_sums(to, stride, q);
		return;
	}
#endif
	(void)stride;
	(void)q;
	memcpy(to, form == NIBBLES ? (void *)&value : (void *)&sum, 4);
}

/* One group of a row: its bytes as units `stride` apart, its scale, its sums. */
static ALWAYS_INLINE void pack_group(const float *from, u32 width, enum form form, char *units, size_t stride, char *scale_at,
				     char *sum_at)
{
	signed char q[KERN_GROUP_MAX];
	struct rounding rounding = form == BYTES ? rounding_by_eighths(from, width) : rounding_by_power(from, width);
	i32 sum = round_values(from, rounding.inverse, width, q);
#pragma GCC unroll 32
	for (u32 i = 0; i < width; i += 4)
		memcpy(units + i / 4 * stride, q + i, 4);
	memcpy(scale_at, &rounding.scale, 4);
	store_sums(sum_at, stride, form, sum, q);
}

/* `width` is a constant: everything about a group is one piece of straight code, and the next one begins before it ends. */
static ALWAYS_INLINE void pack_groups(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first,
				      u32 end, u32 width, enum form form)
{
	const struct matmul_inputs *in = &j->in;
	char *scales = to + ((size_t)in->scales_at * rows + r * 4),
	     *sums = to + ((size_t)in->sums_at * rows + r * 4);
	const size_t stride = (size_t)rows * 4;
	float held[KERN_GROUP_MAX];
	char *units = to + (size_t)first / 4 * stride + r * 4;
	for (u32 g = first / width; g < kern_ceil(end, width); g++, units += width / 4 * stride)
		pack_group(group_values(j->a->w, x, g * width, width, held), width, form, units, stride,
			   scales + g * stride, sums + g * sum_words(form) * stride);
}

static void pack(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	const enum form form = form_of(j->a->w->dtype);
	if (form == STEPS)
		pack_groups(j, x, r, rows, to, first, end, 128, STEPS);
	else if (form == BYTES)
		pack_groups(j, x, r, rows, to, first, end, 128, BYTES);
	else if (j->in.width == 128)
		pack_groups(j, x, r, rows, to, first, end, 128, NIBBLES);
	else if (j->in.width == 64)
		pack_groups(j, x, r, rows, to, first, end, 64, NIBBLES);
	else
		pack_groups(j, x, r, rows, to, first, end, 32, NIBBLES);
}

/* ---------------------------------------------------------------- tiles */

/* Adds the products of a unit. */
static ALWAYS_INLINE void add_int8_unit(const struct matmul_tile *t, u32 rows, u32 vecs, const char *unit, const char *x,
					ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	ivec w[VECS_OF_ONE];
	if (asks == TILE_ASKS_IN_ORDER)
		tile_prefetch_in_order(fetch, rows > 1, rows > 1);
	else if (asks == TILE_ASKS_PAIR)
		tile_ask_pair(fetch, rows <= TILE_PAIR_TWICE_ROWS);
	else if (asks == TILE_ASKS && rows == 1)
		tile_prefetch_loosely(t, fetch);
	else if (asks == TILE_ASKS)
		tile_prefetch_bytes(t, fetch);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++)
		w[v] = ivec_load(unit_of(t, unit, v));
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++) {
		ivec four = four_inputs(x + r * 4);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = dot_int8(sum[r][v], w[v], four);
	}
}

/* Of `count` units. `x`: the inputs at the first, units `stride` rows apart. One row whose lines the processor asks for is not written out (see
 * add_pair_of_one), and computes so little between its loads that Zen 4 would begin seventy lines before the first has come, which disturbs what
 * it asks for by itself: instructions that do nothing take places of those loads. */
static ALWAYS_INLINE void add_int8(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, const char *units,
				   const char *x, u32 count, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	if (rows == 1 && (asks == TILE_ASKS_NOTHING || asks == TILE_ASKS_SELDOM))
#pragma GCC unroll 1
		for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 4) {
			add_int8_unit(t, rows, vecs, units, x, sum, asks, fetch);
			__asm__ volatile(".rept 20\n\tnop\n\t.endr");
		}
	else
#pragma GCC unroll 4
		for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 4)
			add_int8_unit(t, rows, vecs, units, x, sum, asks, fetch);
}

static ALWAYS_INLINE void add_int4(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, const char *units,
				   const char *x, u32 count, ivec sum[][VECS_OF_ONE], enum tile_asks asks, struct tile_fetch *fetch)
{
	for (u32 u = 0; u < count; u++, units += KERN_GROUP_UNIT, x += stride * 8) {
		ivec low[VECS_OF_ONE], high[VECS_OF_ONE];
		if (asks == TILE_ASKS_IN_ORDER)
			tile_prefetch_in_order(fetch, rows > 1, rows > 1);
		else if (asks == TILE_ASKS_PAIR)
			tile_ask_pair(fetch, rows <= TILE_PAIR_TWICE_ROWS);
		else if (asks == TILE_ASKS)
			tile_prefetch(t, fetch);
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++) {
			high[v] = ivec_load(unit_of(t, units, v));
			low[v] = ivec_and(high[v], ivec_set1_8(15));
			high[v] = ivec_high4(high[v]);
		}
		add_eight(rows, stride, vecs, low, high, x, sum);
	}
}

static ALWAYS_INLINE u32 head_bytes(enum form form)
{
	return form == STEPS ? KERN_STEPS_HEAD : KERN_GROUP_HEAD;
}

/* Where a tile is: its group of weights, the group's inputs with their scales and sums, what is fetched. */
struct place {
	const char *group, *x, *scales, *sums;
	struct tile_fetch fetch;
};

/* total += scale * inputs' scale * (products of the group - zero * sum of the inputs). */
static ALWAYS_INLINE void add_group(const struct matmul_tile *t, u32 rows, u32 stride, u32 vecs, enum form form,
				    enum tile_asks asks, struct place *p, u32 k_count, vec total[][VECS_OF_ONE])
{
	ivec sum[TILE_ROWS][VECS_OF_ONE];
	u32 count = kern_ceil(k_count, form == BYTES ? 4 : 8);
	if (asks == TILE_ASKS_IN_ORDER) {
		tile_prefetch_turn(t, &p->fetch, p->group);
		tile_prefetch_head_in_order(&p->fetch, head_bytes(form), rows > 1, rows > 1);
	} else if (asks == TILE_ASKS_PAIR) {
		tile_turn_pair(t, &p->fetch);
		for (u32 at = 0; at < head_bytes(form); at += KERN_GROUP_UNIT)
			tile_ask_pair(&p->fetch, rows <= TILE_PAIR_TWICE_ROWS);
	} else if (asks == TILE_ASKS) {
		tile_prefetch_turn(t, &p->fetch, p->group);
		tile_prefetch_head(t, &p->fetch, head_bytes(form), form == BYTES ? t->prefetch_far != MATMUL_NEAR : t->prefetch_far == MATMUL_FAR);
	} else if (asks == TILE_ASKS_SELDOM) {
		tile_prefetch_seldom(p->group, head_bytes(form) + count * KERN_GROUP_UNIT);
	}
#ifdef __AVX512VNNI__
	struct steps steps;
	if (form == STEPS) {
		begin_steps(t, rows, vecs, p->group, p->sums, &steps, sum);
		add_steps(t, rows, vecs, p->group + KERN_STEPS_HEAD, p->x, count, p->sums + 2 * rows * 4, &steps, sum, asks, &p->fetch);
	}
#endif
#pragma GCC unroll 12
	for (u32 r = 0; r < rows && form != STEPS; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			sum[r][v] = form == NIBBLES ? ivec_set1_32(0) : four_inputs(p->sums + r * 4);
	if (form == NIBBLES)
		add_int4(t, rows, stride, vecs, p->group + KERN_GROUP_HEAD, p->x, count, sum, asks, &p->fetch);
	else if (form == BYTES)
		add_int8(t, rows, stride, vecs, p->group + KERN_GROUP_HEAD, p->x, count, sum, asks, &p->fetch);
#pragma GCC unroll 4
	for (u32 v = 0; v < vecs; v++) {
		const char *head = p->group;
		u32 column = t->column + v * VEC_LANES;
		vec scale, zero = vec_zero();
		if (form == BYTES)
			scale = vec_load((const float *)(const void *)head + column);
		else if (form == STEPS)
			scale = _mm512_castsi512_ps(ivec_and(ivec_load(head + column * 4), ivec_set1_32((i32)0xffff0000)));
		else {
			scale = vec_load_f16(head + column * 2);
			zero = vec_sub(zero, vec_load_f16(head + KERN_PANEL * 2 + column * 2));
		}
#pragma GCC unroll 12
		for (u32 r = 0; r < rows; r++) {
			vec value = ivec_to_float(sum[r][v]);
			if (form == NIBBLES)
				value = vec_fma(zero, vec_set1(load_float(p->sums + r * 4)), value);
			vec both = vec_mul(scale, vec_set1(load_float(p->scales + r * 4)));
			total[r][v] = vec_fma(value, both, total[r][v]);
		}
	}
}

/* A group further on. */
static ALWAYS_INLINE void go_on(const struct matmul_tile *t, u32 rows, enum form form, struct place *p)
{
	p->group += head_bytes(form) + t->width / (form == BYTES ? 4 : 8) * KERN_GROUP_UNIT;
	p->x += (size_t)t->width * rows;
	p->scales += rows * 4;
	p->sums += rows * sum_words(form) * 4;
}

static ALWAYS_INLINE void run_tile(const struct matmul_tile *t, u32 rows, u32 vecs, enum form form, enum tile_asks asks)
{
	vec total[TILE_ROWS][VECS_OF_ONE];
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_begin(t)};
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		if (rows > REGISTER_ROWS)
			__asm__("" : "+m"(total)); /* or the compiler spills the sums of whole numbers, in each unit */
		add_group(t, rows, rows, vecs, form, asks, &p, kern_min(t->width, t->k_count - k), total);
		go_on(t, rows, form, &p);
	}
#pragma GCC unroll 12
	for (u32 r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (u32 v = 0; v < vecs; v++)
			tile_store_sum(t, r, v, total[r][v]);
}

/* Two panels, a group of the one and then the same of the other. */
static ALWAYS_INLINE void run_pair(const struct matmul_tile *t, u32 rows, enum form form)
{
	enum { BOTH_IN_REGISTERS = REGISTER_ROWS / 2 };
	vec total[2][TILE_ROWS][VECS_OF_ONE];
	const struct matmul_tile of[2] = {tile_of_pair(t, 0), tile_of_pair(t, 1)};
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_pair(t)};
#pragma GCC unroll 2
	for (u32 i = 0; i < 2; i++)
#pragma GCC unroll 16
		for (u32 n = 0; n < rows * TILE_VECS; n++)
			total[i][n / TILE_VECS][n % TILE_VECS] = tile_first_sum(&of[i], n / TILE_VECS, n % TILE_VECS);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		const char *group = p.group;
#pragma GCC unroll 2
		for (u32 i = 0; i < 2; i++) {
			if (rows > BOTH_IN_REGISTERS)
				__asm__("" : "+m"(total)); /* as in run_tile */
			p.group = group + i * t->panel_bytes;
			add_group(t, rows, rows, TILE_VECS, form, TILE_ASKS_PAIR, &p, kern_min(t->width, t->k_count - k), total[i]);
		}
		p.group = group;
		go_on(t, rows, form, &p);
	}
#pragma GCC unroll 2
	for (u32 i = 0; i < 2; i++)
#pragma GCC unroll 16
		for (u32 n = 0; n < rows * TILE_VECS; n++)
			tile_store_sum(&of[i], n / TILE_VECS, n % TILE_VECS, total[i][n / TILE_VECS][n % TILE_VECS]);
}

#ifdef __AVX512VNNI__
/* Some of a tall tile's `stride` rows times one group, with nothing but the whole numbers in registers. */
static ALWAYS_INLINE void run_part(const struct matmul_tile *t, u32 rows, u32 stride, struct place *p, u32 k_count,
				   enum tile_asks asks, vec total[][VECS_OF_ONE])
{
	__asm__("" : "+m"(*(vec(*)[TILE_ROWS][VECS_OF_ONE])total));
	if (asks == TILE_ASKS_NOTHING)
		add_group(t, rows, stride, TILE_VECS, BYTES, TILE_ASKS_NOTHING, p, k_count, total);
	else if (asks == TILE_ASKS_IN_ORDER)
		add_group(t, rows, stride, TILE_VECS, BYTES, TILE_ASKS_IN_ORDER, p, k_count, total);
	else
		add_group(t, rows, stride, TILE_VECS, BYTES, TILE_ASKS, p, k_count, total);
}

static void run_parts(const struct matmul_tile *t, u32 rows, u32 stride, struct place *p, u32 k_count, enum tile_asks asks,
		      vec total[][VECS_OF_ONE])
{
#define PART_CASE(n)                                               \
	case n:                                                    \
		run_part(t, n, stride, p, k_count, asks, total);   \
		break;
	switch (rows) {
		PART_CASE(4)
		PART_CASE(5)
		PART_CASE(6)
		PART_CASE(7)
	default:
		run_part(t, TILE_ROWS, stride, p, k_count, asks, total);
		break;
	}
#undef PART_CASE
}

/* More rows than there are registers for: group by group in parts, so that memory is read once and in order, as the
 * processor does it best, and the other parts find the group in the L1 cache. */
static void run_tall(const struct matmul_tile *t, u32 rows)
{
	vec total[TALL_ROWS][VECS_OF_ONE];
	struct place p = {t->weights, t->units, t->scales, t->sums, tile_fetch_begin(t)};
	struct matmul_tile part = *t;
	const u32 parts = kern_ceil(rows, TILE_ROWS);
	const enum tile_asks first_asks = t->prefetch_base ? TILE_ASKS_IN_ORDER : TILE_ASKS, others = t->prefetch_base ? TILE_ASKS_NOTHING : TILE_ASKS;
	part.prefetch_step = kern_ceil(t->prefetch_step, parts);
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			total[r][v] = tile_first_sum(t, r, v);
	for (u32 k = 0; k < t->k_count; k += t->width) {
		u32 count = kern_min(t->width, t->k_count - k);
		struct place at = p;
		for (u32 i = 0, first = 0, end; i < parts; i++, first = end) {
			end = rows * (i + 1) / parts;
			at.group = p.group;
			at.x = p.x + first * 4;
			at.scales = p.scales + first * 4;
			at.sums = p.sums + first * 4;
			run_parts(&part, end - first, rows, &at, count, i > 0 ? others : first_asks, total + first);
		}
		p.fetch = at.fetch;
		go_on(t, rows, BYTES, &p);
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < TILE_VECS; v++)
			tile_store_sum(t, r, v, total[r][v]);
}
#endif

static ALWAYS_INLINE u32 paired_rows(enum form form)
{
	return form == BYTES ? INT8_PAIRED_ROWS : INT4_PAIRED_ROWS;
}

/* Rows so few that they may be left alone, with weights of either type or of one: the other is spared the code. */
static ALWAYS_INLINE void run_few(const struct matmul_tile *t, u32 rows, u32 vecs, enum form form)
{
	if (t->panels == 2 && rows <= paired_rows(form))
		run_pair(t, rows, form);
	else if (t->prefetch_base)
		run_tile(t, rows, vecs, form, TILE_ASKS_IN_ORDER);
	else if (t->prefetch_step > 0 || rows > (form == BYTES ? INT8_ALONE_ROWS : INT4_ALONE_ROWS))
		run_tile(t, rows, vecs, form, TILE_ASKS);
	else if (rows == 1 || rows > MATMUL_ALONE_ROWS)
		run_tile(t, rows, vecs, form, TILE_ASKS_SELDOM);
	else
		run_tile(t, rows, vecs, form, TILE_ASKS_NOTHING);
}

#define FEW_CASE(n, vecs, form)            \
	case n:                            \
		run_few(t, n, vecs, form); \
		break;
#define RUN_TILE(n, form)                                                    \
	if (t->panels == 2 && (n) <= paired_rows(form))                      \
		run_pair(t, n, form);                                        \
	else if (t->prefetch_base)                                           \
		run_tile(t, n, TILE_VECS, form, TILE_ASKS_IN_ORDER);         \
	else                                                                 \
		run_tile(t, n, TILE_VECS, form, TILE_ASKS);                  \
	break;
#define TILE_CASE(n, form) \
	case n:            \
		RUN_TILE(n, form)
/* The row count is a constant in each case, so that the sums live in registers. */
#define TILE_SWITCH(form)                                           \
	switch (rows) {                                             \
		FEW_CASE(1, VECS_OF_ONE, form)                      \
		FEW_CASE(2, TILE_VECS, form)                        \
		FEW_CASE(3, TILE_VECS, form)                        \
		FEW_CASE(4, TILE_VECS, form)                        \
		FEW_CASE(5, TILE_VECS, form)                        \
		FEW_CASE(6, TILE_VECS, form)                        \
		TILE_CASE(7, form)                                  \
	default:                                                    \
		RUN_TILE(TILE_ROWS, form)                           \
	}

static void tile_int8(const struct matmul_tile *t, u32 rows)
{
#ifdef __AVX512VNNI__
	if (rows > TILE_ROWS) {
		run_tall(t, rows);
		return;
	}
#endif
	TILE_SWITCH(BYTES)
}

static void tile_int4(const struct matmul_tile *t, u32 rows)
{
	TILE_SWITCH(NIBBLES)
}

#ifdef __AVX512VNNI__
static void tile_steps(const struct matmul_tile *t, u32 rows)
{
	TILE_SWITCH(STEPS)
}
#endif

#define KERNEL(name, rows, alone, paired, tile_fn)                                           \
	static const struct matmul_kernel name = {.tile_rows = rows,                         \
						  .tile_columns = TILE_VECS * VEC_LANES,     \
						  .few_rows = 1,                             \
						  .few_columns = VECS_OF_ONE * VEC_LANES,    \
						  .k_block = K_BLOCK,                        \
						  .alone_rows = alone,                       \
						  .paired_rows = paired,                     \
						  .asks_in_order = true,                     \
						  .pack = pack,                              \
						  .tile = tile_fn}
KERNEL(INT8, TALL_ROWS, INT8_ALONE_ROWS, INT8_PAIRED_ROWS, tile_int8);
/* What has to be done for a group of 64 weighs more: up to 8 rows gain by reading the weights once, more do not. */
KERNEL(INT4_FEW, TILE_ROWS, INT4_ALONE_ROWS, INT4_PAIRED_ROWS, tile_int4);
KERNEL(INT4, REGISTER_ROWS, 0, 0, tile_int4);
#ifdef __AVX512VNNI__
KERNEL(IN_STEPS, TILE_ROWS, INT4_ALONE_ROWS, INT4_PAIRED_ROWS, tile_steps);
#endif
#undef KERNEL

static const struct matmul_kernel *kernel_for(enum form form, u32 tokens)
{
#ifdef __AVX512VNNI__
	if (form == STEPS)
		return &IN_STEPS;
#endif
	return form == BYTES ? &INT8 : tokens <= TILE_ROWS ? &INT4_FEW : &INT4;
}

enum err VARIANT(matmul_quantized)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const enum form form = form_of(a->w->dtype);
	struct matmul_inputs in = {.unit_values = 4, .width = kern_dtype_group(a->w->dtype), .sum_words = sum_words(form)};
#ifdef __AVX512VNNI__
	const u32 few = a->fusion ? KERN_CPU_UNFUSED_TOKENS : VARIANT(matmul_quantized_few_rows)(a->w->dtype);
	if (a->tokens > few && (!a->fusion || matmul_blocked_fuses(a))) {
		VARIANT(matmul_quantized_many)(ctx, a);
		return ERR_OK;
	}
#endif
#ifndef __AVX512VNNI__
	if (form == STEPS)
		return matmul_ref(ctx, a);
#endif
	if (a->fusion)
		return ERR_UNSUPPORTED;
	matmul_run(ctx, a, kernel_for(form, a->tokens), &in);
	return ERR_OK;
}

#ifdef __AVX512VNNI__
/* The slot of the table: weights of other types go where they would go without VNNI. */
enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return VARIANT(matmul_quantized)(ctx, a);
	return a->w->caps & KERN_CAP_AVX512_BF16 ? matmul_avx512_bf16(ctx, a) : matmul_avx512(ctx, a);
}
#endif
