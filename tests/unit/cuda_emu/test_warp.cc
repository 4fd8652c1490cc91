/* Operations of a warp: shuffles, votes, reductions, matrix instructions. */
#include <criterion/criterion.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

static cudaError_t finish(cudaError_t launched)
{
	cr_assert_eq(launched, cudaSuccess, "%s", cudaGetErrorString(launched));
	return cudaDeviceSynchronize();
}

static void reported(const char *text)
{
	cr_assert(strstr(emu_report(), text) != NULL, "the report says: %s", emu_report());
}

template <typename T> static T *zeros(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMallocHost(&p, count * sizeof(T)), cudaSuccess);
	memset(p, 0, count * sizeof(T));
	return static_cast<T *>(p);
}

static __global__ void shuffles(u32 *out)
{
	u32 lane = threadIdx.x % 32;
	u64 wide = cu_shfl((u64)lane << 40, 31 - lane);
	out[threadIdx.x] = cu_shfl(lane, lane / 2);
	out[64 + threadIdx.x] = cu_shfl_xor(lane, 5);
	out[128 + threadIdx.x] = cu_shfl_up(lane, 3);
	out[192 + threadIdx.x] = cu_shfl_down(lane, 3);
	out[256 + threadIdx.x] = (u32)(wide >> 40);
	out[320 + threadIdx.x] = (u32)cu_shfl_xor((float)lane, 16);
}

