/* Matrix product of many rows with weights in 8 and 4 bits by matrix tiles (AMX). The sums are those of cpu/matmul_quantized.c and
 * cpu/matmul_quantized_avx2.c, to the bit.
 *
 * A group's sums of whole numbers take a tile 16 cycles for 64 values of k; making floats of them and adding these to the others takes vectors as
 * long. So the two alternate: while tiles sum one group, vectors join the one before, a few rows behind every product but the first two, beside
 * which its sums are stored.
 * Few rows ask for the next panel's weights beside the same; more for a part of the next block's.
 *
 * Inputs of a tile of R rows, filled up to 16 or 32, lie by groups: the rows' scales, R floats, -128 times their sums, R i32, and bytes
 * [width / 64][R][64], each of which then is a line: two lines for each would take products up to a third longer. What is multiplied in rows that do
 * not exist is never joined. Weights in 4 bits
 * become bytes with a sign, which spares vectors a quarter of the joining; those in 8 bits are stored without, as VPDPBUSD takes them. */
#define UNPACKED_OFFSET 0
#include "kernels/cpu/amx_priv.h"
#include "kernels/cpu/matmul_amx_groups_priv.h"
#include "kernels/cpu/matmul_round_avx512_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/matmul_unpack_avx512_priv.h"

enum {
	VECTOR_ROWS = 8, /* so few keep vectors waiting for memory, or near it */
	FEW_TILES = 2,
	FEW_ROWS = FEW_TILES * AMX_TILE_ROWS, /* so few take weights group by group as memory brings them */
};

/* ---------------------------------------------------------------- inputs */

/* 64 values of a row, rounded, in their order. Returns 16 sums of them. */
static ALWAYS_INLINE __m512i round_piece(const float *x, float inverse, char *to)
{
	const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m512i q = _mm512_permutexvar_epi32(order, round_chunk(x, inverse));
	_mm512_storeu_si512(to, q);
	return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
}

static ALWAYS_INLINE u32 laid(u32 rows)
{
	return kern_ceil(rows, AMX_ROWS) * AMX_ROWS;
}

/* Where the group of a tile's inputs is that rows are packed into. */
struct packing {
	char *group;
	u32 rows, first; /* that lie there; the first of those that are packed */
};

static ALWAYS_INLINE char *piece_of(const struct packing *p, u32 row, u32 piece)
{
	return p->group + (size_t)p->rows * HEAD_BYTES + ((size_t)piece * p->rows + row) * AMX_ROW_BYTES;
}

static ALWAYS_INLINE void store_head(const struct packing *p, u32 row, float scale, u32 sum)
{
	const u32 begin = 0u - sum * 128;
	memcpy(p->group + row * 4, &scale, 4);
	memcpy(p->group + (p->rows + row) * 4, &begin, 4);
}

/* `count` rows, whose pointers repeat the last one up to ROUND_ROWS: their `own` values from k on. */
static ALWAYS_INLINE bool pack_whole(const struct packing *p, const float *const row[ROUND_ROWS], u32 count, u32 k, u32 own, bool int8)
{
	_Alignas(32) float scales[ROUND_ROWS];
	struct group_scales s;
	find_scales(row, k, own, int8, &s);
	_mm256_store_ps(scales, s.scale);
	for (u32 r = 0; r < count; r++) {
		__m512i sums = round_piece(row[r] + k, s.inverse[r], piece_of(p, p->first + r, 0));
		if (own > ROUND_CHUNK)
			sums = _mm512_add_epi32(sums, round_piece(row[r] + k + ROUND_CHUNK, s.inverse[r], piece_of(p, p->first + r, 1)));
		store_head(p, p->first + r, scales[r], sum_lanes(sums));
	}
	return s.any;
}

