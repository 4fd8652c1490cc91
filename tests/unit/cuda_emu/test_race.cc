/* Races within a block and between blocks: found whatever the order was, and nothing that is ordered is taken for one. */
#include <criterion/criterion.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

template <typename T> static T *zeros(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMallocHost(&p, count * sizeof(T)), cudaSuccess);
	memset(p, 0, count * sizeof(T));
	return static_cast<T *>(p);
}

/* Is it a race under every schedule? */
template <typename... P>
static void races_in(u32 blocks, void (*kernel)(P...), u32 threads, const char *report, P... args)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 5);
		emu_report_clear();
		cr_assert_eq(LAUNCH(kernel, blocks, threads, 0, NULL, args...), cudaSuccess);
		cudaError_t e = cudaDeviceSynchronize();
		if (report == NULL)
			cr_assert_eq(e, cudaSuccess, "%s: %s", emu_order_name((enum emu_order)order), emu_report());
		else {
			cr_assert_eq(e, cudaErrorLaunchFailure, "%s", emu_order_name((enum emu_order)order));
			cr_assert(strstr(emu_report(), "race in ") && strstr(emu_report(), report), "%s",
				  emu_report());
		}
		cudaDeviceReset();
	}
}

template <typename... P> static void races(void (*kernel)(P...), u32 threads, const char *report, P... args)
{
	races_in(1, kernel, threads, report, args...);
}

/* Threads read what their neighbours wrote: with a barrier of the block, of the warp, or none. */
template <u32 barrier> static __global__ void neighbours(u32 *out)
{
	SHARED(u32, words, 128);
	words[threadIdx.x] = threadIdx.x;
	if (barrier == 1)
		cu_syncwarp();
	if (barrier == 2)
		cu_sync();
	if (barrier == 3)
		(void)cu_ballot(true); /* orders nothing */
	out[threadIdx.x] = words[threadIdx.x ^ 1];
}

Test(cuda_emu_race, reads_without_a_barrier_are_races_under_every_schedule)
{
	u32 *out = zeros<u32>(128);
	races(neighbours<0>, 128, "of words", out);
	races(neighbours<1>, 128, NULL, out);
	races(neighbours<2>, 128, NULL, out);
	races(neighbours<3>, 128, "before any barrier", out);
}

/* A barrier of the warp does not order warps. */
static __global__ void across_warps(u32 *out)
{
	SHARED(u32, words, 64);
	words[threadIdx.x] = threadIdx.x;
	cu_syncwarp();
	out[threadIdx.x] = words[threadIdx.x ^ 32];
}

Test(cuda_emu_race, a_barrier_of_the_warp_does_not_order_warps)
{
	races(across_warps, 64, "of words", zeros<u32>(64));
}

/* Rounds through one buffer; the second barrier of a round may be missing. */
template <bool second> static __global__ void rounds(u32 *out)
{
	SHARED(u32, turn, 1);
	for (u32 round = 0; round < 3; round++) {
		if (threadIdx.x == 0)
			turn[0] = round;
		cu_sync();
		out[threadIdx.x] += turn[0];
		if (second)
			cu_sync();
	}
}

Test(cuda_emu_race, a_buffer_that_is_reused_too_early_is_a_race)
{
	u32 *out = zeros<u32>(64);
	races(rounds<true>, 64, NULL, out);
	races(rounds<false>, 64, "both after the barrier at", out);
}

template <bool atomic> static __global__ void counts(u32 *out)
{
	SHARED(u32, count, 1);
	if (threadIdx.x == 0)
		count[0] = 0;
	cu_sync();
	if (atomic)
		cu_atomic_add(count, 1u);
	else
		count[0]++;
	cu_sync();
	out[threadIdx.x] = count[0];
}

Test(cuda_emu_race, sums_need_atomics)
{
	u32 *out = zeros<u32>(64);
	races(counts<true>, 64, NULL, out);
	cr_assert_eq(out[5], 64);
	races(counts<false>, 64, "of count", out);
}

/* Neighbouring halves and bytes are different places. */
static __global__ void halves(u32 *out)
{
	SHARED(u16, half, 64);
	SHARED(u8, byte, 64);
	half[threadIdx.x] = (u16)threadIdx.x;
	byte[threadIdx.x] = (u8)threadIdx.x;
	cu_sync();
	out[threadIdx.x] = half[63 - threadIdx.x] + byte[63 - threadIdx.x];
}

Test(cuda_emu_race, neighbouring_bytes_are_no_race)
{
	races(halves, 64, NULL, zeros<u32>(64));
}

/* A pipeline of two stages; `barrier` once a round is what it needs. */
template <bool barrier> static __global__ void pipeline(const u32 *in, u32 *out)
{
	SHARED(u32, stage, 2 * 128);
	cu_cp_async16(stage + threadIdx.x * 4, in + threadIdx.x * 4);
	cu_cp_commit();
	for (u32 n = 0; n < 4; n++) {
		cu_cp_wait<0>();
		if (barrier || n == 0)
			cu_sync();
		if (n < 3)
			cu_cp_async16(stage + (n + 1) % 2 * 128 + threadIdx.x * 4, in + (n + 1) * 128 + threadIdx.x * 4);
		cu_cp_commit();
		out[n * 32 + threadIdx.x] = stage[n % 2 * 128 + 127 - threadIdx.x];
	}
}

Test(cuda_emu_race, asynchronous_copies_are_writes_from_their_call_to_their_wait)
{
	u32 *in = zeros<u32>(512), *out = zeros<u32>(128);
	races(pipeline<true>, 32, NULL, (const u32 *)in, out);
	races(pipeline<false>, 32, "of stage", (const u32 *)in, out);
}

