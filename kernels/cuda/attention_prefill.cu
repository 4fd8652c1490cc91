/* Attention of tiles of many rows over a cache of bf16, for compute capability 9.0: the matrix unit of four warps.
 *
 * The first four warps of a block fetch, two times four compute 64 of the tile's 128 rows each. Keys and values come
 * through rings of STAGES buffers in panels of 64 columns; a barrier in shared memory says of each buffer that it is
 * full, another one that it is empty, so warps that fetch run ahead into the next piece of work. While the softmax of
 * a tile of keys is computed, the product of the one before it with its values runs; the two groups of warps take turns
 * at queueing products, so that the one computes its softmax while the other has the matrix unit.
 *
 * Plan, pieces and results are those of attention.cuh. */
#include "kernels/cuda/attention.cuh"

template <u32 D_, u32 KEYS_, u32 STAGES_> struct prefill_shape {
	static constexpr u32 D = D_, KEYS = KEYS_, STAGES = STAGES_;
	static constexpr u32 KIND = ATTENTION_LARGE, ROWS = ATTENTION_LARGE_ROWS, GROUP = 128, THREADS = 3 * GROUP;
	static constexpr u32 PANELS = D / 64, ROW_BYTES = D * 2;
	static constexpr u32 Q_PANEL = ROWS * 128, KEY_PANEL = KEYS * 128;
	/* O in parts of at most 128 columns. */
	static constexpr u32 PARTS = (D + 127) / 128, PART = D / PARTS;
	static constexpr u32 K_AT = PANELS * Q_PANEL, V_AT = K_AT + STAGES * PANELS * KEY_PANEL,
			     BARRIERS_AT = V_AT + STAGES * PANELS * KEY_PANEL, BARRIERS = 4 * STAGES + 2,
			     SHARED_BYTES = BARRIERS_AT + BARRIERS * 8;
	/* Registers of a thread that fetches and of one that computes: 64 Ki for all. */
	static constexpr u32 FETCH_REGISTERS = 96, COMPUTE_REGISTERS = 200;
};

/* A ring of buffers. A buffer is full when all threads that fetch have arrived, empty when all warps that read have. */
struct prefill_ring {
	u64 *full, *empty;
	u8 *buffers;
};

template <typename S> CU_INLINE struct prefill_ring prefill_keys(u8 *shared)
{
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT);
	return {barriers, barriers + S::STAGES, shared + S::K_AT};
}

template <typename S> CU_INLINE struct prefill_ring prefill_values(u8 *shared)
{
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT) + 2 * S::STAGES;
	return {barriers, barriers + S::STAGES, shared + S::V_AT};
}

/* Of Q there is one buffer. */
template <typename S> CU_INLINE struct prefill_ring prefill_queries(u8 *shared)
{
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT) + 4 * S::STAGES;
	return {barriers, barriers + 1, shared};
}

