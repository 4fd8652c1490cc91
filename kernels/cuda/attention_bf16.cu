/* Attention over a cache of bf16. */
#include "kernels/cuda/attention_launch.cuh"

enum err attention_run_bf16(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	return attention_run<KERN_BF16>(p, head_dim, stream);
}
