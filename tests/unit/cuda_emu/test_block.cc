/* Barriers, shared memory, asynchronous copies and the reports of what goes wrong inside a block. */
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

static u32 *zeros(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMallocHost(&p, count * 4), cudaSuccess);
	memset(p, 0, count * 4);
	return static_cast<u32 *>(p);
}

/* Each block: every thread gives its index, and takes that of the thread opposite to it. */
static __global__ void opposite(u32 *out)
{
	SHARED(u32, given, 96);
	given[threadIdx.x] = threadIdx.x;
	cu_sync();
	out[blockIdx.x * blockDim.x + threadIdx.x] = given[blockDim.x - 1 - threadIdx.x];
}

Test(cuda_emu_block, threads_exchange_values_over_a_barrier_in_every_order)
{
	u32 *out = zeros(4 * 96);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		memset(out, 0, 4 * 96 * 4);
		cr_assert_eq(finish(LAUNCH(opposite, 4, 96, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 4 * 96; i++)
			cr_assert_eq(out[i], 95 - i % 96);
	}
}

static __global__ void places(u32 *out)
{
	u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
	u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
	cu_sync();
	out[block * 64 + thread] = block * 64 + thread + 1;
}

Test(cuda_emu_block, grids_and_blocks_have_three_dimensions)
{
	u32 *out = zeros(30 * 64);
	cr_assert_eq(finish(LAUNCH(places, dim3(2, 3, 5), dim3(4, 8, 2), 0, NULL, out)), cudaSuccess);
	for (u32 i = 0; i < 30 * 64; i++)
		cr_assert_eq(out[i], i + 1);
}

static __global__ void without_barrier(u32 *out)
{
	SHARED(u32, given, 96);
	given[threadIdx.x] = threadIdx.x;
	out[threadIdx.x] = given[blockDim.x - 1 - threadIdx.x];
}

Test(cuda_emu_block, a_missing_barrier_shows_as_poison)
{
	u32 *out = zeros(96), poison = 0;
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 3);
		cr_assert_eq(finish(LAUNCH(without_barrier, 1, 96, 0, NULL, out)), cudaSuccess);
		for (u32 i = 0; i < 96; i++)
			poison += out[i] == 0xffffffff;
	}
	cr_assert_gt(poison, 0);
}

/* A buffer that is used in every round: the second barrier of a round is missing. */
static __global__ void reused_too_early(u32 *wrong)
{
	SHARED(u32, turn, 1);
	for (u32 round = 0; round < 4; round++) {
		if (threadIdx.x == 0)
			turn[0] = round;
		cu_sync();
		if (turn[0] != round)
			cu_atomic_add(wrong, 1u);
	}
}

Test(cuda_emu_block, a_buffer_that_is_reused_too_early_shows_when_a_warp_runs_ahead)
{
	u32 *wrong = zeros(1);
	for (u64 seed = 0; seed < 8; seed++) {
		emu_schedule(EMU_AHEAD, seed);
		cr_assert_eq(finish(LAUNCH(reused_too_early, 1, 128, 0, NULL, wrong)), cudaSuccess);
	}
	cr_assert_gt(*wrong, 0);
}

static __global__ void votes(u32 *out)
{
	bool any = cu_sync_or(threadIdx.x == 70), none = cu_sync_or(false);
	bool all = cu_sync_and(true), not_all = cu_sync_and(threadIdx.x != 3);
	u32 count = cu_sync_count(threadIdx.x % 3 == 0);
	out[threadIdx.x] = any && !none && all && !not_all ? count : 0;
}

Test(cuda_emu_block, barriers_count_votes)
{
	u32 *out = zeros(96);
	cr_assert_eq(finish(LAUNCH(votes, 1, 96, 0, NULL, out)), cudaSuccess);
	for (u32 i = 0; i < 96; i++)
		cr_assert_eq(out[i], 32);
}

static __global__ void returns_early(u32 *out)
{
	if (threadIdx.x >= 40)
		return;
	cu_sync();
	out[threadIdx.x] = 1;
}

Test(cuda_emu_block, threads_that_returned_are_not_waited_for)
{
	u32 *out = zeros(96);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 5);
		cr_assert_eq(finish(LAUNCH(returns_early, 1, 96, 0, NULL, out)), cudaSuccess);
		cr_assert_eq(out[39], 1);
	}
}

static __global__ void divergent_barriers(u32 *out)
{
	if (threadIdx.x < 64)
		cu_sync();
	else {
		out[0] = 1;
		cu_sync();
	}
}

