/* What the ops of layers with a state of each sequence share: which rows of a step have tokens, and vectors of values. The host knows nothing
 * of rows but how many there may be, most of which have no tokens: some blocks go through all of them. */
#ifndef TERCET_KERNELS_CUDA_RECURRENT_CUH
#define TERCET_KERNELS_CUDA_RECURRENT_CUH

#include "kernels/cuda/device.cuh"

enum { TURN_BLOCKS = 8 /* a multiprocessor's: what fills it, and as few as that for those without work to cost nothing */ };

/* A row that has tokens. */
struct turn {
	u32 first, end; /* tokens */
	u32 slot;
	u32 save_end, save_slot; /* when the tokens in front of save_end are through, the state goes there, too; `first`: nowhere */
	bool begins;
};

/* Blocks (_, y) have every so many-th row, from y on. */
static inline u32 turn_blocks(u32 rows, u32 blocks_a_row)
{
	return least(rows, most(cuda_ceil(cuda_processors() * TURN_BLOCKS, blocks_a_row), 1));
}

CU_INLINE struct turn turn_of(const struct kern_state *s, u32 row)
{
	struct turn t = {};
	if (row >= s->rows)
		return t;
	t.first = s->query_start[row];
	t.end = s->query_start[row + 1];
	if (t.first >= t.end)
		return t;
	t.slot = s->slots ? s->slots[row] : row;
	t.begins = s->context[row] == t.end - t.first;
	t.save_end = t.first + (s->save_at ? s->save_at[row] : 0);
	t.save_slot = t.save_end > t.first ? s->save_slots[row] : 0;
	return t;
}

/* Calls visit(turn) of this block's rows, one after the other, with all threads of whole warps. A lane looks at a row, so that
 * the block waits once for all that are none. */
template <typename F> CU_INLINE void turns_each(const struct kern_state *s, F visit)
{
#pragma unroll 1
	for (u32 base = blockIdx.y; base < s->rows; base += gridDim.y * CU_WARP) {
		const struct turn mine = turn_of(s, base + threadIdx.x % CU_WARP * gridDim.y);
		u32 left = cu_ballot(mine.first < mine.end);
#pragma unroll 1
		for (; left; left &= left - 1) {
			const u32 lane = cu_ffs(left) - 1;
			struct turn t;
			t.first = cu_shfl(mine.first, lane);
			t.end = cu_shfl(mine.end, lane);
			t.slot = cu_shfl(mine.slot, lane);
			t.save_end = cu_shfl(mine.save_end, lane);
			t.save_slot = cu_shfl(mine.save_slot, lane);
			t.begins = cu_shfl((u32)mine.begins, lane) != 0;
			visit(t);
		}
	}
}

CU_INLINE float *turn_state(const struct kern_state *s, u32 slot)
{
	return s->data + (size_t)slot * s->stride;
}

/* 1 / (1 + e^-x); where that is infinite, 0. */
CU_INLINE float sigmoid(float x)
{
	return cu_rcp(1 + cu_exp2(x * -1.442695041f)); /* -1 / ln 2 */
}

/* V neighbours: four that are aligned, or one. */
template <u32 V> CU_INLINE void load_values(const float *from, float x[V])
{
	static_assert(V == 1 || V == 4, "one or four");
	if constexpr (V == 1) {
		x[0] = *from;
	} else {
		const float4 v = cu_load<float4>(from);
		x[0] = v.x;
		x[1] = v.y;
		x[2] = v.z;
		x[3] = v.w;
	}
}

template <u32 V> CU_INLINE void load_values(const u16 *from, float x[V])
{
	static_assert(V == 1 || V == 4, "one or four");
	if constexpr (V == 1) {
		x[0] = cu_bf16_to_f32(*from);
	} else {
		const uint2 v = cu_load<uint2>(from);
		x[0] = cu_bf16_lo(v.x);
		x[1] = cu_bf16_hi(v.x);
		x[2] = cu_bf16_lo(v.y);
		x[3] = cu_bf16_hi(v.y);
	}
}

template <u32 V> CU_INLINE void store_values(float *to, const float x[V])
{
	if constexpr (V == 1)
		*to = x[0];
	else
		cu_store(to, make_float4(x[0], x[1], x[2], x[3]));
}

template <u32 V> CU_INLINE void store_values(u16 *to, const float x[V])
{
	if constexpr (V == 1)
		*to = cu_f32_to_bf16(x[0]);
	else
		cu_store(to, make_uint2(cu_pack_bf16(x[0], x[1]), cu_pack_bf16(x[2], x[3])));
}

#endif
