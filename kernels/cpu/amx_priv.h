/* Matrix tiles (AMX): registers of 16 rows of 64 bytes, and products of two of them that are added to a third. For objects with AVX-512,
 * BF16 and VNNI; those with AMX_EMULATED compute the same without such registers, bit for bit, so that what is built on them can be tested on
 * processors that have none.
 *
 * All that multiply here have the same use of the eight: 0 and 1 are the sums of the upper rows times the columns of a panel, 2 and 3 those of the
 * lower rows, or of the same rows times another panel's columns; 4 and 5 are the inputs of the upper and lower rows; 6 and 7 weights. */
#ifndef TERCET_KERNELS_CPU_AMX_PRIV_H
#define TERCET_KERNELS_CPU_AMX_PRIV_H

#include <string.h>

#include "kernels/cpu/matmul_tile_priv.h"
#include "kernels/cpu/vec_priv.h"
#include "kernels/cpu/variants_priv.h"

#if defined(VEC_LANES) && VEC_LANES == 16

enum {
	AMX_ROWS = 16, /* of a register, at most */
	AMX_ROW_BYTES = 64, /* 16 sums, 32 values of bfloat16 or 64 of 8 bits */
	AMX_TILE_ROWS = 2 * AMX_ROWS, /* inputs' rows that are multiplied side by side, at most */
	AMX_UNITS = AMX_ROW_BYTES / 4, /* of 4 bytes a column, the rows of weights */
	AMX_PIECE_BYTES = AMX_UNITS * KERN_GROUP_UNIT, /* of a panel's weights that fill two registers */
	AMX_REGISTERS = 8,
	AMX_OWN_ROWS = 256, /* blocked_kernel.own_rows: of fewer, weights are multiplied faster than memory brings all to every core */
};

/* How many of so many rows are the upper ones. */
static inline u32 amx_upper(u32 rows)
{
	return rows <= AMX_ROWS ? rows : kern_ceil(rows, 2);
}

/* Has the calling thread's registers hold `rows` rows, 1 to AMX_TILE_ROWS, of inputs and sums. It lasts until the next call. */
void VARIANT(amx_rows)(u32 rows);
/* The same where all registers but 6 and 7 hold `rows` rows, 1 to AMX_ROWS. */
void VARIANT(amx_rows_alike)(u32 rows);

/* The table's, and the products that it passes on. */
enum err VARIANT(attention)(struct kern_ctx *ctx, const struct kern_attention_args *a);
enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a);
enum err VARIANT(matmul_bf16)(struct kern_ctx *ctx, const struct kern_matmul_args *a);
enum err VARIANT(matmul_quantized)(struct kern_ctx *ctx, const struct kern_matmul_args *a);

/* LDTILECFG's operand; Intel SDM volume 1, 18.2. */
struct amx_config {
	u8 palette, start_row, reserved[14];
	u16 row_bytes[16];
	u8 rows[16];
};

