/* Products of all heads, each with a matrix of its own, in one launch: of queries into the space of latents, and of what
 * attention gives there into values. The matrices are small, so a block has one head's rows and tokens in shared memory, a chunk of the
 * columns at a time, and loads of other blocks of its multiprocessor go on while it computes.
 *
 * Tokens are the matrix unit's A and rows of the weight its B, so that a lane's results are neighbours in the output. With few
 * tokens the weights come from memory once for 32 of them; where k is large, rows are few, and four warps divide the columns of
 * 16 rows, whose sums are added up in a fixed order. With many tokens a block has 64 of them and 64 rows. */
#include "kernels/cuda/device.cuh"
#include "kernels/weight_device_priv.h"

enum {
	HEADS_MAX = 256,
	HEADS_COLUMNS = 32, /* k is a multiple of it */
	HEADS_FEW = 64,	    /* tokens at most that are not many */
	HEADS_LONG = 128,   /* columns beyond which warps divide them */
};

struct head_product {
	const u16 *w[HEADS_MAX];
	void *out;
	const void *x;
	u32 tokens, n, k, beside, x_stride, x_apart, out_stride, out_apart;
	bool out_f32, pairs; /* pairs: neighbours in the output are aligned as such */
};

/* Of inputs: bf16, or floats. */
template <bool F32> struct head_input {
	using type = u16;
};
template <> struct head_input<true> {
	using type = float;
};

template <u32 TOKEN_WARPS_, u32 ROW_WARPS_, u32 K_WARPS_, u32 SIXTEENS_, u32 ROW_SIXTEENS_, u32 CHUNK_, bool F32_>
struct head_shape {
	using X = typename head_input<F32_>::type;
	static constexpr u32 TOKEN_WARPS = TOKEN_WARPS_, ROW_WARPS = ROW_WARPS_, K_WARPS = K_WARPS_;
	static constexpr u32 SIXTEENS = SIXTEENS_, ROW_SIXTEENS = ROW_SIXTEENS_; /* of tokens and of rows of a warp */
	static constexpr u32 TOKENS = TOKEN_WARPS * SIXTEENS * 16, ROWS = ROW_WARPS * ROW_SIXTEENS * 16;
	static constexpr u32 THREADS = TOKEN_WARPS * ROW_WARPS * K_WARPS * CU_WARP;
	static constexpr u32 CHUNK = CHUNK_, PITCH = CHUNK + 8; /* columns; odd in units of 16 bytes: no bank conflicts */
	static constexpr u32 X_AT = ROWS * PITCH * 2, SHARED_WORK = X_AT + TOKENS * PITCH * 2;
	static constexpr u32 SUMS = SIXTEENS * ROW_SIXTEENS * 8; /* of a lane */
	static constexpr u32 SHARED_SUMS = K_WARPS > 1 ? K_WARPS * SUMS * CU_WARP * 4 : 0;
	static constexpr u32 SHARED_BYTES = SHARED_WORK > SHARED_SUMS ? SHARED_WORK : SHARED_SUMS;
	static_assert(SHARED_BYTES <= 48 << 10, "what every kernel may have");
	static_assert(K_WARPS == 1 || (TOKEN_WARPS == 1 && ROW_WARPS == 1), "all warps have the same tile, or none has another's");
};

/* ---------------------------------------------------------------- loads */

CU_INLINE float head_float(const u16 *x)
{
	return cu_bf16_to_f32(*x);
}

CU_INLINE float head_float(const float *x)
{
	return *x;
}

template <typename S> CU_INLINE void head_load_w(const struct head_product *p, u16 *to, u32 k)
{
	constexpr u32 VECTORS = S::CHUNK / 8;
	const u16 *w = p->w[blockIdx.y];
	for (u32 i = threadIdx.x; i < S::ROWS * VECTORS; i += S::THREADS) {
		const u32 r = i / VECTORS, at = i % VECTORS * 8, row = blockIdx.x * S::ROWS + r;
		const bool valid = row < p->n && k + at < p->k;
		cu_cp_async16(to + r * S::PITCH + at, w + (valid ? (size_t)row * p->k + k + at : 0), valid);
	}
}

