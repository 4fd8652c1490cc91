/* cuBLASLt's products against sums in double, and what it refuses. */
#include <criterion/criterion.h>
#include <cublasLt.h>
#include <vector>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

/* D [n][m] row-major (column-major m x n) = X [n][k] W [m][k]^T: what a linear layer is. */
struct problem {
	u32 m, n, k;
	cudaDataType in, out;
	u32 bytes_in, bytes_out;
	std::vector<float> w, x, c;
	char *dw, *dx, *dd;
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t lw, lx, ld;
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t found[4];
	int count;
	char *workspace;
};

static u32 bytes_of(cudaDataType type)
{
	return type == CUDA_R_32F || type == CUDA_R_32I ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}

static void put(char *p, cudaDataType type, float v)
{
	u16 half = type == CUDA_R_16F ? cu_f32_to_f16(v) : cu_f32_to_bf16(v);
	i32 whole = (i32)v;
	if (type == CUDA_R_32F)
		memcpy(p, &v, 4);
	else if (type == CUDA_R_32I)
		memcpy(p, &whole, 4);
	else if (type == CUDA_R_8I)
		*p = (char)whole;
	else if (type == CUDA_R_8F_E4M3)
		*p = (char)cu_f32_to_e4m3(v);
	else
		memcpy(p, &half, 2);
}

static double get(const char *p, cudaDataType type)
{
	float v = 0;
	u16 half = 0;
	i32 whole = 0;
	memcpy(&v, p, type == CUDA_R_32F ? 4 : 0);
	memcpy(&whole, p, type == CUDA_R_32I ? 4 : 0);
	memcpy(&half, p, bytes_of(type) == 2 ? 2 : 0);
	if (type == CUDA_R_32F)
		return v;
	return type == CUDA_R_32I ? whole : type == CUDA_R_16F ? cu_f16_to_f32(half) : cu_bf16_to_f32(half);
}

static char *upload(const std::vector<float> &v, cudaDataType type)
{
	void *p;
	cr_assert_eq(cudaMallocHost(&p, v.size() * bytes_of(type)), cudaSuccess);
	for (size_t i = 0; i < v.size(); i++)
		put(static_cast<char *>(p) + i * bytes_of(type), type, v[i]);
	return static_cast<char *>(p);
}

template <typename T> static void desc_set(struct problem *p, cublasLtMatmulDescAttributes_t attr, T value)
{
	cr_assert_eq(cublasLtMatmulDescSetAttribute(p->desc, attr, &value, sizeof(value)), CUBLAS_STATUS_SUCCESS);
}

