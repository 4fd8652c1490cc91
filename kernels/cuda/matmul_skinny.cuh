/* The matrix product of at most 16 tokens, where reading the weight is everything.
 *
 * A warp takes 16 rows of the weight as the matrix unit's A and up to 8 tokens as its B. Within each 32
 * columns
 * ("slab") k is permuted in the same way for both, so that lane (g, t) = (lane / 4, lane % 4) feeds two steps
 * of 16 from columns 8t .. 8t + 7 of rows g and g + 8: 16 bytes of a bf16 weight, straight into registers. In
 * 8 and 4 bits those 16 bytes hold that lane's columns of 2 and 4 slabs (weight_device.c lays them out so).
 * The warps of a block divide the columns and add up through shared memory once, in a fixed order; there are
 * as many of them, up to eight, as have something to load.
 *
 * Rows g and g + 8 of a tile need not be neighbours: for a gated activation they are a gate and its up, for a
 * rotated head the two values that rotate with each other. So what follows the product is local to a thread.
 * What needs whole heads, their norms and the scales of an 8-bit cache, is done by the block that comes last of
 * those that compute a head.
 */
#ifndef TERCET_KERNELS_CUDA_MATMUL_SKINNY_CUH
#define TERCET_KERNELS_CUDA_MATMUL_SKINNY_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/rope.cuh"

enum {
	SKINNY_WARPS = 8, /* at most */
	SKINNY_THREADS = SKINNY_WARPS * CU_WARP,
	SKINNY_SLAB = 32,	/* columns */
	SKINNY_UNIT_BYTES = 64, /* of a row: what the four lanes of a row load at once */
};

enum skinny_rows { SKINNY_PLAIN, SKINNY_ACT, SKINNY_ROPE, SKINNY_HEADS };

struct skinny {
	const u8 *w, *scales, *zeros; /* [N][units][64]; [groups][scale_rows], float or half; half */
	const u32 *order;
	const void *x; /* bf16; with a norm float, the residual stream */
	const u32 *source; /* row of x of each token; NULL: its own */
	const float *norm_weight, *bias;
	void *out;
	struct rope rope;
	u32 *head_counts; /* blocks of a head that are done; 0 between launches */
	u32 tokens, n, k, units, scale_rows, groups, group_shift, x_stride, out_stride;
	float norm_eps;
	enum skinny_rows rows;
	enum kern_activation act;
	bool accumulate, out_f32;
};

/* KERN_I4_128 stands for all groups of 4 bits: their size is data. */
template <enum kern_dtype W> struct skinny_format {
	static constexpr u32 SLABS = W == KERN_BF16 ? 1 : W == KERN_I4_128 ? 4 : 2; /* of a unit */
	static constexpr bool SCALED = W != KERN_BF16;
};

template <u32 EIGHTS_, u32 TILES_, u32 UNITS_, enum kern_dtype W_>
struct skinny_shape {
	static constexpr u32 EIGHTS = EIGHTS_; /* of tokens */
	static constexpr u32 TILES = TILES_;   /* of 16 rows of a block */
	static constexpr u32 UNITS = UNITS_;   /* in flight */
	static constexpr enum kern_dtype W = W_;
	static constexpr u32 SLABS = skinny_format<W>::SLABS;
	static constexpr bool SCALED = skinny_format<W>::SCALED;
	static constexpr u32 SUMS = TILES * EIGHTS * 4 * CU_WARP; /* of a warp */
	static constexpr u32 WARP_BYTES = (SUMS + EIGHTS * 8) * sizeof(float); /* of shared memory */
};

/* The first row of the lower and the upper eight of a tile. */
struct skinny_tile {
	u32 low, high;
};

CU_INLINE struct skinny_tile skinny_tile_of(const struct skinny *p, u32 tile)
{
	if (p->rows == SKINNY_ACT)
		return {tile * 8, p->n / 2 + tile * 8};
	if (p->rows == SKINNY_ROPE) {
		const u32 dim = p->rope.head_dim, head = tile / (dim / 16), within = tile % (dim / 16);
		if (head < p->rope.heads + p->rope.kv_heads && within < p->rope.rope_dim / 16)
			return {head * dim + within * 8, head * dim + p->rope.rope_dim / 2 + within * 8};
	}
	return {tile * 16, tile * 16 + 8};
}

