/* Products of four warps, and the barriers in shared memory that go with them. */
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
	cudaDeviceReset();
}

template <typename T> static T *zeros(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMallocHost(&p, count * sizeof(T)), cudaSuccess);
	memset(p, 0, count * sizeof(T));
	return static_cast<T *>(p);
}

/* What goes wrong in a kernel. */
enum mistake { NONE, NO_WAIT, NO_FENCE, NO_COPY_FENCE, INPUT_CHANGED, BUFFER_CHANGED };

enum { M = 64, N = 128, K = 128, THREADS = 128 };

/* `rows` rows of K values into two panels. */
static __device__ void load_panels(u8 *panels, const u16 *from, u32 rows)
{
	for (u32 i = threadIdx.x; i < rows * K / 8; i += THREADS) {
		const u32 row = i / (K / 8), chunk = i % (K / 8);
		cu_cp_async16(panels + chunk / 8 * rows * 128 + row * 128 + (chunk % 8 ^ row % 8) * 16, from + i * 8);
	}
	cu_cp_commit();
}

/* d [M][N] += a [M][K] b [N][K]^T, or of b^T [K][N]: there a comes from registers. */
template <bool transposed, enum mistake wrong> static __global__ void product(const u16 *a, const u16 *b, float *d)
{
	SHARED_DYNAMIC_1024(u8, shared);
	const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
	u8 *sb = shared + 2 * M * 128;
	float sum[N / 2];
	u32 left[K / 4];
	load_panels(shared, a, M);
	load_panels(sb, b, N);
	for (u32 e = 0; e < N / 2; e++)
		sum[e] = d[(row + e / 2 % 2 * 8) * N + e / 4 * 8 + column + e % 2];
	for (u32 e = 0; e < K / 4; e++)
		left[e] = cu_load<u32>(a + (row + e % 2 * 8) * K + e / 4 * 16 + e / 2 % 2 * 8 + column);
	cu_cp_wait<0>();
	if (wrong != NO_COPY_FENCE)
		cu_fence_wgmma();
	cu_sync();
	if (wrong != NO_FENCE)
		cu_wgmma_fence();
	const u64 from = cu_wgmma_operand(shared, M * 128), by = cu_wgmma_operand(sb, N * 128);
	if (transposed)
		cu_wgmma_columns<N, K / 16>(sum, left, by);
	else {
		cu_wgmma_rows<N, 4>(sum, from, by, true);
		cu_wgmma_rows<N, 4>(sum, from + (M * 128 >> 4), by + (N * 128 >> 4), true);
	}
	cu_wgmma_commit();
	if (wrong == INPUT_CHANGED)
		left[5] = 0;
	if (wrong == BUFFER_CHANGED)
		cu_store(sb + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
	if (wrong != NO_WAIT)
		cu_wgmma_wait<0>(sum);
	for (u32 e = 0; e < N / 2; e++)
		d[(row + e / 2 % 2 * 8) * N + e / 4 * 8 + column + e % 2] = sum[e];
}

/* How many values are wrong; UINT32_MAX: the kernel was stopped. */
template <bool transposed, enum mistake wrong> static u32 wrong_values(void)
{
	u16 *a = zeros<u16>(M * K), *b = zeros<u16>(N * K);
	float *d = zeros<float>(M * N);
	u32 count = 0;
	for (u32 i = 0; i < M * K; i++)
		a[i] = cu_f32_to_bf16((float)((i * 37) % 61) - 30);
	for (u32 i = 0; i < N * K; i++)
		b[i] = cu_f32_to_bf16((float)((i * 53) % 41) - 20);
	for (u32 i = 0; i < M * N; i++)
		d[i] = (float)(i % 1000);
	const u32 bytes = 2 * (M + N) * 128;
	cr_assert_eq(CU_SHARED_LIMIT((product<transposed, wrong>), bytes), cudaSuccess);
	if (finish(LAUNCH((product<transposed, wrong>), 1, THREADS, bytes, NULL, a, b, d)) != cudaSuccess)
		return UINT32_MAX;
	for (u32 i = 0; i < M * N; i++) {
		float want = (float)(i % 1000);
		for (u32 k = 0; k < K; k++)
			want += cu_bf16_to_f32(a[i / N * K + k]) *
				cu_bf16_to_f32(transposed ? b[k * N + i % N] : b[i % N * K + k]);
		count += !(d[i] == want);
	}
	return count;
}

Test(cuda_emu_wgmma, products_are_right_in_every_order)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq((wrong_values<false, NONE>()), 0, "%s", emu_report());
		cr_assert_eq((wrong_values<true, NONE>()), 0, "%s", emu_report());
	}
}

