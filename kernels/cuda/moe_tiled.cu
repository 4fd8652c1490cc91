/* The products of a mixture's experts that have more tokens than the kernel of few tokens takes at once: tiles of
 * rows of a weight times tokens of its expert, both in shared memory.
 *
 * Which tiles there are the device alone knows. So a launch has as many blocks as fill the device, or fewer where
 * there cannot be that many tiles; each adds up how many blocks of tokens the experts have and takes every
 * gridDim.x-th tile. Steps of 64 columns (4 bits: 128) come through a ring of asynchronous copies, which goes on into
 * the next tile while the last steps of this one are computed.
 *
 * k is permuted within slabs of 32 columns as in matmul_skinny.cuh: of the weight as of x a lane reads 16 neighbouring
 * bytes for two steps of the matrix unit. Rows of 64 bytes behind each other, a slab of x or a unit of the weight
 * each, are therefore read without bank conflicts, and the copies need no rearrangement. Tokens are the matrix unit's
 * A, so that a lane's results are neighbours in the output.
 *
 * Each output is one sum over k in rising order, whatever the tile. */
#include "kernels/cuda/matmul_widen.cuh"
#include "kernels/cuda/moe_tiles.cuh"

enum {
	TILED_SIXTEENS = 4, /* of tokens of a warp */
	TILED_ROW_BYTES = SKINNY_UNIT_BYTES, /* of a unit of the weight, and of a slab of x */
};

template <u32 ROW_WARPS_, u32 TOKEN_WARPS_, u32 EIGHTS_, u32 BLOCKS_, enum kern_dtype W_>
struct tiled_shape {
	static constexpr enum kern_dtype W = W_;
	static constexpr u32 ROW_WARPS = ROW_WARPS_, TOKEN_WARPS = TOKEN_WARPS_;
	static constexpr u32 EIGHTS = EIGHTS_; /* of rows of a warp */
	static constexpr u32 BLOCKS = BLOCKS_; /* of a multiprocessor */
	static constexpr u32 ROWS = ROW_WARPS * EIGHTS * 8, TOKENS = TOKEN_WARPS * TILED_SIXTEENS * 16;
	static constexpr u32 THREADS = ROW_WARPS * TOKEN_WARPS * CU_WARP;
	static constexpr u32 UNIT_SLABS = skinny_format<W>::SLABS;
	static constexpr u32 SLABS = UNIT_SLABS > 2 ? UNIT_SLABS : 2, UNITS = SLABS / UNIT_SLABS; /* of a step */
	/* Of a row and step: a word each, a float or scale and zero. */
	static constexpr bool SCALED = skinny_format<W>::SCALED;
	static constexpr u32 SCALES = W == KERN_I4_128 ? SLABS : 1;
	static constexpr u32 STAGES = W == KERN_I8 || W == KERN_F8E4M3 ? 4 : 3;
	static constexpr u32 W_BYTES = UNITS * ROWS * TILED_ROW_BYTES, X_BYTES = SLABS * TOKENS * TILED_ROW_BYTES;
	static constexpr u32 STAGE_BYTES = W_BYTES + X_BYTES + (SCALED ? SCALES * ROWS * sizeof(u32) : 0);
	static constexpr u32 SHARED_BYTES = STAGES * STAGE_BYTES;
	static constexpr u32 LINE = THREADS / 4; /* rows that all threads copy at once */
	static constexpr u32 X_LINES = TOKENS / LINE, W_LINES = ROWS / LINE;
	static_assert(ROWS == THREADS, "a thread has the scales of a row");
	static_assert(STAGES >= 3, "scales are stored a step after they were asked for, and read a step later");
};

/* What a thread copies next, and what it asked for last. */
template <typename S> struct tiled_stream {
	u32 tile, step;
	struct tiled_place place;
	u32 sources[S::X_LINES]; /* rows of x */
	u32 scales[S::SCALES];
};

/* ---------------------------------------------------------------- copies */