/* ---------------------------------------------------------------- operands */

CU_INLINE uint4 skinny_load_row(const struct skinny *p, u32 row, u32 unit)
{
	const size_t at = ((size_t)row * p->units + unit) * SKINNY_UNIT_BYTES + threadIdx.x % 4 * 16;
	return row < p->n && unit < p->units ? cu_load_stream<uint4>(p->w + at) : make_uint4(0, 0, 0, 0);
}

/* Four signed bytes as two words of bf16: exact. 0x4300 is 128 and its lowest seven bits are units, so with those of a
 * byte it is too large by 128, or by 256 where the byte is negative. */
CU_INLINE void skinny_bytes(u32 bytes, u32 out[2])
{
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 pair = cu_byte_perm(bytes, 0, i == 0 ? 0x4140 : 0x4342);
		out[i] = cu_fma_bf16x2((pair & 0x00800080u) | 0x43004300u, 0xbf80bf80u, (pair & 0x007f007fu) | 0x43004300u);
	}
}

/* Four e4m3 as two words of bf16: exact. */
CU_INLINE void skinny_e4m3(u32 bytes, u32 out[2])
{
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 halves = cu_e4m3x2_to_f16x2((u16)(bytes >> (16 * i)));
		out[i] = cu_byte_perm(cu_bits(cu_f16_to_f32((u16)halves)),
				      cu_bits(cu_f16_to_f32((u16)(halves >> 16))), 0x7632);
	}
}

/* Columns 8t .. 8t + 7 of slab `slab` of what a lane loaded, as bf16. 4 bits come out 128 too large: 0x4300
 * is 128, and its lowest bits are units. */
template <enum kern_dtype W> CU_INLINE void skinny_columns(const uint4 raw, u32 slab, u32 out[4])
{
	const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
	if constexpr (W == KERN_BF16) {
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			out[i] = words[i];
	} else if constexpr (W == KERN_I8) {
		skinny_bytes(words[2 * slab], out);
		skinny_bytes(words[2 * slab + 1], out + 2);
	} else if constexpr (W == KERN_F8E4M3) {
		skinny_e4m3(words[2 * slab], out);
		skinny_e4m3(words[2 * slab + 1], out + 2);
	} else {
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			out[i] = (words[slab] >> (4 * i) & 0x000f000fu) | 0x43004300u;
	}
}

/* Eight values of the residual stream as their norm's input: times its weights, their squares in `squares`. */
CU_INLINE uint4 skinny_load_stream(const struct skinny *p, const float *row, u32 k, float *squares)
{
	const float4 low = cu_load_const<float4>(p->norm_weight + k),
		     high = cu_load_const<float4>(p->norm_weight + k + 4);
	const float weight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
	float x[8];
	load8(row + k, x);
#pragma unroll
	for (u32 i = 0; i < 8; i++) {
		*squares += x[i] * x[i];
		x[i] *= weight[i];
	}
	return pack8(x);
}

/* Eight inputs of a token from column `k` on. */
CU_INLINE uint4 skinny_load_x(const struct skinny *p, u32 token, u32 k, float *squares)
{
	if (token >= p->tokens || k >= p->k)
		return make_uint4(0, 0, 0, 0);
	const size_t at = (size_t)(p->source ? p->source[token] : token) * p->x_stride;
	const u16 *row = (const u16 *)p->x + at;
	if (p->norm_weight)
		return skinny_load_stream(p, (const float *)p->x + at, k, squares);
	if (!p->order)
		return cu_load<uint4>(row + k);
	const uint4 a = cu_load_const<uint4>(p->order + k), b = cu_load_const<uint4>(p->order + k + 4);
	return make_uint4(row[a.x] | (u32)row[a.y] << 16, row[a.z] | (u32)row[a.w] << 16,
			  row[b.x] | (u32)row[b.y] << 16, row[b.z] | (u32)row[b.w] << 16);
}

/* A scale as it is stored, with 4 bits its zero in the upper half. */
template <enum kern_dtype W> CU_INLINE u32 skinny_scale(const struct skinny *p, u32 row, u32 k)
{
	const size_t at = (size_t)(k >> p->group_shift) * p->scale_rows + row;
	if (row >= p->n || k >= p->k)
		return 0;
	if constexpr (W == KERN_I4_128)
		return ((const u16 *)p->scales)[at] | (u32)((const u16 *)p->zeros)[at] << 16;
	return ((const u32 *)p->scales)[at];
}

