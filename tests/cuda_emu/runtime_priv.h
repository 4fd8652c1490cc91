/* The host's side of the emulated device: streams, events, captures. One lock guards all of it; work runs without
 * it, one piece at a time. */
#ifndef CUDA_EMU_RUNTIME_PRIV_H
#define CUDA_EMU_RUNTIME_PRIV_H

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_emu/emu_priv.h"

/* ---------------------------------------------------------------- work */

/* A place in a stream: behind its first `count` pieces of work. */
struct emu_point {
	std::shared_ptr<struct CUstream_st> stream;
	u64 count;
};

/* A piece of work: a kernel, or something to call. */
struct emu_work {
	const char *what;
	std::shared_ptr<struct emu_launch> kernel;
	std::function<cudaError_t()> call;
	std::vector<struct emu_point> after;
	struct emu_block *early; /* of a dependent kernel: the block that has begun before its turn */
};

struct emu_node {
	struct emu_work work;
	std::vector<u32> after; /* indices of nodes */
};
struct CUgraph_st {
	std::vector<struct emu_node> nodes;
};
struct CUgraphExec_st {
	std::shared_ptr<std::vector<struct emu_node>> nodes;
	struct emu_point last; /* its last launch: the next one waits for it */
};

struct emu_capture {
	struct CUgraph_st graph;
	struct CUstream_st *origin;
	enum cudaStreamCaptureMode mode;
	const void *thread;
	bool invalid;
};

struct CUstream_st {
	u32 number;
	bool blocking; /* waits for the legacy stream, and the legacy stream for it */
	bool alive;
	std::deque<struct emu_work> queue;
	u64 issued, done;
	std::shared_ptr<struct emu_capture> capture;
	std::vector<u32> capture_tail; /* nodes that the next one comes after */
};

struct CUevent_st {
	u32 flags;
	bool recorded;
	struct emu_point point;
	std::shared_ptr<double> time_ms;
	std::weak_ptr<struct emu_capture> capture;
	std::vector<u32> nodes;
};

/* ---------------------------------------------------------------- the device (device.cc) */

/* A call of the API: holds the lock (or uses that of the call around it), counts the calls of that name for error injection, and keeps the last error of
 * the thread. `error` is set if the call has to fail before it does anything. */
struct emu_call {
	std::unique_lock<std::mutex> own, *lock, *around;
	cudaError_t error;
	cudaError_t before; /* what the device had not got over when the call came */
	explicit emu_call(const char *name);
	~emu_call();
	emu_call(const emu_call &) = delete;
	emu_call &operator=(const emu_call &) = delete;
	cudaError_t result(cudaError_t e);
};
#define EMU_CALL() \
	struct emu_call call(__func__); \
	if (call.error != cudaSuccess) \
	return call.error

/* Of the call named `name`: the error it has to fail with now, or 0. Also for other libraries' calls. */
int emu_injected(const char *name);
cudaError_t emu_sticky(void);
/* What no call gets over but cudaDeviceReset. */
void emu_set_sticky(cudaError_t e);
struct emu_schedule *emu_device_schedule(void);
/* The thread that calls, as a name. */
const void *emu_this_thread(void);

/* ---------------------------------------------------------------- streams (stream.cc) */

/* NULL: no such stream (cudaErrorInvalidResourceHandle). */
std::shared_ptr<struct CUstream_st> emu_stream_find(cudaStream_t stream);
/* Puts work behind what the stream has, or into the graph that it captures. */
cudaError_t emu_enqueue(struct emu_call &call, cudaStream_t stream, struct emu_work &&work);
/* Runs work, as the schedule likes it, until the point is reached. */
cudaError_t emu_drain(struct emu_call &call, const struct emu_point &until);
cudaError_t emu_drain_all(struct emu_call &call);
/* Runs at most one piece of work. */
void emu_progress(struct emu_call &call);
cudaError_t emu_execute(struct emu_work &work, struct emu_work *next);
bool emu_in_host_function(void);
void emu_streams_reset(void);
/* The capture is over for all streams that took part. */
void emu_streams_leave(struct emu_capture *c);

/* ---------------------------------------------------------------- captures (graph.cc) */

/* A call that a capture forbids: cudaSuccess, or the error after having spoiled that capture. */
cudaError_t emu_capture_forbids(void);
cudaError_t emu_capture_spoil(struct emu_capture *c, cudaError_t e);
/* Adds a node behind the stream's tail. */
void emu_capture_add(struct CUstream_st *s, struct emu_work &&work);
/* Is any stream that waits for the legacy one capturing? */
struct emu_capture *emu_capture_any(bool blocking_only);

/* ---------------------------------------------------------------- memory (memory.cc) */

enum emu_memory { EMU_PAGEABLE, EMU_PINNED, EMU_DEVICE };
/* What is at [p, p + bytes). False: it reaches beyond its allocation, or has been freed. */
bool emu_memory_at(const void *p, size_t bytes, enum emu_memory *kind);
/* Something was written beside an allocation: says so in the report. */
bool emu_memory_overrun(const char *who);
/* Device memory is for kernels and copies only, where emu_protect asks for that. */
void emu_memory_open(void);
void emu_memory_close(void);

#endif
