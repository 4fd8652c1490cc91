/* Attention over a cache of int8 with a scale per token and head. */
#include "kernels/cuda/attention_launch.cuh"

enum err attention_run_i8(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	return attention_run<KERN_I8>(p, head_dim, stream);
}
