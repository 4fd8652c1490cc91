/* The products of a mixture's experts with many tokens, for compute capability 9.0: the matrix unit of four warps.
 *
 * Tiles are those of moe_tiles.cuh, 128 tokens of an expert times 256 rows of its weight. The first four warps of a block
 * fetch steps of 64 columns, two times four compute 64 of the tokens each. A step comes through a ring of STAGES buffers, a
 * panel of x and one of the weight; a barrier in shared memory says of each that it is full, another one that it is empty,
 * so warps that fetch run ahead into the next tile while the results of this one are written.
 *
 * Tokens are the matrix unit's A. Within 32 rows those of the weight lie in the panel so that what a lane gets of a
 * token are 8 neighbours of the output: row 8i + 2t + e of the panel is row 8t + 2i + e of the weight.
 *
 * Each output is one sum over k in rising order, whatever the tile. */
#include "kernels/cuda/moe_tiles.cuh"

template <u32 STAGES_> struct wgmma_shape {
	static constexpr u32 STAGES = STAGES_, ROWS = 256, TOKENS = 128, GROUP = 128, THREADS = 3 * GROUP;
	static constexpr u32 STEP = 64; /* columns */
	static constexpr u32 X_BYTES = TOKENS * 128, W_BYTES = ROWS * 128, STAGE_BYTES = X_BYTES + W_BYTES;
	static constexpr u32 BARRIERS_AT = STAGES * STAGE_BYTES, BEFORE_AT = BARRIERS_AT + 2 * STAGES * 8,
			     SHARED_BYTES = BEFORE_AT + (SKINNY_EXPERTS_MAX + 1) * 4;
	static constexpr u32 LINE = GROUP / 8; /* rows of a panel that are copied at once, eight threads each */
	/* Registers of a thread that fetches and of one that computes: 64 Ki for all. */
	static constexpr u32 FETCH_REGISTERS = 96, COMPUTE_REGISTERS = 200;
};

/* A buffer is full when all threads that fetch have arrived, empty when all warps that compute have. */
struct wgmma_ring {
	u8 *buffers;
	u64 *full, *empty;
};

template <typename S> CU_INLINE struct wgmma_ring wgmma_ring_of(u8 *shared)
{
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT);
	return {shared, barriers, barriers + S::STAGES};
}

/* A warp's place in the ring. */
struct wgmma_at {
	u32 slot, parity;
};

template <typename S> CU_INLINE void wgmma_advance(struct wgmma_at *at)
{
	at->slot = at->slot + 1 == S::STAGES ? 0 : at->slot + 1;
	at->parity ^= at->slot == 0;
}

/* ---------------------------------------------------------------- warps that fetch */

/* What a thread copies of a tile: 16 bytes of each step of each LINE-th row. Bits say which rows there are, others become
 * zeros. */
template <typename S> struct wgmma_source {
	const u16 *x[S::TOKENS / S::LINE], *w;
	u32 tokens, rows;
};

template <typename S>
CU_INLINE void wgmma_open(const struct tiled *a, const struct tiled_place *place, struct wgmma_source<S> *s)
{
	const struct skinny *p = &a->p;
	const u32 line = threadIdx.x / 8, chunk = threadIdx.x % 8 * 8;
	const u32 row = place->row + line % 8 / 2 * 8 + line / 8 * 2 + line % 2;
	s->tokens = s->rows = 0;
#pragma unroll
	for (u32 i = 0; i < S::TOKENS / S::LINE; i++) {
		const u32 token = i * S::LINE + line, at = place->at + token;
		const bool valid = token < place->tokens;
		const u32 from = valid && p->source ? p->source[at] : at;
		s->x[i] = (const u16 *)p->x + (valid ? (size_t)from * p->x_stride : 0) + chunk;
		s->tokens |= (u32)valid << i;
	}
#pragma unroll
	for (u32 i = 0; i < S::ROWS / S::LINE; i++)
		s->rows |= (u32)(row + i / 2 * 32 + i % 2 * 4 < p->n) << i;
	s->w = (const u16 *)(const void *)(a->x.w + place->expert * a->x.between) + (size_t)row * p->k + chunk;
}

