/* Attention with heads of more than 256 values over a cache of bf16: those of latent attention, whose one KV head all query
 * heads share, and other large ones.
 *
 * A warp cannot hold the sums of 16 rows of such a head, so four warps have the rows together, a "group", and each owns a quarter
 * of the dimensions. Of the scores each computes what its quarter gives. They lie in shared memory until a warp, for 8 rows each,
 * adds the four parts up in their order and makes probabilities of them, once. All four then multiply these with their quarter
 * of the values. Keys and values of 16 keys are on their way while the 16 before are computed.
 *
 * Decode of at most 16 (token, head) rows has a group of 16, in blocks of which two fit into a multiprocessor. All else has
 * tiles of 64 rows, two groups of 32: as many as the registers of a block can hold the sums of. So 128 query heads
 * of a KV head are two tiles, which stand beside each other in the plan's list: what the first reads the second finds in the
 * L2 cache. */
#include "kernels/cuda/attention_launch.cuh"

enum {
	WIDE_KEYS = 16,	 /* of a stage */
	WIDE_STAGES = 2,
	WIDE_PARTS = 4,	 /* of the dimensions: warps of a group */
	WIDE_OCTET = 8,	 /* rows whose softmax a warp computes */
	WIDE_P_PITCH = WIDE_KEYS + 8, /* odd in units of 16 bytes: no bank conflicts */
};

template <u32 D_, u32 GROUPS_, u32 SIXTEENS_> struct wide_shape {
	static constexpr u32 D = D_, GROUPS = GROUPS_, SIXTEENS = SIXTEENS_ /* of rows of a group */;
	static constexpr u32 KIND = GROUPS > 1 ? ATTENTION_LARGE : ATTENTION_SMALL;
	static constexpr u32 GROUP_ROWS = SIXTEENS * 16, ROWS = GROUPS * GROUP_ROWS, OCTETS = GROUP_ROWS / WIDE_OCTET;
	static constexpr u32 GROUP_THREADS = WIDE_PARTS * CU_WARP, THREADS = GROUPS * GROUP_THREADS;
	static constexpr u32 PART = D / WIDE_PARTS;
	static constexpr u32 PITCH = D + 8; /* as WIDE_P_PITCH */
	static constexpr size_t TOKEN_BYTES = D * 2;
	static constexpr bool Q_IN_REGISTERS = SIXTEENS == 1;
	static constexpr u32 SIDE = WIDE_KEYS * PITCH * 2, STAGE = 2 * SIDE;
	/* Parts of scores: [group][part][octet][lane], the four of a lane. */
	static constexpr u32 GROUP_SCORES = WIDE_PARTS * OCTETS * CU_WARP * 4;
	static constexpr u32 Q_AT = WIDE_STAGES * STAGE, SCORES_AT = Q_AT + ROWS * PITCH * 2;
	static constexpr u32 P_AT = SCORES_AT + GROUPS * GROUP_SCORES * 4, TOTALS_AT = P_AT + ROWS * WIDE_P_PITCH * 2;
	static constexpr u32 SHRINK_AT = TOTALS_AT + ROWS * 8, SHARED_BYTES = SHRINK_AT + ROWS * 4;
	static_assert(PART % 16 == 0, "steps of the matrix unit");
	static_assert(OCTETS <= WIDE_PARTS && GROUPS <= 2, "a warp has one octet at most; each group has a barrier");
	static_assert(KIND == ATTENTION_SMALL ? ROWS == ATTENTION_SMALL_ROWS : ROWS == ATTENTION_WIDE_ROWS, "the plan's tiles");
};

/* Shared memory as a group sees it. */
struct wide_shared {
	const u16 *q;	/* its rows */
	float *scores;
	u16 *p;		/* [rows][WIDE_P_PITCH] probabilities */
	float *totals;	/* [rows][2] maximum and sum */
	float *shrink;	/* [rows] */
};

template <typename S> struct wide_state {
	float o[S::SIXTEENS][S::PART / 8][4];
	float best, total;  /* of this lane's row of the warp's octet */
	u32 low, limit;	    /* the keys that it sees: [low, limit) */
	u32 q[S::Q_IN_REGISTERS ? S::PART / 16 : 1][4];
};

CU_INLINE u32 wide_part()
{
	return threadIdx.x / CU_WARP % WIDE_PARTS;
}

template <typename S> CU_INLINE u32 wide_group()
{
	return threadIdx.x / S::GROUP_THREADS;
}

