/* The words of kernels/cuda/cu.h for the matrix units, of a warp and of four, for g++: a part of device.h. Include cu.h, not this. */
#ifndef CUDA_EMU_MATRIX_H
#define CUDA_EMU_MATRIX_H

/* ---------------------------------------------------------------- matrix unit of a warp (matrix.cc) */

void emu_op_mma_bf16(struct emu_lane lanes[32], u32 mask);
void emu_op_mma_bf16_k32(struct emu_lane lanes[32], u32 mask);
void emu_op_mma_bf16_n16(struct emu_lane lanes[32], u32 mask);
void emu_op_mma_f16(struct emu_lane lanes[32], u32 mask);
void emu_op_mma_f16_n16(struct emu_lane lanes[32], u32 mask);
void emu_op_mma_s8(struct emu_lane lanes[32], u32 mask);
void emu_op_ldmatrix_x4(struct emu_lane lanes[32], u32 mask);
void emu_op_ldmatrix_x4_trans(struct emu_lane lanes[32], u32 mask);
void emu_op_ldmatrix_x2(struct emu_lane lanes[32], u32 mask);
void emu_op_ldmatrix_x2_trans(struct emu_lane lanes[32], u32 mask);

template <u32 A, u32 B, u32 D>
static inline void emu_matrix(void *d, const u32 *a, const u32 *b, emu_warp_fn fn, const char *what, struct emu_site site)
{
	struct emu_lane *l = emu_self->exchange;
	memcpy(l->matrix.a, a, A * sizeof(u32));
	memcpy(l->matrix.b, b, B * sizeof(u32));
	memcpy(l->matrix.d, d, D * sizeof(u32));
	emu_warp_sync(CU_ALL, fn, true, what, site);
	memcpy(d, l->matrix.d, D * sizeof(u32));
}

static inline void cu_mma_bf16(float d[4], const u32 a[4], const u32 b[2], EMU_HERE)
{
	emu_matrix<4, 2, 4>(d, a, b, emu_op_mma_bf16, "cu_mma_bf16", EMU_SITE);
}

static inline void cu_mma_bf16_k32(float d[4], const u32 a[8], const u32 b[4], EMU_HERE)
{
	emu_matrix<8, 4, 4>(d, a, b, emu_op_mma_bf16_k32, "cu_mma_bf16_k32", EMU_SITE);
}

static inline void cu_mma_bf16_n16(float d[2][4], const u32 a[4], const u32 b[4], EMU_HERE)
{
	emu_matrix<4, 4, 8>(d, a, b, emu_op_mma_bf16_n16, "cu_mma_bf16_n16", EMU_SITE);
}

static inline void cu_mma_f16(float d[4], const u32 a[4], const u32 b[2], EMU_HERE)
{
	emu_matrix<4, 2, 4>(d, a, b, emu_op_mma_f16, "cu_mma_f16", EMU_SITE);
}

static inline void cu_mma_f16_n16(float d[2][4], const u32 a[4], const u32 b[4], EMU_HERE)
{
	emu_matrix<4, 4, 8>(d, a, b, emu_op_mma_f16_n16, "cu_mma_f16_n16", EMU_SITE);
}

static inline void cu_mma_s8(int d[4], const u32 a[4], const u32 b[2], EMU_HERE)
{
	emu_matrix<4, 2, 4>(d, a, b, emu_op_mma_s8, "cu_mma_s8", EMU_SITE);
}

/* `lanes`: how many lanes give a row. */
void emu_ldmatrix(u32 *r, const void *row, u32 lanes, emu_warp_fn fn, const char *what, struct emu_site site);

static inline void cu_ldmatrix_x4(u32 r[4], const void *row, EMU_HERE)
{
	emu_ldmatrix(r, row, 32, emu_op_ldmatrix_x4, "cu_ldmatrix_x4", EMU_SITE);
}

