/* The matrix product of at most 16 tokens with weights of 4 bits. */
#include "kernels/cuda/matmul_ring.cuh"

enum err ring_run_i4(const struct skinny *p, cudaStream_t stream)
{
	switch (p->group_shift) {
	case 5:
		return ring_launch<KERN_I4_128, 4>(p, stream);
	case 6:
		return ring_launch<KERN_I4_128, 2>(p, stream);
	default:
		return ring_launch<KERN_I4_128, 1>(p, stream);
	}
}
