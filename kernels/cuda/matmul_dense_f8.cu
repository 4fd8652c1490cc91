/* The matrix product of tens to hundreds of tokens with weights of float8. */
#include "kernels/cuda/matmul_dense.cuh"

enum err dense_run_f8(struct dense *a, size_t scratch_bytes, cudaStream_t stream)
{
	return dense_launch<KERN_F8E4M3, DENSE_CHUNK_SLABS>(a, scratch_bytes, stream);
}
