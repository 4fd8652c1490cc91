/* Paged attention for decode, prefill chunks and mixtures of both: one kernel template, instantiated by
 * attention_<type of the cache>.cu. What decodes over 8-bit caches mostly (attention_bytes.cuh) and what prefills on compute
 * capability 9.0 (attention_prefill.cu) shares its words.
 *
 * The rows of a tile are (token, head) pairs of one KV head: with G query heads a KV head, row i of a
 * sequence is token i / G, head i % G. So a decoding sequence fills G of 16 rows and its keys are read once
 * for all of them. MW warps share out the rows (16 each), NW warps the keys of a tile of 64. Keys and values
 * come through STAGES buffers by asynchronous copies; the softmax runs in base 2 with a running maximum
 * (Milakov, Gimelshein 2018; Dao 2023), sums in float.
 *
 * Pieces of work come from the plan (attention_plan.cu). A piece that holds all keys of its tile writes the
 * output; others write their unscaled sums, maxima and totals. Of decode the block that comes last of a tile's joins
 * them at once, of prefill attention_reduce.cu does. */
#ifndef TERCET_KERNELS_CUDA_ATTENTION_CUH
#define TERCET_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/device.cuh"

#define ATTENTION_NONE (-1e30f) /* a score that is none; finite, so that differences are no NaN */

enum { ATTENTION_TILE = 64 /* keys */ };

static constexpr float ATTENTION_LOG2_E = 1.4426950408889634f;

struct attention {
	u16 *out;
	const u16 *q;
	const u8 *k, *v;
	const u32 *query_start, *context, *block_tables;
	struct attention_plan plan;
	u32 block_stride, block_shift, kv_heads, group;
	float scale, soft_cap;
	u32 window;
	const float *sinks; /* [heads] or NULL */
};

template <u32 D_, u32 MW_, u32 NW_, u32 STAGES_, enum kern_dtype KV_>
struct attention_shape {
	static constexpr u32 D = D_, MW = MW_, NW = NW_, STAGES = STAGES_;
	static constexpr enum kern_dtype KV = KV_;
	static constexpr bool BYTES = KV != KERN_BF16; /* converted to bf16 on the way */
	static constexpr u32 ROWS = MW * 16, THREADS = MW *NW *CU_WARP;
	static constexpr u32 KIND = NW > 1 ? ATTENTION_SMALL : ATTENTION_LARGE;
	static constexpr u32 PITCH = D + 8; /* odd in units of 16 bytes: no bank conflicts */
	static constexpr u32 WARP_KEYS = ATTENTION_TILE / NW, KEY_TILES = WARP_KEYS / 8;
	static constexpr bool Q_IN_REGISTERS = D <= 128;
	static constexpr u32 ELEMENT = BYTES ? 1 : 2; /* bytes in the cache */
	static constexpr size_t TOKEN_BYTES = D * ELEMENT + (BYTES ? sizeof(float) : 0);
	static constexpr u32 STAGE_PITCH = BYTES ? D : PITCH * 2; /* bytes of a key in a stage */
	static constexpr u32 STAGE_SIDE = ATTENTION_TILE * STAGE_PITCH;
	static constexpr u32 STAGE = 2 * STAGE_SIDE + (BYTES ? 2 * ATTENTION_TILE * sizeof(float) : 0);
	static constexpr u32 TILE_BYTES = ATTENTION_TILE * PITCH * 2;
	/* Shared memory: stages, then the tile as bf16 where the cache is not, then Q; where that goes into registers before
	 * the last buffer is used, in the place of that. */
	static constexpr u32 Q_BYTES = ROWS * PITCH * 2;
	static constexpr u32 CONVERTED_AT = STAGES * STAGE, WORK_END = CONVERTED_AT + (BYTES ? 2 * TILE_BYTES : 0);
	static constexpr u32 LAST_BYTES = BYTES ? 2 * TILE_BYTES : STAGE;
	static constexpr bool Q_IN_LAST = KIND == ATTENTION_LARGE && Q_IN_REGISTERS && Q_BYTES <= LAST_BYTES;
	static constexpr u32 Q_AT = Q_IN_LAST ? WORK_END - LAST_BYTES : WORK_END;
	static constexpr u32 SHARED_WORK = Q_IN_LAST ? WORK_END : Q_AT + Q_BYTES;
	/* The warps' results when they are joined, in the same place. */
	static constexpr u32 JOIN_PITCH = D + 4,
	SHARED_JOIN = NW > 1 ? NW * 16 * (JOIN_PITCH + 2) * 4 : 0;
	static constexpr u32 SHARED_BYTES = SHARED_WORK > SHARED_JOIN ? SHARED_WORK : SHARED_JOIN;
};