/* The block's i-th piece of work: the list is longest first, so turning around evens out. False: there is none. */
CU_INLINE bool prefill_piece_at(u32 i, u32 count, u32 *at)
{
	*at = i * gridDim.x + (i % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
	return *at < count;
}

CU_INLINE u32 prefill_tiles(const struct attention_piece *w, u32 keys)
{
	return w->end > w->begin ? (w->end - w->begin + keys - 1) / keys : 0;
}

/* ---------------------------------------------------------------- warps that fetch */

/* Where the rows of this thread are, in bytes from the beginning of K and of V. Eight threads have a row's 128 bytes of
 * a panel, all 128 have 16 rows. */
template <typename S> struct prefill_rows {
	u64 from[S::KEYS / 16];
	u32 valid; /* a bit a row; others become zeros */
};

template <typename S>
CU_INLINE void prefill_find(const struct attention *p, const struct attention_piece *w, u32 key, struct prefill_rows<S> *r)
{
	const u32 mask = (1u << p->block_shift) - 1;
	r->valid = 0;
#pragma unroll
	for (u32 i = 0; i < S::KEYS / 16; i++) {
		const u32 at = key + threadIdx.x / 8 + 16 * i;
		const bool valid = at >= w->first && at < w->end;
		const u32 block =
			valid ? p->block_tables[(size_t)w->row * p->block_stride + (at >> p->block_shift)] : 0;
		r->from[i] = ((((u64)block * p->kv_heads + w->head) << p->block_shift) + (at & mask)) * S::ROW_BYTES +
			     threadIdx.x % 8 * 16;
		r->valid |= (u32)valid << i;
	}
}

template <typename S>
CU_INLINE void prefill_copy(const struct prefill_rows<S> *r, const u8 *side, const struct prefill_ring *to, u32 slot)
{
	const u32 row = threadIdx.x / 8;
	u8 *at = to->buffers + slot * S::PANELS * S::KEY_PANEL + row * 128 + (threadIdx.x % 8 ^ row % 8) * 16;
#pragma unroll
	for (u32 i = 0; i < S::KEYS / 16; i++)
#pragma unroll
		for (u32 panel = 0; panel < S::PANELS; panel++)
			cu_cp_async16(at + panel * S::KEY_PANEL + i * 16 * 128,
				      side + ((r->valid >> i & 1) != 0 ? r->from[i] + panel * 128 : 0),
				      (r->valid >> i & 1) != 0);
	cu_phase_arrive_copied(to->full + slot);
}

/* The tile's rows of Q, zeros behind the last. */
template <typename S>
CU_INLINE void prefill_copy_q(const struct attention *p, const struct attention_piece *w, const struct prefill_ring *q)
{
	const u32 r = threadIdx.x / 8, chunk = threadIdx.x % 8;
#pragma unroll 2
	for (u32 i = 0; i < S::ROWS / 16; i++) {
		const u32 row = w->tile + r + 16 * i;
		const bool valid = row < w->rows;
		const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
		const size_t from = valid ? (token * p->kv_heads * p->group + head) * S::D + chunk * 8 : 0;
#pragma unroll
		for (u32 panel = 0; panel < S::PANELS; panel++)
			cu_cp_async16(q->buffers + panel * S::Q_PANEL + (r + 16 * i) * 128 + (chunk ^ r % 8) * 16,
				      p->q + from + (valid ? panel * 64 : 0), valid);
	}
	cu_phase_arrive_copied(q->full);
}

template <typename S> CU_INLINE void prefill_fetch(const struct attention *p, u8 *shared)
{
	const struct prefill_ring k = prefill_keys<S>(shared), v = prefill_values<S>(shared),
				  q = prefill_queries<S>(shared);
	const u32 count = p->plan.head->work_count;
	u32 n = 0, pieces = 0, at; /* tiles and pieces so far */
	for (u32 i = 0; i * gridDim.x < count; i++) {
		if (!prefill_piece_at(i, count, &at))
			continue;
		const struct attention_piece w = attention_piece_of<S>(p, cu_load<uint4>(p->plan.work[S::KIND] + at));
		const u32 tiles = prefill_tiles(&w, S::KEYS);
		for (u32 t = 0; t < tiles; t++, n++) {
			const u32 slot = n % S::STAGES, parity = (n / S::STAGES + 1) % 2;
			struct prefill_rows<S> rows;
			prefill_find<S>(p, &w, w.begin + t * S::KEYS, &rows);
			cu_phase_wait(k.empty + slot, parity);
			prefill_copy<S>(&rows, p->k, &k, slot);
			if (t == 0) {
				cu_phase_wait(q.empty, (pieces++ + 1) % 2);
				prefill_copy_q<S>(p, &w, &q);
			}
			cu_phase_wait(v.empty + slot, parity);
			prefill_copy<S>(&rows, p->v, &v, slot);
		}
	}
	cu_cp_commit();
	cu_cp_wait<0>(); /* no copy outlives its thread */
}

/* ---------------------------------------------------------------- warps that compute */

/* Two rows of a thread, as of cu_mma_bf16. Scores are `c` times too small for powers of 2; base = c times the maximum, or
 * 0 as long as there is none. */
template <typename S> struct prefill_state {
	float o[S::PARTS][S::PART / 2];
	float s[S::KEYS / 2];
	u32 p[S::KEYS / 4]; /* probabilities as the left operand */
	float m[2], l[2], shrink[2];
	u32 low[2], limit[2]; /* keys that the rows see: [low, limit) */
};

/* Barriers of the four warps' turns. */
CU_INLINE void prefill_turn_wait(u32 group)
{
	if (group == 0)
		cu_barrier_sync<3>(256);
	else
		cu_barrier_sync<4>(256);
}

CU_INLINE void prefill_turn_give(u32 group)
{
	if (group == 0)
		cu_barrier_arrive<4>(256);
	else
		cu_barrier_arrive<3>(256);
}

template <typename S>
CU_INLINE void prefill_begin(const struct attention *p, const struct attention_piece *w, struct prefill_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, row = w->tile + (threadIdx.x - S::GROUP) / CU_WARP * 16 + lane / 4;
#pragma unroll
	for (u32 i = 0; i < S::PARTS; i++)
#pragma unroll
		for (u32 e = 0; e < S::PART / 2; e++)
			s->o[i][e] = 0;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 at = w->before + (row + 8 * i) / p->group; /* the row's query */
		s->m[i] = -INFINITY;
		s->l[i] = 0;
		s->low[i] = attention_first_key(at, p->window);
		s->limit[i] = row + 8 * i < w->rows ? least(at + 1, w->end) : 0;
	}
}

