/* Products as cuBLASLt defines them: D = alpha * scale_a * scale_b * op(A) op(B) + beta * C (+ bias), in float or in 32-bit
 * integers; and which combinations of types and shapes the library has kernels for. */
#include "tests/cuda_emu/cublaslt.h"

size_t lt_type_bytes(u32 type)
{
	switch (type) {
	case CUDA_R_32F:
	case CUDA_R_32I:
		return 4;
	case CUDA_R_16F:
	case CUDA_R_16BF:
		return 2;
	case CUDA_R_8I:
	case CUDA_R_8F_E4M3:
		return 1;
	}
	return 0;
}

u32 lt_bias_type(const struct lt_problem *p)
{
	if (p->desc.bias_type >= 0)
		return (u32)p->desc.bias_type;
	return p->ld.type == CUDA_R_8F_E4M3 ? (u32)CUDA_R_16BF : p->ld.type;
}

/* ---------------------------------------------------------------- what is supported */

static bool layout_ok(const struct cublasLtMatrixLayout *l)
{
	u64 line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
	return lt_type_bytes(l->type) != 0 && (l->order == CUBLASLT_ORDER_COL || l->order == CUBLASLT_ORDER_ROW) &&
	       l->rows > 0 && l->cols > 0 && l->ld >= (i64)line && l->batch >= 1 && (l->batch == 1 || l->batch_stride >= 0);
}

static bool shapes_ok(const struct lt_problem *p)
{
	u64 m = p->desc.trans_a == CUBLAS_OP_N ? p->la.rows : p->la.cols;
	u64 k = p->desc.trans_a == CUBLAS_OP_N ? p->la.cols : p->la.rows;
	u64 kb = p->desc.trans_b == CUBLAS_OP_N ? p->lb.rows : p->lb.cols;
	u64 n = p->desc.trans_b == CUBLAS_OP_N ? p->lb.cols : p->lb.rows;
	return k == kb && p->ld.rows == m && p->ld.cols == n && p->lc.rows == m && p->lc.cols == n &&
	       p->la.batch == p->ld.batch && p->lb.batch == p->ld.batch && p->lc.batch == p->ld.batch;
}

static bool column_order(const struct lt_problem *p)
{
	return p->la.order == CUBLASLT_ORDER_COL && p->lb.order == CUBLASLT_ORDER_COL && p->lc.order == CUBLASLT_ORDER_COL &&
	       p->ld.order == CUBLASLT_ORDER_COL;
}

static bool tn(const struct lt_problem *p)
{
	return p->desc.trans_a == CUBLAS_OP_T && p->desc.trans_b == CUBLAS_OP_N && column_order(p);
}

static bool floats_supported(const struct lt_problem *p)
{
	u32 a = p->la.type, c = p->lc.type, d = p->ld.type;
	if (p->desc.compute != CUBLAS_COMPUTE_32F || p->desc.scale_type != CUDA_R_32F || p->lb.type != a || c != d)
		return false;
	if (p->desc.a_scale != NULL || p->desc.b_scale != NULL || p->desc.d_scale != NULL)
		return false; /* scales are for 8-bit floats */
	return d == CUDA_R_32F || d == a;
}

/* "Tensor cores with 8-bit floats": TN, all sizes and leading dimensions multiples of 16 bytes. */
static bool fp8_supported(const struct lt_problem *p)
{
	u32 c = p->lc.type, d = p->ld.type;
	bool vectors = p->desc.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	if (p->desc.compute != CUBLAS_COMPUTE_32F || p->desc.scale_type != CUDA_R_32F || p->lb.type != CUDA_R_8F_E4M3 || !tn(p))
		return false;
	if (p->la.rows % 16 != 0 || p->ld.rows % 16 != 0 || p->la.ld % 16 != 0 || p->lb.ld % 16 != 0 ||
	    (u64)p->ld.ld * lt_type_bytes(d) % 16 != 0 || (u64)p->lc.ld * lt_type_bytes(c) % 16 != 0)
		return false;
	if (p->desc.a_scale_mode != p->desc.b_scale_mode || (vectors && (p->desc.a_scale == NULL || p->desc.b_scale == NULL)))
		return false;
	if (p->desc.a_scale_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && !vectors)
		return false;
	if (d == CUDA_R_8F_E4M3)
		return (c == CUDA_R_16BF || c == CUDA_R_16F) && !vectors;
	return c == d && p->desc.d_scale == NULL && (d == CUDA_R_16BF || d == CUDA_R_16F || d == CUDA_R_32F);
}

