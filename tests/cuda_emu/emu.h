/* How tests steer the emulated device, and what it found. Everything else is the CUDA API (include/) and device code
 * (kernels/cuda/cu.h). All calls are thread-safe. */
#ifndef CUDA_EMU_EMU_H
#define CUDA_EMU_EMU_H

#include <cuda_runtime.h>

#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In what order threads, blocks and streams run. A schedule and a seed give the same run again. */
enum emu_order {
	EMU_FORWARD, /* warps and lanes ascending */
	EMU_REVERSE, /* descending */
	EMU_STRIDED, /* every other lane and warp first */
	EMU_AHEAD,   /* one warp of each block runs as far ahead as barriers allow */
	EMU_RANDOM,  /* warps also change places after each operation of a warp */
};
enum { EMU_ORDERS = EMU_RANDOM + 1 };
void emu_schedule(enum emu_order order, u64 seed);
/* "forward", "ahead:17", as in the variable CUDA_EMU_SCHEDULE, which is read at the start. False: not understood. */
bool emu_schedule_parse(const char *text);
const char *emu_order_name(enum emu_order order);

/* What was wrong with the last kernel that was stopped: several lines, "" if none was since the last clear. The
 * error of that kernel stays with the device, as on a real one, until cudaDeviceReset. */
const char *emu_report(void);
void emu_report_clear(void);

/* The nth next call of that name fails with `error`: "cudaMalloc", "cublasLtMatmul", "ncclAllReduce", "launch" (any
 * kernel) or a kernel's name as LAUNCH has it. An error that a device does not get over (cudaErrorIllegalAddress,
 * ...) stays until cudaDeviceReset. CUDA_EMU_INJECT: "CALL:NTH:ERROR,...". */
void emu_inject(const char *name, u32 nth, int error);
void emu_inject_clear(void);
bool emu_inject_parse(const char *text);

/* Memory of the emulated device (4 GiB at first; CUDA_EMU_MEMORY). */
void emu_memory_size(size_t bytes);
/* Device memory can be touched by kernels and copies only; a host that reads it dies of it. CUDA_EMU_PROTECT. */
void emu_protect(bool on);
/* From now on a thread of its own runs the device's work, while the host goes on, until the process ends. Without it
 * work runs in calls that wait. CUDA_EMU_THREAD. */
void emu_device_thread(void);

struct emu_counts {
	u64 launches, blocks, switches, warp_ops;
};
struct emu_counts emu_counts(void);

#ifdef __cplusplus
}
#endif
#endif