/* s = Q K^T, queued. */
template <typename S> CU_INLINE void prefill_queue_scores(struct prefill_state<S> *s, u64 q, const u8 *keys)
{
	const u64 k = cu_wgmma_operand(keys, S::KEY_PANEL);
	cu_wgmma_fence();
#pragma unroll
	for (u32 i = 0; i < S::PANELS; i++)
		cu_wgmma_rows<S::KEYS, 4>(s->s, q + (S::Q_PANEL >> 4) * i, k + (S::KEY_PANEL >> 4) * i, i > 0);
	cu_wgmma_commit();
}

/* o += P V, queued. */
template <typename S> CU_INLINE void prefill_queue_values(struct prefill_state<S> *s, const u8 *values)
{
	const u64 v = cu_wgmma_operand(values, S::KEY_PANEL);
	cu_wgmma_fence();
#pragma unroll
	for (u32 i = 0; i < S::PARTS; i++)
		cu_wgmma_columns<S::PART, S::KEYS / 16>(s->o[i], s->p, v + (S::KEY_PANEL >> 4) * (S::PART / 64) * i);
	cu_wgmma_commit();
}

template <typename S> CU_INLINE void prefill_wait_values(struct prefill_state<S> *s)
{
#pragma unroll
	for (u32 i = 0; i < S::PARTS; i++)
		cu_wgmma_wait<0>(s->o[i]);
}

/* This warp has read the buffer. */
CU_INLINE void prefill_release(u64 *empty)
{
	if (threadIdx.x % CU_WARP == 0)
		cu_phase_arrive(empty);
}

/* Scores that are none become -infinity: those of keys outside of a row's. `key`: the tile's first. */
template <typename S> CU_INLINE void prefill_mask(struct prefill_state<S> *s, u32 key)
{
	const u32 column = key + threadIdx.x % 4 * 2;
#pragma unroll
	for (u32 e = 0; e < S::KEYS / 2; e++) {
		const u32 at = column + e / 4 * 8 + e % 2, i = e / 2 % 2;
		if (at < s->low[i] || at >= s->limit[i])
			s->s[e] = -INFINITY;
	}
}

/* Scores into probabilities relative to the running maximum, in place; `shrink` is by how much what was summed before is
 * too large then. */
template <typename S> CU_INLINE void prefill_softmax(struct prefill_state<S> *s, float c, u32 key)
{
	const bool outside = key < s->low[0] || key < s->low[1] || key + S::KEYS > s->limit[0] || key + S::KEYS > s->limit[1];
	if (cu_any(outside))
		prefill_mask<S>(s, key);
	/* Two chains a row: a warp has little else to do while it waits for one. */
	float best[2][2] = {{s->m[0], s->m[0]}, {s->m[1], s->m[1]}}, sum[2][2] = {{0, 0}, {0, 0}}, base[2];
#pragma unroll
	for (u32 e = 0; e < S::KEYS / 2; e++)
		best[e / 2 % 2][e % 2] = fmaxf(best[e / 2 % 2][e % 2], s->s[e]);
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		float m = fmaxf(best[i][0], best[i][1]);
		m = fmaxf(m, cu_shfl_xor(m, 1));
		m = fmaxf(m, cu_shfl_xor(m, 2));
		base[i] = m == -INFINITY ? 0 : m * c; /* no difference is a NaN then */
		s->shrink[i] = cu_exp2(s->m[i] * c - base[i]);
		s->m[i] = m;
	}
