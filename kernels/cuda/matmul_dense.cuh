/* The matrix product of some tens to hundreds of tokens with quantized weights: the weight is read once, as it is stored,
 * and converted once on the way to the matrix unit.
 *
 * A block of eight warps has a tile of rows of the weight times up to 64 tokens. A warp has 32 of the rows as the matrix
 * unit's A and all tokens as its B; where a tile has fewer than 256 rows, the warps divide the columns of a step, too.
 * k is permuted within slabs of 32 columns as in matmul_skinny.cuh. Steps of 128 columns a warp come through a ring of
 * asynchronous copies: of the weight each lane copies what it reads itself, x is everybody's. Sums are those of a group in
 * the weight's own numbers; its scale (and zero, times the sum of x) is applied once at its end, so nothing is rounded
 * but what x was.
 *
 * Tiles are too few to fill a device, or fill it unevenly. So all steps of all tiles lie in a row that the blocks divide
 * evenly, and a tile may have parts by several blocks. They go to memory as floats, and the block that comes last adds
 * them in the order of k: which one it is makes no difference to the result. Each 64 tokens have a row of blocks of their
 * own, so that those which read the same weights do it at the same time. */
#ifndef TERCET_KERNELS_CUDA_MATMUL_DENSE_CUH
#define TERCET_KERNELS_CUDA_MATMUL_DENSE_CUH

#include "kernels/cuda/matmul_skinny.cuh"

enum {
	DENSE_CHUNK_SLABS = 4, /* of a warp and step: 128 columns, the longest group */
	DENSE_CHUNK = DENSE_CHUNK_SLABS * SKINNY_SLAB,
	DENSE_WARP_ROWS = 32,
	DENSE_SLAB_BYTES = 64, /* of a row of x */
	DENSE_SHARED_BYTES = 226 << 10, /* of a multiprocessor, at most */
};

/* GROUP_SLABS: that share their scales, 4, 2 or 1. */
template <u32 ROW_WARPS_, u32 K_WARPS_, u32 EIGHTS_, u32 BLOCKS_, enum kern_dtype W_, u32 GROUP_SLABS_> struct dense_shape {
	static constexpr enum kern_dtype W = W_;
	static constexpr bool ZEROS = W == KERN_I4_128;
	static constexpr u32 ROW_WARPS = ROW_WARPS_, K_WARPS = K_WARPS_;
	static constexpr u32 WARPS = ROW_WARPS * K_WARPS, THREADS = WARPS * CU_WARP;
	static constexpr u32 BLOCKS = BLOCKS_; /* of a multiprocessor */
	static constexpr u32 EIGHTS = EIGHTS_; /* of tokens */
	static constexpr u32 OWN = EIGHTS / K_WARPS; /* that a warp has in the end */
	static constexpr u32 ROWS = ROW_WARPS * DENSE_WARP_ROWS, TOKENS = EIGHTS * 8;
	static constexpr u32 GROUP_SLABS = GROUP_SLABS_, GROUPS = DENSE_CHUNK_SLABS / GROUP_SLABS; /* of a chunk */
	static constexpr u32 UNIT_SLABS = skinny_format<W>::SLABS, UNITS = DENSE_CHUNK_SLABS / UNIT_SLABS;
	static constexpr u32 PIECES = UNITS * 4; /* of 16 bytes that a lane copies of the weight */
	static constexpr u32 W_BYTES = PIECES * THREADS * 16;
	static constexpr u32 SLABS = K_WARPS * DENSE_CHUNK_SLABS; /* of a step */
	static constexpr u32 X_BYTES = SLABS * TOKENS * DENSE_SLAB_BYTES;
	static constexpr u32 X_PIECES = X_BYTES / 16 / THREADS;
	static constexpr u32 SCALE_BYTES = DENSE_WARP_ROWS * sizeof(u32); /* of a warp and group: floats, or halves and halves */
	static constexpr u32 STAGE_BYTES = W_BYTES + X_BYTES + WARPS * GROUPS * SCALE_BYTES;
	static constexpr u32 TOTALS = ZEROS ? K_WARPS * GROUPS * TOKENS : 0; /* floats: sums of x */
	/* To add up what warps that divide the columns have: [eights][warps][two][lanes] of 16 bytes. */
	static constexpr u32 JOIN_BYTES = K_WARPS > 1 ? K_WARPS * WARPS * 2 * CU_WARP * 16 : 0;
	static constexpr u32 FIT = (DENSE_SHARED_BYTES / BLOCKS - JOIN_BYTES - TOTALS * sizeof(float)) / STAGE_BYTES;
	static constexpr u32 STAGES = FIT > 6 ? 6 : FIT;
	static constexpr u32 SHARED_BYTES = STAGES * STAGE_BYTES + TOTALS * sizeof(float) + JOIN_BYTES;
	static constexpr u32 PART = OWN * 2; /* of 16 bytes that a thread has of a tile */
	static_assert(STAGES >= 2 && OWN * K_WARPS == EIGHTS, "tile and ring fit each other");
};

