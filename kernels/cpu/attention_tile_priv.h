/* What the parts of attention share: the tile a thread works on, and integer vectors in both widths. Included
 * by attention.c alone, once per instruction set. */
#ifndef TERCET_KERNELS_CPU_ATTENTION_TILE_PRIV_H
#define TERCET_KERNELS_CPU_ATTENTION_TILE_PRIV_H

#include <math.h>

#include "kernels/cpu/attention_plan_priv.h"
#include "kernels/cpu/vec_priv.h"
#include "kernels/kv_priv.h"

#ifdef VEC_LANES

/* bfloat16 products in pairs, where there is an instruction for them. */
#if defined(__AVX512BF16__)
#define ATTENTION_DOTS_BF16 1
#else
#define ATTENTION_DOTS_BF16 0
#endif

/* Products by matrix tiles (AMX), in the object that is for processors with them. */
#ifndef ATTENTION_TILES
#define ATTENTION_TILES 0
#endif

/* Types of the cache that this object is for. The others have nothing of what it has beyond another one's instructions, whose function takes them:
 * compiling them again is most of an object's time. */
#if ATTENTION_DOTS_BF16
#define ATTENTION_HAS(type) ((type) == KERN_BF16)
#elif (defined(__AVX512VNNI__) && VEC_LANES == 16) || (defined(__AVXVNNI__) && VEC_LANES == 8)
#define ATTENTION_HAS(type) ((type) == KERN_I8 || (type) == KERN_I16)
#else
#define ATTENTION_HAS(type) true
#endif
/* Whether a cache's type is this one; what is done then is not compiled where there is none of it. */
#define ATTENTION_IS(dtype, type) (ATTENTION_HAS(type) && (dtype) == (type))

enum {
	GROUP = 16, /* keys of a score group: one vector of AVX-512, two of AVX2 */
	GROUP_VECS = GROUP / VEC_LANES,
	GROUPS = ATTENTION_PART / GROUP,
	/* Rows computed side by side of a cache of floats. With 16 registers 6 rows times 2 vectors are the most sums that leave
	 * room for what is multiplied, and enough to hide that one takes 4 or 5 cycles. */
	TILE_ROWS = VEC_LANES == 16 ? ATTENTION_ROWS : ATTENTION_ROWS_LEAST,
	TASK_ROWS = 48, /* of a task */
	TASK_ROWS_MANY = ATTENTION_TILES ? ATTENTION_TASK_ROWS : TASK_ROWS, /* of one for which values are laced, once for all its rows, */
	TASKS_MANY = 16, /* where the batch has as many such tasks for every thread */
	TASK_ROWS_FEW = VEC_LANES == 16 ? 32 : 24, /* of a task, where those of TASK_ROWS would be few for the threads */
	CHUNK = 64, /* keys whose values are summed before the next dimensions: they stay in the L1 cache */
	TILE_DIMS = 32, /* of a matrix tile: as many values of bfloat16 are a row of inputs, or a pair of them a row of keys */
	LINE = 64,  /* bytes of a cache line */
	LARGE_FLOATS = 1 << 17, /* queries of a batch that, with as many outputs, leave the caches of a core */
	AHEAD = 4,  /* groups that memory is asked for before they are needed */
	ASKS_SIDES = 2, /* keys and values */
	ASKS_STREAMS = 4, /* groups whose lines take turns */
	ASKS_BYTES = 512 << 10, /* of a part, at most: an L2 cache of 2 MB has room for it beside the one at hand; twice as many gained nothing */
	I16_MAX = 32767,
};

/* E4M3's bits moved to their places in a float are too small by 2^120. Half of that goes into what they are
 * multiplied by, half into the result: neither overflows. */
#define F8_HALF_BIAS 0x1p60f

/* What is asked for of the part that comes: see attention_asks_priv.h. */
struct part_asks {
	const char *stream[ASKS_STREAMS]; /* groups' memory, or parts of it */
	u32 line, lines;		  /* the next one of each; 0: there is nothing to ask for */
	u32 group, groups, group_lines;	  /* the first of the streams' groups; a KV head's lines of a group */
	u32 side, head, heads;		  /* the KV head behind the streams' */
	size_t slab;			  /* from a KV head to the next one */
	const char *memory[ASKS_SIDES][GROUPS]; /* of the first KV head */
};

