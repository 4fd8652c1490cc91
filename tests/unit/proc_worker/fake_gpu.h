/* Stands in for the engine of a device (proc_worker/gpu/gpu.h): steps take the time that the test says, hang, fail, and
 * sample tokens that say which row and which tokens they come from. For tests of what is around it. */
#ifndef TERCET_TESTS_FAKE_GPU_H
#define TERCET_TESTS_FAKE_GPU_H

#include <stdatomic.h>

#include "proc_worker/gpu/gpu.h"

enum { FAKE_GPU_BLOCKS = 128 };

struct fake_gpu {
	/* What the test sets, before the steps that it is meant for. Steps count from 1; 0: none. */
	_Atomic u64 step_us;
	_Atomic u64 hang_at;	/* that step ends with gpu_abort only */
	_Atomic u64 held_from;	/* that step and those behind it do not end before this is set anew */
	_Atomic u64 record_at;	/* gpu_recorded says so */
	_Atomic bool stubborn;	/* not even then */
	_Atomic u64 fail_at;	/* gpu_wait says so */
	_Atomic u64 refuse_at;	/* gpu_forward says so */
	_Atomic bool unsupported; /* gpu_check says so */
	_Atomic bool no_host_blocks; /* gpu_take_host_blocks says so */
	/* What it counts. */
	_Atomic u32 aborts, begins, created, destroyed, sampled, host_blocks;
};
extern struct fake_gpu fake_gpu;

/* The token that row `seq` gets as output number `position`. */
u32 fake_gpu_token(u64 seq, u32 position, u32 vocab);

#endif
