/* Linear recurrences. Columns of a state depend on nothing but themselves, so a block has some of one head's, in registers from the first token of
 * a row to the last: eight lanes (sixteen of the longest keys) share two columns, each with a part of the keys. Keys, queries and values of some
 * tokens come into shared memory while those before them are computed, and a warp makes what a token is multiplied by.
 *
 * Every sum is over a lane's keys in rising order, by four sums, and then over lanes: the same however many tokens a call has. */
#include "kernels/cuda/recurrent.cuh"

enum {
	WARPS = 4,
	THREADS = WARPS * CU_WARP,
	COLUMNS = 2, /* of a thread */
};

/* For keys of up to KEYS values; behind those that there are lie zeros. */
template <u32 KEYS> struct recurrent_shape {
	static constexpr u32 keys = KEYS;
	static constexpr u32 parts = KEYS > 256 ? 16 : 8; /* lanes that share columns */
	static constexpr u32 fours = KEYS / parts / 4;	  /* a lane's keys: four neighbours in every so many */
	static constexpr u32 neighbours = CU_WARP / parts * COLUMNS; /* columns of a warp */
	static constexpr u32 columns = WARPS * neighbours;
	static constexpr u32 tokens = KEYS > 256 ? 4 : 8; /* at once in shared memory */
	static constexpr u32 blocks = KEYS > 128 ? 3 : 4; /* a multiprocessor's at least, by their registers */
};

struct recurrent {
	struct kern_recurrent_args a;
	u32 slices; /* of a head: blocks that share its columns */
	bool pairs; /* the two columns of a thread are read and written together */
	bool fours; /* keys and queries are copied by 16 bytes */
};

/* Two buffers of each. */
struct recurrent_shared {
	float *k, *q; /* [tokens][keys] */
	float *v;     /* [tokens][columns] */
	float *steps; /* [tokens][2]: decay and beta */
	float4 *factors;
};

/* What a token is multiplied by: the state; what its key finds; what is added to the state; what its query finds. */
struct recurrent_factors {
	float w, found, add, out;
};

/* A thread's place. */
struct recurrent_place {
	u32 lane, warp, part;
	u32 head, key_column; /* where its k and q begin in a token */
	u32 slice;	      /* the block's first column */
	u32 column;	      /* its own first one, and where that is in the block */
	u32 in_block;
	float rate, bias, skip; /* of the head */
};

template <typename S> CU_INLINE struct recurrent_place place_of(const struct recurrent *p)
{
	const struct kern_recurrent_args *a = &p->a;
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, beside = CU_WARP / S::parts;
	struct recurrent_place at;
	at.lane = lane;
	at.warp = warp;
	at.part = lane / beside;
	at.head = blockIdx.x / p->slices;
	at.key_column = at.head * a->key_heads / a->heads * a->key_dim;
	at.slice = blockIdx.x % p->slices * S::columns;
	at.in_block = warp * S::neighbours + lane % beside * COLUMNS;
	at.column = at.slice + at.in_block;
	at.rate = -expf(a->rate_log[at.head]);
	at.bias = a->decay_bias[at.head];
	at.skip = a->kind == KERN_SCAN ? a->skip[at.head] : 0;
	return at;
}

/* ---------------------------------------------------------------- the state */

template <typename S> CU_INLINE u32 key_of(const struct recurrent_place *at, u32 m, u32 e)
{
	return (m * S::parts + at->part) * 4 + e;
}

/* The head's state in a slot. */
CU_INLINE float *head_state(const struct recurrent *p, const struct recurrent_place *at, u32 slot)
{
	return turn_state(&p->a.state, slot) + (size_t)at->head * p->a.key_dim * p->a.value_dim;
}