/* What a thread works on: rows of one KV head, or of some in turn, and the keys at hand. */
struct tile {
	const struct kern_attention_args *a;
	struct attention_lane lane;
	u32 row, kv_head; /* of the batch; the first KV head */
	bool together; /* rows of several KV heads take turns */
	u32 words;	  /* of a key or value */
	u32 end;	  /* of the keys that any row of the task sees */
	struct attention_rows *of; /* those at work, and what is read of them most often */
	struct attention_part *part;
	float *scores;
	int16_t *weights;
	i32 *sums;
	size_t head_at;
	u32 begin; /* of the part */
	u32 count; /* of its keys that they see */
	bool whole; /* the task sees all keys of its rows, and they lie in one segment */
	bool writes;		      /* products of bfloat16: the part is the rows' last one, their sums become outputs at once */
	/* The keys of a part, by groups. Pointers are of the first KV head: see attention_rows.head_at. */
	u32 groups;
	const char *keys[GROUPS];
	size_t key_stride; /* bytes from a word to the next */
	const char *values[GROUPS];
	size_t value_bytes;					/* from a key's values to the next key's */
	/* Products by tiles: neighbouring keys' values laced into each other, of the part's first laced_keys of part_keys. */
	char *laced;
	u32 laced_keys, part_keys;
	const float *key_scales[GROUPS], *value_scales[GROUPS]; /* of types with scales */
	_Alignas(64) float scales[2][ATTENTION_PART];		/* those of the part's keys, and of its values, zeros behind them */
	bool finite; /* all scales of the values are */
	/* What is read, in order: keys, then values, then the next part's keys, or those of the thread's next task; a
	 * group's memory each. */
	const char *ahead[2 * GROUPS + AHEAD];
	u32 ahead_count; /* with whole groups in blocks: where those begin that the thread reads afterwards */
	const char *following[AHEAD]; /* the next task's first groups, as far as they are known */
	u32 following_count;
	const struct attention_task *task, *next; /* NULL: there is none */
	struct part_asks *asks;
	bool decodes; /* the part that comes is asked for */
	bool asked; /* the part at hand was, while the one before was computed */
	uintptr_t following_queries; /* bytes from a row's query to that of the next task's row; 0: not asked for */
};

static ALWAYS_INLINE void tile_turn(struct tile *t, struct attention_rows *of)
{
	t->of = of;
	t->part = of->part;
	t->scores = of->part->scores;
	t->weights = of->part->weights;
	t->sums = of->part->sums;
	t->head_at = of->head_at;
}

/* Natural logarithm of what softmax weights are powers of. Scores of products of bfloat16 count SCORE_STEPS to an octave: their queries,
 * or, where they are capped, what the cap leaves, are multiplied by that. */
enum { SCORE_STEPS = 512 };
static ALWAYS_INLINE float score_unit(const struct kern_attention_args *a)
{
	return ATTENTION_DOTS_BF16 && a->kv.dtype == KERN_BF16 ? 0.693147180559945309f / SCORE_STEPS : 1;
}

/* Rows of a tile whose cache is of floats, for t->of->count = n: it has no more. */
#define TILED(n) ((n) < TILE_ROWS ? (n) : TILE_ROWS)

/* Calls body(n) with the constant n = t->of->count. */
#define FOR_ROWS(body)         \
	switch (t->of->count) { \
	case 1:                \
		body(1) break; \
	case 2:                \
		body(2) break; \
	case 3:                \
		body(3) break; \
	case 4:                \
		body(4) break; \
	case 5:                \
		body(5) break; \
	case 6:                \
		body(6) break; \
	case 7:                \
		body(7) break; \
	default:               \
		body(8) break; \
	}

/* Whether weights in bfloat16 are computed beside the products of the values. */
static ALWAYS_INLINE bool weighs_beside(const struct tile *t)
{
	return !ATTENTION_TILES && t->of->count > 4 && t->a->kv.head_dim >= 32;
}

/* Asks for where row r's output goes, and for the query of the next task's row. */
static ALWAYS_INLINE void row_ahead(const struct tile *t, u32 r)
{
	const uintptr_t out = (uintptr_t)(t->a->out + t->of->at[r]);
	const uintptr_t following = (uintptr_t)(t->a->q + t->of->at[r]) + t->following_queries;
	for (u32 at = 0; at < t->a->kv.head_dim * sizeof(float) && t->following_queries != 0; at += LINE) {
		__builtin_prefetch((const void *)(out + at), 1, 3);
		__builtin_prefetch((const void *)(following + at), 0, 3);
	}
}

/* ---------------------------------------------------------------- rows at once */

