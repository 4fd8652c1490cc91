/* The matrix product of at most 16 tokens: as matmul_skinny.cuh, whose operands, tiles of 16
 * rows and endings it has, but blocks stay and take one tile after the other, and weights come through a ring of
 * asynchronous copies that goes on into the next tile while this one is added up.
 *
 * What does not change from tile to tile is made once: a warp has the same columns of all tiles, so x lies in shared
 * memory as the matrix unit reads it, already normed and in the weight's order, and sums of x for the zeros of 4 bits beside it.
 * Where x needs neither it is read from the caches. A lane copies itself what it reads of the weight, a warp its scales: no
 * barrier but the one at which the warps add up. */
#ifndef TERCET_KERNELS_CUDA_MATMUL_RING_CUH
#define TERCET_KERNELS_CUDA_MATMUL_RING_CUH

#include "kernels/cuda/matmul_skinny.cuh"

enum {
	RING_ITEM = 128, /* columns that a warp takes at once of a tile: the longest group */
	RING_ITEM_SLABS = RING_ITEM / SKINNY_SLAB,
	RING_HALF_BYTES = CU_WARP * 16, /* what a warp copies of a unit of the lower or the upper rows of a tile */
	RING_GROUP_BYTES = 64, /* scales (and zeros) of a tile's rows */
};

/* GROUPS: of scales in an item. BLOCKS: of a multiprocessor. STAGES: of a warp's ring. */
template <enum kern_dtype W_, u32 GROUPS_, u32 EIGHTS_, bool SHARED_X_, u32 BLOCKS_, u32 STAGES_> struct ring_shape {
	using sums = skinny_shape<EIGHTS_, 1, 1, W_>;
	static constexpr u32 EIGHTS = EIGHTS_, TOKENS = EIGHTS * 8;
	static constexpr enum kern_dtype W = W_;
	static constexpr bool SCALED = skinny_format<W>::SCALED, ZEROS = W == KERN_I4_128, SHARED_X = SHARED_X_;
	static constexpr u32 GROUPS = GROUPS_, GROUP_SLABS = RING_ITEM_SLABS / GROUPS;
	static constexpr u32 BLOCKS = BLOCKS_, STAGES = STAGES_;
	static constexpr u32 UNIT_SLABS = skinny_format<W>::SLABS, UNITS = RING_ITEM_SLABS / UNIT_SLABS; /* of an item */
	static constexpr u32 W_BYTES = 2 * UNITS * RING_HALF_BYTES;
	static constexpr u32 STAGE_BYTES = W_BYTES + (SCALED ? GROUPS * RING_GROUP_BYTES : 0);
};

struct ring {
	struct skinny p;
	u32 tiles, items; /* of a tile, which the warps deal out */
	u32 totals_at, sums_at, squares_at, rings_at; /* in shared memory; x lies at its beginning */
};

struct ring_lane {
	u32 lane, g, t, warp, warps, items; /* items: of each tile that are this warp's */
};

/* What is copied next: this lane's parts of an item. */
struct ring_next {
	u32 tile, item; /* of the block; of the warp */
	const u8 *low, *high, *scales;
};

/* ---------------------------------------------------------------- copies */

/* Where a lane's sixteen bytes of a group's scales are: with 8 bits four lanes have scales, two of the lower rows and two of the
 * upper ones; with 4 scales of both, then zeros of both. */
template <typename S>
CU_INLINE const u8 *ring_scales(const struct ring *a, const struct ring_lane *l, const struct skinny_tile *rows)
{
	const struct skinny *p = &a->p;
	const u32 piece = l->lane % 4, group = l->warp * S::GROUPS + l->lane / 4;
	if constexpr (S::ZEROS)
		return (piece < 2 ? p->scales : p->zeros) +
		       ((size_t)group * p->scale_rows + (piece % 2 ? rows->high : rows->low)) * sizeof(u16);
	return p->scales + ((size_t)group * p->scale_rows + (piece < 2 ? rows->low : rows->high) + piece % 2 * 4) * sizeof(float);
}

