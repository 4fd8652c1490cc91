/* Choosing from a row of logits without sorting it: sums and maxima over a block, and the radix select that
 * finds the last member of a restricted set. Masses are integers (sampling_priv.h), so no sum depends on an
 * order, and a row's result is the CPU's to the bit. */
#ifndef TERCET_KERNELS_CUDA_SELECT_CUH
#define TERCET_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/sampling_priv.h"

enum {
	SELECT_BITS = 11,
	SELECT_BUCKETS = 1u << SELECT_BITS,
	SELECT_LEVELS = 3, /* 11 + 11 + 10 bits of a key */
	SELECT_GROUP = SELECT_BUCKETS / CU_WARP,
};

/* A bucket's sum has two words: in shared memory devices add 32 bits at once, but 64 only by comparing and
 * trying again, and most of a vocabulary wants the same few buckets. */
struct select_shared {
	u32 low[SELECT_BUCKETS], high[SELECT_BUCKETS];
	u64 warps[CU_WARP]; /* a value of each warp */
	u64 groups[CU_WARP];
	u64 target;
	u32 bucket;
};

/* The members of a restricted set: keys above `key`, and those equal to it up to id `last_id`. */
struct select_cut {
	u32 key, last_id;
};

/* A row as the select sees it. */
struct select_row {
	const float *logits;
	u32 vocab;
	float maximum; /* finite; masses are relative to it */
	double inverse_temperature;
	struct select_cut cut;
};

CU_INLINE bool select_is_member(const struct select_cut *cut, u32 key, u32 id)
{
	return key > cut->key || (key == cut->key && id <= cut->last_id);
}

/* (logit - maximum) / temperature: at most 0 */
CU_INLINE double select_scaled(const struct select_row *row, float x)
{
	x = x > 3.402823466e+38f ? 3.402823466e+38f : x; /* a NaN stays one: no mass, never chosen */
	return ((double)x - row->maximum) * row->inverse_temperature;
}

CU_INLINE u64 select_weight(const struct select_row *row, float x, bool count)
{
	return count ? 1 : sampling_mass(select_scaled(row, x));
}

/* Calls visit(id, logit) for this thread's share of a row, N loads being on their way at a time: a block has a
 * row for itself, and waiting for each of them would take most of its time. */
template <u32 N, typename F> CU_INLINE void select_each(const float *logits, u32 vocab, F visit)
{
	for (u32 first = threadIdx.x; first < vocab; first += N * blockDim.x) {
		float x[N];
#pragma unroll
		for (u32 i = 0; i < N; i++)
			x[i] = first + i * blockDim.x < vocab
				       ? cu_load_stream<float>(logits + first + i * blockDim.x)
				       : 0;
#pragma unroll
		for (u32 i = 0; i < N; i++)
			if (first + i * blockDim.x < vocab)
				visit(first + i * blockDim.x, x[i]);
	}
}

/* ---------------------------------------------------------------- over the block, the same in each thread */

CU_INLINE u64 select_sum(u64 x, struct select_shared *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warps = blockDim.x / CU_WARP;
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		x += cu_shfl_xor(x, i);
	if (lane == 0)
		s->warps[threadIdx.x / CU_WARP] = x;
	cu_sync(); /* all warps' sums are there */
	x = lane < warps ? s->warps[lane] : 0;
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2)
		x += cu_shfl_xor(x, i);
	cu_sync(); /* everybody has read them */
	return x;
}

CU_INLINE u64 select_max(u64 x, struct select_shared *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warps = blockDim.x / CU_WARP;
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const u64 other = cu_shfl_xor(x, i);
		x = other > x ? other : x;
	}
	if (lane == 0)
		s->warps[threadIdx.x / CU_WARP] = x;
	cu_sync(); /* all warps' maxima are there */
	x = lane < warps ? s->warps[lane] : 0;
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const u64 other = cu_shfl_xor(x, i);
		x = other > x ? other : x;
	}
	cu_sync(); /* everybody has read them */
	return x;
}

/* The id of the greatest logit, the lowest of equal ones; 0 where all are -inf or NaN. */
CU_INLINE u32 select_arg_max(const float *logits, u32 vocab, struct select_shared *s)
{
	u64 best = 0;
	select_each<8>(logits, vocab, [&](u32 id, float logit) {
		const u64 x = (u64)sampling_key(logit) << 32 | (u32)~id;
		best = x > best ? x : best;
	});
	return ~(u32)select_max(best, s);
}

/* ---------------------------------------------------------------- radix select */

CU_INLINE void select_clear(struct select_shared *s)
{
	for (u32 i = threadIdx.x; i < SELECT_BUCKETS; i += blockDim.x)
		s->low[i] = s->high[i] = 0;
	cu_sync(); /* nobody adds before all are zero */
}

CU_INLINE void select_add(struct select_shared *s, u32 bucket, u64 weight)
{
	const u32 low = (u32)weight, carry = cu_atomic_add(&s->low[bucket], low) + low < low ? 1 : 0;
	const u32 high = (u32)(weight >> 32) + carry;
	if (high > 0)
		(void)cu_atomic_add(&s->high[bucket], high);
}

/* The same for weights that all are 1, of which there are fewer than 2^32. */
CU_INLINE void select_count(struct select_shared *s, u32 bucket)
{
	(void)cu_atomic_add(&s->low[bucket], 1u);
}

