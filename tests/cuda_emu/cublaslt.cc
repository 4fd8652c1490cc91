/* cuBLASLt's calls: descriptors, heuristics, and the product as work of a stream. What the library refuses, or what would
 * make its kernels fault, is refused here. */
#include <stdio.h>

#include "tests/cuda_emu/cublaslt.h"

#define LT_CALL() \
	struct emu_call call(__func__); \
	if (call.error != cudaSuccess) \
	return (cublasStatus_t)call.error

template <typename T> static bool take(T *field, const void *value, size_t bytes)
{
	if (value == NULL || bytes != sizeof(T))
		return false;
	memcpy(field, value, bytes);
	return true;
}

static cublasStatus_t status(bool ok)
{
	return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	LT_CALL();
	*handle = new cublasLtContext();
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	LT_CALL();
	delete handle;
	return status(handle != NULL);
}

size_t cublasLtGetVersion(void)
{
	return 130100;
}

static const struct {
	cublasStatus_t status;
	const char *name, *text;
} names[] = {
#define N(name, text) {CUBLAS_STATUS_##name, "CUBLAS_STATUS_" #name, text}
	N(SUCCESS, "success"),
	N(NOT_INITIALIZED, "the library was not initialized"),
	N(ALLOC_FAILED, "the resource allocation failed"),
	N(INVALID_VALUE, "an unsupported value or parameter was passed to the function"),
	N(ARCH_MISMATCH, "the function requires an architectural feature absent from the device"),
	N(EXECUTION_FAILED, "the GPU program failed to execute"),
	N(INTERNAL_ERROR, "an internal operation failed"),
	N(NOT_SUPPORTED, "the functionality requested is not supported"),
#undef N
};

const char *cublasLtGetStatusName(cublasStatus_t s)
{
	for (const auto &n : names) {
		if (n.status == s)
			return n.name;
	}
	return "CUBLAS_STATUS_?";
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	for (const auto &n : names) {
		if (n.status == s)
			return n.text;
	}
	return "unknown";
}