/* One piece of work. Keys [begin, end) are walked, begin being a multiple of the tile; those before `first`
 * are in nobody's window and may lie in blocks that are gone. */
struct attention_piece {
	u32 row, head, slot;
	u32 token;	/* the sequence's first in the step */
	u32 rows, tile; /* its rows; the first row of this tile */
	u32 before;	/* keys before its first query */
	u32 first, begin, end;
	u32 piece, pieces; /* its number, and of decode how many the tile has */
};

template <typename S> struct attention_state {
	float o[S::D / 8][4], m[2], l[2];
	u32 limit[2], low[2]; /* keys that this lane's two rows see: [low, limit) */
	u32 q[S::Q_IN_REGISTERS ? S::D / 16 : 1][4];
};

/* ---------------------------------------------------------------- a piece and its loads */

template <typename S>
CU_INLINE struct attention_piece attention_piece_of(const struct attention *p, const uint4 work)
{
	struct attention_piece w;
	const bool small = S::KIND == ATTENTION_SMALL; /* where one tile has all rows */
	w.row = work.x;
	w.head = small ? work.y & 0xffff : work.y % p->kv_heads;
	w.piece = small ? work.y >> 16 : work.z;
	w.tile = small ? 0 : work.y / p->kv_heads * S::ROWS;
	w.slot = work.w;
	w.token = p->query_start[w.row];
	const u32 queries = p->query_start[w.row + 1] - w.token, chunk = p->plan.head->chunk[S::KIND];
	const u32 skip = small ? work.z * ATTENTION_CHUNK_UNIT : 0; /* keys of a share before the tile's */
	w.rows = queries * p->group;
	w.before = p->context[w.row] - queries;
	const u32 last = least(w.tile + S::ROWS, w.rows) - 1;
	w.first = attention_first_key(w.before + w.tile / p->group, p->window);
	const u32 from = w.first / ATTENTION_TILE * ATTENTION_TILE;
	w.end = least(w.before + last / p->group + 1, from + (w.piece + 1) * chunk - skip);
	w.begin = from + (w.piece > 0 ? w.piece * chunk - skip : 0);
	w.pieces = (w.before + queries - from + skip + chunk - 1) / chunk;
	return w;
}

/* Where in K or V the part of a block that belongs to this KV head begins, in bytes: its values, and behind
 * them, where they have 8 bits, their scales. */
template <typename S>
CU_INLINE size_t attention_block(const struct attention *p, const struct attention_piece *w, u32 key)
{
	const u32 block = p->block_tables[(size_t)w->row * p->block_stride + (key >> p->block_shift)];
	return ((size_t)block * p->kv_heads + w->head) * (S::TOKEN_BYTES << p->block_shift);
}

