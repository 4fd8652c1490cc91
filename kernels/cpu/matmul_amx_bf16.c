/* Matrix product with bf16 weights by matrix tiles (AMX): inputs are rounded to bf16, 32 of them at a time are added to a sum.
 *
 * Every output is one sum over k in rising order, pieces of 32 values of it; which rows and columns are computed side by side makes no
 * difference to it. Inputs of a tile of R rows lie as [k / 32][R][32], zeros behind the last. */
#include "kernels/cpu/amx_priv.h"
#include "kernels/cpu/matmul_blocked_tile_priv.h"
#include "kernels/cpu/matmul_tile_priv.h"

enum {
	VALUES = AMX_ROW_BYTES / 2, /* of a row that are multiplied at once */
	K_BLOCK = 512, /* of a panel: in the first cache, for all tiles of rows */
	K_WHOLE = 640,
	PAIRED_ROWS = AMX_ROWS, /* with sums of more there is no register for another panel's */
};

/* ---------------------------------------------------------------- inputs */

/* VALUES values of a row, of which `count` exist. */
static ALWAYS_INLINE void round_piece(const float *x, u32 count, char *to)
{
	vec low = vec_load_n(x, kern_min(count, VEC_LANES));
	vec high = count > VEC_LANES ? vec_load_n(x + VEC_LANES, count - VEC_LANES) : vec_zero();
	_mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* matmul_kernel.pack */
static void pack_few(const struct matmul_job *j, const float *x, u32 r, u32 rows, char *to, u32 first, u32 end)
{
	(void)j;
	to += ((size_t)first / VALUES * rows + r) * AMX_ROW_BYTES;
	for (u32 k = first; k < end; k += VALUES, to += (size_t)rows * AMX_ROW_BYTES)
		round_piece(x + k, kern_min(VALUES, end - k), to);
}

/* blocked_kernel.pack */
static bool pack(const struct blocked_job *j, const float *x, u32 rows, u32 k, u32 count, char *to)
{
	for (u32 done = 0; done < count; done += VALUES)
		for (u32 r = 0; r < rows; r++, to += AMX_ROW_BYTES)
			round_piece(x + (size_t)r * j->x_stride + k + done, kern_min(VALUES, count - done), to);
	return false;
}

/* ---------------------------------------------------------------- tiles */

/* sums += inputs * weights; `lower`: there are lower rows, whose inputs are so many bytes behind the upper ones'. */
static ALWAYS_INLINE void add_piece(const char *x, size_t lower, const char *weights)
{
	amx_load(4, x, AMX_ROW_BYTES);
	amx_load(6, weights, KERN_GROUP_UNIT);
	amx_add_bf16(0, 4, 6);
	amx_load(7, weights + AMX_ROW_BYTES, KERN_GROUP_UNIT);
	amx_add_bf16(1, 4, 7);
	if (lower == 0)
		return;
	amx_load(5, x + lower, AMX_ROW_BYTES);
	amx_add_bf16(2, 5, 6);
	amx_add_bf16(3, 5, 7);
}

static ALWAYS_INLINE void load_sums(const float *from, u32 rows, size_t stride)
{
	const size_t bytes = stride * sizeof(float);
	const u32 upper = amx_upper(rows);
	amx_load(0, from, bytes);
	amx_load(1, from + VEC_LANES, bytes);
	if (rows > upper) {
		amx_load(2, from + upper * stride, bytes);
		amx_load(3, from + upper * stride + VEC_LANES, bytes);
	}
}

/* ---------------------------------------------------------------- few rows */

static void begin_few(const struct matmul_tile *t, u32 rows)
{
	_Alignas(64) float sums[AMX_TILE_ROWS][KERN_PANEL];
	if (!t->resume && !t->bias) {
		amx_zero_sums();
		return;
	}
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < VECS; v++)
			vec_store(sums[r] + v * VEC_LANES, tile_first_sum(t, r, v));
	load_sums(sums[0], rows, KERN_PANEL);
}

static void end_few(const struct matmul_tile *t, u32 rows)
{
	_Alignas(64) float sums[AMX_TILE_ROWS][KERN_PANEL];
	amx_store_sums(sums[0], rows, sizeof(sums[0]));
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < VECS; v++)
			tile_store_sum(t, r, v, vec_load(sums[r] + v * VEC_LANES));
}