/* ---------------------------------------------------------------- the product */

CU_INLINE void skinny_step(float c[4], const u32 low[4], const u32 high[4], const uint4 x)
{
	const u32 a[8] = {low[0], high[0], low[1], high[1], low[2], high[2], low[3], high[3]};
	const u32 b[4] = {x.x, x.y, x.z, x.w};
	cu_mma_bf16_k32(c, a, b);
}

/* `SLABS` slabs of one unit of all tiles, which share their scales: those apply to the sums. With 4 bits the zeros times
 * the sums of x are taken off, which a product with ones gives. */
template <typename S, u32 SLABS>
CU_INLINE void skinny_group(const struct skinny *p, const struct skinny_tile tile[S::TILES],
			    const uint4 raw[S::TILES][2], u32 unit, u32 first, float c[S::TILES][S::EIGHTS][4],
			    float squares[S::EIGHTS])
{
	constexpr bool ZEROS = S::W == KERN_I4_128;
	const u32 lane = threadIdx.x % CU_WARP, ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
	const u32 begin = (unit * S::SLABS + first) * SKINNY_SLAB;
	float part[S::TILES][S::EIGHTS][4] = {}, total[S::EIGHTS][4] = {};
	u32 scale[S::TILES][2];
#pragma unroll
	for (u32 m = 0; m < S::TILES && S::SCALED; m++) {
		scale[m][0] = skinny_scale<S::W>(p, tile[m].low + lane / 4, begin);
		scale[m][1] = skinny_scale<S::W>(p, tile[m].high + lane / 4, begin);
	}
#pragma unroll
	for (u32 i = 0; i < SLABS; i++) {
		uint4 x[S::EIGHTS];
#pragma unroll
		for (u32 n = 0; n < S::EIGHTS; n++) {
			x[n] = skinny_load_x(p, n * 8 + lane / 4, begin + i * SKINNY_SLAB + lane % 4 * 8, &squares[n]);
			if constexpr (ZEROS)
				skinny_step(total[n], ones, ones, x[n]);
		}
#pragma unroll
		for (u32 m = 0; m < S::TILES; m++) {
			u32 low[4], high[4];
			skinny_columns<S::W>(raw[m][0], first + i, low);
			skinny_columns<S::W>(raw[m][1], first + i, high);
#pragma unroll
			for (u32 n = 0; n < S::EIGHTS; n++)
				skinny_step(S::SCALED ? part[m][n] : c[m][n], low, high, x[n]);
		}
	}
#pragma unroll
	for (u32 i = 0; i < S::TILES * S::EIGHTS * 4 && S::SCALED; i++) {
		const u32 e = i % 4, n = i / 4 % S::EIGHTS, m = i / 4 / S::EIGHTS;
		const u32 word = scale[m][e / 2];
		if constexpr (ZEROS)
			c[m][n][e] += cu_f16_to_f32((u16)word) *
				      (part[m][n][e] - (cu_f16_to_f32((u16)(word >> 16)) + 128) * total[n][e]);
		else
			c[m][n][e] += cu_float(word) * part[m][n][e];
	}
}

/* All slabs of one unit of all tiles. */
template <typename S>
CU_INLINE void skinny_unit(const struct skinny *p, const struct skinny_tile tile[S::TILES],
			   const uint4 raw[S::TILES][2], u32 unit, float c[S::TILES][S::EIGHTS][4],
			   float squares[S::EIGHTS])
{
	if constexpr (S::W == KERN_I4_128) {
		if (1u << p->group_shift < S::SLABS * SKINNY_SLAB) {
#pragma unroll
			for (u32 slab = 0; slab < S::SLABS; slab++) /* groups of 32; those of 64 are two halves */
				skinny_group<S, 1>(p, tile, raw, unit, slab, c, squares);
			return;
		}
	}
	skinny_group<S, S::SLABS>(p, tile, raw, unit, 0, c, squares);
}

/* ---------------------------------------------------------------- what follows it */