struct dense {
	struct skinny p; /* w, scales, zeros, x, bias, out and their sizes */
	uint4 *parts;	 /* [rows of blocks][blocks][2][PART][THREADS]: what a block has of its first tile, and of its last */
	u32 *counts;	 /* [rows of blocks][blocks] zeros: parts of the tile of which a block has the first one */
	u32 counts_max, tiles, steps; /* tiles of rows; steps of a tile */
};

/* Steps of a block, of all tiles' in a row. */
CU_INLINE u32 dense_first(const struct dense *a, u32 block)
{
	return (u32)((u64)block * a->tiles * a->steps / gridDim.x);
}

CU_INLINE u32 dense_block_of(const struct dense *a, u32 item)
{
	return (u32)((((u64)item + 1) * gridDim.x - 1) / ((u64)a->tiles * a->steps));
}

/* Where a warp's lane has what of the tile. */
struct dense_lane {
	u32 lane, g, t, row_warp, k_warp;
};

template <typename S> CU_INLINE struct dense_lane dense_lane_of()
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	return {lane, lane / 4, lane % 4, warp % S::ROW_WARPS, warp / S::ROW_WARPS};
}

/* ---------------------------------------------------------------- copies */

/* What is copied next. */
template <typename S> struct dense_stream {
	u32 item, end, row, step;
};

/* A lane's pieces are those of the four rows that it has in the results: neighbours, that are rows g of two of the
 * matrix unit's tiles and rows g + 8. */
template <typename S>
CU_INLINE void dense_ask_weight(const struct dense *a, const struct dense_lane *l, const struct dense_stream<S> *s,
				char *stage)
{
	const struct skinny *p = &a->p;
	const u32 row = s->row + l->row_warp * DENSE_WARP_ROWS + l->g * 4,
		  unit = (s->step * S::K_WARPS + l->k_warp) * S::UNITS;
	char *to = stage + threadIdx.x * 16;
#pragma unroll
	for (u32 r = 0; r < 4; r++)
#pragma unroll
		for (u32 u = 0; u < S::UNITS; u++) {
			const bool valid = s->item < s->end && row + r < p->n && unit + u < p->units;
			const size_t at = ((size_t)(row + r) * p->units + unit + u) * SKINNY_UNIT_BYTES + l->t * 16;
			cu_cp_async16(to + (r * S::UNITS + u) * S::THREADS * 16, p->w + (valid ? at : 0), valid);
		}
}

/* Of the warp's rows and each group, scales and behind them zeros: 16 bytes a lane. */
template <typename S>
CU_INLINE void dense_ask_scales(const struct dense *a, const struct dense_lane *l, const struct dense_stream<S> *s,
				char *stage)
{
	constexpr u32 LANES = S::SCALE_BYTES / 16, EACH = S::ZEROS ? 8 : 4; /* of a warp and group; rows of a lane */
	const struct skinny *p = &a->p;
	char *to = stage + S::W_BYTES + S::X_BYTES + threadIdx.x / CU_WARP * S::GROUPS * S::SCALE_BYTES;
#pragma unroll
	for (u32 first = 0; first < S::GROUPS * LANES; first += CU_WARP) {
		const u32 i = first + l->lane, group = i / LANES, j = i % LANES;
		const u32 row = s->row + l->row_warp * DENSE_WARP_ROWS + (S::ZEROS ? j % 4 : j) * EACH,
			  k = ((s->step * S::K_WARPS + l->k_warp) * S::GROUPS + group) * S::GROUP_SLABS * SKINNY_SLAB;
		const bool valid = s->item < s->end && row < p->scale_rows && k < p->k;
		const size_t at = ((size_t)(k >> p->group_shift) * p->scale_rows + row) * (16 / EACH);
		if (group < S::GROUPS)
			cu_cp_async16(to + i * 16, (S::ZEROS && j >= 4 ? p->zeros : p->scales) + (valid ? at : 0), valid);
	}
}