static inline void cu_ldmatrix_x2(u32 r[2], const void *row, EMU_HERE)
{
	emu_ldmatrix(r, row, 16, emu_op_ldmatrix_x2, "cu_ldmatrix_x2", EMU_SITE);
}

static inline void cu_ldmatrix_x4_trans(u32 r[4], const void *row, EMU_HERE)
{
	emu_ldmatrix(r, row, 32, emu_op_ldmatrix_x4_trans, "cu_ldmatrix_x4_trans", EMU_SITE);
}

static inline void cu_ldmatrix_x2_trans(u32 r[2], const void *row, EMU_HERE)
{
	emu_ldmatrix(r, row, 16, emu_op_ldmatrix_x2_trans, "cu_ldmatrix_x2_trans", EMU_SITE);
}

/* ---------------------------------------------------------------- matrix unit of four warps (wgmma.cc) */

u64 emu_wgmma_operand(const void *panel, u32 panel_bytes, struct emu_site site);
void emu_op_wgmma(struct emu_lane lanes[32], u32 mask);
void emu_op_wgmma_wait(struct emu_lane lanes[32], u32 mask);
void emu_op_wgmma_fence(struct emu_lane lanes[32], u32 mask);
void emu_op_wgmma_commit(struct emu_lane lanes[32], u32 mask);

static inline u64 cu_wgmma_operand(const void *panel, u32 panel_bytes, EMU_HERE)
{
	return emu_wgmma_operand(panel, panel_bytes, EMU_SITE);
}

template <u32 N, u32 STEPS> static inline void cu_wgmma_rows(float (&d)[N / 2], u64 a, u64 b, bool add, EMU_HERE)
{
	static_assert((N == 64 || N == 128 || N == 256) && STEPS <= 4, "a panel is 128 bytes wide");
	struct emu_lane *l = emu_self->exchange;
	l->product.what = {a, b, N, STEPS, emu_self->warp % 4 * 16, add, false, EMU_SITE};
	l->product.d = d;
	l->product.a = NULL;
	l->product.tainted = emu_self->unfenced || emu_self->tainted;
	emu_warp_sync(CU_ALL, emu_op_wgmma, true, "cu_wgmma_rows", EMU_SITE);
}

template <u32 N, u32 STEPS>
static inline void cu_wgmma_columns(float (&d)[N / 2], const u32 (&a)[4 * STEPS], u64 b, EMU_HERE)
{
	static_assert(N == 64 || N == 128, "");
	struct emu_lane *l = emu_self->exchange;
	l->product.what = {0, b, N, STEPS, 0, true, true, EMU_SITE};
	l->product.d = d;
	l->product.a = a;
	l->product.tainted = emu_self->unfenced || emu_self->tainted;
	emu_warp_sync(CU_ALL, emu_op_wgmma, true, "cu_wgmma_columns", EMU_SITE);
}

static inline void cu_wgmma_fence(EMU_HERE)
{
	emu_warp_sync(CU_ALL, emu_op_wgmma_fence, true, "cu_wgmma_fence", EMU_SITE);
}

static inline void cu_wgmma_commit(EMU_HERE)
{
	emu_warp_sync(CU_ALL, emu_op_wgmma_commit, true, "cu_wgmma_commit", EMU_SITE);
}

template <u32 left> static inline void cu_wgmma_wait(EMU_HERE)
{
	emu_self->exchange->shuffle.operand = left;
	emu_warp_sync(CU_ALL, emu_op_wgmma_wait, true, "cu_wgmma_wait", EMU_SITE);
}

template <u32 left, u32 count> static inline void cu_wgmma_wait(float (&)[count], EMU_HERE)
{
	emu_self->exchange->shuffle.operand = left;
	emu_warp_sync(CU_ALL, emu_op_wgmma_wait, true, "cu_wgmma_wait", EMU_SITE);
}

static inline void cu_fence_wgmma()
{
	emu_self->unfenced = emu_self->tainted = false;
}

#endif