Test(cuda_emu_block, barriers_at_two_places_are_reported)
{
	u32 *out = zeros(1);
	cr_assert_eq(finish(LAUNCH(divergent_barriers, 1, 96, 0, NULL, out)), cudaErrorLaunchFailure);
	reported("kernel divergent_barriers, block (0, 0, 0), thread (64, 0, 0)");
	reported("divergent barrier");
	reported("test_block.cc");
}

static __global__ void divergent_warp(u32 *out)
{
	if (threadIdx.x < 16)
		cu_syncwarp();
	else
		cu_sync();
	out[0] = 1;
}

Test(cuda_emu_block, a_deadlock_says_who_waits_where)
{
	u32 *out = zeros(1);
	cr_assert_eq(finish(LAUNCH(divergent_warp, dim3(1, 2), 64, 0, NULL, out)), cudaErrorLaunchFailure);
	reported("kernel divergent_warp, block (0, 0, 0): deadlock, 64 of 64 threads wait");
	reported("warp 0, lanes 0000ffff wait in cu_syncwarp at ");
	reported("warp 1, lanes ffffffff wait in cu_sync at ");
	cr_assert_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure, "the error has to stay");
	cr_assert_eq(LAUNCH(opposite, 1, 96, 0, NULL, out), cudaErrorLaunchFailure);
	cudaDeviceReset();
	u32 *again = zeros(96);
	cr_assert_eq(finish(LAUNCH(opposite, 1, 96, 0, NULL, again)), cudaSuccess);
}

/* Warp 0 makes what warps 1 and 2 consume. */
static __global__ void producer(u32 *out)
{
	SHARED(u32, made, 32);
	for (u32 round = 0; round < 5; round++) {
		if (threadIdx.x < 32) {
			made[threadIdx.x] = 100 * round + threadIdx.x;
			cu_barrier_arrive<1>(96);
			cu_barrier_sync<2>(96);
		} else {
			cu_barrier_sync<1>(96);
			out[round * 64 + threadIdx.x - 32] = made[threadIdx.x % 32];
			cu_barrier_arrive<2>(96);
		}
	}
}

Test(cuda_emu_block, named_barriers_join_producers_and_consumers)
{
	u32 *out = zeros(5 * 64);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 9);
		memset(out, 0, 5 * 64 * 4);
		cr_assert_eq(finish(LAUNCH(producer, 1, 96, 0, NULL, out)), cudaSuccess, "%s", emu_report());
		for (u32 i = 0; i < 5 * 64; i++)
			cr_assert_eq(out[i], 100 * (i / 64) + i % 32);
	}
}

static __global__ void wrong_count(void)
{
	if (threadIdx.x < 32)
		cu_barrier_sync<3>(96);
}

Test(cuda_emu_block, a_named_barrier_short_of_threads_is_a_deadlock)
{
	cr_assert_eq(finish(LAUNCH(wrong_count, 1, 96, 0, NULL)), cudaErrorLaunchFailure);
	reported("wait in cu_barrier_sync");
	reported("(barrier 3: 32 of 96 threads)");
}

static __global__ void waits_for_a_flag(u32 *out)
{
	SHARED(u32, flag, 1);
	if (threadIdx.x == 0)
		flag[0] = 0;
	cu_sync();
	if (threadIdx.x == 50)
		cu_atomic_exch(flag, 7u);
	if (threadIdx.x == 3) {
		while (cu_atomic_add(flag, 0u) == 0)
			cu_pause();
		out[0] = flag[0];
	}
}

Test(cuda_emu_block, a_thread_that_pauses_lets_others_go_on)
{
	u32 *out = zeros(1);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 2);
		*out = 0;
		cr_assert_eq(finish(LAUNCH(waits_for_a_flag, 1, 64, 0, NULL, out)), cudaSuccess);
		cr_assert_eq(*out, 7);
	}
}

/* ---------------------------------------------------------------- shared memory */

static __global__ void dynamic(u32 *out, u32 beyond)
{
	SHARED_DYNAMIC(u32, word);
	word[threadIdx.x + beyond] = 5;
	cu_sync();
	out[threadIdx.x] = word[threadIdx.x];
}

Test(cuda_emu_block, shared_memory_is_as_large_as_asked_for)
{
	u32 *out = zeros(64);
	cr_assert_eq(finish(LAUNCH(dynamic, 1, 64, 256, NULL, out, 0)), cudaSuccess);
	cr_assert_eq(out[63], 5);
#ifndef __SANITIZE_ADDRESS__ /* which ends the process */
	cr_assert_eq(finish(LAUNCH(dynamic, 1, 64, 256, NULL, out, 1)), cudaErrorIllegalAddress);
	reported("kernel dynamic, block (0, 0, 0) has written beside shared memory");
#endif
}

