/* Causal convolutions of channels. A thread has four channels (one where they are not aligned) of a row, whose tokens it goes through in order with
 * the last inputs in registers; several tokens are on their way meanwhile. What it has of a token it reads before it writes, and nobody
 * else reads, so the output may lie where an input does. */
#include "kernels/cuda/recurrent.cuh"

enum { THREADS = 128 };

/* A thread's part of a token. */
template <u32 V> struct conv_in {
	float x[V], before[V], behind[V];
};

/* What a thread keeps. Convolutions of fewer taps leave out the first ones. */
template <u32 V, u32 TAPS> struct conv_channels {
	float weight[TAPS][V], bias[V];
	float u[TAPS][V]; /* the newest last */
	u32 c;		  /* the first */
	u32 unused;	  /* taps */
};

template <u32 V, u32 TAPS>
CU_INLINE void conv_weights(const struct kern_conv_args *a, struct conv_channels<V, TAPS> *s)
{
#pragma unroll
	for (u32 i = 0; i < TAPS; i++)
		if (i >= s->unused)
			load_values<V>(a->weight + (size_t)(i - s->unused) * a->channels + s->c, s->weight[i]);
#pragma unroll
	for (u32 e = 0; e < V; e++)
		s->bias[e] = 0;
	if (a->bias)
		load_values<V>(a->bias + s->c, s->bias);
}

/* From a slot, or zeros: what comes before the next token. */
template <u32 V, u32 TAPS>
CU_INLINE void conv_take(const struct kern_conv_args *a, const float *state, bool begins, struct conv_channels<V, TAPS> *s)
{
#pragma unroll
	for (u32 i = 0; i < TAPS; i++) {
#pragma unroll
		for (u32 e = 0; e < V; e++)
			s->u[i][e] = 0;
		if (!begins && i > s->unused)
			load_values<V>(state + (size_t)(i - s->unused - 1) * a->channels + s->c, s->u[i]);
	}
}

template <u32 V, u32 TAPS>
CU_INLINE void conv_give(const struct kern_conv_args *a, float *state, const struct conv_channels<V, TAPS> *s)
{
#pragma unroll
	for (u32 i = 1; i < TAPS; i++)
		if (i > s->unused)
			store_values<V>(state + (size_t)(i - s->unused - 1) * a->channels + s->c, s->u[i]);
}

template <u32 V, bool GATED, u32 AHEAD>
CU_INLINE void conv_load(const struct kern_conv_args *a, u32 c, u32 t, u32 end, struct conv_in<V> in[AHEAD])
{
#pragma unroll
	for (u32 i = 0; i < AHEAD; i++) {
		const size_t at = (size_t)(t + i) * a->stride + c;
		if (t + i >= end)
			continue;
		load_values<V>(a->x + at, in[i].x);
		if (GATED && a->before)
			load_values<V>(a->before + at, in[i].before);
		if (GATED && a->behind)
			load_values<V>(a->behind + at, in[i].behind);
	}
}

template <u32 V, u32 TAPS, bool GATED>
CU_INLINE void conv_token(const struct kern_conv_args *a, u32 t, const struct conv_in<V> *in, struct conv_channels<V, TAPS> *s)
{
	float out[V];
#pragma unroll
	for (u32 e = 0; e < V; e++) {
#pragma unroll
		for (u32 i = 0; i + 1 < TAPS; i++)
			s->u[i][e] = s->u[i + 1][e];
		s->u[TAPS - 1][e] = GATED && a->before ? in->x[e] * in->before[e] : in->x[e];
		float sum = 0;
#pragma unroll
		for (u32 i = 0; i < TAPS; i++)
			if (i >= s->unused)
				sum = fmaf(s->weight[i][e], s->u[i][e], sum);
		sum += s->bias[e];
		if (a->silu)
			sum *= sigmoid(sum);
		out[e] = GATED && a->behind ? sum * in->behind[e] : sum;
	}
	if (a->out_bf16)
		store_values<V>(a->out_bf16 + (size_t)t * a->out_stride + s->c, out);
	else
		store_values<V>(a->out + (size_t)t * a->stride + s->c, out);
}