/* ---------------------------------------------------------------- descriptors */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
					cudaDataType_t scale_type)
{
	LT_CALL();
	*desc = new cublasLtMatmulDesc{compute, scale_type, CUBLASLT_POINTER_MODE_HOST, CUBLAS_OP_N, CUBLAS_OP_N,
				       CUBLASLT_EPILOGUE_DEFAULT, NULL, -1, NULL, NULL, NULL, 0, 0, 0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	LT_CALL();
	delete desc;
	return status(desc != NULL);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
					      const void *value, size_t bytes)
{
	LT_CALL();
	switch (desc == NULL ? (cublasLtMatmulDescAttributes_t)-1 : attr) {
	case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
		return status(take(&desc->compute, value, bytes));
	case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
		return status(take(&desc->scale_type, value, bytes));
	case CUBLASLT_MATMUL_DESC_POINTER_MODE:
		return status(take(&desc->pointer_mode, value, bytes));
	case CUBLASLT_MATMUL_DESC_TRANSA:
		return status(take(&desc->trans_a, value, bytes));
	case CUBLASLT_MATMUL_DESC_TRANSB:
		return status(take(&desc->trans_b, value, bytes));
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		return status(take(&desc->epilogue, value, bytes));
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		return status(take(&desc->bias, value, bytes));
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
		return status(take(&desc->bias_type, value, bytes));
	case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
		return status(take(&desc->a_scale, value, bytes));
	case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
		return status(take(&desc->b_scale, value, bytes));
	case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
		return status(take(&desc->d_scale, value, bytes));
	case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
		return status(take(&desc->a_scale_mode, value, bytes));
	case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
		return status(take(&desc->b_scale_mode, value, bytes));
	case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
		return status(take(&desc->fast_accum, value, bytes));
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
					  uint64_t cols, int64_t ld)
{
	LT_CALL();
	*layout = new cublasLtMatrixLayout{(u32)type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	LT_CALL();
	delete layout;
	return status(layout != NULL);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attr,
						const void *value, size_t bytes)
{
	LT_CALL();
	switch (layout == NULL ? (cublasLtMatrixLayoutAttribute_t)-1 : attr) {
	case CUBLASLT_MATRIX_LAYOUT_TYPE:
		return status(take(&layout->type, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_ORDER:
		return status(take(&layout->order, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_ROWS:
		return status(take(&layout->rows, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_COLS:
		return status(take(&layout->cols, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_LD:
		return status(take(&layout->ld, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
		return status(take(&layout->batch, value, bytes));
	case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
		return status(take(&layout->batch_stride, value, bytes));
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	LT_CALL();
	*preference = new cublasLtMatmulPreference{0, 256, 256, 256, 256, CUBLASLT_REDUCTION_SCHEME_MASK}; /* the library's own assumption */
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	LT_CALL();
	delete preference;
	return status(preference != NULL);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
						    cublasLtMatmulPreferenceAttributes_t attr, const void *value,
						    size_t bytes)
{
	LT_CALL();
	switch (preference == NULL ? (cublasLtMatmulPreferenceAttributes_t)-1 : attr) {
	case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
		return status(take(&preference->workspace_bytes, value, bytes));
	case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
		return status(take(&preference->reductions, value, bytes));
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
		return status(take(&preference->align_a, value, bytes));
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
		return status(take(&preference->align_b, value, bytes));
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
		return status(take(&preference->align_c, value, bytes));
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
		return status(take(&preference->align_d, value, bytes));
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---------------------------------------------------------------- heuristics */

/* What callers keep of an algorithm is eight words of any bits. */
static void write_algo(cublasLtMatmulAlgo_t *to, const struct lt_algo *from)
{
	uint64_t words[8] = {};
	static_assert(sizeof(*from) <= sizeof(words) && sizeof(to->data) == sizeof(words), "it is to hold ours");
	memcpy(words, from, sizeof(*from));
	for (u32 i = 0; i < 8; i++)
		to->data[i] = words[i] ^ 0x9e3779b97f4a7c15u * (2 * i + 1);
}

static void read_algo(struct lt_algo *to, const cublasLtMatmulAlgo_t *from)
{
	uint64_t words[8];
	for (u32 i = 0; i < 8; i++)
		words[i] = from->data[i] ^ 0x9e3779b97f4a7c15u * (2 * i + 1);
	memcpy(to, words, sizeof(*to));
	static_assert(sizeof(*to) == 5 * sizeof(*words), "the others are zero");
	if ((words[5] | words[6] | words[7]) != 0)
		to->magic = 0;
}

static u32 types_of(const struct lt_problem *p)
{
	return p->la.type | p->lb.type << 8 | p->lc.type << 16 | p->ld.type << 24;
}

/* More sums over parts of k need more workspace: 4 bytes per element of D and part. */
static u64 workspace_of(const struct lt_problem *p, u32 number)
{
	return number == 0 ? 0 : (p->ld.rows * p->ld.cols * 4) << number;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
					      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
					      cublasLtMatmulPreference_t preference, int wanted,
					      cublasLtMatmulHeuristicResult_t results[], int *count)
{
	LT_CALL();
	*count = 0;
	if (handle == NULL)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (desc == NULL || a == NULL || b == NULL || c == NULL || d == NULL || preference == NULL || wanted < 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	struct lt_problem p = {};
	p.desc = *desc;
	p.la = *a;
	p.lb = *b;
	p.lc = *c;
	p.ld = *d;
	cublasStatus_t s = lt_supported(&p);
	for (u32 n = 0; n < LT_ALGOS && *count < wanted && s == CUBLAS_STATUS_SUCCESS; n++) {
		struct lt_algo algo = {LT_MAGIC, n, workspace_of(&p, n), types_of(&p), preference->align_a,
				       preference->align_b, preference->align_c, preference->align_d, 0};
		if (algo.workspace_bytes > preference->workspace_bytes)
			continue;
		cublasLtMatmulHeuristicResult_t *r = &results[(*count)++];
		memset(r, 0, sizeof(*r));
		write_algo(&r->algo, &algo);
		r->workspaceSize = (size_t)algo.workspace_bytes;
		r->wavesCount = 1.0f;
	}
	return s == CUBLAS_STATUS_SUCCESS && *count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : s;
}

/* ---------------------------------------------------------------- the product */

static size_t extent(const struct cublasLtMatrixLayout *l)
{
	u64 lines = l->order == CUBLASLT_ORDER_COL ? l->cols : l->rows, line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
	u64 elements = lines == 0 ? 0 : (lines - 1) * (u64)l->ld + line;
	return (size_t)(elements + (u64)(l->batch - 1) * (u64)l->batch_stride) * lt_type_bytes(l->type);
}

static bool refuse(const char *what, const void *p)
{
	char text[200];
	snprintf(text, sizeof(text), "cuda_emu: cublasLtMatmul: %s (%p)\n", what, p);
	emu_report_set(text);
	return false;
}

static bool readable(const char *name, const void *p, size_t bytes, u32 align)
{
	enum emu_memory kind;
	char text[120];
	const char *problem = NULL;
	if (!emu_memory_at(p, bytes, &kind))
		problem = "reaches beyond its allocation";
	else if (kind == EMU_PAGEABLE)
		problem = "is not in memory of the device";
	else if (align != 0 && (uintptr_t)p % align != 0)
		problem = "is less aligned than the heuristic was told";
	if (problem == NULL)
		return true;
	snprintf(text, sizeof(text), "%s %s", name, problem);
	return refuse(text, p);
}

static bool check_memory(const struct lt_problem *p)
{
	const struct cublasLtMatmulDesc *d = &p->desc;
	bool vector_a = d->a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	bool vector_b = d->b_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	bool with_c = p->beta != NULL || p->beta_value != 0.0f;
	if (!readable("A", p->a, extent(&p->la), p->algo.align_a) || !readable("B", p->b, extent(&p->lb), p->algo.align_b) ||
	    !readable("D", p->d, extent(&p->ld), p->algo.align_d) ||
	    (with_c && !readable("C", p->c, extent(&p->lc), p->algo.align_c)))
		return false;
	if (d->a_scale != NULL && !readable("the scale of A", d->a_scale, vector_a ? p->ld.rows * 4 : 4, 4))
		return false;
	if (d->b_scale != NULL && !readable("the scale of B", d->b_scale, vector_b ? p->ld.cols * 4 : 4, 4))
		return false;
	if (d->d_scale != NULL && !readable("the scale of D", d->d_scale, 4, 4))
		return false;
	return d->epilogue != CUBLASLT_EPILOGUE_BIAS ||
	       readable("the bias", d->bias, p->ld.rows * lt_type_bytes(lt_bias_type(p)), 2);
}

static cublasStatus_t take_algo(struct lt_problem *p, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes)
{
	if (algo != NULL)
		read_algo(&p->algo, algo);
	else
		p->algo = {LT_MAGIC, 0, 0, types_of(p), 16, 16, 16, 16, 0};
	p->workspace = static_cast<char *>(workspace);
	if (p->algo.magic != LT_MAGIC || p->algo.types != types_of(p) ||
	    workspace_of(p, p->algo.number) > p->algo.workspace_bytes) {
		(void)refuse("the algorithm was not made for this product", algo);
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	if (bytes > 0 && (uintptr_t)workspace % LT_WORKSPACE_ALIGNMENT != 0) { /* seen on an H100 with 13.1: whether it is used or not */
		(void)refuse("the workspace is not aligned to 256 bytes", workspace);
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	if (p->algo.workspace_bytes == 0)
		return CUBLAS_STATUS_SUCCESS;
	return status(bytes >= p->algo.workspace_bytes ? readable("the workspace", workspace, p->algo.workspace_bytes, 16)
						       : refuse("the workspace is too small", workspace));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
			      cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
			      const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
			      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
			      size_t workspace_bytes, cudaStream_t stream)
{
	LT_CALL();
	struct emu_work work = {"cublasLtMatmul", NULL, NULL, {}, NULL};
	if (handle == NULL)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	if (desc == NULL || alpha == NULL || beta == NULL || a_layout == NULL || b_layout == NULL || c_layout == NULL ||
	    d_layout == NULL)
		return CUBLAS_STATUS_INVALID_VALUE;
	auto p = std::make_shared<struct lt_problem>();
	*p = {*desc, *a_layout, *b_layout, *c_layout, *d_layout, static_cast<const char *>(a), static_cast<const char *>(b),
	      static_cast<const char *>(c), static_cast<char *>(d), NULL, NULL, 0, 0, {}, NULL};
	cublasStatus_t s = lt_supported(p.get());
	if (s == CUBLAS_STATUS_SUCCESS)
		s = take_algo(p.get(), algo, workspace, workspace_bytes);
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	if (desc->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
		p->alpha = alpha;
		p->beta = beta;
	} else if (desc->scale_type == CUDA_R_32I) {
		p->alpha_value = (float)*static_cast<const i32 *>(alpha);
		p->beta_value = (float)*static_cast<const i32 *>(beta);
	} else {
		p->alpha_value = *static_cast<const float *>(alpha);
		p->beta_value = *static_cast<const float *>(beta);
	}
	if (!check_memory(p.get()))
		return CUBLAS_STATUS_INVALID_VALUE;
	work.call = [p] {
		lt_compute(p.get());
		return cudaSuccess;
	};
	return emu_enqueue(call, stream, std::move(work)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
									   : CUBLAS_STATUS_EXECUTION_FAILED;
}