/* Columns from `column` on of a row of `from`; what there is none of becomes zeros. */
template <bool PAIRS> CU_INLINE void columns_load(const float *from, u32 column, u32 values, float x[COLUMNS])
{
	x[0] = x[1] = 0;
	if (PAIRS && column < values) {
		const float2 v = cu_load<float2>(from + column);
		x[0] = v.x;
		x[1] = v.y;
	}
	if (!PAIRS && column < values)
		x[0] = from[column];
	if (!PAIRS && column + 1 < values)
		x[1] = from[column + 1];
}

template <bool PAIRS> CU_INLINE void columns_store(float *to, u32 column, u32 values, float first, float second)
{
	if (PAIRS && column < values)
		cu_store(to + column, make_float2(first, second));
	if (!PAIRS && column < values)
		to[column] = first;
	if (!PAIRS && column + 1 < values)
		to[column + 1] = second;
}

/* All loads at once: decode waits for little else. Pointers go from row to row, for places of all rows would be kept in registers. */
template <typename S, bool PAIRS>
CU_INLINE void state_load(const struct recurrent *p, const struct recurrent_place *at, const float *from, float s[S::fours][4][COLUMNS])
{
	const u32 values = p->a.value_dim;
	from += (size_t)at->part * 4 * values;
#pragma unroll
	for (u32 m = 0; m < S::fours; m++, from += (size_t)(S::parts - 1) * 4 * values)
#pragma unroll
		for (u32 e = 0; e < 4; e++, from += values)
			columns_load<PAIRS>(from, key_of<S>(at, m, e) < p->a.key_dim ? at->column : values, values, s[m][e]);
}

template <typename S, bool PAIRS>
CU_INLINE void state_store(const struct recurrent *p, const struct recurrent_place *at, float *to, const float s[S::fours][4][COLUMNS])
{
	const u32 values = p->a.value_dim;
	to += (size_t)at->part * 4 * values;
#pragma unroll
	for (u32 m = 0; m < S::fours; m++, to += (size_t)(S::parts - 1) * 4 * values)
#pragma unroll
		for (u32 e = 0; e < 4; e++, to += values)
			columns_store<PAIRS>(to, key_of<S>(at, m, e) < p->a.key_dim ? at->column : values, values, s[m][e][0], s[m][e][1]);
}

template <typename S>
CU_INLINE void state_take(const struct recurrent *p, const struct recurrent_place *at, const struct turn *turn, float s[S::fours][4][COLUMNS])
{
	const float *from = head_state(p, at, turn->slot);
	if (!turn->begins && p->pairs) {
		state_load<S, true>(p, at, from, s);
		return;
	}
	if (!turn->begins) {
		state_load<S, false>(p, at, from, s);
		return;
	}
#pragma unroll
	for (u32 m = 0; m < S::fours; m++)
#pragma unroll
		for (u32 e = 0; e < 4; e++)
			s[m][e][0] = s[m][e][1] = 0;
}

template <typename S>
CU_INLINE void state_give(const struct recurrent *p, const struct recurrent_place *at, u32 slot, const float s[S::fours][4][COLUMNS])
{
	if (p->pairs)
		state_store<S, true>(p, at, head_state(p, at, slot), s);
	else
		state_store<S, false>(p, at, head_state(p, at, slot), s);
}

/* ---------------------------------------------------------------- tokens on their way */

/* Token u of a buffer is warp u % WARPS's. */
template <typename S>
CU_INLINE void tokens_copy(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_shared *m, u32 buffer, u32 t, u32 count)
{
	const struct kern_recurrent_args *a = &p->a;
	const u32 wide = p->fours ? 4 : 1, column = at->slice + at->lane;
	for (u32 u = at->warp; u < count; u += WARPS) {
		const size_t token = (size_t)(t + u) * a->stride;
		const u32 place = buffer * S::tokens + u;
		float *k = m->k + place * S::keys, *q = m->q + place * S::keys;
		const float *from_k = a->k + token + at->key_column, *from_q = a->q + token + at->key_column;
		for (u32 i = at->lane * wide; i < a->key_dim; i += CU_WARP * wide) {
			if (p->fours) {
				cu_cp_async16(k + i, from_k + i);
				cu_cp_async16(q + i, from_q + i);
			} else {
				cu_cp_async4(k + i, from_k + i);
				cu_cp_async4(q + i, from_q + i);
			}
		}
		static_assert(S::columns <= CU_WARP, "a lane copies one value");
		if (at->lane < S::columns && column < a->value_dim)
			cu_cp_async4(m->v + place * S::columns + at->lane, a->v + token + (size_t)at->head * a->value_dim + column);
		if (at->lane == 0)
			cu_cp_async4(m->steps + 2 * place, a->decay + token + at->head);
		if (at->lane == 1 && a->kind == KERN_DELTA)
			cu_cp_async4(m->steps + 2 * place + 1, a->beta + token + at->head);
	}
	cu_cp_commit();
}

