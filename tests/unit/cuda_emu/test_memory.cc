/* Device and pinned memory, copies, and what must not be touched. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"

static u32 *device_words(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMalloc(&p, count * sizeof(u32)), cudaSuccess);
	return static_cast<u32 *>(p);
}

static __global__ void write_at(u32 *p, i32 at)
{
	if (threadIdx.x == 0)
		p[at] = 7;
}

static __global__ void read_at(const u32 *p, i32 at, u32 *out)
{
	if (threadIdx.x == 0)
		out[0] = p[at];
}

static cudaError_t written(u32 *p, i32 at)
{
	cr_assert_eq(LAUNCH(write_at, 1, 32, 0, NULL, p, at), cudaSuccess);
	return cudaDeviceSynchronize();
}

Test(cuda_emu_memory, new_memory_holds_poison)
{
	u32 *p = device_words(100), host[100];
	cr_assert_eq(cudaMemcpy(host, p, sizeof(host), cudaMemcpyDeviceToHost), cudaSuccess);
	for (u32 i = 0; i < 100; i++)
		cr_assert_eq(host[i], 0xffffffff);
	cr_assert_eq((uintptr_t)p % 256, 0);
}

#ifndef __SANITIZE_ADDRESS__ /* which ends the process with a report of its own */
Test(cuda_emu_memory, a_write_beside_an_allocation_is_found)
{
	u32 *p = device_words(100);
	cr_assert_eq(written(p, 99), cudaSuccess);
	cr_assert_eq(written(p, 100), cudaErrorIllegalAddress);
	cr_assert(strstr(emu_report(), "write_at has written behind an allocation of 400 bytes") != NULL, "%s", emu_report());
	cudaDeviceReset();
	cr_assert_eq(written(p, -1), cudaErrorIllegalAddress);
	cr_assert(strstr(emu_report(), "before an allocation") != NULL);
}

Test(cuda_emu_memory, a_write_far_off_is_an_error_of_the_kernel)
{
	u32 *p = device_words(100);
	cr_assert_eq(written(p, 4096), cudaErrorIllegalAddress);
	cr_assert(strstr(emu_report(), "kernel write_at, block (0, 0, 0), thread (0, 0, 0)") != NULL);
	cudaDeviceReset();
	cr_assert_eq(written(NULL, 0), cudaErrorIllegalAddress);
	cudaDeviceReset();
	cr_assert_eq(written(p, 0), cudaSuccess);
}

Test(cuda_emu_memory, freed_memory_is_gone)
{
	u32 *p = device_words(100);
	cr_assert_eq(written(p, 0), cudaSuccess);
	cr_assert_eq(cudaFree(p), cudaSuccess);
	cr_assert_eq(written(p, 0), cudaErrorIllegalAddress);
	cudaDeviceReset();
	cr_assert_eq(cudaFree(p), cudaErrorInvalidValue, "twice");
	cr_assert_eq(cudaMemset(p, 0, 4), cudaErrorInvalidValue);
}

#ifdef __x86_64__ /* other processors have a result for it, as devices do */
static __global__ void divide(u32 *p)
{
	p[0] = 7 / p[1];
}

Test(cuda_emu_memory, a_division_by_zero_is_an_error_of_the_kernel)
{
	u32 *p = device_words(2);
	cr_assert_eq(cudaMemset(p, 0, 8), cudaSuccess);
	cr_assert_eq(LAUNCH(divide, 1, 32, 0, NULL, p), cudaSuccess);
	cr_assert_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}
#endif

Test(cuda_emu_memory, a_host_that_reads_protected_device_memory_dies, .signal = SIGSEGV)
{
	volatile u32 *p = device_words(100);
	emu_protect(true);
	cr_assert_eq(written((u32 *)p, 3), cudaSuccess);
	(void)p[3];
}
#endif

Test(cuda_emu_memory, protected_memory_is_open_to_kernels_and_copies)
{
	u32 *p = device_words(100), host = 0;
	emu_protect(true);
	cr_assert_eq(written(p, 5), cudaSuccess);
	cr_assert_eq(cudaMemcpy(&host, p + 5, 4, cudaMemcpyDeviceToHost), cudaSuccess);
	cr_assert_eq(host, 7);
}