static bool int8_supported(const struct lt_problem *p)
{
	return p->desc.compute == CUBLAS_COMPUTE_32I && p->desc.scale_type == CUDA_R_32I && p->lb.type == CUDA_R_8I && tn(p) &&
	       p->lc.type == CUDA_R_32I && p->ld.type == CUDA_R_32I && p->la.rows % 4 == 0 && p->ld.rows % 4 == 0 &&
	       p->la.ld % 4 == 0 && p->lb.ld % 4 == 0 && p->desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

cublasStatus_t lt_supported(const struct lt_problem *p)
{
	bool ok;
	if (!layout_ok(&p->la) || !layout_ok(&p->lb) || !layout_ok(&p->lc) || !layout_ok(&p->ld) || !shapes_ok(p))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->desc.epilogue != CUBLASLT_EPILOGUE_BIAS)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS && p->desc.bias == NULL)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (p->la.type == CUDA_R_8F_E4M3)
		ok = fp8_supported(p);
	else if (p->la.type == CUDA_R_8I)
		ok = int8_supported(p);
	else
		ok = p->la.type != CUDA_R_32I && floats_supported(p);
	return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---------------------------------------------------------------- elements */

static float get(const char *base, u32 type, size_t i)
{
	const char *p = base + i * lt_type_bytes(type);
	u16 half;
	float v;
	i32 integer;
	switch (type) {
	case CUDA_R_16F:
	case CUDA_R_16BF:
		memcpy(&half, p, 2);
		return type == CUDA_R_16F ? cu_f16_to_f32(half) : cu_bf16_to_f32(half);
	case CUDA_R_8I:
		return (float)(int8_t)*p;
	case CUDA_R_8F_E4M3:
		return cu_e4m3_to_f32((u8)*p);
	case CUDA_R_32I:
		memcpy(&integer, p, 4);
		return (float)integer;
	}
	memcpy(&v, p, 4);
	return v;
}

static void put(char *base, u32 type, size_t i, float v)
{
	char *p = base + i * lt_type_bytes(type);
	u16 half;
	switch (type) {
	case CUDA_R_16F:
	case CUDA_R_16BF:
		half = type == CUDA_R_16F ? cu_f32_to_f16(v) : cu_f32_to_bf16(v);
		memcpy(p, &half, 2);
		return;
	case CUDA_R_8F_E4M3:
		*p = (char)cu_f32_to_e4m3(v);
		return;
	}
	memcpy(p, &v, 4);
}

static size_t at(const struct cublasLtMatrixLayout *l, u64 row, u64 col, i32 batch)
{
	u64 in = l->order == CUBLASLT_ORDER_COL ? col * (u64)l->ld + row : row * (u64)l->ld + col;
	return (size_t)(in + (u64)batch * (u64)l->batch_stride);
}

/* ---------------------------------------------------------------- the product */

/* op(A) as [m][k] or op(B) as [n][k], as floats. */
static std::vector<float> unpack(const char *base, const struct cublasLtMatrixLayout *l, bool k_is_row, i32 batch)
{
	u64 lines = k_is_row ? l->cols : l->rows, k = k_is_row ? l->rows : l->cols;
	std::vector<float> out((size_t)(lines * k));
	if (l->type == CUDA_R_16BF && at(l, k_is_row, !k_is_row, batch) == at(l, 0, 0, batch) + 1) { /* by far the most */
		for (u64 i = 0; i < lines; i++) {
			const u16 *line = (const u16 *)base + (k_is_row ? at(l, 0, i, batch) : at(l, i, 0, batch));
			for (u64 j = 0; j < k; j++)
				out[i * k + j] = cu_bf16_to_f32(line[j]);
		}
		return out;
	}
	for (u64 i = 0; i < lines; i++) {
		for (u64 j = 0; j < k; j++)
			out[i * k + j] = get(base, l->type, k_is_row ? at(l, j, i, batch) : at(l, i, j, batch));
	}
	return out;
}

