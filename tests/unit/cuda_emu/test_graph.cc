/* Captures and graphs: replay, forks and joins, and every call that a capture forbids. */
#include <criterion/criterion.h>
#include <pthread.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"
#include "tests/unit/cuda_emu/stream_fixture.h"

static __global__ void add(u32 *p, u32 v)
{
	if (threadIdx.x == 0)
		p[0] += v;
}

static __global__ void sum(const u32 *a, const u32 *b, u32 *out)
{
	if (threadIdx.x == 0)
		out[0] = a[0] + b[0];
}

Test(cuda_emu_graph, a_graph_replays_what_was_captured)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *p = pinned(2), v = 3;
		cudaStream_t s = stream();
		cudaGraph_t graph;
		cudaGraphExec_t exec;
		size_t count;
		emu_schedule((enum emu_order)order, 4);
		cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
		cr_assert_eq(LAUNCH(add, 1, 32, 0, s, p, v), cudaSuccess);
		v = 1000; /* arguments were copied */
		cr_assert_eq(cudaMemcpyAsync(p + 1, p, 4, cudaMemcpyDefault, s), cudaSuccess);
		cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
		cr_assert_eq(p[0], 0, "a capture runs nothing");
		cr_assert_eq(cudaGraphGetNodes(graph, NULL, &count), cudaSuccess);
		cr_assert_eq(count, 2);
		cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
		cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
		for (u32 i = 0; i < 3; i++)
			cr_assert_eq(cudaGraphLaunch(exec, s), cudaSuccess);
		cr_assert_eq(cudaGraphExecDestroy(exec), cudaSuccess);
		cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
		cr_assert_eq(p[1], 9);
	}
}

/* Two branches beside each other; the join may be missing. */
static cudaError_t capture_fork(u32 *p, bool join, cudaGraph_t *graph)
{
	cudaStream_t s = stream(), side = stream();
	cudaEvent_t fork = event(), joined = event();
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, s, p, 1u), cudaSuccess);
	cr_assert_eq(cudaEventRecord(fork, s), cudaSuccess);
	cr_assert_eq(cudaStreamWaitEvent(side, fork, 0), cudaSuccess);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, side, p + 1, 10u), cudaSuccess);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, s, p, 1u), cudaSuccess);
	cr_assert_eq(cudaEventRecord(joined, side), cudaSuccess);
	if (join)
		cr_assert_eq(cudaStreamWaitEvent(s, joined, 0), cudaSuccess);
	cr_assert_eq(LAUNCH(sum, 1, 32, 0, s, p, p + 1, p + 2), cudaSuccess);
	return cudaStreamEndCapture(s, graph);
}

Test(cuda_emu_graph, other_streams_join_a_capture_by_events)
{
	for (u32 order = 0; order < EMU_ORDERS; order++) {
		u32 *p = pinned(3);
		cudaGraph_t graph;
		cudaGraphExec_t exec;
		cudaStream_t s = stream();
		emu_schedule((enum emu_order)order, 4);
		cr_assert_eq(capture_fork(p, true, &graph), cudaSuccess);
		cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
		cr_assert_eq(cudaGraphLaunch(exec, s), cudaSuccess);
		cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
		cr_assert_eq(p[2], 12);
		cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
		cr_assert_eq(cudaGraphExecDestroy(exec), cudaSuccess);
	}
}

Test(cuda_emu_graph, a_branch_that_is_not_joined_is_an_error)
{
	cudaGraph_t graph;
	cr_assert_eq(capture_fork(pinned(3), false, &graph), cudaErrorStreamCaptureUnjoined);
	cr_assert_null(graph);
}

/* A call that a capture forbids gives `want`, and the capture is spoiled. */
static void spoils(cudaError_t (*call)(cudaStream_t), cudaError_t want)
{
	cudaStream_t s = stream();
	cudaGraph_t graph;
	enum cudaStreamCaptureStatus status;
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
	cr_assert_eq(call(s), want);
	cr_assert_eq(cudaStreamIsCapturing(s, &status), cudaSuccess);
	cr_assert_eq(status, cudaStreamCaptureStatusInvalidated);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, s, (u32 *)NULL, 0u), cudaErrorStreamCaptureInvalidated);
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
	cr_assert_null(graph);
	cr_assert_eq(cudaStreamIsCapturing(s, &status), cudaSuccess);
	cr_assert_eq(status, cudaStreamCaptureStatusNone);
}

static cudaError_t call_malloc(cudaStream_t s)
{
	void *p;
	(void)s;
	return cudaMalloc(&p, 16);
}

static cudaError_t call_free(cudaStream_t s)
{
	(void)s;
	return cudaFree(NULL);
}

static cudaError_t call_memcpy(cudaStream_t s)
{
	u32 a = 0, b = 0;
	(void)s;
	return cudaMemcpy(&a, &b, 4, cudaMemcpyDefault);
}

static cudaError_t call_pageable(cudaStream_t s)
{
	u32 a = 0;
	static u32 *p;
	if (p == NULL) {
		enum cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
		cudaThreadExchangeStreamCaptureMode(&relaxed);
		p = pinned(1);
		cudaThreadExchangeStreamCaptureMode(&relaxed);
	}
	return cudaMemcpyAsync(p, &a, 4, cudaMemcpyHostToDevice, s);
}

