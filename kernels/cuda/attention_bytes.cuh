/* Decode over a cache of 8 bits: 16 rows, as attention.cuh has them, with the keys of a piece dealt out to NW warps in
 * strips of 16.
 *
 * A warp fetches its own strips through STAGES buffers of its own and waits for nobody before the piece ends. Bytes
 * become f16 in registers between shared memory and the matrix unit, exactly: no e4m3 and no int8 needs more than 11
 * bits. So Q and the probabilities are f16, too, and to fit its range come multiplied by powers of two: Q's by one a
 * row, the probabilities' (which have the scales of their values in them) by one a warp that follows the largest of
 * these scales.
 *
 * Matrix instructions sum over dimensions, and over keys, in any order, and give columns in any, as long as both
 * operands agree. So lanes take neighbouring bytes: with g = lane / 4 and t = lane % 4 as in the layouts of mma.m16n8k16
 *
 *	scores	column g of tile j is key 4 (g / 2) + g % 2 + 2 j of the strip, so lane t holds the scores of keys 4 t .. 4 t + 3;
 *		dimensions 4 K_BYTES i + K_BYTES t + 4 s .. + 3 are k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of step i K_BYTES / 4 + s
 *	values	k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9 are keys 4 t .. 4 t + 3;
 *		column n of tile i V_BYTES + b is dimension 8 V_BYTES i + V_BYTES n + b */
#ifndef TERCET_KERNELS_CUDA_ATTENTION_BYTES_CUH
#define TERCET_KERNELS_CUDA_ATTENTION_BYTES_CUH

#include "kernels/cuda/attention.cuh"

enum { ATTENTION_STRIP = 16 /* keys */ };

template <u32 D_, u32 NW_, u32 STAGES_, enum kern_dtype KV_>
struct attention_bytes {
	static_assert(KV_ != KERN_BF16 && D_ % 32 == 0, "lanes take 4 bytes at a time");
	static constexpr u32 D = D_, NW = NW_, STAGES = STAGES_;
	static constexpr enum kern_dtype KV = KV_;
	static constexpr u32 ROWS = 16, THREADS = NW * CU_WARP, KIND = ATTENTION_SMALL;
	static constexpr u32 K_BYTES = D % 64 == 0 ? 16 : 8, K_LOADS = D / 4 / K_BYTES;
	static constexpr u32 V_BYTES = D % 128 == 0 ? 16 : D % 64 == 0 ? 8 : 4, V_LOADS = D / 8 / V_BYTES;
	static constexpr size_t TOKEN_BYTES = D + sizeof(float);
	static constexpr u32 PITCH = D == 96 ? 128 : D; /* bytes of a key in a stage */
	static constexpr u32 SIDE = ATTENTION_STRIP * PITCH, STAGE = 2 * SIDE + 2 * ATTENTION_STRIP * sizeof(float);
	static constexpr u32 SHARED_WORK = NW * STAGES * STAGE;
	/* The warps' results when they are joined, in the same place. */
	static constexpr u32 JOIN_PITCH = D + 4, SHARED_JOIN = NW * ROWS * (JOIN_PITCH + 2) * 4;
	static constexpr u32 SHARED_BYTES = SHARED_WORK > SHARED_JOIN ? SHARED_WORK : SHARED_JOIN;
};

template <typename S> struct attention_bytes_state {
	float o[S::D / 8][4], m[2], l[2];
	float scale[2];		/* of a row's scores, before those of the keys */
	float up;		/* what o is multiplied by, a power of two */
	u32 limit[2], low[2];	/* keys that this lane's two rows see: [low, limit) */
	u32 all_limit, all_low; /* and those that all rows see */
	u32 q[S::D / 16][4];
};

/* ---------------------------------------------------------------- loads */

/* Where in a side of a stage a byte of a key is. Units of 16 bytes change places so that neither the lanes that read
 * keys nor those that read values meet in a bank. */
template <typename S> CU_INLINE u32 attention_bytes_at(u32 key, u32 at)
{
	return (key * S::PITCH + at) ^ ((key >> 1 & 6) ^ (S::D > 64 ? (key & 1) << 2 : 0)) << 4;
}

CU_INLINE bool attention_bytes_valid(const struct attention_piece *w, u32 key)
{
	return key >= w->first && key < w->end;
}

