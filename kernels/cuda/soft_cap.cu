/* The soft cap of logits, which are floats on devices, too. */
#include "kernels/cuda/activation.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) soft_cap_kernel(float *x, float cap, u64 count)
{
	cu_grid_begin();
	const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
	if (i < count)
		x[i] = cap * tanhf(x[i] / cap);
}

CUDA_OP(soft_cap)
{
	const u64 count = (u64)a->rows * a->width, blocks = (count + THREADS - 1) / THREADS;
	if (!(a->cap > 0) || blocks > 0x7fffffff)
		return ERR_INVALID;
	if (count == 0)
		return ERR_OK;
	return cuda_launched(
		LAUNCH_DEPENDENT(soft_cap_kernel, (u32)blocks, THREADS, 0, cuda_stream(ctx), a->x, a->cap, count));
}
