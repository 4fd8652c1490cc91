/* Causal convolutions of channels. A thread has a channel of a row, whose tokens it goes through in order with the last inputs in registers; as
 * many tokens are on their way meanwhile as there are registers for, since a prompt has no more threads than channels. What it has of a token
 * it reads before it writes, and nobody else reads, so the output may lie where an input does. */
#include "kernels/cuda/recurrent.cuh"

enum {
	THREADS = 128,
	AHEAD = 16, /* tokens */
};

/* A thread's part of a token. */
struct conv_in {
	float x, before, behind;
};

/* What a thread keeps. Convolutions of fewer taps leave out the first ones. */
template <u32 TAPS> struct conv_channel {
	float weight[TAPS], bias;
	float u[TAPS]; /* the newest last */
	u32 c;
	u32 unused; /* taps */
};

template <u32 TAPS> CU_INLINE void conv_weights(const struct kern_conv_args *a, struct conv_channel<TAPS> *s)
{
#pragma unroll
	for (u32 i = 0; i < TAPS; i++)
		s->weight[i] = i >= s->unused ? a->weight[(size_t)(i - s->unused) * a->channels + s->c] : 0;
	s->bias = a->bias ? a->bias[s->c] : 0;
}

/* From a slot, or zeros: what comes before the next token. */
template <u32 TAPS> CU_INLINE void conv_take(const struct kern_conv_args *a, const float *state, bool begins, struct conv_channel<TAPS> *s)
{
#pragma unroll
	for (u32 i = 0; i < TAPS; i++)
		s->u[i] = !begins && i > s->unused ? state[(size_t)(i - s->unused - 1) * a->channels + s->c] : 0;
}

template <u32 TAPS> CU_INLINE void conv_give(const struct kern_conv_args *a, float *state, const struct conv_channel<TAPS> *s)
{
#pragma unroll
	for (u32 i = 1; i < TAPS; i++)
		if (i > s->unused)
			state[(size_t)(i - s->unused - 1) * a->channels + s->c] = s->u[i];
}

template <bool GATED> CU_INLINE void conv_load(const struct kern_conv_args *a, u32 c, u32 t, u32 end, struct conv_in in[AHEAD])
{
#pragma unroll
	for (u32 i = 0; i < AHEAD; i++) {
		const size_t at = (size_t)(t + i) * a->stride + c;
		if (t + i >= end)
			continue;
		in[i].x = a->x[at];
		if (GATED && a->before)
			in[i].before = a->before[at];
		if (GATED && a->behind)
			in[i].behind = a->behind[at];
	}
}

template <u32 TAPS, bool GATED>
CU_INLINE void conv_token(const struct kern_conv_args *a, u32 t, const struct conv_in *in, struct conv_channel<TAPS> *s)
{
	float sum = 0;
#pragma unroll
	for (u32 i = 0; i + 1 < TAPS; i++)
		s->u[i] = s->u[i + 1];
	s->u[TAPS - 1] = GATED && a->before ? in->x * in->before : in->x;
#pragma unroll
	for (u32 i = 0; i < TAPS; i++)
		if (i >= s->unused) /* not by its weight: what is left out may be infinite */
			sum = fmaf(s->weight[i], s->u[i], sum);
	sum += s->bias;
	if (a->silu)
		sum *= sigmoid(sum);
	if (GATED && a->behind)
		sum *= in->behind;
	if (a->out_bf16)
		a->out_bf16[(size_t)t * a->out_stride + s->c] = cu_f32_to_bf16(sum);
	else
		a->out[(size_t)t * a->stride + s->c] = sum;
}

/* Tokens [first, end) of a row. While some are computed the next ones are being loaded. */
template <u32 TAPS, bool GATED>
CU_INLINE void conv_tokens(const struct kern_conv_args *a, u32 first, u32 end, struct conv_channel<TAPS> *s)
{
	struct conv_in next[AHEAD];
	conv_load<GATED>(a, s->c, first, end, next);
#pragma unroll 1
	for (u32 t = first; t < end; t += AHEAD) {
		struct conv_in now[AHEAD];
#pragma unroll
		for (u32 i = 0; i < AHEAD; i++)
			now[i] = next[i];
		if (t + AHEAD < end)
			conv_load<GATED>(a, s->c, t + AHEAD, end, next);
#pragma unroll
		for (u32 i = 0; i < AHEAD; i++)
			if (t + i < end)
				conv_token<TAPS, GATED>(a, t + i, &now[i], s);
	}
}

template <u32 TAPS, bool GATED> static __global__ void __launch_bounds__(THREADS) conv_kernel(const struct kern_conv_args a)
{
	struct conv_channel<TAPS> s = {};
	cu_grid_begin();
	s.c = blockIdx.x * THREADS + threadIdx.x;
	s.unused = TAPS - a.taps;
	const bool mine = s.c < a.channels;
	if (mine)
		conv_weights<TAPS>(&a, &s);
	turns_each(&a.state, [&](const struct turn &turn) {
		if (!mine)
			return;
		conv_take<TAPS>(&a, turn_state(&a.state, turn.slot), turn.begins, &s);
		/* up to where the state is saved, and from there on */
#pragma unroll 1
		for (u32 part = 0; part < 2; part++) {
			const u32 first = part == 0 ? turn.first : turn.save_end, end = part == 0 ? turn.save_end : turn.end;
			if (first < end)
				conv_tokens<TAPS, GATED>(&a, first, end, &s);
			if (part == 1 || first < end)
				conv_give<TAPS>(&a, turn_state(&a.state, part == 1 ? turn.slot : turn.save_slot), &s);
		}
	});
}

template <u32 TAPS, bool GATED> static enum err launch(const struct kern_conv_args *a, cudaStream_t stream)
{
	const u32 blocks = cuda_ceil(a->channels, THREADS);
	const dim3 grid(blocks, turn_blocks(a->state.rows, blocks));
	return cuda_launched(LAUNCH_DEPENDENT((conv_kernel<TAPS, GATED>), grid, THREADS, 0, stream, *a));
}

CUDA_OP(conv)
{
	const bool gated = a->before || a->behind;
	if (a->taps < 2 || a->taps > KERN_CONV_TAPS_MAX)
		return ERR_UNSUPPORTED;
	if (a->state.rows == 0 || a->channels == 0)
		return ERR_OK;
	if (a->taps <= 4)
		return gated ? launch<4, true>(a, cuda_stream(ctx)) : launch<4, false>(a, cuda_stream(ctx));
	return gated ? launch<8, true>(a, cuda_stream(ctx)) : launch<8, false>(a, cuda_stream(ctx));
}