/* The block in which this lane's key of the strip is: lanes 0 .. 15, and again 16 .. 31. */
CU_INLINE u32 attention_bytes_block(const struct attention *p, const struct attention_piece *w, u32 key)
{
	const u32 mine = key + threadIdx.x % ATTENTION_STRIP;
	return attention_bytes_valid(w, mine)
		       ? p->block_tables[(size_t)w->row * p->block_stride + (mine >> p->block_shift)]
		       : 0;
}

/* Starts the copies of the strip at `key`, whose blocks the lanes hold. */
template <typename S>
CU_INLINE void attention_bytes_load(const struct attention *p, const struct attention_piece *w, u8 *stage, u32 key,
				    u32 block)
{
	constexpr u32 VECTORS = S::D / 16; /* of a key */
	constexpr u32 COPIES = ATTENTION_STRIP * VECTORS / CU_WARP;
	const u32 lane = threadIdx.x % CU_WARP, mask = (1u << p->block_shift) - 1, mine = key + lane % ATTENTION_STRIP;
	const u32 part = (u32)S::TOKEN_BYTES << p->block_shift; /* a KV head's of a block */
	const u64 base = (u64)(block * p->kv_heads + w->head) * part;
	const bool valid = attention_bytes_valid(w, mine);
	if (mask >= ATTENTION_STRIP - 1 && key >= w->first && key + ATTENTION_STRIP <= w->end) {
		/* all of it in one block, where its keys follow each other */
		const u64 from = base + (key & mask) * S::D + lane * 16;
#pragma unroll
		for (u32 n = 0; n < COPIES; n++) {
			const u32 i = n * CU_WARP + lane, to = attention_bytes_at<S>(i / VECTORS, i % VECTORS * 16);
			cu_cp_async16(stage + to, p->k + from + n * CU_WARP * 16);
			cu_cp_async16(stage + S::SIDE + to, p->v + from + n * CU_WARP * 16);
		}
	} else {
#pragma unroll 1
		for (u32 n = 0; n < COPIES; n++) {
			const u32 i = n * CU_WARP + lane, r = i / VECTORS, to = attention_bytes_at<S>(r, i % VECTORS * 16);
			const u32 other = cu_shfl(block, r);
			const bool is = attention_bytes_valid(w, key + r);
			const u64 from = is ? (u64)(other * p->kv_heads + w->head) * part +
						      ((key + r) & mask) * S::D + i % VECTORS * 16
					    : 0;
			cu_cp_async16(stage + to, p->k + from, is);
			cu_cp_async16(stage + S::SIDE + to, p->v + from, is);
		}
	}
	const u64 scale = base + (S::D << p->block_shift) + (mine & mask) * sizeof(float);
	cu_cp_async4(stage + 2 * S::SIDE + lane * sizeof(float),
		     (lane < ATTENTION_STRIP ? p->k : p->v) + (valid ? scale : 0), valid);
}

template <u32 BYTES> CU_INLINE void attention_bytes_words(u32 words[BYTES / 4], const u8 *from)
{
	if constexpr (BYTES == 16) {
		const uint4 v = cu_load<uint4>(from);
		words[0] = v.x;
		words[1] = v.y;
		words[2] = v.z;
		words[3] = v.w;
	} else if constexpr (BYTES == 8) {
		const uint2 v = cu_load<uint2>(from);
		words[0] = v.x;
		words[1] = v.y;
	} else {
		words[0] = cu_load<u32>(from);
	}
}

/* Four values as two pairs of f16. An int8 becomes a number from 0 to 255 and that, as the last bits of 1024, a half. */
template <typename S> CU_INLINE void attention_bytes_convert(u32 word, u32 pairs[2])
{
	if constexpr (S::KV == KERN_I8) {
		const u32 shifted = word ^ 0x80808080u, minus_1152 = 0xe480e480u;
		pairs[0] = cu_add_f16x2(cu_byte_perm(shifted, 0x64646464u, 0x4140), minus_1152);
		pairs[1] = cu_add_f16x2(cu_byte_perm(shifted, 0x64646464u, 0x4342), minus_1152);
	} else {
		pairs[0] = cu_e4m3x2_to_f16x2((u16)word);
		pairs[1] = cu_e4m3x2_to_f16x2((u16)(word >> 16));
	}
}

/* ---------------------------------------------------------------- powers of two */

