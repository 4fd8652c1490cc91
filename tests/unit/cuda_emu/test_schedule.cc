/* Schedules: a seed gives the same run again, and orders differ. */
#include <criterion/criterion.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

enum { THREADS = 128, ROUNDS = 3 };

/* The order in which threads come by. */
static __global__ void trace(u32 *out, u32 *count)
{
	for (u32 round = 0; round < ROUNDS; round++) {
		out[count[0]++] = threadIdx.x;
		cu_syncwarp();
	}
	cu_sync();
	out[count[0]++] = threadIdx.x;
}

static void run(enum emu_order order, u64 seed, u32 *seen)
{
	void *out, *count;
	cr_assert_eq(cudaMallocHost(&out, THREADS * (ROUNDS + 1) * 4), cudaSuccess);
	cr_assert_eq(cudaMallocHost(&count, 4), cudaSuccess);
	*(u32 *)count = 0;
	emu_schedule(order, seed);
	cr_assert_eq(LAUNCH(trace, 1, THREADS, 0, NULL, (u32 *)out, (u32 *)count), cudaSuccess);
	cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
	cr_assert_eq(*(u32 *)count, THREADS * (ROUNDS + 1));
	memcpy(seen, out, THREADS * (ROUNDS + 1) * 4);
}

Test(cuda_emu_schedule, a_seed_gives_the_same_run_again)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 a[THREADS * (ROUNDS + 1)], b[THREADS * (ROUNDS + 1)];
		run((enum emu_order)order, 77, a);
		run((enum emu_order)order, 77, b);
		cr_assert_eq(memcmp(a, b, sizeof(a)), 0);
	}
}

Test(cuda_emu_schedule, orders_and_random_seeds_differ)
{
	static u32 seen[EMU_ORDERS + 1][THREADS * (ROUNDS + 1)];
	for (u32 order = 0; order < EMU_ORDERS; order++)
		run((enum emu_order)order, 1, seen[order]);
	run(EMU_RANDOM, 2, seen[EMU_ORDERS]);
	for (u32 i = 0; i <= EMU_ORDERS; i++) {
		for (u32 j = 0; j < i; j++)
			cr_assert_neq(memcmp(seen[i], seen[j], sizeof(seen[i])), 0, "%u and %u", i, j);
	}
}

Test(cuda_emu_schedule, schedules_have_names)
{
	cr_assert(emu_schedule_parse("ahead"));
	cr_assert(emu_schedule_parse("random:17"));
	cr_assert_not(emu_schedule_parse("randomly"));
	cr_assert_not(emu_schedule_parse("sideways:3"));
	for (u32 order = 0; order < EMU_ORDERS; order++)
		cr_assert(emu_schedule_parse(emu_order_name((enum emu_order)order)));
}
