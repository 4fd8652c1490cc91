/* The matrix product of few tokens with weights of bf16. */
#include "kernels/cuda/matmul_skinny.cuh"

enum err skinny_run_bf16(const struct skinny *p, cudaStream_t stream)
{
	return skinny_launch<KERN_BF16>(p, stream);
}

enum err skinny_experts_bf16(const struct skinny *p, const struct skinny_experts *x,
			 const struct skinny_work *work, cudaStream_t stream)
{
	return skinny_launch_experts<KERN_BF16>(p, x, work, stream);
}
