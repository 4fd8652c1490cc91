/* What the kernels of this folder share: vectors of bf16, sums and maxima over warps and blocks, 8-bit
 * rounding, and the host side of a launcher. Device code here is plain CUDA C++ over the wrappers of cu.h, so
 * that it also runs in the emulation of tests/cuda_emu. */
#ifndef TERCET_KERNELS_CUDA_DEVICE_CUH
#define TERCET_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/cu.h"
#include "kernels/kernels.h"

#define CUDA_F8_MAX 448.0f /* the largest values of the 8-bit types */
#define CUDA_I8_MAX 127.0f

enum {
	CUDA_BLOCK_MAX = 1024,
	CUDA_GRID_Y_MAX = 65535,
};

/* ---------------------------------------------------------------- host */

/* The C door of an op's device variant. */
#define CUDA_OP(op) extern "C" enum err op##_cuda(struct kern_ctx *ctx, const struct kern_##op##_args *a)

static inline cudaStream_t cuda_stream(const struct kern_ctx *ctx)
{
	return (cudaStream_t)ctx->stream;
}

/* ERR_DEVICE. Says in the log what CUDA's word for it is, which an op's answer has no room for. */
enum err cuda_refused(cudaError_t e);

static inline enum err cuda_launched(cudaError_t e)
{
	return e == cudaSuccess ? ERR_OK : cuda_refused(e);
}

static inline u32 cuda_ceil(u32 a, u32 b)
{
	return (a + b - 1) / b;
}

/* An attribute of the device that this process uses; 0: it has no answer. */
static inline u32 cuda_attribute(cudaDeviceAttr attribute)
{
	int device = 0, value = 0;
	return cudaGetDevice(&device) == cudaSuccess &&
			       cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess
		       ? (u32)value
		       : 0;
}

/* Bytes of shared memory that a block may have. */
static inline u32 cuda_shared_most(void)
{
	static const u32 most = cuda_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);

	return most;
}

/* Multiprocessors. */
static inline u32 cuda_processors(void)
{
	static const u32 count = cuda_attribute(cudaDevAttrMultiProcessorCount);

	return count;
}

static inline bool cuda_aligned(const void *p)
{
	return ((uintptr_t)p & 15) == 0;
}

/* ---------------------------------------------------------------- values */

CU_BOTH u32 least(u32 a, u32 b)
{
	return a < b ? a : b;
}

CU_BOTH u32 most(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* Eight bf16 as four words, low half first. */
CU_INLINE void unpack8(const uint4 v, float x[8])
{
	const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		x[2 * i] = cu_bf16_lo(words[i]);
		x[2 * i + 1] = cu_bf16_hi(words[i]);
	}
}

CU_INLINE uint4 pack8(const float x[8])
{
	return make_uint4(cu_pack_bf16(x[0], x[1]), cu_pack_bf16(x[2], x[3]), cu_pack_bf16(x[4], x[5]),
			  cu_pack_bf16(x[6], x[7]));
}

/* Eight neighbours, 16-byte aligned, as floats; and back, rounded where they are stored as bf16. */
CU_INLINE void load8(const u16 *from, float x[8])
{
	unpack8(cu_load<uint4>(from), x);
}

CU_INLINE void load8(const float *from, float x[8])
{
	const float4 low = cu_load<float4>(from), high = cu_load<float4>(from + 4);
	x[0] = low.x;
	x[1] = low.y;
	x[2] = low.z;
	x[3] = low.w;
	x[4] = high.x;
	x[5] = high.y;
	x[6] = high.z;
	x[7] = high.w;
}

CU_INLINE void store8(u16 *to, const float x[8])
{
	cu_store(to, pack8(x));
}

CU_INLINE void store8(float *to, const float x[8])
{
	cu_store(to, make_float4(x[0], x[1], x[2], x[3]));
	cu_store(to + 4, make_float4(x[4], x[5], x[6], x[7]));
}

/* x * inverse as 8 bits, saturated. */
CU_INLINE u32 quantize(float x, float inverse, bool f8)
{
	if (f8)
		return cu_f32_to_e4m3(x * inverse);
	const int i = cu_round(x * inverse);
	return (u32)(i < -127 ? -127 : i > 127 ? 127 : i) & 0xff;
}

/* Eight values, 8-byte aligned. */
CU_INLINE void store_quantized(u8 *to, const float v[8], float inverse, bool f8)
{
	u32 words[2] = {0, 0};
#pragma unroll
	for (u32 i = 0; i < 8; i++)
		words[i / 4] |= quantize(v[i], inverse, f8) << (i % 4 * 8);
	cu_store(to, make_uint2(words[0], words[1]));
}

/* ---------------------------------------------------------------- sums and maxima */

CU_INLINE float warp_sum(float x)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		x += cu_shfl_xor(x, i);
	return x;
}

CU_INLINE float warp_max(float x)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		x = fmaxf(x, cu_shfl_xor(x, i));
	return x;
}

/* Over all threads of a block of whole warps, the same in each of them. `shared` has a float per warp and is
 * not touched by anybody else until the block's next barrier. */
CU_INLINE float block_sum(float x, float *shared)
{
	const u32 lane = threadIdx.x % CU_WARP, warps = blockDim.x / CU_WARP;
	x = warp_sum(x);
	if (lane == 0)
		shared[threadIdx.x / CU_WARP] = x;
	cu_sync(); /* all warps' sums are there */
	return warp_sum(lane < warps ? shared[lane] : 0);
}

/* Of values that are not negative. */
CU_INLINE float block_max(float x, float *shared)
{
	const u32 lane = threadIdx.x % CU_WARP, warps = blockDim.x / CU_WARP;
	x = warp_max(x);
	if (lane == 0)
		shared[threadIdx.x / CU_WARP] = x;
	cu_sync(); /* all warps' maxima are there */
	return warp_max(lane < warps ? shared[lane] : 0);
}

#endif