/* What brings numbers up to `most` into f16's range, and keeps most of it below: to less than 2^15. */
CU_INLINE float attention_bytes_up(float most)
{
	const u32 exponent = cu_bits(most) >> 23 & 0xff;
	return cu_float((127 + 14 + 127 - (exponent > 15 ? exponent : 15)) << 23);
}

/* 1 / x of such a power of two. */
CU_INLINE float attention_bytes_down(float x)
{
	return cu_float((254u << 23) - cu_bits(x));
}

/* ---------------------------------------------------------------- a strip */

/* c = Q K^T for the strip, times the power of two of Q's rows. */
template <typename S>
CU_INLINE void attention_bytes_scores(const struct attention_bytes_state<S> *s, const u8 *k, float c[2][4])
{
	const u32 lane = threadIdx.x % CU_WARP, g = lane / 4, t = lane % 4, key = g / 2 * 4 + g % 2;
#pragma unroll
	for (u32 j = 0; j < 2; j++)
		c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
	for (u32 i = 0; i < S::K_LOADS; i++) {
		u32 words[2][S::K_BYTES / 4];
#pragma unroll
		for (u32 j = 0; j < 2; j++)
			attention_bytes_words<S::K_BYTES>(
				words[j], k + attention_bytes_at<S>(key + 2 * j, (4 * i + t) * S::K_BYTES));
#pragma unroll
		for (u32 e = 0; e < S::K_BYTES / 4; e++) {
			u32 b[4];
			attention_bytes_convert<S>(words[0][e], b);
			attention_bytes_convert<S>(words[1][e], b + 2);
			cu_mma_f16_n16(c, s->q[i * S::K_BYTES / 4 + e], b);
		}
	}
}

/* Brings what was summed before to a new power of two, and a row's to a new maximum. */
template <typename S>
CU_INLINE void attention_bytes_rescale(struct attention_bytes_state<S> *s, const float best[2], float up)
{
	const float change = up * attention_bytes_down(s->up);
	if (!cu_any(change != 1 || best[0] != s->m[0] || best[1] != s->m[1]))
		return;
	s->up = up;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const float shrink = cu_exp2(s->m[i] - best[i]), both = shrink * change;
		s->m[i] = best[i];
		s->l[i] *= shrink;
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++) {
			s->o[d][2 * i] *= both;
			s->o[d][2 * i + 1] *= both;
		}
	}
}

CU_INLINE void attention_bytes_cap(float cap, float c[2][4])
{
#pragma unroll
	for (u32 e = 0; e < 8; e++)
		c[e / 4][e % 4] = cap * ATTENTION_LOG2_E * tanhf(c[e / 4][e % 4] / cap);
}

/* Scores of keys that a row does not see are none. `key`: the first of this lane's four. */
template <typename S>
CU_INLINE void attention_bytes_mask(const struct attention_bytes_state<S> *s, u32 key, float c[2][4])
{
#pragma unroll
	for (u32 e = 0; e < 8; e++) {
		const u32 at = key + e / 4 * 2 + e % 2, i = e % 4 / 2;
		if (at < s->low[i] || at >= s->limit[i])
			c[e / 4][e % 4] = ATTENTION_NONE;
	}
}

/* Scores into probabilities relative to the running maximum, in place. `key`: the strip's first; `of_key`: the scales of
 * this lane's four keys; `up`: the power of two from here on. */
template <typename S>
CU_INLINE void attention_bytes_softmax(const struct attention *p, struct attention_bytes_state<S> *s, u32 key,
				       const float of_key[4], float up, float c[2][4])
{
	float best[2] = {s->m[0], s->m[1]};
#pragma unroll
	for (u32 e = 0; e < 8; e++)
		c[e / 4][e % 4] *= of_key[e / 4 * 2 + e % 2] * s->scale[e % 4 / 2];
	if (p->soft_cap > 0)
		attention_bytes_cap(p->soft_cap, c);
	if (key < s->all_low || key + ATTENTION_STRIP > s->all_limit)
		attention_bytes_mask<S>(s, key + threadIdx.x % 4 * 4, c);
#pragma unroll
	for (u32 e = 0; e < 8; e++)
		best[e % 4 / 2] = fmaxf(best[e % 4 / 2], c[e / 4][e % 4]);
#pragma unroll
	for (u32 i = 0; i < 2; i++) { /* the four lanes of a row */
		best[i] = fmaxf(best[i], cu_shfl_xor(best[i], 1));
		best[i] = fmaxf(best[i], cu_shfl_xor(best[i], 2));
	}
	attention_bytes_rescale<S>(s, best, up);
	/* what is no score stays far below a row's maximum even where the row has none yet */
	const float base[2] = {fmaxf(best[0], ATTENTION_NONE / 2), fmaxf(best[1], ATTENTION_NONE / 2)};
#pragma unroll
	for (u32 e = 0; e < 8; e++) {
		float *x = &c[e / 4][e % 4];
		*x = cu_exp2(*x - base[e % 4 / 2]);
		s->l[e % 4 / 2] += *x;
	}
}