template <typename S>
CU_INLINE void wgmma_copy(const struct tiled *a, const struct wgmma_source<S> *s, u32 step, u8 *stage)
{
	const struct skinny *p = &a->p;
	const u32 line = threadIdx.x / 8, chunk = threadIdx.x % 8, k = step * S::STEP;
	const bool inside = k + chunk * 8 < p->k;
	u8 *to = stage + line * 128 + (chunk ^ line % 8) * 16;
#pragma unroll
	for (u32 i = 0; i < S::TOKENS / S::LINE; i++) {
		const bool valid = inside && (s->tokens >> i & 1) != 0;
		cu_cp_async16(to + i * S::LINE * 128, valid ? s->x[i] + k : (const u16 *)p->x, valid);
	}
	to += S::X_BYTES;
	const u16 *from = s->w + k;
#pragma unroll
	for (u32 i = 0; i < S::ROWS / S::LINE; i++) {
		const bool valid = inside && (s->rows >> i & 1) != 0;
		cu_cp_async16(to + i * S::LINE * 128, valid ? from : (const u16 *)p->x, valid);
		from += (size_t)p->k * (i % 2 == 0 ? 4 : 28);
	}
}

template <typename S> CU_INLINE void wgmma_fetch(const struct tiled *a, const u32 *before, u8 *shared)
{
	const struct wgmma_ring ring = wgmma_ring_of<S>(shared);
	const u32 tiles = before[SKINNY_EXPERTS_MAX] * a->row_blocks;
	struct wgmma_at at = {0, 1};
	for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		const struct tiled_place place = tiled_find<S>(a, before, tile);
		struct wgmma_source<S> source;
		wgmma_open<S>(a, &place, &source);
		for (u32 step = 0; step < a->steps; step++) {
			cu_phase_wait(ring.empty + at.slot, at.parity);
			wgmma_copy<S>(a, &source, step, ring.buffers + at.slot * S::STAGE_BYTES);
			cu_phase_arrive_copied(ring.full + at.slot);
			wgmma_advance<S>(&at);
		}
	}
	cu_cp_commit();
	cu_cp_wait<0>(); /* no copy outlives its thread */
}

/* ---------------------------------------------------------------- warps that compute */

/* This warp has read the buffer ahead of `slot`. */
template <typename S> CU_INLINE void wgmma_release(const struct wgmma_ring *ring, u32 slot)
{
	cu_syncwarp(); /* a lane that still waits for it would not see that it was full */
	if (threadIdx.x % CU_WARP == 0)
		cu_phase_arrive(ring->empty + (slot == 0 ? S::STAGES : slot) - 1);
}

/* Eight neighbours from `column` on of an assignment. `bias`: of its expert, or NULL. */
CU_INLINE void wgmma_store(const struct skinny *p, const float *bias, u32 assignment, u32 column, float x[8])
{
	u16 *to = (u16 *)p->out + (size_t)assignment * p->out_stride + column;
#pragma unroll
	for (u32 i = 0; i < 8; i++)
		x[i] += bias && column + i < p->n ? bias[column + i] : 0;
	if (p->n % 8 == 0) {
		if (column < p->n)
			store8(to, x);
		return;
	}
#pragma unroll
	for (u32 i = 0; i < 8; i++)
		if (column + i < p->n)
			to[i] = cu_f32_to_bf16(x[i]);
}

template <typename S>
CU_INLINE void wgmma_write(const struct skinny *p, const struct tiled_place *place, u32 first, const float (&c)[S::ROWS / 2])
{
	const u32 lane = threadIdx.x % CU_WARP, token = first + threadIdx.x % S::GROUP / CU_WARP * 16 + lane / 4;
	const float *bias = p->bias ? p->bias + (size_t)place->expert * p->n : NULL;
#pragma unroll
	for (u32 q = 0; q < S::ROWS / 32; q++)
#pragma unroll
		for (u32 h = 0; h < 2; h++) {
			float x[8];
#pragma unroll
			for (u32 i = 0; i < 8; i++)
				x[i] = c[(4 * q + i / 2) * 4 + 2 * h + i % 2];
			if (token + 8 * h < place->tokens)
				wgmma_store(p, bias, place->at + token + 8 * h, place->row + q * 32 + lane % 4 * 8, x);
		}
}

/* All steps of a tile. */
template <typename S>
CU_INLINE void wgmma_sum(const struct wgmma_ring *ring, u64 x, u64 w, u32 steps, struct wgmma_at *at, float (&c)[S::ROWS / 2])
{
	for (u32 step = 0; step < steps; step++) {
		const u32 buffer = at->slot * (S::STAGE_BYTES >> 4);
		cu_phase_wait(ring->full + at->slot, at->parity);
		cu_fence_wgmma();
		cu_wgmma_fence();
		cu_wgmma_rows<S::ROWS, 4>(c, x + buffer, w + buffer, step > 0);
		cu_wgmma_commit();
		cu_wgmma_wait<1>(); /* the step before is computed */
		if (step > 0)
			wgmma_release<S>(ring, at->slot);
		wgmma_advance<S>(at);
	}
	cu_wgmma_wait<0>(c);
	wgmma_release<S>(ring, at->slot);
}