CU_INLINE void skinny_store(const struct skinny *p, u32 token, u32 column, float x)
{
	const size_t at = (size_t)token * p->out_stride + column;
	if (p->out_f32) {
		float *out = (float *)p->out + at;
		*out = p->accumulate ? *out + x : x;
	} else {
		u16 *out = (u16 *)p->out + at;
		*out = cu_f32_to_bf16(p->accumulate ? cu_bf16_to_f32(*out) + x : x);
	}
}

/* Two values of a head, dimensions `low` and `high`, on their way into q or the cache. */
CU_INLINE void skinny_store_rope(const struct skinny *p, u32 token, u32 row, u32 distance, float low,
				 float high)
{
	const struct rope *r = &p->rope;
	const u32 head = row / r->head_dim, dim = row % r->head_dim;
	const bool is_q = head < r->heads, is_k = head < r->heads + r->kv_heads;
	u16 *to;
	if (is_k && dim < r->rope_dim) { /* dim + distance is its partner */
		const size_t at = (size_t)r->positions[token] * (r->rope_dim / 2) + dim;
		const float c = r->cos[at], s = r->sin[at], x = low;
		low = x * c - high * s;
		high = high * c + x * s;
	}
	if (is_q) {
		to = r->q + ((size_t)token * r->heads + head) * r->head_dim;
	} else {
		const i64 slot = r->slots[token];
		if (slot < 0)
			return;
		to = (u16 *)rope_cache_head(r, is_k, slot, head - r->heads - (is_k ? 0 : r->kv_heads)) +
		     (u64)slot % r->block_size * r->head_dim;
	}
	to[dim] = cu_f32_to_bf16(low);
	to[dim + distance] = cu_f32_to_bf16(high);
}

/* The products of one token with rows `low` and `high`. */
CU_INLINE void skinny_finish(const struct skinny *p, u32 token, u32 low, u32 high, float x, float y)
{
	if (p->bias) { /* an expert's row of blocks has a bias of its own; a pointer to it would live in registers until here */
		const float *bias = p->bias + (size_t)blockIdx.y * p->n;
		x += low < p->n ? bias[low] : 0;
		y += high < p->n ? bias[high] : 0;
	}
	if (p->rows == SKINNY_ACT) {
		if (low < p->n / 2)
			skinny_store(p, token, low, activate(p->act, x) * y);
	} else if (p->rows == SKINNY_ROPE) {
		if (low < p->n)
			skinny_store_rope(p, token, low, high - low, x, y);
	} else {
		if (low < p->n)
			skinny_store(p, token, low, x);
		if (high < p->n)
			skinny_store(p, token, high, y);
	}
}

/* Adds up what the warps have of pair `i` of SUMS / 2 and finishes it: sums [warps][SUMS], all_squares [warps][tokens]. */
template <typename S>
CU_INLINE void skinny_conclude(const struct skinny *p, const float *sums, const float *all_squares, u32 first_tile, u32 i)
{
	const u32 l = i % CU_WARP, e = i / CU_WARP % 2, n = i / CU_WARP / 2 % S::EIGHTS, m = i / CU_WARP / 2 / S::EIGHTS;
	const u32 token = n * 8 + l % 4 * 2 + e, at = ((m * S::EIGHTS + n) * 4 + e) * CU_WARP + l;
	const u32 warps = blockDim.x / CU_WARP;
	const struct skinny_tile tile = skinny_tile_of(p, first_tile + m);
	float x = 0, y = 0, sum = 0;
	if (token >= p->tokens)
		return;
#pragma unroll
	for (u32 w = 0; w < SKINNY_WARPS; w++) {
		if (w >= warps)
			break;
		x += sums[w * S::SUMS + at];
		y += sums[w * S::SUMS + at + 2 * CU_WARP];
		if (p->norm_weight)
			sum += all_squares[w * S::EIGHTS * 8 + token];
	}
	if (p->norm_weight) {
		const float scale = cu_rsqrt(sum / (float)p->k + p->norm_eps);
		x *= scale;
		y *= scale;
	}
	skinny_finish(p, token, tile.low + l / 4, tile.high + l / 4, x, y);
}

/* A warp's sums to [SUMS] floats. */
template <typename S> CU_INLINE void skinny_put(float *to, const float c[S::TILES][S::EIGHTS][4])
{
#pragma unroll
	for (u32 i = 0; i < S::TILES * S::EIGHTS * 4; i++)
		to[i * CU_WARP + threadIdx.x % CU_WARP] = c[i / 4 / S::EIGHTS][i / 4 % S::EIGHTS][i % 4];
}