static cudaError_t call_device_synchronize(cudaStream_t s)
{
	(void)s;
	return cudaDeviceSynchronize();
}

static cudaError_t call_event_query(cudaStream_t s)
{
	(void)s;
	return cudaEventQuery(event());
}

static cudaError_t call_captured_event(cudaStream_t s)
{
	cudaEvent_t e = event();
	cr_assert_eq(cudaEventRecord(e, s), cudaSuccess);
	return cudaEventSynchronize(e);
}

static cudaError_t call_outside_event(cudaStream_t s)
{
	cudaStream_t other = stream();
	cudaEvent_t e = event();
	cr_assert_eq(cudaEventRecord(e, other), cudaSuccess);
	return cudaStreamWaitEvent(s, e, 0);
}

Test(cuda_emu_graph, forbidden_calls_spoil_the_capture)
{
	spoils(cudaStreamSynchronize, cudaErrorStreamCaptureUnsupported);
	spoils(cudaStreamQuery, cudaErrorStreamCaptureUnsupported);
	spoils(call_device_synchronize, cudaErrorStreamCaptureUnsupported);
	spoils(call_malloc, cudaErrorStreamCaptureUnsupported);
	spoils(call_free, cudaErrorStreamCaptureUnsupported);
	spoils(call_memcpy, cudaErrorStreamCaptureUnsupported);
	spoils(call_pageable, cudaErrorStreamCaptureUnsupported);
	spoils(call_event_query, cudaErrorStreamCaptureUnsupported);
	spoils(call_captured_event, cudaErrorCapturedEvent);
	spoils(call_outside_event, cudaErrorStreamCaptureIsolation);
}

Test(cuda_emu_graph, the_legacy_stream_spoils_captures_of_blocking_streams)
{
	cudaStream_t blocking;
	cudaGraph_t graph;
	u32 *p = pinned(1);
	cr_assert_eq(cudaStreamCreate(&blocking), cudaSuccess);
	cr_assert_eq(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), cudaSuccess);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, NULL, p, 1u), cudaErrorStreamCaptureImplicit);
	cr_assert_eq(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
	cr_assert_eq(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
}

static void *allocate_beside(void *error)
{
	void *p;
	*static_cast<cudaError_t *>(error) = cudaMalloc(&p, 16);
	return NULL;
}

static cudaError_t allocate_in_another_thread(enum cudaStreamCaptureMode mode)
{
	cudaStream_t s = stream();
	cudaGraph_t graph;
	pthread_t thread;
	cudaError_t e;
	cr_assert_eq(cudaStreamBeginCapture(s, mode), cudaSuccess);
	cr_assert_eq(pthread_create(&thread, NULL, allocate_beside, &e), 0);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	if (cudaStreamEndCapture(s, &graph) == cudaSuccess)
		cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
	return e;
}

Test(cuda_emu_graph, the_mode_says_whom_a_capture_binds)
{
	cudaStream_t s = stream();
	cudaGraph_t graph;
	void *p;
	cr_assert_eq(allocate_in_another_thread(cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
	cr_assert_eq(allocate_in_another_thread(cudaStreamCaptureModeThreadLocal), cudaSuccess);
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaSuccess);
	cr_assert_eq(cudaMalloc(&p, 16), cudaSuccess);
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
	cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
}

Test(cuda_emu_graph, captures_begin_and_end_in_one_stream)
{
	cudaStream_t s = stream(), other = stream();
	cudaEvent_t e = event();
	cudaGraph_t graph;
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaSuccess);
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
	cr_assert_eq(cudaEventRecord(e, s), cudaSuccess);
	cr_assert_eq(cudaStreamWaitEvent(other, e, 0), cudaSuccess);
	cr_assert_eq(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
}

static __global__ void wait_and_double(const u32 *in, u32 *out)
{
	u32 early = in[0];
	cu_grid_wait();
	if (threadIdx.x == 0) {
		out[0] = 2 * in[0];
		out[1] = early;
	}
}

Test(cuda_emu_graph, dependent_kernels_begin_early_in_graphs_too)
{
	u32 *p = pinned(3);
	cudaStream_t s = stream();
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	emu_schedule(EMU_STRIDED, 1);
	cr_assert_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
	cr_assert_eq(LAUNCH(add, 1, 32, 0, s, p, 4u), cudaSuccess);
	cr_assert_eq(LAUNCH_DEPENDENT(wait_and_double, 1, 32, 0, s, p, p + 1), cudaSuccess);
	cr_assert_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
	cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
	for (u32 i = 1; i <= 3; i++) {
		cr_assert_eq(cudaGraphLaunch(exec, s), cudaSuccess);
		cr_assert_eq(cudaStreamSynchronize(s), cudaSuccess);
		cr_assert_eq(p[1], 8 * i);
		cr_assert_eq(p[2], 4 * (i - 1));
	}
	cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
	cr_assert_eq(cudaGraphExecDestroy(exec), cudaSuccess);
}
