/* The matrix product of few tokens with weights of int4. */
#include "kernels/cuda/matmul_skinny.cuh"

enum err skinny_run_i4(const struct skinny *p, cudaStream_t stream)
{
	return skinny_launch<KERN_I4_128>(p, stream);
}

enum err skinny_experts_i4(const struct skinny *p, const struct skinny_experts *x,
			 const struct skinny_work *work, cudaStream_t stream)
{
	return skinny_launch_experts<KERN_I4_128>(p, x, work, stream);
}
