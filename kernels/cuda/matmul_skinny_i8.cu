/* The matrix product of few tokens with weights of int8. */
#include "kernels/cuda/matmul_skinny.cuh"

enum err skinny_run_i8(const struct skinny *p, cudaStream_t stream)
{
	return skinny_launch<KERN_I8>(p, stream);
}