static __global__ void unwritten(float *out)
{
	SHARED_DYNAMIC(float, dynamic_words);
	SHARED(float, words, 32);
	out[threadIdx.x] = dynamic_words[threadIdx.x];
	out[32 + threadIdx.x] = words[threadIdx.x];
	cu_sync();
	words[threadIdx.x] = 1;
	dynamic_words[threadIdx.x] = 1;
}

Test(cuda_emu_block, shared_memory_holds_nothing_of_the_block_before)
{
	float *out = (float *)zeros(64);
	cr_assert_eq(finish(LAUNCH(unwritten, 3, 32, 128, NULL, out)), cudaSuccess);
	for (u32 i = 0; i < 64; i++)
		cr_assert(out[i] != out[i], "no NaN");
}

static __global__ void large_static(void)
{
	SHARED(u32, words, 13 << 10);
	words[threadIdx.x] = 0;
}

Test(cuda_emu_block, static_shared_memory_has_a_limit)
{
	cr_assert_eq(finish(LAUNCH(large_static, 1, 32, 0, NULL)), cudaErrorLaunchOutOfResources);
}

Test(cuda_emu_block, limits_of_a_launch_are_errors_of_the_launch)
{
	u32 *out = zeros(64);
	cr_assert_eq(LAUNCH(opposite, 1, 1056, 0, NULL, out), cudaErrorInvalidConfiguration);
	cr_assert_eq(LAUNCH(opposite, 0, 32, 0, NULL, out), cudaErrorInvalidConfiguration);
	cr_assert_eq(LAUNCH(opposite, dim3(1, 65536), 32, 0, NULL, out), cudaErrorInvalidConfiguration);
	cr_assert_eq(LAUNCH(opposite, 1, 33, 0, NULL, out), cudaErrorInvalidConfiguration);
	cr_assert_eq(LAUNCH(dynamic, 1, 64, 49 << 10, NULL, out, 0), cudaErrorInvalidValue);
	cr_assert_eq(CU_SHARED_LIMIT(dynamic, 228 << 10), cudaErrorInvalidValue);
	cr_assert_eq(cudaGetLastError(), cudaErrorInvalidValue);
	cr_assert_eq(cudaGetLastError(), cudaSuccess, "read once");
	cr_assert_eq(CU_SHARED_LIMIT(dynamic, 227 << 10), cudaSuccess);
	cr_assert_eq(finish(LAUNCH(dynamic, 1, 64, 227 << 10, NULL, out, 0)), cudaSuccess);
}

/* ---------------------------------------------------------------- asynchronous copies */

/* Reads what `in` has after waiting for all but `left` of two copies. */
template <u32 left> static __global__ void copies(const u32 *in, u32 *out)
{
	SHARED(u32, first, 128);
	SHARED(u32, second, 128);
	cu_cp_async16(first + 4 * threadIdx.x, in + 4 * threadIdx.x);
	cu_cp_commit();
	cu_cp_async16(second + 4 * threadIdx.x, in + 128 + 4 * threadIdx.x, threadIdx.x != 9);
	cu_cp_commit();
	cu_cp_wait<left>();
	for (u32 i = 0; i < 4; i++) {
		out[4 * threadIdx.x + i] = first[4 * threadIdx.x + i];
		out[128 + 4 * threadIdx.x + i] = second[4 * threadIdx.x + i];
	}
}

static u32 *counting(u32 count)
{
	u32 *p = zeros(count);
	for (u32 i = 0; i < count; i++)
		p[i] = i + 1;
	return p;
}

Test(cuda_emu_block, copies_arrive_when_their_group_is_waited_for)
{
	u32 *in = counting(256), *out = zeros(256);
	cr_assert_eq(finish(LAUNCH(copies<0>, 1, 32, 0, NULL, in, out)), cudaSuccess);
	for (u32 i = 0; i < 256; i++)
		cr_assert_eq(out[i], i / 4 == 32 + 9 ? 0 : i + 1, "word %u", i);
}

Test(cuda_emu_block, a_copy_that_is_not_waited_for_leaves_poison)
{
	u32 *in = counting(256), *out = zeros(256);
	cr_assert_eq(finish(LAUNCH(copies<1>, 1, 32, 0, NULL, in, out)), cudaSuccess);
	for (u32 i = 0; i < 256; i++)
		cr_assert_eq(out[i], i < 128 ? i + 1 : 0xffffffff, "word %u", i);
	cr_assert_eq(finish(LAUNCH(copies<2>, 1, 32, 0, NULL, in, out)), cudaSuccess);
	cr_assert_eq(out[5], 0xffffffff);
}

