/* Attention over a cache of fp8 (e4m3) with a scale per token and head. */
#include "kernels/cuda/attention_launch.cuh"

enum err attention_run_f8(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	return attention_run<KERN_F8E4M3>(p, head_dim, stream);
}