/* The same of rows that may be sorted otherwise or end inside the group. */
static bool pack_any(const struct blocked_job *j, const struct packing *p, const float *const row[ROUND_ROWS], u32 count, u32 k, bool int8)
{
	float held[KERN_GROUP_MAX], most = ldexpf(1, POWER_MOST + 1 - 127);
	signed char q[KERN_GROUP_MAX];
	bool any = false;
	for (u32 r = 0; r < count; r++) {
		const float *from = group_values(j->a->w, row[r], k, j->width, held);
		struct rounding rounding = int8 ? rounding_by_eighths(from, j->width) : rounding_by_power(from, j->width);
		any = any || !(rounding.scale < most);
		store_head(p, p->first + r, rounding.scale, (u32)round_values(from, rounding.inverse, j->width, q));
		for (u32 i = 0; i < j->width; i += AMX_ROW_BYTES)
			memcpy(piece_of(p, p->first + r, i / AMX_ROW_BYTES), q + i, AMX_ROW_BYTES);
	}
	return any;
}

/* blocked_kernel.pack */
static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	const bool int8 = j->a->w->dtype == KERN_I8;
	const u32 end = k + count;
	bool any = false;
	for (; k < end; k += j->width, to += (size_t)laid(rows) * (j->width + HEAD_BYTES))
		for (u32 first = 0; first < rows; first += ROUND_ROWS) {
			const struct packing p = {to, laid(rows), first};
			const u32 here = kern_min(rows - first, ROUND_ROWS), own = whole_values(j, k, end);
			const float *row[ROUND_ROWS];
			for (u32 r = 0; r < ROUND_ROWS; r++)
				row[r] = x + (size_t)(first + kern_min(r, here - 1)) * j->x_stride;
			if (own == 0)
				any |= pack_any(j, &p, row, here, k, int8);
			else if (own == ROUND_CHUNK)
				any |= pack_whole(&p, row, here, k, ROUND_CHUNK, int8);
			else
				any |= pack_whole(&p, row, here, k, 2 * ROUND_CHUNK, int8);
		}
	return any;
}

/* ---------------------------------------------------------------- tiles */

/* `count` tiles, one but of whole ones, of `rows` rows that lie as `shape`, a constant. A group is joined beside the next one's products, be that the
 * next tile's. */
static WRITTEN_OUT void run_tiles(const struct blocked_tile *first, u32 count, u32 shape, u32 rows, enum form form, struct place p)
{
	_Alignas(64) i32 sums[AMX_TILE_ROWS * KERN_PANEL];
	_Alignas(64) float between[AMX_TILE_ROWS * KERN_PANEL];
	struct blocked_tile t = *first;
	const u32 groups = kern_ceil(t.k_count, t.width), products = kern_ceil(t.k_count, AMX_ROW_BYTES) * PRODUCTS, each = kern_ceil(rows, products);
	const size_t bytes = KERN_GROUP_HEAD + (size_t)t.width * KERN_PANEL;
	const bool direct = goes_to_out(&t);
	struct group last = {.row_count = shape};
	VARIANT(amx_rows)(AMX_TILE_ROWS);
	for (u32 i = 0, at = 0; i < count; i++, t.sums += (size_t)rows * KERN_PANEL, t.out += rows * t.out_stride) {
		u32 asked = 0; /* for rows of outputs */
		size_t stride;
		const float *from = sums_from(&t, rows, &stride), *outs = direct ? t.out : NULL;
		p.weights = t.weights;
		for (u32 k = 0, g = 0; k < t.k_count; k += t.width, g++, at++) {
			const u32 units = kern_ceil(kern_min(t.width, t.k_count - k), 4);
			add_any_group(&p, units,
				      (struct beside){.last = at == 0 ? NULL : &last,
						      .sums = sums,
						      .form = form,
						      .rows = shape,
						      .laid = shape,
						      .last_rows = shape,
						      .joined = rows,
						      .outs = outs,
						      .out_step = each * t.out_stride,
						      .ask = &p.ask});
			group_of(&last, &t, g, &p, sums, from, stride, between);
			last.zeros = (const float *)(const void *)(t.weights + groups * bytes) + (size_t)g * KERN_PANEL;
			p.weights += bytes;
			p.x += (size_t)shape * (t.width + HEAD_BYTES);
			asked += t.width / AMX_ROW_BYTES * PRODUCTS * each;
			outs = direct && asked < rows ? t.out + asked * t.out_stride : NULL;
		}
	}
	amx_store_sums(sums, shape, KERN_PANEL * sizeof(*sums));
	join(&last, form, false, 0, rows);
	for (t = *first; count > 0 && t.last && !direct; count--, t.sums += (size_t)rows * KERN_PANEL, t.out += rows * t.out_stride)
		end_sums(t, rows);
}

