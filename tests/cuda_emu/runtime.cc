/* The CUDA runtime's calls. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/emu_priv.h"

static struct {
	struct emu_schedule schedule;
	cudaError_t last, sticky;
} device;

static const char *const order_names[EMU_ORDERS] = {"forward", "reverse", "strided", "ahead", "random"};

const char *emu_order_name(enum emu_order order)
{
	return order_names[order];
}

void emu_schedule(enum emu_order order, u64 seed)
{
	device.schedule.order = order;
	device.schedule.random.state = seed;
}

bool emu_schedule_parse(const char *text)
{
	for (u32 i = 0; i < EMU_ORDERS; i++) {
		size_t n = strlen(order_names[i]);
		if (strncmp(text, order_names[i], n) != 0 || (text[n] != '\0' && text[n] != ':'))
			continue;
		emu_schedule((enum emu_order)i, text[n] == ':' ? strtoull(text + n + 1, NULL, 10) : 0);
		return true;
	}
	return false;
}

static cudaError_t result(cudaError_t e)
{
	if (device.sticky != cudaSuccess)
		e = device.sticky;
	if (e != cudaSuccess)
		device.last = e;
	return e;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = device.last;
	device.last = device.sticky;
	return e;
}

cudaError_t cudaPeekAtLastError(void)
{
	return device.last;
}

cudaError_t cudaDeviceReset(void)
{
	device.last = device.sticky = cudaSuccess;
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	(void)stream;
	return result(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value)
{
	(void)kernel;
	(void)attr;
	return result(value < 0 || value > EMU_SHARED_MAX ? cudaErrorInvalidValue : cudaSuccess);
}

static bool dim_ok(dim3 d, u32 x, u32 y, u32 z)
{
	return d.x >= 1 && d.y >= 1 && d.z >= 1 && d.x <= x && d.y <= y && d.z <= z;
}

cudaError_t emu_launch(struct emu_launch &&launch, cudaStream_t stream)
{
	u64 threads = (u64)launch.block.x * launch.block.y * launch.block.z;
	(void)stream;
	if (device.sticky != cudaSuccess)
		return result(cudaSuccess);
	if (!dim_ok(launch.grid, 0x7fffffff, 65535, 65535) || !dim_ok(launch.block, 1024, 1024, 64) ||
	    threads > EMU_THREADS_MAX || threads % 32 != 0)
		return result(cudaErrorInvalidConfiguration);
	if (launch.shared_bytes > EMU_SHARED_MAX)
		return result(cudaErrorInvalidValue);
	device.sticky = emu_run(&launch, &device.schedule);
	return result(cudaSuccess);
}
