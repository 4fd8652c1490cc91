/* The matrix product of many tokens, by cuBLASLt. Row-major W[n][k] is its column-major k x n, transposed; so
 * the product is D = W^T x in its eyes, n x tokens. The residual comes in as C = D. */
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "kernels/cuda/lt.cuh"

/* Everything that one call needs; made and dropped around it, which costs the host a microsecond. */
struct lt_call {
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t w, x, d;
};

struct lt_shape lt_shape_of(const struct kern_matmul_args *a)
{
	const bool f32 = a->out_dtype == KERN_F32;
	const size_t out = (uintptr_t)a->out | a->out_stride * (f32 ? sizeof(float) : sizeof(u16));
	struct lt_shape s = {a->w->n, a->w->k, 1, f32, out % 16 == 0 ? 16u : out % 4 == 0 ? 4u : 2u};
	while (s.m < a->tokens)
		s.m *= 2;
	return s;
}

static void call_end(struct lt_call *c)
{
	if (c->d)
		(void)cublasLtMatrixLayoutDestroy(c->d);
	if (c->x)
		(void)cublasLtMatrixLayoutDestroy(c->x);
	if (c->w)
		(void)cublasLtMatrixLayoutDestroy(c->w);
	if (c->desc)
		(void)cublasLtMatmulDescDestroy(c->desc);
}

static enum err call_begin(struct lt_call *c, const struct kern_matmul_args *a)
{
	const cublasOperation_t transposed = CUBLAS_OP_T;
	const cudaDataType_t out = a->out_dtype == KERN_F32 ? CUDA_R_32F : CUDA_R_16BF;
	const u32 n = a->w->n, k = a->w->k;
	*c = {};
	if (cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
	    cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
					   sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
	    cublasLtMatrixLayoutCreate(&c->w, CUDA_R_16BF, k, n, k) == CUBLAS_STATUS_SUCCESS &&
	    cublasLtMatrixLayoutCreate(&c->x, CUDA_R_16BF, k, a->tokens, a->x_stride) ==
		    CUBLAS_STATUS_SUCCESS &&
	    cublasLtMatrixLayoutCreate(&c->d, out, n, a->tokens, a->out_stride) == CUBLAS_STATUS_SUCCESS)
		return ERR_OK;
	call_end(c);
	return ERR_UNSUPPORTED;
}

/* 16 bytes are what callers promise; more would tie a remembered choice to the addresses of one call. Where k is divided, the
 * parts' sums stay floats until all are added: in place they would be rounded to the output's type with each. */
static bool set_preference(cublasLtMatmulPreference_t p, const struct kern_cuda *k, u32 d)
{
	const u32 in = 16, reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const struct {
		cublasLtMatmulPreferenceAttributes_t attribute;
		u32 bytes;
	} alignments[] = {
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d},
	};
	bool ok = cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
						       &k->workspace_bytes,
						       sizeof(k->workspace_bytes)) == CUBLAS_STATUS_SUCCESS &&
		  cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
						       sizeof(reductions)) == CUBLAS_STATUS_SUCCESS;
	for (u32 i = 0; i < COUNT_OF(alignments) && ok; i++)
		ok = cublasLtMatmulPreferenceSetAttribute(p, alignments[i].attribute, &alignments[i].bytes,
							  sizeof(u32)) == CUBLAS_STATUS_SUCCESS;
	return ok;
}

/* What cuBLASLt proposes for the call, best guess first. */
static u32 proposals(const struct kern_cuda *k, const struct lt_call *c, u32 align,
		     cublasLtMatmulHeuristicResult_t *results, u32 wanted)
{
	cublasLtMatmulPreference_t preference;
	int count = 0;
	if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
		return 0;
	const bool ok = set_preference(preference, k, align) &&
			cublasLtMatmulAlgoGetHeuristic(k->handle, c->desc, c->w, c->x, c->d, c->d, preference,
						       (int)wanted, results, &count) == CUBLAS_STATUS_SUCCESS;
	(void)cublasLtMatmulPreferenceDestroy(preference);
	return ok ? (u32)count : 0;
}

static cublasStatus_t queue(const struct kern_cuda *k, const struct lt_call *c, const struct kern_matmul_args *a,
			    const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
	const float one = 1, beta = a->accumulate ? 1 : 0;
	return cublasLtMatmul(k->handle, c->desc, &one, a->w->data, c->w, a->x_bf16, c->x, &beta, a->out,
			      c->d, a->out, c->d, algo, k->workspace, k->workspace_bytes, stream);
}

static bool run(const struct kern_cuda *k, const struct lt_call *c, const struct kern_matmul_args *a,
		const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
	return queue(k, c, a, algo, stream) == CUBLAS_STATUS_SUCCESS;
}

/* The library's own first proposal, which it has to be able to run. */
static enum err run_proposed(const struct kern_cuda *k, const struct lt_call *c, const struct kern_matmul_args *a,
			     const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
	const cublasStatus_t status = queue(k, c, a, algo, stream);

	if (status == CUBLAS_STATUS_SUCCESS)
		return ERR_OK;
	LOG_ERROR("CUBLASLT_REFUSED", "status=%s n=%u k=%u tokens=%u stride=%u", cublasLtGetStatusName(status),
		  a->w->n, a->w->k, a->tokens, a->out_stride);
	return ERR_DEVICE;
}