static struct place place_of(const struct blocked_tile *t, u32 count)
{
	const size_t before = (size_t)(t->prefetch - t->prefetch_block), bytes = (size_t)count * kern_ceil(t->k_count, 4) * t->prefetch_step;
	const u32 pieces = count * kern_ceil(t->k_count, AMX_ROW_BYTES);
	return (struct place){.x = t->x, .ask = amx_asking_of(t->prefetch_block, t->prefetch_bytes, before, bytes, pieces)};
}

/* All that a tile reads and writes. */
static void check_tile(const struct blocked_tile *t, u32 rows)
{
	const u32 groups = kern_ceil(t->k_count, t->width), units = kern_ceil(t->k_count - (groups - 1) * t->width, 4);
	check_bytes(t->weights, (groups - 1) * (KERN_GROUP_HEAD + (size_t)t->width * KERN_PANEL) + KERN_GROUP_HEAD + units * (size_t)KERN_GROUP_UNIT);
	check_bytes(t->x, (size_t)groups * laid(rows) * (t->width + HEAD_BYTES));
	check_bytes(t->sums, rows * KERN_PANEL * sizeof(*t->sums));
	for (u32 r = 0; r < rows && (t->last || (t->first && t->accumulate)); r++)
		check_bytes(t->out + r * t->out_stride, t->columns * sizeof(*t->out));
}

/* Whole tiles are of constant size, so that their rows are joined in straight code. */
static bool tiles(const struct blocked_tile *t, u32 count)
{
	struct blocked_tile checked = *t;
	if (count == 0)
		return false;
	for (u32 i = 0; i < count && CHECKS_BYTES; i++) {
		check_tile(&checked, AMX_TILE_ROWS);
		checked.x += kern_ceil(t->k_count, t->width) * (size_t)AMX_TILE_ROWS * (t->width + HEAD_BYTES);
		checked.sums += AMX_TILE_ROWS * KERN_PANEL;
		checked.out += AMX_TILE_ROWS * t->out_stride;
	}
	if (t->scales == BLOCKED_ZEROS)
		run_tiles(t, count, AMX_TILE_ROWS, AMX_TILE_ROWS, ZEROS, place_of(t, count));
	else if (t->scales == BLOCKED_POWERS)
		run_tiles(t, count, AMX_TILE_ROWS, AMX_TILE_ROWS, SIGNED, place_of(t, count));
	else
		run_tiles(t, count, AMX_TILE_ROWS, AMX_TILE_ROWS, OFFSET, place_of(t, count));
	return true;
}

static void tile(const struct blocked_tile *t, u32 rows)
{
	const enum form form = t->scales == BLOCKED_ZEROS ? ZEROS : t->scales == BLOCKED_POWERS ? SIGNED : OFFSET;
	if (CHECKS_BYTES)
		check_tile(t, rows);
	if (rows > AMX_ROWS)
		run_tiles(t, 1, AMX_TILE_ROWS, rows, form, place_of(t, 1));
	else
		run_tiles(t, 1, AMX_ROWS, rows, form, place_of(t, 1));
}

/* Tiles join groups one way, whatever the inputs' scales. */
static enum blocked_scales unpack_any_steps(const struct kern_weight *w, const char *from, u32 k_count, bool any_scales, char *to)
{
	(void)any_scales;
	return unpack_steps(w, from, k_count, false, to);
}