template <typename S>
CU_INLINE void ring_begin_tile(const struct ring *a, const struct ring_lane *l, struct ring_next *n, u32 tile)
{
	const struct skinny_tile rows = skinny_tile_of(&a->p, tile);
	const size_t row_bytes = (size_t)a->p.units * SKINNY_UNIT_BYTES;
	const u32 at = l->warp * S::UNITS * SKINNY_UNIT_BYTES + l->t * 16;
	n->tile = tile;
	n->item = 0;
	n->low = a->p.w + (rows.low + l->g) * row_bytes + at;
	n->high = a->p.w + (rows.high + l->g) * row_bytes + at;
	n->scales = ring_scales<S>(a, l, &rows);
}

/* Units of a last item but its first may lie behind the row's end, and its groups behind the last. */
template <typename S>
CU_INLINE void ring_ask(const struct ring *a, const struct ring_lane *l, struct ring_next *n, char *stage)
{
	const u32 item = n->item * l->warps + l->warp;
	if (n->tile < a->tiles) {
#pragma unroll
		for (u32 u = 0; u < S::UNITS; u++) {
			const bool valid = u == 0 || item * S::UNITS + u < a->p.units;
			cu_cp_async16(stage + 2 * u * RING_HALF_BYTES + l->lane * 16,
				      n->low + (valid ? u * SKINNY_UNIT_BYTES : 0), valid);
			cu_cp_async16(stage + (2 * u + 1) * RING_HALF_BYTES + l->lane * 16,
				      n->high + (valid ? u * SKINNY_UNIT_BYTES : 0), valid);
		}
		if (S::SCALED && l->lane < 4 * S::GROUPS) {
			const bool valid = S::GROUPS == 1 || item * S::GROUPS + l->lane / 4 < a->p.groups;
			cu_cp_async16(stage + S::W_BYTES + l->lane * 16, valid ? n->scales : a->p.scales, valid);
		}
		n->low += l->warps * S::UNITS * SKINNY_UNIT_BYTES;
		n->high += l->warps * S::UNITS * SKINNY_UNIT_BYTES;
		n->scales += (size_t)l->warps * S::GROUPS * a->p.scale_rows * (S::ZEROS ? sizeof(u16) : sizeof(float));
		if (++n->item == l->items)
			ring_begin_tile<S>(a, l, n, n->tile + gridDim.x);
	}
	cu_cp_commit();
}

/* ---------------------------------------------------------------- x */

/* x as bf16, [slab][token][32], zeros behind the last column; squares of each token as the warps have them. */
template <typename S>
CU_INLINE void ring_fill_x(const struct ring *a, const struct ring_lane *l, char *x, float *squares)
{
	const struct skinny *p = &a->p;
	for (u32 token = 0; token < p->tokens; token++) {
		float square = 0;
#pragma unroll 2
		for (u32 i = threadIdx.x; i < a->items * RING_ITEM / 8; i += blockDim.x)
			cu_store(x + ((size_t)(i / 4) * p->tokens + token) * 64 + i % 4 * 16, skinny_load_x(p, token, i * 8, &square));
		if (!p->norm_weight)
			continue;
		square = warp_sum(square);
		if (l->lane == 0)
			squares[l->warp * S::TOKENS + token] = square;
	}
}

/* ---------------------------------------------------------------- the product */

/* What a lane has of a group in the weight's own numbers becomes part of the sums. */
template <typename S>
CU_INLINE void ring_scale(const struct ring_lane *l, const char *scales, const float *totals, const float part[S::EIGHTS][4],
			  float c[S::EIGHTS][4])
{
	const u16 *halves = (const u16 *)scales + l->g;
	const float *floats = (const float *)scales + l->g;
#pragma unroll
	for (u32 r = 0; r < 2; r++) {
		const float scale = S::ZEROS ? cu_f16_to_f32(halves[r * 8]) : floats[r * 8];
		const float zero = S::ZEROS ? cu_f16_to_f32(halves[16 + r * 8]) + 128 : 0;
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
			const float2 total = S::ZEROS ? cu_load<float2>(totals + n * 8 + l->t * 2) : make_float2(0, 0);
			c[n][2 * r] += scale * (S::ZEROS ? part[n][2 * r] - zero * total.x : part[n][2 * r]);
			c[n][2 * r + 1] += scale * (S::ZEROS ? part[n][2 * r + 1] - zero * total.y : part[n][2 * r + 1]);
		}
	}
}