/* ldmatrix reads rows that other lanes wrote. */
template <bool barrier> static __global__ void rows(u32 *out)
{
	SHARED(u16, tile, 32 * 8);
	u32 r[4];
	for (u32 i = 0; i < 8; i++)
		tile[i * 32 + threadIdx.x] = (u16)i;
	if (barrier)
		cu_syncwarp();
	cu_ldmatrix_x4(r, tile + threadIdx.x * 8);
	out[threadIdx.x] = r[0];
}

Test(cuda_emu_race, matrix_loads_are_reads)
{
	u32 *out = zeros<u32>(32);
	races(rows<true>, 32, NULL, out);
	races(rows<false>, 32, "of tile", out);
}

/* The same in global memory. */
template <bool barrier> static __global__ void global(u32 *out)
{
	out[threadIdx.x] = threadIdx.x;
	if (barrier)
		cu_sync();
	out[128 + threadIdx.x] = out[threadIdx.x ^ 32];
}

Test(cuda_emu_race, global_memory_is_looked_at_within_a_block)
{
	u32 *out = zeros<u32>(256);
	races(global<true>, 128, NULL, out);
	races(global<false>, 128, "race in global memory", out);
}

/* ---------------------------------------------------------------- between blocks */

enum { BLOCKS = 3, WORDS = 64 };

/* Each block has words of its own, in shared memory the same as all others; `step` 0: and one more. */
template <u32 step> static __global__ void shares(u32 *out)
{
	SHARED(u32, words, WORDS);
	words[threadIdx.x] = threadIdx.x;
	cu_sync();
	out[blockIdx.x * WORDS + threadIdx.x] = words[WORDS - 1 - threadIdx.x];
	if (step == 0)
		out[BLOCKS * WORDS + threadIdx.x] = 1;
}

Test(cuda_emu_race, blocks_that_write_the_same_word_race)
{
	u32 *out = zeros<u32>((BLOCKS + 1) * WORDS);
	races_in(BLOCKS, shares<1>, WORDS, NULL, out);
	races_in(1, shares<0>, WORDS, NULL, out);
	races_in(BLOCKS, shares<0>, WORDS, "writes what another block wrote", out);
}

/* The last block adds up what all have written. `how` 0: as cu_block_is_last has it; 1: nobody fences what was written;
 * 2: the last does not fence what it reads. */
template <u32 how> static __global__ void sums(u32 *parts, u32 *count, u32 *sum)
{
	SHARED(u32, last, 1);
	parts[blockIdx.x * WORDS + threadIdx.x] = threadIdx.x;
	if (how != 1)
		cu_fence();
	cu_sync();
	if (threadIdx.x == 0) {
		last[0] = cu_atomic_add(count, 1u) == BLOCKS - 1;
		if (last[0])
			(void)cu_atomic_exch(count, 0u);
	}
	cu_sync();
	if (how != 2)
		cu_fence();
	if (!last[0])
		return;
	u32 total = 0;
	for (u32 i = 0; i < BLOCKS; i++)
		total += parts[i * WORDS + threadIdx.x];
	sum[threadIdx.x] = total;
}

static __global__ void sums_by_the_word(u32 *parts, u32 *count, u32 *sum)
{
	parts[blockIdx.x * WORDS + threadIdx.x] = threadIdx.x;
	if (cu_block_is_last(count, BLOCKS))
		for (u32 i = 0; i < BLOCKS; i++)
			sum[threadIdx.x] += parts[i * WORDS + threadIdx.x];
}

Test(cuda_emu_race, the_last_block_sees_what_was_fenced_before_an_atomic_operation)
{
	u32 *parts = zeros<u32>(BLOCKS * WORDS), *count = zeros<u32>(1), *sum = zeros<u32>(WORDS);
	races_in(BLOCKS, sums<0>, WORDS, NULL, parts, count, sum);
	races_in(BLOCKS, sums_by_the_word, WORDS, NULL, parts, count, sum);
	races_in(BLOCKS, sums<1>, WORDS, "reads what another block wrote", parts, count, sum);
	count[0] = 0; /* the kernel was stopped before it set it back */
	races_in(BLOCKS, sums<2>, WORDS, "reads what another block wrote", parts, count, sum);
}

/* Blocks that change a cell by atomic operations alone. */
template <bool atomic> static __global__ void votes(u32 *count)
{
	if (threadIdx.x == 0 && atomic)
		(void)cu_atomic_add(count, 1u);
	if (threadIdx.x == 0 && !atomic)
		count[0]++;
}

Test(cuda_emu_race, atomic_operations_of_blocks_are_no_race_and_launches_are_in_order)
{
	u32 *count = zeros<u32>(1);
	races_in(BLOCKS, votes<true>, 32, NULL, count);
	races_in(1, votes<false>, 32, NULL, count);
	races_in(BLOCKS, votes<false>, 32, "another block wrote", count);
}

/* What is read as constant is not what the kernel has written, whatever barriers lie between. */
template <bool constant> static __global__ void reads_back(u32 *words)
{
	words[threadIdx.x] = threadIdx.x;
	cu_sync();
	const u32 *other = words + (threadIdx.x ^ 1);
	words[WORDS + threadIdx.x] = constant ? cu_load_const<u32>(other) : cu_load<u32>(other);
}

Test(cuda_emu_race, what_a_kernel_writes_is_not_read_as_constant)
{
	u32 *words = zeros<u32>(2 * WORDS);
	races(reads_back<false>, WORDS, NULL, words);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 5);
		emu_report_clear();
		cr_assert_eq(LAUNCH(reads_back<true>, 1, WORDS, 0, NULL, words), cudaSuccess);
		cr_assert_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
		cr_assert_neq(strstr(emu_report(), "is read as what nobody writes during the kernel"), NULL, "%s", emu_report());
		cudaDeviceReset();
	}
}