enum { K_BLOCK = 512, K_WHOLE = 896 }; /* of a panel: in the first cache, beside a tile's sums */
#define KERNEL(name, unpack_fn)                   \
	static const struct blocked_kernel name = { \
		.tile_rows = AMX_TILE_ROWS,       \
		.k_block = K_BLOCK,               \
		.k_whole = K_WHOLE,               \
		.value_bytes = 1,                 \
		.head_bytes = HEAD_BYTES,         \
		.laid_rows = AMX_ROWS,            \
		.own_rows = AMX_OWN_ROWS,         \
		.pack = pack,                     \
		.unpack = unpack_fn,              \
		.tile = tile,                     \
		.tiles = tiles,                   \
		.act_mul = sums_act_mul,          \
		.norm = &blocked_norm_avx2}
KERNEL(INT8, NULL);
KERNEL(INT4, unpack_int4);
KERNEL(STEPS, unpack_any_steps);
#undef KERNEL

/* ---------------------------------------------------------------- few rows */

/* matmul_kernel.pack_rows */
static void pack_few(const struct matmul_job *j, const float *x, u32 rows, char *to, u32 first, u32 end)
{
	const struct blocked_job of = {.a = j->a, .width = j->in.width, .x_stride = j->a->x_stride};
	pack(&of, x, rows, first, end - first, to + (size_t)first / of.width * laid(rows) * (of.width + HEAD_BYTES));
}

/* What weights of few rows lie as: bytes; nibbles with zeros; nibbles in steps. A group of the latter two becomes bytes when its turn comes. */
enum source { BYTES, NIBBLES, STEPPED };
enum { SLOT = KERN_GROUP_HEAD + KERN_GROUP_MAX * KERN_PANEL + KERN_STEPS_PARTS * sizeof(struct step_part) };

/* The group at `from` as tiles take it, its scales before its bytes; of nibbles its zeros behind them. */
static ALWAYS_INLINE const char *group_at(const char *from, enum source source, u32 width, u32 k_count, char *slot)
{
	if (source == BYTES)
		return from;
	if (source == STEPPED)
		unpack_steps(NULL, from, k_count, false, slot);
	else
		unpack_zeros(from, width, k_count, slot);
	return slot;
}

static size_t source_bytes(enum source source, u32 width)
{
	if (source == BYTES)
		return KERN_GROUP_HEAD + (size_t)width * KERN_PANEL;
	return (source == STEPPED ? KERN_STEPS_HEAD : KERN_GROUP_HEAD) + (size_t)width / 8 * KERN_GROUP_UNIT;
}

/* Of one panel. */
static size_t weights_bytes(const struct matmul_tile *m, enum source source)
{
	const u32 groups = kern_ceil(m->k_count, m->width), rest = m->k_count - (groups - 1) * m->width;
	return (groups - 1) * source_bytes(source, m->width) + source_bytes(source, 0) + kern_ceil(rest, source == BYTES ? 4 : 8) * (size_t)KERN_GROUP_UNIT;
}

/* All asks for the panel that comes next, as long as this one takes, so that memory never waits; or of two ahead of both. */
static struct amx_asking asking_of_few(const struct matmul_tile *m, u32 tiles, u32 panels, enum source source)
{
	const u32 pieces = tiles * kern_ceil(m->k_count, AMX_ROW_BYTES);
	const size_t bytes = weights_bytes(m, source);
	const char *next = m->weights + bytes;
	if (panels == 2)
		return amx_asking_pair(m->weights + TILE_PAIR_AHEAD, m->panel_bytes, bytes, pieces);
	if (m->prefetch_end && next >= m->prefetch_end)
		next = m->prefetch_then;
	return amx_asking_of(next, bytes, 0, bytes, pieces);
}

/* Where what a pair asks for comes to the end of its first panel's stretch. */
static ALWAYS_INLINE void turn_pair(const struct matmul_tile *m, struct amx_asking *ask, bool *turned)
{
	if (*turned || !m->prefetch_end || (uintptr_t)ask->at < (uintptr_t)m->prefetch_end)
		return;
	ask->at = m->prefetch_then + ((uintptr_t)ask->at - (uintptr_t)m->prefetch_end);
	ask->apart = m->next_panel_bytes;
	*turned = true;
}

