/* The matrix unit: mma.sync and ldmatrix by the fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16",
 * "mma.m16n8k32", "ldmatrix"). g = lane / 4, t = lane % 4. */
#include "tests/cuda_emu/emu_priv.h"

enum { M = 16, N = 8 };

/* The operands of one instruction as floats. A: register r of lane l holds a_low[l][r] and, in the next column,
 * a_high[l][r]. */
struct operands {
	float a_low[32][4], a_high[32][4], b[16][N], d[M][N];
};

/* Sums over rising k, d at the end. */
EMU_PLAIN static inline __attribute__((always_inline)) void multiply(struct operands *o)
{
	for (u32 i = 0; i < M; i++) {
		float sum[N] = {};
		for (u32 k = 0; k < 16; k += 2) {
			const u32 lane = i % 8 * 4 + k % 8 / 2, r = i / 8 + k / 8 * 2;
			const float low = o->a_low[lane][r], high = o->a_high[lane][r];
			for (u32 j = 0; j < N; j++)
				sum[j] += low * o->b[k][j];
			for (u32 j = 0; j < N; j++)
				sum[j] += high * o->b[k + 1][j];
		}
		for (u32 j = 0; j < N; j++)
			o->d[i][j] += sum[j];
	}
}

EMU_PLAIN EMU_AVX2 static void multiply_avx2(struct operands *o)
{
	multiply(o);
}

EMU_PLAIN static void multiply_any(struct operands *o)
{
	multiply(o);
}

/* 16-bit operands, k of 16. Register r of A holds row g + 8 (r % 2), columns 2t + 8 (r / 2) and the next; register r
 * of B holds column g, rows 2t + 8r and the next; value e of D row g + 8 (e / 2), column 2t + e % 2. The operands are
 * the lanes' registers from a_at, b_at and d_at on. */
template <float (*convert)(u16)> static void mma_16bit(struct emu_lane lanes[32], u32 a_at, u32 b_at, u32 d_at)
{
	struct operands o;
	for (u32 l = 0; l < 32; l++) {
		const u32 *a = lanes[l].matrix.a + a_at, *b = lanes[l].matrix.b + b_at, g = l / 4, t = l % 4;
		for (u32 r = 0; r < 4; r++) {
			o.a_low[l][r] = convert((u16)a[r]);
			o.a_high[l][r] = convert((u16)(a[r] >> 16));
		}
		for (u32 r = 0; r < 2; r++) {
			o.b[2 * t + 8 * r][g] = convert((u16)b[r]);
			o.b[2 * t + 8 * r + 1][g] = convert((u16)(b[r] >> 16));
			memcpy(&o.d[g + 8 * r][2 * t], &lanes[l].matrix.d[d_at + 2 * r], 2 * sizeof(float));
		}
	}
	(emu_has_avx2() ? multiply_avx2 : multiply_any)(&o);
	for (u32 l = 0; l < 32; l++) {
		for (u32 e = 0; e < 2; e++)
			memcpy(&lanes[l].matrix.d[d_at + 2 * e], &o.d[l / 4 + 8 * e][2 * (l % 4)], 2 * sizeof(float));
	}
}

void emu_op_mma_bf16(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	mma_16bit<cu_bf16_to_f32>(lanes, 0, 0, 0);
}

void emu_op_mma_bf16_k32(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	mma_16bit<cu_bf16_to_f32>(lanes, 0, 0, 0);
	mma_16bit<cu_bf16_to_f32>(lanes, 4, 2, 0);
}

void emu_op_mma_bf16_n16(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	mma_16bit<cu_bf16_to_f32>(lanes, 0, 0, 0);
	mma_16bit<cu_bf16_to_f32>(lanes, 0, 2, 4);
}

void emu_op_mma_f16(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	mma_16bit<cu_f16_to_f32>(lanes, 0, 0, 0);
}

void emu_op_mma_f16_n16(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	mma_16bit<cu_f16_to_f32>(lanes, 0, 0, 0);
	mma_16bit<cu_f16_to_f32>(lanes, 0, 2, 4);
}

/* 8-bit operands, k of 32: as above with four values a register, columns 4t + 16 (r / 2). Sums wrap. */
void emu_op_mma_s8(struct emu_lane lanes[32], u32 mask)
{
	i32 a[M][32], b[32][N];
	(void)mask;
	for (u32 l = 0; l < 32; l++) {
		u32 g = l / 4, t = l % 4;
		for (u32 e = 0; e < 16; e++)
			a[g + 8 * (e / 4 % 2)][4 * t + 16 * (e / 8) + e % 4] = (int8_t)(lanes[l].matrix.a[e / 4] >> (8 * (e % 4)));
		for (u32 e = 0; e < 8; e++)
			b[4 * t + 16 * (e / 4) + e % 4][g] = (int8_t)(lanes[l].matrix.b[e / 4] >> (8 * (e % 4)));
	}
	for (u32 l = 0; l < 32; l++) {
		for (u32 e = 0; e < 4; e++) {
			i32 sum = 0;
			for (u32 k = 0; k < 32; k++)
				sum += a[l / 4 + 8 * (e / 2)][k] * b[k][2 * (l % 4) + e % 2];
			lanes[l].matrix.d[e] += (u32)sum;
		}
	}
}

/* Matrix i has its 8 rows of 8 halves at the addresses of lanes 8i..8i+7. Lane l receives of it row l / 4, columns
 * 2 (l % 4) and the next; transposed: rows 2 (l % 4) and the next, column l / 4. */
static void ldmatrix(struct emu_lane lanes[32], u32 matrices, bool trans)
{
	for (u32 i = 0; i < matrices; i++) {
		for (u32 l = 0; l < 32; l++) {
			u16 pair[2];
			for (u32 e = 0; e < 2; e++) {
				u32 row = trans ? 2 * (l % 4) + e : l / 4, column = trans ? l / 4 : 2 * (l % 4) + e;
				pair[e] = static_cast<const u16 *>(lanes[8 * i + row].load.row)[column];
			}
			lanes[l].load.out[i] = pair[0] | (u32)pair[1] << 16;
		}
	}
}

void emu_op_ldmatrix_x4(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	ldmatrix(lanes, 4, false);
}

void emu_op_ldmatrix_x2(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	ldmatrix(lanes, 2, false);
}

void emu_op_ldmatrix_x4_trans(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	ldmatrix(lanes, 4, true);
}

void emu_op_ldmatrix_x2_trans(struct emu_lane lanes[32], u32 mask)
{
	(void)mask;
	ldmatrix(lanes, 2, true);
}

void emu_ldmatrix(u32 *r, const void *row, u32 lanes, emu_warp_fn fn, const char *what, struct emu_site site)
{
	struct emu_lane *l = emu_self->exchange;
	if (emu_self->lane < lanes) {
		emu_align(row, 16, what, site.file, site.line);
		if (!emu_shared_contains(&emu_now->shared, row, 16))
			emu_trap(cudaErrorIllegalAddress, site.file, site.line, "%s: the row at %p is not in shared memory",
				 what, row);
		emu_touch(row, 16, EMU_READ, site);
	}
	l->load.row = row;
	emu_warp_sync(CU_ALL, fn, true, what, site);
	memcpy(r, l->load.out, lanes / 8 * sizeof(u32));
}
