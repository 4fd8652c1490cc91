/* The matrix product of few tokens with weights of int8. */
#include "kernels/cuda/matmul_skinny.cuh"

enum err skinny_run_i8(const struct skinny *p, cudaStream_t stream)
{
	return skinny_launch<KERN_I8>(p, stream);
}

enum err skinny_experts_i8(const struct skinny *p, const struct skinny_experts *x,
			 const struct skinny_work *work, cudaStream_t stream)
{
	return skinny_launch_experts<KERN_I8>(p, x, work, stream);
}
