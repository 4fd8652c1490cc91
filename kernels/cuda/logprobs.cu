/* Log probabilities of a token and of the best. As sampling does it (sample.cu): three kernels with several blocks a
 * row, and one block for a whole row where that cannot be. */
#include "kernels/cuda/row.cuh"

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

/* The token's values, by one thread; `before`: how many ids precede it. */
CU_INLINE void put_token(const struct kern_logprobs_row *row, double norm, u64 before)
{
	*row->rank = (u32)before + 1;
	row->ids[0] = row->token;
	row->values[0] = (float)(row->logits[row->token] - norm);
}

CU_INLINE u32 top_of(const struct kern_logprobs_row *row, u32 vocab)
{
	return least(least(row->top, vocab), TOP_MAX);
}

CU_INLINE void logprobs_row(const struct kern_logprobs_row &row, u32 vocab, struct logprobs_shared *s)
{
	const u32 top = top_of(&row, vocab);
	const u32 best = select_arg_max(row.logits, vocab, &s->select);
	const double norm = log_sum_exp(row.logits, vocab, best, s->sums);
	u64 before = 0;
	const float own = row.logits[row.token];
	select_each<8>(row.logits, vocab, [&](u32 id, float x) {
		before += x > own || (x == own && id < row.token);
	});
	before = select_sum(before, &s->select);
	if (threadIdx.x == 0)
		put_token(&row, norm, before);
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

static __global__ void __launch_bounds__(THREADS, 1)
	logprobs_kernel(const struct kern_logprobs_row *rows, u32 vocab)
{
	SHARED(struct logprobs_shared, shared, 1);
	struct kern_logprobs_row row = rows[blockIdx.x];
	if (row.sampled)
		row.token = *row.sampled;
	logprobs_row(row, vocab, shared);
}

/* ---------------------------------------------------------------- several blocks a row */

constexpr float SCALE = 32; /* buckets a unit of the logit: 64 below the maximum begins what they do not tell apart */
constexpr float LOG2E = 1.44269504088896f;

CU_INLINE bool is_plain(float maximum)
{
	return fabsf(maximum) < 0x1p100f;
}

/* Sums of exponentials by chunk, how many ids precede the token, and how many lie in each bucket. */
static __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS_WEIGH)
	logprobs_weigh_kernel(const struct kern_logprobs_row *rows, struct row_scratch m)
{
	SHARED(struct select_shared, shared, 1);
	struct select_shared *s = shared;
	cu_grid_begin(); /* the chunks' best are there */
	const u32 number = row_number(&m);
	const struct kern_logprobs_row a = rows[number];
	const u32 token = a.sampled ? *a.sampled : a.token;
	const float own = a.logits[token];
	struct row row = row_of(&m, a.logits);
	if (a.top > 0)
		select_clear(s);
	row_find_best(&row, s);
	if (!is_plain(row.maximum))
		return;
	float *sums = m.sums + (size_t)number * m.chunks;
	u64 before = 0;
	row_each(
		&row, [](float) { return true; },
		[&](u32 chunk, const float x[ROW_VALUES]) {
			float sum = 0;
#pragma unroll
			for (u32 i = 0; i < ROW_VALUES; i++) {
				const u32 id = row_id(chunk, i), bucket = row_bucket(row.maximum, x[i], SCALE);
				sum += x[i] > -INFINITY ? cu_exp2((x[i] - row.maximum) * LOG2E) : 0;
				before += x[i] > own || (x[i] == own && id < token);
				if (bucket > 0 && a.top > 0)
					select_count(s, bucket);
			}
			sum = warp_sum(sum);
			if (threadIdx.x % CU_WARP == 0)
				sums[chunk] = sum;
		});
	before = select_sum(before, s);
	if (threadIdx.x == 0 && before > 0)
		(void)cu_atomic_add(&row.state->before, (u32)before);
	if (a.top > 0)
		row_add_weights(&row, s);
}

/* The least bucket of the `top` best; 0: they are more than the list has places for, or in none. */
CU_INLINE u32 last_bucket(const struct row *row, u32 top, struct select_shared *s)
{
	u64 rest = top;
	if (row_take_weights(row, s) < top)
		return 0;
	const u32 bucket = select_bucket(s, &rest);
	return top - rest + select_bucket_sum(s, bucket) <= ROW_LIST ? bucket : 0;
}