/* All that a tile of few rows reads and writes, of one panel. */
static void check_few(const struct matmul_tile *m, u32 rows, enum source source)
{
	check_bytes(m->weights, weights_bytes(m, source));
	check_bytes(m->units, (size_t)kern_ceil(m->k_count, m->width) * laid(rows) * (m->width + HEAD_BYTES));
	for (u32 r = 0; r < rows; r++)
		check_bytes(m->out + r * m->out_stride, kern_min(m->columns, KERN_PANEL) * sizeof(*m->out));
}

/* A tile of few rows, all but what its weights and inputs are. */
static ALWAYS_INLINE struct blocked_tile tile_of_few(const struct matmul_tile *m, u32 first, float *sums)
{
	return (struct blocked_tile){.width = m->width,
				     .k_count = m->k_count,
				     .first = true,
				     .last = true,
				     .sums = sums,
				     .out = m->out + first * m->out_stride,
				     .out_stride = m->out_stride,
				     .columns = kern_min(m->columns, KERN_PANEL),
				     .bias = m->bias,
				     .accumulate = m->resume};
}

/* `all` rows as tiles that take each group in turns: of `upper` and, unless that is 0, of `lower` rows, constants, AMX_ROWS or AMX_TILE_ROWS; or of
 * `upper` rows of two panels, whose groups take turns. */
static WRITTEN_OUT void run_few(const struct matmul_tile *m, u32 all, u32 upper, u32 lower, u32 panels, enum form form, enum source source)
{
	_Alignas(64) i32 sums[AMX_TILE_ROWS * KERN_PANEL];
	_Alignas(64) float between[FEW_TILES][AMX_TILE_ROWS * KERN_PANEL], own[FEW_TILES][AMX_TILE_ROWS * KERN_PANEL];
	_Alignas(64) char slots[2][SLOT];
	const bool paired = panels == 2;
	const u32 tiles = lower > 0 || paired ? 2 : 1, rows[FEW_TILES] = {kern_min(all, upper), paired ? all : all - kern_min(all, upper)};
	const struct matmul_tile of[FEW_TILES] = {*m, tile_of_pair(m, paired ? 1 : 0)};
	const char *packed = m->weights;
	struct place p = {.x = m->units, .ask = asking_of_few(m, tiles, panels, source)};
	bool turned = false;
	struct group last = {.row_count = upper + lower};
	struct blocked_tile t[FEW_TILES];
	const float *from[FEW_TILES];
	size_t stride[FEW_TILES];
	for (u32 i = 0; i < panels && CHECKS_BYTES; i++)
		check_few(&of[i], all, source);
	VARIANT(amx_rows)(AMX_TILE_ROWS);
	for (u32 i = 0; i < panels * all && m->resume; i++)
		amx_ask_row(of[i / all].out + i % all * m->out_stride);
	for (u32 i = 0; i < tiles; i++) {
		t[i] = tile_of_few(&of[i], paired ? 0 : i * upper, own[i]);
		from[i] = sums_from(&t[i], rows[i], &stride[i]);
	}
	for (u32 k = 0, g = 0; k < m->k_count; k += m->width, g++) {
		const u32 here = kern_min(m->width, m->k_count - k);
		struct beside b = {.sums = sums, .form = form, .laid = upper + lower, .ask = &p.ask, .few = true, .paired = paired};
#pragma GCC unroll 2
		for (u32 i = 0; i < tiles; i++) {
			if (i == 0 || paired)
				p.weights = group_at(packed + (paired ? i * m->panel_bytes : 0), source, m->width, here, slots[(g * panels + i) % 2]);
			if (paired)
				turn_pair(m, &p.ask, &turned);
			p.first = paired ? 0 : i * upper;
			b.last = g + i == 0 ? NULL : &last;
			b.rows = i == 0 || paired ? upper : lower;
			b.last_rows = i > 0 || tiles == 1 || paired ? upper : lower;
			b.joined = rows[(i + tiles - 1) % tiles];
			add_any_group(&p, kern_ceil(here, 4), b);
			group_of(&last, &t[i], g, &p, sums, from[i], stride[i], between[i]);
			last.zeros = (const float *)(const void *)(p.weights + KERN_GROUP_HEAD + (size_t)m->width * KERN_PANEL);
		}
		packed += source_bytes(source, m->width);
		p.x += (size_t)(upper + lower) * (m->width + HEAD_BYTES);
	}
	amx_store_sums(sums, lower > 0 ? lower : upper, KERN_PANEL * sizeof(*sums));
	join(&last, form, false, 0, rows[tiles - 1]);
	for (u32 i = 0; i < tiles; i++)
		if (!goes_to_out(&t[i]))
			end_sums(t[i], rows[i]);
}