CU_INLINE u64 select_bucket_sum(const struct select_shared *s, u32 bucket)
{
	return (u64)s->high[bucket] << 32 | s->low[bucket];
}

CU_INLINE u64 select_scan(u64 x)
{
	const u32 lane = threadIdx.x % CU_WARP;
#pragma unroll
	for (u32 i = 1; i < CU_WARP; i *= 2) {
		const u64 before = cu_shfl_up(x, i);
		x += lane >= i ? before : 0;
	}
	return x;
}

/* The highest bucket at which the sum from the top on reaches *target, or 0; *target loses what lies above
 * it. */
CU_INLINE u32 select_bucket(struct select_shared *s, u64 *target)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
	cu_sync();						     /* everybody has added */
	for (u32 g = warp; g < CU_WARP; g += blockDim.x / CU_WARP) { /* group g from the top */
		u64 sum = 0;
		for (u32 i = lane; i < SELECT_GROUP; i += CU_WARP)
			sum += select_bucket_sum(s, SELECT_BUCKETS - 1 - g * SELECT_GROUP - i);
#pragma unroll
		for (u32 i = CU_WARP / 2; i > 0; i /= 2)
			sum += cu_shfl_xor(sum, i);
		if (lane == 0)
			s->groups[g] = sum;
	}
	cu_sync(); /* the groups' sums are there */
	if (warp == 0) {
		const u64 scan = select_scan(s->groups[lane]);
		const u32 reached = cu_ballot(scan >= *target);
		const u32 group = reached ? cu_ffs(reached) - 1 : CU_WARP - 1;
		const u64 above = cu_shfl(scan - s->groups[lane], group);
		/* two neighbouring buckets a lane */
		const u32 first = SELECT_BUCKETS - 1 - group * SELECT_GROUP - 2 * lane;
		const u64 one = select_bucket_sum(s, first), two = select_bucket_sum(s, first - 1);
		const u64 pair = select_scan(one + two) + above;
		const u32 inside = cu_ballot(pair >= *target);
		const u32 owner = inside ? cu_ffs(inside) - 1 : CU_WARP - 1;
		if (lane == owner) {
			const u64 before = pair - one - two;
			const bool is_one = before + one >= *target;
			s->bucket = is_one ? first : first - 1;
			s->target = *target - before - (is_one ? 0 : one);
		}
	}
	cu_sync(); /* the bucket is known */
	*target = s->target;
	return s->bucket;
}

/* The n-th (from 1) of the members whose key is `key`, by rising id, or the last of them where there are
 * fewer. */
CU_INLINE u32 select_nth_id(const struct select_row *row, u32 key, u64 n, struct select_shared *s)
{
	u64 count = 0, last = 0;
	for (u32 id = threadIdx.x; id < row->vocab; id += blockDim.x)
		if (sampling_key(row->logits[id]) == key && select_is_member(&row->cut, key, id)) {
			count++;
			last = id;
		}
	count = select_sum(count, s);
	last = select_max(last, s);
	if (n >= count)
		return count > 0 ? (u32)last : row->vocab - 1;
	/* Ids in two levels, the highest bucket being the lowest ids. */
	u32 high = 0;
	for (u32 level = 0; level < 2; level++) {
		select_clear(s);
		for (u32 id = threadIdx.x; id < row->vocab; id += blockDim.x) {
			if (sampling_key(row->logits[id]) != key || !select_is_member(&row->cut, key, id) ||
			    (level == 1 && id >> SELECT_BITS != high))
				continue;
			const u32 part = level == 0 ? id >> SELECT_BITS : id % SELECT_BUCKETS;
			select_count(s, SELECT_BUCKETS - 1 - part);
		}
		const u32 part = SELECT_BUCKETS - 1 - select_bucket(s, &n);
		if (level == 1)
			return high << SELECT_BITS | part;
		high = part;
	}
	return 0;
}

/* Shrinks the cut to the smallest beginning, by falling logit and then rising id, whose weight reaches
 * `target` >= 1. A member weighs its mass, or 1 where `count` is set. */
CU_INLINE void select_beginning(struct select_row *row, bool count, u64 target, struct select_shared *s)
{
	u32 prefix = 0, shift = 32;
#pragma unroll 1
	for (u32 level = 0; level < SELECT_LEVELS; level++) {
		const u32 bits = level == SELECT_LEVELS - 1 ? 32 - (SELECT_LEVELS - 1) * SELECT_BITS
							    : (u32)SELECT_BITS;
		const u32 above = shift;
		shift -= bits;
		select_clear(s);
		select_each<4>(row->logits, row->vocab, [&](u32 id, float x) {
			const u32 key = sampling_key(x), bucket = key >> shift & ((1u << bits) - 1);
			if (key < row->cut.key || (level > 0 && key >> above != prefix) ||
			    !select_is_member(&row->cut, key, id))
				return;
			if (count) {
				select_count(s, bucket);
				return;
			}
			const u64 weight = select_weight(row, x, false);
			if (weight > 0)
				select_add(s, bucket, weight);
		});
		/* The last level has half as many buckets; the upper ones are empty. */
		prefix = prefix << bits | select_bucket(s, &target);
	}
	const float x = cu_float(prefix >> 31 ? prefix ^ 0x80000000u : ~prefix); /* of that key */
	const u64 weight = select_weight(row, x, count);
	const u32 last = select_nth_id(row, prefix, weight > 0 ? (target + weight - 1) / weight : ~(u64)0, s);
	row->cut = {prefix, last};
}

#endif
