/* A token's latent as the K and the V of latent attention's one head: a thread four values. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, VECTOR = 4 };

static __global__ void __launch_bounds__(THREADS) latent_kv_kernel(const struct kern_latent_kv_args a, u64 count)
{
	cu_grid_begin();
	const u32 width = a.rank + a.rope;
	const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
	if (i >= count)
		return;
	const size_t t = i / (2 * width);
	const u32 at = (u32)(i % (2 * width)), within = at % width; /* K, then V */
	const float *latent = a.latents + t * a.latent_stride;
	float4 v = make_float4(0, 0, 0, 0);
	if (within >= a.rope)
		v = cu_load<float4>(latent + (within - a.rope));
	else if (at < width)
		v = cu_load<float4>(latent + a.rank + within);
	cu_store(a.qkv + t * a.qkv_stride + (size_t)a.heads * width + at, v);
}

CUDA_OP(latent_kv)
{
	const u64 count = (u64)a->tokens * 2 * (a->rank + a->rope), blocks = (count + THREADS * VECTOR - 1) / (THREADS * VECTOR);
	if ((a->rank | a->rope | a->latent_stride | a->qkv_stride) % VECTOR != 0)
		return ERR_UNSUPPORTED;
	if (!cuda_aligned(a->qkv) || !cuda_aligned(a->latents) || blocks > 0x7fffffff)
		return ERR_INVALID;
	if (count == 0)
		return ERR_OK;
	return cuda_launched(LAUNCH_DEPENDENT(latent_kv_kernel, (u32)blocks, THREADS, 0, cuda_stream(ctx), *a, count));
}