#define TILE(name, form, source)                                                        \
	static void name(const struct matmul_tile *m, u32 rows)                         \
	{                                                                               \
		if (rows > AMX_TILE_ROWS + AMX_ROWS)                                    \
			run_few(m, rows, AMX_TILE_ROWS, AMX_TILE_ROWS, 1, form, source);\
		else if (rows > AMX_TILE_ROWS)                                          \
			run_few(m, rows, AMX_TILE_ROWS, AMX_ROWS, 1, form, source);     \
		else if (rows > AMX_ROWS && m->panels == 2 && source != BYTES)          \
			run_few(m, rows, AMX_TILE_ROWS, 0, 2, form, source);            \
		else if (rows > AMX_ROWS)                                               \
			run_few(m, rows, AMX_TILE_ROWS, 0, 1, form, source);            \
		else if (m->panels == 2)                                                \
			run_few(m, rows, AMX_ROWS, 0, 2, form, source);                 \
		else                                                                    \
			run_few(m, rows, AMX_ROWS, 0, 1, form, source);                 \
	}
TILE(tile_int8, OFFSET, BYTES)
TILE(tile_int4, ZEROS, NIBBLES)
TILE(tile_steps, SIGNED, STEPPED)
#undef TILE

/* The next panel's quarters are far enough from each other where panels are large; else two panels are. */
enum { INT8_PAIRED_BYTES = 24 << 10, INT4_PAIRED_BYTES = 16 << 10 };

#define KERNEL(name, paired, bytes, tile_fn)                                    \
	static const struct matmul_kernel name = {.tile_rows = FEW_ROWS,        \
						  .tile_columns = KERN_PANEL,   \
						  .asks_always = true,          \
						  .paired_rows = paired,        \
						  .paired_bytes = bytes,        \
						  .pack_rows = pack_few,        \
						  .tile = tile_fn}
KERNEL(FEW_INT8, AMX_ROWS, INT8_PAIRED_BYTES, tile_int8);
KERNEL(FEW_INT4, AMX_TILE_ROWS, INT4_PAIRED_BYTES, tile_int4);
KERNEL(FEW_STEPS, AMX_TILE_ROWS, INT4_PAIRED_BYTES, tile_steps);
#undef KERNEL

enum err VARIANT(matmul_quantized)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const enum kern_dtype dtype = a->w->dtype;
	const u32 vector_rows = a->fusion ? KERN_CPU_UNFUSED_TOKENS : VECTOR_ROWS;
	if (kern_dtype_group(dtype) < AMX_ROW_BYTES || a->tokens <= vector_rows || (a->fusion && !matmul_blocked_fuses(a)))
		return matmul_quantized_avx512_vnni(ctx, a);
	if (a->fusion && a->tokens <= FEW_ROWS && dtype != KERN_I8)
		return ERR_UNSUPPORTED; /* apart they take up to a fifth less, those in 8 bits as long or longer */
	if (a->fusion || a->tokens > FEW_ROWS) {
		matmul_blocked(ctx, a, dtype == KERN_I8 ? &INT8 : dtype == KERN_I4_STEPS ? &STEPS : &INT4);
		return ERR_OK;
	}
	const struct matmul_inputs in = {.unit_values = 4, .width = kern_dtype_group(dtype), .sum_words = 1};
	ASSERT((size_t)laid(a->tokens) * kern_ceil(a->w->k, in.width) * (in.width + HEAD_BYTES) <= ctx->scratch_bytes);
	matmul_run(ctx, a, dtype == KERN_I8 ? &FEW_INT8 : dtype == KERN_I4_STEPS ? &FEW_STEPS : &FEW_INT4, &in);
	return ERR_OK;
}
