/* Descriptors of the emulated cuBLASLt, and what of them is supported. */
#ifndef CUDA_EMU_CUBLASLT_PRIV_H
#define CUDA_EMU_CUBLASLT_PRIV_H

#include <cublasLt.h>

#include "tests/cuda_emu/runtime_priv.h"

struct cublasLtContext {
	u32 unused;
};

struct cublasLtMatmulDesc {
	i32 compute, scale_type, pointer_mode, trans_a, trans_b;
	u32 epilogue;
	const void *bias;
	i32 bias_type; /* -1: of D, or bf16 with 8-bit matrices */
	const float *a_scale, *b_scale, *d_scale;
	i32 a_scale_mode, b_scale_mode;
	int8_t fast_accum;
};

struct cublasLtMatrixLayout {
	u32 type;
	i32 order;
	u64 rows, cols;
	i64 ld;
	i32 batch;
	i64 batch_stride; /* in elements */
};

struct cublasLtMatmulPreference {
	u64 workspace_bytes;
	u32 align_a, align_b, align_c, align_d;
	u32 reductions; /* schemes that are allowed; all sums here are float, whichever */
};

/* What an algorithm was made for; lies in cublasLtMatmulAlgo_t. */
struct lt_algo {
	u32 magic, number; /* 0: one sum over k; n: 2^n sums, added at the end */
	u64 workspace_bytes;
	u32 types; /* of a, b, c, d: a byte each */
	u32 align_a, align_b, align_c, align_d;
	u32 zero;
};
enum { LT_MAGIC = 0x656d7531, LT_ALGOS = 3, LT_WORKSPACE_ALIGNMENT = 256 };

/* A whole problem, as cublasLtMatmul has it. */
struct lt_problem {
	struct cublasLtMatmulDesc desc;
	struct cublasLtMatrixLayout la, lb, lc, ld;
	const char *a, *b, *c;
	char *d;
	const void *alpha, *beta; /* on the device; NULL: values below */
	float alpha_value, beta_value;
	struct lt_algo algo;
	char *workspace;
};

size_t lt_type_bytes(u32 type);
u32 lt_bias_type(const struct lt_problem *p);
/* CUBLAS_STATUS_SUCCESS: the library has kernels for this. */
cublasStatus_t lt_supported(const struct lt_problem *p);
/* Computes it; called as work of a stream. */
void lt_compute(const struct lt_problem *p);

#endif
