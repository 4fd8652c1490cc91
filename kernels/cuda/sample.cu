/* One token per row: a block a row, no sort. The same arithmetic as the CPU's (sampling_priv.h), compiled
 * without fused multiply-add, so that equal logits give the same token on both, whatever shares the batch. */
#include "kernels/cuda/select.cuh"

enum { THREADS = 1024, THREADS_SMALL = 256, VOCAB_SMALL = 4096, VOCAB_MAX = 1u << (2 * SELECT_BITS) };

struct candidate {
	double score;
	u32 id;
};

CU_INLINE bool is_better(double score, u32 id, const struct candidate *than)
{
	return score > than->score || (score == than->score && id < than->id);
}

/* The best of the warp in each of its lanes. */
CU_INLINE void warp_best(struct candidate *c)
{
#pragma unroll
	for (u32 i = CU_WARP / 2; i > 0; i /= 2) {
		const double score = cu_shfl_xor(c->score, i);
		const u32 id = cu_shfl_xor(c->id, i);
		if (is_better(score, id, c))
			*c = {score, id};
	}
}

CU_INLINE double noise_of(u32 position, u64 seed, u32 id, double bound, double least)
{
	const u32 counter[4] = {position, id / 4, 0, 0};
	u32 noise[4];
	philox(counter, seed, noise);
	const u32 bits = id % 4 == 0 ? noise[0] : id % 4 == 1 ? noise[1] : id % 4 == 2 ? noise[2] : noise[3];
	return bound + sampling_gumbel_bound(bits) < least ? -INFINITY : sampling_gumbel(bits);
}

/* The member of greatest scaled logit + Gumbel noise. `floor`: the least scaled logit allowed (min_p). */
CU_INLINE u32 gumbel_max(const struct select_row *row, u32 best, double floor, u64 seed, u32 position,
			 struct select_shared *s)
{
	const u32 lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP, warps = blockDim.x / CU_WARP;
	const double widest = sampling_gumbel_bound(0xffffffffu);
	/* The likeliest token first: its score lets most others be passed over. */
	struct candidate c = {noise_of(position, seed, best, 0, -INFINITY), best};
	select_each<4>(row->logits, row->vocab, [&](u32 id, float x) {
		const double z = select_scaled(row, x);
		if (!(z >= floor) || z + widest < c.score ||
		    !select_is_member(&row->cut, sampling_key(x), id))
			return;
		const double score = z + noise_of(position, seed, id, z, c.score);
		if (is_better(score, id, &c))
			c = {score, id};
	});
	warp_best(&c);
	double *scores = (double *)s->warps;
	if (lane == 0) {
		scores[warp] = c.score;
		s->groups[warp] = c.id;
	}
	cu_sync(); /* all warps' best are there */
	c = {lane < warps ? scores[lane] : -INFINITY, lane < warps ? (u32)s->groups[lane] : ~0u};
	warp_best(&c);
	return c.id;
}

CU_INLINE u32 sample_row(const struct kern_sample_row *r, u32 vocab, struct select_shared *s)
{
	struct select_row row = {r->logits, vocab, 0, 0, {0, vocab - 1}};
	const u32 best = select_arg_max(r->logits, vocab, s);
	row.maximum = r->logits[best];
	if (!(r->temperature > 0) || !(row.maximum > -INFINITY))
		return best;
	if (row.maximum > 3.402823466e+38f)
		row.maximum = 3.402823466e+38f;
	row.inverse_temperature = 1.0 / (double)r->temperature;
	if (r->top_k > 0 && r->top_k < vocab)
		select_beginning(&row, true, r->top_k, s);
	if (r->top_p < 1) {
		u64 total = 0;
		select_each<4>(row.logits, vocab, [&](u32 id, float x) {
			const u32 key = sampling_key(x);
			if (key >= row.cut.key && select_is_member(&row.cut, key, id))
				total += select_weight(&row, x, false);
		});
		total = select_sum(total, s);
		const double target = ceil((double)r->top_p * (double)total);
		select_beginning(&row, false,
				 target < 1		  ? 1
				 : target < (double)total ? (u64)target
							  : total,
				 s);
	}
	const double floor = r->min_p > 0 ? sampling_log((double)r->min_p) : -1.7976931348623157e308;
	return gumbel_max(&row, best, floor < 0 ? floor : 0, r->seed, r->position, s);
}

static __global__ void __launch_bounds__(THREADS)
	sample_kernel(const struct kern_sample_row *rows, u32 *tokens, u32 vocab)
{
	SHARED(struct select_shared, shared, 1);
	const struct kern_sample_row row = rows[blockIdx.x];
	const u32 token = sample_row(&row, vocab, shared);
	if (threadIdx.x == 0)
		tokens[blockIdx.x] = token;
}

CUDA_OP(sample)
{
	const u32 threads = a->vocab <= VOCAB_SMALL ? (u32)THREADS_SMALL : (u32)THREADS;
	if (a->vocab == 0)
		return ERR_INVALID;
	if (a->vocab > VOCAB_MAX)
		return ERR_UNSUPPORTED;
	if (a->row_count == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH(sample_kernel, a->row_count, threads, 0, cuda_stream(ctx), a->rows,
				    a->tokens, a->vocab));
}