/* o += P V, the probabilities times the scales of values, times `up`. */
template <typename S>
CU_INLINE void attention_bytes_values(struct attention_bytes_state<S> *s, const u8 *v, const float of_value[4],
				      const float c[2][4])
{
	const u32 lane = threadIdx.x % CU_WARP, g = lane / 4, t = lane % 4;
	u32 a[4];
#pragma unroll
	for (u32 e = 0; e < 4; e++) {
		const u32 j = e / 2, i = e % 2 * 2;
		a[e] = cu_pack_f16(c[j][i] * (of_value[2 * j] * s->up), c[j][i + 1] * (of_value[2 * j + 1] * s->up));
	}
#pragma unroll
	for (u32 i = 0; i < S::V_LOADS; i++) {
		u32 words[4][S::V_BYTES / 4];
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			attention_bytes_words<S::V_BYTES>(
				words[e], v + attention_bytes_at<S>(4 * t + e, (8 * i + g) * S::V_BYTES));
#pragma unroll
		for (u32 n = 0; n < S::V_BYTES / 4; n++)
#pragma unroll
			for (u32 half = 0; half < 2; half++) { /* two bytes of each word, two columns of tiles */
				const u32 select = half ? 0x7362 : 0x5140;
				u32 low[2], high[2];
				attention_bytes_convert<S>(cu_byte_perm(words[0][n], words[1][n], select), low);
				attention_bytes_convert<S>(cu_byte_perm(words[2][n], words[3][n], select), high);
				const u32 b[4] = {low[0], high[0], low[1], high[1]};
				cu_mma_f16_n16(s->o + i * S::V_BYTES + n * 4 + half * 2, a, b);
			}
	}
}

template <typename S>
CU_INLINE void attention_bytes_strip(const struct attention *p, struct attention_bytes_state<S> *s, u32 key,
				     const u8 *stage)
{
	const u8 *scales = stage + 2 * S::SIDE + threadIdx.x % 4 * 4 * sizeof(float);
	const float4 k = cu_load<float4>(scales), v = cu_load<float4>(scales + ATTENTION_STRIP * sizeof(float));
	const float of_key[4] = {k.x, k.y, k.z, k.w}, of_value[4] = {v.x, v.y, v.z, v.w};
	float c[2][4], most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
	most = fmaxf(most, cu_shfl_xor(most, 1));
	most = fmaxf(most, cu_shfl_xor(most, 2));
	attention_bytes_scores<S>(s, stage, c);
	attention_bytes_softmax<S>(p, s, key, of_key, fminf(s->up, attention_bytes_up(most)), c);
	attention_bytes_values<S>(s, stage + S::SIDE, of_value, c);
}

/* ---------------------------------------------------------------- a piece */