static void setup(struct problem *p, u32 m, u32 n, u32 k, cudaDataType in, cudaDataType out)
{
	bool whole = in == CUDA_R_8I;
	void *workspace;
	u64 workspace_bytes = 1 << 20;
	p->m = m;
	p->n = n;
	p->k = k;
	p->in = in;
	p->out = out;
	/* small multiples of powers of two: exact in every type */
	for (u32 i = 0; i < m * k; i++)
		p->w.push_back((float)((i * 37 % 13) - 6.0f) * (whole ? 1.0f : 0.25f));
	for (u32 i = 0; i < n * k; i++)
		p->x.push_back((float)((i * 53 % 11) - 5.0f) * (whole ? 1.0f : 0.5f));
	for (u32 i = 0; i < m * n; i++)
		p->c.push_back((float)(i % 7));
	p->dw = upload(p->w, in);
	p->dx = upload(p->x, in);
	p->dd = upload(p->c, out);
	cr_assert_eq(cublasLtCreate(&p->handle), CUBLAS_STATUS_SUCCESS);
	cublasLtMatmulDescCreate(&p->desc, whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, whole ? CUDA_R_32I : CUDA_R_32F);
	desc_set(p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
	desc_set(p, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
	cublasLtMatrixLayoutCreate(&p->lw, in, k, m, k);
	cublasLtMatrixLayoutCreate(&p->lx, in, k, n, k);
	cublasLtMatrixLayoutCreate(&p->ld, out, m, n, m);
	cublasLtMatmulPreferenceCreate(&p->pref);
	cublasLtMatmulPreferenceSetAttribute(p->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8);
	cr_assert_eq(cudaMalloc(&workspace, workspace_bytes), cudaSuccess);
	p->workspace = static_cast<char *>(workspace);
}

static void finish(struct problem *p)
{
	cublasLtMatmulPreferenceDestroy(p->pref);
	cublasLtMatrixLayoutDestroy(p->lw);
	cublasLtMatrixLayoutDestroy(p->lx);
	cublasLtMatrixLayoutDestroy(p->ld);
	cublasLtMatmulDescDestroy(p->desc);
	cublasLtDestroy(p->handle);
}

static cublasStatus_t find(struct problem *p)
{
	return cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->lw, p->lx, p->ld, p->ld, p->pref, 4, p->found, &p->count);
}

static cublasStatus_t multiply(struct problem *p, float alpha, float beta, u32 algo)
{
	i32 whole_alpha = (i32)alpha, whole_beta = (i32)beta;
	bool whole = p->in == CUDA_R_8I;
	const void *pa = whole ? (const void *)&whole_alpha : &alpha, *pb = whole ? (const void *)&whole_beta : &beta;
	return cublasLtMatmul(p->handle, p->desc, pa, p->dw, p->lw, p->dx, p->lx, pb, p->dd, p->ld, p->dd, p->ld,
			      &p->found[algo].algo, p->workspace, 1 << 20, NULL);
}

static double wanted(const struct problem *p, u32 row, u32 col)
{
	double sum = 0;
	for (u32 k = 0; k < p->k; k++)
		sum += (double)p->w[row * p->k + k] * p->x[col * p->k + k];
	return sum;
}

static void check(const struct problem *p, double alpha, double beta, const float *bias, double error)
{
	cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
	for (u32 i = 0; i < p->m * p->n; i++) {
		double want = alpha * wanted(p, i % p->m, i / p->m) + beta * p->c[i] + (bias != NULL ? bias[i % p->m] : 0);
		double got = get(p->dd + i * bytes_of(p->out), p->out);
		cr_assert_leq(fabs(got - want), error * (1 + fabs(want)), "%u: %g is not %g", i, got, want);
	}
}

Test(cuda_emu_cublaslt, products_of_every_type_are_right_with_every_algorithm)
{
	static const struct {
		cudaDataType in, out;
		double error;
	} cases[] = {{CUDA_R_16BF, CUDA_R_16BF, 1.0 / 256}, {CUDA_R_16F, CUDA_R_16F, 1.0 / 2048},
		     {CUDA_R_16BF, CUDA_R_32F, 1e-6},	    {CUDA_R_32F, CUDA_R_32F, 1e-6},
		     {CUDA_R_8F_E4M3, CUDA_R_16BF, 1.0 / 256}, {CUDA_R_8I, CUDA_R_32I, 0}};
	for (auto &c : cases) {
		for (u32 algo = 0; algo < 3; algo++) {
			struct problem p = {};
			setup(&p, 48, 5, 80, c.in, c.out);
			cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
			cr_assert_eq(p.count, 3);
			cr_assert_eq(multiply(&p, 2, 1, algo), CUBLAS_STATUS_SUCCESS, "%s", emu_report());
			check(&p, 2, 1, NULL, c.error);
			finish(&p);
		}
	}
}

Test(cuda_emu_cublaslt, a_bias_is_added_to_each_column)
{
	struct problem p = {};
	std::vector<float> bias;
	setup(&p, 32, 3, 16, CUDA_R_16BF, CUDA_R_16BF);
	for (u32 i = 0; i < 32; i++)
		bias.push_back((float)i);
	desc_set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
	cr_assert_eq(find(&p), CUBLAS_STATUS_INVALID_VALUE, "no bias was given");
	desc_set(&p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)upload(bias, CUDA_R_16BF));
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_SUCCESS);
	check(&p, 1, 0, bias.data(), 1.0 / 256);
	finish(&p);
}

