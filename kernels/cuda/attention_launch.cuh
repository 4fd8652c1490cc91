/* How attention is started: which kernels a head's size and a cache's type take. Included by attention_<type of the
 * cache>.cu. */
#ifndef TERCET_KERNELS_CUDA_ATTENTION_LAUNCH_CUH
#define TERCET_KERNELS_CUDA_ATTENTION_LAUNCH_CUH

#include "kernels/cuda/attention_bytes.cuh"

/* What every device of compute capability 8.0 or later lets a block have. */
static constexpr u32 ATTENTION_SHARED_LEAST = 99 << 10;

template <typename S>
static enum err attention_launch(void (*kernel)(struct attention), const struct attention *p, cudaStream_t stream)
{
	const u32 grid = p->plan.grid[S::KIND];
	if (grid == 0)
		return ERR_OK;
	const cudaError_t e = CU_SHARED_LIMIT(kernel, S::SHARED_BYTES);
	if (e != cudaSuccess)
		return cuda_refused(e);
	return cuda_launched(LAUNCH_DEPENDENT(kernel, grid, S::THREADS, S::SHARED_BYTES, stream, *p));
}

/* Decode: two blocks a multiprocessor, where it has room for them. */
template <u32 D, enum kern_dtype KV> static enum err attention_small(const struct attention *p, cudaStream_t stream)
{
	if constexpr (KV != KERN_BF16 && D % 32 == 0 && D <= 128) {
		using bytes = attention_bytes<D, 4, 2, KV>;
		static_assert(bytes::SHARED_BYTES <= ATTENTION_SHARED_LEAST, "every device has room");
		return attention_launch<bytes>(attention_bytes_kernel<bytes>, p, stream);
	} else {
		using deep = attention_shape<D, 1, 4, D <= 128 ? 3 : 2, KV>;
		using shallow = attention_shape<D, 1, 4, 2, KV>;
		const u32 most = cuda_shared_most();
		if (shallow::SHARED_BYTES > most)
			return ERR_UNSUPPORTED;
		if constexpr (deep::STAGES > shallow::STAGES && deep::SHARED_BYTES > ATTENTION_SHARED_LEAST)
			if (deep::SHARED_BYTES > most)
				return attention_launch<shallow>(attention_kernel<shallow>, p, stream);
		return attention_launch<deep>(attention_kernel<deep>, p, stream);
	}
}

/* One block of prefill a multiprocessor. */
template <u32 D, enum kern_dtype KV>
static enum err attention_both(const struct attention *p, cudaStream_t stream)
{
	using large = attention_shape<D, ATTENTION_LARGE_ROWS / 16, 1, 2, KV>;
	if (large::SHARED_BYTES > cuda_shared_most())
		return ERR_UNSUPPORTED;
	const enum err e = attention_small<D, KV>(p, stream);
	if (e != ERR_OK)
		return e;
	if (KV == KERN_BF16 && attention_prefill_serves(p, D))
		return attention_prefill_run(p, D, stream);
	return attention_launch<large>(attention_kernel<large>, p, stream);
}

template <enum kern_dtype KV>
static enum err attention_run(const struct attention *p, u32 head_dim, cudaStream_t stream)
{
	switch (head_dim) {
	case 16:
		return attention_both<16, KV>(p, stream);
	case 32:
		return attention_both<32, KV>(p, stream);
	case 48:
		return attention_both<48, KV>(p, stream);
	case 64:
		return attention_both<64, KV>(p, stream);
	case 80:
		return attention_both<80, KV>(p, stream);
	case 96:
		return attention_both<96, KV>(p, stream);
	case 128:
		return attention_both<128, KV>(p, stream);
	case 256:
		return attention_both<256, KV>(p, stream);
	}
	return ERR_UNSUPPORTED;
}

#endif
