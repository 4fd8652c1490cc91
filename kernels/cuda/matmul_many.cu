/* What surrounds cuBLASLt's product of many tokens: widening quantized weights to bf16, and the bias. */
#include "kernels/cuda/lt.cuh"
#include "kernels/cuda/matmul_widen.cuh"
#include "kernels/weight_device_priv.h"

enum { THREADS = 256, VECTOR = 8 };

struct widen {
	const u8 *w, *scales, *zeros;
	const u32 *order;
	u16 *out;
	u32 n, k, units, scale_rows, groups, group_shift;
};

/* One 16-byte part of a row: eight columns of each of its slabs. */
template <enum kern_dtype W>
static __global__ void __launch_bounds__(THREADS) widen_kernel(const struct widen p)
{
	constexpr u32 SLABS = skinny_format<W>::SLABS;
	const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
	const u32 lane = (u32)(i % 4), unit = (u32)(i / 4 % p.units);
	const u64 row = i / 4 / p.units;
	if (row >= p.n)
		return;
	const uint4 raw = cu_load_stream<uint4>(p.w + i * 16);
#pragma unroll
	for (u32 slab = 0; slab < SLABS; slab++) {
		const u32 k = (unit * SLABS + slab) * SKINNY_SLAB + lane * 8;
		float x[VECTOR];
		if (k >= p.k)
			continue;
		const u64 group = (u64)(k >> p.group_shift) * p.scale_rows + row;
		const bool int4 = W == KERN_I4_128;
		const float scale = int4 ? cu_f16_to_f32(((const u16 *)p.scales)[group])
					 : ((const float *)p.scales)[group];
		const float zero = int4 ? cu_f16_to_f32(((const u16 *)p.zeros)[group]) + 128 : 0;
		widen_columns<W>(raw, slab, make_float2(scale, zero), x);
		u16 *out = p.out + row * p.k;
		if (!p.order) {
			cu_store(out + k, pack8(x));
			continue;
		}
#pragma unroll
		for (u32 e = 0; e < VECTOR; e++) /* the column of the input that it multiplies */
			out[p.order[k + e]] = cu_f32_to_bf16(x[e]);
	}
}

/* out[t][n] = bias[n], or += */
static __global__ void __launch_bounds__(THREADS)
	bias_kernel(void *out, const float *bias, u32 n, u32 stride, bool f32, bool accumulate)
{
	const u32 i = blockIdx.x * THREADS + threadIdx.x;
	const size_t at = (size_t)blockIdx.y * stride + i;
	if (i >= n)
		return;
	if (f32) {
		float *to = (float *)out + at;
		*to = accumulate ? *to + bias[i] : bias[i];
	} else {
		u16 *to = (u16 *)out + at;
		*to = cu_f32_to_bf16(accumulate ? cu_bf16_to_f32(*to) + bias[i] : bias[i]);
	}
}

static enum err widen(struct kern_ctx *ctx, const struct kern_weight *w, struct kern_weight *wide)
{
	const size_t row_bytes = weight_device_row_bytes(w->k, w->dtype);
	const u64 parts = w->n * (u64)row_bytes / 16, blocks = (parts + THREADS - 1) / THREADS;
	struct widen p = {(const u8 *)w->data};
	p.scales = p.w + w->n * row_bytes;
	p.zeros = p.scales + weight_device_scales_bytes(w->n, w->k, w->dtype);
	p.order = w->order;
	p.out = (u16 *)ctx->scratch;
	p.n = w->n;
	p.k = w->k;
	p.units = (u32)(row_bytes / WEIGHT_DEVICE_UNIT);
	p.scale_rows = weight_device_scale_rows(w->n);
	p.groups = weight_device_groups(w->k, w->dtype);
	while (1u << p.group_shift < weight_device_group(w->dtype))
		p.group_shift++;
	if (ctx->scratch_bytes < (size_t)w->n * w->k * sizeof(u16) || blocks > 0x7fffffff)
		return ERR_UNSUPPORTED;
	*wide = {};
	wide->n = w->n;
	wide->k = w->k;
	wide->dtype = KERN_BF16;
	wide->packed = w->packed;
	wide->data = ctx->scratch;
	if (w->dtype == KERN_I8)
		return cuda_launched(
			LAUNCH(widen_kernel<KERN_I8>, (u32)blocks, THREADS, 0, cuda_stream(ctx), p));
	if (w->dtype == KERN_F8E4M3)
		return cuda_launched(
			LAUNCH(widen_kernel<KERN_F8E4M3>, (u32)blocks, THREADS, 0, cuda_stream(ctx), p));
	return cuda_launched(LAUNCH(widen_kernel<KERN_I4_128>, (u32)blocks, THREADS, 0, cuda_stream(ctx), p));
}

enum err matmul_many(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_matmul_args product = *a;
	struct kern_weight wide;
	enum err e = ERR_OK;
	if (!cuda_aligned(a->x_bf16) || a->x_stride % VECTOR != 0 || a->tokens > CUDA_GRID_Y_MAX)
		return ERR_UNSUPPORTED;
	if (a->w->dtype != KERN_BF16) {
		e = widen(ctx, a->w, &wide);
		product.w = &wide;
	}
	if (e == ERR_OK && a->bias) {
		const dim3 grid(cuda_ceil(a->w->n, THREADS), a->tokens);
		e = cuda_launched(LAUNCH(bias_kernel, grid, THREADS, 0, cuda_stream(ctx), (void *)a->out,
					 a->bias, a->w->n, a->out_stride, a->out_dtype == KERN_F32,
					 a->accumulate));
		product.accumulate = true;
		product.bias = NULL;
	}
	if (e == ERR_OK)
		e = lt_matmul(ctx, &product);
	/* With the bias added already nobody may start again. */
	return e == ERR_UNSUPPORTED && a->bias && a->accumulate ? ERR_DEVICE : e;
}