/* Lets the steps of a tile pass. */
template <typename S> CU_INLINE void wgmma_skip(const struct wgmma_ring *ring, u32 steps, struct wgmma_at *at)
{
	for (u32 step = 0; step < steps; step++) {
		cu_phase_wait(ring->full + at->slot, at->parity);
		wgmma_advance<S>(at);
		wgmma_release<S>(ring, at->slot);
	}
}

/* Sixty-four tokens of each tile. */
template <typename S> CU_INLINE void wgmma_compute(const struct tiled *a, const u32 *before, u8 *shared)
{
	const struct wgmma_ring ring = wgmma_ring_of<S>(shared);
	const u32 first = (threadIdx.x / S::GROUP - 1) * 64, tiles = before[SKINNY_EXPERTS_MAX] * a->row_blocks;
	const u64 x = cu_wgmma_operand(shared + first * 128, S::X_BYTES), w = cu_wgmma_operand(shared + S::X_BYTES, S::W_BYTES);
	struct wgmma_at at = {0, 0};
	for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		const struct tiled_place place = tiled_find<S>(a, before, tile);
		if (first >= place.tokens) {
			wgmma_skip<S>(&ring, a->steps, &at);
			continue;
		}
		float c[S::ROWS / 2];
		wgmma_sum<S>(&ring, x, w, a->steps, &at, c);
		wgmma_write<S>(&a->p, &place, first, c);
	}
}

/* ---------------------------------------------------------------- the kernel */

template <typename S> static __global__ void CU_WGMMA_BOUNDS(S::THREADS) moe_wgmma_kernel(const struct tiled a)
{
#if CU_HAS_WGMMA
	SHARED_DYNAMIC_1024(u8, shared);
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT);
	u32 *before = (u32 *)(shared + S::BEFORE_AT);
	if (threadIdx.x < 2 * S::STAGES)
		cu_phase_init(barriers + threadIdx.x, threadIdx.x < S::STAGES ? S::GROUP : 2 * S::GROUP / CU_WARP);
	tiled_count(&a, S::TOKENS, before); /* the barriers are there, too */
	if (threadIdx.x < S::GROUP) {
		cu_registers_fewer<S::FETCH_REGISTERS>();
		wgmma_fetch<S>(&a, before, shared);
	} else {
		cu_registers_more<S::COMPUTE_REGISTERS>();
		wgmma_compute<S>(&a, before, shared);
	}
#endif
}

/* ---------------------------------------------------------------- host */

using wgmma_bf16 = wgmma_shape<4>;

bool moe_wgmma_serves(enum kern_dtype type)
{
	static const bool does = wgmma_bf16::SHARED_BYTES <= cuda_shared_most() &&
				 cu_takes_threads(moe_wgmma_kernel<wgmma_bf16>, wgmma_bf16::THREADS);
	return does && type == KERN_BF16;
}

template <typename S>
static enum err wgmma_launch(struct tiled *a, const struct skinny_work *work, cudaStream_t stream)
{
	a->row_blocks = cuda_ceil(a->p.n, S::ROWS);
	a->steps = cuda_ceil(a->p.k, S::STEP);
	/* An expert's last block of tokens is not full. */
	const u64 blocks = work->assignments / S::TOKENS + least(work->experts, work->assignments),
		  tiles = blocks * a->row_blocks;
	const cudaError_t e = CU_SHARED_LIMIT(moe_wgmma_kernel<S>, S::SHARED_BYTES);
	if (e != cudaSuccess)
		return cuda_refused(e);
	return cuda_launched(LAUNCH(moe_wgmma_kernel<S>, tiles < cuda_processors() ? (u32)tiles : cuda_processors(), S::THREADS,
				    S::SHARED_BYTES, stream, *a));
}

enum err moe_wgmma(enum kern_dtype type, const struct skinny *p, const struct skinny_experts *x,
		   const struct skinny_work *work, cudaStream_t stream)
{
	struct tiled a = {};
	a.p = *p;
	a.x = *x;
	a.experts = work->experts;
	if (!moe_wgmma_serves(type))
		return ERR_UNSUPPORTED;
	return wgmma_launch<wgmma_bf16>(&a, work, stream);
}