/* The four warps of a group meet. */
template <typename S> CU_INLINE void wide_meet()
{
	if (wide_group<S>() == 0)
		cu_barrier_sync<1>(S::GROUP_THREADS);
	else
		cu_barrier_sync<2>(S::GROUP_THREADS);
}

template <typename S> CU_INLINE struct wide_shared wide_shared_of(u8 *shared)
{
	const u32 group = wide_group<S>(), row = group * S::GROUP_ROWS;
	return {(const u16 *)(shared + S::Q_AT) + row * S::PITCH, (float *)(shared + S::SCORES_AT) + group * S::GROUP_SCORES,
		(u16 *)(shared + S::P_AT) + row * WIDE_P_PITCH, (float *)(shared + S::TOTALS_AT) + row * 2,
		(float *)(shared + S::SHRINK_AT) + row};
}

/* ---------------------------------------------------------------- a stage */

/* Starts the copies of the keys and values at `key`. */
template <typename S>
CU_INLINE void wide_load(const struct attention *p, const struct attention_piece *w, u8 *stage, u32 key)
{
	constexpr u32 VECTORS = S::D / 8; /* of a key */
	const u32 mask = (1u << p->block_shift) - 1;
	for (u32 i = threadIdx.x; i < WIDE_KEYS * VECTORS; i += S::THREADS) {
		const u32 r = i / VECTORS, at = i % VECTORS * 16;
		const bool valid = key + r >= w->first && key + r < w->end;
		const size_t from = valid ? attention_block<S>(p, w, key + r) + ((key + r) & mask) * S::TOKEN_BYTES + at : 0;
		cu_cp_async16(stage + r * S::PITCH * 2 + at, p->k + from, valid);
		cu_cp_async16(stage + S::SIDE + r * S::PITCH * 2 + at, p->v + from, valid);
	}
}

/* This warp's part of the scores of its group's rows. */
template <typename S>
CU_INLINE void wide_scores(const struct wide_state<S> *s, const struct wide_shared *g, const u16 *k)
{
	const u32 lane = threadIdx.x % CU_WARP, first = wide_part() * S::PART;
	float c[S::SIXTEENS][2][4] = {};
#pragma unroll
	for (u32 i = 0; i < S::PART / 16; i++) {
		u32 b[4];
		cu_ldmatrix_x4(b, k + (lane % 8 + lane / 16 * 8) * S::PITCH + first + i * 16 + lane / 8 % 2 * 8);
#pragma unroll
		for (u32 m = 0; m < S::SIXTEENS; m++) {
			u32 a[4];
			if constexpr (S::Q_IN_REGISTERS) {
#pragma unroll
				for (u32 e = 0; e < 4; e++)
					a[e] = s->q[i][e];
			} else {
				cu_ldmatrix_x4(a, g->q + (m * 16 + lane % 16) * S::PITCH + first + i * 16 + lane / 16 * 8);
			}
			cu_mma_bf16_n16(c[m], a, b);
		}
	}
#pragma unroll
	for (u32 o = 0; o < S::OCTETS; o++) {
		const u32 m = o / 2, e = o % 2 * 2;
		cu_store(g->scores + ((wide_part() * S::OCTETS + o) * CU_WARP + lane) * 4,
			 make_float4(c[m][0][e], c[m][0][e + 1], c[m][1][e], c[m][1][e + 1]));
	}
}

/* Scores of the warp's octet into probabilities relative to the running maximum. `key`: the stage's first. */
template <typename S>
CU_INLINE void wide_softmax(const struct attention *p, const struct wide_shared *g, struct wide_state<S> *s, u32 key)
{
	const u32 lane = threadIdx.x % CU_WARP, octet = wide_part(), row = octet * WIDE_OCTET + lane / 4, column = lane % 4 * 2;
	float c[4] = {};
#pragma unroll
	for (u32 part = 0; part < WIDE_PARTS; part++) {
		const float4 x = cu_load<float4>(g->scores + ((part * S::OCTETS + octet) * CU_WARP + lane) * 4);
		c[0] += x.x;
		c[1] += x.y;
		c[2] += x.z;
		c[3] += x.w;
	}
	float best = s->best;
#pragma unroll
	for (u32 e = 0; e < 4; e++) {
		const u32 at = key + e / 2 * 8 + column + e % 2;
		float x = c[e] * p->scale;
		if (p->soft_cap > 0)
			x = p->soft_cap * tanhf(x / p->soft_cap);
		c[e] = at >= s->low && at < s->limit ? x * ATTENTION_LOG2_E : ATTENTION_NONE;
		best = fmaxf(best, c[e]);
	}
	best = fmaxf(best, cu_shfl_xor(best, 1)); /* the four lanes of a row */
	best = fmaxf(best, cu_shfl_xor(best, 2));
	const float shrink = cu_exp2(s->best - best);
	s->best = best;
	s->total *= shrink;
#pragma unroll
	for (u32 e = 0; e < 4; e++) {
		c[e] = c[e] > ATTENTION_NONE / 2 ? cu_exp2(c[e] - best) : 0;
		s->total += c[e];
	}
	if (lane % 4 == 0)
		g->shrink[row] = shrink;
	cu_store(g->p + row * WIDE_P_PITCH + column, cu_pack_bf16(c[0], c[1]));
	cu_store(g->p + row * WIDE_P_PITCH + 8 + column, cu_pack_bf16(c[2], c[3]));
}