/* Starts the copies of the keys and values at `key`. */
template <typename S>
CU_INLINE void attention_load(const struct attention *p, const struct attention_piece *w, u8 *stage, u32 key)
{
	constexpr u32 VECTORS = S::D * S::ELEMENT / 16; /* of a key */
	const u32 mask = (1u << p->block_shift) - 1;
	for (u32 i = threadIdx.x; i < ATTENTION_TILE * VECTORS; i += S::THREADS) {
		const u32 r = i / VECTORS, at = i % VECTORS * 16;
		const bool valid = key + r >= w->first && key + r < w->end;
		const size_t from = valid ? attention_block<S>(p, w, key + r) +
						    ((key + r) & mask) * S::D * S::ELEMENT + at
					  : 0;
		cu_cp_async16(stage + r * S::STAGE_PITCH + at, p->k + from, valid);
		cu_cp_async16(stage + S::STAGE_SIDE + r * S::STAGE_PITCH + at, p->v + from, valid);
	}
	if constexpr (S::BYTES) {
		float *scales = (float *)(stage + 2 * S::STAGE_SIDE);
		for (u32 r = threadIdx.x; r < ATTENTION_TILE; r += S::THREADS) {
			const bool valid = key + r >= w->first && key + r < w->end;
			const size_t from = valid ? attention_block<S>(p, w, key + r) +
							    ((size_t)S::D << p->block_shift) +
							    ((key + r) & mask) * sizeof(float)
						  : 0;
			cu_cp_async4(scales + r, p->k + from, valid);
			cu_cp_async4(scales + ATTENTION_TILE + r, p->v + from, valid);
		}
	}
}

/* The tile's rows of Q, zeros behind the last. */
template <typename S>
CU_INLINE void attention_load_q(const struct attention *p, const struct attention_piece *w, u16 *q)
{
	for (u32 i = threadIdx.x; i < S::ROWS * (S::D / 8); i += S::THREADS) {
		const u32 r = i / (S::D / 8), at = i % (S::D / 8) * 8, row = w->tile + r;
		const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
		cu_store(q + r * S::PITCH + at,
			 row < w->rows
				 ? cu_load<uint4>(p->q + (token * p->kv_heads * p->group + head) * S::D + at)
				 : make_uint4(0, 0, 0, 0));
	}
}

/* 16 values of 8 bits as 16 bf16: exact. */
template <typename S> CU_INLINE void attention_convert16(u16 *to, const u8 *from)
{
	const uint4 v = cu_load<uint4>(from);
	const u32 in[4] = {v.x, v.y, v.z, v.w};
	u32 out[8];
#pragma unroll
	for (u32 i = 0; i < 8; i++) {
		const u32 pair = in[i / 2] >> (i % 2 * 16) & 0xffff;
		if constexpr (S::KV == KERN_I8) {
			out[i] = cu_pack_bf16((float)(int8_t)pair, (float)(int8_t)(pair >> 8));
		} else {
			const u32 halves = cu_e4m3x2_to_f16x2((u16)pair);
			out[i] = cu_pack_bf16(cu_f16_to_f32((u16)halves), cu_f16_to_f32((u16)(halves >> 16)));
		}
	}
	cu_store(to, make_uint4(out[0], out[1], out[2], out[3]));
	cu_store(to + 8, make_uint4(out[4], out[5], out[6], out[7]));
}

template <typename S> CU_INLINE void attention_convert(u16 *to, const u8 *stage)
{
	constexpr u32 VECTORS = S::D / 16;
	for (u32 i = threadIdx.x; i < 2 * ATTENTION_TILE * VECTORS; i += S::THREADS)
		attention_convert16<S>(to + i / VECTORS * S::PITCH + i % VECTORS * 16, stage + i * 16);
}

/* ---------------------------------------------------------------- a tile */

/* c = Q K^T for this warp's 16 rows and WARP_KEYS keys. */
template <typename S>
CU_INLINE void attention_scores(const struct attention_state<S> *s, const u16 *q, const u16 *k,
				float c[S::KEY_TILES][4])
{
	const u32 lane = threadIdx.x % CU_WARP;
#pragma unroll
	for (u32 j = 0; j < S::KEY_TILES; j++)
		c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
	for (u32 i = 0; i < S::D / 16; i++) {
		u32 a[4];
		if constexpr (S::Q_IN_REGISTERS) {
#pragma unroll
			for (u32 e = 0; e < 4; e++)
				a[e] = s->q[i][e];
		} else {
			cu_ldmatrix_x4(a, q + lane % 16 * S::PITCH + i * 16 + lane / 16 * 8);
		}
#pragma unroll
		for (u32 j = 0; j < S::KEY_TILES; j += 2) {
			u32 b[4];
			cu_ldmatrix_x4(b, k + (j * 8 + lane % 8 + lane / 16 * 8) * S::PITCH + i * 16 +
						  lane / 8 % 2 * 8);
			cu_mma_bf16_n16(c + j, a, b);
		}
	}
}