Test(cuda_emu_cublaslt, scales_of_8_bit_floats_are_one_or_one_per_row)
{
	struct problem p = {};
	std::vector<float> sa(32), sb(4);
	setup(&p, 32, 4, 64, CUDA_R_8F_E4M3, CUDA_R_32F);
	for (u32 i = 0; i < 32; i++)
		sa[i] = 1.0f + (float)i;
	for (u32 i = 0; i < 4; i++)
		sb[i] = 0.5f * (float)(i + 1);
	desc_set(&p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (const void *)upload(sa, CUDA_R_32F));
	desc_set(&p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (const void *)upload(sb, CUDA_R_32F));
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_SUCCESS);
	check(&p, 0.5, 0, NULL, 1e-6);
	desc_set(&p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
	cr_assert_eq(find(&p), CUBLAS_STATUS_NOT_SUPPORTED, "only one of them by rows");
	desc_set(&p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
	for (u32 i = 0; i < 128; i++) {
		double want = wanted(&p, i % 32, i / 32) * sa[i % 32] * sb[i / 32], got = get(p.dd + 4 * i, CUDA_R_32F);
		cr_assert_leq(fabs(got - want), 1e-5 * (1 + fabs(want)), "%u: %g is not %g", i, got, want);
	}
	finish(&p);
}

static cublasStatus_t finds(u32 m, u32 n, u32 k, cudaDataType in, cudaDataType out)
{
	struct problem p = {};
	setup(&p, m, n, k, in, out);
	cublasStatus_t s = find(&p);
	finish(&p);
	return s;
}

Test(cuda_emu_cublaslt, what_the_library_has_no_kernel_for_is_refused)
{
	cr_assert_eq(finds(32, 3, 64, CUDA_R_8F_E4M3, CUDA_R_16BF), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(finds(40, 3, 64, CUDA_R_8F_E4M3, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED, "16 divides rows");
	cr_assert_eq(finds(32, 3, 72, CUDA_R_8F_E4M3, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED, "16 divides k");
	cr_assert_eq(finds(30, 3, 64, CUDA_R_8I, CUDA_R_32I), CUBLAS_STATUS_NOT_SUPPORTED, "4 divides rows");
	cr_assert_eq(finds(32, 3, 64, CUDA_R_8I, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
	cr_assert_eq(finds(32, 3, 64, CUDA_R_16BF, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
	struct problem p = {};
	setup(&p, 32, 3, 64, CUDA_R_8F_E4M3, CUDA_R_16BF);
	desc_set(&p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
	cr_assert_eq(find(&p), CUBLAS_STATUS_INVALID_VALUE, "the shapes do not fit");
	finish(&p);
}

Test(cuda_emu_cublaslt, memory_and_workspace_are_checked)
{
	struct problem p = {};
	char *right;
	setup(&p, 48, 5, 80, CUDA_R_16BF, CUDA_R_16BF);
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	right = p.dd;
	p.dd += 16;
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_INVALID_VALUE);
	cr_assert(strstr(emu_report(), "D reaches beyond its allocation") != NULL, "%s", emu_report());
	p.dd = right;
	right = p.dx;
	p.dx = reinterpret_cast<char *>(p.x.data());
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_INVALID_VALUE);
	cr_assert(strstr(emu_report(), "B is not in memory of the device") != NULL, "%s", emu_report());
	p.dx = right;
	float one = 1, zero = 0;
	cr_assert_eq(cublasLtMatmul(p.handle, p.desc, &one, p.dw, p.lw, p.dx, p.lx, &zero, p.dd, p.ld, p.dd, p.ld,
				    &p.found[1].algo, p.workspace, p.found[1].workspaceSize - 1, NULL),
		     CUBLAS_STATUS_INVALID_VALUE);
	emu_inject("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_EXECUTION_FAILED);
	cr_assert_eq(cudaGetLastError(), cudaSuccess);
	cr_assert_str_eq(cublasLtGetStatusName(CUBLAS_STATUS_EXECUTION_FAILED), "CUBLAS_STATUS_EXECUTION_FAILED");
	finish(&p);
}

Test(cuda_emu_cublaslt, pointers_have_to_be_as_aligned_as_the_heuristic_was_told)
{
	struct problem p = {};
	void *larger;
	setup(&p, 48, 5, 80, CUDA_R_16BF, CUDA_R_16BF);
	cr_assert_eq(cudaMalloc(&larger, 4096), cudaSuccess);
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	p.dd = static_cast<char *>(larger) + 16;
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_INVALID_VALUE);
	cr_assert(strstr(emu_report(), "less aligned than the heuristic was told") != NULL);
	u32 align = 16;
	cublasLtMatmulPreferenceSetAttribute(p.pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, 4);
	cublasLtMatmulPreferenceSetAttribute(p.pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, 4);
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(multiply(&p, 1, 0, 0), CUBLAS_STATUS_SUCCESS, "%s", emu_report());
	check(&p, 1, 0, NULL, 1.0 / 256);
	finish(&p);
}

Test(cuda_emu_cublaslt, products_are_captured_and_a_small_workspace_leaves_fewer_algorithms)
{
	struct problem p = {};
	cudaStream_t s;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	u64 none = 0;
	float one = 1, zero = 0;
	setup(&p, 48, 5, 80, CUDA_R_16BF, CUDA_R_16BF);
	cublasLtMatmulPreferenceSetAttribute(p.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &none, 8);
	cr_assert_eq(find(&p), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(p.count, 1);
	cr_assert_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
	cr_assert_eq(cublasLtMatmul(p.handle, p.desc, &one, p.dw, p.lw, p.dx, p.lx, &zero, p.dd, p.ld, p.dd, p.ld,
				    &p.found[0].algo, NULL, 0, s),
		     CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
	cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
	cr_assert_eq(cudaGraphLaunch(exec, s), cudaSuccess);
	check(&p, 1, 0, NULL, 1.0 / 256);
	cr_assert_eq(cudaGraphExecDestroy(exec), cudaSuccess);
	cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
	finish(&p);
}