Test(cuda_emu_wgmma, use_before_the_wait_is_wrong_in_some_order)
{
	u32 unread = 0, input = 0, buffer = 0;
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		unread += wrong_values<false, NO_WAIT>();
		input += wrong_values<true, INPUT_CHANGED>();
		buffer += wrong_values<false, BUFFER_CHANGED>();
	}
	cr_assert_gt(unread, 0);
	cr_assert_gt(input, 0);
	cr_assert_gt(buffer, 0);
}

Test(cuda_emu_wgmma, missing_fences_are_reported)
{
	cr_assert_eq((wrong_values<false, NO_FENCE>()), UINT32_MAX);
	reported("without a cu_wgmma_fence");
	cr_assert_eq((wrong_values<true, NO_COPY_FENCE>()), UINT32_MAX);
	reported("without cu_fence_wgmma");
}

/* ---------------------------------------------------------------- barriers in shared memory */

enum { ROUNDS = 7, SLOTS = 2 };

/* A warp gives numbers to two others through a ring of two. */
template <bool made, bool waits> static __global__ void ring(u32 *out)
{
	SHARED(u64, full, SLOTS);
	SHARED(u64, empty, SLOTS);
	SHARED(u32, slot, SLOTS * 32);
	const u32 lane = threadIdx.x % 32;
	u32 sum = 0;
	if (made && threadIdx.x < SLOTS) {
		cu_phase_init(full + threadIdx.x, 32);
		cu_phase_init(empty + threadIdx.x, 64);
	}
	cu_sync();
	for (u32 i = 0; i < ROUNDS; i++) {
		const u32 at = i % SLOTS;
		if (threadIdx.x < 32) {
			if (waits)
				cu_phase_wait(empty + at, (i / SLOTS + 1) % 2);
			slot[at * 32 + lane] = i * 32 + lane;
			cu_phase_arrive(full + at);
			continue;
		}
		cu_phase_wait(full + at, i / SLOTS % 2);
		for (u32 l = 0; l < 32; l++)
			sum += slot[at * 32 + l] * (i + 1);
		cu_phase_arrive(empty + at);
	}
	out[threadIdx.x] = sum;
}

Test(cuda_emu_wgmma, a_ring_hands_over_every_round)
{
	u32 *out = zeros<u32>(96), want = 0;
	for (u32 i = 0; i < ROUNDS; i++)
		for (u32 l = 0; l < 32; l++)
			want += (i * 32 + l) * (i + 1);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq(finish(LAUNCH((ring<true, true>), 1, 96, 0, NULL, out)), cudaSuccess, "%s", emu_report());
		for (u32 i = 32; i < 96; i++)
			cr_assert_eq(out[i], want);
	}
}

Test(cuda_emu_wgmma, a_ring_without_a_wait_is_wrong)
{
	u32 *out = zeros<u32>(96);
	cr_assert_eq(finish(LAUNCH((ring<true, false>), 1, 96, 0, NULL, out)), cudaErrorLaunchFailure);
	reported("cu_phase_wait");
	cr_assert_eq(finish(LAUNCH((ring<false, true>), 1, 96, 0, NULL, out)), cudaErrorLaunchFailure);
	reported("no cu_phase_init has made this barrier");
}