/* Scores into probabilities relative to the running maximum, in place; rescales what was summed before.
 * `key`: this warp's first; `scales`: of its keys. */
template <typename S>
CU_INLINE void attention_softmax(const struct attention *p, struct attention_state<S> *s, u32 key,
				 const float *scales, float c[S::KEY_TILES][4])
{
	const u32 column = threadIdx.x % 4 * 2;
	float best[2] = {s->m[0], s->m[1]};
#pragma unroll
	for (u32 j = 0; j < S::KEY_TILES; j++)
#pragma unroll
		for (u32 e = 0; e < 4; e++) {
			const u32 at = j * 8 + column + e % 2, i = e / 2;
			float x = c[j][e] * p->scale;
			if constexpr (S::BYTES)
				x *= scales[at];
			if (p->soft_cap > 0)
				x = p->soft_cap * tanhf(x / p->soft_cap);
			c[j][e] =
				key + at >= s->low[i] && key + at < s->limit[i] ? x * ATTENTION_LOG2_E : ATTENTION_NONE;
			best[i] = fmaxf(best[i], c[j][e]);
		}
#pragma unroll
	for (u32 i = 0; i < 2; i++) { /* the four lanes of a row */
		best[i] = fmaxf(best[i], cu_shfl_xor(best[i], 1));
		best[i] = fmaxf(best[i], cu_shfl_xor(best[i], 2));
		const float shrink = cu_exp2(s->m[i] - best[i]);
		s->m[i] = best[i];
		s->l[i] *= shrink;
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++) {
			s->o[d][2 * i] *= shrink;
			s->o[d][2 * i + 1] *= shrink;
		}
	}
#pragma unroll
	for (u32 j = 0; j < S::KEY_TILES; j++)
#pragma unroll
		for (u32 e = 0; e < 4; e++) {
			const float x = c[j][e];
			c[j][e] = x > ATTENTION_NONE / 2 ? cu_exp2(x - s->m[e / 2]) : 0;
			s->l[e / 2] += c[j][e];
		}
}

/* o += P V */
template <typename S>
CU_INLINE void attention_values(struct attention_state<S> *s, const u16 *v, const float *scales,
				const float c[S::KEY_TILES][4])
{
	const u32 lane = threadIdx.x % CU_WARP, column = lane % 4 * 2;
#pragma unroll
	for (u32 j = 0; j < S::KEY_TILES; j += 2) {
		u32 a[4];
#pragma unroll
		for (u32 e = 0; e < 4; e++) {
			const u32 tile = j + e / 2, at = tile * 8 + column, i = e % 2 * 2;
			const float low = S::BYTES ? scales[at] : 1, high = S::BYTES ? scales[at + 1] : 1;
			a[e] = cu_pack_bf16(c[tile][i] * low, c[tile][i + 1] * high);
		}
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d += 2) {
			u32 b[4];
			cu_ldmatrix_x4_trans(b, v + (j * 8 + lane % 16) * S::PITCH + d * 8 + lane / 16 * 8);
			cu_mma_bf16_n16(s->o + d, a, b);
		}
	}
}

/* ---------------------------------------------------------------- a piece */

template <typename S>
CU_INLINE void attention_begin(const struct attention *p, const struct attention_piece *w, const u16 *q,
			       struct attention_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, row = w->tile + threadIdx.x / CU_WARP % S::MW * 16 + lane / 4;
#pragma unroll
	for (u32 d = 0; d < S::D / 8; d++)
		s->o[d][0] = s->o[d][1] = s->o[d][2] = s->o[d][3] = 0;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 at = w->before + (row + 8 * i) / p->group; /* the row's query */
		const bool inside = row + 8 * i < w->rows;
		s->m[i] = ATTENTION_NONE;
		s->l[i] = 0;
		s->low[i] = attention_first_key(at, p->window);
		s->limit[i] = inside ? least(at + 1, w->end) : 0;
	}
	if constexpr (S::Q_IN_REGISTERS) {
#pragma unroll
		for (u32 i = 0; i < S::D / 16; i++)
			cu_ldmatrix_x4(s->q[i], q + lane % 16 * S::PITCH + i * 16 + lane / 16 * 8);
	}
}