static void tile_few(const struct matmul_tile *t, u32 rows)
{
	_Alignas(64) char last[AMX_PIECE_BYTES];
	const u32 units = kern_ceil(t->k_count, 2), upper = amx_upper(rows);
	const size_t lower = rows > upper ? (size_t)upper * AMX_ROW_BYTES : 0, step = (size_t)rows * AMX_ROW_BYTES;
	struct tile_fetch fetch = tile_fetch_begin(t);
	const char *x = t->units, *weights = t->weights;
	check_bytes(t->units, kern_ceil(units, AMX_UNITS) * step);
	check_bytes(t->weights, units * (size_t)KERN_GROUP_UNIT);
	VARIANT(amx_rows)(rows);
	begin_few(t, rows);
	for (u32 u = 0; u < units; u += AMX_UNITS, weights += AMX_PIECE_BYTES, x += step) {
		tile_prefetch_turn(t, &fetch, weights);
		for (u32 i = 0; i < AMX_UNITS && !t->prefetch_base; i++)
			tile_prefetch_bytes(t, &fetch);
		for (u32 i = 0; i < AMX_UNITS && t->prefetch_base; i++)
			tile_prefetch_in_order(&fetch, false, true);
		add_piece(x, lower, amx_whole_piece(weights, units - u, last));
	}
	end_few(t, rows);
}

/* Sums of a pair: 0 and 1 the first panel's, 2 and 3 the second one's. */
static void begin_pair(const struct matmul_tile of[2], u32 rows)
{
	_Alignas(64) float sums[2][AMX_ROWS][KERN_PANEL];
	if (!of->resume && !of->bias) {
		amx_zero_sums();
		return;
	}
	for (u32 i = 0; i < 2; i++)
		for (u32 r = 0; r < rows; r++)
			for (u32 v = 0; v < VECS; v++)
				vec_store(sums[i][r] + v * VEC_LANES, tile_first_sum(&of[i], r, v));
	amx_load(0, sums[0][0], sizeof(sums[0][0]));
	amx_load(1, sums[0][0] + VEC_LANES, sizeof(sums[0][0]));
	amx_load(2, sums[1][0], sizeof(sums[1][0]));
	amx_load(3, sums[1][0] + VEC_LANES, sizeof(sums[1][0]));
}

static void end_pair(const struct matmul_tile of[2], u32 rows)
{
	_Alignas(64) float sums[AMX_ROWS][KERN_PANEL];
	const size_t bytes = of->out_stride * sizeof(float);
	amx_store(0, of[0].out, bytes);
	amx_store(1, of[0].out + VEC_LANES, bytes);
	if (of[1].columns >= KERN_PANEL) {
		amx_store(2, of[1].out, bytes);
		amx_store(3, of[1].out + VEC_LANES, bytes);
		return;
	}
	amx_store(2, sums[0], sizeof(sums[0]));
	amx_store(3, sums[0] + VEC_LANES, sizeof(sums[0]));
	for (u32 r = 0; r < rows; r++)
		for (u32 v = 0; v < VECS; v++)
			tile_store_sum(&of[1], r, v, vec_load(sums[r] + v * VEC_LANES));
}

static ALWAYS_INLINE void ask_pair(struct tile_fetch *f, bool twice)
{
#pragma GCC unroll 8
	for (u32 i = 0; i < AMX_UNITS / 2; i++)
		tile_ask_pair(f, twice);
}

