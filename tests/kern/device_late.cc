/* Input that only just comes: a kernel in front of the checked one writes it. A kernel that is launched as dependent and
 * reads before it waits finds poison. */
#include "kernels/cuda/cu.h"

static __global__ void late_kernel(u8 *to, const u8 *from, size_t bytes)
{
	for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
		to[i] = from[i];
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