/* Tokens [first, end) of a row. While some are computed the next ones are being loaded. */
template <u32 V, u32 TAPS, bool GATED>
CU_INLINE void conv_tokens(const struct kern_conv_args *a, u32 first, u32 end, struct conv_channels<V, TAPS> *s)
{
	constexpr u32 AHEAD = V == 4 && (GATED || TAPS > 4) ? 4 : 8; /* as many as there are registers for */
	struct conv_in<V> next[AHEAD];
	conv_load<V, GATED, AHEAD>(a, s->c, first, end, next);
#pragma unroll 1
	for (u32 t = first; t < end; t += AHEAD) {
		struct conv_in<V> now[AHEAD];
#pragma unroll
		for (u32 i = 0; i < AHEAD; i++)
			now[i] = next[i];
		conv_load<V, GATED, AHEAD>(a, s->c, t + AHEAD, end, next);
#pragma unroll
		for (u32 i = 0; i < AHEAD; i++)
			if (t + i < end)
				conv_token<V, TAPS, GATED>(a, t + i, &now[i], s);
	}
}

template <u32 V, u32 TAPS, bool GATED>
static __global__ void __launch_bounds__(THREADS) conv_kernel(const struct kern_conv_args a)
{
	struct conv_channels<V, TAPS> s;
	cu_grid_begin();
	s.c = (blockIdx.x * THREADS + threadIdx.x) * V;
	s.unused = TAPS - a.taps;
	const bool mine = s.c < a.channels; /* of all V */
	if (mine)
		conv_weights<V, TAPS>(&a, &s);
	turns_each(&a.state, [&](const struct turn &turn) {
		if (!mine)
			return;
		float *state = turn_state(&a.state, turn.slot);
		conv_take<V, TAPS>(&a, state, turn.begins, &s);
		conv_tokens<V, TAPS, GATED>(&a, turn.first, turn.save_end, &s);
		if (turn.save_end > turn.first)
			conv_give<V, TAPS>(&a, turn_state(&a.state, turn.save_slot), &s);
		conv_tokens<V, TAPS, GATED>(&a, turn.save_end, turn.end, &s);
		conv_give<V, TAPS>(&a, state, &s);
	});
}

template <u32 V, u32 TAPS> static enum err launch(const struct kern_conv_args *a, cudaStream_t stream)
{
	const u32 blocks = cuda_ceil(a->channels, THREADS * V);
	const dim3 grid(blocks, turn_blocks(a->state.rows, blocks));
	return cuda_launched(LAUNCH_DEPENDENT(a->before || a->behind ? conv_kernel<V, TAPS, true> : conv_kernel<V, TAPS, false>, grid, THREADS, 0,
					      stream, *a));
}

CUDA_OP(conv)
{
	const struct kern_state *s = &a->state;
	if (a->taps < 2 || a->taps > KERN_CONV_TAPS_MAX)
		return ERR_UNSUPPORTED;
	if (s->rows == 0 || a->channels == 0)
		return ERR_OK;
	const u64 widths = a->channels | a->stride | s->stride | (a->out_bf16 ? a->out_stride : 0);
	const bool vectors = widths % 4 == 0 && cuda_aligned(s->data) && cuda_aligned(a->x) && cuda_aligned(a->before) && cuda_aligned(a->behind) &&
			     cuda_aligned(a->weight) && cuda_aligned(a->bias) &&
			     (a->out_bf16 ? (uintptr_t)a->out_bf16 % sizeof(uint2) == 0 : cuda_aligned(a->out));
	if (a->taps <= 4)
		return vectors ? launch<4, 4>(a, cuda_stream(ctx)) : launch<1, 4>(a, cuda_stream(ctx));
	return vectors ? launch<4, 8>(a, cuda_stream(ctx)) : launch<1, 8>(a, cuda_stream(ctx));
}