/* This lane's part of a row of Q: what the row's largest value brings into f16's range, and by it. */
template <typename S>
CU_INLINE void attention_bytes_q(const struct attention *p, const struct attention_piece *w,
				 struct attention_bytes_state<S> *s, u32 i)
{
	constexpr u32 STEPS = S::K_BYTES / 4; /* of a load */
	const u32 row = w->tile + threadIdx.x % CU_WARP / 4 + 8 * i, t = threadIdx.x % 4;
	const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
	const u16 *q = p->q + (token * p->kv_heads * p->group + head) * S::D;
	uint2 words[S::D / 16];
	float most = 0;
#pragma unroll
	for (u32 n = 0; n < S::D / 16; n++) {
		words[n] = row < w->rows ? cu_load<uint2>(q + (4 * (n / STEPS) + t) * S::K_BYTES + n % STEPS * 4)
					 : make_uint2(0, 0);
		most = fmaxf(most, fmaxf(fmaxf(fabsf(cu_bf16_lo(words[n].x)), fabsf(cu_bf16_hi(words[n].x))),
					 fmaxf(fabsf(cu_bf16_lo(words[n].y)), fabsf(cu_bf16_hi(words[n].y)))));
	}
	most = fmaxf(most, cu_shfl_xor(most, 1));
	most = fmaxf(most, cu_shfl_xor(most, 2));
	const float up = attention_bytes_up(most);
	s->scale[i] = p->scale * attention_bytes_down(up) * (p->soft_cap > 0 ? 1 : ATTENTION_LOG2_E);
#pragma unroll
	for (u32 n = 0; n < S::D / 16; n++) {
		s->q[n][i] = cu_pack_f16(cu_bf16_lo(words[n].x) * up, cu_bf16_hi(words[n].x) * up);
		s->q[n][i + 2] = cu_pack_f16(cu_bf16_lo(words[n].y) * up, cu_bf16_hi(words[n].y) * up);
	}
}

template <typename S>
CU_INLINE void attention_bytes_begin(const struct attention *p, const struct attention_piece *w,
				     struct attention_bytes_state<S> *s)
{
	const u32 row = w->tile + threadIdx.x % CU_WARP / 4;
#pragma unroll
	for (u32 d = 0; d < S::D / 8; d++)
		s->o[d][0] = s->o[d][1] = s->o[d][2] = s->o[d][3] = 0;
	s->up = attention_bytes_up(0);
	s->all_low = attention_first_key(w->before + (least(w->tile + S::ROWS, w->rows) - 1) / p->group, p->window);
	s->all_limit = least(w->before + w->tile / p->group + 1, w->end);
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 at = w->before + (row + 8 * i) / p->group; /* the row's query */
		const bool inside = row + 8 * i < w->rows;
		s->m[i] = ATTENTION_NONE;
		s->l[i] = 0;
		s->low[i] = attention_first_key(at, p->window);
		s->limit[i] = inside ? least(at + 1, w->end) : 0;
		attention_bytes_q<S>(p, w, s, i);
	}
}

/* Walks the piece's strips that are this warp's. */
template <typename S>
CU_INLINE void attention_bytes_walk(const struct attention *p, const struct attention_piece *w, u8 *shared,
				    struct attention_bytes_state<S> *s)
{
	const u32 warp = threadIdx.x / CU_WARP, step = S::NW * ATTENTION_STRIP;
	const u32 begin = w->begin + warp * ATTENTION_STRIP;
	const u32 strips = w->end > begin ? (w->end - begin + step - 1) / step : 0;
	u32 block = attention_bytes_block(p, w, begin);
	u8 *stages = shared + warp * S::STAGES * S::STAGE;
	for (u32 i = 0; i < S::STAGES - 1; i++) {
		const u32 next = attention_bytes_block(p, w, begin + (i + 1) * step);
		if (i < strips)
			attention_bytes_load<S>(p, w, stages + i * S::STAGE, begin + i * step, block);
		cu_cp_commit();
		block = next;
	}
	attention_bytes_begin<S>(p, w, s);
	for (u32 n = 0; n < strips; n++) {
		const u32 ahead = n + S::STAGES - 1;
		const u32 next = attention_bytes_block(p, w, begin + (ahead + 1) * step);
		cu_cp_wait<S::STAGES - 2>();
		cu_syncwarp(); /* all lanes' part of this strip has come, and the strip before is used up */
		if (ahead < strips)
			attention_bytes_load<S>(p, w, stages + ahead % S::STAGES * S::STAGE, begin + ahead * step,
						block);
		cu_cp_commit(); /* empty at the end, so that counting groups stays right */
		block = next;
		attention_bytes_strip<S>(p, s, begin + n * step, stages + n % S::STAGES * S::STAGE);
	}
#pragma unroll
	for (u32 i = 0; i < 2; i++) { /* the four lanes of a row */
		s->l[i] += cu_shfl_xor(s->l[i], 1);
		s->l[i] += cu_shfl_xor(s->l[i], 2);
	}
}

/* ---------------------------------------------------------------- the piece's result */