template <typename S>
CU_INLINE void tiled_open(const struct tiled *a, const u32 *before, struct tiled_stream<S> *s)
{
	s->step = 0;
	if (s->tile >= before[SKINNY_EXPERTS_MAX] * a->row_blocks)
		return;
	s->place = tiled_find<S>(a, before, s->tile);
#pragma unroll
	for (u32 i = 0; i < S::X_LINES; i++) {
		const u32 token = i * S::LINE + threadIdx.x / 4, at = s->place.at + token;
		s->sources[i] = token < s->place.tokens && a->p.source ? a->p.source[at] : at;
	}
}

/* A scale as it is stored, with 4 bits beside its zero. */
template <typename S>
CU_INLINE u32 tiled_scale(const struct tiled *a, const u8 *w, u32 row, u32 k)
{
	const size_t at = (size_t)(k >> a->p.group_shift) * a->p.scale_rows + row;
	if (row >= a->p.n || k >= a->p.k)
		return 0;
	if constexpr (S::W == KERN_I4_128)
		return ((const u16 *)(w + a->x.scales_at))[at] |
		       (u32)((const u16 *)(w + a->x.zeros_at))[at] << 16;
	return ((const u32 *)(w + a->x.scales_at))[at];
}

/* Asks for the next step of the stream, and is done with it then. */
template <typename S>
CU_INLINE void tiled_ask(const struct tiled *a, const u32 *before, struct tiled_stream<S> *s, char *stage)
{
	const struct skinny *p = &a->p;
	const u32 lane = threadIdx.x % 4, line = threadIdx.x / 4;
	if (s->tile >= before[SKINNY_EXPERTS_MAX] * a->row_blocks) {
		cu_cp_commit(); /* so that the waits count on */
		return;
	}
	const u8 *w = a->x.w + s->place.expert * a->x.between;
	char *to = stage + threadIdx.x * 16;
#pragma unroll
	for (u32 i = 0; i < S::UNITS * S::W_LINES; i++) {
		const u32 row = s->place.row + i % S::W_LINES * S::LINE + line,
			  unit = s->step * S::UNITS + i / S::W_LINES;
		const bool valid = row < p->n && unit < p->units;
		const size_t at = ((size_t)row * p->units + unit) * SKINNY_UNIT_BYTES + lane * 16;
		cu_cp_async16(to + i * S::THREADS * 16, w + (valid ? at : 0), valid);
	}
	to += S::W_BYTES;
#pragma unroll
	for (u32 i = 0; i < S::SLABS * S::X_LINES; i++) {
		const u32 token = i % S::X_LINES * S::LINE + line,
			  k = (s->step * S::SLABS + i / S::X_LINES) * SKINNY_SLAB + lane * 8;
		const bool valid = token < s->place.tokens && k < p->k;
		const size_t at = (size_t)s->sources[i % S::X_LINES] * p->x_stride + k;
		cu_cp_async16(to + i * S::THREADS * 16, (const u16 *)p->x + (valid ? at : 0), valid);
	}
	cu_cp_commit();
#pragma unroll
	for (u32 i = 0; i < S::SCALES && S::SCALED; i++)
		s->scales[i] = tiled_scale<S>(a, w, s->place.row + threadIdx.x, (s->step * S::SLABS + i) * SKINNY_SLAB);
	if (++s->step == a->steps) {
		s->tile += gridDim.x;
		tiled_open<S>(a, before, s);
	}
}

/* The scales that were asked for with the step in `stage`, which have come by now. */
template <typename S> CU_INLINE void tiled_put_scales(const struct tiled_stream<S> *s, char *stage)
{
	u32 *to = (u32 *)(stage + S::W_BYTES + S::X_BYTES);
#pragma unroll
	for (u32 i = 0; i < S::SCALES && S::SCALED; i++)
		to[i * S::ROWS + threadIdx.x] = s->scales[i];
}

/* ---------------------------------------------------------------- the product */