/* Piece by piece of two panels in turn. */
static ALWAYS_INLINE void run_pair(const struct matmul_tile *t, u32 rows, bool twice)
{
	_Alignas(64) char last[2][AMX_PIECE_BYTES];
	const struct matmul_tile of[2] = {tile_of_pair(t, 0), tile_of_pair(t, 1)};
	const u32 units = kern_ceil(t->k_count, 2);
	const size_t step = (size_t)rows * AMX_ROW_BYTES;
	struct tile_fetch fetch = tile_fetch_pair(t);
	const char *x = t->units, *weights = t->weights;
	check_bytes(t->units, kern_ceil(units, AMX_UNITS) * step);
	for (u32 i = 0; i < 2; i++) {
		check_bytes(of[i].weights, units * (size_t)KERN_GROUP_UNIT);
		for (u32 r = 0; r < rows && CHECKS_BYTES; r++) /* which tiles are stored to as they are */
			check_bytes(of[i].out + r * t->out_stride, kern_min(of[i].columns, KERN_PANEL) * sizeof(float));
	}
	VARIANT(amx_rows)(rows);
	begin_pair(of, rows);
	for (u32 u = 0; u < units; u += AMX_UNITS, weights += AMX_PIECE_BYTES, x += step) {
		const char *first = amx_whole_piece(weights, units - u, last[0]), *second = amx_whole_piece(weights + t->panel_bytes, units - u, last[1]);
		tile_turn_pair(t, &fetch);
		amx_load(4, x, AMX_ROW_BYTES);
		amx_load(6, first, KERN_GROUP_UNIT);
		amx_add_bf16(0, 4, 6);
		ask_pair(&fetch, twice);
		amx_load(7, first + AMX_ROW_BYTES, KERN_GROUP_UNIT);
		amx_add_bf16(1, 4, 7);
		ask_pair(&fetch, twice);
		amx_load(6, second, KERN_GROUP_UNIT);
		amx_add_bf16(2, 4, 6);
		ask_pair(&fetch, twice);
		amx_load(7, second + AMX_ROW_BYTES, KERN_GROUP_UNIT);
		amx_add_bf16(3, 4, 7);
		ask_pair(&fetch, twice);
	}
	end_pair(of, rows);
}

static void tile_of_few(const struct matmul_tile *t, u32 rows)
{
	if (t->panels != 2)
		tile_few(t, rows);
	else if (rows <= TILE_PAIR_TWICE_ROWS)
		run_pair(t, rows, true);
	else
		run_pair(t, rows, false);
}

static const struct matmul_kernel FEW = {.tile_rows = AMX_TILE_ROWS,
					 .tile_columns = KERN_PANEL,
					 .few_rows = 1,
					 .few_columns = KERN_PANEL,
					 .asks_always = true,
					 .asks_in_order = true,
					 .paired_rows = PAIRED_ROWS,
					 .pack = pack_few,
					 .tile = tile_of_few};

/* ---------------------------------------------------------------- many rows */

/* Sums that are still in the registers, and where they go. They are stored beside the next tile's first products, register by register, for
 * those that come before a store do not wait for it, and those that come behind all four do. */
struct unstored {
	float *to; /* NULL: there are none */
	size_t bytes; /* from row to row */
};
_Static_assert(sizeof(struct unstored) <= BLOCKED_HELD, "what a tile may leave to the next one");

/* What a tile's sums begin with. */
struct begins {
	const float *from; /* NULL: with zeros */
	size_t bytes;
};

/* As add_piece, of weights that stay, while inputs go by. All loads come first, so that none waits behind what is asked for: `count` lines of each
 * quarter. */
static ALWAYS_INLINE void add_many(const char *x, size_t lower, const char *weights, struct amx_asking *a, u32 count)
{
	amx_load_once(4, x, AMX_ROW_BYTES);
	amx_load(6, weights, KERN_GROUP_UNIT);
	amx_load(7, weights + AMX_ROW_BYTES, KERN_GROUP_UNIT);
	amx_load_once(5, x + lower, AMX_ROW_BYTES);
	amx_add_bf16(0, 4, 6);
	amx_ask(a, 0, count);
	amx_add_bf16(1, 4, 7);
	amx_ask(a, 1, count);
	amx_add_bf16(2, 5, 6);
	amx_ask(a, 2, count);
	amx_add_bf16(3, 5, 7);
	amx_ask(a, 3, count);
	amx_asked(a, count);
}

/* The same in straight code for what most ask for. */
static ALWAYS_INLINE void add_asking(const char *x, size_t lower, const char *weights, struct amx_asking *a)
{
	const u32 count = amx_asks(a);
	if (count == 0)
		add_many(x, lower, weights, a, 0);
	else if (count == 1)
		add_many(x, lower, weights, a, 1);
	else if (count == 2)
		add_many(x, lower, weights, a, 2);
	else
		add_many(x, lower, weights, a, count);
}

