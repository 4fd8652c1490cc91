/* The CUDA runtime behind kernels/device.h: the table that the worker finds in the shared object of the CUDA
 * kernels. Every failure carries CUDA's name of it and what was being done. */
#include "kernels/cuda/runtime.cuh"

#include <stdio.h>

enum { CAPABILITY_MIN = 80 }; /* bf16 matrix instructions and asynchronous copies */

enum err cuda_failed(cudaError_t e, const char *what, struct err_msg *em)
{
	if (e == cudaSuccess)
		return ERR_OK;
	(void)cudaGetLastError(); /* or it would be found by the next call that looks */
	return err_set(em, e == cudaErrorMemoryAllocation ? ERR_NO_MEMORY : ERR_DEVICE, "%s: %s (%s)", what,
		       cudaGetErrorString(e), cudaGetErrorName(e));
}

/* The device that this process opened, for threads that begin later. */
static int *opened_device(void)
{
	static int device;

	return &device;
}

void cuda_bind_thread(void)
{
	static thread_local bool bound;

	if (bound)
		return;
	(void)cudaSetDevice(*opened_device());
	bound = true;
}

static cudaStream_t stream_of(void *stream)
{
	return (cudaStream_t)stream;
}

/* ---------------------------------------------------------------- the device */

static enum err memory(struct kern_device_info *info, struct err_msg *em)
{
	size_t free_bytes = 0, total = 0;
	enum err e = cuda_failed(cudaMemGetInfo(&free_bytes, &total), "asking for the device's memory", em);

	info->memory_free = free_bytes;
	info->memory_total = total;
	return e;
}

static enum err count_devices(u32 index, struct kern_device_info *info, struct err_msg *em)
{
	int count = 0, driver = 0, runtime = 0;

	(void)cudaDriverGetVersion(&driver);
	(void)cudaRuntimeGetVersion(&runtime);
	info->driver = (u32)driver;
	info->runtime = (u32)runtime;
	if (driver == 0)
		return err_set(em, ERR_DEVICE, "there is no NVIDIA driver on this machine");
	enum err e = cuda_failed(cudaGetDeviceCount(&count), "looking for CUDA devices", em);
	if (e) {
		char versions[96];
		snprintf(versions, sizeof(versions), "driver of CUDA %d.%d, runtime of CUDA %d.%d",
			 driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
		err_prefix(em, "%s", versions);
		return e;
	}
	info->count = (u32)count;
	if (index >= (u32)count)
		return err_set(em, ERR_DEVICE,
			       "device %u is not there: this process sees %d (CUDA_VISIBLE_DEVICES chooses)",
			       index, count);
	return ERR_OK;
}

static u32 attribute(enum cudaDeviceAttr attr, int device)
{
	int value = 0;

	return cudaDeviceGetAttribute(&value, attr, device) == cudaSuccess ? (u32)value : 0;
}

static enum err open_device(u32 index, struct kern_device_info *info, struct err_msg *em)
{
	int device = (int)index;
	char bus[32] = "";

	*info = kern_device_info{};
	enum err e = count_devices(index, info, em);
	if (e)
		return e;
	e = cuda_failed(cudaSetDevice(device), "choosing the device", em);
	if (e)
		return e;
	*opened_device() = device;
	info->processors = attribute(cudaDevAttrMultiProcessorCount, device);
	info->capability = attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
			   attribute(cudaDevAttrComputeCapabilityMinor, device);
	(void)cudaDeviceGetPCIBusId(bus, sizeof(bus), device);
	snprintf(info->name, sizeof(info->name), "CUDA device %u of %u at %s", index, info->count, bus);
	if (info->capability < CAPABILITY_MIN)
		return err_set(em, ERR_DEVICE,
			       "%s has compute capability %u.%u; the kernels need %d.%d (Ampere) or later",
			       info->name, info->capability / 10, info->capability % 10, CAPABILITY_MIN / 10,
			       CAPABILITY_MIN % 10);
	return memory(info, em);
}

/* ---------------------------------------------------------------- memory */

static enum err alloc(void **out, size_t bytes, struct err_msg *em)
{
	char what[64];

	*out = NULL;
	snprintf(what, sizeof(what), "allocating %zu bytes on the device", bytes);
	return bytes ? cuda_failed(cudaMalloc(out, bytes), what, em) : ERR_OK;
}

static void release(void *p)
{
	(void)cudaFree(p);
}

static enum err host_alloc(void **out, size_t bytes, struct err_msg *em)
{
	void *there = NULL;
	char what[64];

	*out = NULL;
	snprintf(what, sizeof(what), "pinning %zu bytes of host memory", bytes);
	enum err e =
		cuda_failed(cudaHostAlloc(out, bytes, cudaHostAllocMapped | cudaHostAllocPortable), what, em);
	if (e)
		return e;
	e = cuda_failed(cudaHostGetDevicePointer(&there, *out, 0), "mapping host memory", em);
	if (!e && there == *out)
		return ERR_OK;
	(void)cudaFreeHost(*out);
	*out = NULL;
	return e ? e : err_set(em, ERR_DEVICE, "host and device do not share addresses on this system");
}

static void host_release(void *p)
{
	(void)cudaFreeHost(p);
}

/* ---------------------------------------------------------------- streams */

static enum err stream_create(void **out, struct err_msg *em)
{
	cudaStream_t s = NULL;
	enum err e =
		cuda_failed(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "creating a stream", em);