enum err lt_matmul(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_cuda *k = (struct kern_cuda *)ctx->device;
	struct lt_call c;
	struct lt_entry entry = {lt_shape_of(a)};
	const struct lt_entry *known = lt_find(k, &entry.shape);
	enum err e = call_begin(&c, a);
	if (e != ERR_OK)
		return e;
	if (!known || !run(k, &c, a, &known->algo, cuda_stream(ctx))) {
		cublasLtMatmulHeuristicResult_t first;
		e = proposals(k, &c, entry.shape.align, &first, 1) == 1 ? ERR_OK : ERR_UNSUPPORTED;
		if (e == ERR_OK)
			e = run_proposed(k, &c, a, &first.algo, cuda_stream(ctx));
		if (e == ERR_OK && !known) {
			entry.algo = first.algo;
			lt_put(k, &entry);
		}
	}
	call_end(&c);
	return e;
}

/* ---------------------------------------------------------------- choosing by time */

/* Microseconds of one product, after a first one that is not counted; negative: it does not run. */
static float measure(const struct kern_cuda *k, const struct lt_call *c, const struct kern_matmul_args *a,
		     const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
	enum { RUNS = 5 };
	cudaEvent_t begin, end;
	float ms = -1;
	if (!run(k, c, a, algo, stream) || cudaEventCreate(&begin) != cudaSuccess)
		return -1;
	if (cudaEventCreate(&end) == cudaSuccess) {
		bool ok = cudaEventRecord(begin, stream) == cudaSuccess;
		for (u32 i = 0; i < RUNS && ok; i++)
			ok = run(k, c, a, algo, stream);
		ok = ok && cudaEventRecord(end, stream) == cudaSuccess &&
		     cudaEventSynchronize(end) == cudaSuccess;
		if (!ok || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess)
			ms = -1;
		(void)cudaEventDestroy(end);
	}
	(void)cudaEventDestroy(begin);
	return ms < 0 ? -1 : ms * 1000 / RUNS;
}

extern "C" enum err kern_cuda_tune(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	struct kern_cuda *k = (struct kern_cuda *)ctx->device;
	cublasLtMatmulHeuristicResult_t tried[LT_TRIES];
	struct lt_entry entry = {lt_shape_of(a)};
	struct lt_call c;
	float best = -1;
	const struct lt_entry *known = lt_find(k, &entry.shape);
	if (known && known->timed)
		return ERR_OK;
	const enum err e = call_begin(&c, a);
	if (e != ERR_OK)
		return e;
	const u32 count = proposals(k, &c, entry.shape.align, tried, LT_TRIES);
	for (u32 i = 0; i < count; i++) {
		const float us = measure(k, &c, a, &tried[i].algo, cuda_stream(ctx));
		if (us < 0 || (best >= 0 && us >= best))
			continue;
		best = us;
		entry.algo = tried[i].algo;
	}
	call_end(&c);
	if (best < 0)
		return ERR_UNSUPPORTED;
	entry.timed = true;
	lt_put(k, &entry);
	return lt_cache_write(k);
}

/* ---------------------------------------------------------------- the device's state */

extern "C" enum err kern_cuda_create(struct kern_cuda **out, const struct kern_cuda_config *config,
				     struct err_msg *em)
{
	struct kern_cuda *k = (struct kern_cuda *)calloc(1, sizeof(*k));
	int device = 0, major = 0, minor = 0, processors = 0;
	*out = NULL;
	if (!k) {
		snprintf(em->text, sizeof(em->text), "out of memory");
		return ERR_NO_MEMORY;
	}
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
	    cublasLtCreate(&k->handle) != CUBLAS_STATUS_SUCCESS) {
		free(k);
		snprintf(em->text, sizeof(em->text), "cuBLASLt does not start on CUDA device %d", device);
		return ERR_DEVICE;
	}
	if (cudaMalloc((void **)&k->head_counts, LT_HEADS_MAX * sizeof(u32)) != cudaSuccess ||
	    cudaMemset(k->head_counts, 0, LT_HEADS_MAX * sizeof(u32)) != cudaSuccess ||
	    cudaStreamSynchronize(NULL) != cudaSuccess) { /* other streams do not wait for the memset's */
		kern_cuda_destroy(&k);
		snprintf(em->text, sizeof(em->text), "no memory on CUDA device %d", device);
		return ERR_NO_MEMORY;
	}
	snprintf(k->device, sizeof(k->device), "cublaslt=%zu sm=%d%d processors=%d", cublasLtGetVersion(),
		 major, minor, processors);
	k->workspace = config->workspace;
	k->workspace_bytes = config->workspace_bytes;
	k->cache_path = config->cache_path ? strdup(config->cache_path) : NULL;
	lt_cache_read(k);
	*out = k;
	return ERR_OK;
}

extern "C" void kern_cuda_destroy(struct kern_cuda **k)
{
	if (!*k)
		return;
	(void)cublasLtDestroy((*k)->handle);
	(void)cudaFree((*k)->head_counts);
	free((*k)->cache_path);
	free(*k);
	*k = NULL;
}