/* What was summed before is rescaled where a maximum has grown; then o += P V. */
template <typename S> CU_INLINE void wide_values(struct wide_state<S> *s, const struct wide_shared *g, const u16 *v)
{
	const u32 lane = threadIdx.x % CU_WARP, first = wide_part() * S::PART;
	float shrink[S::SIXTEENS][2];
	u32 a[S::SIXTEENS][4];
	bool grown = false;
#pragma unroll
	for (u32 m = 0; m < S::SIXTEENS; m++) {
#pragma unroll
		for (u32 i = 0; i < 2; i++) {
			shrink[m][i] = g->shrink[m * 16 + i * 8 + lane / 4];
			grown = grown || shrink[m][i] != 1;
		}
		cu_ldmatrix_x4(a[m], g->p + (m * 16 + lane % 16) * WIDE_P_PITCH + lane / 16 * 8);
	}
	if (cu_any(grown)) {
#pragma unroll
		for (u32 m = 0; m < S::SIXTEENS; m++)
#pragma unroll
			for (u32 d = 0; d < S::PART / 8; d++)
#pragma unroll
				for (u32 e = 0; e < 4; e++)
					s->o[m][d][e] *= shrink[m][e / 2];
	}
#pragma unroll
	for (u32 d = 0; d < S::PART / 8; d += 2) {
		u32 b[4];
		cu_ldmatrix_x4_trans(b, v + lane % 16 * S::PITCH + first + d * 8 + lane / 16 * 8);
#pragma unroll
		for (u32 m = 0; m < S::SIXTEENS; m++)
			cu_mma_bf16_n16(s->o[m] + d, a[m], b);
	}
}

/* ---------------------------------------------------------------- a piece */

template <typename S>
CU_INLINE void wide_begin(const struct attention *p, const struct attention_piece *w, const struct wide_shared *g,
			  struct wide_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP;
	const u32 row = w->tile + wide_group<S>() * S::GROUP_ROWS + wide_part() * WIDE_OCTET + lane / 4;
	const u32 at = w->before + row / p->group; /* the row's query */
#pragma unroll
	for (u32 m = 0; m < S::SIXTEENS; m++)
#pragma unroll
		for (u32 d = 0; d < S::PART / 8; d++)
			s->o[m][d][0] = s->o[m][d][1] = s->o[m][d][2] = s->o[m][d][3] = 0;
	s->best = ATTENTION_NONE;
	s->total = 0;
	s->low = attention_first_key(at, p->window);
	s->limit = row < w->rows ? least(at + 1, w->end) : 0;
	if constexpr (S::Q_IN_REGISTERS) {
#pragma unroll
		for (u32 i = 0; i < S::PART / 16; i++)
			cu_ldmatrix_x4(s->q[i], g->q + lane % 16 * S::PITCH + wide_part() * S::PART + i * 16 + lane / 16 * 8);
	}
}