/* Adds up the warps' sums and squares and finishes. shared: [warps][SUMS], then [warps][tokens]. */
template <typename S>
CU_INLINE void skinny_join(const struct skinny *p, float *shared, const float c[S::TILES][S::EIGHTS][4],
			   const float squares[S::EIGHTS])
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	float *all_squares = shared + blockDim.x / CU_WARP * S::SUMS;
	skinny_put<S>(shared + warp * S::SUMS, c);
#pragma unroll
	for (u32 n = 0; n < S::EIGHTS && p->norm_weight; n++) {
		float sum = squares[n]; /* this lane's columns of token lane / 4 */
		sum += cu_shfl_xor(sum, 1);
		sum += cu_shfl_xor(sum, 2);
		if (lane % 4 == 0)
			all_squares[warp * S::EIGHTS * 8 + n * 8 + lane / 4] = sum;
	}
	cu_sync(); /* all warps' sums are there */
	for (u32 i = threadIdx.x; i < S::SUMS / 2; i += blockDim.x)
		skinny_conclude<S>(p, shared, all_squares, blockIdx.x * S::TILES, i);
}

/* The tile of a block. `wait`: for the kernel ahead, which may still be writing x. */
template <typename S> CU_INLINE void skinny_block(const struct skinny *p, float *shared, bool wait)
{
	const u32 g = threadIdx.x % CU_WARP / 4, first = threadIdx.x / CU_WARP * S::UNITS;
	struct skinny_tile tile[S::TILES];
	float c[S::TILES][S::EIGHTS][4] = {}, squares[S::EIGHTS] = {};
	uint4 raw[S::UNITS][S::TILES][2];
#pragma unroll
	for (u32 m = 0; m < S::TILES; m++)
		tile[m] = skinny_tile_of(p, blockIdx.x * S::TILES + m);
	for (u32 unit = first; unit < p->units; unit += blockDim.x / CU_WARP * S::UNITS) {
#pragma unroll
		for (u32 u = 0; u < S::UNITS; u++)
#pragma unroll
			for (u32 m = 0; m < S::TILES; m++) {
				raw[u][m][0] = skinny_load_row(p, tile[m].low + g, unit + u);
				raw[u][m][1] = skinny_load_row(p, tile[m].high + g, unit + u);
			}
		if (wait && unit == first)
			cu_grid_wait(); /* x is there from here on */
#pragma unroll
		for (u32 u = 0; u < S::UNITS; u++)
			skinny_unit<S>(p, tile, raw[u], unit + u, c, squares);
	}
	if (wait)
		cu_grid_launch();
	skinny_join<S>(p, shared, c, squares);
}

/* Started before the kernel ahead of it has ended: weights are nobody's output, so the first of them are
 * under way while it finishes. */
template <typename S>
static __global__ void __launch_bounds__(SKINNY_THREADS, 2) skinny_kernel(const struct skinny p)
{
	SHARED_DYNAMIC(float, shared);
	skinny_block<S>(&p, shared, true);
}

/* A block has 16 rows of one head. The product goes to `out`, which is what rope_head reads. */
template <typename S>
static __global__ void __launch_bounds__(SKINNY_THREADS, 2) skinny_heads_kernel(const struct skinny p)
{
	SHARED_DYNAMIC(float, shared);
	const u32 tiles = p.rope.head_dim / 16, head = blockIdx.x / tiles;
	skinny_block<S>(&p, shared, true);
	if (!cu_block_is_last(p.head_counts + head, tiles))
		return;
	for (u32 t = threadIdx.x / CU_WARP; t < p.tokens; t += blockDim.x / CU_WARP)
		rope_head(&p.rope, t, head, threadIdx.x % CU_WARP);
}

/* Experts of a mixture: blocks (., e) compute the tokens of expert e, in slices. */
enum { SKINNY_EXPERTS_MAX = 512 };
struct skinny_experts {
	const u8 *w;	/* of the first */
	size_t between; /* from one to the next, in bytes */
	const u32 *expert_start;
	size_t scales_at, zeros_at; /* behind w, in bytes */
};