/* What the row's last block writes. */
CU_INLINE void logprobs_finish(const struct kern_logprobs_row *a, const struct row *row, const float *chunk_sums, u32 top,
			       struct row_shared *s, float *sums)
{
	const struct row_state *state = row->state;
	float sum = 0;
	for (u32 i = threadIdx.x; i < row->chunks; i += ROW_THREADS)
		sum += cu_load<float>(chunk_sums + i);
	const double norm = row->maximum + sampling_log(block_sum(sum, sums));
	if (threadIdx.x == 0)
		put_token(a, norm, cu_load<u32>(&state->before));
	if (top == 0)
		return;
	row_list_sort(row, cu_load<u32>(&state->list_count), s);
	for (u32 i = threadIdx.x; i < top; i += ROW_THREADS) {
		a->ids[1 + i] = row_entry_id(s->list[i]);
		a->values[1 + i] = (float)(row_entry_logit(s->list[i]) - norm);
	}
}

struct logprobs_best_shared {
	union {
		struct row_shared row;
		struct logprobs_shared alone;
	};
	float sums[CU_WARP];
};

static __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS_LAST)
	logprobs_best_kernel(const struct kern_logprobs_row *rows, struct row_scratch m)
{
	SHARED(struct logprobs_best_shared, shared, 1);
	struct row_shared *s = &shared->row;
	const u32 number = row_number(&m), part = row_part(&m);
	cu_grid_begin(); /* the weights are there */
	struct kern_logprobs_row a = rows[number];
	struct row row = row_of(&m, a.logits);
	const u32 top = top_of(&a, m.vocab);
	if (top == 0 && part > 0)
		return;
	if (a.sampled)
		a.token = *a.sampled;
	row_find_best(&row, &s->select);
	const bool plain = is_plain(row.maximum);
	const u32 bucket = plain && top > 0 ? last_bucket(&row, top, &s->select) : 0;
	if (!plain || (top > 0 && bucket == 0)) {
		if (part == 0)
			logprobs_row(a, m.vocab, &shared->alone);
		return;
	}
	if (top > 0) {
		row_list_begin(s);
		row_each(
			&row, [&](float best) { return row_bucket(row.maximum, best, SCALE) >= bucket; },
			[&](u32 chunk, const float x[ROW_VALUES]) {
#pragma unroll
				for (u32 i = 0; i < ROW_VALUES; i++)
					if (row_bucket(row.maximum, x[i], SCALE) >= bucket)
						row_list_add(s, row_entry(x[i], row_id(chunk, i)));
			});
		row_list_end(&row, s);
	}
	if (cu_block_is_last(&row.state->done, top > 0 ? m.parts : 1))
		logprobs_finish(&a, &row, m.sums + (size_t)number * m.chunks, top, s, shared->sums);
}

static cudaError_t logprobs_together(cudaStream_t stream, const struct kern_logprobs_row *rows, u32 count,
				     const struct row_scratch *m)
{
	const struct row_scratch best = row_spread(m, count, ROW_BLOCKS_BEST),
				 weigh = row_spread(m, count, ROW_BLOCKS_WEIGH),
				 last = row_spread(m, count, ROW_BLOCKS_LAST);
	cudaError_t e = LAUNCH_DEPENDENT(row_best_kernel<struct kern_logprobs_row>, count * best.parts, ROW_THREADS, 0,
					 stream, rows, best);
	if (e == cudaSuccess)
		e = LAUNCH_DEPENDENT(logprobs_weigh_kernel, count * weigh.parts, ROW_THREADS, 0, stream, rows, weigh);
	if (e == cudaSuccess)
		e = LAUNCH_DEPENDENT(logprobs_best_kernel, count * last.parts, ROW_THREADS, 0, stream, rows, last);
	return e;
}

CUDA_OP(logprobs)
{
	const u32 threads = a->vocab <= VOCAB_SMALL ? (u32)THREADS_SMALL : (u32)THREADS;
	struct row_scratch m;
	if (a->vocab == 0)
		return ERR_INVALID;
	if (a->vocab > VOCAB_MAX)
		return ERR_UNSUPPORTED;
	if (a->row_count == 0)
		return ERR_OK;
	const u32 together = row_plan(ctx, a->row_count, a->vocab, &m);
	if (together == 0)
		return cuda_launched(
			LAUNCH(logprobs_kernel, a->row_count, threads, 0, cuda_stream(ctx), a->rows, a->vocab));
	enum err e = ERR_OK;
	for (u32 i = 0; i < a->row_count && !e; i += together)
		e = cuda_launched(
			logprobs_together(cuda_stream(ctx), a->rows + i, least(together, a->row_count - i), &m));
	return e;
}