/* Walks the piece's keys. `q`: this warp's 16 rows in shared memory. */
template <typename S>
CU_INLINE void attention_walk(const struct attention *p, const struct attention_piece *w, u8 *shared,
			      const u16 *q, struct attention_state<S> *s)
{
	const u32 tiles = w->end > w->begin ? (w->end - w->begin + ATTENTION_TILE - 1) / ATTENTION_TILE : 0;
	const u32 mine = threadIdx.x / CU_WARP / S::MW * S::WARP_KEYS;
	for (u32 i = 0; i < S::STAGES - 1; i++) {
		if (i < tiles)
			attention_load<S>(p, w, shared + i * S::STAGE, w->begin + i * ATTENTION_TILE);
		cu_cp_commit();
	}
	attention_load_q<S>(p, w, (u16 *)(shared + S::Q_AT));
	cu_sync(); /* Q is there */
	attention_begin<S>(p, w, q, s);
	for (u32 n = 0; n < tiles; n++) {
		const u32 ahead = n + S::STAGES - 1, key = w->begin + n * ATTENTION_TILE;
		u8 *stage = shared + n % S::STAGES * S::STAGE;
		const u16 *k = (const u16 *)stage, *v = (const u16 *)(stage + S::STAGE_SIDE);
		const float *scales = (const float *)(stage + 2 * S::STAGE_SIDE);
		cu_cp_wait<S::STAGES - 2>();
		cu_sync(); /* everybody's part of this tile has come, and the tile before is used up */
		if (ahead < tiles)
			attention_load<S>(p, w, shared + ahead % S::STAGES * S::STAGE,
					  w->begin + ahead * ATTENTION_TILE);
		cu_cp_commit(); /* empty at the end, so that counting groups stays right */
		if constexpr (S::BYTES) {
			u16 *converted = (u16 *)(shared + S::CONVERTED_AT);
			attention_convert<S>(converted, stage);
			cu_sync(); /* the tile is bf16 now */
			k = converted;
			v = converted + ATTENTION_TILE * S::PITCH;
		}
		float c[S::KEY_TILES][4];
		attention_scores<S>(s, q, k + mine * S::PITCH, c);
		attention_softmax<S>(p, s, key + mine, scales + mine, c);
		attention_values<S>(s, v + mine * S::PITCH, scales + ATTENTION_TILE + mine, c);
	}
#pragma unroll
	for (u32 i = 0; i < 2; i++) { /* the four lanes of a row */
		s->l[i] += cu_shfl_xor(s->l[i], 1);
		s->l[i] += cu_shfl_xor(s->l[i], 2);
	}
}

/* Joins what the NW warps of the same rows found, into the first of them. */
template <typename S> CU_INLINE void attention_join(u8 *shared, struct attention_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, column = lane % 4 * 2;
	float *sums = (float *)shared, *totals = sums + S::NW * 16 * S::JOIN_PITCH;
	cu_sync(); /* nobody reads tiles any more */
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 row = warp * 16 + lane / 4 + 8 * i;
		if (lane % 4 == 0)
			cu_store(totals + row * 2, make_float2(s->m[i], s->l[i]));
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++)
			cu_store(sums + row * S::JOIN_PITCH + d * 8 + column,
				 make_float2(s->o[d][2 * i], s->o[d][2 * i + 1]));
	}
	cu_sync(); /* all warps' results are there */
	if (warp > 0)
		return;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		float factor[S::NW];
		float2 total[S::NW];
		s->l[i] = 0;
#pragma unroll
		for (u32 k = 0; k < S::NW; k++) {
			total[k] = cu_load<float2>(totals + (k * 16 + lane / 4 + 8 * i) * 2);
			s->m[i] = fmaxf(s->m[i], total[k].x);
		}