template <typename S>
CU_INLINE void dense_ask_x(const struct dense *a, const struct dense_stream<S> *s, char *stage)
{
	const struct skinny *p = &a->p;
	char *to = stage + S::W_BYTES + threadIdx.x * 16;
#pragma unroll
	for (u32 i = 0; i < S::X_PIECES; i++) {
		const u32 piece = i * S::THREADS + threadIdx.x, token = blockIdx.y * S::TOKENS + piece / 4 % S::TOKENS,
			  k = (s->step * S::SLABS + piece / 4 / S::TOKENS) * SKINNY_SLAB + piece % 4 * 8;
		const bool valid = s->item < s->end && token < p->tokens && k < p->k;
		const size_t at = (size_t)token * p->x_stride + k;
		cu_cp_async16(to + i * S::THREADS * 16, (const u16 *)p->x + (valid ? at : 0), valid);
	}
}

template <typename S> CU_INLINE void dense_advance(const struct dense *a, struct dense_stream<S> *s)
{
	s->item++;
	if (++s->step == a->steps) {
		s->step = 0;
		s->row += S::ROWS;
	}
}

/* ---------------------------------------------------------------- the product */

/* Sums of x over groups, for the zeros: each warp takes some of the eights of tokens. */
template <typename S> CU_INLINE void dense_totals(const struct dense_lane *l, const char *stage, float *totals)
{
	constexpr u32 ONE = 0x3f803f80u;
	const u32 ones[4] = {ONE, ONE, ONE, ONE};
	for (u32 i = threadIdx.x / CU_WARP; i < S::K_WARPS * S::EIGHTS; i += S::WARPS) {
		const u32 chunk = i / S::EIGHTS, token = i % S::EIGHTS * 8;
#pragma unroll
		for (u32 group = 0; group < S::GROUPS; group++) {
			float total[4] = {0, 0, 0, 0};
#pragma unroll
			for (u32 j = 0; j < S::GROUP_SLABS; j++) {
				const u32 slab = chunk * DENSE_CHUNK_SLABS + group * S::GROUP_SLABS + j;
				skinny_step(total, ones, ones,
					    cu_load<uint4>(stage + S::W_BYTES + l->t * 16 +
							   (slab * S::TOKENS + token + l->g) * DENSE_SLAB_BYTES));
			}
			if (l->g == 0)
				cu_store(totals + (chunk * S::GROUPS + group) * S::TOKENS + token + l->t * 2,
					 make_float2(total[0], total[1]));
		}
	}
}

/* A slab of the four rows as bf16: [two tiles][low and high words]. */
template <typename S> CU_INLINE void dense_weight(const char *stage, u32 slab, u32 a[2][2][4])
{
	const char *from = stage + threadIdx.x * 16 + slab / S::UNIT_SLABS * S::THREADS * 16;
#pragma unroll
	for (u32 r = 0; r < 4; r++)
		skinny_columns<S::W>(cu_load<uint4>(from + r * S::UNITS * S::THREADS * 16), slab % S::UNIT_SLABS,
				     a[r / 2][r % 2]);
}

/* Scales of the four rows of a lane as they are stored; with 4 bits two words of scales, then two of zeros. */
template <typename S> CU_INLINE uint4 dense_scales(const struct dense_lane *l, const char *stage, u32 group)
{
	const char *from = stage + S::W_BYTES + S::X_BYTES +
			   (threadIdx.x / CU_WARP * S::GROUPS + group) * S::SCALE_BYTES;
	if constexpr (!S::ZEROS)
		return cu_load<uint4>(from + l->g * 16);
	const uint2 scales = cu_load<uint2>(from + l->g * 8), zeros = cu_load<uint2>(from + S::SCALE_BYTES / 2 + l->g * 8);
	return make_uint4(scales.x, scales.y, zeros.x, zeros.y);
}