Test(cuda_emu_memory, copies_stay_within_allocations)
{
	u32 *p = device_words(100), host[200] = {};
	cr_assert_eq(cudaMemcpy(p, host, 404, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	cr_assert_eq(cudaMemcpy(p + 50, host, 200, cudaMemcpyHostToDevice), cudaSuccess);
	cr_assert_eq(cudaMemcpy(p + 51, host, 200, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	cr_assert_eq(cudaMemset(p, 1, 401), cudaErrorInvalidValue);
	cr_assert_eq(cudaMemset(host, 1, 4), cudaErrorInvalidValue);
}

Test(cuda_emu_memory, a_copys_direction_has_to_be_true)
{
	u32 *p = device_words(4), host[4] = {1, 2, 3, 4}, back[4] = {};
	cr_assert_eq(cudaMemcpy(p, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
	cr_assert_eq(cudaMemcpy(p, host, 16, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
	cr_assert_eq(cudaMemcpy(p, host, 16, cudaMemcpyDefault), cudaSuccess);
	cr_assert_eq(cudaMemcpy(back, p, 16, cudaMemcpyDeviceToHost), cudaSuccess);
	cr_assert_eq(memcmp(host, back, 16), 0);
}

Test(cuda_emu_memory, rows_are_copied_with_pitches)
{
	u32 *p = device_words(40), host[30], back[40];
	for (u32 i = 0; i < 30; i++)
		host[i] = i;
	cr_assert_eq(cudaMemset(p, 0, 160), cudaSuccess);
	cr_assert_eq(cudaMemcpy2DAsync(p, 32, host, 24, 20, 5, cudaMemcpyHostToDevice, NULL), cudaSuccess);
	cr_assert_eq(cudaMemcpy(back, p, 160, cudaMemcpyDeviceToHost), cudaSuccess);
	for (u32 i = 0; i < 40; i++)
		cr_assert_eq(back[i], i % 8 < 5 ? i / 8 * 6 + i % 8 : 0);
	cr_assert_eq(cudaMemcpy2DAsync(p, 16, host, 24, 20, 5, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidPitchValue);
	cr_assert_eq(cudaMemcpy2DAsync(p, 32, host, 24, 20, 6, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue);
}

Test(cuda_emu_memory, the_device_can_be_full)
{
	size_t free_bytes, total, before;
	void *p, *q;
	emu_memory_size(1 << 20);
	cr_assert_eq(cudaMemGetInfo(&before, &total), cudaSuccess);
	cr_assert_eq(total, 1 << 20);
	cr_assert_eq(cudaMalloc(&p, 600 << 10), cudaSuccess);
	cr_assert_eq(cudaMalloc(&q, 600 << 10), cudaErrorMemoryAllocation);
	cr_assert_null(q);
	cr_assert_eq(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
	cr_assert_eq(before - free_bytes, 600 << 10);
	cr_assert_eq(cudaFree(p), cudaSuccess);
	cr_assert_eq(cudaMalloc(&q, 600 << 10), cudaSuccess);
	cr_assert_eq(cudaFree(NULL), cudaSuccess);
}

Test(cuda_emu_memory, pinned_memory_is_the_devices_too)
{
	void *p, *mapped, *pageable = malloc(4096);
	u32 *out = device_words(1), host;
	cr_assert_eq(cudaHostAlloc(&p, 4096, cudaHostAllocMapped), cudaSuccess);
	cr_assert_eq(cudaHostGetDevicePointer(&mapped, p, 0), cudaSuccess);
	((u32 *)p)[9] = 1234;
	cr_assert_eq(LAUNCH(read_at, 1, 32, 0, NULL, (u32 *)mapped, 9, out), cudaSuccess);
	cr_assert_eq(cudaMemcpy(&host, out, 4, cudaMemcpyDeviceToHost), cudaSuccess);
	cr_assert_eq(host, 1234);
	cr_assert_eq(cudaHostGetDevicePointer(&mapped, pageable, 0), cudaErrorInvalidValue);
	cr_assert_eq(cudaFreeHost(p), cudaSuccess);
	cr_assert_eq(cudaFreeHost(pageable), cudaErrorInvalidValue);
	free(pageable);
}

Test(cuda_emu_memory, host_memory_is_registered_once)
{
	void *p = malloc(4096), *mapped;
	cr_assert_eq(cudaHostRegister(p, 4096, cudaHostRegisterMapped), cudaSuccess);
	cr_assert_eq(cudaHostRegister(p, 4096, cudaHostRegisterMapped), cudaErrorHostMemoryAlreadyRegistered);
	cr_assert_eq(cudaHostGetDevicePointer(&mapped, p, 0), cudaSuccess);
	cr_assert_eq(cudaHostUnregister(p), cudaSuccess);
	cr_assert_eq(cudaHostUnregister(p), cudaErrorHostMemoryNotRegistered);
	free(p);
}

Test(cuda_emu_memory, calls_fail_when_told_to)
{
	void *p;
	emu_inject("cudaMalloc", 2, cudaErrorMemoryAllocation);
	cr_assert_eq(cudaMalloc(&p, 16), cudaSuccess);
	cr_assert_eq(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
	cr_assert_eq(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
	cr_assert_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
	cr_assert_eq(cudaMalloc(&p, 16), cudaSuccess);
	cr_assert(emu_inject_parse("write_at:1:719,cudaFree:1:700"));
	cr_assert_not(emu_inject_parse("cudaFree:x"));
	cr_assert_eq(LAUNCH(write_at, 1, 32, 0, NULL, (u32 *)p, 0), cudaErrorLaunchFailure);
	cr_assert_eq(cudaFree(p), cudaErrorIllegalAddress);
	cr_assert_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress, "that one stays");
	cr_assert_str_eq(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
}