/* What this warp found, into shared memory. */
template <typename S>
CU_INLINE void attention_bytes_leave(const struct attention_piece *w, float *sums, float *totals,
				     const struct attention_bytes_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, t = lane % 4;
	const float down = attention_bytes_down(s->up);
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 r = lane / 4 + 8 * i, at = warp * S::ROWS + r;
		if (w->tile + r >= w->rows)
			continue;
		if (t == 0)
			cu_store(totals + at * 2, make_float2(s->m[i], s->l[i]));
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d += 4)
#pragma unroll
			for (u32 e = 2 * i; e < 2 * i + 2; e++) {
				const u32 n = 2 * t + e % 2, column = d / S::V_BYTES * 8 * S::V_BYTES + n * S::V_BYTES +
								      d % S::V_BYTES;
				cu_store(sums + at * S::JOIN_PITCH + column,
					 make_float4(s->o[d][e] * down, s->o[d + 1][e] * down, s->o[d + 2][e] * down,
						     s->o[d + 3][e] * down));
			}
	}
}

/* Four columns of a row, joined from the warps' results: the output, or this piece's part of it. */
template <typename S>
CU_INLINE void attention_bytes_write(const struct attention *p, const struct attention_piece *w, const float *sums,
				     const float *totals, u32 r, u32 column)
{
	const u32 row = w->tile + r;
	float2 total[S::NW];
	float best = ATTENTION_NONE, l = 0;
	float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
	for (u32 k = 0; k < S::NW; k++) {
		total[k] = cu_load<float2>(totals + (k * S::ROWS + r) * 2);
		best = fmaxf(best, total[k].x);
	}
#pragma unroll
	for (u32 k = 0; k < S::NW; k++) {
		const float4 part = cu_load<float4>(sums + (k * S::ROWS + r) * S::JOIN_PITCH + column);
		const float factor = cu_exp2(total[k].x - best);
		l += factor * total[k].y;
		out.x += factor * part.x;
		out.y += factor * part.y;
		out.z += factor * part.z;
		out.w += factor * part.w;
	}
	if (w->slot == ATTENTION_WHOLE) {
		const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
		const float inverse = attention_inverse(p, head, best, l);
		cu_store(p->out + (token * p->kv_heads * p->group + head) * S::D + column,
			 make_uint2(cu_pack_bf16(out.x * inverse, out.y * inverse),
				    cu_pack_bf16(out.z * inverse, out.w * inverse)));
		return;
	}
	const size_t at = (size_t)w->slot * S::ROWS + r;
	if (column == 0)
		cu_store(p->plan.totals[S::KIND] + at * 2, make_float2(best, l));
	cu_store(p->plan.sums[S::KIND] + at * S::D + column, out);
}

template <typename S>
CU_INLINE void attention_bytes_join(const struct attention *p, const struct attention_piece *w, u8 *shared,
				    const struct attention_bytes_state<S> *s)
{
	float *sums = (float *)shared, *totals = sums + S::NW * S::ROWS * S::JOIN_PITCH;
	const u32 rows = least(S::ROWS, w->rows - w->tile);
	cu_sync(); /* nobody reads strips any more */
	attention_bytes_leave<S>(w, sums, totals, s);
	cu_sync(); /* all warps' results are there */
	for (u32 i = threadIdx.x; i < rows * (S::D / 4); i += S::THREADS)
		attention_bytes_write<S>(p, w, sums, totals, i / (S::D / 4), i % (S::D / 4) * 4);
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, 2) attention_bytes_kernel(const struct attention p)
{
	SHARED_DYNAMIC(u8, shared);
	cu_grid_wait();
	const uint2 range = cu_load<uint2>(p.plan.ranges + blockIdx.x);
	for (u32 i = range.x; i < range.y; i++) {
		const struct attention_piece w =
			attention_piece_of<S>(&p, cu_load<uint4>(p.plan.work[S::KIND] + i));
		struct attention_bytes_state<S> s;
		cu_sync(); /* the piece before has left shared memory */
		attention_bytes_walk<S>(&p, &w, shared, &s);
		attention_bytes_join<S>(&p, &w, shared, &s);
		if (w.slot != ATTENTION_WHOLE && cu_block_is_last(p.plan.done + w.slot - w.piece, w.pieces))
			attention_join_tile<S>(&p, &w);
	}
}

#endif