Test(cuda_emu_warp, shuffles_move_values_in_every_order)
{
	u32 *out = zeros<u32>(6 * 64);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		memset(out, 0, 6 * 64 * 4);
		cr_assert_eq(finish(LAUNCH(shuffles, 1, 64, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 64; i++) {
			u32 lane = i % 32;
			cr_assert_eq(out[i], lane / 2);
			cr_assert_eq(out[64 + i], lane ^ 5);
			cr_assert_eq(out[128 + i], lane < 3 ? lane : lane - 3);
			cr_assert_eq(out[192 + i], lane > 28 ? lane : lane + 3);
			cr_assert_eq(out[256 + i], 31 - lane);
			cr_assert_eq(out[320 + i], lane ^ 16);
		}
	}
}

static __global__ void votes(u32 *out)
{
	u32 lane = threadIdx.x, ballot = cu_ballot(lane % 5 == 0);
	bool right = cu_any(lane == 4) && !cu_any(false) && cu_all(true) && !cu_all(lane != 4);
	u32 sum = cu_reduce_add(lane), least = cu_reduce_min(lane + 7), most = cu_reduce_max(100 - lane);
	out[lane] = right && sum == 496 && least == 7 && most == 100 ? ballot : 0;
}

Test(cuda_emu_warp, votes_and_reductions_see_all_lanes)
{
	u32 *out = zeros<u32>(32);
	cr_assert_eq(finish(LAUNCH(votes, 1, 32, 0, NULL, out)), cudaSuccess);
	for (u32 i = 0; i < 32; i++)
		cr_assert_eq(out[i], 0x42108421u);
}

/* The halves of a warp go different ways. */
static __global__ void halves(u32 *out)
{
	u32 lane = threadIdx.x, v = lane;
	if (lane < 16) {
		for (u32 b = 8; b > 0; b /= 2)
			v += cu_shfl_xor(v, b, 0x0000ffffu);
	} else
		v = cu_reduce_max(lane, 0xffff0000u);
	cu_syncwarp();
	out[lane] = v;
}

Test(cuda_emu_warp, masks_let_parts_of_a_warp_go_their_ways)
{
	u32 *out = zeros<u32>(32);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq(finish(LAUNCH(halves, 1, 32, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 32; i++)
			cr_assert_eq(out[i], i < 16 ? 120 : 31);
	}
}

static __global__ void not_in_mask(void)
{
	(void)cu_ballot(true, 0x7fffffffu);
}

static __global__ void too_few(void)
{
	if (threadIdx.x != 12)
		(void)cu_shfl_xor(threadIdx.x, 1);
	else
		cu_sync();
}

static __global__ void different(void)
{
	if (threadIdx.x < 16)
		(void)cu_shfl_xor(threadIdx.x, 1);
	else
		(void)cu_ballot(true);
}

Test(cuda_emu_warp, wrong_masks_and_different_operations_are_reported)
{
	cr_assert_eq(finish(LAUNCH(not_in_mask, 1, 32, 0, NULL)), cudaErrorLaunchFailure);
	reported("cu_ballot: lane 31 is not in its own mask 7fffffff");
	cudaDeviceReset();
	cr_assert_eq(finish(LAUNCH(too_few, 1, 32, 0, NULL)), cudaErrorLaunchFailure);
	reported("lanes ffffefff wait in cu_shfl_xor");
	reported("lanes 00001000 wait in cu_sync");
	cudaDeviceReset();
	cr_assert_eq(finish(LAUNCH(different, 1, 32, 0, NULL)), cudaErrorLaunchFailure);
	reported("lane 16 comes to cu_ballot under the same mask");
}

static __global__ void after_return(u32 *out)
{
	if (threadIdx.x >= 20)
		return;
	out[threadIdx.x] = cu_ballot(true);
}

static __global__ void matrix_after_return(void)
{
	float d[4] = {};
	u32 a[4] = {}, b[2] = {};
	if (threadIdx.x == 31)
		return;
	cu_mma_bf16(d, a, b);
}

Test(cuda_emu_warp, matrix_instructions_need_the_whole_warp)
{
	u32 *out = zeros<u32>(32);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq(finish(LAUNCH(after_return, 1, 32, 0, NULL, out)), cudaSuccess);
		cr_assert_eq(out[19], 0xfffff);
	}
	cr_assert_eq(finish(LAUNCH(matrix_after_return, 1, 32, 0, NULL)), cudaErrorLaunchFailure);
	reported("cu_mma_bf16");
}

/* What one lane writes another one reads: with a barrier of the warp, or without. */
template <bool safe> static __global__ void neighbours(u32 *out)
{
	SHARED(u32, word, 32);
	word[threadIdx.x] = threadIdx.x;
	if (safe)
		cu_syncwarp();
	out[threadIdx.x] = word[(threadIdx.x + 1) % 32];
}

Test(cuda_emu_warp, lanes_do_not_run_in_lockstep)
{
	u32 *out = zeros<u32>(32);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 wrong = 0;
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq(finish(LAUNCH(neighbours<true>, 1, 32, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 32; i++)
			cr_assert_eq(out[i], (i + 1) % 32);
		cr_assert_eq(finish(LAUNCH(neighbours<false>, 1, 32, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 32; i++)
			wrong += out[i] != (i + 1) % 32;
		cr_assert_gt(wrong, 0);
	}
}

/* ---------------------------------------------------------------- matrices */

enum { M = 16, N = 8 };

/* d += a b through shared memory: a [16][16], b [16][8] (or transposed [8][16]), pitch of 24 halves. */
template <bool b_is_nk, bool half> static __global__ void product(const u16 *a, const u16 *b, float *d)
{
	enum { PITCH = 24 };
	SHARED(u16, sa, 16 * PITCH);
	SHARED(u16, sb, 16 * PITCH);
	u32 lane = threadIdx.x, g = lane / 4, t = lane % 4, ra[4], rb[2];
	float sum[4];
	for (u32 i = lane; i < 256; i += 32)
		sa[i / 16 * PITCH + i % 16] = a[i];
	for (u32 i = lane; i < 128; i += 32)
		sb[b_is_nk ? i / 16 * PITCH + i % 16 : i / 8 * PITCH + i % 8] = b[i];
	for (u32 e = 0; e < 4; e++)
		sum[e] = d[(g + 8 * (e / 2)) * N + 2 * t + e % 2];
	cu_syncwarp();
	cu_ldmatrix_x4(ra, sa + lane % 16 * PITCH + lane / 16 * 8);
	if (b_is_nk)
		cu_ldmatrix_x2(rb, sb + lane % 8 * PITCH + lane / 8 % 2 * 8);
	else
		cu_ldmatrix_x2_trans(rb, sb + lane % 16 * PITCH);
	if (half)
		cu_mma_f16(sum, ra, rb);
	else
		cu_mma_bf16(sum, ra, rb);
	for (u32 e = 0; e < 4; e++)
		d[(g + 8 * (e / 2)) * N + 2 * t + e % 2] = sum[e];
}

template <bool b_is_nk, bool half> static void check_product(void)
{
	u16 *a = zeros<u16>(M * 16), *b = zeros<u16>(16 * N);
	float *d = zeros<float>(M * N), fa[M][16], fb[16][N];
	for (u32 i = 0; i < M * 16; i++) {
		fa[i / 16][i % 16] = (float)((i * 37) % 61) - 30;
		a[i] = half ? cu_f32_to_f16(fa[i / 16][i % 16]) : cu_f32_to_bf16(fa[i / 16][i % 16]);
	}
	for (u32 i = 0; i < 16 * N; i++) {
		u32 k = b_is_nk ? i % 16 : i / N, n = b_is_nk ? i / 16 : i % N;
		fb[k][n] = (float)((i * 53) % 41) - 20;
		b[i] = half ? cu_f32_to_f16(fb[k][n]) : cu_f32_to_bf16(fb[k][n]);
	}
	for (u32 i = 0; i < M * N; i++)
		d[i] = (float)i;
	cr_assert_eq(finish(LAUNCH((product<b_is_nk, half>), 1, 32, 0, NULL, a, b, d)), cudaSuccess, "%s", emu_report());
	for (u32 i = 0; i < M * N; i++) {
		float want = (float)i;
		for (u32 k = 0; k < 16; k++)
			want += fa[i / N][k] * fb[k][i % N];
		cr_assert_eq(d[i], want, "%u: %g is not %g", i, (double)d[i], (double)want);
	}
}

Test(cuda_emu_warp, matrix_products_through_ldmatrix_are_right)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		check_product<true, false>();
		check_product<false, false>();
		check_product<true, true>();
		check_product<false, true>();
	}
}

/* Random fragments [32][8] and [32][4], and sums [32][8] that both ways begin with. */
static __global__ void pairs(const u32 *a, const u32 *b, float *one_by_one, float *in_pairs)
{
	const u32 lane = threadIdx.x;
	float *d = one_by_one + lane * 8;
	a += lane * 8;
	b += lane * 4;
	cu_mma_bf16(d, a, b);
	cu_mma_bf16(d, a + 4, b + 2);
	cu_mma_bf16(d, a, b);
	cu_mma_bf16(d + 4, a, b + 2);
	cu_mma_bf16_k32(in_pairs + lane * 8, a, b);
	cu_mma_bf16_n16(reinterpret_cast<float(*)[4]>(in_pairs + lane * 8), a, b);
}

static __global__ void half_pairs(const u32 *a, const u32 *b, float *one_by_one, float *in_pairs)
{
	const u32 lane = threadIdx.x;
	cu_mma_f16(one_by_one + lane * 8, a + lane * 8, b + lane * 4);
	cu_mma_f16(one_by_one + lane * 8 + 4, a + lane * 8, b + lane * 4 + 2);
	cu_mma_f16_n16(reinterpret_cast<float(*)[4]>(in_pairs + lane * 8), a + lane * 8, b + lane * 4);
}

/* `kernel` gives of these fragments, of bf16 or f16, the same both ways. */
static void check_pairs(void (*kernel)(const u32 *, const u32 *, float *, float *), u32 (*pack)(float, float))
{
	u32 *a = zeros<u32>(32 * 8), *b = zeros<u32>(32 * 4);
	float *one_by_one = zeros<float>(32 * 8), *in_pairs = zeros<float>(32 * 8);
	for (u32 i = 0; i < 32 * 8; i++) {
		a[i] = pack((float)(i * 37 % 61) / 16 - 2, (float)(i * 53 % 41) / 8 - 2);
		one_by_one[i] = in_pairs[i] = (float)i;
	}
	for (u32 i = 0; i < 32 * 4; i++)
		b[i] = pack((float)(i * 29 % 47) / 8 - 3, (float)(i * 59 % 31) / 8 - 2);
	cr_assert_eq(finish(LAUNCH(kernel, 1, 32, 0, NULL, a, b, one_by_one, in_pairs)), cudaSuccess, "%s", emu_report());
	for (u32 i = 0; i < 32 * 8; i++) {
		cr_assert_eq(in_pairs[i], one_by_one[i], "%u: %g is not %g", i, (double)in_pairs[i], (double)one_by_one[i]);
		cr_assert_neq(in_pairs[i], (float)i);
	}
}

Test(cuda_emu_warp, a_pair_of_matrix_products_is_two_in_a_row)
{
	check_pairs(pairs, cu_pack_bf16);
	check_pairs(half_pairs, cu_pack_f16);
}

static __global__ void transposed(const u16 *in, u16 *out)
{
	SHARED(u16, rows, 32 * 8);
	u32 r[4], lane = threadIdx.x;
	for (u32 i = 0; i < 8; i++)
		rows[lane * 8 + i] = in[lane * 8 + i];
	cu_syncwarp();
	cu_ldmatrix_x4_trans(r, rows + lane * 8);
	for (u32 m = 0; m < 4; m++) {
		out[m * 64 + lane / 4 * 8 + lane % 4 * 2] = (u16)r[m];
		out[m * 64 + lane / 4 * 8 + lane % 4 * 2 + 1] = (u16)(r[m] >> 16);
	}
}

Test(cuda_emu_warp, ldmatrix_transposes_each_matrix)
{
	u16 *in = zeros<u16>(256), *out = zeros<u16>(256);
	for (u32 i = 0; i < 256; i++)
		in[i] = (u16)i;
	cr_assert_eq(finish(LAUNCH(transposed, 1, 32, 0, NULL, in, out)), cudaSuccess);
	for (u32 i = 0; i < 256; i++)
		cr_assert_eq(out[i], in[i / 64 * 64 + i % 8 * 8 + i / 8 % 8]);
}

/* Fragments of 8-bit integers by the tables of the PTX ISA. */
static __global__ void product_s8(const int8_t *a, const int8_t *b, int *d)
{
	u32 lane = threadIdx.x, g = lane / 4, t = lane % 4, ra[4], rb[2];
	int sum[4] = {1, 1, 1, 1};
	for (u32 r = 0; r < 4; r++)
		ra[r] = cu_load<u32>(a + (g + r % 2 * 8) * 32 + r / 2 * 16 + 4 * t);
	for (u32 r = 0; r < 2; r++)
		rb[r] = cu_load<u32>(b + g * 32 + r * 16 + 4 * t);
	cu_mma_s8(sum, ra, rb);
	for (u32 e = 0; e < 4; e++)
		d[(g + e / 2 * 8) * N + 2 * t + e % 2] = sum[e];
}

Test(cuda_emu_warp, products_of_8_bit_integers_are_exact)
{
	int8_t *a = zeros<int8_t>(M * 32), *b = zeros<int8_t>(N * 32);
	int *d = zeros<int>(M * N);
	for (u32 i = 0; i < M * 32; i++)
		a[i] = (int8_t)(i * 89);
	for (u32 i = 0; i < N * 32; i++)
		b[i] = (int8_t)(i * 31 + 100);
	cr_assert_eq(finish(LAUNCH(product_s8, 1, 32, 0, NULL, a, b, d)), cudaSuccess);
	for (u32 i = 0; i < M * N; i++) {
		int want = 1;
		for (u32 k = 0; k < 32; k++)
			want += a[i / N * 32 + k] * b[i % N * 32 + k];
		cr_assert_eq(d[i], want);
	}
}

static __global__ void ldmatrix_at(const u16 *global, u32 shift)
{
	SHARED(u16, rows, 33 * 8);
	u32 r[4];
	cu_ldmatrix_x4(r, global != NULL ? global : rows + threadIdx.x * 8 + shift);
}

Test(cuda_emu_warp, ldmatrix_needs_aligned_rows_of_shared_memory)
{
	u16 *global = zeros<u16>(64);
	cr_assert_eq(finish(LAUNCH(ldmatrix_at, 1, 32, 0, NULL, (u16 *)NULL, 4)), cudaErrorMisalignedAddress);
	cudaDeviceReset();
	cr_assert_eq(finish(LAUNCH(ldmatrix_at, 1, 32, 0, NULL, global, 0)), cudaErrorIllegalAddress);
	reported("is not in shared memory");
}