/* Eight inputs, which are bf16 in shared memory. */
CU_INLINE void head_load8(u16 *to, const u16 *from, bool valid)
{
	cu_cp_async16(to, from, valid);
}

CU_INLINE void head_load8(u16 *to, const float *from, bool valid)
{
	float x[8] = {};
	if (valid)
		load8(from, x);
	cu_store(to, pack8(x));
}

template <typename S> CU_INLINE void head_load_x(const struct head_product *p, u16 *to, u32 k)
{
	constexpr u32 VECTORS = S::CHUNK / 8;
	const typename S::X *x = (const typename S::X *)p->x + (size_t)blockIdx.y * p->x_apart;
	for (u32 i = threadIdx.x; i < S::TOKENS * VECTORS; i += S::THREADS) {
		const u32 r = i / VECTORS, at = i % VECTORS * 8, token = blockIdx.z * S::TOKENS + r;
		const bool valid = token < p->tokens && k + at < p->k;
		head_load8(to + r * S::PITCH + at, x + (valid ? (size_t)token * p->x_stride + k + at : 0), valid);
	}
}

/* ---------------------------------------------------------------- the product */

/* The first `steps` times 16 columns of what is in shared memory. */
template <typename S>
CU_INLINE void head_chunk(const u16 *w, const u16 *x, u32 steps, float c[S::SIXTEENS][S::ROW_SIXTEENS][2][4])
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	const u32 row = S::K_WARPS > 1 ? 0 : warp % S::ROW_WARPS * S::ROW_SIXTEENS * 16,
		  token = S::K_WARPS > 1 ? 0 : warp / S::ROW_WARPS * S::SIXTEENS * 16;
	w += (row + lane % 8 + lane / 16 * 8) * S::PITCH + lane / 8 % 2 * 8;
	x += (token + lane % 16) * S::PITCH + lane / 16 * 8;
#pragma unroll 2
	for (u32 i = S::K_WARPS > 1 ? warp : 0; i < steps; i += S::K_WARPS) {
		u32 a[S::SIXTEENS][4];
#pragma unroll
		for (u32 m = 0; m < S::SIXTEENS; m++)
			cu_ldmatrix_x4(a[m], x + m * 16 * S::PITCH + i * 16);
#pragma unroll
		for (u32 j = 0; j < S::ROW_SIXTEENS; j++) {
			u32 b[4];
			cu_ldmatrix_x4(b, w + j * 16 * S::PITCH + i * 16);
#pragma unroll
			for (u32 m = 0; m < S::SIXTEENS; m++)
				cu_mma_bf16_n16(c[m][j], a[m], b);
		}
	}
}

/* Adds what the warps have of the same tile, into the first of them. */
template <typename S> CU_INLINE void head_join(float *shared, float c[S::SIXTEENS][S::ROW_SIXTEENS][2][4])
{
	float *mine = shared + threadIdx.x / CU_WARP * S::SUMS * CU_WARP + threadIdx.x % CU_WARP;
	cu_sync(); /* nobody reads operands any more */
#pragma unroll
	for (u32 i = 0; i < S::SUMS; i++)
		mine[i * CU_WARP] = c[i / 8 / S::ROW_SIXTEENS][i / 8 % S::ROW_SIXTEENS][i / 4 % 2][i % 4];
	cu_sync(); /* all warps' sums are there */
	if (threadIdx.x >= CU_WARP)
		return;
#pragma unroll
	for (u32 i = 0; i < S::SUMS; i++) {
		float sum = mine[i * CU_WARP];
#pragma unroll
		for (u32 k = 1; k < S::K_WARPS; k++)
			sum += mine[(k * S::SUMS + i) * CU_WARP];
		c[i / 8 / S::ROW_SIXTEENS][i / 8 % S::ROW_SIXTEENS][i / 4 % 2][i % 4] = sum;
	}
}