/* Some eights of tokens times a slab. Products that do not wait for each other follow each other. */
template <u32 EIGHTS>
CU_INLINE void dense_slab(const char *x, const u32 a[2][2][4], float part[EIGHTS][2][4])
{
	u32 b[EIGHTS][4];
#pragma unroll
	for (u32 n = 0; n < EIGHTS; n++) {
		const uint4 v = cu_load<uint4>(x + n * 8 * DENSE_SLAB_BYTES);
		b[n][0] = v.x;
		b[n][1] = v.y;
		b[n][2] = v.z;
		b[n][3] = v.w;
	}
#pragma unroll
	for (u32 i = 0; i < 4; i += 2)
#pragma unroll
		for (u32 n = 0; n < EIGHTS; n++)
#pragma unroll
			for (u32 m = 0; m < 2; m++) {
				const u32 w[4] = {a[m][0][i], a[m][1][i], a[m][0][i + 1], a[m][1][i + 1]};
				cu_mma_bf16(part[n][m], w, b[n] + i);
			}
}

/* The sums of a group go to those of the tile. `totals`: of x, of the eights. */
template <typename S>
CU_INLINE void dense_scale(const uint4 scales, const float *totals, float part[S::EIGHTS][2][4],
			   float c[S::EIGHTS][2][4])
{
	const u32 words[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
	for (u32 r = 0; r < 4; r++) {
		const u32 shift = r % 2 * 16;
		const float scale = S::ZEROS ? cu_f16_to_f32((u16)(words[r / 2] >> shift)) : cu_float(words[r]);
		const float zero = S::ZEROS ? cu_f16_to_f32((u16)(words[2 + r / 2] >> shift)) + 128 : 0;
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
			float *v = part[n][r / 2] + r % 2 * 2, *sum = c[n][r / 2] + r % 2 * 2;
			if constexpr (S::ZEROS) {
				const float2 total = cu_load<float2>(totals + n * 8);
				v[0] -= zero * total.x;
				v[1] -= zero * total.y;
			}
			sum[0] += scale * v[0];
			sum[1] += scale * v[1];
		}
	}
}

/* Eights of tokens that two blocks of a multiprocessor have registers for at once, as nvcc deals them out. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr u32 DENSE_TOGETHER = 1;
#else
constexpr u32 DENSE_TOGETHER = 4;
#endif

/* Blocks that registers are dealt out for: below 9.0 shared memory has room for one. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr u32 DENSE_RESIDENT = 1;
#else
constexpr u32 DENSE_RESIDENT = 2;
#endif

/* A warp's columns of a step. c[eight][tile]: rows 2 tile (low half) and 2 tile + 1 of the lane, tokens 2t and 2t + 1. */
template <typename S>
CU_INLINE void dense_step(const struct dense_lane *l, const char *stage, const float *totals,
			  float c[S::EIGHTS][2][4])
{
	constexpr u32 TOGETHER = S::BLOCKS > 1 ? DENSE_TOGETHER : S::GROUPS > 1 ? 2 : 4; /* eights, as registers allow */
	const char *x = stage + S::W_BYTES + l->k_warp * DENSE_CHUNK_SLABS * S::TOKENS * DENSE_SLAB_BYTES +
			l->g * DENSE_SLAB_BYTES + l->t * 16;
	totals += l->k_warp * S::GROUPS * S::TOKENS + l->t * 2;
#pragma unroll
	for (u32 group = 0; group < S::GROUPS; group++) {
		float part[S::EIGHTS][2][4] = {};
#pragma unroll
		for (u32 j = 0; j < S::GROUP_SLABS; j++) {
			const u32 slab = group * S::GROUP_SLABS + j;
			u32 a[2][2][4];
			dense_weight<S>(stage, slab, a);
#pragma unroll
			for (u32 n = 0; n < S::EIGHTS; n += TOGETHER)
				dense_slab<TOGETHER>(x + (slab * S::TOKENS + n * 8) * DENSE_SLAB_BYTES, a, part + n);
		}
		dense_scale<S>(dense_scales<S>(l, stage, group), totals + group * S::TOKENS, part, c);
	}
}

