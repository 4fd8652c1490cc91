/* What tests of streams, events and graphs begin with. */
#ifndef CUDA_EMU_STREAM_FIXTURE_H
#define CUDA_EMU_STREAM_FIXTURE_H

#include <criterion/criterion.h>

#include "kernels/cuda/cu.h"

static u32 *pinned(u32 count)
{
	void *p = NULL;
	cr_assert_eq(cudaMallocHost(&p, count * sizeof(u32)), cudaSuccess);
	memset(p, 0, count * sizeof(u32));
	return static_cast<u32 *>(p);
}

static cudaStream_t stream(void)
{
	cudaStream_t s;
	cr_assert_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	return s;
}

/* Events live as long as the test, which is a process. */
static cudaEvent_t event(void)
{
	static cudaEvent_t made[256];
	static u32 count;
	cr_assert_lt(count, 256);
	cr_assert_eq(cudaEventCreateWithFlags(&made[count], cudaEventDisableTiming), cudaSuccess);
	return made[count++];
}

#endif
