/* Bias, penalties and masks of logits: lists of ids by one block of a row, the set of allowed ids by all of its blocks
 * at once. So that none waits for another, no list touches an id that is not allowed: its logit is the set's. */
#include "kernels/cuda/device.cuh"

enum {
	THREADS = 512, /* a row's history may be long */
	PART = 4 * THREADS, /* ids that a block masks at a time, four a thread */
	PARTS_MAX = 64,
	BLOCKS = 4, /* of all rows, for each multiprocessor */
};
constexpr u32 SEEN = 1u << 31; /* of a count: the id is in the prompt; the rest: how often it was an output */

CU_INLINE void penalize(const struct kern_logits_row &row, u32 id, u32 times)
{
	float x = row.logits[id];
	x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
	if (times > 0)
		x -= row.frequency_penalty * (float)times + row.presence_penalty;
	row.logits[id] = x;
}

/* Whether a list may touch the id. */
CU_INLINE bool is_open(const struct kern_logits_row &row, u32 vocab, u32 id)
{
	return id < vocab && (row.allowed == nullptr || (row.allowed[id / 32] >> id % 32 & 1));
}

/* Each id once: by the thread that takes its count, which leaves zeros behind. */
CU_INLINE void penalize_history(const struct kern_logits_row &row, u32 vocab)
{
	const u32 known = *row.known;
	for (u32 i = threadIdx.x; i < known; i += THREADS) {
		const u32 id = row.tokens[i];
		if (!is_open(row, vocab, id))
			continue;
		if (i < row.prompt_count)
			(void)cu_atomic_or(&row.counts[id], SEEN);
		else
			(void)cu_atomic_add(&row.counts[id], 1u);
	}
	cu_sync(); /* all are counted */
	for (u32 i = threadIdx.x; i < known; i += THREADS) {
		const u32 id = row.tokens[i];
		const u32 count = is_open(row, vocab, id) ? cu_atomic_exch(&row.counts[id], 0u) : 0;
		if (count > 0)
			penalize(row, id, count & ~SEEN);
	}
}

CU_INLINE void apply_lists(const struct kern_logits_row &row, u32 vocab)
{
	for (u32 i = threadIdx.x; i < row.bias_count; i += THREADS)
		if (is_open(row, vocab, row.bias_ids[i]))
			row.logits[row.bias_ids[i]] += row.bias_values[i];
	cu_sync(); /* penalties follow the bias */
	if (row.counts)
		penalize_history(row, vocab);
	else
		for (u32 i = threadIdx.x; i < row.seen_count; i += THREADS)
			if (is_open(row, vocab, row.seen_ids[i]))
				penalize(row, row.seen_ids[i], row.seen_outputs[i]);
	cu_sync(); /* a masked id stays masked */
	for (u32 i = threadIdx.x; i < row.masked_count; i += THREADS)
		if (is_open(row, vocab, row.masked_ids[i]))
			row.logits[row.masked_ids[i]] = -INFINITY;
}

static __global__ void __launch_bounds__(THREADS, 2)
	logits_kernel(const struct kern_logits_row *rows, u32 vocab, u32 parts)
{
	const struct kern_logits_row row = rows[blockIdx.x / parts];
	const u32 part = blockIdx.x % parts;
	if (part == 0)
		apply_lists(row, vocab);
	if (row.allowed == nullptr)
		return;
	const bool wide = (reinterpret_cast<uintptr_t>(row.logits) & 15) == 0;
	for (u32 id = part * PART + threadIdx.x * 4; id < vocab; id += parts * PART) {
		const u32 open = row.allowed[id / 32] >> id % 32 & 15;
		if (wide && open == 0 && id + 4 <= vocab) {
			cu_store(row.logits + id, make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
			continue;
		}
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			if (!(open >> i & 1) && id + i < vocab)
				row.logits[id + i] = -INFINITY;
	}
}

CUDA_OP(logits)
{
	if (a->row_count == 0)
		return ERR_OK;
	const u32 blocks = cuda_ceil(BLOCKS * cuda_processors(), a->row_count);
	const u32 parts = most(least(least(blocks, cuda_ceil(a->vocab, PART)), PARTS_MAX), 1);
	return cuda_launched(LAUNCH(logits_kernel, a->row_count * parts, THREADS, 0, cuda_stream(ctx), a->rows, a->vocab,
				    parts));
}