#pragma unroll
	for (u32 e = 0; e < S::KEYS / 2; e++) {
		s->s[e] = cu_exp2(s->s[e] * c - base[e / 2 % 2]);
		sum[e / 2 % 2][e % 2] += s->s[e];
	}
#pragma unroll
	for (u32 i = 0; i < 2; i++)
		s->l[i] = s->l[i] * s->shrink[i] + (sum[i][0] + sum[i][1]);
}

template <typename S> CU_INLINE void prefill_pack(struct prefill_state<S> *s)
{
#pragma unroll
	for (u32 e = 0; e < S::KEYS / 4; e++)
		s->p[e] = cu_pack_bf16(s->s[2 * e], s->s[2 * e + 1]);
}

template <typename S> CU_INLINE void prefill_rescale(struct prefill_state<S> *s)
{
#pragma unroll
	for (u32 i = 0; i < S::PARTS; i++)
#pragma unroll
		for (u32 e = 0; e < S::PART / 2; e++)
			s->o[i][e] *= s->shrink[e / 2 % 2];
}

/* Walks the piece's keys; *n: tiles that were before it, and are after it; `pieces` were before it. */
template <typename S>
CU_INLINE void prefill_walk(const struct attention *p, const struct attention_piece *w, u8 *shared, u32 group, u32 *n,
			    u32 pieces, struct prefill_state<S> *s)
{
	constexpr u32 BUFFER = S::PANELS * S::KEY_PANEL;
	const struct prefill_ring k = prefill_keys<S>(shared), v = prefill_values<S>(shared), q = prefill_queries<S>(shared);
	const u64 queries = cu_wgmma_operand(q.buffers + group * 64 * 128, S::Q_PANEL);
	const u32 end = *n + prefill_tiles(w, S::KEYS);
	const float c = p->scale * ATTENTION_LOG2_E;
	u32 slot = *n % S::STAGES, parity = *n / S::STAGES % 2, key = w->begin;
	cu_phase_wait(q.full, pieces % 2);
	cu_phase_wait(k.full + slot, parity);
	cu_fence_wgmma();
	prefill_queue_scores<S>(s, queries, k.buffers + slot * BUFFER);
	cu_wgmma_wait<0>(s->s);
	prefill_release(k.empty + slot);
	if (*n + 1 == end)
		prefill_release(q.empty);
	prefill_softmax<S>(s, c, key);
	prefill_pack<S>(s);
	for (u32 i = *n + 1; i < end; i++) {
		const u32 before = slot, parity_before = parity;
		slot = i % S::STAGES;
		parity = i / S::STAGES % 2;
		key += S::KEYS;
		cu_phase_wait(k.full + slot, parity);
		cu_phase_wait(v.full + before, parity_before);
		cu_fence_wgmma();
		prefill_turn_wait(group);
		prefill_queue_scores<S>(s, queries, k.buffers + slot * BUFFER);
		prefill_queue_values<S>(s, v.buffers + before * BUFFER);
		prefill_turn_give(group);
		cu_wgmma_wait<1>(s->s);
		prefill_release(k.empty + slot);
		if (i + 1 == end)
			prefill_release(q.empty);
		prefill_softmax<S>(s, c, key);
		prefill_wait_values<S>(s);
		prefill_release(v.empty + before);
		prefill_rescale<S>(s);
		prefill_pack<S>(s);
	}
	cu_phase_wait(v.full + slot, parity);
	cu_fence_wgmma();
	prefill_queue_values<S>(s, v.buffers + slot * BUFFER);
	prefill_wait_values<S>(s);
	prefill_release(v.empty + slot);
	*n = end;
}

