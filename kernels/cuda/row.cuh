/* Rows of logits that several blocks share: a row is cut into chunks, a warp takes a chunk at a time, and a block has
 * some neighbouring chunks, as many as the number of rows leaves it. Kernels follow each other, dependent, through a
 * state per row in scratch memory: the best id of each chunk, from which the maximum follows and which chunks need no
 * reading; weights of buckets of logits, which tell in which bucket a restricted set ends; and a list of the few ids
 * of that bucket, which the row's last block puts in order. All that blocks add up are integers, and floats are added
 * by chunk, so no result depends on the number of blocks. */
#ifndef TERCET_KERNELS_CUDA_ROW_CUH
#define TERCET_KERNELS_CUDA_ROW_CUH

#include "kernels/cuda/select.cuh"
#include "kernels/device.h"

enum {
	ROW_THREADS = 384, /* two blocks a multiprocessor may have 80 registers a thread */
	ROW_WARPS = ROW_THREADS / CU_WARP,
	ROW_GROUP = 4 * CU_WARP, /* ids that a warp loads at once, four neighbours a lane */
	ROW_LOADS = 2,
	ROW_VALUES = 4 * ROW_LOADS,
	ROW_CHUNK = ROW_LOADS * ROW_GROUP,
	ROW_CHUNKS_LEAST = 4, /* of a block: less is not worth its start */
	ROW_PARTS_MAX = 64,
	ROW_START = 8,
	/* Of all rows, for each multiprocessor: as many as their registers let it have at once. */
	ROW_BLOCKS_BEST = 4,
	ROW_BLOCKS_WEIGH = 3,
	ROW_BLOCKS_LAST = 2,
	ROW_LIST = 2048,
};

/* Of one row, in scratch memory. row_best_kernel sets weights and counts to zero. */
struct row_state {
	u64 weights[SELECT_BUCKETS];
	u64 list[ROW_LIST]; /* as row_entry, in any order */
	double scores[ROW_PARTS_MAX];
	u32 ids[ROW_PARTS_MAX];
	u32 list_count; /* greater than ROW_LIST: the list has not got them all */
	u32 done, before;
};
static_assert(sizeof(struct row_state) <= KERN_SAMPLE_ROW_BYTES, "what kern_sample_scratch_bytes counts with");
static_assert((u32)ROW_CHUNK == (u32)KERN_SAMPLE_CHUNK, "the same");

/* The scratch of all rows of a launch. */
struct row_scratch {
	struct row_state *states; /* [rows] */
	u64 *bests;		  /* [rows][chunks] as row_entry */
	float *sums;		  /* [rows][chunks] */
	u32 vocab, chunks, parts; /* parts: blocks a row */
};

/* A block's view of its row. */
struct row {
	const float *logits;
	const u64 *bests;
	struct row_state *state;
	u32 vocab, chunks, first, end; /* this block's chunks */
	bool wide;		       /* logits can be loaded four at a time */
	u32 best;		       /* arg-max, */
	float maximum;		       /* and its logit */
};

struct row_shared {
	struct select_shared select;
	u64 list[ROW_LIST];
	u32 list_count, list_at;
};

/* ---------------------------------------------------------------- host */

/* How many rows at once the context's scratch has room for (0: none), and their layout. */
static inline u32 row_plan(const struct kern_ctx *ctx, u32 rows, u32 vocab, struct row_scratch *out)
{
	const u32 chunks = cuda_ceil(vocab, ROW_CHUNK);
	const size_t most_rows = ctx->scratch_bytes / kern_sample_scratch_bytes(1, vocab);
	const u32 count = rows < most_rows ? rows : (u32)most_rows;
	u8 *memory = (u8 *)ctx->scratch;
	out->states = (struct row_state *)memory;
	memory += (size_t)count * sizeof(struct row_state);
	out->bests = (u64 *)memory;
	memory += (size_t)count * chunks * sizeof(u64);
	out->sums = (float *)memory;
	out->vocab = vocab;
	out->chunks = chunks;
	out->parts = 1;
	return count;
}

/* The same with parts for a kernel of which a multiprocessor takes `blocks` blocks at once: the number that ends first,
 * if what a block does besides takes as long as ROW_START chunks of each of its warps. */
static inline struct row_scratch row_spread(const struct row_scratch *m, u32 rows, u32 blocks)
{
	const u32 places = most(blocks * cuda_processors(), 1);
	const u32 parts_most = least(cuda_ceil(m->chunks, ROW_CHUNKS_LEAST), ROW_PARTS_MAX);
	struct row_scratch out = *m;
	u64 least_time = ~0ull;
	for (u32 parts = 1; parts <= parts_most; parts++) {
		const u64 turns = ((u64)rows * parts + places - 1) / places;
		const u64 time = turns * (cuda_ceil(cuda_ceil(m->chunks, parts), ROW_WARPS) + ROW_START);
		if (time <= least_time) {
			out.parts = parts;
			least_time = time;
		}
	}
	return out;
}

/* ---------------------------------------------------------------- logits */

