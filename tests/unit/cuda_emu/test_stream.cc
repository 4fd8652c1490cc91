/* Streams and events: what is ordered, what is not, and that what is not ordered is found. */
#include <criterion/criterion.h>
#include <pthread.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"
#include "tests/unit/cuda_emu/stream_fixture.h"

static __global__ void set(u32 *p, u32 v)
{
	if (threadIdx.x == 0)
		p[0] = v;
}

static __global__ void copy(const u32 *from, u32 *to)
{
	if (threadIdx.x == 0)
		to[0] = from[0];
}

Test(cuda_emu_stream, a_stream_keeps_its_order)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *p = pinned(2);
		cudaStream_t s = stream();
		emu_schedule((enum emu_order)order, 4);
		cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, 1u), cudaSuccess);
		cr_assert_eq(LAUNCH(copy, 1, 32, 0, s, p, p + 1), cudaSuccess);
		cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, 2u), cudaSuccess);
		cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
		cr_assert_eq(p[0], 2);
		cr_assert_eq(p[1], 1);
		cr_assert_eq(cudaStreamDestroy(s), cudaSuccess);
	}
}

/* What a second stream reads of a first one, with an event between them or without. */
static u32 read_across(bool with_event, enum emu_order order, u64 seed)
{
	u32 *p = pinned(2);
	cudaStream_t a = stream(), b = stream();
	cudaEvent_t e = event();
	emu_schedule(order, seed);
	cr_assert_eq(LAUNCH(set, 1, 32, 0, a, p, 1u), cudaSuccess);
	cr_assert_eq(cudaEventRecord(e, a), cudaSuccess);
	if (with_event)
		cr_assert_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
	cr_assert_eq(LAUNCH(copy, 1, 32, 0, b, p, p + 1), cudaSuccess);
	cr_assert_eq(cudaStreamSynchronize(b), cudaSuccess);
	cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
	return p[1];
}

Test(cuda_emu_stream, events_order_streams)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		for (u64 seed = 0; seed < 10; seed++)
			cr_assert_eq(read_across(true, (enum emu_order)order, seed), 1);
	}
}

Test(cuda_emu_stream, a_missing_event_is_found)
{
	u32 stale[EMU_ORDERS] = {};
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		for (u64 seed = 0; seed < 10; seed++)
			stale[order] += read_across(false, (enum emu_order)order, seed) == 0;
	}
	cr_assert_eq(stale[EMU_REVERSE], 10);
	cr_assert_eq(stale[EMU_STRIDED], 10);
	cr_assert_eq(stale[EMU_AHEAD], 10);
	cr_assert_gt(stale[EMU_RANDOM], 0);
}

Test(cuda_emu_stream, a_buffer_that_the_host_writes_too_early_is_found)
{
	u32 *staging = pinned(1), *p = pinned(2), torn = 0;
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		cudaStream_t s = stream();
		emu_schedule((enum emu_order)order, 4);
		*staging = 1;
		cr_assert_eq(cudaMemcpyAsync(p, staging, 4, cudaMemcpyHostToDevice, s), cudaSuccess);
		*staging = 2;
		cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
		torn += p[0] == 2;
	}
	cr_assert_gt(torn, 0);
}

Test(cuda_emu_stream, pageable_memory_is_read_and_written_within_the_call)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 host = 1, back = 0;
		u32 *p = pinned(1);
		cudaStream_t s = stream();
		emu_schedule((enum emu_order)order, 4);
		cr_assert_eq(cudaMemcpyAsync(p, &host, 4, cudaMemcpyHostToDevice, s), cudaSuccess);
		host = 2;
		cr_assert_eq(cudaMemcpyAsync(&back, p, 4, cudaMemcpyDeviceToHost, s), cudaSuccess);
		cr_assert_eq(back, 1);
	}
}

Test(cuda_emu_stream, blocking_streams_wait_for_the_legacy_stream)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *p = pinned(3);
		cudaStream_t blocking;
		emu_schedule((enum emu_order)order, 4);
		cr_assert_eq(cudaStreamCreate(&blocking), cudaSuccess);
		cr_assert_eq(LAUNCH(set, 1, 32, 0, NULL, p, 1u), cudaSuccess);
		cr_assert_eq(LAUNCH(copy, 1, 32, 0, blocking, p, p + 1), cudaSuccess);
		cr_assert_eq(LAUNCH(copy, 1, 32, 0, NULL, p + 1, p + 2), cudaSuccess);
		cr_assert_eq(cudaStreamSynchronize(NULL), cudaSuccess);
		cr_assert_eq(p[2], 1);
	}
}

Test(cuda_emu_stream, queries_end_by_asking_again)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *p = pinned(1), asked = 0;
		cudaStream_t s = stream();
		cudaEvent_t e = event(), never = event();
		emu_schedule((enum emu_order)order, 4);
		for (u32 i = 0; i < 5; i++)
			cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, i), cudaSuccess);
		cr_assert_eq(cudaEventRecord(e, s), cudaSuccess);
		while (cudaEventQuery(e) == cudaErrorNotReady)
			asked++;
		cr_assert_eq(p[0], 4);
		cr_assert_lt(asked, 20);
		cr_assert_eq(cudaStreamQuery(s), cudaSuccess);
		cr_assert_eq(cudaEventQuery(never), cudaSuccess, "an event that was never recorded");
		cr_assert_eq(cudaGetLastError(), cudaSuccess, "not ready is no error");
	}
}