/* ---------------------------------------------------------------- what follows it */

/* Adds up what the warps that divided the columns have: warp k_warp gets every K_WARPS-th eight. */
template <typename S>
CU_INLINE void dense_join(const struct dense_lane *l, char *shared, const float c[S::EIGHTS][2][4],
			  float own[S::OWN][2][4])
{
	const u32 warp = threadIdx.x / CU_WARP;
#pragma unroll
	for (u32 i = 0; i < S::OWN; i++) {
		cu_sync(); /* what was there is used up */
#pragma unroll
		for (u32 j = 0; j < S::K_WARPS; j++)
#pragma unroll
			for (u32 m = 0; m < 2; m++) {
				const float *v = c[i * S::K_WARPS + j][m];
				cu_store(shared + (((j * S::WARPS + warp) * 2 + m) * CU_WARP + l->lane) * 16,
					 make_float4(v[0], v[1], v[2], v[3]));
			}
		cu_sync(); /* all warps' sums are there */
#pragma unroll
		for (u32 m = 0; m < 2; m++) {
			float *sum = own[i][m];
			sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
			for (u32 k = 0; k < S::K_WARPS; k++) {
				const u32 from = (l->k_warp * S::WARPS + k * S::ROW_WARPS + l->row_warp) * 2 + m;
				const float4 v = cu_load<float4>(shared + (from * CU_WARP + l->lane) * 16);
				sum[0] += v.x;
				sum[1] += v.y;
				sum[2] += v.z;
				sum[3] += v.w;
			}
		}
	}
}

/* A block's place for what it has of its first tile, where another one has begun that, or of its last. */
template <typename S> CU_INLINE uint4 *dense_part(const struct dense *a, u32 block, u32 tile)
{
	const u32 which = dense_first(a, block) <= tile * a->steps;
	return a->parts + (((size_t)blockIdx.y * gridDim.x + block) * 2 + which) * S::PART * S::THREADS + threadIdx.x;
}

/* Whether this block has the tile's sums then: the one that comes last of those which have parts of it. */
template <typename S> CU_INLINE bool dense_gather(const struct dense *a, u32 tile, float own[S::OWN][2][4])
{
	const u32 first = dense_block_of(a, tile * a->steps), last = dense_block_of(a, (tile + 1) * a->steps - 1);
	if (first == last)
		return true;
	uint4 *to = dense_part<S>(a, blockIdx.x, tile);
#pragma unroll
	for (u32 i = 0; i < S::PART; i++) {
		const float *v = own[i / 2][i % 2];
		cu_store(to + i * S::THREADS, make_float4(v[0], v[1], v[2], v[3]));
	}
	if (!cu_block_is_last(a->counts + (size_t)blockIdx.y * gridDim.x + first, last - first + 1))
		return false;
#pragma unroll
	for (u32 i = 0; i < S::PART; i++)
		own[i / 2][i % 2][0] = own[i / 2][i % 2][1] = own[i / 2][i % 2][2] = own[i / 2][i % 2][3] = 0;
	for (u32 block = first; block <= last; block++) {
		const uint4 *from = dense_part<S>(a, block, tile);
#pragma unroll
		for (u32 i = 0; i < S::PART; i++) {
			const float4 v = cu_load<float4>(from + i * S::THREADS);
			float *sum = own[i / 2][i % 2];
			sum[0] += v.x;
			sum[1] += v.y;
			sum[2] += v.z;
			sum[3] += v.w;
		}
	}
	return true;
}

