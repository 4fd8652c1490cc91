/* The variants of the CPU, by instruction set: X(op, isa). A variant is listed here when it beats what it
 * replaces. */
#ifndef TERCET_KERNELS_CPU_VARIANTS_PRIV_H
#define TERCET_KERNELS_CPU_VARIANTS_PRIV_H

#include "kernels/kern_priv.h"

#if defined(__x86_64__)
#define KERN_HAVE_X86 1
#endif

/* For processors that none of the others is for; the references of the other ops are loops that compilers vectorize. */
#define KERN_PORTABLE_OPS(X) X(attention, portable) X(conv, portable) X(gate, portable) X(index_choose, portable) X(matmul, portable) X(recurrent, portable) \
	X(selective_scan, portable)
#define KERN_AVX2_OPS(X)                                                                         \
	X(act_mul, avx2)                                                                         \
	X(attention, avx2) X(embedding, avx2) X(logprobs, avx2) X(matmul, avx2) X(rmsnorm, avx2) \
		X(rope_kv, avx2) X(sample, avx2) X(moe_combine, avx2) X(moe_matmul, avx2) X(soft_cap, avx2) X(layernorm, avx2) \
			X(qk_squares, avx2) X(qk_norm, avx2) X(lora, avx2) X(head_matmul, avx2) X(conv, avx2) X(gate, avx2) X(recurrent, avx2) \
				X(selective_scan, avx2) X(stream_mix, avx2) X(moments, avx2) X(index_choose, avx2)
#define KERN_AVX_VNNI_OPS(X) X(attention, avx_vnni) X(matmul, avx_vnni)
/* The others move bytes or work on short pieces: wider vectors gain nothing. rmsnorm waits for its lines, and is slower with them. */
#define KERN_AVX512_OPS(X)                                                                       \
	X(act_mul, avx512)                                                                       \
	X(attention, avx512) X(layernorm, avx512) X(logprobs, avx512) X(lora, avx512)            \
		X(matmul, avx512) X(rope_kv, avx512) X(soft_cap, avx512) X(conv, avx512) X(gate, avx512) X(recurrent, avx512) \
			X(selective_scan, avx512) X(index_choose, avx512)
#define KERN_AVX512_VNNI_OPS(X) X(attention, avx512_vnni) X(matmul, avx512_vnni)
/* Every processor with these has VNNI, too, whose products pass weights in bfloat16 on to these. */
/* Needs VNNI and BF16 beside it, as every processor has that has tiles. */
#define KERN_AMX_OPS(X) X(attention, amx) X(matmul, amx)
#define KERN_AVX512_BF16_OPS(X) X(attention, avx512_bf16) X(matmul, avx512_bf16)

/* Inside a source of cpu/: the name of its op for the instruction set it is compiled for. */
#define VARIANT(op) KERN_PASTE(op, KERN_ISA)

#define KERN_DECLARE_VARIANT(op, isa) KERN_DECLARE(op, isa);
KERN_PORTABLE_OPS(KERN_DECLARE_VARIANT)
KERN_AVX2_OPS(KERN_DECLARE_VARIANT)
KERN_AVX_VNNI_OPS(KERN_DECLARE_VARIANT)
KERN_AVX512_OPS(KERN_DECLARE_VARIANT)
KERN_AVX512_BF16_OPS(KERN_DECLARE_VARIANT)
KERN_AVX512_VNNI_OPS(KERN_DECLARE_VARIANT)
KERN_AMX_OPS(KERN_DECLARE_VARIANT)
#undef KERN_DECLARE_VARIANT

/* matmul with quantized weights, which the variants of matmul pass on; beside them, not in the table. */
#define KERN_DECLARE_QUANTIZED(isa) \
	enum err matmul_quantized_##isa(struct kern_ctx *ctx, const struct kern_matmul_args *args);
KERN_DECLARE_QUANTIZED(avx2)
KERN_DECLARE_QUANTIZED(avx512)
KERN_DECLARE_QUANTIZED(avx512_vnni)
#undef KERN_DECLARE_QUANTIZED
struct matmul_tile;
void matmul_quantized_one_avx2(const struct matmul_tile *tile, bool int4); /* a tile of one row */
/* The same for more rows than a tile has. */
void matmul_float_many_avx2(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void matmul_float_many_avx512(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void matmul_bf16_many_avx512_bf16(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void matmul_int4_many_avx2(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void matmul_int8_many_avx2(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void matmul_quantized_many_avx512_vnni(struct kern_ctx *ctx, const struct kern_matmul_args *args);
void amx_rows_amx(u32 rows); /* amx_rows of cpu/amx_priv.h */
/* How many rows are still better off without it, on this processor. */
u32 matmul_quantized_few_rows_avx512_vnni(enum kern_dtype dtype);

#endif
