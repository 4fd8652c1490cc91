/* Kernels of the checks themselves: input that only just comes, and how fast memory can be read. Compiled as the
 * checked ones are, for the device and for the emulated one. */
#include "kernels/cuda/cu.h"

/* A kernel that is launched as dependent and reads before it waits finds poison in front of this one. */
static __global__ void late_kernel(u8 *to, const u8 *from, size_t bytes)
{
	for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
		to[i] = from[i];
}

/* `out` is written only where the sum is a value that random data does not have, so that nothing is left out. */
static __global__ void read_kernel(const u8 *data, size_t bytes, u32 *out)
{
	const size_t step = (size_t)gridDim.x * blockDim.x * sizeof(uint4);
	u32 sum = 0;
	for (size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * sizeof(uint4); at < bytes; at += 4 * step) {
		uint4 v[4] = {};
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			if (at + i * step < bytes)
				v[i] = cu_load_stream<uint4>(data + at + i * step);
#pragma unroll
		for (u32 i = 0; i < 4; i++)
			sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
	}
	if (sum == 0x9e3779b9u)
		*out = sum;
}

/* Poisons `data` [bytes] of device memory and launches the kernel that puts back what it held. `copy`: device memory of the
 * same size, of the case. */
extern "C" cudaError_t device_late(void *data, void *copy, size_t bytes, void *stream)
{
	cudaError_t e = cudaMemcpy(copy, data, bytes, cudaMemcpyDeviceToDevice);
	if (e == cudaSuccess)
		e = cudaMemset(data, 0xff, bytes);
	if (e == cudaSuccess)
		e = cudaDeviceSynchronize();
	return e == cudaSuccess ? LAUNCH(late_kernel, 1, 256, 0, (cudaStream_t)stream, (u8 *)data, (const u8 *)copy, bytes) : e;
}

/* Reads `bytes` (a multiple of 16) of device memory once, by `blocks` blocks of threads. `out`: a word of device memory. */
extern "C" cudaError_t device_read(const void *data, size_t bytes, void *out, unsigned blocks, void *stream)
{
	return LAUNCH(read_kernel, blocks, 512, 0, (cudaStream_t)stream, (const u8 *)data, bytes, (u32 *)out);
}