/* Four neighbours of a token's output. */
CU_INLINE void dense_store(const struct skinny *p, u32 token, u32 row, const float v[4])
{
	const size_t at = (size_t)token * p->out_stride + row;
	if (token >= p->tokens)
		return;
	if (row + 4 > p->n || (p->out_stride | p->n) % 4 != 0 || ((size_t)p->out & 15) != 0) {
#pragma unroll
		for (u32 r = 0; r < 4; r++)
			if (row + r < p->n)
				skinny_store(p, token, row + r, v[r] + (p->bias ? p->bias[row + r] : 0));
		return;
	}
	float x[4] = {v[0], v[1], v[2], v[3]};
	if (p->bias)
#pragma unroll
		for (u32 r = 0; r < 4; r++)
			x[r] += p->bias[row + r];
	if (p->out_f32) {
		float *out = (float *)p->out + at;
		const float4 old = p->accumulate ? cu_load<float4>(out) : make_float4(0, 0, 0, 0);
		cu_store(out, make_float4(old.x + x[0], old.y + x[1], old.z + x[2], old.w + x[3]));
	} else {
		u16 *out = (u16 *)p->out + at;
		const uint2 old = p->accumulate ? cu_load<uint2>(out) : make_uint2(0, 0);
		cu_store(out, make_uint2(cu_pack_bf16(cu_bf16_lo(old.x) + x[0], cu_bf16_hi(old.x) + x[1]),
					 cu_pack_bf16(cu_bf16_lo(old.y) + x[2], cu_bf16_hi(old.y) + x[3])));
	}
}

template <typename S>
CU_INLINE void dense_finish(const struct dense *a, const struct dense_lane *l, u32 tile, char *shared,
			    const float c[S::EIGHTS][2][4])
{
	float own[S::OWN][2][4];
	if constexpr (S::K_WARPS > 1) {
		dense_join<S>(l, shared, c, own);
	} else {
#pragma unroll
		for (u32 i = 0; i < S::PART; i++)
#pragma unroll
			for (u32 e = 0; e < 4; e++)
				own[i / 2][i % 2][e] = c[i / 2][i % 2][e];
	}
	if (!dense_gather<S>(a, tile, own))
		return;
	const u32 row = tile * S::ROWS + l->row_warp * DENSE_WARP_ROWS + l->g * 4;
#pragma unroll
	for (u32 i = 0; i < S::OWN; i++) {
		const u32 token = blockIdx.y * S::TOKENS + (i * S::K_WARPS + l->k_warp) * 8 + l->t * 2;
#pragma unroll
		for (u32 e = 0; e < 2; e++) {
			const float v[4] = {own[i][0][e], own[i][0][2 + e], own[i][1][e], own[i][1][2 + e]};
			dense_store(&a->p, token + e, row, v);
		}
	}
}

/* The first steps' weights are under way while the kernel ahead, which writes x, still runs. */
template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS < DENSE_RESIDENT ? S::BLOCKS : DENSE_RESIDENT)
	dense_kernel(const struct dense a)
{
	SHARED_DYNAMIC(char, shared);
	float *totals = (float *)(shared + S::STAGES * S::STAGE_BYTES);
	char *join = (char *)(totals + S::TOTALS);
	const struct dense_lane l = dense_lane_of<S>();
	const u32 end = dense_first(&a, blockIdx.x + 1);
	u32 item = dense_first(&a, blockIdx.x), tile = item / a.steps, step = item % a.steps, slot = 0;
	struct dense_stream<S> s = {item, end, tile * S::ROWS, step}, first = s;
	float c[S::EIGHTS][2][4] = {};
#pragma unroll
	for (u32 i = 0; i + 1 < S::STAGES; i++) {
		dense_ask_weight<S>(&a, &l, &s, shared + i * S::STAGE_BYTES);
		dense_ask_scales<S>(&a, &l, &s, shared + i * S::STAGE_BYTES);
		dense_advance<S>(&a, &s);
	}
	cu_grid_wait(); /* x is there from here on */
#pragma unroll
	for (u32 i = 0; i + 1 < S::STAGES; i++) {
		dense_ask_x<S>(&a, &first, shared + i * S::STAGE_BYTES);
		cu_cp_commit();
		dense_advance<S>(&a, &first);
	}
	for (; item < end; item++) {
		char *stage = shared + slot * S::STAGE_BYTES;
		char *next = shared + (slot + S::STAGES - 1) % S::STAGES * S::STAGE_BYTES;
		cu_cp_wait<S::STAGES - 2>();
		cu_sync(); /* everybody's part of this step has come, and the one before is used up */
		dense_ask_weight<S>(&a, &l, &s, next);
		dense_ask_scales<S>(&a, &l, &s, next);
		dense_ask_x<S>(&a, &s, next);
		cu_cp_commit();
		dense_advance<S>(&a, &s);
		if constexpr (S::ZEROS) {
			dense_totals<S>(&l, stage, totals);
			cu_sync(); /* sums of x are there */
		}
		dense_step<S>(&l, stage, totals, c);
		slot = (slot + 1) % S::STAGES;
		if (++step < a.steps && item + 1 < end)
			continue;
		dense_finish<S>(&a, &l, tile, join, c);
#pragma unroll
		for (u32 i = 0; i < S::EIGHTS * 2; i++)
			c[i / 2][i % 2][0] = c[i / 2][i % 2][1] = c[i / 2][i % 2][2] = c[i / 2][i % 2][3] = 0;
		step = 0;
		tile++;
	}
	cu_cp_wait<0>(); /* no copy outlives its thread, those behind the end neither */
	cu_grid_launch();
}