#pragma unroll
		for (u32 k = 0; k < S::NW; k++) {
			factor[k] = cu_exp2(total[k].x - s->m[i]);
			s->l[i] += factor[k] * total[k].y;
		}
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++) {
			float2 sum = make_float2(0, 0);
#pragma unroll
			for (u32 k = 0; k < S::NW; k++) {
				const float2 part = cu_load<float2>(
					sums + (k * 16 + lane / 4 + 8 * i) * S::JOIN_PITCH + d * 8 + column);
				sum.x += factor[k] * part.x;
				sum.y += factor[k] * part.y;
			}
			s->o[d][2 * i] = sum.x;
			s->o[d][2 * i + 1] = sum.y;
		}
	}
}

/* By which a row's sums of values are multiplied: `total` is that of e^score, of powers of 2 and divided by 2^best. The larger
 * of the two maxima is the base of both sums. */
CU_INLINE float attention_inverse(const struct attention *p, size_t head, float best, float total)
{
	if (!(total > 0))
		return 0;
	if (!p->sinks)
		return 1 / total;
	const float sink = p->sinks[head] * ATTENTION_LOG2_E, base = fmaxf(best, sink), shrink = cu_exp2(best - base);
	return shrink / (total * shrink + cu_exp2(sink - base));
}

/* The output, or this piece's part of it. Rows that saw no key write only that. */
template <typename S>
CU_INLINE void attention_write(const struct attention *p, const struct attention_piece *w,
			       const struct attention_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, column = lane % 4 * 2;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 r = threadIdx.x / CU_WARP % S::MW * 16 + lane / 4 + 8 * i, row = w->tile + r;
		if (row >= w->rows)
			continue;
		if (w->slot == ATTENTION_WHOLE) {
			const size_t token = w->token + row / p->group,
				     head = w->head * p->group + row % p->group;
			u16 *out = p->out + (token * p->kv_heads * p->group + head) * S::D + column;
			const float inverse = attention_inverse(p, head, s->m[i], s->l[i]);
#pragma unroll
			for (u32 d = 0; d < S::D / 8; d++)
				cu_store(out + d * 8, cu_pack_bf16(s->o[d][2 * i] * inverse,
								   s->o[d][2 * i + 1] * inverse));
			continue;
		}
		const size_t at = (size_t)w->slot * S::ROWS + r;
		if (lane % 4 == 0)
			cu_store(p->plan.totals[S::KIND] + at * 2, make_float2(s->m[i], s->l[i]));
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++)
			cu_store(p->plan.sums[S::KIND] + at * S::D + d * 8 + column,
				 make_float2(s->o[d][2 * i], s->o[d][2 * i + 1]));
	}
}

/* One row of a tile from what its pieces left, by a warp. Totals are [piece][tile_rows][2], sums
 * [piece][tile_rows][head_dim]; the sum is in the order of pieces. A piece in which the row saw no key has total 0, and
 * its sums may be anything. `to`: the row of the output. */
CU_INLINE void attention_join_row(const struct attention *p, const float *totals, const float *sums, u32 tile_rows,
				  u32 head_dim, size_t head, u32 pieces, u32 row, u16 *to)
{
	const u32 lane = threadIdx.x % CU_WARP;
	float best = ATTENTION_NONE;
	for (u32 k = lane; k < pieces; k += CU_WARP)
		best = fmaxf(best, totals[((size_t)k * tile_rows + row) * 2]);
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		best = fmaxf(best, cu_shfl_xor(best, i));
	for (u32 d = lane * 4; d < head_dim; d += CU_WARP * 4) {
		float4 out = make_float4(0, 0, 0, 0);
		float total = 0;
#pragma unroll 4
		for (u32 k = 0; k < pieces; k++) {
			const size_t at = (size_t)k * tile_rows + row;
			const float2 part = cu_load<float2>(totals + at * 2);
			const float4 x = cu_load<float4>(sums + at * head_dim + d);
			const float factor = part.y > 0 ? cu_exp2(part.x - best) : 0;
			total += factor * part.y;
			out.x += factor > 0 ? factor * x.x : 0;
			out.y += factor > 0 ? factor * x.y : 0;
			out.z += factor > 0 ? factor * x.z : 0;
			out.w += factor > 0 ? factor * x.w : 0;
		}
		const float inverse = attention_inverse(p, head, best, total);
		cu_store(to + d, make_uint2(cu_pack_bf16(out.x * inverse, out.y * inverse),
					    cu_pack_bf16(out.z * inverse, out.w * inverse)));
	}
}

