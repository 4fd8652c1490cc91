/* The emulated device itself: its limits, its schedule, errors and how they are injected, launches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/runtime_priv.h"

enum { MULTIPROCESSORS = 4, ARGS_BYTES_MAX = 32764, SHARED_DEFAULT_MAX = 48 << 10 };

struct rule {
	std::string name;
	u32 nth;
	int error;
};

static struct {
	std::mutex mutex;
	struct emu_schedule schedule;
	cudaError_t sticky;
	std::vector<struct rule> rules;
	std::map<const void *, int> shared_limit;
	bool configured;
} &device = *new std::remove_reference_t<decltype(device)>();

static thread_local cudaError_t last_error;
static thread_local char this_thread;
static thread_local int current_device;
static thread_local std::unique_lock<std::mutex> *held; /* by the outermost call of this thread */

static const char *const order_names[EMU_ORDERS] = {"forward", "reverse", "strided", "ahead", "random"};

static const struct {
	cudaError_t error;
	const char *name, *text;
} errors[] = {
#define E(name, text) {cudaError##name, "cudaError" #name, text}
	{cudaSuccess, "cudaSuccess", "no error"},
	E(InvalidValue, "invalid argument"),
	E(MemoryAllocation, "out of memory"),
	E(InitializationError, "initialization error"),
	E(InvalidConfiguration, "invalid configuration argument"),
	E(InvalidPitchValue, "invalid pitch argument"),
	E(InvalidMemcpyDirection, "invalid copy direction for memcpy"),
	E(InvalidDeviceFunction, "invalid device function"),
	E(NoDevice, "no CUDA-capable device is detected"),
	E(InvalidDevice, "invalid device ordinal"),
	E(InvalidResourceHandle, "invalid resource handle"),
	E(IllegalState, "the operation cannot be performed in the present state"),
	E(NotReady, "device not ready"),
	E(IllegalAddress, "an illegal memory access was encountered"),
	E(LaunchOutOfResources, "too many resources requested for launch"),
	E(LaunchTimeout, "the launch timed out and was terminated"),
	E(HostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
	E(HostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
	E(MisalignedAddress, "misaligned address"),
	E(LaunchFailure, "unspecified launch failure"),
	E(NotPermitted, "operation not permitted"),
	E(NotSupported, "operation not supported"),
	E(StreamCaptureUnsupported, "operation not permitted when stream is capturing"),
	E(StreamCaptureInvalidated, "operation failed due to a previous error during capture"),
	E(StreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
	E(StreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
	E(StreamCaptureUnjoined, "capturing stream has unjoined work"),
	E(StreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
	E(StreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream"),
	E(CapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
	E(StreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
	E(Unknown, "unknown error"),
#undef E
};

/* ---------------------------------------------------------------- settings */

static void configure(void)
{
	const char *text = getenv("CUDA_EMU_SCHEDULE");
	device.configured = true;
	if (text != NULL && !emu_schedule_parse(text))
		fprintf(stderr, "cuda_emu: CUDA_EMU_SCHEDULE=%s is not forward, reverse, strided, ahead or random[:SEED]\n",
			text);
	text = getenv("CUDA_EMU_INJECT");
	if (text != NULL && !emu_inject_parse(text))
		fprintf(stderr, "cuda_emu: CUDA_EMU_INJECT=%s is not CALL:NTH:ERROR[,...]\n", text);
	if (getenv("CUDA_EMU_PROTECT") != NULL)
		emu_protect(true);
	if (getenv("CUDA_EMU_THREAD") != NULL)
		emu_device_thread();
}

/* They differ in their number alone: a process uses one of them, and has its memory for itself. */
static int device_count()
{
	const char *text = getenv("CUDA_EMU_DEVICES");

	return text != NULL && atoi(text) >= 0 ? atoi(text) : 8;
}

const char *emu_order_name(enum emu_order order)
{
	return order_names[order];
}

void emu_schedule(enum emu_order order, u64 seed)
{
	struct emu_call call("emu_schedule");
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

struct emu_schedule *emu_device_schedule(void)
{
	return &device.schedule;
}

void emu_inject(const char *name, u32 nth, int error)
{
	struct emu_call call("emu_inject");
	device.rules.push_back({name, nth, error});
}

void emu_inject_clear(void)
{
	struct emu_call call("emu_inject_clear");
	device.rules.clear();
}

bool emu_inject_parse(const char *text)
{
	char name[64];
	u32 nth;
	int error, used;
	while (*text != '\0') {
		if (sscanf(text, "%63[^:,]:%u:%d%n", name, &nth, &error, &used) != 3)
			return false;
		emu_inject(name, nth, error);
		text += used;
		if (*text == ',')
			text++;
		else if (*text != '\0')
			return false;
	}
	return true;
}

int emu_injected(const char *name)
{
	int error = 0;
	for (size_t i = 0; i < device.rules.size(); i++) {
		struct rule &r = device.rules[i];
		if (r.name != name || r.nth == 0 || --r.nth > 0)
			continue;
		error = r.error;
		device.rules.erase(device.rules.begin() + (long)i--);
	}
	return error;
}

/* ---------------------------------------------------------------- calls and errors */

static bool sticks(cudaError_t e)
{
	return e == cudaErrorIllegalAddress || e == cudaErrorMisalignedAddress || e == cudaErrorLaunchFailure ||
	       e == cudaErrorLaunchTimeout;
}

emu_call::emu_call(const char *name) : lock(held), around(held), error(cudaSuccess)
{
	if (held == NULL || !held->owns_lock()) { /* not owned: work runs, and this is a call of a host function */
		own = std::unique_lock<std::mutex>(device.mutex);
		lock = held = &own;
	}
	before = device.sticky;
	if (!device.configured)
		configure();
	int injected = emu_injected(name);
	if (injected != 0) {
		error = (cudaError_t)injected;
		if (strncmp(name, "cuda", 4) != 0 && strcmp(name, "launch") != 0)
			return; /* another library's error */
		if (sticks(error))
			device.sticky = error;
		last_error = error;
	}
}

emu_call::~emu_call()
{
	if (lock == &own)
		held = around;
}

cudaError_t emu_call::result(cudaError_t e)
{
	if (before != cudaSuccess)
		e = before;
	if (e != cudaSuccess && e != cudaErrorNotReady)
		last_error = e;
	return e;
}

cudaError_t emu_sticky(void)
{
	return device.sticky;
}

void emu_set_sticky(cudaError_t e)
{
	if (device.sticky == cudaSuccess)
		device.sticky = e;
}

const void *emu_this_thread(void)
{
	return &this_thread;
}

cudaError_t cudaGetLastError(void)
{
	struct emu_call call("cudaGetLastError");
	cudaError_t e = device.sticky != cudaSuccess ? device.sticky : last_error;
	last_error = cudaSuccess;
	return e;
}

cudaError_t cudaPeekAtLastError(void)
{
	struct emu_call call("cudaPeekAtLastError");
	return device.sticky != cudaSuccess ? device.sticky : last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
	for (const auto &e : errors) {
		if (e.error == error)
			return e.name;
	}
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	for (const auto &e : errors) {
		if (e.error == error)
			return e.text;
	}
	return "unrecognized error code";
}

/* Memory stays; on a device it would go, too. */
cudaError_t cudaDeviceReset(void)
{
	struct emu_call call("cudaDeviceReset");
	emu_streams_reset();
	device.sticky = last_error = cudaSuccess;
	return cudaSuccess;
}

/* ---------------------------------------------------------------- the device */

cudaError_t cudaDriverGetVersion(int *version)
{
	EMU_CALL();
	*version = CUDART_VERSION;
	return call.result(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	EMU_CALL();
	*version = CUDART_VERSION;
	return call.result(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *count)
{
	EMU_CALL();
	*count = device_count();
	return call.result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int index)
{
	EMU_CALL();
	if (index < 0 || index >= device_count())
		return call.result(cudaErrorInvalidDevice);
	current_device = index;
	return call.result(cudaSuccess);
}

cudaError_t cudaGetDevice(int *index)
{
	EMU_CALL();
	*index = current_device;
	return call.result(cudaSuccess);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
	EMU_CALL();
	(void)flags;
	return call.result(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int index)
{
	EMU_CALL();
	if (index < 0 || index >= device_count())
		return call.result(cudaErrorInvalidDevice);
	if (snprintf(id, (size_t)bytes, "0000:%02x:00.0", (unsigned)index) >= bytes)
		return call.result(cudaErrorInvalidValue);
	return call.result(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	EMU_CALL();
	*least = 0;
	*greatest = -5;
	return call.result(cudaSuccess);
}

/* Bytes of a block at most, less than those of compute capability 9.0 where somebody says so. */
static int shared_most()
{
	const char *text = getenv("CUDA_EMU_SHARED");

	return text != NULL && atoi(text) >= SHARED_DEFAULT_MAX && atoi(text) <= EMU_SHARED_MAX ? atoi(text) : EMU_SHARED_MAX;
}

/* Limits of compute capability 9.0, on a device with few multiprocessors: launches that size their grids by the device
 * stay small. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int index)
{
	const struct {
		enum cudaDeviceAttr attr;
		int value;
	} table[] = {
		{cudaDevAttrMaxThreadsPerBlock, EMU_THREADS_MAX},
		{cudaDevAttrMaxSharedMemoryPerBlock, SHARED_DEFAULT_MAX},
		{cudaDevAttrWarpSize, 32},
		{cudaDevAttrClockRate, 1000000},
		{cudaDevAttrMultiProcessorCount, MULTIPROCESSORS},
		{cudaDevAttrMemoryClockRate, 1000000},
		{cudaDevAttrGlobalMemoryBusWidth, 512},
		{cudaDevAttrL2CacheSize, 4 << 20},
		{cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
		{cudaDevAttrComputeCapabilityMajor, 9},
		{cudaDevAttrComputeCapabilityMinor, 0},
		{cudaDevAttrMaxSharedMemoryPerMultiprocessor, EMU_SHARED_MAX + 1024},
		{cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_most()},
	};
	EMU_CALL();
	if (index < 0 || index >= device_count())
		return call.result(cudaErrorInvalidDevice);
	for (const auto &row : table) {
		if (row.attr == attr) {
			*value = row.value;
			return call.result(cudaSuccess);
		}
	}
	return call.result(cudaErrorInvalidValue);
}

/* ---------------------------------------------------------------- launches */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value)
{
	EMU_CALL();
	if (kernel == NULL)
		return call.result(cudaErrorInvalidDeviceFunction);
	if (attr == cudaFuncAttributePreferredSharedMemoryCarveout)
		return call.result(value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess);
	if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > shared_most())
		return call.result(cudaErrorInvalidValue);
	device.shared_limit[kernel] = value;
	return call.result(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int block_threads,
							  size_t shared_bytes)
{
	EMU_CALL();
	if (kernel == NULL || block_threads <= 0 || block_threads > EMU_THREADS_MAX)
		return call.result(cudaErrorInvalidValue);
	size_t by_shared = (EMU_SHARED_MAX + 1024) / (shared_bytes + 1024);
	size_t by_threads = 2048 / (size_t)block_threads;
	*blocks = (int)(by_shared < by_threads ? by_shared : by_threads);
	return call.result(cudaSuccess);
}

static bool dim_ok(dim3 d, u32 x, u32 y, u32 z)
{
	return d.x >= 1 && d.y >= 1 && d.z >= 1 && d.x <= x && d.y <= y && d.z <= z;
}

static cudaError_t check_launch(const struct emu_launch &l)
{
	u64 threads = (u64)l.block.x * l.block.y * l.block.z;
	auto limit = device.shared_limit.find(l.kernel);
	if (!dim_ok(l.grid, 0x7fffffff, 65535, 65535) || !dim_ok(l.block, 1024, 1024, 64) || threads > EMU_THREADS_MAX)
		return cudaErrorInvalidConfiguration;
	if (threads % 32 != 0) {
		fprintf(stderr, "cuda_emu: kernel %s: blocks of %u x %u x %u threads, no multiple of 32\n", l.name, l.block.x,
			l.block.y, l.block.z);
		return cudaErrorInvalidConfiguration;
	}
	if (l.args_bytes > ARGS_BYTES_MAX)
		return cudaErrorInvalidValue;
	if (l.shared_bytes > (limit != device.shared_limit.end() ? (size_t)limit->second : (size_t)SHARED_DEFAULT_MAX))
		return cudaErrorInvalidValue;
	return cudaSuccess;
}

cudaError_t emu_launch(struct emu_launch &&launch, cudaStream_t stream)
{
	struct emu_call call("launch");
	struct emu_work work = {launch.name, std::make_shared<struct emu_launch>(std::move(launch)), NULL, {}, NULL};
	if (call.error != cudaSuccess)
		return call.error;
	int injected = emu_injected(work.kernel->name);
	cudaError_t e = injected != 0 ? (cudaError_t)injected : check_launch(*work.kernel);
	return call.result(e == cudaSuccess ? emu_enqueue(call, stream, std::move(work)) : e);
}