/* Zeros where copies never come. */
template <typename S>
CU_INLINE void tokens_clear(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_shared *m)
{
	for (u32 u = at->warp; u < S::tokens; u += WARPS)
		for (u32 buffer = 0; buffer < 2; buffer++) {
			const u32 place = buffer * S::tokens + u;
			for (u32 i = p->a.key_dim + at->lane; i < S::keys; i += CU_WARP)
				m->k[place * S::keys + i] = m->q[place * S::keys + i] = 0;
			if (at->lane < S::columns && at->slice + at->lane >= p->a.value_dim)
				m->v[place * S::columns + at->lane] = 0;
		}
}

CU_INLINE float softplus(float x)
{
	return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

/* Of this warp's tokens, whose copies have come. The lengths of keys and queries are taken off where their sums are used. */
template <typename S, bool DELTA>
CU_INLINE void tokens_weigh(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_shared *m, u32 buffer, u32 count)
{
	const struct kern_recurrent_args *a = &p->a;
	for (u32 u = at->warp; u < count; u += WARPS) {
		const u32 place = buffer * S::tokens + u;
		const float *k = m->k + place * S::keys, *q = m->q + place * S::keys;
		float d = softplus(m->steps[2 * place] + at->bias), keys = 0, queries = 0;
		if (!DELTA && a->step_max > 0)
			d = fminf(fmaxf(d, a->step_min), a->step_max);
		struct recurrent_factors f = {expf(at->rate * d), 0, d, 1};
		if (DELTA) {
			const float b = (a->beta_scale > 0 ? a->beta_scale : 1) * sigmoid(m->steps[2 * place + 1]);
#pragma unroll
			for (u32 i = 0; i < S::keys; i += CU_WARP) {
				keys = fmaf(k[i + at->lane], k[i + at->lane], keys);
				queries = fmaf(q[i + at->lane], q[i + at->lane], queries);
			}
			const float length = cu_rsqrt(warp_sum(keys) + 1e-6f);
			f.found = f.w * length;
			f.add = b * length;
			f.out = cu_rsqrt((warp_sum(queries) + 1e-6f) * (float)a->key_dim);
		}
		if (at->lane == 0)
			cu_store(m->factors + place, make_float4(f.w, f.found, f.add, f.out));
	}
}

/* ---------------------------------------------------------------- tokens */

/* Sums over the lanes that share columns, in all of them. */
template <typename S, u32 COUNT> CU_INLINE void parts_sum(float x[COUNT])
{
#pragma unroll
	for (u32 bit = CU_WARP / S::parts; bit < CU_WARP; bit *= 2)
#pragma unroll
		for (u32 i = 0; i < COUNT; i++)
			x[i] += cu_shfl_xor(x[i], bit);
}

template <typename S>
CU_INLINE void key_load(const struct recurrent_place *at, const float *from, float x[S::fours][4])
{
#pragma unroll
	for (u32 m = 0; m < S::fours; m++)
		load_values<4>(from + key_of<S>(at, m, 0), x[m]);
}

/* What a token's query has found in this lane's part: it is summed over lanes while the next token waits for its own sums, too. */
struct recurrent_late {
	float *to; /* the head's output of the token; NULL: there is none */
	float found[COLUMNS], v[COLUMNS], scale;
};

CU_INLINE void late_store(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_late *late, const float found[COLUMNS])
{
	const float first = fmaf(at->skip, late->v[0], found[0] * late->scale), second = fmaf(at->skip, late->v[1], found[1] * late->scale);
	if (!late->to || at->part != 0)
		return;
	if (p->pairs)
		columns_store<true>(late->to, at->column, p->a.value_dim, first, second);
	else
		columns_store<false>(late->to, at->column, p->a.value_dim, first, second);
}

/* One token: s = w s + k add, and what q finds then. */
template <typename S, bool DELTA>
CU_INLINE void token_step(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_shared *m, u32 place, float *to,
			  float s[S::fours][4][COLUMNS], struct recurrent_late *late)
{
	const float4 f = cu_load<float4>(m->factors + place);
	const float2 v = cu_load<float2>(m->v + place * S::columns + at->in_block);
	float k[S::fours][4], q[4], sums[4][COLUMNS] = {}, add[COLUMNS] = {v.x, v.y};
	float found[2 * COLUMNS] = {late->found[0], late->found[1], 0, 0};
	key_load<S>(at, m->k + place * S::keys, k);
	if constexpr (DELTA) {
#pragma unroll
		for (u32 i = 0; i < S::fours; i++)
#pragma unroll
			for (u32 e = 0; e < 4; e++)
#pragma unroll
				for (u32 c = 0; c < COLUMNS; c++)
					sums[e][c] = fmaf(k[i][e], s[i][e][c], sums[e][c]);
#pragma unroll
		for (u32 c = 0; c < COLUMNS; c++) {
			found[COLUMNS + c] = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
			sums[0][c] = sums[1][c] = sums[2][c] = sums[3][c] = 0;
		}
		parts_sum<S, 2 * COLUMNS>(found);
	} else {
		parts_sum<S, COLUMNS>(found);
	}
	late_store(p, at, late, found);
#pragma unroll
	for (u32 c = 0; c < COLUMNS; c++) {
		late->v[c] = add[c];
		add[c] = (DELTA ? fmaf(-f.y, found[COLUMNS + c], add[c]) : add[c]) * f.z;
	}
#pragma unroll
	for (u32 i = 0; i < S::fours; i++) {
		load_values<4>(m->q + place * S::keys + key_of<S>(at, i, 0), q);
#pragma unroll
		for (u32 e = 0; e < 4; e++)
#pragma unroll
			for (u32 c = 0; c < COLUMNS; c++) {
				s[i][e][c] = fmaf(k[i][e], add[c], f.x * s[i][e][c]);
				sums[e][c] = fmaf(q[e], s[i][e][c], sums[e][c]);
			}
	}
#pragma unroll
	for (u32 c = 0; c < COLUMNS; c++)
		late->found[c] = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
	late->to = to;
	late->scale = f.w;
}

/* Where the tokens end that are computed together from t on: where there is no room for more, or where the state is to be saved. */
template <typename S> CU_INLINE u32 tokens_end(const struct turn *turn, u32 t)
{
	const u32 end = least(t + S::tokens, turn->end);
	return t < turn->save_end ? least(end, turn->save_end) : end;
}

/* A row. `buffer`: which of the two comes next; the other one may still be in use by slower warps. */
template <typename S, bool DELTA>
CU_INLINE void row_run(const struct recurrent *p, const struct recurrent_place *at, const struct recurrent_shared *m, const struct turn *turn,
		       u32 *buffer)
{
	float s[S::fours][4][COLUMNS];
	struct recurrent_late late = {};
	u32 t = turn->first, end = tokens_end<S>(turn, t);
	tokens_copy<S>(p, at, m, *buffer, t, end - t);
	state_take<S>(p, at, turn, s);
#pragma unroll 1
	while (t < turn->end) {
		const u32 now = *buffer, next_end = tokens_end<S>(turn, end);
		cu_cp_wait<0>();
		cu_syncwarp(); /* what other lanes have copied is there */
		tokens_weigh<S, DELTA>(p, at, m, now, end - t);
		cu_sync(); /* so is what other warps have, and all are through with the other buffer */
		*buffer ^= 1;
		if (end < turn->end)
			tokens_copy<S>(p, at, m, *buffer, end, next_end - end);
#pragma unroll 1
		for (u32 u = 0; u < end - t; u++) {
			float *to = p->a.out + (size_t)(t + u) * p->a.stride + (size_t)at->head * p->a.value_dim;
			token_step<S, DELTA>(p, at, m, now * S::tokens + u, to, s, &late);
		}
		if (end == turn->save_end)
			state_give<S>(p, at, turn->save_slot, s);
		t = end;
		end = next_end;
	}
	parts_sum<S, COLUMNS>(late.found);
	late_store(p, at, &late, late.found);
	state_give<S>(p, at, turn->slot, s);
}

template <u32 KEYS, bool DELTA>
static __global__ void __launch_bounds__(THREADS, recurrent_shape<KEYS>::blocks) recurrent_kernel(const struct recurrent p)
{
	using S = recurrent_shape<KEYS>;
	SHARED(float, k, 2 * S::tokens * KEYS);
	SHARED(float, q, 2 * S::tokens * KEYS);
	SHARED(float, v, 2 * S::tokens * S::columns);
	SHARED(float, steps, 2 * S::tokens * 2);
	SHARED(float4, factors, 2 * S::tokens);
	const struct recurrent_shared m = {k, q, v, steps, factors};
	u32 buffer = 0;
	cu_grid_begin();
	const struct recurrent_place at = place_of<S>(&p);
	tokens_clear<S>(&p, &at, &m);
	turns_each(&p.a.state, [&](const struct turn &turn) { row_run<S, DELTA>(&p, &at, &m, &turn, &buffer); });
}

/* ---------------------------------------------------------------- host */

template <u32 KEYS> static enum err launch(struct recurrent *p, cudaStream_t stream)
{
	const struct kern_recurrent_args *a = &p->a;
	p->slices = cuda_ceil(a->value_dim, recurrent_shape<KEYS>::columns);
	const u32 blocks = a->heads * p->slices;
	const dim3 grid(blocks, turn_blocks(a->state.rows, blocks));
	return cuda_launched(LAUNCH_DEPENDENT((a->kind == KERN_DELTA ? recurrent_kernel<KEYS, true> : recurrent_kernel<KEYS, false>), grid, THREADS, 0,
					      stream, *p));
}

static bool even(const void *p)
{
	return (uintptr_t)p % sizeof(float2) == 0;
}

CUDA_OP(recurrent)
{
	struct recurrent p = {*a, 0, false, false};
	const struct kern_state *s = &a->state;
	if (a->kind == KERN_KDA || a->key_dim > KERN_RECURRENT_DIM_MAX || (u64)a->key_dim * a->value_dim > UINT32_MAX)
		return ERR_UNSUPPORTED;
	if (a->key_dim == 0 || a->key_heads == 0)
		return ERR_INVALID;
	if (s->rows == 0 || a->heads == 0 || a->value_dim == 0)
		return ERR_OK;
	p.pairs = (a->value_dim | a->stride | s->stride) % 2 == 0 && even(s->data) && even(a->out);
	p.fours = (a->key_dim | a->stride) % 4 == 0 && cuda_aligned(a->k) && cuda_aligned(a->q);
	if (a->key_dim <= 32)
		return launch<32>(&p, cuda_stream(ctx));
	if (a->key_dim <= 64)
		return launch<64>(&p, cuda_stream(ctx));
	if (a->key_dim <= 128)
		return launch<128>(&p, cuda_stream(ctx));
	if (a->key_dim <= 256)
		return launch<256>(&p, cuda_stream(ctx));
	return launch<512>(&p, cuda_stream(ctx));
}
