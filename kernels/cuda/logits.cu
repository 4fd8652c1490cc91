/* Bias, penalties and masks of logits, and their soft cap. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 512 }; /* a row's history may be long */
constexpr u32 SEEN = 1u << 31; /* of a count: the id is in the prompt; the rest: how often it was an output */

CU_INLINE void penalize(const struct kern_logits_row &row, u32 id, u32 times)
{
	float x = row.logits[id];
	x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
	if (times > 0)
		x -= row.frequency_penalty * (float)times + row.presence_penalty;
	row.logits[id] = x;
}

/* Each id once: by the thread that takes its count, which leaves zeros behind. */
CU_INLINE void penalize_history(const struct kern_logits_row &row, u32 vocab)
{
	const u32 known = *row.known;
	for (u32 i = threadIdx.x; i < known; i += THREADS) {
		const u32 id = row.tokens[i];
		if (id >= vocab)
			continue;
		if (i < row.prompt_count)
			(void)cu_atomic_or(&row.counts[id], SEEN);
		else
			(void)cu_atomic_add(&row.counts[id], 1u);
	}
	cu_sync(); /* all are counted */
	for (u32 i = threadIdx.x; i < known; i += THREADS) {
		const u32 id = row.tokens[i];
		const u32 count = id < vocab ? cu_atomic_exch(&row.counts[id], 0u) : 0;
		if (count > 0)
			penalize(row, id, count & ~SEEN);
	}
}

static __global__ void __launch_bounds__(THREADS, 2)
	logits_kernel(const struct kern_logits_row *rows, u32 vocab)
{
	const struct kern_logits_row row = rows[blockIdx.x];
	for (u32 i = threadIdx.x; i < row.bias_count; i += THREADS)
		if (row.bias_ids[i] < vocab)
			row.logits[row.bias_ids[i]] += row.bias_values[i];
	cu_sync(); /* penalties follow the bias */
	if (row.counts)
		penalize_history(row, vocab);
	else
		for (u32 i = threadIdx.x; i < row.seen_count; i += THREADS)
			if (row.seen_ids[i] < vocab)
				penalize(row, row.seen_ids[i], row.seen_outputs[i]);
	cu_sync(); /* a masked id stays masked */
	for (u32 i = threadIdx.x; i < row.masked_count; i += THREADS)
		if (row.masked_ids[i] < vocab)
			row.logits[row.masked_ids[i]] = -INFINITY;
	if (row.allowed == nullptr)
		return;
	cu_sync(); /* a masked id may be one that is not allowed */
	for (u32 i = threadIdx.x; i < vocab; i += THREADS)
		if (!(row.allowed[i / 32] >> i % 32 & 1))
			row.logits[i] = -INFINITY;
}

CUDA_OP(logits)
{
	if (a->row_count == 0)
		return ERR_OK;
	return cuda_launched(
		LAUNCH(logits_kernel, a->row_count, THREADS, 0, cuda_stream(ctx), a->rows, a->vocab));
}
