/* Weights of 8 and 4 bits as bf16, for products of many tokens: scaled before they are rounded, since nobody scales
 * the sums of a group afterwards. Of weights in bf16 nothing changes. */
#ifndef TERCET_KERNELS_CUDA_MATMUL_WIDEN_CUH
#define TERCET_KERNELS_CUDA_MATMUL_WIDEN_CUH

#include "kernels/cuda/matmul_skinny.cuh"

/* Columns 8t .. 8t + 7 of slab `slab` of what lane t of a row loaded. `scale`: and the zero in
 * units of the weight as skinny_columns gives it. */
template <enum kern_dtype W> CU_INLINE void widen_columns(const uint4 raw, u32 slab, const float2 scale, float x[8])
{
	u32 words[4];
	skinny_columns<W>(raw, slab, words);
	unpack8(make_uint4(words[0], words[1], words[2], words[3]), x);
#pragma unroll
	for (u32 e = 0; e < 8; e++)
		x[e] = scale.x * (W == KERN_I4_128 ? x[e] - scale.y : x[e]);
}

#endif
