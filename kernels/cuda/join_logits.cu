/* Logits of ranks that computed a share of the vocabulary each, joined to rows. A thread takes a few columns
 * of a row, one block apart, so that reads and writes of a warp are neighbours. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, COLUMNS = 4 };

static __global__ void __launch_bounds__(THREADS)
	join_logits_kernel(const float *parts, float *logits, u32 ranks, u32 vocab, u32 share_max)
{
	cu_grid_begin();
	const u32 row = blockIdx.y, rows = gridDim.y, first = blockIdx.x * (THREADS * COLUMNS) + threadIdx.x;
	float x[COLUMNS];
#pragma unroll
	for (u32 i = 0; i < COLUMNS; i++) {
		const u32 column = first + i * THREADS;
		if (column >= vocab)
			break;
		/* the last rank whose first column is at most this one */
		const u32 rank = (u32)((((u64)column + 1) * ranks - 1) / vocab);
		const u32 begin = (u32)((u64)rank * vocab / ranks);
		x[i] = parts[((size_t)rank * rows + row) * share_max + (column - begin)];
	}
#pragma unroll
	for (u32 i = 0; i < COLUMNS; i++)
		if (first + i * THREADS < vocab)
			logits[(size_t)row * vocab + first + i * THREADS] = x[i];
}

CUDA_OP(join_logits)
{
	if (a->ranks == 0 || a->vocab == 0 || a->share_max < cuda_ceil(a->vocab, a->ranks) ||
	    a->rows > CUDA_GRID_Y_MAX)
		return ERR_INVALID;
	if (a->rows == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH_DEPENDENT(join_logits_kernel, dim3(cuda_ceil(a->vocab, THREADS * COLUMNS), a->rows),
				    THREADS, 0, cuda_stream(ctx), a->parts, a->logits, a->ranks, a->vocab,
				    a->share_max));
}