/* What of the sums is stored and filled again in turn. The arguments are constants, but for `row`. */
#define TURN(sums, row, column) \
	do { \
		if (u->to) \
			amx_store(sums, (char *)u->to + (row) * u->bytes + (column) * AMX_ROW_BYTES, u->bytes); \
		if (b->from) \
			amx_load(sums, (const char *)b->from + (row) * b->bytes + (column) * AMX_ROW_BYTES, b->bytes); \
		else \
			amx_zero(sums); \
	} while (0)

/* A tile's first piece: as add_piece, beside storing what the tile before has left, of as many rows, `upper` of them upper ones. */
static ALWAYS_INLINE void add_first(const struct unstored *u, const struct begins *b, u32 upper, const char *x, size_t lower, const char *weights,
				    struct amx_asking *a)
{
	const u32 count = amx_asks(a);
	TURN(0, 0, 0);
	amx_load_once(4, x, AMX_ROW_BYTES);
	amx_load(6, weights, KERN_GROUP_UNIT);
	amx_add_bf16(0, 4, 6);
	TURN(1, 0, 1);
	amx_load(7, weights + AMX_ROW_BYTES, KERN_GROUP_UNIT);
	amx_add_bf16(1, 4, 7);
	TURN(2, upper, 0);
	amx_load_once(5, x + lower, AMX_ROW_BYTES);
	amx_add_bf16(2, 5, 6);
	TURN(3, upper, 1);
	amx_add_bf16(3, 5, 7);
	for (u32 i = 0; i < AMX_STREAMS; i++)
		amx_ask(a, i, count);
	amx_asked(a, count);
}

/* Whether sums of all rows lie where registers can be filled from and stored to: registers may have a row more than there is. */
static bool lies_whole(const struct blocked_tile *t, u32 rows)
{
	return rows == t->most_rows && t->columns == KERN_PANEL;
}

/* `gathered` is where they are brought together if they do not lie so. */
static struct begins begin_many(const struct blocked_tile *t, u32 rows, float gathered[][KERN_PANEL])
{
	struct blocked_tile one = *t;
	if (t->first && !t->accumulate && !t->bias)
		return (struct begins){0};
	if (!t->first)
		return (struct begins){t->sums, KERN_PANEL * sizeof(float)}; /* a row less may be there: others' sums follow, or the lane's memory */
	if (!t->bias && lies_whole(t, rows))
		return (struct begins){t->out, t->out_stride * sizeof(float)};
	for (u32 r = 0; r < rows; r++, one.out += t->out_stride) {
		vec row[1][VECS];
		sums_begin(&one, 1, row);
		vec_store(gathered[r], row[0][0]);
		vec_store(gathered[r] + VEC_LANES, row[0][1]);
	}
	return (struct begins){gathered[0], KERN_PANEL * sizeof(float)};
}

/* What cannot be stored from registers, or would be the last tile's to store, is stored now. */
static struct unstored end_many(const struct blocked_tile *t, u32 rows)
{
	_Alignas(64) float sums[AMX_TILE_ROWS][KERN_PANEL];
	struct blocked_tile one = *t;
	struct unstored left = {0};
	if (!t->last && rows == t->most_rows)
		left = (struct unstored){t->sums, KERN_PANEL * sizeof(float)};
	else if (t->last && lies_whole(t, rows))
		left = (struct unstored){t->out, t->out_stride * sizeof(float)};
	if (left.to && !t->closes)
		return left;
	if (left.to) {
		amx_store_sums(left.to, rows, left.bytes);
		return (struct unstored){0};
	}
	amx_store_sums(sums[0], t->most_rows, sizeof(sums[0]));
	for (u32 r = 0; r < rows; r++, one.sums += KERN_PANEL, one.out += t->out_stride) {
		vec row[1][VECS] = {{vec_load(sums[r]), vec_load(sums[r] + VEC_LANES)}};
		sums_end(&one, 1, row);
	}
	return left;
}

enum { ACTED_AT_ONCE = 2 }; /* rows: as many vectors as sums_act_mul computes side by side */