/* ---------------------------------------------------------------- host */

/* `scratch`: for the parts; ERR_UNSUPPORTED: too small, or the device's blocks have too little shared memory. */
template <typename S>
static enum err dense_launch_shape(struct dense *a, size_t scratch_bytes, cudaStream_t stream)
{
	const u32 rows = cuda_ceil(a->p.tokens, S::TOKENS); /* of blocks */
	a->tiles = cuda_ceil(a->p.n, S::ROWS);
	a->steps = cuda_ceil(a->p.k, S::K_WARPS * DENSE_CHUNK);
	const u64 items = (u64)a->tiles * a->steps;
	const u32 room = most(cuda_processors() * S::BLOCKS / rows, 1), blocks = items < room ? (u32)items : room;
	if (S::SHARED_BYTES > cuda_shared_most() || items > 0xffffffff || rows * blocks > a->counts_max ||
	    (size_t)rows * blocks * 2 * S::PART * S::THREADS * sizeof(uint4) > scratch_bytes)
		return ERR_UNSUPPORTED;
	const cudaError_t e = CU_SHARED_LIMIT(dense_kernel<S>, S::SHARED_BYTES);
	if (e != cudaSuccess)
		return cuda_refused(e);
	return cuda_launched(LAUNCH_DEPENDENT(dense_kernel<S>, dim3(blocks, rows), S::THREADS, S::SHARED_BYTES, stream, *a));
}

/* Measured on an H100. Tiles of 256 rows, which read x least, where they are at least half of what fills the device and
 * there is much to compute; else smaller ones, whose warps divide k and so read more of a row at once. Up to 32 tokens with
 * groups of 128 of 4 bits two blocks a multiprocessor, which do not wait for each other. (Others would not have the
 * registers for that, and shorter groups not for 128 rows, or groups of 32 for any, times 64 tokens.) */
template <enum kern_dtype W, u32 GROUP_SLABS>
static enum err dense_launch(struct dense *a, size_t scratch_bytes, cudaStream_t stream)
{
	constexpr u32 BLOCKS = W == KERN_I4_128 && GROUP_SLABS == DENSE_CHUNK_SLABS ? 2 : 1;
	const u32 rows = a->p.n / (cuda_processors() + 1); /* of each */
	enum err e = ERR_UNSUPPORTED;
	if constexpr (GROUP_SLABS > 1) {
		if (a->p.tokens > 32 && rows >= 84)
			e = dense_launch_shape<dense_shape<8, 1, 8, 1, W, GROUP_SLABS>>(a, scratch_bytes, stream);
		else if (a->p.tokens > 32 && rows >= 24 && GROUP_SLABS == DENSE_CHUNK_SLABS)
			e = dense_launch_shape<dense_shape<4, 2, 8, 1, W, DENSE_CHUNK_SLABS>>(a, scratch_bytes, stream);
		else if (a->p.tokens > 32)
			e = dense_launch_shape<dense_shape<2, 4, 8, 1, W, GROUP_SLABS>>(a, scratch_bytes, stream);
	}
	if (e == ERR_UNSUPPORTED && rows >= (W == KERN_I4_128 ? 24 : 84))
		e = dense_launch_shape<dense_shape<4, 2, 4, BLOCKS, W, GROUP_SLABS>>(a, scratch_bytes, stream);
	if (e == ERR_UNSUPPORTED)
		e = dense_launch_shape<dense_shape<2, 4, 4, 1, W, GROUP_SLABS>>(a, scratch_bytes, stream);
	return e;
}

#endif