/* Sums of x over a group. */
template <typename S>
CU_INLINE void ring_totals(const struct ring_lane *l, const uint4 x[S::EIGHTS][RING_ITEM_SLABS], u32 group, float *totals)
{
	constexpr u32 ONE = 0x3f803f80u;
	const u32 ones[4] = {ONE, ONE, ONE, ONE};
#pragma unroll
	for (u32 n = 0; n < S::EIGHTS; n++) {
		float total[4] = {0, 0, 0, 0};
#pragma unroll
		for (u32 i = 0; i < S::GROUP_SLABS; i++)
			skinny_step(total, ones, ones, x[n][group * S::GROUP_SLABS + i]);
		if (l->g == 0)
			cu_store(totals + n * 8 + l->t * 2, make_float2(total[0], total[1]));
	}
	cu_syncwarp(); /* they are there */
}

/* An item of the tile. `first`: of the block's tiles, which makes the sums of x. */
template <typename S>
CU_INLINE void ring_step(const struct ring_lane *l, const char *stage, const uint4 x[S::EIGHTS][RING_ITEM_SLABS], float *totals,
			 bool first, float c[S::EIGHTS][4])
{
	uint4 raw[S::UNITS][2];
#pragma unroll
	for (u32 i = 0; i < S::UNITS * 2; i++)
		raw[i / 2][i % 2] = cu_load<uint4>(stage + i * RING_HALF_BYTES + l->lane * 16);
#pragma unroll
	for (u32 group = 0; group < S::GROUPS; group++) {
		float part[S::EIGHTS][4] = {};
		if (S::ZEROS && first)
			ring_totals<S>(l, x, group, totals + group * S::TOKENS);
#pragma unroll
		for (u32 i = 0; i < S::GROUP_SLABS; i++) {
			const u32 slab = group * S::GROUP_SLABS + i;
			u32 w[2][4];
			skinny_columns<S::W>(raw[slab / S::UNIT_SLABS][0], slab % S::UNIT_SLABS, w[0]);
			skinny_columns<S::W>(raw[slab / S::UNIT_SLABS][1], slab % S::UNIT_SLABS, w[1]);
#pragma unroll
			for (u32 n = 0; n < S::EIGHTS; n++)
				skinny_step(S::SCALED ? part[n] : c[n], w[0], w[1], x[n][slab]);
		}
		if constexpr (S::SCALED)
			ring_scale<S>(l, stage + S::W_BYTES + group * RING_GROUP_BYTES, totals + group * S::TOKENS, part, c);
	}
}

