/* Tens to hundreds of tokens with quantized weights: what the kernel needs beside the args of a product. */
#include "kernels/cuda/lt.cuh"
#include "kernels/cuda/matmul_dense.cuh"

enum { THREADS = 256, PART_ALIGN = 256 };

/* out[t][k] = x[t][order[k]] */
static __global__ void __launch_bounds__(THREADS) permute_kernel(const struct skinny p, u16 *out)
{
	const u32 k = (blockIdx.x * THREADS + threadIdx.x) * 8;
	float squares = 0;
	cu_grid_wait();
	if (k < p.k)
		cu_store(out + (size_t)blockIdx.y * p.k + k, skinny_load_x(&p, blockIdx.y, k, &squares));
	cu_grid_launch();
}

enum err matmul_dense(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	const struct kern_cuda *device = (const struct kern_cuda *)ctx->device;
	struct dense d = {};
	enum err e = skinny_of_args(a, &d.p);
	size_t bytes = ctx->scratch_bytes;
	char *scratch = (char *)ctx->scratch;
	if (e != ERR_OK)
		return e;
	d.counts = device->head_counts;
	d.counts_max = LT_HEADS_MAX;
	if (d.p.order) {
		const size_t permuted = ((size_t)a->tokens * d.p.k * sizeof(u16) + PART_ALIGN - 1) & ~(size_t)(PART_ALIGN - 1);
		if (permuted > bytes || a->tokens > CUDA_GRID_Y_MAX)
			return ERR_UNSUPPORTED;
		const dim3 grid(cuda_ceil(d.p.k, THREADS * 8), a->tokens);
		e = cuda_launched(LAUNCH_DEPENDENT(permute_kernel, grid, THREADS, 0, cuda_stream(ctx), d.p, (u16 *)scratch));
		if (e != ERR_OK)
			return e;
		d.p.x = scratch;
		d.p.x_stride = d.p.k;
		d.p.order = NULL;
		scratch += permuted;
		bytes -= permuted;
	}
	d.parts = (uint4 *)scratch;
	switch (a->w->dtype) {
	case KERN_I8:
		return dense_run_i8(&d, bytes, cuda_stream(ctx));
	case KERN_F8E4M3:
		return dense_run_f8(&d, bytes, cuda_stream(ctx));
	default:
		return dense_run_i4(&d, bytes, cuda_stream(ctx));
	}
}