CU_INLINE void head_store(const struct head_product *p, size_t at, float x)
{
	if (p->out_f32)
		((float *)p->out)[at] = x;
	else
		((u16 *)p->out)[at] = cu_f32_to_bf16(x);
}

/* Neighbours `column` and the one behind it, which need not exist. */
CU_INLINE void head_store_two(const struct head_product *p, size_t at, u32 column, float x, float y)
{
	if (column >= p->n)
		return;
	if (p->pairs && p->out_f32) {
		cu_store((float *)p->out + at, make_float2(x, y));
	} else if (p->pairs) {
		cu_store((u16 *)p->out + at, cu_pack_bf16(x, y));
	} else {
		head_store(p, at, x);
		if (column + 1 < p->n)
			head_store(p, at + 1, y);
	}
}

template <typename S>
CU_INLINE void head_write(const struct head_product *p, const float c[S::SIXTEENS][S::ROW_SIXTEENS][2][4])
{
	const u32 lane = threadIdx.x % CU_WARP, warp = S::K_WARPS > 1 ? 0 : threadIdx.x / CU_WARP;
	const u32 row = blockIdx.x * S::ROWS + warp % S::ROW_WARPS * S::ROW_SIXTEENS * 16 + lane % 4 * 2;
	const u32 first = blockIdx.z * S::TOKENS + warp / S::ROW_WARPS * S::SIXTEENS * 16 + lane / 4;
#pragma unroll
	for (u32 i = 0; i < 2 * S::SIXTEENS; i++) {
		const u32 token = first + i * 8, e = i % 2 * 2;
		const size_t at = (size_t)token * p->out_stride + (size_t)blockIdx.y * p->out_apart + p->beside;
		if (token >= p->tokens)
			continue;
#pragma unroll
		for (u32 j = 0; j < 2 * S::ROW_SIXTEENS; j++) {
			const float *sums = c[i / 2][j / 2][j % 2];
			head_store_two(p, at + row + j * 8, row + j * 8, sums[e], sums[e + 1]);
		}
	}
}

/* What stands beside a product, as it is. */
template <typename S> CU_INLINE void head_copy_beside(const struct head_product *p)
{
	const u32 first = blockIdx.z * S::TOKENS, tokens = least(p->tokens - first, S::TOKENS);
	const typename S::X *x = (const typename S::X *)p->x + (size_t)blockIdx.y * p->x_apart + p->k;
	for (u32 i = threadIdx.x; i < tokens * p->beside; i += S::THREADS) {
		const size_t token = first + i / p->beside;
		head_store(p, token * p->out_stride + (size_t)blockIdx.y * p->out_apart + i % p->beside,
			   head_float(x + token * p->x_stride + i % p->beside));
	}
}

/* Blocks: rows, heads, tokens. Weights are nobody's output, so the first of them come while the kernel ahead finishes. */
template <typename S> static __global__ void __launch_bounds__(S::THREADS) head_matmul_kernel(const struct head_product p)
{
	SHARED_DYNAMIC(u8, shared);
	u16 *const w = (u16 *)shared, *const x = (u16 *)(shared + S::X_AT);
	float c[S::SIXTEENS][S::ROW_SIXTEENS][2][4] = {};
	for (u32 k = 0; k < p.k; k += S::CHUNK) {
		if (k > 0)
			cu_sync(); /* the columns before are used up */
		head_load_w<S>(&p, w, k);
		if (k == 0)
			cu_grid_wait();
		head_load_x<S>(&p, x, k);
		cu_cp_commit();
		cu_cp_wait<0>();
		cu_sync(); /* everybody's part of these columns has come */
		head_chunk<S>(w, x, least(p.k - k, S::CHUNK) / 16, c);
	}
	cu_grid_launch();
	if constexpr (S::K_WARPS > 1)
		head_join<S>((float *)shared, c);
	if (S::K_WARPS == 1 || threadIdx.x < CU_WARP)
		head_write<S>(&p, c);
	if (blockIdx.x == 0 && p.beside > 0)
		head_copy_beside<S>(&p);
}