/* The output, or this piece's part of it. Rows that saw no key write only that. */
template <typename S>
CU_INLINE void prefill_write(const struct attention *p, const struct attention_piece *w, struct prefill_state<S> *s)
{
	const u32 lane = threadIdx.x % CU_WARP, column = lane % 4 * 2;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
		const u32 r = (threadIdx.x - S::GROUP) / CU_WARP * 16 + lane / 4 + 8 * i, row = w->tile + r;
		const float best = s->m[i] == -INFINITY ? ATTENTION_NONE : s->m[i] * p->scale * ATTENTION_LOG2_E;
		float total = s->l[i] + cu_shfl_xor(s->l[i], 1);
		total += cu_shfl_xor(total, 2);
		if (row >= w->rows)
			continue;
		if (w->slot == ATTENTION_WHOLE) {
			const size_t token = w->token + row / p->group, head = w->head * p->group + row % p->group;
			u16 *out = p->out + (token * p->kv_heads * p->group + head) * S::D + column;
			const float inverse = attention_inverse(p, head, best, total);
#pragma unroll
			for (u32 d = 0; d < S::D / 8; d++) {
				const float *o = s->o[d * 8 / S::PART] + d % (S::PART / 8) * 4 + 2 * i;
				cu_store(out + d * 8, cu_pack_bf16(o[0] * inverse, o[1] * inverse));
			}
			continue;
		}
		const size_t at = (size_t)w->slot * S::ROWS + r;
		if (lane % 4 == 0)
			cu_store(p->plan.totals[S::KIND] + at * 2, make_float2(best, total));
#pragma unroll
		for (u32 d = 0; d < S::D / 8; d++) {
			const float *o = s->o[d * 8 / S::PART] + d % (S::PART / 8) * 4 + 2 * i;
			cu_store(p->plan.sums[S::KIND] + at * S::D + d * 8 + column, make_float2(o[0], o[1]));
		}
	}
}

template <typename S> CU_INLINE void prefill_compute(const struct attention *p, u8 *shared)
{
	const u32 group = threadIdx.x / S::GROUP - 1, count = p->plan.head->work_count;
	u32 n = 0, pieces = 0, at; /* tiles and pieces so far */
	if (group == 1)
		prefill_turn_give(group); /* the first turn is the first one's */
	for (u32 i = 0; i * gridDim.x < count; i++) {
		if (!prefill_piece_at(i, count, &at))
			continue;
		const struct attention_piece w = attention_piece_of<S>(p, cu_load<uint4>(p->plan.work[S::KIND] + at));
		struct prefill_state<S> s;
		prefill_begin<S>(p, &w, &s);
		if (w.end > w.begin)
			prefill_walk<S>(p, &w, shared, group, &n, pieces++, &s);
		prefill_write<S>(p, &w, &s);
	}
}

/* ---------------------------------------------------------------- the kernel */

template <typename S>
static __global__ void CU_WGMMA_BOUNDS(S::THREADS) attention_prefill_kernel(const struct attention p)
{
#if CU_HAS_WGMMA
	SHARED_DYNAMIC_1024(u8, shared);
	u64 *barriers = (u64 *)(shared + S::BARRIERS_AT);
	if (threadIdx.x < S::BARRIERS) { /* full and empty of K, of V, of Q */
		const u32 which = threadIdx.x < 4 * S::STAGES ? threadIdx.x / S::STAGES : threadIdx.x;
		cu_phase_init(barriers + threadIdx.x, which % 2 == 0 ? S::GROUP : 2 * S::GROUP / CU_WARP);
	}
	cu_sync(); /* the barriers are there */
	if (threadIdx.x < S::GROUP) {
		cu_registers_fewer<S::FETCH_REGISTERS>();
		prefill_fetch<S>(&p, shared);
	} else {
		cu_registers_more<S::COMPUTE_REGISTERS>();
		prefill_compute<S>(&p, shared);
	}
#endif
}

template <typename S> static bool serves(void)
{
	static const bool does = S::SHARED_BYTES <= cuda_shared_most() &&
				 cu_takes_threads(attention_prefill_kernel<S>, S::THREADS);
	return does;
}

template <typename S> static enum err launch(const struct attention *p, cudaStream_t stream)
{
	const cudaError_t e = CU_SHARED_LIMIT(attention_prefill_kernel<S>, S::SHARED_BYTES);
	if (e != cudaSuccess)
		return cuda_refused(e);
	return cuda_launched(LAUNCH(attention_prefill_kernel<S>, p->plan.grid[S::KIND], S::THREADS, S::SHARED_BYTES, stream, *p));
}

using narrow = prefill_shape<64, 128, 2>;
using wide = prefill_shape<128, 128, 2>;

bool attention_prefill_serves(const struct attention *p, u32 head_dim)
{
	if (p->soft_cap > 0)
		return false;
	return head_dim == narrow::D ? serves<narrow>() : head_dim == wide::D && serves<wide>();
}

enum err attention_prefill_run(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	if (p->plan.grid[ATTENTION_LARGE] == 0)
		return ERR_OK;
	return head_dim == narrow::D ? launch<narrow>(p, stream) : launch<wide>(p, stream);
}
