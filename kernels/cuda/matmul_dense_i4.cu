/* The matrix product of tens to hundreds of tokens with weights of int4. */
#include "kernels/cuda/matmul_dense.cuh"

enum err dense_run_i4(struct dense *a, size_t scratch_bytes, cudaStream_t stream)
{
	switch (a->p.group_shift) {
	case 7:
		return dense_launch<KERN_I4_128, 4>(a, scratch_bytes, stream);
	case 6:
		return dense_launch<KERN_I4_128, 2>(a, scratch_bytes, stream);
	default:
		return dense_launch<KERN_I4_128, 1>(a, scratch_bytes, stream);
	}
}