/* Columns 8t .. 8t + 7 of a slab of a row, as bf16. */
template <typename S> CU_INLINE uint4 tiled_weight(const char *stage, u32 row, u32 slab)
{
	const u32 at = (slab / S::UNIT_SLABS * S::ROWS + row) * TILED_ROW_BYTES + threadIdx.x % 4 * 16;
	const uint4 raw = cu_load<uint4>(stage + at);
	if constexpr (S::W == KERN_BF16)
		return raw;
	const u32 word = ((const u32 *)(stage + S::W_BYTES + S::X_BYTES))[slab % S::SCALES * S::ROWS + row];
	float2 scale = make_float2(cu_float(word), 0);
	float x[8];
	if constexpr (S::W == KERN_I4_128)
		scale = make_float2(cu_f16_to_f32((u16)word), cu_f16_to_f32((u16)(word >> 16)) + 128);
	widen_columns<S::W>(raw, slab % S::UNIT_SLABS, scale, x);
	return pack8(x);
}

/* One step of a warp's part of the tile. */
template <typename S> CU_INLINE void tiled_step(const char *stage, float c[TILED_SIXTEENS][S::EIGHTS][4])
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	const u32 row = warp % S::ROW_WARPS * S::EIGHTS * 8 + lane / 4,
		  token = warp / S::ROW_WARPS * TILED_SIXTEENS * 16 + lane / 4;
	const char *x = stage + S::W_BYTES + lane % 4 * 16;
#pragma unroll
	for (u32 slab = 0; slab < S::SLABS; slab++) {
		u32 a[TILED_SIXTEENS][2][4];
#pragma unroll
		for (u32 i = 0; i < TILED_SIXTEENS * 2; i++) {
			const uint4 v = cu_load<uint4>(x + (slab * S::TOKENS + token + i * 8) * TILED_ROW_BYTES);
			u32 *to = a[i / 2][i % 2];
			to[0] = v.x;
			to[1] = v.y;
			to[2] = v.z;
			to[3] = v.w;
		}
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
			const uint4 w = tiled_weight<S>(stage, row + n * 8, slab);
#pragma unroll
			for (u32 m = 0; m < TILED_SIXTEENS; m++)
				skinny_step(c[m][n], a[m][0], a[m][1], w);
		}
	}
}

/* Neighbours `column` and `column` + 1 of an assignment. `bias`: of its expert, or NULL. */
CU_INLINE void tiled_store(const struct skinny *p, const float *bias, u32 assignment, u32 column, float x, float y)
{
	if (bias) {
		x += column < p->n ? bias[column] : 0;
		y += column + 1 < p->n ? bias[column + 1] : 0;
	}
	u16 *to = (u16 *)p->out + (size_t)assignment * p->out_stride + column;
	if (p->out_stride % 2 == 0) {
		if (column < p->n)
			cu_store(to, cu_pack_bf16(x, y));
		return;
	}
	if (column < p->n)
		to[0] = cu_f32_to_bf16(x);
	if (column + 1 < p->n)
		to[1] = cu_f32_to_bf16(y);
}

template <typename S>
CU_INLINE void tiled_write(const struct skinny *p, const struct tiled_place *place,
			   const float c[TILED_SIXTEENS][S::EIGHTS][4])
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	const u32 row = place->row + warp % S::ROW_WARPS * S::EIGHTS * 8 + lane % 4 * 2,
		  first = warp / S::ROW_WARPS * TILED_SIXTEENS * 16 + lane / 4;
	const float *bias = p->bias ? p->bias + (size_t)place->expert * p->n : NULL;