	*out = s;
	return e;
}

static void stream_destroy(void *stream)
{
	if (stream)
		(void)cudaStreamDestroy(stream_of(stream));
}

static enum err stream_sync(void *stream, struct err_msg *em)
{
	return cuda_failed(cudaStreamSynchronize(stream_of(stream)), "the device", em);
}

static enum err copy(void *stream, void *dst, const void *src, size_t bytes, enum kern_copy kind,
		     struct err_msg *em)
{
	static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
						    cudaMemcpyDeviceToDevice};

	if (bytes == 0)
		return ERR_OK;
	return cuda_failed(cudaMemcpyAsync(dst, src, bytes, kinds[kind], stream_of(stream)),
			   "queueing a copy", em);
}

static enum err zero(void *stream, void *dst, size_t bytes, struct err_msg *em)
{
	return bytes ? cuda_failed(cudaMemsetAsync(dst, 0, bytes, stream_of(stream)), "queueing zeros", em)
		     : ERR_OK;
}

/* ---------------------------------------------------------------- events: the handle is CUDA's own */

static cudaEvent_t event_of(struct kern_event *e)
{
	return (cudaEvent_t)(void *)e;
}

/* CUDA's host threads spin in cudaEventSynchronize unless the event has cudaEventBlockingSync, whatever the flags of the
 * device say. Waking up costs some tens of microseconds, which nobody waits for while steps are queued ahead. */
static enum err event_create(struct kern_event **out, bool awaited, struct err_msg *em)
{
	cudaEvent_t event = NULL;
	unsigned flags = cudaEventDisableTiming | (awaited ? cudaEventBlockingSync : 0);
	enum err e = cuda_failed(cudaEventCreateWithFlags(&event, flags), "creating an event", em);

	*out = (struct kern_event *)(void *)event;
	return e;
}

static void event_destroy(struct kern_event *e)
{
	if (e)
		(void)cudaEventDestroy(event_of(e));
}

static enum err event_record(struct kern_event *e, void *stream, struct err_msg *em)
{
	return cuda_failed(cudaEventRecord(event_of(e), stream_of(stream)), "queueing an event", em);
}

static enum err event_query(struct kern_event *e, struct err_msg *em)
{
	cuda_bind_thread();
	cudaError_t state = cudaEventQuery(event_of(e));
	if (state == cudaErrorNotReady) {
		(void)cudaGetLastError();
		return ERR_AGAIN;
	}
	return cuda_failed(state, "the device", em);
}

static enum err event_sync(struct kern_event *e, struct err_msg *em)
{
	cuda_bind_thread();
	return cuda_failed(cudaEventSynchronize(event_of(e)), "the device", em);
}

static enum err stream_wait(void *stream, struct kern_event *e, struct err_msg *em)
{
	return cuda_failed(cudaStreamWaitEvent(stream_of(stream), event_of(e), cudaEventWaitDefault),
			   "queueing a wait", em);
}

/* ---------------------------------------------------------------- graphs: an executable one is the handle */

static cudaGraphExec_t exec_of(struct kern_graph *g)
{
	return (cudaGraphExec_t)(void *)g;
}

static enum err graph_begin(void *stream, struct err_msg *em)
{
	return cuda_failed(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
			   "beginning to record a graph", em);
}

static enum err graph_end(void *stream, struct kern_graph **out, struct err_msg *em)
{
	cudaGraph_t graph = NULL;
	cudaGraphExec_t exec = NULL;

	*out = NULL;
	enum err e = cuda_failed(cudaStreamEndCapture(stream_of(stream), &graph), "recording a graph", em);
	if (e)
		return e;
	e = cuda_failed(cudaGraphInstantiate(&exec, graph, 0), "making a graph executable", em);
	(void)cudaGraphDestroy(graph);
	*out = (struct kern_graph *)(void *)exec;
	return e;
}

static void graph_abandon(void *stream)
{
	cudaGraph_t graph = NULL;

	(void)cudaStreamEndCapture(stream_of(stream), &graph);
	if (graph)
		(void)cudaGraphDestroy(graph);
	(void)cudaGetLastError();
}

static enum err graph_launch(struct kern_graph *g, void *stream, struct err_msg *em)
{
	return cuda_failed(cudaGraphLaunch(exec_of(g), stream_of(stream)), "queueing a graph", em);
}

static void graph_destroy(struct kern_graph *g)
{
	if (g)
		(void)cudaGraphExecDestroy(exec_of(g));
}

/* ---------------------------------------------------------------- the table */

extern "C" {
const struct kern_device_api kern_device_api = {
	.abi = KERN_DEVICE_ABI,
	.table_bytes = sizeof(struct kern_ops),
	.open = open_device,
	.memory = memory,
	.ops_init = kern_ops_init_cuda,
	.alloc = alloc,
	.release = release,
	.host_alloc = host_alloc,
	.host_release = host_release,
	.stream_create = stream_create,
	.stream_destroy = stream_destroy,
	.stream_wait = stream_wait,
	.stream_sync = stream_sync,
	.copy = copy,
	.zero = zero,
	.event_create = event_create,
	.event_destroy = event_destroy,
	.event_record = event_record,
	.event_query = event_query,
	.event_sync = event_sync,
	.graph_begin = graph_begin,
	.graph_end = graph_end,
	.graph_abandon = graph_abandon,
	.graph_launch = graph_launch,
	.graph_destroy = graph_destroy,
	.comm_id = cuda_comm_id,
	.comm_create = cuda_comm_create,
	.comm_destroy = cuda_comm_destroy,
	.comm_alloc = cuda_comm_alloc,
	.comm_release = cuda_comm_release,
	.comm_sum = cuda_comm_sum,
	.comm_gather = cuda_comm_gather,
	.comm_check = cuda_comm_check,
	.comm_abort = cuda_comm_abort,
};
}