/* ---------------------------------------------------------------- host */

template <typename S> static enum err head_launch(const struct head_product *p, u32 heads, cudaStream_t stream)
{
	const u32 tiles = cuda_ceil(p->tokens, S::TOKENS);
	if (tiles > CUDA_GRID_Y_MAX)
		return ERR_INVALID;
	return cuda_launched(LAUNCH_DEPENDENT(head_matmul_kernel<S>, dim3(cuda_ceil(p->n, S::ROWS), heads, tiles), S::THREADS,
					      S::SHARED_BYTES, stream, *p));
}

/* Which sums a row's are depends on the number of tokens, not on what they hold. */
template <bool F32> static enum err head_run(const struct head_product *p, u32 heads, cudaStream_t stream)
{
	if (p->tokens > HEADS_FEW)
		return head_launch<head_shape<2, 2, 1, 2, 2, 128, F32>>(p, heads, stream);
	if (p->k > HEADS_LONG && p->tokens <= 16)
		return head_launch<head_shape<1, 1, 4, 1, 1, 512, F32>>(p, heads, stream);
	if (p->k > HEADS_LONG)
		return head_launch<head_shape<1, 1, 4, 2, 1, 256, F32>>(p, heads, stream);
	if (p->tokens <= 16)
		return head_launch<head_shape<1, 4, 1, 1, 1, 128, F32>>(p, heads, stream);
	return head_launch<head_shape<1, 4, 1, 2, 1, 128, F32>>(p, heads, stream);
}

static bool head_types_known(const struct kern_head_matmul_args *a)
{
	return (a->dtype == KERN_F32 || a->dtype == KERN_BF16) && (a->out_dtype == KERN_F32 || a->out_dtype == KERN_BF16) &&
	       a->w->dtype == KERN_BF16 && a->w->k % HEADS_COLUMNS == 0;
}

CUDA_OP(head_matmul)
{
	const u32 vector = a->dtype == KERN_F32 ? 4 : 8; /* what 16 bytes hold of x */
	const u32 width = a->out_dtype == KERN_F32 ? 8 : 4; /* bytes of a pair of the output */
	struct head_product p = {};
	if (a->heads == 0 || a->heads > HEADS_MAX || !head_types_known(a))
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->x) || a->x_stride % vector != 0 || a->x_apart % vector != 0 || a->w->n == 0)
		return ERR_INVALID;
	for (u32 h = 0; h < a->heads; h++) {
		const struct kern_weight *w = &a->w[h];
		if (w->n != a->w->n || w->k != a->w->k || w->dtype != KERN_BF16 || !cuda_aligned(w->data))
			return ERR_INVALID;
		if (w->order)
			return ERR_UNSUPPORTED;
		p.w[h] = (const u16 *)w->data;
	}
	if (a->tokens == 0)
		return ERR_OK;
	p.out = a->out;
	p.x = a->x;
	p.tokens = a->tokens;
	p.n = a->w->n;
	p.k = a->w->k;
	p.beside = a->beside;
	p.x_stride = a->x_stride;
	p.x_apart = a->x_apart;
	p.out_stride = a->out_stride;
	p.out_apart = a->out_apart;
	p.out_f32 = a->out_dtype == KERN_F32;
	p.pairs = (p.n | p.beside | p.out_stride | p.out_apart) % 2 == 0 && (uintptr_t)p.out % width == 0;
	return a->dtype == KERN_F32 ? head_run<true>(&p, a->heads, cuda_stream(ctx)) : head_run<false>(&p, a->heads, cuda_stream(ctx));
}