#pragma unroll
	for (u32 m = 0; m < TILED_SIXTEENS; m++) {
		const u32 token = first + m * 16;
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
			if (token < place->tokens)
				tiled_store(p, bias, place->at + token, row + n * 8, c[m][n][0], c[m][n][1]);
			if (token + 8 < place->tokens)
				tiled_store(p, bias, place->at + token + 8, row + n * 8, c[m][n][2], c[m][n][3]);
		}
	}
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) moe_tiled_kernel(const struct tiled a)
{
	SHARED_DYNAMIC(char, shared);
	SHARED(u32, before, SKINNY_EXPERTS_MAX + 1);
	struct tiled_stream<S> s = {};
	u32 slot = 0; /* of the ring: the step to be computed */
	tiled_count(&a, S::TOKENS, before);
	const u32 tiles = before[SKINNY_EXPERTS_MAX] * a.row_blocks;
	if (blockIdx.x >= tiles) /* the whole block */
		return;
	s.tile = blockIdx.x;
	tiled_open<S>(&a, before, &s);
#pragma unroll
	for (u32 i = 0; i + 1 < S::STAGES; i++) {
		if (i > 0)
			tiled_put_scales<S>(&s, shared + (i - 1) * S::STAGE_BYTES);
		tiled_ask<S>(&a, before, &s, shared + i * S::STAGE_BYTES);
	}
	for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		float c[TILED_SIXTEENS][S::EIGHTS][4] = {};
		for (u32 step = 0; step < a.steps; step++) {
			const u32 newest = (slot + S::STAGES - 2) % S::STAGES, next = (slot + S::STAGES - 1) % S::STAGES;
			cu_cp_wait<S::STAGES - 2>();
			cu_sync(); /* everybody's part of this step has come, and the one before is used up */
			tiled_put_scales<S>(&s, shared + newest * S::STAGE_BYTES);
			tiled_ask<S>(&a, before, &s, shared + next * S::STAGE_BYTES);
			tiled_step<S>(shared + slot * S::STAGE_BYTES, c);
			slot = (slot + 1) % S::STAGES;
		}
		const struct tiled_place place = tiled_find<S>(&a, before, tile);
		tiled_write<S>(&a.p, &place, c);
	}
}

/* ---------------------------------------------------------------- host */

template <typename S>
static enum err tiled_launch(struct tiled *a, const struct skinny_work *work, cudaStream_t stream)
{
	a->row_blocks = cuda_ceil(a->p.n, S::ROWS);
	a->steps = cuda_ceil(a->p.k, S::SLABS * SKINNY_SLAB);
	/* An expert's last block of tokens is not full. */
	const u64 blocks = work->assignments / S::TOKENS + least(work->experts, work->assignments),
		  tiles = blocks * a->row_blocks, filled = (u64)cuda_processors() * S::BLOCKS;
	const cudaError_t e = CU_SHARED_LIMIT(moe_tiled_kernel<S>, S::SHARED_BYTES);
	if (e != cudaSuccess)
		return cuda_refused(e);
	return cuda_launched(LAUNCH(moe_tiled_kernel<S>, (u32)(tiles < filled ? tiles : filled), S::THREADS,
				    S::SHARED_BYTES, stream, *a));
}

enum { TILED_LARGE = 48 };

/* With many tokens an expert tiles have 256 rows and 128 tokens and not 128 and 64. */
template <enum kern_dtype W>
static enum err tiled_run(struct tiled *a, const struct skinny_work *work, cudaStream_t stream)
{
	using large = tiled_shape<4, 2, 8, 1, W>;
	using small = tiled_shape<4, 1, 4, W == KERN_I4_128 ? 2 : 3, W>;
	const u32 counts = (SKINNY_EXPERTS_MAX + 1) * sizeof(u32);
	if (work->assignments / work->experts >= TILED_LARGE && large::SHARED_BYTES + counts <= cuda_shared_most())
		return tiled_launch<large>(a, work, stream);
	return tiled_launch<small>(a, work, stream);
}

enum err moe_tiled(enum kern_dtype type, const struct skinny *p, const struct skinny_experts *x,
		   const struct skinny_work *work, cudaStream_t stream)
{
	struct tiled a = {};
	a.p = *p;
	a.x = *x;
	a.experts = work->experts;
	switch (type) {
	case KERN_BF16:
		return tiled_run<KERN_BF16>(&a, work, stream);
	case KERN_I8:
		return tiled_run<KERN_I8>(&a, work, stream);
	case KERN_F8E4M3:
		return tiled_run<KERN_F8E4M3>(&a, work, stream);
	default:
		return tiled_run<KERN_I4_128>(&a, work, stream);
	}
}