#if VEC_LANES == 16
/* The lanes of each of 8 vectors put together: added, or the largest. */
#define REDUCE_EIGHT(name, op)                                                                                        \
	static ALWAYS_INLINE __m256 name(const vec rows[ATTENTION_ROWS])                                               \
	{                                                                                                              \
		const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13));               \
		vec pair[4], four[2], all;                                                                             \
		_Pragma("GCC unroll 4") for (u32 i = 0; i < 4; i++)                                                    \
			pair[i] = op(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44),                         \
				     _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xee));                        \
		_Pragma("GCC unroll 2") for (u32 i = 0; i < 2; i++) /* a lane of 128 bits is a row */                  \
			four[i] = op(_mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0x88),                         \
				     _mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0xdd));                        \
		all = op(_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));                  \
		all = op(all, _mm512_permute_ps(all, 0x4e));                                                           \
		return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, all));                                      \
	}
REDUCE_EIGHT(highest_of_eight, vec_max)
REDUCE_EIGHT(sum_of_eight, vec_add)
#endif

/* Of each row's vector the largest lane, or the sum of all, which do not depend on the other rows. */
static ALWAYS_INLINE void rows_highest(const vec rows[ATTENTION_ROWS], float to[ATTENTION_ROWS])
{
#if VEC_LANES == 16
	_mm256_storeu_ps(to, highest_of_eight(rows));
#else
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		to[r] = vec_highest(rows[r]);
#endif
}

static ALWAYS_INLINE void rows_sum(const vec rows[ATTENTION_ROWS], float to[ATTENTION_ROWS])
{
#if VEC_LANES == 16
	_mm256_storeu_ps(to, sum_of_eight(rows));
#else
	for (u32 r = 0; r < ATTENTION_ROWS; r++)
		to[r] = vec_sum(rows[r]);
#endif
}

/* ---------------------------------------------------------------- vectors of integers */

#if VEC_LANES == 16
typedef __m512i ivec;
#define IVEC(op)	     _mm512_##op
#define IVEC_BITS(op)	     _mm512_##op##_si512
#define IVEC_FLOAT(x)	     _mm512_castsi512_ps(x)
#define IVEC_LOAD(p)	     _mm512_loadu_si512(p)
#define IVEC_STORE(p, x)     _mm512_storeu_si512(p, x)
#define IVEC_BYTES_TO_I32(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#else
typedef __m256i ivec;
#define IVEC(op)	     _mm256_##op
#define IVEC_BITS(op)	     _mm256_##op##_si256
#define IVEC_FLOAT(x)	     _mm256_castsi256_ps(x)
#define IVEC_LOAD(p)	     _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define IVEC_STORE(p, x)     _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define IVEC_BYTES_TO_I32(p) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#endif

/* *sum += a.low * b.low + a.high * b.high, for every 32 bits taken as two signed 16-bit numbers. The compiler's own form of it copies sums from
 * register to register, or keeps them in memory. */
static ALWAYS_INLINE void ivec_add_dot16(ivec *sum, ivec a, ivec b)
{
#if defined(__AVX512VNNI__) && VEC_LANES == 16
	__asm__("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
#elif defined(__AVXVNNI__) && VEC_LANES == 8
	__asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
#elif VEC_LANES == 8
	ivec both;
	__asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(both) : "x"(a), "x"(b));
#else
	*sum = IVEC(add_epi32)(*sum, IVEC(madd_epi16)(a, b));
#endif
}

static ALWAYS_INLINE u32 ivec_sum(ivec x)
{
#if VEC_LANES == 16
	return (u32)_mm512_reduce_add_epi32(x);
#else
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return (u32)_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
#endif
}

/* E4M3 codes, sign-extended and shifted so that the sign is in bits 27 to 31, as floats too small by 2^120.
 */
static ALWAYS_INLINE vec vec_from_f8(ivec shifted)
{
	return IVEC_FLOAT(IVEC_BITS(and)(shifted, IVEC(set1_epi32)((int)0x87f00000u)));
}

/* `bytes` < sizeof(ivec) of memory, zeros behind. */
static ALWAYS_INLINE ivec ivec_load_bytes(const void *p, u32 bytes)
{
#if VEC_LANES == 16
	return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << bytes) - 1, p);
#else
	char buffer[sizeof(ivec)] = {0};
	if (bytes >= sizeof(ivec))
		return IVEC_LOAD(p);
	memcpy(buffer, p, bytes);
	return IVEC_LOAD(buffer);
#endif
}

#endif

#endif
