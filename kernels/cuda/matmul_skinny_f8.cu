/* The matrix product of few tokens with weights of fp8. */
#include "kernels/cuda/matmul_skinny.cuh"

enum err skinny_run_f8(const struct skinny *p, cudaStream_t stream)
{
	return skinny_launch<KERN_F8E4M3>(p, stream);
}

enum err skinny_experts_f8(const struct skinny *p, const struct skinny_experts *x,
			 const struct skinny_work *work, cudaStream_t stream)
{
	return skinny_launch_experts<KERN_F8E4M3>(p, x, work, stream);
}