/* In `parts` sums, each of SUMS, so that the order of additions differs between algorithms. */
enum { SUMS = 32 };
static inline __attribute__((always_inline)) float dot(const float *a, const float *b, u64 k, u32 parts)
{
	float total = 0;
	for (u32 p = 0; p < parts; p++) {
		u64 from = k * p / parts, to = k * (p + 1) / parts;
		float sum[SUMS] = {};
		for (; from + SUMS <= to; from += SUMS) {
			for (u32 i = 0; i < SUMS; i++)
				sum[i] += a[from + i] * b[from + i];
		}
		for (; from < to; from++)
			sum[from % SUMS] += a[from] * b[from];
		for (u32 n = SUMS / 2; n > 0; n /= 2) {
			for (u32 i = 0; i < n; i++)
				sum[i] += sum[i + n];
		}
		total += sum[0];
	}
	return total;
}

EMU_AVX2 static float dot_avx2(const float *a, const float *b, u64 k, u32 parts)
{
	return dot(a, b, k, parts);
}

struct factors {
	float alpha, beta;
};

static float finish(const struct lt_problem *p, const struct factors *f, u64 row, u64 col, i32 batch, float sum)
{
	const struct cublasLtMatmulDesc *d = &p->desc;
	bool vectors = d->a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	float v = f->alpha * sum;
	if (d->a_scale != NULL)
		v *= d->a_scale[vectors ? row : 0];
	if (d->b_scale != NULL)
		v *= d->b_scale[vectors ? col : 0];
	if (f->beta != 0.0f)
		v += f->beta * get(p->c, p->lc.type, at(&p->lc, row, col, batch));
	if (d->epilogue == CUBLASLT_EPILOGUE_BIAS) {
		v += get(static_cast<const char *>(d->bias), lt_bias_type(p), row);
	}
	return d->d_scale != NULL ? v * *d->d_scale : v;
}

static i32 dot_s8(const struct lt_problem *p, u64 row, u64 col, i32 batch)
{
	const int8_t *a = (const int8_t *)p->a + at(&p->la, 0, row, batch), *b = (const int8_t *)p->b + at(&p->lb, 0, col, batch);
	i32 sum = 0;
	for (u64 k = 0; k < p->la.rows; k++)
		sum += a[k] * b[k];
	return sum;
}

static void compute_s8(const struct lt_problem *p, const struct factors *f, i32 batch)
{
	for (u64 col = 0; col < p->ld.cols; col++) {
		for (u64 row = 0; row < p->ld.rows; row++) {
			i32 c, v = (i32)f->alpha * dot_s8(p, row, col, batch);
			memcpy(&c, p->c + 4 * at(&p->lc, row, col, batch), f->beta != 0.0f ? 4 : 0);
			if (f->beta != 0.0f)
				v += (i32)f->beta * c;
			memcpy(p->d + 4 * at(&p->ld, row, col, batch), &v, 4);
		}
	}
}

static void compute_float(const struct lt_problem *p, const struct factors *f, i32 batch)
{
	std::vector<float> a = unpack(p->a, &p->la, p->desc.trans_a == CUBLAS_OP_T, batch);
	std::vector<float> b = unpack(p->b, &p->lb, p->desc.trans_b == CUBLAS_OP_N, batch);
	u64 k = a.size() / p->ld.rows;
	for (u64 col = 0; col < p->ld.cols; col++) {
		for (u64 row = 0; row < p->ld.rows; row++) {
			float sum = (emu_has_avx2() ? dot_avx2 : dot)(&a[row * k], &b[col * k], k, 1u << p->algo.number);
			put(p->d, p->ld.type, at(&p->ld, row, col, batch), finish(p, f, row, col, batch, sum));
		}
	}
}

void lt_compute(const struct lt_problem *p)
{
	struct factors f = {p->alpha_value, p->beta_value};
	if (p->alpha != NULL && p->desc.scale_type == CUDA_R_32I)
		f = {(float)*static_cast<const i32 *>(p->alpha), (float)*static_cast<const i32 *>(p->beta)};
	else if (p->alpha != NULL)
		f = {*static_cast<const float *>(p->alpha), *static_cast<const float *>(p->beta)};
	if (p->algo.workspace_bytes > 0) /* what anybody else kept there is lost */
		memset(p->workspace, EMU_POISON, p->algo.workspace_bytes);
	for (i32 batch = 0; batch < p->ld.batch; batch++) {
		if (p->la.type == CUDA_R_8I)
			compute_s8(p, &f, batch);
		else
			compute_float(p, &f, batch);
	}
}