/* Rows [first, end) of what a tile makes of other panels' sums. */
static void act_rows(const struct blocked_acts *a, u32 first, u32 end)
{
	float made[ACTED_AT_ONCE][KERN_PANEL];
	for (u32 count; first < end; first += count) {
		const float *gate = a->gate + first * KERN_PANEL, *up = a->up + first * KERN_PANEL;
		char *to = a->to + first * a->stride;
		count = kern_min(end - first, ACTED_AT_ONCE);
		if (!a->packs) {
			sums_act_mul(gate, up, count, a->act, (float *)(void *)to, a->stride / sizeof(float));
			continue;
		}
		sums_act_mul(gate, up, count, a->act, made[0], KERN_PANEL);
		for (u32 r = 0; r < count; r++)
			round_piece(made[r], KERN_PANEL, to + r * a->stride);
	}
}

static struct amx_asking asking_of(const struct blocked_tile *t, u32 units, u32 pieces)
{
	return amx_asking_of(t->prefetch_block, t->prefetch_bytes, (size_t)(t->prefetch - t->prefetch_block), (size_t)units * t->prefetch_step, pieces);
}

/* Blocks have more than AMX_ROWS rows, and so have their tiles. Where there is a row less than the registers have, theirs has what follows in memory,
 * and goes nowhere. */
static void tile_many(const struct blocked_tile *t, u32 rows)
{
	_Alignas(64) float gathered[AMX_TILE_ROWS][KERN_PANEL];
	_Alignas(64) char last[AMX_PIECE_BYTES];
	struct unstored *held = (struct unstored *)(void *)t->held;
	const u32 units = kern_ceil(t->k_count, 2), pieces = kern_ceil(units, AMX_UNITS), upper = amx_upper(t->most_rows);
	const size_t lower = (size_t)upper * AMX_ROW_BYTES, step = (size_t)rows * AMX_ROW_BYTES;
	const char *x = t->x, *weights = t->weights;
	const float *out = t->out;
	struct amx_asking ask = asking_of(t, units, pieces);
	const u32 outs = t->last && t->columns == KERN_PANEL ? kern_ceil(rows, pieces) : 0;
	const u32 acts = kern_ceil(t->acts.rows, pieces);
	const struct begins begins = begin_many(t, rows, gathered);
	const struct unstored before = t->opens ? (struct unstored){0} : *held;
	u32 acted = 0;
	ASSERT(t->most_rows > AMX_ROWS);
	VARIANT(amx_rows)(t->most_rows);
	for (u32 p = 0, due = acts; p < pieces; p++, due += acts, weights += AMX_PIECE_BYTES, x += step) {
		const bool ends = p + 1 == pieces;
		const char *piece = amx_whole_piece(weights, units - p * AMX_UNITS, last);
		for (u32 i = 0; i < outs; i++, out += t->out_stride)
			amx_ask_row(out);
		if (p == 0)
			add_first(&before, &begins, upper, x, lower, piece, &ask);
		else
			add_asking(x, lower, piece, &ask);
		if (acted < t->acts.rows && (due >= acted + ACTED_AT_ONCE || ends)) {
			const u32 end = ends ? t->acts.rows : kern_min(due, t->acts.rows);
			act_rows(&t->acts, acted, end);
			acted = end;
		}
	}
	*held = end_many(t, rows);
}

static const struct blocked_kernel MANY = {.tile_rows = AMX_TILE_ROWS,
					   .k_block = K_BLOCK,
					   .k_whole = K_WHOLE,
					   .value_bytes = 2,
					   .acts_beside = true,
					   .whole_values = VALUES,
					   .own_rows = AMX_OWN_ROWS,
					   .pack = pack,
					   .tile = tile_many,
					   .act_mul = sums_act_mul,
					   .norm = &blocked_norm_avx2};

enum err VARIANT(matmul_bf16)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct matmul_inputs in = {.unit_values = 2, .whole_units = AMX_UNITS};
	if (a->fusion && (a->tokens <= KERN_CPU_UNFUSED_TOKENS || !matmul_blocked_fuses(a)))
		return ERR_UNSUPPORTED;
	if (a->tokens > AMX_TILE_ROWS)
		matmul_blocked(ctx, a, &MANY);
	else
		matmul_run(ctx, a, &FEW, &in);
	return ERR_OK;
}