/* Walks the piece's keys. `active`: the group has rows; else its warps only copy. */
template <typename S>
CU_INLINE void wide_walk(const struct attention *p, const struct attention_piece *w, u8 *shared, const struct wide_shared *g,
			 bool active, struct wide_state<S> *s)
{
	const u32 steps = w->end > w->begin ? (w->end - w->begin + WIDE_KEYS - 1) / WIDE_KEYS : 0;
	const bool has_octet = wide_part() < S::OCTETS;
	for (u32 i = 0; i < WIDE_STAGES - 1; i++) {
		if (i < steps)
			wide_load<S>(p, w, shared + i * S::STAGE, w->begin + i * WIDE_KEYS);
		cu_cp_commit();
	}
	attention_load_q<S>(p, w, (u16 *)(shared + S::Q_AT));
	cu_sync(); /* Q is there */
	wide_begin<S>(p, w, g, s);
	for (u32 n = 0; n < steps; n++) {
		const u32 ahead = n + WIDE_STAGES - 1;
		const u8 *stage = shared + n % WIDE_STAGES * S::STAGE;
		cu_cp_wait<WIDE_STAGES - 2>();
		cu_sync(); /* everybody's part of these keys has come, and those before are used up */
		if (ahead < steps)
			wide_load<S>(p, w, shared + ahead % WIDE_STAGES * S::STAGE, w->begin + ahead * WIDE_KEYS);
		cu_cp_commit(); /* empty at the end, so that counting groups stays right */
		if (!active)
			continue;
		wide_scores<S>(s, g, (const u16 *)stage);
		wide_meet<S>(); /* all parts of the scores are there */
		if (has_octet)
			wide_softmax<S>(p, g, s, w->begin + n * WIDE_KEYS);
		wide_meet<S>(); /* the probabilities are there */
		wide_values<S>(s, g, (const u16 *)(stage + S::SIDE));
	}
	s->total += cu_shfl_xor(s->total, 1); /* the four lanes of a row */
	s->total += cu_shfl_xor(s->total, 2);
}

/* The output, or this piece's part of it, after the rows' totals have been shared. */
template <typename S>
CU_INLINE void wide_write(const struct attention *p, const struct attention_piece *w, const struct wide_shared *g,
			  const struct wide_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, column = wide_part() * S::PART + lane % 4 * 2;
	if (wide_part() < S::OCTETS && lane % 4 == 0)
		cu_store(g->totals + (wide_part() * WIDE_OCTET + lane / 4) * 2, make_float2(s->best, s->total));
	wide_meet<S>(); /* all rows' totals are there */
#pragma unroll
	for (u32 i = 0; i < 2 * S::SIXTEENS; i++) {
		const u32 within = i * 8 + lane / 4, m = i / 2, e = i % 2 * 2;
		const u32 r = wide_group<S>() * S::GROUP_ROWS + within, row = w->tile + r;
		const float2 total = cu_load<float2>(g->totals + within * 2);
		if (row >= w->rows)
			continue;
		if (w->slot == ATTENTION_WHOLE) {
			const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
			u16 *out = p->out + (token * p->kv_heads * p->group + head) * S::D + column;
			const float inverse = attention_inverse(p, head, total.x, total.y);
#pragma unroll
			for (u32 d = 0; d < S::PART / 8; d++)
				cu_store(out + d * 8, cu_pack_bf16(s->o[m][d][e] * inverse, s->o[m][d][e + 1] * inverse));
			continue;
		}
		const size_t at = (size_t)w->slot * S::ROWS + r;
		if (wide_part() == 0 && lane % 4 == 0)
			cu_store(p->plan.totals[S::KIND] + at * 2, total);
#pragma unroll
		for (u32 d = 0; d < S::PART / 8; d++)
			cu_store(p->plan.sums[S::KIND] + at * S::D + d * 8 + column, make_float2(s->o[m][d][e], s->o[m][d][e + 1]));
	}
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::KIND == ATTENTION_SMALL ? 2 : 1)
	attention_wide_kernel(const struct attention p)
{
	SHARED_DYNAMIC(u8, shared);
	cu_grid_wait();
	const struct wide_shared g = wide_shared_of<S>(shared);
	attention_each_piece<S>(&p, [&](const struct attention_piece *w) {
		const bool active = w->tile + wide_group<S>() * S::GROUP_ROWS < w->rows;
		struct wide_state<S> s;
		wide_walk<S>(&p, w, shared, &g, active, &s);
		if (active)
			wide_write<S>(&p, w, &g, &s);
	});
}

/* ---------------------------------------------------------------- host */

template <u32 D> static enum err wide_both(const struct attention *p, cudaStream_t stream)
{
	using small = wide_shape<D, 1, 1>;
	using large = wide_shape<D, 2, 2>;
	static_assert(small::SHARED_BYTES <= ATTENTION_SHARED_LEAST, "every device has room");
	if (large::SHARED_BYTES > cuda_shared_most())
		return ERR_UNSUPPORTED;
	const enum err e = attention_launch<small>(attention_wide_kernel<small>, p, stream);
	return e != ERR_OK ? e : attention_launch<large>(attention_wide_kernel<large>, p, stream);
}

enum err attention_run_wide(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	switch (head_dim) {
	case 320:
		return wide_both<320>(p, stream);
	case 512:
		return wide_both<512>(p, stream);
	case 576:
		return wide_both<576>(p, stream);
	}
	return ERR_UNSUPPORTED;
}
