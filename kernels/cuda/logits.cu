/* Bias, penalties and masks of logits, and their soft cap. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS, 8)
	logits_kernel(const struct kern_logits_row *rows, u32 vocab)
{
	const struct kern_logits_row row = rows[blockIdx.x];
	for (u32 i = threadIdx.x; i < row.bias_count; i += THREADS)
		if (row.bias_ids[i] < vocab)
			row.logits[row.bias_ids[i]] += row.bias_values[i];
	cu_sync(); /* penalties follow the bias */
	for (u32 i = threadIdx.x; i < row.seen_count; i += THREADS) {
		const u32 id = row.seen_ids[i], times = row.seen_outputs[i];
		if (id >= vocab)
			continue;
		float x = row.logits[id];
		x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
		if (times > 0)
			x -= row.frequency_penalty * (float)times + row.presence_penalty;
		row.logits[id] = x;
	}
	cu_sync(); /* a masked id stays masked */
	for (u32 i = threadIdx.x; i < row.masked_count; i += THREADS)
		if (row.masked_ids[i] < vocab)
			row.logits[row.masked_ids[i]] = -INFINITY;
}

CUDA_OP(logits)
{
	if (a->row_count == 0)
		return ERR_OK;
	return cuda_launched(
		LAUNCH(logits_kernel, a->row_count, THREADS, 0, cuda_stream(ctx), a->rows, a->vocab));
}