static __global__ void uncommitted(const u32 *in, u32 *out)
{
	SHARED(u32, words, 32);
	cu_cp_async4(words + threadIdx.x, in + threadIdx.x);
	cu_cp_wait<0>();
	out[threadIdx.x] = words[threadIdx.x];
}

Test(cuda_emu_block, a_copy_without_a_commit_is_in_no_group)
{
	u32 *in = counting(32), *out = zeros(32);
	cr_assert_eq(finish(LAUNCH(uncommitted, 1, 32, 0, NULL, in, out)), cudaSuccess);
	cr_assert_eq(out[0], 0xffffffff);
}

static __global__ void copy_to(u32 *to, const u32 *in, u32 shift)
{
	SHARED(u32, words, 64);
	cu_cp_async16(to != NULL ? to : words, in + shift);
}

Test(cuda_emu_block, copies_need_alignment_and_shared_memory)
{
	u32 *in = counting(64);
	cr_assert_eq(finish(LAUNCH(copy_to, 1, 32, 0, NULL, (u32 *)NULL, in, 1)), cudaErrorMisalignedAddress);
	reported("cp.async: a source of 16 bytes at the address");
	cudaDeviceReset();
	cr_assert_eq(finish(LAUNCH(copy_to, 1, 32, 0, NULL, in + 4, in, 0)), cudaErrorIllegalAddress);
	reported("is not in shared memory");
}

/* The source changes between the call and the wait: a device may read it at either time. */
static __global__ void overtaken(u32 *in, u32 *out)
{
	SHARED(u32, words, 32);
	cu_cp_async4(words + threadIdx.x, in + threadIdx.x);
	cu_cp_commit();
	in[threadIdx.x] = 1000;
	cu_cp_wait<0>();
	out[threadIdx.x] = words[threadIdx.x];
}

Test(cuda_emu_block, schedules_differ_in_when_a_copy_reads)
{
	u32 seen[2] = {};
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *in = counting(32), *out = zeros(32);
		emu_schedule((enum emu_order)order, 2);
		cr_assert_eq(finish(LAUNCH(overtaken, 1, 32, 0, NULL, in, out)), cudaSuccess);
		seen[out[3] == 1000]++;
	}
	cr_assert(seen[0] > 0 && seen[1] > 0);
}

/* ---------------------------------------------------------------- other mistakes */

static __global__ void load_at(const unsigned char *p, u32 *out)
{
	uint4 v = cu_load<uint4>(p);
	out[0] = v.x;
}

Test(cuda_emu_block, wide_accesses_need_alignment)
{
	u32 *in = counting(64), *out = zeros(4);
	cr_assert_eq(finish(LAUNCH(load_at, 1, 32, 0, NULL, (unsigned char *)in + 16, out)), cudaSuccess);
	cr_assert_eq(out[0], 5);
	cr_assert_eq(finish(LAUNCH(load_at, 1, 32, 0, NULL, (unsigned char *)in + 8, out)), cudaErrorMisalignedAddress);
	reported("kernel load_at");
	reported("a load of 16 bytes");
}

static __global__ void traps(void)
{
	if (threadIdx.x == 17)
		cu_trap();
	cu_sync();
}

Test(cuda_emu_block, a_trap_ends_the_kernel)
{
	cr_assert_eq(finish(LAUNCH(traps, 1, 32, 0, NULL)), cudaErrorLaunchFailure);
	reported("thread (17, 0, 0)");
}

static __global__ void last_block(u32 *count, u32 *sums, u32 *out)
{
	sums[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x;
	if (!cu_block_is_last(count, gridDim.x))
		return;
	if (threadIdx.x == 0) {
		for (u32 i = 0; i < gridDim.x; i++)
			out[0] += sums[i * blockDim.x];
		out[1]++;
	}
}

Test(cuda_emu_block, one_block_is_the_last)
{
	u32 *count = zeros(1), *sums = zeros(10 * 64), *out = zeros(2);
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		emu_schedule((enum emu_order)order, 11);
		cr_assert_eq(finish(LAUNCH(last_block, 10, 64, 0, NULL, count, sums, out)), cudaSuccess);
		cr_assert_eq(out[0], 45 * (order + 1));
		cr_assert_eq(out[1], order + 1);
	}
}
