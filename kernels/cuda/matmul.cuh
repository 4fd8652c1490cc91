/* The matrix product's parts: few tokens (matmul_ring_*.cu, else matmul_skinny_*.cu), tens of them with quantized weights
 * (matmul_dense_*.cu), many (matmul_lt.cu). */
#ifndef TERCET_KERNELS_CUDA_MATMUL_CUH
#define TERCET_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/device.cuh"

struct skinny;
struct skinny_experts;
/* Of the experts of a mixture: an expert has at most `tokens` of the assignments. */
struct skinny_work {
	u32 experts, tokens, assignments;
};
/* What the args of a product mean to the kernel. ERR_INVALID: something is not aligned. */
enum err skinny_of_args(const struct kern_matmul_args *a, struct skinny *p);
enum err skinny_run_bf16(const struct skinny *p, cudaStream_t stream);
enum err skinny_experts_bf16(const struct skinny *p, const struct skinny_experts *x,
				const struct skinny_work *work, cudaStream_t stream);
enum err skinny_run_i8(const struct skinny *p, cudaStream_t stream);
enum err skinny_experts_i8(const struct skinny *p, const struct skinny_experts *x,
				const struct skinny_work *work, cudaStream_t stream);
enum err skinny_run_f8(const struct skinny *p, cudaStream_t stream);
enum err skinny_experts_f8(const struct skinny *p, const struct skinny_experts *x,
				const struct skinny_work *work, cudaStream_t stream);
enum err skinny_run_i4(const struct skinny *p, cudaStream_t stream);
enum err skinny_experts_i4(const struct skinny *p, const struct skinny_experts *x,
				const struct skinny_work *work, cudaStream_t stream);

/* At most KERN_FUSED_TOKENS (matmul_ring.cuh). ERR_UNSUPPORTED: rows that are no whole tiles, more than
 * eight tokens of an x that has to be made first, or too little shared memory, and nothing was queued. */
enum err ring_run_bf16(const struct skinny *p, cudaStream_t stream);
enum err ring_run_i8(const struct skinny *p, cudaStream_t stream);
enum err ring_run_f8(const struct skinny *p, cudaStream_t stream);
enum err ring_run_i4(const struct skinny *p, cudaStream_t stream);

/* Experts with more tokens than that: tiles, whose sums are those of one running sum over k. Quantized weights are
 * rounded to bf16 (moe_tiled.cu). */
enum err moe_tiled(enum kern_dtype type, const struct skinny *p, const struct skinny_experts *x,
		   const struct skinny_work *work, cudaStream_t stream);
/* The same, where the device has what it takes (moe_wgmma.cu). */
bool moe_wgmma_serves(enum kern_dtype type);
enum err moe_wgmma(enum kern_dtype type, const struct skinny *p, const struct skinny_experts *x,
		   const struct skinny_work *work, cudaStream_t stream);

/* Tens to hundreds of tokens with quantized weights (matmul_dense.cuh). Takes parts of sums, and x permuted, in the
 * context's scratch. ERR_UNSUPPORTED: that is too small, or a block's shared memory, and nothing was written. */
struct dense;
enum err matmul_dense(struct kern_ctx *ctx, const struct kern_matmul_args *a);
enum err dense_run_i8(struct dense *a, size_t scratch_bytes, cudaStream_t stream);
enum err dense_run_f8(struct dense *a, size_t scratch_bytes, cudaStream_t stream);
enum err dense_run_i4(struct dense *a, size_t scratch_bytes, cudaStream_t stream);

/* Many tokens, by cuBLASLt. Quantized weights are widened to bf16 in the context's scratch (ERR_UNSUPPORTED:
 * it is too small). */
enum err matmul_many(struct kern_ctx *ctx, const struct kern_matmul_args *a);

#endif