/* A logit and its id in one word: greater is better, the lowest id first of equal logits. */
CU_INLINE u64 row_entry(float x, u32 id)
{
	return (u64)sampling_key(x) << 32 | (u32)~id;
}

CU_INLINE u32 row_entry_id(u64 entry)
{
	return ~(u32)entry;
}

CU_INLINE float row_entry_logit(u64 entry)
{
	const u32 key = (u32)(entry >> 32);
	return cu_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

CU_INLINE u32 row_number(const struct row_scratch *m)
{
	return blockIdx.x / m->parts;
}

CU_INLINE u32 row_part(const struct row_scratch *m)
{
	return blockIdx.x % m->parts;
}

CU_INLINE struct row row_of(const struct row_scratch *m, const float *logits)
{
	const u32 number = row_number(m), part = row_part(m);
	struct row r;
	r.logits = logits;
	r.bests = m->bests + (size_t)number * m->chunks;
	r.state = m->states + number;
	r.vocab = m->vocab;
	r.chunks = m->chunks;
	r.first = (u32)((u64)m->chunks * part / m->parts);
	r.end = (u32)((u64)m->chunks * (part + 1) / m->parts);
	r.wide = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
	r.best = 0;
	r.maximum = 0;
	return r;
}

/* The id of value i of this lane's part of a chunk; those of four values are neighbours and begin at a multiple of 4. */
CU_INLINE u32 row_id(u32 chunk, u32 i)
{
	return chunk * ROW_CHUNK + i / 4 * ROW_GROUP + threadIdx.x % CU_WARP * 4 + i % 4;
}

/* This lane's part of a chunk; behind the vocabulary NaN, which are nobody's. */
CU_INLINE void row_load(const struct row *r, u32 chunk, float x[ROW_VALUES])
{
#pragma unroll
	for (u32 i = 0; i < ROW_LOADS; i++) {
		const u32 id = row_id(chunk, 4 * i);
		if (r->wide && id + 4 <= r->vocab) {
			const float4 v = cu_load_stream<float4>(r->logits + id);
			x[4 * i] = v.x;
			x[4 * i + 1] = v.y;
			x[4 * i + 2] = v.z;
			x[4 * i + 3] = v.w;
			continue;
		}
#pragma unroll
		for (u32 j = 0; j < 4; j++)
			x[4 * i + j] = id + j < r->vocab ? cu_load_const<float>(r->logits + id + j) : NAN;
	}
}

/* Calls visit(chunk, x) of each of this block's chunks whose best logit wants(logit), a warp a chunk; the next one is
 * on its way meanwhile. */
template <typename W, typename F> CU_INLINE void row_each(const struct row *r, W wants, F visit)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
#pragma unroll 1
	for (u32 base = r->first + warp; base < r->end; base += CU_WARP * ROW_WARPS) {
		const u32 mine = base + lane * ROW_WARPS;
		const bool wanted = mine < r->end && wants(row_entry_logit(cu_load<u64>(r->bests + mine)));
		u32 unread = cu_ballot(wanted);
		float next[ROW_VALUES];
		if (unread)
			row_load(r, base + (cu_ffs(unread) - 1) * ROW_WARPS, next);
#pragma unroll 1
		while (unread) {
			const u32 chunk = base + (cu_ffs(unread) - 1) * ROW_WARPS;
			float x[ROW_VALUES];
#pragma unroll
			for (u32 i = 0; i < ROW_VALUES; i++)
				x[i] = next[i];
			unread &= unread - 1;
			if (unread)
				row_load(r, base + (cu_ffs(unread) - 1) * ROW_WARPS, next);
			visit(chunk, x);
		}
	}
}

/* ---------------------------------------------------------------- the maximum */

/* First of all: the best id of each chunk, and a state that begins with zeros. */
template <typename R>
static __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS_BEST) row_best_kernel(const R *rows, struct row_scratch m)
{
	cu_grid_begin(); /* the logits are there, and nobody needs the scratch any more */
	const struct row r = row_of(&m, rows[row_number(&m)].logits);
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	for (u32 i = row_part(&m) * ROW_THREADS + threadIdx.x; i < SELECT_BUCKETS; i += m.parts * ROW_THREADS)
		r.state->weights[i] = 0;
	if (row_part(&m) == 0 && threadIdx.x == 0)
		r.state->list_count = r.state->done = r.state->before = 0;
	u64 *bests = m.bests + (size_t)row_number(&m) * m.chunks;
#pragma unroll 2
	for (u32 chunk = r.first + warp; chunk < r.end; chunk += ROW_WARPS) {
		float x[ROW_VALUES];
		row_load(&r, chunk, x);
		u32 key = 0, id = 0;
#pragma unroll
		for (u32 i = 0; i < ROW_VALUES; i++) {
			const u32 k = sampling_key(x[i]);
			id = k > key ? row_id(chunk, i) : id; /* ids rise: the first of equal ones */
			key = k > key ? k : key;
		}
		const u32 best = cu_reduce_max(key);
		id = cu_reduce_min(key == best ? id : ~0u);
		if (lane == 0)
			bests[chunk] = (u64)best << 32 | (u32)~id;
	}
}

