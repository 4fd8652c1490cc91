/* All checks of device kernels on the emulated device, under several schedules of its threads. One seed for all: what
 * differs is the order of threads alone. */
#include <stdio.h>

#include "common/clock.h"
#include "tests/cuda_emu/emu.h"
#include "tests/kern/device.h"

static void run(u64 seed, const char *schedule, struct check *all)
{
	static struct device d;
	const u64 began = clock_now_ns();
	device_init(&d, seed);
	d.schedule = schedule;
	device_linear(&d);
	device_matmul(&d);
	device_attention(&d);
	device_heads(&d);
	device_sampling(&d);
	device_step(&d);
	device_moe(&d);
	device_recurrent(&d);
	device_fini(&d);
	check_add(all, &d.check);
	printf("cuda, emulated, %s: %u passed, %u failed, %.1f s\n", schedule, d.check.passed, d.check.failed,
	       (double)(clock_now_ns() - began) * 1e-9);
	fflush(stdout);
}

bool device_schedules(u64 seed, const char *only, struct check *all)
{
	static const char *const schedules[] = {"forward", "reverse", "ahead:1", "random:2"};
	for (u32 i = 0; i < (only ? 1 : COUNT_OF(schedules)); i++) {
		const char *schedule = only ? only : schedules[i];
		if (!emu_schedule_parse(schedule))
			return false;
		run(seed, schedule, all);
	}
	return true;
}
