/* Tiles of the products of a mixture's experts, rows of a weight times tokens of its expert: which there are is known on
 * the device alone, so each block adds up how many blocks of tokens the experts have. */
#ifndef TERCET_KERNELS_CUDA_MOE_TILES_CUH
#define TERCET_KERNELS_CUDA_MOE_TILES_CUH

#include "kernels/cuda/matmul_skinny.cuh"

enum { TILED_TOGETHER = 8 }; /* blocks of tokens that go through a weight side by side */

struct tiled {
	struct skinny p;
	struct skinny_experts x;
	u32 experts, row_blocks, steps;
};

struct tiled_place {
	u32 expert, row, at, tokens; /* first row of the weight; first assignment and how many */
};

/* before[e]: blocks of tokens of the experts ahead of e. The first warp counts. */
CU_INLINE void tiled_count(const struct tiled *a, u32 tokens, u32 *before)
{
	constexpr u32 EACH = SKINNY_EXPERTS_MAX / CU_WARP;
	const u32 lane = threadIdx.x % CU_WARP;
	u32 counts[EACH], sum = 0;
	if (threadIdx.x < CU_WARP) {
#pragma unroll
		for (u32 i = 0; i < EACH; i++) {
			const u32 e = lane * EACH + i;
			const u32 count = e < a->experts ? a->x.expert_start[e + 1] - a->x.expert_start[e] : 0;
			counts[i] = (count + tokens - 1) / tokens;
			sum += counts[i];
		}
		u32 until = sum;
#pragma unroll
		for (u32 by = 1; by < CU_WARP; by *= 2) {
			const u32 others = cu_shfl_up(until, by);
			until += lane >= by ? others : 0;
		}
		until -= sum;
#pragma unroll
		for (u32 i = 0; i < EACH; i++) {
			before[lane * EACH + i] = until;
			until += counts[i];
		}
		if (lane == CU_WARP - 1)
			before[SKINNY_EXPERTS_MAX] = until;
	}
	cu_sync(); /* the counts are there */
}

/* The blocks of tokens of an expert, up to eight, follow each other, then the next rows: so a weight is read from
 * memory once for them, and what they read of x stays in the cache. */
template <typename S>
CU_INLINE struct tiled_place tiled_find(const struct tiled *a, const u32 *before, u32 tile)
{
	u32 e = 0;
#pragma unroll
	for (u32 step = SKINNY_EXPERTS_MAX / 2; step > 0; step /= 2)
		e += before[e + step] * a->row_blocks <= tile ? step : 0;
	const u32 blocks = before[e + 1] - before[e], within = tile - before[e] * a->row_blocks;
	const u32 first = within / (TILED_TOGETHER * a->row_blocks) * TILED_TOGETHER;
	const u32 width = least(blocks - first, TILED_TOGETHER), i = within - first * a->row_blocks;
	struct tiled_place place;
	place.expert = e;
	place.row = i / width * S::ROWS;
	place.at = a->x.expert_start[e] + (first + i % width) * S::TOKENS;
	place.tokens = least(a->x.expert_start[e + 1] - place.at, S::TOKENS);
	return place;
}

#endif