/* All items of a warp of one tile. Lanes of rows beyond the tokens read the last one's x: nobody wants their results. */
template <typename S>
CU_INLINE void ring_tile(const struct ring *a, const struct ring_lane *l, char *shared, char *rings, u32 *slot,
			 struct ring_next *next, bool first, float c[S::EIGHTS][4])
{
	const u32 slab_bytes = S::SHARED_X ? a->p.tokens * 64 : 64;
	const char *x[S::EIGHTS];
	float *totals = (float *)(shared + a->totals_at) + l->warp * S::GROUPS * S::TOKENS;
#pragma unroll
	for (u32 n = 0; n < S::EIGHTS; n++) {
		const u32 token = least(n * 8 + l->g, a->p.tokens - 1);
		const char *row = S::SHARED_X ? shared + token * 64
					      : (const char *)((const u16 *)a->p.x + (size_t)token * a->p.x_stride);
		x[n] = row + l->warp * RING_ITEM_SLABS * slab_bytes + l->t * 16;
	}
	for (u32 i = 0; i < l->items; i++) {
		const u32 newest = *slot == 0 ? S::STAGES - 1 : *slot - 1;
		uint4 columns[S::EIGHTS][RING_ITEM_SLABS];
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
#pragma unroll
			for (u32 j = 0; j < RING_ITEM_SLABS; j++)
				columns[n][j] = cu_load<uint4>(x[n] + j * slab_bytes);
			x[n] += l->warps * RING_ITEM_SLABS * slab_bytes;
		}
		cu_cp_wait<S::STAGES - 2>();
		cu_syncwarp(); /* scales have come to all lanes, and the place before is used up */
		ring_ask<S>(a, l, next, rings + newest * S::STAGE_BYTES);
		ring_step<S>(l, rings + *slot * S::STAGE_BYTES, columns, totals, first, c);
		*slot = *slot + 1 == S::STAGES ? 0 : *slot + 1;
		totals += l->warps * S::GROUPS * S::TOKENS;
	}
}

/* HEADS: the product goes to `out`, which is what rope_head reads once all tiles of a head are there. */
template <typename S, bool HEADS>
static __global__ void __launch_bounds__(SKINNY_THREADS, S::BLOCKS) ring_kernel(const struct ring a)
{
	SHARED_DYNAMIC(char, shared);
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, warps = blockDim.x / CU_WARP;
	const struct ring_lane l = {lane, lane / 4, lane % 4, warp, warps, (a.items - warp + warps - 1) / warps};
	char *rings = shared + a.rings_at + warp * S::STAGES * S::STAGE_BYTES;
	float *sums = (float *)(shared + a.sums_at), *squares = (float *)(shared + a.squares_at);
	struct ring_next next;
	u32 slot = 0, turn = 0;
	ring_begin_tile<S>(&a, &l, &next, blockIdx.x);
#pragma unroll
	for (u32 i = 0; i + 1 < S::STAGES; i++)
		ring_ask<S>(&a, &l, &next, rings + i * S::STAGE_BYTES);
	cu_grid_wait(); /* x is there from here on */
	if constexpr (S::SHARED_X) {
		ring_fill_x<S>(&a, &l, shared, squares);
		cu_sync(); /* x is there */
	}
	for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, turn++) {
		float c[1][S::EIGHTS][4] = {};
		float *own = sums + turn % 2 * warps * S::sums::SUMS;
		ring_tile<S>(&a, &l, shared, rings, &slot, &next, tile == blockIdx.x, c[0]);
		skinny_put<typename S::sums>(own + warp * S::sums::SUMS, c);
		cu_sync(); /* all warps' sums are there */
		/* Other warps each time, for these come late to the next tile. */
		for (u32 i = (threadIdx.x + turn * (S::sums::SUMS / 2)) % blockDim.x; i < S::sums::SUMS / 2; i += blockDim.x)
			skinny_conclude<typename S::sums>(&a.p, own, squares, tile, i);
		if constexpr (HEADS) {
			const u32 tiles = a.p.rope.head_dim / 16, head = tile / tiles;
			if (!cu_block_is_last(a.p.head_counts + head, tiles))
				continue;
			for (u32 t = warp; t < a.p.tokens; t += warps)
				rope_head(&a.p.rope, t, head, lane);
		}
	}
	cu_cp_wait<0>(); /* no copy outlives its thread */
	cu_grid_launch();
}

/* ---------------------------------------------------------------- host */

/* Lays out the shared memory; its bytes. */
template <typename S> static size_t ring_layout(struct ring *a, u32 warps)
{
	u32 at = S::SHARED_X ? a->items * RING_ITEM * a->p.tokens * (u32)sizeof(u16) : 0;
	a->totals_at = at;
	at += S::ZEROS ? a->items * S::GROUPS * S::TOKENS * (u32)sizeof(float) : 0;
	a->sums_at = at;
	at += 2 * warps * S::sums::SUMS * (u32)sizeof(float);
	a->squares_at = at;
	at += warps * S::TOKENS * (u32)sizeof(float);
	a->rings_at = at = (at + 127) & ~127u;
	return at + (size_t)warps * S::STAGES * S::STAGE_BYTES;
}