/* The rows of a tile whose pieces are all done. */
template <typename S> CU_INLINE void attention_join_tile(const struct attention *p, const struct attention_piece *w)
{
	const size_t first = (size_t)(w->slot - w->piece) * S::ROWS;
	for (u32 r = threadIdx.x / CU_WARP; r < S::ROWS && w->tile + r < w->rows; r += S::THREADS / CU_WARP) {
		const u32 row = w->tile + r;
		const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
		attention_join_row(p, p->plan.totals[S::KIND] + first * 2, p->plan.sums[S::KIND] + first * S::D, S::ROWS,
				   S::D, head, w->pieces, r, p->out + (token * p->kv_heads * p->group + head) * S::D);
	}
}

/* The pieces of work that are this block's: `work` computes one and writes what it found. Of decode, whose shares the plan has
 * made, the block that comes last of a tile's joins them. attention_bytes.cuh has a loop of its own, which costs its kernels
 * fewer registers. */
template <typename S, typename WORK> CU_INLINE void attention_each_piece(const struct attention *p, WORK work)
{
	uint2 range = make_uint2(blockIdx.x, 0);
	if constexpr (S::KIND == ATTENTION_SMALL)
		range = cu_load<uint2>(p->plan.ranges + blockIdx.x);
	else
		range.y = p->plan.head->work_count;
	for (u32 i = range.x; i < range.y; i += S::KIND == ATTENTION_SMALL ? 1 : gridDim.x) {
		const struct attention_piece w = attention_piece_of<S>(p, cu_load<uint4>(p->plan.work[S::KIND] + i));
		cu_sync(); /* the piece before has left shared memory */
		work(&w);
		if constexpr (S::KIND == ATTENTION_SMALL)
			if (w.slot != ATTENTION_WHOLE && cu_block_is_last(p->plan.done + w.slot - w.piece, w.pieces))
				attention_join_tile<S>(p, &w);
	}
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::D > 128 || S::KIND == ATTENTION_LARGE ? 1 : 2)
	attention_kernel(const struct attention p)
{
	SHARED_DYNAMIC(u8, shared);
	cu_grid_wait();
	const u16 *q = (const u16 *)(shared + S::Q_AT) + threadIdx.x / CU_WARP % S::MW * 16 * S::PITCH;
	attention_each_piece<S>(&p, [&](const struct attention_piece *w) {
		struct attention_state<S> s;
		attention_walk<S>(&p, w, shared, q, &s);
		if constexpr (S::NW > 1)
			attention_join<S>(shared, &s);
		if (threadIdx.x / CU_WARP < S::MW)
			attention_write<S>(&p, w, &s);
	});
}

/* ---------------------------------------------------------------- host */

/* attention_prefill.cu: tiles of many rows over a cache of bf16. `serves`: the device has what it takes, and nothing of
 * `p` is beyond it. */
bool attention_prefill_serves(const struct attention *p, u32 head_dim);
enum err attention_prefill_run(const struct attention *p, u32 head_dim, cudaStream_t stream);

enum err attention_run_bf16(const struct attention *p, u32 head_dim, cudaStream_t stream);
enum err attention_run_i8(const struct attention *p, u32 head_dim, cudaStream_t stream);
enum err attention_run_f8(const struct attention *p, u32 head_dim, cudaStream_t stream);
/* attention_wide.cu: heads of more than 256 values, over a cache of bf16. */
enum err attention_run_wide(const struct attention *p, u32 head_dim, cudaStream_t stream);

#endif