Test(cuda_emu_stream, events_measure_time)
{
	cudaStream_t s = stream();
	cudaEvent_t a, b, untimed = event();
	float ms = -1;
	emu_schedule(EMU_REVERSE, 0);
	cr_assert_eq(cudaEventCreate(&a), cudaSuccess);
	cr_assert_eq(cudaEventCreate(&b), cudaSuccess);
	cr_assert_eq(cudaEventRecord(a, s), cudaSuccess);
	cr_assert_eq(cudaEventRecord(b, s), cudaSuccess);
	cr_assert_eq(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
	cr_assert_eq(cudaEventSynchronize(b), cudaSuccess);
	cr_assert_eq(cudaEventElapsedTime(&ms, a, b), cudaSuccess);
	cr_assert_geq(ms, 0.0f);
	cr_assert_eq(cudaEventElapsedTime(&ms, a, untimed), cudaErrorInvalidResourceHandle);
	cr_assert_eq(cudaEventDestroy(a), cudaSuccess);
	cr_assert_eq(cudaEventDestroy(b), cudaSuccess);
}

static void host_function(void *data)
{
	u32 *p = static_cast<u32 *>(data);
	p[1] = p[0] + 1;
	p[2] = (u32)cudaDeviceSynchronize();
}

Test(cuda_emu_stream, host_functions_run_in_order_and_may_not_call_back)
{
	u32 *p = pinned(3);
	cudaStream_t s = stream();
	cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, 41u), cudaSuccess);
	cr_assert_eq(cudaLaunchHostFunc(s, host_function, p), cudaSuccess);
	cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
	cr_assert_eq(p[1], 42);
	cr_assert_eq(p[2], cudaErrorNotPermitted);
}

Test(cuda_emu_stream, a_destroyed_stream_finishes_its_work)
{
	u32 *p = pinned(1);
	cudaStream_t s = stream();
	emu_schedule(EMU_REVERSE, 0);
	cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, 3u), cudaSuccess);
	cr_assert_eq(cudaStreamDestroy(s), cudaSuccess);
	cr_assert_eq(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
	cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
	cr_assert_eq(p[0], 3);
}

static __global__ void flag(u32 *p)
{
	if (threadIdx.x == 0)
		cu_store_release_system(p, 1u);
}

Test(cuda_emu_stream, with_a_device_thread_work_runs_by_itself, .timeout = 120)
{
	u32 *p = pinned(2);
	cudaStream_t s = stream();
	emu_device_thread();
	cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p + 1, 8u), cudaSuccess);
	cr_assert_eq(LAUNCH(flag, 1, 32, 0, s, p), cudaSuccess);
	while (__atomic_load_n(p, __ATOMIC_ACQUIRE) == 0)
		;
	cr_assert_eq(p[1], 8);
	cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p + 1, 9u), cudaSuccess);
	cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
	cr_assert_eq(p[1], 9);
}

/* ---------------------------------------------------------------- dependent launches */

/* Copies after waiting for the kernel before, or without, or half of it before. */
template <bool waits, bool early> static __global__ void dependent(const u32 *from, u32 *to)
{
	u32 v = 0;
	if (early)
		v = from[0];
	if (waits)
		cu_grid_wait();
	if (!early)
		v = from[0];
	cu_sync();
	if (threadIdx.x == 0)
		to[blockIdx.x] = v;
}

static u32 *depend(void (*kernel)(const u32 *, u32 *), enum emu_order order, cudaError_t *e)
{
	u32 *p = pinned(5);
	cudaStream_t s = stream();
	emu_schedule(order, 7);
	cr_assert_eq(LAUNCH(set, 1, 32, 0, s, p, 5u), cudaSuccess);
	*e = LAUNCH_DEPENDENT(kernel, 4, 64, 0, s, p, p + 1);
	if (*e == cudaSuccess)
		*e = cudaStreamSynchronize(s);
	return p + 1;
}

Test(cuda_emu_stream, a_dependent_kernel_that_waits_is_right)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		cudaError_t e;
		u32 *p = depend(dependent<true, false>, (enum emu_order)order, &e);
		cr_assert_eq(e, cudaSuccess, "%s", emu_report());
		for (u32 i = 0; i < 4; i++)
			cr_assert_eq(p[i], 5);
	}
}

Test(cuda_emu_stream, a_dependent_kernel_that_reads_too_early_is_found)
{
	u32 stale = 0;
	for (u32 order = EMU_REVERSE; order < EMU_RANDOM; order++) {
		cudaError_t e;
		u32 *p = depend(dependent<true, true>, (enum emu_order)order, &e);
		cr_assert_eq(e, cudaSuccess);
		for (u32 i = 0; i < 4; i++)
			stale += p[i] != 5;
	}
	cr_assert_eq(stale, 3, "one block of each launch begins early");
}

Test(cuda_emu_stream, a_dependent_kernel_that_never_waits_is_reported)
{
	cudaError_t e;
	depend(dependent<false, false>, EMU_FORWARD, &e);
	cr_assert_eq(e, cudaErrorLaunchFailure);
	cr_assert(strstr(emu_report(), "no thread of it has called cu_grid_wait") != NULL);
}