enum { RING_SYSTEM_BYTES = 1 << 10 }; /* of shared memory that a block takes besides its own */

/* Bytes of shared memory of a multiprocessor. */
static inline u32 ring_shared_all(void)
{
	static const u32 all = cuda_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);

	return all;
}

/* ERR_UNSUPPORTED: no block fits, or not so many as wanted of a multiprocessor, with `all`. */
template <typename S, bool HEADS> static enum err ring_launch_shape(struct ring *a, bool all, cudaStream_t stream)
{
	a->items = cuda_ceil(a->p.k, RING_ITEM);
	a->tiles = a->p.n / 16;
	const u32 warps = least(a->items, SKINNY_WARPS);
	const size_t bytes = ring_layout<S>(a, warps);
	const u32 fit = (u32)(ring_shared_all() / (bytes + RING_SYSTEM_BYTES));
	if (bytes > cuda_shared_most() || (all && fit < S::BLOCKS))
		return ERR_UNSUPPORTED;
	const cudaError_t e = CU_SHARED_LIMIT((ring_kernel<S, HEADS>), cuda_shared_most());
	if (e != cudaSuccess)
		return cuda_refused(e);
	const u32 blocks = cuda_processors() * least(most(fit, 1), S::BLOCKS);
	return cuda_launched(LAUNCH_DEPENDENT((ring_kernel<S, HEADS>), least(a->tiles, blocks), warps * CU_WARP, bytes, stream, *a));
}

/* Measured on an H100: x from the caches, as little in flight as covers memory's latency, and three blocks a multiprocessor. Shared
 * memory is for x that has to be made first, of few tokens. */
template <enum kern_dtype W, u32 GROUPS, bool HEADS> static enum err ring_launch_groups(struct ring *a, cudaStream_t stream)
{
	constexpr u32 BLOCKS = HEADS ? 2 : 3; /* what heads need on top takes registers */
	const bool ready = !a->p.norm_weight && !a->p.order && !a->p.source && a->p.k % RING_ITEM == 0;
	if (ready && a->p.tokens > (W == KERN_BF16 ? 4 : 8)) /* large rings leave x little of L1 */
		return ring_launch_shape<ring_shape<W, GROUPS, 2, false, 2, 2>, HEADS>(a, false, stream);
	if (ready)
		return ring_launch_shape<ring_shape<W, GROUPS, 1, false, BLOCKS, 2>, HEADS>(a, false, stream);
	if (a->p.tokens > 8)
		return ERR_UNSUPPORTED;
	if constexpr (!HEADS && W != KERN_BF16) { /* whose rings leave no room for three */
		const enum err e = ring_launch_shape<ring_shape<W, GROUPS, 1, true, 3, 2>, HEADS>(a, true, stream);
		if (e != ERR_UNSUPPORTED)
			return e;
	}
	return ring_launch_shape<ring_shape<W, GROUPS, 1, true, 2, 2>, HEADS>(a, false, stream);
}

/* ERR_UNSUPPORTED: rows that are no whole tiles, more than eight tokens of an x that has to be made first, or too little
 * shared memory. */
template <enum kern_dtype W, u32 GROUPS> static enum err ring_launch(const struct skinny *p, cudaStream_t stream)
{
	struct ring a = {};
	a.p = *p;
	if (p->tokens > KERN_FUSED_TOKENS || p->n % 16 != 0)
		return ERR_UNSUPPORTED;
	return p->rows == SKINNY_HEADS ? ring_launch_groups<W, GROUPS, true>(&a, stream)
				       : ring_launch_groups<W, GROUPS, false>(&a, stream);
}

#endif