#ifdef AMX_EMULATED
void emulated_configure(const struct amx_config *config);
void emulated_zero(u32 tile);
void emulated_load(u32 tile, const void *from, size_t stride);
void emulated_store(u32 tile, void *to, size_t stride);
void emulated_add_bf16(u32 sums, u32 inputs, u32 weights);
void emulated_add_bytes(u32 sums, u32 inputs, u32 weights);
void emulated_add_signed(u32 sums, u32 inputs, u32 weights);
#define amx_configure		 emulated_configure
#define amx_zero(tile)		 emulated_zero(tile)
#define amx_load(tile, from, stride) emulated_load(tile, from, stride)
#define amx_load_once(tile, from, stride) emulated_load(tile, from, stride)
#define amx_store(tile, to, stride) emulated_store(tile, to, stride)
#define amx_add_bf16(sums, inputs, weights)  emulated_add_bf16(sums, inputs, weights)
#define amx_add_bytes(sums, inputs, weights) emulated_add_bytes(sums, inputs, weights)
#define amx_add_signed(sums, inputs, weights) emulated_add_signed(sums, inputs, weights)
#else
/* The compiler's own forms of these do not say that they read and write memory. */
static ALWAYS_INLINE void amx_configure(const struct amx_config *config)
{
	__asm__ volatile("ldtilecfg %0" : : "m"(*config));
}
#define amx_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
/* Rows `stride` bytes apart. */
#define amx_load(tile, from, stride) \
	__asm__ volatile("tileloadd (%0,%1), %%tmm" #tile : : "r"(from), "r"((size_t)(stride)) : "memory")
/* The same of what is not read again soon: it leaves the first cache to what is. A register comes from the second one as soon as so. */
#define amx_load_once(tile, from, stride) \
	__asm__ volatile("tileloaddt1 (%0,%1), %%tmm" #tile : : "r"(from), "r"((size_t)(stride)) : "memory")
#define amx_store(tile, to, stride) \
	__asm__ volatile("tilestored %%tmm" #tile ", (%0,%1)" : : "r"(to), "r"((size_t)(stride)) : "memory")
/* sums += inputs' pairs of bfloat16 times those of the weights: of 32 products the even ones and the odd ones are summed apart, in order and rounded
 * to float each time; what is no normal number counts as zero. */
#define amx_add_bf16(sums, inputs, weights) \
	__asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #inputs ", %%tmm" #sums : : : "memory")
/* sums += inputs' signed bytes times the weights' unsigned ones. */
#define amx_add_bytes(sums, inputs, weights) \
	__asm__ volatile("tdpbsud %%tmm" #weights ", %%tmm" #inputs ", %%tmm" #sums : : : "memory")
/* The same of weights with a sign. */
#define amx_add_signed(sums, inputs, weights) \
	__asm__ volatile("tdpbssd %%tmm" #weights ", %%tmm" #inputs ", %%tmm" #sums : : : "memory")
#endif

static ALWAYS_INLINE void amx_zero_sums(void)
{
	amx_zero(0);
	amx_zero(1);
	amx_zero(2);
	amx_zero(3);
}

/* Sums of `rows` rows and a panel's columns; rows are `bytes` apart in memory. */
static ALWAYS_INLINE void amx_store_sums(void *to, u32 rows, size_t bytes)
{
	const u32 upper = amx_upper(rows);
	char *lower = (char *)to + upper * bytes;
	amx_store(0, to, bytes);
	amx_store(1, (char *)to + AMX_ROW_BYTES, bytes);
	if (rows > upper) {
		amx_store(2, lower, bytes);
		amx_store(3, lower + AMX_ROW_BYTES, bytes);
	}
}

/* A panel's weights for one filling of the registers, of which there may be fewer units than these have rows: then zeros follow, in `to`. */
static ALWAYS_INLINE const char *amx_whole_piece(const char *weights, u32 units, char to[AMX_PIECE_BYTES])
{
	const size_t bytes = units * (size_t)KERN_GROUP_UNIT;
	if (units >= AMX_UNITS)
		return weights;
	memcpy(to, weights, bytes);
	memset(to + bytes, 0, AMX_PIECE_BYTES - bytes);
	return to;
}

enum { AMX_STREAMS = 4 }; /* as many as a piece has products of tiles */

/* Weights that come later, of which tiles ask for a part beside their products: a line of each quarter in turn, for memory brings four streams
 * sooner than one. */
struct amx_asking {
	const char *at; /* the first quarter's next line */
	size_t apart;	/* from there to the next quarter's */
	u32 each, more; /* lines of a quarter that a piece of tiles asks for; the first `more` pieces one more */
};

/* What tiles of `pieces` pieces together ask for: of each quarter of a block a quarter of `bytes`, behind as much of `before`. */
static ALWAYS_INLINE struct amx_asking amx_asking_of(const char *block, size_t block_bytes, size_t before, size_t bytes, u32 pieces)
{
	const size_t four = (size_t)AMX_STREAMS * TILE_LINE, lines = kern_ceil(block_bytes, four);
	const size_t first = before / four, end = kern_min(lines, kern_ceil(before + bytes, four));
	const u32 count = end > first ? (u32)(end - first) : 0;
	return (struct amx_asking){block + first * TILE_LINE, lines * TILE_LINE, count / pieces, count % pieces};
}

/* How many lines of each quarter the next piece asks for: behind its products those of the first, the second and so on, and then it says so. */
static ALWAYS_INLINE u32 amx_asks(struct amx_asking *a)
{
	const u32 one = a->more > 0 ? 1 : 0;
	a->more -= one;
	return a->each + one;
}

static ALWAYS_INLINE void amx_ask(const struct amx_asking *a, u32 quarter, u32 count)
{
	const char *at = a->at + quarter * a->apart;
	if (count > 0)
		_mm_prefetch(at, _MM_HINT_T1);
	if (count > 1)
		_mm_prefetch(at + TILE_LINE, _MM_HINT_T1);
	for (u32 i = 2; i < count; i++)
		_mm_prefetch(at + i * TILE_LINE, _MM_HINT_T1);
}

/* Of two panels that are read in turn, from `ahead` of both on: a line of each in turn. Where the first one's lines end others follow, which may be
 * as far apart as the panels are or not. */
static ALWAYS_INLINE struct amx_asking amx_asking_pair(const char *ahead, size_t apart, size_t bytes, u32 pieces)
{
	const u32 count = (u32)(bytes / ((size_t)AMX_STREAMS / 2 * TILE_LINE));
	return (struct amx_asking){ahead, apart, count / pieces, count % pieces};
}

/* Asks [from, end) of a piece: twice two lines each. */
static ALWAYS_INLINE void amx_ask_pair(const struct amx_asking *a, u32 from, u32 end)
{
#pragma GCC unroll 4
	for (u32 i = from * AMX_STREAMS / 2; i < end * AMX_STREAMS / 2; i++) {
		tile_ask(a->at + i * TILE_LINE, true);
		tile_ask(a->at + i * TILE_LINE + a->apart, true);
	}
}

/* The same of lines [from, end) of each quarter. */
static ALWAYS_INLINE void amx_ask_all(const struct amx_asking *a, u32 from, u32 end)
{
#pragma GCC unroll 4
	for (u32 i = from; i < end; i++)
#pragma GCC unroll 4
		for (u32 q = 0; q < AMX_STREAMS; q++)
			tile_ask(a->at + i * TILE_LINE + q * a->apart, true);
}

static ALWAYS_INLINE void amx_asked(struct amx_asking *a, u32 count)
{
	a->at += count * TILE_LINE;
}

/* A panel's columns of a row that will be stored to. */
static ALWAYS_INLINE void amx_ask_row(const float *out)
{
	__builtin_prefetch(out, 1);
	__builtin_prefetch(out + VEC_LANES, 1);
}

#endif
#endif