template <typename S>
static __global__ void __launch_bounds__(SKINNY_THREADS, 2)
	skinny_experts_kernel(const struct skinny all, const struct skinny_experts x)
{
	SHARED_DYNAMIC(float, shared);
	const u32 first = x.expert_start[blockIdx.y], end = x.expert_start[blockIdx.y + 1];
	struct skinny p = all;
	p.w = x.w + blockIdx.y * x.between;
	p.scales = p.w + x.scales_at;
	p.zeros = p.w + x.zeros_at;
	for (u32 at = first; at < end; at += S::EIGHTS * 8) {
		p.tokens = least(end - at, S::EIGHTS * 8);
		p.source = all.source ? all.source + at : NULL;
		p.x = all.source ? all.x : (const u16 *)all.x + (size_t)at * all.x_stride;
		p.out = (u16 *)all.out + (size_t)at * all.out_stride;
		skinny_block<S>(&p, shared, false);
		cu_sync(); /* the sums are used up */
	}
}

/* ---------------------------------------------------------------- host */

/* Warps of a block: each has at least one unit of a row to load. */
template <typename S> static u32 skinny_warps(const struct skinny *p)
{
	const u32 warps = cuda_ceil(p->units, S::UNITS);
	return warps < SKINNY_WARPS ? warps : (u32)SKINNY_WARPS;
}

template <typename S> static enum err skinny_launch_shape(const struct skinny *p, cudaStream_t stream)
{
	const u32 rows = p->rows == SKINNY_ACT ? cuda_ceil(p->n / 2, 8) : cuda_ceil(p->n, 16);
	const u32 warps = skinny_warps<S>(p);
	return cuda_launched(LAUNCH_DEPENDENT(skinny_kernel<S>, cuda_ceil(rows, S::TILES), warps * CU_WARP,
					      warps * S::WARP_BYTES, stream, *p));
}

template <typename S> static enum err skinny_launch_heads(const struct skinny *p, cudaStream_t stream)
{
	const u32 warps = skinny_warps<S>(p);
	return cuda_launched(LAUNCH_DEPENDENT(skinny_heads_kernel<S>, p->n / 16, warps * CU_WARP,
					      warps * S::WARP_BYTES, stream, *p));
}

/* Beyond 8 tokens a block has 32 rows, which halves how often x is read from the cache. */
template <enum kern_dtype W> static enum err skinny_launch(const struct skinny *p, cudaStream_t stream)
{
	constexpr u32 UNITS = W == KERN_BF16 ? 4 : 2;
	if (p->rows == SKINNY_HEADS && p->tokens <= 8)
		return skinny_launch_heads<skinny_shape<1, 1, UNITS, W>>(p, stream);
	if (p->rows == SKINNY_HEADS)
		return skinny_launch_heads<skinny_shape<2, 1, UNITS / 2, W>>(p, stream);
	if (p->tokens <= 8)
		return skinny_launch_shape<skinny_shape<1, 1, UNITS, W>>(p, stream);
	return skinny_launch_shape<skinny_shape<2, 2, UNITS / 2, W>>(p, stream);
}

template <typename S>
static enum err skinny_launch_experts_shape(const struct skinny *p, const struct skinny_experts *x, u32 experts,
					    cudaStream_t stream)
{
	const u32 warps = skinny_warps<S>(p);
	return cuda_launched(LAUNCH(skinny_experts_kernel<S>, dim3(cuda_ceil(p->n, 16 * S::TILES), experts),
				    warps * CU_WARP, warps * S::WARP_BYTES, stream, *p, *x));
}

template <enum kern_dtype W>
static enum err skinny_launch_experts(const struct skinny *p, const struct skinny_experts *x,
				      const struct skinny_work *work, cudaStream_t stream)
{
	constexpr u32 UNITS = W == KERN_BF16 ? 4 : 2;
	/* Both divide the columns alike, so a row has the same bits in any company. */
	using few = skinny_shape<1, 1, UNITS / 2, W>;
	using many = skinny_shape<2, 2, UNITS / 2, W>;
	if (work->tokens <= 8)
		return skinny_launch_experts_shape<few>(p, x, work->experts, stream);
	return skinny_launch_experts_shape<many>(p, x, work->experts, stream);
}

#endif
