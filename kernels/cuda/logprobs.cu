/* Log probabilities of a token and of the best: a block a row. */
#include "kernels/cuda/select.cuh"

enum {
	THREADS = 1024,
	THREADS_SMALL = 256,
	VOCAB_SMALL = 4096,
	VOCAB_MAX = 1u << (2 * SELECT_BITS),
	TOP_MAX = 256
};

struct logprobs_shared {
	struct select_shared select;
	float sums[CU_WARP];
	u32 ids[TOP_MAX], count;
};

CU_INLINE bool precedes(const float *logits, u32 a, u32 b)
{
	return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* ln of the sum of exponentials; the maximum's id is known. */
CU_INLINE double log_sum_exp(const float *logits, u32 vocab, u32 best, float *sums)
{
	const float maximum = logits[best];
	float sum = 0;
	if (!(fabsf(maximum) < INFINITY))
		return maximum;
	select_each<8>(logits, vocab, [&](u32, float x) {
		if (x > -INFINITY)
			sum += cu_exp2((x - maximum) * 1.4426950408889634f);
	});
	return maximum + sampling_log(block_sum(sum, sums));
}

/* The `top` best into s->ids, in any order. */
CU_INLINE void gather_top(const float *logits, u32 vocab, u32 top, struct logprobs_shared *s)
{
	struct select_row row = {logits, vocab, 0, 1, {0, vocab - 1}};
	if (threadIdx.x == 0)
		s->count = 0;
	if (top < vocab)
		select_beginning(&row, true, top, &s->select);
	cu_sync(); /* the count is zero */
	select_each<8>(logits, vocab, [&](u32 id, float x) {
		if (select_is_member(&row.cut, sampling_key(x), id))
			s->ids[cu_atomic_add(&s->count, 1u)] = id;
	});
	cu_sync(); /* all members are listed */
}

static __global__ void __launch_bounds__(THREADS, 1)
	logprobs_kernel(const struct kern_logprobs_row *rows, u32 vocab)
{
	SHARED(struct logprobs_shared, shared, 1);
	struct logprobs_shared *s = shared;
	struct kern_logprobs_row row = rows[blockIdx.x];
	if (row.sampled)
		row.token = *row.sampled;
	const u32 top = least(least(row.top, vocab), TOP_MAX);
	const u32 best = select_arg_max(row.logits, vocab, &s->select);
	const double norm = log_sum_exp(row.logits, vocab, best, s->sums);
	u64 before = 0;
	const float own = row.logits[row.token];
	select_each<8>(row.logits, vocab, [&](u32 id, float x) {
		before += x > own || (x == own && id < row.token);
	});
	before = select_sum(before, &s->select);
	if (threadIdx.x == 0) {
		*row.rank = (u32)before + 1;
		row.ids[0] = row.token;
		row.values[0] = (float)(own - norm);
	}
	if (top == 0)
		return;
	gather_top(row.logits, vocab, top, s);
	for (u32 i = threadIdx.x; i < top; i += blockDim.x) {
		const u32 id = s->ids[i];
		u32 place = 1;
		for (u32 j = 0; j < top; j++)
			place += j != i && precedes(row.logits, s->ids[j], id);
		row.ids[place] = id;
		row.values[place] = (float)(row.logits[id] - norm);
	}
}

CUDA_OP(logprobs)
{
	const u32 threads = a->vocab <= VOCAB_SMALL ? (u32)THREADS_SMALL : (u32)THREADS;
	if (a->vocab == 0)
		return ERR_INVALID;
	if (a->vocab > VOCAB_MAX)
		return ERR_UNSUPPORTED;
	if (a->row_count == 0)
		return ERR_OK;
	return cuda_launched(
		LAUNCH(logprobs_kernel, a->row_count, threads, 0, cuda_stream(ctx), a->rows, a->vocab));
}