/* The row's maximum, once that kernel has ended. */
CU_INLINE void row_find_best(struct row *r, struct select_shared *s)
{
	u64 best = 0;
	for (u32 i = threadIdx.x; i < r->chunks; i += ROW_THREADS) {
		const u64 x = cu_load<u64>(r->bests + i);
		best = x > best ? x : best;
	}
	best = select_max(best, s);
	r->best = row_entry_id(best);
	r->maximum = row_entry_logit(best);
}

/* ---------------------------------------------------------------- buckets */

/* 2,048 buckets by the distance from the maximum, the nearest first in the order of select_bucket. Equal logits share
 * one, and a greater one never has a lower bucket. 0: too far away, or NaN. */
CU_INLINE u32 row_bucket(float maximum, float x, float scale)
{
	const float down = (maximum - x) * scale;
	return down < SELECT_BUCKETS - 1 ? SELECT_BUCKETS - 1 - (u32)down : 0;
}

/* Adds the block's weights to the row's. */
CU_INLINE void row_add_weights(const struct row *r, const struct select_shared *s)
{
	cu_sync(); /* everybody has added */
	for (u32 i = threadIdx.x; i < SELECT_BUCKETS; i += ROW_THREADS) {
		const u64 weight = select_bucket_sum(s, i);
		if (weight > 0)
			(void)cu_atomic_add(&r->state->weights[i], weight);
	}
}

/* The row's weights in the place of the block's; their sum. */
CU_INLINE u64 row_take_weights(const struct row *r, struct select_shared *s)
{
	u64 total = 0;
	for (u32 i = threadIdx.x; i < SELECT_BUCKETS; i += ROW_THREADS) {
		const u64 weight = cu_load<u64>(&r->state->weights[i]);
		s->low[i] = (u32)weight;
		s->high[i] = (u32)(weight >> 32);
		total += weight;
	}
	return select_sum(total, s);
}

/* ---------------------------------------------------------------- the list */

CU_INLINE void row_list_begin(struct row_shared *s)
{
	if (threadIdx.x == 0)
		s->list_count = 0;
	cu_sync(); /* the block's list is empty */
}

CU_INLINE void row_list_add(struct row_shared *s, u64 entry)
{
	const u32 at = cu_atomic_add(&s->list_count, 1u);
	if (at < ROW_LIST)
		s->list[at] = entry;
}

/* The block's list goes into the row's. */
CU_INLINE void row_list_end(const struct row *r, struct row_shared *s)
{
	cu_sync(); /* the block's list is complete */
	const u32 count = s->list_count;
	if (count == 0)
		return;
	if (threadIdx.x == 0)
		s->list_at = cu_atomic_add(&r->state->list_count, count);
	cu_sync(); /* its place is known */
	const u32 at = s->list_at, end = at < ROW_LIST ? least(count, ROW_LIST - at) : 0;
	for (u32 i = threadIdx.x; i < end; i += ROW_THREADS)
		r->state->list[at + i] = s->list[i];
}

/* The row's list, of `count` entries, in falling order (bitonic sort: Batcher 1968) into s->list; and zeros, which are
 * no entries, behind it up to a power of two. By the last block alone. */
CU_INLINE void row_list_sort(const struct row *r, u32 count, struct row_shared *s)
{
	u32 size = 2;
	while (size < count)
		size *= 2;
	for (u32 i = threadIdx.x; i < size; i += ROW_THREADS)
		s->list[i] = i < count ? cu_load<u64>(&r->state->list[i]) : 0;
	cu_sync(); /* the list is there */
#pragma unroll 1
	for (u32 run = 2; run <= size; run *= 2)
#pragma unroll 1
		for (u32 apart = run / 2; apart > 0; apart /= 2) {
			for (u32 i = threadIdx.x; i < size / 2; i += ROW_THREADS) {
				const u32 low = 2 * i - (i & (apart - 1)), high = low + apart;
				const u64 a = s->list[low], b = s->list[high];
				if ((a < b) == ((low & run) == 0)) {
					s->list[low] = b;
					s->list[high] = a;
				}
			}
			cu_sync(); /* all pairs of this distance are in order */
		}
}

/* The sum of x over all threads before this one; *total: over all. */
CU_INLINE u64 row_sum_before(u64 x, u64 *total, struct select_shared *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	const u64 scan = select_scan(x);
	if (lane == CU_WARP - 1)
		s->warps[warp] = scan;
	cu_sync(); /* all warps' sums are there */
	const u64 warps = select_scan(lane < ROW_WARPS ? s->warps[lane] : 0);
	*total = cu_shfl(warps, CU_WARP - 1);
	const u64 before = cu_shfl(warps, warp > 0 ? warp - 1 : 0);
	cu_sync(); /* everybody has read them */
	return scan - x + (warp > 0 ? before : 0);
}

#endif
